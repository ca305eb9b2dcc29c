"""What runs inside the workers of a Dask cluster: a task that holds one worker process of ours for as long as its pool lives.

The process is a child, not the task's thread, so that its memory limit, environment and end are its own: a function that ends
its process, or passes ``--memory``, costs an attempt and not the Dask worker.  It speaks with the pool over a TCP connection
that the task opens and hands on.  Whoever of the three ends (pool, Dask worker, process), the other two notice by a
connection that closes, and what lay on the disk is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .listening import call
from .processes import spawn_worker
from .scratch import Scratch
from .tuning import worker_environment

CONNECT_S = 20.0
HELLO_LENGTH = struct.Struct(">I")
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Berth:
    """Where a worker process is to be: what the pool tells the task that holds it.

    ``address`` is where the pool listens, and ``token`` its secret; ``environment`` are variables that the process needs
    whatever its Dask worker has, and ``folder`` is where it works if not where that does; with ``shared`` other tasks of Dask
    may run in the slot at the same time.
    """

    number: int
    address: tuple[str, int]
    token: bytes
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What the task tells the pool of the process that it has started; paths are those of its machine."""

    number: int
    pid: int
    disk: str
    folder: str
    log: str
    host: str

    def encode(self) -> bytes:
        """Return it as it is sent."""
        body = json.dumps(asdict(self)).encode()
        return HELLO_LENGTH.pack(len(body)) + body


_held: Counter[bytes] = Counter()  # tokens of the pools whose workers are held here
_holding = threading.Lock()


def hold_worker(berth: Berth) -> dict[str, Any]:
    """Start a worker process here and wait until it or its pool ends; returns how it ended, and what it printed last.

    Raises:
        ConnectionError: the pool cannot be reached from here.
    """
    with _holding:
        _held[berth.token] += 1
    try:
        return _hold(berth)
    finally:
        with _holding:
            _held[berth.token] -= 1


async def wait_until_gone(timeout_s: float, token: bytes | None = None) -> bool:
    """Wait until this Dask worker holds no worker of a pool, or of any; false when that takes too long."""
    deadline = time.monotonic() + timeout_s
    while (held := _held[token] if token else _held.total()) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return not held


def _hold(berth: Berth) -> dict[str, Any]:
    from distributed import get_worker, secede

    dask_worker = get_worker()
    host = urlsplit(dask_worker.address).hostname or "127.0.0.1"
    if berth.shared:
        secede()
    try:
        connection = call(berth.address, berth.token, CONNECT_S)
    except OSError as error:
        where = ":".join(map(str, berth.address))
        raise ConnectionError(
            f"Dask worker {dask_worker.address} cannot connect to {where}, where the job was started: {error}"
        ) from None
    with connection, Scratch(dask_worker.local_directory) as scratch:
        connection.settimeout(None)
        folder, log = (os.path.join(scratch.folder, f"worker-{berth.number}{end}") for end in ("", ".log"))
        os.mkdir(folder, mode=0o700)
        leash, held = os.pipe()
        try:
            environment = {**worker_environment(), **_own_environment(), **berth.environment}
            process = spawn_worker(connection, log, environment, leash=leash, folder=berth.folder)
            try:
                hello = Hello(
                    number=berth.number, pid=process.pid, disk=scratch.folder, folder=folder, log=log, host=host
                )  # fmt: skip
                with suppress(OSError):
                    connection.sendall(hello.encode())
                    _wait(connection, process)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
        finally:
            os.close(leash)
            os.close(held)
        with open(log, "rb") as printed:
            size = os.path.getsize(log)
            printed.seek(max(0, size - _TAIL_BYTES))
            return {"code": code, "log_bytes": size, "printed": printed.read()}


def _own_environment() -> dict[str, str]:
    """Return the variables of this process without those that Dask sets for its own workers."""
    import dask

    own = dict(os.environ)
    for name, value in dask.config.get("distributed.nanny.pre-spawn-environ", {}).items():
        if own.get(name) == str(value):
            del own[name]
    return own


def _wait(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended, or the other side of its connection is gone; reads nothing."""
    ended = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        poll.register(ended, select.POLLIN)
        poll.poll()
    finally:
        os.close(ended)


def look_at(paths: Sequence[str]) -> list[tuple[int, int, int] | None]:
    """Return (inode, time of last change, size) of paths as this machine sees them, None for those that are not there."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            info = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((info.st_ino, info.st_mtime_ns, info.st_size))
    return found
