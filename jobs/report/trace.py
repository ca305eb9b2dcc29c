"""The shown runs as a Chrome trace, for ui.perfetto.dev or chrome://tracing: a process per engine, a thread per worker.

Times are microseconds, as the format (Trace Event Format, "X", "M" and "C" events) has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .model import Comparison, Engine


def to_trace(comparison: Comparison) -> str:
    """Return the attempts and the memory of every engine as trace JSON."""
    events = [event for pid, engine in enumerate(comparison.engines, 1) for event in _events(pid, engine)]
    lines = ",\n".join(json.dumps(event, allow_nan=False) for event in events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _events(pid: int, engine: Engine) -> Iterator[dict[str, Any]]:
    if not engine.attempts and not engine.memory:
        return
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": engine.label}}
    for worker in sorted({attempt.worker for attempt in engine.attempts}):
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": pid,
            "tid": worker,
            "args": {"name": f"worker {worker}"},
        }
    for attempt in engine.attempts:
        yield {
            "ph": "X",
            "name": f"{attempt.stage} {attempt.kind} {attempt.task}",
            "cat": attempt.kind,
            "ts": round(attempt.start_s * 1e6, 1),
            "dur": round((attempt.end_s - attempt.start_s) * 1e6, 1),
            "pid": pid,
            "tid": attempt.worker,
            "args": {
                "attempt": attempt.attempt,
                "outcome": attempt.outcome,
                "records_in": attempt.records_in,
                "records_out": attempt.records_out,
                "bytes_in": attempt.bytes_in,
                "bytes_out": attempt.bytes_out,
                "peak_memory_bytes": attempt.peak_memory_bytes,
                **{f"{part}_s": seconds for part, seconds in attempt.seconds.items()},
            },
        }
    for sample in engine.memory:
        yield {
            "ph": "C", "name": "memory", "ts": round(sample.at_s * 1e6, 1), "pid": pid, "tid": 0,
            "args": {"bytes": sample.memory_bytes},
        }  # fmt: skip
