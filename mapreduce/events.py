"""What happened in a stage: one row per attempt, events while it runs, results at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .coordinator import Task


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """What became of one attempt.  Times are seconds since the epoch."""

    kind: str
    task: int
    attempt: int
    worker: int
    start: float
    end: float
    #: "done", "failed" (it raised), "lost" (its worker died or went silent), "memory", "discarded" (another
    #: attempt was first) or "stopped" (nobody wanted it any more)
    outcome: str
    message: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    rows_in: int = 0
    bytes_in: int = 0
    peak_memory_bytes: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened to an attempt ("start", "running", "done", "failed", "memory") or a worker ("lost").

    ``rows_in`` and ``bytes_in`` are what this attempt has read so far.  ``counters`` are live: accepted
    attempts plus what running ones said last.
    """

    outcome: str
    worker: int
    task: Task | None = None
    attempt: int = 0
    message: str = ""
    rows_in: int = 0
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
