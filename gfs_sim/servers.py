"""Chunk servers come and go: add, drain, kill, revive, and what each of them holds."""

import contextlib
import errno
import os
import shutil
import time
from dataclasses import replace

from gfs_sim import chunks, layout, recovery
from gfs_sim.errors import BadSetting, NoServer
from gfs_sim.master import Master
from gfs_sim.server import remove_replica, scan_folder
from gfs_sim.values import RepairReport, ServerStatus

DRAIN_PAUSE_S = 0.02
DRAIN_IDLE_ROUNDS = 25
"""A chunk that is being appended to is not touched; its appender's lease is over in moments."""
_NAMED = (
    "FROM replicas JOIN contents USING (handle) JOIN nodes USING (content) JOIN chunks USING (handle)"
    " WHERE server = ? AND length > 0"
)


def statuses(master: Master) -> list[ServerStatus]:
    """Return the chunk servers by name."""
    free = master.free_bytes()
    with master.database.read() as connection:
        rows = connection.execute(
            "SELECT name, rack, state, used_bytes, capacity_bytes,"
            " (SELECT COUNT(*) FROM replicas WHERE server = name) FROM servers ORDER BY name"
        ).fetchall()
    found = []
    for name, rack, state, used, capacity, count in rows:
        reachable = name in free
        total = capacity
        if total is None:
            total = 0
            with contextlib.suppress(OSError):
                disk = os.statvfs(master.folder / name)
                total = disk.f_blocks * disk.f_frsize
        left = free.get(name, 0) if capacity is None else max(0, min(free.get(name, 0), capacity - used))
        found.append(
            ServerStatus(
                name=name,
                rack=rack,
                state=state,
                reachable=reachable,
                chunks=count,
                used_bytes=used,
                free_bytes=left,
                capacity_bytes=total,
            )
        )
    return found


def add(master: Master, name: str | None, *, rack: str | None, capacity_bytes: int | None) -> str:
    """Add a chunk server and return its name. See ``Store.add_server``."""
    if capacity_bytes is not None and capacity_bytes < 1:
        raise BadSetting(f"capacity_bytes must be >= 1, got {capacity_bytes}")
    with master.database.write() as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM servers")}
        if name is None:
            name = next(f"s{n}" for n in range(1, len(names) + 2) if f"s{n}" not in names)
        layout.check_server_name(name)
        if name in names:
            raise FileExistsError(
                errno.EEXIST, "there is a server of that name (revive it if it is dead)", name
            )
        (master.folder / name).mkdir(exist_ok=True)
        connection.execute(
            "INSERT INTO servers (name, rack, state, capacity_bytes) VALUES (?, ?, 'live', ?)",
            (name, rack or "rack1", capacity_bytes),
        )
        chunks.record_event(connection, time.time(), "server added", name, None, rack or "rack1")
    return name


def kill(master: Master, name: str) -> int:
    """Have a server fail at once; return the replicas lost. See ``Store.kill_server``."""
    with master.database.write() as connection:
        if chunks.server_state(connection, name) == "dead":
            return 0
        # The folder first: until the rows have gone too, the server is one that does not answer.
        with contextlib.suppress(FileNotFoundError):
            os.rename(master.folder / name, master.folder / f"{name}{layout.KILLED_SUFFIX}")
        rows = connection.execute(
            "DELETE FROM replicas WHERE server = ? RETURNING handle", (name,)
        ).fetchall()
        connection.execute("DELETE FROM garbage WHERE server = ?", (name,))
        connection.execute("UPDATE servers SET state = 'dead', used_bytes = 0 WHERE name = ?", (name,))
        chunks.ask_repair(connection, [handle for (handle,) in rows])
        chunks.record_event(connection, time.time(), "server killed", name, None, f"{len(rows)} replicas")
    return len(rows)


