"""Layers of neural networks as functions of tensors: each returns nodes, none holds parameters.

``gelu`` is the form with tanh, since NumPy has no error function.
"""

from __future__ import annotations

from functools import lru_cache
from math import pi, sqrt
from typing import Any

import numpy as np

from ..errors import BadTensor
from .arguments import as_tensor, axis_of, ids_of, in_float32, pair_of
from .convolving import check_strides
from .elementwise import broadcast, check_float
from .functions import maximum, mean, reshape, swapaxes, tanh, where
from .tensor import Tensor, TensorLike, apply, brief, dtype_of, show


def relu(value: TensorLike) -> Tensor:
    """Return each element if it is above 0, else 0; the derivative at 0 is 0."""
    return apply("relu", value)


@in_float32
def gelu(value: TensorLike) -> Tensor:
    """Return x * Phi(x) by x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3))) (Hendrycks & Gimpel 2016, section 2)."""
    x = as_tensor(value)
    check_float("gelu", x)
    inner = x * (x * x * (0.044715 * sqrt(2 / pi)) + sqrt(2 / pi))
    return x * (tanh(inner) * 0.5 + 0.5)


@in_float32
def softmax(value: TensorLike, axis: int = -1) -> Tensor:
    """Return exp of the elements over its sum along ``axis``, for elements of any size."""
    tensor = as_tensor(value)
    return apply("softmax", tensor, axis=axis_of("softmax", tensor.shape, axis))


@in_float32
def log_softmax(value: TensorLike, axis: int = -1) -> Tensor:
    """Return the logarithm of ``softmax``, also where that is 0 in floating point."""
    tensor = as_tensor(value)
    return apply("log_softmax", tensor, axis=axis_of("log_softmax", tensor.shape, axis))


def softmax_cross_entropy(logits: TensorLike, labels: TensorLike) -> Tensor:
    """Return -log(softmax(logits)[label]) for each row: logits (..., classes), integer labels (...), losses (...).

    Raises:
        BadTensor: shapes or dtypes do not fit.
        OutOfRange: when the graph runs, a label is no class.
    """
    tensor = as_tensor(logits)
    if not tensor.ndim:
        raise BadTensor("softmax_cross_entropy: logits have a last dimension for the classes, got ()")
    return _cross_entropy(tensor, ids_of("softmax_cross_entropy", labels, tensor.shape[-1]))


@in_float32
def _cross_entropy(logits: TensorLike, labels: Tensor) -> Tensor:
    return apply("softmax_cross_entropy", logits, labels)


def layer_norm(
    value: TensorLike, scale: TensorLike | None = None, shift: TensorLike | None = None, epsilon: float = 1e-5
) -> Tensor:
    """Return rows of mean 0 and variance 1 along the last axis, times ``scale``, plus ``shift`` (Ba et al. 2016).

    ``epsilon`` is added to the variance.
    """
    if not isinstance(epsilon, (int, float)) or epsilon < 0:
        raise BadTensor(f"layer_norm: epsilon is a number from 0 on, got {brief(epsilon)}")
    made = _normalised(value, float(epsilon))
    for name, each in (("scale", scale), ("shift", shift)):
        if each is None:
            continue
        given = as_tensor(each)
        if broadcast(f"layer_norm: {name}", made.shape, given.shape) != made.shape:
            raise BadTensor(
                f"layer_norm: {name} {show(given.shape)} does not broadcast to {show(made.shape)}"
            )
        made = made * given if name == "scale" else made + given
    return made


@in_float32
def _normalised(value: TensorLike, epsilon: float) -> Tensor:
    return apply("normalise", value, epsilon=epsilon)


def attention(query: TensorLike, key: TensorLike, value: TensorLike, causal: bool = False) -> Tensor:
    """Return softmax(query key^T / sqrt(d)) value over the last two dimensions (Vaswani et al. 2017, section 3.2.1).

    query (..., targets, d), key (..., sources, d), value (..., sources, e) give (..., targets, e); the dimensions before
    (batch, heads) broadcast.  ``causal``: target i sees the sources up to i, the last target all of them.
    """
    q, k, v = as_tensor(query), as_tensor(key), as_tensor(value)
    shapes = f"attention: query {show(q.shape)}, key {show(k.shape)}, value {show(v.shape)}"
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise BadTensor(f"{shapes}: each needs at least two dimensions")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2] or not q.shape[-1]:
        raise BadTensor(f"{shapes}: query and key share the last length, key and value the last but one")
    for each in (q, k, v):
        check_float("attention", each)
    broadcast("attention", q.shape[:-2], k.shape[:-2], v.shape[:-2])
    targets, sources = q.shape[-2], k.shape[-2]
    if causal and targets > sources:
        raise BadTensor(f"{shapes}: causal attention wants at least as many sources as targets")
    scores = apply("matmul", q * (1 / sqrt(q.shape[-1])), swapaxes(k, -1, -2))
    if causal:
        # A large number, not an infinite one, which would be reported as one where values are checked.
        scores = where(_seen(targets, sources), scores, float(np.finfo(scores.dtype).min) / 2)
    return apply("matmul", softmax(scores), v)


