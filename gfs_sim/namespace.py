"""The namespace: folders and files by full path (GFS 4.1), inside a transaction its caller has begun.

Every function takes the connection of a running transaction and folded paths, and changes rows only.
A file's bytes are a *content*, a numbered list of chunks, so that replacing or renaming a file is a
change of one row; contents nobody names any more are retired and freed later (``chunks.reap``).
"""

import errno
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gfs_sim import layout
from gfs_sim.errors import BadName

_COLUMNS = "path, content, size, chunk_bytes, replication, created, modified"


@dataclass(frozen=True)
class Node:
    """A row of the namespace; ``content`` is None for a folder."""

    path: str
    content: int | None
    size: int
    chunk_bytes: int | None
    replication: int | None
    created: float
    modified: float

    @property
    def is_dir(self) -> bool:
        """Whether this is a folder."""
        return self.content is None


def failure(kind: type[OSError], number: int, path: str) -> OSError:
    """Return the operating system's error of that number about a path."""
    return kind(number, os.strerror(number), path)


def missing(path: str) -> OSError:
    """Return the error for a path that is not there."""
    return failure(FileNotFoundError, errno.ENOENT, path)


def find(connection: sqlite3.Connection, path: str) -> Node | None:
    """Return the node at ``path``, None if there is none."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM nodes WHERE path = ?", (path,)).fetchone()
    return Node(*row) if row else None


def get(connection: sqlite3.Connection, path: str) -> Node:
    """Return the node at ``path``; FileNotFoundError if there is none."""
    node = find(connection, path)
    if node is None:
        raise missing(path)
    return node


def get_file(connection: sqlite3.Connection, path: str) -> Node:
    """Return the file at ``path``; FileNotFoundError or IsADirectoryError if there is none."""
    node = get(connection, path)
    if node.is_dir:
        raise failure(IsADirectoryError, errno.EISDIR, path)
    return node


def children(connection: sqlite3.Connection, path: str) -> list[Node]:
    """Return what a folder holds, by name; the hidden folder is not shown in the root."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM nodes WHERE parent = ? ORDER BY path", (path,))
    return [Node(*row) for row in rows if row[0] != layout.HIDDEN]


def subtree(connection: sqlite3.Connection, path: str) -> list[Node]:
    """Return everything below a folder, by path, without what is hidden (unless ``path`` is)."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM nodes WHERE path > ? AND path < ? ORDER BY path", layout.below(path)
    )
    nodes = [Node(*row) for row in rows]
    return nodes if layout.is_hidden(path) else [node for node in nodes if not layout.is_hidden(node.path)]


def check_writable(path: str) -> None:
    """Refuse the root and the hidden folder as targets."""
    if path == "/":
        raise failure(IsADirectoryError, errno.EISDIR, path)
    if layout.is_hidden(path):
        raise BadName(
            f"path {path!r}: {layout.HIDDEN} holds deleted files only; use undelete to bring them back"
        )


def make_folders(connection: sqlite3.Connection, path: str, now: float, *, hidden: bool = False) -> None:
    """Make ``path`` and the folders above it where they are absent; NotADirectoryError if one is a file."""
    node = find(connection, path)
    if node is not None:
        if not node.is_dir:
            raise failure(NotADirectoryError, errno.ENOTDIR, path)
        return
    if not hidden:
        check_writable(path)
    make_folders(connection, layout.parent_of(path), now, hidden=hidden)
    connection.execute(
        "INSERT INTO nodes (path, parent, created, modified) VALUES (?, ?, ?, ?)",
        (path, layout.parent_of(path), now, now),
    )


def replication_for(connection: sqlite3.Connection, path: str, default: int) -> int:
    """Return the replica goal a new file at ``path`` inherits: the nearest folder's that has one set."""
    folder = layout.parent_of(path)
    while True:
        node = find(connection, folder)
        if node is not None and node.replication is not None:
            return node.replication
        if folder == "/":
            return default
        folder = layout.parent_of(folder)


def new_content(connection: sqlite3.Connection, handles: Iterable[int]) -> int:
    """Number a new content made of these chunks in this order and return its number."""
    row = connection.execute(
        "UPDATE counters SET value = value + 1 WHERE name = 'content' RETURNING value"
    ).fetchone()
    content = int(row[0])
    connection.executemany(
        "INSERT INTO contents VALUES (?, ?, ?)",
        ((content, number, handle) for number, handle in enumerate(handles)),
    )
    return content


def handles_of(connection: sqlite3.Connection, content: int) -> list[int]:
    """Return a content's chunk handles in order."""
    rows = connection.execute("SELECT handle FROM contents WHERE content = ? ORDER BY number", (content,))
    return [row[0] for row in rows]


def retire(connection: sqlite3.Connection, content: int, due: float) -> None:
    """Have a content that no node names any more freed once ``due`` has passed."""
    connection.execute("INSERT OR REPLACE INTO retired VALUES (?, ?)", (content, due))


def publish(
    connection: sqlite3.Connection,
    path: str,
    handles: Sequence[int],
    *,
    size: int,
    chunk_bytes: int,
    replication: int,
    exclusive: bool,
    now: float,
    retire_due: float,
) -> None:
    """Let a file appear at ``path`` whole, in place of a file that is there.

    Raises FileExistsError if ``exclusive`` and the name is taken, IsADirectoryError if a folder has it.
    """
    check_writable(path)
    old = find(connection, path)
    if old is not None:
        if exclusive:
            raise failure(FileExistsError, errno.EEXIST, path)
        if old.content is None:
            raise failure(IsADirectoryError, errno.EISDIR, path)
        retire(connection, old.content, retire_due)
    else:
        make_folders(connection, layout.parent_of(path), now)
    connection.execute(
        "INSERT OR REPLACE INTO nodes (path, parent, content, size, chunk_bytes, replication, created, modified)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            path,
            layout.parent_of(path),
            new_content(connection, handles),
            size,
            chunk_bytes,
            replication,
            now,
            now,
        ),
    )


