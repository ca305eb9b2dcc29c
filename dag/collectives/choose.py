"""Which algorithm ``auto`` is, and in how many chunks a tree works: rules of sizes that are equal at all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from .plans import CHUNKED, PER_MACHINE, plan
from .schedule import Kind, Schedule
from .trees import best_chunks

#: Of a hop between processes, and of its bytes: what makes the number of chunks near the best, no more.
LATENCY_S = 50e-6
S_PER_BYTE = 0.5e-9
_SHORT_BYTES = 8192
#: In shared memory messages of this size go with the flag that tells of them: few steps are best.
_SHORT_NEAR_BYTES = 16384
#: From here on a broadcast and a reduction go by parts between machines: measured on links of 100 Mbit/s, where it pays from
#: 16 to 64 KiB on, and simulated for 10 Gbit/s with 75 us a message, where this is the first size at which it does.
_LONG_BYTES = 256 << 10
#: Parts that a ring hands round are no shorter: with many ranks it is the number of its steps that counts.
_LEAST_PART_BYTES = 32 << 10


def choose(
    kind: Kind, ranks: int, nbytes: int, *, commutative: bool, near: bool, apart: bool = False, root: int = 0
) -> str:
    """Return the name of the algorithm that ``auto`` stands for.

    Broadcast and reduce are as in MPICH: a binomial tree for short messages, for long ones parts, by doubling for a power of
    two, else around a ring.  On one machine it is always the tree: there ranks share cores and memory, so what counts is what
    moves in all, and no way moves less than its (P-1)N (measured on 2 to 8 ranks, 2 kB to 64 MB, shared memory and TCP).

    Args:
        commutative: the operator's; where it does not, one that keeps the order of ranks is taken if there is any.
        near: all ranks share memory.
        apart: they are on more than one machine.
    """
    long = apart and nbytes >= _LONG_BYTES
    power_of_two = ranks & (ranks - 1) == 0
    if kind == "broadcast":
        if not long or ranks < 3:
            return "binomial"
        return "scatter_doubling" if power_of_two or nbytes < ranks * _LEAST_PART_BYTES else "scatter_ring"
    if kind == "reduce":
        if not commutative:
            keeps = (name for name in ("binomial", "tree") if plan(kind, name, ranks, root=root).keeps_order)
            return next(keeps, "binomial")
        # With 3 and 5 to 7 ranks the step that makes them a power of two costs what the parts save.
        return "halving" if long and (ranks > 8 or (power_of_two and ranks > 2)) else "binomial"
    if kind == "all_to_all":
        return "direct"
    if kind == "allreduce" and nbytes <= (_SHORT_NEAR_BYTES if near else _SHORT_BYTES):
        return "doubling"
    if near or not commutative:
        return "sharded"
    return "ring"


def planned(
    kind: Kind, algorithm: str, ranks: int, nbytes: int, *, per_machine: int, root: int = 0
) -> Schedule:
    """Return the schedule of a named algorithm, with the choices that it needs for so many bytes."""
    choices = {"root": root} if kind in ("broadcast", "reduce") else {}
    if algorithm in PER_MACHINE:
        choices["per_machine"] = per_machine
    if algorithm in CHUNKED:
        choices["chunks"] = min(32, best_chunks(ranks, nbytes, LATENCY_S, S_PER_BYTE))
    return plan(kind, algorithm, ranks, **choices)


def ranks_per_machine(machines: Sequence[str]) -> int:
    """Return how many neighbouring ranks share a machine; 2 where all do, so that two levels can be tried on one."""
    first = next((at for at, machine in enumerate(machines) if machine != machines[0]), len(machines))
    return first if first < len(machines) else 2
