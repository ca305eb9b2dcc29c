"""Placement, repair and balance plans, which are values: checked against rules, and simulated at a larger size."""

import dataclasses
import itertools
import random
from array import array

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from gfs_sim.checksum import BLOCK_BYTES, BadSums, Sums, add_blocks
from gfs_sim.placement import Candidate, choose
from gfs_sim.plans import ChunkState, ReplicaState, plan_balance, plan_chunk, plan_repairs, priority

RACKS = {"a": "r1", "b": "r1", "c": "r2", "d": "r2", "e": "r3"}


def servers(**used: int) -> list[Candidate]:
    return [
        Candidate(name=name, rack=RACKS[name], used_bytes=size, free_bytes=10_000 - size, recent=0.0)
        for name, size in used.items()
    ]


def chunk(goal: int, deleted: bool = False, **replicas: str) -> ChunkState:
    states = tuple(
        ReplicaState(server=name, condition="good" if how == "draining" else how, draining=how == "draining")  # type: ignore[arg-type]
        for name, how in replicas.items()
    )
    return ChunkState(handle=1, length=100, goal=goal, replicas=states, deleted=deleted)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (chunk(3, a="good"), 0),
        (chunk(3, a="good", b="corrupt"), 0),
        (chunk(2, a="draining", c="draining"), 0),
        (chunk(5, a="good", c="draining"), 0),
        (chunk(3, a="good", c="good"), 2),
        (chunk(2, a="good", b="good"), 3),
        (chunk(3, a="corrupt", b="missing"), 4),
        (chunk(2, a="good", c="good"), 5),
        (chunk(9, a="good", b="good", c="good", d="good"), 2),
        (chunk(3, deleted=True, a="good"), 10),
    ],
)
def test_the_repair_queue_is_in_the_order_of_hdfs(state: ChunkState, expected: int) -> None:
    assert priority(state, RACKS, 5) == expected


def test_a_chunk_under_a_third_of_its_goal_comes_second() -> None:
    assert priority(chunk(7, a="good", c="good"), RACKS, 7) == 1


def test_live_files_come_before_deleted_ones_and_the_endangered_before_the_rest() -> None:
    states = [
        dataclasses.replace(state, handle=handle)
        for handle, state in enumerate(
            [
                chunk(3, deleted=True, a="good"),
                chunk(3, a="good", c="good"),
                chunk(3, a="corrupt"),
                chunk(3, a="good"),
                chunk(2, a="good", b="good"),
            ]
        )
    ]
    plans = plan_repairs(states, servers(a=0, b=0, c=0, d=0, e=0), random.Random(1))
    assert [plan.handle for plan in plans] == [3, 1, 4, 0]


CONDITIONS = st.sampled_from(["good", "corrupt", "missing", "stale", "unreachable", "draining"])


@given(
    goal=st.integers(1, 5),
    conditions=st.dictionaries(st.sampled_from("abcde"), CONDITIONS, max_size=5),
    live=st.sets(st.sampled_from("abcde"), min_size=1),
    used=st.lists(st.integers(0, 9_000), min_size=5, max_size=5),
    seed=st.integers(0, 1000),
)
def test_a_plan_run_in_order_never_lowers_what_is_safe_and_ends_at_the_goal(
    goal: int, conditions: dict[str, str], live: set[str], used: list[int], seed: int
) -> None:
    conditions = {
        name: how if name in live or how == "draining" else "unreachable" for name, how in conditions.items()
    }
    draining = {name for name, how in conditions.items() if how == "draining"}
    live -= draining
    if not live:
        return
    state = chunk(goal, **conditions)
    candidates = servers(**{name: used["abcde".index(name)] for name in sorted(live)})
    plan = plan_chunk(state, candidates, random.Random(seed))
    good = set(state.sources)
    listed = set(conditions)
    for clone in plan.clones:
        assert clone.target in live
        assert clone.target not in good
        assert set(clone.sources) <= good
        good.add(clone.target)
        listed.add(clone.target)
    for removal in plan.removals:
        others = {name for name in good if name != removal.server and name in live}
        assert len(others) >= removal.needs >= 1
        assert conditions.get(removal.server) != "unreachable"
        good.discard(removal.server)
        listed.discard(removal.server)
    if state.sources:
        assert len(good & live) + plan.lacking >= min(goal, len(live))
        assert len(good & live) <= max(goal, 1)
        if not plan.lacking:
            assert len(good & live) == min(goal, len(live))
            assert not good & draining
    else:
        assert (plan.clones, plan.removals) == ((), ())


