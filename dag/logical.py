"""Operators over partitioned data: the level at which plans are written, read and rewritten.

A logical graph is a ``Graph`` whose nodes have the operators below.  ``expand`` makes the graph of tasks from it, one task per
partition.  What a partition's value is (a list of record batches, an array, a list of pairs) is the caller's affair.

::

    Read      parts -> one partition each
    Map       partition i of every input -> partition i
    Flatten   the partitions of all inputs, one after the other
    Group     every partition is split into pieces, piece j of all of them is merged into partition j
    Combine   partition -> partition; may be applied to pieces before they are grouped as well
    Write     partition -> what is known of the file

An input that is a ``Whole`` gives each partition the list of all of that node's partitions: a broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import BadGraph
from .graph import Node, Op


@dataclass(frozen=True, kw_only=True, eq=False)
class Read(Op):
    """``function(part)`` for each of ``parts``; ``read_again`` if reading once more gives the same value."""

    kind: str = "read"
    parts: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Map(Op):
    """``function(*values)``, or ``function(*values, index=i)`` when ``indexed``.

    ``whole`` inputs (numbers of inputs) come as the list of all their partitions.  ``keeps_partitioning`` says that rows stay in
    the partition where a Group in front put them.
    """

    kind: str = "map"
    indexed: bool = False
    whole: tuple[int, ...] = ()
    keeps_partitioning: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Flatten(Op):
    """The partitions of all inputs, one after the other."""

    kind: str = "flatten"


@dataclass(frozen=True, kw_only=True, eq=False)
class Group(Op):
    """``split(value, index=i)`` gives ``partitions`` pieces; ``merge(pieces, index=j)`` makes partition j of them.

    The pieces come in the order of the input's partitions, those of several inputs one input after the other.  ``splits`` has one
    function per input (or one for all).  Two groups place rows alike if their ``partitioning`` is equal and not None.
    """

    kind: str = "group"
    partitions: int
    splits: tuple[Callable[..., Sequence[Any]], ...]
    merge: Callable[..., Any]
    partitioning: Hashable = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Combine(Op):
    """``function(value)`` folds the rows of equal keys; ``exact`` if folding parts first gives the same bytes."""

    kind: str = "combine"
    exact: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Write(Op):
    """``function(value, index=i)`` writes partition i."""

    kind: str = "write"


def partitions_of(node: Node, known: dict[Node, int] | None = None) -> int:
    """Return how many partitions a logical node has.

    Raises:
        BadGraph: the inputs of a Map have different numbers of partitions, or an operator is no logical one.
    """
    known = {} if known is None else known
    pending = [node]
    while pending:
        top = pending[-1]
        missing = [source for source in top.sources() if source not in known]
        if missing:
            pending.extend(missing)
            continue
        pending.pop()
        if top not in known:
            known[top] = _partitions(top, [known[source] for source in top.sources()])
    return known[node]


def _partitions(node: Node, inputs: list[int]) -> int:
    op = node.op
    if isinstance(op, Read):
        return len(op.parts)
    if isinstance(op, Group):
        return op.partitions
    if isinstance(op, Flatten):
        return sum(inputs)
    if isinstance(op, Map):
        counts = {count for at, count in enumerate(inputs) if at not in op.whole}
        if len(counts) != 1:
            raise BadGraph(
                f"{node.name}: the inputs of a map must have equal numbers of partitions, got {inputs}"
            )
        return counts.pop()
    if isinstance(op, Combine | Write):
        return inputs[0]
    raise BadGraph(f"{node.name}: {op.kind!r} is no operator over partitions")