def revive(master: Master, name: str) -> int:
    """Bring a server back; return its current replicas. See ``Store.revive_server``."""
    with master.database.write() as connection:
        chunks.server_state(connection, name)
        killed = master.folder / f"{name}{layout.KILLED_SUFFIX}"
        if killed.is_dir() and not (master.folder / name).exists():
            os.rename(killed, master.folder / name)
        if not (master.folder / name).is_dir():
            raise FileNotFoundError(
                errno.ENOENT, "the server's folder is not there", str(master.folder / name)
            )
        connection.execute("UPDATE servers SET state = 'live' WHERE name = ?", (name,))
        chunks.record_event(connection, time.time(), "server revived", name, None, "")
    adopted = 0
    refused = []
    for handle in scan_folder(master.folder, name):
        verdict = master.adopt(handle, name)
        adopted += verdict == "adopted"
        if verdict in ("stale", "unknown"):
            refused.append((handle, name))
    with master.database.write() as connection:
        for handle, _ in refused:
            chunks.forget_replica(connection, handle, name)
        if refused:
            detail = f"{len(refused)} stale or unknown replicas"
            chunks.record_event(connection, time.time(), "replicas refused", name, None, detail)
        # Chunks cloned elsewhere meanwhile may now have one replica too many.
        held = connection.execute("SELECT handle FROM replicas WHERE server = ?", (name,)).fetchall()
        chunks.ask_repair(connection, [handle for (handle,) in held])
    master.collect(refused)
    return adopted


def drain(master: Master, name: str) -> RepairReport:
    """Empty a server and remove it. See ``Store.drain_server``."""
    with master.database.write() as connection:
        if chunks.server_state(connection, name) == "dead":
            raise NoServer(f"server {name!r} is dead; revive it first, so that it can be drained")
        others = connection.execute(
            "SELECT COUNT(*) FROM servers WHERE state = 'live' AND name <> ?", (name,)
        ).fetchone()[0]
        if not others:
            raise NoServer(
                f"server {name!r} cannot be drained: no other live server is there to take its chunks; add one"
                " first (mr fs server add)"
            )
        connection.execute("UPDATE servers SET state = 'draining' WHERE name = ?", (name,))
        handles = [h for (h,) in connection.execute("SELECT handle FROM replicas WHERE server = ?", (name,))]
    report = RepairReport()
    idle_rounds = 0
    while idle_rounds < DRAIN_IDLE_ROUNDS:
        done = recovery.repair(master, handles=handles)
        report = recovery.add(report, done)
        handles = _held(master, name)
        if not handles:
            break
        idle_rounds = 0 if done.cloned or done.removed else idle_rounds + 1
        time.sleep(DRAIN_PAUSE_S)
    with master.database.write() as connection:
        named = connection.execute(f"SELECT COUNT(DISTINCT handle) {_NAMED}", (name,)).fetchone()[0]
        unpublished = connection.execute(
            "SELECT COUNT(*) FROM replicas JOIN chunks USING (handle) WHERE server = ? AND writer IS NOT NULL",
            (name,),
        ).fetchone()[0]
        if named and not report.lost_chunks:
            raise NoServer(
                f"server {name!r} still holds {named} chunks: the other servers have no room for them, or they are"
                " being appended to; it stays, draining, and can be drained again"
            )
        if named or unpublished:
            return replace(report, waiting=named + unpublished)
        # What is left are bytes that were replaced and may still be read for a while, and empty chunks.
        connection.execute("DELETE FROM replicas WHERE server = ?", (name,))
        connection.execute("DELETE FROM garbage WHERE server = ?", (name,))
        connection.execute("DELETE FROM servers WHERE name = ?", (name,))
        chunks.record_event(
            connection, time.time(), "server drained", name, None, f"{report.cloned} chunks cloned"
        )
    for handle in scan_folder(master.folder, name):
        remove_replica(master.folder, name, handle)
    shutil.rmtree(master.folder / name, ignore_errors=True)
    return replace(report, waiting=0)


def _held(master: Master, name: str) -> list[int]:
    with master.database.read() as connection:
        return [h for (h,) in connection.execute(f"SELECT DISTINCT handle {_NAMED}", (name,))]
