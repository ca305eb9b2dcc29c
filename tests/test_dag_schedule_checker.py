"""The checker of schedules: what is broken is found and named, and what is to be known of a whole plan is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_plans import ALL, choices_of

from dag.collectives import Schedule, Step, algorithms, check, plan, travels
from dag.collectives.blocking import by_peer, circle, giving_first
from dag.collectives.plans import PER_MACHINE
from dag.collectives.schedule import FOLD, HOLD, REPLACE, moves
from dag.errors import BadCollective


def made(
    *steps: Step,
    ranks: int = 2,
    parts: int = 1,
    kind: Any = "allreduce",
    keeps_order: bool = False,
    nodes: int | None = None,
) -> Schedule:
    return Schedule(
        kind=kind, algorithm="broken", ranks=ranks, nodes=nodes or ranks, parts=parts, steps=len(steps),
        step=steps.__getitem__, keeps_order=keeps_order,
    )  # fmt: skip


ONE_WAY = moves(1, 0, 0, mode=FOLD)
BACK = moves(0, 1, 0, mode=REPLACE)


def without_move(schedule: Schedule, number: int, index: int) -> Schedule:
    def step(at: int) -> Step:
        whole = schedule.step(at)
        if at != number:
            return whole
        columns = ("src", "dst", "start", "stop", "mode")
        return replace(whole, **{name: np.delete(getattr(whole, name), index) for name in columns})

    return replace(schedule, step=step)


# As in MPICH, those two give some ranks again what came to them with the scatter.
@pytest.mark.parametrize(("kind", "name"), [each for each in ALL if not each[1].startswith("scatter_")])
def test_no_move_of_any_plan_can_be_left_out(kind: Any, name: str) -> None:
    choices = {"per_machine": 2} if name in PER_MACHINE else {}
    schedule = plan(kind, name, 5, **choices)
    for number, step in enumerate(schedule):
        for index in range(len(step)):
            with pytest.raises(BadCollective):
                check(without_move(schedule, number, index))


def test_the_plan_of_two_ranks_that_the_broken_ones_are_made_of_is_whole() -> None:
    assert check(made(ONE_WAY, BACK, keeps_order=True)) == [(0, 1)]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (made(moves(1, 0, 0, mode=FOLD)), "rank 1 ends with part 0 = 1, wanted each of [0, 1] once"),
        (made(ONE_WAY, ONE_WAY, BACK), "rank 0 ends with part 0 = ((0, 1), 1), wanted each of [0, 1] once"),
        (
            made(moves([0, 1], [1, 0], 0, mode=FOLD)),
            "step 0: part 0 of 0 is written while it is given away",
        ),
        (
            made(moves(0, [1, 2], 0, mode=FOLD), moves(2, 1, 0, mode=FOLD), BACK, ranks=3),
            "rank 0 ends with part 0 = 0",
        ),
        (
            made(moves(2, 0, 0, mode=FOLD), ONE_WAY, moves(0, [1, 2], 0, mode=REPLACE), ranks=3, keeps_order=True),
            "says that it keeps the order of ranks, and folds part 0 as ((0, 2), 1)",
        ),
        (
            made(moves([0, 1, 2], [1, 2, 0], 0, mode=HOLD, settle=True), moves([0, 1, 2], [2, 0, 1], 0, mode=HOLD), ranks=3),
            "0 holds part 0 of [1] at the end, never folded",
        ),
        (
            made(moves([0, 1], [1, 0], 0, mode=HOLD, settle=True), moves(2, [0, 1], 0, mode=FOLD), BACK, ranks=3),
            "rank 2 ends with part 0 = 2",
        ),
        (made(moves([1, 1], 0, 0, mode=FOLD), BACK), "step 0: 1 gives parts 0 to 0 to 0: part 0 twice"),
        (made(moves([1, 2], 0, 0, mode=REPLACE), ranks=3), "2 gives parts 0 to 0 to 0: part 0 is replaced by two"),
        (made(moves([1, 2], 0, 0, mode=[FOLD, REPLACE]), ranks=3), "part 0 reaches it in two modes or ranges"),
        (made(moves([1, 2], 0, [0, 1], [2, 2], mode=FOLD), ranks=3, parts=2), "part 1 reaches it in two modes or ranges"),
        (
            made(moves(1, 0, 0, 2, mode=HOLD), moves([2, 2], 0, [0, 1], mode=HOLD, settle=True), ranks=3, parts=2),
            "2 gives parts 0 to 0 to 0: part 0 is on hold there in another range",
        ),
        (made(moves(1, 0, 0, mode=HOLD), moves(1, 0, 0, mode=HOLD)), "part 0 is on hold there already"),
        (made(moves(1, 1, 0, mode=FOLD)), "1 gives parts 0 to 0 to 1, itself"),
        (made(moves(1, 0, 1, mode=FOLD)), "1 gives parts 1 to 1 to 0: there are 2 nodes and 1 parts"),
        (made(moves(1, -1, 0, mode=FOLD)), "there are 2 nodes and 1 parts"),
        (made(moves(1, 2, 0, mode=FOLD)), "there are 2 nodes and 1 parts"),
        (made(moves(2, 0, 0, mode=FOLD), nodes=3), "2 gives parts 0 to 0 to 0 and has no part 0"),
        (made(moves(1, 0, 0, mode=REPLACE), kind="broadcast"), "and has no part 0"),
        (made(ONE_WAY, kind="reduce_scatter"), "wanted 2 parts and at least 2 nodes, got 1 and 2"),
        (made(ONE_WAY, parts=3, kind="all_to_all"), "wanted 4 parts"),
        (made(moves(0, 1, 0, mode=REPLACE), moves(1, 0, 0, mode=REPLACE), parts=4, kind="all_to_all"), "rank 1 ends with part 1"),
    ],
    ids=range(22),
)  # fmt: skip
def test_what_is_broken_is_found_and_named(schedule: Schedule, said: str) -> None:
    with pytest.raises(BadCollective) as caught:
        check(schedule)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_ranks_hold_the_same_sum_in_the_same_order_or_the_plan_is_refused() -> None:
    # Everyone sums up as things arrive: the right numbers, and other last digits at each rank.
    steps = [moves([0, 1, 2], [ahead % 3, (1 + ahead) % 3, (2 + ahead) % 3], 0, mode=HOLD, settle=True)
             for ahead in (1, 2)]  # fmt: skip
    with pytest.raises(BadCollective, match="wanted each of"):
        check(made(*steps, ranks=3))  # in the second step partial sums go out
    apart = made(
        moves([1, 2, 0], [0, 1, 2], [0, 1, 2], mode=FOLD),
        moves([2, 0, 1], [0, 1, 2], [0, 1, 2], mode=FOLD),
        moves([0, 0, 1, 1, 2], [1, 2, 0, 2, 0], [0, 0, 1, 1, 2], mode=REPLACE),
        moves([0, 2], [1, 1], [2, 2], mode=[REPLACE, FOLD]),
        ranks=3, parts=3,
    )  # fmt: skip
    with pytest.raises(BadCollective, match="two modes"):
        check(apart)
    other_way_round = made(
        moves([0, 1, 2, 2], [3, 3, 3, 4], 0, mode=FOLD),
        moves([0], [4], 0, mode=FOLD),
        moves([1], [4], 0, mode=FOLD),
        moves([3, 3, 4], [0, 1, 2], 0, mode=REPLACE),
        ranks=3, nodes=5,
    )  # fmt: skip
    with pytest.raises(BadCollective, match=r"part 0 is \(0, 1, 2\) at rank 0 and \(1, \(0, 2\)\) at 2"):
        check(other_way_round)


def test_a_rotation_that_tells_other_moves_than_the_steps_is_found() -> None:
    ring = plan("allreduce", "ring", 4)
    with pytest.raises(BadCollective, match="step 0: its moves are not those of its rotation"):
        check(replace(plan("allreduce", "halving", 4), rotation=ring.rotation))
    assert ring.rotation is not None
    mode = ring.rotation.mode.copy()
    mode[4] = FOLD
    with pytest.raises(BadCollective, match="step 4: its moves are not those of its rotation"):
        check(replace(ring, rotation=replace(ring.rotation, mode=mode)))


def test_a_ring_in_which_all_give_before_they_take_stands_still_where_sends_block() -> None:
    with pytest.raises(BadCollective, match=r"0 for 1 in step 0, 1 for 2 in step 0, 2 for 0 in step 0"):
        check(plan("allreduce", "ring", 3), order=giving_first)
    assert circle(plan("allreduce", "ring", 3)) == []
    stuck = {
        name
        for name in algorithms()
        if circle(plan("allreduce", name, 8, **MACHINES.get(name, {})), giving_first)
    }
    assert stuck == {
        "sharded",
        "direct",
        "direct_whole",
        "ring",
        "double_tree",
        "halving",
        "doubling",
        "two_level",
    }


MACHINES = {name: {"per_machine": 2} for name in PER_MACHINE}


@st.composite
def any_steps(draw: st.DrawFn) -> Schedule:
    ranks = draw(st.integers(2, 7))
    pair = st.tuples(st.integers(0, ranks - 1), st.integers(1, ranks - 1))
    steps = draw(st.lists(st.lists(pair, min_size=1, max_size=15), min_size=1, max_size=5))
    return made(
        *(moves([a for a, _ in step], [(a + b) % ranks for a, b in step], 0, mode=FOLD) for step in steps), ranks=ranks
    )  # fmt: skip


@given(any_steps())
def test_in_the_order_of_peers_whatever_is_to_be_sent_gets_through(schedule: Schedule) -> None:
    assert circle(schedule, by_peer) == []


@given(any_steps())
def test_a_circle_is_one_and_each_in_it_really_waits(schedule: Schedule) -> None:
    found = circle(schedule, giving_first)
    for (_, peer, _), (node, _, _) in zip(found, [*found[1:], *found[:1]], strict=True):
        assert peer == node
    for node, peer, number in found:
        step = schedule.step(number)
        sends = {(a, b) for a, b in zip(step.src.tolist(), step.dst.tolist(), strict=True)}
        assert (node, peer) in sends or (peer, node) in sends


def test_what_travels_to_be_folded_is_known_of_each() -> None:
    found: dict[str, set[str]] = {}
    for name in algorithms():
        for choices in choices_of("allreduce", name, 8):
            if choices.get("per_machine", 2) == 2:
                found.setdefault(travels(plan("allreduce", name, 8, **choices)), set()).add(name)
    assert found == {
        "inputs": {"central", "sharded", "direct", "direct_whole"},
        "partial sums": {"ring", "tree", "double_tree", "halving", "doubling", "machine_tree", "two_level"},
    }
