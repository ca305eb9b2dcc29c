"""Ranks that share cores: closed forms where every rank has a core, the sum of all work on one, and Graham's bounds between."""

from __future__ import annotations

from dataclasses import astuple, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dag.collectives import Schedule, algorithms, count, plan
from dag.collectives.choose import planned
from dag.collectives.one_machine import Costs, Means, Spent, acts_of, spend
from dag.collectives.schedule import FOLD, HOLD, REPLACE, moves

COSTS = Costs(
    start=7e-6, post=3e-6, take=2e-6, turn=11e-6, send_byte=1e-10, take_byte=2e-10, fold_byte=3e-10, settle_byte=5e-10,
    share_byte=4e-10,
)  # fmt: skip
C = COSTS
NO_TURNS = replace(COSTS, turn=0.0)


def plan_of(algorithm: str, ranks: int, nbytes: int = 100_000) -> Schedule:
    return planned("allreduce", algorithm, ranks, nbytes, per_machine=2)


def spent(schedule: Schedule, elements: int, means: Means, costs: Costs = COSTS) -> Spent:
    return spend(acts_of(schedule, elements, 4, means), means.cores, costs)


def seconds(schedule: Schedule, elements: int, means: Means, costs: Costs = COSTS) -> float:
    return spent(schedule, elements, means, costs).seconds


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_ring_whose_ranks_have_a_core_each_takes_the_closed_form(ranks: int) -> None:
    part = 4 * 120
    elements = 120 * ranks
    step = C.post + C.take + part * (C.send_byte + C.take_byte)
    wanted = C.start + 2 * (ranks - 1) * step + (ranks - 1) * part * C.fold_byte
    pushed = Means(cores=ranks, pulled=False)
    assert seconds(plan("allreduce", "ring", ranks), elements, pushed) == pytest.approx(wanted, rel=1e-12)


def late(since: float, come: float) -> float:
    """When a rank goes on that has waited."""
    return come + min(C.turn, come - since)


