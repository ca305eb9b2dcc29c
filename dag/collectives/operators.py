"""What an all-reduce folds with: sum, mean, min, max, prod, or an element-wise function of the caller's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadCollective
from .plans import PER_MACHINE, algorithms, plan
from .schedule import Kind, Schedule

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Operator:
    """An associative, element-wise function of two arrays.

    Args:
        function: of two arrays of one shape and dtype, returns a third; it is called on slices of what the ranks brought.
        commutative: the order of ranks does not matter; if False, only algorithms that keep the order run it.
        name: what ranks compare, so that all use the same one.  A function that happens to be called ``mean`` is not taken
            for the mean: see ``stands_for``.
    """

    function: Callable[[Array, Array], Any]
    commutative: bool = True
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", getattr(self.function, "__name__", type(self.function).__name__))

    def fold(self, left: Array, right: Array, out: Array) -> None:
        """Put the fold of ``left`` and ``right`` into ``out``, which may be one of them."""
        if isinstance(self.function, np.ufunc):
            self.function(left, right, out)
            return
        folded = np.asarray(self.function(left, right))
        if folded.shape != out.shape:
            # Written as it is, it would be repeated to fit.
            raise BadCollective(
                f"operator {self.name!r} made an array of shape {folded.shape} of two of {out.shape}: it is not element-wise"
            )
        np.copyto(out, folded, casting="same_kind")


OPERATORS = {
    "sum": Operator(np.add, name="sum"),
    "mean": Operator(np.add, name="mean"),  # divided by the number of ranks at the end
    "min": Operator(np.minimum, name="min"),
    "max": Operator(np.maximum, name="max"),
    "prod": Operator(np.multiply, name="prod"),
}


def stands_for(op: Operator, *names: str) -> bool:
    """Return whether ``op`` is one of these named operators, and not a function of the caller's own that is called so."""
    return op.name in names and op.name in OPERATORS and op.function is OPERATORS[op.name].function


def operator(op: str | Operator) -> Operator:
    """Return the operator of a name; raises BadCollective if there is none."""
    if isinstance(op, Operator):
        return op
    if op not in OPERATORS:
        raise BadCollective(f"there is no operator {op!r}; there are: {', '.join(OPERATORS)}, or an Operator")
    return OPERATORS[op]


def refuse(schedule: Schedule, op: Operator) -> None:
    """Raise BadCollective if ``op`` does not commute and ``schedule`` does not keep the order of ranks."""
    if not (op.commutative or schedule.keeps_order):
        keep = ", ".join(keeping_order(schedule.kind, schedule.ranks, schedule.root))
        where = f" to rank {schedule.root}" if schedule.kind == "reduce" else ""
        raise BadCollective(
            f"operator {op.name!r} does not commute, and {schedule.algorithm} does not fold in the order of ranks; "
            f"of {schedule.kind} over {schedule.ranks} ranks{where} these do: {keep or 'none, take rank 0'}"
        )


def keeping_order(kind: Kind, ranks: int, root: int = 0) -> list[str]:
    """Return the algorithms that fold in the order of ranks, whatever their other choices are."""

    def choices(name: str) -> dict[str, int]:
        return ({"per_machine": 1} if name in PER_MACHINE else {}) | (
            {"root": root} if kind == "reduce" else {}
        )

    return [name for name in algorithms(kind) if plan(kind, name, ranks, **choices(name)).keeps_order]
