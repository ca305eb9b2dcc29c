"""Trees: sums go up to a root and come down again, in chunks that follow each other.

One tree leaves half of the ranks with nothing to send up but their own; two trees, in which no rank is inner twice, give
each half of the elements and keep all of them busy (Sanders, Speck & Träff, Two-tree algorithms for full bandwidth
broadcast, reduction and scan, Parallel Computing 2009).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import BadCollective
from .schedule import FOLD, REPLACE, IntArray, Schedule, Step, check_ranks, joined, moves


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree:
    """``parent[r]`` is -1 at the root; ``depth[r]`` is 0 there."""

    parent: IntArray
    depth: IntArray

    @property
    def height(self) -> int:
        """The depth of the deepest rank."""
        return int(self.depth.max(initial=0))


def balanced(ranks: int) -> Tree:
    """Return the binary tree numbered in order (left, itself, right) whose subtrees differ by at most one rank."""
    parent = np.full(ranks, -1, np.int64)
    pending = [(0, ranks, -1)]
    while pending:
        low, high, above = pending.pop()
        if low < high:
            middle = (low + high) // 2
            parent[middle] = above
            pending += [(low, middle, middle), (middle + 1, high, middle)]
    return Tree(parent=parent, depth=_depths(parent))


def in_order(ranks: int) -> Tree:
    """Return the binary tree in which a rank's height is its lowest set bit: odd ranks are leaves, rank 0 is the root.

    As NCCL builds it (src/graph/trees.cc): it is defined for each rank alone, without the others.
    """
    rank = np.arange(ranks, dtype=np.int64)
    bit = rank & -rank
    up = (rank ^ bit) | (bit << 1)
    parent = np.where(up < ranks, up, rank ^ bit)
    parent[:1] = -1
    return Tree(parent=parent, depth=_depths(parent))


def double(ranks: int) -> tuple[Tree, Tree]:
    """Return two trees over all ranks: each rank is inner in at most one and has at most two children over both.

    The second is the first mirrored where ``ranks`` is even and shifted by one where it is odd, as in NCCL.
    """
    first = in_order(ranks)
    rank = np.arange(ranks, dtype=np.int64)
    other = ranks - 1 - rank if ranks % 2 == 0 else (rank + 1) % max(ranks, 1)
    parent = np.full(ranks, -1, np.int64)
    inner = first.parent >= 0
    parent[other[inner]] = other[first.parent[inner]]
    return first, Tree(parent=parent, depth=_depths(parent))


def over_machines(ranks: int, per_machine: int) -> Tree:
    """Return the tree that NCCL uses: a chain inside each machine, the in-order tree over their first ranks."""
    rank = np.arange(ranks, dtype=np.int64)
    heads = in_order(-(-ranks // per_machine)).parent
    above = heads[rank // per_machine]
    parent = np.where(rank % per_machine > 0, rank - 1, np.where(above < 0, -1, above * per_machine))
    return Tree(parent=parent, depth=_depths(parent))


def machine_tree(ranks: int, *, per_machine: int, chunks: int = 1) -> Schedule:
    """Return the all-reduce over the tree of ``over_machines``: few hops across machines, a chain in each.

    Raises:
        BadCollective: ``per_machine`` is below 1.
    """
    check_ranks(ranks)
    if per_machine < 1:
        raise BadCollective(f"a machine has at least 1 rank, got {per_machine}")
    return _up_and_down(
        [over_machines(ranks, per_machine)], ranks, chunks, "machine_tree", keeps_order=ranks <= per_machine
    )


def tree(ranks: int, *, chunks: int = 1) -> Schedule:
    """Return the all-reduce up and down one balanced tree in ``chunks`` chunks; it keeps the order of ranks."""
    check_ranks(ranks)
    return _up_and_down([balanced(ranks)], ranks, chunks, "tree", keeps_order=True)


def double_tree(ranks: int, *, chunks: int = 1) -> Schedule:
    """Return the all-reduce over two trees, each for half of the elements in ``chunks`` chunks.

    Where ``ranks`` is even both trees are numbered in order, so the order of ranks is kept.
    """
    check_ranks(ranks)
    return _up_and_down(
        list(double(ranks)), ranks, chunks, "double_tree", keeps_order=ranks % 2 == 0 or ranks == 1
    )


def best_chunks(ranks: int, bytes_: int, latency_s: float, s_per_byte: float) -> int:
    """Return the chunks per half that make the double tree fastest: sqrt(beta n log2 p / (2 alpha)), at least 1.

    With 2 ceil(log2 p) + 2k steps of n/(2k) bytes each (Sanders et al. 2009).
    """
    if ranks < 2 or latency_s <= 0:
        return 1
    return max(1, round(math.sqrt(s_per_byte * bytes_ * math.log2(ranks) / (2 * latency_s))))


def _up_and_down(
    trees: Sequence[Tree], ranks: int, chunks: int, algorithm: str, *, keeps_order: bool
) -> Schedule:
    """Chunk c leaves depth d for above in step c + height - d, and leaves it for below in step c + height + d."""
    ups = [[np.flatnonzero(each.depth == d) for d in range(each.height + 1)] for each in trees]
    tallest = max(each.height for each in trees)

    def step(number: int) -> Step:
        parts: list[Step] = []
        for at, (each, levels) in enumerate(zip(trees, ups, strict=True)):
            for depth in range(1, each.height + 1):
                child, first = levels[depth], at * chunks
                rising = number - (each.height - depth)
                falling = number - (each.height + depth - 1)
                if 0 <= rising < chunks:
                    parts.append(moves(child, each.parent[child], first + rising, mode=FOLD))
                if 0 <= falling < chunks:
                    parts.append(moves(each.parent[child], child, first + falling, mode=REPLACE))
        return joined(parts)

    return Schedule(
        kind="allreduce", algorithm=algorithm, ranks=ranks, nodes=ranks, parts=chunks * len(trees),
        steps=chunks + 2 * tallest - 1 if ranks > 1 else 0, step=step, keeps_order=keeps_order,
    )  # fmt: skip


def _depths(parent: IntArray) -> IntArray:
    depth = np.zeros(len(parent), np.int64)
    above = parent.copy()
    while (going := above >= 0).any():
        depth[going] += 1
        above[going] = parent[above[going]]
    return depth
