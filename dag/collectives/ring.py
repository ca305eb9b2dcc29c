"""The ring: every rank gives to the next and takes from the one before, so it talks to two peers whatever the size.

Patarasuk & Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009, section 3.
"""

from __future__ import annotations

import numpy as np

from .schedule import FOLD, REPLACE, Schedule, Step, check_ranks, moves, sequence


def reduce_scatter(ranks: int) -> Schedule:
    """Return the schedule after which rank r has the whole sum of part r: ``ranks - 1`` steps of one part each."""
    check_ranks(ranks)
    every = np.arange(ranks)
    following = (every + 1) % ranks
    around = np.r_[every, every]

    def step(number: int) -> Step:
        return moves(every, following, around[ranks - number - 1 :][:ranks], mode=FOLD)

    return Schedule(
        kind="reduce_scatter", algorithm="ring", ranks=ranks, nodes=ranks, parts=ranks, steps=ranks - 1, step=step,
        keeps_order=ranks <= 1,
    )  # fmt: skip


def all_gather(ranks: int) -> Schedule:
    """Return the schedule that gives part r of rank r to everyone: ``ranks - 1`` steps of one part each."""
    check_ranks(ranks)
    every = np.arange(ranks)
    following = (every + 1) % ranks
    around = np.r_[every, every]

    def step(number: int) -> Step:
        return moves(every, following, around[ranks - number :][:ranks], mode=REPLACE)

    return Schedule(
        kind="all_gather", algorithm="ring", ranks=ranks, nodes=ranks, parts=ranks, steps=ranks - 1, step=step,
        keeps_order=True,
    )  # fmt: skip


def allreduce(ranks: int) -> Schedule:
    """Return the ring all-reduce: ``2 (ranks - 1)`` steps; each rank sends 2(P-1)N/P elements where P divides N."""
    return sequence(reduce_scatter(ranks), all_gather(ranks), kind="allreduce", algorithm="ring")
