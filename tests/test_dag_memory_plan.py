"""What a plan says of memory is what is counted when it runs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor_graphs import arrays_for, naive, same_bits, tensor_graphs

from dag import Graph
from dag import dataflow as df
from dag.dataflow.memory_plan import MemoryPlan, plan_memory
from dag.dataflow.tables import KERNELS, TRAITS
from dag.errors import BadTensor


def plan(outputs: Sequence[df.Tensor], donated: Sequence[df.Tensor] = (), **settings: Any) -> MemoryPlan:
    return plan_memory(Graph(tuple(outputs)), donated, **settings)


def chain(length: int) -> tuple[df.Tensor, df.Tensor]:
    x = df.input("x", (1000,), np.float64)
    value = x
    for _ in range(length):
        value = df.tanh(value)
    return x, value


@given(tensor_graphs(), st.booleans(), st.booleans())
def test_predicted_bytes_are_the_bytes_counted_at_every_step(
    graph: tuple[list[df.Tensor], list[df.Tensor]], donate: bool, optimise: bool
) -> None:
    outputs, inputs = graph
    program = df.Program(outputs, inputs, donated=inputs if donate else (), optimise=optimise)
    arrays = arrays_for(inputs, seed=1)
    results, counted = program.run_counted(*[each.copy() for each in arrays])
    assert counted == program.memory.live_bytes
    assert max(counted) == program.memory.peak_bytes
    for found, wanted in zip(results, naive(outputs, dict(zip(inputs, arrays, strict=True))), strict=True):
        assert same_bits(found, wanted)


@given(tensor_graphs(most=25))
def test_values_that_live_at_the_same_time_share_no_memory(
    graph: tuple[list[df.Tensor], list[df.Tensor]],
) -> None:
    found = plan(graph[0])
    arena = [each for each in found.buffers if each.place == "arena" and each.size_bytes]
    for at, one in enumerate(arena):
        assert one.offset_bytes + one.size_bytes <= found.arena_bytes
        assert one.offset_bytes % 64 == 0
        for two in arena[at + 1 :]:
            if one.first <= two.last and two.first <= one.last:
                ends = one.offset_bytes + one.size_bytes, two.offset_bytes + two.size_bytes
                assert ends[0] <= two.offset_bytes or ends[1] <= one.offset_bytes


@given(tensor_graphs(most=25))
def test_another_order_and_writing_in_place_never_cost_memory(
    graph: tuple[list[df.Tensor], list[df.Tensor]],
) -> None:
    kept = plan(graph[0], reorder=False)
    assert plan(graph[0]).peak_bytes <= kept.peak_bytes
    assert kept.peak_bytes <= plan(graph[0], reorder=False, in_place=False).peak_bytes


def test_the_counts_agree_with_what_tracemalloc_sees() -> None:
    x, y = df.input("x", (300, 300), np.float64), df.input("y", (300, 300), np.float64)
    program = df.Program(df.tanh((x @ y) @ y.T) @ x, [x, y], optimise=False)
    arrays = arrays_for([x, y], seed=2)
    program.run_counted(*arrays)
    tracemalloc.start()
    try:
        program.run_counted(*arrays)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert program.memory.peak_bytes <= peak_bytes < program.memory.peak_bytes + 50_000


def test_a_chain_of_elementwise_operators_needs_the_memory_of_its_result() -> None:
    _, last = chain(20)
    assert plan([last]).peak_bytes == 8000
    assert plan([last]).in_place == 19
    assert plan([last], in_place=False).peak_bytes == 16000


def test_views_take_no_memory() -> None:
    x = df.input("x", (4, 6), np.float64)
    made = df.exp(x)
    total = df.sum(made.reshape(6, 4).T[1:3].reshape(12) * 2)
    views = [step.node.op.kind for step in plan([total]).steps if step.view]
    assert views == ["reshape", "transpose", "slice"]  # the second reshape has to copy
    assert plan([total]).peak_bytes == 24 * 8 + 12 * 8


def test_a_reshape_of_leading_rows_is_a_view_and_one_of_columns_a_copy() -> None:
    made = df.exp(df.input("x", (4, 6), np.float64))
    rows, columns = made[1:3].reshape(12), made[:, 1:3].reshape(8)
    steps = {step.node: step for step in plan([df.sum(rows), df.sum(columns)]).steps}
    assert steps[rows].view
    assert not steps[columns].view


def test_a_value_that_is_read_again_is_not_overwritten() -> None:
    x = df.input("x", (8,), np.float64)
    once = df.exp(x)
    twice = df.tanh(once)
    assert [step.over for step in plan([df.sum(once * twice)]).steps[:2]] == [None, None]


def test_a_value_is_not_overwritten_while_another_view_of_it_is_read() -> None:
    made = df.exp(df.input("x", (8, 8), np.float64))
    step = plan([df.sum(made + made.T)]).steps[-2]
    assert step.node.op.kind == "add"
    assert step.over is None


def test_new_parameters_are_written_over_the_old_after_their_last_reader() -> None:
    w, x = df.input("w", (50, 50), np.float64), df.input("x", (50, 50), np.float64)
    new = w - 0.1 * x
    later = x @ w  # reads the old w, and stands after the new one in the order of the outputs
    found = plan([new, later], [w])
    places = {step.node: found.buffers[step.buffer] for step in found.steps if step.buffer is not None}
    assert places[new].donor is w
    assert [step.node for step in found.steps][-1] is new


def test_an_exchange_of_two_donated_inputs_is_no_overwriting() -> None:
    a, b = df.input("a", (4,), np.float64), df.input("b", (4,), np.float64)
    program = df.Program((b * 2, a * 3), [a, b], donated=[a, b])
    one, two = program(np.arange(4.0), np.ones(4))
    assert one.tolist() == [2, 2, 2, 2]
    assert two.tolist() == [0, 3, 6, 9]


def test_state_of_an_optimiser_is_updated_where_it_is() -> None:
    m, v, g = (df.input(name, (100,), np.float64) for name in "mvg")
    new_m, new_v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * (g * g)
    found = plan([new_m, new_v], [m, v])
    assert found.fresh_bytes == 0
    assert found.peak_bytes == 800  # one product at a time


def test_the_greedy_order_frees_what_it_can_first() -> None:
    x = df.input("x", (1,), np.float64)
    wide = [df.broadcast_to(df.exp(x * at), (1000,)) * 2.0 for at in range(8)]
    sums = [df.sum(each) for each in wide]
    total = df.stack(sums)
    last = df.concatenate(
        wide
    )  # in the order of the outputs all eight live until here, with their sums beside
    assert plan([df.sum(last), total]).peak_bytes <= plan([df.sum(last), total], reorder=False).peak_bytes
    backwards = [df.sum(each) for each in reversed(wide)]
    late = df.stack([*(df.max(each) for each in wide), *backwards])
    assert plan([late]).peak_bytes < 3 * 8000 < plan([late], reorder=False).peak_bytes


def test_ten_thousand_nodes_are_planned() -> None:
    _, last = chain(10_000)
    assert len(plan([last]).steps) == 10_000
    assert plan([last]).peak_bytes == 8000


def test_only_inputs_can_be_donated() -> None:
    x, last = chain(2)
    with pytest.raises(BadTensor, match=r"only inputs can be donated; '.*' is made by 'tanh'"):
        plan([last], [last])
    assert plan([last], [x]).fresh_bytes == 0


@pytest.mark.parametrize("kind", sorted(kind for kind, traits in TRAITS.items() if traits.elementwise))
def test_an_elementwise_kernel_may_write_over_an_input(kind: str) -> None:
    if kind == "fused":
        a, b = df.input("a", (300, 700), np.float64), df.input("b", (300, 700), np.float64)
        node = df.fuse(Graph((df.tanh(a) * b + a / (1 + b * b),))).outputs[0]
        assert isinstance(node, df.Tensor)
        assert node.op.kind == "fused"
    else:
        node = _example(kind)
    arrays = arrays_for(node.inputs, seed=3)
    kernel = KERNELS["numpy"][kind](node)
    with np.errstate(all="ignore"):
        wanted = kernel(*arrays)
        for at, source in enumerate(node.inputs):
            if source.shape == node.shape and source.dtype == node.dtype:
                taken = [each.copy() for each in arrays]
                kernel(*taken, out=taken[at])
                assert same_bits(taken[at], np.asarray(wanted))


def _example(kind: str) -> df.Tensor:
    """Return a node of a kind, with as many inputs and the dtypes that it wants."""
    for dtype in (np.float64, np.bool_, np.int64):
        for count in (1, 2, 3):
            inputs = [df.input(f"x{at}", (3, 4), dtype) for at in range(count)]
            for given_ in ([], [np.bool_]):
                first = [df.input("mask", (3, 4), each) for each in given_]
                try:
                    return df.apply(kind, *first, *inputs, **ATTRIBUTES.get(kind, {}))
                except (BadTensor, TypeError):
                    continue
    raise AssertionError(f"no example for {kind!r}: add its attributes to ATTRIBUTES")


ATTRIBUTES: dict[str, dict[str, Any]] = {"astype": {"dtype": np.dtype(np.float64)}}
