"""From a logical graph to the graph of its tasks: one per partition, and one per split in front of a group.

A partition's task gets the values of its inputs as its operator says (``logical.takes_of``) and calls the functions of the plan;
nothing is reordered, so the tasks of one graph give the same values whoever runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .errors import BadGraph
from .graph import Graph, Node, Op, Part
from .logical import (
    Flatten,
    Fused,
    Gather,
    Group,
    Map,
    Merge,
    Read,
    Split,
    Step,
    Take,
    Write,
    fold_in_tree,
    kept_nodes,
    partitions_of,
    takes_of,
)  # fmt: skip

Value = Node | Part  # where a task finds one of its inputs


def expand(graph: Graph) -> Graph:
    """Return the graph of tasks of a logical graph; its outputs are the partitions of the outputs, in order.

    Task ``i`` of node ``name`` is called ``name[i]``; the splitting half of a group ``name.split[i]``.  A Flatten has no tasks.

    Raises:
        BadGraph: an operator is no logical one, or numbers of partitions do not fit.
    """
    return expand_with_origins(graph)[0]


def expand_with_origins(
    graph: Graph, earlier: Mapping[Node, Node] | None = None
) -> tuple[Graph, dict[Node, Node]]:
    """Return the graph of tasks, and the logical node that each task comes from.

    ``earlier`` are the origins of an earlier graph: logical nodes that occur again have the very same tasks again, so that values
    which were kept are found (a loop expands one graph per round).

    Raises:
        BadGraph: as ``expand``.
    """
    before: dict[Node, dict[str, Node]] = {}
    for task, origin in (earlier or {}).items():
        before.setdefault(origin, {})[task.name] = task
    origins: dict[Node, Node] = dict(earlier or {})
    values: dict[Node, tuple[Value, ...]] = {}
    known: dict[Node, int] = {}
    kept = kept_nodes(graph)
    made_anew: set[Node] = set()
    for node in graph.nodes:
        count = partitions_of(node, known)
        found = before.get(node, {})
        again = [found[name] for name in (f"{node.name}[{i}]" for i in range(count)) if name in found]
        # What is to be kept only now is made anew, and so is what takes it: two tasks cannot have one name.
        anew = any(source in made_anew for source in node.sources())
        if not anew and len(again) == count and all(task.keep or node not in kept for task in again):
            values[node] = tuple(again)
            continue
        if found or anew:
            made_anew.add(node)
        made, halves = _tasks(node, values, count, node in kept)
        values[node] = tuple(made)
        if not isinstance(node.op, Flatten):
            origins.update((task, node) for task in (*halves, *made) if isinstance(task, Node))
    tasks = Graph(tuple(_task(node, value) for node in graph.outputs for value in values[node]))
    return tasks, {task: origins[task] for task in tasks.nodes}


def _task(node: Node, value: Value) -> Node:
    if isinstance(value, Part):
        raise BadGraph(
            f"{node.name}: an output must be a value of its own, but it is a part of {value.node.name}"
        )
    return value


def _tasks(
    node: Node, values: Mapping[Node, tuple[Value, ...]], count: int, keep: bool
) -> tuple[Sequence[Value], Sequence[Node]]:
    """Return where the partitions of ``node`` are found, and the splits in front of them."""
    op = node.op
    if isinstance(op, Flatten):
        return [value for given in node.inputs for value in _values(given, values)], ()
    if isinstance(op, Group):
        return _group(node, op, [_values(given, values) for given in node.inputs], keep)
    if op.function is None and not isinstance(op, Fused):
        raise BadGraph(f"{node.name}: a {op.kind} needs a function")
    takes = takes_of(node)
    made = []
    for index in range(count):
        sources: list[Value] = []
        sizes: list[int | None] = []  # None: one value; a number: so many, given as a list
        for given, take in zip(node.inputs, takes, strict=True):
            taken = _taken(given, take, index, values)
            sources.extend(taken)
            sizes.append(None if take == "own" else len(taken))
        function = _call(node.name, op, index)
        if any(size is not None for size in sizes):
            function = partial(_gathered, function, tuple(sizes))
        task = Op(kind=op.kind, function=function, releases_gil=op.releases_gil)
        made.append(
            Node(
                name=f"{node.name}[{index}]", op=task, inputs=tuple(sources), keep=keep,
                work_s=node.work_s / count, size_bytes=node.size_bytes // count,
            )
        )  # fmt: skip
    return made, ()


def _values(given: Value, values: Mapping[Node, tuple[Value, ...]]) -> tuple[Value, ...]:
    """Return where the partitions of an input are: those of a node, or one element of each."""
    if isinstance(given, Node):
        return values[given]
    found: list[Value] = []
    for value in values[given.node]:
        if isinstance(value, Part):
            raise BadGraph(f"{given.node.name}: its partitions are parts already and have none")
        found.append(Part(value, given.index))
    return tuple(found)


def _taken(
    given: Value, take: Take, index: int, values: Mapping[Node, tuple[Value, ...]]
) -> tuple[Value, ...]:
    if take == "pieces":
        node, first = (given.node, given.index) if isinstance(given, Part) else (given, 0)
        return tuple(Part(_task(node, value), first + index) for value in values[node])
    every = _values(given, values)
    if take == "own":
        return (every[index],)
    return every if take == "whole" else every[index * take : (index + 1) * take]


def _call(name: str, op: Op, index: int) -> Callable[..., Any]:
    """Return what partition ``index`` calls, with its inputs or lists of inputs as arguments."""
    if isinstance(op, Fused):
        return _fused(name, op, index)
    if isinstance(op, Merge):
        return partial(_merge, op.group.merge, _makers(op.group), index)
    function = op.function
    if function is None:
        raise BadGraph(f"{name}: a {op.kind} needs a function")
    if isinstance(op, Read):
        return partial(function, op.parts[index])
    if isinstance(op, Split):
        return partial(_split, function, None, op.partitions, op.index_from + index)
    if isinstance(op, Gather):
        return partial(_fold, function)
    if isinstance(op, Map) and op.associative:
        return partial(_fold_in_tree, function, op.fan_in)
    if isinstance(op, Write) or (isinstance(op, Map) and op.indexed):
        return partial(function, index=op.index_from + index)
    return function


def _group(
    node: Node, op: Group, inputs: list[tuple[Value, ...]], keep: bool
) -> tuple[list[Node], list[Node]]:
    every = sum(len(given) for at, given in enumerate(inputs) if at not in op.placed)
    splits: list[Node] = []
    pieces: list[list[Node] | None] = []  # the splits of each input; None: it is placed
    local = op.local.function if op.local else None
    for at, given in enumerate(inputs):
        if at in op.placed:
            pieces.append(None)
            continue
        split, first = op.split_of(at)
        made = [
            Node(
                name=f"{node.name}.split[{len(splits) + index}]",
                op=Op(
                    kind="split", releases_gil=op.releases_gil,
                    function=partial(_split, split, local, op.partitions, first + index),
                ),
                inputs=(source,), work_s=node.work_s / 2 / every, size_bytes=node.size_bytes // every,
            )
            for index, source in enumerate(given)
        ]  # fmt: skip
        splits.extend(made)
        pieces.append(made)
    sizes = tuple(None if each is None else len(each) for each in pieces)
    makers = _makers(op)
    merges = []
    for index in range(op.partitions):
        sources: list[Value] = []
        for given, each in zip(inputs, pieces, strict=True):
            sources.extend([given[index]] if each is None else [Part(split, index) for split in each])
        function = partial(_gathered, partial(_merge, op.merge, makers, index), sizes)
        merges.append(
            Node(
                name=f"{node.name}[{index}]", inputs=tuple(sources), keep=keep,
                op=Op(kind="merge", function=function, releases_gil=op.releases_gil),
                work_s=node.work_s / 2 / op.partitions, size_bytes=node.size_bytes // op.partitions,
            )
        )  # fmt: skip
    return merges, splits


def _makers(op: Group) -> dict[int, Callable[..., Any]]:
    """Return for each placed input what makes a partition's piece."""
    return {at: op.as_piece or partial(_piece, *op.split_of(at)) for at in op.placed}


