"""Which operators run in one task: pieces of a plan, and the units that they form.

A piece is an operator, or one half of a Group.  A unit is a set of pieces with one task per partition; it starts with one piece
and grows by ``Units.join``, which ``Units.objection`` has allowed.  Nothing here decides what should be joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from .graph import Graph, Node, Op, Part
from .logical import (
    Combine,
    Flatten,
    Fused,
    Group,
    Merge,
    Split,
    Take,
    count_partitions,
    kept_nodes,
    output_nodes,
    takes_of,
)  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
    """What a piece needs: a value (or ``element`` of it, of each partition), and which partitions of it."""

    piece: Piece
    take: Take
    element: int | None = None


@dataclass(eq=False, kw_only=True)
class Piece:
    """An operator, or one half of a group, before it is known which task runs it; ``at`` is its place in the plan."""

    name: str
    op: Op
    node: Node
    at: int
    count: int
    inputs: tuple[Source, ...]
    work_s: float
    size_bytes: int
    kept: bool = False
    is_output: bool = False
    users: list[tuple[Piece, Source]] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        """True for what is never part of a larger task: it has no task, or is fused already."""
        return isinstance(self.op, Flatten | Fused)

    @property
    def is_half(self) -> bool:
        """True for what cannot be a node of its own."""
        return isinstance(self.op, Split | Merge) or self.op is not self.node.op


def cut_in_pieces(graph: Graph) -> list[Piece]:
    """Return the operators of a graph, groups cut in halves, inputs first."""
    counts = count_partitions(graph)
    kept, outputs = kept_nodes(graph), output_nodes(graph)
    pieces: list[Piece] = []
    made_by: dict[Node, Piece] = {}
    for node in graph.nodes:
        sources = [
            _source(given, take, made_by) for given, take in zip(node.inputs, takes_of(node), strict=True)
        ]
        op = node.op
        if isinstance(op, Group):
            sources = _splits(node, op, sources, pieces)
            merge = Merge(group=op, releases_gil=op.releases_gil)
            last = _add(
                pieces, node.name, merge, node, counts[node], sources, node.work_s / 2, node.size_bytes
            )
        else:
            last = _add(pieces, node.name, op, node, counts[node], sources, node.work_s, node.size_bytes)
        last.kept, last.is_output = node in kept, node in outputs
        made_by[node] = last
    return pieces


def _source(given: Node | Part, take: Take, made_by: dict[Node, Piece]) -> Source:
    if isinstance(given, Part):
        return Source(piece=made_by[given.node], take=take, element=given.index)
    return Source(piece=made_by[given], take=take)


def _splits(node: Node, op: Group, sources: Sequence[Source], pieces: list[Piece]) -> list[Source]:
    """Add the splits of a group, and what folds in front of them; return what its merge takes."""
    moving = [source.piece.count for at, source in enumerate(sources) if at not in op.placed]
    taken: list[Source] = []
    for at, source in enumerate(sources):
        if at in op.placed:
            taken.append(source)
            continue
        count = source.piece.count
        share = count / max(sum(moving), 1)
        suffix = f".{at}" if len(moving) > 1 else ""
        if op.local is not None:
            local = Combine(function=op.local.function, releases_gil=op.local.releases_gil)
            piece = _add(
                pieces,
                f"{node.name}.local{suffix}",
                local,
                node,
                count,
                [source],
                0.0,
                source.piece.size_bytes,
            )
            source = Source(piece=piece, take="own")
        function, first = op.split_of(at)
        split = Split(
            function=function, partitions=op.partitions, index_from=first, releases_gil=op.releases_gil
        )
        piece = _add(
            pieces, f"{node.name}.split{suffix}", split, node, count, [source],
            node.work_s / 2 * share, int(node.size_bytes * share),
        )  # fmt: skip
        taken.append(Source(piece=piece, take="pieces"))
    return taken


def _add(
    pieces: list[Piece],
    name: str,
    op: Op,
    node: Node,
    count: int,
    sources: Sequence[Source],
    work_s: float,
    size_bytes: int,
) -> Piece:
    piece = Piece(
        name=name, op=op, node=node, at=len(pieces), count=count, inputs=tuple(sources),
        work_s=work_s, size_bytes=size_bytes,
    )  # fmt: skip
    pieces.append(piece)
    for source in sources:
        source.piece.users.append((piece, source))
    return piece


class Units:
    """A partition of the pieces of a plan; at first each piece is a unit."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._members: dict[int, list[Piece]] = {piece.at: [piece] for piece in pieces}
        self._unit: dict[Piece, int] = {piece: piece.at for piece in pieces}
        # Per unit: its pieces, and those with all that they need, as sets of bits.
        self._own: dict[int, int] = {piece.at: 1 << piece.at for piece in pieces}
        self._needed: dict[int, int] = {}
        for piece in pieces:
            bits = 1 << piece.at
            for source in piece.inputs:
                bits |= self._needed[source.piece.at]
            self._needed[piece.at] = bits

    def unit(self, piece: Piece) -> int:
        """Return the number of the unit of a piece."""
        return self._unit[piece]

    def members(self, unit: int) -> list[Piece]:
        """Return the pieces of a unit, inputs first."""
        return self._members[unit]

    def all(self) -> list[int]:
        """Return the numbers of the units, in no order that means anything."""
        return list(self._members)

    def exposed(self, members: Iterable[Piece]) -> list[Piece]:
        """Return the pieces whose values others need if ``members`` are one unit."""
        inside = set(members)
        return [
            piece
            for piece in sorted(inside, key=lambda piece: piece.at)
            if piece.is_output or piece.kept or any(user not in inside for user, _ in piece.users)
        ]

    def tasks(self, members: Iterable[Piece]) -> int:
        """Return the tasks per partition: one, and one for each output that has to be taken out of a tuple."""
        exposed = self.exposed(members)
        return 1 if len(exposed) == 1 else 1 + sum(piece.is_output for piece in exposed)

    def objection(self, units: set[int]) -> str | None:
        """Return why ``units`` cannot, or should not, be one; None if they can."""
        members = [piece for unit in units for piece in self._members[unit]]
        kept = [piece.name for piece in members if piece.kept]
        if kept and len(self.exposed(members)) > 1:
            return f"{kept[0]} is kept and needs a task of its own"
        if self.tasks(members) >= sum(self.tasks(self._members[unit]) for unit in units):
            return "it would save no task, as each output has one of its own"
        inside = set(members)
        for piece in members:
            for source in piece.inputs:
                if source.piece in inside and (source.take != "own" or source.element is not None):
                    return f"{piece.name} needs other partitions of {source.piece.name} first"
        if self._circle(units):
            return "others between them need all of its partitions first"
        return None

    def in_turn(self, one: int, other: int) -> bool:
        """Return whether a piece of one unit needs a piece of the other; quick, and not all that may make a circle."""
        return bool(self._own[one] & self._needed[other] or self._own[other] & self._needed[one])

    def join(self, units: set[int]) -> None:
        """Make one unit of several."""
        first = min(units)
        for bits in (self._own, self._needed):
            bits[first] = reduce(or_, (bits.pop(unit) for unit in tuple(units)))
        members = sorted((piece for unit in units for piece in self._members.pop(unit)), key=lambda p: p.at)
        self._members[first] = members
        self._unit.update(dict.fromkeys(members, first))

    def _circle(self, units: set[int]) -> bool:
        """Return whether a way leads out of ``units`` and back."""
        seen = set(units)
        pending = list(units)
        while pending:
            unit = pending.pop()
            for piece in self._members[unit]:
                for user, _ in piece.users:
                    after = self._unit[user]
                    if after in units and unit not in units:
                        return True
                    if after not in seen:
                        seen.add(after)
                        pending.append(after)
        return False
