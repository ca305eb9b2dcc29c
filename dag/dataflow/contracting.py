"""The matrix product, where the time goes; what else multiplies and adds along an axis comes to it (see ``products``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadTensor
from .elementwise import Form, to_input, ufunc_dtype
from .tables import Traits, define
from .tensor import Tensor, apply, show


def _matmul_rule(left: Tensor, right: Tensor) -> Form:
    if left.ndim < 2 or right.ndim < 2:
        raise BadTensor(
            f"matmul: {show(left.shape)} x {show(right.shape)}: both need at least two dimensions; "
            "reshape a vector to a row or a column"
        )
    if left.shape[-1] != right.shape[-2]:
        raise BadTensor(
            f"matmul: {show(left.shape)} x {show(right.shape)}: "
            f"inner dimensions {left.shape[-1]} and {right.shape[-2]} differ"
        )
    batch = left.shape[:-2]
    if batch != right.shape[:-2]:
        try:
            batch = np.broadcast_shapes(batch, right.shape[:-2])
        except ValueError:
            raise BadTensor(
                f"matmul: {show(left.shape)} x {show(right.shape)}: the leading dimensions do not broadcast together"
            ) from None
    return (*batch, left.shape[-2], right.shape[-1]), ufunc_dtype("matmul", (left.dtype, right.dtype))


def swapped(value: Tensor) -> Tensor:
    """Return the last two dimensions in the other order."""
    axes = (*range(value.ndim - 2), value.ndim - 1, value.ndim - 2)
    return apply("transpose", value, axes=axes)


def _matmul_gradient(node: Tensor, g: Tensor, a: Tensor, b: Tensor) -> tuple[Any, Any]:
    return (
        to_input(apply("matmul", g, swapped(b)), a),
        to_input(apply("matmul", swapped(a), g), b),
    )


define(
    "matmul", shape=_matmul_rule, kernels={"numpy": lambda node: np.matmul}, gradient=_matmul_gradient,
    traits=Traits(flops=lambda node: 2 * node.size * node.inputs[0].shape[-1]),
)  # fmt: skip
