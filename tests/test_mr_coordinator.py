"""The coordinator against a model that keeps everything in dicts, and its rules one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mapreduce.coordinator import (
    Abort,
    Accept,
    Action,
    Assign,
    Coordinator,
    Discard,
    Failure,
    Finished,
    Stop,
    Task,
)

NEVER = 10**9  # attempts, where a test is about something else
RAISED = Failure(error="ValueError", message="bad")


def kinds(actions: list[Action]) -> list[type]:
    return [type(a) for a in actions]


def assigned(actions: list[Action]) -> dict[int, tuple[Task, int]]:
    return {a.worker: (a.task, a.attempt) for a in actions if isinstance(a, Assign)}


class CoordinatorAgainstDicts(RuleBasedStateMachine):
    """Workers that join, die, raise, finish, finish twice, fall silent and lose files, in any order."""

    @initialize(maps=st.integers(0, 5), reduces=st.integers(0, 3))
    def begin(self, maps: int, reduces: int) -> None:
        self.coordinator = Coordinator(
            maps=maps, reduces=reduces, max_attempts=NEVER, max_raises=NEVER, timeout_s=10
        )
        self.tasks = {Task("map", i) for i in range(maps)} | {Task("reduce", i) for i in range(reduces)}
        self.makers = "reduce" if reduces else "map"
        self.now = 0.0
        self.workers: dict[int, float] = {}  # worker -> when it was last heard
        self.busy: dict[int, tuple[Task, int]] = {}
        self.outputs: dict[Task, tuple[int, Any]] = {}  # what exists now, and on whose disk
        self.published: dict[Task, Any] = {}
        self.attempts: set[tuple[Task, int]] = set()
        self.finished = False
        self.next_worker = 0
        self.take(self.coordinator.tick(self.now))

    def take(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            assert not self.finished or isinstance(action, Stop | Discard)
            if isinstance(action, Assign):
                assert action.worker in self.workers
                assert action.worker not in self.busy
                assert action.task not in self.outputs
                assert action.task not in {task for task, _ in self.busy.values()}
                assert (action.task, action.attempt) not in self.attempts
                if action.task.kind == "reduce":
                    maps = sorted(t for t in self.tasks if t.kind == "map")
                    assert list(action.map_results or ()) == [self.outputs[t][1] for t in maps]
                self.attempts.add((action.task, action.attempt))
                self.busy[action.worker] = (action.task, action.attempt)
                self.workers[action.worker] = self.now
            elif isinstance(action, Accept):
                assert action.task.kind == self.makers
                assert action.task not in self.published
                self.published[action.task] = action.result
            elif isinstance(action, Stop):
                assert self.now - self.workers[action.worker] > 10
                self.forget(action.worker)
            elif isinstance(action, Finished):
                self.finished = True
            else:
                assert isinstance(action, Discard)
        return actions

    def forget(self, worker: int) -> None:
        del self.workers[worker]
        self.busy.pop(worker, None)
        if any(t.kind == "reduce" and t not in self.outputs for t in self.tasks):
            lost = [t for t, (by, _) in self.outputs.items() if by == worker and t.kind == "map"]
            for task in lost:
                del self.outputs[task]

    @rule()
    def join(self) -> None:
        worker = self.next_worker
        self.next_worker += 1
        self.workers[worker] = self.now
        self.take(self.coordinator.worker_joined(worker, self.now))

    def pick(self, data: st.DataObject, among: Any) -> Any:
        return data.draw(st.sampled_from(sorted(among)))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        worker = self.pick(data, self.workers)
        self.forget(worker)
        self.take(self.coordinator.worker_lost(worker, "was killed", self.now))

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        worker = self.pick(data, self.busy)
        task, attempt = self.busy.pop(worker)
        self.workers[worker] = self.now
        result = (task, attempt)
        self.outputs[task] = (worker, result)
        self.take(
            self.coordinator.task_done(worker, task, attempt, result, self.now, counters={"records": 1})
        )

    @precondition(lambda self: self.attempts and self.workers)
    @rule(data=st.data())
    def finish_what_is_not_mine(self, data: st.DataObject) -> None:
        """A late or repeated completion changes nothing."""
        worker = self.pick(data, self.workers)
        task, attempt = self.pick(data, self.attempts)
        if self.busy.get(worker) != (task, attempt):
            actions = self.coordinator.task_done(worker, task, attempt, "late", self.now, {"records": 1})
            assert self.take(actions) == [Discard(worker=worker, task=task, attempt=attempt)]

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        worker = self.pick(data, self.busy)
        task, attempt = self.busy.pop(worker)
        self.workers[worker] = self.now
        self.take(self.coordinator.task_failed(worker, task, attempt, RAISED, self.now))

    @precondition(lambda self: any(t.kind == "reduce" for t, _ in self.busy.values()))
    @rule(data=st.data())
    def lose_a_file(self, data: st.DataObject) -> None:
        worker = self.pick(data, [w for w, (t, _) in self.busy.items() if t.kind == "reduce"])
        maps = sorted(t.index for t in self.tasks if t.kind == "map")
        if maps:
            index = self.pick(data, maps)
            task, attempt = self.busy.pop(worker)
            self.workers[worker] = self.now
            self.outputs.pop(Task("map", index), None)
            self.take(self.coordinator.fetch_failed(worker, task, attempt, index, None, self.now))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), counters=st.just({"records": 7}))
    def beat(self, data: st.DataObject, counters: dict[str, int]) -> None:
        worker = self.pick(data, self.workers)
        self.workers[worker] = self.now
        self.take(self.coordinator.heartbeat(worker, counters, self.now))

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.coordinator.tick(self.now))
        assert all(self.now - heard <= 10 for heard in self.workers.values())

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        for kind in ("map", "reduce"):
            done = [t for t in self.outputs if t.kind == kind]
            assert self.coordinator.done(kind) == len(done)
        assert self.coordinator.counters["records"] == len(self.outputs)
        assert self.finished == (self.outputs.keys() == self.tasks)
        if not self.finished:  # nobody is free while there is something to do
            waiting = self.tasks - self.outputs.keys() - {task for task, _ in self.busy.values()}
            maps_left = any(t.kind == "map" and t not in self.outputs for t in self.tasks)
            runnable = {t for t in waiting if t.kind == "map" or not maps_left}
            assert not runnable or not self.workers.keys() - self.busy.keys()

    def teardown(self) -> None:
        """From any state, one worker that stays alive brings the stage to its end."""
        if not hasattr(self, "coordinator"):
            return
        if not self.workers:
            self.join()
        while not self.finished:
            worker = min(self.busy)
            task, attempt = self.busy.pop(worker)
            self.outputs[task] = (worker, (task, attempt))
            counters = {"records": 1}
            self.take(self.coordinator.task_done(worker, task, attempt, (task, attempt), self.now, counters))
        makers = {t for t in self.tasks if t.kind == self.makers}
        assert self.published == {t: self.outputs[t][1] for t in makers}
        assert self.coordinator.counters["records"] == len(self.tasks)


TestCoordinatorAgainstDicts = CoordinatorAgainstDicts.TestCase
TestCoordinatorAgainstDicts.settings = settings(
    max_examples=settings.default.max_examples * 4, stateful_step_count=40
)


def start(workers: int = 2, **given: Any) -> tuple[Coordinator, dict[int, tuple[Task, int]]]:
    coordinator = Coordinator(**given)
    running: dict[int, tuple[Task, int]] = {}
    for worker in range(workers):
        running |= assigned(coordinator.worker_joined(worker, 0.0))
    return coordinator, running


def test_a_stage_of_nothing_is_finished_at_once() -> None:
    assert Coordinator(maps=0, reduces=0).tick(0.0) == [Finished()]


def test_reduces_of_no_maps_get_no_map_results() -> None:
    coordinator = Coordinator(maps=0, reduces=1)
    assert coordinator.worker_joined(0, 0.0) == [
        Assign(worker=0, task=Task("reduce", 0), attempt=0, map_results=[])
    ]


def test_a_dead_workers_maps_run_again_and_its_reduces_do_not() -> None:
    coordinator, _ = start(2, maps=2, reduces=2)
    coordinator.task_done(0, Task("map", 0), 0, "m0", 0.0)
    coordinator.task_done(1, Task("map", 1), 0, "m1", 0.0)
    coordinator.task_done(1, Task("reduce", 0), 0, "r0", 0.0)  # reduce 1 runs on worker 0
    assert coordinator.worker_lost(1, "was killed", 0.0) == []
    assert (coordinator.done("map"), coordinator.done("reduce")) == (1, 1)
    assert assigned(coordinator.worker_joined(2, 0.0)) == {2: (Task("map", 1), 1)}


def test_a_dead_workers_maps_do_not_run_again_when_no_reduce_is_left() -> None:
    coordinator, _ = start(1, maps=1, reduces=1)
    coordinator.task_done(0, Task("map", 0), 0, "m", 0.0)
    assert kinds(coordinator.task_done(0, Task("reduce", 0), 0, "r", 0.0)) == [Accept, Finished]
    assert coordinator.worker_lost(0, "was killed", 0.0) == []
    assert coordinator.done("map") == 1


def test_a_map_only_stage_keeps_what_a_dead_worker_published() -> None:
    coordinator, _ = start(1, maps=2, reduces=0)
    assert kinds(coordinator.task_done(0, Task("map", 0), 0, "m", 0.0)) == [Accept, Assign]
    coordinator.worker_lost(0, "was killed", 0.0)
    assert assigned(coordinator.worker_joined(1, 0.0)) == {1: (Task("map", 1), 1)}


def test_counters_of_a_map_that_ran_twice_count_once() -> None:
    coordinator, _ = start(1, maps=1, reduces=1)
    coordinator.task_done(0, Task("map", 0), 0, "m", 0.0, counters={"records": 5})
    coordinator.worker_lost(0, "was killed", 0.0)
    assert coordinator.counters["records"] == 0
    coordinator.worker_joined(1, 0.0)
    coordinator.heartbeat(1, {"records": 3}, 0.0)
    assert coordinator.live_counters() == Counter(records=3)
    coordinator.task_done(1, Task("map", 0), 1, "m", 0.0, counters={"records": 5})
    assert coordinator.counters == Counter(records=5)


def test_a_worker_that_keeps_dying_aborts_after_max_attempts() -> None:
    coordinator, _ = start(0, maps=1, reduces=0, max_attempts=3)
    for worker in range(2):
        coordinator.worker_joined(worker, 0.0)
        assert kinds(coordinator.worker_lost(worker, "was killed by signal 9 (SIGKILL)", 0.0)) == []
    coordinator.worker_joined(2, 0.0)
    (abort,) = coordinator.worker_lost(2, "was killed by signal 9 (SIGKILL)", 0.0)
    assert isinstance(abort, Abort)
    assert (abort.task, abort.attempts) == (Task("map", 0), 3)
    assert abort.failure.message == "worker 2 was killed by signal 9 (SIGKILL)"
    assert coordinator.worker_joined(3, 0.0) == []


def test_a_task_that_raises_is_tried_max_raises_times_and_a_final_failure_once() -> None:
    coordinator, running = start(1, maps=1, reduces=0, max_raises=2)
    actions = coordinator.task_failed(0, *running[0], RAISED, 0.0)
    assert assigned(actions) == {0: (Task("map", 0), 1)}
    assert kinds(coordinator.task_failed(0, Task("map", 0), 1, RAISED, 0.0)) == [Abort]

    coordinator, running = start(1, maps=1, reduces=0)
    final = Failure(error="BadInput", message="bad", final=True)
    assert kinds(coordinator.task_failed(0, *running[0], final, 0.0)) == [Abort]


def test_a_reduce_that_fails_after_a_map_was_lost_is_not_charged() -> None:
    coordinator, _ = start(2, maps=2, reduces=1, max_raises=1)
    coordinator.task_done(1, Task("map", 1), 0, "m1", 0.0)
    coordinator.task_done(0, Task("map", 0), 0, "m0", 0.0)
    assert coordinator.running(0) == (Task("reduce", 0), 0)
    coordinator.worker_lost(1, "was killed", 0.0)
    actions = coordinator.task_failed(0, Task("reduce", 0), 0, RAISED, 0.0)
    assert assigned(actions) == {0: (Task("map", 1), 1)}
    actions = coordinator.task_done(0, Task("map", 1), 1, "again", 0.0)
    assert actions == [Assign(worker=0, task=Task("reduce", 0), attempt=1, map_results=["m0", "again"])]
    assert kinds(coordinator.task_failed(0, Task("reduce", 0), 1, RAISED, 0.0)) == [Abort]


def test_a_map_whose_output_is_never_readable_aborts() -> None:
    coordinator, _ = start(1, maps=1, reduces=1, max_attempts=2)
    for attempt in range(2):
        coordinator.task_done(0, Task("map", 0), attempt, "m", 0.0)
        actions = coordinator.fetch_failed(0, Task("reduce", 0), attempt, 0, attempt, 0.0)
    (abort,) = actions
    assert isinstance(abort, Abort)
    assert abort.task == Task("map", 0)
    assert abort.failure.error == "Damaged"


def test_silence_is_counted_from_the_last_word() -> None:
    coordinator, running = start(2, maps=2, reduces=0, timeout_s=10)
    coordinator.heartbeat(1, None, 8.0)
    assert coordinator.tick(10.0) == []
    (stop,) = coordinator.tick(10.5)
    assert stop == Stop(worker=0, reason="was silent for 10.5 s", task=running[0][0], attempt=0)
    assert coordinator.heartbeat(0, None, 11.0) == []
    assert coordinator.tick(18.0) == []


def test_nobody_is_silent_while_the_caller_slept() -> None:
    coordinator, _ = start(2, maps=2, reduces=0, timeout_s=10)
    coordinator.resumed(5000.0)
    assert coordinator.tick(5001.0) == []


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="got -1 and 0"):
        Coordinator(maps=-1, reduces=0)
    with pytest.raises(ValueError, match="must be >= 1, got 0 and 3"):
        Coordinator(maps=1, reduces=0, max_attempts=0)