def test_many_chunks_over_many_servers_spread_evenly_and_over_racks() -> None:
    picks = random.Random(2)
    used = {f"s{n}": 0 for n in range(40)}
    racks = {name: f"rack{int(name[1:]) % 5}" for name in used}
    for _ in range(4000):
        candidates = [
            Candidate(name=name, rack=racks[name], used_bytes=size, free_bytes=10**9, recent=0.0)
            for name, size in used.items()
        ]
        chosen = choose(candidates, 3, 64, picks)
        assert len({racks[name] for name in chosen}) == 3
        for name in chosen:
            used[name] += 64
    assert max(used.values()) - min(used.values()) <= 64 * 3


def test_a_new_empty_server_does_not_get_every_new_chunk() -> None:
    picks = random.Random(3)
    used = {f"s{n}": 10_000 for n in range(9)} | {"new": 0}
    recent = dict.fromkeys(used, 0.0)
    for _ in range(100):
        candidates = [
            Candidate(name=name, rack="r", used_bytes=used[name], free_bytes=10**9, recent=recent[name])
            for name in used
        ]
        for name in choose(candidates, 1, 1, picks):
            used[name] += 1
            recent[name] += 1
    assert 5 <= used["new"] <= 50


def test_no_server_gets_a_chunk_it_has_no_room_for() -> None:
    full = dataclasses.replace(servers(a=0)[0], free_bytes=50)
    assert choose([full, *servers(b=9_000)], 2, 100, random.Random(1)) == ["b"]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 500), st.sampled_from("abcde")), min_size=1, max_size=60),
    threshold=st.sampled_from([0.05, 0.1, 0.3]),
)
def test_balancing_ends_never_widens_the_gap_and_keeps_each_chunk(
    sizes: list[tuple[int, str]], threshold: float
) -> None:
    used = dict.fromkeys("abcde", 0)
    states = []
    for handle, (size, name) in enumerate(sizes):
        used[name] += size
        replicas = (ReplicaState(server=name, condition="good"),)
        states.append(ChunkState(handle=handle, length=size, goal=1, replicas=replicas))
    before = max(used.values()) - min(used.values())
    place = {handle: name for handle, (_, name) in enumerate(sizes)}
    for clone, removal in plan_balance(states, servers(**used), threshold):
        assert place[clone.handle] == removal.server != clone.target
        place[clone.handle] = clone.target
        used[removal.server] -= clone.length
        used[clone.target] += clone.length
    assert max(used.values()) - min(used.values()) <= before
    assert plan_balance([], servers(**used), threshold) == []


@given(data=st.binary(max_size=3 * BLOCK_BYTES // 512), cuts=st.lists(st.integers(0, 400), max_size=5))
def test_sums_do_not_depend_on_how_the_bytes_were_cut(data: bytes, cuts: list[int]) -> None:
    data = data * 512
    edges = sorted({0, len(data), *(min(len(data), cut * 509) for cut in cuts)})
    sums = array("I")
    for low, high in itertools.pairwise(edges):
        add_blocks(sums, low, memoryview(data)[low:high])
    assert list(sums) == [crc32c(data[n : n + BLOCK_BYTES]) for n in range(0, len(data), BLOCK_BYTES)]


@given(position=st.integers(0, 39), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_sums_file_is_noticed(position: int, bit: int) -> None:
    sums = Sums(version=7, length=BLOCK_BYTES + 1, blocks=array("I", [1, 2]))
    good = sums.encode()
    assert Sums.decode(good) == sums
    bad = bytearray(good)
    bad[position % len(bad)] ^= 1 << bit
    with pytest.raises(BadSums):
        Sums.decode(bytes(bad))
