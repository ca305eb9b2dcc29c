"""A model of one machine from a few measured times, and what it says of everything that was not measured.

The machine is what ``one_machine`` takes: cores, how ranks exchange, and what things cost.  What a message costs is the same for
all sizes; what a byte costs goes by the memory that all ranks use together, since that decides which cache it is in.  All of
it is fitted at once, to the logarithms of times: 10 % too long counts as much for microseconds as for seconds.  Pure: who
measures is somewhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
import numpy.typing as npt

from ..errors import BadCollective
from .choose import planned
from .one_machine import (
    FOLD_BYTE,
    SEND_BYTE,
    SETTLE_BYTE,
    SHARE_BYTE,
    TAKE_BYTE,
    Acts,
    Costs,
    Means,
    acts_of,
    spend,
)

FloatArray = npt.NDArray[np.float64]

#: Sizes of memory at which the cost of a byte is fitted: apart by at least this factor, and none below so many bytes, where
#: bytes cost too little beside messages to be told from them.
_KNOTS_APART, _LEAST_KNOT = 3.0, 100_000
_ROUNDS = 40
#: How strongly a number that the times say nothing about is held to its neighbour, and to where it began.
_SMOOTH, _STAY = 0.1, 0.02


@dataclass(frozen=True, kw_only=True)
class Timed:
    """An all-reduce that was measured, or that is to be predicted: ``seconds`` is then of no account."""

    algorithm: str
    ranks: int
    nbytes: int
    seconds: float = math.nan


@dataclass(frozen=True, kw_only=True)
class ByteCosts:
    """What a byte costs where all ranks together use ``memory_bytes``: to take it, to fold it, and to fold and share it."""

    memory_bytes: int
    take_s: float
    fold_s: float
    share_s: float


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What ``fit`` found.

    Args:
        means: how the ranks exchange.
        start_s, post_s, take_s, turn_s: as of ``Costs``.
        send_factor: how many times as much as its arrival a byte costs its sender, where senders copy.
        settle_factor: how many times as much as folding it where it arrives it costs to fold a byte that was put aside first.
        bytes_: by ``memory_bytes``, ascending; in between costs go by the logarithm.
        error: the root of the mean square of what is left: 0.1 is about 10 %.
    """

    means: Means
    start_s: float
    post_s: float
    take_s: float
    turn_s: float
    send_factor: float
    settle_factor: float
    bytes_: tuple[ByteCosts, ...]
    error: float = math.nan

    def costs(self, memory_bytes: int) -> Costs:
        """Return what things cost where all ranks together use ``memory_bytes``."""
        share = _shares([each.memory_bytes for each in self.bytes_], memory_bytes)
        take_s, fold_s, share_s = (
            math.exp(sum(part * math.log(getattr(each, name)) for part, each in zip(share, self.bytes_, strict=True)))
            for name in ("take_s", "fold_s", "share_s")
        )  # fmt: skip
        return Costs(
            start=self.start_s, post=self.post_s, take=self.take_s, turn=self.turn_s,
            send_byte=0.0 if self.means.pulled else take_s * self.send_factor,
            take_byte=take_s, fold_byte=fold_s, settle_byte=fold_s * self.settle_factor, share_byte=share_s,
        )  # fmt: skip


def predict(machine: Machine, case: Timed, *, itemsize: int = 4, per_machine: int = 2) -> float:
    """Return how long ``case`` takes on ``machine``, in seconds.

    Args:
        per_machine: into which groups two levels take ranks of one machine, as ``choose.ranks_per_machine`` has it.
    """
    costs = machine.costs(case.ranks * case.nbytes)
    return spend(_acts(case, machine.means, itemsize, per_machine), machine.means.cores, costs).seconds


def fit(measured: Iterable[Timed], means: Means, *, itemsize: int = 4, per_machine: int = 2) -> Machine:
    """Return the machine whose times are nearest to those measured.

    Measure at least: one size that is nearly all messages and two that are nearly all bytes; algorithms of few and of many
    steps, one that puts aside what arrives (doubling, direct_whole), one in which one rank gets from all at once, and, where
    receivers pull, one that folds and shares (sharded).  What a turn costs goes by the number of ranks: take one at a time.

    Args:
        itemsize, per_machine: see ``predict``.

    Raises:
        BadCollective: fewer than 4 measurements, fewer than 2 sizes, or a time that is not above 0.
    """
    # In an order of their own: sums of floats go by it, and so does what they lead to.
    cases = sorted((case for case in measured if case.ranks > 1), key=astuple)
    if len(cases) < 4 or len({case.nbytes for case in cases}) < 2:
        raise BadCollective(
            f"a machine is fitted to at least 4 times of 2 sizes with 2 ranks or more, got {len(cases)} times of "
            f"{len({case.nbytes for case in cases})} sizes"
        )
    for case in cases:
        if not 0 < case.seconds < math.inf:
            raise BadCollective(f"{case}: a time is above 0, and there are bytes to sum")
    model = _Model(cases, means, itemsize, per_machine)
    tried = [_descend(model.times, begin, model.wanted, model.penalties()) for begin in model.begins()]
    found, error = min(tried, key=lambda each: each[1])
    return replace(model.machine(found), error=error)


