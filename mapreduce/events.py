"""What happened in a stage: one row per attempt, events while it runs, results at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .coordinator import Task


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """What became of one attempt; every engine's rows have these columns.

    A row of an attempt that was lost holds what its worker said last.  No two of the byte columns count the same bytes, but for
    ``moved_bytes``, which are ``shuffle_bytes`` too, and ``store_physical_bytes``.

    Args:
        engine: "mapreduce", "dag", ...
        stage: the stage's title; ``kind`` is "map" or "reduce".
        start, end: seconds since the epoch, from the moment when it was given to its worker to that of its answer.
        outcome: "done", "failed" (it raised), "lost" (its worker died or went silent), "memory", "discarded" (another
            attempt was first) or "stopped" (nobody wanted it any more).
        records_in, records_out: what it read, and what it wrote to runs or to its part.
        bytes_in, bytes_out: asked of the job's input files, given to its output files, as they are in the files.
        store_read_bytes, store_written_bytes: asked of and given to the store of intermediates.
        store_physical_bytes: what the store wrote for ``store_written_bytes``, on all its replicas.
        shuffle_bytes: written to runs by a map, read from runs by a reduce (with what a merge in several passes adds).
        moved_bytes: the part of it that a reduce read from the disk of another worker.
        peak_memory_bytes: the most that its process used during the attempt.
        cpu_s: of its process during the attempt.
        seconds: spent on "compute", "store_read" and "store_write" (files: input, intermediates, output), "shuffle" (runs on
            local disks) and "serialise" (records to bytes and back, in blocks); their sum is never more than ``end - start``.
    """

    engine: str = "mapreduce"
    stage: str
    kind: str
    task: int
    attempt: int
    worker: int
    start: float
    end: float
    outcome: str
    message: str = ""
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    store_read_bytes: int = 0
    store_written_bytes: int = 0
    store_physical_bytes: int = 0
    shuffle_bytes: int = 0
    moved_bytes: int = 0
    peak_memory_bytes: int = 0
    cpu_s: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened to an attempt ("start", "running", "done", "failed", "memory") or a worker ("lost").

    ``records_in`` and ``bytes_in`` are what this attempt has read so far, from input files and the store.
    ``counters`` are live: accepted attempts plus what running ones said last.
    """

    outcome: str
    worker: int
    task: Task | None = None
    attempt: int = 0
    message: str = ""
    records_in: int = 0
    bytes_in: int = 0
    maps: int
    maps_done: int
    reduces: int
    reduces_done: int
    counters: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """Results by task index, counters of accepted attempts, and one row per attempt."""

    map_results: list[Any]
    reduce_results: list[Any]
    counters: dict[str, int]
    rows: list[AttemptRow]


OnEvent = Callable[[Event], None]
#: Called with the task, the attempt number and the result.
Commit = Callable[[Task, int, Any], None]


def reduce_payloads(reduces: Sequence[Any] | int) -> list[Any]:
    """Return the payloads of the reduces: those given, or their indexes."""
    return list(range(reduces)) if isinstance(reduces, int) else list(reduces)
