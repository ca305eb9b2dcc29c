"""Recursive halving and doubling: log2 P steps, each with a partner twice as far away.

Rabenseifner, Optimization of collective reduction operations, ICCS 2004; the treatment of sizes that are no power of two and
the costs are those of MPICH (src/mpi/coll/allreduce, comments).
"""

from __future__ import annotations

import numpy as np

from .schedule import FOLD, HOLD, REPLACE, IntArray, Schedule, Step, check_ranks, moves


def halving(ranks: int) -> Schedule:
    """Return Rabenseifner's all-reduce: a reduce-scatter by halving, an all-gather by doubling.

    2 log2 P steps and 2(P-1)N/P elements per rank for a power of two; else two more steps, in which the first ranks give
    all they have to a neighbour and get the result from it.  Neighbours are folded first, so the order of ranks is kept.
    """
    active, core, bits = _core(ranks)
    extra = int(core < ranks)
    me = np.arange(core)
    mirrored = _reversed(me, bits)

    def step(number: int) -> Step:
        if extra and number in (0, 2 * bits + 1):
            return _outside(ranks, core, core, before=number == 0)
        turn = number - extra
        down = turn < bits
        bit = turn if down else 2 * bits - 1 - turn
        # After b halvings a rank has core >> b parts, beginning where its lowest b bits, reversed, say.
        left = bits - bit
        low = mirrored >> left << left
        half = core >> (bit + 1)
        upper = half * ((me >> bit) & 1)
        start, mode = (low + half - upper, FOLD) if down else (low + upper, REPLACE)
        return moves(active, active[me ^ (1 << bit)], start, start + half, mode=mode)

    return Schedule(
        kind="allreduce", algorithm="halving", ranks=ranks, nodes=ranks, parts=core, steps=2 * (bits + extra), step=step,
        keeps_order=True,
    )  # fmt: skip


def reduce_scatter(ranks: int) -> Schedule:
    """Return the reduce-scatter by recursive halving: log2 P steps, N(P-1)/P elements per rank for a power of two.

    Partners far away come first, so that what a rank keeps is one piece; the order of ranks is not kept.  For other sizes
    the first ranks give all they have to a neighbour, and get their part from it at the end.
    """
    active, core, bits = _core(ranks)
    extra, first = int(core < ranks), _first_parts(ranks, core)
    me = np.arange(core)

    def step(number: int) -> Step:
        if extra and number == 0:
            return _outside(ranks, core, ranks, before=True)
        if extra and number == bits + 1:
            even = np.arange(0, 2 * (ranks - core), 2)
            return moves(even + 1, even, even, mode=REPLACE)
        bit = bits - 1 - (number - extra)
        other = me ^ (1 << bit)
        low = other >> bit << bit
        return moves(active, active[other], first[low], first[low + (1 << bit)], mode=FOLD)

    return Schedule(
        kind="reduce_scatter", algorithm="halving", ranks=ranks, nodes=ranks, parts=ranks, steps=bits + 2 * extra, step=step,
        keeps_order=ranks <= 3,
    )  # fmt: skip


def all_gather(ranks: int) -> Schedule:
    """Return the all-gather by recursive doubling: log2 P steps, N(P-1)/P elements per rank for a power of two.

    For other sizes the first ranks give their part to a neighbour, and get all parts from it at the end.
    """
    active, core, bits = _core(ranks)
    extra, first = int(core < ranks), _first_parts(ranks, core)
    me = np.arange(core)

    def step(number: int) -> Step:
        if extra and number == 0:
            even = np.arange(0, 2 * (ranks - core), 2)
            return moves(even, even + 1, even, mode=REPLACE)
        if extra and number == bits + 1:
            return _outside(ranks, core, ranks, before=False)
        bit = number - extra
        low = me >> bit << bit
        return moves(active, active[me ^ (1 << bit)], first[low], first[low + (1 << bit)], mode=REPLACE)

    return Schedule(
        kind="all_gather", algorithm="halving", ranks=ranks, nodes=ranks, parts=ranks, steps=bits + 2 * extra, step=step,
        keeps_order=True,
    )  # fmt: skip


def doubling(ranks: int) -> Schedule:
    """Return the all-reduce by recursive doubling: log2 P steps in which partners exchange all they have.

    For short messages: fewest steps, N log2 P elements per rank.  Both partners fold the same two values in the order of
    ranks, so all hold the same bits.
    """
    active, core, bits = _core(ranks)
    extra = int(core < ranks)
    me = np.arange(core)

    def step(number: int) -> Step:
        if extra and number in (0, bits + 1):
            return _outside(ranks, core, 1, before=number == 0)
        return moves(active, active[me ^ (1 << (number - extra))], 0, mode=HOLD, settle=True)

    return Schedule(
        kind="allreduce", algorithm="doubling", ranks=ranks, nodes=ranks, parts=1, steps=bits + 2 * extra, step=step,
        keeps_order=True,
    )  # fmt: skip


def _core(ranks: int) -> tuple[IntArray, int, int]:
    """Return the ranks that take part in the power of two, its size, and its logarithm."""
    check_ranks(ranks)
    bits = ranks.bit_length() - 1
    core = 1 << bits
    paired = 2 * (ranks - core)
    return np.concatenate([np.arange(1, paired, 2), np.arange(paired, ranks)]), core, bits


def _first_parts(ranks: int, core: int) -> IntArray:
    """Return where the parts of each rank in the power of two begin, and where the last one ends: two parts with a neighbour."""
    place = np.arange(core + 1)
    return np.minimum(2 * place, place + ranks - core)


def _outside(ranks: int, core: int, parts: int, *, before: bool) -> Step:
    """Return the step in which even ranks below 2(P - core) give all parts to the next rank, or get them from it."""
    even = np.arange(0, 2 * (ranks - core), 2)
    if before:
        return moves(even, even + 1, 0, parts, mode=FOLD)
    return moves(even + 1, even, 0, parts, mode=REPLACE)


def _reversed(value: IntArray, bits: int) -> IntArray:
    """Return the lowest ``bits`` bits of each value in reverse order."""
    result = np.zeros_like(value)
    for bit in range(bits):
        result |= ((value >> bit) & 1) << (bits - 1 - bit)
    return result
