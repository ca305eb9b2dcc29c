"""What a rewrite gives back, and the walk that all of them share.

A rewrite makes a logical graph from a logical graph.  Nodes that it has no reason to change stay the very same objects, so a
second application changes nothing, and kept values are found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from .graph import Graph, Node, Part


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A graph and what was done to it.

    Args:
        graph: gives the same values.
        applied: what was done and what it saves, in words.
        refused: what was not done, and why.
        became: which node has the value of a node of the graph before, for those whose value still is one of its own.
    """

    graph: Graph
    applied: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    became: Mapping[Node, Node] = field(default_factory=dict)


class Names:
    """Names that nobody has yet."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """Return ``wanted``, or the first of wanted~2, wanted~3, ... that is free, and take it."""
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}~{count}"
        self._taken.add(name)
        return name


def with_inputs(node: Node, inputs: Iterable[Node | Part]) -> Node:
    """Return ``node`` with other inputs; the same object if they are the same."""
    given = tuple(inputs)
    same = len(given) == len(node.inputs) and all(
        a is b or (isinstance(a, Part) and a == b) for a, b in zip(given, node.inputs, strict=True)
    )
    return node if same else replace(node, inputs=given)


def moved(given: Node | Part, became: Mapping[Node, Node]) -> Node | Part:
    """Return an input in terms of the new nodes."""
    if isinstance(given, Node):
        return became[given]
    node = became[given.node]
    return given if node is given.node else Part(node, given.index)


def rebuild(graph: Graph, change: Callable[[Node], Node]) -> tuple[Graph, dict[Node, Node]]:
    """Apply ``change`` to every node, inputs first; it gets the node with its new inputs in place."""
    became: dict[Node, Node] = {}
    for node in graph.nodes:
        became[node] = change(with_inputs(node, (moved(given, became) for given in node.inputs)))
    return Graph(tuple(became[node] for node in graph.outputs)), became


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return names as words: 'a', 'a and b', 'a, b and c', 'a, b, c and 4 more'."""
    found = list(names)
    if len(found) > most + 1:
        return f"{', '.join(found[:most])} and {len(found) - most} more"
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"


def tasks(count: int) -> str:
    """Return a number of tasks in words."""
    return f"{count:,} task{'' if count == 1 else 's'}"
