"""A model of one machine from a few measured times, and what it says of everything that was not measured.

The machine is a ``Network`` of ranks that share its cores.  What a message costs is the same for all sizes; what a byte costs
goes by the memory that all ranks use together, since that decides which cache it is in.  All of it is fitted at once, to the
logarithms of times: 10 % too long counts as much for microseconds as for seconds.  Pure: who measures is somewhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..errors import BadCollective
from .choose import planned
from .networks import Link, Network
from .schedule import Schedule
from .simulate import simulate

FloatArray = npt.NDArray[np.float64]

#: Sizes of memory at which the cost of a byte is fitted: apart by at least this factor, and none below so many bytes, where
#: bytes cost too little beside messages to be told from them.
_KNOTS_APART, _LEAST_KNOT = 3.0, 100_000
_ROUNDS = 25
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
    """What a byte costs where all ranks together use ``memory_bytes``: to be moved, and to be folded where it arrives."""

    memory_bytes: int
    move_s: float
    fold_s: float


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What ``fit`` found.

    Args:
        cores: which the ranks share.
        pulled: as of ``Network``: by shared memory, not through sockets.
        start_s, latency_s, overhead_s, turn_s: as of ``Network``.
        bytes_: by ``memory_bytes``, ascending; in between costs go by the logarithm.
        held_factor: how many times as much as folding it where it arrives it costs to fold a byte that was put aside first.
        error: the root of the mean square of what is left: 0.1 is about 10 %.
    """

    cores: int
    pulled: bool
    start_s: float
    latency_s: float
    overhead_s: float
    turn_s: float
    bytes_: tuple[ByteCosts, ...]
    held_factor: float
    error: float = math.nan

    def network(self, ranks: int, nbytes: int) -> Network:
        """Return the network that ``ranks`` ranks with ``nbytes`` bytes each meet on this machine."""
        share = _shares([each.memory_bytes for each in self.bytes_], ranks * nbytes)
        move_s, fold_s = (
            math.exp(sum(part * math.log(getattr(each, name)) for part, each in zip(share, self.bytes_, strict=True)))
            for name in ("move_s", "fold_s")
        )  # fmt: skip
        link = Link(latency_s=self.latency_s, s_per_byte=move_s)
        return Network(
            inside=link, across=link, per_machine=max(1, ranks), start_s=self.start_s, overhead_s=self.overhead_s,
            reduce_s_per_byte=fold_s, held_s_per_byte=fold_s * self.held_factor, cores=self.cores, turn_s=self.turn_s,
            pulled=self.pulled,
        )  # fmt: skip


def predict(machine: Machine, case: Timed, *, itemsize: int = 4, per_machine: int = 2) -> float:
    """Return how long ``case`` takes on ``machine``, in seconds.

    Args:
        per_machine: into which groups two levels take ranks of one machine, as ``choose.ranks_per_machine`` has it.
    """
    schedule = _plan(case, per_machine)
    return simulate(
        schedule, case.nbytes // itemsize, itemsize, machine.network(case.ranks, case.nbytes)
    ).seconds


def fit(
    measured: Iterable[Timed], *, cores: int, pulled: bool = True, itemsize: int = 4, per_machine: int = 2
) -> Machine:
    """Return the machine whose simulated times are nearest to those measured.

    Measure at least: one size that is nearly all messages and two that are nearly all bytes; as many ranks as cores and about
    twice and four times as many; algorithms of few and of many steps, one that holds (doubling, direct_whole), one with a fan-in.

    Args:
        cores, pulled, itemsize, per_machine: see ``Machine`` and ``predict``.

    Raises:
        BadCollective: fewer than 4 measurements, fewer than 2 sizes, or a time that is not above 0.
    """
    cases = [case for case in measured if case.ranks > 1]
    if len(cases) < 4 or len({case.nbytes for case in cases}) < 2:
        raise BadCollective(
            f"a machine is fitted to at least 4 times of 2 sizes with 2 ranks or more, got {len(cases)} times of "
            f"{len({case.nbytes for case in cases})} sizes"
        )
    for case in cases:
        if not 0 < case.seconds < math.inf:
            raise BadCollective(f"{case}: a time is above 0, and there are bytes to sum")
    knots = _knots(case.ranks * case.nbytes for case in cases)
    model = _Model(cases, knots, cores, pulled, itemsize, per_machine)
    found, error = _descend(model.times, model.begin(), model.wanted, model.penalties())
    return replace(model.machine(found), error=error)


