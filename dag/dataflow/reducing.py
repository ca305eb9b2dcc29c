"""Operators that fold elements along axes: sums, extremes, running sums, and the sum back to a shape that was broadcast.

``axis`` is a sorted tuple of axes from 0 on (one axis for ``argmax``, ``argmin`` and ``cumsum``); an axis or tuple as users
write it is brought to that form in ``arguments``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import BadTensor
from .elementwise import Form, to_input, zero_of
from .tables import Kernel, KernelRule, Traits, define
from .tensor import DType, Tensor, apply, astype, show

ADD: Any = np.add.reduce
REDUCING = Traits(flops=lambda node: node.inputs[0].size)


@lru_cache(maxsize=256)
def sum_dtype(dtype: DType) -> DType:
    """Return the dtype of NumPy's sums: integers are summed in the widest of their kind."""
    found: DType = np.sum(np.zeros(0, dtype)).dtype
    return found


def kept(shape: tuple[int, ...], axis: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``shape`` with length 1 along the axes that a reduction folds."""
    return tuple([1 if at in axis else length for at, length in enumerate(shape)])


def _reduced(kind: str, dtype: Callable[[DType], DType], *, empty: bool = False) -> Callable[..., Form]:
    """Shape rule of a reduction; ``empty``: there is a result of no elements (a sum has one, a maximum has none)."""

    def rule(value: Tensor, *, axis: tuple[int, ...], keepdims: bool) -> Form:
        if any(not 0 <= each < value.ndim for each in axis) or len(set(axis)) < len(axis):
            raise BadTensor(f"{kind}: {show(value.shape)} has no axes {axis}, or one is named twice")
        if not empty and 0 in [value.shape[each] for each in axis]:
            raise BadTensor(f"{kind}: {show(value.shape)} has no elements along the axes {axis}")
        if keepdims:
            return kept(value.shape, axis), dtype(value.dtype)
        return tuple([n for at, n in enumerate(value.shape) if at not in axis]), dtype(value.dtype)

    return rule


def spread(node: Tensor, value: Tensor, like: Tensor) -> Tensor:
    """Return ``value``, which has the shape of the reduction ``node`` of ``like``, repeated to the shape of ``like``."""
    shape = kept(like.shape, node.op.attributes["axis"])
    # A number broadcasts as it is.
    back = value if value.shape in ((), shape) else apply("reshape", value, shape=shape)
    return back if back.shape == like.shape else apply("broadcast_to", back, shape=like.shape)


def _folding(reduce: Any) -> dict[str, KernelRule]:
    def rule(node: Tensor) -> Kernel:
        axis, keepdims, dtype = node.op.attributes["axis"], node.op.attributes["keepdims"], node.dtype
        return lambda value, out=None: reduce(value, axis, dtype, out, keepdims)

    return {"numpy": rule}


def _sum_to_rule(value: Tensor, *, shape: tuple[int, ...]) -> Form:
    try:
        fits = np.broadcast_shapes(value.shape, shape) == value.shape
    except ValueError:
        fits = False
    if not fits:
        raise BadTensor(f"sum_to: {show(shape)} does not broadcast to {show(value.shape)}")
    return shape, value.dtype


def _sum_to_kernel(node: Tensor) -> Kernel:
    given, shape, dtype = node.inputs[0].shape, node.shape, node.dtype
    lead = len(given) - len(shape)
    axes = tuple(
        at for at, length in enumerate(given) if length != 1 and (at < lead or shape[at - lead] == 1)
    )
    full = kept(given, axes)

    def kernel(value: Any, out: Any = None) -> Any:
        if not axes:  # nothing is added: NumPy would begin at 0, and 0 + -0.0 is 0
            out = np.empty(shape, dtype) if out is None else out
            np.copyto(out, value.reshape(shape))
            return out
        if out is None:
            return ADD(value, axes, dtype, None, True).reshape(shape)
        ADD(value, axes, dtype, out.reshape(full), True)
        return out

    return kernel


def _extreme_gradient(node: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor | None]:
    """Where several elements are the largest, they share the cotangent."""
    if x.dtype.kind != "f":
        return (None,)
    found = apply("equal", x, spread(node, node, x))
    count = apply("sum", astype(found, x.dtype), **node.op.attributes)
    return (apply("where", found, spread(node, g / count, x), zero_of(g.dtype)),)


def _arg_rule(kind: str) -> Callable[..., Form]:
    def rule(value: Tensor, *, axis: int) -> Form:
        if not 0 <= axis < value.ndim:
            raise BadTensor(f"{kind}: axis {axis} is out of range for the shape {show(value.shape)}")
        if value.shape[axis] == 0:
            raise BadTensor(f"{kind}: {show(value.shape)} has no elements along axis {axis}")
        return (*value.shape[:axis], *value.shape[axis + 1 :]), np.dtype(np.intp)

    return rule


def _arg_kernel(function: Any) -> dict[str, KernelRule]:
    def rule(node: Tensor) -> Kernel:
        axis = node.op.attributes["axis"]
        return lambda value, out=None: function(value, axis, out)

    return {"numpy": rule}


def _cumsum_rule(value: Tensor, *, axis: int, reverse: bool) -> Form:
    if not 0 <= axis < value.ndim:
        raise BadTensor(f"cumsum: axis {axis} is out of range for the shape {show(value.shape)}")
    return value.shape, sum_dtype(value.dtype)


def _cumsum_kernel(node: Tensor) -> Kernel:
    axis, reverse, dtype = node.op.attributes["axis"], node.op.attributes["reverse"], node.dtype

    def kernel(value: Any, out: Any = None) -> Any:
        if not reverse:
            return np.add.accumulate(value, axis, dtype, out)
        made = np.empty(value.shape, dtype) if out is None else out
        np.add.accumulate(np.flip(value, axis), axis, dtype, np.flip(made, axis))
        return made

    return kernel


define(
    "sum", shape=_reduced("sum", sum_dtype, empty=True), kernels=_folding(ADD), traits=REDUCING,
    gradient=lambda node, g, x: (to_input(spread(node, g, x), x),),
)  # fmt: skip
define(
    "sum_to", shape=_sum_to_rule, kernels={"numpy": _sum_to_kernel}, traits=REDUCING,
    gradient=lambda node, g, x: (apply("broadcast_to", g, shape=x.shape),),
)  # fmt: skip
define(
    "max", shape=_reduced("max", lambda dtype: dtype), kernels=_folding(np.maximum.reduce), traits=REDUCING,
    gradient=_extreme_gradient,
)  # fmt: skip
define(
    "min", shape=_reduced("min", lambda dtype: dtype), kernels=_folding(np.minimum.reduce), traits=REDUCING,
    gradient=_extreme_gradient,
)  # fmt: skip
define("argmax", shape=_arg_rule("argmax"), kernels=_arg_kernel(np.argmax), traits=REDUCING, gradient=None)
define("argmin", shape=_arg_rule("argmin"), kernels=_arg_kernel(np.argmin), traits=REDUCING, gradient=None)
define(
    "cumsum", shape=_cumsum_rule, kernels={"numpy": _cumsum_kernel}, traits=REDUCING,
    gradient=lambda node, g, x: (
        to_input(apply("cumsum", g, axis=node.op.attributes["axis"], reverse=not node.op.attributes["reverse"]), x),
    ),
)  # fmt: skip
