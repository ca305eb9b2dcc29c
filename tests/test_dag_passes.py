"""Passes over graphs of tensors change no bit of what a graph gives, and leave it smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from dag_operators import EXAMPLES, MARKS, Chance
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_graphs import (
    SPECIAL,
    Array,
    Drawn,
    check,
    neutral_graphs,
    optimised,
    outline,
    perceptron,
    special_arrays,
    transformer,
    values_of,
)
from tensor_graphs import arrays_for, same_bits, tensor_graphs

from dag import Graph
from dag import dataflow as df
from dag.dataflow.memory_plan import plan_memory
from dag.dataflow.tables import SHAPES
from dag.errors import BadGraph, BadTensor

PASSES: dict[str, Callable[[Graph], Graph]] = {
    "simplify": df.simplify,
    "eliminate_common": df.eliminate_common,
    "fold_constants": df.fold_constants,
    "fuse": df.fuse,
    "optimise": optimised,
}
EACH_PASS = pytest.mark.parametrize("name", PASSES)


@EACH_PASS
@given(data=st.data())
def test_a_pass_keeps_every_bit_makes_nothing_larger_and_does_nothing_the_second_time(
    name: str, data: st.DataObject
) -> None:
    outputs, inputs = data.draw(neutral_graphs())
    made = check(outputs, inputs, PASSES[name], special_arrays(inputs, data.draw(st.integers(0, 99))))
    assert outline(PASSES[name](made)) == outline(made)


@EACH_PASS
@given(graph=tensor_graphs(), seed=st.integers(0, 99))
def test_a_pass_keeps_every_bit_of_graphs_with_views_and_products(name: str, graph: Drawn, seed: int) -> None:
    outputs, inputs = graph
    check(outputs, inputs, PASSES[name], arrays_for(inputs, seed))
    check(outputs, inputs, PASSES[name], special_arrays(inputs, seed))


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
@given(data=st.data())
@settings(max_examples=settings.default.max_examples // 3)
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
    check(outputs, inputs, optimised, arrays)


def test_the_operators_without_an_example_are_marks_and_these_are_tested_here() -> None:
    assert set(SHAPES) - set(EXAMPLES) == MARKS
    x = df.input("x", (3,), np.float64)
    marked = df.identity(df.stop_gradient(df.identity(x))) + df.barrier(x, df.exp(x))
    made = check([marked], [x], optimised, [np.array([1.0, np.nan, -0.0])])
    assert sorted(node.op.kind for node in made.nodes) == ["add", "barrier", "exp", "input"]


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


def test_a_tree_of_tensors_does_for_its_graph() -> None:
    x = df.input("x", (4, 4))
    loss = df.sum(x * 1 + x * 1)
    tree = {"loss": loss, "other": [x * 1]}
    for ask in (
        lambda graph: df.optimise(graph).graph, df.simplify, df.eliminate_common, df.fold_constants, df.fuse, df.verify,
        lambda graph: df.rematerialise(graph, 1000), lambda graph: df.dead_code(graph, [loss]),
        lambda graph: Graph(df.plan_memory(graph).outputs),
    ):  # fmt: skip
        assert [each.name for each in ask(tree).nodes] == [each.name for each in ask(df.graph_of(tree)).nodes]
        with pytest.raises(BadTensor, match="a graph of tensors is wanted, got 3 in it"):
            ask([x, 3])
    assert df.choose_runner(tree).runner == "rank"


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
