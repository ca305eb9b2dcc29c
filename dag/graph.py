"""A computation graph as a value: nodes that say what they need, in an order in which they can run.

A ``Node`` names an operator and its inputs; a ``Graph`` is what its outputs need, inputs first.  Both are immutable: a
rewrite returns another graph.  Nodes compare by identity, and nothing here recurses, so a chain of a million nodes is as
good as one of ten.

Nothing here runs a function (``dag.run`` does) or knows what values are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from .errors import BadGraph


@dataclass(frozen=True, kw_only=True, eq=False)
class Op:
    """What a node does.

    Args:
        kind: the field's word for it, shown in drawings and reports: read, map, split, merge, write, matmul, ...
        function: takes the values of the node's inputs in their order and returns the node's value.
        releases_gil: true if threads can run it side by side (numpy, Arrow); false for loops in Python.
        key: operators with equal keys do the same thing; None: this one is equal to itself alone.
    """

    kind: str
    function: Callable[..., Any] | None = None
    releases_gil: bool = False
    key: Hashable = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """One operator and where its inputs come from.

    Args:
        name: unique in its graph.
        op: what it does.
        inputs: nodes, or parts of the tuples that nodes make.
        work_s: seconds of one core that it is expected to take.
        size_bytes: expected size of its value.
        keep: the value stays in memory for later graphs that hold this very node.
    """

    name: str
    op: Op
    inputs: tuple[Node | Part, ...] = ()
    work_s: float = 0.0
    size_bytes: int = 0
    keep: bool = False

    @property
    def outline(self) -> str:
        """What is known of its value before it runs, for drawings: a tensor's dtype and shape."""
        return ""

    def sources(self) -> Iterator[Node]:
        """Yield the nodes behind the inputs, in order, as often as they occur."""
        for given in self.inputs:
            yield given.node if isinstance(given, Part) else given

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.op.kind})"


@dataclass(frozen=True)
class Part:
    """One element of the sequence that ``node`` makes: a shuffle's piece for one partition.

    Raises:
        BadGraph: ``index`` is below 0.
    """

    node: Node
    index: int

    def __post_init__(self) -> None:
        if self.index < 0:
            raise BadGraph(f"a part of {self.node.name!r} must have an index from 0 on, got {self.index}")


@dataclass(frozen=True, eq=False)
class Graph:
    """All that ``outputs`` need.

    ``nodes`` has every node once, inputs first.  Pickling keeps the shape, but the copy's nodes are other nodes.

    Raises:
        BadGraph: two nodes have one name, an input or output is no node, or the nodes run in a circle.
    """

    outputs: tuple[Node, ...]
    nodes: tuple[Node, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "nodes", tuple(_in_order(self.outputs)))
        names: dict[str, Node] = {}
        for node in self.nodes:
            if names.setdefault(node.name, node) is not node:
                raise BadGraph(f"two nodes have the name {node.name!r}; give each its own")

    @classmethod
    def from_tasks(
        cls, tasks: Mapping[str, Sequence[Any]], outputs: str | Iterable[str] | None = None
    ) -> Graph:
        """Build a graph from ``{name: (function, input name, ...)}``; an ``Op`` may stand for the function.

        ``outputs`` are by default the tasks that no other needs.

        >>> graph = Graph.from_tasks({"one": (lambda: 1,), "two": (lambda x: x + x, "one")})
        >>> [node.name for node in graph.nodes], [node.name for node in graph.outputs]
        (['one', 'two'], ['two'])

        Raises:
            BadGraph: an input is no task, a task has no function, or the tasks run in a circle.
        """
        return _from_tasks(tasks, outputs)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, name: str) -> Node:
        """Return the node of a name; raises KeyError."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def consumers(self) -> Mapping[Node, tuple[Node, ...]]:
        """The nodes that use each node's value, once each, in order."""
        found: dict[Node, dict[Node, None]] = {node: {} for node in self.nodes}
        for node in self.nodes:
            for source in node.sources():
                found[source][node] = None
        return {node: tuple(users) for node, users in found.items()}

    def ancestors(self, node: Node) -> tuple[Node, ...]:
        """Return what ``node`` needs, itself left out, in an order in which it can run."""
        return tuple(_in_order([node]))[:-1]

    def measured(
        self, *, work_s: Mapping[str, float] | None = None, size_bytes: Mapping[str, int] | None = None
    ) -> Graph:
        """Return a copy whose nodes say what was measured, by name, in place of what was expected.

        Names that the graph does not have change nothing: measurements of a run may cover several graphs.
        """
        made: dict[Node, Node] = {}
        for node in self.nodes:
            made[node] = replace(
                node,
                inputs=tuple(_moved(given, made) for given in node.inputs),
                work_s=(work_s or {}).get(node.name, node.work_s),
                size_bytes=(size_bytes or {}).get(node.name, node.size_bytes),
            )
        return Graph(tuple(made[node] for node in self.outputs))

    def __reduce__(self) -> tuple[Any, ...]:
        # A flat list: pickling nodes through their inputs would recurse as deep as the graph is.
        at = {node: number for number, node in enumerate(self.nodes)}
        rows = [
            (
                replace(node, inputs=()),
                [(at[given.node], given.index) if isinstance(given, Part) else at[given] for given in node.inputs],
            )
            for node in self.nodes
        ]  # fmt: skip
        return _from_rows, (rows, [at[node] for node in self.outputs])


