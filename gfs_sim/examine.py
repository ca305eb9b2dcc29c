"""Look at chunks and their replicas on disk; what is found goes to ``health`` (a report) and ``recovery`` (a plan)."""

import contextlib
import sqlite3
from dataclasses import dataclass

from gfs_sim import layout
from gfs_sim.chunks import Chunk
from gfs_sim.master import Master
from gfs_sim.plans import ChunkState, Condition, ReplicaState
from gfs_sim.server import BadReplica


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A chunk with the state of its replicas, and why a bad one is bad, by server."""

    chunk: Chunk
    state: ChunkState
    details: dict[str, str]


def examine(
    master: Master, *, path: str = "/", handles: list[int] | None = None, verify: bool = False
) -> list[Examined]:
    """Return every chunk of the files at or below ``path`` (or just ``handles``), deleted files' last.

    ``verify`` reads all replicas against their checksums; without it, only those known to be bad. Chunks of
    no bytes, which an appender may have left, have nothing to look at.
    """
    with master.database.read() as connection:
        rows = _rows(connection, path, handles)
        replicas: dict[int, list[tuple[str, bool]]] = {}
        if handles is None:
            found = connection.execute("SELECT handle, server, bad FROM replicas ORDER BY server")
        else:
            marks = ",".join("?" * len(handles))
            found = connection.execute(
                f"SELECT handle, server, bad FROM replicas WHERE handle IN ({marks}) ORDER BY server", handles
            )
        for handle, server, bad in found:
            replicas.setdefault(handle, []).append((server, bool(bad)))
        draining = {s for (s,) in connection.execute("SELECT name FROM servers WHERE state = 'draining'")}
        names = [s for (s,) in connection.execute("SELECT name FROM servers")]
    reachable = {name for name in names if (master.folder / name).is_dir()}
    examined = []
    for handle, version, length, goal, live in rows:
        chunk = Chunk(handle, version, length, tuple(server for server, _ in replicas.get(handle, [])))
        states, details = [], {}
        for server, bad in replicas.get(handle, []):
            condition, detail = (
                _condition(master, chunk, server, verify or bad)
                if server in reachable
                else ("unreachable", f"folder {layout.SERVERS}/{server} is not there")
            )
            if detail:
                details[server] = detail
            states.append(ReplicaState(server=server, condition=condition, draining=server in draining))
        state = ChunkState(handle=handle, length=length, goal=goal, replicas=tuple(states), deleted=not live)
        examined.append(Examined(chunk=chunk, state=state, details=details))
    return examined


def _rows(
    connection: sqlite3.Connection, path: str, handles: list[int] | None
) -> list[tuple[int, int, int, int, int]]:
    query = (
        "SELECT chunks.handle, version, length, MAX(nodes.replication),"
        " MAX(nodes.path < ? OR nodes.path >= ?) AS live"
        " FROM chunks JOIN contents USING (handle) JOIN nodes USING (content)"
        " WHERE length > 0 AND {} GROUP BY chunks.handle ORDER BY live DESC, chunks.handle"
    )
    hidden = layout.below(layout.HIDDEN)
    if handles is not None:
        marks = ",".join("?" * len(handles))
        return connection.execute(query.format(f"chunks.handle IN ({marks})"), (*hidden, *handles)).fetchall()
    if path == "/":
        return connection.execute(query.format("1"), hidden).fetchall()
    where = "(nodes.path = ? OR nodes.path > ? AND nodes.path < ?)"
    return connection.execute(query.format(where), (*hidden, path, *layout.below(path))).fetchall()


def _condition(master: Master, chunk: Chunk, server: str, verify: bool) -> tuple[Condition, str]:
    try:
        with contextlib.closing(master.open_replica(server, chunk)) as replica:
            replica.check_size()
            if verify:
                replica.verify()
    except BadReplica as bad:
        kind: Condition = (
            "missing" if bad.kind == "missing" else "stale" if bad.kind == "stale" else "corrupt"
        )
        return kind, bad.detail
    return "good", ""
