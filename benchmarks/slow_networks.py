"""All-reduce on real networks of 100 Mbit/s (``namespaces``): times beside the simulator's, the kernel's bytes beside ours.

Deep buffers show what each algorithm moves; short ones what many senders at once to one port cost: packets are dropped, and
a sender whose last ones were waits for a timeout of at least 200 ms.  ``test_dag_networks_real`` does the same in small.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Row, Timing, keep
from namespaces import HEADER_BYTES, PAYLOAD_BYTES, Wires, counters, launch_over, rate_limited

from dag.collectives import Comm, Schedule, algorithms
from dag.collectives.choose import planned
from dag.collectives.networks import Incast, Link, Network
from dag.collectives.simulate import simulate
from dag.collectives.tcp import Tcp

#: What a new connection sends before it waits for an answer (RFC 6928).
FIRST_WINDOW_BYTES = 10 * PAYLOAD_BYTES
#: What the simulator says is slower by this factor is measured slower.
MARGIN = 1.25
COMMAND = "python benchmarks/run.py slow_networks"
#: Acknowledgements come until then (Linux delays them by at most 40 ms).
_QUIET_S = 0.1
_COUNTED = ("sent", "received", "kernel_sent", "kernel_received", "retransmitted", "timeouts")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One algorithm on one network.

    Args:
        seconds: of the slowest rank, by run.
        simulated_s: what the simulator says.
        sent, received: bytes by rank, as the transport counts them, with the heads of messages.
        kernel_sent, kernel_received: as the network cards count them, less the headers of their packets.
        retransmitted, timeouts: packets by rank; expired timers of retransmission.
        dropped: packets, by the port towards each rank.
    """

    algorithm: str
    seconds: list[float]
    simulated_s: float
    simulated_timeouts: int
    sent: list[int]
    received: list[int]
    kernel_sent: list[int]
    kernel_received: list[int]
    retransmitted: list[int]
    timeouts: list[int]
    dropped: list[int]


def schedule(algorithm: str, ranks: int, nbytes: int) -> Schedule:
    """Return the plan that is run and simulated: that of a call by name; two ranks are taken for one machine."""
    return planned("allreduce", algorithm, ranks, nbytes, per_machine=2)


def measure(
    ranks: int,
    nbytes: int,
    runs: int,
    *,
    names: Sequence[str] = (),
    rate_mbit: float = 100.0,
    port_packets: int | None = None,
) -> list[Measured]:
    """Run all-reduces of ``nbytes`` float32 bytes on a network built for it; ``port_packets`` None is a deep buffer.

    Raises:
        NoNetwork: see ``namespaces``.
    """
    names = names or algorithms()
    elements = nbytes // 4
    deep = {} if port_packets is None else {"port_packets": port_packets}
    with rate_limited(ranks, rate_mbit=rate_mbit, **deep) as wires:
        by_rank = launch_over(wires, _on_a_rank, (wires, names, elements, runs))
    # Two ranks that swap one number: what a message costs besides its bytes, in the best run.
    overhead_s = min(map(max, zip(*(found[0] for found in by_rank), strict=True)))
    network = simulated_network(rate_mbit, overhead_s, port_packets)
    rows = []
    for at, name in enumerate(names, 1):
        found = [each[at] for each in by_rank]
        simulated = simulate(schedule(name, ranks, nbytes), elements, 4, network)
        rows.append(
            Measured(
                algorithm=name,
                seconds=[max(times) for times in zip(*(each["seconds"] for each in found), strict=True)],
                simulated_s=simulated.seconds,
                simulated_timeouts=simulated.timeouts,
                dropped=found[0]["dropped"],
                **{each: [rank[each] for rank in found] for each in _COUNTED},
            )
        )
    return rows


