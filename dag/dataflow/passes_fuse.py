"""Make one operator of elementwise operators whose values nobody else needs.

A group has one result, so no value is computed twice and no circle can arise.  Members have the shape of the result; inputs may
broadcast.  ``fused`` says how a group runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from ..graph import Graph, Node
from .fused import Step
from .inputs import graph_of
from .memory_plan import plan_memory
from .passes_base import Notes, derived, rebuild, tensors
from .tables import TRAITS
from .tensor import Tensor

#: Steps of one fused operator: more would only make long tables.
MOST_STEPS = 64
#: Memory is planned this often to find the groups that cost none, and less often for more nodes than these.
MOST_PLANS, FEWEST_PLANS, PLANNED_NODES = 16, 3, 10_000


@dataclass(frozen=True, kw_only=True, eq=False)
class _Group:
    root: Tensor
    members: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Order:
    """When what happens: the order of the graph, and the last use of each value.

    ``careful``: not even where nothing happens in between may inputs live longer than now.
    """

    at: Mapping[Tensor, int]
    last: Mapping[Tensor, int]
    nodes: tuple[Tensor, ...]
    careful: bool


def fuse(graph: Graph | Any, notes: Notes | None = None, *, least_bytes: int = 0) -> Graph:
    """Return a graph in which elementwise operators of one shape, single-used between them, are one ``fused`` operator each.

    A fused operator has no derivative.  Groups that would raise the planned peak of memory (``plan_memory``) are not fused, nor
    are those whose result has fewer than ``least_bytes``.
    """
    graph = graph_of(graph)
    said = notes or Notes()
    ways: list[tuple[int, list[_Group], list[_Group], Notes]] = []
    for careful in (False, True):
        heard = Notes()
        found = _groups(graph, heard, careful=careful)
        groups = [group for group in found if group.root.size_bytes >= least_bytes]
        fused, left = _affordable(graph, groups)
        ways.append((sum(len(group.members) - 1 for group in fused), fused, left, heard))
        if not left:
            break
    _, fused, left, heard = max(ways, key=lambda way: way[0])
    said.refused += heard.refused
    said.refused += [
        f"{group.root.name} stays {len(group.members)} operators: fused, memory would have a higher peak"
        for group in left
    ]
    return _with_groups(graph, fused, said)


def _affordable(graph: Graph, groups: list[_Group]) -> tuple[list[_Group], list[_Group]]:
    """Return the groups that can be fused without a higher peak of memory, and the others; found by halving."""
    limit_bytes = plan_memory(graph).peak_bytes
    fused: list[_Group] = []
    left: list[_Group] = []
    pending = [groups] if groups else []
    for _ in range(max(FEWEST_PLANS, min(MOST_PLANS, PLANNED_NODES // max(1, len(graph))))):
        if not pending:
            break
        part = pending.pop()
        if plan_memory(_with_groups(graph, [*fused, *part], Notes())).peak_bytes <= limit_bytes:
            fused += part
        elif len(part) > 1:
            pending += [part[len(part) // 2 :], part[: len(part) // 2]]
        else:
            left += part
    return fused, left + [group for part in pending for group in part]


def _groups(graph: Graph, notes: Notes, *, careful: bool) -> list[_Group]:
    nodes, outputs = tensors(graph), set(graph.outputs)
    last = {source: number for number, node in enumerate(nodes) for source in node.inputs}
    last.update((node, len(nodes)) for node in nodes if node in outputs)
    at = {node: number for number, node in enumerate(nodes)}
    order = _Order(at=at, last=last, nodes=nodes, careful=careful)
    group_of: dict[Tensor, _Group] = {}
    for node in reversed(nodes):
        if node not in group_of and _fusible(node):
            _grow(node, order, graph.consumers, outputs, group_of, notes)
    return list(dict.fromkeys(group_of.values()))


def _with_groups(graph: Graph, groups: Sequence[_Group], notes: Notes) -> Graph:
    by_root = {group.root: group for group in groups}
    done: dict[Tensor, Tensor] = {}

    def change(node: Tensor, moved: Tensor) -> Tensor:
        group = by_root.get(node)
        done[node] = moved if group is None else _fused(group, done, notes)
        return done[node]

    return rebuild(graph, change)


def _fusible(node: Tensor) -> bool:
    return bool(node.inputs) and node.op.kind != "fused" and TRAITS[node.op.kind].elementwise


def _weightless(node: Tensor) -> bool:
    return not node.inputs or TRAITS[node.op.kind].view


def _grow(
    root: Tensor,
    order: _Order,
    users: Mapping[Any, tuple[Any, ...]],
    outputs: set[Node],
    group_of: dict[Tensor, _Group],
    notes: Notes,
) -> None:
    """Take into the group of ``root`` what may be in it, the latest first, so that all users of a value come before it."""
    group = _Group(root=root, members=[root])
    inside = {root}
    reached = order.at[root] - 1  # between here and the root nothing but members and what takes no memory
    waiting: list[tuple[int, Tensor]] = []
    queued: set[Tensor] = set()

    def offer(node: Tensor) -> None:
        for source in node.inputs:
            if source not in queued and _fusible(source) and source.shape == root.shape:
                queued.add(source)
                heappush(waiting, (-order.at[source], source))

    offer(root)
    while waiting and len(group.members) < MOST_STEPS:
        place, node = heappop(waiting)
        if node in outputs or any(user not in inside for user in users[node]):
            continue
        while reached > -place and (order.nodes[reached] in inside or _weightless(order.nodes[reached])):
            reached -= 1
        if reached > -place or order.careful:
            longer = sum(
                source.size_bytes
                for source in dict.fromkeys(node.inputs)
                if not _weightless(source) and order.last[source] < order.at[root] and source not in inside
            )
            if longer > node.size_bytes:
                notes.refused.append(
                    f"{node.name} stays out of {root.name}: for its {node.size_bytes:,} bytes "
                    f"{longer:,} of its inputs would live on"
                )
                continue
        inside.add(node)
        group.members.append(node)
        offer(node)
    if len(inside) > 1:
        group.members.sort(key=order.at.__getitem__)
        group_of.update(dict.fromkeys(group.members, group))


def _fused(group: _Group, done: Mapping[Tensor, Tensor], notes: Notes) -> Tensor:
    inside = set(group.members)
    inputs = list(
        dict.fromkeys(
            done[source] for node in group.members for source in node.inputs if source not in inside
        )
    )
    number = {node: at for at, node in enumerate(inputs)}
    number.update((node, len(inputs) + at) for at, node in enumerate(group.members))
    steps = tuple(
        Step(
            kind=node.op.kind,
            attributes=tuple(sorted(node.op.attributes.items())),
            operands=tuple(
                number[source] if source in inside else number[done[source]] for source in node.inputs
            ),
            name=node.name,
        )
        for node in group.members
    )
    notes.applied.append(
        f"{group.root.name} is {len(steps)} steps in one: {' '.join(step.kind for step in steps)}"
    )
    return derived(group.root, "fused", inputs, steps=steps)
