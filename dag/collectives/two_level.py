"""Two levels: inside a machine, where links are fast, then across machines, where each rank carries its share.

Where all machines have as many ranks, rank l of each machine sums shard l of its machine, goes round a ring with the ranks l
of the others, and hands its shard out at home: each machine's link carries 2(M-1)N/M elements each way, not m times that.
Where they do not, the first rank of each machine carries everything.
"""

from __future__ import annotations

import numpy as np

from ..errors import BadCollective
from .schedule import FOLD, REPLACE, Schedule, Step, check_ranks, joined, moves


def two_level(ranks: int, *, per_machine: int) -> Schedule:
    """Return the all-reduce for machines of ``per_machine`` neighbouring ranks, the last one with what is left.

    Raises:
        BadCollective: ``per_machine`` is below 1.
    """
    check_ranks(ranks)
    if per_machine < 1:
        raise BadCollective(f"a machine has at least 1 rank, got {per_machine}")
    inside = min(per_machine, ranks)
    machines = -(-ranks // inside)
    shards = inside if ranks % inside == 0 else 1
    parts = shards * machines
    home, away = int(inside > 1), 2 * (machines - 1)

    def across(number: int) -> Step:
        turns = machines - 1
        down = number < turns
        shift = -number - 1 if down else turns - number
        carriers = [_carriers(ranks, inside, local) for local in range(shards)]
        machine = np.arange(machines)
        return joined(
            [
                moves(
                    carrier, np.roll(carrier, -1), local * machines + (machine + shift) % machines,
                    mode=FOLD if down else REPLACE,
                )
                for local, carrier in enumerate(carriers)
            ]
        )  # fmt: skip

    def at_home(*, gather: bool) -> Step:
        steps = []
        rank = np.arange(ranks)
        for local in range(shards):
            carrier = (rank // inside) * inside + local
            others = rank[rank != carrier]
            start, stop = local * machines, (local + 1) * machines
            if gather:
                steps.append(moves(carrier[others], others, start, stop, mode=REPLACE))
            else:
                steps.append(moves(others, carrier[others], start, stop, mode=FOLD))
        return joined(steps)

    def step(number: int) -> Step:
        if home and number in (0, away + 1):
            return at_home(gather=number > 0)
        return across(number - home)

    return Schedule(
        kind="allreduce", algorithm="two_level", ranks=ranks, nodes=ranks, parts=parts, steps=away + 2 * home, step=step,
        keeps_order=machines <= 1,
    )  # fmt: skip


def _carriers(ranks: int, inside: int, local: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return rank ``local`` of each machine."""
    return np.arange(0, ranks, inside, dtype=np.int64) + local
