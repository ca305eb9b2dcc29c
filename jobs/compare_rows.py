"""From what a driver tells of its runs to the report's model of an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jobs.breakdown import Span, break_down, break_down_mapreduce, total
from jobs.report.derive import model_stage
from jobs.report.model import Attempt, Engine, Run, Sample, Stage, StageBytes
from mapreduce.events import AttemptRow
from mapreduce.runner import StageReport

_ROUND = re.compile(r"#\d+")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One run, as it was seen from outside (times, memory) and as its driver tells it (``facts``).

    ``began`` and ``ended`` are seconds since the epoch: when the driver was asked, and when its answer was there.
    """

    began: float
    ended: float
    cpu_s: float
    samples: tuple[Sample, ...]
    largest_bytes: int
    facts: Mapping[str, Any]
    output_bytes: int

    @property
    def wall_s(self) -> float:
        """From the command to its output."""
        return self.ended - self.began


def mapreduce_engine(
    seen: Sequence[Seen], shown: int, *, engine: str, label: str, workers: int, replication: int, command: str
) -> Engine:
    """Return the MapReduce engine (or its sequential mode) of a report."""
    stages = _stage_reports(seen[shown])
    began, ended = seen[shown].began, seen[shown].ended
    names = _numbered([stage.stage for stage in stages])
    return Engine(
        engine=engine,
        label=label,
        command=command,
        workers=workers,
        replication=replication,
        runs=tuple(_mapreduce_run(each) for each in seen),
        shown=shown,
        stages=(
            *(_mapreduce_stage(name, stage, replication) for name, stage in zip(names, stages, strict=True)),
            *_looks(seen[shown]),
        ),
        attempts=tuple(
            _attempt(name, row, began)
            for name, stage in zip(names, stages, strict=True)
            for row in stage.attempts
        ),
        breakdown=break_down_mapreduce(stages, began=began, ended=ended, workers=workers),
        memory=seen[shown].samples,
        iterations_s=_iterations([(stage.stage, stage.end) for stage in stages], began),
    )


def _stage_reports(seen: Seen) -> list[StageReport]:
    return [
        StageReport(**{**stage, "attempts": tuple(AttemptRow(**row) for row in stage["attempts"])})
        for stage in seen.facts["stages"]
    ]


def _mapreduce_run(seen: Seen) -> Run:
    stages = _stage_reports(seen)
    rows = [row for stage in stages for row in stage.attempts]
    return Run(
        wall_s=seen.wall_s,
        cpu_s=seen.cpu_s,
        input_bytes=sum(row.bytes_in for row in rows),
        output_bytes=sum(row.bytes_out for row in rows),
        store_read_bytes=sum(row.store_read_bytes for row in rows) + seen.facts["driver_read_bytes"],
        store_written_bytes=sum(row.store_written_bytes for row in rows),
        store_physical_bytes=sum(row.store_physical_bytes for row in rows),
        shuffle_bytes=sum(row.shuffle_bytes for row in rows),
        moved_bytes=sum(row.moved_bytes for row in rows),
        spilled_bytes=sum(row.shuffle_bytes for row in rows if row.kind == "map"),
        peak_memory_bytes=max((sample.memory_bytes for sample in seen.samples), default=0),
        peak_worker_bytes=seen.largest_bytes,
        tasks=len(rows),
    )


def _mapreduce_stage(name: str, stage: StageReport, replication: int) -> Stage:
    rows = stage.attempts
    return Stage(
        name=name,
        tasks=len(rows),
        measured=StageBytes(
            input_bytes=sum(row.bytes_in + row.store_read_bytes for row in rows),
            spill_bytes=sum(row.shuffle_bytes for row in rows),
            intermediate_bytes=sum(row.store_physical_bytes for row in rows),
            output_bytes=sum(row.bytes_out for row in rows),
        ),
        modelled=model_stage(
            input_bytes=stage.planned_bytes,
            spill_bytes=stage.run_bytes,
            intermediate_bytes=stage.part_bytes if stage.through_store else 0,
            replication=replication,
            output_bytes=0 if stage.through_store else stage.part_bytes,
        ),
    )


def _looks(seen: Seen) -> list[Stage]:
    """Return what the job itself read of its stages: rows that it asked for, and cut points."""
    read, planned = seen.facts["driver_read_bytes"], seen.facts["driver_planned_bytes"]
    if not read and not planned:
        return []
    return [
        Stage(
            name="looks of the job",
            tasks=0,
            measured=StageBytes(input_bytes=read),
            modelled=StageBytes(input_bytes=planned),
        )
    ]


