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
from .schedule import FOLD, REPLACE, IntArray, Kind, Schedule, Step, check_ranks, check_root, moves

#: So many chunks a plan may have.
MOST_CHUNKS = 1 << 20


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
    """Return two trees, both numbered in order: no rank is inner in both, and none has more than two children over both.

    The first has its inner ranks at even numbers, the second at odd ones: the first mirrored where ``ranks`` is even, as in
    NCCL.  Where it is odd NCCL shifts the first by one, which makes rank 0 inner in both; here the tree of one rank less is
    shifted, and rank 0 becomes a leaf below its root.
    """
    first = in_order(ranks)
    if ranks % 2 == 0:
        parent = np.where(first.parent < 0, -1, ranks - 1 - first.parent)[::-1]
    elif ranks == 1:
        return first, first
    else:
        less = in_order(ranks - 1).parent
        parent = np.r_[1, np.where(less < 0, -1, less + 1)]
    return first, Tree(parent=parent, depth=_depths(parent))


def over_machines(ranks: int, per_machine: int) -> Tree:
    """Return the tree that NCCL uses: a chain inside each machine, the in-order tree over their first ranks."""
    rank = np.arange(ranks, dtype=np.int64)
    heads = in_order(-(-ranks // per_machine)).parent
    above = heads[rank // per_machine]
    parent = np.where(rank % per_machine > 0, rank - 1, np.where(above < 0, -1, above * per_machine))
    return Tree(parent=parent, depth=_depths(parent))


def tree(ranks: int, *, chunks: int = 1) -> Schedule:
    """Return the all-reduce up and down one balanced tree in ``chunks`` chunks; it keeps the order of ranks.

    A rank gives at most three messages in a step and takes as many; there are 2 height - 1 + ``chunks`` steps.
    """
    _check(ranks, chunks)
    return _pipelined("allreduce", "tree", ranks, chunks, [balanced(ranks)], keeps_order=True)


def double_tree(ranks: int, *, chunks: int = 1) -> Schedule:
    """Return the all-reduce over two trees, each for half of the elements in ``chunks`` chunks.

    Both are numbered in order, so the order of ranks is kept.
    """
    _check(ranks, chunks)
    return _pipelined("allreduce", "double_tree", ranks, chunks, double(ranks), keeps_order=True)


def machine_tree(ranks: int, *, per_machine: int, chunks: int = 1) -> Schedule:
    """Return the all-reduce over the tree of ``over_machines``: few hops across machines, a chain in each.

    Raises:
        BadCollective: ``per_machine`` or ``chunks`` is below 1.
    """
    _check(ranks, chunks)
    if per_machine < 1:
        raise BadCollective(f"a machine has at least 1 rank, got {per_machine}")
    each = over_machines(ranks, per_machine)
    return _pipelined("allreduce", "machine_tree", ranks, chunks, [each], keeps_order=True)


def broadcast(ranks: int, *, root: int = 0, chunks: int = 1) -> Schedule:
    """Return the broadcast down a balanced tree in ``chunks`` chunks: height - 1 + ``chunks`` steps."""
    _check(ranks, chunks, root)
    turned = _rooted(balanced(ranks), root)
    return _pipelined("broadcast", "tree", ranks, chunks, [turned], up=False, keeps_order=True, root=root)


def reduce(ranks: int, *, root: int = 0, chunks: int = 1) -> Schedule:
    """Return the sum up a balanced tree in ``chunks`` chunks: height - 1 + ``chunks`` steps.

    The order of ranks is kept where ``root`` is the first, the last or the middle rank, P // 2.
    """
    _check(ranks, chunks, root)
    turned = _rooted(balanced(ranks), root)
    return _pipelined(
        "reduce", "tree", ranks, chunks, [turned], down=False, keeps_order=root in (0, ranks // 2, ranks - 1), root=root
    )  # fmt: skip


def best_chunks(ranks: int, bytes_: int, latency_s: float, s_per_byte: float) -> int:
    """Return the chunks per half that make two trees fastest: sqrt(beta n log2 p / (2 alpha)), at least 1.

    For 2 log2 p + 2k steps of n/(2k) bytes each, in which a rank sends one message (Sanders et al. 2009).
    """
    if ranks < 2 or latency_s <= 0:
        return 1
    return max(1, round(math.sqrt(s_per_byte * bytes_ * math.log2(ranks) / (2 * latency_s))))


def _check(ranks: int, chunks: int, root: int = 0) -> None:
    check_ranks(ranks)
    check_root(ranks, root)
    if chunks < 1:
        raise BadCollective(f"there is at least 1 chunk, got {chunks}")
    if chunks > MOST_CHUNKS:
        raise BadCollective(f"there are at most {MOST_CHUNKS:,} chunks, got {chunks:,}: each is a step")


def _rooted(tree: Tree, root: int) -> Tree:
    """Return the tree with all ranks turned so that its root is ``root``."""
    ranks = len(tree.parent)
    shift = root - int(np.flatnonzero(tree.parent < 0)[0])
    parent = np.roll(np.where(tree.parent < 0, -1, (tree.parent + shift) % ranks), shift)
    return Tree(parent=parent, depth=np.roll(tree.depth, shift))


def _pipelined(
    kind: Kind,
    algorithm: str,
    ranks: int,
    chunks: int,
    trees: Sequence[Tree],
    *,
    up: bool = True,
    down: bool = True,
    keeps_order: bool,
    root: int = 0,
) -> Schedule:
    """A chunk leaves depth d for above height - d steps after the first one left the deepest rank; then it comes down.

    All children of a rank have the same depth, so what they give in a step is folded at once.
    """
    columns: list[tuple[IntArray, ...]] = []
    for at, each in enumerate(trees):
        child = np.flatnonzero(each.parent >= 0)
        parent, depth, first = each.parent[child], each.depth[child], np.full(len(child), at * chunks)
        if up:
            columns.append((each.height - depth, child, parent, first, np.full(len(child), FOLD)))
        if down:
            columns.append((up * each.height + depth - 1, parent, child, first, np.full(len(child), REPLACE)))
    delay, src, dst, first, mode = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(delay, kind="stable")
    delay, src, dst, first, mode = (column[order] for column in (delay, src, dst, first - delay, mode))
    # Steps in which the same edges work share the very arrays.
    ways: dict[tuple[int, int], tuple[IntArray, IntArray, IntArray]] = {}

    def step(number: int) -> Step:
        # Chunk number - delay goes over an edge, if there is one of that number.
        low, high = np.searchsorted(delay, (number - chunks + 1, number + 1)).tolist()
        if (way := ways.get((low, high))) is None:
            ways.clear()
            way = ways[low, high] = src[low:high], dst[low:high], mode[low:high]
        giving, taking, how = way
        return moves(giving, taking, first[low:high] + number, mode=how)

    return Schedule(
        kind=kind, algorithm=algorithm, ranks=ranks, nodes=ranks, parts=chunks * len(trees),
        steps=chunks + int(delay[-1]) if ranks > 1 else 0, step=step, keeps_order=keeps_order, root=root,
    )  # fmt: skip


def _depths(parent: IntArray) -> IntArray:
    depth = np.zeros(len(parent), np.int64)
    above = parent.copy()
    while (going := above >= 0).any():
        depth[going] += 1
        above[going] = parent[above[going]]
    return depth
