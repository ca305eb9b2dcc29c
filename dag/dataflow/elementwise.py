"""Operators that work element by element, with broadcasting: arithmetic, comparisons, exp and its kin.

A gradient rule returns a cotangent in the shape of the result; ``unbroadcast`` sums it back to the shape of the input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadTensor
from .tables import Traits, define
from .tensor import Tensor, apply, astype, show

ELEMENTWISE = Traits(elementwise=True)
FREE = Traits(elementwise=True, flops=lambda node: 0)


def broadcast(kind: str, *inputs: Tensor) -> tuple[int, ...]:
    """Return the shape that the inputs have together; raises BadTensor with the shapes."""
    first, *others = inputs
    shape = first.shape
    for other in others:
        if other.shape == shape:
            continue
        try:
            shape = np.broadcast_shapes(shape, other.shape)
        except ValueError:
            shapes = " and ".join(show(each.shape) for each in inputs)
            raise BadTensor(f"{kind}: the shapes {shapes} do not broadcast together") from None
    return shape


def unbroadcast(cotangent: Tensor, like: Tensor) -> Tensor:
    """Return the cotangent summed over the dimensions along which ``like`` was repeated."""
    return cotangent if cotangent.shape == like.shape else apply("sum_to", cotangent, shape=like.shape)


def _arithmetic(kind: str) -> Any:
    def shape(left: Tensor, right: Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
        dtype = np.result_type(left.dtype, right.dtype)
        return broadcast(kind, left, right), dtype

    return shape


def _to_float(kind: str) -> Any:
    def shape(*inputs: Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
        dtype = np.result_type(*(each.dtype for each in inputs))
        return broadcast(kind, *inputs), dtype if dtype.kind == "f" else np.dtype(np.float64)

    return shape


def _truth(kind: str) -> Any:
    return lambda left, right: (broadcast(kind, left, right), np.dtype(np.bool_))


def _same(value: Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return value.shape, value.dtype


def _ufunc(kind: str) -> dict[str, Any]:
    return {"numpy": lambda node: getattr(np, kind)}


def _both(left: Tensor, right: Tensor, to_left: Tensor, to_right: Tensor) -> tuple[Tensor, Tensor]:
    return unbroadcast(to_left, left), unbroadcast(to_right, right)


define(
    "add", shape=_arithmetic("add"), kernels=_ufunc("add"), traits=ELEMENTWISE,
    gradient=lambda node, g, a, b: _both(a, b, g, g),
)  # fmt: skip
define(
    "subtract", shape=_arithmetic("subtract"), kernels=_ufunc("subtract"), traits=ELEMENTWISE,
    gradient=lambda node, g, a, b: _both(a, b, g, -g),
)  # fmt: skip
define(
    "multiply", shape=_arithmetic("multiply"), kernels=_ufunc("multiply"), traits=ELEMENTWISE,
    gradient=lambda node, g, a, b: _both(a, b, g * b, g * a),
)  # fmt: skip
define(
    "divide", shape=_to_float("divide"), kernels=_ufunc("divide"), traits=ELEMENTWISE,
    gradient=lambda node, g, a, b: _both(a, b, g / b, -g * node / b),
)  # fmt: skip
define(
    "negative", shape=_same, kernels=_ufunc("negative"), traits=ELEMENTWISE, gradient=lambda node, g, x: (-g,)
)
define(
    "exp",
    shape=_to_float("exp"),
    kernels=_ufunc("exp"),
    traits=ELEMENTWISE,
    gradient=lambda node, g, x: (g * node,),
)
define(
    "log",
    shape=_to_float("log"),
    kernels=_ufunc("log"),
    traits=ELEMENTWISE,
    gradient=lambda node, g, x: (g / x,),
)
define(
    "tanh", shape=_to_float("tanh"), kernels=_ufunc("tanh"), traits=ELEMENTWISE,
    gradient=lambda node, g, x: (g * (1 - node * node),),
)  # fmt: skip
define(
    "maximum", shape=_arithmetic("maximum"), kernels=_ufunc("maximum"), traits=ELEMENTWISE,
    gradient=lambda node, g, a, b: _both(a, b, g * astype(a >= b, g.dtype), g * astype(a < b, g.dtype)),
)  # fmt: skip
for _kind in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
    define(_kind, shape=_truth(_kind), kernels=_ufunc(_kind), traits=FREE, gradient=None)


def _astype_kernel(node: Tensor) -> Any:
    def kernel(value: Any, out: Any = None) -> Any:
        if out is None:
            return value.astype(node.dtype)
        np.copyto(out, value, casting="unsafe")
        return out

    return kernel


define(
    "astype", shape=lambda value, *, dtype: (value.shape, np.dtype(dtype)), kernels={"numpy": _astype_kernel}, traits=FREE,
    gradient=lambda node, g, x: (astype(g, x.dtype) if x.dtype.kind == "f" else None,),
)  # fmt: skip
