"""A stage run in this process, one task at a time, for a debugger."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .coordinator import Task
from .errors import OutputFailed
from .events import AttemptRow, Commit, Event, OnEvent, StageResult, reduce_payloads
from .processes import Pool
from .worker import Program, TaskInfo, describe_full_disk, is_disk_full, sendable


def run_stage_sequential(
    pool: Pool,
    *,
    maps: Sequence[Any],
    reduces: Sequence[Any] | int,
    program: bytes | Program,
    commit: Commit | None = None,
    discard: Commit | None = None,
    on_event: OnEvent | None = None,
    max_attempts: int = 1,
    max_raises: int = 1,
) -> StageResult:
    """Run a stage in this process, one task at a time, for a debugger; same results as ``run_stage``.

    Takes the pool's scratch folder and memory, and starts none of its processes.  Runs each task once
    (``discard``, ``max_attempts`` and ``max_raises`` have nothing to do here).
    What a task raises comes out as it is, so that a debugger stops at the user's line.
    """
    runner: Program = pickle.loads(program) if isinstance(program, bytes) else program
    payloads = {"map": list(maps), "reduce": reduce_payloads(reduces)}
    results: dict[str, list[Any]] = {"map": [], "reduce": []}
    totals: Counter[str] = Counter()
    rows: list[AttemptRow] = []

    def emit(outcome: str, task: Task, info: TaskInfo) -> None:
        if on_event is not None:
            on_event(
                Event(
                    outcome=outcome, worker=0, task=task, counters=dict(totals),
                    rows_in=info.rows_in, bytes_in=info.bytes_in,
                    maps=len(payloads["map"]), maps_done=len(results["map"]),
                    reduces=len(payloads["reduce"]), reduces_done=len(results["reduce"]),
                )
            )  # fmt: skip

    folder = os.path.join(pool.scratch, "sequential")
    try:
        for kind in ("map", "reduce"):
            for index, payload in enumerate(payloads[kind]):
                task = Task(kind, index)
                own = os.path.join(folder, f"{kind}-{index:05d}-0")
                os.makedirs(own)
                info = TaskInfo(
                    kind=kind, index=index, attempt=0, worker=0, scratch=own, memory_bytes=pool.memory_bytes,
                    map_attempts=(0,) * len(results["map"]) if kind == "reduce" else (),
                )  # fmt: skip
                emit("start", task, info)
                start, cpu_s = time.time(), time.process_time()
                try:
                    if kind == "map":
                        result = runner.run_map(payload, info)
                    else:
                        result = runner.run_reduce(payload, list(results["map"]), info)
                except OSError as error:
                    if not is_disk_full(error):
                        raise
                    raise OutputFailed(describe_full_disk(str(task), error, folder)) from error
                results[kind].append(result)
                counters = sendable(info.counters)
                totals.update(counters)
                rows.append(
                    AttemptRow(
                        kind=kind, task=index, attempt=0, worker=0, start=start, end=time.time(),
                        outcome="done", counters=counters,
                        rows_in=info.rows_in, bytes_in=info.bytes_in, cpu_s=time.process_time() - cpu_s,
                    )
                )  # fmt: skip
                if commit is not None and (kind == "reduce" or not payloads["reduce"]):
                    commit(task, 0, result)
                emit("done", task, info)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return StageResult(
        map_results=results["map"], reduce_results=results["reduce"], counters=dict(totals), rows=rows
    )
