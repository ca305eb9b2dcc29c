"""Functions with NumPy's names that move elements: shapes, axes, slices, joining, and picking by numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import BadTensor
from .arguments import Axis, as_tensor, axes_of, axis_of, fits, ids_of, lengths_of, plain_lengths, sequence_of
from .elementwise import broadcast
from .tensor import Tensor, TensorLike, apply, brief, constant, show


def reshape(value: TensorLike, shape: int | Sequence[int]) -> Tensor:
    """Return the same elements in another shape; one length may be -1.

    Raises:
        BadTensor: the number of elements differs.
    """
    tensor = as_tensor(value)
    lengths = lengths_of("reshape", tensor.size, shape)
    return tensor if lengths == tensor.shape else apply("reshape", tensor, shape=lengths)


def ravel(value: TensorLike) -> Tensor:
    """Return all elements in one row."""
    return reshape(value, -1 if as_tensor(value).size else 0)


def transpose(value: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """Return the dimensions in the order ``axes``, by default reversed."""
    tensor = as_tensor(value)
    given = range(tensor.ndim)[::-1] if axes is None else sequence_of("transpose", "the axes are", axes)
    order = tuple(axis_of("transpose", tensor.shape, axis) for axis in given)
    return tensor if order == tuple(range(tensor.ndim)) else apply("transpose", tensor, axes=order)


def swapaxes(value: TensorLike, axis1: int, axis2: int) -> Tensor:
    """Return two dimensions in each other's place."""
    tensor = as_tensor(value)
    order = list(range(tensor.ndim))
    one, two = (axis_of("swapaxes", tensor.shape, each) for each in (axis1, axis2))
    order[one], order[two] = two, one
    return transpose(tensor, order)


def moveaxis(value: TensorLike, source: int, destination: int) -> Tensor:
    """Return one dimension moved to another place, the others in their order."""
    tensor = as_tensor(value)
    order = list(range(tensor.ndim))
    moved = order.pop(axis_of("moveaxis", tensor.shape, source))
    order.insert(axis_of("moveaxis", tensor.shape, destination), moved)
    return transpose(tensor, order)


def expand_dims(value: TensorLike, axis: int | Sequence[int]) -> Tensor:
    """Return ``value`` with dimensions of length 1 at ``axis`` of the result."""
    tensor = as_tensor(value)
    count = tensor.ndim + (1 if isinstance(axis, (int, np.integer)) else len(axis))
    new = axes_of("expand_dims", (1,) * count, axis)
    rest = iter(tensor.shape)
    return reshape(tensor, [1 if at in new else next(rest) for at in range(count)])


def squeeze(value: TensorLike, axis: Axis = None) -> Tensor:
    """Return ``value`` without the dimensions ``axis``, by default without all of length 1."""
    tensor = as_tensor(value)
    if axis is None:
        return reshape(tensor, [length for length in tensor.shape if length != 1])
    gone = axes_of("squeeze", tensor.shape, axis)
    for each in gone:
        if tensor.shape[each] != 1:
            raise BadTensor(
                f"squeeze: axis {each} of {show(tensor.shape)} has the length {tensor.shape[each]}, not 1"
            )
    return reshape(tensor, [length for at, length in enumerate(tensor.shape) if at not in gone])


def broadcast_to(value: TensorLike, shape: int | Sequence[int]) -> Tensor:
    """Return ``value`` repeated to ``shape``."""
    tensor = as_tensor(value)
    lengths = plain_lengths("broadcast_to", shape)
    return tensor if lengths == tensor.shape else apply("broadcast_to", tensor, shape=lengths)


def zeros_like(value: TensorLike) -> Tensor:
    """Return zeros in the shape and dtype of ``value``."""
    tensor = as_tensor(value)
    return broadcast_to(constant(np.zeros((), tensor.dtype)), tensor.shape)


def ones_like(value: TensorLike) -> Tensor:
    """Return ones in the shape and dtype of ``value``."""
    tensor = as_tensor(value)
    return broadcast_to(constant(np.ones((), tensor.dtype)), tensor.shape)


