"""Worker processes, and a stage run on them.

``Pool`` starts, watches and ends processes; ``run_stage`` feeds what they say to the ``Coordinator`` and does
what it decides.  Promises: a worker that dies, idle or busy or in the middle of a message, goes silent or passes its
memory limit costs its attempt, not the stage; no process and no file of the pool is left when its ``with``
block ends, whatever ends it.  Workers are fresh interpreters (never forks of this process, which may have
threads), so scripts need no main guard.  Each is the leader of its own session: it and whatever it
started are killed as one process group.

Retries: a task may lose ``max_attempts`` workers (4) and raise ``max_raises`` times (3) before the stage is given up;
errors that cannot go away (bad input, disk full) are given up at once.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from . import errors
from .channel import Channel
from .coordinator import Abort, Accept, Action, Assign, Coordinator, Discard, Failure, Stop, Task
from .worker import Program, TaskInfo, sendable

_START_TIMEOUT_S = 60.0
_START_FAILURES = 3  # so many workers in a row that never became ready: the machine is at fault
_TAIL_BYTES = 2000
# One worker is one core.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_BOOT = (
    "import sys; sys.path[:] = sys.argv[2].split(chr(10)); "
    "from mapreduce.worker import main; main(int(sys.argv[1]))"
)


@dataclass(frozen=True, kw_only=True)
class AttemptRow:
    """What became of one attempt.  Times are seconds since the epoch."""

    kind: str
    task: int
    attempt: int
    worker: int
    start: float
    end: float
    outcome: (
        str  # "done", "failed", "lost" (its worker died or went silent), "memory", "discarded" or "stopped"
    )
    message: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened: "start", "beat", "done", "failed", "lost" (a worker), "memory".

    ``counters`` are live: accepted attempts plus what running ones said last.
    """

    what: str
    worker: int
    task: Task | None = None
    attempt: int = 0
    message: str = ""
    maps: int
    maps_done: int
    reduces: int
    reduces_done: int
    counters: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """Results by task index, counters of accepted attempts, and one row per attempt."""

    map_results: list[Any]
    reduce_results: list[Any]
    counters: dict[str, int]
    rows: list[AttemptRow]


OnEvent = Callable[[Event], None]
Commit = Callable[[Task, int, Any], None]


class _Process:
    """One worker process as the pool sees it."""

    def __init__(
        self, number: int, process: subprocess.Popen[bytes], channel: Channel, folder: str, log: str
    ):
        self.number = number
        self.process = process
        self.channel = channel
        self.folder = folder
        self.log = log
        self.ready = False
        self.started = time.monotonic()
        self.stage = -1  # the stage whose program it has
        self.has_maps: dict[int, int] = {}  # map -> attempt whose result it has
        self.attempt_started = 0.0

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

    def end_description(self) -> str:
        """Say how the process ended, waiting a moment for one that is just ending, and reap it."""
        deadline = time.monotonic() + 0.5
        while not self.ended and time.monotonic() < deadline:
            time.sleep(0.001)
        ended = self.ended
        self.kill()
        code = self.process.wait()
        if not ended:
            return "closed its connection"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = "unknown"
            return f"was killed by signal {-code} ({name})"
        return f"ended with exit status {code}"

    def tail(self) -> str:
        """Return the last lines of what the worker printed."""
        try:
            with open(self.log, "rb") as log:
                log.seek(max(0, os.path.getsize(self.log) - _TAIL_BYTES))
                return log.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""


