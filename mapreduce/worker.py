"""A worker process: takes one task at a time, answers with a result or a failure, shows that it is alive.

Three threads: the main one runs tasks; one receives messages, and ends the whole process group when the
pool is gone; one sends a heartbeat with counters and watches the process's own peak memory (VmHWM).
Errors leave as text (class, message, traceback), never as exception objects, which may not unpickle.
Does not: decide anything about other tasks, or touch files outside its attempt's folder.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import os
import pickle
import queue
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from .channel import receive_frame, send_frame
from .errors import BadInput, BadJob, BadKey, BadValue, FunctionFailed, JobError, MissingInput, OutputExists
from .meter import Meter, current_meter, metering
from .pandas_import import put_off_pandas

# The next attempt would meet the same: the disk stays full, the input stays bad.
_FINAL_ERRORS = (BadJob, BadKey, BadValue, BadInput, MissingInput, OutputExists)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_FINAL_ERRNOS = (*_DISK_FULL, errno.EROFS, errno.EACCES, errno.EPERM)
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PRINTED_BYTES = 1 << 16
_CLEAR_PEAK = b"5"  # proc(5), /proc/pid/clear_refs: resets VmHWM


class MapOutputLost(JobError):
    """A reduce cannot read the output of map ``map_index``; raise it to have that map run again."""

    def __init__(self, map_index: int, map_attempt: int | None = None) -> None:
        super().__init__(map_index, map_attempt)
        self.map_index = map_index
        self.map_attempt = map_attempt

    def __str__(self) -> str:
        return f"the output of map {self.map_index} cannot be read"


@dataclass(kw_only=True, eq=False)
class TaskInfo:
    """What an attempt knows about itself; its counters and progress reach the parent with the heartbeat."""

    kind: str  # "map" or "reduce"
    index: int
    attempt: int
    worker: int
    scratch: str  # the attempt's own folder; a map's stays until the stage ends if there are reduces
    memory_bytes: int
    counters: Counter[str] = field(default_factory=Counter)
    map_attempts: tuple[int, ...] = ()  # for a reduce: which attempt made each of its map results
    meter: Meter = field(default_factory=lambda: current_meter() or Meter())

    def used(self) -> dict[str, Any]:
        """Return counters and what the meter shows so far, as they travel."""
        return {"counters": sendable(self.counters), **self.meter.columns()}


class Program(Protocol):
    """What a stage does; sent to each worker once per stage, so it may keep state between tasks."""

    def run_map(self, payload: Any, task: TaskInfo) -> Any:
        """Do a map task; the result is small (references to files) and pickles."""

    def run_reduce(self, payload: Any, map_results: list[Any], task: TaskInfo) -> Any:
        """Do a reduce task from the results of all maps, in the order of maps."""


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as the fields of a ``Failure``: class name, message, the user's traceback."""
    try:
        message = str(error)
    except Exception as broken:  # a user's __str__ may raise
        message = f"(its message could not be made: {type(broken).__name__})"
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    full = any(isinstance(e, OSError) and e.errno in _FINAL_ERRNOS for e in chain)
    return {
        "error": type(error).__name__,
        "message": message if isinstance(error, JobError) else " ".join(message.split())[:2000],
        "traceback_text": _traceback_text(error),
        "final": full or isinstance(error, _FINAL_ERRORS),
    }


def is_disk_full(error: BaseException) -> bool:
    """True for the system's error of a full disk that nobody has put into words yet."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL and not isinstance(error, JobError)


def describe_full_disk(task: str, error: BaseException, folder: str) -> str:
    """Return the words for a task that filled the disk under its temporary folder."""
    return f"{task} cannot write: {error}; its worker's disk is {folder} (TMPDIR says where it lies)"


def _traceback_text(error: BaseException) -> str:
    if isinstance(error, FunctionFailed):
        return error.traceback_text
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next  # start at the user's first frame, where there is one
    try:
        return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))
    except Exception:
        return f"{type(error).__name__}\n"


def peak_memory_bytes() -> int:
    """Return VmHWM of this process, 0 where there is no /proc."""
    try:
        with open("/proc/self/status", "rb") as status:
            for line in status:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def reset_peak_memory() -> None:
    """Have VmHWM of this process begin again at what it uses now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "wb", buffering=0) as clear:
        clear.write(_CLEAR_PEAK)


