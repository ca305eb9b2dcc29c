"""Graphs run with their values in memory: on threads, on processes of this machine, or on a Dask cluster.

A ``Session`` keeps its workers and what ``Node.keep`` asks for between graphs.  Values are dropped when their last consumer has
run.  Nothing here decides what a graph computes, and nothing is written to a store: tasks do that.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from .errors import BadGraph
from .events import OnEvent, TaskRow
from .graph import Graph, Node
from .logical import Combine, Flatten, Fused, Gather, Group, Map, Merge, Read, Split, Write
from .memory import Ledger, Pins, check_fits
from .task import resident_bytes
from .units import show_seconds

# A graph whose loops in Python take less than this is done before the processes have started.
PROCESSES_WORTH_S = 2.0
# Records handled one by one in Python, where nobody has measured how long an operator takes.
PYTHON_BYTES_PER_S = 20_000_000
# Results of a round, such as weights or centres, are smaller; parts of data that are worth a choice are larger.
SMALL_BYTES = 1 << 18


def run(
    graph: Graph,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    memory_bytes: int | None = None,
    spill: bool = False,
    on_event: OnEvent | None = None,
) -> list[Any]:
    """Return the values of a graph's outputs, in order; ``scheduler`` None: what ``choose_scheduler`` says.

    >>> from dag import Graph
    >>> run(Graph.from_tasks({"one": (lambda: 1,), "two": (lambda x: x + x, "one")}))
    [2]

    Raises:
        What ``Session`` and ``Session.run`` raise.
    """
    if scheduler is None:
        scheduler = "processes" if spill else choose_scheduler(graph, workers or _cores())[0]
    with Session(
        scheduler=scheduler, workers=workers, memory_bytes=memory_bytes, spill=spill, on_event=on_event
    ) as session:
        return session.run(graph)


def choose_scheduler(graph: Graph, workers: int) -> tuple[str, str]:
    """Return "threads" or "processes", whichever suits the functions of the graph, and the reason in words."""
    if workers == 1:
        return "threads", "one worker needs no other process"
    slow = [node for node in graph.nodes if not node.op.releases_gil]
    if not slow:
        return "threads", "every function releases the interpreter lock"
    python_s = sum(_python_s(node) for node in slow)
    # Where nobody said how long a function takes, this is a guess from bytes, and must not read like a measurement.
    thumb = (
        ""
        if all(node.work_s for node in slow)
        else f", by a rule of thumb ({PYTHON_BYTES_PER_S // 1_000_000} MB/s),"
    )
    said = f"about {show_seconds(python_s)}{thumb} in functions that hold the interpreter lock"
    if python_s < PROCESSES_WORTH_S:
        return "threads", f"{said} are not worth starting processes"
    worst = max(slow, key=_python_s)
    return "processes", f"{said}, most of it in {worst.name}: threads would run them one at a time"


def _python_s(node: Node) -> float:
    taken = sum(source.size_bytes for source in set(node.sources()))
    return node.work_s or max(taken, node.size_bytes) / PYTHON_BYTES_PER_S


class _Engine(Protocol):
    """Where tasks run."""

    workers: int
    memory_bytes: int | None
    moved_bytes: int
    spilled_bytes: int

    def run(
        self, nodes: Sequence[Node], *, stays: Collection[Node], held: Mapping[Node, Any], watch: Any
    ) -> dict[Node, Any]:
        """Return what stays: values, or handles on them."""
        ...

    def gather(self, handles: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        """Return the values of handles, which have these sizes."""
        ...

    def peak_memory(self, rows: Sequence[TaskRow]) -> int:
        """Return the most memory that all workers had together."""
        ...

    def close(self, *, at_once: bool = False) -> None:
        """End what was started, ``at_once`` without waiting for what runs."""
        ...


class _Threads:
    def __init__(self, workers: int, memory_bytes: int) -> None:
        self.workers = workers
        self.memory_bytes: int | None = memory_bytes
        self.moved_bytes = 0
        self.spilled_bytes = 0

    def run(
        self, nodes: Sequence[Node], *, stays: Collection[Node], held: Mapping[Node, Any], watch: Any
    ) -> dict[Node, Any]:
        from .on_threads import run_on_threads

        return run_on_threads(nodes, stays=stays, held=held, workers=self.workers, watch=watch)

    def gather(self, handles: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
        return list(handles)

    def peak_memory(self, rows: Sequence[TaskRow]) -> int:
        return max((row.peak_memory_bytes for row in rows), default=resident_bytes())

    def close(self, *, at_once: bool = False) -> None:
        pass


class Session:
    """Workers, and the values that graphs keep, from the first graph to the end of the ``with`` block.

    Args:
        scheduler: "threads", "processes", or the address of a Dask scheduler ("tcp://host:8786").
        reason: why there, in words; kept for reports.
        workers: threads or processes, default one per core; a cluster has those that it has.
        memory_bytes: for the values of all workers together; default what the machine or the cluster has.
        cache_bytes: for kept values: the first that fit stay, the others are computed again by each graph; those of less than
            256 KiB stay and do not count.  None: all stay.
        spill: Dask may move values to disk when memory is short; needs processes, or a cluster that is set up for it.
        on_event: called with each row.
    """

    def __init__(
        self,
        *,
        scheduler: str = "threads",
        reason: str = "",
        workers: int | None = None,
        memory_bytes: int | None = None,
        cache_bytes: int | None = None,
        spill: bool = False,
        on_event: OnEvent | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be 1 or more, got {workers}")
        self.scheduler, self.reason = scheduler, reason
        self.rows: list[TaskRow] = []
        self._cache_bytes = cache_bytes
        self._spill = spill
        self._on_event = on_event
        self._kept: weakref.WeakKeyDictionary[Node, tuple[Any, int]] = weakref.WeakKeyDictionary()
        self._telling = threading.Lock()
        self._engine: _Engine = _start(scheduler, workers, memory_bytes, spill)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.clear()
        self._engine.close(at_once=error is not None)

    def close(self) -> None:
        """Drop what was kept and end the workers; twice is as good as once."""
        self._kept.clear()
        self._engine.close()

    def forget(self, nodes: Iterable[Node] | None = None) -> None:
        """Drop the kept values of some nodes, or of all."""
        for node in list(self._kept) if nodes is None else nodes:
            self._kept.pop(node, None)

    def needed(self, graph: Graph) -> list[Node]:
        """Return the nodes that ``run`` would compute: not those that were kept, nor what only they need."""
        return _needed(graph, self._kept)

    def run(self, graph: Graph) -> list[Any]:
        """Return the values of ``graph.outputs``, in order.

        Kept values of earlier graphs are not computed again, nor what only they need.

        Raises:
            BadGraph: a node has no function, or the graph is one of operators (``dag.expand`` makes tasks of it).
            TooLarge: the values would not fit, or do not while it runs.
            NodeFailed: a function raised, a value or function cannot travel, or workers died too often.
        """
        held = {node: self._kept[node] for node in graph.nodes if node in self._kept}
        nodes = _needed(graph, held)
        for node in nodes:
            _check_runs(node)
        kept = [node for node in nodes if node.keep]
        stays = {*kept, *(node for node in graph.outputs if node not in held)}
        held_bytes = sum(size for _, size in self._kept.values())
        limit = None if self._spill else self._engine.memory_bytes
        if limit is not None:
            check_fits(
                nodes, limit, stays=self._expected(kept, stays), workers=self._engine.workers,
                held_bytes=held_bytes,
            )  # fmt: skip
        ledger = Ledger(nodes, stays=stays, memory_bytes=limit, held_bytes=held_bytes)
        pins = self._pins(kept)
        wanted = set(graph.outputs)
        sizes: dict[Node, int] = {}

        def watch(node: Node | None, row: TaskRow, size_bytes: int) -> list[Node]:
            self._tell(row)
            if node is None or row.outcome != "done":
                return []
            sizes[node] = size_bytes
            refused = pins.made(node, size_bytes) if node.keep else []
            let_go = [each for each in refused if each not in wanted]
            for each in let_go:
                ledger.let_go(each)
            ledger.made(node, size_bytes)
            return let_go

        values = self._engine.run(
            nodes, stays=stays, held={node: value for node, (value, _) in held.items()}, watch=watch
        )
        for node in pins.pinned:
            self._kept[node] = values[node], sizes[node]
        sizes.update((node, size) for node, (_, size) in held.items())
        handles = [values[node] if node in values else held[node][0] for node in graph.outputs]
        # On a cluster rows travel beside values, and one may be missing.
        return self._engine.gather(handles, [sizes.get(node, node.size_bytes) for node in graph.outputs])

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory that the workers had, all together."""
        return self._engine.peak_memory(self.rows)

    @property
    def moved_bytes(self) -> int:
        """Bytes of values sent from worker to worker."""
        return self._engine.moved_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes of values that Dask wrote to disk."""
        return self._engine.spilled_bytes

    def _tell(self, row: TaskRow) -> None:
        with self._telling:
            self.rows.append(row)
            if self._on_event is not None:
                self._on_event(row)

    def _expected(self, kept: Sequence[Node], stays: Collection[Node]) -> set[Node]:
        """Return what will stay if sizes are as expected."""
        pins = self._pins(kept)
        refused = {each for node in kept for each in pins.made(node, node.size_bytes)}
        return set(stays) - refused

    def _pins(self, kept: Sequence[Node]) -> Pins:
        used_bytes = sum(size for _, size in self._kept.values() if size > SMALL_BYTES)
        return Pins(kept, self._cache_bytes, used_bytes=used_bytes, small_bytes=SMALL_BYTES)


def _start(scheduler: str, workers: int | None, memory_bytes: int | None, spill: bool) -> _Engine:
    if scheduler == "threads":
        if spill:
            raise ValueError("threads cannot spill: ask for scheduler='processes', or for no spilling")
        return _Threads(workers or _cores(), memory_bytes or _available_bytes())
    if scheduler == "processes" or scheduler.startswith(("tcp://", "tls://")):
        from .on_cluster import Cluster  # not at the top: distributed takes most of a second

        if scheduler != "processes" and workers is not None:
            raise ValueError(
                f"the cluster at {scheduler} has the workers that it has; ask for no number of them"
            )
        address = None if scheduler == "processes" else scheduler
        if address is None:
            memory_bytes = memory_bytes or _available_bytes()
        return Cluster(address=address, workers=workers or _cores(), memory_bytes=memory_bytes, spill=spill)
    raise ValueError(
        f"scheduler must be 'threads', 'processes' or the address of a Dask scheduler such as 'tcp://host:8786', "
        f"got {scheduler!r}"
    )


def _needed(graph: Graph, held: Collection[Node]) -> list[Node]:
    """Return the nodes to compute, in the graph's order."""
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node in needed and node not in held:
            needed.update(node.sources())
    return [node for node in graph.nodes if node in needed and node not in held]


def _check_runs(node: Node) -> None:
    if isinstance(node.op, Read | Map | Flatten | Group | Combine | Write | Gather | Split | Merge | Fused):
        raise BadGraph(f"{node.name} is a {node.op.kind} over partitions; run dag.expand(graph) instead")
    if node.op.function is None:
        raise BadGraph(f"{node.name} ({node.op.kind}) has no function")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _available_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
