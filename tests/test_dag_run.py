"""Graphs on threads: their values are those of a sequential evaluation, and nothing lives longer than it is needed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from dag_graphs import evaluate, mix, mix_in_three, node
from hypothesis import given
from hypothesis import strategies as st

import dag
from dag import (
    BadGraph,
    Graph,
    Node,
    NodeFailed,
    Op,
    Part,
    Session,
    TaskRow,
    TooLarge,
    choose_scheduler,
    note,
)
from dag.events import COLUMNS
from dag.memory import Ledger, Pins, projected_bytes
from dag.sizes import measure_bytes


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes: list[Node] = []
    for at in range(draw(st.integers(1, 25))):
        sources: list[Node | Part] = []
        if nodes:
            for source in draw(st.lists(st.sampled_from(nodes), max_size=4)):
                whole = source.op.kind == "number"
                sources.append(source if whole else Part(source, draw(st.integers(0, 2))))
        kind = draw(st.sampled_from(["number", "three"]))
        function = partial(mix if kind == "number" else mix_in_three, at)
        keep = draw(st.booleans())
        nodes.append(
            Node(name=f"n[{at}]", op=Op(kind=kind, function=function), inputs=tuple(sources), keep=keep)
        )
    outputs = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=5, unique=True))
    return Graph(tuple(outputs))


@given(graph=graphs(), workers=st.integers(1, 4))
def test_a_random_graph_gives_what_a_sequential_evaluation_gives_and_runs_each_node_once(
    graph: Graph, workers: int
) -> None:
    with Session(workers=workers) as session:
        assert session.run(graph) == evaluate(graph)
        assert Counter((row.stage, row.task) for row in session.rows) == Counter(
            ("n", int(each.name[2:-1])) for each in graph.nodes
        )


@given(graph=graphs(), workers=st.integers(1, 3))
def test_running_again_gives_the_same_and_computes_no_kept_node_twice(graph: Graph, workers: int) -> None:
    with Session(workers=workers) as session:
        first = session.run(graph)
        assert session.run(graph) == first
        runs = Counter(row.task for row in session.rows)
        assert all(runs[int(each.name[2:-1])] == 1 for each in graph.nodes if each.keep)


def test_one_worker_runs_tasks_in_the_order_of_the_graph() -> None:
    leaves = [node(f"leaf[{i}]", partial(int, i)) for i in range(8)]
    pairs = [node(f"pair[{i}]", lambda a, b: a + b, *leaves[2 * i : 2 * i + 2]) for i in range(4)]
    graph = Graph((node("total", lambda *all_of: sum(all_of), *pairs),))
    with Session(workers=1) as session:
        assert session.run(graph) == [28]
        assert [f"{row.stage}[{row.task}]" for row in session.rows] == [
            *(each.name for each in graph.nodes[:-1]),
            "total[0]",
        ]


def test_a_hundred_thousand_tasks_in_one_chain_and_in_one_tree_run_to_the_end() -> None:
    last = node("step[0]", lambda: 0)
    for at in range(1, 50_000):
        last = node(f"step[{at}]", lambda value: value + 1, last)
    level = [node(f"leaf[{at}]", lambda: 1) for at in range(25_000)]
    height = 0
    while len(level) > 1:
        height += 1
        level = [
            node(f"add{height}[{at // 2}]", lambda *values: sum(values), *level[at : at + 2])
            for at in range(0, len(level), 2)
        ]
    graph = Graph((last, *level))
    assert len(graph) >= 100_000
    with Session(workers=2) as session:
        assert session.run(graph) == [49_999, 25_000]
        assert len(session.rows) == len(graph)


class Heavy:
    """A value that weak references can watch."""


def test_a_value_is_dropped_when_its_last_consumer_has_run() -> None:
    watched: list[weakref.ref[Heavy]] = []

    def make() -> Heavy:
        value = Heavy()
        watched.append(weakref.ref(value))
        return value

    def living(_: Any) -> int:
        gc.collect()
        return sum(each() is not None for each in watched)

    first = node("first", make)
    second = node("second", lambda value: make(), first)
    third = node("third", living, second)  # first is gone, second is an input
    fourth = node("fourth", living, third)  # both are gone
    for workers in (1, 2):
        watched.clear()
        assert dag.run(Graph((third, fourth)), scheduler="threads", workers=workers) == [1, 0]


def test_no_more_values_live_at_once_than_the_order_asks_for() -> None:
    alive = 0
    most = 0
    lock = threading.Lock()

    class Counted:
        def __init__(self) -> None:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1

    halves = [
        node(
            f"sum[{i}]", lambda *values: len(values), *(node(f"part[{i * 4 + j}]", Counted) for j in range(4))
        )
        for i in range(20)
    ]
    graph = Graph((node("total", lambda *sums: sum(sums), *halves),))
    assert dag.run(graph, workers=2, scheduler="threads") == [80]
    assert most <= 4 + 4  # a group per worker
    assert alive == 0


def test_an_input_that_a_task_names_twice_comes_twice() -> None:
    one = node("one", lambda: 3)
    assert dag.run(Graph((node("square", lambda a, b: a * b, one, one),))) == [9]


def test_independent_tasks_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=30)
    graph = Graph(tuple(node(f"wait[{i}]", meeting.wait) for i in range(3)))
    assert sorted(dag.run(graph, scheduler="threads", workers=3)) == [0, 1, 2]


@pytest.mark.parametrize("cached", range(6))
def test_what_does_not_fit_into_the_cache_is_computed_again_by_every_graph_and_nothing_else(
    cached: int,
) -> None:
    rows = 40_000  # 320 kB; small values always stay
    size = measure_bytes(np.zeros(rows))
    parts = [node(f"part[{i}]", partial(np.full, rows, float(i)), keep=True) for i in range(5)]
    with Session(workers=2, cache_bytes=cached * size + size // 2) as session:
        for _ in range(4):
            total = node("total", lambda *values: sum(each.sum() for each in values), *parts)
            assert session.run(Graph((total,))) == [10.0 * rows]
        runs = Counter(row.task for row in session.rows if row.stage == "part")
    assert [runs[at] for at in range(5)] == [1 if at < cached else 4 for at in range(5)]


def test_what_a_loop_has_found_stays_without_a_cache() -> None:
    data = node("data", partial(np.ones, 40_000), keep=True)
    found = node("found[0]", lambda: 0.0, keep=True)
    with Session(workers=2, cache_bytes=0) as session:
        for turn in range(1, 5):
            found = node(f"found[{turn}]", lambda values, before: values[0] + before, data, found, keep=True)
            assert session.run(Graph((found,))) == [float(turn)]
        runs = Counter(row.stage for row in session.rows)
    assert runs == {"data": 4, "found": 5}


def test_what_only_a_kept_value_needs_is_not_computed_again() -> None:
    kept = node("parsed", len, node("text", lambda: "abc"), keep=True)
    with Session() as session:
        session.run(Graph((kept,)))
        assert session.run(Graph((node("twice", lambda value: 2 * value, kept),))) == [6]
        assert [row.stage for row in session.rows] == ["text", "parsed", "twice"]


def test_a_kept_value_goes_with_its_node() -> None:
    watched: list[weakref.ref[Heavy]] = []

    def make() -> Heavy:
        value = Heavy()
        watched.append(weakref.ref(value))
        return value

    with Session() as session:
        kept = node("kept", make, keep=True)
        session.run(Graph((node("used", lambda value: 1, kept),)))
        gc.collect()
        assert watched[0]() is not None
        del kept
        gc.collect()
        assert watched[0]() is None


def test_a_function_that_raises_is_named_with_the_users_traceback_alone() -> None:
    def divide(number: int) -> float:
        return number / 0

    graph = Graph((node("ratio[3]", divide, node("number", lambda: 4)),))
    with Session() as session:
        with pytest.raises(NodeFailed) as caught:
            session.run(graph)
        assert [(row.stage, row.task, row.outcome) for row in session.rows][-1] == ("ratio", 3, "failed")
    assert str(caught.value) == "ratio[3] (test of number) raised ZeroDivisionError: division by zero"
    assert "return number / 0" in caught.value.traceback_text
    assert "dag/" not in caught.value.traceback_text
    assert caught.value.traceback_text.count("File ") == 1


def test_no_task_starts_after_a_failure() -> None:
    def fail() -> None:
        raise ValueError("no")

    graph = Graph((node("a", fail), *(node(f"b[{i}]", lambda: 1) for i in range(100))))
    with Session(workers=1) as session:
        with pytest.raises(NodeFailed):
            session.run(graph)
        assert len(session.rows) == 1
        assert session.run(Graph((node("c", lambda: 5),))) == [5]


def test_ctrl_c_in_a_task_ends_the_run() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Session(workers=1) as session:
        session.run(Graph((node("a", interrupted),)))


def test_operators_over_partitions_and_nodes_without_function_are_refused() -> None:
    logical = Node(name="lines", op=dag.Read(parts=(1, 2), function=lambda part: part))
    with pytest.raises(BadGraph, match=r"lines is a read over partitions; run dag\.expand"):
        dag.run(Graph((logical,)))
    assert dag.run(dag.expand(Graph((logical,)))) == [1, 2]
    with pytest.raises(BadGraph, match=r"empty .* has no function"):
        dag.run(Graph((Node(name="empty", op=Op(kind="nothing")),)))


@pytest.mark.parametrize(
    "wrong", [{"scheduler": "thread"}, {"workers": 0}, {"scheduler": "threads", "spill": True}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Session(**wrong)


def test_a_plan_that_cannot_fit_is_refused_with_numbers_before_anything_runs() -> None:
    parts = [node(f"part[{i}]", lambda: 0, size_bytes=(i + 1) * 1_000_000) for i in range(4)]
    graph = Graph((node("join", lambda *values: 0, *parts),))
    with Session(workers=1, memory_bytes=9_000_000) as session:
        with pytest.raises(TooLarge) as caught:
            session.run(graph)
        assert session.rows == []
    for said in ("needs 10.0 MB", "has 9.00 MB", "part[3] 4.00 MB, part[2] 3.00 MB, part[1] 2.00 MB"):
        assert said in str(caught.value)
    with Session(workers=1, memory_bytes=10_000_000) as session:
        assert session.run(graph) == [0]


def test_values_that_turn_out_larger_than_expected_end_the_run() -> None:
    parts = [node(f"part[{i}]", partial(np.zeros, 125_000), size_bytes=1) for i in range(10)]
    graph = Graph((node("join", lambda *values: 0, *parts),))
    with Session(workers=1, memory_bytes=4_500_000) as session:
        with pytest.raises(
            TooLarge, match=r"5.00 MB of values are alive after part\[4\], and the graph has 4.50 MB"
        ):
            session.run(graph)
        assert len(session.rows) == 5


@given(graph=graphs(), sizes=st.lists(st.integers(0, 1000), min_size=25, max_size=25))
def test_projected_and_measured_peaks_of_one_worker_are_those_of_the_definition(
    graph: Graph, sizes: Sequence[int]
) -> None:
    graph = graph.measured(size_bytes={each.name: sizes[int(each.name[2:-1])] for each in graph.nodes})
    stays = set(graph.outputs)
    peak = 0
    for at in range(len(graph.nodes)):
        later = {source for user in graph.nodes[at:] for source in user.sources()}
        made = graph.nodes[: at + 1]
        alive = [each for each in made if each in stays or each in later or each is graph.nodes[at]]
        peak = max(peak, sum(each.size_bytes for each in alive))
    assert projected_bytes(graph.nodes, stays=stays) == peak
    ledger = Ledger(graph.nodes, stays=stays)
    for each in graph.nodes:
        ledger.made(each, each.size_bytes)
    assert ledger.peak_bytes == peak
    assert ledger.live_bytes == sum(each.size_bytes for each in stays)


@given(
    sizes=st.lists(st.integers(0, 10), min_size=1, max_size=8),
    capacity=st.integers(0, 40),
    order=st.randoms(use_true_random=False),
)
def test_the_first_that_fit_are_pinned_in_whatever_order_they_are_done(
    sizes: list[int], capacity: int, order: Any
) -> None:
    nodes = [node(f"n[{i}]", int) for i in range(len(sizes))]
    done = list(range(len(sizes)))
    order.shuffle(done)
    pins = Pins(nodes, capacity)
    refused = [each for at in done for each in pins.made(nodes[at], sizes[at])]
    fit = next((at for at in range(len(sizes)) if sum(sizes[: at + 1]) > capacity), len(sizes))
    assert pins.pinned == nodes[:fit]
    assert sorted(each.name for each in refused) == sorted(each.name for each in nodes[fit:])


def test_rows_hold_what_the_function_noted_and_the_sizes_of_values() -> None:
    def work(values: np.ndarray[Any, Any]) -> bytes:
        note(records_in=5, counters={"bad": 1}, seconds={"store_read": 0.25})
        note(records_in=2, records_out=1, counters={"bad": np.int64(2)})
        return b"x" * 1000

    seen: list[TaskRow] = []
    with Session(workers=1, on_event=seen.append) as session:
        session.run(Graph((node("work[7]", work, node("make", partial(np.zeros, 100))),)))
        assert seen == session.rows
    row = seen[1]
    assert (row.engine, row.stage, row.kind, row.task, row.outcome) == ("dag", "work", "test", 7, "done")
    assert (row.records_in, row.records_out, row.bytes_in) == (7, 1, 800)
    assert 1000 <= row.bytes_out < 1100
    assert row.counters == {"bad": 3}
    assert row.seconds == {"store_read": 0.25}
    assert row.start <= row.end
    assert row.peak_memory_bytes > 1_000_000
    assert seen[0].records_in == 0


def test_the_pieces_that_a_merge_takes_are_its_shuffle_bytes() -> None:
    split = node("split", lambda: [np.zeros(10), np.zeros(20)])
    merges = [node(f"merge[{i}]", len, Part(split, i)) for i in range(2)]
    with Session(workers=1) as session:
        assert session.run(Graph(tuple(merges))) == [10, 20]
        assert [row.shuffle_bytes for row in session.rows] == [0, 80, 160]


def test_what_a_function_notes_of_its_output_changes_nothing_in_what_is_kept() -> None:
    def write() -> bytes:
        note(bytes_out=10**12)
        return b"done"

    kept = node("write", write, keep=True)
    with Session(memory_bytes=1000, cache_bytes=1000) as session:
        for _ in range(2):
            assert session.run(Graph((node("size", len, kept),))) == [4]
        assert [(row.stage, row.bytes_out > 1000) for row in session.rows] == [
            ("write", True),
            ("size", False),
            ("size", False),
        ]


def test_a_piece_that_is_not_there_names_the_task_that_wants_it() -> None:
    split = node("split", lambda: [1, 2])
    with pytest.raises(NodeFailed, match=r"merge \(test of split\) raised IndexError"):
        dag.run(Graph((node("merge", int, Part(split, 2)),)))


def test_a_note_on_an_error_is_told() -> None:
    def fail() -> None:
        error = ValueError("bad")
        error.add_note("in line 7")
        raise error

    with pytest.raises(NodeFailed, match=r"a \(test of nothing\) raised ValueError: bad, in line 7"):
        dag.run(Graph((node("a", fail),)))


def test_note_refuses_a_column_that_is_none() -> None:
    with pytest.raises(TypeError, match="knows no 'recrods_in'"):
        note(recrods_in=1)
    note(records_in=1)  # outside a task: nothing happens
    assert set(dag.events.NOTED) < set(COLUMNS)


def test_processes_are_chosen_for_long_work_in_python_only() -> None:
    def graph_of(work_s: float, releases_gil: bool) -> Graph:
        op = Op(kind="map", function=int, releases_gil=releases_gil)
        return Graph((Node(name="a", op=op, work_s=work_s),))

    assert choose_scheduler(graph_of(60, False), 2)[0] == "processes"
    assert "a" in choose_scheduler(graph_of(60, False), 2)[1]
    assert choose_scheduler(graph_of(60, True), 2)[0] == "threads"
    assert choose_scheduler(graph_of(0.001, False), 2)[0] == "threads"
    assert choose_scheduler(graph_of(60, False), 1)[0] == "threads"
    assert choose_scheduler(graph_of(0.001, False), 2)[1].startswith("about 1.00 ms in functions")
    large = Node(name="b", op=Op(kind="read", function=int), size_bytes=10**9)
    assert choose_scheduler(Graph((large,)), 2)[0] == "processes"
    # nobody measured: it must not read like a measurement
    assert (
        "about 50.0 s, by a rule of thumb (20 MB/s), in functions" in choose_scheduler(Graph((large,)), 2)[1]
    )


def test_errors_keep_their_facts_through_a_pickle() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(NodeFailed("a failed", "Traceback ...")))
    assert (str(error), error.traceback_text) == ("a failed", "Traceback ...")
