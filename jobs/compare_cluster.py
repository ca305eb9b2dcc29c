"""Memory and processor time of a job's processes on a Dask cluster, watched on their own machines while it runs.

Promises: the processes that do the work of one engine are watched, not those of the other, which wait beside them: for the
graph the Dask workers themselves, for MapReduce the processes that they hold.  Times are those of each machine's clock.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jobs.compare_watch import SAMPLE_EVERY_S
from jobs.report.model import Sample


@dataclass(kw_only=True)
class ClusterUse:
    """What was seen on all machines: for each a list of (seconds since the epoch, resident bytes of the job's processes)."""

    cpu_s: float = 0.0
    largest_bytes: int = 0
    series: list[list[tuple[float, int]]] = field(default_factory=list)

    def add_to(self, samples: Sequence[Sample], began: float) -> tuple[Sample, ...]:
        """Return samples of this machine's processes, taken since ``began``, with those of the others added."""
        times = [[at for at, _ in each] for each in self.series]

        def elsewhere(at: float) -> int:
            found = 0
            for each, moments in zip(self.series, times, strict=True):
                before = bisect_right(moments, at) - 1
                found += each[max(before, 0)][1] if each else 0
            return found

        return tuple(
            Sample(at_s=each.at_s, memory_bytes=each.memory_bytes + elsewhere(began + each.at_s))
            for each in samples
        )


@contextmanager
def watching_cluster(client: Any, pids: Mapping[str, Sequence[int]] | None) -> Iterator[ClusterUse]:
    """Watch processes on the Dask workers of ``client`` in the block: those in ``pids``, by address, else the workers."""
    found = ClusterUse()
    names = client.run(begin_watch, pids)
    try:
        yield found
    finally:
        for address, name in names.items():
            for seen in client.run(end_watch, name, workers=[address], on_error="ignore").values():
                found.cpu_s += seen["cpu_s"]
                found.largest_bytes = max(found.largest_bytes, seen["largest_bytes"])
                found.series.append(seen["samples"])


# --- on the Dask workers ---

_watches: dict[int, _Watch] = {}


class _Watch:
    def __init__(self, pids: Sequence[int]) -> None:
        import psutil

        self.processes = []
        for pid in pids:
            try:
                self.processes.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                continue
        self.samples: list[tuple[float, int]] = []
        self.largest_bytes = 0
        self.done = threading.Event()
        self.cpu_before_s = self.cpu_s()
        self.thread = threading.Thread(target=self.run, daemon=True, name="watch")
        self.thread.start()

    def run(self) -> None:
        while True:
            sizes = [size for _, size in self.look()]
            self.samples.append((time.time(), sum(sizes)))
            self.largest_bytes = max(self.largest_bytes, *sizes, 0)
            if self.done.wait(SAMPLE_EVERY_S):
                return

    def look(self) -> Iterator[tuple[float, int]]:
        import psutil

        for process in self.processes:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    yield times.user + times.system, int(process.memory_info().rss)
            except psutil.NoSuchProcess:
                continue

    def cpu_s(self) -> float:
        return sum(seconds for seconds, _ in self.look())


def begin_watch(pids: Mapping[str, Sequence[int]] | None, dask_worker: Any) -> int:
    """Begin to watch processes of this machine and return the number of the watch."""
    import os

    own = [os.getpid()] if pids is None else pids.get(dask_worker.address, ())
    number = max(_watches, default=0) + 1
    _watches[number] = _Watch(own)
    return number


def end_watch(number: int) -> dict[str, Any]:
    """End a watch and return what it has seen."""
    watch = _watches.pop(number)
    watch.done.set()
    watch.thread.join()
    return {
        "cpu_s": max(0.0, watch.cpu_s() - watch.cpu_before_s),
        "largest_bytes": watch.largest_bytes,
        "samples": watch.samples,
    }