class Pool:
    """Up to ``workers`` processes, started when a stage needs them and kept for the next.

    Args:
        workers: processes at one time.
        memory_bytes: per process, for a task's buffers; ``TaskInfo.memory_bytes``.
        watchdog_bytes: a worker whose VmHWM passes this ends; by default ``memory_bytes`` plus a quarter, at
            least plus 160 MiB for the interpreter and its libraries.  0 for no limit.
        timeout_s: a worker silent for longer is killed.
        scratch: folder for the workers' local disks (``worker-N/``).
        log_folder: folder for what workers print (``worker-N.log``); ``scratch`` otherwise.
        environment: more environment variables for the workers.
        preload: modules that a worker imports before it is ready.

    Raises:
        ValueError: ``workers`` is below 1.
    """

    def __init__(
        self,
        workers: int,
        *,
        memory_bytes: int,
        scratch: str,
        watchdog_bytes: int | None = None,
        timeout_s: float = 60.0,
        log_folder: str | None = None,
        environment: Mapping[str, str] | None = None,
        preload: Sequence[str] = ("numpy", "pyarrow"),
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be >= 1, got {workers}")
        self.workers = workers
        self.memory_bytes = memory_bytes
        if watchdog_bytes is None:
            watchdog_bytes = memory_bytes + max(memory_bytes // 4, 160 << 20)
        self.watchdog_bytes = watchdog_bytes
        self.timeout_s = timeout_s
        self.scratch = scratch
        self.log_folder = log_folder or scratch
        self._environment = {**_ONE_THREAD, **os.environ, **(environment or {})}
        self._preload = tuple(preload)
        self._processes: dict[int, _Process] = {}
        self._numbers = 0
        self.stages = 0
        self.start_failures = 0
        self.closed = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def processes(self) -> dict[int, int]:
        """Process ids of the living workers, by worker number."""
        return {number: p.process.pid for number, p in self._processes.items()}

    def start(self, workers: int) -> None:
        """Start processes until ``workers`` (at most the pool's own number) are there; returns at once."""
        if self.closed:
            raise ValueError("the pool is closed")
        while len(self._processes) < min(workers, self.workers):
            self._start_one()

    def _start_one(self) -> None:
        number = self._numbers
        self._numbers += 1
        folder = os.path.join(self.scratch, f"worker-{number}")
        log_path = os.path.join(self.log_folder, f"worker-{number}.log")
        os.makedirs(folder, mode=0o700)
        ours, theirs = socket.socketpair()
        path = "\n".join(os.path.abspath(entry) if entry == "" else entry for entry in sys.path)
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        if root not in path.split(
            "\n"
        ):  # imported by a finder that is not a path, such as an editable install
            path = f"{path}\n{root}"
        try:
            with open(log_path, "ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), path],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
                    pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        worker = _Process(number, process, Channel(ours), folder, log_path)
        self._processes[number] = worker
        worker.channel.send(
            {
                "number": number, "folder": folder, "memory_bytes": self.memory_bytes,
                "watchdog_bytes": self.watchdog_bytes, "heartbeat_s": min(1.0, self.timeout_s / 4),
                "preload": self._preload,
            }
        )  # fmt: skip

    def living(self) -> list[_Process]:
        """Return the processes that have not been removed."""
        return list(self._processes.values())

    def get(self, number: int) -> _Process | None:
        """Return a process by its worker number, None when it has been removed."""
        return self._processes.get(number)

    def remove(self, worker: _Process) -> None:
        """Kill a worker and remove its disk."""
        worker.kill()
        worker.process.wait()
        worker.channel.close()
        self._processes.pop(worker.number, None)
        shutil.rmtree(worker.folder, ignore_errors=True)

    def remove_stage_files(self, stage: int) -> None:
        """Remove what the maps of a stage left on the workers' disks."""
        for worker in self.living():
            shutil.rmtree(os.path.join(worker.folder, f"stage-{stage}"), ignore_errors=True)

    def close(self) -> None:
        """End all processes and remove their disks; a Ctrl-C meanwhile does not stop it."""
        self.closed = True
        with _no_interrupt():
            for worker in self.living():
                worker.kill()  # all at once, before waiting for any
            for worker in self.living():
                self.remove(worker)


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ignore SIGINT in the block (only the main thread can, and only it gets KeyboardInterrupt)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


def run_stage(
    pool: Pool,
    *,
    maps: Sequence[Any],
    reduces: Sequence[Any] | int,
    program: bytes | Program,
    commit: Commit | None = None,
    discard: Commit | None = None,
    on_event: OnEvent | None = None,
    max_attempts: int = 4,
    max_raises: int = 3,
) -> StageResult:
    """Run a stage's maps, then its reduces, and return what they returned.

    Args:
        maps: a payload per map task; one with a ``describe()`` is named by it in errors.
        reduces: a payload per reduce task, or their number (the payload is then the index); 0 for map-only.
        program: a ``Program``, or one pickled by cloudpickle.
        commit: called once per task that makes output (reduces, or maps of a map-only stage), in this process.
        discard: called with a result that nobody wants.
        on_event: called for each event.
        max_attempts, max_raises: see the module.

    Raises:
        FunctionFailed: code of the stage raised; ``traceback_text`` is the user's own.
        WorkerFailed: a task lost its worker too often, or no worker could be started.
        MemoryExceeded: a worker passed its memory limit.
        JobError: what the package's own code raised in a worker, under its own class.
    """
    run = _StageRun(pool, list(maps), _payloads(reduces), program, max_attempts, max_raises)
    run.commit, run.discard, run.on_event = commit, discard, on_event
    try:
        return run.run()
    except Exception:
        with _no_interrupt():
            run.stop_busy()
            pool.remove_stage_files(run.stage)
        raise
    except BaseException:  # Ctrl-C
        pool.close()
        raise


def _payloads(reduces: Sequence[Any] | int) -> list[Any]:
    return list(range(reduces)) if isinstance(reduces, int) else list(reduces)


class _StageRun:
    """One stage on a pool: the loop that waits for workers and carries out the coordinator's actions."""

    commit: Commit | None = None
    discard: Commit | None = None
    on_event: OnEvent | None = None

    def __init__(
        self,
        pool: Pool,
        maps: list[Any],
        reduces: list[Any],
        program: bytes | Program,
        max_attempts: int,
        max_raises: int,
    ) -> None:
        import cloudpickle

        self.pool = pool
        self.payloads = {"map": maps, "reduce": reduces}
        self.program = program if isinstance(program, bytes) else cloudpickle.dumps(program)
        self.pickle: Callable[[Any], bytes] = cloudpickle.dumps
        self.coordinator = Coordinator(
            maps=len(maps), reduces=len(reduces), max_attempts=max_attempts, max_raises=max_raises,
            timeout_s=pool.timeout_s,
        )  # fmt: skip
        self.stage = pool.stages
        pool.stages += 1
        self.map_bytes: dict[int, bytes] = {}  # pickled results, as workers get them
        self.rows: list[AttemptRow] = []
        self.selector = selectors.DefaultSelector()

    def run(self) -> StageResult:
        coordinator, pool = self.coordinator, self.pool
        with self.selector:
            for worker in pool.living():
                self.watch(worker)
                if worker.ready:
                    self.act(coordinator.worker_joined(worker.number, time.monotonic()))
            self.act(coordinator.tick(time.monotonic()))
            wait_s = min(1.0, pool.timeout_s / 4)
            before = time.monotonic()
            while not coordinator.finished:
                self.start_workers()
                for key, mask in self.selector.select(wait_s):
                    worker = key.data
                    if mask & selectors.EVENT_WRITE:
                        worker.channel.flush()
                    if mask & selectors.EVENT_READ:
                        self.receive(worker)
                    self.watch_writes(worker)
                now = time.monotonic()
                if now - before > wait_s + pool.timeout_s / 2:
                    coordinator.resumed(now)  # this process was stopped, the workers may have been too
                before = now
                self.look_after(now)
                self.act(coordinator.tick(now))
        self.stop_busy()
        pool.remove_stage_files(self.stage)
        return StageResult(
            map_results=list(coordinator.map_results), reduce_results=list(coordinator.reduce_results),
            counters=dict(coordinator.counters), rows=self.rows,
        )  # fmt: skip

    # --- processes ---

    def start_workers(self) -> None:
        known = set(self.pool.processes)
        self.pool.start(self.coordinator.unfinished)
        for worker in self.pool.living():
            if worker.number not in known:
                self.watch(worker)

    def watch(self, worker: _Process) -> None:
        self.selector.register(worker.channel, selectors.EVENT_READ, worker)

    def watch_writes(self, worker: _Process) -> None:
        if not worker.channel.closed and self.pool.get(worker.number) is worker:
            writes = selectors.EVENT_WRITE if worker.channel.wants_to_send else 0
            self.selector.modify(worker.channel, selectors.EVENT_READ | writes, worker)

    def look_after(self, now: float) -> None:
        """Find deaths that the socket does not show (a grandchild holds it) and starts that hang."""
        for worker in self.pool.living():
            if worker.ended:
                self.receive(worker)
                if self.pool.get(worker.number) is worker:
                    self.lose(worker, worker.end_description())
            elif not worker.ready and now - worker.started > _START_TIMEOUT_S:
                self.lose(worker, f"was not ready after {_START_TIMEOUT_S:.0f} s")

    def lose(self, worker: _Process, reason: str | Failure, outcome: str = "lost") -> None:
        """Remove a worker and tell the coordinator why it is gone."""
        text = reason.message if isinstance(reason, Failure) else f"worker {worker.number} {reason}"
        running = self.coordinator.running(worker.number)
        if running is not None:
            self.record(worker, *running, outcome, text)
        if not worker.ready:
            self.pool.start_failures += 1
        tail = worker.tail()
        # The coordinator hears of the loss before the files are gone: see Coordinator.task_failed.
        actions = self.coordinator.worker_lost(worker.number, reason, time.monotonic())
        self.remove(worker)
        self.emit(outcome, worker.number, running[0] if running else None, running[1] if running else 0, text)
        self.act(actions)
        if self.pool.start_failures >= _START_FAILURES:
            last = f"; it printed: {tail.splitlines()[-1]}" if tail else ""
            raise errors.WorkerFailed(
                f"{self.pool.start_failures} workers in a row did not start: {text}{last}"
            )

    def remove(self, worker: _Process) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(worker.channel)
        self.pool.remove(worker)

    def stop_busy(self) -> None:
        """End the workers whose tasks nobody wants any more."""
        for worker in self.pool.living():
            running = self.coordinator.running(worker.number)
            if running is not None:
                self.record(worker, *running, "stopped", "")
                self.remove(worker)

    # --- what workers say ---

    def receive(self, worker: _Process) -> None:
        for message in worker.channel.receive():
            if self.pool.get(worker.number) is not worker:
                return
            self.handle(worker, message)
        if worker.channel.closed and self.pool.get(worker.number) is worker:
            self.lose(worker, worker.end_description())

    def handle(self, worker: _Process, message: tuple[Any, ...]) -> None:
        now = time.monotonic()
        what = message[0]
        if what == "ready":
            worker.ready = True
            self.pool.start_failures = 0
            self.act(self.coordinator.worker_joined(worker.number, now))
            return
        if what == "beat" and (message[1] != self.stage or message[2] is None):
            self.coordinator.heartbeat(worker.number, None, now)
            return
        if message[1] != self.stage:
            return
        task, attempt = Task(*message[2]), message[3]
        if what == "beat":
            self.coordinator.heartbeat(worker.number, message[4], now)
            self.emit("beat", worker.number, task, attempt)
        elif what == "done":
            self.done(worker, task, attempt, message[4], message[5])
        elif what == "failed":
            failure = Failure(**message[4])
            self.record(worker, task, attempt, "failed", f"{failure.error}: {failure.message}", message[6])
            if message[5] is None:
                actions = self.coordinator.task_failed(worker.number, task, attempt, failure, now)
            else:
                actions = self.coordinator.fetch_failed(worker.number, task, attempt, message[5][0], message[5][1], now)
            self.emit("failed", worker.number, task, attempt, f"{failure.error}: {failure.message}")
            self.act(actions)
        elif what == "memory":
            text = (
                f"worker {worker.number} used {_megabytes(message[4])} of --memory "
                f"{_megabytes(self.pool.memory_bytes)} (limit with the interpreter "
                f"{_megabytes(self.pool.watchdog_bytes)}) in {self.title(task)}; "
                f"give more --memory, or smaller splits or more partitions"
            )
            self.lose(worker, Failure(error="MemoryExceeded", message=text), "memory")

    def done(
        self, worker: _Process, task: Task, attempt: int, result_bytes: bytes, used: Mapping[str, Any]
    ) -> None:
        now = time.monotonic()
        try:
            result = pickle.loads(result_bytes)
        except Exception as error:
            failure = Failure(
                error="WorkerFailed", final=True,
                message=f"the result of {self.title(task)} cannot be read: {type(error).__name__}: {error}",
            )  # fmt: skip
            self.record(worker, task, attempt, "failed", failure.message, used)
            self.act(self.coordinator.task_failed(worker.number, task, attempt, failure, now))
            return
        self.record(worker, task, attempt, "done", "", used)
        actions = self.coordinator.task_done(
            worker.number, task, attempt, result, now, counters=used["counters"]
        )
        if task.kind == "map" and self.coordinator.map_attempt(task.index) == attempt:
            self.map_bytes[task.index] = result_bytes
        self.act(actions, result)
        self.emit("done", worker.number, task, attempt)

    # --- what the coordinator decides ---

    def act(self, actions: Sequence[Action], result: Any = None) -> None:
        for action in actions:
            if isinstance(action, Assign):
                self.assign(action)
            elif isinstance(action, Accept):
                if self.commit is not None:
                    self.commit(action.task, action.attempt, action.result)
            elif isinstance(action, Discard):
                if self.discard is not None:
                    self.discard(action.task, action.attempt, result)
            elif isinstance(action, Stop):
                worker = self.pool.get(action.worker)
                if worker is not None:
                    self.remove(worker)
                    self.emit("lost", action.worker, None, 0, f"worker {action.worker} {action.reason}")
            elif isinstance(action, Abort):
                raise self.error(action)

    def assign(self, action: Assign) -> None:
        worker, task = self.pool.get(action.worker), action.task
        if worker is None:  # it died a moment ago; the coordinator is about to hear of it
            return
        channel = worker.channel
        if worker.stage != self.stage:
            channel.send(("stage", self.stage, self.program))
            worker.stage, worker.has_maps = self.stage, {}
        maps = len(action.map_results) if action.map_results is not None else 0
        if maps:
            # Only what the worker has not got yet.
            current = ((i, self.coordinator.map_attempt(i)) for i in range(maps))
            news = [(i, a, self.map_bytes[i]) for i, a in current if worker.has_maps.get(i) != a]
            if news:
                channel.send(("maps", news))
                worker.has_maps.update((i, a) for i, a, _ in news)
        keep = task.kind == "map" and bool(self.payloads["reduce"])
        payload = self.pickle(self.payloads[task.kind][task.index])
        channel.send(("task", task.kind, task.index, action.attempt, payload, maps, keep))
        worker.attempt_started = time.time()
        self.watch_writes(worker)
        self.emit("start", action.worker, task, action.attempt)

    # --- words ---

    def title(self, task: Task) -> str:
        payload = self.payloads[task.kind][task.index]
        describe = getattr(payload, "describe", None)
        return f"{task} ({describe()})" if callable(describe) else str(task)

    def error(self, abort: Abort) -> errors.JobError:
        failure = abort.failure
        kind = getattr(errors, failure.error, None)
        if failure.error == "WorkerFailed" and not failure.final:
            return errors.WorkerFailed(
                f"{self.title(abort.task)} was given up after {abort.attempts} attempts: {failure.message}"
            )
        if kind is errors.FunctionFailed:
            return errors.FunctionFailed(failure.message, failure.traceback_text)
        if isinstance(kind, type) and issubclass(kind, errors.JobError):
            return kind(failure.message)
        return errors.FunctionFailed(
            f"{self.title(abort.task)}: {failure.error}: {failure.message}", failure.traceback_text
        )

    def record(
        self,
        worker: _Process,
        task: Task,
        attempt: int,
        outcome: str,
        message: str,
        used: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows.append(
            AttemptRow(
                kind=task.kind, task=task.index, attempt=attempt, worker=worker.number,
                start=worker.attempt_started, end=time.time(), outcome=outcome, message=message, **(used or {}),
            )
        )  # fmt: skip

    def emit(
        self, what: str, worker: int, task: Task | None = None, attempt: int = 0, message: str = ""
    ) -> None:
        if self.on_event is not None:
            c = self.coordinator
            self.on_event(
                Event(
                    what=what, worker=worker, task=task, attempt=attempt, message=message,
                    maps=c.maps, maps_done=c.done("map"), reduces=c.reduces, reduces_done=c.done("reduce"),
                    counters=c.live_counters(),
                )
            )  # fmt: skip


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def run_stage_sequential(
    *,
    maps: Sequence[Any],
    reduces: Sequence[Any] | int,
    program: bytes | Program,
    scratch: str,
    memory_bytes: int,
    commit: Commit | None = None,
    on_event: OnEvent | None = None,
) -> StageResult:
    """Run a stage in this process, one task at a time, for a debugger; same results as ``run_stage``.

    There are no retries.  What a task raises comes out as it is, so that a debugger stops at the user's line.
    """
    runner: Program = pickle.loads(program) if isinstance(program, bytes) else program
    payloads = {"map": list(maps), "reduce": _payloads(reduces)}
    results: dict[str, list[Any]] = {"map": [], "reduce": []}
    totals: Counter[str] = Counter()
    rows: list[AttemptRow] = []

    def emit(what: str, task: Task) -> None:
        if on_event is not None:
            on_event(
                Event(
                    what=what, worker=0, task=task, counters=dict(totals),
                    maps=len(payloads["map"]), maps_done=len(results["map"]),
                    reduces=len(payloads["reduce"]), reduces_done=len(results["reduce"]),
                )
            )  # fmt: skip

    folder = os.path.join(scratch, "sequential")
    try:
        for kind in ("map", "reduce"):
            for index, payload in enumerate(payloads[kind]):
                task = Task(kind, index)
                own = os.path.join(folder, f"{kind}-{index:05d}-0")
                os.makedirs(own)
                info = TaskInfo(
                    kind=kind, index=index, attempt=0, worker=0, scratch=own, memory_bytes=memory_bytes,
                    map_attempts=(0,) * len(results["map"]) if kind == "reduce" else (),
                )  # fmt: skip
                emit("start", task)
                start, cpu_s = time.time(), time.process_time()
                if kind == "map":
                    result = runner.run_map(payload, info)
                else:
                    result = runner.run_reduce(payload, list(results["map"]), info)
                results[kind].append(result)
                counters = sendable(info.counters)
                totals.update(counters)
                rows.append(
                    AttemptRow(
                        kind=kind, task=index, attempt=0, worker=0, start=start, end=time.time(),
                        outcome="done", counters=counters, cpu_s=time.process_time() - cpu_s,
                    )
                )  # fmt: skip
                if commit is not None and (kind == "reduce" or not payloads["reduce"]):
                    commit(task, 0, result)
                emit("done", task)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return StageResult(
        map_results=results["map"], reduce_results=results["reduce"], counters=dict(totals), rows=rows
    )
