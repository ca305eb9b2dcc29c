"""All-reduce over TCP between network namespaces on slow links: what the wire counts, and in which order algorithms end.

Times are not asserted, save for ratios that the rate of the links makes: it holds on a busy machine too, which only adds.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dag.collectives import count

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
RANKS = 4
NBYTES = 250_000
#: Slow enough that the cores of a busy machine are not what limits it.
RATE_MBIT = 25.0


@pytest.fixture(autouse=True, scope="module")
def importable() -> Any:
    """The network is built by the benchmark's own module."""
    sys.path.append(str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def built(make: Callable[[], Any]) -> Any:
    """Return what ``make`` makes, and skip with the reason where no such network can be built."""
    from namespaces import NoNetwork

    try:
        return make()
    except NoNetwork as error:
        pytest.skip(f"no rate-limited network here: {error}")


def test_on_slow_links_the_kernel_counts_our_bytes_and_algorithms_end_in_the_simulated_order() -> None:
    from slow_networks import disagreement, measure, misordered, schedule, show

    rows = built(lambda: measure(RANKS, NBYTES, 2, rate_mbit=RATE_MBIT))
    show("4 ranks, 250 KB, 25 Mbit/s", rows)
    assert disagreement(rows) < 0.05
    for row in rows:
        # Two runs, and barriers and heads besides: hundreds of bytes.
        for counted, found in ((row.sent, "sent"), (row.received, "received")):
            wanted = getattr(count(schedule(row.algorithm, RANKS, NBYTES), NBYTES // 4), found) * 8
            assert all(0 < ours - plan < 2000 for ours, plan in zip(counted, wanted.tolist(), strict=True))
    # A machine that stands still for a moment only adds to a time: the best of more runs then counts.
    by_name = {row.algorithm: row for row in rows}
    for _ in range(3):
        names = sorted({row.algorithm for pair in misordered(rows, 1.5) for row in pair})
        for row in measure(RANKS, NBYTES, 2, names=names, rate_mbit=RATE_MBIT) if names else ():
            by_name[row.algorithm].seconds.extend(row.seconds)
    wrong = [(one.algorithm, other.algorithm) for one, other in misordered(rows, 1.5)]
    assert not wrong
    assert {"central", "ring"} < set(by_name)
    # Three times there and three times back, through one link.
    assert min(by_name["central"].seconds) > 6 * NBYTES * 8 / (RATE_MBIT * 1e6)
    # 6 N through one link against 1.5 N: 4, less what a busy machine adds to the ring.
    assert min(by_name["central"].seconds) > 2 * min(by_name["ring"].seconds)


def test_short_buffers_make_a_central_server_lose_packets_and_time_and_leave_the_ring_alone() -> None:
    from slow_networks import measure, show

    central, ring = built(lambda: measure(RANKS, 250_000, 8, names=("central", "ring"), port_packets=4))
    show("ports that hold 4 packets", [central, ring])
    # Three send to rank 0 at once; what it sends to three goes through three ports.
    assert central.dropped[0] > 50
    assert sum(central.dropped[1:]) < central.dropped[0] / 5
    assert sum(central.timeouts) > 0
    assert sum(central.retransmitted) > 50
    assert sum(ring.dropped) < sum(central.dropped) / 5
    # A timeout is 200 ms; without one a run takes 126 ms.
    assert max(central.seconds) > 0.2
    assert central.simulated_timeouts > 0
    assert ring.simulated_timeouts == 0


def test_nothing_is_left_of_a_network_after_an_error_and_nothing_of_the_host_is_changed() -> None:
    from namespaces import rate_limited

    def fail() -> list[int]:
        pids: list[int] = []
        with contextlib.suppress(KeyError), rate_limited(2) as wires:
            pids += [wires.switch, *wires.ranks]
            assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
            assert host_interfaces() == before
            raise KeyError
        return pids

    before = host_interfaces()
    pids = built(fail)
    assert len(pids) == 3
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert host_interfaces() == before


def test_nothing_is_left_of_a_network_whose_builder_is_killed() -> None:
    built(_build_and_leave)
    script = (
        "import os, signal, sys; from namespaces import rate_limited\n"
        "with rate_limited(2) as wires:\n"
        "    print(wires.switch, *wires.ranks, flush=True)\n"
        "    sys.stdin.read(1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=BENCHMARKS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        holders = [os.pidfd_open(int(pid)) for pid in process.stdout.readline().split()]
        process.stdin.write("x")
        process.stdin.close()
        assert process.wait(30) == -9
    assert len(holders) == 3
    try:
        for holder in holders:
            # Readable when it has ended.
            assert select.select([holder], [], [], 30)[0] == [holder]
    finally:
        for holder in holders:
            os.close(holder)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from namespaces import NoNetwork, rate_limited

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoNetwork, match=r"not installed: .*unshare, nsenter|Linux"), rate_limited(2):
        pass


def host_interfaces() -> list[str]:
    return [line.partition(":")[0] for line in Path("/proc/net/dev").read_text().splitlines()]


def _build_and_leave() -> None:
    from namespaces import rate_limited

    with rate_limited(2):
        pass
