"""Broadcast and reduce of long messages: a binomial tree scatters or gathers parts, and everyone works on parts between.

They move 2N(P-1)/P elements past the busiest rank where a binomial tree alone moves N log2 P (MPICH, src/mpi/coll/bcast and
reduce, comments).  Ranks are numbered from the root on; rank v ends the scatter with part v and those of the ranks below it,
which it is given once more with the rest, as in MPICH.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from . import halving, ring
from .schedule import REPLACE, Schedule, Step, check_ranks, check_root, moves, sequence


def broadcast_by_ring(ranks: int, *, root: int = 0) -> Schedule:
    """Return a binomial scatter and an all-gather round the ring: ceil(log2 P) + P - 1 steps."""
    return _broadcast("scatter_ring", ranks, root, ring.all_gather(ranks))


def broadcast_by_doubling(ranks: int, *, root: int = 0) -> Schedule:
    """Return a binomial scatter and an all-gather by doubling: 2 log2 P steps for a power of two."""
    return _broadcast("scatter_doubling", ranks, root, halving.all_gather(ranks))


def reduce_by_halving(ranks: int, *, root: int = 0) -> Schedule:
    """Return Rabenseifner's reduce, a reduce-scatter by halving and a binomial gather: 2 log2 P steps for a power of two."""
    check_root(ranks, root)
    first = halving.reduce_scatter(ranks)
    whole = sequence(first, _between(ranks, up=True), kind="reduce", algorithm="halving")
    return _turned(whole, root, keeps_order=ranks <= 2 or (ranks == 3 and root <= 1))


def _broadcast(algorithm: str, ranks: int, root: int, gather: Schedule) -> Schedule:
    check_root(ranks, root)
    whole = sequence(_between(ranks, up=False), gather, kind="broadcast", algorithm=algorithm)
    return _turned(whole, root, keeps_order=True)


def _between(ranks: int, *, up: bool) -> Schedule:
    """Return the scatter of the parts of rank 0 down a binomial tree, the longest way first, or the gather up to it."""
    check_ranks(ranks)
    turns = (ranks - 1).bit_length()

    def step(number: int) -> Step:
        reach = 1 << (number if up else turns - 1 - number)
        low = np.arange(reach, ranks, 2 * reach)
        src, dst = (low, low - reach) if up else (low - reach, low)
        return moves(src, dst, low, np.minimum(low + reach, ranks), mode=REPLACE)

    return Schedule(
        kind="reduce" if up else "broadcast", algorithm="binomial", ranks=ranks, nodes=ranks, parts=ranks, steps=turns, step=step,
        keeps_order=True,
    )  # fmt: skip


def _turned(schedule: Schedule, root: int, *, keeps_order: bool) -> Schedule:
    """Return the schedule with ranks numbered from ``root`` on; the parts keep their numbers."""

    def step(number: int) -> Step:
        made = schedule.step(number)
        return replace(made, src=(made.src + root) % schedule.ranks, dst=(made.dst + root) % schedule.ranks)

    return replace(
        schedule, step=step if root else schedule.step, root=root, keeps_order=keeps_order, rotation=None
    )
