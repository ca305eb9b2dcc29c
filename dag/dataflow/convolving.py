"""Convolution of images as a matrix product of their patches, and its two derivatives, which are convolutions again.

Images are (batch, channels, height, width), weights (channels out, channels in, height, width), as in torch; like there and
in all of machine learning "convolution" does not flip the weights.  The three operators are linear in both inputs, and
each gradient rule is written with the other two, so they can be differentiated to any order.

Patches are laid out for a block of images at a time, about 1 MB of them or one image, which stays in a cache whatever the
batch is (im2col: Chellapilla, Puri & Simard 2006, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ..errors import BadTensor
from .elementwise import Form, check_float, to_input
from .tables import Kernel, Traits, define
from .tensor import Tensor, apply, show

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]

PATCH_BYTES = 1 << 20


def check_strides(kind: str, stride: Pair, padding: Pair) -> None:
    """Raise BadTensor unless the strides are at least 1 and the padding at least 0."""
    if min(stride) < 1 or min(padding) < 0:
        raise BadTensor(f"{kind}: strides are from 1 on and padding from 0 on, got {stride} and {padding}")


def _conv2d_rule(x: Tensor, w: Tensor, *, stride: Pair, padding: Pair) -> Form:
    shapes = f"conv2d: {show(x.shape)} * {show(w.shape)}"
    check_float("conv2d", x)
    check_float("conv2d", w)
    check_strides("conv2d", stride, padding)
    if x.ndim != 4 or w.ndim != 4:
        raise BadTensor(
            f"{shapes}: images are (batch, channels, height, width) and weights (out, in, height, width)"
        )
    if x.shape[1] != w.shape[1]:
        raise BadTensor(f"{shapes}: the image has {x.shape[1]} channels, the weights want {w.shape[1]}")
    if 0 in w.shape[1:]:
        raise BadTensor(f"{shapes}: the weights have no elements")
    if x.shape[2] + 2 * padding[0] < w.shape[2] or x.shape[3] + 2 * padding[1] < w.shape[3]:
        raise BadTensor(f"{shapes}: the weights are larger than the image with its padding of {padding}")
    shape = (x.shape[0], w.shape[0], *_placed(x.shape[2:], w.shape[2:], stride, padding))
    return shape, np.result_type(x.dtype, w.dtype)


def _placed(image: tuple[int, ...], window: tuple[int, ...], stride: Pair, padding: Pair) -> Pair:
    """Return at how many places along height and width a window fits into the padded image."""
    high, wide = (
        (length + 2 * pad - size) // step + 1
        for length, size, step, pad in zip(image, window, stride, padding, strict=True)
    )
    return high, wide


def _check_places(
    kind: str, g: Tensor, x: tuple[int, ...], w: tuple[int, ...], stride: Pair, padding: Pair
) -> None:
    wanted = (x[0], w[0], *_placed(x[2:], w[2:], stride, padding))
    if g.shape != wanted:
        raise BadTensor(f"{kind}: a cotangent of {show(wanted)} is wanted, got {show(g.shape)}")


def _to_images_rule(g: Tensor, w: Tensor, *, shape: tuple[int, ...], stride: Pair, padding: Pair) -> Form:
    check_strides("conv2d_to_images", stride, padding)
    check_float("conv2d_to_images", g)
    check_float("conv2d_to_images", w)
    _check_places("conv2d_to_images", g, shape, w.shape, stride, padding)
    return shape, np.result_type(g.dtype, w.dtype)


def _to_weights_rule(x: Tensor, g: Tensor, *, shape: tuple[int, ...], stride: Pair, padding: Pair) -> Form:
    check_strides("conv2d_to_weights", stride, padding)
    check_float("conv2d_to_weights", x)
    check_float("conv2d_to_weights", g)
    _check_places("conv2d_to_weights", g, x.shape, shape, stride, padding)
    return shape, np.result_type(x.dtype, g.dtype)


def _blocks(images: int, patches_bytes: int) -> Iterator[slice]:
    """Yield the images in blocks whose patches take about ``PATCH_BYTES``."""
    step = max(1, PATCH_BYTES // max(1, patches_bytes // max(1, images)))
    for start in range(0, images, step):
        yield slice(start, min(start + step, images))


def _padded(x: Array, padding: Pair) -> Array:
    if padding == (0, 0):
        return x
    high, wide = padding
    made = np.zeros((*x.shape[:2], x.shape[2] + 2 * high, x.shape[3] + 2 * wide), x.dtype)
    made[:, :, high : high + x.shape[2], wide : wide + x.shape[3]] = x
    return made


def _windows(x: Array, size: tuple[int, ...], stride: Pair) -> Array:
    """Return the view (batch, channels, window height, width, places along height, width) of padded images."""
    view = np.lib.stride_tricks.sliding_window_view(x, size, (2, 3))
    return view[:, :, :: stride[0], :: stride[1]].transpose(0, 1, 4, 5, 2, 3)


def _contiguous(node: Tensor, out: Array | None) -> Array:
    """Return the array to write to by parts that are reshaped: ``out`` if it can be."""
    return out if out is not None and out.flags.c_contiguous else np.empty(node.shape, node.dtype)


def _written(made: Array, out: Array | None) -> Array:
    if out is None or made is out:
        return made
    np.copyto(out, made)
    return out


def _patches_bytes(node: Tensor, w: tuple[int, ...], places: tuple[int, ...]) -> int:
    return places[0] * prod(w[1:]) * prod(places[2:]) * node.dtype.itemsize


def _conv2d_kernel(node: Tensor) -> Kernel:
    x_shape, w_shape = node.inputs[0].shape, node.inputs[1].shape
    stride, padding = node.op.attributes["stride"], node.op.attributes["padding"]
    patch, places = prod(w_shape[1:]), prod(node.shape[2:])
    size = _patches_bytes(node, w_shape, node.shape)

    def kernel(x: Any, w: Any, out: Any = None) -> Any:
        made = _contiguous(node, out)
        weights = w.reshape(w_shape[0], patch)
        for block in _blocks(x_shape[0], size):
            windows = _windows(_padded(x[block], padding), w_shape[2:], stride)
            patches = windows.reshape(len(windows), patch, places)
            np.matmul(weights, patches, out=made[block].reshape(len(windows), w_shape[0], places))
        return _written(made, out)

    return kernel


def _to_weights_kernel(node: Tensor) -> Kernel:
    x_shape, g_shape = node.inputs[0].shape, node.inputs[1].shape
    stride, padding = node.op.attributes["stride"], node.op.attributes["padding"]
    patch, outs = prod(node.shape[1:]), node.shape[0]
    size = _patches_bytes(node, node.shape, g_shape)

    def kernel(x: Any, g: Any, out: Any = None) -> Any:
        made = _contiguous(node, out)
        total = made.reshape(outs, patch)
        total.fill(0)
        for block in _blocks(x_shape[0], size):
            windows = _windows(_padded(x[block], padding), node.shape[2:], stride)
            places = len(windows) * prod(g_shape[2:])
            patches = windows.transpose(1, 2, 3, 0, 4, 5).reshape(patch, places)
            total += g[block].transpose(1, 0, 2, 3).reshape(outs, places) @ patches.T
        return _written(made, out)

    return kernel


def _to_images_kernel(node: Tensor) -> Kernel:
    g_shape, w_shape = node.inputs[0].shape, node.inputs[1].shape
    stride, padding = node.op.attributes["stride"], node.op.attributes["padding"]
    high, wide = node.shape[2:]
    size = _patches_bytes(node, w_shape, g_shape)
    patch, places = prod(w_shape[1:]), prod(g_shape[2:])

    def kernel(g: Any, w: Any, out: Any = None) -> Any:
        out = np.empty(node.shape, node.dtype) if out is None else out
        weights = w.reshape(w_shape[0], patch).T
        for block in _blocks(g_shape[0], size):
            count = len(g[block])
            patches = np.matmul(weights, g[block].reshape(count, w_shape[0], places))
            windows = patches.reshape(count, *w_shape[1:], *g_shape[2:])
            images = np.zeros((count, w_shape[1], high + 2 * padding[0], wide + 2 * padding[1]), node.dtype)
            for row in range(w_shape[2]):
                for column in range(w_shape[3]):
                    rows = slice(row, row + stride[0] * g_shape[2], stride[0])
                    columns = slice(column, column + stride[1] * g_shape[3], stride[1])
                    images[:, :, rows, columns] += windows[:, :, row, column]
            out[block] = images[:, :, padding[0] : padding[0] + high, padding[1] : padding[1] + wide]
        return out

    return kernel


def _placing(node: Tensor) -> dict[str, Pair]:
    return {"stride": node.op.attributes["stride"], "padding": node.op.attributes["padding"]}


def _to_images(g: Tensor, w: Tensor, like: Tensor, node: Tensor) -> Tensor | None:
    return to_input(apply("conv2d_to_images", g, w, shape=like.shape, **_placing(node)), like)


def _to_weights(x: Tensor, g: Tensor, like: Tensor, node: Tensor) -> Tensor | None:
    return to_input(apply("conv2d_to_weights", x, g, shape=like.shape, **_placing(node)), like)


def _conv2d(x: Tensor, w: Tensor, like: Tensor, node: Tensor) -> Tensor | None:
    return to_input(apply("conv2d", x, w, **_placing(node)), like)


def _flops(places: Tensor, weights: tuple[int, ...]) -> int:
    return 2 * places.size * prod(weights[1:])


define(
    "conv2d", shape=_conv2d_rule, kernels={"numpy": _conv2d_kernel},
    gradient=lambda node, g, x, w: (_to_images(g, w, x, node), _to_weights(x, g, w, node)),
    traits=Traits(flops=lambda node: _flops(node, node.inputs[1].shape)),
)  # fmt: skip
define(
    "conv2d_to_images", shape=_to_images_rule, kernels={"numpy": _to_images_kernel},
    gradient=lambda node, c, g, w: (_conv2d(c, w, g, node), _to_weights(c, g, w, node)),
    traits=Traits(flops=lambda node: _flops(node.inputs[0], node.inputs[1].shape)),
)  # fmt: skip
define(
    "conv2d_to_weights", shape=_to_weights_rule, kernels={"numpy": _to_weights_kernel},
    gradient=lambda node, c, x, g: (_to_images(g, c, x, node), _conv2d(x, c, g, node)),
    traits=Traits(flops=lambda node: _flops(node.inputs[1], node.shape)),
)  # fmt: skip
