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

An input that is ``whole`` gives each partition the list of all of that node's partitions: a broadcast.  Rewrites add two
operators: ``Gather`` (one level of a tree) and ``Fused`` (several operators in one task).  Where a ``Fused`` node makes several
values, the others take ``Part(node, k)``: element k of the value of each partition.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .errors import BadGraph
from .graph import Graph, Node, Op


@dataclass(frozen=True, kw_only=True, eq=False)
class Read(Op):
    """``function(part)`` for each of ``parts``.

    ``together(values)`` makes one partition of those of several neighbouring parts; without it parts are never read together.
    """

    kind: str = "read"
    parts: tuple[Any, ...]
    together: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Map(Op):
    """``function(*values)``, or ``function(*values, index=i)`` when ``indexed``.

    ``whole`` inputs (numbers of inputs) come as the list of all their partitions; a map of whole inputs alone has one partition.

    Args:
        index_from: the number that ``index`` starts with.
        keeps_partitioning: rows stay in the partition where a Group in front put them.
        rowwise: mapping two partitions joined is joining two mapped ones, as where each row is treated by itself.
        associative: of a map with one input, which is whole: its value is ``fold_in_tree(function, values, fan_in)``.  The tree
            is over partition numbers and is part of the plan, so floats fold in the same way whoever runs it.
        fan_in: how many values such a function takes at a time.
    """

    kind: str = "map"
    indexed: bool = False
    index_from: int = 0
    whole: tuple[int, ...] = ()
    keeps_partitioning: bool = False
    rowwise: bool = False
    associative: bool = False
    fan_in: int = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Flatten(Op):
    """The partitions of all inputs, one after the other."""

    kind: str = "flatten"


@dataclass(frozen=True, kw_only=True, eq=False)
class Combine(Op):
    """``function(value)`` folds the rows of equal keys; ``exact`` if folding parts first gives the same bytes.

    An exact one may be asked to fold what goes into the Group in front of it too: rows in the order in which they were made.
    ``loose`` does that where it is not the same function.
    """

    kind: str = "combine"
    exact: bool = True
    loose: Callable[[Any], Any] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Group(Op):
    """``split(value, index=i)`` gives ``partitions`` pieces; ``merge(pieces, index=j)`` makes partition j of them.

    The pieces come in the order of the input's partitions, those of several inputs one input after the other; a merge that has to
    tell inputs apart needs pieces that say where they come from.

    Args:
        splits: one function per input, or one for all.
        index_from: the number that ``index`` of the split starts with, one per input; empty: 0.
        partitioning: where rows go, as a value.  Two groups place rows alike if it is equal and not None, and pieces without rows
            then add nothing to what a merge makes.
        exact: the merge gives the same bytes wherever its input was cut into pieces.
        local: folds each partition in front of its split.
        placed: inputs (numbers) whose rows are in their partition already: partition j of them goes to partition j and
            nowhere else.
        as_piece: ``as_piece(value, index=j)`` makes the piece of a placed partition; None: its split does, and piece j is taken.
    """

    kind: str = "group"
    partitions: int
    splits: tuple[Callable[..., Sequence[Any]], ...]
    merge: Callable[..., Any]
    index_from: tuple[int, ...] = ()
    partitioning: Hashable = None
    exact: bool = False
    local: Combine | None = None
    placed: tuple[int, ...] = ()
    as_piece: Callable[..., Any] | None = None

    def split_of(self, given: int) -> tuple[Callable[..., Sequence[Any]], int]:
        """Return the split of an input (by number) and the number that its index starts with."""
        split = self.splits[given] if len(self.splits) > 1 else self.splits[0]
        return split, self.index_from[given] if self.index_from else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Write(Op):
    """``function(value, index=i)`` writes partition i; ``index`` starts with ``index_from``."""

    kind: str = "write"
    index_from: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Gather(Op):
    """Partition p is ``function`` of the list of partitions p * fan_in and following; a single one is passed on as it is."""

    kind: str = "gather"
    fan_in: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Split(Op):
    """The first half of a Group, as a step: ``function(value, index=i)`` gives ``partitions`` pieces."""

    kind: str = "split"
    partitions: int
    index_from: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Merge(Op):
    """The second half of ``group``, as a step: lists of pieces, and whole partitions of inputs that are placed."""

    kind: str = "merge"
    group: Group


