"""Run files of a worker on another machine: a thread that gives out bytes of its own runs, and the reader of them.

A connection is for one file: the reader sends the run's token and the path and is told the file's size (-1: not there), then
asks for ranges by (offset, size), int64 each, and gets their bytes.  Promises: only files below the worker's own folder are
given out, and only to who has the token.  Does not: encrypt, or check what it sends (blocks have their own checksums).
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
import threading

TOKEN_BYTES = 32
FETCH_TIMEOUT_S = 30.0
_PATH_LENGTH = struct.Struct(">I")
_SIZE = struct.Struct(">q")
_RANGE = struct.Struct(">qq")
_LONGEST_PATH = 1 << 12

_token = b""  # of the pool that this worker belongs to
served_at = ""  # "host:port" where this process gives out its runs; nowhere by default


def serve_runs(host: str, token: bytes, folder: str) -> None:
    """Give out the runs below ``folder`` from a thread of this process, and have new ones say where that is."""
    global _token, served_at
    _token = token
    try:
        listener = socket.create_server((host, 0), backlog=512)
    except OSError:  # an address by which others know this machine, which it does not know itself
        listener = socket.create_server(("", 0), backlog=512)
    served_at = f"{host}:{listener.getsockname()[1]}"
    root = os.path.realpath(folder) + os.sep
    threading.Thread(target=_accept_forever, args=(listener, token, root), daemon=True, name="runs").start()


def _accept_forever(listener: socket.socket, token: bytes, root: str) -> None:
    while True:
        with contextlib.suppress(OSError):  # too many open files, say: the next one may find room
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, token, root), daemon=True).start()


def _answer(connection: socket.socket, token: bytes, root: str) -> None:
    with connection, contextlib.suppress(OSError, EOFError):
        connection.settimeout(FETCH_TIMEOUT_S)
        if not hmac.compare_digest(receive_exactly(connection, TOKEN_BYTES), token):
            return
        (length,) = _PATH_LENGTH.unpack(receive_exactly(connection, _PATH_LENGTH.size))
        if length > _LONGEST_PATH:
            return
        path = os.path.realpath(os.fsdecode(bytes(receive_exactly(connection, length))))
        try:
            if not path.startswith(root):
                raise FileNotFoundError(path)
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
        except OSError:
            connection.sendall(_SIZE.pack(-1))
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with file:
            connection.sendall(_SIZE.pack(os.fstat(file.fileno()).st_size))
            connection.settimeout(None)  # a reader may compute for long between two ranges
            while True:
                offset, size = _RANGE.unpack(receive_exactly(connection, _RANGE.size))
                connection.sendfile(file, offset, size)


class RemoteRun:
    """A run file on another machine, open for reading.

    Raises:
        OSError: nobody answers at ``at``, or there is no such file any more.
    """

    def __init__(self, at: str, path: str) -> None:
        host, _, port = at.rpartition(":")
        self._connection = socket.create_connection((host.strip("[]"), int(port)), FETCH_TIMEOUT_S)
        try:
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = os.fsencode(path)
            self._connection.sendall(_token + _PATH_LENGTH.pack(len(name)) + name)
            self.size: int = _SIZE.unpack(receive_exactly(self._connection, _SIZE.size))[0]
            if self.size < 0:
                raise FileNotFoundError(f"{path} is not there any more")
        except BaseException:
            self.close()
            raise

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill ``view`` from ``offset`` on and return how many bytes there were.

        Raises:
            OSError: the other side is gone.
        """
        wanted = min(len(view), self.size - offset)
        if wanted <= 0:
            return 0
        self._connection.sendall(_RANGE.pack(offset, wanted))
        filled = 0
        while filled < wanted:
            got = self._connection.recv_into(view[filled:wanted])
            if not got:
                raise ConnectionError("the connection was closed")
            filled += got
        return wanted

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    """Return the next ``size`` bytes of a blocking socket.

    Raises:
        ConnectionError: the other side is gone.
    """
    data = bytearray(size)
    filled = 0
    while filled < size:
        got = connection.recv_into(memoryview(data)[filled:])
        if not got:
            raise ConnectionError("the connection was closed")
        filled += got
    return data
