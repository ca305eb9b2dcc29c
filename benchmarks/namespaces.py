"""Machines joined by a switch with real, slow links, on one computer: network namespaces, veth pairs and a bridge.

Each rank has a namespace with one network card, ``eth0``; the bridge, and the launcher of the ranks, are in one more.  Cards
and switch ports send ``rate_mbit`` (``tbf``); a port holds ``port_packets`` (``pfifo``) and drops what comes beyond.  Packets
are of Ethernet's size (no segmentation offload), so what the kernel counts is what would be on a wire.  Nothing of the
host's own network is touched, no name is taken, and nothing can be left over: a namespace lives as long as a process that
waits for the end of a pipe from here.  Needs Linux, root, iproute2 and util-linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Ethernet, IPv4, and TCP with its time stamps; what is left of 1500 bytes after the latter two is payload.
HEADER_BYTES = 14 + 20 + 32
PAYLOAD_BYTES = 1500 - 20 - 32
_CLONE_NEWNET = 0x40000000
#: A bucket of the rate limits: what a port may send at once after it was idle. Two packets.
_BURST_BYTES = 4096
_WITHOUT_END = 100_000


class NoNetwork(Exception):
    """Such a network cannot be built here; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Wires:
    """A network that stands: the processes that hold the namespaces of the ranks and of the switch.

    It can be given to ranks: they are on the same computer.
    """

    ranks: tuple[int, ...]
    switch: int

    def drops(self) -> list[int]:
        """Return how many packets the switch has dropped on the way to each rank."""
        found = json.loads(_inside(self.switch, "tc", "-s", "-j", "qdisc", "show"))
        queues = {each["dev"]: each["drops"] for each in found if each["kind"] == "pfifo"}
        return [queues[f"port{rank}"] for rank in range(len(self.ranks))]


@contextlib.contextmanager
def rate_limited(
    ranks: int, *, rate_mbit: float = 100.0, port_packets: int = _WITHOUT_END
) -> Iterator[Wires]:
    """Build a network for ``ranks`` ranks; on exit it is gone.

    Raises:
        NoNetwork: it cannot be built here.
    """
    check_tools()
    with contextlib.ExitStack() as stack:
        switch, *machines = (stack.enter_context(_namespace()) for _ in range(ranks + 1))
        port = f"root handle 1: tbf rate {rate_mbit:g}mbit burst {_BURST_BYTES} limit 500mb"
        _inside(
            switch,
            *("ip", "-batch", "-"),
            lines=[
                "link add switch type bridge",
                "link set switch addrgenmode none up",
                "link set lo up",
                "addr add 10.77.255.254/16 dev switch",
                *(
                    line
                    for rank, machine in enumerate(machines)
                    for line in (
                        f"link add port{rank} type veth peer name eth0 netns {machine}",
                        f"link set port{rank} addrgenmode none gso_max_segs 1 master switch up",
                    )
                ),
            ],
        )
        _inside(
            switch,
            *("tc", "-batch", "-"),
            lines=[
                line
                for rank in range(ranks)
                for line in (
                    f"qdisc add dev port{rank} {port}",
                    f"qdisc add dev port{rank} parent 1:1 handle 2: pfifo limit {port_packets}",
                )
            ],
        )
        for rank, machine in enumerate(machines):
            _inside(
                machine,
                *("ip", "-batch", "-"),
                lines=[
                    "link set lo up",
                    "link set eth0 addrgenmode none gso_max_segs 1 up",
                    f"addr add {address(rank)}/16 dev eth0",
                ],
            )
            _inside(machine, "tc", "-batch", "-", lines=[f"qdisc add dev eth0 {port}"])
            # The textbook's: it fills queues until they drop. Where it may not be chosen, the system's is.
            with contextlib.suppress(NoNetwork):
                _inside(machine, "sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")
        yield Wires(ranks=tuple(machines), switch=switch)


def address(rank: int) -> str:
    """Return the address of a rank's machine."""
    return f"10.77.{rank // 250}.{rank % 250 + 1}"


