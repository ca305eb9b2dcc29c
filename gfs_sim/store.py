"""The store as its owner sees it: settings, servers, snapshots, records, repair.

``GFSFileSystem`` reads and writes files; a ``Store`` does what fsspec has no name for. Both may be
used by many processes and threads at once. Paths are as typed by a user: ``/a/b``, ``a//b/`` and
``gfs://a/b`` name the same file.
"""

import contextlib
import io
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path

from gfs_sim import chunks, layout, namespace, recovery, servers, trash
from gfs_sim.append import Tail
from gfs_sim.errors import BadSetting, LeaseLost, RecordTooLarge
from gfs_sim.health import check
from gfs_sim.layout import default_root
from gfs_sim.lease import take_lease
from gfs_sim.master import create_store
from gfs_sim.reader import ChunkReader
from gfs_sim.records import HEADER, frame, read_frames
from gfs_sim.upkeep import open_master, step
from gfs_sim.values import (
    ChunkPlace,
    CollectReport,
    DeletedFile,
    Event,
    FileStatus,
    Health,
    RepairReport,
    ServerStatus,
    Settings,
)

__all__ = ["Store", "default_root"]

MIN_CHUNK_BYTES = 1024
MAX_SERVERS = 1000


def _check_settings(settings: Settings) -> Settings:
    if settings.chunk_bytes < MIN_CHUNK_BYTES:
        raise BadSetting(f"chunk_bytes must be >= {MIN_CHUNK_BYTES}, got {settings.chunk_bytes}")
    if settings.replication < 1:
        raise BadSetting(f"replication must be >= 1, got {settings.replication}")
    for name in ("gc_after_s", "reader_grace_s", "lease_s"):
        if not getattr(settings, name) >= 0:
            raise BadSetting(f"{name} must be >= 0 seconds, got {getattr(settings, name)}")
    return settings


