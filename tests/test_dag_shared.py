"""Shared memory between ranks: every way by which data goes, beside a fold done one after another by NumPy."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dag.collectives import Comm, algorithms, launch, plan
from dag.collectives.choose import planned
from dag.collectives.cores import spread
from dag.collectives.peer_memory import why_not
from dag.collectives.prepared import folds_and_shares
from dag.collectives.transport import Gather, Seat, Send
from dag.errors import RankFailed

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"ranks cannot share memory here: {why_not()}")

if why_not() is None:
    from dag.collectives import letters, shared
    from dag.collectives.arena import LEAST_BYTES, Arena


class Patient:
    """A watch that gives up after half a minute."""

    def waited(self, seconds: float, peers: Collection[int]) -> None:
        if seconds > 30:
            raise RankFailed(f"ranks {sorted(peers)} did not come", min(peers))

    def lost(self, peer: int, how: str) -> NoReturn:
        raise RankFailed(f"rank {peer} {how}", peer)

    def differs(self, peer: int) -> NoReturn:
        raise RankFailed(f"rank {peer} differs", peer)


def among_threads(size: int, work: Callable[[Any], Any], *, readable: bool = True) -> list[Any]:
    """Return what ``work`` returned for the transport of each rank; the ranks are threads of this process.

    With ``readable=False`` the proof that a rank's memory can be read is not where it is said to be.
    """
    transports = [
        shared.Shared(Seat(rank=rank, size=size, token=b"secret", host="127.0.0.1"), Patient())
        for rank in range(size)
    ]
    offers = {each.rank: each.offer() for each in transports}
    if not readable:
        offers = {rank: (*offer[:3], transports[rank]._scratch_at[0]) for rank, offer in offers.items()}
    for each in transports:
        each.connect({rank: offer for rank, offer in offers.items() if rank != each.rank})
    results: list[Any] = [None] * size

    def run(transport: Any) -> None:
        try:
            results[transport.rank] = work(transport)
        except BaseException as error:
            results[transport.rank] = error

    threads = [threading.Thread(target=run, args=(each,)) for each in transports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in transports:
        each.close()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def given_by(rank: int, elements: int, dtype: Any) -> Any:
    """Return numbers whose sum depends on the order in which they are added."""
    return (np.random.default_rng(rank).standard_normal(elements) * 10.0 ** (3 * (rank % 3))).astype(dtype)


def folded(size: int, elements: int, dtype: Any) -> Any:
    """Return the sum in the order of ranks."""
    total = given_by(0, elements, dtype)
    for rank in range(1, size):
        total = total + given_by(rank, elements, dtype)
    return total


def fold(left: Any, right: Any, out: Any) -> None:
    np.add(left, right, out)


def shared_array(transport: Any, elements: int, dtype: Any) -> Any:
    return transport.empty(elements * np.dtype(dtype).itemsize).view(dtype)


@pytest.mark.parametrize(("size", "dtype"), [(2, np.float32), (3, np.float64), (4, np.int16)])
@pytest.mark.parametrize("where", ["own", "shared", "both"])
@pytest.mark.parametrize("way", ["direct", "staged", "not allowed"])
def test_all_ranks_get_the_sum_in_the_order_of_ranks_wherever_their_arrays_lie(
    size: int, dtype: Any, where: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "DIRECT_BYTES", 1 << 40 if way == "staged" else 1)
    monkeypatch.setattr(shared, "STAGED_BYTES", 300_000)
    elements = 123_457

    def work(transport: Any) -> Any:
        own = where == "own" or (where == "both" and transport.rank % 2)
        x = np.empty(elements, dtype) if own else shared_array(transport, elements, dtype)
        for signature in range(3):
            transport.signature = signature
            x[:] = given_by(transport.rank, elements, dtype)
            assert transport.fold_and_share(x, fold)
        return x.copy()

    results = among_threads(size, work, readable=way != "not allowed")
    wanted = folded(size, elements, dtype)
    assert all(result.tobytes() == wanted.tobytes() for result in results)


def test_what_is_folded_is_finished_once() -> None:
    def work(transport: Any) -> Any:
        x = given_by(transport.rank, 50_000, np.float64)
        assert transport.fold_and_share(x, fold, lambda part: np.divide(part, 3, part))
        return x

    wanted = folded(3, 50_000, np.float64) / 3
    assert all((result == wanted).all() for result in among_threads(3, work))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_short_floats_are_summed_in_a_wider_type_and_rounded_once(dtype: Any) -> None:
    def brought(rank: int) -> Any:
        return (np.random.default_rng(rank).standard_normal(1_300_001) * 10.0**rank).astype(np.float16)

    def work(transport: Any) -> Any:
        x = brought(transport.rank).astype(dtype)
        assert transport.fold_and_share(
            x, fold, lambda total: np.divide(total, 3, total), np.dtype(np.float32)
        )
        return x

    total = brought(0).astype(np.float32)
    for rank in (1, 2):
        total = total + brought(rank).astype(np.float32)
    wanted = (total / np.float32(3)).astype(dtype)
    assert all(result.tobytes() == wanted.tobytes() for result in among_threads(3, work))


@given(
    size=st.integers(2, 4),
    lengths=st.lists(st.sampled_from([1, 7, 1000, 16_384, 16_385, 70_000]), min_size=1, max_size=20),
    readable=st.booleans(),
    in_arena=st.booleans(),
)
def test_more_messages_than_there_are_letters_arrive_in_their_order(
    size: int, lengths: list[int], readable: bool, in_arena: bool
) -> None:
    def message(src: int, dst: int, number: int, length: int) -> Any:
        return np.random.default_rng([src, dst, number]).integers(0, 256, length, np.uint8)

    def work(transport: Any) -> list[Any]:
        me, received = transport.rank, []
        for turn in range(2):
            transport.signature = turn
            sends, gathers = [], []
            for peer in (each for each in range(size) if each != me):
                for number, length in enumerate(lengths):
                    data = message(me, peer, number, length)
                    if in_arena:
                        place = transport.empty(length)
                        place[:] = data
                        data = place
                    sends.append(Send(peer=peer, data=data))
                    target = np.zeros(length, np.uint8)
                    gathers.append(Gather(target=target, sources=(peer,)))
                    received.append((peer, number, target))
            transport.exchange(sends, gathers)
        return [(target == message(peer, me, number, len(target))).all() for peer, number, target in received]

    assert all(all(right) for right in among_threads(size, work, readable=readable))


def test_a_fold_takes_its_operands_in_the_order_of_the_sources() -> None:
    def join(left: Any, right: Any, out: Any) -> None:
        out[:] = left * 10 + right  # neither commutes nor associates

    def work(transport: Any) -> Any:
        found = []
        for length in (1, 100_000):
            x = np.full(length, transport.rank + 1, np.int64)
            gathers = [Gather(target=x, sources=(0, 1, 2, 3), fold=join)] if transport.rank == 2 else []
            sends = [] if transport.rank == 2 else [Send(peer=2, data=x)]
            transport.exchange(sends, gathers)
            found.append(set(x.tolist()))
        return found

    assert among_threads(4, work)[2] == [{1234}, {1234}]


def test_a_message_of_another_collective_is_told() -> None:
    def work(transport: Any) -> Any:
        transport.signature = 7 + transport.rank
        x = np.ones(3)
        with pytest.raises(RankFailed, match=f"rank {1 - transport.rank} differs"):
            transport.exchange(
                [Send(peer=1 - transport.rank, data=x)], [Gather(target=x, sources=(1 - transport.rank,))]
            )

    among_threads(2, work)


def test_an_arena_of_another_run_is_refused() -> None:
    def seat(rank: int, token: bytes) -> Seat:
        return Seat(rank=rank, size=2, token=token, host="127.0.0.1")

    one, other = shared.Shared(seat(0, b"one"), Patient()), shared.Shared(seat(1, b"other"), Patient())
    with pytest.raises(OSError, match="not of this run"):
        one.connect({1: other.offer()})
    one.close()
    other.close()


def ranks_sum(comm: Comm, elements: int) -> tuple[bytes, bytes, bytes]:
    """Sum arrays of all three kinds between processes."""
    own = given_by(comm.rank, elements, np.float32)
    inside = comm.empty(elements, np.float32)
    inside[:] = own
    apart = np.zeros((elements, 2), np.float32)
    apart[:, 0] = own
    comm.allreduce(own)
    comm.allreduce(inside)
    comm.allreduce(apart[:, 0])
    return own.tobytes(), inside.tobytes(), apart[:, 0].tobytes()


def test_processes_sum_arrays_of_their_own_and_shared_ones_and_leave_nothing() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for elements in (1, 3000, 200_000, 1_200_000):
        wanted = folded(2, elements, np.float32).tobytes()
        for result in launch(ranks_sum, 2, (elements,), transport="shm", timeout_s=60):
            assert set(result) == {wanted}
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def die_amid(comm: Comm, elements: int) -> None:
    x = comm.empty(elements, np.float32) if comm.rank == 0 else np.empty(elements, np.float32)
    x[:] = 1
    comm.allreduce(x)
    if comm.rank == 1:
        os.kill(os.getpid(), 9)
    comm.allreduce(x)


@pytest.mark.parametrize("elements", [10, 100_000, 2_000_000])
def test_a_rank_that_is_killed_is_named(elements: int) -> None:
    with pytest.raises(RankFailed, match="rank 1 was killed by signal 9") as caught:
        launch(die_amid, 3, (elements,), transport="shm", timeout_s=60)
    assert caught.value.rank == 1


def test_a_peer_that_has_ended_is_told_even_if_nobody_else_knows() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    own = shared.Shared(Seat(rank=0, size=2, token=b"t", host=""), Patient())
    other = shared.Shared(Seat(rank=1, size=2, token=b"t", host=""), Patient())
    own.connect({1: other.offer()})
    own._boxes[1].close()
    # As if the other rank were the child.
    box = letters.Box(0, 1, 2, own._arena, own._boxes[1].arena, child.pid)
    own._boxes[1] = box
    child.kill()
    child.wait()
    with pytest.raises(RankFailed, match="rank 1 has ended"):
        own.exchange([], [Gather(target=np.empty(1), sources=(1,))])
    own.close()
    other.close()


@given(
    st.lists(st.one_of(st.integers(1, 5_000_000), st.none()), max_size=30), st.randoms(use_true_random=False)
)
def test_blocks_of_an_arena_never_overlap_and_keep_what_they_hold(
    sizes: list[int | None], random: Any
) -> None:
    arena = Arena(1000)
    alive: list[tuple[Any, int]] = []
    for number, size in enumerate(sizes):
        if size is None:
            if alive:
                alive.pop(random.randrange(len(alive)))
            continue
        block = arena.allocate(size)
        assert len(block) == size
        assert not block[:: max(1, size // 7)].any()
        block[[0, size // 2, size - 1]] = number % 255 + 1
        alive.append((block, number % 255 + 1))
    for block, value in alive:
        assert {int(block[0]), int(block[len(block) // 2]), int(block[-1])} == {value}
        assert arena.offset(block.__array_interface__["data"][0], len(block)) >= 1000
    arena.close()


def test_memory_goes_back_to_the_machine_with_the_last_view_of_it() -> None:
    arena = Arena(4096)

    def held_bytes() -> int:
        return os.fstat(arena.fd).st_blocks * 512

    before = held_bytes()
    block = arena.allocate(8 << 20)
    block[:] = 1
    view = block.view(np.float32)[100:200].reshape(10, 10)
    del block
    assert held_bytes() - before == 8 << 20
    del view
    assert held_bytes() == before
    arena.close()


def test_a_forked_child_that_drops_an_array_leaves_it_to_its_parent() -> None:
    arena = Arena(4096)
    block = arena.allocate(1 << 20)
    block[:] = 7
    child = os.fork()
    if child == 0:
        del block
        os._exit(0)
    os.waitpid(child, 0)
    assert (block == 7).all()
    arena.close()


def test_an_arena_is_smaller_where_address_space_is_limited() -> None:
    script = (
        "import resource; from dag.collectives.arena import Arena; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({3 * LEAST_BYTES}, {3 * LEAST_BYTES})); "
        "arena = Arena(10); x = arena.allocate(100); x[:] = 1; print(arena.nbytes)"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert LEAST_BYTES // 2 <= int(done.stdout) <= 3 * LEAST_BYTES


@pytest.mark.parametrize("ranks", [3, 4, 7])
def test_only_a_sharded_all_reduce_is_done_in_one_pass(ranks: int) -> None:
    for algorithm in algorithms("allreduce"):  # between two several are the same
        schedule = planned("allreduce", algorithm, ranks, 1 << 20, per_machine=2)
        assert folds_and_shares(schedule) == (algorithm == "sharded")
    assert not folds_and_shares(plan("reduce_scatter", "sharded", ranks))


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(st.lists(st.integers(0, n - 1), min_size=1, max_size=12), st.just(n))
    )
)
def test_ranks_spread_evenly_and_move_only_where_it_is_crowded(case: tuple[list[int], int]) -> None:
    running, cores = case
    share = -(-len(running) // cores)
    places = spread(running, range(cores))
    assert max(places.count(core) for core in range(cores)) <= share
    moved = sum(one != other for one, other in zip(running, places, strict=True))
    assert moved == sum(max(0, running.count(core) - share) for core in range(cores))


def test_a_sleeper_is_woken_by_what_it_waits_for_from_whom_it_waits_for_it_and_by_nothing_else() -> None:
    zero, one = Arena(letters.head_bytes(3)), Arena(letters.head_bytes(3))
    of_zero = letters.Box(0, 1, 3, zero, one, os.getpid())
    acts = {"tell": of_zero.tell, "take": of_zero.take, "readable": lambda: of_zero.tell_readable(True)}

    def wake(sleeper: int) -> set[str]:
        woken = set()
        for name, act in acts.items():
            one.words()[letters.ASLEEP] = sleeper
            act()
            if not one.words()[letters.ASLEEP]:
                woken.add(name)
        return woken

    # Rank 1 says it as ``Waiting`` does: by the flag that it waits for.
    for peer in (0, 2):
        box = letters.Box(1, peer, 3, one, zero, os.getpid())
        for flag in (box.arrival(), box.told_readable()):
            assert wake(2 * flag[0] + flag[4]) == (set() if peer else {"tell", "readable"})
        for flag in (box.has_room(), box.receipt(1)):
            assert wake(2 * flag[0] + flag[4]) == (set() if peer else {"take"})
        box.close()
    assert wake(letters.BY_ANYONE) == set(acts)
    of_zero.close()
    for arena in (zero, one):
        arena.close()


def test_the_memory_of_ranks_has_no_name() -> None:
    arena = Arena(10)
    assert os.readlink(f"/proc/self/fd/{arena.fd}").startswith("/memfd:")
    arena.close()
