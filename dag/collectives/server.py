"""Parameter servers: one that takes everything, and one shard of the parameters beside each worker.

Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014; the sharded one moves as many bytes
as the ring, N(P-1)/P each way at each rank, in two steps with a fan-in of P-1.
"""

from __future__ import annotations

import numpy as np

from .schedule import FOLD, REPLACE, Schedule, Step, check_ranks, moves, rotating, sequence


def central(ranks: int, *, server_is_rank: bool = True) -> Schedule:
    """Return the all-reduce through one server: rank 0, or with ``server_is_rank=False`` a node beside the ranks.

    The server receives (P-1)N elements, or PN, in one step and sends as many in the other.
    """
    check_ranks(ranks)
    server = 0 if server_is_rank else ranks
    workers = np.arange(1 if server_is_rank else 0, ranks)

    def step(number: int) -> Step:
        if number == 0:
            return moves(workers, server, 0, mode=FOLD)
        return moves(server, workers, 0, mode=REPLACE)

    return Schedule(
        kind="allreduce", algorithm="central", ranks=ranks, nodes=max(ranks, server + 1), parts=1,
        steps=2 if len(workers) else 0, step=step, keeps_order=True,
    )  # fmt: skip


def sharded_reduce_scatter(ranks: int) -> Schedule:
    """Return the step in which everyone gives part r to rank r at once."""
    # Each rank begins with its neighbour, so that not all begin with rank 0.
    ahead = np.arange(1, ranks)
    return rotating(
        "reduce_scatter", "sharded", ranks, at=0, to=ahead, part=ahead, mode=FOLD, keeps_order=True
    )


def sharded_all_gather(ranks: int) -> Schedule:
    """Return the step in which rank r gives part r to everyone at once."""
    return rotating(
        "all_gather", "sharded", ranks, at=0, to=np.arange(1, ranks), part=0, mode=REPLACE, keeps_order=True
    )


def sharded(ranks: int) -> Schedule:
    """Return the all-reduce through one shard per rank: two steps, P(P-1) messages each."""
    return sequence(
        sharded_reduce_scatter(ranks), sharded_all_gather(ranks), kind="allreduce", algorithm="sharded"
    )
