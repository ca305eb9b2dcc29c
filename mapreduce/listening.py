"""TCP connections between machines, of two sides that prove to each other that they have the same token.

Each side sends a random number and the HMAC-SHA256 of both numbers under the token, so the token itself never travels here.
Promises: who does not have the token is not heard, costs one of ``STRANGERS`` places for at most ``HELLO_S``, and cannot keep
others out: who came first leaves first.  An error (no file left to open, say) delays newcomers and ends nothing.
Does not: encrypt.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable

from .channel import receive_exactly

TOKEN_BYTES = 32
HELLO_S = 20.0  # for a whole greeting
STRANGERS = 64
_NONCE_BYTES = 32
_AFTER_ERROR_S = 0.05
# A machine that is gone without a word is noticed after about a minute and a half.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class Listener:
    """Listens at an address of this machine and calls ``serve`` in a thread for each connection that proves its token.

    ``serve`` has the connection from then on, and until ``deadline`` (of ``time.monotonic``) to hear what else belongs to
    a greeting; what it raises of OSError, ValueError and TypeError closes the connection.

    Raises:
        OSError: ``host`` is no address of this machine, or not to be resolved.
    """

    def __init__(self, host: str, token: bytes, serve: Callable[[socket.socket, float], None]) -> None:
        family = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.create_server((host, 0), family=family, backlog=512)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._token = token
        self._serve = serve
        self._closed = False
        self._lock = threading.Lock()
        self._strangers: list[socket.socket] = []  # in the order in which they came
        self._threads: dict[socket.socket, threading.Thread] = {}
        self._accepting = threading.Thread(target=self._accept_forever, daemon=True, name="listener")
        self._accepting.start()

    def close(self) -> None:
        """Stop listening and end the greetings that are under way; no thread calls ``serve`` afterwards."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._accepting.join()
        self._socket.close()
        with self._lock:
            threads = dict(self._threads)
        for connection, thread in threads.items():
            _end(connection)
            thread.join()

    def _accept_forever(self) -> None:
        while not self._closed:
            connection = None
            try:
                connection, _ = self._socket.accept()
                thread = threading.Thread(target=self._greet, args=(connection,), daemon=True)
                with self._lock:
                    self._strangers.append(connection)
                    self._threads[connection] = thread
                    oldest = self._strangers.pop(0) if len(self._strangers) > STRANGERS else None
                thread.start()
            except (OSError, RuntimeError):  # too many open files or threads, say
                with self._lock:
                    if connection is not None:
                        self._strangers.remove(connection)
                        del self._threads[connection]
                    oldest = self._strangers.pop(0) if self._strangers else None
                if connection is not None:
                    connection.close()
                if not self._closed:
                    time.sleep(_AFTER_ERROR_S)
            if oldest is not None:
                _end(oldest)

    def _greet(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + HELLO_S
        try:
            theirs = bytes(receive_exactly(connection, _NONCE_BYTES, deadline))
            own = secrets.token_bytes(_NONCE_BYTES)
            connection.sendall(own + _proof(self._token, b"listener", own, theirs))
            proof = receive_exactly(connection, _NONCE_BYTES, deadline)
            if not hmac.compare_digest(proof, _proof(self._token, b"caller", theirs, own)):
                raise ConnectionError("another token")
            with self._lock:
                if connection in self._strangers:
                    self._strangers.remove(connection)
            keep_alive(connection)
            self._serve(connection, deadline)
        except (OSError, ValueError, TypeError):
            connection.close()
        finally:
            with self._lock:
                if connection in self._strangers:
                    self._strangers.remove(connection)
                self._threads.pop(connection, None)


def call(address: tuple[str, int], token: bytes, timeout_s: float) -> socket.socket:
    """Return a connection to a ``Listener`` that has the same token; it keeps the time-out.

    Raises:
        OSError: nobody answers there, or somebody without the token.
    """
    connection = socket.create_connection(address, timeout_s)
    try:
        keep_alive(connection)
        deadline = time.monotonic() + timeout_s
        own = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(own)
        theirs = bytes(receive_exactly(connection, _NONCE_BYTES, deadline))
        proof = receive_exactly(connection, _NONCE_BYTES, deadline)
        if not hmac.compare_digest(proof, _proof(token, b"listener", theirs, own)):
            raise ConnectionError("who answers there does not have the token of this run")
        connection.sendall(_proof(token, b"caller", own, theirs))
        connection.settimeout(timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection


def keep_alive(connection: socket.socket) -> None:
    """Have the system notice when the other machine is gone, and send small messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def address_towards(host: str) -> str:
    """Return the address of this machine from which it reaches ``host``; nothing is sent.

    Raises:
        OSError: there is no way to it.
    """
    family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        found: str = probe.getsockname()[0]
    return found


def _proof(token: bytes, side: bytes, own: bytes, theirs: bytes) -> bytes:
    return hmac.digest(token, side + own + theirs, "sha256")


def _end(connection: socket.socket) -> None:
    """Wake the thread that reads from a connection; it closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
