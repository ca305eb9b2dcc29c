"""Check that a graph of tensors is what its operators say: the test that every pass has to pass."""

from __future__ import annotations

from typing import Any

from ..errors import BadGraph, BadTensor
from ..graph import Graph
from .inputs import graph_of
from .tables import shape_rule
from .tensor import Tensor, show


def verify(graph: Graph | Any) -> Graph:
    """Return the graph if it can run: inputs before users, a name for each, and shapes and dtypes as the operators' rules say.

    Raises:
        BadGraph: the order or a name is wrong, or a node is no tensor.
        BadTensor: a shape, a dtype or a size is not what the operator gives.
        UnknownOperator: an operator is in no table.
    """
    graph = graph if isinstance(graph, Graph) else graph_of(graph)
    at = {node: number for number, node in enumerate(graph.nodes)}
    names = {node.name for node in graph.nodes}
    if len(names) < len(graph.nodes) or len(at) < len(graph.nodes):
        raise BadGraph(f"{len(graph.nodes)} nodes have {len(names)} names; give each its own")
    for number, node in enumerate(graph.nodes):
        if not isinstance(node, Tensor):
            raise BadGraph(f"{node.name!r} is no tensor but a {type(node).__name__}")
        for source in node.inputs:
            if at.get(source, number) >= number:
                raise BadGraph(f"{node.name!r} stands before its input {source!r}")
        _check(node)
    for output in graph.outputs:
        if output not in at:
            raise BadGraph(f"the output {output.name!r} is not among the nodes")
    return graph


def _check(node: Tensor) -> None:
    if node.size_bytes != node.size * node.dtype.itemsize:
        raise BadTensor(f"{node.name!r} has {node.size} x {node.dtype}, but says {node.size_bytes} bytes")
    if node.op.kind == "input":
        return
    if node.op.kind == "constant":
        value = node.op.attributes["value"]
        shape, dtype = value.shape, value.dtype
    else:
        shape, dtype = shape_rule(node.op.kind)(*node.inputs, **node.op.attributes)
    if shape != node.shape or dtype != node.dtype:
        raise BadTensor(
            f"{node.name!r} says {show(node.shape)} of {node.dtype}; {node.op.kind} gives {show(shape)} of {dtype}"
        )