def _fused(name: str, op: Fused, index: int) -> Callable[..., Any]:
    """Return the program of one task, bound to the number of its partition."""
    first = len(op.takes)
    last_use: dict[int, int] = {}
    uses = [first + at for at in op.exposed]
    for at, step in enumerate(op.steps):
        last_use.update(dict.fromkeys(_slots(step, first), at))
        uses.extend(_slots(step, first))
    leaving = {first + at for at in op.exposed}
    program = tuple(
        Call(
            name=step.name,
            function=_call(step.name, step.op, index),
            sources=tuple(_slots(step, first)),
            done=tuple(slot for slot, use in last_use.items() if use == at and slot not in leaving),
            # An iterator can be read once: it is made a list where the tuple takes it or several steps do.
            hold=uses.count(first + at) > 1 or (len(op.exposed) > 1 and first + at in leaving),
        )
        for at, step in enumerate(op.steps)
    )
    exposed = tuple((first + at, isinstance(op.steps[at].op, Split)) for at in op.exposed)
    return partial(_run_steps, name, program, exposed)


def _slots(step: Step, first: int) -> Iterator[int]:
    # The values of a task stand in a row: its inputs, then the values of its steps.
    return (first + given if given >= 0 else -1 - given for given in step.inputs)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One step of a fused task: what it calls, where its arguments stand, and which of them nobody needs after it."""

    name: str
    function: Callable[..., Any]
    sources: tuple[int, ...]
    done: tuple[int, ...]
    hold: bool


# What runs in a task.  All arguments in front are bound when the graph is expanded.


def _gathered(function: Callable[..., Any], sizes: tuple[int | None, ...], *values: Any) -> Any:
    feed = iter(values)
    return function(*(next(feed) if size is None else [next(feed) for _ in range(size)] for size in sizes))


def _run_steps(
    name: str,
    program: tuple[Call, ...],
    exposed: tuple[tuple[int, bool], ...],
    *values: Any,
) -> Any:
    slots = list(values)
    for call in program:
        try:
            made = call.function(*(slots[source] for source in call.sources))
            slots.append(list(made) if call.hold and isinstance(made, Iterator) else made)
        except Exception as error:
            error.add_note(f"while {call.name!r} ran, a step of {name!r}")
            raise
        for slot in call.done:
            slots[slot] = None
    if len(exposed) == 1:
        return slots[exposed[0][0]]
    flat: list[Any] = []
    for slot, in_pieces in exposed:
        if in_pieces:
            flat.extend(slots[slot])
        else:
            flat.append(slots[slot])
    return tuple(flat)


def _split(
    split: Callable[..., Sequence[Any]],
    local: Callable[[Any], Any] | None,
    partitions: int,
    index: int,
    value: Any,
) -> Sequence[Any]:
    pieces = split(value if local is None else local(value), index=index)
    if len(pieces) != partitions:
        raise ValueError(f"a split must make one piece per partition: {partitions}, got {len(pieces)}")
    return pieces


def _piece(split: Callable[..., Sequence[Any]], first: int, value: Any, *, index: int) -> Any:
    return split(value, index=first + index)[index]


def _merge(
    merge: Callable[..., Any], makers: Mapping[int, Callable[..., Any]], index: int, *given: Any
) -> Any:
    pieces: list[Any] = []
    for at, each in enumerate(given):
        if at in makers:
            pieces.append(makers[at](each, index=index))
        else:
            pieces.extend(each)
    return merge(pieces, index=index)


def _fold(function: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else function(values)


def _fold_in_tree(function: Callable[[list[Any]], Any], fan_in: int, values: list[Any]) -> Any:
    return fold_in_tree(function, values, fan_in)
