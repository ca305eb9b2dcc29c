"""Run files of a worker on another machine: a thread that gives out bytes of its own runs, and the reader of them.

A connection (``listening.py``) is for one file: the reader sends the path and is told the file's size (-1: not there), then
asks for ranges by (offset, size), int64 each, and gets their bytes.  Promises: only files below the worker's own folder are
given out, and only to who has the token.  Does not: encrypt, or check what it sends (blocks have their own checksums).
"""

from __future__ import annotations

import functools
import os
import socket
import struct

from .channel import receive_exactly
from .listening import Listener, call

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
    give = functools.partial(_give, os.path.realpath(folder) + os.sep)
    try:
        listener = Listener(host, token, give)
    except OSError:  # an address by which others know this machine, which it does not know itself
        listener = Listener("::" if ":" in host else "0.0.0.0", token, give)
    served_at = f"{host}:{listener.address[1]}"


def _give(root: str, connection: socket.socket, deadline: float) -> None:
    """Give out ranges of one file until the reader has closed; readers are not counted, for one opens many files at once."""
    with connection:
        (length,) = _PATH_LENGTH.unpack(receive_exactly(connection, _PATH_LENGTH.size, deadline))
        if length > _LONGEST_PATH:
            return
        path = os.path.realpath(os.fsdecode(bytes(receive_exactly(connection, length, deadline))))
        connection.settimeout(FETCH_TIMEOUT_S)
        try:
            if not path.startswith(root):
                raise FileNotFoundError(path)
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed below
        except OSError:
            connection.sendall(_SIZE.pack(-1))
            return
        with file:
            connection.sendall(_SIZE.pack(os.fstat(file.fileno()).st_size))
            connection.settimeout(
                None
            )  # a reader may compute for long between two ranges; keep_alive sees it go
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
        self._connection = call((host, int(port)), _token, FETCH_TIMEOUT_S)
        try:
            name = os.fsencode(path)
            self._connection.sendall(_PATH_LENGTH.pack(len(name)) + name)
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
