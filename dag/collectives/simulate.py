"""How long a schedule takes on a network that no one here has: every node has a clock, every link a queue.

The model, per step and node: a message costs its sender ``overhead_s`` of time and then its bytes on the sender's link; it
arrives ``latency_s`` after it has left, but no earlier than the receiver's link has taken what came before it; what is folded
costs ``reduce_s_per_byte``.  A node goes on when all of its own sends have left and all that it expects has been folded, so
steps of different nodes overlap as far as the schedule allows.  A message may arrive long before its receiver comes to it.

No link ever carries more than it can.  The link of one node serves its messages one after another; the link of a machine or
a rack is shared fairly by those that are ready at once: each comes within half of what it takes after the one before it, and
all are through together.  Across steps a link serves in the order of the steps: a message of a
later step does not overtake, even where it is ready earlier.

Nothing here measures anything.  Ranks of one machine, which copy and fold on its cores, are timed by ``one_machine``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import BadCollective
from .networks import Incast, Network
from .schedule import FOLD, HOLD, IntArray, Schedule, Step, bounds
from .symmetry import moves_of_first, repeats_after, some_moves

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulated:
    """``seconds`` until the last rank is done, when each node is, and how many ports met a timeout in how many steps.

    ``rounds`` are the steps in which anything moves, as ``count`` has them.
    """

    seconds: float
    by_node: FloatArray
    timeouts: int
    rounds: int


def simulate(
    schedule: Schedule, elements: int, itemsize: int, network: Network, *, by_symmetry: bool = True
) -> Simulated:
    """Return how long ``schedule`` takes for ``elements`` elements of ``itemsize`` bytes on ``network``.

    Args:
        by_symmetry: where parts are equal and the plan looks the same from each machine (or rack), follow the ranks of one alone:
            the same times, in a fraction of the work (see ``symmetry``).

    Raises:
        BadCollective: ``elements`` or ``itemsize`` is negative, or a step has too many moves to be made at once.
    """
    if elements < 0 or itemsize < 1:
        raise BadCollective(
            f"elements from 0 on and bytes per element from 1 on, got {elements} and {itemsize}"
        )
    size = np.diff(bounds(elements, schedule.parts)).astype(np.float64) * itemsize
    group = network.per_machine * (network.racks.machines if network.racks else 1)
    even = bool(len(size)) and bool((size == size[0]).all())
    followed = repeats_after(schedule, group) if by_symmetry and even else None
    clocks = _Clocks(schedule, network, size, followed or schedule.nodes)
    for number in range(schedule.steps):
        clocks.advance(moves_of_first(schedule, number, followed))
    times = schedule.nodes // len(clocks.now)
    by_node = np.tile(clocks.now, times) + network.start_s * (schedule.steps > 0)
    return Simulated(
        seconds=float(by_node.max(initial=0.0)), by_node=by_node, timeouts=clocks.timeouts * times, rounds=clocks.rounds
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class _Way:
    """The links that the moves of a step take through one stage.

    ``link`` is the link of each move, ``alone`` says that no two share one, ``order`` sorts the moves by link, ``last`` is where
    in that order each link ends, and from number ``fair`` on links are shared by those who are ready at once.
    """

    link: IntArray
    alone: bool
    order: IntArray | None
    last: IntArray | None
    fair: int


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ways:
    """What the moves of a step meet; ``dst`` as the plan names it, ``to`` as one of the nodes that are followed."""

    src: IntArray
    dst: IntArray
    to: IntArray
    far: BoolArray
    s_per_byte: FloatArray | float
    latency_s: FloatArray | float
    slow: FloatArray | float
    slow_node: FloatArray | float
    place: IntArray | None
    leaving: _Way
    arriving: _Way
    climbing: IntArray | None
    up: _Way | None
    down: _Way | None
    at_src: IntArray | None
    at_dst: IntArray | None


class _Queue:
    """Until when each link of one stage is busy."""

    def __init__(self, links: int) -> None:
        self._until = np.zeros(links)
        self._last: tuple[_Way, FloatArray] | None = None

    def through(self, way: _Way, ready: FloatArray, takes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return when the first and the last byte of each message are through, and keep the links busy until then.

        Args:
            ready: when its first byte is there.
            takes: how long it takes if it has the link for itself.
        """
        if self._last is not None and self._last[0] is way:
            free = self._last[1]  # the same moves as in the step before: no need to look the links up
        else:
            if self._last is not None:
                self._until[self._last[0].link] = self._last[1]
                self._last = None
            free = self._until.take(way.link)
        begin = np.maximum(ready, free)
        if way.alone:
            done = begin + takes
            self._last = way, done
        else:
            begin, done = _served(way, begin, takes)
            assert way.order is not None
            assert way.last is not None
            latest = np.maximum.reduceat(done[way.order], np.r_[0, way.last[:-1] + 1])
            self._until[way.link[way.order[way.last]]] = latest
        return begin, done


