"""What a drawing of a graph shows: boxes for nodes or for families of tasks, and the edges between them.

Above ``limit`` nodes (or four times as many edges), tasks of one family (``count[0]``, ``count[1]``, ...) become one box; where
that would make a circle, the family is divided by depth.  If that is still too much, the middle of the order becomes one box.  Of
the rounds of a loop (``step``, ``step#2``, ``step#3``, ...) those in the middle can be one box.  No geometry here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

from .analysis import critical_path, edge_bytes
from .errors import BadGraph
from .graph import Graph, Node, Part
from .logical import Fused, partitions_of

EDGES_PER_BOX = 4  # with more of them, nobody can follow one


@dataclass(frozen=True, kw_only=True)
class Box:
    """One node, or several of one family."""

    name: str
    kind: str
    outline: str
    nodes: tuple[Node, ...]
    partitions: int | None
    size_bytes: int
    work_s: float
    kept: bool
    output: bool
    critical: bool


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Bytes from one box to another (their numbers); ``shares``: each consumer gets its own part of them."""

    source: int
    target: int
    size_bytes: int
    shares: bool
    on_disk: bool
    critical: bool


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Boxes, those that feed others first, and edges from lower to higher numbers."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


def picture_of(
    graph: Graph, *, limit: int = 300, rounds: int | None = None, on_disk: Collection[str] = ()
) -> Picture:
    """Return what to draw of ``graph``; the values of the nodes (or families) named ``on_disk`` go through a disk.

    Of more than ``rounds`` rounds of a loop, the third to the last but one are one box; None draws all.
    """
    families = _families(graph, limit, rounds)
    number = {node: at for at, nodes in enumerate(families) for node in nodes}
    path = critical_path(graph) if any(node.work_s for node in graph.nodes) else ()
    steps = {(number[source], number[target]) for source, target in itertools.pairwise(path)}
    outputs, critical = set(graph.outputs), set(path)
    known: dict[Node, int] = {}
    boxes = tuple(
        Box(
            name=_name(nodes, families),
            kind=_kind(nodes),
            outline=nodes[0].outline if len(nodes) == 1 else "",
            nodes=nodes,
            partitions=_partitions(nodes, known),
            size_bytes=sum(node.size_bytes for node in nodes),
            work_s=sum(node.work_s for node in nodes),
            kept=any(node.keep for node in nodes),
            output=any(node in outputs for node in nodes),
            critical=any(node in critical for node in nodes),
        )
        for nodes in families
    )
    shares = {(given.node, node) for node in graph.nodes for given in node.inputs if isinstance(given, Part)}
    sums: dict[tuple[int, int], int] = {}
    shared: set[tuple[int, int]] = set()
    stored: set[tuple[int, int]] = set()
    for (source, target), size in edge_bytes(graph).items():
        ends = number[source], number[target]
        if ends[0] != ends[1]:
            sums[ends] = sums.get(ends, 0) + size
            if (source, target) in shares:
                shared.add(ends)
            if source.name in on_disk or family_of(source.name) in on_disk:
                stored.add(ends)
    return Picture(
        boxes=boxes,
        edges=tuple(
            Edge(
                source=ends[0], target=ends[1], size_bytes=size,
                shares=ends in shared, on_disk=ends in stored, critical=ends in steps,
            )
            for ends, size in sorted(sums.items())
        ),
    )  # fmt: skip


def family_of(name: str) -> str:
    """Return the name without the number of the partition.

    >>> family_of("count.split[12]")
    'count.split'
    """
    return re.sub(r"\[\d+\]$", "", name)


def is_apart(box: Box, scopes: Collection[str]) -> bool:
    """Return whether all nodes of a box are in one of ``scopes``: the words of a name before each slash."""
    return bool(scopes) and all(not set(node.name.split("/")[:-1]).isdisjoint(scopes) for node in box.nodes)


def names_its_kind(box: Box) -> bool:
    """Return whether the name of a tensor's box says its operator, as it mostly does."""
    name = box.name.rpartition("/")[2].partition(" (")[0]
    return bool(box.outline) and name == box.kind


def _round_of(node: Node) -> tuple[str, int]:
    """Return the loop's name and the number of the round: ("step", 3) for ``step#3.map[0]``, 0 if it has none."""
    match = re.match(r"(.+?)#(\d+)", node.name)
    return (match[1], int(match[2])) if match else ("", 0)


