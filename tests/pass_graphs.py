"""Random graphs full of what passes look for, small models, and the check that a pass keeps every bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from tensor_graphs import naive, same_bits

from dag import Graph
from dag import dataflow as df
from dag.dataflow.passes_base import exact_key

Array = np.ndarray[Any, Any]
Drawn = tuple[list[df.Tensor], list[df.Tensor]]

TINY = np.finfo(np.float64).smallest_subnormal
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    np.nan,
    np.inf,
    -np.inf,
    TINY,
    -3 * TINY,
    1e308,
    -np.finfo(np.float32).tiny / 2,
)
DTYPES = ("float64", "float64", "float32", "int64", "int32", "bool")


@st.composite
def neutral_graphs(draw: st.DrawFn) -> Drawn:
    """Return graphs full of what the rules look for: ones and zeros, casts, repeats, two of everything."""
    rows, columns = draw(st.sampled_from([(4, 5), (4, 5), (1, 6), (0, 2), (7, 1)]))
    shapes = [(rows, columns), (rows, columns), (columns,), (rows, 1), ()]
    inputs = [
        df.input(f"x{at}", draw(st.sampled_from(shapes)), draw(st.sampled_from(DTYPES)))
        for at in range(draw(st.integers(1, 3)))
    ]
    values = list(inputs)
    for _ in range(draw(st.integers(3, 18))):
        made = _neutral(draw, values)
        values.append(made)
        if draw(st.integers(0, 3)) == 0 and made.inputs:
            values.append(df.apply(made.op.kind, *made.inputs, **made.op.attributes))
    used = {source for each in values for source in each.inputs}
    ends = [each for each in values if each not in used]  # whatever was made shows in one of them
    return [*ends, *draw(st.lists(st.sampled_from(values), max_size=2))], inputs


KINDS = ("with a constant",) * 4 + ("moved", "cast", "unary", "unary", "binary", "binary", "summed", "marked")


def _neutral(draw: st.DrawFn, values: list[df.Tensor]) -> df.Tensor:
    x = draw(st.sampled_from(values[-5:]))
    kind = draw(st.sampled_from(KINDS))
    if kind == "with a constant":
        number = draw(st.sampled_from([0.0, -0.0, 1.0, 2.5] if x.dtype.kind == "f" else [0, 1, 3]))
        constant = df.constant(np.full(draw(st.sampled_from([(), x.shape])), number, x.dtype))
        if draw(st.booleans()):
            constant = df.broadcast_to(constant, x.shape)
        pair = [x, constant] if draw(st.booleans()) else [constant, x]
        kinds = ["add", "multiply"] if x.dtype.kind == "b" else ["add", "subtract", "multiply", "divide"]
        return df.apply(draw(st.sampled_from(kinds)), *pair)
    if kind == "moved":
        made = draw(st.sampled_from(["transpose", "reshape", "broadcast_to", "sum_to"]))
        if made == "transpose":
            return df.apply("transpose", x, axes=tuple(draw(st.permutations(range(x.ndim)))))
        if made == "reshape":
            return df.apply(
                "reshape", x, shape=draw(st.sampled_from([x.shape, (x.size,), (1, *x.shape), x.shape[::-1]]))
            )
        if made == "sum_to" and x.dtype.kind == "f":
            return df.apply("sum_to", x, shape=draw(st.sampled_from([x.shape, x.shape[1:], ()])))
        return df.apply("broadcast_to", x, shape=draw(st.sampled_from([x.shape, (1, *x.shape)])))
    if kind == "cast":
        return df.apply("astype", x, dtype=np.dtype(draw(st.sampled_from(DTYPES))))
    if kind == "unary" and x.dtype.kind == "f":
        return df.apply(draw(st.sampled_from(["negative", "negative", "exp", "tanh", "relu", "sigmoid"])), x)
    if kind == "summed" and x.ndim:
        return df.sum(x, draw(st.integers(0, x.ndim - 1)), keepdims=draw(st.booleans()))
    if kind == "marked":
        return df.identity(x) if draw(st.booleans()) else df.stop_gradient(x)
    fitting = [each for each in values if _together(each.shape, x.shape)]
    kinds = ["add", "multiply", "maximum", "minimum", "less", "equal", "logical_and"]
    return df.apply(draw(st.sampled_from(kinds)), x, draw(st.sampled_from(fitting)))


def _together(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    try:
        return len(np.broadcast_shapes(left, right)) <= 4
    except ValueError:
        return False


def special_arrays(inputs: Sequence[df.Tensor], seed: int) -> list[Array]:
    """Return arrays of NaN, infinities, zeros of both signs, subnormals, and what overflows."""
    random = np.random.default_rng(seed)
    made = []
    for each in inputs:
        if each.dtype.kind == "f":
            with np.errstate(all="ignore"):
                made.append(random.choice(np.array(SPECIAL), each.shape).astype(each.dtype))
        else:
            made.append(random.integers(-3, 4, each.shape).astype(each.dtype))
    return [np.asarray(each) for each in made]


def values_of(
    outputs: Sequence[df.Tensor], inputs: Sequence[df.Tensor], arrays: Sequence[Array]
) -> list[Array]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return naive(outputs, dict(zip(inputs, arrays, strict=True)))


def check(
    outputs: list[df.Tensor], inputs: list[df.Tensor], run: Callable[[Graph], Graph], arrays: Any
) -> Graph:
    """Assert that a pass keeps the outputs, their names and every bit, and makes nothing larger; return its graph."""
    graph = Graph(tuple(outputs))
    made = df.verify(run(graph))
    assert [(each.name, each.shape, each.dtype) for each in made.outputs] == [  # type: ignore[attr-defined]
        (each.name, each.shape, each.dtype) for each in outputs
    ]
    assert {each for each in made.nodes if each.op.kind == "input"} <= set(inputs)
    assert len(made) <= len(graph)
    before, after = values_of(outputs, inputs, arrays), values_of(made.outputs, inputs, arrays)  # type: ignore[arg-type]
    assert all(map(same_bits, before, after)), (before, after)
    return made


def optimised(graph: Graph) -> Graph:
    """All passes, each checked."""
    return df.optimise(graph, check=True).graph


def outline(graph: Graph) -> list[Any]:
    return [
        (node.name, exact_key(node.op), [source.name for source in node.sources()], node.outline)  # type: ignore[arg-type,attr-defined]
        for node in graph.nodes
        if node.op.key is not None
    ]


def perceptron(dtype: str) -> Drawn:
    params = [(df.input(f"w{at}", (6, 6), dtype), df.input(f"b{at}", (6,), dtype)) for at in range(3)]
    x, labels = df.input("x", (5, 6), dtype), df.input("labels", (5,), np.int64)

    def loss(params: Any) -> df.Tensor:
        value = x
        for weights, bias in params[:-1]:
            value = df.relu(value @ weights + bias)
        return df.mean(df.softmax_cross_entropy(value @ params[-1][0] + params[-1][1], labels))

    found, gradients = df.value_and_grad(loss)(params)
    return [found, *(each for pair in gradients for each in pair)], [
        *(each for pair in params for each in pair),
        x,
        labels,
    ]


def transformer(dtype: str) -> Drawn:
    def weights(name: str, *shape: int) -> df.Tensor:
        return df.input(name, shape, dtype)

    x = weights("x", 2, 5, 4)
    params = {
        "q": weights("q", 4, 4), "k": weights("k", 4, 4), "v": weights("v", 4, 4), "up": weights("up", 4, 8),
        "down": weights("down", 8, 4), "scale": weights("scale", 4), "shift": weights("shift", 4),
    }  # fmt: skip

    def block(params: Any) -> df.Tensor:
        inner = df.layer_norm(x, params["scale"], params["shift"])
        value = x + df.attention(*(inner @ params[name] for name in "qkv"), causal=True)
        inner = df.layer_norm(value, params["scale"], params["shift"])
        return df.mean(df.square(value + df.gelu(inner @ params["up"]) @ params["down"]))

    found, gradients = df.value_and_grad(block)(params)
    return [found, *gradients.values()], [x, *params.values()]
