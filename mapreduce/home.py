"""Where runs keep what they know: one home folder with the runs' records and logs.

``MR_HOME`` if set, else ``mrdag`` in the platform's folder for user data.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from .errors import BadJob


def home_folder() -> Path:
    """Return the home folder, made if it is not there; the store's default folder lies in it too."""
    named = os.environ.get("MR_HOME")
    data = os.environ.get("XDG_DATA_HOME")
    # The XDG specification has relative values ignored.
    base = Path(data) if data and os.path.isabs(data) else Path.home() / ".local" / "share"
    folder = Path(named).expanduser().absolute() if named else base / "mrdag"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def new_run(job_name: str) -> tuple[str, Path]:
    """Make the folder of a new run and return its identity and the folder.

    Identities sort by the time at which their runs began: ``20261130-101502.042-wordcount-3f9c``.
    """
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in job_name)[:40]
    now = time.time()
    begun = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}.{int(now * 1000) % 1000:03d}"
    run_id = f"{begun}-{safe}-{secrets.token_hex(2)}"
    folder = home_folder() / "runs" / run_id
    folder.mkdir(parents=True)
    return run_id, folder


def list_runs() -> list[dict[str, Any]]:
    """Return the records of all runs, the newest last; a run that left no record is shown as unfinished."""
    folder = home_folder() / "runs"
    records = []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        try:
            records.append(cast("dict[str, Any]", json.loads((entry / "record.json").read_text())))
        except (OSError, ValueError):
            records.append({"run": entry.name, "outcome": "unfinished"})
    return records


def find_run(run_id: str) -> Path:
    """Return the folder of the run whose identity is, or uniquely begins or ends with, ``run_id``.

    Raises:
        BadJob: no run or several runs match.
    """
    folder = home_folder() / "runs"
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    if run_id == "last" and names:
        return folder / names[-1]
    matching = [n for n in names if n == run_id] or [
        n for n in names if n.startswith(run_id) or n.endswith(run_id)
    ]
    if len(matching) != 1:
        found = f"{len(matching)} runs match" if matching else "no run matches"
        raise BadJob(f"{found} {run_id!r}; `mr runs` lists them")
    return folder / matching[0]


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write a run's record in one step, so that a reader never sees half of it."""
    partial = folder / "record.json.partial"
    partial.write_text(json.dumps(record, indent=1, default=str))
    partial.replace(folder / "record.json")
