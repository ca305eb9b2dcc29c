"""Parts of a graph of tensors: what lies between two sets of nodes, and a copy of it with some nodes exchanged.

Walks are loops, not recursion: a chain of 10,000 nodes is as good as one of ten.  Nothing here knows about derivatives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..errors import BadTensor
from .tensor import Tensor, apply, brief


def scope_of(node: Tensor) -> str:
    """Return what stands before the last slash of a node's name: ``block1`` of ``block1/matmul_12``."""
    return node.name.rpartition("/")[0]


def between(outputs: Iterable[Tensor], stops: Collection[Tensor] = ()) -> list[Tensor]:
    """Return what ``outputs`` need, each node once, inputs before users; what ``stops`` need is left out, they are not.

    Raises:
        BadTensor: an output is no tensor.
    """
    order: list[Tensor] = []
    done: set[Tensor] = set()
    pending: list[tuple[Tensor, bool]] = [(node, False) for node in reversed(list(outputs))]
    while pending:
        node, expanded = pending.pop()
        if node in done:
            continue
        if not isinstance(node, Tensor):
            raise BadTensor(f"a tensor is wanted, got {brief(node)}")
        if expanded or not node.inputs or node in stops:
            done.add(node)
            order.append(node)
            continue
        pending.append((node, True))
        pending.extend((source, False) for source in reversed(node.inputs) if source not in done)
    return order


def depending(order: Iterable[Tensor], on: Iterable[Tensor], *, floats_only: bool = False) -> set[Tensor]:
    """Return the nodes of ``order`` (inputs first) whose value depends on one of ``on``, these included.

    ``floats_only`` follows dependence through tensors of floats alone: the paths that a derivative can take.
    """
    found = {node for node in on if not floats_only or node.dtype.kind == "f"}
    for node in order:
        if floats_only and node.dtype.kind != "f":
            continue
        if any(source in found for source in node.inputs):
            found.add(node)
    return found


def substitute(
    outputs: Sequence[Tensor], exchanged: Mapping[Tensor, Tensor], passed_over: Collection[Tensor] = ()
) -> list[Tensor]:
    """Return the outputs computed from the new nodes in place of the old ones; ``passed_over`` become their first inputs.

    Only what depends on an exchanged node is copied; the rest is shared with the old graph.
    """
    made = dict(exchanged)
    for node in between(outputs, exchanged.keys()):
        if node in made:
            continue
        if node in passed_over:
            made[node] = made.get(node.inputs[0], node.inputs[0])
            continue
        inputs = tuple(made.get(source, source) for source in node.inputs)
        if inputs != node.inputs:
            made[node] = apply(node.op.kind, *inputs, **node.op.attributes)
    return [made.get(node, node) for node in outputs]
