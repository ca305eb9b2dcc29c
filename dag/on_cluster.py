"""A graph on the workers of a Dask cluster: processes started here, or a cluster that somebody else started.

A lost worker costs what it held: Dask computes that again.  A value that no task needs any more is freed by Dask; those that
stay are held by a future.  A shuffle's pieces travel as one bundle per producer and worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from .cluster_run import ClusterRun
from .dask_graph import build
from .errors import GraphError
from .events import TaskRow
from .graph import Node
from .on_threads import Watch
from .on_worker import missing_modules, spills, traffic
from .placement import hold_back, place
from .travel import by_value, local_modules, pack

# What a worker needs before it holds a single value.
WORKER_BASE_BYTES = 300_000_000
CONNECT_S = 10
# After so many deaths of its workers a task is given up.
ALLOWED_DEATHS = 3
# Of values that are brought here at a time, on a cluster that does not say how much memory it has.
GATHERED_BYTES = 1_000_000_000


class Cluster:
    """Workers of Dask, and what has been seen of them.

    Args:
        address: of a running scheduler; None starts ``workers`` processes of one thread each on this machine.
        memory_bytes: for the values of all workers.
        spill: values may be moved to disk when memory is short.

    Raises:
        GraphError: the cluster cannot be reached, has no worker, or its workers lack this package.
        ValueError: ``spill`` is asked of a cluster that is not set up for it.
    """

    def __init__(self, *, address: str | None, workers: int, memory_bytes: int | None, spill: bool) -> None:
        from distributed import Client

        self.moved_bytes = 0
        self.spilled_bytes = 0
        self._cluster = None if address else _start_processes(workers, memory_bytes or 0, spill)
        if address is not None:
            self._client = _connect(address)
        else:
            self._client = Client(self._cluster, set_as_default=False, timeout=CONNECT_S)
        try:
            self._slots = Slots()
            self._topic = f"dag-{uuid.uuid4().hex}"
            for found, worker in _workers_of(self._client, address).items():
                self._slots.add(found, worker["nthreads"])
            if address is not None:
                _check_cluster(self._client, address, spill)
                memory_bytes = memory_bytes or _memory_of(self._client)
            self.workers = sum(worker["nthreads"] for worker in _info(self._client).values())
            self.memory_bytes = memory_bytes
            # Workers elsewhere may not be reachable from here, only through their scheduler.
            self._direct = True if address is None else None
            self._asked: set[str] = set()
            self._missing: set[str] = set()
            self._seen: dict[str, dict[str, int]] = self._client.run(traffic, self._topic)
            self._runs = 0
            self._attempts: Counter[tuple[str, str]] = Counter()
        except BaseException:
            self.close()
            raise

    def run(
        self, nodes: Sequence[Node], *, stays: Collection[Node], held: Mapping[Node, Any], watch: Watch
    ) -> dict[Node, Any]:
        """Compute ``nodes`` and return futures on the values that stay; ``held`` are futures on sources.

        Raises:
            NodeFailed: as for threads; also what cannot travel, and workers that died too often.
        """
        if not nodes:
            return {}
        self._runs += 1
        token = f"{self._topic}-{self._runs}"
        self._ask_for_modules()
        with by_value(self._missing):
            packed, shared = pack(nodes)
        workers = _info(self._client)
        for address, worker in workers.items():
            self._slots.add(address, worker["nthreads"])
        living = sorted(workers, key=self._slots.first)
        numbers = place(nodes, len(living))
        placed = {node: living[number] for node, number in numbers.items()}
        after = hold_back(nodes, numbers)
        graph = build(nodes, packed, shared, placed, held, after, token=token, topic=self._topic)
        run = ClusterRun(self._client, nodes, graph, watch, self._topic, self._slots.number, self._attempts)
        try:
            futures = run.finish([node for node in nodes if node in stays])
        finally:
            run.close()
        self._count_traffic()
        return futures

    def gather(self, handles: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """Bring the values of futures here, so many at a time as no worker has to load more than it can hold."""
        most = (self.memory_bytes or GATHERED_BYTES) // 4 // self.workers
        values: list[Any] = []
        batch: list[Any] = []
        batch_bytes = 0
        for handle, size in zip(handles, sizes, strict=True):
            if batch and batch_bytes + size > most:
                values.extend(self._client.gather(batch, direct=self._direct))
                batch, batch_bytes = [], 0
            batch.append(handle)
            batch_bytes += size
        return values + (list(self._client.gather(batch, direct=self._direct)) if batch else [])

    def peak_memory(self, rows: Sequence[TaskRow]) -> int:
        """Return the sum over workers of the most memory that each had at the end of a task."""
        peaks: dict[str, int] = {}
        for row in rows:
            address = self._slots.address(row.worker)
            peaks[address] = max(peaks.get(address, 0), row.peak_memory_bytes)
        return sum(peaks.values())

    def close(self, *, at_once: bool = False) -> None:
        """Leave the cluster, or end the processes that were started: ``at_once`` whatever they are doing.

        At once, since something failed: what Dask has to say of lost connections would bury the error that is on its way.
        """
        with _silent() if at_once else contextlib.nullcontext():
            self._close(at_once)

    def _close(self, at_once: bool) -> None:
        from distributed.utils import TimeoutError as Late

        try:
            if at_once and self._cluster is not None:
                self._cluster.sync(_kill, list(self._cluster.workers.values()))
            self._client.close(timeout=2)
            if self._cluster is not None:
                self._cluster.close(timeout=5)
        except Late:
            pass

    def _ask_for_modules(self) -> None:
        new = [name for name in local_modules() if name not in self._asked]
        if new:
            self._asked.update(new)
            for missing in self._client.run(missing_modules, new).values():
                self._missing.update(missing)

    def _count_traffic(self) -> None:
        for address, now in self._client.run(traffic, self._topic, on_error="ignore").items():
            before = self._seen.get(address, {})
            self.moved_bytes += now["moved"] - before.get("moved", 0)
            self.spilled_bytes += now["spilled"] - before.get("spilled", 0)
            self._seen[address] = now


class Slots:
    """Numbers of the slots of a cluster, as rows have them: a Dask worker has one for each of its threads.

    One that comes in the place of a dead one has numbers of its own.
    """

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._addresses: list[str] = []  # of each number
        self._threads: dict[str, list[int]] = {}

    def add(self, address: str, threads: int) -> None:
        """Give numbers to the slots of a Dask worker, unless it has them."""
        if address not in self._first:
            self._first[address] = len(self._addresses)
            self._addresses += [address] * max(threads, 1)
            self._threads[address] = []

    def first(self, address: str) -> int:
        """Return the first number of a Dask worker."""
        self.add(address, 1)
        return self._first[address]

    def address(self, number: int) -> str:
        """Return the Dask worker of a slot."""
        return self._addresses[number]

    def number(self, address: str, thread: int | None) -> int:
        """Return the slot of a thread, or the first where that is not known."""
        first = self.first(address)
        if thread is None:
            return first
        threads = self._threads[address]
        if thread not in threads:
            threads.append(thread)
        # Dask may start a thread for one that it has lent out.
        return first + threads.index(thread) % self._addresses.count(address)


def count_slots(address: str) -> int:
    """Return how many tasks the cluster of the Dask scheduler at ``address`` runs at a time.

    Raises:
        GraphError: nobody answers there, or the cluster has no worker.
    """
    client = _connect(address)
    try:
        _workers_of(client, address)
        return sum(client.nthreads().values())
    finally:
        client.close(timeout=2)


def _connect(address: str) -> Any:
    from distributed import Client

    try:
        return Client(address, set_as_default=False, timeout=CONNECT_S)
    except (OSError, ValueError) as error:
        raise GraphError(f"no Dask scheduler answers at {address}: {error}") from None


def _start_processes(workers: int, memory_bytes: int, spill: bool) -> Any:
    import dask
    from distributed import LocalCluster

    share = memory_bytes // workers
    target = min(0.6, 0.9 * share / (share + WORKER_BASE_BYTES))
    spilling: dict[str, Any] = {"target": target, "spill": 0.7, "pause": 0.85, "terminate": 0.95}
    staying: dict[str, Any] = {"target": False, "spill": False, "pause": False, "terminate": 0.95}
    settings = {
        f"distributed.worker.memory.{name}": value for name, value in (spilling if spill else staying).items()
    }
    with dask.config.set({**settings, "distributed.scheduler.allowed-failures": ALLOWED_DEATHS - 1}):
        _leave_main_alone()
        return LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None,
            memory_limit=share + WORKER_BASE_BYTES, silence_logs=logging.CRITICAL + 1, host="127.0.0.1",
            # None turns the dashboard off, and would still ask for its usual port.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        )  # fmt: skip


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Have Dask and asyncio log nothing, also of tasks that nobody waits for any more."""
    names = ("distributed", "tornado", "asyncio")
    loggers = [logging.getLogger(name) for name in names]
    loggers += [
        known
        for name, known in logging.root.manager.loggerDict.items()
        if isinstance(known, logging.Logger) and name.startswith(tuple(f"{each}." for each in names))
    ]
    spoke = [logger for logger in loggers if not logger.disabled]
    for logger in spoke:
        logger.disabled = True
    try:
        yield
        gc.collect()  # tasks tell of their exceptions when they go
    finally:
        for logger in spoke:
            logger.disabled = False


