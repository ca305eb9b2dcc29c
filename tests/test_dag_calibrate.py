"""A machine is found again from its own times, and predicts those that it was not fitted to."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from dag.collectives.calibrate import ByteCosts, Machine, Timed, fit, predict
from dag.collectives.one_machine import Means
from dag.errors import BadCollective

SIZES = (1_000, 64_000, 1_000_000, 8_000_000)
FITTED = [
    (algorithm, ranks, nbytes)
    for algorithm in ("ring", "doubling", "central", "direct_whole", "sharded")
    for ranks in (2, 4, 8)
    for nbytes in SIZES
]
ALL = (
    "central",
    "sharded",
    "direct",
    "direct_whole",
    "ring",
    "tree",
    "double_tree",
    "halving",
    "doubling",
    "two_level",
)
OTHERS = [(algorithm, ranks, nbytes) for algorithm in ALL for ranks in (2, 3, 5, 8) for nbytes in SIZES]
PULLED = Means(cores=2, pulled=True, short_bytes=16384)
TRUE = Machine(
    means=PULLED, start_s=4e-6, post_s=3e-6, take_s=5e-6, turn_s=3e-5, send_factor=0.7, settle_factor=2.0,
    bytes_=(
        ByteCosts(memory_bytes=2_000, take_s=6e-11, fold_s=4e-11, share_s=2e-10),
        ByteCosts(memory_bytes=1_000_000, take_s=8e-11, fold_s=5e-11, share_s=3e-10),
        ByteCosts(memory_bytes=64_000_000, take_s=3e-10, fold_s=2e-10, share_s=9e-10),
    ),
)  # fmt: skip


def timed(machine: Machine, case: tuple[str, int, int], noise: random.Random | None = None) -> Timed:
    algorithm, ranks, nbytes = case
    what = Timed(algorithm=algorithm, ranks=ranks, nbytes=nbytes)
    seconds = predict(machine, what)
    return replace(what, seconds=seconds * math.exp(noise.gauss(0, 0.05) if noise else 0.0))


def errors(machine: Machine, wanted: Machine) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for case in OTHERS:
        true = timed(wanted, case)
        found.setdefault(case[1], []).append(abs(predict(machine, true) / true.seconds - 1))
    return found


@pytest.mark.parametrize(
    "true", [TRUE, replace(TRUE, means=Means(cores=4, pulled=False))], ids=["shared memory", "sockets"]
)
def test_from_a_few_exact_times_all_others_follow(true: Machine) -> None:
    found = fit([timed(true, case) for case in FITTED], true.means)
    assert found.error < 0.03
    for worst in map(max, errors(found, true).values()):
        assert worst < 0.15


def test_times_that_are_5_percent_off_still_give_predictions_within_the_aims() -> None:
    noise = random.Random(1)
    found = fit([timed(TRUE, case, noise) for case in FITTED], PULLED)
    assert 0.02 < found.error < 0.08
    by_ranks = errors(found, TRUE)
    assert max(by_ranks.pop(2)) < 0.15
    assert max(map(max, by_ranks.values())) < 0.30


def test_a_fit_is_a_function_of_its_times_alone_whatever_their_order() -> None:
    times = [timed(TRUE, case) for case in FITTED[::3]]
    random.Random(1).shuffle(shuffled := list(times))
    assert fit(times, PULLED) == fit(times, PULLED) == fit(shuffled, PULLED)


def test_a_rank_alone_says_nothing_of_messages_and_is_left_out() -> None:
    times = [timed(TRUE, case) for case in FITTED[::3]]
    alone = Timed(algorithm="ring", ranks=1, nbytes=1000, seconds=1.0)
    assert fit([alone, *times], PULLED) == fit(times, PULLED)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([], "got 0 times of 0 sizes"),
        ([timed(TRUE, ("ring", ranks, 1000)) for ranks in (2, 3, 4, 5)], "got 4 times of 1 sizes"),
        (
            [replace(timed(TRUE, case), seconds=0.0) for case in FITTED[:8]],
            "a time is above 0",
        ),
        ([Timed(algorithm="ring", ranks=2, nbytes=nbytes) for nbytes in (4, 8, 12, 16)], "a time is above 0"),
    ],
)
def test_too_few_times_or_none_are_refused(times: list[Timed], words: str) -> None:
    with pytest.raises(BadCollective, match=words):
        fit(times, PULLED)
