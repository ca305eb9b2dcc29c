"""The master: metadata transactions joined with the chunk servers' folders.

Readers and writers meet it here, and every method is one transaction or a few. It has no process of its
own: whoever uses the store acts for it. What needs a look at the chunks (repair, rebuilding locations) is
built on it: ``examine``, ``recovery``, ``upkeep``.
"""

import contextlib
import errno
import os
import random
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gfs_sim import chunks, layout, namespace
from gfs_sim.chunks import Chunk
from gfs_sim.database import create_database, open_database
from gfs_sim.errors import DamagedStore, NoSuchStore
from gfs_sim.processes import is_alive, this_process
from gfs_sim.server import BadReplica, Replica, read_sums, remove_replica, replica_path, scan_folder
from gfs_sim.values import Settings

STEP_GARBAGE = 64
"""Replica files removed between two looks at what there is to remove; a closing writer does no more."""
BURY_EVERY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class FileView:
    """A file's bytes as they were when it was opened."""

    path: str
    content: int
    size: int
    chunk_bytes: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a writer needs to know before the first byte."""

    path: str
    chunk_bytes: int
    replication: int


@dataclass(frozen=True, kw_only=True)
class SealedChunk:
    """A finished chunk, its sums written, waiting to be published."""

    handle: int
    length: int
    servers: tuple[str, ...]


class Master:
    """One store's metadata and folders, for one process; threads may share it."""

    def __init__(self, root: Path, *, durable: bool = False) -> None:
        self.root = root.absolute()
        self.folder = self.root / layout.SERVERS
        self.durable = durable
        self._random = random.Random()
        self._buried_at = 0.0
        try:
            self.database = open_database(self.root)
        except NoSuchStore:
            create_store(self.root, Settings(), servers=3, racks=())
            self.database = open_database(self.root)

    # Reading

    def view(self, path: str) -> FileView:
        """Return a file to read; FileNotFoundError or IsADirectoryError."""
        with self.database.read() as connection:
            node = namespace.get_file(connection, path)
            rows = connection.execute(
                "SELECT chunks.handle, version, length FROM contents JOIN chunks USING (handle)"
                " WHERE content = ? ORDER BY number",
                (node.content,),
            ).fetchall()
        assert node.content is not None
        assert node.chunk_bytes is not None
        return FileView(
            path=path,
            content=node.content,
            size=node.size,
            chunk_bytes=node.chunk_bytes,
            chunks=tuple(Chunk(*row) for row in rows),
        )

    def locate(self, handle: int) -> Chunk | None:
        """Return a chunk with its good servers, None if it is gone.

        A chunk without any location is looked for on every server: locations can be lost (GFS 2.6.2).
        """
        with self.database.read() as connection:
            chunk = chunks.locate(connection, handle)
            if chunk is None or chunk.servers:
                return chunk
            known = {
                s for (s,) in connection.execute("SELECT server FROM replicas WHERE handle = ?", (handle,))
            }
            names = [s for (s,) in connection.execute("SELECT name FROM servers WHERE state <> 'dead'")]
        found = [name for name in names if name not in known and self.adopt(handle, name) == "adopted"]
        return Chunk(handle, chunk.version, chunk.length, tuple(found))

    def adopt(self, handle: int, server: str) -> str:
        """List a replica found on a server if it is current; return adopted, stale, unknown or unpublished."""
        with self.database.write() as connection:
            row = connection.execute(
                "SELECT length, writer, lease FROM chunks WHERE handle = ?", (handle,)
            ).fetchone()
            if row is None:
                return "unknown"
            length, writer, lease = row
            if writer is not None and lease is None:
                return "unpublished"
            if not self.is_current(connection, handle, server):
                return "stale"
            chunks.set_replica(connection, handle, server, length)
            return "adopted"

    def is_current(self, connection: sqlite3.Connection, handle: int, server: str) -> bool:
        """Return whether a server has a replica of a published chunk at the chunk's version, or a later one.

        A later one is of an append that did not commit: its first bytes are right, and the next append takes
        the version over (GFS 4.5).
        """
        row = connection.execute(
            "SELECT version, length FROM chunks WHERE handle = ? AND (writer IS NULL OR lease IS NOT NULL)",
            (handle,),
        ).fetchone()
        if row is None:
            return False
        try:
            sums = read_sums(self.folder, server, handle)
        except (BadReplica, NotADirectoryError):
            return False
        there = os.path.exists(replica_path(self.folder, server, handle))
        return there and sums.version >= row[0] and sums.length >= row[1]

    def open_replica(self, server: str, chunk: Chunk) -> Replica:
        """Open a replica that is at least as new and as long as the chunk; BadReplica otherwise."""
        return Replica(self.folder, server, chunk.handle, version=chunk.version, length=chunk.length)

    def report(self, handle: int, server: str, bad: BadReplica) -> None:
        """Take a reader's report of a bad replica; a server that is not there at all keeps its replicas."""
        # A reader that has another replica is served even where the report cannot be written down.
        with contextlib.suppress(OSError), self.database.write() as connection:
            if (self.folder / server).is_dir():
                chunks.mark_bad(connection, handle, server, bad.kind, bad.detail, time.time())
            elif chunks.locate(connection, handle) is not None:
                chunks.record_event(
                    connection, time.time(), "unreachable", server, handle, "its folder is not there"
                )

    def note(self, kind: str, server: str | None, handle: int | None, detail: str) -> None:
        """Add a line to the event log, if that can be written."""
        with contextlib.suppress(OSError), self.database.write() as connection:
            chunks.record_event(connection, time.time(), kind, server, handle, detail)

    # Writing

    def target(self, path: str, *, replication: int | None, exclusive: bool) -> Target:
        """Return what a new file at ``path`` will be like; raises what publishing it would raise now."""
        with self.database.read() as connection:
            namespace.check_writable(path)
            node = namespace.find(connection, path)
            if node is not None and exclusive:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if node is not None and node.is_dir:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if node is None:
                namespace.check_folder_path(connection, layout.parent_of(path))
            settings = chunks.settings(connection)
            goal = replication or namespace.replication_for(connection, path, settings.replication)
        return Target(path=path, chunk_bytes=settings.chunk_bytes, replication=goal)

    def free_bytes(self) -> dict[str, int]:
        """Return the free bytes of each server's disk, for the servers whose folder is there."""
        free = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.folder):
                if not entry.name.endswith(layout.KILLED_SUFFIX):
                    with contextlib.suppress(OSError):
                        disk = os.statvfs(entry.path)
                        free[entry.name] = disk.f_bavail * disk.f_frsize
        return free

    def new_chunk(self, target: Target, finished: SealedChunk | None = None) -> Chunk:
        """Allocate an unpublished chunk for this process; NoServer if no server can take it.

        ``finished`` is the chunk before it in the file: it counts as used on its servers from now on, so that
        a large file does not pass a server's capacity before it is published.
        """
        free = self.free_bytes()
        with self.database.write() as connection:
            if finished is not None:
                chunks.count_unpublished(connection, finished.handle, finished.length)
            return chunks.allocate(
                connection,
                replication=target.replication,
                chunk_bytes=target.chunk_bytes,
                free_bytes=free,
                writer=this_process(),
                now=time.time(),
                random=self._random,
            )

    def publish(self, target: Target, sealed: Sequence[SealedChunk], *, exclusive: bool) -> None:
        """Let a file appear whole, made of these chunks; on any exception nothing has changed."""
        now = time.time()
        with self.database.write(durable=self.durable) as connection:
            live = connection.execute("SELECT COUNT(*) FROM servers WHERE state = 'live'").fetchone()[0]
            wanted = min(target.replication, live)
            for chunk in sealed:
                chunks.seal(connection, chunk.handle, this_process(), chunk.length, chunk.servers, wanted)
            namespace.publish(
                connection,
                target.path,
                [chunk.handle for chunk in sealed],
                size=sum(chunk.length for chunk in sealed),
                chunk_bytes=target.chunk_bytes,
                replication=target.replication,
                exclusive=exclusive,
                now=now,
                retire_due=now + chunks.settings(connection).reader_grace_s,
            )

    def abandon(self, mine: Iterable[Chunk]) -> None:
        """Drop unpublished chunks of this process and remove their files at once.

        The files first, since on a full disk the metadata needs their room; but not before a look whether the
        chunks are published after all: an interrupt can come between the commit and the news of it.
        """
        with self.database.read() as connection:
            unpublished = [
                chunk
                for chunk in mine
                if not connection.execute(
                    "SELECT 1 FROM contents WHERE handle = ?", (chunk.handle,)
                ).fetchone()
            ]
        for chunk in unpublished:
            for server in chunk.servers:
                remove_replica(self.folder, server, chunk.handle)
        with self.database.write() as connection:
            chunks.drop_chunks(connection, [chunk.handle for chunk in unpublished])
            connection.executemany(
                "DELETE FROM garbage WHERE handle = ?", ((chunk.handle,) for chunk in unpublished)
            )

    # Upkeep

    def collect(self, rows: Sequence[tuple[int, str]]) -> tuple[int, int]:
        """Remove the files of garbage replicas; return how many files and bytes that freed.

        A chunk that is gone never comes back, so its files can go outside a transaction. A bad or surplus
        replica of a living chunk might be cloned anew at the same place, so that is excluded by the write lock.
        """
        count = size = 0
        if not rows:
            return count, size
        with self.database.read() as connection:
            living = {
                h
                for h, _ in rows
                if connection.execute("SELECT 1 FROM chunks WHERE handle = ?", (h,)).fetchone()
            }
        for handle, server in rows:
            if handle not in living:
                removed = remove_replica(self.folder, server, handle)
                count, size = count + removed[0], size + removed[1]
        with self.database.write() as connection:
            for handle, server in rows:
                if handle in living:
                    held = connection.execute(
                        "SELECT 1 FROM replicas WHERE handle = ? AND server = ?", (handle, server)
                    ).fetchone()
                    if not held:
                        removed = remove_replica(self.folder, server, handle)
                        count, size = count + removed[0], size + removed[1]
                connection.execute("DELETE FROM garbage WHERE handle = ? AND server = ?", (handle, server))
        return count, size

    def collect_some(self) -> tuple[int, int]:
        """Remove the files of a few garbage replicas; return how many files and bytes that freed."""
        with self.database.read() as connection:
            rows = connection.execute(
                "SELECT handle, server FROM garbage LIMIT ?", (STEP_GARBAGE,)
            ).fetchall()
        return self.collect(rows)

    def collect_all(self) -> tuple[int, int]:
        """Remove the files of all garbage replicas; return how many files and bytes that freed."""
        count = size = 0
        while True:
            with self.database.read() as connection:
                if not connection.execute("SELECT EXISTS (SELECT 1 FROM garbage)").fetchone()[0]:
                    return count, size
            removed = self.collect_some()
            count, size = count + removed[0], size + removed[1]

    def bury_dead_writers(self, *, at_once: bool = False) -> int:
        """Drop what writers left that died; return the chunks dropped. Looks again after a few seconds only."""
        now = time.monotonic()
        if not at_once and now - self._buried_at < BURY_EVERY_S:
            return 0
        self._buried_at = now
        with self.database.read() as connection:
            writers = chunks.writers(connection)
        gone = {writer: alive for writer in writers if not (alive := is_alive(writer))}
        if not gone:
            return 0
        with self.database.write() as connection:
            return sum(
                chunks.bury_writer(connection, writer, before=None if alive is False else time.time())
                for writer, alive in gone.items()
            )


