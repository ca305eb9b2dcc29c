"""A transport over TCP: one connection for each pair of ranks that has something to say to each other, no more.

A connection is opened when the first exchange needs it, so a rank of a ring holds two; the rank with the higher number
calls.  One thread sends and receives on all of them, whichever is ready, so no order of ranks can block.  What replaces is
received straight into its place; what is folded is received in blocks that stay in the core's cache and is folded there, in
the order of ``Gather.sources``; a rank that is ahead of the others waits in its socket.  Who has not the run's token is not
heard (``tcp_greeting``).  Does not encrypt, and does not mend a connection: a run in which one breaks has failed.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .tcp_greeting import CALLER_BYTES, TAKER_BYTES, Greeting, call, take
from .transport import Array, Gather, Seat, Send, Watch

#: Before each message: its signature and how many bytes follow.
_HEAD = struct.Struct("<QQ")
#: Of what arrives to be folded, over all sources of a gather: with the target it stays in a core's second cache.
_FOLDED_BYTES = 512 << 10
_LEAST_BLOCK_BYTES = 16 << 10
#: At most so much in one system call, so that sending and receiving take turns.
_TURN_BYTES = 512 << 10
#: So long at most between two looks at the watch.
_LOOK_MS = 50
#: Strangers at the door: so many at once, so long each.
_STRANGERS = 64
_STRANGER_S = 20.0
_ALIGNED = 64


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What went over the connection with one peer so far.

    Args:
        sent, received: bytes of messages.
        sent_around, received_around: bytes of the heads of messages and of the greeting; TCP and IP add their own.
    """

    sent: int
    received: int
    sent_around: int
    received_around: int


class _Link:
    """A peer, the connection with it if there is one, and what has still to go each way, in order."""

    def __init__(self, peer: int, address: tuple[Any, ...]) -> None:
        self.peer, self.address = peer, address
        self.connection: socket.socket | None = None
        self.calling = False
        self.outgoing: deque[memoryview] = deque()
        self.incoming: deque[_Arrival] = deque()
        self.watched = 0
        self.head = memoryview(bytearray(_HEAD.size))
        self.head_filled = 0
        self.block = np.empty(0, np.uint8)
        self.sent = self.received = self.messages_sent = self.messages_received = 0
        self.greeted = (0, 0)

    def wants(self) -> int:
        """Return for what the connection has to be ready."""
        wanted = select.POLLOUT if self.outgoing else 0
        return wanted | (select.POLLIN if self.incoming and self.incoming[0].space() else 0)


class _Arrival:
    """A message that is coming, of a gather with or without others."""

    def __init__(self, gather: _Gathering, link: _Link) -> None:
        self.gather, self.link = gather, link
        self.filled = 0

    def space(self) -> memoryview:
        """Return where the next bytes go; nothing while the block is full and others are missing."""
        gather = self.gather
        if gather.fold is None:
            return gather.bytes[self.filled : self.filled + _TURN_BYTES]
        at = gather.start * gather.itemsize
        return self.link.block.data[self.filled - at : gather.stop * gather.itemsize - at]


