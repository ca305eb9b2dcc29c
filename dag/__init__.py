"""Computation graphs: built, checked, analysed, rewritten, drawn, and run with their values in memory.

>>> from dag import Graph
>>> graph = Graph.from_tasks({"one": (lambda: 1,), "two": (lambda x: x + x, "one")})
>>> graph.outputs
(Node('two', <lambda>),)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import BadGraph, GraphError, NodeFailed, TooLarge
from .lazy import load_on_use

if TYPE_CHECKING:
    from .analysis import Analysis, Schedule, analyse, describe, measured_by, simulate
    from .draw import draw_svg, draw_text
    from .events import TaskRow, note
    from .expand import expand, expand_with_origins
    from .graph import Graph, Node, Op, Part
    from .logical import Combine, Flatten, Group, Map, Read, Write
    from .rewrite import Rewritten, optimise
    from .run import Session, choose_scheduler, run

__all__ = [
    "Analysis", "BadGraph", "Combine", "Flatten", "Graph", "GraphError", "Group", "Map", "Node", "NodeFailed", "Op", "Part",
    "Read", "Rewritten", "Schedule", "Session", "TaskRow", "TooLarge", "Write", "analyse", "choose_scheduler", "describe",
    "draw_svg", "draw_text", "expand", "expand_with_origins", "measured_by", "note", "optimise", "run", "simulate",
]  # fmt: skip

# Building a graph does not wait for what draws it, nor a rank for what runs graphs.
load_on_use(__name__, {
    "Combine": "logical", "Flatten": "logical", "Group": "logical", "Map": "logical", "Read": "logical", "Write": "logical",
    "Analysis": "analysis", "Schedule": "analysis", "analyse": "analysis", "describe": "analysis",
    "measured_by": "analysis", "simulate": "analysis",
    "draw_svg": "draw", "draw_text": "draw", "Rewritten": "rewrite", "optimise": "rewrite",
    "TaskRow": "events", "note": "events", "expand": "expand", "expand_with_origins": "expand",
    "Graph": "graph", "Node": "graph", "Op": "graph", "Part": "graph",
    "Session": "run", "choose_scheduler": "run", "run": "run",
})  # fmt: skip
