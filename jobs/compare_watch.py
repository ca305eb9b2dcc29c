"""A process with everything below it, watched from outside: its memory while something goes on, and its processor time.

Does not: know what the processes do.  The processes below it are listed anew every ``LIST_EVERY`` looks, since that means to
look at every process of the machine; one that lives for less than that is not seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jobs.report.model import Sample

SAMPLE_EVERY_S = 0.02
LIST_EVERY = 10


@dataclass(kw_only=True)
class Watched:
    """What was seen of the processes while a block ran; ``began`` and ``ended`` are seconds since the epoch."""

    began: float = 0.0
    ended: float = 0.0
    cpu_s: float = 0.0
    largest_bytes: int = 0
    samples: list[Sample] = field(default_factory=list)


@contextmanager
def watch_processes(pid: int) -> Iterator[Watched]:
    """Watch process ``pid`` and those below it while the block runs; the numbers are there when it has ended."""
    import psutil

    root = psutil.Process(pid)
    below = _tree(root)
    seen = Watched()
    done = threading.Event()
    cpu_before = _cpu_s(below)

    def watch() -> None:
        looks, processes = 0, below
        while True:
            sizes = _resident_bytes(processes)
            seen.samples.append(Sample(at_s=max(0.0, time.time() - seen.began), memory_bytes=sum(sizes)))
            seen.largest_bytes = max(seen.largest_bytes, *sizes)
            if done.wait(SAMPLE_EVERY_S):
                return
            looks += 1
            if looks % LIST_EVERY == 0:
                processes = _tree(root)

    watcher = threading.Thread(target=watch, daemon=True)
    seen.began = time.time()
    watcher.start()
    try:
        yield seen
    finally:
        seen.ended = time.time()
        done.set()
        watcher.join()
    seen.cpu_s = max(0.0, _cpu_s(_tree(root)) - cpu_before)


def _tree(root: Any) -> list[Any]:
    import psutil

    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _cpu_s(processes: list[Any]) -> float:
    import psutil

    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def _resident_bytes(processes: list[Any]) -> list[int]:
    import psutil

    found = []
    for process in processes:
        try:
            found.append(int(process.memory_info().rss))
        except psutil.NoSuchProcess:
            continue
    return found or [0]
