"""Computation graphs: built, checked, analysed, rewritten, drawn, and run with their values in memory.

>>> from dag import Graph
>>> graph = Graph.from_tasks({"one": (lambda: 1,), "two": (lambda x: x + x, "one")})
>>> graph.outputs
(Node('two', <lambda>),)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import BadGraph, GraphError, NodeFailed, TooLarge

# Not on first use: loading a submodule later would put the module where the function of the same name is wanted.
from .events import TaskRow, note
from .expand import expand, expand_with_origins
from .graph import Graph, Node, Op, Part
from .run import Session, choose_scheduler, run

if TYPE_CHECKING:
    from .analysis import Analysis, Schedule, analyse, describe, measured_by, simulate
    from .draw import draw_svg, draw_text
    from .logical import Combine, Flatten, Group, Map, Read, Write
    from .rewrite import Rewritten, optimise

__all__ = [
    "Analysis", "BadGraph", "Combine", "Flatten", "Graph", "GraphError", "Group", "Map", "Node", "NodeFailed", "Op", "Part",
    "Read", "Rewritten", "Schedule", "Session", "TaskRow", "TooLarge", "Write", "analyse", "choose_scheduler", "describe",
    "draw_svg", "draw_text", "expand", "expand_with_origins", "measured_by", "note", "optimise", "run", "simulate",
]  # fmt: skip

_HOMES = {
    "Combine": "logical", "Flatten": "logical", "Group": "logical", "Map": "logical", "Read": "logical", "Write": "logical",
    "Analysis": "analysis", "Schedule": "analysis", "analyse": "analysis", "describe": "analysis",
    "measured_by": "analysis", "simulate": "analysis",
    "draw_svg": "draw", "draw_text": "draw", "Rewritten": "rewrite", "optimise": "rewrite",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that building a graph does not wait for what draws it.
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dag' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value
