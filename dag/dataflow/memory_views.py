"""Which values of a graph share memory: what is a view of what, and which steps read it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..graph import Node
from .boundaries import PASSED_ON
from .tables import TRAITS
from .tensor import Tensor

#: Views that show every element of their first input in its order.
SAME_LAYOUT = PASSED_ON | {"barrier", "reshape"}


class Storages:
    """Views and readers; they do not depend on the order of the steps.

    An output is never a view: callers get arrays of their own.  A view's kernel, called without ``out``, returns a view of its
    first input; ``reshape`` alone has to copy where the elements do not lie in their order, and is no view then.

    Args:
        made: the nodes to compute, inputs first.
        outputs: of the graph.
        given: the nodes whose values are there already.

    Attributes:
        views: the nodes that have no memory of their own.
        owner: the node in whose memory each value is.
        whole: the values that show all elements of their owner in order.
        reads: for each node the owners whose memory its step reads, once each.
        readers: for each owner the nodes that read it.
    """

    def __init__(
        self, made: Sequence[Tensor], *, outputs: Collection[Node], given: Collection[Tensor]
    ) -> None:
        self.outputs = frozenset(outputs)
        self.views: set[Tensor] = set()
        self.owner: dict[Tensor, Tensor] = {node: node for node in given}
        self.whole: set[Tensor] = set(given)
        self.reads: dict[Tensor, tuple[Tensor, ...]] = {}
        self.readers: dict[Tensor, list[Tensor]] = {node: [] for node in given}
        in_order = set(given)  # laid out as a fresh array would be
        for node in made:
            if TRAITS[node.op.kind].view and node not in self.outputs and self._can_show(node, in_order):
                source = node.inputs[0]
                self.views.add(node)
                self.owner[node] = self.owner[source]
                if source in in_order and _keeps_order(node):
                    in_order.add(node)
                    if source in self.whole and node.size == source.size:
                        self.whole.add(node)
                read = node.inputs[1:]  # for their place in the order: a barrier waits for its second input
            else:
                self.owner[node] = node
                self.readers[node] = []
                in_order.add(node)
                self.whole.add(node)
                read = node.inputs
            self.reads[node] = tuple(dict.fromkeys(self.owner[source] for source in read))
            for owner in self.reads[node]:
                self.readers[owner].append(node)

    def _can_show(self, node: Tensor, in_order: set[Tensor]) -> bool:
        return node.op.kind != "reshape" or node.inputs[0] in in_order


def _keeps_order(node: Tensor) -> bool:
    """Return whether a view of an array in order is in order itself; False where that is not known."""
    if node.op.kind == "transpose":
        lengths = node.inputs[0].shape
        moved = [axis for axis in node.op.attributes["axes"] if lengths[axis] != 1]
        return moved == sorted(moved)
    if (
        node.op.kind == "slice"
    ):  # one stretch along the first axis that keeps more than one element, all behind it
        spans = node.op.attributes["spans"]
        first = next((at for at, (_, _, count) in enumerate(spans) if count != 1), 0)
        lengths = node.inputs[0].shape
        rest = zip(spans[first + 1 :], lengths[first + 1 :], strict=True)
        return all(span == (0, 1, length) for span, length in rest) and (not spans or spans[first][1] == 1)
    return node.op.kind in SAME_LAYOUT
