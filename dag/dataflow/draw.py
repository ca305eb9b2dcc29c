"""Drawings of graphs of tensors: each node by its operator, dtype and shape; what differentiation added has another colour.

Names of nodes are numbered afresh within a drawing, so that the same formula gives the same picture whatever was built before it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .. import draw
from ..graph import Graph
from .tensor import Tensor

GRADIENT = ("gradient",)


def draw_svg(graph: Graph, *, title: str = "", limit: int = 300) -> str:
    """Return a picture of ``graph`` as the text of an SVG file, data flowing down; see ``dag.draw_svg``."""
    return draw.draw_svg(numbered(graph), title=title, limit=limit, apart=GRADIENT)


def draw_text(graph: Graph, *, limit: int = 100, width: int | None = None) -> str:
    """Return a drawing of ``graph`` for a terminal, one line per node; see ``dag.draw_text``."""
    return draw.draw_text(numbered(graph), limit=limit, width=width)


def numbered(graph: Graph) -> Graph:
    """Return the same graph of other nodes, named by their operator: ``matmul``, ``matmul 2``, ...

    Inputs keep their names, constants of one element are named by it, fused operators by their steps, and scopes stay in front.
    """
    copies: dict[object, Tensor] = {}
    names = {node.name for node in graph.nodes if node.op.kind == "input"}
    counts: dict[str, int] = {}
    for node in graph.nodes:
        assert isinstance(node, Tensor)
        name = node.name if node.op.kind == "input" else _named(node, counts, names)
        copies[node] = replace(node, name=name, inputs=tuple(copies[each] for each in node.inputs))
    return Graph(tuple(copies[node] for node in graph.outputs))


def _named(node: Tensor, counts: dict[str, int], taken: set[str]) -> str:
    scope, slash, _ = node.name.rpartition("/")
    word = node.op.kind
    if word == "fused":
        steps = list(dict.fromkeys(step.kind for step in node.op.attributes["steps"]))
        word = "+".join(steps[:4]) + ("+..." if len(steps) > 4 else "")
    if word == "constant" and node.size == 1:
        word = f"{np.ravel(node.op.attributes['value'])[0].item():.6g}"
    stem = f"{scope}{slash}{word}"
    while True:
        counts[stem] = counts.get(stem, 0) + 1
        name = stem if counts[stem] == 1 else f"{stem} ({counts[stem]})"
        if name not in taken:
            taken.add(name)
            return name
