"""A stage run on worker processes: feeds what workers say to the ``Coordinator`` and does what it decides.

Promises: a worker that dies (idle, busy or in the middle of a message), goes silent or passes its memory
limit costs its attempt, not the stage; results are committed once per task, in this process; Ctrl-C ends
the pool.
Does not: decide which attempt runs next, or know what a result contains.

Retries: a task may lose ``max_attempts`` workers (4) and raise ``max_raises`` times (3) before the stage is
given up; errors that cannot go away (bad input, disk full) are given up at once.
"""

from __future__ import annotations

import contextlib
import pickle
import selectors
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import errors
from .coordinator import Abort, Accept, Action, Assign, Coordinator, Discard, Failure, Stop, Task
from .events import AttemptRow, Commit, Event, OnEvent, StageResult, reduce_payloads
from .pickling import pickle_by_value
from .processes import Pool, Worker, absolute_path, no_interrupt
from .sequential import run_here
from .worker import MapOutputLost, Program, TaskInfo

__all__ = [
    "AttemptRow", "Commit", "Event", "MapOutputLost", "OnEvent", "Pool", "Program", "StageResult", "Task",
    "TaskInfo", "run_stage",
]  # fmt: skip

_START_TIMEOUT_S = 60.0


def run_stage(
    pool: Pool,
    *,
    maps: Sequence[Any],
    reduces: Sequence[Any] | int,
    program: bytes | Program,
    title: str = "",
    commit: Commit | None = None,
    discard: Commit | None = None,
    on_event: OnEvent | None = None,
    max_attempts: int = 4,
    max_raises: int = 3,
) -> StageResult:
    """Run a stage's maps, then its reduces, and return what they returned.

    A pool of 0 workers runs them in this process, one after the other and each once, for a debugger: what a task
    raises comes out as it is.

    Args:
        maps: a payload per map task; one with a ``describe()`` is named by it in errors.
        reduces: a payload per reduce task, or their number (the payload is then the index); 0 for map-only.
        program: a ``Program``, or one pickled by cloudpickle.
        title: of the stage, for the rows.
        commit: called in this process, once per task that makes output (reduces, or maps without reduces).
        discard: called with a result that nobody wants.
        on_event: called for each event.
        max_attempts, max_raises: see the module.

    Raises:
        FunctionFailed: code of the stage raised; ``traceback_text`` is the user's own.
        WorkerFailed: a task lost its worker too often, or no worker could be started.
        MemoryExceeded: a worker passed its memory limit.
        JobError: what the package's own code raised in a worker, under its own class.
    """
    payloads = {"map": list(maps), "reduce": reduce_payloads(reduces)}
    if pool.workers == 0:
        return run_here(pool, payloads, program, title, commit, on_event)
    run = _StageRun(pool, payloads, program, title, max_attempts, max_raises)
    run.commit, run.discard, run.on_event = commit, discard, on_event
    try:
        return run.run()
    except Exception:
        with no_interrupt():
            run.stop_busy()
            pool.remove_stage_files(run.stage)
        raise
    except BaseException:  # Ctrl-C
        pool.close()
        raise


