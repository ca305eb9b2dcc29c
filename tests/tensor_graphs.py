"""Random graphs of tensors, and the evaluator that is too simple to be wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dag import Graph
from dag import dataflow as df
from dag.dataflow.tables import KERNELS, TRAITS

Array = np.ndarray[Any, Any]
LENGTHS = (0, 1, 2, 3, 9)
KINDS = (
    "unary", "binary", "binary", "where", "cast", "reshape", "transpose", "broadcast", "slice", "barrier", "concatenate",
    "softmax", "sum", "matmul",
)  # fmt: skip
UNARY = ("negative", "tanh", "exp", "absolute", "square", "sign")
BINARY = ("add", "subtract", "multiply", "maximum")


def naive(outputs: Sequence[df.Tensor], values: Mapping[df.Tensor, Array]) -> list[Array]:
    """Return the outputs: views are NumPy's, every other node makes an array of its own, and all of them stay."""
    found: dict[Any, Any] = dict(values)
    for node in Graph(tuple(outputs)).nodes:
        assert isinstance(node, df.Tensor)
        if node in found:
            continue
        if node.op.kind == "constant":
            found[node] = node.op.attributes["value"]
            continue
        kernel = KERNELS["numpy"][node.op.kind](node)
        taken = [found[source] for source in node.inputs]
        if TRAITS[node.op.kind].view:
            found[node] = kernel(*taken)
        else:
            found[node] = kernel(*taken, out=np.empty(node.shape, node.dtype))
    return [found[node] for node in outputs]


@st.composite
def tensor_graphs(draw: st.DrawFn, *, most: int = 14) -> tuple[list[df.Tensor], list[df.Tensor]]:
    """Return outputs and inputs: elementwise operators, views of views, products and sums over a few shapes."""
    rows, columns = draw(st.sampled_from(LENGTHS)), draw(st.sampled_from(LENGTHS))
    shapes = [(rows, columns), (rows, columns), (columns, rows), (columns,), ()]
    inputs = [
        df.input(f"x{at}", shape, np.float64)
        for at, shape in enumerate(draw(st.lists(st.sampled_from(shapes), min_size=1, max_size=4)))
    ]
    values = [*inputs, df.constant(np.arange(rows * columns, dtype=np.float64).reshape(rows, columns))]
    for _ in range(draw(st.integers(1, most))):
        values.append(_one_more(draw, values))
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=5))
    return outputs, inputs


def _one_more(draw: st.DrawFn, values: list[df.Tensor]) -> df.Tensor:
    value = draw(st.sampled_from(values))
    kind = draw(st.sampled_from(KINDS))
    if kind == "unary":
        return df.apply(draw(st.sampled_from(UNARY)), value)
    if kind == "reshape":
        other = draw(st.sampled_from([value.shape[::-1], (value.size,), (1, *value.shape)]))
        return df.apply("reshape", value, shape=other)
    if kind == "transpose":
        return df.apply("transpose", value, axes=tuple(draw(st.permutations(range(value.ndim)))))
    if kind == "broadcast" and value.ndim < 3:
        return df.broadcast_to(value, (draw(st.sampled_from((1, 2))), *value.shape))
    if kind == "slice" and value.ndim:
        return value[tuple(_span(draw, length) for length in value.shape[: draw(st.integers(1, value.ndim))])]
    if kind == "sum" and value.ndim:
        return df.sum(value, draw(st.integers(0, value.ndim - 1)), keepdims=draw(st.booleans()))
    if kind == "matmul" and value.ndim >= 2:
        return value @ value.transpose(*range(value.ndim - 2), value.ndim - 1, value.ndim - 2)
    if kind == "cast":
        return df.astype(value, np.dtype(draw(st.sampled_from((np.float32, np.float64)))))
    if kind == "barrier":
        return df.barrier(value, draw(st.sampled_from(values)))
    if kind == "concatenate" and value.ndim:
        return df.concatenate([value, df.exp(value)], draw(st.integers(0, value.ndim - 1)))
    if kind == "softmax" and value.ndim and value.size:
        return df.softmax(value, draw(st.integers(0, value.ndim - 1)))
    fitting = [each for each in values if _broadcast(each.shape, value.shape)]
    other = draw(st.sampled_from(fitting))
    if kind == "where":
        return df.where(value > other, other, value)
    pair = (value, other) if draw(st.booleans()) else (other, value)
    return df.apply(draw(st.sampled_from(BINARY)), *pair)


def _span(draw: st.DrawFn, length: int) -> slice:
    start = draw(st.integers(0, length))
    step = draw(st.sampled_from((1, 1, 2, -1)))
    return slice(start, draw(st.integers(start, length)), step) if step > 0 else slice(None, None, step)


def _broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(left, right)
    except ValueError:
        return False
    return True


def arrays_for(inputs: Sequence[df.Tensor], seed: int) -> list[Array]:
    """Return an array for each input, among them zeros of both signs."""
    rng = np.random.default_rng(seed)
    return [
        np.asarray(np.where(rng.random(each.shape) < 0.2, -0.0, rng.standard_normal(each.shape)), each.dtype)
        for each in inputs
    ]


def same_bits(left: Array, right: Array) -> bool:
    """Return whether two arrays are equal in shape, dtype and every bit, any NaN being one."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    both_nan = (left != left) & (right != right)
    return bool(((left == right) & (np.signbit(left) == np.signbit(right)) | both_nan).all())
