"""What schedules cost, held against closed forms and against a count by hand, move by move."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_plans import any_plan

from dag.collectives import Counts, Schedule, algorithms, bounds, count, plan
from dag.collectives.count import count_moves
from dag.collectives.plans import PER_MACHINE
from dag.collectives.table import cost_table
from dag.collectives.trees import Tree, balanced, double
from dag.errors import BadCollective

Array = np.ndarray[Any, np.dtype[Any]]
RANKS = range(1, 34)
FIELDS = ("sent", "received", "rounds", "messages", "fan_in", "peers")


def sizes_for(ranks: int) -> list[int]:
    return sorted({0, 1, ranks - 1, ranks, ranks + 1, 7 * ranks, 1000})


def part_sizes(elements: int, parts: int) -> Array:
    return np.diff([number * elements // parts for number in range(parts + 1)])


def same(one: Counts, other: Counts) -> bool:
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in FIELDS)


def by_hand(schedule: Schedule, elements: int) -> Counts:
    """Count with dictionaries, one move after another."""
    at = bounds(elements, schedule.parts).tolist()
    sent, received, rounds, messages, fan_in = Counter[int](), Counter[int](), 0, 0, 0
    met: set[tuple[int, int]] = set()
    for step in schedule:
        arriving = Counter[int]()
        columns = (step.src, step.dst, step.start, step.stop)
        for src, dst, start, stop in zip(*(column.tolist() for column in columns), strict=True):
            if size := at[stop] - at[start]:
                sent[src] += size
                received[dst] += size
                arriving[dst] += 1
                met |= {(src, dst), (dst, src)}
        rounds += bool(arriving)
        messages += arriving.total()
        fan_in = max(fan_in, *arriving.values(), 0)
    nodes = range(schedule.nodes)
    peers = Counter(one for one, _ in met)
    return Counts(
        sent=np.array([sent[node] for node in nodes]),
        received=np.array([received[node] for node in nodes]),
        rounds=rounds,
        messages=messages,
        fan_in=fan_in,
        peers=np.array([peers[node] for node in nodes]),
    )


@given(any_plan(most_ranks=24), st.integers(0, 200))
def test_counts_are_those_by_hand(schedule: Schedule, elements: int) -> None:
    assert same(count(schedule, elements), by_hand(schedule, elements))


@pytest.mark.parametrize("name", ["ring", "sharded", "direct", "direct_whole"])
def test_what_one_rank_does_counts_as_all_that_all_do(name: str) -> None:
    for ranks in RANKS:
        schedule = plan("allreduce", name, ranks)
        for elements in sizes_for(ranks):
            found = count(schedule, elements)
            assert same(found, count_moves(schedule, part_sizes(elements, schedule.parts))), (ranks, elements)


@given(any_plan(most_ranks=24), st.integers(0, 200))
def test_what_is_sent_arrives_and_an_all_reduce_moves_no_less_than_must_be(
    schedule: Schedule, elements: int
) -> None:
    found, ranks = count(schedule, elements), schedule.ranks
    assert found.sent.sum() == found.received.sum()
    if schedule.kind == "allreduce":
        # P - 1 additions of what came from elsewhere, and P - 1 results that came from elsewhere, for each element.
        assert found.sent.sum() >= 2 * (ranks - 1) * elements
    if schedule.kind in ("reduce_scatter", "all_gather"):
        assert found.sent.sum() >= (ranks - 1) * elements
        assert found.received.max() <= ranks * elements


def test_a_central_server_that_is_a_rank_takes_and_gives_everything_of_the_others() -> None:
    for ranks in RANKS:
        for elements in sizes_for(ranks):
            found = count(plan("allreduce", "central", ranks), elements)
            server, *workers = found.sent.tolist()
            assert server == found.received[0] == (ranks - 1) * elements
            assert workers == found.received[1:].tolist() == [elements] * (ranks - 1)
            some = int(elements > 0 and ranks > 1)
            assert (found.rounds, found.messages, found.fan_in) == (
                2 * some,
                2 * (ranks - 1) * some,
                (ranks - 1) * some,
            )
            assert found.peers.tolist() == [(ranks - 1) * some, *[some] * (ranks - 1)]


def test_a_central_server_beside_the_ranks_takes_and_gives_p_times_n() -> None:
    for ranks in RANKS:
        for elements in sizes_for(ranks):
            found = count(plan("allreduce", "central", ranks, server_is_rank=False), elements)
            assert found.sent.tolist() == found.received.tolist() == [elements] * ranks + [ranks * elements]
            some = int(elements > 0)
            assert (found.rounds, found.messages, found.fan_in) == (2 * some, 2 * ranks * some, ranks * some)
            assert found.peers.tolist() == [some] * ranks + [ranks * some]


def test_shards_move_n_p_minus_1_by_p_each_way_and_twice_in_two_rounds() -> None:
    for ranks in RANKS:
        for elements in sizes_for(ranks):
            size = part_sizes(elements, ranks)
            for name in ("sharded", "direct"):
                found = count(plan("allreduce", name, ranks), elements)
                # All but the own shard goes out; the own shard comes in P - 1 times; and the other way round.
                wanted = (elements - size) + (ranks - 1) * size
                assert found.sent.tolist() == found.received.tolist() == wanted.tolist()
                if elements % ranks == 0:
                    assert found.sent.tolist() == [2 * (ranks - 1) * elements // ranks] * ranks
                for half in ("reduce_scatter", "all_gather"):
                    one_way = count(plan(half, name, ranks), elements)  # type: ignore[arg-type]
                    out, back = (
                        (one_way.sent, one_way.received)
                        if half == "reduce_scatter"
                        else (one_way.received, one_way.sent)
                    )
                    assert out.tolist() == (elements - size).tolist()
                    assert back.tolist() == ((ranks - 1) * size).tolist()
                full = min(ranks, elements)
                assert found.messages == 2 * (ranks - 1) * full
                if full == ranks > 1:
                    assert found.peers.tolist() == [ranks - 1] * ranks
                    rounds, fan_in = (2, ranks - 1) if name == "sharded" else (2 * (ranks - 1), 1)
                    assert (found.rounds, found.fan_in) == (rounds, fan_in)


def test_one_peer_after_another_takes_all_of_each() -> None:
    for ranks in RANKS:
        for elements in sizes_for(ranks):
            found = count(plan("allreduce", "direct_whole", ranks), elements)
            assert found.sent.tolist() == found.received.tolist() == [(ranks - 1) * elements] * ranks
            some = int(elements > 0)
            assert (found.rounds, found.messages) == ((ranks - 1) * some, ranks * (ranks - 1) * some)
            assert found.fan_in == int(some and ranks > 1)
            assert found.peers.tolist() == [(ranks - 1) * some] * ranks


def test_a_ring_moves_the_exact_sum_of_its_part_sizes_to_and_from_two_peers() -> None:
    for ranks in RANKS:
        for elements in sizes_for(ranks):
            found, size = count(plan("allreduce", "ring", ranks), elements), part_sizes(elements, ranks)
            # Rank r gives every part but r on the first way round, every part but r + 1 on the second.
            assert found.sent.tolist() == (2 * elements - size - np.roll(size, -1)).tolist()
            assert found.received.tolist() == (2 * elements - np.roll(size, 1) - size).tolist()
            if elements % ranks == 0:
                assert found.sent.tolist() == [2 * (ranks - 1) * elements // ranks] * ranks
            assert found.rounds == (2 * (ranks - 1) if elements else 0)
            assert found.messages == 2 * (ranks - 1) * min(ranks, elements)
            assert found.fan_in == int(ranks > 1 and elements > 0)
            if elements >= ranks:
                assert found.peers.tolist() == [min(2, ranks - 1)] * ranks


def test_rabenseifner_s_counts_are_those_of_mpich() -> None:
    for ranks in RANKS:
        bits = ranks.bit_length() - 1
        core = 1 << bits
        extra = ranks - core
        for elements in (core, 6 * core):
            found = count(plan("allreduce", "halving", ranks), elements)
            inner = 2 * (core - 1) * elements // core
            # The first ranks come in pairs: the even one gives all and gets all, and the odd one takes part for both.
            wanted = [elements, inner + elements] * extra + [inner] * (ranks - 2 * extra)
            assert found.sent.tolist() == found.received.tolist() == wanted
            assert found.rounds == 2 * bits + 2 * (extra > 0)  # 2 lg p, or 2 floor(lg p) + 2
            assert found.messages == 2 * bits * core + 2 * extra
            assert found.fan_in == int(ranks > 1)
            assert found.peers.tolist() == [1, bits + 1] * extra + [bits] * (ranks - 2 * extra)
        for elements in sizes_for(ranks):
            assert (
                count(plan("allreduce", "halving", ranks), elements).sent.sum() == 2 * (ranks - 1) * elements
            )


def test_recursive_doubling_s_counts_are_those_of_mpich() -> None:
    for ranks in RANKS:
        bits = ranks.bit_length() - 1
        extra = ranks - (1 << bits)
        for elements in (1, 1000):
            found = count(plan("allreduce", "doubling", ranks), elements)
            wanted = [elements, (bits + 1) * elements] * extra + [bits * elements] * (ranks - 2 * extra)
            assert found.sent.tolist() == found.received.tolist() == wanted
            assert found.rounds == bits + 2 * (extra > 0)
            assert found.fan_in == int(ranks > 1)


def test_halving_alone_moves_the_least_in_the_fewest_rounds_for_powers_of_two() -> None:
    for bits in range(6):
        ranks = 1 << bits
        for kind in ("reduce_scatter", "all_gather"):
            found = count(plan(kind, "halving", ranks), 5 * ranks)  # type: ignore[arg-type]
            assert found.sent.tolist() == found.received.tolist() == [5 * (ranks - 1)] * ranks
            assert (found.rounds, found.messages) == (bits, bits * ranks)
    for ranks in RANKS:
        bits = ranks.bit_length() - 1
        found = count(plan("reduce_scatter", "halving", ranks), 7 * ranks)
        assert found.rounds == bits + 2 * (ranks > 1 << bits)


def test_binomial_trees_take_a_round_per_doubling_and_move_p_minus_1_times_n() -> None:
    for ranks in RANKS:
        rounds = math.ceil(math.log2(ranks))
        for root in {0, ranks - 1, ranks // 3}:
            for elements in (1, 1000):
                down, up = (
                    count(plan(kind, "binomial", ranks, root=root), elements)
                    for kind in ("broadcast", "reduce")
                )  # type: ignore[arg-type]
                for found in (down, up):
                    assert (found.rounds, found.messages, found.fan_in) == (rounds, ranks - 1, int(ranks > 1))
                assert down.sent[root] == up.received[root] == rounds * elements
                leaves = [elements * (rank != root) for rank in range(ranks)]
                assert down.received.tolist() == up.sent.tolist() == leaves


def test_long_broadcasts_and_reductions_have_the_counts_of_mpich() -> None:
    for ranks in RANKS:
        turns = math.ceil(math.log2(ranks))
        elements, way = 6 * ranks, 6 * (ranks - 1)  # n and n (p - 1) / p
        for root in {0, ranks // 2, ranks - 1}:
            by_ring = count(plan("broadcast", "scatter_ring", ranks, root=root), elements)
            # (lg p + p - 1) a + 2n (p - 1) / p b: at the root, which gives all parts but one, and then passes on as many.
            assert by_ring.rounds == turns + (ranks - 1)
            assert by_ring.sent[root] == by_ring.sent.max() == 2 * way
            assert by_ring.sent.sum() >= ranks * way
            if ranks & (ranks - 1) == 0:
                doubling = count(plan("broadcast", "scatter_doubling", ranks, root=root), elements)
                assert doubling.rounds == 2 * turns
                assert doubling.sent[root] == doubling.sent.max() == 2 * way
                up = count(plan("reduce", "halving", ranks, root=root), elements)
                # n (p - 1) / p given and taken by everyone, and the rest of the parts taken by the root.
                assert up.rounds == 2 * turns
                assert up.received[root] == up.received.max() == 2 * way


def degree(tree: Tree) -> Array:
    up = tree.parent >= 0
    return np.bincount(tree.parent[up], minlength=len(up)) + up


def test_a_tree_moves_n_up_and_n_down_each_edge_in_chunks() -> None:
    for ranks in RANKS:
        for elements in sizes_for(ranks):
            for chunks in (1, 4):
                found = count(plan("allreduce", "tree", ranks, chunks=chunks), elements)
                edges = degree(balanced(ranks))
                assert found.sent.tolist() == found.received.tolist() == (elements * edges).tolist()
                assert found.messages == 2 * (ranks - 1) * min(chunks, elements)
                if elements >= chunks and ranks > 1:
                    assert found.peers.tolist() == edges.tolist()
                    assert found.rounds == 2 * math.floor(math.log2(ranks)) + chunks - 1
                    assert found.peers.max() <= 3


def test_two_trees_move_half_of_n_over_each_edge_of_each() -> None:
    for ranks in RANKS:
        first, second = (degree(tree) for tree in double(ranks))
        for elements in sizes_for(ranks):
            for chunks in (1, 3):
                found = count(plan("allreduce", "double_tree", ranks, chunks=chunks), elements)
                wanted = elements // 2 * first + (elements - elements // 2) * second
                assert found.sent.tolist() == found.received.tolist() == wanted.tolist()
                assert found.peers.max() <= 4
                # No rank moves more than four halves: two children, a parent, and the parent in the other tree.
                assert found.sent.max() <= 2 * elements + 2 * (elements % 2)


def crossing(schedule: Schedule, elements: int, per_machine: int) -> tuple[Array, Array]:
    """Return what leaves and reaches each machine."""
    at = bounds(elements, schedule.parts)
    machines = -(-schedule.ranks // per_machine)
    out, into = np.zeros((2, machines), np.int64)
    for step in schedule:
        src, dst, size = step.src // per_machine, step.dst // per_machine, at[step.stop] - at[step.start]
        far = src != dst
        np.add.at(out, src[far], size[far])
        np.add.at(into, dst[far], size[far])
    return out, into


def test_two_levels_cross_between_machines_as_a_ring_of_machines_does() -> None:
    for ranks in RANKS:
        for per_machine in (1, 2, 3, 4, 8, 40):
            inside = min(per_machine, ranks)
            machines = -(-ranks // inside)
            schedule = plan("allreduce", "two_level", ranks, per_machine=per_machine)
            shards = inside if ranks % inside == 0 else ranks % inside
            elements = 3 * shards * machines
            assert schedule.parts == shards * machines
            out, into = crossing(schedule, elements, inside)
            assert out.tolist() == into.tolist() == [2 * (machines - 1) * elements // machines] * machines
            found = count(schedule, elements)
            assert found.rounds == 2 * (machines - 1) + 2 * (inside > 1)
            if ranks % inside == 0:
                # A shard to each neighbour and theirs, the same back, and the ring of one shard between.
                at_home, away = (
                    2 * (inside - 1) * elements // inside,
                    2 * (machines - 1) * elements // (inside * machines),
                )
                assert found.sent.tolist() == found.received.tolist() == [at_home + away] * ranks
                assert found.fan_in == max(inside - 1, int(machines > 1))


def test_an_exchange_of_everything_gives_each_its_row() -> None:
    for ranks in RANKS:
        found = count(plan("all_to_all", "direct", ranks), 2 * ranks * ranks)
        assert found.sent.tolist() == found.received.tolist() == [2 * (ranks - 1)] * ranks
        assert (found.rounds, found.messages, found.fan_in) == (
            ranks - 1,
            ranks * (ranks - 1),
            int(ranks > 1),
        )


def test_at_24_576_ranks_counts_are_the_closed_forms_still() -> None:
    ranks, elements = 24576, 16_000_001
    size = part_sizes(elements, ranks)
    ring = count(plan("allreduce", "ring", ranks), elements)
    assert ring.sent.tolist() == (2 * elements - size - np.roll(size, -1)).tolist()
    assert (ring.rounds, ring.messages, ring.fan_in) == (49150, 49150 * ranks, 1)
    assert ring.peers.tolist() == [2] * ranks
    sharded = count(plan("allreduce", "sharded", ranks), elements)
    assert sharded.received.tolist() == (elements + (ranks - 2) * size).tolist()
    assert (sharded.rounds, sharded.fan_in, sharded.peers.min()) == (2, 24575, 24575)
    tree = count(plan("allreduce", "tree", ranks, chunks=32), elements)
    assert tree.sent.tolist() == (elements * degree(balanced(ranks))).tolist()
    assert tree.rounds == 2 * 14 + 31
    halving = count(plan("allreduce", "halving", ranks), elements)
    assert (halving.rounds, halving.sent.sum()) == (30, 2 * (ranks - 1) * elements)


def test_fewer_elements_than_ranks_leave_peers_out_in_a_large_ring_too() -> None:
    ranks = 3000
    schedule = plan("allreduce", "ring", ranks)
    for elements in (1, 7):
        found = count(schedule, elements)
        assert same(found, count_moves(schedule, part_sizes(elements, ranks)))
        assert found.messages == 2 * (ranks - 1) * elements


@pytest.mark.parametrize("name", algorithms())
def test_no_elements_cost_nothing_and_fewer_than_none_are_refused(name: str) -> None:
    schedule = plan("allreduce", name, 6, **({"per_machine": 4} if name in PER_MACHINE else {}))
    found = count(schedule, 0)
    assert (
        found.sent.sum(),
        found.received.sum(),
        found.rounds,
        found.messages,
        found.fan_in,
        found.peers.sum(),
    ) == (0,) * 6
    with pytest.raises(BadCollective, match="from 0 on, got -1"):
        count(schedule, -1)


def test_the_table_in_the_guide_is_what_the_schedules_cost() -> None:
    guide = (Path(__file__).parent.parent / "docs" / "collectives.md").read_text()
    shown = re.search(r"<!-- algorithms:begin -->\n(.*?)<!-- algorithms:end -->", guide, re.DOTALL)
    assert shown is not None
    assert shown[1] == cost_table("allreduce")