class Store:
    """One store: a root folder with a master's metadata and a folder per chunk server."""

    def __init__(self, root: str | PathLike[str] | None = None, *, durable: bool = False) -> None:
        """Open the store at ``root`` (default: ``default_root()``), creating it with default settings if absent."""
        folder = Path(root).expanduser() if root is not None else default_root()
        self.master = open_master(folder, durable=durable)

    @classmethod
    def create(
        cls,
        root: str | PathLike[str] | None = None,
        *,
        servers: int = 3,
        racks: Sequence[str] = (),
        replication: int | None = None,
        chunk_bytes: int = 64 << 20,
        gc_after_s: float = 3 * 86400.0,
        reader_grace_s: float = 60.0,
    ) -> "Store":
        """Create a store; ``racks`` are dealt to the servers in turn; replication defaults to min(3, servers).

        Raises:
            FileExistsError: there is a store already.
            BadSetting: a number outside its range.
        """
        if not 1 <= servers <= MAX_SERVERS:
            raise BadSetting(f"servers must be from 1 to {MAX_SERVERS}, got {servers}")
        settings = _check_settings(
            Settings(
                chunk_bytes=chunk_bytes,
                replication=min(3, servers) if replication is None else replication,
                gc_after_s=gc_after_s,
                reader_grace_s=reader_grace_s,
            )
        )
        folder = (Path(root).expanduser() if root is not None else default_root()).absolute()
        if (folder / layout.DATABASE).exists() or not create_store(
            folder, settings, servers=servers, racks=racks
        ):
            raise FileExistsError(
                17, "there is a store already; remove it or choose another folder", str(folder)
            )
        return cls(folder)

    @property
    def root(self) -> Path:
        """The store's folder."""
        return self.master.root

    def exists(self) -> bool:
        """Return whether the store's folder is still there."""
        return self.master.database.path.exists()

    def settings(self) -> Settings:
        """Return the settings in force."""
        with self.master.database.read() as connection:
            return chunks.settings(connection)

    def change_settings(self, **changes: float) -> Settings:
        """Change settings by name (``Settings``); files that exist keep their chunk size and replica goal.

        Raises:
            BadSetting: a name that is no setting, or a number outside its range.
        """
        with self.master.database.write() as connection:
            try:
                settings = _check_settings(replace(chunks.settings(connection), **changes))  # type: ignore[arg-type]
            except TypeError as error:
                names = ", ".join(field.name for field in fields(Settings))
                raise BadSetting(f"{error}; settings are {names}") from None
            for name in changes:
                connection.execute(
                    "UPDATE settings SET value = ? WHERE name = ?", (getattr(settings, name), name)
                )
        return settings

    def stat(self, path: str) -> FileStatus:
        """Return one file or folder with its chunks and where they lie; FileNotFoundError if absent."""
        path = layout.fold(path)
        with self.master.database.read() as connection:
            node = namespace.get(connection, path)
            places: list[ChunkPlace] = []
            offset = 0
            for handle in namespace.handles_of(connection, node.content) if node.content is not None else []:
                chunk = chunks.locate(connection, handle)
                assert chunk is not None
                places.append(
                    ChunkPlace(
                        offset=offset,
                        length=chunk.length,
                        handle=handle,
                        version=chunk.version,
                        servers=chunk.servers,
                    )
                )
                offset += chunk.length
        return FileStatus(
            path=path,
            type="directory" if node.is_dir else "file",
            size=node.size,
            replication=node.replication,
            chunk_bytes=node.chunk_bytes,
            chunks=tuple(places),
            created=node.created,
            modified=node.modified,
        )

    def locations(self, path: str) -> list[ChunkPlace]:
        """Return where each chunk of a file lies, in file order (for locality)."""
        return list(self.stat(path).chunks)

    def set_replication(self, path: str, replication: int) -> int:
        """Set the replica goal of a file, or of a folder, all files below it and new ones; return files changed.

        The goal is met by ``repair()`` and, bit by bit, by writers that close.
        """
        path = layout.fold(path)
        if replication < 1:
            raise BadSetting(f"{path}: replication must be >= 1, got {replication}")
        with self.master.database.write() as connection:
            node = namespace.get(connection, path)
            low, high = layout.below(path)
            connection.execute("UPDATE nodes SET replication = ? WHERE path = ?", (replication, path))
            changed = connection.execute(
                "UPDATE nodes SET replication = ? WHERE path > ? AND path < ? AND content IS NOT NULL",
                (replication, low, high),
            ).rowcount
            connection.execute(
                "UPDATE nodes SET replication = NULL WHERE path > ? AND path < ? AND content IS NULL",
                (low, high),
            )
            chunks.ask_repair(
                connection,
                [
                    handle
                    for (handle,) in connection.execute(
                        "SELECT DISTINCT handle FROM contents JOIN nodes USING (content)"
                        " WHERE path = ? OR path > ? AND path < ?",
                        (path, low, high),
                    ).fetchall()
                ],
            )
        return changed + (not node.is_dir)

    def snapshot(self, source: str, target: str) -> int:
        """Copy a file or folder without copying bytes; return the number of files.

        ``target`` must not exist. Chunks are shared until one side appends.
        """
        with self.master.database.write(durable=self.master.durable) as connection:
            return namespace.copy_tree(connection, layout.fold(source), layout.fold(target), now=time.time())

    def copy_file(self, source: str, target: str) -> None:
        """Copy one file by sharing its chunks, over a file that is there; of a folder only the name is made."""
        source, target = layout.fold(source), layout.fold(target)
        now = time.time()
        with self.master.database.write(durable=self.master.durable) as connection:
            node = namespace.get(connection, source)
            if node.content is None:
                namespace.make_folders(connection, target, now)
                return
            if source == target:
                return
            assert node.chunk_bytes is not None
            due = now + chunks.settings(connection).reader_grace_s
            namespace.copy_file(connection, node, target, now=now, retire_due=due)

    def rename(self, source: str, target: str) -> None:
        """Move a file or a whole folder to exactly ``target``, at once; a file there is replaced.

        Raises:
            FileNotFoundError, IsADirectoryError, NotADirectoryError, OSError: as rename(2).
        """
        now = time.time()
        with self.master.database.write(durable=self.master.durable) as connection:
            due = now + chunks.settings(connection).reader_grace_s
            namespace.rename(connection, layout.fold(source), layout.fold(target), now=now, retire_due=due)

    def append_record(self, path: str, record: bytes, *, record_id: bytes | None = None) -> int:
        """Append one record at least once, at an offset the store picks, and return that offset.

        Give the same 16-byte ``record_id`` when retrying: ``read_records`` then drops the duplicate.
        The file is created if absent.

        Raises:
            RecordTooLarge: header and record exceed a quarter of the file's chunk size.
        """
        path = layout.fold(path)
        if record_id is not None and len(record_id) != 16:
            raise ValueError(f"{path}: record_id must have 16 bytes, got {len(record_id)}")
        framed = frame(record, record_id or uuid.uuid4().bytes)
        for _ in range(1000):
            try:
                lease = take_lease(self.master, path)
            except FileNotFoundError:
                target = self.master.target(path, replication=None, exclusive=False)
                with contextlib.suppress(FileExistsError):
                    self.master.publish(target, [], exclusive=True)
                continue
            limit = lease.target.chunk_bytes // 4
            tail = Tail(self.master, lease)
            try:
                if len(framed) > limit:
                    raise RecordTooLarge(
                        f"{path}: a record may have {limit - HEADER.size} bytes (a quarter of a chunk, with its"
                        f" header), got {len(record)}"
                    )
                if tail.length + len(framed) > lease.target.chunk_bytes:
                    tail.pad()
                offset = lease.size + tail.added
                tail.write(memoryview(framed))
                tail.commit()
            except LeaseLost:
                tail.release()  # a snapshot came between, or the file was replaced: at least once
                continue
            except BaseException:
                tail.release()
                raise
            step(self.master)
            return offset
        raise LeaseLost(f"{path}: the lease to append was revoked again and again")

    def read_records(self, path: str) -> Iterator[bytes]:
        """Yield the records of a record file once each, in file order, without padding and duplicates."""
        view = self.master.view(layout.fold(path))
        with io.BufferedReader(ChunkReader(self.master, view), 256 << 10) as file:
            yield from read_frames(file, view.size, view.chunk_bytes)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Hide a file or folder under a name with a timestamp; inside the hidden folder, remove it at once."""
        path = layout.fold(path)
        if layout.is_hidden(path):
            if not self.drop(path):
                raise namespace.missing(path)
            return
        with self.master.database.write(durable=self.master.durable) as connection:
            trash.hide(connection, path, recursive=recursive, now=time.time())

    def drop(self, path: str) -> bool:
        """Remove a file or a whole folder at once, without undelete; return whether it was there."""
        path = layout.fold(path)
        with self.master.database.write(durable=self.master.durable) as connection:
            if namespace.find(connection, path) is None:
                return False
            namespace.remove(connection, path, retire_due=0.0)
            trash.forget_empty_deletions(connection)
            chunks.reap(connection, 0.0, -1)
        self.master.collect_all()
        return True

    def deleted(self, path: str = "/") -> list[DeletedFile]:
        """Return what was deleted at or below ``path`` and can be undeleted, oldest first."""
        with self.master.database.read() as connection:
            return trash.deletions(connection, layout.fold(path))

    def undelete(self, path: str) -> str:
        """Bring back the latest deletion that holds ``path`` (an original path or a hidden one).

        Returns the path restored.

        Raises:
            FileNotFoundError: nothing of that name was deleted.
            FileExistsError: the name is taken again.
        """
        with self.master.database.write(durable=self.master.durable) as connection:
            return trash.unhide(connection, layout.fold(path), now=time.time())

    def servers(self) -> list[ServerStatus]:
        """Return the chunk servers by name."""
        return servers.statuses(self.master)

    def add_server(
        self, name: str | None = None, *, rack: str | None = None, capacity_bytes: int | None = None
    ) -> str:
        """Add a chunk server and return its name (default: the next free ``s<number>``)."""
        return servers.add(self.master, name, rack=rack, capacity_bytes=capacity_bytes)

    def drain_server(self, name: str) -> RepairReport:
        """Copy what a server holds elsewhere, then remove it; it loses nothing.

        With too few other servers for the replica goal, each chunk ends with one replica on every other one.

        Raises:
            NoServer: no other live server can take the chunks; the server stays, draining.
        """
        return servers.drain(self.master, name)

    def kill_server(self, name: str) -> int:
        """Try a failure: the server is gone at once, its folder set aside; return the replicas lost."""
        return servers.kill(self.master, name)

    def revive_server(self, name: str) -> int:
        """Bring a killed (or draining) server back; return how many of its replicas were still current.

        Stale replicas, and those of files removed meanwhile, are refused and collected.
        """
        return servers.revive(self.master, name)

    def fsck(self, path: str = "/", *, verify: bool = True) -> Health:
        """Check every chunk under ``path`` and report; nothing is repaired.

        ``verify`` reads all replicas against their checksums; without it only names, lengths and versions.
        """
        return check(self.master, layout.fold(path), verify=verify)

    def repair(self, *, verify: bool = False) -> RepairReport:
        """Bring every chunk to its replica goal, worst first; drop bad, stale and surplus replicas.

        ``verify`` reads all replicas first. Nothing is removed while it is the only copy.
        """
        return recovery.repair(self.master, verify=verify)

    def balance(self, *, threshold: float = 0.1) -> RepairReport:
        """Move replicas from fuller servers to emptier ones until all lie within ``threshold`` of the mean use."""
        return recovery.balance(self.master, threshold=threshold)

    def gc(self, *, older_than_s: float | None = None) -> CollectReport:
        """Remove deleted files for good once older than ``older_than_s`` (default: the setting), and all orphans."""
        return recovery.collect_garbage(self.master, older_than_s=older_than_s)

    def rescan(self) -> int:
        """Rebuild all chunk locations from the servers' folders; return the number of replicas found."""
        return recovery.rescan(self.master)

    def events(self, *, limit: int = 100) -> list[Event]:
        """Return the newest events (corruption, fail-over, server changes, clones), oldest first."""
        with self.master.database.read() as connection:
            rows = connection.execute(
                "SELECT id, time, kind, server, handle, detail FROM events ORDER BY id DESC LIMIT ?", (limit,)
            ).fetchall()
        return [
            Event(id=row[0], time=row[1], kind=row[2], server=row[3], handle=row[4], detail=row[5])
            for row in reversed(rows)
        ]
