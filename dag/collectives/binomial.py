"""Binomial trees: in each step the number of ranks that have the value doubles, or that are left to give theirs halves."""

from __future__ import annotations

import numpy as np

from .schedule import FOLD, REPLACE, Schedule, Step, check_ranks, check_root, moves


def broadcast(ranks: int, *, root: int = 0) -> Schedule:
    """Return the broadcast of all elements from ``root`` in ceil(log2 P) steps."""
    turns = _turns(ranks, root)

    def step(number: int) -> Step:
        reach = 1 << number
        have = np.arange(min(reach, ranks - reach))
        return moves((have + root) % ranks, (have + reach + root) % ranks, 0, mode=REPLACE)

    return Schedule(
        kind="broadcast", algorithm="binomial", ranks=ranks, nodes=ranks, parts=1, steps=turns, step=step,
        keeps_order=True, root=root,
    )  # fmt: skip


def reduce(ranks: int, *, root: int = 0) -> Schedule:
    """Return the sum of all elements at ``root`` in ceil(log2 P) steps.

    Neighbours come first, so the order of ranks is kept where ``root`` is 0, or where all ranks before it are those that give
    it their sum in the last step: P - 2^(ceil(log2 P) - 1).
    """
    turns = _turns(ranks, root)

    def step(number: int) -> Step:
        reach = 1 << number
        giving = np.arange(reach, ranks, 2 * reach)
        return moves((giving + root) % ranks, (giving - reach + root) % ranks, 0, mode=FOLD)

    return Schedule(
        kind="reduce", algorithm="binomial", ranks=ranks, nodes=ranks, parts=1, steps=turns, step=step,
        keeps_order=root in (0, ranks - (1 << turns >> 1)), root=root,
    )  # fmt: skip


def _turns(ranks: int, root: int) -> int:
    check_ranks(ranks)
    check_root(ranks, root)
    return (ranks - 1).bit_length()
