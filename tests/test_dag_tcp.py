"""The transport over TCP: what arrives, in which order it is folded, over how many connections, and what a fault looks like."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dag.collectives import algorithms, check, count, launch, plan
from dag.collectives.execute import execute, rank_steps
from dag.collectives.tcp import Tcp
from dag.collectives.transport import Gather, Seat, Send
from dag.errors import RankFailed

Result = TypeVar("Result")
TOKEN = bytes(range(32))
PATIENCE_S = 20.0


class Raises:
    """A watch that raises what it is told, at once when patience is at an end."""

    def __init__(self) -> None:
        self.patience_s = PATIENCE_S

    def waited(self, seconds: float, peers: Collection[int]) -> None:
        if seconds > self.patience_s:
            raise TimeoutError(f"waited for {sorted(peers)}")

    def lost(self, peer: int, how: str) -> NoReturn:
        raise RankFailed(f"rank {peer} {how}", peer)

    def differs(self, peer: int) -> NoReturn:
        raise ValueError(f"rank {peer} differs")


@contextlib.contextmanager
def seats(
    size: int, *, tokens: Sequence[bytes] | None = None, watch: Raises | None = None, far: bool = False
) -> Iterator[list[Tcp]]:
    """Yield the connected transports of ``size`` ranks, all in this process; ``far``: each has an address of its own."""
    watch = watch or Raises()
    made = [
        Tcp(
            Seat(
                rank=rank,
                size=size,
                token=tokens[rank] if tokens else TOKEN,
                host=f"127.0.0.{rank + 1 if far else 1}",
            ),
            watch,
        )
        for rank in range(size)
    ]
    try:
        for each in made:
            each.connect({peer: made[peer].offer() for peer in range(size) if peer != each.rank})
        yield made
    finally:
        for each in made:
            each.close()


def at_once(transports: list[Tcp], work: Callable[[Tcp], Result]) -> list[Result]:
    """Return what ``work`` returns for each rank, run in a thread each."""
    with ThreadPoolExecutor(len(transports)) as pool:
        return list(pool.map(work, transports))


def brought(rank: int, elements: int) -> Any:
    return np.random.default_rng(rank).standard_normal(elements).astype(np.float32)


def skewed(left: Any, right: Any, out: Any = None) -> Any:
    """Neither commutes nor associates: each order of operands gives another result."""
    return np.add(left * np.float32(0.5), right, out)


def in_order(expression: Any, operands: list[Any], fold: Callable[[Any, Any], Any]) -> Any:
    """Fold as ``check`` says that it is folded."""
    if not isinstance(expression, tuple):
        return operands[expression]
    first, *others = (in_order(each, operands, fold) for each in expression)
    for each in others:
        first = fold(first, each)
    return first


@pytest.mark.parametrize(
    ("ranks", "elements", "far"), [(2, 5003, False), (3, 5003, True), (3, 200_003, True), (4, 200_003, False)]
)
@pytest.mark.parametrize("algorithm", algorithms())
def test_every_algorithm_folds_in_the_order_of_its_plan_and_moves_the_bytes_that_are_counted(
    algorithm: str, ranks: int, elements: int, far: bool
) -> None:
    choices = {"per_machine": 2} if algorithm in ("machine_tree", "two_level") else {}
    schedule = plan("allreduce", algorithm, ranks, **choices)
    counts = count(schedule, elements)

    def work(transport: Tcp) -> Any:
        x = brought(transport.rank, elements)
        execute(rank_steps(schedule, transport.rank, elements), transport, x, skewed)
        return x

    with seats(ranks, far=far) as transports:
        results = at_once(transports, work)
        traffic = [each.traffic() for each in transports]
    operands = [brought(rank, elements) for rank in range(ranks)]
    at = np.arange(schedule.parts + 1) * elements // schedule.parts
    for part, expression in enumerate(check(schedule)):
        wanted = in_order(expression, operands, skewed)[at[part] : at[part + 1]]
        for result in results:
            np.testing.assert_array_equal(result[at[part] : at[part + 1]], wanted)
    for rank, by_peer in enumerate(traffic):
        assert sum(each.sent for each in by_peer.values()) == 4 * counts.sent[rank]
        assert sum(each.received for each in by_peer.values()) == 4 * counts.received[rank]
        assert len(by_peer) == counts.peers[rank]


def test_a_rank_of_a_ring_holds_two_connections_and_the_others_nothing_more() -> None:
    schedule = plan("allreduce", "ring", 5)

    def work(transport: Tcp) -> list[int]:
        execute(rank_steps(schedule, transport.rank, 100), transport, brought(transport.rank, 100), np.add)
        return sorted(transport.traffic())

    with seats(5) as transports:
        assert at_once(transports, work) == [sorted(((r - 1) % 5, (r + 1) % 5)) for r in range(5)]


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int8"])
def test_folds_of_many_blocks_from_several_sources_keep_the_order_of_sources(dtype: str) -> None:
    elements = 700_001
    operands = [np.random.default_rng(r).integers(-9, 9, elements).astype(dtype) for r in range(4)]

    def fold(left: Any, right: Any, out: Any = None) -> Any:
        return np.subtract(left, right, out)

    def work(transport: Tcp) -> Any:
        if transport.rank != 2:
            transport.exchange([Send(peer=2, data=operands[transport.rank])], [])
            return None
        target = operands[2].copy()
        transport.exchange([], [Gather(target=target, sources=(3, 0, 2, 1), fold=fold)])
        return target

    with seats(4) as transports:
        _, _, result, _ = at_once(transports, work)
    np.testing.assert_array_equal(result, operands[3] - operands[0] - operands[2] - operands[1])


def test_messages_larger_than_any_buffer_cross_without_blocking_and_keep_their_order() -> None:
    big = 24 << 20

    def work(transport: Tcp) -> bool:
        other = 1 - transport.rank
        given = [np.full(size, transport.rank * 2 + at, np.uint8) for at, size in enumerate((big, 1, big))]
        taken = [np.empty_like(each) for each in given]
        transport.exchange(
            [Send(peer=other, data=each) for each in given],
            [Gather(target=each, sources=(other,)) for each in taken],
        )
        return all((each == other * 2 + at % 256).all() for at, each in enumerate(taken))

    with seats(2) as transports:
        assert at_once(transports, work) == [True, True]
        assert [each.traffic()[1 - each.rank].sent for each in transports] == [2 * big + 1] * 2
        # Three heads of 16 bytes, and the greeting.
        assert [each.traffic()[1 - each.rank].sent_around for each in transports] == [48 + 64, 48 + 72]


@st.composite
def exchanges(draw: st.DrawFn) -> list[list[tuple[int, tuple[int, ...], int, bool]]]:
    """Draw some exchanges of 3 ranks, each of gathers: at whom, from whom in which order, of how many bytes, folded or not."""
    sizes = st.sampled_from([1, 3000, (64 << 10) - 1, (64 << 10) + 1, 300_000])
    found = []
    for _ in range(draw(st.integers(1, 4))):
        gathers = []
        for _ in range(draw(st.integers(1, 4))):
            at = draw(st.integers(0, 2))
            others = [rank for rank in range(3) if rank != at]
            if draw(st.booleans()):
                peers = draw(st.permutations(others))[: draw(st.integers(1, 2))]
                gathers.append((at, tuple(draw(st.permutations([at, *peers]))), draw(sizes), True))
            else:
                gathers.append((at, (draw(st.sampled_from(others)),), draw(sizes), False))
        found.append(gathers)
    return found


@given(exchanges(), st.booleans())
def test_exchanges_of_any_shape_end_and_bring_what_was_sent(
    plan: list[list[tuple[int, tuple[int, ...], int, bool]]], far: bool
) -> None:
    def value(number: int, at: int, rank: int, size: int) -> Any:
        return np.random.default_rng((number, at, rank)).integers(0, 256, size).astype(np.uint8)

    def work(transport: Tcp) -> None:
        own = transport.rank
        for number, gathers in enumerate(plan):
            sends, takes, wanted = [], [], []
            for at, (target, sources, size, folded) in enumerate(gathers):
                if own in sources and own != target:
                    sends.append(Send(peer=target, data=value(number, at, own, size)))
                if own == target:
                    operands = [value(number, at, rank, size) for rank in sources]
                    wanted.append(functools.reduce(lambda left, right: left * np.uint8(3) + right, operands))
                    takes.append(
                        Gather(
                            target=value(number, at, own, size),
                            sources=sources,
                            fold=(lambda a, b, out: np.add(a * np.uint8(3), b, out)) if folded else None,
                        )
                    )
            transport.exchange(sends, takes)
            for gather, result in zip(takes, wanted, strict=True):
                np.testing.assert_array_equal(gather.target, result)

    with seats(3, far=far) as transports:
        at_once(transports, work)


def swap(transport: Tcp) -> int:
    """Exchange numbers of ranks between 0 and 1."""
    taken = np.zeros(1, np.int64)
    other = 1 - transport.rank
    transport.exchange(
        [Send(peer=other, data=np.array([transport.rank]))], [Gather(target=taken, sources=(other,))]
    )
    return int(taken[0])


def test_strangers_are_not_heard_and_keep_nobody_waiting() -> None:
    with seats(2) as transports, contextlib.ExitStack() as stack:
        address = transports[0].offer()
        strangers = [stack.enter_context(socket.create_connection(address)) for _ in range(80)]
        strangers[3].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(100))
        # What rank 1 would say first, and then no proof.
        strangers[79].sendall((1).to_bytes(8, "little") + bytes(32 + 32))
        strangers[5].close()
        assert at_once(transports, swap) == [1, 0]
        assert at_once(transports, swap) == [1, 0]
        strangers[79].settimeout(PATIENCE_S)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while got := strangers[79].recv(1000):
                answer += got
        # A number and a proof of rank 0's, nothing of what the ranks say to each other.
        assert len(answer) == 64


def test_a_rank_with_another_token_is_named() -> None:
    watch = Raises()
    with seats(2, tokens=[TOKEN, bytes(32)], watch=watch) as transports:

        def work(transport: Tcp) -> str:
            with pytest.raises((RankFailed, TimeoutError)) as raised:
                swap(transport)
            # Then the other need not wait any longer for one that it knows.
            watch.patience_s = 0.0
            return str(raised.value)

        first, second = at_once(transports, work)
    assert first == "waited for [1]"
    assert second.startswith("rank 0 cannot be reached at 127.0.0.1:")
    assert second.endswith("does not have the token of this run")


@pytest.mark.skipif(not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"), reason="no IPv6 here")
def test_addresses_of_ipv6_will_do() -> None:
    made = [Tcp(Seat(rank=rank, size=2, token=TOKEN, host="::1"), Raises()) for rank in range(2)]
    for each, other in zip(made, reversed(made), strict=True):
        each.connect({other.rank: other.offer()})
    assert at_once(made, swap) == [1, 0]
    for each in made:
        each.close()


def test_a_peer_that_is_not_there_is_named_with_its_address() -> None:
    with seats(2) as transports:
        host, port = transports[0].offer()
        transports[0].close()
        wanted = f"^rank 0 cannot be reached at {host}:{port} over TCP: Connection refused$"
        with pytest.raises(RankFailed, match=wanted):
            swap(transports[1])


@pytest.mark.parametrize("closer", [0, 1])
def test_a_peer_that_closes_in_the_middle_of_a_message_is_named(closer: int) -> None:
    short, long = 1 << 20, 40 << 20
    with seats(2) as transports:
        at_once(transports, swap)
        other = transports[1 - closer]

        def work(transport: Tcp) -> str:
            if transport is not other:
                transport.exchange([Send(peer=other.rank, data=np.zeros(short, np.uint8))], [])
                transport.close()
                return ""
            gathers = [Gather(target=np.ones(size, np.uint8), sources=(closer,)) for size in (short, long)]
            with pytest.raises(RankFailed) as raised:
                transport.exchange([Send(peer=closer, data=np.zeros(long, np.uint8))], gathers)
            return str(raised.value)

        results = at_once(transports, work)
    assert results[other.rank].startswith(f"rank {closer} ")
    assert "closed its connection" in results[other.rank] or "broke its connection" in results[other.rank]


def test_a_silent_peer_is_waited_for_as_long_as_the_watch_is_patient_and_named() -> None:
    watch = Raises()
    with seats(3, watch=watch) as transports:
        at_once(transports[:2], swap)
        watch.patience_s = 0.3
        with pytest.raises(TimeoutError, match=r"^waited for \[1\]$"):
            swap(transports[0])
        # One that never came: the higher number would have called.
        with pytest.raises(TimeoutError, match=r"^waited for \[2\]$"):
            transports[0].exchange([], [Gather(target=np.zeros(1), sources=(2,))])


def test_one_that_does_not_take_what_is_sent_is_waited_for() -> None:
    watch = Raises()
    with seats(2, watch=watch) as transports:
        at_once(transports, swap)
        watch.patience_s = 0.3
        with pytest.raises(TimeoutError, match=r"^waited for \[1\]$"):
            transports[0].exchange([Send(peer=1, data=np.zeros(100 << 20, np.uint8))], [])


def test_between_machines_a_large_message_waits_for_its_receiver_and_a_small_one_does_not() -> None:
    large, small = np.arange(200_000).astype(np.uint8), np.arange(60_000).astype(np.uint8)
    for far in (False, True):
        watch = Raises()
        with seats(2, watch=watch, far=far) as transports:
            first, second = transports
            at_once(transports, swap)
            # Rank 1 is elsewhere; the system takes as much for it.
            first.exchange([Send(peer=1, data=small)], [])
            if far:
                watch.patience_s = 0.3
                with pytest.raises(TimeoutError, match=r"^waited for \[1\]$"):
                    first.exchange([Send(peer=1, data=large)], [])
                continue
            first.exchange([Send(peer=1, data=large)], [])
            taken = [np.zeros_like(each) for each in (small, large)]
            second.exchange([], [Gather(target=each, sources=(0,)) for each in taken])
            np.testing.assert_array_equal(taken[1], large)


def test_large_and_small_messages_of_one_exchange_between_machines_keep_their_order_both_ways() -> None:
    sizes = (100, 300_000, 70_000, 5, 1_000_000)

    def work(transport: Tcp) -> tuple[int, int]:
        other = 1 - transport.rank
        for turn in range(3):
            given = [
                np.full(size, 10 * turn + at + transport.rank, np.uint8) for at, size in enumerate(sizes)
            ]
            taken = [np.zeros_like(each) for each in given]
            transport.exchange(
                [Send(peer=other, data=each) for each in given],
                [Gather(target=each, sources=(other,)) for each in taken],
            )
            assert all((each == 10 * turn + at + other).all() for at, each in enumerate(taken))
        traffic = transport.traffic()[other]
        return traffic.sent_around - traffic.received_around, traffic.sent_around + traffic.received_around

    with seats(2, far=True) as transports:
        # Each way 15 heads, and 9 words for messages that wait; the greeting has 64 bytes one way, 72 the other.
        assert at_once(transports, work) == [(64 - 72, 48 * 16 + 136), (72 - 64, 48 * 16 + 136)]


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("fault", ["signature", "size"])
def test_a_message_of_another_collective_is_told(fault: str, far: bool) -> None:
    with seats(2, far=far) as transports:
        at_once(transports, swap)
        if fault == "signature":
            transports[1].signature = 5

        def work(transport: Tcp) -> str:
            data = np.zeros((20_000 if far else 1) + (transport.rank if fault == "size" else 0))
            with contextlib.suppress(RankFailed):
                with pytest.raises(ValueError, match="differs") as raised:
                    transport.exchange(
                        [Send(peer=1 - transport.rank, data=data)],
                        [Gather(target=np.zeros_like(data), sources=(1 - transport.rank,))],
                    )
                return str(raised.value)
            return ""

        assert at_once(transports, work) == ["rank 1 differs", "rank 0 differs"]


def test_what_a_peer_says_ahead_of_time_waits_in_its_socket() -> None:
    """Rank 1 is two exchanges ahead of rank 2; rank 0 listens to both in turn, and burns no time on the one that is ahead."""
    go = threading.Event()

    def work(transport: Tcp) -> list[float]:
        if transport.rank == 1:
            for number in (1.0, 2.0):
                transport.exchange([Send(peer=0, data=np.full(3, number))], [])
            go.set()
            return []
        if transport.rank == 2:
            assert go.wait(PATIENCE_S)
            for number in (10.0, 20.0):
                transport.exchange([Send(peer=0, data=np.full(3, number))], [])
            return []
        found = []
        for _ in range(2):
            for peer in (2, 1):
                target = np.zeros(3)
                transport.exchange([], [Gather(target=target, sources=(peer,))])
                found.append(float(target.sum()))
        return found

    with seats(3) as transports:
        assert at_once(transports, work)[0] == [30.0, 3.0, 60.0, 6.0]


def test_processes_over_tcp_leave_no_descriptor_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with seats(4) as transports:
        at_once(
            transports,
            lambda each: execute(
                rank_steps(plan("allreduce", "direct", 4), each.rank, 10),
                each,
                brought(each.rank, 10),
                np.add,
            ),
        )
    assert len(os.listdir("/proc/self/fd")) == before


def test_ranks_started_by_the_launcher_listen_at_the_address_that_those_from_elsewhere_reach() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def invite(command: str) -> None:
        token, _, *rest = shlex.split(command)
        name, _, value = token.partition("=")
        started.append(subprocess.Popen([sys.executable, *rest], env={**os.environ, name: value}))

    def work(comm: Any) -> tuple[str, float]:
        return comm.transport.offer()[0], float(comm.allreduce(np.ones(1))[0])

    found = launch(work, ranks=3, transport="tcp", here=2, host="127.0.0.2", invite=invite, timeout_s=30)
    assert found == [("127.0.0.2", 3.0), ("127.0.0.2", 3.0), ("127.0.0.1", 3.0)]
    assert [process.wait(PATIENCE_S) for process in started] == [0]


def test_launched_ranks_meet_over_tcp() -> None:
    def work(comm: Any) -> Any:
        x = np.arange(1000.0) * (comm.rank + 1)
        comm.allreduce(x, algorithm="ring")
        return x, sorted(comm.transport.traffic())

    for x, peers in launch(work, ranks=3, transport="tcp"):
        np.testing.assert_array_equal(x, np.arange(1000.0) * 6)
        assert len(peers) == 2
