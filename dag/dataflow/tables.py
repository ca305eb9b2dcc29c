"""What is known of each tensor operator: one row in three tables.

``SHAPES`` gives the shape and dtype of the result, or says why there is none; ``GRADIENTS`` gives the nodes that carry a
cotangent back; ``KERNELS`` gives, for each backend, the function that computes.  ``define`` writes one operator into all
of them, so that an operator is complete in the file that defines it.  Nothing here builds or runs a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..errors import UnknownOperator

Shape = tuple[int, ...]
#: A ``Tensor``: the class stands above the tables, since applying an operator makes one.
TensorNode = Any


#: Computes one node, by NumPy's convention: takes the values of the inputs and, by the keyword ``out``, the array to write
#: to; returns the result, which is ``out`` if it is given.
Kernel = Callable[..., Any]
#: Takes the operator's inputs and attributes; returns shape and dtype, or raises BadTensor.
ShapeRule = Callable[..., tuple[Shape, np.dtype[Any]]]
#: Takes the node, its cotangent and its inputs; returns a cotangent or None per input.
GradientRule = Callable[..., tuple[TensorNode | None, ...]]
#: Takes the node (for its shapes, dtype and attributes); returns the function that computes it.
KernelRule = Callable[[TensorNode], Kernel]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What passes and planners may know of an operator beside its three rows.

    Args:
        elementwise: each element of the result comes from the elements at its place, broadcast: may be fused, and may be
            written over an input of its size.
        view: the result may share memory with the first input.
        flops: floating-point operations of a node; multiplying and adding count as two.
    """

    elementwise: bool = False
    view: bool = False
    flops: Callable[[TensorNode], int] = lambda node: prod(node.shape)


SHAPES: dict[str, ShapeRule] = {}
GRADIENTS: dict[str, GradientRule | None] = {}
KERNELS: dict[str, dict[str, KernelRule]] = {"numpy": {}}
TRAITS: dict[str, Traits] = {}
#: The functions that users call, by NumPy's names: what a tensor's methods and NumPy's own functions come to.
FUNCTIONS: dict[str, Callable[..., TensorNode]] = {}


def define(
    kind: str,
    *,
    shape: ShapeRule,
    gradient: GradientRule | None,
    kernels: Mapping[str, KernelRule],
    traits: Traits = Traits(),
) -> None:
    """Write the rows of an operator.

    Args:
        kind: its name, NumPy's where NumPy has it.
        shape: see ``ShapeRule``.
        gradient: see ``GradientRule``; None: it has no derivative (comparisons, indices).
        kernels: by the name of the backend; "numpy" is always wanted, other backends may come later with ``kernel``.

    Raises:
        ValueError: the operator is there already, or has no kernel for numpy.
    """
    if kind in SHAPES:
        raise ValueError(f"the operator {kind!r} is defined already")
    if "numpy" not in kernels:
        raise ValueError(f"the operator {kind!r} needs a kernel for numpy, got {sorted(kernels)}")
    SHAPES[kind], GRADIENTS[kind], TRAITS[kind] = shape, gradient, traits
    for backend, rule in kernels.items():
        KERNELS.setdefault(backend, {})[kind] = rule


def shape_rule(kind: str) -> ShapeRule:
    """Return the shape rule of an operator; raises UnknownOperator."""
    rule = SHAPES.get(kind)
    if rule is None:
        raise unknown(kind, SHAPES)
    return rule


def kernel_rule(kind: str, backend: str) -> KernelRule:
    """Return what makes the kernel of an operator on a backend.

    Raises:
        UnknownOperator: there is no such operator, or the backend has no kernel for it.
        ValueError: there is no such backend.
    """
    if backend not in KERNELS:
        raise ValueError(f"there is no backend {backend!r}; there are: {', '.join(sorted(KERNELS))}")
    rule = KERNELS[backend].get(kind)
    if rule is None:
        if kind in SHAPES:
            raise UnknownOperator(
                f"the backend {backend!r} has no kernel for the operator {kind!r}; define one"
            )
        raise unknown(kind, SHAPES)
    return rule


def operators() -> list[str]:
    """Return the names of all operators that are defined."""
    return sorted(SHAPES)


def unknown(kind: str, known: Iterable[str]) -> UnknownOperator:
    """Return the error for an operator that is in no table, with the names nearest to it."""
    import difflib

    near = difflib.get_close_matches(kind, list(known), n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "dag.dataflow.operators() lists all"
    return UnknownOperator(f"there is no operator {kind!r}; {hint}")
