"""What runs inside the workers of a Dask cluster.  They import this module, so it must be installed there."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

from .errors import NodeFailed
from .task import Call, perform
from .travel import Packed, fault_of_value, pack_cause


def execute(
    name: str, kind: str, parts: tuple[int | None, ...], inputs: str, token: str, topic: str, after: Any,
    packed: Packed, shared: Any, *values: Any,
) -> Any:  # fmt: skip
    """Perform a task of the run ``token`` here, send its row, and return its value; ``after`` only had to be there.

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
    done = perform(Call(name, kind, function, parts, inputs), values)
    failure = done.failure
    if failure is None and (fault := fault_of_value(done.value)):
        failure = NodeFailed(f"the value of {name} ({kind}) cannot be sent to other processes: {fault}")
    facts = asdict(done.row)
    if failure is not None:
        facts.update(outcome="failed", message=str(failure))
    facts["moved_bytes"] += _moved_bytes(worker)
    said = {
        "name": name,
        "token": token,
        "worker": worker.address,
        "size_bytes": done.size_bytes,
        "row": facts,
    }
    worker.log_event(topic, said)
    if failure is not None:
        pack_cause(failure)
        raise failure
    return done.value


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
    """Return the bytes that this worker has taken from others and written to disk since it began."""
    spilled = getattr(dask_worker.data, "cumulative_metrics", {}).get(("disk-write", "bytes"), 0)
    return {"moved": _arrivals_of(dask_worker).total_bytes, "spilled": int(spilled)}


def spills(dask_worker: Any) -> bool:
    """Return whether this worker can move values to disk."""
    return hasattr(dask_worker.data, "spilled_total")


class _Arrivals:
    """What one worker has taken from others, read from its log, which forgets old entries.

    (``transfer_outgoing_bytes_total`` would count what was sent to the client as well.)
    """

    def __init__(self) -> None:
        self.total_bytes = 0
        self._uncounted: dict[Any, int] = {}
        self._last: Any = None
        self._lock = threading.Lock()

    def read(self, log: Iterable[Any]) -> None:
        with self._lock:
            entries = list(log)
            for entry in reversed(entries):
                if entry is self._last:
                    break
                self.total_bytes += sum(entry["keys"].values())
                self._uncounted.update(entry["keys"])
            self._last = entries[-1] if entries else None

    def take(self, keys: Iterable[Any]) -> int:
        """Return the bytes of those keys that have not been taken yet."""
        with self._lock:
            return sum(self._uncounted.pop(key, 0) for key in keys)


_arrivals: WeakKeyDictionary[Any, _Arrivals] = WeakKeyDictionary()


def _arrivals_of(worker: Any) -> _Arrivals:
    found = _arrivals.setdefault(worker, _Arrivals())
    found.read(worker.transfer_incoming_log)
    return found


def _moved_bytes(worker: Any) -> int:
    """Return the bytes of this task's inputs that came from other workers, if no task before it has counted them."""
    from distributed.worker import thread_state

    task = worker.state.tasks.get(thread_state.key)
    return _arrivals_of(worker).take([each.key for each in task.dependencies] if task else [])
