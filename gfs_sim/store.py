"""The store as its owner sees it: settings, servers, snapshots, records, repair.

``GFSFileSystem`` reads and writes files; a ``Store`` does what fsspec has no name for. Both may be
used by many processes and threads at once. Paths are as typed by a user: ``/a/b``, ``a//b/`` and
``gfs://a/b`` name the same file.
"""

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

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


def default_root() -> Path:
    """Return the folder of the default store: ``$MR_HOME/store``, else ``store`` in the user data folder."""
    raise NotImplementedError


class Store:
    """One store: a root folder with a master's metadata and a folder per chunk server."""

    def __init__(self, root: str | PathLike[str] | None = None, *, durable: bool = False) -> None:
        """Open the store at ``root`` (default: ``default_root()``), creating it with default settings if absent."""
        raise NotImplementedError

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
    ) -> "Store":
        """Create a store; ``racks`` are dealt to the servers in turn; replication defaults to min(3, servers).

        Raises:
            FileExistsError: there is a store already.
            BadSetting: a number outside its range.
        """
        raise NotImplementedError

    @property
    def root(self) -> Path:
        """The store's folder."""
        raise NotImplementedError

    def settings(self) -> Settings:
        """Return the settings in force."""
        raise NotImplementedError

    def change_settings(
        self,
        *,
        replication: int | None = None,
        chunk_bytes: int | None = None,
        gc_after_s: float | None = None,
    ) -> Settings:
        """Change what new files get (and when deleted ones go); existing files keep theirs."""
        raise NotImplementedError

    def stat(self, path: str) -> FileStatus:
        """Return one file or folder with its chunks and where they lie; FileNotFoundError if absent."""
        raise NotImplementedError

    def locations(self, path: str) -> list[ChunkPlace]:
        """Return where each chunk of a file lies, in file order (for locality)."""
        raise NotImplementedError

    def set_replication(self, path: str, replication: int) -> int:
        """Set the replica goal of a file, or of a folder, all files below it and new ones; return files changed.

        The goal is met by ``repair()`` and, bit by bit, by writers that close.
        """
        raise NotImplementedError

    def snapshot(self, source: str, target: str) -> int:
        """Copy a file or folder without copying bytes; return the number of files.

        ``target`` must not exist. Chunks are shared until one side appends.
        """
        raise NotImplementedError

    def append_record(self, path: str, record: bytes, *, record_id: bytes | None = None) -> int:
        """Append one record at least once, at an offset the store picks, and return that offset.

        Give the same 16-byte ``record_id`` when retrying: ``read_records`` then drops the duplicate.
        The file is created if absent.

        Raises:
            RecordTooLarge: header and record exceed a quarter of the file's chunk size.
        """
        raise NotImplementedError

    def read_records(self, path: str) -> Iterator[bytes]:
        """Yield the records of a record file once each, in file order, without padding and duplicates."""
        raise NotImplementedError

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Hide a file or folder under a name with a timestamp; inside the hidden folder, remove it at once."""
        raise NotImplementedError

    def drop(self, path: str) -> bool:
        """Remove a file or a whole folder at once, without undelete; return whether it was there."""
        raise NotImplementedError

    def deleted(self, path: str = "/") -> list[DeletedFile]:
        """Return what was deleted at or below ``path`` and can be undeleted, oldest first."""
        raise NotImplementedError

    def undelete(self, path: str) -> str:
        """Bring back the latest deletion that holds ``path`` (an original path or a hidden one).

        Returns the path restored.

        Raises:
            FileNotFoundError: nothing of that name was deleted.
            FileExistsError: the name is taken again.
        """
        raise NotImplementedError

    def servers(self) -> list[ServerStatus]:
        """Return the chunk servers by name."""
        raise NotImplementedError

    def add_server(
        self, name: str | None = None, *, rack: str | None = None, capacity_bytes: int | None = None
    ) -> str:
        """Add a chunk server and return its name (default: the next free ``s<number>``)."""
        raise NotImplementedError

    def drain_server(self, name: str) -> RepairReport:
        """Copy what a server holds elsewhere, then remove it; it loses nothing.

        With too few other servers for the replica goal, each chunk ends with one replica on every other one.

        Raises:
            NoServer: no other live server can take the chunks; the server stays, draining.
        """
        raise NotImplementedError

    def kill_server(self, name: str) -> int:
        """Try a failure: the server is gone at once, its folder set aside; return the replicas lost."""
        raise NotImplementedError

    def revive_server(self, name: str) -> int:
        """Bring a killed (or draining) server back; return how many of its replicas were still current.

        Stale replicas, and those of files removed meanwhile, are refused and collected.
        """
        raise NotImplementedError

    def fsck(self, path: str = "/", *, verify: bool = True) -> Health:
        """Check every chunk under ``path`` and report; nothing is repaired.

        ``verify`` reads all replicas against their checksums; without it only names, lengths and versions.
        """
        raise NotImplementedError

    def repair(self, *, verify: bool = False) -> RepairReport:
        """Bring every chunk to its replica goal, worst first; drop bad, stale and surplus replicas.

        ``verify`` reads all replicas first. Nothing is removed while it is the only copy.
        """
        raise NotImplementedError

    def balance(self, *, threshold: float = 0.1) -> RepairReport:
        """Move replicas from fuller servers to emptier ones until all lie within ``threshold`` of the mean use."""
        raise NotImplementedError

    def gc(self, *, older_than_s: float | None = None) -> CollectReport:
        """Remove deleted files for good once older than ``older_than_s`` (default: the setting), and all orphans."""
        raise NotImplementedError

    def rescan(self) -> int:
        """Rebuild all chunk locations from the servers' folders; return the number of replicas found."""
        raise NotImplementedError

    def events(self, *, limit: int = 100) -> list[Event]:
        """Return the newest events (corruption, fail-over, server changes, clones), oldest first."""
        raise NotImplementedError
