"""Trees at the border of a graph: inputs for whole trees of arrays at once, and the graph of a tree of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadTensor
from ..graph import Graph
from .tensor import Tensor, brief, input
from .trees import flatten, names


def inputs_like(tree: Any, prefix: str = "") -> Any:
    """Return a tree of inputs with the shapes and dtypes of the arrays or tensors of ``tree``, named by ``prefix`` and place.

    >>> inputs_like({"layers": [{"w": np.zeros((2, 3))}]}, "model.")
    {'layers': [{'w': Tensor('model.layers.0.w', input, (2, 3), float64)}]}
    """
    leaves, rebuild = flatten(tree)
    arrays = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves]
    return rebuild(
        [
            input(f"{prefix}{name}", array.shape, array.dtype)
            for name, array in zip(names(tree), arrays, strict=True)
        ]
    )


def graph_of(outputs: Any) -> Graph:
    """Return the graph of a tensor, or of nested dicts, lists and tuples of tensors; a graph of tensors as it is.

    Raises:
        BadTensor: there is anything else in it.
    """
    graph = outputs if isinstance(outputs, Graph) else None
    leaves = graph.nodes if graph is not None else flatten(outputs)[0]
    for each in leaves:
        if not isinstance(each, Tensor):
            raise BadTensor(f"a graph of tensors is wanted, got {brief(each)} in it")
    return graph if graph is not None else Graph(tuple(leaves))
