"""How long a collective takes on one machine: what each rank does, in its order, on the next core that is free.

``simulate`` gives each rank a link, and links decide; here nothing is scarce but cores, which copy, fold and pass messages on.
A rank is a thread: it gives what a step has it give, takes what it expects in the order of its plan, and lets go of its core
when something has not come.  A core that is free goes to the rank that has been ready for longest, and stays with it until
that one waits.  So a time lies between the longest path and that plus all work divided by the cores (Graham, 1969).

A time is a sum of costs along the path that was waited for last.  It comes with how often each cost is in it, which is its
slope by that cost: a model is fitted to measured times without trying each of its numbers.  Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .execute import rank_steps
from .prepared import folds_and_shares
from .schedule import FOLD, HOLD, Schedule

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Means:
    """How the ranks of a machine exchange.

    Args:
        cores: which they share.
        pulled: a receiver reads the memory of the sender, who waits until that is done; else a sender copies and goes on.
        short_bytes: what is no longer goes with its message, and is not waited for, where receivers pull.
    """

    cores: int
    pulled: bool
    short_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What things cost a core, in seconds.

    Args:
        start: a collective, at each rank.
        post: a message, at its sender.
        take: a message, at its receiver.
        turn: going on after having waited for at least as long; who waited for less is held up for as long again.
        send_byte: a byte at its sender; 0 where receivers pull.
        take_byte: a byte that arrives.
        fold_byte: a byte that is folded where it arrives, on top of its arrival.
        settle_byte: a byte that was put aside and is folded later.
        share_byte: a byte that a rank takes, folds and gives back where a transport folds and shares in one.
    """

    start: float
    post: float
    take: float
    turn: float
    send_byte: float
    take_byte: float
    fold_byte: float
    settle_byte: float
    share_byte: float


START, POST, TAKE, TURN, SEND_BYTE, TAKE_BYTE, FOLD_BYTE, SETTLE_BYTE, SHARE_BYTE = range(len(fields(Costs)))


class Spent(NamedTuple):
    """Seconds since the beginning, and how often each of the ``Costs`` is in them."""

    seconds: float
    counts: FloatArray


#: Of a message: from, to, and which of theirs from 1 on; of its receipt: to, from, and that number below 0.
_Key = tuple[int, int, int]


class _Work(NamedTuple):
    counts: FloatArray


class _Tell(NamedTuple):
    key: _Key


class _Await(NamedTuple):
    keys: Sequence[_Key]


_Act = _Work | _Tell | _Await
Acts = list[list[_Act]]


def acts_of(schedule: Schedule, elements: int, itemsize: int, means: Means) -> Acts:
    """Return what each rank does for ``elements`` elements of ``itemsize`` bytes: what ``spend`` takes, as often as needed."""
    return [list(_acts(schedule, rank, elements, itemsize, means)) for rank in range(schedule.ranks)]


def spend(acts_by_rank: Acts, cores: int, costs: Costs) -> Spent:
    """Return what it takes until the last rank is done, where ranks share so many cores."""
    price = np.array(astuple(costs))
    turn = _counts(TURN, 1)
    nothing = Spent(0.0, np.zeros(len(price)))
    acts = [iter(each) for each in acts_by_rank]
    free, busy_until = [(0.0, core) for core in range(cores)], [nothing] * cores
    #: With what has come last, and since when that was waited for.
    ready = [(0.0, rank, nothing, nothing) for rank in range(len(acts))]
    told: dict[_Key, Spent] = {}
    wanted: dict[_Key, int] = {}
    #: Of ranks that wait for what nobody has told yet: since when, what has come last, and what is missing.
    waiting: dict[int, tuple[Spent, Spent, set[_Key]]] = {}
    last = nothing
    while ready:
        _, rank, come, since = heapq.heappop(ready)
        _, core = heapq.heappop(free)
        now = max(come, busy_until[core], key=_seconds)
        if (waited_s := come.seconds - since.seconds) > costs.turn:
            now = _after(now, turn, price)
        else:
            now = Spent(now.seconds + waited_s, now.counts + come.counts - since.counts)
        for act in acts[rank]:
            if isinstance(act, _Work):
                now = _after(now, act.counts, price)
            elif isinstance(act, _Tell):
                told[act.key] = now
                if (waiter := wanted.pop(act.key, None)) is not None:
                    since, come, missing = waiting.pop(waiter)
                    come = max(come, now, key=_seconds)
                    missing.remove(act.key)
                    if missing:
                        waiting[waiter] = since, come, missing
                    else:
                        heapq.heappush(ready, (come.seconds, waiter, come, since))
            else:
                missing = {key for key in act.keys if key not in told}
                come = max((now, *(told[key] for key in act.keys if key in told)), key=_seconds)
                if missing:
                    waiting[rank] = now, come, missing
                    wanted.update(dict.fromkeys(missing, rank))
                    break
                if come.seconds > now.seconds:
                    heapq.heappush(ready, (come.seconds, rank, come, now))
                    break
        else:
            last = max(last, now, key=_seconds)
        busy_until[core] = now
        heapq.heappush(free, (now.seconds, core))
    assert not waiting, "a schedule whose messages all come, as check proves it"
    return last


