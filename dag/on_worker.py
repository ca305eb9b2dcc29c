"""What runs inside the workers of a Dask cluster.  They import this module, so it must be installed there."""

from __future__ import annotations

import importlib.util
import re
import threading
import time
from collections import Counter
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
    began = time.time()
    moved_bytes, waited_s = _arrivals_of(worker).take(_inputs_of(worker), _here.free_since, began)
    try:
        function = packed.unpack(shared)
    except Exception as error:
        raise NodeFailed(
            f"the function of {name} ({kind}) cannot be loaded in worker {worker.address}: "
            f"{type(error).__name__}: {error}; what it imports must be installed there"
        ) from None
    loaded = time.time()
    done = perform(Call(name, kind, function, parts, inputs), values)
    failure = done.failure
    if failure is None and (fault := fault_of_value(done.value)):
        failure = NodeFailed(f"the value of {name} ({kind}) cannot be sent to other processes: {fault}")
    facts = asdict(done.row)
    if failure is not None:
        facts.update(outcome="failed", message=str(failure))
    facts["moved_bytes"] += moved_bytes
    _here.free_since = time.time()
    # The slot was this task's from when it waited for inputs on their way; what it takes to load a function and to see that a
    # value can travel is the price of another process.
    facts["seconds"]["shuffle"] = facts["seconds"].get("shuffle", 0.0) + waited_s
    serialise_s = loaded - began + max(_here.free_since - done.row.end, 0.0)
    facts["seconds"]["serialise"] = facts["seconds"].get("serialise", 0.0) + serialise_s
    facts.update(start=began - waited_s, end=max(_here.free_since, done.row.end))
    said = {
        "name": name,
        "token": token,
        "worker": worker.address,
        "thread": threading.get_ident(),
        "size_bytes": done.size_bytes,
        "row": facts,
    }
    worker.log_event(topic, said)
    if failure is not None:
        pack_cause(failure)
        raise failure
    return done.value


class _Here(threading.local):
    free_since = 0.0  # when the last task of this thread ended


_here = _Here()


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


def traffic(topic: str, dask_worker: Any) -> dict[str, int]:
    """Return the bytes that this worker has taken from others for graphs of ``topic``, and written to disk, since it began."""
    spilled = getattr(dask_worker.data, "cumulative_metrics", {}).get(("disk-write", "bytes"), 0)
    return {"moved": _arrivals_of(dask_worker).total_bytes[topic], "spilled": int(spilled)}


def spills(dask_worker: Any) -> bool:
    """Return whether this worker can move values to disk."""
    return hasattr(dask_worker.data, "spilled_total")


class _Arrivals:
    """What one worker has taken from others for graphs of ours, read from its log, which forgets old entries.

    Others may use the cluster too: only keys that hold the topic of a run count, and for that topic.
    (``transfer_outgoing_bytes_total`` would count what was sent to the client as well.)
    """

    def __init__(self) -> None:
        self.total_bytes: Counter[str] = Counter()
        self._uncounted: dict[Any, tuple[int, float, float]] = {}
        self._last: Any = None
        self._lock = threading.Lock()

    def read(self, log: Iterable[Any], ahead_s: float = 0.0) -> None:
        """Take note of what is new in ``log``, whose times are ``ahead_s`` later than those of this machine."""
        with self._lock:
            entries = list(log)
            for entry in reversed(entries):
                if entry is self._last:
                    break
                for key, size in entry["keys"].items():
                    if topic := _TOPIC.search(str(key)):
                        self.total_bytes[topic[0]] += size
                        self._uncounted[key] = size, entry["start"] - ahead_s, entry["stop"] - ahead_s
            self._last = entries[-1] if entries else None

    def take(self, keys: Iterable[Any], since: float, until: float) -> tuple[int, float]:
        """Return bytes of those keys that have not been taken yet, and the seconds of [since, until] in which they came."""
        with self._lock:
            found = [self._uncounted.pop(key) for key in keys if key in self._uncounted]
        waited_s = 0.0
        for start, stop in sorted((start, stop) for _, start, stop in found):
            begin, end = max(start, since), min(stop, until)
            waited_s += max(end - begin, 0.0)
            since = max(since, end)
        return sum(size for size, _, _ in found), waited_s


_TOPIC = re.compile(r"dag-[0-9a-f]{32}")
_arrivals: WeakKeyDictionary[Any, _Arrivals] = WeakKeyDictionary()


def _arrivals_of(worker: Any) -> _Arrivals:
    found = _arrivals.setdefault(worker, _Arrivals())
    found.read(worker.transfer_incoming_log, worker.scheduler_delay)
    return found


def _inputs_of(worker: Any) -> list[Any]:
    """Return the keys of the inputs of the task that runs in this thread."""
    from distributed.worker import thread_state

    task = worker.state.tasks.get(thread_state.key)
    return [each.key for each in task.dependencies] if task else []
