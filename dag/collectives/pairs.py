"""Which transport carries what: chosen for each pair of ranks, several at once in one communicator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ..errors import BadCollective
from .execute import fold_in_order
from .transport import Array, Gather, Seat, Send, Transport, Watch

#: ``auto``, the name of one transport, or a function of two ranks that names theirs, the same whichever comes first.
Kinds = str | Callable[[int, int], str]
#: Where each transport is, the better first.
TRANSPORTS = {"shm": (".shared", "Shared"), "tcp": (".tcp", "Tcp")}


def check_kinds(kinds: Kinds) -> None:
    """Raise BadCollective if there is no such transport."""
    if isinstance(kinds, str) and kinds not in ("auto", *TRANSPORTS):
        raise BadCollective(f"there is no transport {kinds!r}; there are: auto, {', '.join(TRANSPORTS)}")


def open_transports(kinds: Kinds, seat: Seat, watch: Watch) -> dict[str, Transport]:
    """Return the transports that a rank may need, by name."""
    if seat.size == 1:
        return {}
    if not isinstance(kinds, str):
        wanted = {_of_pair(kinds, seat.rank, peer) for peer in range(seat.size) if peer != seat.rank}
    else:
        wanted = set(TRANSPORTS) if kinds == "auto" else {kinds}
    opened: dict[str, Transport] = {}
    for name, (module, kind) in TRANSPORTS.items():
        if name in wanted:
            # Where a machine has no shared memory of the kind, the other transport does it.
            with contextlib.suppress(OSError) if kinds == "auto" else contextlib.nullcontext():
                opened[name] = getattr(import_module(module, __package__), kind)(seat, watch)
    return opened


def connect(
    kinds: Kinds,
    seat: Seat,
    opened: Mapping[str, Transport],
    machines: Sequence[str],
    offers: Sequence[Mapping[str, Any]],
) -> Transport:
    """Connect this rank with all others and return what carries its messages.

    Raises:
        BadCollective: shared memory is asked for between machines.
        OSError: the memory of a peer cannot be opened; with ``auto`` another try without such offers goes by TCP.
    """
    by_peer = {
        peer: _carrier(kinds, seat.rank, peer, machines, offers) for peer in range(seat.size) if peer != seat.rank
    }  # fmt: skip
    for name, transport in opened.items():
        chosen = {peer: offers[peer][name] for peer, its in by_peer.items() if its == name}
        if chosen:
            transport.connect(chosen)
    used = {name: opened[name] for name in opened if name in by_peer.values()}
    if len(used) == 1:
        return next(iter(used.values()))
    return Paired(seat, used, by_peer) if used else Alone(seat.rank, seat.size)


def all_share(kinds: Kinds, machines: Sequence[str], offers: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all pairs exchange through shared memory; the same at all ranks."""
    ranks = range(len(machines))
    return all(
        _carrier(kinds, one, other, machines, offers) == "shm" for one in ranks for other in ranks[:one]
    )


def close_unused(opened: Mapping[str, Transport], transport: Transport) -> None:
    """Close those of the opened transports that do not carry anything for ``transport``."""
    used = transport.transports.values() if isinstance(transport, Paired) else (transport,)
    for each in opened.values():
        if each not in used:
            each.close()


def _carrier(
    kinds: Kinds, one: int, other: int, machines: Sequence[str], offers: Sequence[Mapping[str, Any]]
) -> str:
    near = machines[one] == machines[other]
    if kinds == "auto":
        return "shm" if near and "shm" in offers[one] and "shm" in offers[other] else "tcp"
    name = _of_pair(kinds, one, other)
    if name == "shm" and not near:
        raise BadCollective(
            f"ranks {min(one, other)} and {max(one, other)} are on different machines and share no memory; "
            "use transport='auto' or 'tcp'"
        )
    return name


def _of_pair(kinds: Kinds, one: int, other: int) -> str:
    if isinstance(kinds, str):
        return kinds
    name = kinds(min(one, other), max(one, other))
    if name not in TRANSPORTS:
        raise BadCollective(f"there is no transport {name!r}; there are: {', '.join(TRANSPORTS)}")
    return name


class Alone:
    """The transport of the only rank: there is nobody to talk to."""

    signature = 0

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def offer(self) -> Any:
        """Return nothing."""
        return None

    def connect(self, offers: Mapping[int, Any]) -> None:
        """Connect with nobody."""

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        """There is nothing to exchange."""
        assert not sends
        assert not gathers

    def empty(self, nbytes: int) -> Array:
        """Return fresh bytes."""
        return np.empty(nbytes, np.uint8)

    def close(self) -> None:
        """There is nothing to give back."""


class Paired:
    """Several transports as one: in each step one after the other, at all ranks in the same order.

    A step's moves do not wait for each other, so this order cannot block.
    """

    def __init__(self, seat: Seat, transports: Mapping[str, Transport], by_peer: Mapping[int, str]) -> None:
        self.rank, self.size = seat.rank, seat.size
        self.transports = dict(transports)
        self.by_peer = dict(by_peer)

    @property
    def signature(self) -> int:
        """See ``Transport``."""
        return next(iter(self.transports.values())).signature

    @signature.setter
    def signature(self, signature: int) -> None:
        for transport in self.transports.values():
            transport.signature = signature

    def offer(self) -> Any:
        """Return nothing: the transports have made their offers."""
        return None

    def connect(self, offers: Mapping[int, Any]) -> None:
        """The transports are connected."""

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        """See ``Transport``; what comes by several transports is kept and folded when all is there."""
        own: dict[str, list[Gather]] = {name: [] for name in self.transports}
        kept: list[tuple[Gather, dict[int, Array]]] = []
        for gather in gathers:
            names = {self.by_peer[peer] for peer in gather.sources if peer != self.rank}
            if len(names) == 1:
                own[names.pop()].append(gather)
                continue
            operands: dict[int, Array] = {}
            for peer in gather.sources:
                if peer != self.rank:
                    operands[peer] = np.empty_like(gather.target)
                    own[self.by_peer[peer]].append(Gather(target=operands[peer], sources=(peer,)))
            kept.append((gather, operands))
        for name, transport in self.transports.items():
            sent = [send for send in sends if self.by_peer[send.peer] == name]
            if sent or own[name]:
                transport.exchange(sent, own[name])
        for gather, operands in kept:
            assert gather.fold is not None
            fold_in_order([operands.get(peer) for peer in gather.sources], gather.target, gather.fold)

    def empty(self, nbytes: int) -> Array:
        """Return fresh bytes of the first transport, which is the one that shares memory."""
        return next(iter(self.transports.values())).empty(nbytes)

    def close(self) -> None:
        """Close all of them."""
        for transport in self.transports.values():
            transport.close()
