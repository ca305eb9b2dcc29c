"""Everyone with everyone, one peer after another: no rank ever receives from two at once.

The whole buffer each time (P times the bytes of the ring's two rounds), or each peer's part alone: P x P messages, a
fan-in of 1, and as few bytes as the ring.
"""

from __future__ import annotations

import numpy as np

from .schedule import FOLD, HOLD, REPLACE, Schedule, Step, check_ranks, moves, rotating, sequence


def whole(ranks: int) -> Schedule:
    """Return the all-reduce in which each rank gives all it has to each other, one after another.

    Each rank sends and receives (P-1)N elements.  What arrives is held and folded in the order of ranks at the end, since
    folding on arrival would give other last digits at every rank; this takes memory for P-1 buffers.
    """
    return rotating(
        "allreduce", "direct_whole", ranks, to=np.arange(1, ranks), part=0, parts=1, mode=HOLD, settle=True, keeps_order=True
    )  # fmt: skip


def reduce_scatter(ranks: int) -> Schedule:
    """Return the schedule in which rank r gives part r+k to rank r+k in step k-1: ``ranks - 1`` steps."""
    ahead = np.arange(1, ranks)
    return rotating(
        "reduce_scatter", "direct", ranks, to=ahead, part=ahead, mode=FOLD, keeps_order=ranks <= 2
    )


def all_gather(ranks: int) -> Schedule:
    """Return the schedule in which rank r gives its part r to rank r+k in step k-1: ``ranks - 1`` steps."""
    return rotating(
        "all_gather", "direct", ranks, to=np.arange(1, ranks), part=0, mode=REPLACE, keeps_order=True
    )


def allreduce(ranks: int) -> Schedule:
    """Return the all-reduce of parts, one peer after another: each rank sends 2(P-1)N/P elements to P-1 peers."""
    return sequence(reduce_scatter(ranks), all_gather(ranks), kind="allreduce", algorithm="direct")


def all_to_all(ranks: int) -> Schedule:
    """Return the exchange after which rank d has part ``s * ranks + d`` of each rank s: a transposition."""
    check_ranks(ranks)
    every = np.arange(ranks)

    def step(number: int) -> Step:
        peer = (every + number + 1) % ranks
        return moves(every, peer, every * ranks + peer, mode=REPLACE)

    return Schedule(
        kind="all_to_all", algorithm="direct", ranks=ranks, nodes=ranks, parts=ranks * ranks, steps=ranks - 1,
        step=step, keeps_order=True,
    )  # fmt: skip
