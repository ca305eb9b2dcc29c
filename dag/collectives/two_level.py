"""Two levels: inside a machine, where links are fast, then across machines, where each rank carries its share.

Rank l of each machine sums shard l of its machine, goes round a ring with the ranks l of the others, and hands its shard
out at home: each machine's link carries 2(M-1)N/M elements each way, not m times that.  There are as many shards as the
smallest machine has ranks.
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
    shards = ranks - inside * (machines - 1)
    parts = shards * machines
    home, away = int(inside > 1), 2 * (machines - 1)
    machine, local = np.tile(np.arange(machines), shards), np.repeat(np.arange(shards), machines)
    carrier, following = machine * inside + local, (machine + 1) % machines * inside + local

    def across(number: int) -> Step:
        turns = machines - 1
        down = number < turns
        shift = -number - 1 if down else turns - number
        part = local * machines + (machine + shift) % machines
        return moves(carrier, following, part, mode=FOLD if down else REPLACE)

    def at_home(*, gather: bool) -> Step:
        steps = []
        rank = np.arange(ranks)
        for shard in range(shards):
            head = (rank // inside) * inside + shard
            others = rank[rank != head]
            start, stop = shard * machines, (shard + 1) * machines
            if gather:
                steps.append(moves(head[others], others, start, stop, mode=REPLACE))
            else:
                steps.append(moves(others, head[others], start, stop, mode=FOLD))
        return joined(steps)

    def step(number: int) -> Step:
        if home and number in (0, away + 1):
            return at_home(gather=number > 0)
        return across(number - home)

    return Schedule(
        kind="allreduce", algorithm="two_level", ranks=ranks, nodes=ranks, parts=parts, steps=away + 2 * home, step=step,
        keeps_order=machines <= 2,
    )  # fmt: skip
