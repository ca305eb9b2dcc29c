"""Which attempt runs next: a pure state machine, events in, actions out.

Promises: every task is accepted exactly once per life of its output (the first completion wins, later
ones are discarded); a lost worker's completed maps run again while any reduce still needs them;
completed reduces are published and never run again; counters add up accepted attempts only.  A decision
costs O(1), the state O(maps + reduces), so that 99,000 maps and 1,000 reduces fit (Dean & Ghemawat
2004, sections 3.2, 3.3, 3.5, 4.9).

Does not: read a clock (``now`` is an argument), do I/O, start threads or know what a result contains.

Reduces start when the last map is done.  A reduce that fails after a map output it was given has been
lost is run again without being charged for it.

Places for what comes later:

* *backup attempts* (3.6): ``_dispatch``, where a worker is free and nothing is idle.  Several running
  attempts of one task are already told apart by worker and attempt number; the first to finish wins.
* *record skipping* (4.6): ``_charge``, where a task's failures are counted; a ``Failure`` would name the
  record and the next ``Assign`` carry the records to skip.
* *restarted master* (3.3): everything to save is in ``__init__``; accepted results and attempt numbers
  are enough to resume, running attempts would simply be idle again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

IDLE, RUNNING, DONE = 0, 1, 2


@dataclass(frozen=True, order=True, slots=True)
class Task:
    """A map or reduce task of one stage."""

    kind: str  # "map" or "reduce"
    index: int

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an attempt ended badly, as text that can travel.

    ``error`` is the name of an exception class; ``final`` means that another attempt cannot help.
    """

    error: str
    message: str
    traceback_text: str = ""
    final: bool = False


