"""Where the time of all workers went: wall time x workers, cut into parts with nothing left over and nothing twice.

An attempt's own seconds come from its row.  The time in which a worker has no task is *idle* as long as no task is ready for
it (the others are still at work before a barrier, or there are fewer tasks than workers), and *scheduling* from the moment
when the task that it does next could have run.  Scheduling is also the time outside of the phases in which tasks can run:
planning, publishing, start-up; and within an attempt the time on the way to the worker and back.

Nothing here reads a clock or runs anything.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobs.report.model import PARTS

if TYPE_CHECKING:
    from mapreduce.runner import StageReport

#: The parts that an attempt accounts for itself.
_OWN = tuple(part for part in PARTS if part not in ("scheduling", "idle"))


@dataclass(frozen=True, kw_only=True)
class Span:
    """An attempt as a piece of a worker's time.

    Args:
        worker: the number of its worker; one that replaces a lost worker has a new number.
        start, end: seconds since the epoch.
        ready: since when it could have run, had a worker been given it at once.
        seconds: what it was spent on; time that these leave is ``scheduling`` if they say how much was ``compute``, else
            it is ``compute``.
    """

    worker: int
    start: float
    end: float
    ready: float
    seconds: Mapping[str, float] = field(default_factory=dict)


def break_down(
    spans: Iterable[Span],
    *,
    began: float,
    ended: float,
    workers: int,
    phases: Sequence[tuple[float, float]],
) -> tuple[dict[str, float], ...]:
    """Return the seconds of each worker for each of ``PARTS``; those of one worker sum to ``ended - began``.

    ``phases`` are the (begin, end) in which tasks could run, in order.  What lies outside of [began, ended] is cut off.  A worker
    does one thing at a time; should rows say otherwise, each counts whole, and the sum is too large by what they overlap.

    Raises:
        ValueError: the run ended before it began, or there is no worker.
    """
    if ended < began or workers < 1:
        raise ValueError(f"a run from {began} to {ended} on {workers} workers cannot be broken down")
    return tuple(_of_worker(given, began, ended, phases) for given in _slots(spans, workers))


def total(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the sums over all workers, for each of ``PARTS``."""
    given = list(parts)
    return {part: math.fsum(each[part] for each in given) for part in PARTS}


def mapreduce_spans(stages: Iterable[StageReport]) -> list[Span]:
    """Return the attempts of a MapReduce run.

    A map is ready when its stage begins, a reduce when the last map that it waited for has ended, and another attempt of
    a task when the one before has ended.
    """
    found: list[Span] = []
    for stage in stages:
        map_ends = sorted(row.end for row in stage.attempts if row.kind == "map" and row.outcome == "done")
        ends: dict[tuple[str, int], list[float]] = {}
        for row in stage.attempts:
            ends.setdefault((row.kind, row.task), []).append(row.end)
        for row in stage.attempts:
            before = [end for end in ends[row.kind, row.task] if end <= row.start]
            if row.kind == "reduce":
                before += map_ends[: bisect_right(map_ends, row.start)][-1:]
            ready = max(before, default=stage.begin)
            found.append(
                Span(worker=row.worker, start=row.start, end=row.end, ready=ready, seconds=row.seconds)
            )
    return found


def break_down_mapreduce(
    stages: Sequence[StageReport], *, began: float, ended: float, workers: int
) -> dict[str, float]:
    """Return where the time of all workers of a MapReduce run went; raises as ``break_down``."""
    phases = [(stage.begin, stage.end) for stage in stages]
    spans = mapreduce_spans(stages)
    return total(break_down(spans, began=began, ended=ended, workers=max(workers, 1), phases=phases))


def _slots(spans: Iterable[Span], workers: int) -> list[list[Span]]:
    """Return the spans of each of ``workers`` workers in time; one that replaces a lost worker takes its place."""
    by_worker: dict[int, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        by_worker.setdefault(span.worker, []).append(span)
    slots: list[list[Span]] = [[] for _ in range(workers)]
    free_from = [-math.inf] * workers
    for given in by_worker.values():  # in the order of their first attempts
        slot = min(range(workers), key=free_from.__getitem__)
        slots[slot] += given
        free_from[slot] = max(span.end for span in given)
    return [sorted(slot, key=lambda span: (span.start, span.end)) for slot in slots]


def _of_worker(
    spans: Iterable[Span], began: float, ended: float, phases: Sequence[tuple[float, float]]
) -> dict[str, float]:
    parts = dict.fromkeys(PARTS, 0.0)
    now = began
    for span in spans:
        start = min(max(span.start, began), ended)
        end = min(max(span.end, start), ended)
        _add_gap(parts, now, start, span.ready, phases)
        _add_attempt(parts, end - start, span.seconds)
        now = max(now, end)
    _add_gap(parts, now, ended, math.inf, phases)
    return parts


def _add_attempt(parts: dict[str, float], seconds: float, spent: Mapping[str, float]) -> None:
    known = {part: max(0.0, spent.get(part, 0.0)) for part in _OWN}
    counted = math.fsum(known.values())
    # Cut off at an end of the run, or by a clock that was set meanwhile: what is left is spent in the same proportions.
    scale = min(1.0, seconds / counted) if counted else 1.0
    for part, value in known.items():
        parts[part] += value * scale
    rest = "scheduling" if "compute" in spent else "compute"
    parts[rest] += max(0.0, seconds - counted)


def _add_gap(
    parts: dict[str, float], start: float, end: float, ready: float, phases: Sequence[tuple[float, float]]
) -> None:
    inside = idle = 0.0
    for phase_begin, phase_end in phases:
        begin, stop = max(start, phase_begin), min(end, phase_end)
        if stop > begin:
            inside += stop - begin
            idle += min(max(ready, begin), stop) - begin
    parts["idle"] += idle
    parts["scheduling"] += max(0.0, end - start - idle)
