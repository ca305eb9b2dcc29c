"""Operators that fold elements: sums along axes, and the sum back to a shape that was broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadTensor
from .tables import Traits, define
from .tensor import Tensor, apply, show

ADD: Any = np.add.reduce
REDUCING = Traits(flops=lambda node: node.inputs[0].size)


def _reduced(kind: str) -> Any:
    """Shape rule of a reduction over ``axis``, a sorted tuple of axes from 0 on."""

    def rule(
        value: Tensor, *, axis: tuple[int, ...], keepdims: bool
    ) -> tuple[tuple[int, ...], np.dtype[Any]]:
        if any(not 0 <= each < value.ndim for each in axis) or len(set(axis)) < len(axis):
            raise BadTensor(f"{kind}: {show(value.shape)} has no axes {axis}, or one is named twice")
        kept = tuple(1 if at in axis else length for at, length in enumerate(value.shape))
        shape = kept if keepdims else tuple(length for at, length in enumerate(value.shape) if at not in axis)
        return shape, value.dtype if value.dtype.kind == "f" else np.dtype(np.int64)

    return rule


def spread(node: Tensor, cotangent: Tensor, like: Tensor) -> Tensor:
    """Return the cotangent of a reduction ``node`` in the shape of its input ``like``."""
    axis = node.op.attributes["axis"]
    kept = tuple(1 if at in axis else length for at, length in enumerate(like.shape))
    back = cotangent if cotangent.shape == kept else apply("reshape", cotangent, shape=kept)
    return back if kept == like.shape else apply("broadcast_to", back, shape=like.shape)


def _sum_kernel(node: Tensor) -> Any:
    axis, keepdims = node.op.attributes["axis"], node.op.attributes["keepdims"]
    return lambda value, out=None: ADD(value, axis, node.dtype, out, keepdims)


def _sum_to_rule(value: Tensor, *, shape: tuple[int, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        fits = np.broadcast_shapes(value.shape, shape) == value.shape
    except ValueError:
        fits = False
    if not fits:
        raise BadTensor(f"sum_to: {show(shape)} does not broadcast to {show(value.shape)}")
    return shape, value.dtype


def _sum_to_kernel(node: Tensor) -> Any:
    given = node.inputs[0].shape
    lead = len(given) - len(node.shape)
    axes = tuple(
        at for at, length in enumerate(given) if at < lead or (node.shape[at - lead] == 1 and length != 1)
    )
    kept = tuple(1 if at in axes else length for at, length in enumerate(given))

    def kernel(value: Any, out: Any = None) -> Any:
        if out is None:
            return ADD(value, axes, keepdims=True).reshape(node.shape)
        ADD(value, axes, None, out.reshape(kept), True)
        return out

    return kernel


define(
    "sum", shape=_reduced("sum"), kernels={"numpy": _sum_kernel}, traits=REDUCING,
    gradient=lambda node, g, x: (spread(node, g, x),),
)  # fmt: skip
define(
    "sum_to", shape=_sum_to_rule, kernels={"numpy": _sum_to_kernel}, traits=REDUCING,
    gradient=lambda node, g, x: (apply("broadcast_to", g, shape=x.shape),),
)  # fmt: skip
