"""What one attempt has read and written, and how long it waited for that.

A ``Meter`` belongs to the thread that made it current by ``metering``; code deep below finds it by ``timing`` and
``current_meter`` without being handed it.  Where no meter is current (another thread, a command that only looks), both do
nothing.  Clocks are read around blocks, never per record.

Promises: a moment is counted once, in the innermost block, so the seconds of a meter never sum to more than has passed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeVar

Doing = Literal["store_read", "store_write", "shuffle", "serialise"]
T = TypeVar("T")


@dataclass(kw_only=True, eq=False)
class Meter:
    """The counts of one attempt; the columns of its row are described at ``events.AttemptRow``."""

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    store_read_bytes: int = 0
    store_written_bytes: int = 0
    store_physical_bytes: int = 0
    shuffle_bytes: int = 0
    moved_bytes: int = 0
    #: sizes of the datasets of the store that were to be read whole; no column of a row
    planned_bytes: int = 0
    #: folder of the worker's own disk: what a reduce reads elsewhere has moved
    disk: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    #: seconds in which a thread of a library read for this attempt, perhaps while it computed
    read_elsewhere_s: float = 0.0
    began: float = field(default_factory=time.perf_counter)
    _doing: list[Doing] = field(default_factory=list)
    _since: float = 0.0

    def columns(self) -> dict[str, Any]:
        """Return the counts so far, by the names of an ``AttemptRow``; another thread may ask."""
        return {
            "records_in": self.records_in, "records_out": self.records_out,
            "bytes_in": self.bytes_in, "bytes_out": self.bytes_out,
            "store_read_bytes": self.store_read_bytes, "store_written_bytes": self.store_written_bytes,
            "store_physical_bytes": self.store_physical_bytes, "shuffle_bytes": self.shuffle_bytes,
            "moved_bytes": self.moved_bytes,
            "seconds": dict(self.seconds),
        }  # fmt: skip

    def finish(self) -> dict[str, Any]:
        """Return the columns at the end of the attempt: what was not spent waiting is ``compute``."""
        passed_s = time.perf_counter() - self.began
        columns = self.columns()
        columns["seconds"]["compute"] = max(0.0, passed_s - sum(self.seconds.values()))
        return columns

    def count_read(self, size: int, *, stored: bool) -> None:
        """Count bytes that a file gave: of an intermediate if ``stored``, else of the job's input."""
        if stored:
            self.store_read_bytes += size
        else:
            self.bytes_in += size

    def count_written(self, size: int, *, stored: bool) -> None:
        """Count bytes that a file got: of an intermediate if ``stored``, else of the job's output."""
        if stored:
            self.store_written_bytes += size
        else:
            self.bytes_out += size

    def count_fetched(self, size: int, path: str) -> None:
        """Count bytes of a run that was read for a reduce."""
        self.shuffle_bytes += size
        if not path.startswith(self.disk + os.sep):
            self.moved_bytes += size

    def enter(self, doing: Doing) -> None:
        """Begin to count under ``doing``; ``timing`` does it around a block."""
        now = time.perf_counter()
        if self._doing:
            self._add(self._doing[-1], now - self._since)
        self._doing.append(doing)
        self._since = now

    def leave(self) -> None:
        """Count what has passed, and go on with what the block is in."""
        now = time.perf_counter()
        self._add(self._doing.pop(), now - self._since)
        self._since = now

    def _add(self, doing: str, seconds: float) -> None:
        self.seconds[doing] = self.seconds.get(doing, 0.0) + seconds

    def watch(self, read: Iterable[T]) -> Iterator[T]:
        """Pass on what a reader yields; what its threads read while the attempt waited for it is ``store_read``.

        Some of that may have overlapped with parsing, so it is the most that reading can have cost.
        """
        iterator = iter(read)
        while True:
            began, counted, elsewhere_s = (
                time.perf_counter(), sum(self.seconds.values()), self.read_elsewhere_s
            )  # fmt: skip
            try:
                item = next(iterator)
            except StopIteration:
                return
            free_s = time.perf_counter() - began - (sum(self.seconds.values()) - counted)
            waited_s = min(self.read_elsewhere_s - elsewhere_s, free_s)
            if waited_s > 0:
                self._add("store_read", waited_s)
            yield item


_here = threading.local()


def current_meter() -> Meter | None:
    """Return the meter of this thread, if one is current."""
    meter: Meter | None = getattr(_here, "meter", None)
    return meter


@contextmanager
def metering(meter: Meter) -> Iterator[Meter]:
    """Make ``meter`` the current one of this thread in the block."""
    before = current_meter()
    _here.meter = meter
    try:
        yield meter
    finally:
        _here.meter = before


class timing:
    """Count the seconds of a block under ``doing``; a block inside counts its own."""

    __slots__ = ("doing", "meter")

    def __init__(self, doing: Doing) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        self.meter = current_meter()
        if self.meter is not None:
            self.meter.enter(self.doing)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.meter is not None:
            self.meter.leave()