class _Clocks:
    """The time at each node that is followed, moved on step by step."""

    def __init__(self, schedule: Schedule, network: Network, size: FloatArray, followed: int) -> None:
        self.now = np.zeros(followed)
        self.timeouts = self.rounds = 0
        self._held = np.zeros(followed)
        self._network = network
        self._size = size
        self._until = np.r_[0.0, np.cumsum(size)]
        self._even = float(size[0]) if len(size) and (size == size[0]).all() else None
        self._hollow = size > 0 if not size.all() else None
        node = np.arange(schedule.nodes, dtype=np.int64)
        beside = -(-schedule.ranks // network.per_machine) + node - schedule.ranks
        self._machine = np.where(node < schedule.ranks, node // network.per_machine, beside)
        self._machines = -(-followed // network.per_machine) + schedule.nodes - schedule.ranks
        self._rack = self._machine // (network.racks.machines if network.racks else 1)
        self._racks = int(self._rack.max(initial=0)) + 1
        self._out, self._in = (_Queue(followed + self._machines) for _ in range(2))
        self._up, self._down = (_Queue(self._racks) for _ in range(2))
        self._last: _Ways | None = None

    def advance(self, step: Step) -> None:
        """Move the clocks over one step."""
        if self._hollow is not None and len(step) and int((step.stop - step.start).max()) == 1:
            # Of thousands of moves few are not empty: those are found by one look at their parts.
            step = some_moves(step, np.flatnonzero(self._hollow.take(step.start)))
        size = self._sizes(step)
        if not size.all():
            full = np.flatnonzero(size > 0)
            step, size = some_moves(step, full), size[full]
        src, dst, mode = step.src, step.dst, step.mode
        if len(src):
            self.rounds += 1
            self._move(self._ways(src, dst), size, mode)
        if step.settle:
            slow = self._last.slow_node if self._last is not None else 1.0
            self.now += self._held * (self._network.reduce_s_per_byte * slow)
            self._held[:] = 0

    def _move(self, ways: _Ways, size: FloatArray, mode: IntArray) -> None:
        network, now, nodes = self._network, self.now, len(self.now)
        takes = size * ways.s_per_byte
        ready = now.take(ways.src)
        if ways.place is not None:
            ready = ready + network.overhead_s * ways.slow * (1 + ways.place)
        elif network.overhead_s:
            ready = ready + network.overhead_s * ways.slow
        begun, left = self._out.through(ways.leaving, ready, takes)
        begins, there = begun + ways.latency_s, left + ways.latency_s
        if ways.climbing is not None:
            self._climb(ways, begins, there, size)
        there = np.maximum(there, self._in.through(ways.arriving, begins, takes)[1])
        if network.incast is not None:
            late = _overrun(ways, size, network, network.incast, nodes)
            self.timeouts += int(late.sum())
            there = there + network.incast.timeout_s * late[ways.to]
        for node, own, time in ((ways.src, ways.at_src, left), (ways.to, ways.at_dst, there)):
            if own is None:
                np.maximum.at(now, node, time)
            else:
                np.maximum(now, time.take(own), out=now)
        if network.reduce_s_per_byte:
            folded = np.bincount(ways.to, size * (mode == FOLD), nodes)
            now += folded * (network.reduce_s_per_byte * ways.slow_node)
            self._held += np.bincount(ways.to, size * (mode == HOLD), nodes)

    def _climb(self, ways: _Ways, begins: FloatArray, there: FloatArray, size: FloatArray) -> None:
        """Put off those messages that leave their rack until they are through its link and that of the other rack."""
        assert self._network.racks is not None
        link, climbing = self._network.racks.link, ways.climbing
        for queue, way, latency_s in ((self._up, ways.up, link.latency_s), (self._down, ways.down, 0.0)):
            assert way is not None
            first, last = queue.through(way, begins[climbing], size[climbing] * link.s_per_byte)
            begins[climbing] = first + latency_s
            there[climbing] = np.maximum(there[climbing], last) + latency_s

    def _sizes(self, step: Step) -> FloatArray:
        if self._even is not None:
            size: FloatArray = (step.stop - step.start) * np.float64(self._even)
        else:
            size = self._until.take(step.stop) - self._until.take(step.start)
        return size

    def _ways(self, src: IntArray, dst: IntArray) -> _Ways:
        last = self._last
        if last is not None and len(last.src) == len(src):
            same = last.src is src or bool((last.src == src).all())
            if same and (last.dst is dst or bool((last.dst == dst).all())):
                return last
        self._last = self._find_ways(src, dst)
        return self._last

    def _find_ways(self, src: IntArray, dst: IntArray) -> _Ways:
        network, nodes = self._network, len(self.now)
        to = dst if nodes == len(self._machine) else dst % nodes
        if (one := network.per_machine == 1) and (src != dst).all():
            # The link of a node is that of its machine.
            far = np.ones(len(src), np.bool_)
            leaving, arriving = src, to
            s_per_byte: FloatArray | float = network.across.s_per_byte
            latency_s: FloatArray | float = network.across.latency_s
        else:
            machine_from, machine_to = self._machine[src], self._machine[dst]
            far = machine_from != machine_to
            # A machine's link has a number of its own behind those of the nodes.
            leaving = np.where(far, nodes + machine_from, src)
            arriving = np.where(far, nodes + self._machine[to], to)
            s_per_byte = np.where(far, network.across.s_per_byte, network.inside.s_per_byte)
            latency_s = np.where(far, network.across.latency_s, network.inside.latency_s)
        slow: FloatArray | float = 1.0
        slow_node: FloatArray | float = 1.0
        if network.cores is not None:
            slow_node = self._slowness(src, to, network.cores)
            slow = np.maximum(slow_node[src], slow_node[to])
            s_per_byte = np.where(far, s_per_byte, s_per_byte * slow)
        climbing = up = down = None
        if network.racks is not None and (crosses := self._rack[src] != self._rack[dst]).any():
            climbing = np.flatnonzero(crosses)
            up = _way(self._rack[src[climbing]], self._racks, fair=0)
            down = _way(self._rack[to[climbing]], self._racks, fair=0)
        links = nodes + self._machines
        # Links of machines come after those of nodes.
        fair = links if one else nodes
        place = _place(src) if network.overhead_s else None
        return _Ways(
            src=src,
            dst=dst,
            to=to,
            far=far,
            s_per_byte=s_per_byte,
            latency_s=latency_s,
            slow=slow,
            slow_node=slow_node,
            place=place if place is not None and place.any() else None,
            leaving=_way(leaving, links, fair=fair),
            arriving=_way(arriving, links, fair=fair),
            climbing=climbing,
            up=up,
            down=down,
            at_src=_own_move(src, nodes),
            at_dst=_own_move(to, nodes),
        )

    def _slowness(self, src: IntArray, to: IntArray, cores: int) -> FloatArray:
        """Return for each node how many times as long its work takes, since so many of its machine work at once."""
        busy = np.zeros(len(self.now), np.bool_)
        busy[src] = busy[to] = True
        machine = self._machine[: len(busy)]
        at_work = np.bincount(machine, busy, int(machine.max(initial=0)) + 1)
        return np.maximum(1.0, at_work / cores)[machine]


def _way(link: IntArray, links: int, *, fair: int) -> _Way:
    if len(link) * 16 < links:
        ordered = np.sort(link)
        alone = bool((ordered[1:] != ordered[:-1]).all())
    else:
        alone = bool(np.bincount(link).max(initial=0) <= 1)
    if alone:
        return _Way(link=link, alone=True, order=None, last=None, fair=fair)
    order = np.argsort(link, kind="stable")
    last = np.flatnonzero(np.r_[np.diff(link[order]) != 0, True])
    return _Way(link=link, alone=False, order=order, last=last, fair=fair)


def _own_move(node: IntArray, nodes: int) -> IntArray | None:
    """Return which move is each node's own; None where one has several, or none."""
    if len(node) != nodes:
        return None
    own = np.full(nodes, -1, np.int64)
    own[node] = np.arange(nodes)
    return own if (own >= 0).all() else None


def _served(way: _Way, ready: FloatArray, takes: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return when each message begins and ends on its link, which serves in the order in which they are ready.

    Where the link is shared fairly, those that are ready at about the same time end at the same time.
    """
    order = way.order
    assert order is not None
    link, begin = way.link[order], ready[order]
    other = link[1:] != link[:-1]
    if not ((begin[1:] >= begin[:-1]) | other).all():
        order = np.lexsort((ready, way.link))
        begin = ready[order]
    cost = takes[order]
    # done[k] = max over j <= k of begin[j] + cost[j] + ... + cost[k], within the link.
    total = np.cumsum(cost)
    first = np.flatnonzero(np.r_[True, other])
    lengths = np.diff(np.r_[first, len(link)])
    total -= np.repeat(total[first] - cost[first], lengths)
    earliest = begin - (total - cost)
    if len(first) > 1:
        # The maximum must not run from one link into the next: each is lifted above the one before.
        span = float(earliest.max() - earliest.min()) * 2
        offset = np.repeat(np.arange(len(first)), lengths) * span
        done = np.maximum.accumulate(earliest + offset) - offset + total
    else:
        done = np.maximum.accumulate(earliest) + total
    begun = done - cost
    if link[-1] >= way.fair:
        # Of two alike that come t apart the first is through t before the second, not the whole time that one takes: half way
        # between, serving them together or one after the other is equally wrong.
        last = np.flatnonzero(
            np.r_[other | (begin[1:] - begin[:-1] > cost[1:] * 0.500001) | (link[1:] < way.fair), True]
        )
        together = np.diff(np.r_[-1, last])
        done = np.repeat(done[last], together)
        begun = np.maximum(np.repeat(begun[last - together + 1], together), begin)
    first_byte, last_byte = np.empty_like(ready), np.empty_like(ready)
    first_byte[order], last_byte[order] = begun, done
    return first_byte, last_byte


def _place(group: IntArray) -> IntArray:
    """Return for each element how many before it have the same value."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    index = np.arange(len(group))
    place = np.empty_like(group)
    place[order] = index - np.maximum.accumulate(np.where(first, index, 0))
    return place


def _overrun(ways: _Ways, size: FloatArray, network: Network, incast: Incast, nodes: int) -> FloatArray:
    """Return 1 for each node whose port overflows in this step, else 0."""
    waiting = np.bincount(ways.to, np.where(ways.far, np.minimum(size, incast.window_bytes), 0.0), nodes)
    senders = np.bincount(ways.to, ways.far, nodes)
    across = network.across
    room = incast.buffer_bytes + (2 * across.latency_s / across.s_per_byte if across.s_per_byte else np.inf)
    return ((waiting > room) & (senders > 1)).astype(np.float64)
