"""A Dask cluster that somebody else started: ``dask scheduler`` and ``dask worker`` from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_DASK = [sys.executable, "-m", "dask"]
#: Dask's own profiler and monitors wake its processes a hundred times a second, also where they have nothing to do.
_CALM = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "2s",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
}


class StartedCluster:
    """A scheduler at ``address`` and the commands that run its workers."""

    def __init__(self, address: str, folder: str) -> None:
        self.address = address
        self.folder = folder
        self.commands: list[subprocess.Popen[str]] = []

    def add_workers(
        self, count: int, *, threads: int = 1, before: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[str]:
        """Start a command (behind the words ``before``) with ``count`` worker processes and wait until they are registered."""
        command = subprocess.Popen(
            [*before, *_DASK, "worker", self.address, "--nthreads", str(threads), "--nworkers", str(count),
             "--no-dashboard", "--local-directory", self.folder],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd="/", env={**os.environ, **_CALM, **environment},
        )  # fmt: skip
        self.commands.append(command)
        assert command.stderr is not None
        registered = 0
        while registered < count:
            line = command.stderr.readline()
            assert line, "dask worker has ended"
            registered += "Registered to:" in line
        threading.Thread(target=command.stderr.read, daemon=True).start()
        return command

    def stop(self, command: subprocess.Popen[str]) -> None:
        """End a command of workers as its owner would."""
        command.terminate()
        command.wait(120)
        self.commands.remove(command)


@contextmanager
def started_cluster(folder: str, *, host: str = "127.0.0.1", **environment: str) -> Iterator[StartedCluster]:
    """Start a scheduler that listens at ``host``; its workers will have their disks in ``folder``."""
    settings: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": "/", "text": True}
    scheduler = subprocess.Popen(
        [*_DASK, "scheduler", "--host", host, "--port", "0", "--no-dashboard"],
        stderr=subprocess.PIPE, env={**os.environ, **_CALM, **environment}, **settings,
    )  # fmt: skip
    cluster = None
    try:
        assert scheduler.stderr is not None
        lines = iter(scheduler.stderr.readline, "")
        address = next(line for line in lines if "Scheduler at:" in line).split()[-1]
        threading.Thread(target=scheduler.stderr.read, daemon=True).start()
        cluster = StartedCluster(address, folder)
        yield cluster
    finally:
        commands = [*(cluster.commands if cluster else []), scheduler]
        for process in commands:  # the scheduler last, for the workers take leave of it
            process.terminate()
            process.wait(120)