def _acts(schedule: Schedule, rank: int, elements: int, itemsize: int, means: Means) -> Iterator[_Act]:
    """Yield what a rank does, as a transport does it (``Transport.exchange``, ``FoldsAndShares.fold_and_share``)."""
    yield _Work(_counts(START, 1))
    peers = [peer for peer in range(schedule.ranks) if peer != rank]
    if means.pulled and elements * itemsize > means.short_bytes and folds_and_shares(schedule):
        yield from _sharing(rank, peers, elements * itemsize / schedule.ranks)
        return
    given, taken = dict.fromkeys(peers, 0), dict.fromkeys(peers, 0)
    held_bytes = 0
    for step in rank_steps(schedule, rank, elements):
        receipts: list[_Key] = []
        for peer, start, stop in step.sends:
            nbytes = (stop - start) * itemsize
            given[peer] += 1
            yield _Work(_counts(POST, 1, SEND_BYTE, 0 if means.pulled else nbytes))
            yield _Tell((rank, peer, given[peer]))
            if means.pulled and nbytes > means.short_bytes:
                receipts.append((peer, rank, -given[peer]))
        for start, stop, sources, mode in step.gathers:
            arriving = [peer for peer in sources if peer != rank]
            nbytes = (stop - start) * itemsize * len(arriving)
            for peer in arriving:
                taken[peer] += 1
            yield _Await([(peer, rank, taken[peer]) for peer in arriving])
            yield _Work(
                _counts(TAKE, len(arriving), TAKE_BYTE, nbytes, FOLD_BYTE, nbytes if mode == FOLD else 0)
            )
            held_bytes += nbytes if mode == HOLD else 0
            for peer in arriving:
                yield _Tell((rank, peer, -taken[peer]))
        if receipts:
            yield _Await(receipts)
        if step.settle:
            yield _Work(_counts(SETTLE_BYTE, held_bytes))
            held_bytes = 0


def _sharing(rank: int, peers: Sequence[int], part_bytes: float) -> Iterator[_Act]:
    """Yield what a rank does that folds its part of all buffers into all of them."""
    yield _Work(_counts(POST, len(peers)))
    for peer in peers:
        yield _Tell((rank, peer, 1))
    yield _Await([(peer, rank, 1) for peer in peers])
    yield _Work(_counts(TAKE, len(peers), SHARE_BYTE, part_bytes * len(peers)))
    for peer in peers:
        yield _Tell((rank, peer, -1))
    yield _Await([(peer, rank, -1) for peer in peers])


def _counts(*pairs: float) -> FloatArray:
    """Return counts of costs: a place of ``Costs`` and how often, and so on."""
    found = np.zeros(len(fields(Costs)))
    for place, times in zip(pairs[::2], pairs[1::2], strict=True):
        found[int(place)] = times
    return found


def _after(now: Spent, counts: FloatArray, price: FloatArray) -> Spent:
    return Spent(now.seconds + float(counts @ price), now.counts + counts)


def _seconds(spent: Spent) -> float:
    return spent.seconds
