"""From a logical graph to the graph of its tasks, one per partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .errors import BadGraph
from .graph import Graph, Node, Op, Part
from .logical import Combine, Flatten, Group, Map, Read, Write, partitions_of


def expand(graph: Graph) -> Graph:
    """Return the graph of tasks of a logical graph; its outputs are the partitions of the outputs, in order.

    Task ``i`` of node ``name`` is called ``name[i]``; the splitting half of a group ``name.split[i]``.

    Raises:
        BadGraph: an operator is no logical one, or numbers of partitions do not fit.
    """
    made: dict[Node, tuple[Node, ...]] = {}
    known: dict[Node, int] = {}
    for node in graph.nodes:
        partitions_of(node, known)
        made[node] = tuple(_tasks(node, [made[source] for source in node.sources()], known[node]))
    return Graph(tuple(task for node in graph.outputs for task in made[node]))


def expand_with_origins(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
    """Return the graph of tasks, and the logical node that each task comes from."""
    raise NotImplementedError


def _tasks(node: Node, inputs: list[tuple[Node, ...]], count: int) -> list[Node]:
    op = node.op
    share = {"work_s": node.work_s / max(count, 1), "size_bytes": node.size_bytes // max(count, 1)}

    def task(index: int, function: Callable[..., Any], sources: tuple[Node | Part, ...]) -> Node:
        made = Op(kind=op.kind, function=function, releases_gil=op.releases_gil)
        return Node(name=f"{node.name}[{index}]", op=made, inputs=sources, keep=node.keep, **share)

    if isinstance(op, Flatten):
        return [each for given in inputs for each in given]
    if isinstance(op, Group):
        return _group(node, op, inputs)
    if op.function is None:
        raise BadGraph(f"{node.name}: a {op.kind} needs a function")
    if isinstance(op, Read):
        return [task(i, partial(op.function, part), ()) for i, part in enumerate(op.parts)]
    if isinstance(op, Map):
        return [_map_task(op, inputs, i, task) for i in range(count)]
    if isinstance(op, Combine):
        return [task(i, op.function, (given,)) for i, given in enumerate(inputs[0])]
    assert isinstance(op, Write)
    return [task(i, partial(op.function, index=i), (given,)) for i, given in enumerate(inputs[0])]


def _map_task(op: Map, inputs: list[tuple[Node, ...]], index: int, task: Callable[..., Node]) -> Node:
    sources: list[Node] = []
    sizes: list[int | None] = []  # None: one value; a number: so many, given as a list
    for at, given in enumerate(inputs):
        if at in op.whole:
            sources.extend(given)
            sizes.append(len(given))
        else:
            sources.append(given[index])
            sizes.append(None)
    assert op.function is not None
    function = partial(op.function, index=index) if op.indexed else op.function
    if op.whole:
        function = partial(_gathered, function, tuple(sizes))
    return task(index, function, tuple(sources))


def _gathered(function: Callable[..., Any], sizes: tuple[int | None, ...], *values: Any) -> Any:
    feed = iter(values)
    return function(*(next(feed) if size is None else [next(feed) for _ in range(size)] for size in sizes))


def _group(node: Node, op: Group, inputs: list[tuple[Node, ...]]) -> list[Node]:
    splits: list[Node] = []
    every = sum(len(given) for given in inputs)
    for at, given in enumerate(inputs):
        split = op.splits[at] if len(op.splits) > 1 else op.splits[0]
        for index, source in enumerate(given):
            made = Op(
                kind="split", function=partial(split, index=index), releases_gil=op.releases_gil
            )
            splits.append(
                Node(
                    name=f"{node.name}.split[{len(splits)}]", op=made, inputs=(source,),
                    work_s=node.work_s / 2 / max(every, 1), size_bytes=node.size_bytes // max(every, 1),
                )  # fmt: skip
            )
    return [
        Node(
            name=f"{node.name}[{index}]",
            op=Op(kind="merge", function=partial(_merged, op.merge, index), releases_gil=op.releases_gil),
            inputs=tuple(Part(split, index) for split in splits), keep=node.keep,
            work_s=node.work_s / 2 / op.partitions, size_bytes=node.size_bytes // op.partitions,
        )
        for index in range(op.partitions)
    ]  # fmt: skip


def _merged(merge: Callable[..., Any], index: int, *pieces: Any) -> Any:
    return merge(list(pieces), index=index)
