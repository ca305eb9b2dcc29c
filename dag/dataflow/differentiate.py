"""Derivatives as graphs: from the nodes of a function to the nodes of its gradient.

``pull_back`` walks a graph against its edges and asks each operator's gradient rule for the nodes that carry the cotangent
on.  The result is a larger graph, so it can be differentiated again.  Nothing here computes a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import BadTensor, NotDifferentiable
from ..graph import Graph
from .tables import GRADIENTS
from .tensor import Tensor, apply, constant, scope, show
from .trees import flatten

#: Stands before the names of the nodes that differentiation makes; drawings show them apart.
SCOPE = "gradient"


def pull_back(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return for each input the sum over outputs of cotangent times derivative (the vector-Jacobian product).

    None: no output depends on that input in a way that has a derivative.  Reverse accumulation, each node once
    (Griewank & Walther, Evaluating Derivatives, chapter 3).

    Raises:
        BadTensor: a cotangent has another shape than its output.
        NotDifferentiable: an operator on the way has no gradient rule though its result is a float.
    """
    order = Graph(tuple(outputs)).nodes
    wanted = _depending(order, inputs)
    parts: dict[Any, list[Tensor]] = {}
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent.shape != output.shape:
            raise BadTensor(
                f"the cotangent of {output.name!r} must have its shape {show(output.shape)}, got {show(cotangent.shape)}"
            )
        parts.setdefault(output, []).append(cotangent)
    ends = set(inputs)
    found: dict[Any, Tensor] = {}
    for node in reversed(order):
        if node not in parts or node not in wanted:
            continue
        with scope(SCOPE):
            cotangent = _total(parts.pop(node))
        if node in ends:
            found[node] = cotangent
        if not node.inputs:
            continue
        assert isinstance(node, Tensor)
        with scope(SCOPE):
            passed = _cotangents(node, cotangent)
        for source, part in zip(node.inputs, passed, strict=True):
            if part is not None and source in wanted:
                parts.setdefault(source, []).append(part)
    return [found.get(each) for each in inputs]


def vjp(function: Callable[..., Any], *inputs: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return what ``function`` makes of the inputs, and the function from a cotangent of that to one for each input."""
    leaves, rebuild = flatten(inputs)
    result = function(*inputs)
    outputs, _ = flatten(result)

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given, _ = flatten(cotangent)
        pulled = pull_back(outputs, given, leaves)
        zeros = [
            zero if part is None else part for part, zero in zip(pulled, map(zeros_like, leaves), strict=True)
        ]
        return tuple(rebuild(zeros))

    return result, pull


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives what ``function`` gives, and its gradient by the arguments ``argnums``.

    ``function`` takes tensors, or nested dicts, lists and tuples of them, and returns a tensor of shape () and with
    ``has_aux`` anything else beside it.  The gradient has the shape of the argument, or is a tuple for several.

    Raises:
        NotDifferentiable: an argument is an integer, or the result is no float.
        BadTensor: the result has another shape than ().
    """

    def both(*inputs: Any) -> Any:
        result = function(*inputs)
        loss, aux = result if has_aux else (result, None)
        if not isinstance(loss, Tensor) or loss.shape != ():
            found = show(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise BadTensor(
                f"grad wants a function whose result has the shape (), got {found}; use vjp, or sum it"
            )
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        leaves, rebuild = flatten(tuple(inputs[number] for number in numbers))
        for leaf in leaves:
            _check_float(leaf, "a gradient is by")
        _check_float(loss, "a gradient is of")
        with scope(SCOPE):
            one = constant(np.ones((), loss.dtype))
        pulled = pull_back([loss], [one], leaves)
        gradients = rebuild(
            [zeros_like(leaf) if part is None else part for leaf, part in zip(leaves, pulled, strict=True)]
        )
        gradient = gradients[0] if isinstance(argnums, int) else gradients
        return ((loss, aux) if has_aux else loss), gradient

    return both


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives the gradient of ``function``; see ``value_and_grad``."""
    both = value_and_grad(function, argnums, has_aux=has_aux)

    def gradient(*inputs: Any) -> Any:
        value, result = both(*inputs)
        return (result, value[1]) if has_aux else result

    return gradient


def zeros_like(tensor: Tensor) -> Tensor:
    """Return zeros in the shape and dtype of ``tensor``."""
    zero = constant(np.zeros((), tensor.dtype))
    return zero if tensor.shape == () else apply("broadcast_to", zero, shape=tensor.shape)


def _depending(order: Sequence[Any], inputs: Sequence[Tensor]) -> set[Any]:
    """Return the nodes whose value depends on one of the inputs, these included."""
    found: set[Any] = set(inputs)
    for node in order:
        if any(source in found for source in node.inputs):
            found.add(node)
    return found


def _cotangents(node: Tensor, cotangent: Tensor) -> tuple[Tensor | None, ...]:
    rule = GRADIENTS[node.op.kind]
    if rule is None:
        if node.dtype.kind == "f":
            raise NotDifferentiable(f"{node.name!r}: the operator {node.op.kind!r} has no gradient rule")
        return (None,) * len(node.inputs)
    return rule(node, cotangent, *node.inputs)


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _check_float(tensor: Any, what: str) -> None:
    if not isinstance(tensor, Tensor):
        raise NotDifferentiable(f"{what} tensors, got {tensor!r:.60}")
    if tensor.dtype.kind != "f":
        raise NotDifferentiable(
            f"{what} a tensor of floats; {tensor.name!r} has the dtype {tensor.dtype}: convert it with astype, or leave it out"
        )
