"""Drawings of graphs of tensors: each node by its operator, dtype and shape; what differentiation added has another colour.

Names of nodes are numbered afresh within a drawing, so that the same formula gives the same picture whatever was built before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .. import draw
from ..graph import Graph
from .inputs import graph_of
from .regions import scope_of
from .tensor import Tensor

GRADIENT = ("gradient",)


def draw_svg(graph: Graph | Any, *, title: str = "", limit: int = 120) -> str:
    """Return a picture of a graph, or of a tree of tensors, as the text of an SVG file, data flowing down; see ``dag.draw_svg``.

    Above ``limit`` nodes, those of one ``scope`` share a box, and so do inputs whose names are alike up to the last dot.
    """
    graph = graph_of(graph)
    drawn = numbered(graph, by_scope=len(graph) > limit)
    return draw.draw_svg(drawn, title=title, limit=limit, apart=GRADIENT)


def draw_text(graph: Graph | Any, *, limit: int = 120, width: int | None = None) -> str:
    """Return a drawing of the same for a terminal; see ``dag.draw_text``.  Above ``limit`` nodes, a scope has one line."""
    graph = graph_of(graph)
    return draw.draw_text(numbered(graph, by_scope=len(graph) > limit), limit=limit, width=width)


def numbered(graph: Graph, *, by_scope: bool = False) -> Graph:
    """Return the same graph of other nodes, named by their operator: ``matmul``, ``matmul 2``, ...

    Inputs keep their names, constants of one element are named by it, fused operators by their steps, and scopes stay in front.
    ``by_scope``: nodes of a scope are named as its parts, ``block1[0]``, ``block1[1]``, ..., which drawings put together, and
    inputs of one branch of a tree likewise.
    """
    copies: dict[object, Tensor] = {}
    names = {node.name for node in graph.nodes if node.op.kind == "input"}
    counts: dict[str, int] = {}
    for node in graph.nodes:
        assert isinstance(node, Tensor)
        if node.op.kind == "input":
            tree = node.name.rpartition(".")[0]
            name = f"{tree}.*[{len(copies)}]" if by_scope and tree else node.name
        elif by_scope and scope_of(node) not in (
            "",
            *GRADIENT,
        ):  # there it begins and ends, and would go in a circle
            name = f"{scope_of(node)}[{len(copies)}]"
        else:
            name = _named(node, counts, names)
        copies[node] = replace(node, name=name, inputs=tuple(copies[each] for each in node.inputs))
    return Graph(tuple(copies[node] for node in graph.outputs))


def _named(node: Tensor, counts: dict[str, int], taken: set[str]) -> str:
    scope = scope_of(node)
    slash = "/" if scope else ""
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
