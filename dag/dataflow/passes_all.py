"""All passes that always pay, in the order in which they help each other."""

from __future__ import annotations

from typing import Any

from ..graph import Graph
from ..rewrite_base import Rewritten
from .inputs import graph_of
from .passes_base import Notes
from .passes_common import eliminate_common
from .passes_fold import fold_constants
from .passes_fuse import fuse
from .passes_simplify import simplify
from .passes_verify import verify

#: Rounds end when nothing changes, as each leaves less than it found; this only bounds them.
MOST_ROUNDS = 20


def optimise(
    graph: Graph | Any, *, fused: bool = True, least_fused_bytes: int = 0, check: bool = False
) -> Rewritten:
    """Return the graph, or that of a tree of tensors, after all passes, and what they did and declined, a line each.

    Simplifying comes first, since it makes equals look equal; then what is there twice goes; then constants are folded, which
    gives new ones and zeros to simplify: the three run until nothing changes.  Fusion is last, as it hides operators from the
    others.  ``rematerialise`` is left to those who have a limit.  Differentiate before: a fused operator has no derivative.

    Args:
        fused: fuse at last; without, every node can still be watched by itself.
        least_fused_bytes: fuse only what has a result of this size or more.
        check: verify the graph before and after every pass.

    Raises:
        BadGraph: with ``check``: the graph, or what a pass made of it, is not as its operators say.
    """
    checked = verify if check else _unchanged
    notes = Notes()
    graph = graph_of(graph)
    checked(graph)
    for _ in range(MOST_ROUNDS):
        done = len(notes.applied)
        notes.refused.clear()  # said again in the last round, where it still holds
        for one in (simplify, eliminate_common, fold_constants):
            graph = checked(one(graph, notes))
        if len(notes.applied) == done:
            break
    if fused:
        graph = checked(fuse(graph, notes, least_bytes=least_fused_bytes))
    return Rewritten(graph=graph, applied=tuple(notes.applied), refused=tuple(dict.fromkeys(notes.refused)))


def _unchanged(graph: Graph) -> Graph:
    return graph