def sendable(counters: Mapping[Any, Any]) -> dict[str, int]:
    """Return a copy of the counters that is sure to travel; safe while another thread counts."""
    return {str(name): n for name, n in list(counters.items()) if isinstance(n, int)}


class _Worker:
    def __init__(self, connection: socket.socket, settings: Mapping[str, Any]) -> None:
        self.connection = connection
        self.number: int = settings["number"]
        self.folder: str = settings["folder"]
        self.memory_bytes: int = settings["memory_bytes"]
        self.watchdog_bytes: int = settings["watchdog_bytes"]
        self.heartbeat_s: float = settings["heartbeat_s"]
        log = settings.get("log")  # of a worker on another machine: what it prints has to travel
        self.log = -1 if log is None else os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sending = threading.Lock()
        self.current: tuple[int, TaskInfo] | None = None
        self.stage = -1
        self.program: Program | None = None
        self.program_failure: dict[str, Any] | None = None
        self.map_results: dict[int, tuple[int, Any]] = {}

    def send(self, message: tuple[Any, ...]) -> None:
        with self.sending:
            send_frame(self.connection, message)

    def receive_forever(self) -> None:
        try:
            while True:
                self.inbox.put(receive_frame(self.connection))
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)  # the pool is gone, and with it everybody who wants a result

    def beat_forever(self) -> None:
        while True:
            time.sleep(self.heartbeat_s)
            current = self.current
            if current is None:
                # Between stages nobody reads; a full socket buffer must not block the next result.
                if not select.select([], [self.connection], [], 0)[1]:
                    continue
                message: tuple[Any, ...] = ("beat", self.stage, None, 0, None)
            else:
                stage, task = current
                self.watch_memory(stage, task)
                message = ("beat", stage, (task.kind, task.index), task.attempt, task.used())
            with contextlib.suppress(OSError):
                self.send_printed()
                self.send(message)

    def send_printed(self) -> None:
        """Send what this process has printed since the last call, if it prints on another machine than the pool's."""
        while self.log >= 0 and (printed := os.read(self.log, _PRINTED_BYTES)):
            self.send(("printed", printed))

    def watch_memory(self, stage: int, task: TaskInfo) -> None:
        peak = peak_memory_bytes()
        if self.watchdog_bytes and peak > self.watchdog_bytes:
            # Under pressure the main thread may hold the lock for long; the exit alone says enough then.
            if self.sending.acquire(timeout=2):
                with contextlib.suppress(OSError):
                    send_frame(
                        self.connection, ("memory", stage, (task.kind, task.index), task.attempt, peak)
                    )
            os._exit(1)

    def run_forever(self) -> None:
        while True:
            message = self.inbox.get()
            if message[0] == "stage":
                _, self.stage, program, path = message
                sys.path += [entry for entry in path if entry not in sys.path]
                self.map_results = {}
                self.program = self.program_failure = None
                try:
                    self.program = pickle.loads(program)
                except BaseException as error:
                    self.program_failure = {**describe_error(error), "final": True}
                    self.program_failure["message"] = (
                        f"a worker cannot load the stage's functions: {type(error).__name__}: {error}"
                    )
            elif message[0] == "maps":
                for index, attempt, result in message[1]:
                    self.map_results[index] = (attempt, pickle.loads(result))
            elif message[0] == "task":
                self.run_task(*message[1:])
            elif message[0] == "forget":  # what the maps of a stage left on this disk
                shutil.rmtree(os.path.join(self.folder, f"stage-{message[1]}"), ignore_errors=True)

    def run_task(self, kind: str, index: int, attempt: int, payload: bytes, maps: int, keep: bool) -> None:
        folder = os.path.join(self.folder, f"stage-{self.stage}", f"{kind}-{index:05d}-{attempt}")
        task = TaskInfo(
            kind=kind, index=index, attempt=attempt, worker=self.number, scratch=folder,
            memory_bytes=self.memory_bytes,
            map_attempts=tuple(self.map_results[i][0] for i in range(maps)) if kind == "reduce" else (),
            meter=Meter(disk=self.folder),
        )  # fmt: skip
        name = (kind, index)
        reset_peak_memory()
        started_cpu_s = time.process_time()
        self.current = (self.stage, task)
        failure = self.program_failure
        lost: tuple[int, int | None] | None = None
        result = b""
        if failure is None:
            assert self.program is not None
            try:
                if kind == "map":  # a reduce seldom needs one, and there may be many of them
                    os.makedirs(folder)
                with metering(task.meter):
                    if kind == "map":
                        answer = self.program.run_map(pickle.loads(payload), task)
                    else:
                        results = [self.map_results[i][1] for i in range(maps)]
                        answer = self.program.run_reduce(pickle.loads(payload), results, task)
                result = _pickle_result(answer)
            except MapOutputLost as error:
                failure, lost = describe_error(error), (error.map_index, error.map_attempt)
            except BaseException as error:  # SystemExit too costs an attempt, not the worker
                failure = describe_error(error)
                if is_disk_full(error):
                    failure["error"] = "OutputFailed"
                    failure["message"] = describe_full_disk(f"{kind} {index}", error, self.folder)
        if failure is None or not failure["final"]:  # one that is final says more
            self.watch_memory(self.stage, task)
        self.current = None
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self.send_printed()
        if failure is not None or not keep:
            shutil.rmtree(folder, ignore_errors=True)
        used = {
            **task.used(),
            **task.meter.finish(),
            "peak_memory_bytes": peak_memory_bytes(),
            "cpu_s": time.process_time() - started_cpu_s,
        }
        if failure is None:
            self.send(("done", self.stage, name, attempt, result, used))
        else:
            self.send(("failed", self.stage, name, attempt, failure, lost, used))