def conv2d(x: TensorLike, w: TensorLike, stride: Any = 1, padding: Any = 0) -> Tensor:
    """Return images (batch, in, height, width) convolved with weights (out, in, height, width), not flipped.

    ``stride`` and ``padding`` (with zeros) are one number, or two for height and width.
    """
    pairs = {"stride": pair_of("conv2d", "stride", stride), "padding": pair_of("conv2d", "padding", padding)}
    return apply("conv2d", x, w, **pairs)


def max_pool2d(x: TensorLike, size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """Return the largest element of each window of ``size`` of images (batch, channels, height, width).

    Windows start ``stride`` apart, by default ``size``.  Of several largest the first takes the derivative.
    """
    largest, *others = _windows("max_pool2d", as_tensor(x), size, stride, padding, -np.inf)
    for each in others:
        largest = maximum(largest, each)
    return largest


def average_pool2d(x: TensorLike, size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """Return the mean of each window of ``size`` of images (batch, channels, height, width), padding counted in."""
    tensor = as_tensor(x)
    high, wide = pair_of("average_pool2d", "size", size)
    if padding == 0 and stride in (None, size, (high, wide)) and tensor.ndim == 4 and min(high, wide) > 0:
        batch, channels, height, width = tensor.shape
        if height % high == width % wide == 0:
            tiles = reshape(tensor, (batch, channels, height // high, high, width // wide, wide))
            return mean(tiles, (3, 5))
    total, *others = _windows("average_pool2d", tensor, size, stride, padding, 0)
    for each in others:
        total = total + each
    return total * (1 / (high * wide))


def embedding(table: TensorLike, ids: TensorLike) -> Tensor:
    """Return the rows of ``table`` that ``ids`` name, in the shape of the ids with the row's after it.

    Raises:
        BadTensor: the ids are no integers, or are known now and out of range.
        OutOfRange: an id is out of range when the graph runs.
    """
    rows = as_tensor(table)
    if rows.ndim == 0:
        raise BadTensor("embedding: a table has rows, got a number")
    return apply("take", rows, ids_of("embedding", ids, rows.shape[0]), axis=0)


def one_hot(ids: TensorLike, depth: int, dtype: Any = np.float32) -> Tensor:
    """Return for each id a row of ``depth`` zeros with a 1 at its place; raises as ``embedding`` does."""
    if not isinstance(depth, (int, np.integer)) or depth < 0:
        raise BadTensor(f"one_hot: the depth is an integer from 0 on, got {brief(depth)}")
    return apply("one_hot", ids_of("one_hot", ids, int(depth)), depth=int(depth), dtype=dtype_of(dtype))


@lru_cache(maxsize=8)
def _seen(targets: int, sources: int) -> Any:
    return np.tri(targets, sources, sources - targets, dtype=np.bool_)


def _windows(kind: str, x: Tensor, size: Any, stride: Any, padding: Any, fill: float) -> list[Tensor]:
    """Return for each place of a window the elements that stand there in all windows."""
    sizes = pair_of(kind, "size", size)
    strides = sizes if stride is None else pair_of(kind, "stride", stride)
    pads = pair_of(kind, "padding", padding)
    check_float(kind, x)
    check_strides(kind, strides, pads)
    if x.ndim != 4 or min(sizes) < 1:
        raise BadTensor(
            f"{kind}: images (batch, channels, height, width) and sizes from 1 on, got {show(x.shape)}, {sizes}"
        )
    if pads[0] >= sizes[0] or pads[1] >= sizes[1]:
        raise BadTensor(f"{kind}: with padding {pads} a window of {sizes} could hold nothing else")
    lengths = [n + 2 * pad for n, pad in zip(x.shape[2:], pads, strict=True)]
    if lengths[0] < sizes[0] or lengths[1] < sizes[1]:
        raise BadTensor(
            f"{kind}: windows of {sizes} are larger than the images {show(x.shape)} with padding {pads}"
        )
    if any(pads):
        spans = ((0, 1, x.shape[0]), (0, 1, x.shape[1]), (pads[0], 1, x.shape[2]), (pads[1], 1, x.shape[3]))
        x = apply("place", x, shape=(*x.shape[:2], *lengths), spans=spans, fill=fill)
    counts = [(n - part) // step + 1 for n, part, step in zip(lengths, sizes, strides, strict=True)]
    found = []
    for row in range(sizes[0]):
        for column in range(sizes[1]):
            ends = ((row, strides[0], counts[0]), (column, strides[1], counts[1]))
            spans = ((0, 1, x.shape[0]), (0, 1, x.shape[1]), *ends)
            found.append(apply("slice", x, spans=spans))
    return found