def move_rows(connection: sqlite3.Connection, source: str, target: str) -> None:
    """Give a node and all below it names below ``target``, which must be free."""
    low, high = layout.below(source)
    cut = len(source) + 1
    connection.execute(
        "UPDATE nodes SET path = ?, parent = ? WHERE path = ?", (target, layout.parent_of(target), source)
    )
    connection.execute(
        "UPDATE nodes SET path = ? || substr(path, ?), parent = ? || substr(parent, ?)"
        " WHERE path > ? AND path < ?",
        (target, cut, target, cut, low, high),
    )


def rename(
    connection: sqlite3.Connection, source: str, target: str, *, now: float, retire_due: float
) -> None:
    """Move a file or a whole folder; a file that has the target's name is replaced, an empty folder too.

    Raises FileNotFoundError, or OSError(ENOTEMPTY | EINVAL), NotADirectoryError, IsADirectoryError as rename(2).
    """
    node = get(connection, source)
    check_writable(source)
    check_writable(target)
    if source == target:
        return
    if target.startswith(source + "/"):
        raise OSError(errno.EINVAL, "cannot move a folder into itself", source, None, target)
    old = find(connection, target)
    if old is not None:
        if node.is_dir != old.is_dir:
            if old.is_dir:
                raise failure(IsADirectoryError, errno.EISDIR, target)
            raise failure(NotADirectoryError, errno.ENOTDIR, target)
        if old.content is not None:
            retire(connection, old.content, retire_due)
        elif children(connection, target):
            raise failure(OSError, errno.ENOTEMPTY, target)
        connection.execute("DELETE FROM nodes WHERE path = ?", (target,))
    else:
        make_folders(connection, layout.parent_of(target), now)
    move_rows(connection, source, target)


def remove(connection: sqlite3.Connection, path: str, *, retire_due: float) -> int:
    """Remove a file or a folder with all below it; return the number of nodes; the root keeps itself."""
    contents = connection.execute(
        "SELECT content FROM nodes WHERE (path = ? OR path > ? AND path < ?) AND content IS NOT NULL",
        (path, *layout.below(path)),
    ).fetchall()
    for (content,) in contents:
        retire(connection, content, retire_due)
    return connection.execute(
        "DELETE FROM nodes WHERE (path = ? OR path > ? AND path < ?) AND path <> '/'",
        (path, *layout.below(path)),
    ).rowcount


def copy_tree(connection: sqlite3.Connection, source: str, target: str, *, now: float) -> int:
    """Copy a file or folder by sharing its chunks (GFS 3.4); return the number of files.

    The target must be absent; leases on the shared chunks are revoked, so that the next append copies first.
    """
    node = get(connection, source)
    check_writable(target)
    if target.startswith(source.rstrip("/") + "/"):
        raise OSError(errno.EINVAL, "cannot copy a folder into itself", source, None, target)
    if find(connection, target) is not None:
        raise failure(FileExistsError, errno.EEXIST, target)
    make_folders(connection, layout.parent_of(target), now)
    nodes = [node, *subtree(connection, source)] if node.is_dir else [node]
    files = 0
    for each in nodes:
        path = target + each.path[len(source) :]
        content = None
        if each.content is not None:
            files += 1
            content = share(connection, each.content)
        connection.execute(
            "INSERT INTO nodes (path, parent, content, size, chunk_bytes, replication, created, modified)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (path, layout.parent_of(path), content, each.size, each.chunk_bytes, each.replication, now, now),
        )
    return files


def copy_file(
    connection: sqlite3.Connection, node: Node, target: str, *, now: float, retire_due: float
) -> None:
    """Let a file appear at ``target`` that shares the chunks of ``node``, in place of a file that is there."""
    assert node.content is not None
    assert node.chunk_bytes is not None
    goal = node.replication
    publish(
        connection,
        target,
        [],
        size=node.size,
        chunk_bytes=node.chunk_bytes,
        replication=goal if goal is not None else 1,
        exclusive=False,
        now=now,
        retire_due=retire_due,
    )
    connection.execute(
        "UPDATE nodes SET content = ? WHERE path = ?", (share(connection, node.content), target)
    )


def share(connection: sqlite3.Connection, content: int) -> int:
    """Return a new content with the same chunks, and revoke the leases on them."""
    handles = handles_of(connection, content)
    connection.execute(
        "UPDATE chunks SET writer = NULL, lease = NULL, lease_until = NULL"
        " WHERE lease IS NOT NULL AND handle IN (SELECT handle FROM contents WHERE content = ?)",
        (content,),
    )
    return new_content(connection, handles)


def check_folder_path(connection: sqlite3.Connection, path: str) -> None:
    """Raise NotADirectoryError if ``path`` or something above it is a file."""
    while path != "/":
        node = find(connection, path)
        if node is not None:
            if not node.is_dir:
                raise failure(NotADirectoryError, errno.ENOTDIR, path)
            return
        path = layout.parent_of(path)
