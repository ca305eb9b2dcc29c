"""A stage run in this process, one task at a time, for a debugger; the same results and rows as on workers."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .coordinator import Task
from .errors import OutputFailed
from .events import AttemptRow, Commit, Event, OnEvent, StageResult
from .meter import Meter, metering
from .processes import Pool
from .worker import (
    Program,
    TaskInfo,
    describe_full_disk,
    is_disk_full,
    peak_memory_bytes,
    reset_peak_memory,
)


def run_here(
    pool: Pool,
    payloads: Mapping[str, Sequence[Any]],
    program: bytes | Program,
    title: str,
    commit: Commit | None,
    on_event: OnEvent | None,
) -> StageResult:
    """Run a stage as ``run_stage`` describes for a pool of 0 workers, in the pool's scratch folder and memory.

    ``payloads`` are those of the "map" and of the "reduce" tasks.
    """
    runner: Program = pickle.loads(program) if isinstance(program, bytes) else program
    results: dict[str, list[Any]] = {"map": [], "reduce": []}
    totals: Counter[str] = Counter()
    rows: list[AttemptRow] = []

    def emit(outcome: str, task: Task, info: TaskInfo) -> None:
        if on_event is not None:
            on_event(
                Event(
                    outcome=outcome, worker=0, task=task, counters=dict(totals),
                    records_in=info.meter.records_in,
                    bytes_in=info.meter.bytes_in + info.meter.store_read_bytes,
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
                start, cpu_s = time.time(), time.process_time()
                reset_peak_memory()
                info = TaskInfo(
                    kind=kind, index=index, attempt=0, worker=0, scratch=own, memory_bytes=pool.memory_bytes,
                    map_attempts=(0,) * len(results["map"]) if kind == "reduce" else (),
                    meter=Meter(disk=folder),
                )  # fmt: skip
                emit("start", task, info)
                try:
                    with metering(info.meter):
                        if kind == "map":
                            result = runner.run_map(payload, info)
                        else:
                            result = runner.run_reduce(payload, list(results["map"]), info)
                except OSError as error:
                    if not is_disk_full(error):
                        raise
                    raise OutputFailed(describe_full_disk(str(task), error, folder)) from error
                results[kind].append(result)
                used = {**info.used(), **info.meter.finish()}
                totals.update(used["counters"])
                rows.append(
                    AttemptRow(
                        stage=title, kind=kind, task=index, attempt=0, worker=0, start=start, end=time.time(),
                        outcome="done", peak_memory_bytes=peak_memory_bytes(),
                        cpu_s=time.process_time() - cpu_s, **used,
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
