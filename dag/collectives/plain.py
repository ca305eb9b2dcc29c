"""The plainest transport: a socket to each peer, whole messages, folded when all are there.  A stand-in."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .transport import Array, Gather, Seat, Send, Watch

_HEAD = struct.Struct("<QQ")


class Plain:
    """Sockets to all peers from the beginning."""

    signature = 0

    def __init__(self, seat: Seat, watch: Watch) -> None:
        self.rank, self.size = seat.rank, seat.size
        self._watch = watch
        self._listener = socket.create_server((seat.host, 0))
        self._sockets: dict[int, socket.socket] = {}

    def offer(self) -> Any:
        """Return the address of the listener."""
        return self._listener.getsockname()[:2]

    def connect(self, offers: Mapping[int, Any]) -> None:
        """Connect with all."""
        for peer, address in offers.items():
            if peer < self.rank:
                self._sockets[peer] = socket.create_connection(tuple(address))
                self._sockets[peer].sendall(struct.pack("<Q", self.rank))
        for _ in [peer for peer in offers if peer > self.rank]:
            connection, _ = self._listener.accept()
            (peer,) = struct.unpack("<Q", connection.recv(8, socket.MSG_WAITALL))
            self._sockets[peer] = connection
        for each in self._sockets.values():
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        """See ``Transport``."""
        out: dict[int, list[memoryview]] = {}
        for send in sends:
            data = send.data.view(np.uint8).data
            out.setdefault(send.peer, []).extend([memoryview(_HEAD.pack(self.signature, data.nbytes)), data])
        came: dict[int, list[tuple[Gather, Array]]] = {}
        into: dict[int, list[memoryview]] = {}
        for gather in gathers:
            for peer in gather.sources:
                if peer != self.rank:
                    space = np.empty_like(gather.target)
                    came.setdefault(peer, []).append((gather, space))
                    into.setdefault(peer, []).extend(
                        [memoryview(bytearray(_HEAD.size)), space.view(np.uint8).data]
                    )
        heads = {id(view) for views in into.values() for view in views[::2]}
        since = time.monotonic()
        with selectors.DefaultSelector() as selector:
            while out or into:
                for peer in {*out, *into}:
                    mask = (selectors.EVENT_WRITE if peer in out else 0) | (
                        selectors.EVENT_READ if peer in into else 0
                    )
                    try:
                        selector.modify(self._sockets[peer], mask, peer)
                    except KeyError:
                        selector.register(self._sockets[peer], mask, peer)
                ready = selector.select(0.05)
                if not ready:
                    self._watch.waited(time.monotonic() - since, list(into or out))
                    continue
                since = time.monotonic()
                for key, mask in ready:
                    peer = key.data
                    if mask & selectors.EVENT_WRITE and peer in out:
                        try:
                            sent = self._sockets[peer].send(out[peer][0])
                        except OSError:
                            self._watch.lost(peer, "closed its connection")
                        out[peer][0] = out[peer][0][sent:]
                        if not out[peer][0]:
                            out[peer].pop(0)
                        if not out[peer]:
                            del out[peer]
                    if mask & selectors.EVENT_READ and peer in into:
                        view = into[peer][0]
                        try:
                            got = self._sockets[peer].recv_into(view)
                        except OSError:
                            got = 0
                        if not got:
                            self._watch.lost(peer, "closed its connection")
                        rest = view[got:]
                        if rest:
                            heads |= {id(rest)} if id(view) in heads else set()
                            into[peer][0] = rest
                        else:
                            into[peer].pop(0)
                            if id(view) in heads and _HEAD.unpack(view.obj)[0] != self.signature:
                                self._watch.differs(peer)
                        if not into[peer]:
                            del into[peer]
                    if peer not in out and peer not in into:
                        selector.unregister(self._sockets[peer])
        for gather in gathers:
            operands = {
                peer: next(space for which, space in came[peer] if which is gather)
                for peer in gather.sources
                if peer != self.rank
            }
            if gather.fold is None:
                gather.target[:] = operands[gather.sources[0]]
                continue
            first, *others = [operands.get(peer, gather.target) for peer in gather.sources]
            total = first.copy()
            for operand in others:
                gather.fold(total, operand, total)
            gather.target[:] = total

    def empty(self, nbytes: int) -> Array:
        """Return fresh bytes."""
        return np.empty(nbytes, np.uint8)

    def close(self) -> None:
        """Close all."""
        for each in (self._listener, *self._sockets.values()):
            each.close()
