"""Placement, the pure plan: values that meet are on one worker, and no worker gets more than its share."""

from __future__ import annotations

from collections import Counter

from dag_graphs import node
from hypothesis import given
from hypothesis import strategies as st

from dag import Graph, Node, Op, Part
from dag.placement import AHEAD, hold_back, place


def fan_in(reducers: int, producers: int) -> Graph:
    return Graph(
        tuple(
            node(f"sum[{r}]", max, *(node(f"read[{r * producers + p}]", int) for p in range(producers)))
            for r in range(reducers)
        )
    )


def shuffle(name: str, producers: list[Node], partitions: int) -> list[Node]:
    splits = [node(f"{name}.split[{i}]", list, each) for i, each in enumerate(producers)]
    return [node(f"{name}[{j}]", max, *(Part(each, j) for each in splits)) for j in range(partitions)]


def tree(leaves: int) -> Graph:
    level = [node(f"leaf[{i}]", int) for i in range(leaves)]
    height = 0
    while len(level) > 1:
        height += 1
        level = [node(f"add{height}[{i // 2}]", max, *level[i : i + 2]) for i in range(0, len(level), 2)]
    return Graph(tuple(level))


def test_eight_sums_of_four_producers_lie_whole_on_two_workers_four_on_each() -> None:
    graph = fan_in(8, 4)
    placed = place(graph.nodes, 2)
    assert set(placed) == set(graph.nodes)
    for total in graph.outputs:
        assert {placed[source] for source in total.sources()} == {placed[total]}
    assert Counter(placed[total] for total in graph.outputs) == {0: 4, 1: 4}


@given(reducers=st.integers(1, 30), producers=st.integers(2, 6), workers=st.integers(2, 8))
def test_groups_are_never_torn_and_never_more_than_one_apart_in_number(
    reducers: int, producers: int, workers: int
) -> None:
    graph = fan_in(reducers, producers)
    placed = place(graph.nodes, workers)
    if reducers < workers:  # one group would be more than a worker's share
        assert placed == {}
        return
    for total in graph.outputs:
        assert {placed[source] for source in total.sources()} == {placed[total]}
    counts = Counter(placed[total] for total in graph.outputs)
    assert set(counts) == set(range(workers))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_tree_is_cut_into_one_branch_per_worker() -> None:
    graph = tree(64)
    for workers in (2, 4, 8):
        placed = place(graph.nodes, workers)
        crossing = [
            user for user in placed for source in user.sources() if placed.get(source) != placed[user]
        ]
        assert crossing == []
        counts = Counter(placed.values())
        assert set(counts.values()) == {2 * 64 // workers - 1}
        assert len(counts) == workers


def test_heavy_tasks_count_for_more_than_light_ones() -> None:
    heavy = node("heavy", max, *(node(f"slow[{i}]", int, work_s=10.0) for i in range(2)), work_s=1.0)
    light = [
        node(f"light[{r}]", max, *(node(f"fast[{r * 2 + p}]", int, work_s=1.0) for p in range(2)), work_s=1.0)
        for r in range(7)
    ]
    placed = place(Graph((heavy, *light)).nodes, 2)
    assert {placed[each] for each in light} == {1}
    assert placed[heavy] == 0


def test_the_merges_of_a_shuffle_are_spread_evenly_and_alike_in_every_shuffle_of_that_width() -> None:
    first = shuffle("first", [node(f"read[{i}]", int) for i in range(5)], 8)
    second = shuffle("second", first, 8)
    placed = place(Graph(tuple(second)).nodes, 3)
    assert [placed[each] for each in first] == [placed[each] for each in second] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert not any(each.name.startswith("read") for each in placed)


def test_what_gains_nothing_is_left_to_the_scheduler() -> None:
    chains = [node(f"c[{i}]", int, node(f"b[{i}]", int, node(f"a[{i}]", int))) for i in range(10)]
    assert place(Graph(tuple(chains)).nodes, 2) == {}
    shared = node("shared", int)
    users = [node(f"use[{i}]", max, shared, node(f"own[{i}]", int)) for i in range(10)]
    assert shared not in place(Graph(tuple(users)).nodes, 2)
    assert place(fan_in(8, 4).nodes, 1) == {}


def test_a_group_heavier_than_a_workers_share_is_not_made() -> None:
    total = node("total", max, *(node(f"read[{i}]", int) for i in range(20)))
    assert place(Graph((total,)).nodes, 2) == {}


def test_a_source_waits_for_the_use_of_one_some_way_before_it_on_its_worker() -> None:
    graph = fan_in(8, 4)
    placed = place(graph.nodes, 2)
    after = {each.name: use.name for each, use in hold_back(graph.nodes, placed).items()}
    # Worker 0 makes read[0] to read[15]: read[8] is the first that waits, for the sum of read[0].
    assert AHEAD == 8
    assert after == {
        f"read[{16 * worker + at}]": f"sum[{4 * worker + (at - 8) // 4}]"
        for worker in range(2)
        for at in range(8, 16)
    }


@given(reducers=st.integers(1, 12), producers=st.integers(2, 20), workers=st.integers(2, 4))
def test_waiting_makes_no_circle(reducers: int, producers: int, workers: int) -> None:
    for graph in (fan_in(reducers, producers), tree(reducers * producers)):
        position = {each: at for at, each in enumerate(graph.nodes)}
        placed = place(graph.nodes, workers)
        for each, use in hold_back(graph.nodes, placed).items():
            assert position[use] < position[each]
            assert placed[use] == placed[each]


def test_what_only_picks_values_apart_is_no_merge() -> None:
    """The tasks of a fused operator with two outputs, and a shuffle: only the shuffle's merges are spread beforehand."""
    fused = [node(f"both[{i}]", list) for i in range(4)]
    picks = [
        Node(name=f"one[{i}]", op=Op(kind="pick", function=max), inputs=(Part(each, 0),))
        for i, each in enumerate(fused)
    ]
    merges = shuffle("sum", fused, 4)
    placed = place(Graph((*picks, *merges)).nodes, 2)
    assert not placed.keys() & set(picks)
    assert Counter(placed[merge] for merge in merges) == {0: 2, 1: 2}
