"""One rank's part of a schedule, as exchanges of slices of its buffer: the same steps that are checked and simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .schedule import FOLD, HOLD, Schedule, Step, bounds
from .transport import Array, Fold, Gather, Send, Transport


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """What one rank does in one step, in elements of its buffer.

    Args:
        sends: (peer, start, stop).
        gathers: (start, stop, peers in ascending order, mode).
    """

    sends: tuple[tuple[int, int, int], ...]
    gathers: tuple[tuple[int, int, tuple[int, ...], int], ...]
    settle: bool


def rank_steps(schedule: Schedule, rank: int, elements: int) -> Iterator[RankStep]:
    """Yield what ``rank`` does in each step in which it does anything; empty messages are left out on both sides."""
    at = bounds(elements, schedule.parts)
    for step in schedule:
        mine = rank_step(step, rank, at)
        if mine.sends or mine.gathers or mine.settle:
            yield mine


def rank_step(step: Step, rank: int, at: Array) -> RankStep:
    """Return what ``rank`` does in ``step``, where parts begin ``at``."""
    leaving = np.flatnonzero(step.src == rank)
    arriving = np.flatnonzero(step.dst == rank)
    sends = tuple((int(step.dst[i]), int(at[step.start[i]]), int(at[step.stop[i]])) for i in leaving)
    ranges: dict[tuple[int, int, int], list[int]] = {}
    for i in arriving:
        range_ = (int(at[step.start[i]]), int(at[step.stop[i]]), int(step.mode[i]))
        ranges.setdefault(range_, []).append(int(step.src[i]))
    return RankStep(
        sends=tuple(send for send in sends if send[1] < send[2]),
        gathers=tuple((a, b, tuple(sorted(peers)), mode) for (a, b, mode), peers in ranges.items() if a < b),
        settle=step.settle,
    )


def execute(schedule: Schedule, transport: Transport, buffer: Array, fold: Fold) -> None:
    """Run one rank's part of ``schedule`` on ``buffer``, one-dimensional and contiguous, in place."""
    rank = transport.rank
    held: dict[tuple[int, int], dict[int, Array]] = {}
    for step in rank_steps(schedule, rank, len(buffer)):
        sends = [Send(peer=peer, data=buffer[start:stop]) for peer, start, stop in step.sends]
        gathers = []
        for start, stop, peers, mode in step.gathers:
            if mode == FOLD:
                sources = tuple(sorted((*peers, rank)))
                gathers.append(Gather(target=buffer[start:stop], sources=sources, fold=fold))
                continue
            for peer in peers:
                target = buffer[start:stop]
                if mode == HOLD:
                    target = held.setdefault((start, stop), {})[peer] = np.empty_like(target)
                gathers.append(Gather(target=target, sources=(peer,)))
        transport.exchange(sends, gathers)
        if step.settle:
            for (start, stop), values in held.items():
                fold_in_order({**values, rank: buffer[start:stop]}, buffer[start:stop], fold)
            held.clear()


def fold_in_order(operands: dict[int, Array], target: Array, fold: Fold) -> None:
    """Fold the operands in ascending order of their ranks into ``target``, which may be one of them."""
    first, *others = (operands[rank] for rank in sorted(operands))
    total = first.copy()
    for operand in others:
        fold(total, operand, total)
    target[:] = total
