"""Every name the store uses: on disk below its root, and inside its own namespace.

    ROOT/master.db                          metadata (SQLite, WAL)
    ROOT/servers/NAME/HH/HANDLE.chunk       replica: the chunk's bytes and nothing else
    ROOT/servers/NAME/HH/HANDLE.sums        its version, length and checksums
    ROOT/servers/NAME.killed/               a killed server's folder, set aside

HANDLE is the chunk's handle as 16 hex digits, HH its last two.
"""

import os
import posixpath
import re
from pathlib import Path

from gfs_sim.errors import BadName

PROTOCOL = "gfs"
DATABASE = "master.db"
SERVERS = "servers"
KILLED_SUFFIX = ".killed"
CHUNK_SUFFIX = ".chunk"
SUMS_SUFFIX = ".sums"
TEMPORARY_SUFFIX = ".tmp"
HIDDEN = "/.deleted"
"""Where deleted files wait: ``/.deleted/TIMESTAMP/original/path``."""

_SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def home_folder() -> Path:
    """Return ``$MR_HOME``, else ``mrdag`` in the user data folder (``$XDG_DATA_HOME``, ``~/.local/share``)."""
    home = os.environ.get("MR_HOME")
    if home:
        return Path(home).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME")
    # The XDG specification has relative values ignored.
    base = Path(data) if data and os.path.isabs(data) else Path.home() / ".local" / "share"
    return base / "mrdag"


def default_root() -> Path:
    """Return the folder of the default store: ``$MR_HOME/store``, else ``store`` in the user data folder."""
    return home_folder() / "store"


def chunk_name(handle: int) -> str:
    """Return a replica's name below its server's folder, without suffix.

    >>> chunk_name(258)
    '02/0000000000000102'
    """
    return f"{handle & 0xFF:02x}/{handle:016x}"


def handle_of(file_name: str) -> int | None:
    """Return the handle in a replica's file name, None for anything else."""
    stem, suffix = os.path.splitext(file_name)
    if suffix not in (CHUNK_SUFFIX, SUMS_SUFFIX):
        return None
    return int(stem, 16) if re.fullmatch(r"[0-9a-f]{16}", stem) else None


def handle_of_temporary(file_name: str) -> int | None:
    """Return the handle in a temporary file's name, None for anything else."""
    return handle_of(".".join(file_name.split(".")[:2]))


def check_server_name(name: str) -> str:
    """Return ``name`` if a server may be called so; BadName otherwise."""
    if not _SERVER_NAME.fullmatch(name):
        raise BadName(
            f"server name {name!r}: use letters, digits, - and _, at most 63, a letter or digit first"
        )
    return name


def fold(path: str) -> str:
    """Return the one name of a path: absolute, without ``gfs://``, ``//``, ``.``, ``..`` or a slash at the end.

    ``..`` stops at the root, as in POSIX. Nothing is percent-decoded and no character is special.

    >>> fold("gfs://a//b/../c/")
    '/a/c'
    >>> fold("../../etc/passwd")
    '/etc/passwd'
    >>> fold("")
    '/'
    """
    path = path.removeprefix(PROTOCOL + "://")
    if "\0" in path:
        raise BadName(f"path {path!r}: a name cannot hold a NUL character")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise BadName(f"path {path!r}: a name must be text that UTF-8 can hold") from None
    return posixpath.normpath("/" + path.lstrip("/"))


def parent_of(path: str) -> str:
    """Return the folder of a folded path; the root's is the root."""
    return posixpath.dirname(path)


def below(path: str) -> tuple[str, str]:
    """Return the half-open range of folded paths below a folder, for a comparison by code points.

    >>> below("/a")
    ('/a/', '/a0')
    """
    prefix = path.rstrip("/")
    return prefix + "/", prefix + "0"  # "0" follows "/"


def is_hidden(path: str) -> bool:
    """Return whether a folded path is the hidden folder or lies in it."""
    return path == HIDDEN or path.startswith(HIDDEN + "/")