class _Model:
    """The times of the measured cases as a function of the logarithms of what is fitted.

    The order: start, post, take, turn, send_factor, settle_factor, then take, fold and share of all knots.
    """

    PLAIN, SEND_FACTOR, SETTLE_FACTOR, BYTES = 4, 4, 5, 6

    def __init__(self, cases: Sequence[Timed], means: Means, itemsize: int, per_machine: int) -> None:
        self.cases, self.means = cases, means
        self.knots = _knots(case.ranks * case.nbytes for case in cases)
        self.acts = [_acts(case, means, itemsize, per_machine) for case in cases]
        self.wanted = np.log([case.seconds for case in cases])

    def begins(self) -> list[FloatArray]:
        """Return where searches begin: from the shortest time and the fastest bytes of what was measured.

        Who waits for whom changes with the costs, so there are valleys: a turn is tried cheap, as dear as a message, and dear.
        """
        short = min(case.seconds for case in self.cases)
        rate = min(case.seconds / case.nbytes for case in self.cases if case.nbytes)
        knots = len(self.knots)
        by_byte = [rate / 2] * knots + [rate / 4] * knots + [rate] * knots
        return [
            np.log([short / 4, short / 8, short / 8, turn, 1.0, 1.5, *by_byte])
            for turn in (short / 64, short / 8, short / 2)
        ]

    def machine(self, logs: FloatArray) -> Machine:
        """Return what the logarithms stand for."""
        start_s, post_s, take_s, turn_s, send_factor, settle_factor = np.exp(logs[: self.BYTES]).tolist()
        by_kind = np.exp(logs[self.BYTES :]).reshape(3, -1).T.tolist()
        return Machine(
            means=self.means, start_s=start_s, post_s=post_s, take_s=take_s, turn_s=turn_s, send_factor=send_factor,
            settle_factor=settle_factor,
            bytes_=tuple(
                ByteCosts(memory_bytes=knot, take_s=take, fold_s=fold, share_s=share)
                for knot, (take, fold, share) in zip(self.knots, by_kind, strict=True)
            ),
        )  # fmt: skip

    def times(self, logs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the logarithms of the times, and how they change with what is fitted."""
        machine = self.machine(logs)
        times, slopes = np.zeros(len(self.cases)), np.zeros((len(self.cases), len(logs)))
        for at, (case, acts) in enumerate(zip(self.cases, self.acts, strict=True)):
            memory_bytes = case.ranks * case.nbytes
            costs = machine.costs(memory_bytes)
            seconds, counts = spend(acts, self.means.cores, costs)
            # What each cost has of the time; a number that is fitted may be in several costs.
            part = counts * np.array(astuple(costs)) / seconds
            times[at] = math.log(seconds)
            slopes[at, : self.PLAIN] = part[: self.PLAIN]
            slopes[at, self.SEND_FACTOR] = part[SEND_BYTE]
            slopes[at, self.SETTLE_FACTOR] = part[SETTLE_BYTE]
            of_kind = (
                part[SEND_BYTE] + part[TAKE_BYTE], part[FOLD_BYTE] + part[SETTLE_BYTE], part[SHARE_BYTE]
            )  # fmt: skip
            slopes[at, self.BYTES :] = np.outer(of_kind, _shares(self.knots, memory_bytes)).ravel()
        return times, slopes

    def penalties(self) -> FloatArray:
        """Return rows that draw each number towards where it began, and costs of bytes towards those of the next knot."""
        knots = len(self.knots)
        count = self.BYTES + 3 * knots
        rows = [_STAY * np.eye(count)]
        for place in range(self.BYTES, count):
            if (place - self.BYTES + 1) % knots:
                row = np.zeros((1, count))
                row[0, place], row[0, place + 1] = _SMOOTH, -_SMOOTH
                rows.append(row)
        return np.concatenate(rows)


def _descend(
    function: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    begin: FloatArray,
    wanted: FloatArray,
    penalties: FloatArray,
) -> tuple[FloatArray, float]:
    """Return where the squares are least (Levenberg-Marquardt), and the root of their mean without the penalties."""
    at, damping = begin, 0.1
    values, slopes = function(at)

    def cost(values: FloatArray, at: FloatArray) -> float:
        return float(((values - wanted) ** 2).sum() + ((penalties @ (at - begin)) ** 2).sum())

    for _ in range(_ROUNDS):
        rows = np.concatenate([slopes, penalties])
        rest = np.concatenate([wanted - values, -penalties @ (at - begin)])
        square = rows.T @ rows
        moved = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-6), rows.T @ rest)
        there = at + np.clip(moved, -2.0, 2.0)
        tried, tried_slopes = function(there)
        before, after = cost(values, at), cost(tried, there)
        if after < before:
            at, values, slopes, damping = there, tried, tried_slopes, damping / 4
            if before - after < 1e-6 * before:
                break
        else:
            damping *= 6
            if damping > 1e6:
                break
    return at, float(np.sqrt(np.mean((values - wanted) ** 2)))


def _acts(case: Timed, means: Means, itemsize: int, per_machine: int) -> Acts:
    schedule = planned("allreduce", case.algorithm, case.ranks, case.nbytes, per_machine=per_machine)
    return acts_of(schedule, case.nbytes // itemsize, itemsize, means)


def _knots(memory: Iterable[int]) -> list[int]:
    """Return those sizes from the smallest on that are far enough apart, the largest among them."""
    found: list[int] = []
    for size in sorted(set(memory), reverse=True):
        if not found or (found[-1] >= size * _KNOTS_APART and size >= _LEAST_KNOT):
            found.append(size)
    return found[::-1]


def _shares(knots: Sequence[int], memory_bytes: int) -> list[float]:
    """Return how much each knot counts at a size in between: logarithmically, and the nearest alone beyond the ends."""
    at = float(np.interp(math.log(max(memory_bytes, 1)), np.log(knots), np.arange(len(knots))))
    return [max(0.0, 1 - abs(place - at)) for place in range(len(knots))]