def _pickle_result(answer: Any) -> bytes:
    try:
        return pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception:
        from .pickling import pickle_by_value

        return pickle_by_value(answer)


def _end_with(leash: int, folder: str) -> None:
    """Wait until the other end of a pipe is closed, then end the whole process group, and leave nothing behind."""
    with contextlib.suppress(OSError):
        os.read(leash, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def main(descriptor: int, leash: int = -1) -> None:
    """Serve the pool at the other end of this socket until it is gone, or until that of the pipe ``leash`` is."""
    os.set_inheritable(descriptor, False)
    faulthandler.enable()  # a crash in C code leaves its Python stack in the worker's log
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    connection = socket.socket(fileno=descriptor)
    try:
        settings = receive_frame(connection)
    except (EOFError, OSError):
        return
    if leash >= 0:
        os.set_inheritable(leash, False)
        threading.Thread(target=_end_with, args=(leash, settings["disk"]), daemon=True, name="leash").start()
    worker = _Worker(connection, settings)
    threading.Thread(target=worker.receive_forever, daemon=True, name="receive").start()
    put_off_pandas()
    gc.disable()  # what imports make stays
    for module in settings["preload"]:
        __import__(module)
    put_off_pandas()
    if "serve" in settings:
        from .cluster_runs import serve_runs

        serve_runs(settings["serve"], settings["token"], settings["folder"])
    gc.freeze()
    gc.enable()
    if "pyarrow" in sys.modules:
        # One worker is one core: the pool is the parallelism.
        sys.modules["pyarrow"].set_cpu_count(1)
    worker.send(("ready",))
    threading.Thread(target=worker.beat_forever, daemon=True, name="heartbeat").start()
    worker.run_forever()
