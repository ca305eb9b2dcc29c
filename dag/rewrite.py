"""All rewrites of a logical graph, in the order in which they help each other.

``optimise`` gives the graph to expand and run, and a report: what was done, and what was not and why.  Every rewrite keeps every
value, byte for byte; what depends on the number of partitions or on how floats fold is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from .graph import Graph, Node
from .logical import Fused, count_partitions
from .rewrite_base import Names, Rewritten, moved, with_inputs
from .rewrite_fusion import fuse, fused_operations
from .rewrite_partitions import Placement, placements, size_partitions, skip_shuffles
from .rewrite_rules import lift_combiners, reduce_in_trees, share, sink_flattens

__all__ = [
    "Rewritten", "fuse", "fused_operations", "lift_combiners", "optimise", "reduce_in_trees", "share", "sink_flattens",
    "size_partitions", "skip_shuffles",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Settled(Fused):
    """Stands for ``node``, which an earlier graph has rewritten already, with all that it needs."""

    node: Node


def optimise(graph: Graph, *, workers: int = 1, earlier: Mapping[Node, Node] | None = None) -> Rewritten:
    """Apply all rewrites and return the graph with the whole report.

    A loop that makes one graph per round passes the ``became`` of the last round as ``earlier``: kept nodes then stay the nodes
    that they became, whose values the session holds, so that what does not change is read and computed once for all rounds.
    ``became`` has the kept nodes and what they need.

    Raises:
        BadGraph: an operator is no logical one, or numbers of partitions do not fit.
    """
    count_partitions(graph)
    done = _settle(graph, earlier or {})
    rewrites: list[Callable[[Graph], Rewritten]] = [
        share,
        sink_flattens,
        share,  # what was flattened twice is the same twice now
        lambda given: size_partitions(given, workers=workers),
        skip_shuffles,
        lift_combiners,
        reduce_in_trees,
        lambda given: fuse(given, workers=workers),
    ]
    for rewrite in rewrites:
        done = _followed(done, rewrite(done.graph))
    done = _followed(done, _unsettle(done.graph))
    lasting = _lasting(graph)
    became = {node: now for node, now in (earlier or {}).items() if node in lasting}
    became.update((node, now) for node, now in done.became.items() if node in lasting)
    return replace(done, became=became)


def _followed(first: Rewritten, then: Rewritten) -> Rewritten:
    return Rewritten(
        graph=then.graph,
        applied=first.applied + then.applied,
        refused=first.refused + then.refused,
        became={node: then.became[now] for node, now in first.became.items() if now in then.became},
    )


def _lasting(graph: Graph) -> set[Node]:
    """Return the nodes that later graphs may hold with their values: the kept ones, and all that they need."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.keep:
            found.add(node)
        if node in found:
            found.update(node.sources())
    return found


def _settle(graph: Graph, earlier: Mapping[Node, Node]) -> Rewritten:
    """Put a placeholder where an earlier graph has rewritten a node, so that it is not looked into again."""
    became: dict[Node, Node] = {}
    settled: dict[Node, Node] = {}
    # All at once: a loop of many rounds has a long past.
    old = Graph(tuple(dict.fromkeys(earlier[node] for node in graph.nodes if node in earlier)))
    counts, places = count_partitions(old), placements(old)
    for node in graph.nodes:
        if node in earlier:
            now = earlier[node]
            if now not in settled:
                settled[now] = _placeholder(node.name, now, counts[now], places[now])
            became[node] = settled[now]
        else:
            became[node] = with_inputs(node, (moved(given, became) for given in node.inputs))
    done = Graph(tuple(became[node] for node in graph.outputs))
    applied = (
        f"{node.name} is in memory: it is not read or computed again"
        for node in done.nodes
        if isinstance(node.op, Settled) and node.keep
    )
    return Rewritten(graph=done, applied=tuple(applied), became=became)


def _placeholder(name: str, now: Node, partitions: int, placed: Placement | None) -> Node:
    op = Settled(
        partitions=partitions,
        steps=(),
        exposed=(),
        takes=(),
        partitioning=placed.partitioning if placed is not None and placed.lost_by is None else None,
        node=now,
    )
    return Node(name=name, op=op, size_bytes=now.size_bytes, keep=now.keep)


def _unsettle(graph: Graph) -> Rewritten:
    """Put the nodes themselves back for their placeholders; what is new gives way where it has the name of an old one."""
    old = Graph(tuple(node.op.node for node in graph.nodes if isinstance(node.op, Settled)))
    taken = {node.name for node in old.nodes}
    names = Names(node.name for node in (*old.nodes, *graph.nodes))
    became: dict[Node, Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, Settled):
            became[node] = node.op.node
            continue
        made = with_inputs(node, (moved(given, became) for given in node.inputs))
        became[node] = replace(made, name=names.fresh(made.name)) if made.name in taken else made
    return Rewritten(graph=Graph(tuple(became[node] for node in graph.outputs)), became=became)
