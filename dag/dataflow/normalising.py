"""Operators that make one row comparable with another: softmax and its kin, cross entropy, layer normalisation.

Each works along one axis, subtracts the largest element before ``exp`` (so logits of 1e4 are as good as 1), and stays in the
dtype that it is given.  They are operators of their own, not compositions, so that a training step needs few nodes and
few passes over memory; their gradients are written with one another, so they can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import BadTensor
from .elementwise import Form, check_float, to_input
from .indexing import check_ids
from .reducing import ADD
from .tables import Kernel, Traits, define
from .tensor import Tensor, apply, show

#: Largest, difference, exp, sum, quotient: as many floating-point operations per element.
SOFTMAX = Traits(flops=lambda node: 5 * node.inputs[0].size)
MAX: Any = np.maximum.reduce


def _along(kind: str, *, keep: bool = True) -> Callable[..., Form]:
    """Shape rule of an operator along one ``axis``, which the result keeps or not."""

    def rule(value: Tensor, *, axis: int) -> Form:
        check_float(kind, value)
        if not 0 <= axis < value.ndim:
            raise BadTensor(f"{kind}: axis {axis} is out of range for the shape {show(value.shape)}")
        if value.shape[axis] == 0:
            raise BadTensor(f"{kind}: {show(value.shape)} has no elements along axis {axis}")
        shape = value.shape if keep else (*value.shape[:axis], *value.shape[axis + 1 :])
        return shape, value.dtype

    return rule


def sum_along(value: Tensor, axis: int) -> Tensor:
    """Return the sum along one axis, which stays with length 1."""
    return apply("sum", value, axis=(axis,), keepdims=True)


def _softmax_kernel(node: Tensor) -> Kernel:
    axis = node.op.attributes["axis"]

    def kernel(value: Any, out: Any = None) -> Any:
        out = np.subtract(value, MAX(value, axis, None, None, True), out=out)
        np.exp(out, out=out)
        return np.divide(out, ADD(out, axis, None, None, True), out=out)

    return kernel


def _log_softmax_kernel(node: Tensor) -> Kernel:
    axis = node.op.attributes["axis"]

    def kernel(value: Any, out: Any = None) -> Any:
        out = np.subtract(value, MAX(value, axis, None, None, True), out=out)
        return np.subtract(out, np.log(ADD(np.exp(out), axis, None, None, True)), out=out)

    return kernel


def _logsumexp_kernel(node: Tensor) -> Kernel:
    axis = node.op.attributes["axis"]

    def kernel(value: Any, out: Any = None) -> Any:
        largest = MAX(value, axis, None, None, True)
        np.copyto(largest, 0, where=~np.isfinite(largest))  # inf - inf is no number, exp(inf) is right
        powers = np.subtract(value, largest)
        with np.errstate(divide="ignore", over="ignore"):
            total = np.log(ADD(np.exp(powers, out=powers), axis, None, out))
        return np.add(total, largest.squeeze(axis), out=out)

    return kernel


def _softmax_gradient(node: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor]:
    return (node * (g - sum_along(g * node, node.op.attributes["axis"])),)


def _logsumexp_gradient(node: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor]:
    axis = node.op.attributes["axis"]
    row = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return (apply("reshape", g, shape=row) * apply("softmax", x, axis=axis),)


define(
    "softmax", shape=_along("softmax"), kernels={"numpy": _softmax_kernel}, traits=SOFTMAX,
    gradient=_softmax_gradient,
)  # fmt: skip
define(
    "log_softmax", shape=_along("log_softmax"), kernels={"numpy": _log_softmax_kernel}, traits=SOFTMAX,
    gradient=lambda node, g, x: (g - apply("exp", node) * sum_along(g, node.op.attributes["axis"]),),
)  # fmt: skip
define(
    "logsumexp", shape=_along("logsumexp", keep=False), kernels={"numpy": _logsumexp_kernel}, traits=SOFTMAX,
    gradient=_logsumexp_gradient,
)  # fmt: skip


def _cross_entropy_rule(logits: Tensor, labels: Tensor) -> Form:
    check_float("softmax_cross_entropy", logits)
    if labels.dtype.kind not in "iu":
        raise BadTensor(f"softmax_cross_entropy: the labels are class numbers, got {labels.dtype}")
    if logits.ndim < 1 or logits.shape[:-1] != labels.shape:
        raise BadTensor(
            f"softmax_cross_entropy: logits {show(logits.shape)} want labels of the shape "
            f"{show(logits.shape[:-1])}, got {show(labels.shape)}"
        )
    if logits.shape[-1] == 0:
        raise BadTensor(f"softmax_cross_entropy: logits {show(logits.shape)} have no classes")
    return labels.shape, logits.dtype


def _cross_entropy_kernel(node: Tensor) -> Kernel:
    classes = node.inputs[0].shape[-1]

    def kernel(logits: Any, labels: Any, out: Any = None) -> Any:
        labels = check_ids("softmax_cross_entropy", labels, classes)
        shifted = logits - MAX(logits, -1, None, None, True)
        right = np.take_along_axis(shifted, labels[..., None], -1)[..., 0]
        total = np.log(ADD(np.exp(shifted, out=shifted), -1))
        return np.subtract(total, right, out=out)

    return kernel


def _cross_entropy_gradient_rule(cotangent: Tensor, logits: Tensor, labels: Tensor) -> Form:
    _cross_entropy_rule(logits, labels)
    if cotangent.shape != labels.shape:
        raise BadTensor(
            f"softmax_cross_entropy_gradient: a cotangent of {show(labels.shape)} is wanted, got {show(cotangent.shape)}"
        )
    return logits.shape, logits.dtype


def _cross_entropy_gradient_kernel(node: Tensor) -> Kernel:
    classes = node.shape[-1]

    def kernel(cotangent: Any, logits: Any, labels: Any, out: Any = None) -> Any:
        labels = check_ids("softmax_cross_entropy", labels, classes)
        out = np.subtract(logits, MAX(logits, -1, None, None, True), out=out)
        np.exp(out, out=out)
        np.multiply(out, (cotangent / ADD(out, -1))[..., None], out=out)
        right = labels[..., None]
        np.put_along_axis(out, right, np.take_along_axis(out, right, -1) - cotangent[..., None], -1)
        return out

    return kernel


def _second_cross_entropy(node: Tensor, c: Tensor, g: Tensor, x: Tensor, labels: Tensor) -> Any:
    # The node is g * (p - onehot) with p = softmax(x): linear in g, and p alone depends on x.
    p = apply("softmax", x, axis=x.ndim - 1)
    hot = apply("one_hot", labels, depth=x.shape[-1], dtype=x.dtype)
    by_g = apply("sum", c * (p - hot), axis=(x.ndim - 1,), keepdims=False)
    weighted = c * apply("reshape", g, shape=(*g.shape, 1))
    return to_input(by_g, g), p * (weighted - sum_along(weighted * p, x.ndim - 1)), None


define(
    "softmax_cross_entropy", shape=_cross_entropy_rule, kernels={"numpy": _cross_entropy_kernel}, traits=SOFTMAX,
    gradient=lambda node, g, x, labels: (apply("softmax_cross_entropy_gradient", g, x, labels), None),
)  # fmt: skip
define(
    "softmax_cross_entropy_gradient", shape=_cross_entropy_gradient_rule,
    kernels={"numpy": _cross_entropy_gradient_kernel}, traits=Traits(flops=lambda node: 5 * node.size),
    gradient=_second_cross_entropy,
)  # fmt: skip


def _normalise_rule(value: Tensor, *, epsilon: float) -> Form:
    check_float("normalise", value)
    if value.ndim < 1 or value.shape[-1] == 0:
        raise BadTensor(f"normalise: {show(value.shape)} has no elements along a last axis")
    return value.shape, value.dtype


def _deviation_rule(value: Tensor, *, epsilon: float) -> Form:
    shape, dtype = _normalise_rule(value, epsilon=epsilon)
    return (*shape[:-1], 1), dtype


def _centre(value: Any, epsilon: float, out: Any) -> tuple[Any, Any]:
    """Return the rows less their means, and one over their standard deviations."""
    count = value.shape[-1]
    centred = np.subtract(value, ADD(value, -1, None, None, True) / count, out=out)
    variance = np.vecdot(centred, centred)[..., None] / count
    return centred, 1 / np.sqrt(variance + epsilon)


def _normalise_kernel(node: Tensor) -> Kernel:
    epsilon = node.op.attributes["epsilon"]

    def kernel(value: Any, out: Any = None) -> Any:
        centred, inverse = _centre(value, epsilon, out)
        return np.multiply(centred, inverse, out=centred)

    return kernel


def _deviation_kernel(node: Tensor) -> Kernel:
    epsilon = node.op.attributes["epsilon"]

    def kernel(value: Any, out: Any = None) -> Any:
        _, inverse = _centre(value, epsilon, None)
        if out is None:
            return inverse
        np.copyto(out, inverse)
        return out

    return kernel


def _normalise_gradient(node: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor]:
    count, last = x.shape[-1], x.ndim - 1
    inverse = apply("inverse_deviation", x, **node.op.attributes)
    along = node * (sum_along(g * node, last) / count)
    return (inverse * (g - sum_along(g, last) / count - along),)


def _deviation_gradient(node: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor]:
    slope = g * apply("square", node) / -x.shape[-1]
    return (slope * apply("normalise", x, **node.op.attributes),)


define(
    "normalise", shape=_normalise_rule, kernels={"numpy": _normalise_kernel}, gradient=_normalise_gradient,
    traits=Traits(flops=lambda node: 5 * node.size),
)  # fmt: skip
define(
    "inverse_deviation", shape=_deviation_rule, kernels={"numpy": _deviation_kernel}, gradient=_deviation_gradient,
    traits=Traits(flops=lambda node: 4 * node.inputs[0].size),
)  # fmt: skip
