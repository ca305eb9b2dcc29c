"""Operators that pick elements by numbers which are known only when the graph runs: rows of a table, one of each row.

``scatter_add`` and ``scatter_along_axis`` put elements back where ``take`` and ``take_along_axis`` found them, and add up
what falls on one place; each pair are the other's gradients.  An id must be from 0 to the length less 1: a kernel
raises OutOfRange for any other, and never reads another row in its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadTensor, OutOfRange
from .elementwise import Form
from .shaping import MOVING
from .tables import Kernel, Traits, define
from .tensor import DType, Tensor, apply, dtype_of, show

ADDING = Traits(flops=lambda node: node.inputs[0].size)


def check_ids(kind: str, ids: Any, count: int) -> Any:
    """Return the ids as NumPy indexes by; raises OutOfRange unless all are from 0 to ``count - 1``, naming the first."""
    if ids.size and (ids.min() < 0 or ids.max() >= count):
        at = np.argwhere((ids < 0) | (ids >= count))[0]
        where = ", ".join(str(each) for each in at)
        raise OutOfRange(f"{kind}: id {ids[tuple(at)]} at [{where}] is outside 0 to {count - 1}")
    return ids.astype(np.intp, copy=False)  # NumPy takes no unsigned integers of 64 bits


def _check_kind(kind: str, ids: Tensor) -> None:
    if ids.dtype.kind not in "iu":
        raise BadTensor(f"{kind}: the ids are integers, got {ids.dtype}; use astype")


def _check_axis(kind: str, shape: tuple[int, ...], axis: int) -> None:
    if not 0 <= axis < len(shape):
        raise BadTensor(f"{kind}: axis {axis} is out of range for the shape {show(shape)}")


def _take_rule(value: Tensor, ids: Tensor, *, axis: int) -> Form:
    _check_kind("take", ids)
    _check_axis("take", value.shape, axis)
    return (*value.shape[:axis], *ids.shape, *value.shape[axis + 1 :]), value.dtype


def _take_kernel(node: Tensor) -> Kernel:
    axis = node.op.attributes["axis"]
    length = node.inputs[0].shape[axis]

    def kernel(value: Any, ids: Any, out: Any = None) -> Any:
        ids = check_ids("take", ids, length)
        if out is None:
            return np.take(value, ids, axis)
        # mode="clip" writes to out without a copy beside it; the ids are known to be in range.
        return np.take(value, ids, axis, out, "clip")

    return kernel


def _scatter_rule(value: Tensor, ids: Tensor, *, axis: int, length: int) -> Form:
    _check_kind("scatter_add", ids)
    if not 0 <= axis <= value.ndim - ids.ndim or value.shape[axis : axis + ids.ndim] != ids.shape:
        raise BadTensor(
            f"scatter_add: {show(value.shape)} does not have the ids' shape {show(ids.shape)} at axis {axis}"
        )
    return (*value.shape[:axis], length, *value.shape[axis + ids.ndim :]), value.dtype


def _scatter_kernel(node: Tensor) -> Kernel:
    axis, length = node.op.attributes["axis"], node.op.attributes["length"]
    count = node.inputs[1].ndim

    def kernel(value: Any, ids: Any, out: Any = None) -> Any:
        ids = check_ids("scatter_add", ids, length)
        out = np.zeros(node.shape, node.dtype) if out is None else out
        out.fill(0)
        flat = ids.reshape(-1)
        if flat.size == 0:
            return out
        rows = value.reshape(*value.shape[:axis], flat.size, *value.shape[axis + count :])
        # Equal ids side by side and summed in their order: faster than np.add.at, and the same each time.
        order = np.argsort(flat, kind="stable")
        ordered = flat[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        sums = np.add.reduceat(rows.take(order, axis), starts, axis, dtype=value.dtype)
        out[(slice(None),) * axis + (ordered[starts],)] = sums
        return out

    return kernel


def _along_shape(kind: str, shape: tuple[int, ...], ids: Tensor, axis: int) -> None:
    _check_kind(kind, ids)
    _check_axis(kind, shape, axis)
    if ids.ndim != len(shape) or any(
        at != axis and mine != theirs for at, (mine, theirs) in enumerate(zip(shape, ids.shape, strict=True))
    ):
        raise BadTensor(
            f"{kind}: ids {show(ids.shape)} differ from {show(shape)} elsewhere than at axis {axis}"
        )


def _take_along_rule(value: Tensor, ids: Tensor, *, axis: int) -> Form:
    _along_shape("take_along_axis", value.shape, ids, axis)
    return ids.shape, value.dtype


def _take_along_kernel(node: Tensor) -> Kernel:
    axis = node.op.attributes["axis"]
    length = node.inputs[0].shape[axis]

    def kernel(value: Any, ids: Any, out: Any = None) -> Any:
        ids = check_ids("take_along_axis", ids, length)
        found = np.take_along_axis(value, ids, axis)
        if out is None:
            return found
        np.copyto(out, found)
        return out

    return kernel


def _scatter_along_rule(value: Tensor, ids: Tensor, *, axis: int, length: int) -> Form:
    _check_axis("scatter_along_axis", value.shape, axis)
    shape = (*value.shape[:axis], length, *value.shape[axis + 1 :])
    _along_shape("scatter_along_axis", shape, ids, axis)
    if value.shape != ids.shape:
        raise BadTensor(
            f"scatter_along_axis: the value {show(value.shape)} and its ids {show(ids.shape)} have two shapes"
        )
    return shape, value.dtype


def _scatter_along_kernel(node: Tensor) -> Kernel:
    axis, length = node.op.attributes["axis"], node.op.attributes["length"]

    def kernel(value: Any, ids: Any, out: Any = None) -> Any:
        ids = check_ids("scatter_along_axis", ids, length)
        out = np.zeros(node.shape, node.dtype) if out is None else out
        out.fill(0)
        if ids.shape[axis] == 1:  # nothing can fall on one place
            np.put_along_axis(out, ids, value, axis)
            return out
        places = list(np.ix_(*[np.arange(each) for each in ids.shape]))
        places[axis] = ids
        np.add.at(out, tuple(places), value)
        return out

    return kernel


def _one_hot_rule(ids: Tensor, *, depth: int, dtype: DType) -> Form:
    _check_kind("one_hot", ids)
    return (*ids.shape, depth), dtype_of(dtype)


def _one_hot_kernel(node: Tensor) -> Kernel:
    depth = node.op.attributes["depth"]

    def kernel(ids: Any, out: Any = None) -> Any:
        ids = check_ids("one_hot", ids, depth)
        out = np.zeros(node.shape, node.dtype) if out is None else out
        out.fill(0)
        np.put_along_axis(out, ids[..., None], 1, -1)
        return out

    return kernel


def _back_to(kind: str) -> Any:
    """Gradient rule of taking: the cotangent goes where the element came from."""

    def gradient(node: Tensor, g: Tensor, x: Tensor, ids: Tensor) -> tuple[Tensor | None, None]:
        axis = node.op.attributes["axis"]
        if x.dtype.kind != "f":
            return None, None
        return apply(kind, g, ids, axis=axis, length=x.shape[axis]), None

    return gradient


def _back_from(kind: str) -> Any:
    return lambda node, g, x, ids: (apply(kind, g, ids, axis=node.op.attributes["axis"]), None)


define(
    "take", shape=_take_rule, kernels={"numpy": _take_kernel}, traits=MOVING, gradient=_back_to("scatter_add")
)
define(
    "scatter_add", shape=_scatter_rule, kernels={"numpy": _scatter_kernel}, traits=ADDING,
    gradient=_back_from("take"),
)  # fmt: skip
define(
    "take_along_axis", shape=_take_along_rule, kernels={"numpy": _take_along_kernel}, traits=MOVING,
    gradient=_back_to("scatter_along_axis"),
)  # fmt: skip
define(
    "scatter_along_axis", shape=_scatter_along_rule, kernels={"numpy": _scatter_along_kernel}, traits=ADDING,
    gradient=_back_from("take_along_axis"),
)  # fmt: skip
define(
    "one_hot", shape=_one_hot_rule, kernels={"numpy": _one_hot_kernel}, traits=MOVING,
    gradient=lambda node, g, ids: (None,),
)  # fmt: skip
