"""What a comparison of the two engines found, as values; the one thing that reports are drawn from.

A ``Comparison`` holds measurements and what a plan promised, nothing derived: medians, ratios and bounds come from
``jobs.report.derive``.  It goes to JSON and comes back equal, so a report can be drawn again without running anything.

Bytes are bytes, times are seconds; times of attempts, phases and samples count from the start of their run.  No number here
is NaN or infinite.  Nothing here measures, reads a clock or draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

SCHEMA_VERSION = 2

#: Where the seconds of all workers go, in the order in which they are stacked.  They sum to wall time x workers.
PARTS = ("compute", "serialise", "shuffle", "store_read", "store_write", "scheduling", "idle")

#: The parts that would be gone if I/O were free.
IO_PARTS = ("shuffle", "store_read", "store_write")

ENGINES = ("mapreduce", "dag", "single")


class BadComparison(ValueError):
    """A comparison that cannot be: a number that is none, an engine that nobody knows, no run at all."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The totals of one run of one engine.

    Args:
        wall_s: from the command to its output, in warm processes.
        cpu_s: user and system time of all processes.
        input_bytes: asked of the job's input files (twice, if a job reads them twice).
        output_bytes: given to the job's output files.
        store_read_bytes: asked of the store that holds intermediates.
        store_written_bytes: given to that store.
        store_physical_bytes: what it wrote for them: times the replication.
        shuffle_bytes: written by the producers of a shuffle plus read by its consumers, on disk or in memory.
        moved_bytes: sent from one worker to another.
        spilled_bytes: written to local disk because memory was short or the engine always does.
        peak_memory_bytes: all processes together, at the moment when that was largest.
        peak_worker_bytes: the largest that one worker was.
        tasks: attempts that ran.
    """

    wall_s: float
    cpu_s: float
    input_bytes: int = 0
    output_bytes: int = 0
    store_read_bytes: int = 0
    store_written_bytes: int = 0
    store_physical_bytes: int = 0
    shuffle_bytes: int = 0
    moved_bytes: int = 0
    spilled_bytes: int = 0
    peak_memory_bytes: int = 0
    peak_worker_bytes: int = 0
    tasks: int = 0


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """The bytes of one stage on their way through files.

    Args:
        input_bytes: asked of input files and of the store's intermediates.
        spill_bytes: written to local disk for the shuffle and read from it again, so twice what was spilled.
        intermediate_bytes: put into the store for a later stage, times the replication.
        output_bytes: given to the job's output files.
    """

    input_bytes: int = 0
    spill_bytes: int = 0
    intermediate_bytes: int = 0
    output_bytes: int = 0

    @property
    def total(self) -> int:
        """The sum of all four."""
        return self.input_bytes + self.spill_bytes + self.intermediate_bytes + self.output_bytes


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of an engine, in the run that the engine's ``attempts`` are from."""

    name: str
    tasks: int
    measured: StageBytes
    modelled: StageBytes


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt of one task.

    Args:
        stage: the stage's name, as in ``Engine.stages``.
        kind: map, reduce, read, merge, ...: attempts of one stage and kind share a row of the legend.
        attempt: 0 for the first; others are drawn as repeated.
        worker: the slot that ran it, from 0.
        outcome: "done", or what became of it instead.
        seconds: how much of it went to ``IO_PARTS`` and to ``serialise``.
    """

    stage: str
    kind: str
    task: int
    attempt: int = 0
    worker: int
    start_s: float
    end_s: float
    outcome: str = "done"
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    peak_memory_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Memory of all workers together at one moment."""

    at_s: float
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One way of running the job, and what was seen.

    Args:
        engine: "mapreduce", "dag" or "single" (the same functions one after the other in one thread).
        label: how it is called in the report; unique in a comparison.
        source: the name of the file it was read from, where a report is drawn from several; else empty.
        command: what a reader types to run just this.
        scheduler: where the tasks of a graph ran and why there, in words.
        workers: worker slots.
        replication: copies that the store keeps of an intermediate; 0 if nothing goes through a store.
        runs: every run, in the order in which they took place.
        shown: which of ``runs`` the rest is from: the median one.
        stages: in the order of the plan.
        breakdown: seconds for each of ``PARTS``, of all workers together.
        iterations_s: seconds from the end of one round of a loop to the end of the next.
    """

    engine: str
    label: str
    source: str = ""
    command: str = ""
    scheduler: str = ""
    workers: int
    replication: int = 0
    runs: tuple[Run, ...]
    shown: int = 0
    stages: tuple[Stage, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    breakdown: Mapping[str, float] = field(default_factory=dict)
    memory: tuple[Sample, ...] = ()
    iterations_s: tuple[float, ...] = ()

    @property
    def run(self) -> Run:
        """The run that is shown."""
        return self.runs[self.shown]


@dataclass(frozen=True, kw_only=True)
class Edge:
    """What goes from one operator to another; ``on_disk`` if it goes through a file."""

    source: str
    target: str
    size_bytes: int
    on_disk: bool = False
    critical: bool = False


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A plan as a picture: one ``<svg>`` element, the same in characters, and its edges."""

    svg: str = ""
    text: str = ""
    edges: tuple[Edge, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Moment:
    """From here on ``running`` tasks run at once, were there workers enough."""

    at_s: float
    running: int


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """What the graph's shape allows: Cilkview's numbers, by task times of the run that is shown.

    ``measured_s`` is the time that the tasks took on ``workers``, from the first start to the last end.
    """

    work_s: float
    span_s: float
    burdened_span_s: float
    tasks: int
    workers: int
    measured_s: float
    width: tuple[Moment, ...] = ()
    critical_path: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rewrites:
    """What was done to the plan and what was not, each with its reason."""

    applied: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One job on one input, run in several ways.

    Args:
        job: its name.
        parameters: as given, in words.
        inputs: URLs with their sizes in bytes.
        output_sha256: of the output, which all engines made alike.
        command: the exact ``mr compare`` command line.
        started: date and time in ISO 8601.
        machine: facts in words: cpu, cores, memory, kernel, disk, cache state.
        versions: of Python and of the packages that did the work.
        memory_limit_bytes: of all workers together; None if there was none.
        threads_per_worker: native threads that a worker may use.
        engines: the first "mapreduce" and the first "dag" are what the verdict speaks of.
        warnings: what makes the numbers less sure (a warm cache, one core, a busy machine).
    """

    schema_version: int = SCHEMA_VERSION
    job: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    output_bytes: int
    output_sha256: str
    command: str
    started: str
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    memory_limit_bytes: int | None = None
    threads_per_worker: int = 1
    engines: tuple[Engine, ...]
    drawing: Drawing = field(default_factory=Drawing)
    parallelism: Parallelism | None = None
    rewrites: Rewrites = field(default_factory=Rewrites)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def mapreduce(self) -> Engine:
        """The MapReduce run that the verdict speaks of."""
        return self.first("mapreduce")

    @property
    def dag(self) -> Engine:
        """The DAG run that the verdict speaks of."""
        return self.first("dag")

    def first(self, engine: str) -> Engine:
        """Return the first engine of a kind; raises KeyError."""
        for each in self.engines:
            if each.engine == engine:
                return each
        raise KeyError(engine)


def _check(comparison: Comparison) -> None:
    for path, number in _numbers(comparison, "comparison"):
        if not math.isfinite(number):
            raise BadComparison(f"{path} is {number}; a report needs finite numbers")
    labels = [engine.label for engine in comparison.engines]
    if len(set(labels)) < len(labels):
        raise BadComparison(f"two engines have one label: {labels}; give each its own")
    for engine in comparison.engines:
        if engine.engine not in ENGINES:
            raise BadComparison(f"engine {engine.engine!r} is none of {', '.join(ENGINES)}")
        if engine.workers < 1:
            raise BadComparison(f"{engine.label}: {engine.workers} workers cannot have run anything")
        if not 0 <= engine.shown < len(engine.runs):
            raise BadComparison(
                f"{engine.label}: run {engine.shown} is to be shown, but has {len(engine.runs)} runs"
            )
        if unknown := set(engine.breakdown) - set(PARTS):
            raise BadComparison(
                f"{engine.label}: {sorted(unknown)} in the breakdown is none of {', '.join(PARTS)}"
            )
    if comparison.parallelism is not None and comparison.parallelism.workers < 1:
        raise BadComparison(f"parallelism on {comparison.parallelism.workers} workers says nothing")
    for source in dict.fromkeys(engine.source for engine in comparison.engines) or ("",):
        for kind in ("mapreduce", "dag"):
            if kind not in {engine.engine for engine in comparison.engines if engine.source == source}:
                where = f" of {source}" if source else ""
                raise BadComparison(f"no engine{where} is {kind!r}; a comparison needs mapreduce and dag")


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float):
        yield path, value
    elif is_dataclass(value):
        for each in fields(value):
            yield from _numbers(getattr(value, each.name), f"{path}.{each.name}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}")
