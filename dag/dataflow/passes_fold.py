"""Compute once, when the graph is made, what depends on no input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..graph import Graph
from .inputs import graph_of
from .passes_base import Notes, rebuild
from .tables import KERNELS, TRAITS
from .tensor import Tensor, constant

Array = np.ndarray[Any, Any]
#: Constants up to this size may be larger than what they are computed from.
SMALL_BYTES = 1024


def fold_constants(graph: Graph | Any, notes: Notes | None = None, *, limit_bytes: int = 2**24) -> Graph:
    """Return a graph in which what depends on constants alone is a constant, computed by the NumPy kernels.

    Left are views of constants, which cost nothing as they are; results over ``limit_bytes``; and results over 1 KiB that are
    larger than what they are computed from, such as arithmetic on a broadcast number, which would only take memory.
    """
    graph = graph_of(graph)
    said = notes or Notes()
    known: dict[Tensor, Array] = {}
    own_bytes: dict[Tensor, int] = {}

    def change(node: Tensor, moved: Tensor) -> Tensor:
        if moved.op.kind == "constant":
            known[moved] = moved.op.attributes["value"]
            own_bytes[moved] = moved.size_bytes
            return moved
        if not moved.inputs or any(source not in known for source in moved.inputs):
            return moved
        made_from = sum(own_bytes[source] for source in dict.fromkeys(moved.inputs))
        is_view = TRAITS[moved.op.kind].view
        if not is_view and moved.size_bytes > min(limit_bytes, max(made_from, SMALL_BYTES)):
            said.refused.append(
                f"{moved.name} stays: as a constant it would hold {moved.size_bytes:,} bytes, made from {made_from:,}"
            )
            return moved
        value = _value(moved, [known[source] for source in moved.inputs])
        if value is None:
            said.refused.append(
                f"{moved.name} stays: {moved.op.kind} failed on these constants, and says so when it runs"
            )
            return moved
        if is_view:
            known[moved], own_bytes[moved] = value, made_from
            return moved
        folded = replace(constant(value), name=moved.name)
        said.applied.append(f"{moved.name} is a constant of {moved.size_bytes:,} bytes")
        known[folded], own_bytes[folded] = value, folded.size_bytes
        return folded

    return rebuild(graph, change)


def _value(node: Tensor, inputs: list[Array]) -> Array | None:
    """Return what the NumPy kernel makes; None if it raises, or makes something else than the node says."""
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(KERNELS["numpy"][node.op.kind](node)(*inputs))
    except Exception:
        return None
    return value if value.shape == node.shape and value.dtype == node.dtype else None
