"""Fusion: what can run one after the other on one partition becomes one task.

Every Group is cut into its two halves, a split for each input and a merge.  Then, as in FlumeJava (Chambers et al. 2010, section
4), a value that only its own partition's tasks need moves into the task that makes it (producer-consumer fusion), and tasks that
read the same partitions become one (sibling fusion).  A value stays between tasks, in memory, where it is kept, is an output, or
is needed by other partitions; the report says which and why.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from .graph import Graph, Node, Part
from .logical import Flatten, Fused, Group, Map, Merge, Read, Split, Step, Take, Write
from .rewrite_base import Names, Rewritten, listed, tasks, with_inputs
from .rewrite_partitions import Placement, placements
from .rewrite_units import Piece, Source, Units, cut_in_pieces


def fuse(graph: Graph, *, workers: int = 1) -> Rewritten:
    """Put operators together into one task per partition.

    With fewer partitions than ``workers``, operators that can run side by side are left apart.
    """
    pieces = cut_in_pieces(graph)
    units = Units(pieces)
    refused: list[str] = []
    for piece in pieces:
        why = _fuse_users(units, piece, workers)
        if why:
            users = listed(dict.fromkeys(user.name for user, _ in piece.users))
            refused.append(f"{piece.name} is not fused with {users}: {why}")
    for piece in pieces:
        why = _fuse_siblings(units, piece, workers)
        if why:
            refused.append(why)
    done, applied, became = _Emission(graph, pieces, units).result()
    return Rewritten(graph=done, applied=tuple(applied), refused=tuple(refused), became=became)


def fused_operations(graph: Graph) -> int:
    """Return how many operations are left, as FlumeJava counts: a shuffle with all that runs in its tasks is one.

    Shuffles that start in the same tasks are one operation; every other operator is one, except reading and writing.
    """
    parent: dict[object, object] = {}

    def root(side: object) -> object:
        parent.setdefault(side, side)
        while parent[side] != side:
            side = parent[side]
        return side

    alone = 0
    for node in graph.nodes:
        op = node.op
        steps = op.steps if isinstance(op, Fused) else ()
        if isinstance(op, Group):
            root((node, "merges"))
        elif any(isinstance(step.op, Split | Merge) for step in steps):
            for given, take in zip(node.inputs, op.takes if isinstance(op, Fused) else (), strict=True):
                if take == "pieces":
                    maker = given.node if isinstance(given, Part) else given
                    parent[root((maker, "splits"))] = root((node, "merges"))
        elif not isinstance(op, Read | Write) and op.kind != "pick":
            alone += not steps or any(not isinstance(step.op, Read | Write) for step in steps)
    return alone + len({root(side) for side in tuple(parent)})


def _fuse_users(units: Units, piece: Piece, workers: int) -> str | None:
    """Join a piece with all that use it, or return why it is left."""
    users = [user for user, _ in piece.users]
    together = {units.unit(each) for each in (piece, *users)}
    if not users or len(together) == 1 or piece.closed or isinstance(piece.op, Split):
        return None  # nothing to join; what leaves a split is a shuffle
    for user, source in piece.users:
        if source.take == "whole":
            return f"{user.name} needs all of its partitions"
        if source.take != "own":
            return None  # a level of a tree needs several, which is what trees are
        if user.closed:
            return f"{user.name} {'only names its partitions' if isinstance(user.op, Flatten) else 'is fused already'}"
    if piece.kept:
        return "it is kept"
    if piece.is_output:
        return "it is an output"
    if len({units.unit(user) for user in users}) > 1 and piece.count < workers:
        return f"they can run side by side; joined, they would use {piece.count} of {workers} workers"
    why = units.objection(together)
    if why is None:
        units.join(together)
    return why


def _fuse_siblings(units: Units, piece: Piece, workers: int) -> str | None:
    """Join the pieces that read the same partitions; return who is left, and why."""
    readers = [
        user
        for user, source in piece.users
        if source.take == "own"
        and source.element is None
        and not user.closed
        and units.unit(user) != units.unit(piece)
    ]
    apart: dict[str, str] = {}  # who is left, and why
    for at, user in enumerate(readers):
        for other in readers[:at]:
            if units.unit(other) == units.unit(user):
                break
            if units.in_turn(units.unit(user), units.unit(other)):
                continue  # one has to wait for the other: there is nothing to decide
            why = _objection(units, piece, user, other, workers)
            if why is None:
                units.join({units.unit(other), units.unit(user)})
                break
            apart.setdefault(user.name, why)
        else:
            continue
        apart.pop(user.name, None)
    if not apart:
        return None
    why = next(iter(apart.values()))
    return f"{listed(apart)} {'read' if len(apart) > 1 else 'reads'} {piece.name} in other tasks than those before: {why}"


def _objection(units: Units, piece: Piece, one: Piece, other: Piece, workers: int) -> str | None:
    if piece.count < workers:
        return f"they can run side by side; joined, they would use {piece.count} of {workers} workers"
    return units.objection({units.unit(one), units.unit(other)})


def _same(value: Any) -> Any:
    return value


class _Emission:
    """The nodes that a plan's units become."""

    def __init__(self, graph: Graph, pieces: Sequence[Piece], units: Units) -> None:
        self._graph, self._units = graph, units
        self._placed = placements(graph)
        self._values: dict[Piece, Node | Part] = {}
        self._became: dict[Node, Node] = {}
        self._applied: list[str] = []
        self._names = Names()
        self._order = _in_order(pieces, units)
        # Nodes that stay as they are have their names first.
        self._plain: dict[int, str] = {}
        for unit in self._order:
            members = units.members(unit)
            if len(members) == 1 and not members[0].is_half:
                self._plain[unit] = self._names.fresh(members[0].name)

    def result(self) -> tuple[Graph, list[str], dict[Node, Node]]:
        """Return the graph, what was done, and what became of each node that is still one."""
        for unit in self._order:
            members = self._units.members(unit)
            if unit in self._plain:
                piece = members[0]
                self._values[piece] = with_inputs(piece.node, (self._given(each) for each in piece.inputs))
            else:
                self._fused(members)
            for piece in members:
                value = self._values.get(piece)
                if isinstance(value, Node) and (piece.op is piece.node.op or isinstance(piece.op, Merge)):
                    self._became[piece.node] = value
        done = Graph(tuple(self._became[node] for node in self._graph.outputs))
        parts = set[Node]()  # flattens of values that are parts of others: no values of their own
        for now in self._became.values():
            if isinstance(now.op, Flatten) and any(
                isinstance(given, Part) or given in parts for given in now.inputs
            ):
                parts.add(now)
        return done, self._applied, {node: now for node, now in self._became.items() if now not in parts}

    def _given(self, source: Source) -> Node | Part:
        value = self._values[source.piece]
        if source.element is None:
            return value
        assert isinstance(value, Node)
        return Part(value, source.element)

    def _fused(self, members: Sequence[Piece]) -> None:
        steps, inputs = self._steps(members)
        exposed = self._units.exposed(members)
        number = {piece: at for at, piece in enumerate(members)}
        kinds = [step.op.kind for step in steps]
        placed = self._placed[exposed[0].node] if len(exposed) == 1 else None
        op = Fused(
            kind="+".join(kind for at, kind in enumerate(kinds) if kinds[at - 1 : at] != [kind]),
            releases_gil=all(step.op.releases_gil for step in steps),
            partitions=members[0].count,
            steps=steps,
            exposed=tuple(number[piece] for piece in exposed),
            takes=tuple(take for _, take in inputs),
            partitioning=_partitioning(placed) if not isinstance(exposed[0].op, Split) else None,
        )
        node = Node(
            name=self._names.fresh(_title(members, exposed)),
            op=op,
            inputs=tuple(given for given, _ in inputs),
            work_s=sum(piece.work_s for piece in members),
            size_bytes=sum(piece.size_bytes for piece in exposed),
            keep=any(piece.kept for piece in members),
        )
        if len(exposed) == 1:
            self._values[exposed[0]] = node
        else:
            self._take_apart(node, exposed)
        self._report(members, exposed)

    def _steps(self, members: Sequence[Piece]) -> tuple[tuple[Step, ...], list[tuple[Node | Part, Take]]]:
        number = {piece: at for at, piece in enumerate(members)}
        inputs: list[tuple[Node | Part, Take]] = []
        steps = []
        for piece in members:
            sources = []
            for source in piece.inputs:
                if source.piece in number:
                    sources.append(number[source.piece])
                    continue
                given = (self._given(source), source.take)
                if given not in inputs:
                    inputs.append(given)
                sources.append(-1 - inputs.index(given))
            steps.append(Step(name=piece.name, op=piece.op, inputs=tuple(sources)))
        return tuple(steps), inputs

    def _take_apart(self, node: Node, exposed: Sequence[Piece]) -> None:
        element = 0
        for piece in exposed:
            value: Node | Part = Part(node, element)
            element += piece.op.partitions if isinstance(piece.op, Split) else 1
            if piece.is_output:
                pick = Map(kind="pick", function=_same, releases_gil=True, keeps_partitioning=True)
                size = piece.size_bytes
                value = Node(name=self._names.fresh(piece.name), op=pick, inputs=(value,), size_bytes=size)
            self._values[piece] = value

    def _report(self, members: Sequence[Piece], exposed: Sequence[Piece]) -> None:
        whole = [
            piece for piece in members if piece.op is piece.node.op or isinstance(piece.op, Split | Merge)
        ]
        if len(whole) > 1:
            count, picks = members[0].count, self._units.tasks(members)
            values = "" if len(exposed) == 1 else f", making {len(exposed)} values"
            self._applied.append(
                f"{listed([piece.name for piece in whole], 5)} run in one task per partition{values}: "
                f"{tasks(count * picks)} instead of {count * len(whole)}"
            )