def _moved(given: Node | Part, made: Mapping[Node, Node]) -> Node | Part:
    return Part(made[given.node], given.index) if isinstance(given, Part) else made[given]


def _from_rows(rows: Sequence[tuple[Any, ...]], outputs: Sequence[int]) -> Graph:
    nodes: list[Node] = []
    for bare, inputs in rows:
        sources = tuple(
            Part(nodes[given[0]], given[1]) if isinstance(given, tuple) else nodes[given] for given in inputs
        )
        nodes.append(replace(bare, inputs=sources))
    return Graph(tuple(nodes[number] for number in outputs))


def _in_order(outputs: Sequence[Node]) -> Iterator[Node]:
    """Yield all that ``outputs`` need, inputs first; depth first, so that what is used together is near."""
    done: set[Node] = set()
    opened: dict[Node, None] = {}  # the path from an output to here
    pending: list[tuple[Node, bool]] = [(node, False) for node in reversed(outputs)]
    while pending:
        node, expanded = pending.pop()
        if not isinstance(node, Node):
            raise BadGraph(f"the inputs and outputs of a graph are nodes, got {node!r}{_wanted_by(opened)}")
        if node in done:
            continue
        if expanded:
            del opened[node]
            done.add(node)
            yield node
            continue
        if node in opened:
            path = list(opened)
            circle = [*path[path.index(node) :], node]
            raise BadGraph(
                f"the nodes run in a circle: {' -> '.join(each.name for each in reversed(circle))}"
            )
        opened[node] = None
        pending.append((node, True))
        pending.extend((source, False) for source in reversed(tuple(node.sources())))


def _wanted_by(opened: dict[Node, None]) -> str:
    return f" in the inputs of {next(reversed(opened)).name!r}" if opened else ""


def _from_tasks(tasks: Mapping[str, Sequence[Any]], outputs: str | Iterable[str] | None) -> Graph:
    needed: set[str] = set()
    for name, task in tasks.items():
        if not isinstance(task, Sequence) or not task or not (callable(task[0]) or isinstance(task[0], Op)):
            raise BadGraph(f"task {name!r} needs a function and the names of its inputs, got {task!r}")
        for source in task[1:]:
            if not isinstance(source, str) or source not in tasks:
                raise BadGraph(f"task {name!r} needs {source!r}, which is no task of the graph")
            needed.add(source)
    wanted = [outputs] if isinstance(outputs, str) else list(outputs or [])
    for name in wanted:
        if name not in tasks:
            raise BadGraph(f"the output {name!r} is no task of the graph")
    made: dict[str, Node] = {}
    for name in _names_in_order(tasks):
        function, *sources = tasks[name]
        if not isinstance(function, Op):
            kind = getattr(function, "__name__", type(function).__name__)
            function = Op(kind=kind, function=function)
        made[name] = Node(name=name, op=function, inputs=tuple(made[source] for source in sources))
    return Graph(tuple(made[name] for name in wanted or (name for name in tasks if name not in needed)))


def _names_in_order(tasks: Mapping[str, Sequence[Any]]) -> list[str]:
    waiting = {name: len(set(task[1:])) for name, task in tasks.items()}
    users: dict[str, list[str]] = {name: [] for name in tasks}
    for name, task in tasks.items():
        for source in dict.fromkeys(task[1:]):
            users[source].append(name)
    ready = [name for name, count in waiting.items() if count == 0]
    for name in ready:  # grows while it is walked
        for user in users[name]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    if len(ready) < len(tasks):
        raise BadGraph(f"the tasks run in a circle: {' -> '.join(_circle(tasks, set(ready)))}")
    return ready


def _circle(tasks: Mapping[str, Sequence[Any]], done: set[str]) -> list[str]:
    """Return one circle, each name followed by one that needs it."""
    name = next(name for name in tasks if name not in done)
    seen: dict[str, None] = {}
    while name not in seen:
        seen[name] = None
        name = next(source for source in tasks[name][1:] if source not in done)
    path = list(seen)
    return [name, *reversed(path[path.index(name) :])]
