"""Worker processes: started, signalled, ended, with nothing left behind.

Promises: a worker is a fresh interpreter (never a fork of this process, which may have threads), so scripts
need no main guard; it leads its own session, and it and whatever it started are killed as one process
group; its disk goes with it.  Does not: know tasks, or what workers say.

``Worker`` and ``Pool`` are what a stage needs of workers; here they are on this machine, in ``cluster.py`` on others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from .channel import Channel
from .errors import WorkerFailed
from .tuning import worker_environment

_TAIL_BYTES = 2000
_START_FAILURES = 10
# The same sys.path as here, so that a worker imports the same modules.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2].split(chr(10)); "
    "from mapreduce.worker import main; main(*map(int, sys.argv[1].split()))"
)


class Worker(ABC):
    """One worker as the driving side sees it, wherever it runs."""

    def __init__(self, number: int, channel: Channel, log: str) -> None:
        self.number = number
        self.channel = channel
        self.log = log  # a file on this machine with what it has printed
        self.ready = False
        self.started = time.monotonic()
        self.stage = -1  # the stage whose program it has
        self.has_maps: dict[int, int] = {}  # map -> attempt whose result it has
        self.losses_seen = -1  # Coordinator.losses when it was last sent map results
        self.attempt_started = 0.0
        self.said: Mapping[str, Any] = {}  # what its last heartbeat told of the attempt

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process id, on its own machine."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True if the worker has ended."""

    @abstractmethod
    def kill(self) -> None:
        """Begin to end the worker and all that it started; does not wait."""

    @abstractmethod
    def end(self) -> None:
        """End the worker; its disk goes too."""

    @abstractmethod
    def remove_stage_files(self, stage: int) -> None:
        """Remove what the maps of a stage left on its disk."""

    @abstractmethod
    def end_description(self) -> str:
        """Say how the worker ended, waiting a moment for one that is just ending."""

    def keep_printed(self, printed: bytes) -> None:
        """Add to its log what a worker has sent that prints on another machine."""
        with open(self.log, "ab") as log:
            log.write(printed)

    def tail(self) -> str:
        """Return the last lines of what the worker printed."""
        try:
            with open(self.log, "rb") as log:
                log.seek(max(0, os.path.getsize(self.log) - _TAIL_BYTES))
                return log.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""


class WorkerProcess(Worker):
    """A worker process on this machine."""

    def __init__(
        self, number: int, process: subprocess.Popen[bytes], channel: Channel, folder: str, log: str
    ) -> None:
        super().__init__(number, channel, log)
        self.process = process
        self.folder = folder

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def ended(self) -> bool:
        """True if the process has ended; it is not reaped, so its id stays taken and can be signalled."""
        if self.process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.process.pid, flags) is not None
        return True

    def kill(self) -> None:
        """Kill the process and all that it started; does not wait."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and remove its disk."""
        self.kill()
        self.process.wait()
        self.channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def remove_stage_files(self, stage: int) -> None:
        """Remove what the maps of a stage left on its disk."""
        shutil.rmtree(os.path.join(self.folder, f"stage-{stage}"), ignore_errors=True)

    def end_description(self) -> str:
        """Say how the process ended, waiting a moment for one that is just ending, and reap it."""
        deadline = time.monotonic() + 0.5
        while not self.ended and time.monotonic() < deadline:
            time.sleep(0.001)
        ended = self.ended
        self.kill()
        code = self.process.wait()
        return describe_end(code) if ended else "closed its connection"


def describe_end(code: int) -> str:
    """Say how a process with this exit status ended, as ``Popen.returncode`` has it."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        return f"was killed by signal {-code} ({name})"
    return f"ended with exit status {code}"


def spawn_worker(
    connection: socket.socket, log: str, environment: Mapping[str, str], *, leash: int | None = None,
    folder: str | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start the process that serves the other end of ``connection`` and prints into ``log``.

    ``leash`` is a descriptor to read from: the process ends when that is closed at its other end.  ``folder`` is where it works.
    """
    path = absolute_path()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if root not in path:  # imported by a finder that is not a path, such as an editable install
        path.append(root)
    descriptors = [connection.fileno()] + ([] if leash is None else [leash])
    with open(log, "ab") as printed:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, " ".join(map(str, descriptors)), "\n".join(path)],
            stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, env=dict(environment),
            pass_fds=descriptors, start_new_session=True, cwd=folder,
        )  # fmt: skip


