"""What follows from a comparison: medians, ratios, what noise decides, the model beside the measurement, bounds.

Pure arithmetic on the values of ``jobs.report.model``; every picture and table takes its numbers from here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .model import IO_PARTS, PARTS, Attempt, Comparison, Engine, Run, StageBytes

#: A difference of measurement and model above this share is a sign of a bug, in the engine or in the model.
MARK_ABOVE = 0.05


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The median of some runs, their median absolute deviation, and an interval that holds the true median."""

    median: float
    mad: float
    low: float
    high: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of repeated measurements, at least one.

    The interval is the narrowest pair of order statistics that covers the median with 95 %, by the binomial distribution: no
    distribution of times is assumed.  Fewer than six runs cannot reach 95 %; then it is the lowest and the highest
    (see ``covered``).
    """
    ordered = sorted(values)
    count = len(ordered)
    middle = statistics.median(ordered)
    outside = 0
    tail = 0.0
    for rank in range(count // 2):
        tail += math.comb(count, rank) / 2**count
        if 2 * tail > 0.05:
            break
        outside = rank
    return Spread(
        median=middle,
        mad=statistics.median(abs(value - middle) for value in ordered),
        low=ordered[outside],
        high=ordered[count - 1 - outside],
        count=count,
    )


def covered(count: int) -> float:
    """Return how likely it is that the true median is within the ``Spread`` of ``count`` runs, at least: 0 of one run.

    >>> covered(1), covered(3), covered(5), covered(20)
    (0.0, 0.75, 0.9375, 0.95)
    """
    return 1 - 2.0 ** (1 - count) if count < 6 else 0.95


def idle_bytes(engine: Engine) -> int:
    """Return the memory of an engine's warm processes as the shown run began; 0 where that was not seen."""
    return engine.memory[0].memory_bytes if engine.memory else 0


def mostly_idle(one: Engine, other: Engine) -> bool:
    """Tell whether most of the difference of two peaks was there before anything ran: interpreters, not data."""
    peaks = one.run.peak_memory_bytes - other.run.peak_memory_bytes
    idle = idle_bytes(one) - idle_bytes(other)
    return bool(idle) and 2 * abs(peaks - idle) < abs(peaks)


def noise_decides(one: Spread, other: Spread) -> bool:
    """Return whether the two intervals overlap, or touch, without being one and the same exact number."""
    exact = one.low == one.high == other.low == other.high
    return not exact and one.low <= other.high and other.low <= one.high


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What the verdict speaks of: MapReduce and the graph as one file has them; ``source`` is empty if there is one only."""

    source: str
    mapreduce: Engine
    dag: Engine


def sources(comparison: Comparison) -> tuple[str, ...]:
    """Return the names of the files that a comparison is drawn from; one empty name if it is as it was measured."""
    return tuple(dict.fromkeys(engine.source for engine in comparison.engines))


def pairs(comparison: Comparison) -> tuple[Pair, ...]:
    """Return the first MapReduce and the first graph of each file."""

    def first(kind: str, source: str) -> Engine:
        return next(e for e in comparison.engines if e.engine == kind and e.source == source)

    return tuple(
        Pair(source=source, mapreduce=first("mapreduce", source), dag=first("dag", source))
        for source in sources(comparison)
    )


def shown_engines(comparison: Comparison) -> tuple[Engine, ...]:
    """Return the engines of all pairs, which the pictures show."""
    return tuple(engine for pair in pairs(comparison) for engine in (pair.mapreduce, pair.dag))


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One row of the scoreboard: ``unit`` is "s", "bytes" or "count"."""

    name: str
    unit: str
    value: Callable[[Run], float]
    about: str


