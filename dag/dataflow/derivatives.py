"""Derivatives beside the gradient: along a direction, of second order, and whole Jacobians.

All are made of ``pull_back`` alone, so that an operator needs one rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import BadTensor, NotDifferentiable
from .differentiate import (
    filled,
    gather,
    grad,
    is_float,
    leaves_like,
    marked,
    pulled_to,
    total,
    vjp,
)
from .regions import between, depending, substitute
from .tensor import Tensor, apply, astype, brief, constant, input, scope, show
from .trees import flatten

_numbers = itertools.count()


def jvp(function: Callable[..., Any], inputs: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return what ``function`` makes of the inputs, and its change along ``tangents`` (the Jacobian-vector product).

    ``inputs`` and ``tangents`` are tuples of one shape, as in JAX; a None among the tangents stands for zeros.  The cotangents
    that the function sends back are linear in those it is given, so pulling back through them turns the direction round
    (Townsend 2017, A new trick for calculating Jacobian vector products).  What has no derivative gets None.

    Raises:
        NotDifferentiable: the result holds no float, or a rule made with ``custom_vjp`` is not linear in its cotangent.
        BadTensor: the tangents do not fit the inputs.
    """
    _check_in_tuples("jvp", inputs, tangents)
    leaves, arguments = marked(tuple(inputs))
    result = function(*arguments)
    outputs, rebuild = flatten(result)
    floats = [each for each in outputs if is_float(each)]
    if not floats:
        raise NotDifferentiable(
            f"jvp wants a function that returns a tensor of floats, got {brief(result, 80)}"
        )
    directions = _directions(tuple(inputs), leaves, tangents)
    duals = [input(f"<dual {next(_numbers)}>", each.shape, each.dtype) for each in floats]
    seeds = list(zip(floats, duals, strict=True))
    found = gather(between(floats, set(directions)), seeds, directions, partial=True)
    pulled = [(total(found[leaf]), directions[leaf]) for leaf in directions if leaf in found]
    back = gather(between([each for each, _ in pulled]), pulled, duals)
    changes = _without_waits(
        [total(back[dual]) if dual in back else filled(0, dual) for dual in duals], duals
    )
    if any(node in set(duals) for node in between(changes)):
        raise NotDifferentiable(
            "jvp: a gradient rule in this function is not linear in its cotangent (one made with custom_vjp?), "
            "so there is no change along a direction; vjp and grad work"
        )
    arrived = iter(changes)
    return result, rebuild([next(arrived) if is_float(each) else None for each in outputs])


def hvp(function: Callable[..., Any], inputs: Sequence[Any], vectors: Sequence[Any]) -> tuple[Any, ...]:
    """Return the Hessian of ``function``, which returns one number, times ``vectors``: one product for each input.

    It is the gradient of the gradient's product with the vectors (Pearlmutter 1994), so it costs a small multiple of the
    gradient whatever the size.  Both stand in one graph and share what they have in common.
    """
    _check_in_tuples("hvp", inputs, vectors)
    places = tuple(range(len(inputs)))

    def along(*given: Any) -> Tensor:
        slopes, _ = flatten(grad(function, places)(*given))
        chosen = leaves_like(tuple(inputs), tuple(vectors), "hvp: the vectors")
        parts = [
            (slope * _like(vector, slope, "hvp: a vector")).sum()
            for slope, vector in zip(slopes, chosen, strict=True)
            if vector is not None
        ]
        if not parts:
            raise BadTensor("hvp: a vector is wanted for one input at least, got none")
        return total(parts)

    return grad(along, places)(*inputs)  # type: ignore[no-any-return]


def jacobian(function: Callable[..., Any], argnums: int = 0) -> Callable[..., Tensor]:
    """Return the function that gives the derivative of each element of the result by each element of argument ``argnums``.

    Argument and result are one tensor each; the shape is the result's followed by the argument's.  It is made row by row, one
    gradient for each element of the result: for small results.
    """

    def whole(*inputs: Any) -> Tensor:
        if argnums not in range(-len(inputs), len(inputs)):
            raise BadTensor(f"argnums names one of {len(inputs)} arguments here, got {argnums}")
        given = list(inputs)
        leaves, given[argnums] = marked(inputs[argnums])
        result = function(*given)
        if not (is_float(result) and len(leaves) == 1 and is_float(leaves[0])):
            raise NotDifferentiable(
                f"jacobian is by one tensor of floats and of another, got {brief(inputs[argnums])} and {brief(result)}"
            )
        (leaf,) = leaves
        made: list[Any] = []
        for at in range(result.size):
            unit = np.zeros(result.shape, result.dtype)
            unit.reshape(-1)[at] = 1
            made += pulled_to(leaves, [(result, constant(unit))])
        shape = (*result.shape, *leaf.shape)
        with scope("gradient"):
            if not made:
                return apply("broadcast_to", constant(np.zeros((), leaf.dtype)), shape=shape)
            rows = [apply("reshape", each, shape=(1, leaf.size)) for each in made]
            return apply("reshape", apply("concatenate", *rows, axis=0), shape=shape)

    return whole


def hessian(function: Callable[..., Any], argnums: int = 0) -> Callable[..., Tensor]:
    """Return the function that gives the second derivatives by argument ``argnums``, row by row: for small arguments."""
    return jacobian(grad(function, argnums), argnums)


def elementwise_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the derivative, element by element, of a function that works so: of the sum of its result by the argument."""

    def slope(*inputs: Any) -> Any:
        result, pull = vjp(lambda first: function(first, *inputs[1:]), inputs[0])
        if not isinstance(result, Tensor):
            raise NotDifferentiable(
                f"elementwise_grad wants a function that returns a tensor, got {brief(result)}"
            )
        return pull(filled(1, result))[0]

    return slope


def _without_waits(changes: list[Tensor], duals: Sequence[Tensor]) -> list[Tensor]:
    """Return the changes without the barriers that wait for a dual: forward, a checkpoint has nothing to wait for."""
    order = between(changes)
    late = depending(order, duals)
    waiting = {
        node for node in order if node.op.kind == "barrier" and any(each in late for each in node.inputs[1:])
    }
    return substitute(changes, {}, waiting) if waiting else changes


def _check_in_tuples(kind: str, inputs: Any, directions: Any) -> None:
    for each in (inputs, directions):
        if not isinstance(each, (tuple, list)):
            raise BadTensor(
                f"{kind}: the inputs of the function and their directions are two tuples, as in "
                f"{kind}(f, (x,), (v,)); got {brief(each)}"
            )


def _directions(
    inputs: tuple[Any, ...], leaves: Sequence[Any], tangents: Sequence[Any]
) -> dict[Tensor, Tensor]:
    chosen = leaves_like(inputs, tuple(tangents), "jvp: the tangents")
    given = {}
    for leaf, tangent in zip(leaves, chosen, strict=True):
        if tangent is None:
            continue
        if not is_float(leaf):
            raise NotDifferentiable(f"jvp: {brief(leaf)} is no tensor of floats; its tangent must be None")
        given[leaf] = _like(tangent, leaf, "jvp: a tangent")
    return given


def _like(value: Any, tensor: Tensor, what: str) -> Tensor:
    made = value if isinstance(value, Tensor) else constant(np.asarray(value))
    if made.shape != tensor.shape:
        raise BadTensor(
            f"{what} must have the shape {show(tensor.shape)} of its input, got {show(made.shape)}"
        )
    return astype(made, tensor.dtype)