def create_store(root: Path, settings: Settings, *, servers: int, racks: Sequence[str]) -> bool:
    """Make the folders and metadata of a new store; return False if another process was first.

    Raises:
        DamagedStore: chunks are there without metadata; a new store would take them for garbage.
    """
    with contextlib.suppress(FileNotFoundError):
        for server in os.listdir(root / layout.SERVERS):
            if next(scan_folder(root / layout.SERVERS, server), None) is not None:
                if (root / layout.DATABASE).exists():
                    return False
                raise DamagedStore(
                    f"{root}: holds chunks, but {layout.DATABASE}, which knows the files they belong to, is"
                    " missing; bring it back from a copy, or remove the folder to begin anew"
                )
    names = [f"s{number}" for number in range(1, servers + 1)]
    (root / layout.SERVERS).mkdir(parents=True, exist_ok=True)
    for name in names:
        (root / layout.SERVERS / name).mkdir(exist_ok=True)
    values = {
        "chunk_bytes": float(settings.chunk_bytes),
        "replication": float(settings.replication),
        "gc_after_s": settings.gc_after_s,
        "reader_grace_s": settings.reader_grace_s,
        "lease_s": settings.lease_s,
    }
    placed = [(name, racks[number % len(racks)] if racks else "rack1") for number, name in enumerate(names)]
    return create_database(root, values, placed)
