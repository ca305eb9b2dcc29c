"""The ring: every rank gives to the next and takes from the one before, so it talks to two peers whatever the size.

Patarasuk & Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009, section 3.
"""

from __future__ import annotations

import numpy as np

from .schedule import FOLD, REPLACE, Schedule, rotating, sequence


def reduce_scatter(ranks: int) -> Schedule:
    """Return the schedule after which rank r has the whole sum of part r: ``ranks - 1`` steps of one part each."""
    return rotating(
        "reduce_scatter", "ring", ranks, to=1, part=-1 - np.arange(ranks - 1), mode=FOLD, keeps_order=ranks <= 2
    )  # fmt: skip


def all_gather(ranks: int) -> Schedule:
    """Return the schedule that gives part r of rank r to everyone: ``ranks - 1`` steps of one part each."""
    return rotating(
        "all_gather", "ring", ranks, to=1, part=-np.arange(ranks - 1), mode=REPLACE, keeps_order=True
    )


def allreduce(ranks: int) -> Schedule:
    """Return the ring all-reduce: ``2 (ranks - 1)`` steps; each rank sends 2(P-1)N/P elements where P divides N."""
    return sequence(reduce_scatter(ranks), all_gather(ranks), kind="allreduce", algorithm="ring")
