"""Fused operators give the bits of their steps, in blocks of any size, and take no more memory."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pass_graphs import check, neutral_graphs, special_arrays, transformer, values_of
from tensor_graphs import arrays_for, same_bits

from dag import Graph
from dag import dataflow as df
from dag.dataflow import fused as fused_module
from dag.dataflow.fused import blocks_of, unfused
from dag.dataflow.memory_plan import plan_memory
from dag.dataflow.tables import TRAITS
from dag.errors import NotDifferentiable


@given(data=st.data())
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


def test_small_results_are_left_alone_where_that_is_asked() -> None:
    small, large = df.input("small", (5,), np.float64), df.input("large", (6,), np.float64)
    made = df.fuse(Graph((df.exp(small) * 2, df.exp(large) * 2)), least_bytes=48)
    assert [node.op.kind for node in made.nodes if node.inputs] == ["exp", "multiply", "fused"]


@pytest.mark.parametrize("reads_late", [False, True])
def test_steps_need_no_room_where_no_input_under_the_result_is_read_later(
    monkeypatch: pytest.MonkeyPatch, reads_late: bool
) -> None:
    monkeypatch.setattr(fused_module, "_rooms", [])
    x = df.input("x", (10_000,), np.float64)
    (node,) = df.fuse(Graph(((df.exp(x) * 2 + 1) * (x if reads_late else 3),))).outputs
    kernel = df.tables.KERNELS["numpy"]["fused"](node)
    values, out = np.linspace(0, 1, 10_000), np.empty(10_000)
    tracemalloc.start()
    kernel(values, *[each.op.attributes["value"] for each in node.inputs[1:]], out=out)  # type: ignore[attr-defined]
    taken_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (taken_bytes > 80_000) == reads_late
    assert np.array_equal(out, (np.exp(values) * 2 + 1) * (values if reads_late else 3))


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
