"""One rank's part of a schedule, as exchanges of slices of its buffer: the same steps that are checked and simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .folding import Operand, fold_pieces, split
from .schedule import FOLD, HOLD, Schedule, Step, bounds
from .transport import Array, Fold, Gather, Send, Transport

#: Elements that are folded at a time: they stay in the cache.
_PIECE = 1 << 15
#: So many bytes of memory for what is put aside are kept from call to call.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """What one rank does in one step, in elements of its buffer.

    Args:
        sends: (peer, start, stop).
        gathers: (start, stop, sources, mode): peers in ascending order, with FOLD the own rank in its place.
        settle: fold what was held, after the gathers.
    """

    sends: tuple[tuple[int, int, int], ...]
    gathers: tuple[tuple[int, int, tuple[int, ...], int], ...]
    settle: bool


@dataclass(frozen=True, kw_only=True)
class Wide:
    """Fold numbers of few bits in ``dtype`` and round once: for schedules in which only what ranks brought is folded.

    What travels has the few bits; sums are kept beside the buffer until they are given away or the schedule ends.
    ``finish`` is applied to them before they are rounded.
    """

    dtype: np.dtype[np.generic]
    finish: Callable[[Array], Array] | None = None


class Spare:
    """Memory for what is put aside, kept for the next call: fresh pages cost more than what is copied into them."""

    def __init__(self) -> None:
        self._free: dict[int, list[Array]] = {}
        self._nbytes = 0

    def take(self, like: Array) -> Array:
        """Return an array of the length and type of ``like``, with anything in it."""
        free = self._free.get(like.nbytes)
        if not free:
            return np.empty_like(like)
        self._nbytes -= like.nbytes
        return free.pop().view(like.dtype)

    def give(self, array: Array) -> None:
        """Take an array back, which nobody uses any more."""
        if self._nbytes + array.nbytes > _SPARE_BYTES:
            self._free.clear()
            self._nbytes = 0
        if array.nbytes <= _SPARE_BYTES:
            self._free.setdefault(array.nbytes, []).append(array)
            self._nbytes += array.nbytes


def rank_steps(schedule: Schedule, rank: int, elements: int) -> Iterator[RankStep]:
    """Yield what ``rank`` does in each step in which it does anything; empty messages are left out on both sides."""
    at = bounds(elements, schedule.parts)
    holds = False
    for step in schedule:
        mine = rank_step(step, rank, at)
        holds = holds or any(mode == HOLD for *_, mode in mine.gathers)
        if mine.sends or mine.gathers or (mine.settle and holds):
            yield mine
        holds = holds and not mine.settle


def rank_step(step: Step, rank: int, at: Array) -> RankStep:
    """Return what ``rank`` does in ``step``, where parts begin ``at``."""
    leaving = np.flatnonzero(step.src == rank)
    arriving = np.flatnonzero(step.dst == rank)
    sends = [(int(step.dst[i]), int(at[step.start[i]]), int(at[step.stop[i]])) for i in leaving]
    ranges: dict[tuple[int, int, int], list[int]] = {}
    for i in arriving:
        range_ = (int(at[step.start[i]]), int(at[step.stop[i]]), int(step.mode[i]))
        ranges.setdefault(range_, [rank] if range_[2] == FOLD else []).append(int(step.src[i]))
    gathers = [(a, b, tuple(sorted(peers)), mode) for (a, b, mode), peers in ranges.items()]
    # Messages between two ranks keep their order: where one gives several to another, both go by where they begin.
    if len(set(step.dst[leaving].tolist())) < len(leaving):
        sends.sort(key=lambda send: send[1:])
    if len(set(step.src[arriving].tolist())) < len(arriving):
        gathers.sort(key=lambda gather: gather[:2])
    return RankStep(
        sends=tuple(send for send in sends if send[1] < send[2]),
        gathers=tuple(gather for gather in gathers if gather[0] < gather[1]),
        settle=step.settle,
    )


def execute(
    steps: Iterable[RankStep],
    transport: Transport,
    buffer: Array,
    fold: Fold | None,
    wide: Wide | None = None,
    spare: Spare | None = None,
) -> None:
    """Do one rank's ``steps`` on ``buffer``, one-dimensional and contiguous, in place.

    Args:
        steps: of ``rank_steps`` for as many elements as the buffer has; a tuple where they are used again.
        wide: see there; None folds in the type of the buffer.
        spare: memory of earlier calls.
    """
    spare = spare or Spare()
    exchange, rank = transport.exchange, transport.rank
    held: dict[tuple[int, int], dict[int, Array]] = {}
    sums: dict[tuple[int, int], Array] = {}
    for step in steps:
        for start, stop in [
            at for at in sums if any(at[0] < stop and start < at[1] for _, start, stop in step.sends)
        ]:
            _round(sums.pop((start, stop)), buffer[start:stop], wide)
        sends = [Send(peer=peer, data=buffer[start:stop]) for peer, start, stop in step.sends]
        gathers: list[Gather] = []
        whole: list[tuple[tuple[int, int], dict[int, Array]]] = []
        for start, stop, sources, mode in step.gathers:
            target = buffer[start:stop]
            if mode == FOLD and wide is None:
                gathers.append(Gather(target=target, sources=sources, fold=fold))
            elif mode == FOLD:
                own = sums.get((start, stop), target)
                operands = {peer: own if peer == rank else np.empty_like(target) for peer in sources}
                gathers += [
                    Gather(target=operands[peer], sources=(peer,)) for peer in sources if peer != rank
                ]
                whole.append(((start, stop), operands))
            elif mode == HOLD:
                aside = held.setdefault((start, stop), {})
                for peer in sources:
                    aside[peer] = spare.take(target)
                    gathers.append(Gather(target=aside[peer], sources=(peer,)))
            else:
                gathers += [Gather(target=target, sources=(peer,)) for peer in sources]
        if sends or gathers:
            exchange(sends, gathers)
        if step.settle:
            whole += [(at, {**aside, rank: buffer[at[0] : at[1]]}) for at, aside in held.items()]
        for (start, stop), by_peer in whole:
            assert fold is not None
            in_order = sorted(by_peer)
            if wide is None:
                brought = [None if peer == rank else by_peer[peer] for peer in in_order]
                fold_in_order(brought, buffer[start:stop], fold)
            else:
                sums[start, stop] = _wide_sum([by_peer[peer] for peer in in_order], fold, wide)
        if step.settle:
            for aside in held.values():
                for array in aside.values():
                    spare.give(array)
            held.clear()
    for (start, stop), total in sums.items():
        _round(total, buffer[start:stop], wide)


def exchange_rows(schedule: Schedule, transport: Transport, given: Array, taken: Array) -> None:
    """Do one rank's part of an all-to-all: row d of ``given`` goes to rank d, and ``taken`` gets row s from rank s.

    Both are two-dimensional and contiguous, of ``ranks`` rows; the schedule's part ``s * ranks + d`` is row d of rank s.
    """
    rank, ranks = transport.rank, schedule.ranks
    at = np.arange(schedule.parts + 1)
    for step in schedule:
        mine = rank_step(step, rank, at)
        sends = [
            Send(peer=peer, data=given[part - rank * ranks]) for peer, start, stop in mine.sends for part in range(start, stop)
        ]  # fmt: skip
        gathers = [
            Gather(target=taken[part // ranks], sources=sources)
            for start, stop, sources, _ in mine.gathers
            for part in range(start, stop)
        ]
        if given.shape[1] and (sends or gathers):
            transport.exchange(sends, gathers)
    taken[rank] = given[rank]


def fold_in_order(operands: Sequence[Array | None], target: Array, fold: Fold) -> None:
    """Fold the operands from the first to the last into ``target``, which is the one that is None."""
    if len(operands) == 2:
        one, other = (target if each is None else each for each in operands)
        fold(one, other, target)
        return
    pieces = split(0, len(target), _PIECE)
    scratch = np.empty(min(len(target), _PIECE), target.dtype)
    fold_pieces(
        target, pieces, [None if each is None else _pieces_of(each) for each in operands], fold, scratch
    )


def _pieces_of(array: Array) -> Operand:
    return lambda start, stop, place: array[start:stop]


def _wide_sum(operands: Sequence[Array], fold: Fold, wide: Wide) -> Array:
    total = np.empty(len(operands[0]), wide.dtype)
    for start in range(0, len(total), _PIECE):
        here = slice(start, start + _PIECE)
        first, *others = (operand[here] for operand in operands)
        total[here] = first
        for operand in others:
            fold(total[here], operand.astype(wide.dtype, copy=False), total[here])
    return total


def _round(total: Array, target: Array, wide: Wide | None) -> None:
    assert wide is not None
    target[:] = wide.finish(total) if wide.finish is not None else total
