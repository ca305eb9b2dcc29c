"""How long a schedule takes on a network that no one here has: every node has a clock, every link a queue.

The model, per step and node: a message costs its sender ``overhead_s`` of time and then its bytes on the sender's link; it
arrives ``latency_s`` after it has left, but no earlier than the receiver's link has taken what came before it; what is folded
costs ``reduce_s_per_byte``.  A node goes on when all of its own sends have left and all that it expects has been folded, so
steps of different nodes overlap as far as the schedule allows.  Messages between machines use the one link of their machine.
Links serve messages in the order in which they are ready, not shared between them: when the last of several is through is the
same.  Nothing here measures anything; ``calibrate`` fits a network to what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import BadCollective
from .schedule import FOLD, HOLD, IntArray, Schedule, Step, bounds

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a message meets on its way: ``latency_s`` once, ``s_per_byte`` for each byte."""

    latency_s: float
    s_per_byte: float


@dataclass(frozen=True, kw_only=True)
class Incast:
    """A switch port that holds ``buffer_bytes``: senders at once beyond that lose packets and wait for a timeout.

    ``window_bytes`` is what each sender sends before it waits for an answer.  A step in which f senders give to one node costs
    ``timeout_s`` more where f times the window (or the message, if it is smaller) is above the buffer (Phanishayee et al.,
    FAST 2008; Linux' least retransmission timeout is 200 ms).
    """

    buffer_bytes: int
    window_bytes: int
    timeout_s: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Network:
    """Machines of ``per_machine`` ranks: ``inside`` between ranks of one, ``across`` between machines.

    Args:
        inside: each rank has a link of its own each way.
        across: each machine has one link each way, which its ranks share.
        per_machine: ranks of a machine; servers that are no ranks have a machine each.
        overhead_s: what each message costs its sender before it leaves, one after another.
        reduce_s_per_byte: folding a byte that arrived.
        incast: of the ports between machines; None: buffers without end.
    """

    inside: Link
    across: Link
    per_machine: int = 1
    overhead_s: float = 0.0
    reduce_s_per_byte: float = 0.0
    incast: Incast | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Simulated:
    """``seconds`` until the last rank is done, when each node is, and how many steps met a timeout."""

    seconds: float
    by_node: FloatArray
    timeouts: int


def simulate(schedule: Schedule, elements: int, itemsize: int, network: Network) -> Simulated:
    """Return how long ``schedule`` takes for ``elements`` elements of ``itemsize`` bytes on ``network``.

    Raises:
        BadCollective: ``elements`` or ``itemsize`` is negative.
    """
    if elements < 0 or itemsize < 1:
        raise BadCollective(
            f"elements from 0 on and bytes per element from 1 on, got {elements} and {itemsize}"
        )
    size = np.diff(bounds(elements, schedule.parts)).astype(np.float64) * itemsize
    clocks = _Clocks(schedule, network, size)
    for step in schedule:
        clocks.advance(step)
    return Simulated(seconds=float(clocks.now.max(initial=0.0)), by_node=clocks.now, timeouts=clocks.timeouts)


