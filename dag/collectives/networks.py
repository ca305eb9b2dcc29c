"""Networks to time schedules on: what they are made of, and some by name.

A ``Network`` is a value; ``named_network`` gives those that were published, each with its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BadCollective
from .costs import fit_nccl


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a message meets on its way: ``latency_s`` once, ``s_per_byte`` for each byte."""

    latency_s: float
    s_per_byte: float

    def __post_init__(self) -> None:
        _refuse_below_0("a link", latency_s=self.latency_s, s_per_byte=self.s_per_byte)


@dataclass(frozen=True, kw_only=True)
class Incast:
    """A switch port that holds ``buffer_bytes``: senders at once beyond that lose packets and wait for a timeout.

    ``window_bytes`` is what each sender sends before it waits for an answer.  A step in which f > 1 senders give to one node
    costs ``timeout_s`` more where f times the window (or the message, if that is smaller) is above the buffer and what is on the
    way (bandwidth times two latencies).  One timeout a step and port: a longer transfer may meet several (Phanishayee et al.,
    FAST 2008; Linux' least retransmission timeout is 200 ms).
    """

    buffer_bytes: int
    window_bytes: int
    timeout_s: float = 0.2

    def __post_init__(self) -> None:
        _refuse_below_0(
            "incast",
            buffer_bytes=self.buffer_bytes,
            window_bytes=self.window_bytes,
            timeout_s=self.timeout_s,
        )


@dataclass(frozen=True, kw_only=True)
class Racks:
    """Racks of ``machines`` machines, which share one link each way to the core: ``link`` comes on top of that across machines.

    With ``link.s_per_byte`` = that across times the oversubscription / ``machines`` the core is oversubscribed so many times.
    """

    machines: int
    link: Link

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise BadCollective(f"a rack has at least 1 machine, got {self.machines}")


@dataclass(frozen=True, kw_only=True)
class Network:
    """Machines of ``per_machine`` ranks: ``inside`` between ranks of one, ``across`` between machines.

    Args:
        inside: each rank has a link of its own each way.
        across: each machine has one link each way, which its ranks share.
        per_machine: ranks of a machine; servers that are no ranks have a machine each.
        start_s: what a collective costs before its first message.
        overhead_s: what each message costs its sender before it leaves, one after another.
        reduce_s_per_byte: folding a byte that arrived.
        racks: what the machines of a rack share; None: the core has room for all.
        incast: of the ports between machines; None: buffers without end.
        cores: of a machine, shared by its ranks: where b of them are at work at once and b is more, what they do, moving bytes
            between them too, takes b / cores times as long.  None: each rank has a core of its own.
    """

    inside: Link
    across: Link
    per_machine: int = 1
    start_s: float = 0.0
    overhead_s: float = 0.0
    reduce_s_per_byte: float = 0.0
    racks: Racks | None = None
    incast: Incast | None = None
    cores: int | None = None

    def __post_init__(self) -> None:
        _refuse_below_0(
            "a network",
            start_s=self.start_s,
            overhead_s=self.overhead_s,
            reduce_s_per_byte=self.reduce_s_per_byte,
        )
        if self.per_machine < 1:
            raise BadCollective(f"a machine has at least 1 rank, got {self.per_machine}")
        if self.cores is not None and self.cores < 1:
            raise BadCollective(f"a machine has at least 1 core, got {self.cores}")


def uniform(*, latency_s: float, s_per_byte: float, reduce_s_per_byte: float = 0.0) -> Network:
    """Return machines of one rank that are all alike: the model of most formulas (see ``costs``)."""
    link = Link(latency_s=latency_s, s_per_byte=s_per_byte)
    return Network(inside=link, across=link, reduce_s_per_byte=reduce_s_per_byte)


def _refuse_below_0(what: str, **values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise BadCollective(f"{what}: {name} is at least 0, got {value}")


@dataclass(frozen=True, kw_only=True)
class NamedNetwork:
    """A network of ``networks``: what it is, and what an algorithm meets there.

    Args:
        about: one line.
        usual: for algorithms that are not in ``own``.
        own: for those with latencies of their own: what a hop costs depends on how an algorithm uses it.
    """

    about: str
    usual: Network
    own: Mapping[str, Network]


def _summit(algorithm: str, start_s: float, *measured: tuple[int, float]) -> Network:
    """Return NCCL 2.4 on Summit: 6 GPUs a machine, NVLink, two ports of 100 Gbit/s.

    The latencies of a hop solve NCCL's model for the times measured for 8 bytes at the smallest and the largest size (NVIDIA's
    blog on NCCL 2.4, read off its plot); the start is NCCL's constant for its protocol of short messages.
    """
    near, far = measured
    inside_s, across_s = fit_nccl(algorithm, 6, start_s, near, far)
    return Network(
        inside=Link(latency_s=inside_s, s_per_byte=1 / 50e9),
        across=Link(latency_s=across_s, s_per_byte=1 / 25e9),
        per_machine=6,
        start_s=start_s,
    )


_SUMMIT_RING = _summit("ring", 6.6e-6, (96, 175e-6), (24576, 45e-3))
_SUMMIT_TREE = _summit("tree", 6.8e-6, (96, 127e-6), (24576, 250e-6))


def _ethernet(gbit_per_s: float) -> Network:
    """Return machines on one switch, with the nominal speed of their ports; the rest is assumed, see ``NETWORKS``."""
    return Network(
        inside=Link(latency_s=1e-6, s_per_byte=1 / 10e9),
        across=Link(latency_s=25e-6, s_per_byte=8e-9 / gbit_per_s),
        incast=Incast(buffer_bytes=512_000, window_bytes=65_536),
    )


NETWORKS: dict[str, NamedNetwork] = {
    "summit": NamedNetwork(
        about="NCCL 2.4 on Summit: 6 GPUs a machine, 50 GB/s inside, 25 GB/s across; ring and tree have hops of their own",
        usual=_SUMMIT_TREE,
        own={"ring": _SUMMIT_RING, "two_level": _SUMMIT_RING},  # two levels go round rings across machines
    ),
    **{
        f"ethernet-{gbit}g": NamedNetwork(
            about=f"assumed: {gbit} Gbit/s and 25 us between machines of one rank, windows of 64 KiB, ports that hold 512 kB",
            usual=_ethernet(gbit),
            own={},
        )
        for gbit in (1, 10, 100)
    },
}


def networks() -> list[str]:
    """Return the names of the networks that ``named_network`` knows."""
    return list(NETWORKS)


def named_network(name: str, algorithm: str) -> Network:
    """Return the network of a name as ``algorithm`` meets it; raises BadCollective if there is none."""
    if name not in NETWORKS:
        raise BadCollective(f"there is no network {name!r}; there are: {', '.join(NETWORKS)}")
    found = NETWORKS[name]
    return found.own.get(algorithm, found.usual)