@pytest.mark.parametrize("ranks", [3, 4, 7])
def test_a_central_server_folds_one_after_another_while_workers_wait(ranks: int) -> None:
    n, q = 4000, ranks - 1
    central = plan("allreduce", "central", ranks)
    asked = C.start + C.post
    served = late(C.start, asked) + q * (C.take + n * (C.take_byte + C.fold_byte))
    answered = [served + at * C.post for at in range(1, ranks)]
    # A worker goes on after its receipt, and waits again where its answer is posted later; the server waits for the last.
    received = late(asked, served)
    done = [
        (late(received, answer) if answer > received else received) + C.take + n * C.take_byte
        for answer in answered
    ]
    pulled = Means(cores=ranks, pulled=True)
    assert seconds(central, n // 4, pulled) == pytest.approx(late(answered[-1], max(done)), rel=1e-12)

    sending = C.post + n * C.send_byte
    asked = C.start + sending
    served = late(C.start, asked) + q * (C.take + n * (C.take_byte + C.fold_byte))
    last = late(asked, served + q * sending) + C.take + n * C.take_byte
    assert seconds(central, n // 4, replace(pulled, pulled=False)) == pytest.approx(last, rel=1e-12)


@pytest.mark.parametrize("pulled", [False, True])
def test_two_ranks_that_fold_and_share_do_it_in_one(pulled: bool) -> None:
    n = 400_000
    sharded = plan("allreduce", "sharded", 2)
    found = seconds(sharded, n // 4, Means(cores=2, pulled=pulled, short_bytes=16384))
    half = n / 2
    if pulled:
        wanted = C.start + C.post + C.take + half * C.share_byte
    else:
        wanted = C.start + 2 * (C.post + C.take + half * (C.send_byte + C.take_byte)) + half * C.fold_byte
    assert found == pytest.approx(wanted, rel=1e-12)
    # What is short goes with its messages, in two steps, also where memory is read.
    short = seconds(sharded, 1000, Means(cores=2, pulled=True, short_bytes=16384))
    assert short == pytest.approx(
        C.start + 2 * (C.post + C.take) + 2000 * (2 * C.take_byte + C.fold_byte), rel=1e-12
    )


def work(schedule: Schedule, elements: int, pulled: bool) -> float:
    """All that cores have to do, from the counters: what is folded at once and later is counted move by move."""
    counts = count(schedule, elements)
    messages = counts.messages
    by_mode = dict.fromkeys((FOLD, HOLD, REPLACE), 0)
    at = np.arange(schedule.parts + 1) * elements // schedule.parts
    for step in schedule:
        for start, stop, mode in zip(step.start, step.stop, step.mode, strict=True):
            by_mode[int(mode)] += int(at[stop] - at[start])
    sent = int(counts.sent.sum())
    return (
        schedule.ranks * C.start
        + messages * (C.post + C.take)
        + 4 * sent * ((0 if pulled else C.send_byte) + C.take_byte)
        + 4 * (by_mode[FOLD] * C.fold_byte + by_mode[HOLD] * C.settle_byte)
    )


SHARES = {"sharded"}
cases = st.tuples(
    st.sampled_from(sorted(set(algorithms()) - SHARES)),
    st.integers(3, 9),
    st.integers(1, 3000),
    st.booleans(),
)


@given(cases)
def test_on_one_core_a_collective_takes_the_sum_of_all_work(case: tuple[str, int, int, bool]) -> None:
    algorithm, ranks, elements, pulled = case
    schedule = plan_of(algorithm, ranks)
    found = seconds(schedule, elements, Means(cores=1, pulled=pulled), NO_TURNS)
    assert found == pytest.approx(work(schedule, elements, pulled), rel=1e-9)


@given(cases, st.integers(2, 6))
def test_on_any_cores_the_time_lies_between_the_bounds_of_graham(
    case: tuple[str, int, int, bool], cores: int
) -> None:
    algorithm, ranks, elements, pulled = case
    schedule = plan_of(algorithm, ranks)
    found = seconds(schedule, elements, Means(cores=cores, pulled=pulled), NO_TURNS)
    span = seconds(schedule, elements, Means(cores=ranks, pulled=pulled), NO_TURNS)
    total = work(schedule, elements, pulled)
    assert max(span, total / cores) * (1 - 1e-9) <= found
    assert found <= (total / cores + span * (1 - 1 / cores)) * (1 + 1e-9)


@given(
    st.tuples(st.sampled_from(algorithms()), st.integers(2, 8), st.integers(1, 30_000), st.booleans()),
    st.integers(1, 3),
)
def test_a_time_is_the_sum_of_its_costs_and_their_counts_are_its_slopes(
    case: tuple[str, int, int, bool], cores: int
) -> None:
    algorithm, ranks, elements, pulled = case
    schedule, means = plan_of(algorithm, ranks), Means(cores=cores, pulled=pulled, short_bytes=2000)
    found = spent(schedule, elements, means, COSTS)
    assert found.seconds == pytest.approx(float(found.counts @ np.array(astuple(COSTS))), rel=1e-9)
    # Twice as dear in all: twice the time, along the same path.
    double = Costs(**{each.name: 2 * getattr(COSTS, each.name) for each in fields(COSTS)})
    again = spent(schedule, elements, means, double)
    assert again.seconds == pytest.approx(2 * found.seconds, rel=1e-9)
    assert again.counts == pytest.approx(found.counts)


def test_the_slopes_are_those_of_differences() -> None:
    schedule, means = plan_of("double_tree", 6, 1_000_000), Means(cores=2, pulled=False)
    found = spent(schedule, 250_000, means, COSTS)
    for place, each in enumerate(fields(COSTS)):
        step = getattr(COSTS, each.name) * 1e-7
        more = spent(
            schedule, 250_000, means, replace(COSTS, **{each.name: getattr(COSTS, each.name) + step})
        )
        assert (more.seconds - found.seconds) / step == pytest.approx(found.counts[place], rel=1e-3, abs=1e-3)


def test_a_rank_that_waits_gives_its_core_to_another() -> None:
    # Rank 0 gives to 1, then 2 gives to 3; on one core nobody waits for longer than the others work.
    chain = Schedule(
        kind="reduce", algorithm="two pairs", ranks=4, nodes=4, parts=1, steps=1,
        step=lambda number: moves([0, 2], [1, 3], 0, mode=FOLD),
    )  # fmt: skip
    found = seconds(chain, 10, Means(cores=1, pulled=False), NO_TURNS)
    assert found == pytest.approx(
        4 * C.start + 2 * (C.post + C.take + 40 * (C.send_byte + C.take_byte + C.fold_byte))
    )


@pytest.mark.parametrize("algorithm", algorithms())
def test_one_rank_starts_and_is_done(algorithm: str) -> None:
    assert seconds(plan_of(algorithm, 1), 1000, Means(cores=2, pulled=True)) == pytest.approx(C.start)
