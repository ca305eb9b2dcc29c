"""Where the time of all workers went."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapreduce
from jobs.breakdown import Span, break_down, break_down_mapreduce, mapreduce_spans, total
from jobs.report.model import PARTS
from mapreduce import Dataset, Options, Stage
from mapreduce.events import AttemptRow
from mapreduce.runner import StageReport

TIMES = st.floats(-10, 110)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start, length = draw(TIMES), draw(st.floats(0, 40))
    spent = draw(st.dictionaries(st.sampled_from(PARTS[:5]), st.floats(0, 30)))
    return Span(
        worker=draw(st.integers(0, 6)), start=start, end=start + length, ready=draw(TIMES), seconds=spent
    )


@given(
    st.lists(spans(), max_size=12), st.integers(1, 5), st.lists(st.floats(0, 100), max_size=6, unique=True)
)
def test_the_parts_sum_to_wall_time_times_workers_and_none_is_negative(
    given_spans: list[Span], workers: int, edges: list[float]
) -> None:
    edges = sorted(edges)
    given_spans = one_at_a_time(given_spans, workers)
    phases = list(zip(edges[::2], edges[1::2], strict=False))
    found = break_down(given_spans, began=0.0, ended=100.0, workers=workers, phases=phases)
    assert len(found) == workers
    for parts in found:
        assert tuple(parts) == PARTS
        assert min(parts.values()) >= 0
        assert math.isclose(math.fsum(parts.values()), 100.0, rel_tol=1e-9)
    assert math.isclose(math.fsum(total(found).values()), 100.0 * workers, rel_tol=1e-9)


def one_at_a_time(given_spans: list[Span], workers: int) -> list[Span]:
    """Return the spans moved behind each other, as those of one worker are, and no more workers than there are."""
    free: dict[int, float] = {}
    placed = []
    for span in sorted(given_spans, key=lambda span: span.start):
        worker = span.worker % workers
        start = max(span.start, free.get(worker, -math.inf))
        free[worker] = start + span.end - span.start
        placed.append(replace(span, worker=worker, start=start, end=free[worker]))
    return placed


def test_what_overlaps_on_one_worker_makes_the_sum_too_large_by_as_much() -> None:
    def parts(*given: tuple[float, float]) -> dict[str, float]:
        spans = [Span(worker=0, start=start, end=end, ready=0) for start, end in given]
        (found,) = break_down(spans, began=0, ended=10, workers=1, phases=[(0, 10)])
        return found

    assert parts((1, 4), (4, 8))["compute"] == 7
    assert math.fsum(parts((1, 4), (4, 8)).values()) == 10
    assert parts((1, 4), (3, 8), (5, 6))["compute"] == 3 + 5 + 1
    assert math.fsum(parts((1, 4), (3, 8), (5, 6)).values()) == 10 + 1 + 1


def row(kind: str, task: int, worker: int, start: float, end: float, **more: object) -> AttemptRow:
    settings: dict[str, object] = {"attempt": 0, "outcome": "done", **more}
    return AttemptRow(stage="s", kind=kind, task=task, worker=worker, start=start, end=end, **settings)  # type: ignore[arg-type]


def stage(begin: float, end: float, *rows: AttemptRow) -> StageReport:
    rest: dict[str, Any] = {column.name: 0 for column in fields(StageReport)}
    return StageReport(**{**rest, "stage": "s", "begin": begin, "end": end, "attempts": rows})


def test_waiting_at_a_barrier_is_idle_and_waiting_to_be_given_a_task_is_scheduling() -> None:
    # 100-101 planning; worker 0 maps 102-112, worker 1 maps 101-105 and waits for the barrier at 112;
    # its reduce comes at 113; the stage ends at 118, publishing at 120.
    found = break_down_mapreduce(
        [
            stage(
                101, 118,
                row("map", 0, 0, 102, 112, seconds={"compute": 6.0, "store_read": 3.0, "serialise": 0.5}),
                row("map", 1, 1, 101, 105),
                row("reduce", 0, 1, 113, 118, seconds={"compute": 1.0, "store_write": 2.0, "shuffle": 1.5}),
            )
        ],
        began=100, ended=120, workers=2,
    )  # fmt: skip
    assert found == pytest.approx(
        {
            "compute": 6 + 4 + 1, "serialise": 0.5, "shuffle": 1.5, "store_read": 3.0, "store_write": 2.0,
            "idle": (112 - 105) + (118 - 112),
            # before, on the way to the first map and back, to the reduce, on its way, after
            "scheduling": 2 * 1 + 1 + 0.5 + 1 + 0.5 + 2 * 2,
        }
    )  # fmt: skip


def test_a_worker_without_a_task_in_a_stage_is_idle_there_and_waits_between_the_stages() -> None:
    first = stage(0, 4, row("map", 0, 0, 0, 4), row("map", 1, 1, 0, 4))
    second = stage(5, 9, row("map", 0, 0, 5, 9))
    found = break_down_mapreduce([first, second], began=0, ended=9, workers=2)
    assert found["compute"] == 12
    assert found["idle"] == 4
    assert found["scheduling"] == 2


def test_a_worker_that_replaces_a_lost_one_takes_its_place() -> None:
    lost = row("map", 0, 0, 0, 3, outcome="lost")
    again = row("map", 0, 2, 4, 8, attempt=1)
    parts = break_down(
        mapreduce_spans([stage(0, 8, lost, row("map", 1, 1, 0, 8), again)]),
        began=0, ended=8, workers=2, phases=[(0, 8)],
    )  # fmt: skip
    assert [each["compute"] for each in parts] == [7, 8]
    assert [each["scheduling"] for each in parts] == [1, 0]  # from the loss to the next attempt


def test_a_run_is_accounted_for_whole_by_the_seconds_that_it_measured(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("".join(f"{i % 999} {i}\n" for i in range(60_000)))

    def job(text: Dataset) -> Dataset:
        counts = Stage(map=lambda _, line: [(line.split()[0], 1)], reduce=lambda k, v: [(k, sum(v))])(text)
        return Stage(map=lambda k, n: [(n, k)], reduce=lambda k, v: [(k, max(v))], partitions=1)(counts)

    options = Options(workers=2, split_bytes=200_000, store=str(tmp_path / "store"))
    result = mapreduce.run(job, str(source), output=str(tmp_path / "out"), options=options)
    first, last = result.stages
    found = break_down_mapreduce(result.stages, began=first.begin, ended=last.end, workers=2)
    wall_s = last.end - first.begin
    assert math.fsum(found.values()) == pytest.approx(2 * wall_s, rel=1e-6)
    assert set(found) == set(PARTS)
    for name in ("compute", "serialise", "shuffle", "store_read", "store_write"):
        # what is measured went into the parts as it is: nothing had to be scaled down to fit
        measured = math.fsum(r.seconds.get(name, 0.0) for s in result.stages for r in s.attempts)
        assert found[name] == pytest.approx(measured, rel=1e-6)
        assert measured > 0
