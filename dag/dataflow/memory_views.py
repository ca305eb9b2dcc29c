"""Which values of a graph share memory: what is a view of what, how it lies there, and which steps read it.

A value with memory of its own lies in C order.  A view lies as NumPy's would, so that a kernel meets the same strides here as in
a run without any plan, and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import prod

from ..graph import Node
from .boundaries import PASSED_ON
from .tables import TRAITS
from .tensor import Tensor

#: Views that show their first input as it is.
SAME_LAYOUT = PASSED_ON | {"barrier"}
#: In elements; None: not known.
Strides = tuple[int, ...] | None


class Storages:
    """Views and readers; they do not depend on the order of the steps.

    A view's kernel, called without ``out``, returns a view of its first input; ``reshape`` alone has to copy where the
    elements do not lie so that strides can show them, and is no view then.  An output that nobody reads is no view either, since
    callers get arrays of their own.

    Args:
        made: the nodes to compute, inputs first.
        outputs: of the graph.
        given: the nodes whose values are there already.

    Attributes:
        outputs: the outputs that have memory of their own.
        views: the nodes that have none.
        kept: the owners of outputs that are views: read once more after the last step.
        owner: the node in whose memory each value is.
        whole: the values that show all elements of their owner in order.
        reads: for each node the owners whose memory its step reads, once each.
        readers: for each owner the nodes that read it.
    """

    def __init__(
        self, made: Sequence[Tensor], *, outputs: Collection[Node], given: Collection[Tensor]
    ) -> None:
        read = {source for node in made for source in node.inputs}
        alone = {node for node in outputs if node not in read}
        self.views: set[Tensor] = set()
        self.owner: dict[Tensor, Tensor] = {node: node for node in given}
        self.whole: set[Tensor] = set(given)
        self.reads: dict[Tensor, tuple[Tensor, ...]] = {}
        self.readers: dict[Tensor, list[Tensor]] = {node: [] for node in given}
        strides: dict[Tensor, Strides] = {node: in_order(node.shape) for node in given}
        for node in made:
            sources = node.inputs
            shown = TRAITS[node.op.kind].view and node not in alone
            strides[node] = _shown(node, strides[node.inputs[0]]) if shown else in_order(node.shape)
            if shown and not (node.op.kind == "reshape" and strides[node] is None):
                self.views.add(node)
                self.owner[node] = owner = self.owner[node.inputs[0]]
                if node.size == owner.size and _lies_in_order(node.shape, strides[node]):
                    self.whole.add(node)
                sources = node.inputs[
                    1:
                ]  # for their place in the order: a barrier waits for its second input
            else:
                strides[node] = in_order(node.shape)
                self.owner[node] = node
                self.readers[node] = []
                self.whole.add(node)
            self.reads[node] = tuple(dict.fromkeys(self.owner[source] for source in sources))
            for owner in self.reads[node]:
                self.readers[owner].append(node)
        self.outputs = frozenset(outputs) - self.views
        self.kept = {self.owner[node] for node in self.views.intersection(outputs)}

    def uses(self) -> dict[Tensor, int]:
        """Return how often each owner's memory is read; what is kept is read once more than there are readers."""
        return {owner: len(readers) + (owner in self.kept) for owner, readers in self.readers.items()}


def in_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of an array in C order, in elements."""
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))


def _lies_in_order(shape: tuple[int, ...], strides: Strides) -> bool:
    if strides is None:
        return False
    pairs = zip(shape, strides, in_order(shape), strict=True)
    return 0 in shape or all(length == 1 or one == two for length, one, two in pairs)


def _shown(node: Tensor, strides: Strides) -> Strides:
    """Return how a view lies whose first input lies with ``strides``."""
    source = node.inputs[0]
    if strides is None:
        return None
    match node.op.kind:
        case "transpose":
            return tuple(strides[axis] for axis in node.op.attributes["axes"])
        case "slice":
            return tuple(
                stride * step
                for stride, (_, step, _) in zip(strides, node.op.attributes["spans"], strict=True)
            )
        case "broadcast_to":
            new = node.ndim - source.ndim
            kept = zip(strides, source.shape, node.shape[new:], strict=True)
            return (0,) * new + tuple(stride if one == two else 0 for stride, one, two in kept)
        case "reshape":
            return reshaped(source.shape, strides, node.shape)
        case kind:
            return strides if kind in SAME_LAYOUT else None


def reshaped(shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]) -> Strides:
    """Return the strides that show the same elements in another shape, or None if none do.

    Dimensions are matched in groups of equal size; inside a group of old ones each must continue the next.
    """
    if 0 in shape or _lies_in_order(shape, strides):
        return in_order(new)
    old = [(length, stride) for length, stride in zip(shape, strides, strict=True) if length != 1]
    found: list[int] = []
    at = 0
    while old:
        group = [old.pop(0)]
        length = group[0][0]
        lengths: list[int] = []
        while not lengths or prod(lengths) != length:
            if prod(lengths) < length:
                lengths.append(new[at + len(lengths)])
            else:
                group.append(old.pop(0))
                length *= group[-1][0]
        for (_, outer), (inner_length, inner) in pairwise(group):
            if outer != inner_length * inner:
                return None
        found += [each * group[-1][1] for each in in_order(tuple(lengths))]
        at += len(lengths)
    return (*found, *[1] * (len(new) - at))  # what is left has length 1
