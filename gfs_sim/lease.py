"""Leases: the right of one appender at a time to extend a file's last chunk (GFS 3.1).

A lease is a row's token and its end. Whoever wants to commit under one must find its token still there:
a snapshot revokes leases, and a lease that ran out can be taken over.
"""

import random
import sqlite3
import time
import uuid
from dataclasses import dataclass, replace

from gfs_sim import chunks, namespace
from gfs_sim.chunks import Chunk
from gfs_sim.master import Master, Target
from gfs_sim.processes import is_alive, this_process


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to extend a file's last chunk. ``written`` is the chunk written to: a copy if others share it."""

    token: str
    content: int
    chunk: Chunk
    written: Chunk
    target: Target
    size: int
    until: float
    lease_s: float


def take_lease(master: Master, path: str, *, wait_s: float | None = None) -> Lease:
    """Lease the last chunk of a file, adding an empty one where it is full; wait for another appender.

    A lease ends when its holder releases it, dies, or lets it expire and as long again passes.

    Raises:
        FileNotFoundError, IsADirectoryError: no such file.
        TimeoutError: another process held the lease all the time.
    """
    give_up = None
    while True:
        free = master.free_bytes()
        now = time.time()
        with master.database.write() as connection:
            lease = _try_lease(connection, path, free, now)
            if give_up is None:
                lease_s = chunks.settings(connection).lease_s
                give_up = now + (wait_s if wait_s is not None else 3 * lease_s)
        if lease is not None:
            return lease
        if now > give_up:
            raise TimeoutError(f"{path}: another process has been appending all the time; try again")
        time.sleep(random.uniform(0.001, 0.02))


def _try_lease(connection: sqlite3.Connection, path: str, free: dict[str, int], now: float) -> Lease | None:
    node = namespace.get_file(connection, path)
    assert node.content is not None
    assert node.chunk_bytes is not None
    settings = chunks.settings(connection)
    target = Target(
        path=path, chunk_bytes=node.chunk_bytes, replication=node.replication or settings.replication
    )

    def new_chunk() -> Chunk:
        return chunks.allocate(
            connection,
            replication=target.replication,
            chunk_bytes=target.chunk_bytes,
            free_bytes=free,
            writer=this_process(),
            now=now,
            random=random.Random(),
        )

    handles = namespace.handles_of(connection, node.content)
    last = None
    if handles:
        holder, until = connection.execute(
            "SELECT writer, lease_until FROM chunks WHERE handle = ?", (handles[-1],)
        ).fetchone()
        if holder is not None and until + settings.lease_s > now and is_alive(holder) is not False:
            return None
        last = chunks.locate(connection, handles[-1])
    if last is not None and last.length == 0:
        # Left by an appender that died before its first commit; its files may be anything.
        connection.execute(
            "DELETE FROM contents WHERE content = ? AND handle = ?", (node.content, last.handle)
        )
        chunks.drop_chunks(connection, [last.handle])
        handles.pop()
        last = None
    if last is not None:
        # A server being drained is left behind by the appenders of chunks that others have too.
        draining = {s for (s,) in connection.execute("SELECT name FROM servers WHERE state = 'draining'")}
        staying = tuple(server for server in last.servers if server not in draining)
        last = replace(last, servers=staying or last.servers)
    if last is None or last.length >= target.chunk_bytes:
        last = new_chunk()
        connection.execute("INSERT INTO contents VALUES (?, ?, ?)", (node.content, len(handles), last.handle))
    shared = (
        connection.execute("SELECT COUNT(*) FROM contents WHERE handle = ?", (last.handle,)).fetchone()[0] > 1
    )
    token = uuid.uuid4().hex
    until = now + settings.lease_s
    connection.execute(
        "UPDATE chunks SET writer = ?, lease = ?, lease_until = ? WHERE handle = ?",
        (this_process(), token, until, last.handle),
    )
    written = last
    if shared:
        # The copy is made on the same servers (GFS 3.4).
        handle = connection.execute(
            "INSERT INTO chunks (version, length, writer, lease_until) VALUES (1, 0, ?, ?)",
            (this_process(), now + chunks.WRITE_S),
        ).lastrowid
        assert handle is not None
        for server in last.servers:
            connection.execute(
                "INSERT INTO replicas (handle, server, bytes) VALUES (?, ?, 0)", (handle, server)
            )
        written = Chunk(handle, 1, last.length, last.servers)
    return Lease(
        token=token,
        content=node.content,
        chunk=last,
        written=written,
        target=target,
        size=node.size,
        until=until,
        lease_s=settings.lease_s,
    )
