"""Rewrites about where rows are: shuffles that can be left out, and partitions sized to the workers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .graph import Graph, Node
from .logical import (
    Combine,
    Flatten,
    Fused,
    Group,
    Map,
    Read,
    count_partitions,
    output_nodes,
    takes_of,
)  # fmt: skip
from .rewrite_base import Rewritten, moved, rebuild, tasks, with_inputs

# A part below this is not worth a task: a task costs a few tenths of a millisecond, reading this much some milliseconds.
TINY_PART_BYTES = 4 << 20
PARTS_PER_WORKER = 4


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a node's rows are: placed by ``group`` according to ``partitioning``, unless ``lost_by`` may have moved them."""

    group: str
    partitioning: Hashable
    lost_by: str | None = None


def placements(graph: Graph) -> dict[Node, Placement | None]:
    """Return for each node the group that placed its rows; None where no group did."""
    found: dict[Node, Placement | None] = {}
    for node in graph.nodes:
        op = node.op
        if isinstance(op, Group | Fused):
            known = op.partitioning is not None
            found[node] = Placement(group=node.name, partitioning=op.partitioning) if known else None
            continue
        own = [
            found[given] if isinstance(given, Node) else None
            for given, take in zip(node.inputs, takes_of(node), strict=True)
            if take == "own"
        ]
        first = next((each for each in own if each is not None), None)
        if first is None or first.lost_by:
            found[node] = first
        elif not (isinstance(op, Combine) or (isinstance(op, Map) and op.keeps_partitioning)):
            found[node] = replace(first, lost_by=node.name)
        else:
            alike = all(each is not None and _alike(each, first) for each in own)
            found[node] = first if alike else replace(first, lost_by=node.name)
    return found


def _alike(one: Placement, other: Placement) -> bool:
    return one.lost_by is None and one.partitioning == other.partitioning


def skip_shuffles(graph: Graph) -> Rewritten:
    """Leave the rows of a group's input where they are if an equal partitioning has put them there."""
    applied: list[str] = []
    refused: list[str] = []
    placed_by = placements(graph)
    counts = count_partitions(graph)
    became: dict[Node, Node] = {}
    for node in graph.nodes:
        made = with_inputs(node, (moved(given, became) for given in node.inputs))
        if isinstance(made.op, Group) and made.op.partitioning is not None:
            placed = list(made.op.placed)
            for at, given in enumerate(node.inputs):
                found = placed_by[given] if isinstance(given, Node) else None
                if at in placed or found is None or not isinstance(given, Node):
                    continue
                why = _no_skip(made.op, found, counts[given])
                if why:
                    refused.append(f"{node.name} shuffles {given.name}: {why}")
                    continue
                placed.append(at)
                applied.append(
                    f"{node.name} finds the rows of {given.name} in place ({found.group} put them there): "
                    f"{counts[given]} splits and {counts[given] * made.op.partitions} pieces less"
                )
            if len(placed) > len(made.op.placed):
                made = replace(made, op=replace(made.op, key=None, placed=tuple(sorted(placed))))
        became[node] = made
    outputs = tuple(became[node] for node in graph.outputs)
    return Rewritten(graph=Graph(outputs), applied=tuple(applied), refused=tuple(refused), became=became)


def _no_skip(op: Group, found: Placement, count: int) -> str | None:
    if found.partitioning != op.partitioning:
        return f"{found.group} placed its rows by another partitioning"
    if found.lost_by:
        return f"{found.lost_by} may have moved the rows that {found.group} placed"
    if count != op.partitions:
        return f"it has {count} partitions, not {op.partitions}"
    return None


def size_partitions(graph: Graph, *, workers: int) -> Rewritten:
    """Read several tiny neighbouring parts in one task, down to a few per worker, where no answer depends on the number."""
    applied: list[str] = []
    refused: list[str] = []
    outputs = output_nodes(graph)
    most = PARTS_PER_WORKER * workers
    joined: set[Node] = set()  # whose partitions are others now

    def change(node: Node) -> Node:
        op = node.op
        if not isinstance(op, Read) or len(op.parts) <= most:
            return node
        count = len(op.parts)
        why = _no_joining(op, node.size_bytes)
        behind: list[Node] = []
        if why is None:
            behind, why = _up_to_groups(graph, node, outputs)
        if why:
            refused.append(f"{node.name} keeps its {count} partitions: {why}")
            return node
        width = -(-count // most)
        runs = tuple(op.parts[at : at + width] for at in range(0, count, width))
        joined.update(behind)
        assert op.function is not None
        assert op.together is not None
        applied.append(f"{node.name} reads {count} parts in {tasks(len(runs))}, for {workers} workers")
        function = partial(_read_run, op.function, op.together)
        return replace(node, op=replace(op, key=_run_key(op.key, width), parts=runs, function=function))

    done, became = rebuild(graph, change)
    became = {node: now for node, now in became.items() if node not in joined}
    return Rewritten(graph=done, applied=tuple(applied), refused=tuple(refused), became=became)


def _run_key(key: Hashable, width: int) -> Hashable:
    return None if key is None else ("together", width, key)


def _no_joining(op: Read, size_bytes: int) -> str | None:
    if op.together is None or op.function is None:
        return "nothing says how to read several parts together"
    if not size_bytes:
        return "their size is not known"
    mean = size_bytes // len(op.parts)
    if mean >= TINY_PART_BYTES:
        return f"they have {mean} bytes on average, {TINY_PART_BYTES} are worth a task"
    return None


def _up_to_groups(graph: Graph, read: Node, outputs: set[Node]) -> tuple[list[Node], str | None]:
    """Return the nodes between a read and the next groups, and who would see that their partitions were joined."""
    nodes = [read]
    for node in nodes:  # grows while it is walked
        if node in outputs:
            return nodes, f"the partitions of {node.name} are an output"
        if node.keep:
            return nodes, f"{node.name} is kept for graphs that may need its partitions"
        for user in graph.consumers[node]:
            op = user.op
            if isinstance(op, Group):
                if not op.exact or op.placed:
                    return nodes, f"{user.name} is not exact"
            elif isinstance(op, Map) and op.rowwise and not op.indexed and _is_alone(node, user):
                nodes.append(user)
            else:
                what = "flattens" if isinstance(op, Flatten) else "works on partitions, not on rows"
                return nodes, f"{user.name} {what}"
    return nodes, None


def _is_alone(node: Node, user: Node) -> bool:
    """Return whether ``user`` takes the partitions of ``node`` one by one, and whole ones of others at most."""
    taken = zip(user.sources(), takes_of(user), strict=True)
    return [source for source, take in taken if take == "own" or source is node] == [node]


def _read_run(
    read: Callable[[Any], Any], together: Callable[[list[Any]], Any], parts: tuple[Any, ...]
) -> Any:
    values = [read(part) for part in parts]
    return values[0] if len(values) == 1 else together(values)