def flip(value: TensorLike, axis: Axis = None) -> Tensor:
    """Return the elements in reverse order along ``axis``, by default along all."""
    tensor = as_tensor(value)
    turned = axes_of("flip", tensor.shape, axis)
    return _sliced(
        tensor,
        [(n - 1, -1, n) if at in turned and n else (0, 1, n) for at, n in enumerate(tensor.shape)],
    )


def pad(value: TensorLike, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Tensor:
    """Return ``value`` with ``constant_values`` around it; ``pad_width`` is n, (before, after), or such a pair per axis."""
    tensor = as_tensor(value)
    if mode != "constant":
        raise BadTensor(f"pad: the mode is 'constant', got {mode!r}")
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (tensor.ndim, 2))
    except ValueError:
        raise BadTensor(
            f"pad: {show(tensor.shape)} wants n, (before, after) or such a pair per axis, got {brief(pad_width)}"
        ) from None
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise BadTensor(f"pad: widths are integers from 0 on, got {brief(pad_width)}")
    if not fits(constant_values, tensor.dtype):
        raise BadTensor(f"pad: {brief(constant_values)} is no {tensor.dtype}")
    if not widths.any():
        return tensor
    spans = tuple((int(before), 1, n) for (before, _), n in zip(widths, tensor.shape, strict=True))
    shape = tuple(int(before + n + after) for (before, after), n in zip(widths, tensor.shape, strict=True))
    return apply("place", tensor, shape=shape, spans=spans, fill=constant_values)