def simulated_network(rate_mbit: float, overhead_s: float, port_packets: int | None) -> Network:
    """Return the same network for the simulator: a machine for each rank, the payload's share of the rate.

    A packet goes on when the switch has all of it; what else a message costs, ``overhead_s``, is the work of the ranks.
    """
    packet_s = (PAYLOAD_BYTES + HEADER_BYTES) * 8 / (rate_mbit * 1e6)
    link = Link(latency_s=packet_s, s_per_byte=packet_s / PAYLOAD_BYTES)
    incast = port_packets and Incast(
        buffer_bytes=port_packets * PAYLOAD_BYTES, window_bytes=FIRST_WINDOW_BYTES
    )
    return Network(inside=link, across=link, overhead_s=overhead_s, incast=incast or None)


def misordered(rows: Sequence[Measured], margin: float) -> list[tuple[Measured, Measured]]:
    """Return the pairs of which the first should take ``margin`` times as long as the second, or more, and does not take longer.

    Of the runs the best counts: a busy machine only adds.
    """
    return [
        (one, other)
        for one, other in itertools.permutations(rows, 2)
        if one.simulated_s >= margin * other.simulated_s and min(one.seconds) <= min(other.seconds)
    ]


def disagreement(rows: Sequence[Measured]) -> float:
    """Return the largest difference between the kernel's bytes of a rank and ours, relative to ours, either way."""
    return max(
        abs(kernel - ours) / ours
        for row in rows
        for kernels, our in ((row.kernel_sent, row.sent), (row.kernel_received, row.received))
        for kernel, ours in zip(kernels, our, strict=True)
    )


