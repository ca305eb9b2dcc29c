"""A private temporary folder that a later run can tell from a living one.

The folder is made with ``mkdtemp`` (mode 0700, never a fixed name) under TMPDIR and holds a lock file
that its process keeps locked with ``flock``.  The kernel drops the lock with the process, also after
``kill -9``, so an unlocked folder is abandoned.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from types import TracebackType

_PREFIX = "mrdag-"
_LOCK = "lock"
# A folder gets its lock within milliseconds of being made; one this old without a lock will never get it.
_UNLOCKED_AGE_S = 60.0


class Scratch:
    """A temporary folder ``folder``, gone with ``remove`` or at the end of a ``with`` block."""

    def __init__(self, parent: str | None = None) -> None:
        self.folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        self._lock = _make_lock(self.folder)

    def remove(self) -> None:
        """Remove the folder and all in it; does nothing the second time."""
        if self._lock >= 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _make_lock(folder: str) -> int:
    # Locked before it gets its name: a lock file that can be seen is never free by accident.
    hidden = os.path.join(folder, f".{_LOCK}")
    lock = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(hidden, os.path.join(folder, _LOCK))
    return lock


def remove_abandoned(parent: str | None = None) -> list[str]:
    """Remove the scratch folders of processes that are gone; return their paths.

    Folders of other users and of living processes are left alone.
    """
    parent = parent or tempfile.gettempdir()
    removed = []
    for entry in os.scandir(parent):
        if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            if entry.stat(follow_symlinks=False).st_uid == os.getuid() and _remove_if_abandoned(entry.path):
                removed.append(entry.path)
        except OSError:  # another process was quicker
            continue
    return removed


def _remove_if_abandoned(folder: str) -> bool:
    try:
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR)
    except FileNotFoundError:
        if time.time() - os.stat(folder).st_mtime < _UNLOCKED_AGE_S:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(lock)