def check_tools() -> None:
    """Raise NoNetwork, with the reason, if this is not Linux, not root, or a program is missing."""
    if not sys.platform.startswith("linux"):
        raise NoNetwork(f"network namespaces are Linux', this is {sys.platform}")
    missing = [
        name for name in ("ip", "tc", "unshare", "nsenter") if shutil.which(name, path=_path()) is None
    ]
    if missing:
        raise NoNetwork(f"not installed: {', '.join(missing)} (packages iproute2 and util-linux)")
    if os.geteuid() != 0:
        raise NoNetwork("network namespaces need root")


def launch_over(
    wires: Wires, function: Callable[..., Any], arguments: Sequence[Any] = (), *, timeout_s: float = 60.0
) -> list[Any]:
    """Run ``dag.collectives.launch`` over TCP with each rank in its namespace and the launcher at the switch."""
    from dag.collectives import launch

    started: list[subprocess.Popen[bytes]] = []

    def invite(command: str) -> None:
        words = shlex.split(command)
        token, python, *rest = words
        assert python == "python"
        # The token goes by the environment: a command line can be read by others.
        name, _, value = token.partition("=")
        started.append(
            subprocess.Popen(
                [*_enter(wires.ranks[len(started)]), sys.executable, *rest],
                env={**os.environ, name: value, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parent.parent,
            )
        )

    def at_the_switch() -> list[Any]:
        with open(f"/proc/{wires.switch}/ns/net") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            # This thread alone; what it opens stays there, whoever uses it.
            if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        return launch(
            function, len(wires.ranks), arguments, transport="tcp", here=0, host="10.77.255.254",
            invite=invite, timeout_s=timeout_s,
        )  # fmt: skip

    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(at_the_switch).result()
    finally:
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


@contextlib.contextmanager
def _namespace() -> Iterator[int]:
    """Yield the id of a process in a network namespace of its own, which lives as long as the ``with``, or this process."""
    # It says a line when it is inside.
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo inside; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    with holder:
        try:
            if holder.stdout.readline() != b"inside\n":
                raise NoNetwork(f"no network namespace: {holder.stderr.read().decode().strip()}")
            yield holder.pid
        finally:
            holder.stdin.close()


def _enter(process: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{process}/ns/net"]


def _path() -> str:
    # Not everyone's has the folder of ip and tc.
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _inside(process: int, *command: str, lines: Sequence[str] = ()) -> str:
    done = subprocess.run(
        [*_enter(process), *command],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": _path()},
    )
    if done.returncode:
        raise NoNetwork(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


# In the ranks.


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What the kernel counts in a rank's namespace: of its card with headers, and of its TCP."""

    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int
    retransmitted: int
    timeouts: int

    def __sub__(self, other: Counters) -> Counters:
        return Counters(**{name: value - getattr(other, name) for name, value in vars(self).items()})

    @property
    def sent_payload(self) -> int:
        """Bytes of TCP's payload that were sent, those sent again included."""
        return self.sent_bytes - HEADER_BYTES * self.sent_packets

    @property
    def received_payload(self) -> int:
        """Bytes of TCP's payload that arrived."""
        return self.received_bytes - HEADER_BYTES * self.received_packets


def counters() -> Counters:
    """Return the kernel's counters in this process's namespace."""
    # /proc/net is a link to that of the process; a thread has its own.
    proc = Path(f"/proc/self/task/{threading.get_native_id()}/net")
    (card,) = (line for line in (proc / "dev").read_text().splitlines() if line.strip().startswith("eth0:"))
    numbers = [int(each) for each in card.partition(":")[2].split()]
    tcp = {**_table(proc / "snmp"), **_table(proc / "netstat")}
    return Counters(
        received_bytes=numbers[0],
        received_packets=numbers[1],
        sent_bytes=numbers[8],
        sent_packets=numbers[9],
        retransmitted=tcp["Tcp", "RetransSegs"],
        timeouts=tcp["TcpExt", "TCPTimeouts"],
    )


def _table(path: Path) -> dict[tuple[str, str], int]:
    lines = path.read_text().splitlines()
    found = {}
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        kind, _, head = names.partition(":")
        for name, value in zip(head.split(), values.partition(":")[2].split(), strict=True):
            found[kind, name] = int(value)
    return found
