"""Drive the coordinator through a stage of 99,000 maps and 1,000 reduces in virtual time, and print its cost.

2,000 workers; an attempt takes 10 to 50 virtual seconds; a heartbeat of each worker and a tick arrive each
second; one attempt in a hundred fails and 20 workers die on the way.  The cost of heartbeats is counted
apart: they decide nothing.
"""

from __future__ import annotations

import heapq
import json
import random
import time
from pathlib import Path

from mapreduce.coordinator import Accept, Action, Assign, Coordinator, Failure, Finished, Task

MAPS, REDUCES, WORKERS, DEATHS = 99_000, 1_000, 2_000, 20


def drive(seed: int) -> dict[str, float]:
    """Return the seconds spent inside the coordinator and what it decided."""
    rng = random.Random(seed)
    coordinator = Coordinator(maps=MAPS, reduces=REDUCES, max_raises=10, max_attempts=10)
    events: list[tuple[float, int, str, tuple[int, Task | None, int]]] = []
    order = events_handled = assigned = 0
    finished = False
    decisions_s = heartbeats_s = 0.0

    def push(at: float, kind: str, worker: int, task: Task | None = None, attempt: int = 0) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (at, order, kind, (worker, task, attempt)))

    for worker in range(WORKERS):
        push(0.0, "joined", worker)
        push(rng.random(), "heartbeat", worker)
    for worker in rng.sample(range(WORKERS), DEATHS):
        push(rng.uniform(1, 1000), "lost", worker)
    push(1.0, "tick", 0)
    dead: set[int] = set()
    while not finished:
        now, _, kind, (worker, task, attempt) = heapq.heappop(events)
        if worker in dead and kind != "tick":
            continue
        failing = kind == "done" and rng.random() < 0.01
        actions: list[Action]
        start = time.perf_counter()
        if kind == "joined":
            actions = coordinator.worker_joined(worker, now)
        elif kind == "heartbeat":
            actions = coordinator.heartbeat(worker, {"records": 1}, now)
        elif kind == "lost":
            actions = coordinator.worker_lost(worker, "died", now)
        elif kind == "tick":
            actions = coordinator.tick(now)
        elif failing:
            assert task is not None
            actions = coordinator.task_failed(
                worker, task, attempt, Failure(error="Bad", message="raised"), now
            )
        else:
            assert task is not None
            actions = coordinator.task_done(worker, task, attempt, worker, now, {"records": 1})
        if kind == "heartbeat":
            heartbeats_s += time.perf_counter() - start
        else:
            decisions_s += time.perf_counter() - start
        events_handled += 1
        if kind == "heartbeat":
            push(now + 1, "heartbeat", worker)
        elif kind == "tick":
            push(now + 1, "tick", 0)
        elif kind == "lost":
            dead.add(worker)
        for action in actions:
            if isinstance(action, Assign):
                assigned += 1
                push(now + rng.uniform(10, 50), "done", action.worker, action.task, action.attempt)
            elif isinstance(action, Finished):
                finished = True
            elif not isinstance(action, Accept):
                raise RuntimeError(f"unexpected {action}")
    peak_kb = next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    return {
        "decisions_s": round(decisions_s, 3),
        "heartbeats_s": round(heartbeats_s, 3),
        "peak_bytes": peak_kb * 1024,
        "events": events_handled,
        "assigned": assigned,
        "virtual_s": round(now, 1),
    }


if __name__ == "__main__":
    print(json.dumps(drive(seed=1)))