METRICS = (
    Metric(name="wall time", unit="s", value=lambda run: run.wall_s, about="command to output, warm processes"),
    Metric(name="CPU time", unit="s", value=lambda run: run.cpu_s, about="user + system, all processes"),
    Metric(name="input read", unit="bytes", value=lambda run: run.input_bytes, about="bytes asked of the input"),
    Metric(name="output written", unit="bytes", value=lambda run: run.output_bytes, about="bytes of the result"),
    Metric(
        name="from the store", unit="bytes", value=lambda run: run.store_read_bytes,
        about="intermediates read back",
    ),
    Metric(
        name="to store, logical", unit="bytes", value=lambda run: run.store_written_bytes,
        about="intermediates, one copy",
    ),
    Metric(
        name="to store, physical", unit="bytes", value=lambda run: run.store_physical_bytes,
        about="intermediates, times replication",
    ),
    Metric(
        name="through files, all", unit="bytes", value=lambda run: through_files(run),
        about="input, output, store with copies, spills twice",
    ),
    Metric(name="shuffle, written and read", unit="bytes", value=lambda run: run.shuffle_bytes, about="on disk or in memory"),
    Metric(name="worker to worker", unit="bytes", value=lambda run: run.moved_bytes, about="values sent from process to process"),
    Metric(name="spilled", unit="bytes", value=lambda run: run.spilled_bytes, about="to local disk"),
    Metric(
        name="peak memory", unit="bytes", value=lambda run: run.peak_memory_bytes,
        about="all processes together",
    ),
    Metric(name="peak of one worker", unit="bytes", value=lambda run: run.peak_worker_bytes, about="the largest worker"),
    Metric(name="tasks", unit="count", value=lambda run: run.tasks, about="attempts that ran"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Score:
    """A metric of some engines, in their order; ``ratio`` is one over the other, None where the other has none of it."""

    metric: Metric
    spreads: tuple[Spread, ...]
    ratio: float | None
    noise: bool


def scoreboard(engines: Sequence[Engine], one: Engine, other: Engine) -> tuple[Score, ...]:
    """Return the rows of the scoreboard of ``engines``; ratio and noise are those of two of them."""
    return tuple(_score(metric, engines, one, other) for metric in METRICS)


def _score(metric: Metric, engines: Sequence[Engine], one: Engine, other: Engine) -> Score:
    of = {engine.label: spread([metric.value(run) for run in engine.runs]) for engine in engines}
    left, right = of[one.label], of[other.label]
    ratio = 1.0 if left.median == right.median else left.median / right.median if right.median else None
    return Score(metric=metric, spreads=tuple(of.values()), ratio=ratio, noise=noise_decides(left, right))


def wall(engine: Engine) -> Spread:
    """Return the spread of an engine's wall time."""
    return spread([run.wall_s for run in engine.runs])


def through_files(run: Run) -> int:
    """Return all bytes that went through files: input, output, the store with its copies, spills out and in."""
    return (
        run.input_bytes
        + run.output_bytes
        + run.store_read_bytes
        + run.store_physical_bytes
        + 2 * run.spilled_bytes
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Measured minus modelled bytes; ``share`` of the modelled ones, infinite where none were expected.

    ``kind`` is named where the sum is right and one kind has too much of what another lacks.
    """

    extra_bytes: int
    share: float
    marked: bool
    kind: str = ""

    @property
    def words(self) -> str:
        """Say it: "exact", "+1 byte", "-12 bytes", with the share where it is marked."""
        if not self.extra_bytes:
            return "exact"
        said = f"{self.extra_bytes:+,} byte{'' if abs(self.extra_bytes) == 1 else 's'}"
        if self.kind:
            said += f" of {self.kind}"
        if not self.marked:
            return said
        return f"{said} ({self.share:+.1%})" if math.isfinite(self.share) else f"{said} (none expected)"


def difference(measured: StageBytes, modelled: StageBytes) -> Difference:
    """Compare by kind: what one kind has too much cannot hide what another lacks.

    Marked if the sum or any kind differs by more than ``MARK_ABOVE`` of the whole stage.
    """
    kinds = {
        "input": measured.input_bytes - modelled.input_bytes,
        "spill": measured.spill_bytes - modelled.spill_bytes,
        "intermediate": measured.intermediate_bytes - modelled.intermediate_bytes,
        "output": measured.output_bytes - modelled.output_bytes,
    }
    extra, kind = sum(kinds.values()), ""
    largest = max(kinds, key=lambda each: (abs(kinds[each]), kinds[each]))
    if not extra and kinds[largest]:
        extra, kind = kinds[largest], largest
    expected = modelled.total
    worst = max(abs(extra), abs(kinds[largest]))
    share = extra / expected if expected else (math.copysign(math.inf, extra) if extra else 0.0)
    marked = worst > MARK_ABOVE * expected if expected else worst > 0
    return Difference(extra_bytes=extra, share=share, marked=marked, kind=kind)


def model_stage(
    *, input_bytes: int, spill_bytes: int, intermediate_bytes: int, replication: int, output_bytes: int
) -> StageBytes:
    """Return what the model expects of a stage: input + 2 x spill + replication x intermediate + output.

    ``spill_bytes`` are what its maps leave on local disk, once; a graph in memory has neither those nor intermediates.
    """
    return StageBytes(
        input_bytes=input_bytes,
        spill_bytes=2 * spill_bytes,
        intermediate_bytes=replication * intermediate_bytes,
        output_bytes=output_bytes,
    )


def sum_bytes(parts: Sequence[StageBytes]) -> StageBytes:
    """Return the sum over stages, kind by kind."""
    return StageBytes(
        input_bytes=sum(part.input_bytes for part in parts),
        spill_bytes=sum(part.spill_bytes for part in parts),
        intermediate_bytes=sum(part.intermediate_bytes for part in parts),
        output_bytes=sum(part.output_bytes for part in parts),
    )


def amplification(comparison: Comparison, engine: Engine) -> float | None:
    """Return the bytes through files over the bytes that the job is about, input + output; None where there are none."""
    needed = sum(comparison.inputs.values()) + comparison.output_bytes
    return sum_bytes([stage.measured for stage in engine.stages]).total / needed if needed else None


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Attempts between two barriers; ``waits`` has the seconds that each worker was done before the last one was."""

    start_s: float
    end_s: float
    attempts: tuple[Attempt, ...]
    waits: tuple[tuple[int, float], ...]


def phases(engine: Engine) -> tuple[Phase, ...]:
    """Cut the shown run at its barriers.

    A barrier is a moment at which everything started so far has ended and another stage, or another half of it, goes on.  A graph
    whose stages overlap has none and is one phase.
    """
    groups: list[list[Attempt]] = []
    reached = -math.inf
    for attempt in sorted(engine.attempts, key=lambda each: (each.start_s, each.end_s)):
        last = groups[-1][-1] if groups else None
        if last is None or (
            attempt.start_s >= reached and (attempt.stage, attempt.kind) != (last.stage, last.kind)
        ):
            groups.append([])
        groups[-1].append(attempt)
        reached = max(reached, attempt.end_s)
    return tuple(_phase(group, engine.workers) for group in groups)


def _phase(group: list[Attempt], workers: int) -> Phase:
    end = max(attempt.end_s for attempt in group)
    start = min(attempt.start_s for attempt in group)
    last = dict.fromkeys(range(workers), start)
    for attempt in group:
        last[attempt.worker] = max(last.get(attempt.worker, start), attempt.end_s)
    waits = tuple((worker, end - ended) for worker, ended in sorted(last.items()) if end > ended)
    return Phase(start_s=start, end_s=end, attempts=tuple(group), waits=waits)


def barrier_wait_s(engine: Engine) -> float:
    """Return the seconds that workers waited at barriers, those after the last one included."""
    return sum(seconds for phase in phases(engine) for _, seconds in phase.waits)


def wall_without_io_s(engine: Engine) -> float:
    """Return the wall time that would remain at best if I/O took no time: the schedule replayed without it.

    Between two barriers the slowest worker decides; each loses the seconds its attempts spent on ``IO_PARTS``.  Order, barriers
    and gaps stay as they were, and tasks that fill the freed time are not looked for, so this bounds what faster disks bring
    (blocked-time analysis, Ousterhout et al., NSDI 2015, section 2.2).
    """
    saved = 0.0
    for phase in phases(engine):
        ends: dict[int, float] = {}
        io: dict[int, float] = {}
        for attempt in phase.attempts:
            ends[attempt.worker] = max(ends.get(attempt.worker, 0.0), attempt.end_s)
            io[attempt.worker] = io.get(attempt.worker, 0.0) + sum(
                attempt.seconds.get(part, 0.0) for part in IO_PARTS
            )
        remaining = max(ends[worker] - phase.start_s - io[worker] for worker in ends)
        saved += phase.end_s - phase.start_s - max(remaining, 0.0)
    return max(engine.run.wall_s - saved, 0.0)


@dataclass(frozen=True, kw_only=True)
class Accounted:
    """The parts of worker time, and how far their sum is from wall time x workers."""

    parts: tuple[tuple[str, float], ...]
    total_s: float
    available_s: float

    @property
    def error(self) -> float:
        """The share by which the sum misses wall time x workers."""
        return self.total_s / self.available_s - 1 if self.available_s else 0.0


def account(engine: Engine) -> Accounted:
    """Return where the seconds of all workers went in the shown run."""
    parts = tuple((part, engine.breakdown.get(part, 0.0)) for part in PARTS)
    return Accounted(
        parts=parts,
        total_s=sum(seconds for _, seconds in parts),
        available_s=engine.run.wall_s * engine.workers,
    )


def cores_to_beat(single: Engine, engine: Engine) -> float | None:
    """Return how many workers ``engine`` needs to be as fast as one thread if it scaled perfectly.

    None if it is of no use at any number: no time.  This is COST (McSherry et al., HotOS 2015) by extrapolation.
    """
    alone = wall(single).median
    return wall(engine).median * engine.workers / alone if alone > 0 else None