class _Gathering:
    """A gather under way: its sources fill one block each, which are folded when all are there."""

    def __init__(self, gather: Gather, own: int, links: Mapping[int, _Link]) -> None:
        self.target, self.fold = gather.target, gather.fold
        self.bytes = gather.target.view(np.uint8).data
        self.itemsize = gather.target.itemsize
        self.sources = [None if peer == own else links[peer] for peer in gather.sources]
        self.arrivals = [_Arrival(self, link) for link in self.sources if link is not None]
        share = max(_FOLDED_BYTES // len(self.arrivals), _LEAST_BLOCK_BYTES)
        self.elements_per_block = max(1, share // self.itemsize)
        self.start = self.stop = 0
        self.missing = 0
        if self.fold is None:
            self.stop = len(self.target)
        else:
            room = min(self.elements_per_block, len(self.target)) * self.itemsize
            for arrival in self.arrivals:
                if len(arrival.link.block) < room:
                    arrival.link.block = aligned(room)
            self._next_block()

    def came(self, arrival: _Arrival, nbytes: int) -> None:
        """Note that so many bytes of a message have come; fold what is complete and drop messages that are done."""
        arrival.filled += nbytes
        if arrival.filled < self.stop * self.itemsize:
            return
        if self.fold is not None:
            self.missing -= 1
            if self.missing:
                return
            self._fold_block()
            if self.stop < len(self.target):
                self._next_block()
                return
        for each in self.arrivals:
            each.link.incoming.popleft()
            each.link.head_filled = 0

    def _next_block(self) -> None:
        self.start = self.stop
        self.stop = min(self.start + self.elements_per_block, len(self.target))
        self.missing = len(self.arrivals)

    def _fold_block(self) -> None:
        assert self.fold is not None
        own = self.target[self.start : self.stop]
        total, *others = [own if link is None else self._block(link) for link in self.sources]
        for operand in others:
            # The own operand is written as soon as it is used up, and not before.
            out = own if total is own or operand is own else total
            self.fold(total, operand, out)
            total = out
        if total is not own:
            own[:] = total

    def _block(self, link: _Link) -> Array:
        return link.block[: (self.stop - self.start) * self.itemsize].view(self.target.dtype)


class Tcp:
    """A ``Transport`` over TCP; ``Kind(seat, watch)`` as all of them."""

    def __init__(self, seat: Seat, watch: Watch) -> None:
        self.rank, self.size = seat.rank, seat.size
        self.signature = 0
        self._token, self._watch = seat.token, watch
        family = socket.getaddrinfo(seat.host, 0, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((seat.host, 0), family=family, backlog=max(128, seat.size))
        self._listener.setblocking(False)
        self._links: dict[int, _Link] = {}
        self._by_fd: dict[int, _Link] = {}
        self._greetings: dict[int, tuple[socket.socket, Greeting, _Link | None, float]] = {}
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)

    def offer(self) -> Any:
        """Return the address at which this rank listens."""
        return self._listener.getsockname()

    def connect(self, offers: Mapping[int, Any]) -> None:
        """See ``Transport``; connections are opened when they are needed."""
        for peer, address in offers.items():
            self._links[peer] = _Link(peer, tuple(address))

    def traffic(self) -> dict[int, Traffic]:
        """Return what has gone to and come from each peer with which there is a connection."""
        return {
            link.peer: Traffic(
                sent=link.sent,
                received=link.received,
                sent_around=link.messages_sent * _HEAD.size + link.greeted[0],
                received_around=link.messages_received * _HEAD.size + link.greeted[1],
            )
            for link in self._links.values()
            if link.connection is not None
        }

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        """See ``Transport``."""
        links = self._links
        busy: dict[int, _Link] = {}
        for send in sends:
            link = busy[send.peer] = links[send.peer]
            data = send.data.view(np.uint8).data
            link.outgoing.append(memoryview(_HEAD.pack(self.signature, len(data))))
            link.outgoing.append(data)
            link.sent += len(data)
            link.messages_sent += 1
        for gather in gathers:
            for arrival in _Gathering(gather, self.rank, links).arrivals:
                link = busy[arrival.link.peer] = arrival.link
                link.incoming.append(arrival)
                link.received += gather.target.nbytes
                link.messages_received += 1
        for link in busy.values():
            if link.connection is None:
                self._call(link)
            elif link.outgoing:
                self._push(link)
        since = time.monotonic()
        while True:
            busy = {peer: link for peer, link in busy.items() if self._listen_to(link)}
            if not busy:
                return
            if self._turn():
                since = time.monotonic()
            else:
                self._watch.waited(time.monotonic() - since, _awaited(busy.values()))

    def empty(self, nbytes: int) -> Array:
        """See ``Transport``."""
        return aligned(nbytes)

    def close(self) -> None:
        """See ``Transport``."""
        for connection, *_ in self._greetings.values():
            connection.close()
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close()
        self._listener.close()

    def _listen_to(self, link: _Link) -> bool:
        """Have the poll wait for what ``link`` wants, and return whether it is busy still."""
        if link.connection is None:
            return True
        wanted = link.wants()
        if wanted != link.watched:
            if wanted:
                self._poll.register(link.connection, wanted)
            else:
                self._poll.unregister(link.connection)
            link.watched = wanted
        return bool(wanted or link.incoming)

    def _turn(self) -> bool:
        """Wait for whatever is ready, do as much as does not block, and return whether any message moved."""
        moved = False
        for fd, events in self._poll.poll(_LOOK_MS):
            link = self._by_fd.get(fd)
            if link is None:
                self._meet(fd)
                continue
            if link.outgoing and events & ~select.POLLIN:
                moved |= self._push(link)
            if link.incoming and events & ~select.POLLOUT:
                moved |= self._pull(link)
        return moved

    def _push(self, link: _Link) -> bool:
        assert link.connection is not None
        outgoing = link.outgoing
        try:
            # A head goes with what follows it: else it is a packet of its own.
            if len(outgoing) > 1:
                sent = link.connection.sendmsg([outgoing[0], outgoing[1][:_TURN_BYTES]])
            else:
                sent = link.connection.send(outgoing[0][:_TURN_BYTES])
        except BlockingIOError:
            return False
        except OSError as error:
            self._watch.lost(link.peer, f"closed its connection ({error.strerror})")
        while sent:
            taken = min(sent, len(outgoing[0]))
            outgoing[0] = outgoing[0][taken:]
            if not outgoing[0]:
                outgoing.popleft()
            sent -= taken
        return True

    def _pull(self, link: _Link) -> bool:
        assert link.connection is not None
        arrival = link.incoming[0]
        space = arrival.space()
        if not space:
            return False
        try:
            if link.head_filled < _HEAD.size:
                got = link.connection.recvmsg_into([link.head[link.head_filled :], space])[0]
            else:
                got = link.connection.recv_into(space)
        except BlockingIOError:
            return False
        except OSError as error:
            self._watch.lost(link.peer, f"broke its connection ({error.strerror})")
        if not got:
            self._watch.lost(link.peer, "closed its connection")
        if link.head_filled < _HEAD.size:
            of_head = min(got, _HEAD.size - link.head_filled)
            link.head_filled += of_head
            got -= of_head
            if link.head_filled == _HEAD.size:
                signature, nbytes = _HEAD.unpack(link.head)
                if signature != self.signature or nbytes != arrival.gather.target.nbytes:
                    self._watch.differs(link.peer)
        if got:
            arrival.gather.came(arrival, got)
        return True

    def _call(self, link: _Link) -> None:
        """Begin to call a peer of a lower number; those of higher numbers call here."""
        if link.peer > self.rank or link.calling:
            return
        link.calling = True
        family = socket.AF_INET6 if ":" in link.address[0] else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        self._greet(
            connection, call(connection, link.address, self.rank, link.peer, self._token), link, float("inf")
        )

    def _meet(self, fd: int) -> None:
        """Take in who is at the door, or go on with a greeting."""
        if fd != self._listener.fileno():
            self._go_on(fd)
            return
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
        now = time.monotonic()
        strangers = {each: until for each, (_, _, link, until) in self._greetings.items() if link is None}
        for stranger, until in strangers.items():
            if until < now or (len(strangers) >= _STRANGERS and stranger == next(iter(strangers))):
                self._greetings.pop(stranger)[0].close()
                self._poll.unregister(stranger)
        self._greet(connection, take(connection, self.rank, self._token), None, now + _STRANGER_S)

    def _greet(
        self, connection: socket.socket, greeting: Greeting, link: _Link | None, deadline: float
    ) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._greetings[connection.fileno()] = connection, greeting, link, deadline
        self._go_on(connection.fileno())

    def _go_on(self, fd: int) -> None:
        connection, greeting, link, _ = self._greetings[fd]
        try:
            self._poll.register(fd, next(greeting))
            return
        except StopIteration as done:
            peer: int = done.value
        except OSError as error:
            peer = -1
            how = error.strerror or str(error)
        del self._greetings[fd]
        with contextlib.suppress(KeyError):  # it may have failed at once
            self._poll.unregister(fd)
        if peer < 0 and link is not None:
            connection.close()
            self._watch.lost(
                link.peer, f"cannot be reached at {link.address[0]}:{link.address[1]} over TCP: {how}"
            )
        called = self._links.get(peer)
        if called is None or called.connection is not None:
            connection.close()
            return
        if connection.getsockname()[0] == connection.getpeername()[0]:
            _unpaced(connection)
        called.connection = connection
        called.greeted = (TAKER_BYTES, CALLER_BYTES) if link is None else (CALLER_BYTES, TAKER_BYTES)
        self._by_fd[fd] = called


def _unpaced(connection: socket.socket) -> None:
    """Take the plainest congestion control within one machine: nothing is lost there, and BBR's pacing costs a quarter of
    the time.  The sizes of the buffers are left to the system everywhere: it fits them to the network.
    """
    with contextlib.suppress(OSError, AttributeError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def aligned(nbytes: int) -> Array:
    """Return ``nbytes`` bytes that begin at a multiple of 64."""
    space = np.empty(nbytes + _ALIGNED, np.uint8)
    skip = -space.ctypes.data % _ALIGNED
    return space[skip : skip + nbytes]


def _awaited(busy: Collection[_Link]) -> list[int]:
    """Return the peers from which something is to come, else those that do not take what is sent."""
    coming = [link.peer for link in busy if link.incoming and link.incoming[0].space()]
    return coming or [link.peer for link in busy]