def concatenate(values: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Return the values joined along an axis that they have."""
    tensors = [as_tensor(each) for each in sequence_of("concatenate", "the values are", values)]
    if not tensors:
        raise BadTensor("concatenate: at least one tensor is wanted, got none")
    at = axis_of("concatenate", tensors[0].shape, axis)
    return tensors[0] if len(tensors) == 1 else apply("concatenate", *tensors, axis=at)


def stack(values: Sequence[TensorLike], axis: int = 0) -> Tensor:
    """Return the values, all of one shape, along a new axis."""
    tensors = [as_tensor(each) for each in sequence_of("stack", "the values are", values)]
    if not tensors:
        raise BadTensor("stack: at least one tensor is wanted, got none")
    for each in tensors:
        if each.shape != tensors[0].shape:
            raise BadTensor(f"stack: the shapes {show(tensors[0].shape)} and {show(each.shape)} differ")
    return concatenate([expand_dims(each, axis) for each in tensors], axis)


def split(value: TensorLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Return equal parts along an axis (their number is given), or the parts between the places given."""
    tensor = as_tensor(value)
    at = axis_of("split", tensor.shape, axis)
    length = tensor.shape[at]
    if isinstance(indices_or_sections, (int, np.integer)):
        count = int(indices_or_sections)
        if count < 1 or length % count:
            raise BadTensor(f"split: axis {at} of {show(tensor.shape)} has no {count} equal parts")
        cuts = list(range(0, length + 1, length // count)) if length else [0] * (count + 1)
    else:
        places = sequence_of("split", "a number or places are wanted,", indices_or_sections)
        if not all(isinstance(each, (int, np.integer)) for each in places):
            raise BadTensor(f"split: places are integers, got {brief(places)}")
        cuts = [0, *(slice(None, each).indices(length)[1] for each in places), length]
    before = (slice(None),) * at
    return [getitem(tensor, (*before, slice(one, two))) for one, two in pairwise(cuts)]


def take(value: TensorLike, indices: TensorLike, axis: int | None = None) -> Tensor:
    """Return the parts along ``axis`` that the integers ``indices`` name; without an axis, elements of all in one row.

    Raises:
        BadTensor: an index that is known now is out of range.  One that is known when the graph runs must be from 0 on,
            and raises OutOfRange then.
    """
    tensor = as_tensor(value) if axis is not None else ravel(value)
    at = axis_of("take", tensor.shape, 0 if axis is None else axis)
    return apply("take", tensor, ids_of("take", indices, tensor.shape[at]), axis=at)


def take_along_axis(value: TensorLike, indices: TensorLike, axis: int) -> Tensor:
    """Return, for each row along ``axis``, the elements that its row of ``indices`` names; raises as ``take`` does."""
    tensor = as_tensor(value)
    at = axis_of("take_along_axis", tensor.shape, axis)
    ids = ids_of("take_along_axis", indices, tensor.shape[at])
    if ids.ndim == tensor.ndim:
        mine, theirs = list(tensor.shape), list(ids.shape)
        mine[at] = theirs[at] = 1
        if mine != theirs:  # the other dimensions are broadcast, as in NumPy
            rest = list(broadcast("take_along_axis", mine, theirs))
            tensor = broadcast_to(tensor, [*rest[:at], tensor.shape[at], *rest[at + 1 :]])
            ids = broadcast_to(ids, [*rest[:at], ids.shape[at], *rest[at + 1 :]])
    return apply("take_along_axis", tensor, ids, axis=at)


def getitem(value: TensorLike, index: Any) -> Tensor:
    """Return ``value[index]``: integers, slices, ``...`` and None as in NumPy; one array of integers, beside slices.

    Raises:
        BadTensor: an index is out of range, there are more than dimensions, or it is of another kind.
    """
    tensor = as_tensor(value)
    parts = _without_ellipsis(tensor, index if isinstance(index, tuple) else (index,))
    spans: list[tuple[int, int, int]] = []
    lengths: list[int] = []
    picked: list[tuple[int, Any]] = []
    for part in parts:
        if part is None:
            lengths.append(1)
            continue
        at = len(spans)
        length = tensor.shape[at]
        if isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_)):
            if not -length <= part < length:
                raise BadTensor(
                    f"getitem: index {part} is out of range for axis {at} of {show(tensor.shape)}"
                )
            spans.append((int(part) % length, 1, 1))
        elif isinstance(part, slice):
            spans.append(_span(part, length))
            lengths.append(spans[-1][2])
        else:
            spans.append((0, 1, length))
            picked.append((at, part))
    if not picked:
        return reshape(_sliced(tensor, spans), lengths)
    if len(picked) > 1 or len(lengths) != tensor.ndim - 1 or any(part is None for part in parts):
        raise BadTensor(
            "getitem: an array of integers may stand beside slices only; for one element of each row use take_along_axis"
        )
    ((axis, ids),) = picked
    return take(_sliced(tensor, spans), _as_ids(ids), axis)


def _without_ellipsis(tensor: Tensor, index: tuple[Any, ...]) -> list[Any]:
    """Return the index with one part for each dimension, and None where there is to be a new one."""
    dots = [at for at, part in enumerate(index) if part is Ellipsis]
    named = sum(1 for part in index if part is not None and part is not Ellipsis)
    if len(dots) > 1 or named > tensor.ndim:
        raise BadTensor(
            f"getitem: {show(tensor.shape)} takes {tensor.ndim} indices and one '...', got {len(index)}"
        )
    rest = [slice(None)] * (tensor.ndim - named)
    at = dots[0] if dots else len(index)
    return [*index[:at], *rest, *index[at + 1 :]]


def _span(part: slice, length: int) -> tuple[int, int, int]:
    try:
        start, stop, step = part.indices(length)
    except (TypeError, ValueError):
        raise BadTensor(f"getitem: a slice has integers and a step that is not 0, got {part}") from None
    return start, step, len(range(start, stop, step))


def _as_ids(part: Any) -> Any:
    kind = part.dtype.kind if isinstance(part, Tensor) else np.asarray(part).dtype.kind
    if kind == "b":
        raise BadTensor("getitem: truth values would make a shape that depends on values; use where")
    if kind not in "iu" and not (isinstance(part, list) and not part):
        raise BadTensor(
            f"getitem: an index is an integer, a slice, '...', None or integers, got {brief(part)}"
        )
    return part


def _sliced(tensor: Tensor, spans: Sequence[tuple[int, int, int]]) -> Tensor:
    whole = all(span == (0, 1, length) for span, length in zip(spans, tensor.shape, strict=True))
    return tensor if whole else apply("slice", tensor, spans=tuple(spans))
