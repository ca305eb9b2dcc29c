"""Passes over graphs of tensors change no bit of what a graph gives, and leave it smaller."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dag_operators import EXAMPLES, MARKS, Chance
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_graphs import arrays_for, naive, same_bits, tensor_graphs

from dag import Graph
from dag import dataflow as df
from dag.dataflow import fused as fused_module
from dag.dataflow.fused import blocks_of, unfused
from dag.dataflow.memory_plan import plan_memory
from dag.dataflow.passes_base import Notes, exact_key
from dag.dataflow.tables import SHAPES, TRAITS
from dag.errors import BadGraph, BadTensor, NotDifferentiable

Array = np.ndarray[Any, Any]
Drawn = tuple[list[df.Tensor], list[df.Tensor]]

PASSES: dict[str, Callable[[Graph], Graph]] = {
    "simplify": df.simplify,
    "eliminate_common": df.eliminate_common,
    "fold_constants": df.fold_constants,
    "fuse": df.fuse,
    "optimise": lambda graph: df.optimise(graph, check=True).graph,
}
EACH_PASS = pytest.mark.parametrize("name", PASSES)

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


# ---------------------------------------------------------------------------------------------------------------- graphs


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


def outline(graph: Graph) -> list[Any]:
    return [
        (node.name, exact_key(node.op), [source.name for source in node.sources()], node.outline)  # type: ignore[arg-type,attr-defined]
        for node in graph.nodes
        if node.op.key is not None
    ]


# --------------------------------------------------------------------------------------------------------- the same bits


@EACH_PASS
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_a_pass_keeps_every_bit_makes_nothing_larger_and_does_nothing_the_second_time(
    name: str, data: st.DataObject
) -> None:
    outputs, inputs = data.draw(neutral_graphs())
    made = check(outputs, inputs, PASSES[name], special_arrays(inputs, data.draw(st.integers(0, 99))))
    assert outline(PASSES[name](made)) == outline(made)


@EACH_PASS
@given(graph=tensor_graphs(), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_pass_keeps_every_bit_of_graphs_with_views_and_products(name: str, graph: Drawn, seed: int) -> None:
    outputs, inputs = graph
    check(outputs, inputs, PASSES[name], arrays_for(inputs, seed))
    check(outputs, inputs, PASSES[name], special_arrays(inputs, seed))


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_every_operator_keeps_its_bits_among_others(kind: str, data: st.DataObject) -> None:
    chance = Chance(data)
    case = EXAMPLES[kind](chance)
    inputs = case.inputs()
    given_ = [each * 1 if each.dtype.kind == "f" else each for each in inputs]
    made = case.apply(*given_)
    again = case.apply(*given_)
    outputs = [made, again]
    if made.dtype.kind == "f":
        outputs.append(df.sum(df.tanh(made * 1.0) * made - again, tuple(range(made.ndim))))
    arrays = [
        np.where(chance.random.random(each.shape) < 0.2, chance.random.choice(SPECIAL, each.shape), each)
        if each.dtype.kind == "f"
        else each
        for each in case.arrays
    ]
    check(outputs, inputs, PASSES["optimise"], arrays)


def test_the_operators_without_an_example_are_marks_and_these_are_tested_here() -> None:
    assert set(SHAPES) - set(EXAMPLES) == MARKS
    x = df.input("x", (3,), np.float64)
    marked = df.identity(df.stop_gradient(df.identity(x))) + df.barrier(x, df.exp(x))
    made = check([marked], [x], PASSES["optimise"], [np.array([1.0, np.nan, -0.0])])
    assert sorted(node.op.kind for node in made.nodes) == ["add", "barrier", "exp", "input"]


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", [perceptron, transformer])
@EACH_PASS
def test_losses_and_gradients_of_models_keep_every_bit(
    name: str, model: Callable[[str], Drawn], dtype: str
) -> None:
    outputs, inputs = model(dtype)
    made = check(
        outputs, inputs, PASSES[name], arrays_for(inputs, 5) if model is transformer else _labelled(inputs)
    )
    assert name in ("eliminate_common", "fold_constants") or len(made) < len(Graph(tuple(outputs)))


def _labelled(inputs: list[df.Tensor]) -> list[Array]:
    return [*arrays_for(inputs[:-1], 5), np.array([0, 5, 2, 2, 1])]


@pytest.mark.parametrize("model", [perceptron, transformer])
def test_a_program_of_a_model_gives_the_same_bits_optimised(model: Callable[[str], Drawn]) -> None:
    outputs, inputs = model("float32")
    arrays = arrays_for(inputs, 5) if model is transformer else _labelled(inputs)
    plain = df.Program(outputs, inputs, optimise=False)(*arrays)
    assert all(map(same_bits, plain, df.Program(outputs, inputs)(*arrays)))
    assert (
        plan_memory(df.optimise(Graph(tuple(outputs))).graph).peak_bytes
        <= plan_memory(Graph(tuple(outputs))).peak_bytes
    )


# -------------------------------------------------------------------------------------------------------- single rules


X, N, B = (df.input(name, (2, 3), dtype) for name, dtype in (("X", "float64"), ("N", "int64"), ("B", "bool")))
ROW = df.input("ROW", (3,), "float32")
GONE: dict[str, tuple[Callable[[], df.Tensor], df.Tensor]] = {
    "x * 1": (lambda: X * 1.0, X),
    "1 * x": (lambda: 1 * N, N),
    "True * b": (lambda: df.multiply(True, B), B),
    "x * ones": (lambda: X * np.ones((2, 3)), X),
    "x * a broadcast 1": (lambda: X * df.broadcast_to(df.constant(1.0), (2, 3)), X),
    "x / 1": (lambda: X / 1, X),
    "x + -0.0": (lambda: X + -0.0, X),
    "x - 0.0": (lambda: X - 0.0, X),
    "i + 0": (lambda: 0 + N, N),
    "i - 0": (lambda: N - 0, N),
    "-(-x)": (lambda: df.negative(-X), X),
    "a transpose of a transpose": (lambda: X.T.T, X),
    "a transpose to its own order": (lambda: df.apply("transpose", X, axes=(0, 1)), X),
    "a reshape of a reshape": (lambda: X.reshape(3, 2).reshape(6).reshape(2, 3), X),
    "a cast to its own dtype": (lambda: df.apply("astype", X, dtype=np.dtype("float64")), X),
    "a lossless cast and back": (lambda: ROW.astype("float64").astype("float32"), ROW),
    "truth values as numbers and back": (lambda: B.astype("int32").astype("float64").astype("bool"), B),
    "a broadcast to its own shape": (lambda: df.apply("broadcast_to", X, shape=(2, 3)), X),
    "a sum of integers to its own shape": (lambda: df.apply("sum_to", N, shape=(2, 3)), N),
    "stop_gradient": (lambda: df.stop_gradient(X), X),
    "all of them": (lambda: df.stop_gradient(df.negative(-(X * 1 + -0.0))).T.T / 1, X),
}
#: What looks the same, and is not for some x; and a word of the reason, where one is given.
STAYS: dict[str, tuple[Callable[[], df.Tensor], str]] = {
    "x + 0.0": (lambda: X + 0.0, "-0.0"),
    "x - -0.0": (lambda: X - -0.0, "-0.0"),
    "0.0 * x": (lambda: 0.0 * X, "NaN"),
    "x * 1 in another dtype": (lambda: ROW * np.float64(1), ""),
    "i / 1": (lambda: N / 1, ""),
    "x * ones that broadcast it": (lambda: ROW * np.ones((2, 3), "float32"), ""),
    "0 - x": (lambda: 0.0 - X, ""),
    "a cast that rounds and back": (lambda: X.astype("float32").astype("float64"), "not every float64"),
    "int64 to float64 and back": (lambda: N.astype("float64").astype("int64"), "not every int64"),
    "x - x": (lambda: X - X, ""),
    "x / x": (lambda: X / X, ""),
    "exp of log": (lambda: df.exp(df.log(X)), ""),
    "a sum to its own shape": (lambda: df.apply("sum_to", X, shape=(2, 3)), "begins with 0.0"),
    "a sum of a sum": (lambda: df.sum(df.sum(X, 0), 0), ""),
    "a barrier": (lambda: df.barrier(X, df.exp(X)), ""),
}


@pytest.mark.parametrize("claim", GONE)
def test_what_changes_nothing_goes(claim: str) -> None:
    make, left = GONE[claim]
    notes = Notes()
    made = df.simplify(Graph((df.exp(make()),)), notes)
    assert made.outputs[0].inputs == (left,)
    assert notes.applied
    assert not notes.refused


@pytest.mark.parametrize("claim", STAYS)
def test_what_changes_a_bit_for_some_input_stays(claim: str) -> None:
    make, why = STAYS[claim]
    output = df.exp(make())
    notes = Notes()
    made = df.simplify(Graph((output,)), notes)
    assert made.outputs == (output,)
    assert why in " ".join(notes.refused)
    assert bool(why) == bool(notes.refused)


def test_an_operator_broadcasts_by_itself_and_works_before_a_broadcast_of_all_it_has() -> None:
    x = df.input("x", (4, 3), np.float64)
    bias, scale = df.input("bias", (3,), np.float64), df.input("scale", (), np.float64)
    output = x + df.broadcast_to(
        df.exp(df.broadcast_to(bias, (4, 3)) * df.broadcast_to(scale, (4, 3))), (4, 3)
    )
    made = check([output], [x, bias, scale], df.simplify, arrays_for([x, bias, scale], 1))
    assert [(node.op.kind, node.shape) for node in made.nodes if node.inputs] == [  # type: ignore[attr-defined]
        ("multiply", (3,)), ("exp", (3,)), ("add", (4, 3)),
    ]  # fmt: skip


def test_outputs_keep_their_names_where_they_become_inputs_constants_or_one_another() -> None:
    x = df.input("x", (3,), np.float64)
    same, one, two = x * 1, df.exp(x), df.exp(x)
    number = df.exp(df.constant(0.0))
    made = check([same, one, two, number, one], [x], PASSES["optimise"], [np.array([1.0, -0.0, np.nan])])
    assert made.outputs[1] is made.outputs[4]
    assert [node.op.kind for node in made.nodes].count("exp") == 1


# ------------------------------------------------------------------------------------- what is there twice, or unwanted


def test_equal_operators_on_equal_inputs_are_one_in_either_order_where_bits_allow() -> None:
    x, y = df.input("x", (3,), np.float64), df.input("y", (3,), np.float64)

    def kinds(*outputs: df.Tensor) -> list[str]:
        made = df.eliminate_common(Graph((df.concatenate([df.reshape(each, (1, 3)) for each in outputs]),)))
        return [
            node.op.kind
            for node in made.nodes
            if TRAITS.get(node.op.kind) and TRAITS[node.op.kind].elementwise
        ]

    assert kinds(x + y, y + x, x + y) == ["add"]
    assert kinds(x * y, y * x) == ["multiply"]
    assert kinds(df.maximum(x, y), df.maximum(y, x)) == [
        "maximum",
        "maximum",
    ]  # which of 0.0 and -0.0 differs
    assert kinds(x - y, y - x) == ["subtract", "subtract"]
    assert kinds(x + 0.0, x + -0.0) == ["add", "add"]  # 0.0 == -0.0, and yet
    assert kinds(x.astype("int32"), x.astype("int64")) == ["astype", "astype"]
    assert kinds(df.exp(x + y), df.exp(y + x)) == ["add", "exp"]


def test_attributes_that_python_calls_equal_are_told_apart() -> None:
    x = df.input("x", (2,), np.float64)
    spans = ((0, 1, 2),)
    made = [df.apply("place", x, shape=(2,), spans=spans, fill=fill) for fill in (0.0, -0.0, 0.0)]
    first, second, third = (exact_key(each.op) for each in made)
    assert first == third != second


def test_what_checkpoint_computes_again_stays_apart() -> None:
    def body(x: df.Tensor) -> df.Tensor:
        return df.tanh(df.exp(df.tanh(x)))

    x = df.input("x", (50,), np.float64)
    kept = df.grad(lambda x: df.sum(body(x)))(x)
    again = df.grad(lambda x: df.sum(df.checkpoint(body)(x)))(x)
    arrays = arrays_for([x], 3)
    made = check([again], [x], PASSES["optimise"], arrays)
    assert "barrier" in {node.op.kind for node in made.nodes}
    assert same_bits(values_of([kept], [x], arrays)[0], values_of([again], [x], arrays)[0])


def test_outputs_that_nobody_wants_go_with_what_they_alone_need() -> None:
    x = df.input("x", (3,), np.float64)
    one, two = df.exp(x), df.tanh(df.log(x))
    graph = Graph((one, two))
    assert df.dead_code(graph, [one]).nodes == (x, one)
    assert df.dead_code(graph, [two.name, one]).outputs == (one, two)
    with pytest.raises(BadGraph, match=r"'log_[0-9]+' is no output of the graph; its outputs are exp_"):
        df.dead_code(graph, [two.inputs[0]])


# ------------------------------------------------------------------------------------------------------------- constants


def test_what_depends_on_constants_alone_is_one() -> None:
    x = df.input("x", (3,), np.float64)
    output = x * df.exp(df.constant(np.array([1.0, np.nan, -0.0])) + 1.0)
    made = check([output], [x], df.fold_constants, arrays_for([x], 1))
    assert [node.op.kind for node in made.nodes] == ["input", "constant", "multiply"]


def test_a_constant_is_not_blown_up_and_no_larger_than_the_limit() -> None:
    x = df.input("x", (100, 100), np.float64)
    notes = Notes()
    wide = x * df.exp(df.broadcast_to(df.constant(2.0), (100, 100)))
    made = df.fold_constants(Graph((wide,)), notes)
    assert max(node.size_bytes for node in made.nodes if node.op.kind == "constant") == 8
    assert "80,000 bytes, made from 8" in notes.refused[0]
    table = x * df.exp(df.constant(np.ones((100, 100))))
    assert [node.op.kind for node in df.fold_constants(Graph((table,))).nodes] == [
        "input",
        "constant",
        "multiply",
    ]
    assert df.fold_constants(Graph((table,)), limit_bytes=79_999).outputs == (table,)
    assert len(df.optimise(Graph((wide,))).graph) == 3  # simplify computes it before the broadcast


def test_constants_that_an_operator_refuses_are_left_to_the_run() -> None:
    out = df.apply("take", df.constant(np.ones(3)), df.constant(np.array([5])), axis=0)
    notes = Notes()
    assert df.fold_constants(Graph((out,)), notes).outputs == (out,)
    assert "take failed on these constants" in notes.refused[0]


# ----------------------------------------------------------------------------------------------------------------- fusion


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_blocks_of_any_size_give_the_bits_of_the_single_operators(data: st.DataObject) -> None:
    outputs, inputs = data.draw(neutral_graphs())
    shapes = {each.name: each for each in inputs}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_module, "BLOCK_BYTES", data.draw(st.sampled_from([1, 8, 16, 24])))
        arrays = special_arrays(inputs, data.draw(st.integers(0, 99)))
        made = check(outputs, list(shapes.values()), df.fuse, arrays)
        with np.errstate(all="ignore"):
            found = df.Program(list(made.outputs), inputs, optimise=False)(*arrays)
        assert all(map(same_bits, found, values_of(outputs, inputs, arrays)))


@given(st.lists(st.integers(0, 7), max_size=4).map(tuple), st.integers(1, 40))
def test_blocks_cover_an_array_once_and_keep_to_their_size(shape: tuple[int, ...], most: int) -> None:
    block, indices = blocks_of(shape, most)
    counts = np.zeros(shape, int)
    for number, index in enumerate(indices):
        counts[index] += 1
        part = np.asarray(counts[index])
        assert part.shape == block or (part.shape[1:] == block[1:] and part.shape[0] < block[0] and number)
        assert part.size <= most or len(indices) == 1
    assert (counts == 1).all()
    assert len(indices) > 1 or counts.size <= 2 * most


def test_large_arrays_with_inputs_that_broadcast_are_computed_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused_module, "BLOCK_BYTES", 2**15)
    shape = (3, 70, 400)
    inputs = [
        df.input(f"x{at}", each, np.float64)
        for at, each in enumerate([shape, (70, 1), (400,), (3, 1, 1), (), (1, 70, 400), (3, 1, 400)])
    ]
    output = inputs[0]
    for each in inputs[1:]:
        output = df.tanh(output * each) - each
    made = df.fuse(Graph((output,)))
    assert [node.op.kind for node in made.nodes if node.inputs] == ["fused"]
    assert len(blocks_of(shape, fused_module.BLOCK_BYTES // 8)[1]) > 4
    arrays = arrays_for(inputs, 2)
    wanted = values_of([output], inputs, arrays)[0]
    assert same_bits(values_of(made.outputs, inputs, arrays)[0], wanted)  # type: ignore[arg-type]
    kernel = df.tables.KERNELS["numpy"]["fused"](made.outputs[0])
    out = np.empty(shape[::-1]).T  # strided
    assert kernel(*arrays, out=out) is out
    assert same_bits(np.ascontiguousarray(out), wanted)
    over = arrays[0].copy()
    assert same_bits(kernel(over, *arrays[1:], out=over), wanted)  # written over an input
    assert same_bits(fused_module.stepwise(made.outputs[0], "numpy")(*arrays), wanted)  # type: ignore[arg-type]


def test_only_elementwise_operators_of_one_shape_with_one_user_are_fused() -> None:
    x, y = df.input("x", (4, 3), np.float64), df.input("y", (3,), np.float64)
    small = df.exp(y) * 2  # another shape than what comes after
    shared = df.tanh(x)  # used by a sum too
    wanted = df.exp(shared * small)  # an output itself
    made = df.fuse(Graph((wanted, df.sum(df.sin(wanted) + 1.0), df.sum(shared))))
    fused = [node for node in made.nodes if node.op.kind == "fused"]
    assert sorted([each.op.kind for each in unfused(node)] for node in fused) == [  # type: ignore[arg-type]
        ["exp", "multiply"], ["multiply", "exp"], ["sin", "add"],
    ]  # fmt: skip
    assert sorted(node.op.kind for node in made.nodes if node.inputs and node not in fused) == [
        "sum",
        "sum",
        "tanh",
    ]


def test_a_fused_operator_counts_the_operations_of_its_steps_and_names_them() -> None:
    x = df.input("x", (5,), np.float64)
    graph = Graph((df.sigmoid(df.exp(x) * 2),))
    made = df.fuse(graph)
    (node,) = (each for each in made.nodes if each.op.kind == "fused")
    assert TRAITS["fused"].flops(node) == sum(
        TRAITS[each.op.kind].flops(each) for each in graph.nodes if each.inputs
    )
    assert [each.name for each in unfused(node)] == [each.name for each in graph.nodes if each.inputs]  # type: ignore[arg-type]


def test_a_fused_operator_has_no_derivative_and_says_what_to_do() -> None:
    x = df.input("x", (5,), np.float64)
    (output,) = df.fuse(Graph((df.exp(x) * 2,))).outputs
    with pytest.raises(NotDifferentiable, match="is fused: take the gradient first, and fuse afterwards"):
        df.pull_back([output], [df.exp(x)], [x])  # type: ignore[list-item]


def test_fusion_does_not_keep_what_could_be_freed() -> None:
    # Each product is large while it is made and gives one row; a sum in one operator would wait for all products.
    x = df.input("x", (40, 40), np.float64)
    total = df.tanh(x @ x)
    for at in range(8):
        total = total + df.tanh((x * float(at + 2)) @ x)
    graph = Graph((total,))
    made = df.fuse(graph)
    assert plan_memory(made).peak_bytes <= plan_memory(graph).peak_bytes
    assert len(made) < len(graph)


def test_a_graph_with_fused_operators_can_be_pickled() -> None:
    outputs, inputs = transformer("float64")
    made = df.optimise(Graph(tuple(outputs))).graph
    copy = pickle.loads(pickle.dumps(made))
    arrays = arrays_for(inputs, 4)
    by_name = {node.name: node for node in copy.nodes}
    found = values_of(copy.outputs, [by_name[each.name] for each in inputs], arrays)
    assert all(map(same_bits, found, values_of(outputs, inputs, arrays)))


# --------------------------------------------------------------------------------------------------------------- together


def test_all_passes_report_what_they_did_and_what_not() -> None:
    x = df.input("x", (3,), np.float64)
    done = df.optimise(
        Graph((df.exp(x * 1.0) + df.exp(x) + (x + 0.0) * df.exp(df.constant(2.0)),)), check=True
    )
    said = " | ".join(done.applied)
    for words in ("x * 1 is x", "it is computed once", "is a constant of 8 bytes", "steps in one"):
        assert words in said
    assert "x + 0.0 is 0.0 where that is -0.0" in " ".join(done.refused)
    assert len(done.refused) == len(set(done.refused))
    assert df.optimise(Graph((x,))).applied == ()
    alone = df.optimise(Graph((df.exp(x) * 2 + x,)), fused=False).graph
    assert "fused" not in {node.op.kind for node in alone.nodes}


def test_the_order_of_rounds_leaves_nothing_for_a_second_call() -> None:
    for model in (perceptron, transformer):
        made = df.optimise(Graph(tuple(model("float32")[0]))).graph
        assert outline(df.optimise(made).graph) == outline(made)


def test_passes_take_ten_thousand_nodes_in_a_chain_without_recursion() -> None:
    x, y = df.input("x", (4,), np.float64), df.input("y", (4,), np.float64)
    value = x
    for _ in range(2500):
        value = df.tanh(value * 1.0) + (y + -0.0)
    graph = Graph((value,))
    assert len(graph) > 10_000
    made = df.optimise(graph, check=True).graph
    arrays = arrays_for([x, y], 0)
    assert len(made) < 100
    assert same_bits(values_of(made.outputs, [x, y], arrays)[0], values_of([value], [x, y], arrays)[0])  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------------- verify


def test_verify_names_the_node_that_is_not_what_its_operator_says() -> None:
    x = df.input("x", (2, 3), np.float64)
    y = df.exp(x)
    assert df.verify(Graph((y,))).outputs == (y,)
    with pytest.raises(BadTensor, match=r"'exp_\d+' says \(3, 2\) of float64; exp gives \(2, 3\) of float64"):
        df.verify(Graph((replace(y, shape=(3, 2)),)))
    with pytest.raises(BadTensor, match=r"says .* of int64; exp gives .* of float64"):
        df.verify(Graph((df.negative(replace(y, dtype=np.dtype("int64"))),)))
    with pytest.raises(BadTensor, match="has 6 x float64, but says 7 bytes"):
        df.verify(Graph((replace(y, size_bytes=7),)))
    with pytest.raises(BadTensor, match="inner dimensions 3 and 2 differ"):
        df.verify(Graph((replace(x @ df.input("z", (3, 2), np.float64), inputs=(x, x)),)))
    with pytest.raises(BadTensor, match="constant gives"):
        df.verify(Graph((replace(df.constant(np.ones(3)), shape=(1, 3)),)))
    with pytest.raises(BadGraph, match="no operator 'expp'; did you mean"):
        df.verify(Graph((replace(y, op=replace(y.op, kind="expp")),)))
    with pytest.raises(BadGraph, match="'a' is no tensor but a Node"):
        df.verify(Graph.from_tasks({"a": (min,)}))
    with pytest.raises(BadTensor, match="says"):
        df.optimise(Graph((replace(y, shape=(3, 2)),)), check=True)


def test_verify_finds_nodes_out_of_order() -> None:
    x = df.input("x", (2,), np.float64)
    graph = Graph((df.exp(x),))
    object.__setattr__(graph, "nodes", graph.nodes[::-1])
    with pytest.raises(BadGraph, match="stands before its input"):
        df.verify(graph)