class _StageRun:
    """One stage on a pool: the loop that waits for workers and carries out the coordinator's actions."""

    commit: Commit | None = None
    discard: Commit | None = None
    on_event: OnEvent | None = None

    def __init__(
        self,
        pool: Pool,
        payloads: dict[str, list[Any]],
        program: bytes | Program,
        title: str,
        max_attempts: int,
        max_raises: int,
    ) -> None:
        self.pool = pool
        self.payloads = payloads
        self.stage_title = title
        self.program = program if isinstance(program, bytes) else pickle_by_value(program)
        self.coordinator = Coordinator(
            maps=len(payloads["map"]), reduces=len(payloads["reduce"]), max_attempts=max_attempts,
            max_raises=min(max_raises, max_attempts), timeout_s=pool.timeout_s,
        )  # fmt: skip
        self.stage = pool.stages
        pool.stages += 1
        self.map_bytes: dict[int, bytes] = {}  # pickled results, as workers get them
        self.rows: list[AttemptRow] = []
        self.selector = selectors.DefaultSelector()

    def run(self) -> StageResult:
        coordinator, pool = self.coordinator, self.pool
        with self.selector:
            if pool.arrivals is not None:
                self.selector.register(pool.arrivals, selectors.EVENT_READ, None)
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
                    if worker is None:
                        continue  # the next round starts it
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
        try:
            started = self.pool.start(self.coordinator.unfinished)
        except OSError as error:
            raise errors.WorkerFailed(f"cannot start a worker process: {error}") from error
        for worker in started:
            self.watch(worker)

    def watch(self, worker: Worker) -> None:
        self.selector.register(worker.channel, selectors.EVENT_READ, worker)

    def watch_writes(self, worker: Worker) -> None:
        if not worker.channel.closed and self.pool.has(worker):
            writes = selectors.EVENT_WRITE if worker.channel.wants_to_send else 0
            self.selector.modify(worker.channel, selectors.EVENT_READ | writes, worker)

    def look_after(self, now: float) -> None:
        """Find deaths that the socket does not show (a grandchild holds it) and starts that hang."""
        for worker in self.pool.living():
            if worker.ended:
                self.receive(worker)
                if self.pool.has(worker):
                    self.lose(worker, worker.end_description())
            elif not worker.ready and now - worker.started > _START_TIMEOUT_S:
                self.lose(worker, f"was not ready after {_START_TIMEOUT_S:.0f} s")

    def lose(self, worker: Worker, reason: str | Failure, outcome: str = "lost") -> None:
        """Remove a worker and tell the coordinator why it is gone."""
        text = reason.message if isinstance(reason, Failure) else f"worker {worker.number} {reason}"
        task, attempt = self.coordinator.running(worker.number) or (None, 0)
        if task is not None:
            self.record(worker, task, attempt, outcome, text)
        tail = worker.tail()
        # The coordinator hears of the loss before the files are gone: see Coordinator.task_failed.
        actions = self.coordinator.worker_lost(worker.number, reason, time.monotonic())
        self.remove(worker)
        self.emit(outcome, worker.number, task, attempt, text)
        self.act(actions)
        if not worker.ready:
            last = f"; it printed: {tail.splitlines()[-1]}" if tail else ""
            self.pool.failed_to_start(worker, f"{text}{last}")

    def remove(self, worker: Worker) -> None:
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

    def receive(self, worker: Worker) -> None:
        for message in worker.channel.receive():
            if not self.pool.has(worker):
                return
            self.handle(worker, message)
        if worker.channel.closed and self.pool.has(worker):
            self.lose(worker, worker.end_description())

    def handle(self, worker: Worker, message: tuple[Any, ...]) -> None:
        now = time.monotonic()
        what = message[0]
        if what == "ready":
            self.pool.has_started(worker)
            self.act(self.coordinator.worker_joined(worker.number, now))
            return
        if what == "printed":
            worker.keep_printed(message[1])
            return
        if what == "beat" and (message[1] != self.stage or message[2] is None):
            self.coordinator.heartbeat(worker.number, None, now)
            return
        if message[1] != self.stage:
            return
        task, attempt = Task(*message[2]), message[3]
        if what == "beat":
            self.coordinator.heartbeat(worker.number, message[4]["counters"], now)
            worker.said = message[4]
            self.emit("running", worker.number, task, attempt, "", message[4])
        elif what == "done":
            self.done(worker, task, attempt, message[4], message[5])
        elif what == "failed":
            failure = Failure(**message[4])
            text, used = f"{failure.error}: {failure.message}", message[6]
            self.record(worker, task, attempt, "failed", text, used)
            if message[5] is None:
                actions = self.coordinator.task_failed(worker.number, task, attempt, failure, now)
            else:
                actions = self.coordinator.fetch_failed(
                    worker.number, task, attempt, message[5][0], message[5][1], now
                )
            self.emit("failed", worker.number, task, attempt, text, used)
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
        self, worker: Worker, task: Task, attempt: int, result_bytes: bytes, used: Mapping[str, Any]
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
        actions = self.coordinator.task_done(
            worker.number, task, attempt, result, now, counters=used["counters"]
        )
        if task.kind == "map" and self.coordinator.map_attempt(task.index) == attempt:
            self.map_bytes[task.index] = result_bytes
        outcome = "discarded" if actions and isinstance(actions[0], Discard) else "done"
        self.record(worker, task, attempt, outcome, "", used)
        self.act(actions, result)
        self.emit(outcome, worker.number, task, attempt, "", used)

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
                worker, text = self.pool.get(action.worker), f"worker {action.worker} {action.reason}"
                if action.task is not None:
                    self.record(worker, action.task, action.attempt, "lost", text)
                self.remove(worker)
                self.emit("lost", action.worker, action.task, action.attempt, text)
            elif isinstance(action, Abort):
                raise self.error(action)

    def assign(self, action: Assign) -> None:
        worker, task = self.pool.get(action.worker), action.task
        worker.attempt_started, worker.said = time.time(), {}
        channel = worker.channel
        if worker.stage != self.stage:
            channel.send(("stage", self.stage, self.program, absolute_path()))
            worker.stage, worker.has_maps, worker.losses_seen = self.stage, {}, -1
        maps = len(action.map_results) if action.map_results is not None else 0
        if maps and worker.losses_seen != self.coordinator.losses:
            # All maps are done now; only what the worker has not got yet.
            worker.losses_seen = self.coordinator.losses
            current = ((i, self.coordinator.map_attempt(i)) for i in range(maps))
            news = [(i, a, self.map_bytes[i]) for i, a in current if worker.has_maps.get(i) != a]
            if news:
                channel.send(("maps", news))
                worker.has_maps.update((i, a) for i, a, _ in news)
        keep = task.kind == "map" and bool(self.payloads["reduce"])
        payload = pickle_by_value(self.payloads[task.kind][task.index])
        channel.send(("task", task.kind, task.index, action.attempt, payload, maps, keep))
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
        worker: Worker,
        task: Task,
        attempt: int,
        outcome: str,
        message: str,
        used: Mapping[str, Any] | None = None,
    ) -> None:
        self.rows.append(
            AttemptRow(
                stage=self.stage_title, kind=task.kind, task=task.index, attempt=attempt, worker=worker.number,
                start=worker.attempt_started, end=time.time(), outcome=outcome, message=message,
                **(worker.said if used is None else used),
            )
        )  # fmt: skip

    def emit(
        self,
        outcome: str,
        worker: int,
        task: Task | None,
        attempt: int,
        message: str = "",
        used: Mapping[str, Any] | None = None,
    ) -> None:
        if self.on_event is not None:
            c, read = self.coordinator, used or {}
            self.on_event(
                Event(
                    outcome=outcome, worker=worker, task=task, attempt=attempt, message=message,
                    records_in=read.get("records_in", 0),
                    bytes_in=read.get("bytes_in", 0) + read.get("store_read_bytes", 0),
                    maps=c.maps, maps_done=c.done("map"), reduces=c.reduces, reduces_done=c.done("reduce"),
                    counters=c.live_counters(),
                )
            )  # fmt: skip


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"
