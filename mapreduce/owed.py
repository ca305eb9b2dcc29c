"""What a run must not leave behind, noted where a later run finds it if this one is killed.

One file per run in ``owed/`` of the home folder, locked with ``flock`` while its run lives (the kernel
drops the lock with the process).  A line per folder: an intermediate one is dropped, a staged output too,
and what it was about to replace goes back to its place.  Files of living runs are left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path

from .home import home_folder
from .publish import drop_folder, undo_staging


class Owed:
    """The note of one living run."""

    def __init__(self, run_id: str) -> None:
        folder = home_folder() / "owed"
        folder.mkdir(exist_ok=True)
        self._path = folder / run_id
        # Locked before it gets its name, so that no other run takes it for abandoned.
        hidden = folder / f".{run_id}"
        self._lock = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        hidden.rename(self._path)

    def add(self, kind: str, url: str) -> None:
        """Note a folder before it is made; ``kind`` is ``store`` or ``output``."""
        os.write(self._lock, (json.dumps([kind, url]) + "\n").encode())

    def close(self, *, settled: bool) -> None:
        """End the note; without ``settled`` it stays for a later run to settle."""
        if settled:
            self._path.unlink(missing_ok=True)
        os.close(self._lock)


def remove_owed() -> list[str]:
    """Remove what killed runs left in stores and beside outputs; return the names of those runs."""
    folder = home_folder() / "owed"
    settled = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith("."):
            continue
        # Locked, taken by another process, or not removable now: remote filesystems have errors of all kinds,
        # and what an earlier run left must not keep this one from running.
        with contextlib.suppress(Exception):
            lock = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
                path.unlink()
                settled.append(path.name)
            finally:
                os.close(lock)
    return settled


def _remove(path: Path) -> None:
    for line in path.read_text().splitlines():
        kind, url = json.loads(line)
        if kind == "store":
            drop_folder(url, {})
        else:
            undo_staging(url)