def _partitioning(placed: Placement | None) -> Any:
    return placed.partitioning if placed is not None and placed.lost_by is None else None


def _title(members: Sequence[Piece], exposed: Sequence[Piece]) -> str:
    """Return a name for a fused node: of what it makes; for what goes into a shuffle, of what is split."""
    inside = set(members)
    names: dict[str, None] = {}
    for piece in exposed:
        shown = piece
        while shown.is_half and not isinstance(shown.op, Merge) and shown.inputs[0].piece in inside:
            shown = shown.inputs[0].piece
        names[shown.name] = None
    found = list(names)
    return "+".join(found if len(found) <= 3 else [*found[:2], f"{len(found) - 2} more"])


def _in_order(pieces: Sequence[Piece], units: Units) -> list[int]:
    """Return the units, inputs first, otherwise in the order of the plan."""
    waiting: dict[int, set[int]] = {}
    after: dict[int, set[int]] = {unit: set() for unit in units.all()}
    for piece in pieces:
        unit = units.unit(piece)
        before = {units.unit(source.piece) for source in piece.inputs} - {unit}
        waiting.setdefault(unit, set()).update(before)
        for each in before:
            after[each].add(unit)
    ready = [unit for unit, before in waiting.items() if not before]
    heapq.heapify(ready)
    order = []
    while ready:
        unit = heapq.heappop(ready)
        order.append(unit)
        for each in after[unit]:
            waiting[each].discard(unit)
            if not waiting[each]:
                heapq.heappush(ready, each)
    return order