def graph_engine(
    seen: Sequence[Seen], shown: int, *, engine: str, label: str, workers: int, replication: int, command: str
) -> Engine:
    """Return the graph engine of a report."""
    found = seen[shown]
    began, ended = found.began, found.ended
    rows = found.facts["rows"]
    order = list(dict.fromkeys(row["stage"] for row in rows))
    spans = _graph_spans(rows, found.facts["ready"])
    phases = [(phase["begin"], phase["end"]) for phase in found.facts["phases"]]
    return Engine(
        engine=engine,
        label=label,
        command=command,
        scheduler=found.facts["scheduler"],
        workers=workers,
        replication=replication,
        runs=tuple(_graph_run(each) for each in seen),
        shown=shown,
        stages=tuple(_graph_stage(name, found) for name in order),
        attempts=tuple(_attempt(row["stage"], AttemptRow(**row), began) for row in rows),
        breakdown=total(break_down(spans, began=began, ended=ended, workers=workers, phases=phases)),
        memory=found.samples,
        iterations_s=_iterations(_last_ends(rows), began),
    )


def _graph_run(seen: Seen) -> Run:
    rows = seen.facts["rows"]
    return Run(
        wall_s=seen.wall_s,
        cpu_s=seen.cpu_s,
        input_bytes=sum(row["bytes_in"] for row in rows),
        output_bytes=seen.output_bytes,
        store_read_bytes=sum(row["store_read_bytes"] for row in rows),
        store_written_bytes=sum(row["store_written_bytes"] for row in rows),
        store_physical_bytes=sum(row["store_physical_bytes"] for row in rows),
        shuffle_bytes=2 * sum(row["shuffle_bytes"] for row in rows),  # rows have what was taken: made as well
        moved_bytes=seen.facts["moved_bytes"],
        spilled_bytes=seen.facts["spilled_bytes"],
        peak_memory_bytes=max((sample.memory_bytes for sample in seen.samples), default=0),
        peak_worker_bytes=seen.largest_bytes,
        tasks=len(rows),
    )


def _graph_stage(name: str, seen: Seen) -> Stage:
    rows = [row for row in seen.facts["rows"] if row["stage"] == name]
    writes = any(row["kind"] == "write" for row in rows) or name.endswith(".write")
    return Stage(
        name=name,
        tasks=len(rows),
        measured=StageBytes(
            input_bytes=sum(row["bytes_in"] for row in rows),
            output_bytes=sum(row["store_written_bytes"] for row in rows)
            + (seen.output_bytes if writes else 0),
        ),
        modelled=StageBytes(
            input_bytes=seen.facts["planned_bytes"].get(name, 0),
            output_bytes=seen.output_bytes if writes else 0,
        ),
    )


def _graph_spans(rows: Sequence[Mapping[str, Any]], ready: Sequence[float]) -> list[Span]:
    """Return the tasks as pieces of their workers' time; one is ready when the last of its inputs has ended."""
    return [
        Span(worker=row["worker"], start=row["start"], end=row["end"], ready=since, seconds=row["seconds"])
        for row, since in zip(rows, ready, strict=True)
    ]


def _attempt(stage: str, row: AttemptRow, began: float) -> Attempt:
    return Attempt(
        stage=stage,
        kind=row.kind,
        task=row.task,
        attempt=row.attempt,
        worker=row.worker,
        start_s=max(0.0, row.start - began),
        end_s=max(0.0, row.end - began),
        outcome=row.outcome,
        records_in=row.records_in,
        records_out=row.records_out,
        bytes_in=row.bytes_in + row.store_read_bytes,
        bytes_out=row.bytes_out + row.store_written_bytes,
        peak_memory_bytes=row.peak_memory_bytes,
        seconds=row.seconds,
    )


def _numbered(names: Sequence[str]) -> list[str]:
    """Tell stages of one name apart, as the graph's are: count, count#2, ..."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found


def _last_ends(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Return (name without its round, end) of each operator, in the order of their ends."""
    ends: dict[str, float] = {}
    for row in rows:
        ends[row["stage"]] = max(ends.get(row["stage"], 0.0), row["end"])
    named = [(_ROUND.sub("", name), end) for name, end in ends.items()]
    return sorted(named, key=lambda each: each[1])


def _iterations(ends: Sequence[tuple[str, float]], began: float) -> tuple[float, ...]:
    """Return the seconds of each round: from end to end of what occurs most often, none if nothing occurs twice."""
    counts: dict[str, int] = {}
    for name, _ in ends:
        counts[name] = counts.get(name, 0) + 1
    if not counts or max(counts.values()) < 2:
        return ()
    most = max(counts.values())
    looping = [name for name, _ in ends if counts[name] == most][-1]
    marks = [began, *sorted(end for name, end in ends if name == looping)]
    return tuple(after - before for before, after in pairwise(marks))
