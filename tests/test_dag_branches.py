"""Branches side by side on Dask: the same bits, and a choice that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from tensor_graphs import arrays_for, naive, same_bits, tensor_graphs

from dag import Graph, NodeFailed
from dag import dataflow as df
from dag.dataflow.branches import NODE_S, Speed, choose, tasks_of
from dag.errors import NotFinite

Drawn = tuple[list[df.Tensor], list[df.Tensor]]
#: A product of two n x n matrices takes 2 n ** 3 nanoseconds, bytes take nothing.
SPEED = Speed(flops=1e9, bytes=1e18)


def square(name: str = "x", length: int = 100) -> df.Tensor:
    return df.input(name, (length, length), np.float32)


@given(tensor_graphs())
def test_branches_on_threads_give_the_bits_of_one_rank(graph: Drawn) -> None:
    outputs, inputs = graph
    arrays = arrays_for(inputs, seed=1)
    values = dict(zip(inputs, arrays, strict=True))
    found = df.evaluate(outputs, values, runner="dask", workers=2)
    assert all(map(same_bits, found, naive(outputs, values)))
    assert not any(np.shares_memory(one, two) for one in found for two in arrays)


@given(tensor_graphs(most=25))
def test_every_node_is_in_one_task_whose_needs_come_before_it(graph: Drawn) -> None:
    whole = Graph(tuple(graph[0]))
    tasks = tasks_of(whole, SPEED, burden_s=0)
    before = {node for node in whole.nodes if node.op.kind == "input"}
    for task in tasks:
        assert set(task.needs) <= before
        before.add(task.root)
    given_ = ("input", "constant")
    assert {node for node in whole.outputs if node.op.kind not in given_} <= before


def test_a_line_is_one_task_and_branches_are_one_each() -> None:
    x = square()
    line = x
    for _ in range(5):
        line = line @ x
    assert [task.root for task in tasks_of(Graph((line,)), SPEED)] == [line]
    branches = [df.tanh(x @ x) @ x for _ in range(3)]
    total = branches[0] + branches[1] + branches[2]
    roots = [task.root for task in tasks_of(Graph((total,)), SPEED)]
    assert roots == [*branches, total]


def test_a_transposed_value_is_transposed_again_in_each_task_that_reads_it() -> None:
    x = square()
    turned = (x @ x).T
    tasks = tasks_of(Graph((turned @ x, x @ turned)), SPEED)
    assert [task.root.op.kind for task in tasks] == ["matmul"] * 3
    needs = [sorted(need.op.kind for need in task.needs) for task in tasks]
    assert needs == [["input"], ["input", "matmul"], ["input", "matmul"]]


def test_two_equal_branches_take_two_workers_half_the_time() -> None:
    x = square()
    outputs = (x @ x, x @ (x * 2.0))
    found = choose(Graph(outputs), workers=2, speed=SPEED, burden_s=1e-6)
    product_s = 2 * 100**3 / 1e9 + NODE_S
    assert found.analysis.span_s == pytest.approx(product_s, rel=0.02)
    assert found.analysis.parallelism == pytest.approx(2, rel=0.02)
    assert found.runner == "dask"
    assert found.reason.startswith("run it on dask: 2 workers would take about 2.0")


def test_a_line_or_one_worker_or_small_tasks_are_left_to_one_rank() -> None:
    x = square()
    assert choose(Graph((x @ x @ x,)), workers=4, speed=SPEED).runner == "rank"
    assert choose(Graph((x @ x, x @ (x * 2.0))), workers=1, speed=SPEED).runner == "rank"
    y = square("y", 2)
    found = choose(Graph(tuple(y * float(at) for at in range(8))), workers=2, speed=SPEED)
    assert found.runner == "rank"
    assert found.reason.startswith("run it on one rank: 2 workers would take about 0.80 ms where one takes")
    assert choose(Graph((x,)), workers=2, speed=SPEED).runner == "rank"


def test_processes_compute_the_same() -> None:
    x = square("x", 20)
    outputs = {"sum": df.sum(df.tanh(x @ x)), "turned": (x * 2.0).T, "x": x}
    values = {x: np.random.default_rng(0).standard_normal((20, 20)).astype(np.float32)}
    there = df.evaluate(outputs, values, runner="dask", workers=1, scheduler="processes")
    here = df.evaluate(outputs, values)
    for name in outputs:
        np.testing.assert_allclose(there[name], here[name], rtol=1e-5)


def test_a_kernel_that_raises_is_named() -> None:
    table, ids = df.input("table", (4,), np.float64), df.input("ids", (2,), np.int64)
    picked = df.take(table, ids, axis=0)
    with pytest.raises(NodeFailed, match=picked.name):
        df.evaluate(picked, {table: np.zeros(4), ids: [1, 9]}, runner="dask")


def test_runners_that_do_not_fit_are_refused() -> None:
    x = square("x", 2)
    values = {x: np.zeros((2, 2), np.float32)}
    with pytest.raises(ValueError, match="runner must be one of rank, dask, auto, got 'spark'"):
        df.evaluate(x, values, runner="spark")
    with pytest.raises(ValueError, match="ask for runner='rank'"):
        df.evaluate(x, values, runner="dask", check_nan=True)
    with pytest.raises(NotFinite), np.errstate(all="ignore"):
        df.evaluate(df.log(x), values, runner="auto", check_nan=True)
