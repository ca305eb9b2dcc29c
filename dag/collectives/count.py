"""What a schedule costs before anything runs: bytes, messages, rounds, fan-in and peers, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import BadCollective
from .schedule import IntArray, Rotation, Schedule, bounds

#: Pairs of nodes that are gathered before those that are known already are left out.
PAIRS_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """The cost of a schedule for a number of elements.

    Args:
        sent, received: elements by node.
        rounds: steps in which anything moves.
        messages: moves, empty ones left out.
        fan_in: the most that arrive at one node in one step.
        peers: for each node, how many others it exchanges anything with: the connections that it must hold.
    """

    sent: IntArray
    received: IntArray
    rounds: int
    messages: int
    fan_in: int
    peers: IntArray


def count(schedule: Schedule, elements: int) -> Counts:
    """Return what ``schedule`` costs for ``elements`` elements; multiply by their size for bytes.

    A schedule that looks the same from every rank (ring, sharded, direct, direct_whole) is counted from its ``rotation``, in
    work that grows with the moves of one rank, with ranks squared where some parts are empty; others from all their moves.

    Raises:
        BadCollective: ``elements`` is negative.
    """
    if elements < 0:
        raise BadCollective(f"elements are counted from 0 on, got {elements}")
    size = np.diff(bounds(elements, schedule.parts))
    if schedule.rotation is not None:
        return _count_turning(schedule, schedule.rotation, size)
    return count_moves(schedule, size)


def count_moves(schedule: Schedule, size: IntArray) -> Counts:
    """Return the same by going through all moves, with parts of any ``size``."""
    nodes, at = schedule.nodes, np.r_[0, np.cumsum(size)]
    sent, received = np.zeros((2, nodes), np.int64)
    rounds = messages = fan_in = 0
    pairs = last_src = last_dst = total = np.zeros(0, np.int64)
    fresh: list[IntArray] = []
    for step in schedule:
        src, dst, sizes = step.src, step.dst, at.take(step.stop) - at.take(step.start)
        if not (full := sizes > 0).all():
            src, dst, sizes = src[full], dst[full], sizes[full]
        if not len(src):
            continue
        rounds, messages = rounds + 1, messages + len(src)
        # Most steps go the same way as the one before.
        if _equal(src, last_src) and _equal(dst, last_dst):
            total = total + sizes
            continue
        sent += _summed(last_src, total, nodes)
        received += _summed(last_dst, total, nodes)
        last_src, last_dst, total = src, dst, sizes
        fan_in = max(fan_in, int(np.bincount(dst).max()))
        fresh.append(np.minimum(src, dst) * nodes + np.maximum(src, dst))
        if sum(map(len, fresh)) > len(pairs) + PAIRS_AT_ONCE:
            pairs, fresh = np.unique(np.concatenate([pairs, *fresh])), []
    sent += _summed(last_src, total, nodes)
    received += _summed(last_dst, total, nodes)
    pairs = np.unique(np.concatenate([pairs, *fresh]))
    peers = np.bincount(pairs // nodes, minlength=nodes) + np.bincount(pairs % nodes, minlength=nodes)
    return Counts(sent=sent, received=received, rounds=rounds, messages=messages, fan_in=fan_in, peers=peers)


def _equal(one: IntArray, other: IntArray) -> bool:
    return one is other or np.array_equal(one, other)


def _summed(node: IntArray, size: IntArray, nodes: int) -> IntArray:
    """Return the sum of sizes by node; sums of floats are exact up to 2**53."""
    return np.bincount(node, size, nodes).astype(np.int64)


def _count_turning(schedule: Schedule, rotation: Rotation, size: IntArray) -> Counts:
    """Rank r gives and takes what rank 0 does, with r added to each part."""
    ranks, full = schedule.ranks, (size > 0).astype(np.int64)
    taken = rotation.part - rotation.to
    steps = np.split(taken, np.flatnonzero(np.diff(rotation.at)) + 1) if len(taken) and full.any() else []
    alone = [len(here) == 1 for here in steps]
    fan_in = max(
        (int(_turned(full, here, ranks).max()) for here, one in zip(steps, alone, strict=True) if not one),
        default=0,
    )
    return Counts(
        sent=_turned(size, rotation.part, ranks),
        received=_turned(size, taken, ranks),
        rounds=len(steps),
        messages=int(_turned(full, rotation.part, ranks).sum()),
        fan_in=max(fan_in, int(any(alone))),
        peers=_peers(rotation, full, ranks),
    )


def _turned(value: IntArray, part: IntArray, ranks: int) -> IntArray:
    """Return for each rank r the sum of ``value[part + r]``; there is one value, or one per rank."""
    parts = len(value)
    found, times = np.unique(part % parts, return_counts=True)
    most = 0
    if 2 * len(found) > parts:
        # Almost all parts occur equally often: those that do not are added one by one.
        times = np.bincount(part % parts, minlength=parts)
        most = int(np.median(times))
        found = np.flatnonzero(times != most)
        times = times[found] - most
    total = np.full(ranks, most * int(value.sum()), np.int64)
    twice = np.resize(value, parts + ranks)
    for begin, more in zip(found.tolist(), times.tolist(), strict=True):
        total += more * twice[begin : begin + ranks]
    return total


def _peers(rotation: Rotation, full: IntArray, ranks: int) -> IntArray:
    """Return with how many others each rank exchanges anything."""
    distances = np.unique(np.concatenate([rotation.to, -rotation.to % ranks]))
    if full.all():
        return np.full(ranks, len(distances))
    order = np.argsort(rotation.to, kind="stable")
    to = rotation.to[order]
    peers = np.zeros(ranks, np.int64)
    for distance in distances.tolist():
        reached = np.zeros(ranks, np.bool_)
        for way, taking in ((distance, 0), (-distance % ranks, -distance % ranks)):
            low, high = np.searchsorted(to, (way, way + 1))
            reached |= _turned(full, rotation.part[order[low:high]] - taking, ranks) > 0
        peers += reached
    return peers
