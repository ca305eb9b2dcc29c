"""One TCP connection between two ranks as an exchange sees it: what has still to go, what is still to come, and where to."""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .transport import Array, Gather

#: Before each message: its signature and how many bytes follow.
HEAD = struct.Struct("<QQ")
#: Set in the signature of a head with which nothing follows: the receiver waits for a message of that size, let it come.
GO = 1 << 63
#: Between machines, messages above this size wait for that after so many bytes: what a connection sends first anyway.
_EAGER_BYTES = 64 << 10
_FIRST_BYTES = 16 << 10
#: Of what arrives to be folded, over all sources of a gather: with the target it stays in a core's second cache.
_FOLDED_BYTES = 512 << 10
_LEAST_BLOCK_BYTES = 16 << 10
#: At most so much in one system call, so that sending and receiving take turns.
TURN_BYTES = 512 << 10
_ALIGNED = 64


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What went over the connection with one peer so far.

    Args:
        sent, received: bytes of messages.
        sent_around, received_around: bytes of the greeting, heads and words around them; TCP and IP add their own.
    """

    sent: int
    received: int
    sent_around: int
    received_around: int


class Link:
    """A peer, the connection with it if there is one, and what has still to go each way, in order."""

    def __init__(self, peer: int, address: tuple[Any, ...], *, far: bool) -> None:
        self.peer, self.address, self.far = peer, address, far
        self.connection: socket.socket | None = None
        self.calling = False
        #: None is where a message waits for the receiver.
        self.outgoing: deque[memoryview | None] = deque()
        #: Sizes of the messages of which the receiver has not said that it waits for them, and how many may go on.
        self.waiting: deque[int] = deque()
        self.let_go = 0
        self.incoming: deque[Arrival] = deque()
        self.watched = 0
        self.head = memoryview(bytearray(HEAD.size))
        self.head_filled = 0
        self.block = np.empty(0, np.uint8)
        self.sent = self.received = self.messages_sent = self.messages_received = 0
        self.words_received = 0
        self.greeted = (0, 0)

    def wants(self) -> int:
        """Return for what the connection has to be ready."""
        wanted = select.POLLOUT if self.outgoing and (self.let_go or self.outgoing[0] is not None) else 0
        return wanted | (select.POLLIN if self.awaits() else 0)

    def awaits(self) -> bool:
        """Return whether something that the peer has to say can be taken in."""
        return bool(self.waiting or (self.incoming and self.incoming[0].space()))

    def holds(self, nbytes: int) -> bool:
        """Return whether a message of this size waits for its receiver; both sides say the same."""
        return self.far and nbytes > _EAGER_BYTES

    def say(self, head: int, nbytes: int) -> None:
        """Queue the head of a message, or a word for one that is to come."""
        self.outgoing.append(memoryview(HEAD.pack(head, nbytes)))
        self.messages_sent += 1

    def give(self, data: memoryview, signature: int) -> None:
        """Queue a message."""
        self.say(signature, len(data))
        if self.holds(len(data)):
            self.outgoing += (data[:_FIRST_BYTES], None, data[_FIRST_BYTES:])
            self.waiting.append(len(data))
        else:
            self.outgoing.append(data)
        self.sent += len(data)


class Arrival:
    """A message that is coming, of a gather with or without others."""

    def __init__(self, gather: Gathering, link: Link) -> None:
        self.gather, self.link = gather, link
        self.filled = 0

    def space(self) -> memoryview:
        """Return where the next bytes go; nothing while the block is full and others are missing."""
        gather = self.gather
        if gather.fold is None:
            return gather.bytes[self.filled : self.filled + TURN_BYTES]
        at = gather.start * gather.itemsize
        return self.link.block.data[self.filled - at : gather.stop * gather.itemsize - at]


class Gathering:
    """A gather under way: its sources fill one block each, which are folded when all are there."""

    def __init__(self, gather: Gather, own: int, links: Mapping[int, Link]) -> None:
        self.target, self.fold = gather.target, gather.fold
        self.bytes = gather.target.view(np.uint8).data
        self.itemsize = gather.target.itemsize
        self.sources = [None if peer == own else links[peer] for peer in gather.sources]
        self.arrivals = [Arrival(self, link) for link in self.sources if link is not None]
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

    def came(self, arrival: Arrival, nbytes: int) -> None:
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

    def _block(self, link: Link) -> Array:
        return link.block[: (self.stop - self.start) * self.itemsize].view(self.target.dtype)


def aligned(nbytes: int) -> Array:
    """Return ``nbytes`` bytes that begin at a multiple of 64."""
    space = np.empty(nbytes + _ALIGNED, np.uint8)
    skip = -space.ctypes.data % _ALIGNED
    return space[skip : skip + nbytes]
