"""A graph on threads of this process: Dask's scheduler state, walked in the graph's order.

Of the tasks that can run, the first in the graph's order runs next, so that one worker computes exactly what a sequential
run would and several stay near it.  (``dask.threaded.get`` would sort the tasks by an order of its own, which costs more than
the run of a large graph, and another one than the memory was projected for.)  A value is dropped by Dask when its last
consumer has run.  The calling thread is one of the workers.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from .errors import NodeFailed
from .events import TaskRow
from .graph import Node
from .task import call_of, perform


class Watch(Protocol):
    """Told about each task in turn."""

    def __call__(self, node: Node | None, row: TaskRow, size_bytes: int) -> Collection[Node]:
        """Return the nodes whose values need not stay after all; raise to stop the graph.

        ``size_bytes`` is the value's.  ``node`` is None where a kept value of an earlier graph was lost and computed again.
        """
        ...


def run_on_threads(
    nodes: Sequence[Node],
    *,
    stays: Collection[Node],
    held: Mapping[Node, Any],
    workers: int,
    watch: Watch,
) -> dict[Node, Any]:
    """Compute ``nodes``, which come inputs first, and return the values of those that stay.

    ``held`` are the values of sources that are not among ``nodes``.

    Raises:
        NodeFailed: the first failure; tasks that were running have ended, none was started after it.
    """
    loop = _Loop(nodes, stays, held, watch)
    others = [
        threading.Thread(target=loop.work, args=(worker,), name=f"dag-{worker}", daemon=True)
        for worker in range(1, min(workers, max(len(nodes), 1)))
    ]
    for each in others:
        each.start()
    loop.work(0)
    if isinstance(loop.failure, Exception | None):  # who presses Ctrl-C does not wait for the others
        for each in others:
            each.join()
    if loop.failure is not None:
        raise loop.failure
    return loop.values()


class _Loop:
    def __init__(
        self, nodes: Sequence[Node], stays: Collection[Node], held: Mapping[Node, Any], watch: Watch
    ) -> None:
        from dask import local  # not at the top: it takes a quarter of a second
        from dask.task_spec import DataNode, Task, TaskRef

        self._dask = local
        self._nodes = [*nodes, *held]
        self._keys = {node: key for key, node in enumerate(self._nodes)}
        self._results = {self._keys[node] for node in stays}
        self._graph: dict[int, Any] = {}
        for key, node in enumerate(nodes):
            sources = (TaskRef(self._keys[source]) for source in node.sources())
            self._graph[key] = Task(key, perform, call_of(node), *sources)
        for node, value in held.items():
            self._graph[self._keys[node]] = DataNode(self._keys[node], value)
        self._state = self._dask.start_state_from_dask(
            self._graph, cache={}, sortkey=_itself, keys=list(self._graph)
        )
        self._ready: list[int] = sorted(self._state["ready"])  # a heap
        self._state["ready"].clear()
        self._left = len(nodes)
        self._watch = watch
        self._changed = threading.Condition()
        self.failure: BaseException | None = None

    def values(self) -> dict[Node, Any]:
        return {self._nodes[key]: self._state["cache"][key] for key in self._results}

    def work(self, worker: int) -> None:
        """Run tasks until none is left or one has failed."""
        try:
            while (key := self._next()) is not None:
                self._run(key, worker)
        except BaseException as error:  # Ctrl-C, the watch's refusal, or a fault of this module
            with self._changed:
                self.failure = self.failure or error
                self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            while not self._ready and self._left and self.failure is None:
                self._changed.wait()
            if not self._left or self.failure is not None:
                return None
            key = heappop(self._ready)
            self._state["running"].add(key)
            return key

    def _run(self, key: int, worker: int) -> None:
        task, cache = self._graph[key], self._state["cache"]
        call, *sources = task.args
        values = [cache[source.key] for source in sources]
        done = perform(call, values, worker=worker)
        del values
        with self._changed:
            if done.failure is None:
                self._finish(key, done.value)
            let_go = self._watch(self._nodes[key], done.row, done.size_bytes)
            for node in let_go:
                self._let_go(self._keys[node])
            if done.failure is not None:
                self._fail(done.failure)

    def _finish(self, key: int, value: Any) -> None:
        state = self._state
        state["cache"][key] = value
        self._dask.finish_task(self._graph, key, state, self._results, _itself)
        if key not in self._results and not state["waiting_data"].get(key):
            self._dask.release_data(key, state)
        freed = state["ready"]
        while freed:
            heappush(self._ready, freed.pop())
        # One of them is for this thread, which would otherwise hand a chain to another at each step.
        self._changed.notify(max(len(self._ready) - 1, 0))
        self._left -= 1
        if not self._left:
            self._changed.notify_all()

    def _let_go(self, key: int) -> None:
        self._results.discard(key)
        if key in self._state["cache"] and not self._state["waiting_data"].get(key):
            self._dask.release_data(key, self._state)

    def _fail(self, failure: NodeFailed) -> None:
        self.failure = self.failure or failure
        self._changed.notify_all()


def _itself(key: int) -> int:
    return key