def _folded(graph: Graph, rounds: int) -> list[tuple[Node, ...]] | None:
    """Return the nodes with the middle rounds of each loop together; None if there are none, or that makes a circle."""
    last: dict[str, int] = {}
    for node in graph.nodes:
        loop, number = _round_of(node)
        last[loop] = max(last.get(loop, 0), number)
    middle = {
        node: loop
        for node in graph.nodes
        for loop, number in [_round_of(node)]
        if last[loop] > rounds and 3 <= number < last[loop]
    }
    if not middle:
        return None
    for together in (False, True):  # loops that take turns need each other
        keys: dict[Node, Hashable] = {
            node: ("rounds", "" if together else middle[node]) if node in middle else node
            for node in graph.nodes
        }
        if not _in_circles(graph, keys):
            return _ordered(graph, keys)
    return None


def _families(graph: Graph, limit: int, rounds: int | None) -> list[tuple[Node, ...]]:
    if limit < 3:
        raise BadGraph(f"a drawing needs a limit of 3 boxes or more, got {limit}")
    folded = None if rounds is None else _folded(graph, rounds)
    if folded is not None and len(folded) <= limit:
        return folded
    edges = sum(len(users) for users in graph.consumers.values())
    if len(graph) <= limit and edges <= EDGES_PER_BOX * limit:
        return [(node,) for node in graph.nodes]
    keys: dict[Node, Hashable] = {node: family_of(node.name) for node in graph.nodes}
    circular = _in_circles(graph, keys)
    if circular:
        depth: dict[Node, int] = {}
        for node in graph.nodes:
            depth[node] = max((depth[source] + 1 for source in node.sources()), default=0)
        keys = {node: (key, depth[node]) if key in circular else key for node, key in keys.items()}
    families = _ordered(graph, keys)
    if len(families) > limit:
        first = limit // 2
        last = limit - first - 1
        middle = tuple(node for nodes in families[first : len(families) - last] for node in nodes)
        families = [*families[:first], middle, *families[len(families) - last :]]
    return families


def _edges_between(graph: Graph, keys: Mapping[Node, Hashable]) -> dict[Hashable, dict[Hashable, None]]:
    found: dict[Hashable, dict[Hashable, None]] = {keys[node]: {} for node in graph.nodes}
    for node in graph.nodes:
        for source in node.sources():
            if keys[source] != keys[node]:
                found[keys[source]][keys[node]] = None
    return found


def _in_circles(graph: Graph, keys: Mapping[Node, Hashable]) -> set[Hashable]:
    """Return the families that need each other, and those between such."""
    after = _edges_between(graph, keys)
    before: dict[Hashable, dict[Hashable, None]] = {key: {} for key in after}
    for key, targets in after.items():
        for target in targets:
            before[target][key] = None
    left = set(after)
    for follow, against in ((after, before), (before, after)):
        waiting = {key: sum(each in left for each in against[key]) for key in left}
        ready = [key for key, count in waiting.items() if count == 0]
        while ready:
            key = ready.pop()
            left.discard(key)
            for target in follow[key]:
                if target in left:
                    waiting[target] -= 1
                    if waiting[target] == 0:
                        ready.append(target)
    return left


def _ordered(graph: Graph, keys: Mapping[Node, Hashable]) -> list[tuple[Node, ...]]:
    members: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        members.setdefault(keys[node], []).append(node)
    after = _edges_between(graph, keys)
    waiting = dict.fromkeys(members, 0)
    for targets in after.values():
        for target in targets:
            waiting[target] += 1
    found: list[tuple[Node, ...]] = []
    ready = [key for key in members if waiting[key] == 0]
    for key in ready:  # grows while it is walked
        found.append(tuple(members[key]))
        for target in after[key]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return found


def _name(nodes: tuple[Node, ...], families: list[tuple[Node, ...]]) -> str:
    if len(nodes) == 1:
        return nodes[0].name
    names = dict.fromkeys(family_of(node.name) for node in nodes)
    if len(names) > 1:
        loops = [_round_of(node) for node in nodes]
        if all(number for _, number in loops):
            called = "+".join(dict.fromkeys(loop for loop, _ in loops))
            return f"{called} #{min(loops, key=_second)[1]}-{max(loops, key=_second)[1]}"
        return f"... {len(names):,} more ..."
    return f"{next(iter(names))} x {len(nodes):,}"


def _second(pair: tuple[str, int]) -> int:
    return pair[1]


def _kind(nodes: tuple[Node, ...]) -> str:
    rounds = {number for _, number in map(_round_of, nodes)}
    if len(rounds) > 1 and 0 not in rounds:
        return f"{len(rounds)} rounds"
    kinds = dict.fromkeys(node.op.kind for node in nodes)
    if len(kinds) > 1:
        return f"{len(nodes):,} nodes"
    op = nodes[0].op
    if isinstance(op, Fused):
        return "+".join(dict.fromkeys(step.op.kind for step in op.steps))
    return op.kind


def _partitions(nodes: tuple[Node, ...], known: dict[Node, int]) -> int | None:
    if len(nodes) > 1:
        return None
    try:
        return partitions_of(nodes[0], known)
    except BadGraph:  # tasks have none
        return None
