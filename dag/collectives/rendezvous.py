"""Where ranks meet their launcher: whole messages over one connection each, from other machines behind a proof.

A rank that the launcher starts has a socket pair to it; one from elsewhere calls at a random port, and both sides prove
that they have the run's token: each sends a random number and the HMAC-SHA256 of both numbers, so the token itself does not
travel.  Promises: who lacks the token is not heard, and costs one of ``_STRANGERS`` places for at most ``GREETING_S``.  Does
not: encrypt.
"""

from __future__ import annotations

import contextlib
import hmac
import pickle
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

TOKEN_BYTES = 32
_NONCE_BYTES = 32
_LENGTH = struct.Struct(">Q")
#: A greeting is over by then, and no message waits longer for the other side to take it.
GREETING_S = 20.0
SENDING_S = 60
_STRANGERS = 64


class Line:
    """One end of a connection: ``send`` from any thread, ``receive`` from one."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        # A process that is stopped takes nothing; whoever sends to it goes on.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SENDING_S, 0))
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message of builtin types; raises OSError if the other side is gone."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._connection.sendall(_LENGTH.pack(len(body)))
            self._connection.sendall(body)

    def receive(self) -> tuple[Any, ...]:
        """Return the next message; raises EOFError if the other side is gone."""
        try:
            (length,) = _LENGTH.unpack(_exactly(self._connection, _LENGTH.size))
            message: tuple[Any, ...] = pickle.loads(_exactly(self._connection, length))
        except OSError as error:
            raise EOFError(str(error)) from None
        return message

    @property
    def own_host(self) -> str:
        """The address of this machine on this connection; 127.0.0.1 for a socket pair."""
        name = self._connection.getsockname()
        return str(name[0]) if isinstance(name, tuple) else "127.0.0.1"

    def close(self) -> None:
        """Close it; whoever is in ``receive`` gets EOFError."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def pair() -> tuple[Line, socket.socket]:
    """Return a line and the other end of it, for a process that is started."""
    here, there = socket.socketpair()
    return Line(here), there


class Door:
    """Listens at a random port of ``host`` and calls ``enter`` with a line for each caller that has the token.

    ``address`` is ``host:port``.  ``enter`` runs in a thread of its own.

    Raises:
        OSError: ``host`` is no address of this machine.
    """

    def __init__(self, host: str, token: bytes, enter: Callable[[Line], None]) -> None:
        family = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.create_server((host, 0), family=family, backlog=512)
        name, port = self._socket.getsockname()[:2]
        self.address = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        self._token = token
        self._enter = enter
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        self._thread = threading.Thread(target=self._open_forever, daemon=True, name="door")
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _open_forever(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            # Beyond so many at once a stranger is turned away, not the ranks that are through.
            if not self._strangers.acquire(timeout=GREETING_S):
                connection.close()
                continue
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            greet(connection, self._token, b"door", b"rank", GREETING_S)
        except OSError:
            connection.close()
            return
        finally:
            self._strangers.release()
        self._enter(Line(connection))


def knock(address: str, token: bytes, timeout_s: float = GREETING_S) -> Line:
    """Return a line to the ``Door`` at ``host:port``.

    Raises:
        ValueError: it is no address.
        OSError: nobody answers there, or somebody without the token.
    """
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"the address of a launcher is host:port, got {address!r}")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    try:
        greet(connection, token, b"rank", b"door", timeout_s)
    except BaseException:
        connection.close()
        raise
    return Line(connection)


def greet(connection: socket.socket, token: bytes, own: bytes, other: bytes, timeout_s: float) -> None:
    """Prove to the other side, and have it prove, that both have the token; ``own`` and ``other`` name the sides.

    Raises:
        OSError: it has not, or is gone, or takes too long.
    """
    deadline = time.monotonic() + timeout_s
    connection.settimeout(timeout_s)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    mine = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(mine)
    theirs = _exactly(connection, _NONCE_BYTES, deadline)
    connection.sendall(hmac.digest(token, own + mine + theirs, "sha256"))
    proof = _exactly(connection, 32, deadline)
    if not hmac.compare_digest(proof, hmac.digest(token, other + theirs + mine, "sha256")):
        raise ConnectionError("who answers there does not have the token of this run")


def _exactly(connection: socket.socket, size: int, deadline: float | None = None) -> bytes:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        got = connection.recv_into(view[filled:])
        if not got:
            raise ConnectionError("the connection was closed")
        filled += got
    return bytes(data)
