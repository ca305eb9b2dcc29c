"""Trees that sums go up and down: their shapes for all sizes, and in how many chunks they work best."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dag.collectives import plan
from dag.collectives.choose import planned
from dag.collectives.networks import Link, Network
from dag.collectives.plans import CHUNKED
from dag.collectives.simulate import simulate
from dag.collectives.trees import Tree, balanced, best_chunks, double, in_order, over_machines

Array = np.ndarray[Any, np.dtype[Any]]


def depth_bound(ranks: int) -> int:
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


def children(tree: Tree) -> Array:
    return np.bincount(tree.parent[tree.parent >= 0], minlength=len(tree.parent))


def spans(tree: Tree) -> bool:
    """One root, and from every rank up to it in as many steps as its depth says."""
    at = np.arange(len(tree.parent))
    for _ in range(tree.height):
        at = np.where(tree.parent[at] >= 0, tree.parent[at], at)
    up = tree.parent >= 0
    return (
        (tree.parent < 0).sum() == 1
        and bool((tree.parent[at] < 0).all())
        and bool((tree.depth[up] == tree.depth[tree.parent[up]] + 1).all())
    )


def numbered_in_order(tree: Tree) -> bool:
    """Each subtree is a run of neighbouring ranks."""
    ranks = len(tree.parent)
    low, high, size = np.arange(ranks), np.arange(ranks), np.ones(ranks, np.int64)
    for rank in np.argsort(-tree.depth, kind="stable").tolist():
        above = tree.parent[rank]
        if above >= 0:
            low[above], high[above] = min(low[above], low[rank]), max(high[above], high[rank])
            size[above] += size[rank]
    return bool((high - low + 1 == size).all())


def test_two_trees_leave_no_rank_inner_in_both_and_none_with_more_than_two_children_for_all_sizes_to_1024() -> (
    None
):
    for ranks in range(1, 1025):
        first, second = double(ranks)
        assert spans(first), ranks
        assert spans(second), ranks
        below = children(first), children(second)
        assert not ((below[0] > 0) & (below[1] > 0)).any(), ranks
        assert (below[0] + below[1]).max() <= 2, ranks
        assert max(first.height, second.height) <= depth_bound(ranks), ranks


def test_the_second_tree_is_the_first_mirrored_or_that_of_one_rank_less_shifted() -> None:
    for ranks in range(2, 40):
        first, second = double(ranks)
        if ranks % 2 == 0:
            for rank, above in enumerate(first.parent.tolist()):
                assert second.parent[ranks - 1 - rank] == (-1 if above < 0 else ranks - 1 - above)
        else:
            assert second.parent[0] == 1
            for rank, above in enumerate(in_order(ranks - 1).parent.tolist()):
                assert second.parent[rank + 1] == (-1 if above < 0 else above + 1)


def test_trees_numbered_in_order_are_and_are_low() -> None:
    for ranks in [*range(1, 70), 255, 256, 257, 1000]:
        for tree in (balanced(ranks), *double(ranks)):
            assert spans(tree)
            assert numbered_in_order(tree)
            assert tree.height <= depth_bound(ranks)
            assert children(tree).max() <= 2
        # A binary tree that is as low as can be.
        assert balanced(ranks).height == math.floor(math.log2(ranks))


def test_the_tree_over_machines_crosses_between_machines_no_more_than_the_tree_of_their_first_ranks() -> None:
    for ranks in (1, 5, 6, 7, 12, 24, 25, 96):
        tree = over_machines(ranks, 6)
        assert spans(tree)
        child = np.flatnonzero(tree.parent >= 0)
        crossing = child[child // 6 != tree.parent[child] // 6]
        assert len(crossing) == -(-ranks // 6) - 1
        assert (crossing % 6 == 0).all()


def test_the_shape_of_the_tree_of_eight() -> None:
    # As NCCL's picture of it: odd ranks are leaves, rank 0 is the root.
    assert in_order(8).parent.tolist() == [-1, 2, 4, 2, 0, 6, 4, 6]
    assert balanced(7).parent.tolist() == [1, 3, 1, -1, 5, 3, 5]


def test_a_pipeline_over_a_tree_takes_a_step_per_chunk_and_twice_the_height() -> None:
    for ranks in range(2, 20):
        for chunks in (1, 2, 7):
            height = math.floor(math.log2(ranks))
            assert plan("allreduce", "tree", ranks, chunks=chunks).steps == 2 * height + chunks - 1
            assert plan("broadcast", "tree", ranks, chunks=chunks).steps == height + chunks - 1
            # Sanders et al.: at most 2 ceil(log2 p) + 2k, of which each rank here does several messages at once.
            two = plan("allreduce", "double_tree", ranks, chunks=chunks).steps
            assert two <= 2 * depth_bound(ranks) + 2 * chunks


@given(
    st.integers(2, 5000), st.integers(0, 10**9), st.floats(1e-7, 1e-3), st.floats(1e-11, 1e-7)
)  # fmt: skip
def test_the_closed_form_of_the_chunks_is_the_best_of_a_sweep_over_the_cost(
    ranks: int, bytes_: int, latency_s: float, s_per_byte: float
) -> None:
    def cost(chunks: float) -> float:
        steps = 2 * math.log2(ranks) + 2 * chunks
        return steps * (latency_s + s_per_byte * bytes_ / (2 * chunks))

    best = best_chunks(ranks, bytes_, latency_s, s_per_byte)
    near = [chunk for chunk in range(best - 3, best + 4) if chunk >= 1]
    sweep = [*near, *(max(1, round(1.1**power)) for power in range(200))]
    # Rounding to a whole number moves it by half a chunk at most; the cost is flat there, but for the first few.
    assert cost(best) <= min(map(cost, sweep)) * (1 + 0.07 / best)


def test_the_closed_form_of_the_chunks_is_near_the_best_of_a_simulated_sweep() -> None:
    overhead_s, s_per_byte = 2e-6, 1e-9
    network = Network(
        inside=Link(latency_s=0, s_per_byte=s_per_byte),
        across=Link(latency_s=0, s_per_byte=s_per_byte),
        overhead_s=overhead_s,
    )
    for ranks, bytes_ in ((16, 1 << 20), (33, 1 << 20), (64, 1 << 22)):
        best = best_chunks(ranks, bytes_, overhead_s, s_per_byte)
        sweep = {
            chunks: simulate(
                plan("allreduce", "double_tree", ranks, chunks=chunks), bytes_, 1, network
            ).seconds
            for chunks in {best, *(round(best * 2.0**power) for power in (-4, -2, -1, -0.5, 0.5, 1, 2, 4))}
            if chunks >= 1
        }
        assert sweep[best] <= 1.1 * min(sweep.values()), (ranks, best, sweep)
        assert sweep[max(sweep)] > 1.2 * sweep[best]
        assert sweep[min(sweep)] > 1.2 * sweep[best]


def test_real_ranks_run_all_trees_in_the_same_chunks() -> None:
    parts = {name: planned("allreduce", name, 8, 64_000_000, per_machine=2).parts for name in CHUNKED}
    assert parts["machine_tree"] == parts["tree"] == parts["double_tree"] // 2 > 8
