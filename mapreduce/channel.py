"""Frames between the pool and its workers over one socket pair each.

A frame is an 8-byte big-endian length and a pickle of builtin types.  The pool's side (``Channel``) never
blocks: a worker that stops or dies in the middle of a frame holds up nobody.  The worker's side
(``send_frame``, ``receive_frame``) blocks.  Nothing here knows what a message means.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections import deque
from typing import Any

_LENGTH = struct.Struct(">Q")
_READ_BYTES = 1 << 18


def encode_frame(message: Any) -> bytes:
    """Return the frame of a message."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def send_frame(connection: socket.socket, message: Any) -> None:
    """Send a message over a blocking socket."""
    connection.sendall(encode_frame(message))


def receive_frame(connection: socket.socket) -> Any:
    """Return the next message of a blocking socket.

    Raises:
        EOFError: the other side is gone.
    """
    try:
        (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
        return pickle.loads(receive_exactly(connection, length))
    except ConnectionError as error:
        raise EOFError(str(error)) from None


def receive_exactly(connection: socket.socket, size: int, deadline: float | None = None) -> bytearray:
    """Return the next ``size`` bytes of a blocking socket, all of them before ``deadline`` (of ``time.monotonic``).

    Raises:
        ConnectionError: the other side is gone.
        TimeoutError: they did not come in time.
    """
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        got = connection.recv_into(view[filled:])
        if not got:
            raise ConnectionError("the connection was closed")
        filled += got
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError("not all that was to come has come in time")
    return data


class Channel:
    """The end of a connection that never blocks; ``closed`` once the other side is gone."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.closed = False
        self._incoming = bytearray()
        self._outgoing: deque[memoryview] = deque()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self.connection.fileno()

    @property
    def wants_to_send(self) -> bool:
        """True while bytes wait for the other side to read."""
        return bool(self._outgoing) and not self.closed

    def send(self, message: Any) -> None:
        """Queue a message and send what the other side takes now."""
        self._outgoing.append(memoryview(encode_frame(message)))
        self.flush()

    def flush(self) -> None:
        """Send what the other side takes now."""
        while self._outgoing and not self.closed:
            head = self._outgoing[0]
            try:
                sent = self.connection.send(head)
            except BlockingIOError:
                return
            except OSError:
                # Not closed yet: what the other side sent before it died is still to be read.
                self._outgoing.clear()
                return
            if sent == len(head):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = head[sent:]

    def receive(self) -> list[Any]:
        """Return the messages that have arrived whole, and note when the other side is gone."""
        while not self.closed:
            try:
                data = self.connection.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
            self._incoming += data
        messages = []
        start, have = 0, len(self._incoming)
        while have - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._incoming, start)
            end = start + _LENGTH.size + length
            if end > have:
                break
            messages.append(pickle.loads(memoryview(self._incoming)[start + _LENGTH.size : end]))
            start = end
        if start:
            del self._incoming[:start]
        return messages

    def close(self) -> None:
        """Close this end; the other side sees the end of the stream."""
        self.closed = True
        self._outgoing.clear()
        self.connection.close()
