"""PyTorch's kernels for operators that fold, multiply and pick: sums, products of matrices, rows of tables, softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import grad as nn_grad

from .backend_torch_base import Array, ComputeRule, add_kernel, cast, elementwise, stored_dtype, torch_dtype
from .indexing import check_ids
from .tensor import DType, Tensor


def _summed(dtype: DType) -> torch.dtype:
    """Return the dtype to sum in: unsigned integers wrap round at the same places as signed ones of their size."""
    return torch.int64 if dtype == np.uint64 else torch_dtype(dtype)


def _sum(node: Tensor) -> Callable[..., Array]:
    axis, keepdims = node.op.attributes["axis"], node.op.attributes["keepdims"]
    within, dtype = _summed(node.dtype), stored_dtype(node.dtype)
    if not axis:  # to torch no axes at all would mean all of them
        return lambda value: value.to(dtype)
    return lambda value: cast(torch.sum(value, axis, keepdims, dtype=within), dtype)


def _extreme(reduce: Callable[..., Array]) -> ComputeRule:
    def rule(node: Tensor) -> Callable[..., Array]:
        axis, keepdims = node.op.attributes["axis"], node.op.attributes["keepdims"]
        torch_dtype(node.dtype)
        return lambda value: reduce(value, axis, keepdims) if axis else value

    return rule


def _sum_to(node: Tensor) -> Callable[..., Array]:
    given, shape, dtype = node.inputs[0].shape, node.shape, torch_dtype(node.dtype)
    lead = len(given) - len(shape)
    axes = tuple(
        at for at, length in enumerate(given) if at < lead or (shape[at - lead] == 1 and length != 1)
    )
    if not axes:
        return lambda value: value.reshape(shape)
    return lambda value: torch.sum(value, axes, keepdim=True, dtype=dtype).reshape(shape)


def _first(best: Callable[..., Array]) -> ComputeRule:
    """Return the rule of ``argmax`` and ``argmin``: the first of equal elements, of which NaN is the best, as in NumPy."""

    def rule(node: Tensor) -> Callable[..., Array]:
        axis = node.op.attributes["axis"]
        length = node.inputs[0].shape[axis]

        def find(value: Array) -> Array:
            found = (value == best(value, axis, keepdim=True)) | (value != value)
            shape = [length if at == axis else 1 for at in range(value.ndim)]
            places = torch.arange(length, device=value.device).reshape(shape)
            return torch.amin(torch.where(found, places, length), axis)

        return find

    return rule


def _cumsum(node: Tensor) -> Callable[..., Array]:
    axis, within, dtype = node.op.attributes["axis"], _summed(node.dtype), stored_dtype(node.dtype)

    def forward(value: Array) -> Array:
        return cast(torch.cumsum(value, axis, dtype=within), dtype)

    def backward(value: Array) -> Array:
        return cast(torch.flip(torch.cumsum(torch.flip(value, (axis,)), axis, dtype=within), (axis,)), dtype)

    return backward if node.op.attributes["reverse"] else forward


add_kernel("sum", _sum)
add_kernel("max", _extreme(torch.amax))
add_kernel("min", _extreme(torch.amin))
add_kernel("sum_to", _sum_to)
add_kernel("argmax", _first(torch.amax))
add_kernel("argmin", _first(torch.amin))
add_kernel("cumsum", _cumsum)


def _matmul(node: Tensor) -> Callable[..., Array]:
    if node.dtype.kind == "b":
        return lambda left, right: torch.matmul(left.to(torch.int64), right.to(torch.int64)) != 0
    return elementwise(torch.matmul)(node)


add_kernel("matmul", _matmul)


def _ids(kind: str, ids: Array, count: int) -> Array:
    """Return the ids as torch takes them; raises OutOfRange for one that is not from 0 to ``count - 1``, as a GPU would not."""
    ids = ids.to(torch.int64)
    if ids.device.type == "cpu" or bool(((ids < 0) | (ids >= count)).any()):
        check_ids(kind, ids.cpu().numpy(), count)
    return ids


def _take(node: Tensor) -> Callable[..., Array]:
    axis, length, shape = (
        node.op.attributes["axis"],
        node.inputs[0].shape[node.op.attributes["axis"]],
        node.shape,
    )
    return lambda value, ids: value.index_select(axis, _ids("take", ids, length).reshape(-1)).reshape(shape)


def _scatter_add(node: Tensor) -> Callable[..., Array]:
    axis, length, shape = node.op.attributes["axis"], node.op.attributes["length"], node.shape
    rows = (*shape[:axis], node.inputs[1].size, *shape[axis + 1 :])

    def scatter(value: Array, ids: Array) -> Array:
        flat = _ids("scatter_add", ids, length).reshape(-1)
        return torch.zeros(shape, dtype=value.dtype, device=value.device).index_add_(
            axis, flat, value.reshape(rows)
        )

    return scatter


def _take_along_axis(node: Tensor) -> Callable[..., Array]:
    axis = node.op.attributes["axis"]
    length = node.inputs[0].shape[axis]
    return lambda value, ids: torch.gather(value, axis, _ids("take_along_axis", ids, length))


def _scatter_along_axis(node: Tensor) -> Callable[..., Array]:
    axis, length, shape = node.op.attributes["axis"], node.op.attributes["length"], node.shape

    def scatter(value: Array, ids: Array) -> Array:
        made = torch.zeros(shape, dtype=value.dtype, device=value.device)
        return made.scatter_add_(axis, _ids("scatter_along_axis", ids, length), value)

    return scatter


def _one_hot(node: Tensor) -> Callable[..., Array]:
    depth, shape, dtype = node.op.attributes["depth"], node.shape, torch_dtype(node.dtype)

    def mark(ids: Array) -> Array:
        made = torch.zeros(shape, dtype=dtype, device=ids.device)
        return made.scatter_(-1, _ids("one_hot", ids, depth)[..., None], 1)

    return mark


add_kernel("take", _take)
add_kernel("scatter_add", _scatter_add)
add_kernel("take_along_axis", _take_along_axis)
add_kernel("scatter_along_axis", _scatter_along_axis)
add_kernel("one_hot", _one_hot)


def _along(function: Callable[..., Array]) -> ComputeRule:
    def rule(node: Tensor) -> Callable[..., Array]:
        axis = node.op.attributes["axis"]
        return lambda value: function(value, axis)

    return rule


def _cross_entropy(node: Tensor) -> Callable[..., Array]:
    classes = node.inputs[0].shape[-1]

    def losses(logits: Array, labels: Array) -> Array:
        right = _ids("softmax_cross_entropy", labels, classes)[..., None]
        return torch.log_softmax(logits, -1).gather(-1, right)[..., 0].neg()

    return losses


def _cross_entropy_gradient(node: Tensor) -> Callable[..., Array]:
    classes = node.shape[-1]

    def gradient(cotangent: Array, logits: Array, labels: Array) -> Array:
        right = _ids("softmax_cross_entropy", labels, classes)[..., None]
        column = cotangent[..., None]
        return (torch.softmax(logits, -1) * column).scatter_add_(-1, right, -column)

    return gradient


def _centred(value: Array, epsilon: float) -> tuple[Array, Array]:
    """Return the rows less their means, and one over their standard deviations."""
    centred = value - value.mean(-1, keepdim=True)
    return centred, torch.rsqrt(centred.square().mean(-1, keepdim=True) + epsilon)


def _normalise(node: Tensor) -> Callable[..., Array]:
    epsilon = node.op.attributes["epsilon"]

    def normalise(value: Array) -> Array:
        centred, inverse = _centred(value, epsilon)
        return centred.mul_(inverse)

    return normalise


def _inverse_deviation(node: Tensor) -> Callable[..., Array]:
    epsilon = node.op.attributes["epsilon"]
    return lambda value: _centred(value, epsilon)[1]


add_kernel("softmax", _along(torch.softmax))
add_kernel("log_softmax", _along(torch.log_softmax))
add_kernel("logsumexp", _along(torch.logsumexp))
add_kernel("softmax_cross_entropy", _cross_entropy)
add_kernel("softmax_cross_entropy_gradient", _cross_entropy_gradient)
add_kernel("normalise", _normalise)
add_kernel("inverse_deviation", _inverse_deviation)


# torch has no types for these two.
TO_IMAGES: Any = nn_grad.conv2d_input
TO_WEIGHTS: Any = nn_grad.conv2d_weight


def _convolving(compute: Callable[..., Array]) -> ComputeRule:
    """Return the rule of a convolution: ``compute`` takes two arrays, the shape of the result, strides and padding."""

    def rule(node: Tensor) -> Callable[..., Array]:
        shape, dtype = node.shape, torch_dtype(node.dtype)
        stride, padding = node.op.attributes["stride"], node.op.attributes["padding"]

        def convolve(left: Array, right: Array) -> Array:
            left, right = cast(left, dtype), cast(right, dtype)
            if left.device.type != "cuda":
                return compute(left, right, shape, stride, padding)
            cudnn = torch.backends.cudnn
            # By default a GPU multiplies float32 with ten bits of mantissa, in convolutions alone.
            with cudnn.flags(
                cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic, False
            ):
                return compute(left, right, shape, stride, padding)

        return convolve

    return rule


add_kernel("conv2d", _convolving(lambda x, w, shape, *placing: torch.conv2d(x, w, None, *placing)))
add_kernel("conv2d_to_images", _convolving(lambda g, w, shape, *placing: TO_IMAGES(shape, w, g, *placing)))
add_kernel(
    "conv2d_to_weights",
    _convolving(lambda x, g, shape, *placing: TO_WEIGHTS(x, shape, g, *placing)),
)
