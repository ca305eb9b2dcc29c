"""Chunks, replicas and servers in the metadata, inside a transaction its caller has begun.

A handle is never used twice, and its row exists before any file of it: a replica whose handle is
unknown is garbage, whatever happened. Files are removed by ``garbage`` rows after the transaction.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from gfs_sim.errors import LeaseLost, NoServer, NoSuchServer
from gfs_sim.placement import Candidate, choose
from gfs_sim.values import Settings

RECENT_HALF_LIFE_S = 60.0
EVENTS_KEPT = 10_000
WRITE_S = 86400.0
"""How long a chunk may take to be published by a writer of which nobody can tell whether it lives."""


@dataclass(frozen=True)
class Chunk:
    """A chunk as the master knows it; ``servers`` hold a replica not known to be bad."""

    handle: int
    version: int
    length: int
    servers: tuple[str, ...] = ()


def settings(connection: sqlite3.Connection) -> Settings:
    """Return the store's settings."""
    rows = dict(connection.execute("SELECT name, value FROM settings"))
    return Settings(
        chunk_bytes=int(rows["chunk_bytes"]),
        replication=int(rows["replication"]),
        gc_after_s=rows["gc_after_s"],
        reader_grace_s=rows["reader_grace_s"],
        lease_s=rows["lease_s"],
    )


def record_event(
    connection: sqlite3.Connection, now: float, kind: str, server: str | None, handle: int | None, detail: str
) -> None:
    """Add a line to the event log, which keeps its newest lines."""
    number = connection.execute(
        "INSERT INTO events (time, kind, server, handle, detail) VALUES (?, ?, ?, ?, ?)",
        (now, kind, server, handle, detail),
    ).lastrowid
    if number and number % 1000 == 0:
        connection.execute("DELETE FROM events WHERE id <= ?", (number - EVENTS_KEPT,))


def server_state(connection: sqlite3.Connection, name: str) -> str:
    """Return a server's state; NoSuchServer if there is none of that name."""
    row = connection.execute("SELECT state FROM servers WHERE name = ?", (name,)).fetchone()
    if row is None:
        names = ", ".join(row[0] for row in connection.execute("SELECT name FROM servers ORDER BY name"))
        raise NoSuchServer(f"no server {name!r}; this store has {names}")
    return str(row[0])


def candidates(connection: sqlite3.Connection, free_bytes: Mapping[str, int], now: float) -> list[Candidate]:
    """Return the live servers whose disk's free bytes are given (a server without is not reachable)."""
    found = []
    rows = connection.execute(
        "SELECT name, rack, used_bytes, capacity_bytes, recent, recent_at FROM servers WHERE state = 'live'"
        " ORDER BY name"
    )
    for name, rack, used, capacity, recent, recent_at in rows:
        if name not in free_bytes:
            continue
        free = free_bytes[name] if capacity is None else min(free_bytes[name], capacity - used)
        decayed = recent * 0.5 ** (max(0.0, now - recent_at) / RECENT_HALF_LIFE_S)
        found.append(Candidate(name=name, rack=rack, used_bytes=used, free_bytes=free, recent=decayed))
    return found


def allocate(
    connection: sqlite3.Connection,
    *,
    replication: int,
    chunk_bytes: int,
    free_bytes: Mapping[str, int],
    writer: str,
    now: float,
    random: Random,
) -> Chunk:
    """Create an unpublished chunk for ``writer`` and choose its servers; NoServer if none has room.

    Room is asked for a block, not for a whole chunk, which most files never fill; a full disk shows itself.
    """
    live = candidates(connection, free_bytes, now)
    servers = choose(live, replication, min(chunk_bytes, 1 << 16), random)
    if not servers:
        raise NoServer("no live chunk server has room; add one, revive one, or free space (see `mr fs df`)")
    handle = connection.execute(
        "INSERT INTO chunks (version, length, writer, lease_until) VALUES (1, 0, ?, ?)",
        (writer, now + WRITE_S),
    ).lastrowid
    assert handle is not None
    recent = {candidate.name: candidate.recent for candidate in live}
    for server in servers:
        connection.execute("INSERT INTO replicas (handle, server, bytes) VALUES (?, ?, 0)", (handle, server))
        connection.execute(
            "UPDATE servers SET recent = ?, recent_at = ? WHERE name = ?", (recent[server] + 1, now, server)
        )
    return Chunk(handle, 1, 0, tuple(servers))


def locate(connection: sqlite3.Connection, handle: int) -> Chunk | None:
    """Return a chunk with its good servers, None if it is gone."""
    row = connection.execute(
        "SELECT handle, version, length FROM chunks WHERE handle = ?", (handle,)
    ).fetchone()
    if row is None:
        return None
    servers = connection.execute(
        "SELECT server FROM replicas WHERE handle = ? AND NOT bad ORDER BY server", (handle,)
    )
    return Chunk(row[0], row[1], row[2], tuple(name for (name,) in servers))


def set_replica(connection: sqlite3.Connection, handle: int, server: str, size: int) -> None:
    """Record a good replica of ``size`` bytes on a server (also over a bad or shorter one)."""
    old = connection.execute(
        "SELECT bytes FROM replicas WHERE handle = ? AND server = ?", (handle, server)
    ).fetchone()
    connection.execute("INSERT OR REPLACE INTO replicas VALUES (?, ?, ?, 0)", (handle, server, size))
    connection.execute("DELETE FROM garbage WHERE handle = ? AND server = ?", (handle, server))
    connection.execute(
        "UPDATE servers SET used_bytes = used_bytes + ? WHERE name = ?",
        (size - (old[0] if old else 0), server),
    )


