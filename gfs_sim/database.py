"""The master's metadata: one SQLite database, its schema, and transactions safe for processes, threads and forks.

The write-ahead log is the operation log, its checkpoint the checkpoint. A commit survives the death of
any process; it survives a power cut only where ``durable`` is asked for (the database itself stays
whole in either case). What the tables mean is said here; what is done with them, elsewhere.
"""

import contextlib
import errno
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from gfs_sim import layout
from gfs_sim.errors import DamagedStore, NoSuchStore

BUSY_TIMEOUT_S = 60.0
FORMAT = 1

# files.content names a list of chunks, so that a file can be replaced or renamed while its old bytes are read.
# chunks.writer is set while a chunk is unpublished or under an append lease.
# replicas can be rebuilt from the servers' folders (GFS 2.6.2); all other tables cannot.
SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, content INTEGER, size INTEGER NOT NULL DEFAULT 0,
    chunk_bytes INTEGER, replication INTEGER, created REAL NOT NULL, modified REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX nodes_parent ON nodes (parent);
CREATE INDEX nodes_content ON nodes (content);
CREATE TABLE contents (
    content INTEGER NOT NULL, number INTEGER NOT NULL, handle INTEGER NOT NULL, PRIMARY KEY (content, number)
) WITHOUT ROWID;
CREATE INDEX contents_handle ON contents (handle);
CREATE TABLE deletions (stamp TEXT PRIMARY KEY, path TEXT NOT NULL, time REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE retired (content INTEGER PRIMARY KEY, due REAL NOT NULL);
CREATE TABLE chunks (
    handle INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, length INTEGER NOT NULL,
    writer TEXT, lease TEXT, lease_until REAL
);
CREATE INDEX chunks_writer ON chunks (writer) WHERE writer IS NOT NULL;
CREATE TABLE servers (
    name TEXT PRIMARY KEY, rack TEXT NOT NULL, state TEXT NOT NULL, used_bytes INTEGER NOT NULL DEFAULT 0,
    capacity_bytes INTEGER, recent REAL NOT NULL DEFAULT 0, recent_at REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE garbage (handle INTEGER NOT NULL, server TEXT NOT NULL, PRIMARY KEY (handle, server)) WITHOUT ROWID;
CREATE TABLE repairs (handle INTEGER PRIMARY KEY, tried REAL NOT NULL DEFAULT 0);
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
    server TEXT, handle INTEGER, detail TEXT NOT NULL
);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

REPLICAS = """
CREATE TABLE IF NOT EXISTS replicas (
    handle INTEGER NOT NULL, server TEXT NOT NULL, bytes INTEGER NOT NULL, bad INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (handle, server)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS replicas_server ON replicas (server);
"""


class Database:
    """One connection per process to one store's metadata, used by one thread at a time.

    Threads take turns for the length of a transaction, which keeps them as short as SQLite's own write
    lock would. A connection must not cross a fork, and its file locks belong to the process that took
    them, so every connection is closed before a fork and opened again on both sides when needed.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / layout.DATABASE
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._depth = 0
        self._synchronous = "NORMAL"
        self._inode = (0, 0)

    def _connect(self) -> sqlite3.Connection:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self.close()
            raise NoSuchStore(f"no store in {self.path.parent}: {layout.DATABASE} is missing") from None
        if (status.st_dev, status.st_ino) != self._inode:
            self.close()  # the folder was removed and made anew
        if self._connection is None:
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            connection.execute("PRAGMA synchronous=NORMAL")
            self._synchronous = "NORMAL"
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version != FORMAT:
                connection.close()
                raise DamagedStore(
                    f"{self.path}: store of format {version}, but this version reads and writes format {FORMAT};"
                    " get the files out with the version that wrote them (mr fs get), or name another store"
                    " (--root, root=, MR_HOME)"
                )
            self._connection = connection
            self._inode = (status.st_dev, status.st_ino)
        return self._connection

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A consistent view of the metadata."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextlib.contextmanager
    def write(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """One atomic change; an exception undoes it. ``durable`` has the log on disk before it returns.

        Always BEGIN IMMEDIATE: a read turned into a write would fail with BUSY_SNAPSHOT whatever the time-out.
        """
        with self._transaction("BEGIN IMMEDIATE", "FULL" if durable else "NORMAL") as connection:
            yield connection

    @contextlib.contextmanager
    def _transaction(self, begin: str, synchronous: str = "NORMAL") -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._depth:
                raise RuntimeError("a metadata transaction was begun inside another one")
            try:
                connection = self._connect()
                if synchronous != self._synchronous:
                    connection.execute(f"PRAGMA synchronous={synchronous}")
                    self._synchronous = synchronous
                connection.execute(begin)
                self._depth = 1
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    # A full disk or an interrupt may have rolled back already.
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
                finally:
                    self._depth = 0
            except sqlite3.DatabaseError as error:
                raise self._explain(error) from error

    def _explain(self, error: sqlite3.DatabaseError) -> Exception:
        """Return SQLite's error as the operating system's, or as damage, naming the file."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if code == sqlite3.SQLITE_BUSY:
            return TimeoutError(
                errno.ETIMEDOUT,
                f"metadata locked by another process for {BUSY_TIMEOUT_S:.0f} s",
                str(self.path),
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return PermissionError(errno.EACCES, f"cannot write the metadata ({error})", str(self.path))
        if code == sqlite3.SQLITE_IOERR:
            return OSError(errno.EIO, str(error), str(self.path))
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return DamagedStore(
                f"{self.path}: {error}; restore it from a copy, the chunks are in {layout.SERVERS}/"
            )
        return error

    def close(self) -> None:
        """Close the connection; the next transaction opens a new one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def hold_for_fork(self) -> None:
        """Wait for the running transaction, close the connection, and keep others out until ``release``."""
        self._lock.acquire()
        if not self._depth and self._connection is not None:
            self._connection.close()
            self._connection = None

    def release(self) -> None:
        """Let transactions begin again."""
        self._lock.release()


_databases: "weakref.WeakValueDictionary[Path, Database]" = weakref.WeakValueDictionary()
_databases_lock = threading.Lock()
_held: list[Database] = []


def _before_fork() -> None:
    _databases_lock.acquire()
    # Sorted, so that two forking threads cannot each hold what the other waits for.
    _held[:] = sorted(_databases.values(), key=lambda database: database.path)
    for database in _held:
        database.hold_for_fork()


def _after_fork() -> None:
    for database in reversed(_held):
        database.release()
    _held.clear()
    _databases_lock.release()


def _after_fork_in_child() -> None:
    # The lock's owner is the forking thread, which is the only one in the child.
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def open_database(root: Path) -> Database:
    """Return this process's one Database of the store at ``root``; NoSuchStore if there is none."""
    root = root.absolute()
    with _databases_lock:
        database = _databases.get(root)
        if database is None:
            database = Database(root)
            if not database.path.exists():
                raise NoSuchStore(f"no store in {root}: {layout.DATABASE} is missing")
            _databases[root] = database
        return database


def create_database(root: Path, settings: dict[str, float], servers: list[tuple[str, str]]) -> bool:
    """Create the metadata of an empty store; return False if another process was first.

    ``servers`` are (name, rack). The database appears whole under its name or not at all.
    """
    now = time.time()
    temporary = root / f"{layout.DATABASE}.{os.getpid()}-{threading.get_ident()}{layout.TEMPORARY_SUFFIX}"
    temporary.unlink(missing_ok=True)
    connection = sqlite3.connect(temporary, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(f"BEGIN; PRAGMA user_version={FORMAT};" + SCHEMA + REPLICAS)
        connection.executemany("INSERT INTO settings VALUES (?, ?)", settings.items())
        connection.executemany("INSERT INTO servers (name, rack, state) VALUES (?, ?, 'live')", servers)
        connection.execute("INSERT INTO counters VALUES ('content', 0)")
        connection.execute(
            "INSERT INTO nodes (path, parent, created, modified) VALUES ('/', '', ?, ?)", (now, now)
        )
        connection.execute("COMMIT")
        connection.close()
        os.link(temporary, root / layout.DATABASE)
    except FileExistsError:
        return False
    finally:
        connection.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{temporary}{suffix}").unlink(missing_ok=True)
    return True
