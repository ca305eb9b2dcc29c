"""A collective made ready: its schedule, this rank's steps, and how it folds, kept for the next call of the same kind."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadCollective
from .check import travels
from .choose import choose, planned, ranks_per_machine
from .execute import RankStep, Wide, rank_steps
from .operators import OPERATORS, Operator, operator, refuse, stands_for
from .schedule import FOLD, REPLACE, Kind, Schedule
from .transport import Array, Fold

#: So many different calls are kept ready.
_KEPT = 1024
#: So many shapes of fused tensors stand in the words of a call.
_LISTED = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """What is the same in each call of one kind, dtype, shape, operator and algorithm.

    Args:
        call: in words, the same at all ranks whose calls fit together.
        signature: a number that stands for it.
        dtype: in which the schedule runs; that of the array, or float32 where partial sums of 16 bits would travel.
        wide: see ``execute``; there only what ranks brought travels, in 16 bits, and is folded in float32.
        finish: what is done with the folded values, in place; None: nothing.
        shares: the schedule folds part r at rank r, and gives it to all: see ``FoldsAndShares``.
    """

    schedule: Schedule
    steps: tuple[RankStep, ...]
    call: str
    signature: int
    dtype: np.dtype[Any]
    fold: Fold | None
    wide: Wide | None
    finish: Callable[[Array], Array] | None
    shares: bool


class Preparing:
    """Makes collectives ready for one rank.

    Args:
        machines: of each rank, a name that is the same for ranks of one machine.
        near: all pairs exchange through shared memory.
    """

    def __init__(self, rank: int, machines: Sequence[str], near: bool) -> None:
        self._rank, self._ranks = rank, len(machines)
        self._near, self._apart = near, len(set(machines)) > 1
        self._per_machine = ranks_per_machine(machines)
        self._kept: dict[Any, Prepared] = {}

    def prepare(
        self,
        kind: Kind,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        op: str | Operator | None,
        algorithm: str | Schedule,
        root: int = 0,
        fused: tuple[tuple[int, ...], ...] = (),
    ) -> Prepared:
        """Return the collective made ready; ``fused`` are the shapes of what lies in a vector, one after another.

        Raises:
            BadCollective: there is no such algorithm or operator, or they do not fit each other, the dtype or the ranks.
        """
        key = (kind, dtype, shape, op, algorithm, root, fused)
        found = self._kept.get(key)
        if found is None:
            found = self._make(kind, dtype, shape, op, algorithm, root, fused)
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found

    def _make(
        self,
        kind: Kind,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        op: str | Operator | None,
        algorithm: str | Schedule,
        root: int,
        fused: tuple[tuple[int, ...], ...],
    ) -> Prepared:
        elements = int(np.prod(shape, dtype=np.int64))
        chosen = None if op is None else operator(op)
        if chosen is not None:
            check_operator(chosen, dtype)
        schedule = self._schedule(kind, elements * dtype.itemsize, chosen, algorithm, root)
        if chosen is not None:
            refuse(schedule, chosen)
        words = [f"{kind} of {dtype.name if dtype.isnative else dtype.str} {shape}", schedule.algorithm]
        if isinstance(algorithm, Schedule):
            words[-1] += f" in {schedule.parts} parts and {schedule.steps} steps"
        if chosen is not None:
            own = chosen.name in OPERATORS and not stands_for(chosen, chosen.name)
            words.insert(1, f"a {chosen.name} of one's own" if own else chosen.name)
        if kind in ("broadcast", "reduce"):
            words.append(f"root {root}")
        if fused:
            words.append(_in_words(fused))
        call = ", ".join(words)
        finish = (
            self._divide if chosen is not None and stands_for(chosen, "mean") and self._ranks > 1 else None
        )
        inside, wide = dtype, None
        if chosen is not None and not stands_for(chosen, "min", "max") and is_short_float(dtype):
            if travels(schedule) == "inputs":
                wide = Wide(dtype=np.dtype(np.float32), finish=finish)
            else:
                inside = np.dtype(np.float32)
        return Prepared(
            schedule=schedule,
            steps=() if kind == "all_to_all" else tuple(rank_steps(schedule, self._rank, elements)),
            call=call,
            signature=int.from_bytes(hashlib.blake2b(call.encode(), digest_size=8).digest()) >> 1,
            dtype=inside,
            fold=None if chosen is None else chosen.fold,
            wide=wide,
            finish=finish,
            shares=folds_and_shares(schedule),
        )

    def _schedule(
        self, kind: Kind, nbytes: int, chosen: Operator | None, algorithm: str | Schedule, root: int
    ) -> Schedule:
        if isinstance(algorithm, Schedule):
            schedule = algorithm
            if (schedule.kind, schedule.ranks) != (kind, self._ranks) or schedule.root != root:
                raise BadCollective(f"{schedule} is no {kind} over {self._ranks} ranks with root {root}")
        else:
            commutative = chosen is None or chosen.commutative
            if algorithm == "auto":
                algorithm = choose(
                    kind, self._ranks, nbytes, commutative=commutative, near=self._near, apart=self._apart, root=root
                )  # fmt: skip
            schedule = planned(kind, algorithm, self._ranks, nbytes, per_machine=self._per_machine, root=root)
        if schedule.nodes > schedule.ranks:
            raise BadCollective(f"{schedule} has nodes beside the ranks, which nobody plays here")
        return schedule

    def _divide(self, total: Array) -> Array:
        np.divide(total, total.dtype.type(self._ranks), out=total)
        return total


def _in_words(fused: Sequence[tuple[int, ...]]) -> str:
    """Return which shapes are fused, in words that differ where they do."""
    listed = " ".join(str(shape) for shape in fused)
    if len(fused) > _LISTED:
        digest = hashlib.blake2b(listed.encode(), digest_size=4).hexdigest()
        listed = " ".join(str(shape) for shape in fused[:_LISTED]) + f" ... (digest {digest})"
    return f"fused of {len(fused)} tensors: {listed}"


def is_short_float(dtype: np.dtype[Any]) -> bool:
    """Return whether numbers of this dtype are too coarse to be summed in it: float16, and bfloat16 and less of ml_dtypes."""
    return dtype == np.float16 or dtype.name.startswith(("bfloat16", "float8_", "float6_", "float4_"))


def check_operator(op: Operator, dtype: np.dtype[Any]) -> None:
    """Raise BadCollective if numbers of this dtype have no such fold."""
    if stands_for(op, "mean") and dtype.kind not in "fc" and not is_short_float(dtype):
        raise BadCollective(
            f"the mean of {dtype.name} is no {dtype.name}; take the sum, or an array of floats"
        )
    if stands_for(op, "sum", "prod") and dtype.kind not in "iufc" and not is_short_float(dtype):
        raise BadCollective(
            f"there is no {op.name} of {dtype.name}; for truth values take max (any) or min (all)"
        )
    if stands_for(op, "min", "max") and dtype.kind not in "biuf" and not is_short_float(dtype):
        raise BadCollective(f"there is no {op.name} of {dtype.name}")


def folds_and_shares(schedule: Schedule) -> bool:
    """Return whether all of it is: everyone gives part r to rank r, which folds it in the order of ranks and gives it to all."""
    ranks = schedule.ranks
    if (schedule.kind, schedule.nodes, schedule.parts, schedule.steps) != ("allreduce", ranks, ranks, 2):
        return False
    pairs = {(src, dst) for src in range(ranks) for dst in range(ranks) if src != dst}
    for step, mode, part in zip(schedule, (FOLD, REPLACE), ("dst", "src"), strict=True):
        if len(step) != len(pairs) or set(zip(step.src.tolist(), step.dst.tolist(), strict=True)) != pairs:
            return False
        if not (
            np.array_equal(step.start, getattr(step, part)) and np.array_equal(step.stop, step.start + 1)
        ):
            return False
        if not (step.mode == mode).all():
            return False
    return True
