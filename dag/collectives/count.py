"""What a schedule costs before anything runs: bytes, messages, rounds, fan-in and peers, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .schedule import IntArray, Schedule, bounds


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
    """Return what ``schedule`` costs for ``elements`` elements; multiply by their size for bytes."""
    at = bounds(elements, schedule.parts)
    sent = np.zeros(schedule.nodes, np.int64)
    received = np.zeros(schedule.nodes, np.int64)
    rounds = messages = fan_in = 0
    pairs: IntArray = np.zeros(0, np.int64)
    for step in schedule:
        sizes = at[step.stop] - at[step.start]
        full = sizes > 0
        if not full.any():
            continue
        src, dst, sizes = step.src[full], step.dst[full], sizes[full]
        sent += np.bincount(src, sizes, schedule.nodes).astype(np.int64)
        arriving = np.bincount(dst, minlength=schedule.nodes)
        received += np.bincount(dst, sizes, schedule.nodes).astype(np.int64)
        rounds, messages, fan_in = rounds + 1, messages + len(src), max(fan_in, int(arriving.max()))
        pairs = np.unique(np.concatenate([pairs, src * schedule.nodes + dst, dst * schedule.nodes + src]))
    peers = np.bincount(pairs // schedule.nodes, minlength=schedule.nodes)
    return Counts(sent=sent, received=received, rounds=rounds, messages=messages, fan_in=fan_in, peers=peers)
