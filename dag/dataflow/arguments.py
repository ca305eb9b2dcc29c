"""Arguments as users write them, brought to the one form that operators take: axes from 0 on, lengths without -1, ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any

import numpy as np

from ..errors import BadTensor
from .tensor import Tensor, TensorLike, array_of, astype, brief, constant, show

Axis = int | Sequence[int] | None


def as_tensor(value: TensorLike) -> Tensor:
    """Return ``value``, or the constant that holds it."""
    return value if isinstance(value, Tensor) else constant(value)


def in_float32(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function of a tensor that computes between float16 and float16 in float32, and so does its gradient.

    Half precision ends at 65,504, which a sum over a row or a square soon passes where the result does not.
    """

    @wraps(function)
    def wide(value: TensorLike, *others: Any, **settings: Any) -> Tensor:
        tensor = as_tensor(value)
        if tensor.dtype != np.float16:
            return function(tensor, *others, **settings)
        return astype(function(astype(tensor, np.float32), *others, **settings), np.float16)

    return wide


def snapshot(value: Any) -> Any:
    """Return arrays and numbers as constants, anything else as it is; an array is copied, so it may change afterwards."""
    return constant(np.array(value)) if isinstance(value, (np.ndarray, np.generic, float, int)) else value


def axis_of(kind: str, shape: tuple[int, ...], axis: Any) -> int:
    """Return one axis from 0 on; raises BadTensor if ``shape`` has none such."""
    if isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer)):
        raise BadTensor(f"{kind}: an axis is an integer, got {brief(axis)}")
    if not -len(shape) <= axis < len(shape):
        raise BadTensor(f"{kind}: axis {axis} is out of range for the shape {show(shape)}")
    return int(axis) % len(shape)


def axes_of(kind: str, shape: tuple[int, ...], axis: Axis) -> tuple[int, ...]:
    """Return the sorted axes from 0 on that ``axis`` means; None means all."""
    if axis is None:
        return tuple(range(len(shape)))
    if isinstance(axis, (int, np.integer)):
        return (axis_of(kind, shape, axis),)
    if not isinstance(axis, Sequence) or isinstance(axis, str):
        raise BadTensor(f"{kind}: an axis is an integer, a tuple of them or None, got {brief(axis)}")
    axes = sorted(axis_of(kind, shape, each) for each in axis)
    if len(set(axes)) < len(axes):
        raise BadTensor(f"{kind}: an axis is named twice in {tuple(axis)}")
    return tuple(axes)


def sequence_of(kind: str, what: str, values: Any) -> list[Any]:
    """Return ``values`` as a list; raises BadTensor if there is only one."""
    try:
        return list(values)
    except TypeError:
        raise BadTensor(f"{kind}: {what} a sequence, got {brief(values)}") from None


def fits(value: Any, dtype: Any) -> bool:
    """Return whether a Python number, or a NumPy scalar, keeps its meaning in ``dtype``; 0 and 1 are truth values too."""
    if not isinstance(value, (bool, int, float, np.number, np.bool_)):
        return False
    if np.dtype(dtype).kind == "b":
        return value in (0, 1)
    try:
        return bool(np.result_type(dtype, value) == dtype)
    except OverflowError:
        return False


def plain_lengths(kind: str, shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple; raises BadTensor unless its lengths are integers from 0 on."""
    given = tuple(shape) if isinstance(shape, (Sequence, np.ndarray)) else (shape,)
    if not all(isinstance(each, (int, np.integer)) and each >= 0 for each in given):
        raise BadTensor(f"{kind}: a shape has lengths from 0 on, got {given}")
    return tuple(int(each) for each in given)


def lengths_of(kind: str, size: int, shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return ``shape`` with a length of -1 replaced by the one that makes ``size`` elements.

    Raises:
        BadTensor: there is no such length, or a length is no integer from 0 on.
    """
    given = tuple(shape) if isinstance(shape, (Sequence, np.ndarray)) else (shape,)
    if not all(isinstance(each, (int, np.integer)) and each >= -1 for each in given) or given.count(-1) > 1:
        raise BadTensor(f"{kind}: a shape has lengths from 0 on, at most one of them -1, got {given}")
    lengths = [int(each) for each in given]
    if -1 in lengths:
        rest = prod(length for length in lengths if length != -1)
        if rest == 0 or size % rest:
            raise BadTensor(f"{kind}: no length in place of -1 makes {size} elements of {show(lengths)}")
        lengths[lengths.index(-1)] = size // rest
    return tuple(lengths)


def pair_of(kind: str, name: str, value: Any) -> tuple[int, int]:
    """Return one number or two, for height and width, as two."""
    both = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(both) != 2 or not all(isinstance(each, (int, np.integer)) for each in both):
        raise BadTensor(f"{kind}: {name} is an integer, or two for height and width, got {brief(value)}")
    return int(both[0]), int(both[1])


def ids_of(kind: str, ids: TensorLike, length: int) -> Tensor:
    """Return ids as a tensor; those known now are checked now, and negative ones count from the end as in NumPy."""
    if isinstance(ids, Tensor):
        return ids
    array = array_of(ids)
    if array.size == 0 and not isinstance(ids, (np.ndarray, np.generic)):
        array = array.astype(np.intp)
    if array.dtype.kind not in "iu":
        raise BadTensor(f"{kind}: the ids are integers, got {array.dtype}; use astype")
    if array.size and (array.min() < -length or array.max() >= length):
        wrong = array[(array < -length) | (array >= length)].flat[0]
        raise BadTensor(f"{kind}: id {wrong} is outside 0 to {length - 1}")
    return constant(np.where(array < 0, array + length, array) if array.dtype.kind == "i" else array)
