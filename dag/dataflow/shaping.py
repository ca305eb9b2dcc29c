"""Operators that move elements and compute nothing: reshape, transpose, broadcasting."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..errors import BadTensor
from .elementwise import unbroadcast
from .tables import Traits, define
from .tensor import Tensor, apply, show

VIEW = Traits(view=True, flops=lambda node: 0)


def _moving(make: Any) -> dict[str, Any]:
    """Kernel of an operator whose result is a view: ``out``, if given, gets a copy."""

    def rule(node: Tensor) -> Any:
        def kernel(value: Any, out: Any = None) -> Any:
            view = make(node, value)
            if out is None:
                return view
            np.copyto(out, view)
            return out

        return kernel

    return {"numpy": rule}


def _reshape_rule(value: Tensor, *, shape: tuple[int, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if prod(shape) != value.size:
        raise BadTensor(
            f"reshape: {show(value.shape)} has {value.size} elements and {show(shape)} has {prod(shape)}"
        )
    return shape, value.dtype


def _transpose_rule(value: Tensor, *, axes: tuple[int, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if sorted(axes) != list(range(value.ndim)):
        raise BadTensor(
            f"transpose: axes of {show(value.shape)} are 0 to {value.ndim - 1}, each once, got {axes}"
        )
    return tuple(value.shape[axis] for axis in axes), value.dtype


def _broadcast_rule(value: Tensor, *, shape: tuple[int, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        fits = np.broadcast_shapes(value.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise BadTensor(f"broadcast_to: {show(value.shape)} does not broadcast to {show(shape)}")
    return shape, value.dtype


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.argsort(axes))


define(
    "reshape", shape=_reshape_rule, traits=VIEW,
    kernels=_moving(lambda node, value: value.reshape(node.shape)),
    gradient=lambda node, g, x: (apply("reshape", g, shape=x.shape),),
)  # fmt: skip
define(
    "transpose", shape=_transpose_rule, traits=VIEW,
    kernels=_moving(lambda node, value: value.transpose(node.op.attributes["axes"])),
    gradient=lambda node, g, x: (apply("transpose", g, axes=_inverse(node.op.attributes["axes"])),),
)  # fmt: skip
define(
    "broadcast_to", shape=_broadcast_rule, traits=VIEW,
    kernels=_moving(lambda node, value: np.broadcast_to(value, node.shape)),
    gradient=lambda node, g, x: (unbroadcast(g, x),),
)  # fmt: skip
