"""Memory and processor time of a job's processes on a Dask cluster, watched on their own machines while it runs.

Promises: the processes that do the work of one engine are watched, with what those start, and not those of the other, which wait
beside them: for the graph the Dask workers, for MapReduce the processes that they hold.  One that comes in the place of a lost
one is watched from the next ``RENEW_S`` on.  Who watches has to say so again and again; else the watch ends by itself.  Times
are those of each machine's clock.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from jobs.compare_watch import LIST_EVERY, SAMPLE_EVERY_S
from jobs.report.model import Sample

#: By address of a Dask worker: the processes of this job that it holds.
Pids = Mapping[str, Sequence[int]]

RENEW_S = 5.0
LEASES = 6  # so many renewals may fail before a watch ends


@dataclass(kw_only=True)
class ClusterUse:
    """What was seen on all machines: of each Dask worker (seconds since the epoch, resident bytes of the job's processes)."""

    cpu_s: float = 0.0
    largest_bytes: int = 0
    series: dict[str, list[tuple[float, int]]] = field(default_factory=dict)

    def add(self, seen: Mapping[str, Mapping[str, Any]]) -> None:
        """Add what was seen on each Dask worker since the last time."""
        for address, more in seen.items():
            self.cpu_s += more["cpu_s"]
            self.largest_bytes = max(self.largest_bytes, more["largest_bytes"])
            self.series.setdefault(address, []).extend(more["samples"])

    def add_to(self, samples: Sequence[Sample], began: float) -> tuple[Sample, ...]:
        """Return samples of this machine's processes, taken since ``began``, with those of the others added.

        A Dask worker counts from its first sample to its last, and ``RENEW_S`` around them: clocks differ by less.
        """
        series = [each for each in self.series.values() if each]
        times = [[at for at, _ in each] for each in series]

        def elsewhere(at: float) -> int:
            found = 0
            for each, moments in zip(series, times, strict=True):
                if moments[0] - RENEW_S <= at <= moments[-1] + RENEW_S:
                    found += each[max(bisect_right(moments, at) - 1, 0)][1]
            return found

        return tuple(
            Sample(at_s=each.at_s, memory_bytes=each.memory_bytes + elsewhere(began + each.at_s))
            for each in samples
        )


@contextmanager
def watching_cluster(
    client: Any, pids: Callable[[], Pids] | None, *, renew_s: float = RENEW_S
) -> Iterator[ClusterUse]:
    """Watch processes on the Dask workers of ``client`` in the block: those that ``pids`` returns, else the workers."""
    found, name = ClusterUse(), uuid.uuid4().hex
    ended = threading.Event()

    def renew(on_error: str = "ignore") -> None:
        given = None if pids is None else pids()
        found.add(client.run(keep_watch, name, given, LEASES * renew_s, on_error=on_error))

    def keep_renewing() -> None:
        while not ended.wait(renew_s):
            with suppress(
                Exception
            ):  # the next one may do, and what the cluster has, the job's own calls will say
                renew()

    renew("raise")
    renewing = threading.Thread(target=keep_renewing, daemon=True, name="renew-watch")
    renewing.start()
    try:
        yield found
    finally:
        ended.set()
        renewing.join()
        found.add(client.run(end_watch, name, on_error="ignore"))


# --- on the Dask workers ---

_watches: dict[str, _Watch] = {}


class _Watch:
    """Looks at processes and those below them until it is ended or its lease is over; ``pids`` None: this process."""

    def __init__(self, pids: Sequence[int] | None) -> None:
        self.began = time.time()
        self.pids = pids
        self.until = 0.0
        self.processes: list[Any] = []
        self.counted_s: dict[Any, float] = {}  # processor time of each process that needs no more telling
        self.spent_s: dict[Any, float] = {}
        self.samples: list[tuple[float, int]] = []
        self.largest_bytes = 0
        self.ended = threading.Event()
        self.look()
        self.thread = threading.Thread(target=self.run, daemon=True, name="watch")

    def run(self) -> None:
        looks = 0
        while not self.ended.wait(SAMPLE_EVERY_S) and time.monotonic() < self.until:
            looks += 1
            self.look(list_anew=looks % LIST_EVERY == 0)

    def look(self, *, list_anew: bool = True) -> None:
        import psutil

        if list_anew:
            self.processes = _list_processes(self.pids)
        sizes = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess), process.oneshot():
                times = process.cpu_times()
                sizes.append(int(process.memory_info().rss))
                spent_s = times.user + times.system
                is_new = process.create_time() >= self.began
                self.counted_s.setdefault(process, 0.0 if is_new else spent_s)
                self.spent_s[process] = spent_s
        self.samples.append((time.time(), sum(sizes)))
        self.largest_bytes = max(self.largest_bytes, *sizes, 0)

    def tell(self) -> dict[str, Any]:
        """Return what was seen since the last time."""
        samples, self.samples = self.samples, []
        spent_s = dict(self.spent_s)
        cpu_s = sum(seconds - self.counted_s[process] for process, seconds in spent_s.items())
        self.counted_s.update(spent_s)
        for gone in set(spent_s).difference(self.processes):
            del self.spent_s[gone], self.counted_s[gone]
        return {"cpu_s": cpu_s, "largest_bytes": self.largest_bytes, "samples": samples}


def _list_processes(pids: Sequence[int] | None) -> list[Any]:
    """Return processes and all below them; below this one, not those that it holds for MapReduce."""
    import psutil

    found: list[Any] = []
    waiting = []
    for pid in [psutil.Process().pid] if pids is None else pids:
        with suppress(psutil.NoSuchProcess):
            waiting.append(psutil.Process(pid))
    while waiting:
        process = waiting.pop()
        found.append(process)
        with suppress(psutil.NoSuchProcess):
            below = process.children()
            waiting += [each for each in below if pids is not None or not _is_held(each)]
    return found


def _is_held(process: Any) -> bool:
    import psutil

    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return any("mapreduce.worker" in word for word in process.cmdline())
    return True  # gone


def keep_watch(name: str, pids: Pids | None, lease_s: float, dask_worker: Any) -> dict[str, Any]:
    """Watch processes of this machine for so long, or longer if that is begun; return what was seen since the last time."""
    for other, watch in list(_watches.items()):
        if watch.until < time.monotonic():
            _watches.pop(other).ended.set()
    own = None if pids is None else pids.get(dask_worker.address, ())
    watch = _watches.get(name) or _Watch(own)
    watch.pids, watch.until = own, time.monotonic() + lease_s
    if name not in _watches:
        _watches[name] = watch
        watch.thread.start()
    return watch.tell()


def end_watch(name: str) -> dict[str, Any]:
    """End a watch and return what it has seen since the last time; nothing, where there is none."""
    watch = _watches.pop(name, None)
    if watch is None:
        return {"cpu_s": 0.0, "largest_bytes": 0, "samples": []}
    watch.ended.set()
    watch.thread.join()
    watch.look()
    return watch.tell()
