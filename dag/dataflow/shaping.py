"""Operators that move elements and compute nothing: reshape, transpose, broadcasting, slices, joining.

``slice`` and ``place`` are each other's gradients: what a slice takes out of an array, ``place`` puts into one that is
filled with one value otherwise (so padding is ``place`` too).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ..errors import BadTensor
from .arguments import fits
from .elementwise import Form, to_input
from .tables import Kernel, KernelRule, Traits, define
from .tensor import Tensor, apply, brief, show

VIEW = Traits(view=True, flops=lambda node: 0)
MOVING = Traits(flops=lambda node: 0)

#: For each axis where a slice starts, its step (negative: backwards) and how many elements it takes.
Spans = tuple[tuple[int, int, int], ...]


def _viewing(make: Any) -> dict[str, KernelRule]:
    """Kernel of an operator whose result is a view: ``out``, if given, gets a copy."""

    def rule(node: Tensor) -> Kernel:
        view_of = make(node)

        def kernel(value: Any, out: Any = None) -> Any:
            view = view_of(value)
            if out is None:
                return view
            np.copyto(out, view)
            return out

        return kernel

    return {"numpy": rule}


def _reshape_rule(value: Tensor, *, shape: tuple[int, ...]) -> Form:
    if prod(shape) != prod(value.shape) or (shape and min(shape) < 0):
        raise BadTensor(
            f"reshape: {show(value.shape)} has {value.size} elements and {show(shape)} has {prod(shape)}"
        )
    return shape, value.dtype


def _transpose_rule(value: Tensor, *, axes: tuple[int, ...]) -> Form:
    if sorted(axes) != list(range(value.ndim)):
        wanted = f"0 to {value.ndim - 1}, each once" if value.ndim else "none"
        raise BadTensor(f"transpose: the axes of {show(value.shape)} are {wanted}, got {axes}")
    return tuple(value.shape[axis] for axis in axes), value.dtype


def _broadcast_rule(value: Tensor, *, shape: tuple[int, ...]) -> Form:
    try:
        broadcasts = np.broadcast_shapes(value.shape, shape) == shape
    except ValueError:
        broadcasts = False
    if not broadcasts:
        raise BadTensor(f"broadcast_to: {show(value.shape)} does not broadcast to {show(shape)}")
    return shape, value.dtype


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def python_slices(spans: Spans) -> tuple[slice, ...]:
    """Return Python's slices for the spans of all axes."""
    made = []
    for start, step, length in spans:
        if length == 0:
            made.append(slice(0, 0))
            continue
        stop = start + step * length
        made.append(slice(start, None if stop < 0 else stop, step))
    return tuple(made)


def _check_spans(kind: str, shape: tuple[int, ...], spans: Spans) -> None:
    inside = len(spans) == len(shape) and all(
        count == 0 or (step != 0 and 0 <= start < length and 0 <= start + step * (count - 1) < length)
        for length, (start, step, count) in zip(shape, spans, strict=True)
    )
    if not inside:
        raise BadTensor(f"{kind}: the spans {spans} do not lie in {show(shape)}")


def _slice_rule(value: Tensor, *, spans: Spans) -> Form:
    _check_spans("slice", value.shape, spans)
    return tuple(length for _, _, length in spans), value.dtype


def _slice_view(node: Tensor) -> Any:
    slices = python_slices(node.op.attributes["spans"])
    return lambda value: value[slices]


def _place_rule(value: Tensor, *, shape: tuple[int, ...], spans: Spans, fill: float) -> Form:
    _check_spans("place", shape, spans)
    lengths = tuple(length for _, _, length in spans)
    if lengths != value.shape:
        raise BadTensor(f"place: the spans take {show(lengths)}, the value has {show(value.shape)}")
    if not fits(fill, value.dtype):
        raise BadTensor(f"place: {brief(fill)} is no {value.dtype}")
    return shape, value.dtype


def _place_kernel(node: Tensor) -> Kernel:
    shape, dtype, fill = node.shape, node.dtype, node.op.attributes["fill"]
    slices = python_slices(node.op.attributes["spans"])

    def kernel(value: Any, out: Any = None) -> Any:
        if out is None:
            out = np.empty(shape, dtype)
        out.fill(fill)
        out[slices] = value
        return out

    return kernel


def _concatenate_rule(*values: Tensor, axis: int) -> Form:
    shapes = " and ".join(show(each.shape) for each in values[:4]) + (" ..." if len(values) > 4 else "")
    first = values[0]
    if not 0 <= axis < first.ndim:
        raise BadTensor(f"concatenate: axis {axis} is out of range for the shapes {shapes}")
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    for each in values:
        if each.ndim != first.ndim or (*each.shape[:axis], *each.shape[axis + 1 :]) != rest:
            raise BadTensor(f"concatenate: the shapes {shapes} differ elsewhere than along axis {axis}")
    length = sum(each.shape[axis] for each in values)
    return (*first.shape[:axis], length, *first.shape[axis + 1 :]), np.result_type(*(v.dtype for v in values))


def _concatenate_kernel(node: Tensor) -> Kernel:
    axis = node.op.attributes["axis"]
    return lambda *values, out=None: np.concatenate(values, axis, out)


def _concatenate_gradient(node: Tensor, g: Tensor, *values: Tensor) -> tuple[Tensor | None, ...]:
    axis = node.op.attributes["axis"]
    parts, start = [], 0
    for each in values:
        spans = tuple(
            (start if at == axis else 0, 1, length) for at, length in enumerate(each.shape)
        )  # fmt: skip
        parts.append(to_input(apply("slice", g, spans=spans), each))
        start += each.shape[axis]
    return tuple(parts)


define(
    "reshape", shape=_reshape_rule, traits=VIEW, kernels=_viewing(lambda node: lambda value: value.reshape(node.shape)),
    gradient=lambda node, g, x: (apply("reshape", g, shape=x.shape),),
)  # fmt: skip
define(
    "transpose", shape=_transpose_rule, traits=VIEW,
    kernels=_viewing(lambda node: lambda value: value.transpose(node.op.attributes["axes"])),
    gradient=lambda node, g, x: (apply("transpose", g, axes=_inverse(node.op.attributes["axes"])),),
)  # fmt: skip
define(
    "broadcast_to", shape=_broadcast_rule, traits=VIEW,
    kernels=_viewing(lambda node: lambda value: np.broadcast_to(value, node.shape)),
    gradient=lambda node, g, x: (to_input(g, x),),
)  # fmt: skip
define(
    "slice", shape=_slice_rule, traits=VIEW, kernels=_viewing(_slice_view),
    gradient=lambda node, g, x: (
        apply("place", g, shape=x.shape, spans=node.op.attributes["spans"], fill=0),
    ),
)  # fmt: skip
define(
    "place", shape=_place_rule, traits=MOVING, kernels={"numpy": _place_kernel},
    gradient=lambda node, g, x: (apply("slice", g, spans=node.op.attributes["spans"]),),
)  # fmt: skip
define(
    "concatenate", shape=_concatenate_rule, traits=MOVING, kernels={"numpy": _concatenate_kernel},
    gradient=_concatenate_gradient,
)  # fmt: skip
