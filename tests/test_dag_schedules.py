"""Schedules of collectives: each is what it says for any number of ranks and elements, and keeps the order that it states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce as fold_left
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_plans import ALL, any_plan, choices_of

from dag.collectives import Operator, Schedule, algorithms, bounds, check, count, plan, simulate
from dag.collectives.check import contributions
from dag.collectives.execute import rank_steps
from dag.collectives.networks import uniform
from dag.collectives.operators import keeping_order, operator, refuse
from dag.collectives.plans import PER_MACHINE, PLANS
from dag.collectives.schedule import FOLD, HOLD, REPLACE, moves
from dag.errors import BadCollective, TooLarge

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_plan_for_up_to_ten_ranks_is_proved_with_every_choice(kind: Any, name: str) -> None:
    for ranks in range(1, 11):
        for choices in choices_of(kind, name, ranks):
            assert len(check(plan(kind, name, ranks, **choices))) > 0


@given(any_plan())
def test_plans_for_more_ranks_are_proved(schedule: Schedule) -> None:
    check(schedule)


def test_there_are_nine_ways_and_more_and_each_is_listed() -> None:
    nine = {
        "central", "sharded", "direct_whole", "direct", "ring", "tree", "double_tree", "halving", "two_level"
    }  # fmt: skip
    assert nine < set(algorithms())
    assert set(PLANS) == {
        "allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"
    }  # fmt: skip


def test_a_ring_of_four_is_this_table() -> None:
    found = [
        [f"{a}>{b}:{p}{'+' if mode == FOLD else '='}" for a, b, p, mode in zip(step.src.tolist(), step.dst.tolist(),
         step.start.tolist(), step.mode.tolist(), strict=True)] for step in plan("allreduce", "ring", 4)
    ]  # fmt: skip
    assert found == [
        ["0>1:3+", "1>2:0+", "2>3:1+", "3>0:2+"],
        ["0>1:2+", "1>2:3+", "2>3:0+", "3>0:1+"],
        ["0>1:1+", "1>2:2+", "2>3:3+", "3>0:0+"],
        ["0>1:0=", "1>2:1=", "2>3:2=", "3>0:3="],
        ["0>1:3=", "1>2:0=", "2>3:1=", "3>0:2="],
        ["0>1:2=", "1>2:3=", "2>3:0=", "3>0:1="],
    ]


@given(st.integers(0, 10**12), st.integers(1, 3000))
def test_parts_are_of_nearly_equal_size_and_make_up_the_whole(elements: int, parts: int) -> None:
    at = bounds(elements, parts)
    assert (at[0], at[-1], len(at)) == (0, elements, parts + 1)
    assert set(np.diff(at).tolist()) <= {elements // parts, -(-elements // parts)}


# What a schedule does to numbers, told in the plainest way: an interpreter that knows nothing of the checker.


def run(schedule: Schedule, brought: list[Array], fold: Callable[[Array, Array], Array]) -> list[Array]:
    at = bounds(len(brought[0]), schedule.parts)
    nodes = [np.full_like(brought[0], np.nan) for _ in range(schedule.nodes)]
    nodes[: schedule.ranks] = [each.copy() for each in brought]
    empty = {*range(schedule.ranks, schedule.nodes)}
    held: dict[int, list[tuple[int, int, int, Array]]] = {}

    def put(node: int, arrivals: list[tuple[int, int, int, Array]]) -> None:
        for part in range(schedule.parts):
            here = slice(at[part], at[part + 1])
            values = {
                src: value[at[part] - at[start] : at[part + 1] - at[start]]
                for src, start, stop, value in arrivals
                if start <= part < stop
            }
            if values:
                if node not in empty:
                    values[node] = nodes[node][here]
                nodes[node][here] = fold_left(fold, [values[src] for src in sorted(values)])
        empty.discard(node)

    for step in schedule:
        folded: dict[int, list[tuple[int, int, int, Array]]] = {}
        before = [node.copy() for node in nodes]
        for src, dst, start, stop, mode in zip(
            *(getattr(step, each).tolist() for each in ("src", "dst", "start", "stop", "mode")), strict=True
        ):
            value = before[src][at[start] : at[stop]]
            if mode == REPLACE:
                nodes[dst][at[start] : at[stop]] = value
            else:
                (held if mode == HOLD else folded).setdefault(dst, []).append((src, start, stop, value))
        for node, arrivals in folded.items():
            put(node, arrivals)
        if step.settle:
            for node, arrivals in held.items():
                put(node, arrivals)
            held.clear()
    return nodes


def evaluate(expression: Any, brought: list[Array]) -> Array:
    if not isinstance(expression, tuple):
        return brought[expression]
    return fold_left(np.add, [evaluate(each, brought) for each in expression])


@given(any_plan(most_ranks=12), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_numbers_end_as_the_stated_fold_bit_for_bit_for_any_number_of_elements(
    schedule: Schedule, elements: int, seed: int
) -> None:
    random, ranks = np.random.default_rng(seed), schedule.ranks
    brought = [(random.normal(size=elements) * 10.0 ** random.integers(-3, 4, elements)).astype(np.float32)
               for _ in range(ranks)]  # fmt: skip
    at = bounds(elements, schedule.parts)
    orders = check(schedule)
    nodes = run(schedule, brought, np.add)
    for part, order in enumerate(orders):
        here = slice(at[part], at[part + 1])
        wanted = evaluate(order, [each[here] for each in brought])
        holders = {
            "reduce_scatter": [part], "reduce": [schedule.root], "all_to_all": [part % ranks]
        }.get(schedule.kind, range(ranks))  # fmt: skip
        for rank in holders:
            assert nodes[rank][here].tobytes() == wanted.tobytes()
        if schedule.kind in ("allreduce", "reduce_scatter", "reduce"):
            exact = np.sum(np.array(brought, np.float64)[:, here], axis=0)
            # Each of at most P roundings is half a unit of a partial sum, which is no larger than the sum of magnitudes.
            error = (
                ranks * np.finfo(np.float32).eps * np.abs(np.array(brought, np.float64)[:, here]).sum(axis=0)
            )
            assert (np.abs(wanted - exact) <= error).all()


@given(st.integers(1, 9), st.integers(0, 30))
def test_a_scatter_and_then_a_gather_is_an_all_reduce_whichever_two_are_taken(
    ranks: int, elements: int
) -> None:
    brought = [np.arange(elements, dtype=np.float64) * (rank + 1) for rank in range(ranks)]
    total = np.sum(brought, axis=0) if ranks else None
    for scatter in algorithms("reduce_scatter"):
        between = run(plan("reduce_scatter", scatter, ranks), brought, np.add)
        for gather in algorithms("all_gather"):
            for result in run(plan("all_gather", gather, ranks), between, np.add):
                np.testing.assert_array_equal(result, total)


# What each rank is told to do fits together: messages between two ranks come in the order in which they are given.


def paired(schedule: Schedule, elements: int) -> bool:
    given: dict[tuple[int, int], list[tuple[int, int]]] = {}
    taken: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank in range(schedule.nodes):
        for step in rank_steps(schedule, rank, elements):
            for peer, start, stop in step.sends:
                given.setdefault((rank, peer), []).append((start, stop))
            for start, stop, sources, _ in step.gathers:
                for peer in sources:
                    if peer != rank:
                        taken.setdefault((peer, rank), []).append((start, stop))
    return given == taken


@given(any_plan(most_ranks=24), st.integers(0, 60))
def test_ranks_take_from_each_other_what_is_given_in_that_order(schedule: Schedule, elements: int) -> None:
    if schedule.kind != "all_to_all":
        assert paired(schedule, elements)


def test_two_messages_at_once_between_two_ranks_are_told_apart_whatever_others_send() -> None:
    # Rank 1 gives part 1 and then part 0; what rank 2 gives makes rank 0 see part 0 first.
    crossed = moves([1, 2, 1], [0, 0, 0], [1, 0, 0], mode=FOLD)
    swapped = moves([2, 1, 1], [0, 0, 0], [0, 1, 0], mode=FOLD)
    back = moves(0, [1, 2], 0, 2, mode=REPLACE)
    missing = moves(2, 0, 1, mode=FOLD)
    for first in (crossed, swapped):
        steps = (first, missing, back)
        schedule = Schedule(
            kind="allreduce", algorithm="own", ranks=3, nodes=3, parts=2, steps=3, step=steps.__getitem__
        )  # fmt: skip
        check(schedule)
        assert paired(schedule, 2)


# Order.


def ascending(schedule: Schedule) -> bool:
    return all(contributions(each) == sorted(contributions(each)) for each in check(schedule))


@pytest.mark.parametrize("name", algorithms())
def test_an_all_reduce_says_exactly_whether_it_keeps_the_order_of_ranks(name: str) -> None:
    for ranks in range(1, 14):
        for choices in choices_of("allreduce", name, ranks):
            schedule = plan("allreduce", name, ranks, **choices)
            assert schedule.keeps_order == ascending(schedule), (ranks, choices)


def test_in_the_order_of_ranks_fold_these() -> None:
    wanted = [
        "central",
        "sharded",
        "direct_whole",
        "tree",
        "double_tree",
        "halving",
        "doubling",
        "machine_tree",
    ]
    assert keeping_order("allreduce", 7) == wanted
    assert keeping_order("allreduce", 8) == wanted
    assert keeping_order("allreduce", 2) == algorithms()
    assert keeping_order("reduce_scatter", 8) == ["sharded"]
    assert keeping_order("reduce", 8) == ["binomial", "tree"]
    assert keeping_order("broadcast", 8) == algorithms("broadcast")


def text(left: str, right: str) -> str:
    return left + right


def test_an_operator_that_does_not_commute_is_refused_with_the_names_of_what_would_do() -> None:
    joining = Operator(text, commutative=False)
    for name in keeping_order("allreduce", 7):
        schedule = plan("allreduce", name, 7, **({"per_machine": 2} if name in PER_MACHINE else {}))
        refuse(schedule, joining)
        letters = [np.array([f"({rank})"], object) for rank in range(7)]
        for result in run_objects(schedule, letters)[:7]:
            assert result.tolist() == ["(0)(1)(2)(3)(4)(5)(6)"]
    with pytest.raises(BadCollective) as caught:
        refuse(plan("allreduce", "ring", 7), joining)
    assert str(caught.value) == (
        "operator 'text' does not commute, and ring does not fold in the order of ranks; of allreduce over 7 ranks these do: "
        "central, sharded, direct_whole, tree, double_tree, halving, doubling, machine_tree"
    )
    refuse(plan("allreduce", "ring", 7), operator("prod"))
    refuse(plan("allreduce", "ring", 7), Operator(text))


def run_objects(schedule: Schedule, brought: list[Array]) -> list[Array]:
    """One element each; the schedule cuts it into parts of which all but one are empty."""
    at = bounds(1, schedule.parts)
    assert at[-1] == 1
    state: list[Any] = [each[0] for each in brought] + [None] * (schedule.nodes - schedule.ranks)
    held: dict[int, dict[int, Any]] = {}
    part = schedule.parts - 1
    for step in schedule:
        before, arrived = list(state), dict[int, dict[int, Any]]()
        for src, dst, start, stop, mode in zip(
            *(getattr(step, each).tolist() for each in ("src", "dst", "start", "stop", "mode")), strict=True
        ):
            if start <= part < stop:
                if mode == REPLACE:
                    state[dst] = before[src]
                else:
                    (held if mode == HOLD else arrived).setdefault(dst, {})[src] = before[src]
        if step.settle:
            arrived, held = {**arrived, **held}, {}
        for dst, values in arrived.items():
            operands = values if state[dst] is None else {**values, dst: state[dst]}
            state[dst] = "".join(operands[each] for each in sorted(operands))
    return [np.array([each], object) for each in state]


# Lazily, at sizes that are on no machine here.


def test_the_steps_of_24_576_ranks_are_made_one_at_a_time_as_arrays() -> None:
    ranks = 24576
    every = np.arange(ranks)
    ring = plan("allreduce", "ring", ranks)
    assert (ring.steps, ring.parts) == (49150, ranks)
    for number in (0, 17, ranks - 2, ranks - 1, 49149):
        step = ring.step(number)
        assert np.array_equal(step.src, every)
        assert np.array_equal(step.dst, (every + 1) % ranks)
        turn = number - (ranks - 1)
        assert np.array_equal(
            step.start, (every - number - 1) % ranks if turn < 0 else (every - turn) % ranks
        )
    for name in algorithms():
        if name == "sharded":
            continue
        schedule = plan("allreduce", name, ranks, **({"per_machine": 6} if name in PER_MACHINE else {}))
        assert all(len(schedule.step(number)) <= 6 * ranks for number in range(0, schedule.steps, 5000))


def test_a_step_that_would_take_gigabytes_is_refused_and_its_moves_are_known_by_those_of_one_rank() -> None:
    sharded = plan("allreduce", "sharded", 24576)
    with pytest.raises(TooLarge, match="603955200 moves"):
        sharded.step(0)
    assert sharded.rotation is not None
    assert len(sharded.rotation.to) == 2 * 24575


@pytest.mark.parametrize("name", ["ring", "sharded", "direct", "direct_whole"])
def test_ranks_turned_by_one_do_the_same(name: str) -> None:
    for ranks in range(1, 9):
        schedule = plan("allreduce", name, ranks)
        assert schedule.rotation is not None
        turned = {
            (int(at), rank, int(rank + to) % ranks, int(part + rank) % schedule.parts, int(mode))
            for at, to, part, mode in zip(
                schedule.rotation.at, schedule.rotation.to, schedule.rotation.part, schedule.rotation.mode, strict=True
            )
            for rank in range(ranks)
        }  # fmt: skip
        stepped = [
            (number, *move)
            for number, step in enumerate(schedule)
            for move in zip(
                *(getattr(step, each).tolist() for each in ("src", "dst", "start", "mode")), strict=True
            )
        ]
        assert len(stepped) == len(turned)
        assert set(stepped) == turned


@pytest.mark.parametrize(
    ("arguments", "choices", "said"),
    [
        (("allreduce", "ring", 0), {}, "at least 1 rank, got 0"),
        (("allreduce", "halving", -1), {}, "at least 1 rank, got -1"),
        (("allreduce", "circle", 2), {}, "no allreduce 'circle'; there are: central, sharded"),
        (("allsum", "ring", 2), {}, "no collective 'allsum'; there are: allreduce"),
        (("allreduce", "ring", 2), {"chunks": 2}, "allreduce 'ring': .*chunks"),
        (("allreduce", "two_level", 2), {}, "allreduce 'two_level': .*per_machine"),
        (("allreduce", "two_level", 2), {"per_machine": 0}, "a machine has at least 1 rank, got 0"),
        (("allreduce", "machine_tree", 2), {"per_machine": 0}, "a machine has at least 1 rank, got 0"),
        (("allreduce", "tree", 2), {"chunks": 0}, "at least 1 chunk, got 0"),
        (("allreduce", "tree", 2), {"chunks": 10**9}, "at most 1,048,576 chunks, got 1,000,000,000"),
        *(
            (
                ("allreduce", name, 10**12),
                {"per_machine": 6} if name in PER_MACHINE else {},
                "at most 4,194,304 ranks",
            )
            for name in algorithms()
        ),
        (("broadcast", "binomial", 2), {"root": 2}, "one of the ranks 0 to 1, got 2"),
        (("reduce", "tree", 3), {"root": -1}, "one of the ranks 0 to 2, got -1"),
        (("reduce", "tree", 3), {"root": 1.5}, r"one of the ranks 0 to 2, got 1\.5"),
        (("broadcast", "binomial", 3), {"root": None}, "one of the ranks 0 to 2, got None"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_one_line(
    arguments: tuple[Any, str, int], choices: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadCollective, match=said) as caught:
        plan(*arguments, **choices)
    assert "\n" not in str(caught.value)


def test_a_plan_of_one_s_own_is_simulated_by_its_moves_and_not_by_its_name() -> None:
    central = plan("allreduce", "central", 8)
    wanted = simulate(central, 8000, 4, uniform(latency_s=1e-6, s_per_byte=1e-9))
    for name in ("ring", "sharded", "direct"):
        named = replace(central, algorithm=name)
        check(named)
        found = simulate(named, 8000, 4, uniform(latency_s=1e-6, s_per_byte=1e-9))
        assert found.by_node.tolist() == wanted.by_node.tolist()
        assert same_counts(named, central)


def same_counts(one: Schedule, other: Schedule) -> bool:
    first, second = (count(each, 1000) for each in (one, other))
    return first.sent.tolist() == second.sent.tolist() and first.rounds == second.rounds
