"""Ranks of one machine spread over its cores: the system likes to wake those that talk to each other on one core.

Two ranks on one core take twice the time and more, while another core is idle.  No rank is bound: one that finds too many
others where it runs steps aside once, and the system may move it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

#: A rank steps aside at most so often.
PAUSE_S = 0.01

_GETCPU: Any = getattr(ctypes.PyDLL(None), "sched_getcpu", None) if sys.platform == "linux" else None


def current_core() -> int:
    """Return the number of the core that this thread runs on, or -1."""
    return -1 if _GETCPU is None else int(_GETCPU())


def spread(running: Sequence[int], cores: Collection[int]) -> list[int]:
    """Return where each rank should run: where it does, unless too many lower ranks are there already.

    Every rank comes to the same result, so they need not agree on it.

    Args:
        running: the core of each rank, in the order of ranks.
        cores: those that may be used.

    >>> spread([0, 0], {0, 1}), spread([1, 1, 1, 0], {0, 1}), spread([1, 0, 0], {0, 1})
    ([0, 1], [1, 1, 0, 0], [1, 0, 0])
    """
    share = -(-len(running) // len(cores))
    load = dict.fromkeys(sorted(cores), 0)
    moving = []
    for rank, core in enumerate(running):
        if load.get(core, share) < share:
            load[core] += 1
        else:
            moving.append(rank)
    places = list(running)
    for rank in moving:
        places[rank] = min(load, key=load.__getitem__)
        load[places[rank]] += 1
    return places


class Spreading:
    """When a rank looks whether it should step aside."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._next = 0.0

    def step_aside(self, others: Mapping[int, int]) -> None:
        """Move this thread to another core if too many ranks are on its own; ``others`` has the cores of the others by rank."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PAUSE_S
        with contextlib.suppress(OSError):
            cores, own = os.sched_getaffinity(0), current_core()
            running = {**others, self._rank: own}
            ranks = sorted(running)
            to = spread([running[rank] for rank in ranks], cores)[ranks.index(self._rank)]
            if to != own and len(cores) > 1:
                os.sched_setaffinity(0, {to})
                os.sched_setaffinity(0, cores)
