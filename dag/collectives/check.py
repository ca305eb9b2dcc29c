"""A proof that a schedule does what it says: it is run on symbols in place of numbers.

A value is the expression that made it: ``3`` is what rank 3 brought, ``(0, 1, (2, 3))`` a fold in that order.  Small plans only:
the work grows with ranks times parts times steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from ..errors import BadCollective
from .blocking import Order, by_peer, circle
from .schedule import HOLD, REPLACE, Rotation, Schedule, Step

#: A rank's number, or a tuple of expressions folded from left to right.
Expression = Any


def check(schedule: Schedule, *, order: Order = by_peer) -> list[Expression]:
    """Return the order in which each part is folded, having proved the schedule.

    Every contribution is in every result exactly once, all ranks hold the same expression (so they hold the same bits), no
    step writes what it gives away, nothing is left on hold, an order of ranks that is promised is kept, and sends that block
    get through where each rank does what it has to do in a step in ``order``; a rotation tells the same moves.

    Raises:
        BadCollective: with the step or the rank, the part and what it holds.
    """
    run = _Run(schedule)
    for number, step in enumerate(schedule):
        run.apply(number, step)
    if run.held:
        (node, part), values = min(run.held.items())
        raise BadCollective(
            f"{schedule}: {node} holds part {part} of {sorted(values)} at the end, never folded"
        )
    results = _results(schedule, run.state)
    if schedule.rotation is not None:
        _check_rotation(schedule, schedule.rotation)
    if waiting := circle(schedule, order):
        words = ", ".join(f"{node} for {peer} in step {number}" for node, peer, number in waiting)
        raise BadCollective(f"{schedule}: where sends block, ranks wait for each other: {words}")
    return results


def travels(schedule: Schedule) -> Literal["inputs", "partial sums"]:
    """Return what is sent to be folded: only what ranks brought, or also sums of some of it.

    Inputs lose nothing by travelling in the 16 bits that they came in; partial sums would be rounded on each hop.

    Raises:
        BadCollective: a step cannot be done.
    """
    run = _Run(schedule)
    for number, step in enumerate(schedule):
        run.apply(number, step)
    return "partial sums" if run.partial else "inputs"


def contributions(expression: Expression) -> list[int]:
    """Return the ranks in an expression, in the order in which they are folded."""
    found, pending = [], [expression]
    while pending:
        each = pending.pop()
        if isinstance(each, tuple):
            pending.extend(reversed(each))
        else:
            found.append(each)
    return found


class _Run:
    """What each node holds of each part, moved on step by step; None is nothing."""

    def __init__(self, schedule: Schedule) -> None:
        ranks = schedule.ranks
        wanted = {"reduce_scatter": ranks, "all_gather": ranks, "all_to_all": ranks * ranks}
        if schedule.parts != wanted.get(schedule.kind, schedule.parts) or schedule.nodes < ranks:
            raise BadCollective(
                f"{schedule}: wanted {wanted.get(schedule.kind, 'any')} parts and at least {ranks} nodes, "
                f"got {schedule.parts} and {schedule.nodes}"
            )
        self._schedule = schedule
        self.state: list[list[Expression]] = [[None] * schedule.parts for _ in range(schedule.nodes)]
        for rank in range(ranks):
            for part in range(schedule.parts):
                self.state[rank][part] = rank if rank in owners(schedule, part) else None
        self.held: dict[tuple[int, int], dict[int, Expression]] = {}
        self._held_as: dict[tuple[int, int], tuple[int, int]] = {}
        #: Whether a sum was sent to be folded.
        self.partial = False

    def apply(self, number: int, step: Step) -> None:
        """Do a step; raises BadCollective where it cannot be done, or where what it does depends on time."""
        schedule, state = self._schedule, self.state
        arrived: dict[tuple[int, int], dict[int, Expression]] = {}
        ways: dict[tuple[int, int], tuple[int, int, int]] = {}
        given: set[tuple[int, int]] = set()
        columns = (step.src, step.dst, step.start, step.stop, step.mode)
        for src, dst, start, stop, mode in zip(*(each.tolist() for each in columns), strict=True):
            wrong = partial(self._wrong, number, (src, dst, start, stop))
            if not (
                0 <= src < schedule.nodes
                and 0 <= dst < schedule.nodes
                and 0 <= start < stop <= schedule.parts
            ):
                raise wrong(f": there are {schedule.nodes} nodes and {schedule.parts} parts")
            if src == dst:
                raise wrong(", itself")
            way = (mode, start, stop)
            for part in range(start, stop):
                value, where = state[src][part], (dst, part)
                if value is None:
                    raise wrong(f" and has no part {part}")
                others = arrived.setdefault(where, {})
                if src in others:
                    raise wrong(f": part {part} twice")
                if ways.setdefault(where, way) != way:
                    raise wrong(f": part {part} reaches it in two modes or ranges")
                if mode == REPLACE and others:
                    raise wrong(f": part {part} is replaced by two")
                if mode == HOLD:
                    if src in self.held.get(where, {}):
                        raise wrong(f": part {part} is on hold there already")
                    if self._held_as.setdefault(where, (start, stop)) != (start, stop):
                        raise wrong(f": part {part} is on hold there in another range")
                self.partial = self.partial or (mode != REPLACE and isinstance(value, tuple))
                others[src] = value
                given.add((src, part))
        if both := given & {where for where, (mode, *_) in ways.items() if mode != HOLD}:
            node, part = min(both)
            raise BadCollective(
                f"{schedule}, step {number}: part {part} of {node} is written while it is given away"
            )
        for where, values in arrived.items():
            if ways[where][0] == HOLD:
                self.held.setdefault(where, {}).update(values)
            else:
                self._write(where, values, replace=ways[where][0] == REPLACE)
        if step.settle:
            for where, values in self.held.items():
                self._write(where, values, replace=False)
            self.held.clear()
            self._held_as.clear()

    def _wrong(self, number: int, move: tuple[int, int, int, int], what: str) -> BadCollective:
        src, dst, start, stop = move
        return BadCollective(
            f"{self._schedule}, step {number}: {src} gives parts {start} to {stop - 1} to {dst}{what}"
        )

    def _write(self, where: tuple[int, int], values: dict[int, Expression], *, replace: bool) -> None:
        node, part = where
        own = self.state[node][part]
        operands = values if replace or own is None else {**values, node: own}
        folded = tuple(operands[each] for each in sorted(operands))
        self.state[node][part] = folded[0] if len(folded) == 1 else folded


def _results(schedule: Schedule, state: list[list[Expression]]) -> list[Expression]:
    """Return what each part ends as, the same wherever it is wanted."""
    results: list[Expression] = []
    for part in range(schedule.parts):
        holders, wanted = _holders(schedule, part), list(owners(schedule, part))
        first = state[holders[0]][part]
        for rank in holders:
            value = state[rank][part]
            if value is first and rank != holders[0]:
                continue
            found = contributions(value)
            if None in found or sorted(found) != wanted:
                raise BadCollective(
                    f"{schedule}: rank {rank} ends with part {part} = {value!r}, wanted each of {wanted} once"
                )
            if value != first:
                raise BadCollective(
                    f"{schedule}: part {part} is {first!r} at rank {holders[0]} and {value!r} at {rank}"
                )
            if schedule.keeps_order and found != sorted(found):
                raise BadCollective(
                    f"{schedule} says that it keeps the order of ranks, and folds part {part} as {value!r}"
                )
        results.append(first)
    return results


def _check_rotation(schedule: Schedule, rotation: Rotation) -> None:
    """Raise BadCollective if the moves of rank 0, turned by each rank, are not those of the steps."""
    ranks, parts = schedule.ranks, schedule.parts
    for number, step in enumerate(schedule):
        here = zip(
            *(each[rotation.at == number].tolist() for each in (rotation.to, rotation.part, rotation.mode)),
            strict=True,
        )
        turned = sorted(
            (rank, (rank + to) % ranks, (rank + part) % parts, (rank + part) % parts + 1, mode)
            for to, part, mode in here
            for rank in range(ranks)
        )
        columns = (step.src, step.dst, step.start, step.stop, step.mode)
        if turned != sorted(zip(*(each.tolist() for each in columns), strict=True)):
            raise BadCollective(f"{schedule}, step {number}: its moves are not those of its rotation")


def owners(schedule: Schedule, part: int) -> range:
    """Return the ranks that bring a part."""
    if schedule.kind == "all_gather":
        return range(part, part + 1)
    if schedule.kind == "broadcast":
        return range(schedule.root, schedule.root + 1)
    if schedule.kind == "all_to_all":
        return range(part // schedule.ranks, part // schedule.ranks + 1)
    return range(schedule.ranks)


def _holders(schedule: Schedule, part: int) -> range:
    """Return the ranks at which a part is to end."""
    if schedule.kind == "reduce_scatter":
        return range(part, part + 1)
    if schedule.kind == "reduce":
        return range(schedule.root, schedule.root + 1)
    if schedule.kind == "all_to_all":
        return range(part % schedule.ranks, part % schedule.ranks + 1)
    return range(schedule.ranks)
