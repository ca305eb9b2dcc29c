"""Graphs on processes and on a Dask cluster: the same values, however functions get there and whoever dies."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from dag_graphs import evaluate, mix, mix_in_three, node
from dask_cluster import started_cluster

from dag import Graph, GraphError, Group, Node, NodeFailed, Part, Read, Session, TooLarge, expand, run
from dag.on_cluster import Slots, _silent
from dag.on_worker import _Arrivals


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(scheduler="processes", workers=2, memory_bytes=400_000_000) as started:
        yield started


def rows_of(session: Session, *stages: str) -> Counter[tuple[str, int]]:
    return Counter(
        (row.stage, row.task) for row in session.rows if row.stage in stages and row.outcome == "done"
    )


def test_a_graph_of_shuffles_and_trees_gives_what_a_sequential_evaluation_gives(session: Session) -> None:
    reads = [node(f"read[{i}]", partial(mix, i)) for i in range(6)]
    splits = [node(f"split[{i}]", partial(mix_in_three, i), each) for i, each in enumerate(reads)]
    merges = [node(f"merge[{j}]", partial(mix, j), *(Part(each, j) for each in splits)) for j in range(3)]
    again = node("again", partial(mix, 99), *merges, Part(splits[0], 1), splits[2].inputs[0])
    graph = Graph((again, *merges, reads[0]))
    assert session.run(graph) == evaluate(graph)
    assert rows_of(session, "read", "split", "merge", "again") == Counter(
        {(each.name.split("[")[0], i): 1 for group in (reads, splits, merges) for i, each in enumerate(group)}
        | {("again", 0): 1}
    )


def test_an_expanded_plan_over_partitions_gives_the_same_on_processes_as_on_threads(session: Session) -> None:
    lines = Node(name="lines", op=Read(parts=("a b a", "c b", "a"), function=str.split))

    def split(words: list[str], *, index: int) -> list[list[str]]:
        return [[word for word in words if ord(word) % 2 == piece] for piece in range(2)]

    def merge(pieces: list[list[str]], *, index: int) -> dict[str, int]:
        return dict(Counter(word for piece in pieces for word in piece))

    counts = Node(name="count", op=Group(partitions=2, splits=(split,), merge=merge), inputs=(lines,))
    graph = expand(Graph((counts,)))
    assert session.run(graph) == run(graph, scheduler="threads") == [{"b": 2}, {"a": 3, "c": 1}]


def test_producers_run_where_their_consumers_are_and_nothing_moves(session: Session) -> None:
    size = 100_000
    sums = [
        node(
            f"placed_sum[{r}]",
            lambda *values: float(sum(each.sum() for each in values)),
            *(node(f"placed[{r * 4 + p}]", partial(np.full, size, float(r * 4 + p))) for p in range(4)),
        )
        for r in range(8)
    ]
    before = session.moved_bytes
    expected = [float(size * sum(range(r * 4, r * 4 + 4))) for r in range(8)]
    assert session.run(Graph(tuple(sums))) == expected
    assert session.moved_bytes == before
    used = {row.worker for row in session.rows if row.stage == "placed"}
    assert len(used) == 2


def test_placed_producers_do_not_run_far_ahead_of_their_consumers(session: Session) -> None:
    def make(_: int) -> tuple[int, np.ndarray[Any, Any]]:
        return count_held("flight-"), np.zeros(1000)

    sums = [
        node(
            f"flight_sum[{r}]",
            lambda *values: max(each[0] for each in values),
            *(node(f"flight[{r * 4 + p}]", partial(make, r)) for p in range(4)),
        )
        for r in range(30)
    ]
    held = session.run(Graph(tuple(sums)))
    assert (
        max(held) <= 16
    )  # of the 60 that a worker makes: eight ahead, the group at work, and what is just being freed


def test_a_shuffle_moves_only_the_pieces_that_the_other_worker_needs(session: Session) -> None:
    piece = 20_000
    splits = [
        node(f"cut[{i}]", lambda: [np.zeros(piece // 8, dtype="f8") for _ in range(8)]) for i in range(8)
    ]
    merges = [
        node(f"joined[{j}]", lambda *values: len(values), *(Part(each, j) for each in splits))
        for j in range(8)
    ]
    before = session.moved_bytes
    assert session.run(Graph(tuple(merges))) == [8] * 8
    moved = session.moved_bytes - before
    # Each worker merges half of the partitions, so each piece is on the wrong side at most once.
    assert 0 < moved <= 64 * piece * 0.75
    rows = [row for row in session.rows if row.stage == "joined"]
    assert sum(row.shuffle_bytes for row in rows) == 64 * piece
    assert sum(row.moved_bytes for row in rows) <= 64 * piece
    assert Counter(row.worker for row in rows).most_common(1)[0][1] <= 5
    # The last pieces are on their way while their worker has nothing else to do, and functions are unpickled.
    assert sum(row.seconds["shuffle"] for row in rows) > 0
    assert min(row.seconds["serialise"] for row in rows) > 0
    assert all(sum(row.seconds.values()) <= row.end - row.start + 1e-6 for row in rows)


def test_only_what_moves_for_our_own_graphs_is_counted() -> None:
    ours, others = "dag-" + "0" * 32, "dag-" + "1" * 32
    log = [
        {"keys": {("split-" + ours + "-1", 3): 100, "read_parquet-77": 5}, "start": 10.0, "stop": 11.0},
        {"keys": {f"cut.pieces0-{ours}-2": 20, f"total-{others}-1": 7}, "start": 10.5, "stop": 12.0},
    ]
    arrivals = _Arrivals()
    for seen in (log[:1], log, log):
        arrivals.read(seen)
    assert arrivals.total_bytes == {ours: 120, others: 7}
    keys = list(log[0]["keys"]) + list(log[1]["keys"])
    assert arrivals.take(keys[:1], 0.0, 10.25) == (100, 0.25)
    assert arrivals.take(keys, 11.0, 20.0) == (27, 1.0)
    assert arrivals.take(keys, 0.0, 20.0) == (0, 0.0)


def test_threads_of_a_dask_worker_have_slots_of_their_own() -> None:
    slots = Slots()
    slots.add("tcp://a", 2)
    slots.add("tcp://b", 1)
    assert [slots.number("tcp://a", thread) for thread in (71, 72, 71)] == [0, 1, 0]
    assert [slots.number("tcp://b", thread) for thread in (71, None)] == [2, 2]
    assert slots.number("tcp://a", 73) == 0  # a thread in the place of another
    assert slots.number("tcp://c", 1) == 3
    assert [slots.address(number) for number in range(4)] == ["tcp://a", "tcp://a", "tcp://b", "tcp://c"]


def test_values_are_freed_on_the_workers_and_kept_ones_stay_as_far_as_they_fit() -> None:
    size = 400_000  # above what always stays
    with Session(scheduler="processes", workers=1, cache_bytes=2 * size + size // 2) as own:
        parts = [node(f"part[{i}]", partial(np.full, size // 8, float(i)), keep=True) for i in range(4)]
        for _ in range(3):
            sums = [node(f"double[{i}]", lambda value: value * 2, each) for i, each in enumerate(parts)]
            total = node("total", lambda *values: float(sum(each.sum() for each in values)), *sums)
            assert own.run(Graph((total,))) == [600_000.0]
        assert rows_of(own, "part") == {("part", 0): 1, ("part", 1): 1, ("part", 2): 3, ("part", 3): 3}
        assert max(row.peak_memory_bytes for row in own.rows) <= own.peak_memory_bytes
        # What a task sees: the values that its worker holds.
        assert own.run(Graph((node("held", partial(count_held, "part-")),))) == [2]
        assert own.run(Graph((node("none", partial(count_held, "double-")),))) == [0]


def count_held(prefix: str) -> int:
    """Return how many values of a stage the worker of this task has."""
    from distributed import get_worker

    return sum(str(key).lstrip("('").startswith(prefix) for key in list(get_worker().data))


def test_lambdas_closures_and_functions_of_unknown_modules_travel(session: Session) -> None:
    made = types.ModuleType("module_of_no_path")
    exec(
        "STEP = 3\ndef helper(x):\n    return x + STEP\ndef work(x):\n    return helper(x) * 2\n",
        made.__dict__,
    )
    sys.modules["module_of_no_path"] = made
    try:
        factor = 7
        graph = Graph((node("times", lambda value: value * factor, node("work", partial(made.work, 1))),))
        assert session.run(graph) == [56]
    finally:
        del sys.modules["module_of_no_path"]


def test_what_many_tasks_hold_is_sent_once(session: Session) -> None:
    from dag.travel import pack

    table = np.arange(50_000)

    def look_up(index: int) -> int:
        return int(table[index])

    nodes = [node(f"look[{i}]", partial(look_up, i)) for i in range(50)]
    packed, shared = pack(nodes)
    assert sum(len(each.data) for each in packed) < 50_000
    assert len(shared) == 1
    assert session.run(Graph(tuple(nodes))) == list(range(50))


def test_what_cannot_travel_is_named(session: Session) -> None:
    lock = threading.Lock()
    with pytest.raises(NodeFailed, match=r"the function of taken \(test\) cannot be sent .*_thread.lock"):
        session.run(Graph((node("taken", lambda: lock),)))
    with pytest.raises(NodeFailed, match=r"the value of given \(test\) cannot be sent .*_thread.lock"):
        session.run(Graph((node("use", lambda value: 1, node("given", lambda: [threading.Lock()])),)))


def test_a_failure_in_a_worker_is_told_as_on_threads(session: Session) -> None:
    def divide(number: int) -> float:
        return number / 0

    with pytest.raises(NodeFailed) as caught:
        session.run(Graph((node("after", abs, node("ratio[3]", divide, node("number", lambda: 4))),)))
    assert str(caught.value) == "ratio[3] (test of number) raised ZeroDivisionError: division by zero"
    assert "return number / 0" in caught.value.traceback_text
    assert caught.value.traceback_text.count("File ") == 1
    assert session.rows[-1].outcome == "failed"
    assert session.run(Graph((node("next", lambda: 5),))) == [5]


def test_values_larger_than_expected_end_the_run_with_numbers(session: Session) -> None:
    parts = [node(f"huge[{i}]", partial(np.zeros, 10_000_000)) for i in range(20)]
    with pytest.raises(TooLarge, match=r"of values are alive after huge.* the graph has 400 MB"):
        session.run(Graph((node("join", lambda *values: 0, *parts),)))
    assert sum(row.stage == "huge" for row in session.rows) < 20


def test_a_dead_worker_costs_what_it_held_and_the_rows_of_its_work_remain(
    session: Session, tmp_path: Path
) -> None:
    flag = tmp_path / "died"

    def die_once(*values: int) -> int:
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sum(values)

    parts = [node(f"survive[{i}]", partial(mix, i), keep=True) for i in range(6)]
    graph = Graph((node("die", die_once, *parts),))
    assert session.run(graph) == [sum(mix(i) for i in range(6))]
    done = rows_of(session, "survive", "die")
    assert set(done) == {("survive", i) for i in range(6)} | {("die", 0)}
    assert ("lost", 0) in {(row.outcome, row.attempt) for row in session.rows if row.stage == "die"}
    attempts = [row.attempt for row in session.rows if row.stage == "die"]
    assert attempts == [0, 1]
    # Kept values that died with it are there for the next graph, computed again at most once.
    again = {(row.task, row.attempt) for row in session.rows if row.stage == "survive"}
    assert again <= {(i, attempt) for i in range(6) for attempt in range(2)}
    total = node("after", lambda *values: sum(values), *parts)
    assert session.run(Graph((total,))) == [sum(map(mix, range(6)))]


def test_a_task_that_kills_its_workers_is_given_up_by_name(session: Session) -> None:
    with pytest.raises(NodeFailed, match=r"poison \(test\) is given up: 3 workers died while they had it"):
        session.run(Graph((node("poison", partial(os._exit, 1)),)))
    assert session.run(Graph((node("later", lambda: 6),))) == [6]


def test_values_that_do_not_fit_are_spilled_when_that_is_asked_for() -> None:
    with Session(scheduler="processes", workers=1, memory_bytes=20_000_000, spill=True) as own:
        parts = [node(f"part[{i}]", partial(np.full, 500_000, float(i))) for i in range(12)]
        sums = [node(f"sum[{i}]", lambda value: float(value.sum()), each) for i, each in enumerate(parts)]
        first, *rest = own.run(Graph((parts[0], *sums, *parts[1:])))
        assert rest[:12] == [500_000.0 * i for i in range(12)]
        assert first.sum() == 0
        assert [float(each[0]) for each in rest[12:]] == [float(i) for i in range(1, 12)]
        assert own.spilled_bytes > 10_000_000


def test_a_script_without_main_guard_runs_on_processes(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "from dag import Graph, run\n"
        "print('started')\n"
        "def twice(x):\n    return 2 * x\n"
        "graph = Graph.from_tasks({'one': (lambda: 1,), 'two': (twice, 'one')})\n"
        "print(run(graph, scheduler='processes', workers=1))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("started\n[2]\n", "")


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import os, time\n"
        "from dag import Graph, run\n"
        f"def wait():\n    open({str(tmp_path / 'pid')!r} + str(os.getpid()), 'w').close(); time.sleep(600)\n"
        "run(Graph.from_tasks({'wait': (wait,)}), scheduler='processes', workers=1)\n"
    )
    started = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)
    while not (found := list(tmp_path.glob("pid*"))):
        assert started.poll() is None
    worker = psutil.Process(int(found[0].name[3:]))
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    _, alive = psutil.wait_procs([worker], timeout=30)
    assert not alive


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster that somebody else started, from the command line, in a folder of its own."""
    with started_cluster(str(tmp_path_factory.mktemp("dask"))) as cluster:
        with pytest.raises(GraphError, match="has no worker; start one with"):
            Session(scheduler=cluster.address)
        cluster.add_workers(2)
        yield cluster.address


