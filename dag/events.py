"""What happened to each task: one frozen row per attempt, and what a function adds to its own.

The columns are those of the MapReduce engine, so that a report can read both.  Nothing here runs a task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

#: The columns that a function may add to with ``note``.
NOTED = (
    "records_in", "records_out", "bytes_in", "bytes_out", "store_read_bytes", "store_written_bytes",
    "store_physical_bytes", "shuffle_bytes", "moved_bytes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskRow:
    """What became of one attempt.  Times are seconds since the epoch.

    ``bytes_in`` are what the function noted, else the sizes of its inputs in memory; ``bytes_out`` likewise for its value.
    ``shuffle_bytes`` are the pieces of other tasks' values that it took, ``moved_bytes`` those inputs that came from another
    worker, ``peak_memory_bytes`` the whole process when the task ended.
    """

    engine: str = "dag"
    stage: str
    kind: str
    task: int
    attempt: int = 0
    worker: int = 0
    start: float
    end: float
    #: "done", "failed" (its function raised) or "lost" (its worker died while it ran)
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
    #: "store_read", "store_write", "shuffle" or "serialise", and how long the task spent on it; in another process also "shuffle"
    #: while its slot waited for inputs on their way, and "serialise" to load its function and to see that its value can travel
    seconds: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


#: Called with each row as soon as it is known, from any thread, one call at a time.
OnEvent = Callable[[TaskRow], None]

COLUMNS = tuple(each.name for each in fields(TaskRow))


class Notes:
    """What one running task has said about itself."""

    __slots__ = ("counters", "numbers", "seconds")

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.counters: dict[str, int] = {}


class _Running(threading.local):
    notes: Notes | None = None


_running = _Running()


def note(
    *, seconds: Mapping[str, float] | None = None, counters: Mapping[str, int] | None = None, **numbers: int
) -> None:
    """Add facts to the row of the task that runs in this thread; several calls add up; outside a task nothing happens.

    ``numbers`` are columns of ``TaskRow`` such as ``records_in=5``; ``seconds`` go by what they were spent on.

    Raises:
        TypeError: a number is for no column that a function may add to.
    """
    for name in numbers:
        if name not in NOTED:
            raise TypeError(f"note() knows no {name!r}; it takes seconds, counters, {', '.join(NOTED)}")
    notes = _running.notes
    if notes is None:
        return
    _add(notes.numbers, numbers)
    _add(notes.seconds, seconds or {})
    _add(notes.counters, counters or {})


def _add(sums: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, number in more.items():
        sums[name] = sums.get(name, 0) + number


def take_notes(notes: Notes | None) -> Notes | None:
    """Have ``note`` write to ``notes`` in this thread; return what it wrote to before."""
    before, _running.notes = _running.notes, notes
    return before
