"""All schedules by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadCollective
from . import binomial, direct, halving, ring, scattered, server, trees, two_level
from .schedule import Kind, Schedule, check_ranks

PLANS: dict[str, dict[str, Callable[..., Schedule]]] = {
    "allreduce": {
        "central": server.central,
        "sharded": server.sharded,
        "direct": direct.allreduce,
        "direct_whole": direct.whole,
        "ring": ring.allreduce,
        "tree": trees.tree,
        "double_tree": trees.double_tree,
        "halving": halving.halving,
        "doubling": halving.doubling,
        "machine_tree": trees.machine_tree,
        "two_level": two_level.two_level,
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "sharded": server.sharded_reduce_scatter,
        "direct": direct.reduce_scatter,
        "halving": halving.reduce_scatter,
    },
    "all_gather": {
        "ring": ring.all_gather,
        "sharded": server.sharded_all_gather,
        "direct": direct.all_gather,
        "halving": halving.all_gather,
    },
    "broadcast": {
        "binomial": binomial.broadcast,
        "tree": trees.broadcast,
        "scatter_ring": scattered.broadcast_by_ring,
        "scatter_doubling": scattered.broadcast_by_doubling,
    },
    "reduce": {
        "binomial": binomial.reduce,
        "tree": trees.reduce,
        "halving": scattered.reduce_by_halving,
    },
    "all_to_all": {"direct": direct.all_to_all},
}

#: Algorithms that ask how many ranks a machine has.
PER_MACHINE = ("machine_tree", "two_level")
#: Algorithms that work in chunks: as many as are asked for, one by default.
CHUNKED = ("tree", "double_tree", "machine_tree")


def algorithms(kind: str = "allreduce") -> list[str]:
    """Return the names of the algorithms for a collective; raises BadCollective if there is no such collective."""
    if kind not in PLANS:
        raise BadCollective(f"there is no collective {kind!r}; there are: {', '.join(PLANS)}")
    return list(PLANS[kind])


def plan(kind: Kind, algorithm: str, ranks: int, **choices: Any) -> Schedule:
    """Return the schedule of a collective; ``choices`` are those of the algorithm: chunks, per_machine, root.

    Raises:
        BadCollective: there is no such collective or algorithm, or the choices do not fit.
    """
    found = algorithms(kind)
    if algorithm not in found:
        raise BadCollective(f"there is no {kind} {algorithm!r}; there are: {', '.join(found)}")
    check_ranks(ranks)
    try:
        return PLANS[kind][algorithm](ranks, **choices)
    except TypeError as error:
        raise BadCollective(f"{kind} {algorithm!r}: {error}") from None
