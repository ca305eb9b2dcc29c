"""Operators that multiply and add along an axis: matrix products and convolutions, where the time goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadTensor
from .elementwise import unbroadcast
from .tables import Traits, define
from .tensor import Tensor, apply, show


def _matmul_rule(left: Tensor, right: Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shapes = f"matmul: {show(left.shape)} x {show(right.shape)}"
    if left.ndim < 2 or right.ndim < 2:
        raise BadTensor(f"{shapes}: both need at least two dimensions; reshape a vector to a row or a column")
    if left.shape[-1] != right.shape[-2]:
        raise BadTensor(f"{shapes}: inner dimensions {left.shape[-1]} and {right.shape[-2]} differ")
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise BadTensor(f"{shapes}: the leading dimensions do not broadcast together") from None
    return (*batch, left.shape[-2], right.shape[-1]), np.result_type(left.dtype, right.dtype)


def swapped(value: Tensor) -> Tensor:
    """Return the last two dimensions in the other order."""
    axes = (*range(value.ndim - 2), value.ndim - 1, value.ndim - 2)
    return apply("transpose", value, axes=axes)


define(
    "matmul", shape=_matmul_rule, kernels={"numpy": lambda node: np.matmul},
    traits=Traits(flops=lambda node: 2 * node.size * node.inputs[0].shape[-1]),
    gradient=lambda node, g, a, b: (unbroadcast(g @ swapped(b), a), unbroadcast(swapped(a) @ g, b)),
)  # fmt: skip