class Pool:
    """Up to ``workers`` processes, started when a stage needs them and kept for the next.

    Args:
        workers: processes at one time; 0 for a pool that lends its settings to tasks in this process.
        memory_bytes: per process, for a task's buffers; ``TaskInfo.memory_bytes``.
        watchdog_bytes: a worker whose VmHWM passes this ends; by default ``memory_bytes`` plus a quarter, at
            least plus 160 MiB for the interpreter and its libraries.  0 for no limit.
        timeout_s: a worker silent for longer is killed.
        scratch: folder for the workers' local disks (``worker-N/``) and what they print (``worker-N.log``).
        environment: more environment variables for the workers.
        preload: modules that a worker imports before it is ready.

    Raises:
        ValueError: ``workers`` is negative.
    """

    def __init__(
        self,
        workers: int,
        *,
        memory_bytes: int,
        scratch: str,
        watchdog_bytes: int | None = None,
        timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = ("mapreduce.task",),
    ) -> None:
        if workers < 0:
            raise ValueError(f"workers must be >= 0, got {workers}")
        self.workers = workers
        self.memory_bytes = memory_bytes
        if watchdog_bytes is None:
            watchdog_bytes = memory_bytes + max(memory_bytes // 4, 160 << 20)
        self.watchdog_bytes = watchdog_bytes
        self.timeout_s = timeout_s
        self.scratch = scratch
        self._environment = {**worker_environment(), **os.environ, **(environment or {})}
        self._preload = tuple(preload)
        self._living: dict[int, Worker] = {}
        self._numbers = 0
        self.stages = 0
        self._start_failures = 0
        self.closed = False
        self.scheduler: str | None = None  # of workers that are not on this machine
        #: a descriptor that can be read when ``start`` has a worker to return that was asked for earlier
        self.arrivals: int | None = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def processes(self) -> dict[int, int]:
        """Process ids of the living workers, by worker number."""
        return {number: worker.pid for number, worker in self._living.items()}

    def start(self, workers: int) -> list[Worker]:
        """Start processes until ``workers`` (at most the pool's own number) are there; return the new ones.

        Does not wait until they are ready, so that a caller can plan meanwhile.
        """
        if self.closed:
            raise ValueError("the pool is closed")
        started: list[Worker] = []
        while len(self._living) < min(workers, self.workers):
            started.append(self._start_one())
        return started

    def _start_one(self) -> WorkerProcess:
        number = self._numbers
        self._numbers += 1
        folder = os.path.join(self.scratch, f"worker-{number}")
        log_path = os.path.join(self.scratch, f"worker-{number}.log")
        os.makedirs(folder, mode=0o700)
        ours, theirs = socket.socketpair()
        try:
            process = spawn_worker(theirs, log_path, self._environment)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        worker = WorkerProcess(number, process, Channel(ours), folder, log_path)
        self._living[number] = worker
        worker.channel.send(self.settings(number, folder))
        return worker

    def settings(self, number: int, folder: str) -> dict[str, Any]:
        """Return the first message to a worker."""
        return {
            "number": number, "folder": folder, "memory_bytes": self.memory_bytes,
            "watchdog_bytes": self.watchdog_bytes, "heartbeat_s": min(1.0, self.timeout_s / 4),
            "preload": self._preload,
        }  # fmt: skip

    def living(self) -> list[Worker]:
        """Return the workers that have not been removed."""
        return list(self._living.values())

    def get(self, number: int) -> Worker:
        """Return a living worker by its number."""
        return self._living[number]

    def has(self, worker: Worker) -> bool:
        """True until the worker has been removed."""
        return self._living.get(worker.number) is worker

    def remove(self, worker: Worker) -> None:
        """End a worker; its disk goes too."""
        worker.end()
        self._living.pop(worker.number, None)

    def remove_stage_files(self, stage: int) -> None:
        """Remove what the maps of a stage left on the workers' disks."""
        for worker in self.living():
            worker.remove_stage_files(stage)

    def has_started(self, worker: Worker) -> None:
        """Note that a worker is ready for tasks."""
        worker.ready = True
        self._start_failures = 0

    def failed_to_start(self, worker: Worker, reason: str) -> None:
        """Note that a worker was lost before it was ready.

        Raises:
            WorkerFailed: so many in a row were that the machine is at fault.
        """
        self._start_failures += 1
        if self._start_failures >= _START_FAILURES:
            raise WorkerFailed(f"{self._start_failures} workers in a row did not start: {reason}")

    def check_sees(self, urls: Sequence[str]) -> None:
        """Refuse files that a worker has no access to, as BadJob; there are none on this machine."""

    def move_logs(self, folder: str | os.PathLike[str]) -> None:
        """Add what the workers have printed since the last call to ``worker-N.log`` files in ``folder``."""
        for number in range(self._numbers):
            name = f"worker-{number}.log"
            with contextlib.suppress(FileNotFoundError), open(os.path.join(self.scratch, name), "rb+") as log:
                if os.fstat(log.fileno()).st_size:
                    with open(os.path.join(folder, name), "ab") as kept:
                        shutil.copyfileobj(log, kept)
                    log.truncate(0)  # a worker that lives on appends

    def close(self) -> None:
        """End all processes and remove their disks; a Ctrl-C meanwhile does not stop it."""
        self.closed = True
        with no_interrupt():
            for worker in self.living():
                worker.kill()  # all at once, before waiting for any
            for worker in self.living():
                self.remove(worker)


def absolute_path() -> list[str]:
    """Return ``sys.path`` as another process needs it."""
    return [os.path.abspath(entry) if entry == "" else entry for entry in sys.path]


@contextlib.contextmanager
def no_interrupt() -> Iterator[None]:
    """Ignore SIGINT in the block (only the main thread can, and only it gets KeyboardInterrupt)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
