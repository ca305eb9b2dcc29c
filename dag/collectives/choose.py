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


def choose(kind: Kind, ranks: int, nbytes: int, *, commutative: bool, near: bool) -> str:
    """Return the name of the algorithm that ``auto`` stands for.

    Args:
        near: all ranks share memory.
    """
    if kind in ("broadcast", "reduce"):
        return "binomial"
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
