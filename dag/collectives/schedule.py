"""Collectives as data: who gives which parts to whom, step by step.

A ``Schedule`` is the plan of a collective over ``ranks`` ranks and any number of elements, which it cuts into ``parts``.  Its
steps are made one at a time, as arrays: 24,576 ranks have 1.2e9 moves around a ring.  Nothing here moves a byte; the checker
(``check``), the counters (``count``), the simulator (``simulate``) and real ranks (``launch``) each interpret the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import BadCollective

IntArray = npt.NDArray[np.int64]
#: What a rank does with what arrives: folds it into its own, puts it in the place of its own, or keeps it aside.
FOLD, REPLACE, HOLD = 0, 1, 2
Kind = Literal["allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """Moves that may happen at once: node ``src[i]`` gives its parts ``start[i]`` to ``stop[i] - 1`` to ``dst[i]``.

    What is given is what the giver had before the step.  What arrives at one node is folded together with the node's own
    value in ascending order of the nodes it came from, its own in its place.  So the order of every sum is part of the plan.

    Args:
        src, dst, start, stop: arrays of one length, int64.
        mode: FOLD, REPLACE or HOLD for each move; what is held is folded when a step says ``settle``.
        settle: fold all that was held, again in ascending order of nodes, after the moves.
    """

    src: IntArray
    dst: IntArray
    start: IntArray
    stop: IntArray
    mode: IntArray
    settle: bool = False

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """The plan of one collective.

    Args:
        kind: what it achieves, see ``check``.
        algorithm: its name, as ``algorithms()`` lists it.
        ranks: how many take part.
        nodes: ranks and servers that are no ranks; these have the numbers from ``ranks`` on.
        parts: into how many parts of nearly equal size the elements are cut, see ``bounds``.
        steps: how many steps there are.
        step: makes the step of a number from 0 to ``steps - 1``.
        keeps_order: every fold is of neighbours in the order of ranks: an operator need not commute.
        root: the rank where a broadcast begins and a reduce ends.
    """

    kind: Kind
    algorithm: str
    ranks: int
    nodes: int
    parts: int
    steps: int
    step: Callable[[int], Step]
    keeps_order: bool = False
    root: int = 0

    def __iter__(self) -> Iterator[Step]:
        return (self.step(number) for number in range(self.steps))

    def __repr__(self) -> str:
        return f"Schedule({self.kind}, {self.algorithm}, {self.ranks} ranks, {self.parts} parts, {self.steps} steps)"


def bounds(elements: int, parts: int) -> IntArray:
    """Return where the parts of ``elements`` begin and the last one ends: ``parts + 1`` numbers, sizes that differ by 1.

    >>> bounds(10, 4).tolist()
    [0, 2, 5, 7, 10]
    """
    return np.arange(parts + 1, dtype=np.int64) * elements // parts


def moves(src: Any, dst: Any, start: Any, stop: Any = None, *, mode: Any, settle: bool = False) -> Step:
    """Return a step from anything that numpy makes arrays of; ``stop`` is by default ``start + 1``."""
    given = [np.asarray(each, np.int64) for each in (src, dst, start, mode)]
    length = max((each.size for each in given if each.ndim), default=1)
    # What has the length already stays the very array: steps that go the same way are known by that.
    first, second, begin, how = (
        each if each.shape == (length,) else np.broadcast_to(each, (length,)) for each in given
    )
    end = begin + 1 if stop is None else np.broadcast_to(np.asarray(stop, np.int64), begin.shape)
    return Step(src=first, dst=second, start=begin, stop=end, mode=how, settle=settle)


def check_ranks(ranks: int) -> None:
    """Raise BadCollective if there is no rank."""
    if ranks < 1:
        raise BadCollective(f"a collective has at least 1 rank, got {ranks}")


def sequence(first: Schedule, *others: Schedule, kind: Kind, algorithm: str) -> Schedule:
    """Return the schedule that does one after another; all have the same ranks and parts."""
    phases = (first, *others)
    for phase in others:
        if (phase.ranks, phase.parts) != (first.ranks, first.parts):
            raise BadCollective(
                f"phases of one schedule have the same ranks and parts, got {first} and {phase}"
            )
    ends = np.cumsum([phase.steps for phase in phases])

    def step(number: int) -> Step:
        at = int(np.searchsorted(ends, number, side="right"))
        return phases[at].step(number - int(ends[at]) + phases[at].steps)

    return Schedule(
        kind=kind,
        algorithm=algorithm,
        ranks=first.ranks,
        nodes=max(phase.nodes for phase in phases),
        parts=first.parts,
        steps=int(ends[-1]),
        step=step,
        keeps_order=all(phase.keeps_order for phase in phases),
        root=first.root,
    )


def joined(steps: Sequence[Step]) -> Step:
    """Return the moves of several steps as one step."""
    columns = ("src", "dst", "start", "stop", "mode")
    together = {name: np.concatenate([getattr(step, name) for step in steps]) for name in columns}
    return Step(**together, settle=any(step.settle for step in steps))