class _Model:
    """The simulated times of the measured cases as a function of the logarithms of what is fitted.

    The order: start, latency, overhead, turn, held_factor, then move and fold of each knot.
    """

    PLAIN = 5

    def __init__(
        self,
        cases: Sequence[Timed],
        knots: Sequence[int],
        cores: int,
        pulled: bool,
        itemsize: int,
        per_machine: int,
    ) -> None:
        self.cases, self.knots = cases, knots
        self.cores, self.pulled, self.itemsize = cores, pulled, itemsize
        self.schedules = [_plan(case, per_machine) for case in cases]
        self.wanted = np.log([case.seconds for case in cases])

    def begin(self) -> FloatArray:
        """Return where the search begins: from the shortest time and the fastest bytes of what was measured."""
        short = min(case.seconds for case in self.cases)
        rate = min(case.seconds / case.nbytes for case in self.cases if case.nbytes)
        return np.log(
            [short / 4, short / 4, short / 10, short / 4, 1.5, *([rate / 2, rate / 4] * len(self.knots))]
        )

    def machine(self, logs: FloatArray) -> Machine:
        """Return what the logarithms stand for."""
        start_s, latency_s, overhead_s, turn_s, held_factor, *rates = np.exp(logs).tolist()
        return Machine(
            cores=self.cores, pulled=self.pulled, start_s=start_s, latency_s=latency_s, overhead_s=overhead_s,
            turn_s=turn_s, held_factor=held_factor,
            bytes_=tuple(
                ByteCosts(memory_bytes=knot, move_s=move_s, fold_s=fold_s)
                for knot, move_s, fold_s in zip(self.knots, rates[::2], rates[1::2], strict=True)
            ),
        )  # fmt: skip

    def times(self, logs: FloatArray, slopes: bool) -> tuple[FloatArray, FloatArray]:
        """Return the logarithms of the simulated times, and how they change with what is fitted where that is asked for."""
        machine = self.machine(logs)
        times = np.zeros(len(self.cases))
        slope = np.zeros((len(self.cases), len(logs)))
        step = 1e-4
        for at, (case, schedule) in enumerate(zip(self.cases, self.schedules, strict=True)):
            network = machine.network(case.ranks, case.nbytes)
            times[at] = self._time(case, schedule, network)
            if not slopes:
                continue
            share = _shares(self.knots, case.ranks * case.nbytes)
            for place, changed in enumerate(_changed(network, math.exp(step))):
                slope_at = (self._time(case, schedule, changed) - times[at]) / step
                if place < self.PLAIN:
                    slope[at, place] = slope_at
                else:
                    slope[at, place::2] = slope_at * np.array(share)
        return times, slope

    def _time(self, case: Timed, schedule: Schedule, network: Network) -> float:
        return math.log(simulate(schedule, case.nbytes // self.itemsize, self.itemsize, network).seconds)

    def penalties(self) -> FloatArray:
        """Return rows that draw each number towards where it began, and costs of bytes towards those of the next knot."""
        count = self.PLAIN + 2 * len(self.knots)
        rows = [_STAY * np.eye(count)]
        for place in range(self.PLAIN, count - 2):
            row = np.zeros((1, count))
            row[0, place], row[0, place + 2] = _SMOOTH, -_SMOOTH
            rows.append(row)
        return np.concatenate(rows)


def _changed(network: Network, factor: float) -> list[Network]:
    """Return networks in which one number each is multiplied: the order of ``_Model``, with move and fold at the end."""
    link = network.inside
    held = network.held_s_per_byte
    assert held is not None

    def linked(other: Link) -> Network:
        return replace(network, inside=other, across=other)

    return [
        replace(network, start_s=network.start_s * factor),
        linked(replace(link, latency_s=link.latency_s * factor)),
        replace(network, overhead_s=network.overhead_s * factor),
        replace(network, turn_s=network.turn_s * factor),
        replace(network, held_s_per_byte=held * factor),
        linked(replace(link, s_per_byte=link.s_per_byte * factor)),
        replace(network, reduce_s_per_byte=network.reduce_s_per_byte * factor, held_s_per_byte=held * factor),
    ]


def _descend(
    function: Callable[[FloatArray, bool], tuple[FloatArray, FloatArray]],
    begin: FloatArray,
    wanted: FloatArray,
    penalties: FloatArray,
) -> tuple[FloatArray, float]:
    """Return where the squares are least (Levenberg-Marquardt), and the root of their mean without the penalties."""
    at, damping = begin, 0.1
    values, slopes = function(at, True)

    def cost(values: FloatArray, at: FloatArray) -> float:
        return float(((values - wanted) ** 2).sum() + ((penalties @ (at - begin)) ** 2).sum())

    for _ in range(_ROUNDS):
        rows = np.concatenate([slopes, penalties])
        rest = np.concatenate([wanted - values, -penalties @ (at - begin)])
        square = rows.T @ rows
        moved = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-6), rows.T @ rest)
        there = at + np.clip(moved, -2.0, 2.0)
        tried, _ = function(there, False)
        before, after = cost(values, at), cost(tried, there)
        if after < before:
            at, damping = there, damping / 4
            values, slopes = function(at, True)
            if before - after < 1e-6 * before:
                break
        else:
            damping *= 6
            if damping > 1e6:
                break
    return at, float(np.sqrt(np.mean((values - wanted) ** 2)))


def _plan(case: Timed, per_machine: int) -> Schedule:
    return planned("allreduce", case.algorithm, case.ranks, case.nbytes, per_machine=per_machine)


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