@dataclass(frozen=True, kw_only=True)
class Assign:
    """Start this attempt.  ``map_results`` (for reduces) is the coordinator's own list, not a copy."""

    worker: int
    task: Task
    attempt: int
    map_results: Sequence[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Accept:
    """The task is done; publish this result.  Comes once per task that makes output."""

    worker: int
    task: Task
    attempt: int
    result: Any


@dataclass(frozen=True, kw_only=True)
class Discard:
    """Nobody wants this attempt's result; remove what it made."""

    worker: int
    task: Task
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Stop:
    """End this worker, which runs ``task`` or nothing; the coordinator has already taken it off its list."""

    worker: int
    reason: str
    task: Task | None
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Abort:
    """The stage cannot be completed."""

    task: Task
    attempts: int
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Every task is done."""


Action = Assign | Accept | Discard | Stop | Abort | Finished


class _Attempt(NamedTuple):
    task: Task
    attempt: int
    losses: int  # map outputs lost so far when this attempt was assigned
    counters: Mapping[str, int]


class Coordinator:
    """The state of one stage; each event method returns the actions that follow from it, in order.

    Args:
        maps, reduces: number of tasks; without reduces the maps make the output.
        max_attempts: a task aborts the stage when this many of its workers died or went silent.
        max_raises: a task aborts the stage when it raised this often.
        timeout_s: a worker not heard for longer is lost.

    Raises:
        ValueError: a count is negative or a limit below 1.
    """

    def __init__(
        self, *, maps: int, reduces: int, max_attempts: int = 4, max_raises: int = 3, timeout_s: float = 60.0
    ) -> None:
        if maps < 0 or reduces < 0:
            raise ValueError(f"maps and reduces must be >= 0, got {maps} and {reduces}")
        if max_attempts < 1 or max_raises < 1:
            raise ValueError(f"max_attempts and max_raises must be >= 1, got {max_attempts} and {max_raises}")
        self.maps = maps
        self.reduces = reduces
        self.max_attempts = max_attempts
        self.max_raises = max_raises
        self.timeout_s = timeout_s
        self.map_results: list[Any] = [None] * maps
        self.reduce_results: list[Any] = [None] * reduces
        self.counters: Counter[str] = Counter()  # of accepted attempts
        self.losses = 0  # map outputs that were done and had to be made again
        self.finished = False
        self.aborted = False
        self._left = {"map": maps, "reduce": reduces}  # tasks not done
        self._state = {"map": bytearray(maps), "reduce": bytearray(reduces)}
        self._next_attempt = {"map": [0] * maps, "reduce": [0] * reduces}
        self._idle = {"map": deque(range(maps)), "reduce": deque(range(reduces))}
        self._map_attempt = [-1] * maps  # the accepted attempt of each completed map
        self._map_counters: list[Mapping[str, int] | None] = [None] * maps
        self._made_by: dict[int, set[int]] = {}  # worker -> maps whose output lies on its disk
        self._deaths: Counter[Task] = Counter()
        self._raises: Counter[Task] = Counter()
        self._unreadable: Counter[int] = Counter()
        self._running: dict[int, _Attempt] = {}
        self._free: dict[int, None] = {}  # ordered set of workers without a task
        self._heard: dict[int, float] = {}  # every worker, the longest silent first

    # --- what can be asked ---

    def done(self, kind: str) -> int:
        """Return how many tasks of a kind are done."""
        return (self.maps if kind == "map" else self.reduces) - self._left[kind]

    @property
    def unfinished(self) -> int:
        """Tasks that are not done."""
        return self._left["map"] + self._left["reduce"]

    def running(self, worker: int) -> tuple[Task, int] | None:
        """Return the worker's task and attempt number, None when it has none."""
        attempt = self._running.get(worker)
        return None if attempt is None else (attempt.task, attempt.attempt)

    def map_attempt(self, index: int) -> int:
        """Return the accepted attempt of a completed map, -1 when the map is not done."""
        return self._map_attempt[index]

    def live_counters(self) -> Counter[str]:
        """Return the counters of accepted attempts plus what running ones reported last."""
        total = Counter(self.counters)
        for attempt in self._running.values():
            total.update(attempt.counters)
        return total

    # --- events ---

    def worker_joined(self, worker: int, now: float) -> list[Action]:
        """A worker is ready for tasks."""
        if worker in self._heard or self.aborted:
            return []
        self._heard[worker] = now
        self._free[worker] = None
        return self._dispatch(now)

    def worker_lost(self, worker: int, reason: str | Failure, now: float) -> list[Action]:
        """A worker is gone, with the output of its maps; its running task is charged with the reason."""
        actions: list[Action] = []
        self._forget(worker, reason, actions)
        return actions + self._dispatch(now)

    def task_done(
        self,
        worker: int,
        task: Task,
        attempt: int,
        result: Any,
        now: float,
        counters: Mapping[str, int] | None = None,
    ) -> list[Action]:
        """An attempt is complete; the first for its task is accepted, any other is discarded."""
        if not self._release(worker, task, attempt, now) or self._state[task.kind][task.index] == DONE:
            return [Discard(worker=worker, task=task, attempt=attempt), *self._dispatch(now)]
        self._state[task.kind][task.index] = DONE
        self._left[task.kind] -= 1
        self.counters.update(counters or {})
        actions: list[Action] = []
        if task.kind == "map":
            self.map_results[task.index] = result
            self._map_attempt[task.index] = attempt
            if self.reduces:
                self._map_counters[task.index] = counters
                self._made_by.setdefault(worker, set()).add(task.index)
        else:
            self.reduce_results[task.index] = result
        if task.kind == "reduce" or not self.reduces:
            actions.append(Accept(worker=worker, task=task, attempt=attempt, result=result))
        return actions + self._dispatch(now)

    def task_failed(
        self, worker: int, task: Task, attempt: int, failure: Failure, now: float
    ) -> list[Action]:
        """An attempt raised; its worker is free again."""
        running = self._running.get(worker)
        if running is None or not self._release(worker, task, attempt, now):
            return []
        actions: list[Action] = []
        if task.kind == "reduce" and running.losses != self.losses:
            self._requeue(task)  # it may have been reading what was lost: not its fault
        else:
            self._charge(task, failure, actions)
        return actions + self._dispatch(now)

    def fetch_failed(
        self, worker: int, task: Task, attempt: int, map_index: int, map_attempt: int | None, now: float
    ) -> list[Action]:
        """A reduce could not read a map's output (None: of the accepted attempt); that map runs again."""
        if not self._release(worker, task, attempt, now):
            return []
        actions: list[Action] = []
        self._requeue(task)
        current = self._map_attempt[map_index]
        if current >= 0 and map_attempt in (None, current):
            self._unreadable[map_index] += 1
            for made in self._made_by.values():
                made.discard(map_index)
            self._lose_map(map_index)
            if self._unreadable[map_index] >= self.max_attempts:
                failure = Failure(error="Damaged", message=f"output of map {map_index} could not be read")
                self._abort(Task("map", map_index), self._unreadable[map_index], failure, actions)
        return actions + self._dispatch(now)

    def heartbeat(self, worker: int, counters: Mapping[str, int] | None, now: float) -> list[Action]:
        """A worker is alive; ``counters`` are those of its running attempt."""
        if worker in self._heard:
            self._hear(worker, now)
            attempt = self._running.get(worker)
            if attempt is not None and counters is not None:
                self._running[worker] = attempt._replace(counters=counters)
        return []

    def tick(self, now: float) -> list[Action]:
        """Time has passed: workers silent for longer than ``timeout_s`` are lost and stopped."""
        actions: list[Action] = []
        while self._heard:
            worker, heard = next(iter(self._heard.items()))
            if now - heard <= self.timeout_s:
                break
            reason = f"was silent for {now - heard:.1f} s"
            task, attempt = self.running(worker) or (None, 0)
            actions.append(Stop(worker=worker, reason=reason, task=task, attempt=attempt))
            self._forget(worker, reason, actions)
        return actions + self._dispatch(now)

    def resumed(self, now: float) -> list[Action]:
        """The caller itself was asleep: nobody's silence before ``now`` counts."""
        for worker in self._heard:
            self._heard[worker] = now
        return []

    # --- inside ---

    def _dispatch(self, now: float) -> list[Action]:
        if self.aborted or self.finished:
            return []
        if not self.unfinished:
            self.finished = True
            return [Finished()]
        actions: list[Action] = []
        while self._free:
            # Maps first: a map that has to run again holds up every reduce that is not running yet.
            kind = "map" if self._idle["map"] else "reduce"
            if not self._idle[kind] or (kind == "reduce" and self._left["map"]):
                break
            index = self._idle[kind].popleft()
            worker, _ = self._free.popitem()  # the last to be freed: its memory and caches are warm
            task, attempt = Task(kind, index), self._next_attempt[kind][index]
            self._next_attempt[kind][index] += 1
            self._state[kind][index] = RUNNING
            self._running[worker] = _Attempt(task, attempt, self.losses, {})
            self._hear(worker, now)
            results = self.map_results if kind == "reduce" else None
            actions.append(Assign(worker=worker, task=task, attempt=attempt, map_results=results))
        return actions

    def _hear(self, worker: int, now: float) -> None:
        self._heard.pop(worker, None)
        self._heard[worker] = now

    def _release(self, worker: int, task: Task, attempt: int, now: float) -> bool:
        """Free the worker from this attempt; False when it is not what the worker runs."""
        running = self._running.get(worker)
        if running is None or (running.task, running.attempt) != (task, attempt):
            return False
        del self._running[worker]
        self._free[worker] = None
        self._hear(worker, now)
        return True

    def _requeue(self, task: Task) -> None:
        self._state[task.kind][task.index] = IDLE
        self._idle[task.kind].appendleft(task.index)

    def _charge(self, task: Task, failure: Failure, actions: list[Action], died: bool = False) -> None:
        """Count a failure and queue the task again, or abort."""
        counts, limit = (self._deaths, self.max_attempts) if died else (self._raises, self.max_raises)
        counts[task] += 1
        self._requeue(task)
        if failure.final or counts[task] >= limit:
            self._abort(task, counts[task], failure, actions)

    def _abort(self, task: Task, attempts: int, failure: Failure, actions: list[Action]) -> None:
        if not self.aborted:
            self.aborted = True
            actions.append(Abort(task=task, attempts=attempts, failure=failure))

    def _forget(self, worker: int, reason: str | Failure, actions: list[Action]) -> None:
        if self._heard.pop(worker, None) is None:
            return
        self._free.pop(worker, None)
        made = self._made_by.pop(worker, set())
        if self._left["reduce"]:
            for index in sorted(made, reverse=True):  # appendleft turns them round
                self._lose_map(index)
        attempt = self._running.pop(worker, None)
        if attempt is None or self._state[attempt.task.kind][attempt.task.index] == DONE:
            return
        if isinstance(reason, Failure):
            self._charge(attempt.task, reason, actions)
        else:
            failure = Failure(error="WorkerFailed", message=f"worker {worker} {reason}")
            self._charge(attempt.task, failure, actions, died=True)

    def _lose_map(self, index: int) -> None:
        self.losses += 1
        self._left["map"] += 1
        self.counters.subtract(self._map_counters[index] or {})
        self._map_counters[index] = None
        self.map_results[index] = None
        self._map_attempt[index] = -1
        self._requeue(Task("map", index))
