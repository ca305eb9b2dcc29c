"""What a graph of tensors costs, before it runs: floating-point operations, bytes moved, bytes alive.

The operations of a node are those of its row in ``TRAITS``.  Its bytes are those that its kernel reads and writes if every value
comes from memory and goes there, as for arrays larger than the caches: a view moves nothing, and a view that is read counts
as what it shows, at most what lies beneath it.  What a cache saves is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..graph import Graph
from ..units import show_bytes
from .draw import numbered
from .inputs import graph_of
from .memory_plan import plan_memory
from .tables import TRAITS
from .tensor import Tensor, show

GIVEN = ("input", "constant")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one node, or all of a graph, computes and moves."""

    flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def intensity(self) -> float:
        """Operations per byte moved (Williams, Waterman & Patterson 2009); 0 if nothing moves."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            flops=self.flops + other.flops,
            read_bytes=self.read_bytes + other.read_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
        )


def cost_of(node: Tensor) -> Cost:
    """Return what the kernel of one node computes and moves; inputs and constants are there already and cost nothing."""
    kind = node.op.kind
    if kind in GIVEN:
        return Cost()
    traits = TRAITS[kind]
    if traits.view:
        return Cost(flops=traits.flops(node))
    return Cost(
        flops=traits.flops(node),
        read_bytes=sum(_stored_bytes(source) for source in dict.fromkeys(node.inputs)),
        written_bytes=node.size_bytes,
    )


def flops(graph: Graph | Any, kinds: tuple[str, ...] = ()) -> int:
    """Return the floating-point operations of ``graph``, with ``kinds`` only those of these operators.

    Multiplying and adding are two, as in the counts of the literature.  Here and below ``graph`` may be a tree of tensors too.
    """
    return sum(cost_of(node).flops for node in _tensors(graph) if not kinds or node.op.kind in kinds)


def total_cost(graph: Graph | Any) -> Cost:
    """Return what all nodes of ``graph`` compute and move."""
    return sum((cost_of(node) for node in _tensors(graph)), Cost())


def describe(graph: Graph | Any, *, rows: int = 20) -> str:
    """Return a table of what the nodes cost, those with the most operations and bytes first, and what all of them do.

    Nodes are named as in drawings; those that compute and move nothing, views above all, have no line.

    ``rows`` nodes have a line each, the others share one.  The last line says what must be in memory at once,
    as ``plan_memory`` has it.
    """
    costs = {node: cost_of(node) for node in _tensors(numbered(graph_of(graph))) if node.op.kind not in GIVEN}
    ranked = sorted(
        (node for node in costs if costs[node] != Cost()),
        key=lambda node: (-costs[node].flops, -costs[node].moved_bytes),
    )
    lines: list[tuple[str, ...]] = [("node", "value", "FLOPs", "read", "written", "FLOPs/byte")]
    lines += [_line(node.name, f"{node.dtype} {show(node.shape)}", costs[node]) for node in ranked[:rows]]
    if len(ranked) > rows:
        rest = sum((costs[node] for node in ranked[rows:]), Cost())
        lines.append(_line(f"{len(ranked) - rows:,} more", "", rest))
    lines.append(_line("all", "", total_cost(graph)))
    widths = [max(len(line[at]) for line in lines) for at in range(6)]
    table = [
        "  ".join(
            word.ljust(wide) if at < 2 else word.rjust(wide)
            for at, (word, wide) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    plan = plan_memory(graph_of(graph))
    given = show_bytes(plan.input_bytes + plan.constant_bytes)
    alive = f"{len(costs):,} nodes to compute; at most {show_bytes(plan.peak_bytes)} alive beside inputs of {given}"
    return "\n".join([*table, "", alive])


def show_count(count: int) -> str:
    """Return a number of operations with three digits and k, M, G, T, P or E.

    >>> show_count(999), show_count(1_500), show_count(2_500_000_000)
    ('999', '1.50 k', '2.50 G')
    """
    if count < 1000:
        return str(count)
    power = 1
    while power < 6 and count >= 999.5 * 1000**power:
        power += 1
    value = count / 1000**power
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {'kMGTPE'[power - 1]}"


def _tensors(graph: Graph | Any) -> Iterator[Tensor]:
    for node in graph_of(graph).nodes:
        assert isinstance(node, Tensor)
        yield node


def _stored_bytes(node: Tensor) -> int:
    """Return how many bytes of memory lie behind a value: of a view, what it shows, at most what lies beneath it."""
    least = node.size_bytes
    while node.op.kind not in GIVEN and TRAITS[node.op.kind].view:
        node = node.inputs[0]
        least = min(least, node.size_bytes)
    return least


def _line(name: str, value: str, cost: Cost) -> tuple[str, ...]:
    return (
        name, value, show_count(cost.flops), show_bytes(cost.read_bytes), show_bytes(cost.written_bytes),
        f"{cost.intensity:.2f}",
    )  # fmt: skip
