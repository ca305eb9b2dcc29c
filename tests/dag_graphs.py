"""Small graphs of integer functions, and the stupid model that evaluates them."""

from __future__ import annotations

from typing import Any

from dag import Graph, Node, Op, Part


def node(name: str, function: Any, *inputs: Node | Part, **more: Any) -> Node:
    return Node(name=name, op=Op(kind="test", function=function), inputs=inputs, **more)


def evaluate(graph: Graph) -> list[Any]:
    """The stupid model: every node once, in order, all values kept."""
    values: dict[Node, Any] = {}
    for each in graph.nodes:
        given_values = [
            values[source.node][source.index] if isinstance(source, Part) else values[source]
            for source in each.inputs
        ]
        assert each.op.function is not None
        values[each] = each.op.function(*given_values)
    return [values[each] for each in graph.outputs]


def mix(salt: int, *values: int) -> int:
    total = salt
    for value in values:
        total = (total * 31 + value) % 1_000_003
    return total


def mix_in_three(salt: int, *values: int) -> tuple[int, int, int]:
    return mix(salt, *values), mix(salt + 1, *values), mix(salt + 2, *values)
