"""The first words on a TCP connection between two ranks, said and heard without ever waiting.

Both sides prove that they have the run's token: each sends a random number, and the HMAC-SHA256 of who they are and both
numbers, so the token itself does not travel and no proof can be used again.  A greeting is a generator of what the socket
has to be ready for next, for ``poll``; it returns the rank at the other end.  Does not encrypt.
"""

from __future__ import annotations

import errno
import hmac
import os
import secrets
import select
import socket
import struct
from collections.abc import Generator
from typing import Any

_RANK = struct.Struct("<Q")
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_CALLED, _TAKEN = b"mrdag tcp: called", b"mrdag tcp: taken"

#: Yields ``select.POLLIN`` or ``select.POLLOUT``, returns the other side's rank, raises OSError where it is none of this run.
Greeting = Generator[int, None, int]


def call(connection: socket.socket, address: tuple[Any, ...], own: int, peer: int, token: bytes) -> Greeting:
    """Call ``peer`` at ``address`` over a fresh, non-blocking ``connection``."""
    error = connection.connect_ex(address)
    if error == errno.EINPROGRESS:
        yield select.POLLOUT
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))
    nonce = secrets.token_bytes(_NONCE_BYTES)
    yield from _say(connection, _RANK.pack(own) + nonce)
    answer = yield from _hear(connection, _NONCE_BYTES + _PROOF_BYTES)
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    _check(proof, _proof(token, _TAKEN, own, peer, nonce, theirs))
    yield from _say(connection, _proof(token, _CALLED, own, peer, nonce, theirs))
    return peer


def take(connection: socket.socket, own: int, token: bytes) -> Greeting:
    """Hear who calls over ``connection``, accepted and non-blocking."""
    hello = yield from _hear(connection, _RANK.size + _NONCE_BYTES)
    (peer,) = _RANK.unpack(hello[: _RANK.size])
    theirs, nonce = hello[_RANK.size :], secrets.token_bytes(_NONCE_BYTES)
    yield from _say(connection, nonce + _proof(token, _TAKEN, peer, own, theirs, nonce))
    proof = yield from _hear(connection, _PROOF_BYTES)
    _check(proof, _proof(token, _CALLED, peer, own, theirs, nonce))
    return int(peer)


#: What a greeting puts on the wire, from the caller and to it.
CALLER_BYTES = _RANK.size + _NONCE_BYTES + _PROOF_BYTES
TAKER_BYTES = _NONCE_BYTES + _PROOF_BYTES


def _proof(token: bytes, side: bytes, caller: int, taker: int, first: bytes, second: bytes) -> bytes:
    return hmac.digest(token, side + _RANK.pack(caller) + _RANK.pack(taker) + first + second, "sha256")


def _check(proof: bytes, wanted: bytes) -> None:
    if not hmac.compare_digest(proof, wanted):
        raise ConnectionError("does not have the token of this run")


def _say(connection: socket.socket, data: bytes) -> Generator[int, None, None]:
    view = memoryview(data)
    while view:
        try:
            view = view[connection.send(view) :]
        except BlockingIOError:
            yield select.POLLOUT


def _hear(connection: socket.socket, size: int) -> Generator[int, None, bytes]:
    data = b""
    while len(data) < size:
        try:
            got = connection.recv(size - len(data))
        except BlockingIOError:
            yield select.POLLIN
            continue
        if not got:
            raise ConnectionError("closed the connection before it had said who it is")
        data += got
    return data
