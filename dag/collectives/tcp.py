"""A transport over TCP: one connection for each pair of ranks that has something to say to each other, no more.

A connection is opened when the first exchange needs it, so a rank of a ring holds two; the rank with the higher number
calls.  One thread sends and receives on all of them, whichever is ready, so no order of ranks can block.  What replaces is
received straight into its place; what is folded is received in blocks that stay in the core's cache and is folded there, in
the order of ``Gather.sources``; a rank that is ahead of the others waits in its socket.

Between machines a large message waits, after its first bytes, for the word that the receiver has come to that exchange.  So
no more ranks send to one at once than the schedule says: ranks drift apart, and without this those of later steps would take
their share of the link, and of a switch's buffer, from the one that is waited for.

Who has not the run's token is not heard (``tcp_greeting``).  Does not encrypt, and does not mend a connection: a run in which
one breaks has failed.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .tcp_greeting import CALLER_BYTES, TAKER_BYTES, Greeting, call, take
from .tcp_link import GO, HEAD, TURN_BYTES, Arrival, Gathering, Link, Traffic, aligned
from .transport import Array, Gather, Seat, Send, Watch

#: So long at most between two looks at the watch.
_LOOK_MS = 50
#: Strangers at the door: so many at once, so long each.
_STRANGERS = 64
_STRANGER_S = 20.0


class Tcp:
    """A ``Transport`` over TCP; ``Kind(seat, watch)`` as all of them."""

    def __init__(self, seat: Seat, watch: Watch) -> None:
        self.rank, self.size = seat.rank, seat.size
        self.signature = 0
        self._token, self._watch = seat.token, watch
        family = socket.getaddrinfo(seat.host, 0, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((seat.host, 0), family=family, backlog=max(128, seat.size))
        self._listener.setblocking(False)
        self._links: dict[int, Link] = {}
        self._by_fd: dict[int, Link] = {}
        self._greetings: dict[int, tuple[socket.socket, Greeting, Link | None, float]] = {}
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)

    def offer(self) -> Any:
        """Return the address at which this rank listens."""
        return self._listener.getsockname()

    def connect(self, offers: Mapping[int, Any]) -> None:
        """See ``Transport``; connections are opened when they are needed."""
        for peer, address in offers.items():
            self._links[peer] = Link(peer, tuple(address), far=address[0] != self.offer()[0])

    def traffic(self) -> dict[int, Traffic]:
        """Return what has gone to and come from each peer with which there is a connection."""
        return {
            link.peer: Traffic(
                sent=link.sent,
                received=link.received,
                sent_around=link.messages_sent * HEAD.size + link.greeted[0],
                received_around=(link.messages_received + link.words_received) * HEAD.size + link.greeted[1],
            )
            for link in self._links.values()
            if link.connection is not None
        }

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        """See ``Transport``."""
        links = self._links
        busy: dict[int, Link] = {}
        for gather in gathers:
            for arrival in Gathering(gather, self.rank, links).arrivals:
                link = busy[arrival.link.peer] = arrival.link
                nbytes = gather.target.nbytes
                link.incoming.append(arrival)
                link.received += nbytes
                link.messages_received += 1
                # Before all that this rank itself sends there.
                if link.holds(nbytes):
                    link.say(self.signature | GO, nbytes)
        for send in sends:
            link = busy[send.peer] = links[send.peer]
            link.give(send.data.view(np.uint8).data, self.signature)
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

    def _listen_to(self, link: Link) -> bool:
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
        return bool(wanted or link.incoming or link.outgoing)

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
            if (link.incoming or link.waiting) and events & ~select.POLLOUT:
                moved |= self._pull(link)
        return moved

    def _push(self, link: Link) -> bool:
        assert link.connection is not None
        outgoing = link.outgoing
        if outgoing[0] is None:
            if not link.let_go:
                return False
            outgoing.popleft()
            link.let_go -= 1
        first = outgoing[0]
        second = outgoing[1] if len(outgoing) > 1 else None
        assert first is not None
        try:
            # A head goes with what follows it: else it is a packet of its own.
            if second is not None:
                sent = link.connection.sendmsg([first, second[:TURN_BYTES]])
            else:
                sent = link.connection.send(first[:TURN_BYTES])
        except BlockingIOError:
            return False
        except OSError as error:
            self._watch.lost(link.peer, f"closed its connection ({error.strerror})")
        while sent:
            part = outgoing.popleft()
            assert part is not None
            if sent < len(part):
                outgoing.appendleft(part[sent:])
            sent -= min(sent, len(part))
        return True

    def _pull(self, link: Link) -> bool:
        assert link.connection is not None
        # What the peer says of messages to it comes before its own, and nothing follows it that belongs to it.
        arrival = None if link.waiting else link.incoming[0]
        space = memoryview(b"") if arrival is None else arrival.space()
        if arrival is not None and not space:
            return False
        try:
            if link.head_filled == HEAD.size:
                got = link.connection.recv_into(space)
            elif arrival is None:
                got = link.connection.recv_into(link.head[link.head_filled :])
            else:
                got = link.connection.recvmsg_into([link.head[link.head_filled :], space])[0]
        except BlockingIOError:
            return False
        except OSError as error:
            self._watch.lost(link.peer, f"broke its connection ({error.strerror})")
        if not got:
            self._watch.lost(link.peer, "closed its connection")
        if link.head_filled < HEAD.size:
            of_head = min(got, HEAD.size - link.head_filled)
            link.head_filled += of_head
            got -= of_head
            if link.head_filled == HEAD.size:
                self._hear(link, arrival)
        if got and arrival is not None:
            arrival.gather.came(arrival, got)
        return True

    def _hear(self, link: Link, arrival: Arrival | None) -> None:
        """Check a head that is complete; a word for a message lets it go on."""
        found = HEAD.unpack(link.head)
        of_message = (self.signature, arrival.gather.target.nbytes) if arrival is not None else None
        if found != (of_message or (self.signature | GO, link.waiting[0])):
            self._watch.differs(link.peer)
        if arrival is None:
            link.waiting.popleft()
            link.let_go += 1
            link.head_filled = 0
            link.words_received += 1

    def _call(self, link: Link) -> None:
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
        self, connection: socket.socket, greeting: Greeting, link: Link | None, deadline: float
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
        if not called.far:
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


def _awaited(busy: Collection[Link]) -> list[int]:
    """Return the peers from which something is to come, else those that do not take what is sent."""
    coming = [link.peer for link in busy if link.awaits()]
    return coming or [link.peer for link in busy]