def _on_a_rank(comm: Comm, wires: Wires, names: Sequence[str], elements: int, runs: int) -> list[Any]:
    transport = comm.transport
    assert isinstance(transport, Tcp)

    def counted() -> tuple[int, int]:
        traffic = transport.traffic().values()
        return (
            sum(each.sent + each.sent_around for each in traffic),
            sum(each.received + each.received_around for each in traffic),
        )

    one = np.ones(1, np.float32)
    swaps = []
    for _ in range(20):
        begin = time.perf_counter()
        comm.allreduce(one, algorithm="doubling")
        # As many rounds as the number of ranks has bits.
        swaps.append((time.perf_counter() - begin) / (comm.size - 1).bit_length())
    found: list[Any] = [swaps]
    for name in names:
        steps = schedule(name, comm.size, 4 * elements)
        x = np.empty(elements, np.float32)
        # Connections are opened by the first call, all of them if no part is empty; what they then say is the same for all.
        comm.allreduce(np.ones(steps.parts, np.float32), algorithm=steps)
        comm.barrier()
        time.sleep(_QUIET_S)
        before, ours, dropped = counters(), counted(), wires.drops()
        seconds = []
        for _ in range(runs):
            x[:] = comm.rank + 1
            comm.barrier()
            begin = time.perf_counter()
            comm.allreduce(x, algorithm=steps)
            seconds.append(time.perf_counter() - begin)
            if not (x == comm.size * (comm.size + 1) // 2).all():
                raise AssertionError(f"{name}: a wrong sum")
        comm.barrier()
        time.sleep(_QUIET_S)
        after = counters() - before
        sent, received = (now - then for now, then in zip(counted(), ours, strict=True))
        found.append(
            {
                "seconds": seconds,
                "sent": sent,
                "received": received,
                "kernel_sent": after.sent_payload,
                "kernel_received": after.received_payload,
                "retransmitted": after.retransmitted,
                "timeouts": after.timeouts,
                "dropped": [now - then for now, then in zip(wires.drops(), dropped, strict=True)],
            }
        )
        comm.barrier()
    return found


def show(title: str, rows: Sequence[Measured]) -> None:
    """Print what was measured."""
    print(title)
    for row in rows:
        print(
            f"  {row.algorithm:<13} {statistics.median(row.seconds):7.3f} s (simulated {row.simulated_s:7.3f}), "
            f"{max(row.sent) / 1e6:8.2f} MB sent by the busiest, kernel {max(row.kernel_sent) / 1e6:8.2f}; "
            f"{sum(row.dropped)} dropped, {sum(row.timeouts)} timeouts",
            flush=True,
        )


def slow_networks(folder: Path, rounds: int, ours: bool = True) -> None:
    """All-reduce between namespaces at 100 Mbit/s: the simulator's order, the kernel's bytes, incast."""
    if not ours:
        return
    runs = max(3, rounds)
    deep = {
        (ranks, nbytes): measure(ranks, nbytes, runs, rate_mbit=rate)
        for ranks, nbytes, rate in ((4, 8_000_000, 100.0), (8, 2_000_000, 50.0))
    }
    short = {
        packets: measure(
            4, 250_000, 5 * runs, names=("central", "sharded", "direct", "ring"), port_packets=packets
        )
        for packets in (4, 8, 16, 64)
    }
    for (ranks, nbytes), measured in deep.items():
        show(f"{ranks} ranks, {nbytes:,} bytes, deep buffers", measured)
    for packets, measured in short.items():
        show(f"4 ranks, 250,000 bytes, ports hold {packets} packets", measured)
    rows = []
    for (ranks, _), measured in deep.items():
        wrong = misordered(measured, MARGIN)
        for one, other in wrong:
            print(f"  {one.algorithm} should take longer than {other.algorithm}")
        apart = disagreement(measured)
        errors = [abs(statistics.median(row.seconds) / row.simulated_s - 1) for row in measured]
        factor = _times(measured, "central") / _times(measured, "ring")
        wanted = next(row.simulated_s for row in measured if row.algorithm == "central") / next(
            row.simulated_s for row in measured if row.algorithm == "ring"
        )
        rows += [
            Row(
                work=f"{ranks} ranks on a slow network: pairs of algorithms in another order than simulated",
                ours=f"{len(measured)} algorithms",
                theirs="",
                measured=f"{len(wrong)}",
                wanted="0",
                met=not wrong,
            ),
            Row(
                work=f"{ranks} ranks on a slow network: bytes of each rank, ours against the kernel's",
                ours=f"{len(measured)} algorithms",
                theirs="",
                measured=f"at most {apart * 100:.2f} % apart",
                wanted="5 %",
                met=apart <= 0.05,
            ),
            Row(
                work=f"{ranks} ranks on a slow network: simulated times against measured ones",
                ours=f"{len(measured)} algorithms",
                theirs="",
                measured=f"{statistics.mean(errors) * 100:.1f} % apart on average, {max(errors) * 100:.1f} % at most",
                wanted="10 % on average",
                met=statistics.mean(errors) <= 0.1,
            ),
            Row(
                work=f"{ranks} ranks on a slow network: a central server against the ring",
                ours=f"ring {_times(measured, 'ring'):.2f} s",
                theirs=f"central server {_times(measured, 'central'):.2f} s",
                measured=f"{factor:.2f} times as long",
                wanted=f"{wanted:.2f}, as simulated, within 15 %",
                met=abs(factor / wanted - 1) <= 0.15,
            ),
        ]
    shortest, deepest = short[4], short[64]
    central, ring = (next(row for row in shortest if row.algorithm == name) for name in ("central", "ring"))
    rows.append(
        Row(
            work="4 ranks, ports that hold 4 packets: a central server, against ports that hold 64",
            ours=f"ring {_times(shortest, 'ring'):.3f} s, {sum(ring.timeouts)} timeouts",
            theirs=f"central server {_times(shortest, 'central'):.3f} s, {sum(central.timeouts)} timeouts",
            measured=f"{_times(shortest, 'central') / _times(deepest, 'central'):.2f} times as long",
            wanted="above 1.5: incast shows",
            met=_times(shortest, "central") > 1.5 * _times(deepest, "central"),
        )
    )
    timings = {
        f"{ranks} ranks, {row.algorithm}": Timing(name=row.algorithm, command=COMMAND, seconds=row.seconds, peak_bytes=0)
        for (ranks, _), measured in deep.items()
        for row in measured
    }  # fmt: skip
    keep(
        "slow_networks",
        rows=rows,
        timings=timings,
        deep={f"{ranks} ranks, {nbytes} bytes": [vars(row) for row in measured] for (ranks, nbytes), measured in deep.items()},
        short={f"{packets} packets": [vars(row) for row in measured] for packets, measured in short.items()},
    )  # fmt: skip


def _times(rows: Sequence[Measured], name: str) -> float:
    return statistics.median(next(row.seconds for row in rows if row.algorithm == name))
