"""A proof that a schedule does what it says: it is run on symbols in place of numbers.

A value is the expression that made it: ``3`` is what rank 3 brought, ``(0, 1, (2, 3))`` a fold in that order.  Small plans only:
the work grows with ranks times parts times steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import BadCollective
from .schedule import FOLD, HOLD, REPLACE, Schedule, Step

#: A rank's number, or a tuple of expressions folded from left to right.
Expression = Any


def check(schedule: Schedule) -> list[Expression]:
    """Return the order in which each part is folded, having proved the schedule.

    Every contribution is in every result exactly once, all ranks hold the same expression (so they hold the same bits), no
    step writes what it gives away, and nothing is left on hold.

    Raises:
        BadCollective: with the rank, the part and what it holds.
    """
    held: dict[tuple[int, int], dict[int, Expression]] = {}
    state = _begin(schedule)
    for number, step in enumerate(schedule):
        _apply(schedule, number, step, state, held)
    if held:
        raise BadCollective(f"{schedule}: {len(held)} parts are on hold at the end and never folded")
    return _end(schedule, state)


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


def _begin(schedule: Schedule) -> list[list[Expression]]:
    """Return what each node holds of each part at the start; None is nothing."""
    state: list[list[Expression]] = [[None] * schedule.parts for _ in range(schedule.nodes)]
    for rank in range(schedule.ranks):
        for part in range(schedule.parts):
            has = {
                "all_gather": part == rank,
                "broadcast": rank == schedule.root,
                "all_to_all": part // schedule.ranks == rank,
            }.get(schedule.kind, True)
            state[rank][part] = rank if has else None
    return state


def _apply(
    schedule: Schedule,
    number: int,
    step: Step,
    state: list[list[Expression]],
    held: dict[tuple[int, int], dict[int, Expression]],
) -> None:
    arrived: dict[tuple[int, int], dict[int, Expression]] = {}
    modes: dict[tuple[int, int], int] = {}
    given: set[tuple[int, int]] = set()
    columns = (step.src, step.dst, step.start, step.stop, step.mode)
    for src, dst, start, stop, mode in zip(*(each.tolist() for each in columns), strict=True):
        for part in range(start, stop):
            value = state[src][part]
            if value is None or src == dst or not 0 <= part < schedule.parts:
                raise BadCollective(
                    f"{schedule}, step {number}: {src} gives part {part} to {dst} and has {value!r} there"
                )
            if src in arrived.setdefault((dst, part), {}):
                raise BadCollective(f"{schedule}, step {number}: {src} gives part {part} twice to {dst}")
            if modes.setdefault((dst, part), mode) != mode:
                raise BadCollective(f"{schedule}, step {number}: part {part} reaches {dst} in two modes")
            arrived[dst, part][src] = value
            given.add((src, part))
    written = {where for where, mode in modes.items() if mode != HOLD}
    if both := given & written:
        raise BadCollective(
            f"{schedule}, step {number}: written while it is given away: (node, part) {min(both)}"
        )
    for (dst, part), values in arrived.items():
        if modes[dst, part] == REPLACE:
            (state[dst][part],) = values.values()
        elif modes[dst, part] == FOLD:
            state[dst][part] = _fold(values, dst, state[dst][part])
        else:
            held.setdefault((dst, part), {}).update(values)
    if step.settle:
        for (dst, part), values in held.items():
            state[dst][part] = _fold(values, dst, state[dst][part])
        held.clear()


def _fold(values: dict[int, Expression], at: int, own: Expression) -> Expression:
    operands = dict(values) if own is None else {**values, at: own}
    folded = tuple(operands[node] for node in sorted(operands))
    return folded[0] if len(folded) == 1 else folded


def _end(schedule: Schedule, state: list[list[Expression]]) -> list[Expression]:
    everyone = list(range(schedule.ranks))
    results: list[Expression] = []
    for part in range(schedule.parts):
        holders = _holders(schedule, part)
        values = [state[rank][part] for rank in holders]
        wanted: Iterable[int] = everyone
        if schedule.kind in ("all_gather", "broadcast", "all_to_all"):
            wanted = [
                {"all_gather": part, "broadcast": schedule.root}.get(schedule.kind, part // schedule.ranks)
            ]
        for rank, value in zip(holders, values, strict=True):
            found = contributions(value)
            if sorted(each for each in found if each is not None) != list(wanted) or None in found:
                raise BadCollective(
                    f"{schedule}: rank {rank} ends with part {part} = {value!r}, wanted each of {wanted} once"
                )
            if value != values[0]:
                raise BadCollective(
                    f"{schedule}: part {part} is {values[0]!r} at rank {holders[0]} and {value!r} at {rank}"
                )
            if schedule.keeps_order and found != sorted(found):
                raise BadCollective(
                    f"{schedule} says that it keeps the order of ranks, and folds part {part} as {value!r}"
                )
        results.append(values[0])
    return results


def _holders(schedule: Schedule, part: int) -> list[int]:
    if schedule.kind == "reduce_scatter":
        return [part]
    if schedule.kind == "reduce":
        return [schedule.root]
    if schedule.kind == "all_to_all":
        return [part % schedule.ranks]
    return list(range(schedule.ranks))
