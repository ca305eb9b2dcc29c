"""One graph on a Dask cluster, followed from its start to its end: rows as they come, and the first failure."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .dask_graph import DaskGraph
from .errors import NodeFailed
from .events import TaskRow
from .graph import Node
from .on_threads import Watch
from .task import stage_of
from .travel import unpack_cause

# Rows travel beside results and may come a little later.
_ROWS_LATE_S = 10.0


class ClusterRun:
    """Rows are told to ``watch`` from the client's thread; what that raises ends the run.

    ``attempts`` counts them by run and node, and outlives the run: a kept value may be lost and computed again.
    """

    def __init__(
        self, client: Any, nodes: Sequence[Node], graph: DaskGraph, watch: Watch, topic: str,
        number_of: Callable[[str, int | None], int], attempts: Counter[tuple[str, str]],
    ) -> None:  # fmt: skip
        self._client = client
        self._graph = graph
        self._watch = watch
        self._topic = topic
        self._number_of = number_of
        self._nodes = {node.name: node for node in nodes}
        self._by_key = {key: node for node, key in graph.keys.items()}
        self._position = {node: at for at, node in enumerate(nodes)}
        self._missing = set(self._nodes)
        self._attempts = attempts
        self._futures: dict[Node, Any] = {}
        self._all_rows = threading.Event()
        self._refusal: BaseException | None = None
        self._let_go: set[Node] = set()

    def finish(self, wanted: Sequence[Node]) -> dict[Node, Any]:
        """Start the tasks, wait for them, and return futures on the wanted values that still stay.

        Raises:
            NodeFailed: a task failed; none of the others is started any more.
        """
        from distributed import as_completed

        self._client.subscribe_topic(self._topic, self._on_row)
        self._client.subscribe_topic("all", self._on_cluster_event)
        keys = [self._graph.keys[node] for node in wanted]
        started = self._client.get(self._graph.layered(), keys, sync=False)
        self._futures.update(zip(wanted, started, strict=True))
        for node in list(self._let_go):
            self._release(node)
        try:
            for future in as_completed(started, loop=self._client.loop):
                if future.status == "error":
                    raise self._explain(future)
                if self._refusal is not None:
                    raise self._refusal
        except BaseException:
            self._client.cancel(started)
            raise
        self._all_rows.wait(_ROWS_LATE_S)
        if self._refusal is not None:
            raise self._refusal
        return {node: future for node, future in self._futures.items() if node not in self._let_go}

    def close(self) -> None:
        """Listen no longer."""
        self._client.unsubscribe_topic(self._topic)
        self._client.unsubscribe_topic("all")

    def _on_row(self, event: tuple[float, Mapping[str, Any]]) -> None:
        said = event[1]
        name, facts = said["name"], dict(said["row"])
        facts["worker"] = self._number_of(said["worker"], said["thread"])
        row = self._numbered(said["token"], name, facts)
        if said["token"] != self._graph.token:
            self._tell(None, row, said["size_bytes"])
            return
        self._tell(self._nodes[name], row, said["size_bytes"])
        if facts["outcome"] == "done":
            self._missing.discard(name)
            if not self._missing:
                self._all_rows.set()

    def _numbered(self, token: str, name: str, facts: Mapping[str, Any]) -> TaskRow:
        self._attempts[token, name] += 1
        return TaskRow(**{**facts, "attempt": self._attempts[token, name] - 1})

    def _tell(self, node: Node | None, row: TaskRow, size_bytes: int = 0) -> None:
        if self._refusal is not None:
            return
        try:
            for unwanted in self._watch(node, row, size_bytes):
                self._let_go.add(unwanted)
                self._release(unwanted)
        except BaseException as error:
            self._refusal = error
            self._client.loop.add_callback(self._cancel)

    async def _cancel(self) -> None:
        await self._client.cancel(list(self._futures.values()), asynchronous=True)

    def _release(self, node: Node) -> None:
        future = self._futures.get(node)
        if future is not None:
            future.release()

    def _on_cluster_event(self, event: tuple[float, Any]) -> None:
        """Note what ran on a worker that died: the first of its tasks, since workers run them in the graph's order."""
        when, said = event
        if not isinstance(said, Mapping) or said.get("action") != "remove-worker" or said.get("expected"):
            return
        here = [self._by_key[key] for key in said["processing-tasks"] if key in self._by_key]
        here = [node for node in here if node.name in self._missing]
        if here:
            node = min(here, key=self._position.__getitem__)
            stage, task = stage_of(node.name)
            facts = {
                "stage": stage, "kind": node.op.kind, "task": task, "worker": self._number_of(said["worker"], None),
                "start": when, "end": when, "outcome": "lost", "message": f"worker {said['worker']} died",
            }  # fmt: skip
            self._tell(node, self._numbered(self._graph.token, node.name, facts))

    def _explain(self, future: Any) -> BaseException:
        from distributed.scheduler import KilledWorker

        error = future.exception()
        if isinstance(error, NodeFailed):
            unpack_cause(error)
            return error
        if isinstance(error, KilledWorker):
            node = self._by_key.get(error.task)
            what = f"{node.name} ({node.op.kind})" if node else f"a task of the graph ({error.task})"
            return NodeFailed(
                f"{what} is given up: {error.allowed_failures + 1} workers died while they had it, the last "
                f"{error.last_worker.address}; too little memory, or its function ends the process"
            )
        failed = NodeFailed(f"Dask could not run the graph: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return failed