async def _kill(nannies: Sequence[Any]) -> None:
    await asyncio.gather(*(nanny.close(timeout=0.5) for nanny in nannies))


def _leave_main_alone() -> None:
    """Have processes of Dask start without running the user's script once more.

    A spawned process imports the main script, which would start workers again unless the script guards against it.  What
    tasks need from there travels by value.
    """
    from multiprocessing import spawn

    if getattr(spawn.get_preparation_data, "leaves_main_alone", False):
        return
    prepare = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = prepare(name)
        if name.startswith("Dask Worker process"):
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    get_preparation_data.leaves_main_alone = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = get_preparation_data


def _workers_of(client: Any, address: str | None) -> dict[str, Any]:
    workers = _info(client)
    if not workers:
        raise GraphError(
            f"the Dask scheduler at {address} has no worker; start one with: dask worker {address}"
        )
    return workers


def _check_cluster(client: Any, address: str, spill: bool) -> None:
    try:
        client.run(traffic, "")
    except ImportError as error:
        raise GraphError(
            f"the workers of {address} cannot import this package ({error}); install it there"
        ) from None
    if spill and not all(client.run(spills).values()):
        raise ValueError(
            f"the workers of {address} do not spill: their setting distributed.worker.memory.spill is off"
        )


def _memory_of(client: Any) -> int | None:
    limits = [worker["memory_limit"] for worker in _info(client).values()]
    return sum(limits) if all(limits) else None


def _info(client: Any) -> dict[str, Any]:
    return dict(client.scheduler_info()["workers"])
