"""Functions with NumPy's names that multiply and add: each comes to transposes, reshapes and one ``matmul``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from ..errors import BadTensor
from .arguments import as_tensor, axis_of
from .rearranging import reshape, transpose
from .tensor import Tensor, TensorLike, apply, astype, brief, show


def matmul(left: TensorLike, right: TensorLike) -> Tensor:
    """Return the matrix product over the last two dimensions, the ones before broadcast; a vector is a row or a column.

    Raises:
        BadTensor: the inner dimensions differ, the leading ones do not broadcast, or one is a number.
    """
    a, b = as_tensor(left), as_tensor(right)
    if a.ndim == 0 or b.ndim == 0:
        raise BadTensor(
            f"matmul: {show(a.shape)} x {show(b.shape)}: a number has no dimensions; use multiply"
        )
    if a.ndim == 1 or b.ndim == 1:
        rows = reshape(a, (1, *a.shape)) if a.ndim == 1 else a
        columns = reshape(b, (*b.shape, 1)) if b.ndim == 1 else b
        made = matmul(rows, columns)
        lengths = list(made.shape)
        if b.ndim == 1:
            del lengths[-1]
        if a.ndim == 1:
            del lengths[-1 if b.ndim == 1 else -2]
        return reshape(made, lengths)
    if b.ndim == 2 and a.ndim > 2 and a.shape[-1] == b.shape[0]:
        # One product of tall matrices: faster than one for each, and so is its gradient by the right side.
        flat = reshape(a, (prod(a.shape[:-1]), a.shape[-1]))
        return reshape(apply("matmul", flat, b), (*a.shape[:-1], b.shape[1]))
    return apply("matmul", a, b)


def dot(left: TensorLike, right: TensorLike) -> Tensor:
    """Return the sum of products over the last axis of ``left`` and the last but one of ``right`` (its only one)."""
    a, b = as_tensor(left), as_tensor(right)
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    return tensordot(a, b, ((-1,), (-1 if b.ndim == 1 else -2,)))


def tensordot(
    left: TensorLike, right: TensorLike, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2
) -> Tensor:
    """Return the sum of products over ``axes``: the last n and the first n, or the axes of each that belong together."""
    a, b = as_tensor(left), as_tensor(right)
    shapes = f"tensordot: {show(a.shape)} x {show(b.shape)}"
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise BadTensor(f"{shapes}: they do not have {axes} axes each")
        mine, theirs = list(range(a.ndim - axes, a.ndim)), list(range(axes))
    else:
        one, two = ([each] if isinstance(each, int) else list(each) for each in axes)
        mine = [axis_of("tensordot", a.shape, axis) for axis in one]
        theirs = [axis_of("tensordot", b.shape, axis) for axis in two]
    if len(set(mine)) < len(mine) or len(set(theirs)) < len(theirs):
        raise BadTensor(f"{shapes}: an axis is named twice in {tuple(mine)} and {tuple(theirs)}")
    if len(mine) != len(theirs) or [a.shape[at] for at in mine] != [b.shape[at] for at in theirs]:
        raise BadTensor(f"{shapes}: the axes {tuple(mine)} and {tuple(theirs)} differ in number or length")
    letters = [chr(at) for at in range(0x100, 0x100 + a.ndim + b.ndim)]
    right_letters = letters[a.ndim :]
    for at, other in zip(mine, theirs, strict=True):
        right_letters[other] = letters[at]
    kept = [letters[at] for at in range(a.ndim) if at not in mine]
    kept += [right_letters[at] for at in range(b.ndim) if at not in theirs]
    return _contracted(a, letters[: a.ndim], b, right_letters, kept)


def einsum(subscripts: str, *operands: TensorLike) -> Tensor:
    """Return the sum of products that ``subscripts`` say, as ``"bqd,bkd->bqk"``: one letter per axis, no ``...``.

    Operands are taken in pairs from the left, each pair one ``matmul``.

    Raises:
        BadTensor: the subscripts do not fit the operands, or repeat a letter within one.
    """
    if not isinstance(subscripts, str):
        raise BadTensor(f"einsum: subscripts are a string such as 'ij,jk->ik', got {brief(subscripts)}")
    tensors = [as_tensor(each) for each in operands]
    given, arrow, wanted = subscripts.replace(" ", "").partition("->")
    terms = given.split(",")
    if not arrow:
        letters = given.replace(",", "")
        wanted = "".join(sorted(each for each in set(letters) if letters.count(each) == 1))
    _check_subscripts(subscripts, terms, wanted, tensors)
    made, mine = tensors[0], list(terms[0])
    for at in range(1, len(tensors)):
        later = {letter for term in (*terms[at + 1 :], wanted) for letter in term}
        kept = [each for each in dict.fromkeys([*mine, *terms[at]]) if each in later]
        made, mine = _contracted(made, mine, tensors[at], list(terms[at]), kept), kept
    made, mine = _summed(made, mine, wanted)
    return transpose(made, [mine.index(letter) for letter in wanted])


def _check_subscripts(subscripts: str, terms: list[str], wanted: str, tensors: list[Tensor]) -> None:
    if len(terms) != len(tensors):
        raise BadTensor(f"einsum {subscripts!r}: {len(terms)} operands are wanted, got {len(tensors)}")
    lengths: dict[str, tuple[int, Tensor]] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        if len(term) != tensor.ndim or len(set(term)) < len(term) or not (term.isalpha() or not term):
            raise BadTensor(
                f"einsum {subscripts!r}: {term!r} must have one letter, each once, for every axis of {show(tensor.shape)}"
            )
        for letter, length in zip(term, tensor.shape, strict=True):
            found, other = lengths.setdefault(letter, (length, tensor))
            if found != length:
                raise BadTensor(
                    f"einsum {subscripts!r}: {letter} is {found} in {show(other.shape)} and {length} in {show(tensor.shape)}"
                )
    if len(set(wanted)) < len(wanted) or not set(wanted) <= set(lengths):
        raise BadTensor(
            f"einsum {subscripts!r}: the result {wanted!r} must have letters of the operands, each once"
        )


def _summed(value: Tensor, letters: Sequence[str], kept: Collection[str]) -> tuple[Tensor, list[str]]:
    """Return ``value`` summed over the axes whose letters are not kept, in its dtype, and the letters that remain."""
    gone = tuple(at for at, letter in enumerate(letters) if letter not in kept)
    summed = apply("sum", value, axis=gone, keepdims=False) if gone else value
    return astype(summed, value.dtype), [letter for letter in letters if letter in kept]


def _contracted(
    a: Tensor, mine: Sequence[str], b: Tensor, theirs: Sequence[str], kept: Sequence[str]
) -> Tensor:
    """Return the sum of products over the letters that are not kept, with the axes in the order of ``kept``."""
    a, mine = _summed(a, mine, {*theirs, *kept})
    b, theirs = _summed(b, theirs, {*mine, *kept})
    batch = [letter for letter in mine if letter in theirs and letter in kept]
    inner = [letter for letter in mine if letter in theirs and letter not in kept]
    rows = [letter for letter in mine if letter not in theirs]
    columns = [letter for letter in theirs if letter not in mine]
    lengths = {**dict(zip(mine, a.shape, strict=True)), **dict(zip(theirs, b.shape, strict=True))}

    def size(letters: Sequence[str]) -> int:
        return prod(lengths[letter] for letter in letters)

    left = transpose(a, [mine.index(letter) for letter in (*batch, *rows, *inner)])
    right = transpose(b, [theirs.index(letter) for letter in (*batch, *inner, *columns)])
    leading = [lengths[letter] for letter in batch]
    product = apply(
        "matmul",
        reshape(left, (*leading, size(rows), size(inner))),
        reshape(right, (*leading, size(inner), size(columns))),
    )
    found = [*batch, *rows, *columns]
    shaped = reshape(product, [lengths[letter] for letter in found])
    return transpose(shaped, [found.index(letter) for letter in kept])
