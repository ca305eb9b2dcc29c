"""What runs inside the workers of a Dask cluster.  They import this module, so it must be installed there."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .errors import NodeFailed
from .task import Call, perform
from .travel import Packed, fault_of_value

_arrived_lock = threading.Lock()


def execute(
    name: str, kind: str, parts: tuple[int | None, ...], inputs: str, token: str, topic: str, packed: Packed,
    shared: Any, *values: Any,
) -> Any:  # fmt: skip
    """Perform a task of the run ``token`` here, send its row, and return its value.

    Raises:
        NodeFailed: its function cannot be loaded here or raised, or its value could not be sent on.
    """
    from distributed import get_worker

    worker = get_worker()
    try:
        function = packed.unpack(shared)
    except Exception as error:
        raise NodeFailed(
            f"the function of {name} ({kind}) cannot be loaded in worker {worker.address}: "
            f"{type(error).__name__}: {error}; what it imports must be installed there"
        ) from None
    value, row, failure = perform(Call(name, kind, function, parts, inputs), values)
    if failure is None and (fault := fault_of_value(value)):
        failure = NodeFailed(f"the value of {name} ({kind}) cannot be sent to other processes: {fault}")
    facts = asdict(row)
    if failure is not None:
        facts.update(outcome="failed", message=str(failure))
    facts["moved_bytes"] += _moved_bytes(worker)
    worker.log_event(topic, {"name": name, "token": token, "worker": worker.address, "row": facts})
    if failure is not None:
        failure.__cause__ = None  # it may not be one that can travel
        raise failure
    return value


def take_pieces(indexes: Sequence[int], pieces: Sequence[Any]) -> dict[int, Any]:
    """Return the pieces that one worker needs, by their index."""
    return {index: pieces[index] for index in indexes}


def missing_modules(names: Sequence[str]) -> list[str]:
    """Return those modules that cannot be imported here."""
    missing = []
    for name in names:
        try:
            found = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            missing.append(name)
    return missing


def traffic(dask_worker: Any) -> dict[str, int]:
    """Return what this worker has sent to others and written to disk since it began."""
    spilled = getattr(dask_worker.data, "cumulative_metrics", {}).get(("disk-write", "bytes"), 0)
    return {
        "moved": int(dask_worker.transfer_outgoing_bytes_total),
        "spilled": int(spilled),
    }


def spills(dask_worker: Any) -> bool:
    """Return whether this worker can move values to disk."""
    return hasattr(dask_worker.data, "spilled_total")


def _moved_bytes(worker: Any) -> int:
    """Return the bytes of this task's inputs that came from other workers, if no task before it has counted them."""
    from distributed.worker import thread_state

    with _arrived_lock:
        facts = worker.__dict__
        arrived: dict[Any, int] = facts.setdefault("_dag_arrived", {})
        last, log = facts.get("_dag_arrived_to"), list(worker.transfer_incoming_log)
        for entry in reversed(log):
            if entry is last:
                break
            arrived.update(entry["keys"])
        facts["_dag_arrived_to"] = log[-1] if log else None
        task = worker.state.tasks.get(thread_state.key)
        return sum(arrived.pop(each.key, 0) for each in task.dependencies) if task and arrived else 0
