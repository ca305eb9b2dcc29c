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

from ..errors import BadCollective, TooLarge

IntArray = npt.NDArray[np.int64]
#: What a rank does with what arrives: folds it into its own, puts it in the place of its own, or keeps it aside.
FOLD, REPLACE, HOLD = 0, 1, 2
Kind = Literal["allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"]
#: A step of more moves is not made: their arrays would take gigabytes.
MOST_MOVES = 40_000_000
#: So many elements can be counted.
MOST_ELEMENTS = (1 << 63) - 1
#: So many ranks a plan may have: what is kept of each takes some hundred bytes.
MOST_RANKS = 1 << 22


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
class Rotation:
    """All that rank 0 gives, where rank r gives the same with r added to ranks and parts, modulo how many there are.

    A ring of 24,576 ranks has 1.2e9 moves and 49,150 of these.

    Args:
        at: the number of the step, ascending.
        to: the rank that takes it.
        part: the part that is given.
        mode: FOLD, REPLACE or HOLD.
    """

    at: IntArray
    to: IntArray
    part: IntArray
    mode: IntArray


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
        rotation: its moves as rank 0 sees them, if all ranks see the same; ``step`` makes the same moves.
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
    rotation: Rotation | None = None

    def __iter__(self) -> Iterator[Step]:
        return (self.step(number) for number in range(self.steps))

    def __repr__(self) -> str:
        return f"Schedule({self.kind}, {self.algorithm}, {self.ranks} ranks, {self.parts} parts, {self.steps} steps)"


def bounds(elements: int, parts: int) -> IntArray:
    """Return where the parts of ``elements`` begin and the last one ends: ``parts + 1`` numbers, sizes that differ by 1.

    >>> bounds(10, 4).tolist()
    [0, 2, 5, 7, 10]

    Raises:
        BadCollective: there are more elements than an int64 counts.
    """
    if elements > MOST_ELEMENTS:
        raise BadCollective(f"there are at most {MOST_ELEMENTS:,} elements, got {elements:,}")
    part = np.arange(parts + 1, dtype=np.int64)
    # part * elements // parts, whose product may be more than an int64 holds.
    return part * (elements // parts) + part * (elements % parts) // parts


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
    """Raise BadCollective if there is no rank, or more than can be kept."""
    if ranks < 1:
        raise BadCollective(f"a collective has at least 1 rank, got {ranks}")
    if ranks > MOST_RANKS:
        raise BadCollective(f"there are at most {MOST_RANKS:,} ranks, got {ranks:,}")


def check_root(ranks: int, root: int) -> None:
    """Raise BadCollective if ``root`` is none of the ranks."""
    if not isinstance(root, int | np.integer) or not 0 <= root < ranks:
        raise BadCollective(f"the root is one of the ranks 0 to {ranks - 1}, got {root!r}")


def rotating(
    kind: Kind,
    algorithm: str,
    ranks: int,
    *,
    to: Any,
    part: Any,
    mode: int,
    at: Any = None,
    parts: int | None = None,
    settle: bool = False,
    keeps_order: bool = False,
) -> Schedule:
    """Return the schedule in which rank r does what rank 0 does, turned by r.

    Args:
        to, part: what rank 0 gives, and to whom; arrays of one length, any whole numbers, taken modulo ranks and parts.
        at: the step of each, ascending; by default one after another.
        parts: 1, or as many as ranks, which is the default.
        settle: the last step folds what was held.
    """
    check_ranks(ranks)
    parts = ranks if parts is None else parts
    peer, given = (np.asarray(each, np.int64) for each in np.broadcast_arrays(to, part))
    peer, given = peer % ranks, given % parts
    number = np.arange(len(peer)) if at is None else np.broadcast_to(np.asarray(at, np.int64), peer.shape)
    rotation = Rotation(at=number, to=peer, part=given, mode=np.broadcast_to(np.int64(mode), peer.shape))
    steps = int(number[-1]) + 1 if len(number) else 0
    begin = np.searchsorted(number, np.arange(steps + 1))
    every = np.arange(ranks)
    around = np.r_[every, every]
    # Steps that go the same way share the very array.
    ways: dict[int, IntArray] = {}

    def step(turn: int) -> Step:
        here = slice(int(begin[turn]), int(begin[turn + 1]))
        last = settle and turn == steps - 1
        if here.stop - here.start == 1:
            ahead, first = int(peer[here.start]), int(given[here.start])
            if (way := ways.get(ahead)) is None:
                ways.clear()
                way = ways[ahead] = around[ahead:][:ranks]
            start = around[first:][:ranks] if parts == ranks else np.zeros(ranks, np.int64)
            return moves(every, way, start, mode=mode, settle=last)
        if (count := ranks * (here.stop - here.start)) > MOST_MOVES:
            raise TooLarge(
                f"a step of {algorithm} over {ranks} ranks has {count} moves; at most {MOST_MOVES} are made at once; "
                f"its rotation has them all as {here.stop - here.start}"
            )
        src = np.repeat(every, here.stop - here.start)
        dst, start = (src + np.tile(peer[here], ranks)) % ranks, (src + np.tile(given[here], ranks)) % parts
        return moves(src, dst, start, mode=mode, settle=last)

    return Schedule(
        kind=kind, algorithm=algorithm, ranks=ranks, nodes=ranks, parts=parts, steps=steps, step=step,
        keeps_order=keeps_order, rotation=rotation,
    )  # fmt: skip


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
        rotation=_one_after_another([phase.rotation for phase in phases], [0, *ends[:-1].tolist()]),
    )


def joined(steps: Sequence[Step]) -> Step:
    """Return the moves of several steps as one step."""
    columns = ("src", "dst", "start", "stop", "mode")
    together = {name: np.concatenate([getattr(step, name) for step in steps]) for name in columns}
    return Step(**together, settle=any(step.settle for step in steps))


def _one_after_another(rotations: Sequence[Rotation | None], begin: Sequence[int]) -> Rotation | None:
    known = [rotation for rotation in rotations if rotation is not None]
    if len(known) < len(rotations):
        return None
    columns = {
        name: np.concatenate([getattr(each, name) for each in known]) for name in ("to", "part", "mode")
    }
    at = np.concatenate([each.at + first for each, first in zip(known, begin, strict=True)])
    return Rotation(at=at, **columns)