def count_unpublished(connection: sqlite3.Connection, handle: int, size: int) -> None:
    """Count a finished chunk of an unpublished file as used, on those of its servers that are still there."""
    servers = connection.execute(
        "SELECT server FROM replicas WHERE handle = ? AND NOT bad", (handle,)
    ).fetchall()
    for (server,) in servers:
        set_replica(connection, handle, server, size)


def forget_replica(connection: sqlite3.Connection, handle: int, server: str, *, garbage: bool = True) -> None:
    """Forget a replica; ``garbage`` has its files removed after the transaction."""
    row = connection.execute(
        "DELETE FROM replicas WHERE handle = ? AND server = ? RETURNING bytes", (handle, server)
    ).fetchall()
    if row:
        connection.execute(
            "UPDATE servers SET used_bytes = used_bytes - ? WHERE name = ?", (row[0][0], server)
        )
    if garbage:
        connection.execute("INSERT OR IGNORE INTO garbage VALUES (?, ?)", (handle, server))


def mark_bad(
    connection: sqlite3.Connection, handle: int, server: str, kind: str, detail: str, now: float
) -> None:
    """Take a reader's report: the replica serves nobody until repair has looked at it (GFS 5.2)."""
    changed = connection.execute(
        "UPDATE replicas SET bad = 1 WHERE handle = ? AND server = ? AND NOT bad", (handle, server)
    ).rowcount
    if changed:
        record_event(connection, now, kind, server, handle, detail)
        ask_repair(connection, [handle])


def ask_repair(connection: sqlite3.Connection, handles: Iterable[int]) -> None:
    """Have these chunks looked at by the next repair or closing writer."""
    connection.executemany("INSERT OR REPLACE INTO repairs VALUES (?, 0)", ((handle,) for handle in handles))


def seal(
    connection: sqlite3.Connection, handle: int, writer: str, length: int, servers: Sequence[str], wanted: int
) -> None:
    """Fix a new chunk's length and replicas as it is published; LeaseLost if the chunk is gone.

    A server killed meanwhile has lost its row in ``replicas`` and does not count, nor does a replica that
    was found to be bad.
    """
    row = connection.execute(
        "UPDATE chunks SET length = ?, writer = NULL, lease_until = NULL WHERE handle = ? AND writer = ? RETURNING handle",
        (length, handle, writer),
    ).fetchall()
    held = dict(connection.execute("SELECT server, bad FROM replicas WHERE handle = ?", (handle,)).fetchall())
    kept = [server for server in servers if held.get(server) == 0]
    if not row or not kept:
        raise LeaseLost(
            f"chunk {handle:016x} of the unpublished file is gone (its servers failed, or the store took its"
            " writer for dead); nothing was published, write the file again"
        )
    for server in kept:
        set_replica(connection, handle, server, length)
    for server in set(held).difference(kept):
        forget_replica(connection, handle, server)
    if len(kept) < wanted:
        ask_repair(connection, [handle])


def drop_chunks(connection: sqlite3.Connection, handles: Iterable[int]) -> int:
    """Forget chunks that no content names; their files become garbage. Return how many there were."""
    dropped = 0
    for handle in handles:
        if connection.execute("SELECT 1 FROM contents WHERE handle = ?", (handle,)).fetchone():
            continue
        dropped += connection.execute("DELETE FROM chunks WHERE handle = ?", (handle,)).rowcount
        connection.execute("DELETE FROM repairs WHERE handle = ?", (handle,))
        servers = connection.execute("SELECT server FROM replicas WHERE handle = ?", (handle,)).fetchall()
        for (server,) in servers:
            forget_replica(connection, handle, server)
    return dropped


def reap(connection: sqlite3.Connection, now: float, limit: int) -> int:
    """Free retired contents whose time has come, at most ``limit`` of them; return the chunks dropped."""
    dropped = 0
    due = connection.execute(
        "SELECT content FROM retired WHERE due <= ? ORDER BY due LIMIT ?", (now, limit)
    ).fetchall()
    for (content,) in due:
        handles = connection.execute(
            "DELETE FROM contents WHERE content = ? RETURNING handle", (content,)
        ).fetchall()
        connection.execute("DELETE FROM retired WHERE content = ?", (content,))
        dropped += drop_chunks(connection, (handle for (handle,) in handles))
    return dropped


def writers(connection: sqlite3.Connection) -> list[str]:
    """Return every process that has chunks open or leased."""
    return [
        row[0] for row in connection.execute("SELECT DISTINCT writer FROM chunks WHERE writer IS NOT NULL")
    ]


def bury_writer(connection: sqlite3.Connection, writer: str, *, before: float | None) -> int:
    """Drop a dead writer's unpublished chunks and its leases (those that ended ``before``); return the chunks dropped."""
    which = "writer = ? AND (? IS NULL OR lease_until < ?)"
    values = (writer, before, before)
    unpublished = connection.execute(
        f"SELECT handle FROM chunks WHERE {which} AND NOT EXISTS"
        " (SELECT 1 FROM contents WHERE contents.handle = chunks.handle)",
        values,
    ).fetchall()
    dropped = drop_chunks(connection, (handle for (handle,) in unpublished))
    connection.execute(
        f"UPDATE chunks SET writer = NULL, lease = NULL, lease_until = NULL WHERE {which}", values
    )
    return dropped
