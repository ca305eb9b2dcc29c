"""Memory of one rank that others map too: a file without a name, so there is nothing to leave behind in ``/dev/shm``.

An arena is as long as the machine's memory and takes only what is touched.  It begins with a head for flags; blocks
after it are handed out by ``allocate`` and given back, to the machine too, when the last array over them goes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque
from typing import Any

import numpy as np

from .transport import Array

PAGE_BYTES = mmap.PAGESIZE
HUGE_BYTES = 2 << 20
LEAST_BYTES = 1 << 30


class Arena:
    """A mapping of a file without a name: own with ``Arena(head_bytes)``, a peer's with ``Arena(0, fd=..., nbytes=...)``.

    Attributes:
        bytes: all of it as an array; a slice of it is memory that all who mapped it share.
        address: where it begins in this process.
    """

    def __init__(self, head_bytes: int, *, fd: int = -1, nbytes: int = 0) -> None:
        """Raises OSError where there is no such thing on this system, or no address space for the least arena."""
        self.fd = fd if fd >= 0 else os.memfd_create("collectives")
        # Half as much until it fits: the address space of a process may be limited.
        self.nbytes = nbytes or max(
            LEAST_BYTES, os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES // HUGE_BYTES * HUGE_BYTES
        )
        while True:
            try:
                if not nbytes:
                    os.ftruncate(self.fd, self.nbytes)
                self._map = mmap.mmap(self.fd, self.nbytes)
                break
            except OSError:
                if nbytes or self.nbytes <= LEAST_BYTES:
                    os.close(self.fd)
                    raise
                self.nbytes //= 2
        for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_DONTDUMP):
            with contextlib.suppress(OSError):
                self._map.madvise(advice)
        self.bytes: Array = np.frombuffer(self._map, np.uint8)
        self.address = int(self.bytes.__array_interface__["data"][0])
        begin = _rounded(head_bytes, PAGE_BYTES)
        self._free = [(begin, self.nbytes)]
        self._pid = os.getpid()
        #: Collectives in the background allocate too.
        self._lock = threading.Lock()
        #: Given back, perhaps by another thread or amid ``allocate``: taken up by the next ``allocate``.
        self._returned: deque[tuple[int, int]] = deque()

    def words(self) -> memoryview:
        """Return the arena as unsigned 64-bit words, each read and written at once."""
        return memoryview(self._map).cast("B")[: self.nbytes // 8 * 8].cast("Q")

    def offset(self, address: int, nbytes: int) -> int:
        """Return where in the arena the memory at ``address`` lies, or -1 if it lies elsewhere."""
        offset = address - self.address
        return offset if offset >= 0 and offset + nbytes <= self.nbytes else -1

    def allocate(self, nbytes: int) -> Array:
        """Return ``nbytes`` fresh bytes, at the beginning of a page; zero until they are written.

        Raises:
            MemoryError: there is no such gap.
        """
        with self._lock:
            while self._returned:
                self._free = _with(self._free, self._returned.popleft())
            # Large blocks begin where a huge page may.
            unit = HUGE_BYTES if nbytes >= HUGE_BYTES else PAGE_BYTES
            wanted = _rounded(max(nbytes, 1), PAGE_BYTES)
            for at, (start, stop) in enumerate(self._free):
                begin = _rounded(start, unit)
                if begin + wanted <= stop:
                    self._free[at : at + 1] = [
                        gap for gap in ((start, begin), (begin + wanted, stop)) if gap[0] < gap[1]
                    ]
                    return np.asarray(_Block(self, begin, nbytes, begin + wanted))
        raise MemoryError(f"no {nbytes} bytes are left of the {self.nbytes} that a rank may share")

    def give_back(self, start: int, stop: int) -> None:
        """Take a block back: its pages go to the machine at once, its place to the next ``allocate``."""
        # A child made by fork has the same arrays, and these pages are still its parent's.
        if os.getpid() != self._pid:
            return
        with contextlib.suppress(OSError, ValueError):
            self._map.madvise(mmap.MADV_REMOVE, start, stop - start)
        self._returned.append((start, stop))

    def close(self) -> None:
        """Close the file; arrays over it, here and at peers, stay as long as they are used."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Block:
    """What an array over a block refers to as its base: it goes with the last such array."""

    def __init__(self, arena: Arena, start: int, nbytes: int, stop: int) -> None:
        self._arena, self._start, self._stop = arena, start, stop
        self.__array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (arena.address + start, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._arena.give_back(self._start, self._stop)


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _with(gaps: list[tuple[int, int]], gap: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the gaps with one more, in order, those that touch made one."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted([*gaps, gap]):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged
