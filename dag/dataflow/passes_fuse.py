"""Make one operator of elementwise operators whose values nobody else needs.

A group has one result, so no value is computed twice and no circle can arise.  Members have the shape of the result; inputs may
broadcast.  ``fused`` says how a group runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from ..graph import Graph, Node
from .fused import Step
from .memory_plan import plan_memory
from .passes_base import Notes, derived, rebuild, tensors
from .tables import TRAITS
from .tensor import Tensor

#: Steps of one fused operator: more would only make long tables.
MOST_STEPS = 64


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


def fuse(graph: Graph, notes: Notes | None = None) -> Graph:
    """Return a graph in which elementwise operators of one shape, single-used between them, are one ``fused`` operator each.

    A fused operator has no derivative.  The planned peak of memory (``plan_memory``) does not rise: operators whose inputs would
    live longer for it are fused only where that takes no more than now.
    """
    limit_bytes = plan_memory(graph).peak_bytes
    for careful in (False, True):
        said = Notes()
        made = _fuse(graph, said, careful=careful)
        if plan_memory(made).peak_bytes <= limit_bytes:
            break
    else:
        made, said = graph, Notes()
        said.refused.append(f"nothing is fused: values would take more than the {limit_bytes:,} bytes of now")
    if notes is not None:
        notes.applied += said.applied
        notes.refused += said.refused
    return made


def _fuse(graph: Graph, notes: Notes, *, careful: bool) -> Graph:
    nodes, outputs = tensors(graph), set(graph.outputs)
    last = {source: number for number, node in enumerate(nodes) for source in node.inputs}
    last.update((node, len(nodes)) for node in nodes if node in outputs)
    order = _Order(
        at={node: number for number, node in enumerate(nodes)}, last=last, nodes=nodes, careful=careful
    )
    group_of: dict[Tensor, _Group] = {}
    for node in reversed(nodes):
        if node not in group_of and _fusible(node):
            _grow(node, order, graph.consumers, outputs, group_of, notes)
    done: dict[Tensor, Tensor] = {}

    def change(node: Tensor, moved: Tensor) -> Tensor:
        group = group_of.get(node)
        done[node] = moved if group is None or group.root is not node else _fused(group, done, notes)
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
