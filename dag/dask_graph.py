"""The graph that Dask's scheduler gets for a graph of ours.

Keys hold a token of the run, since Dask answers a key that it knows with the old value.  All tasks stand in one layer, whose
annotations say where they had better run; any other worker will do as well, or a dead one would be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .graph import Node, Part
from .on_worker import execute, take_pieces
from .task import call_of, stage_of
from .travel import Packed

# Pickles above this size that several tasks need go to each worker once instead of along with each task.
LARGE_BYTES = 64_000


@dataclass(frozen=True, kw_only=True)
class DaskGraph:
    """Tasks by key, the key of each node, where tasks had better run, and the token of the run."""

    tasks: dict[Any, Any]
    keys: dict[Node, Any]
    workers: dict[Any, str]
    token: str

    def layered(self) -> Any:
        """Return it as Dask wants it: a bare dict would be hashed whole, and names no workers."""
        from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

        annotations = {"allow_other_workers": True, "workers": self.workers.get} if self.workers else {}
        layer = MaterializedLayer(self.tasks, annotations=annotations)
        return HighLevelGraph({self.token: layer}, {self.token: set()})


def build(
    nodes: Sequence[Node],
    packed: Sequence[Packed],
    shared: Sequence[bytes],
    placed: Mapping[Node, str],
    held: Mapping[Node, Any],
    after: Mapping[Node, Node],
    *,
    token: str,
    topic: str,
) -> DaskGraph:
    """Return the tasks of ``nodes``, whose rows go to ``topic``.

    ``held`` are futures on values of earlier graphs; ``after`` says what else has to be done before a node.
    """
    from dask.task_spec import DataNode, List, Task, TaskRef

    keys = {node: _key(node.name, token) for node in nodes}
    refs: dict[Node, Any] = {node: TaskRef(key) for node, key in keys.items()}
    refs.update({node: TaskRef(future.key) for node, future in held.items()})
    tasks: dict[Any, Any] = {}
    workers = {keys[node]: address for node, address in placed.items()}
    pickles: list[Any] = []
    for number, data in enumerate(shared):
        if len(data) > LARGE_BYTES:
            key = (f"shared-{token}", number)
            tasks[key] = DataNode(key, data)
            pickles.append(TaskRef(key))
        else:
            pickles.append(data)
    bundles = _Bundles(nodes, placed, token)
    for node, program in zip(nodes, packed, strict=True):
        call = call_of(node)
        with_it = List(*(pickles[number] for number in program.shared))
        values = []
        for given in node.inputs:
            if not isinstance(given, Part):
                values.append(refs[given])
                continue
            key, indexes = bundles.find(given, node)
            if key not in tasks:
                tasks[key] = Task(key, take_pieces, tuple(indexes), refs[given.node])
            values.append(TaskRef(key))
        key = keys[node]
        tasks[key] = Task(
            key, execute, call.name, call.kind, call.parts, call.inputs, token, topic,
            refs[after[node]] if node in after else None, program, with_it, *values,
            _data_producer=not node.inputs,
        )  # fmt: skip
    return DaskGraph(tasks=tasks, keys=keys, workers=workers, token=token)


class _Bundles:
    """Which pieces of a producer go together: those for consumers on one worker, else those for one consumer."""

    def __init__(self, nodes: Sequence[Node], placed: Mapping[Node, str], token: str) -> None:
        self._token = token
        self._numbers: dict[str | Node, int] = {}
        self._home = {node: placed.get(node, node) for node in nodes}
        self._indexes: dict[tuple[Node, str | Node], dict[int, None]] = {}
        for node in nodes:
            for given in node.inputs:
                if isinstance(given, Part):
                    self._indexes.setdefault((given.node, self._home[node]), {})[given.index] = None

    def find(self, part: Part, consumer: Node) -> tuple[Any, list[int]]:
        """Return the key of the bundle that a consumer takes a piece from, and the indexes in it."""
        home = self._home[consumer]
        number = self._numbers.setdefault(home, len(self._numbers))
        key = f"{part.node.name}.pieces{number}-{self._token}"
        return key, list(self._indexes[part.node, home])


def _key(name: str, token: str) -> Any:
    stage, task = stage_of(name)
    # A tuple puts the tasks of a stage into one group of Dask's, for its guess at how long they take.
    return (f"{stage}-{token}", task) if name != stage else f"{name}-{token}"
