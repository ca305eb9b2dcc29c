"""What users call: functions with NumPy's names and meaning on tensors, each one node or a few.

Importing this module fills the tables with the operators that come with the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..errors import BadTensor
from . import contracting, elementwise, reducing, shaping  # noqa: F401  (they fill the tables)
from .tables import FUNCTIONS
from .tensor import Tensor, TensorLike, apply, constant, show

Axis = int | Sequence[int] | None


def as_tensor(value: TensorLike) -> Tensor:
    """Return ``value``, or the constant that holds it."""
    return value if isinstance(value, Tensor) else constant(value)


def add(left: TensorLike, right: TensorLike) -> Tensor:
    """Return ``left + right``, broadcast."""
    return apply("add", left, right)


def multiply(left: TensorLike, right: TensorLike) -> Tensor:
    """Return ``left * right``, broadcast."""
    return apply("multiply", left, right)


def exp(value: TensorLike) -> Tensor:
    """Return e to the power of each element."""
    return apply("exp", value)


def log(value: TensorLike) -> Tensor:
    """Return the natural logarithm of each element."""
    return apply("log", value)


def tanh(value: TensorLike) -> Tensor:
    """Return the hyperbolic tangent of each element."""
    return apply("tanh", value)


def maximum(left: TensorLike, right: TensorLike) -> Tensor:
    """Return the larger of two elements; where both are equal the derivative goes to ``left``."""
    return apply("maximum", left, right)


def matmul(left: TensorLike, right: TensorLike) -> Tensor:
    """Return the matrix product over the last two dimensions, the ones before broadcast."""
    return apply("matmul", left, right)


def reshape(value: TensorLike, shape: int | Sequence[int]) -> Tensor:
    """Return the same elements in another shape; one length may be -1.

    Raises:
        BadTensor: the number of elements differs.
    """
    tensor = as_tensor(value)
    lengths = [int(length) for length in ((shape,) if isinstance(shape, int) else shape)]
    if lengths.count(-1) == 1:
        rest = prod(length for length in lengths if length != -1)
        if rest == 0 or tensor.size % rest:
            raise BadTensor(
                f"reshape: {show(tensor.shape)} has {tensor.size} elements, no shape {show(lengths)} fits"
            )
        lengths[lengths.index(-1)] = tensor.size // rest
    return tensor if tuple(lengths) == tensor.shape else apply("reshape", tensor, shape=tuple(lengths))


def transpose(value: TensorLike, axes: Sequence[int] | None = None) -> Tensor:
    """Return the dimensions in the order ``axes``, by default reversed."""
    tensor = as_tensor(value)
    order = range(tensor.ndim)[::-1] if axes is None else [axis + tensor.ndim * (axis < 0) for axis in axes]
    return apply("transpose", tensor, axes=tuple(order))


def broadcast_to(value: TensorLike, shape: Sequence[int]) -> Tensor:
    """Return ``value`` repeated to ``shape``."""
    return apply("broadcast_to", value, shape=tuple(shape))


def sum(value: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the sum over ``axis``, by default over all."""
    tensor = as_tensor(value)
    return apply("sum", tensor, axis=axes_of(tensor, axis), keepdims=keepdims)


def mean(value: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the mean over ``axis``, by default over all."""
    tensor = as_tensor(value)
    count = prod(tensor.shape[each] for each in axes_of(tensor, axis))
    return sum(tensor, axis, keepdims) / count


def axes_of(value: Tensor, axis: Axis) -> tuple[int, ...]:
    """Return ``axis`` as the sorted axes, from 0 on, that it means for ``value``; None means all."""
    if axis is None:
        return tuple(range(value.ndim))
    named = (axis,) if isinstance(axis, (int, np.integer)) else tuple(axis)
    for each in named:
        if not -value.ndim <= each < value.ndim:
            raise BadTensor(f"axis {each} is out of range for the shape {show(value.shape)}")
    return tuple(sorted(int(each) % value.ndim for each in named))


def getitem(value: TensorLike, index: Any) -> Tensor:
    """Return what NumPy's basic indexing selects."""
    raise NotImplementedError


FUNCTIONS.update(
    {
        name: globals()[name]
        for name in ("getitem", "matmul", "mean", "reshape", "sum", "transpose", "broadcast_to")
    }
)
