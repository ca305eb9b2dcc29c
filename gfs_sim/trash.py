"""Deleting as GFS does (4.4): a rename below the hidden folder, under a timestamp, and the way back.

Inside a transaction its caller has begun, as in ``namespace``.
"""

import errno
import sqlite3
import time

from gfs_sim import layout, namespace
from gfs_sim.values import DeletedFile


def _stamp(connection: sqlite3.Connection, now: float) -> str:
    micros = int(now * 1e6)
    while True:
        seconds, rest = divmod(micros, 1_000_000)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds)) + f".{rest:06d}Z"
        if not connection.execute("SELECT 1 FROM deletions WHERE stamp = ?", (stamp,)).fetchone():
            return stamp
        micros += 1


def hide(connection: sqlite3.Connection, path: str, *, recursive: bool, now: float) -> None:
    """Delete as GFS does (4.4): rename below the hidden folder, under a timestamp.

    Raises FileNotFoundError, or OSError(ENOTEMPTY) for a folder that holds something unless ``recursive``.
    """
    node = namespace.get(connection, path)
    targets = [path]
    if path == "/":
        targets = [child.path for child in namespace.children(connection, "/")]
    if node.is_dir and not recursive and namespace.children(connection, path):
        raise namespace.failure(OSError, errno.ENOTEMPTY, path)
    for target in targets:
        stamp = _stamp(connection, now)
        hidden = f"{layout.HIDDEN}/{stamp}{target}"
        namespace.make_folders(connection, layout.parent_of(hidden), now, hidden=True)
        namespace.move_rows(connection, target, hidden)
        connection.execute("INSERT INTO deletions VALUES (?, ?, ?)", (stamp, target, now))


def deletions(connection: sqlite3.Connection, path: str = "/") -> list[DeletedFile]:
    """Return what was deleted at or below ``path`` and is still there, oldest first."""
    found = []
    for stamp, original, when in connection.execute(
        "SELECT stamp, path, time FROM deletions ORDER BY time, stamp"
    ):
        if path not in ("/", original) and not original.startswith(path + "/"):
            continue
        hidden = f"{layout.HIDDEN}/{stamp}{original}"
        files, size = connection.execute(
            "SELECT COUNT(content), COALESCE(SUM(size), 0) FROM nodes WHERE path = ? OR path > ? AND path < ?",
            (hidden, *layout.below(hidden)),
        ).fetchone()
        if namespace.find(connection, hidden) is not None:
            found.append(
                DeletedFile(path=original, hidden_path=hidden, deleted_at=when, size=size, files=files)
            )
    return found


def unhide(connection: sqlite3.Connection, path: str, *, now: float) -> str:
    """Bring back the latest deletion that holds ``path``, which may be its hidden name; return the path restored.

    Raises FileNotFoundError if there is none, FileExistsError if the name is taken.
    """
    hidden, target = path, path
    if layout.is_hidden(path):
        target = "/" + "/".join(path.split("/")[3:])
    else:
        for deleted in reversed(deletions(connection)):
            if path == deleted.path or path.startswith(deleted.path + "/"):
                hidden = deleted.hidden_path + path[len(deleted.path) :]
                if namespace.find(connection, hidden) is not None:
                    break
        else:
            raise FileNotFoundError(errno.ENOENT, "nothing deleted has this name", path)
    namespace.get(connection, hidden)
    if target == "/":
        raise FileNotFoundError(errno.ENOENT, "name what to bring back, as `deleted` lists it", path)
    if namespace.find(connection, target) is not None:
        raise namespace.failure(FileExistsError, errno.EEXIST, target)
    namespace.make_folders(connection, layout.parent_of(target), now)
    namespace.move_rows(connection, hidden, target)
    forget_empty_deletions(connection)
    return target


def forget_empty_deletions(connection: sqlite3.Connection) -> None:
    """Remove the records and hidden folders of deletions of which nothing is left to bring back."""
    for stamp, original in connection.execute("SELECT stamp, path FROM deletions").fetchall():
        if namespace.find(connection, f"{layout.HIDDEN}/{stamp}{original}") is None:
            connection.execute("DELETE FROM deletions WHERE stamp = ?", (stamp,))
            top = f"{layout.HIDDEN}/{stamp}"
            connection.execute(
                "DELETE FROM nodes WHERE (path = ? OR path > ? AND path < ?) AND content IS NULL",
                (top, *layout.below(top)),
            )
