"""Take out of a graph the operators that change nothing, each by a rule that keeps every bit.

A rule that holds for real numbers but not for floats is not used, and the notes say so where it would have applied: 0.0 + x
is not x for x = -0.0, and 0.0 * x is not 0.0 for infinite x.  A transpose that feeds a matrix product is left: it is a view,
which the product reads as it lies.  Sums are not regrouped, as floats would round otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import BadTensor
from ..graph import Graph
from ..rewrite_base import Names
from .boundaries import PASSED_ON
from .inputs import graph_of
from .passes_base import Notes, derived, names_again, rebuild, sized
from .tables import TRAITS, shape_rule
from .tensor import DType, Tensor

#: A larger constant is not searched for being the same number throughout.
MOST_ELEMENTS = 4096


def simplify(graph: Graph | Any, notes: Notes | None = None) -> Graph:
    """Return a graph without the operators that change nothing.

    Gone are: x * 1, x / 1, x - 0, x + -0.0 and the like where shape and dtype stay; -(-x); casts, reshapes, transposes,
    broadcasts and integer sums to what is there already, or two of them that are one; ``stop_gradient`` and its kin (a
    ``barrier`` stays); a broadcast before an elementwise operator, which broadcasts by itself.  Elementwise operators on
    nothing but broadcast values work before the broadcast.
    """
    graph = graph_of(graph)
    said = notes or Notes()
    while True:  # what one walk makes unused may be what another rule waits for
        walk = Notes()
        made = rebuild(graph, _Rules(graph, walk).settle)
        said.applied += walk.applied
        if not walk.applied:
            said.refused += walk.refused
            return graph
        graph = made


class _Rules:
    """One walk over a graph: what is known of the nodes made so far."""

    def __init__(self, graph: Graph, notes: Notes) -> None:
        self.notes = notes
        self.names = Names(node.name for node in graph.nodes)
        self.users = {node: len(users) for node, users in graph.consumers.items()}
        for node in graph.outputs:
            self.users[node] += 1
        self.outputs = set(graph.outputs)
        self.given_out: set[Tensor] = set()
        #: How often the old graph uses the values that a new node gives.
        self.uses: dict[Tensor, int] = {}
        self.number: dict[Tensor, np.generic | None] = {}

    def settle(self, node: Tensor, moved: Tensor) -> Tensor:
        """Return what gives the value of a node of the old graph, and count who uses it."""
        made = moved if node in self.outputs and self._is_second_name(moved) else self.reduced(moved)
        if node in self.outputs:
            self.given_out.add(made)
        self.uses[made] = self.uses.get(made, 0) + self.users[node]
        return made

    def _is_second_name(self, node: Tensor) -> bool:
        """Return whether an output is there to give an input, or another output, a second name."""
        return names_again(node) and (node.inputs[0].op.kind == "input" or node.inputs[0] in self.given_out)

    def reduced(self, moved: Tensor) -> Tensor:
        """Apply rules to a node until none applies."""
        while moved.inputs:
            rule = RULES.get(moved.op.kind)
            better = rule(self, moved) if rule else None
            if better is None and TRAITS[moved.op.kind].elementwise:
                better = _broadcast_late(self, moved)
            if better is None:
                break
            moved = better
        return moved

    def gone(self, node: Tensor, left: Tensor, why: str) -> Tensor:
        self.notes.applied.append(f"{node.name}: {why} is {left.name}")
        return left

    def uniform(self, node: Tensor) -> np.generic | None:
        """Return the number that all elements of a node are, to the bit; None: not known to be one."""
        if node not in self.number:
            self.number[node] = self._uniform(node)
        return self.number[node]

    def _uniform(self, node: Tensor) -> np.generic | None:
        while node.op.kind in ("broadcast_to", "reshape", "transpose"):
            node = node.inputs[0]
        if node.op.kind != "constant" or not 0 < node.size <= MOST_ELEMENTS:
            return None
        value = node.op.attributes["value"]
        first: np.generic = value.reshape(-1)[0]
        same = value.tobytes() == first.tobytes() * node.size
        return first if same else None


Rule = Callable[[_Rules, Tensor], Tensor | None]


def _fits(node: Tensor, left: Tensor) -> bool:
    return left.shape == node.shape and left.dtype == node.dtype


def _times_one(rules: _Rules, node: Tensor) -> Tensor | None:
    for number, other in (node.inputs[::-1], node.inputs):
        value = rules.uniform(number)
        if value is None:
            continue
        if value == 1 and _fits(node, other):
            return rules.gone(node, other, f"{other.name} * 1")
        if value == 0 and node.dtype.kind in "iub":
            zero = number if number.dtype == node.dtype else None
            if zero is not None and zero.shape == node.shape:
                return rules.gone(node, zero, f"{other.name} * 0 of integers")
        elif value == 0 and node.dtype.kind == "f":
            rules.notes.refused.append(
                f"{node.name} stays: 0.0 * {other.name} is NaN where that is infinite or NaN, and -0.0 where it is negative"
            )
    return None


def _over_one(rules: _Rules, node: Tensor) -> Tensor | None:
    left, right = node.inputs
    if _fits(node, left) and node.dtype.kind == "f" and rules.uniform(right) == 1:
        return rules.gone(node, left, f"{left.name} / 1")
    return None


def _plus_zero(rules: _Rules, node: Tensor) -> Tensor | None:
    for number, other in (node.inputs[::-1], node.inputs):
        value = rules.uniform(number)
        if value is None or value != 0 or not _fits(node, other):
            continue
        if node.dtype.kind != "f" or np.signbit(value):
            return rules.gone(node, other, f"{other.name} + {value}")
        rules.notes.refused.append(f"{node.name} stays: {other.name} + 0.0 is 0.0 where that is -0.0")
    return None


def _minus_zero(rules: _Rules, node: Tensor) -> Tensor | None:
    left, right = node.inputs
    value = rules.uniform(right)
    if value is None or value != 0 or not _fits(node, left):
        return None
    if node.dtype.kind == "f" and np.signbit(value):
        rules.notes.refused.append(f"{node.name} stays: {left.name} - -0.0 is 0.0 where that is -0.0")
        return None
    return rules.gone(node, left, f"{left.name} - 0")


def _twice_negative(rules: _Rules, node: Tensor) -> Tensor | None:
    (inner,) = node.inputs
    return rules.gone(node, inner.inputs[0], "-(-x)") if inner.op.kind == "negative" else None


def _astype(rules: _Rules, node: Tensor) -> Tensor | None:
    (inner,) = node.inputs
    if inner.dtype == node.dtype:
        return rules.gone(node, inner, f"a cast to its own {node.dtype}")
    if inner.op.kind != "astype":
        return None
    (first,) = inner.inputs
    if not _lossless(first.dtype, inner.dtype):
        rules.notes.refused.append(f"{node.name} stays: not every {first.dtype} is a {inner.dtype}")
        return None
    if first.dtype == node.dtype:
        return rules.gone(node, first, f"a cast to {inner.dtype} and back")
    if _lossless(inner.dtype, node.dtype):
        rules.notes.applied.append(f"{node.name}: two casts are one, from {first.dtype} to {node.dtype}")
        return derived(node, "astype", [first], dtype=node.dtype)
    return None


def _lossless(old: DType, new: DType) -> bool:
    """Return whether every value of ``old`` is one of ``new``; NumPy calls int64 to float64 safe, which it is not."""
    if not np.can_cast(old, new, "safe"):
        return False
    if old.kind in "iu" and new.kind == "f":
        return old.itemsize * 8 <= np.finfo(new.type).nmant + 1
    return True


def _reshape(rules: _Rules, node: Tensor) -> Tensor | None:
    (inner,) = node.inputs
    if inner.shape == node.shape:
        return rules.gone(node, inner, "a reshape to its own shape")
    if inner.op.kind == "reshape":
        rules.notes.applied.append(f"{node.name}: two reshapes are one")
        return derived(node, "reshape", inner.inputs, shape=node.shape)
    return None


def _transpose(rules: _Rules, node: Tensor) -> Tensor | None:
    (inner,) = node.inputs
    axes: tuple[int, ...] = node.op.attributes["axes"]
    if axes == tuple(range(node.ndim)):
        return rules.gone(node, inner, "a transpose to the order that is there")
    if inner.op.kind == "transpose":
        rules.notes.applied.append(f"{node.name}: two transposes are one")
        before = inner.op.attributes["axes"]
        return derived(node, "transpose", inner.inputs, axes=tuple(before[axis] for axis in axes))
    return None


def _broadcast_to(rules: _Rules, node: Tensor) -> Tensor | None:
    (inner,) = node.inputs
    if inner.shape == node.shape:
        return rules.gone(node, inner, "a broadcast to its own shape")
    if inner.op.kind == "broadcast_to":
        rules.notes.applied.append(f"{node.name}: two broadcasts are one")
        return derived(node, "broadcast_to", inner.inputs, shape=node.shape)
    return None


def _sum_to(rules: _Rules, node: Tensor) -> Tensor | None:
    (inner,) = node.inputs
    if inner.shape != node.shape:
        return None
    if node.dtype.kind == "f":
        rules.notes.refused.append(f"{node.name} stays: a sum begins with 0.0, so -0.0 comes out as 0.0")
        return None
    return rules.gone(node, inner, "a sum to its own shape")


def _mark(rules: _Rules, node: Tensor) -> Tensor | None:
    inner = node.inputs[0]
    return (
        rules.gone(node, inner, f"{node.op.kind} says nothing after differentiation and")
        if _fits(node, inner)
        else None
    )


def _broadcast_late(rules: _Rules, node: Tensor) -> Tensor | None:
    """Leave broadcasting to the operator, or do it after the operator where all inputs were broadcast."""
    bare = [each.inputs[0] if each.op.kind == "broadcast_to" else each for each in node.inputs]
    if all(a is b for a, b in zip(bare, node.inputs, strict=True)):
        return None
    try:
        shape, dtype = shape_rule(node.op.kind)(*bare, **node.op.attributes)
    except BadTensor:
        return None
    if dtype != node.dtype:
        return None
    if shape == node.shape:
        rules.notes.applied.append(f"{node.name} broadcasts by itself")
        return sized(node, shape, bare, node.name)
    wide = [each for each in node.inputs if each.op.kind == "broadcast_to"]
    if all(rules.uses.get(each, 1) > 1 for each in wide):
        return None  # the broadcast stays for others: one more node would be no gain
    rules.notes.applied.append(f"{node.name} is computed before it is broadcast")
    small = rules.reduced(sized(node, shape, bare, rules.names.fresh(node.name)))
    return derived(node, "broadcast_to", [small], shape=node.shape)


RULES: dict[str, Rule] = {
    "multiply": _times_one,
    "divide": _over_one,
    "add": _plus_zero,
    "subtract": _minus_zero,
    "negative": _twice_negative,
    "astype": _astype,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "sum_to": _sum_to,
    **dict.fromkeys(PASSED_ON, _mark),
}