def test_a_cluster_from_the_command_line_runs_functions_that_it_cannot_import(address: str) -> None:
    with Session(scheduler=address) as there:
        parts = [node(f"there[{i}]", partial(mix, i), keep=True) for i in range(4)]
        total = node("total", lambda *values: mix(1, *values), *parts)
        assert there.run(Graph((total,))) == evaluate(Graph((total,)))
        assert there.run(Graph((total,))) == evaluate(Graph((total,)))
        assert rows_of(there, "there") == {("there", i): 1 for i in range(4)}
        assert {row.worker for row in there.rows} <= {0, 1}
    with Session(scheduler=address) as later:  # the cluster is still there for others
        assert later.run(Graph((node("a", lambda: 1),))) == [1]
    with pytest.raises(ValueError, match="has the workers that it has"):
        Session(scheduler=address, workers=3)


def test_a_scheduler_that_does_not_answer_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dag.on_cluster.CONNECT_S", 1)
    with pytest.raises(GraphError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        Session(scheduler="tcp://127.0.0.1:9")


def test_dask_and_asyncio_log_nothing_while_a_failed_session_is_torn_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def forget_a_failure() -> None:
        async def fails() -> None:
            raise KeyError("nobody asks")

        forgotten = asyncio.ensure_future(fails())
        await asyncio.sleep(0)
        del forgotten

    loggers = [logging.getLogger(name) for name in ("distributed.core", "asyncio")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = False
    with _silent():
        asyncio.run(forget_a_failure())
        loggers[0].critical("Closed comm")
    assert caplog.records == []
    asyncio.run(forget_a_failure())
    gc.collect()
    loggers[0].critical("Closed comm")
    assert {record.name for record in caplog.records} == {"distributed.core", "asyncio"}
    for logger, was in zip(loggers, before, strict=True):
        logger.disabled = was