def _machines(schedule: Schedule, per_machine: int) -> IntArray:
    node = np.arange(schedule.nodes, dtype=np.int64)
    beside = -(-schedule.ranks // per_machine) + node - schedule.ranks
    return np.where(node < schedule.ranks, node // per_machine, beside)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Ways:
    """The links that the moves of a step take.

    ``leaving`` and ``arriving`` are None where each move has a link alone.  ``at_src`` and ``at_dst`` say for each node which
    move is its own, the number of moves where none is; None where a node has several.
    """

    src: IntArray
    dst: IntArray
    far: npt.NDArray[np.bool_]
    s_per_byte: FloatArray
    latency_s: FloatArray
    leaving: IntArray | None
    arriving: IntArray | None
    at_src: IntArray | None
    at_dst: IntArray | None


class _Clocks:
    """The time at each node, moved on step by step."""

    def __init__(self, schedule: Schedule, network: Network, size: FloatArray) -> None:
        self.now = np.zeros(schedule.nodes)
        self.timeouts = 0
        self._held = np.zeros(schedule.nodes)
        self._network = network
        self._until = np.r_[0.0, np.cumsum(size)]
        self._even = float(size[0]) if len(size) and (size == size[0]).all() else None
        self._machine = _machines(schedule, network.per_machine)
        self._last: _Ways | None = None

    def advance(self, step: Step) -> None:
        """Move the clocks over one step."""
        network, now = self._network, self.now
        size = self._sizes(step)
        src, dst, mode = step.src, step.dst, step.mode
        if not (full := size > 0).all():
            src, dst, mode, size = src[full], dst[full], mode[full], size[full]
        if len(src):
            ways = self._ways(src, dst)
            takes = size * ways.s_per_byte
            ready = now.take(src)
            if network.overhead_s:
                ready = ready + network.overhead_s * (1 + _place(src))
            left = ready + takes if ways.leaving is None else _served(ways.leaving, ready, takes)
            there = left + ways.latency_s
            if ways.arriving is not None:
                there = _served(ways.arriving, there - takes, takes)
            if network.incast is not None:
                late = _overrun(dst, size, ways.far, network.incast, len(now))
                self.timeouts += int(late.sum())
                there = there + network.incast.timeout_s * late[dst]
            _raise_to(now, src, left, ways.at_src)
            _raise_to(now, dst, there, ways.at_dst)
            if network.reduce_s_per_byte:
                now += np.bincount(dst, size * (mode == FOLD), len(now)) * network.reduce_s_per_byte
                self._held += np.bincount(dst, size * (mode == HOLD), len(now))
        if step.settle:
            now += self._held * network.reduce_s_per_byte
            self._held[:] = 0

    def _sizes(self, step: Step) -> FloatArray:
        if self._even is not None:
            size: FloatArray = (step.stop - step.start) * np.float64(self._even)
        else:
            size = self._until.take(step.stop) - self._until.take(step.start)
        return size

    def _ways(self, src: IntArray, dst: IntArray) -> _Ways:
        last = self._last
        if last is not None and last.src is src and last.dst is dst:
            return last
        network, machine, nodes = self._network, self._machine, len(self._machine)
        far = machine[src] != machine[dst]
        # A machine's link has a number of its own behind those of the nodes.
        leaving = np.where(far, nodes + machine[src], src)
        arriving = np.where(far, nodes + machine[dst], dst)
        self._last = _Ways(
            src=src,
            dst=dst,
            far=far,
            s_per_byte=np.where(far, network.across.s_per_byte, network.inside.s_per_byte),
            latency_s=np.where(far, network.across.latency_s, network.inside.latency_s),
            leaving=leaving if np.bincount(leaving).max() > 1 else None,
            arriving=arriving if np.bincount(arriving).max() > 1 else None,
            at_src=_own_move(src, nodes),
            at_dst=_own_move(dst, nodes),
        )
        return self._last


def _own_move(node: IntArray, nodes: int) -> IntArray | None:
    if np.bincount(node).max() > 1:
        return None
    own = np.full(nodes, len(node), np.int64)
    own[node] = np.arange(len(node))
    return own


def _raise_to(now: FloatArray, node: IntArray, time: FloatArray, own: IntArray | None) -> None:
    """Move the clocks of the nodes forward to ``time``."""
    if own is None:
        np.maximum.at(now, node, time)
    else:
        np.maximum(now, np.append(time, 0.0).take(own), out=now)


def _served(link: IntArray, ready: FloatArray, takes: FloatArray) -> FloatArray:
    """Return when each message is through its link, which serves one at a time in the order in which they are ready."""
    order = np.lexsort((ready, link))
    group, begin, cost = link[order], ready[order], takes[order]
    # done[k] = max over j <= k of begin[j] + cost[j] + ... + cost[k], within the link.
    total = np.cumsum(cost)
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    lengths = np.diff(np.r_[first, len(group)])
    total -= np.repeat(total[first] - cost[first], lengths)
    earliest = begin - (total - cost)
    span = float(earliest.max() - earliest.min()) * 2
    offset = np.repeat(np.arange(len(first)), lengths) * span
    done = np.empty_like(ready)
    done[order] = np.maximum.accumulate(earliest + offset) - offset + total
    return done


def _place(group: IntArray) -> IntArray:
    """Return for each element how many before it have the same value."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    index = np.arange(len(group))
    place = np.empty_like(group)
    place[order] = index - np.maximum.accumulate(np.where(first, index, 0))
    return place


def _overrun(
    dst: IntArray, size: FloatArray, far: npt.NDArray[np.bool_], incast: Incast, nodes: int
) -> FloatArray:
    """Return 1 for each node whose port overflows in this step, else 0."""
    waiting = np.bincount(dst, np.where(far, np.minimum(size, incast.window_bytes), 0.0), nodes)
    senders = np.bincount(dst, far, nodes)
    return ((waiting > incast.buffer_bytes) & (senders > 1)).astype(np.float64)