# What partition i of a node gets of an input: its partition i, all partitions, piece i of all partitions, or (a number k)
# the k partitions from i * k.
Take = Literal["own", "whole", "pieces"] | int
OWN: Take = "own"
WHOLE: Take = "whole"
PIECES: Take = "pieces"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operator of a fused node; ``inputs`` are earlier steps (0, 1, ...) or inputs of the node (-1, -2, ...)."""

    name: str
    op: Op
    inputs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Fused(Op):
    """Several operators that run one after the other in one task per partition.

    ``exposed`` are the steps whose values leave the task.  A single one is the task's value; several make a tuple, in which
    a Split has as many elements as it has pieces.  ``takes`` says how each input comes, and ``partitioning`` where the rows of a
    single value are.
    """

    kind: str = "fused"
    partitions: int
    steps: tuple[Step, ...]
    exposed: tuple[int, ...]
    takes: tuple[Take, ...]
    partitioning: Hashable = None


def fold_in_tree(function: Callable[[list[Any]], Any], values: Sequence[Any], fan_in: int) -> Any:
    """Fold values by a tree over their positions: ``fan_in`` neighbours at a time, a single one left over passed on.

    >>> fold_in_tree(lambda values: "(" + " ".join(values) + ")", list("abcde"), 2)
    '(((a b) (c d)) e)'
    """
    level = list(values)
    while len(level) > fan_in:
        runs = [level[at : at + fan_in] for at in range(0, len(level), fan_in)]
        level = [run[0] if len(run) == 1 else function(run) for run in runs]
    return function(level)


def takes_of(node: Node) -> tuple[Take, ...]:
    """Return how each input of a node comes.

    A Group counts as taking its inputs' own partitions (to split them).
    """
    op = node.op
    if isinstance(op, Fused):
        return op.takes
    if isinstance(op, Gather):
        return (op.fan_in,)
    if isinstance(op, Map):
        return tuple(WHOLE if at in op.whole else OWN for at in range(len(node.inputs)))
    return (OWN,) * len(node.inputs)


def partitions_of(node: Node, known: dict[Node, int] | None = None) -> int:
    """Return how many partitions a logical node has.

    Raises:
        BadGraph: numbers of partitions or of inputs do not fit, or an operator is no logical one.
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


def count_partitions(graph: Graph) -> dict[Node, int]:
    """Return how many partitions each node has; raises BadGraph as ``partitions_of`` does."""
    known: dict[Node, int] = {}
    for node in graph.nodes:
        partitions_of(node, known)
    return known


def _partitions(node: Node, inputs: list[int]) -> int:
    op = node.op
    if isinstance(op, Read):
        return len(op.parts)
    if isinstance(op, Group):
        return _group_partitions(node, op, inputs)
    if isinstance(op, Flatten):
        return sum(inputs)
    if isinstance(op, Fused):
        return op.partitions
    if isinstance(op, Map):
        return _map_partitions(node, op, inputs)
    if isinstance(op, Combine | Write | Gather):
        if len(inputs) != 1:
            raise BadGraph(f"{node.name}: a {op.kind} has one input, got {len(inputs)}")
        return -(-inputs[0] // op.fan_in) if isinstance(op, Gather) else inputs[0]
    raise BadGraph(f"{node.name}: {op.kind!r} is no operator over partitions")


def _map_partitions(node: Node, op: Map, inputs: list[int]) -> int:
    if op.associative and (op.whole != (0,) or len(inputs) != 1 or op.indexed or op.fan_in < 2):
        raise BadGraph(
            f"{node.name}: an associative map has one input, whole=(0,), no index and fan_in >= 2, "
            f"got {len(inputs)} inputs, whole={op.whole}, indexed={op.indexed}, fan_in={op.fan_in}"
        )
    counts = {count for at, count in enumerate(inputs) if at not in op.whole}
    if not counts and inputs:
        return 1
    if len(counts) != 1:
        raise BadGraph(
            f"{node.name}: the inputs of a map must have equal numbers of partitions, got {inputs}"
        )
    return counts.pop()


def _group_partitions(node: Node, op: Group, inputs: list[int]) -> int:
    if op.partitions < 1 or len(op.splits) not in (1, len(inputs)):
        raise BadGraph(
            f"{node.name}: a group needs partitions >= 1 and one split per input or one for all, "
            f"got {op.partitions} partitions and {len(op.splits)} splits for {len(inputs)} inputs"
        )
    for at in op.placed:
        if at >= len(inputs) or inputs[at] != op.partitions:
            raise BadGraph(
                f"{node.name}: input {at} is said to be placed in {op.partitions} partitions, inputs have {inputs}"
            )
    return op.partitions


def kept_nodes(graph: Graph) -> set[Node]:
    """Return the nodes whose values are kept: those that say so, and the inputs of a kept Flatten, which makes none."""
    return _through_flattens(node for node in graph.nodes if node.keep)


def output_nodes(graph: Graph) -> set[Node]:
    """Return the nodes whose values are the outputs: a Flatten's are those of its inputs."""
    return _through_flattens(graph.outputs)


def _through_flattens(nodes: Any) -> set[Node]:
    found: set[Node] = set()
    pending: list[Node] = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if isinstance(node.op, Flatten):
                pending.extend(node.sources())
    return found
