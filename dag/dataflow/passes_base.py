"""What the passes over graphs of tensors share: their notes, the walk, and what they call equal.

A pass takes a graph and returns one that gives the same outputs: the same number in the same order, with the same names,
shapes and dtypes, and **the same bits**, for every value of the inputs.  One thing is left open, as NumPy leaves it open: a
NaN stays a NaN, but which sign and payload it has may depend on the order of operands (IEEE 754-2019, 6.2.3).  Inputs stay
the very same nodes, and so does every node that a pass has no reason to change, so that a second application changes
nothing.  Passes come after differentiation: they take away what only a gradient needs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ..graph import Graph
from ..rewrite_base import with_inputs
from .tensor import Tensor, TensorOp


class Notes:
    """What a pass did and what it declined, a line each, in order."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        self.refused: list[str] = []


def tensors(graph: Graph) -> tuple[Tensor, ...]:
    """Return the nodes of a graph of tensors, inputs first."""
    return graph.nodes  # type: ignore[return-value]


def derived(
    like: Tensor, kind: str, inputs: Sequence[Tensor], name: str | None = None, **attributes: Any
) -> Tensor:
    """Return the node that makes what ``like`` makes, in its name, by another operator."""
    key = (kind, *sorted(attributes.items())) if attributes else kind
    op = TensorOp(kind=kind, attributes=attributes, key=key)
    return replace(like, name=name or like.name, op=op, inputs=tuple(inputs))


def sized(like: Tensor, shape: tuple[int, ...], inputs: Sequence[Tensor], name: str) -> Tensor:
    """Return the node that applies the operator of ``like`` to inputs that give another shape."""
    size_bytes = prod(shape) * like.dtype.itemsize
    return replace(like, name=name, inputs=tuple(inputs), shape=shape, size_bytes=size_bytes)


def rebuild(graph: Graph, change: Callable[[Tensor, Tensor], Tensor]) -> Graph:
    """Apply ``change`` to every node, inputs first, and give the outputs their names again.

    ``change`` gets the old node, and the same with its new inputs in place; it returns the node to use from now on.
    """
    became: dict[Tensor, Tensor] = {}
    for node in tensors(graph):
        moved = with_inputs(node, [became[source] for source in node.inputs]) if node.inputs else node
        became[node] = change(node, moved)  # type: ignore[arg-type]
    return _with_outputs(graph, became)


def _with_outputs(graph: Graph, became: Mapping[Tensor, Tensor]) -> Graph:
    """Return the graph of what the outputs became, each under its old name.

    An output that came to be an input, or the same as another output, is a view of that under its own name.
    """
    old: tuple[Tensor, ...] = graph.outputs  # type: ignore[assignment]
    named = {became[each]: each.name for each in old if became[each].name == each.name}
    renamed: dict[Tensor, str] = {}
    views: dict[Tensor, str] = {}
    for each in dict.fromkeys(old):
        now = became[each]
        if now.name == each.name:
            continue
        if now.op.kind == "input" or now in named:
            views[each] = each.name
        else:
            named[now] = renamed[now] = each.name
    if not renamed and not views:
        return Graph(tuple(became[each] for each in old))
    last: dict[Any, Tensor] = {}
    for node in Graph(tuple(became[each] for each in old)).nodes:
        moved = with_inputs(node, [last[source] for source in node.inputs]) if node.inputs else node
        last[node] = replace(moved, name=renamed[node]) if node in renamed else moved  # type: ignore[assignment]
    shown = {each: derived(each, "reshape", [last[became[each]]], shape=each.shape) for each in views}
    return Graph(tuple(shown[each] if each in shown else last[became[each]] for each in old))


def names_again(output: Tensor) -> bool:
    """Return whether an output only gives its input another name, as ``_with_outputs`` makes them."""
    return output.op.kind == "reshape" and output.shape == output.inputs[0].shape


def exact_key(op: TensorOp) -> Hashable:
    """Return what operators that do bitwise the same have in common; the operator itself if it is like no other.

    Python calls 1, 1.0 and True equal, and 0.0 and -0.0; here they differ.
    """
    if op.key is None:
        return op
    key = (op.kind, op.key) if op.kind == "constant" else (op.kind, *sorted(op.attributes.items()))
    try:
        hash(key)
    except TypeError:
        return op
    return key if op.kind == "constant" else _exact(key)


def _exact(value: Any) -> Hashable:
    if isinstance(value, tuple):
        return tuple(_exact(each) for each in value)
    if isinstance(value, float):
        return float, struct.pack("d", value)
    if isinstance(value, (bool, int)):
        return type(value), value
    return value  # type: ignore[no-any-return]
