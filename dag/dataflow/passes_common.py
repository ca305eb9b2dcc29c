"""Take out of a graph what is there twice, and what nobody wants."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from ..errors import BadGraph
from ..graph import Graph
from .inputs import graph_of
from .passes_base import Notes, exact_key, names_again, rebuild
from .tensor import Tensor

#: Operators whose result has the same bits with the operands swapped.  ``maximum`` and ``minimum`` have not: of 0.0 and
#: -0.0, which are equal, NumPy returns one by its place.
COMMUTATIVE = frozenset(
    {"add", "multiply", "equal", "not_equal", "logical_and", "logical_or", "logical_xor"}
    | {"bitwise_and", "bitwise_or", "bitwise_xor"}
)


def eliminate_common(graph: Graph | Any, notes: Notes | None = None) -> Graph:
    """Return a graph in which what does the same to the same inputs is computed once.

    Two inputs are two, whatever they are given.  What ``checkpoint`` and ``rematerialise`` compute again stays apart from the
    first time: it stands behind a barrier, whose second input says when, so that it is no equal of the first.
    """
    graph = graph_of(graph)
    said = notes or Notes()
    outputs = set(graph.outputs)
    seen: dict[Hashable, Tensor] = {}
    places: dict[Tensor, int] = {}

    def change(node: Tensor, moved: Tensor) -> Tensor:
        places.setdefault(moved, len(places))
        if moved.op.kind == "input" or (node in outputs and names_again(moved)):
            return moved
        inputs = moved.inputs
        if moved.op.kind in COMMUTATIVE:
            inputs = tuple(sorted(inputs, key=places.__getitem__))
        first = seen.setdefault((exact_key(moved.op), inputs), moved)
        if first is not moved and moved.op.kind != "constant":
            said.applied.append(f"{moved.name} is the same as {first.name}: it is computed once")
        return first

    return rebuild(graph, change)


def dead_code(graph: Graph | Any, wanted: Iterable[Tensor | str]) -> Graph:
    """Return the graph of the outputs that are ``wanted``, nodes or names, in the order of the graph, and of what they need.

    Raises:
        BadGraph: one of them is no output of the graph.
    """
    graph = graph_of(graph)
    names = {each if isinstance(each, str) else each.name for each in wanted}
    unknown = names - {node.name for node in graph.outputs}
    if unknown:
        have = ", ".join(node.name for node in graph.outputs)
        raise BadGraph(f"{min(unknown)!r} is no output of the graph; its outputs are {have}")
    return Graph(tuple(node for node in graph.outputs if node.name in names))
