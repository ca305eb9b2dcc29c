"""Derivatives as graphs: from the nodes of a function to the nodes of its gradient.

``pull_back`` walks a graph against its edges and asks each operator's gradient rule for the nodes that carry the cotangent
on.  The result is a larger graph, so it can be differentiated again.  Nothing here computes a value.

Functions that are differentiated take tensors, or nested dicts, lists and tuples of them.  Arrays and numbers among them
become constants, and what comes back is tensors all the same: ``evaluate`` gives their values.  Every function sees its
arguments as nodes of their own, so that the derivative by one argument is by that alone, even where two arguments, or an
argument and a tensor that the function finds outside, are one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from operator import index
from typing import Any

import numpy as np

from ..errors import BadTensor, NotDifferentiable
from .arguments import snapshot
from .boundaries import ResultCotangent, identity
from .regions import between, depending, scope_of
from .tables import GRADIENTS
from .tensor import Tensor, apply, astype, brief, constant, scope, show
from .trees import flatten, values_like


def pull_back(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return for each input the sum over outputs of cotangent times derivative (the vector-Jacobian product).

    None: no output depends on that input in a way that has a derivative.  An input may depend on another: each gets all that
    flows through it.  Reverse accumulation, each node once (Griewank & Walther, Evaluating Derivatives, chapter 3); what
    several users of a value send back is added from the left, that of the user made last first.

    Raises:
        BadTensor: a cotangent has another shape than its output.
        NotDifferentiable: an operator on the way has no gradient rule though its result is a float.
    """
    found = gather(between(outputs), list(zip(outputs, cotangents, strict=True)), inputs)
    with scope("gradient"):
        return [total(found[each]) if each in found else None for each in inputs]


def gather(
    order: Sequence[Tensor],
    seeds: Sequence[tuple[Tensor, Tensor]],
    inputs: Iterable[Tensor],
    *,
    partial: bool = False,
) -> dict[Tensor, list[Tensor]]:
    """Return the cotangents that reach each input, not yet summed; inputs that none reaches are left out.

    Args:
        order: the nodes to go through, inputs first; they are gone through in the order in which they were made where that is
            such an order too, so that sums do not depend on which outputs are asked for.
        seeds: outputs and their cotangents.
        inputs: where to.
        partial: what reaches an input does not go on through it.
    """
    ends = set(inputs)
    if all(source.serial < node.serial for node in order for source in node.inputs):
        order = sorted(order, key=lambda node: node.serial)
    wanted = depending(order, ends, floats_only=True)
    parts: dict[Tensor, list[Any]] = {}
    for output, cotangent in seeds:
        if cotangent.shape != output.shape:
            raise BadTensor(
                f"the cotangent of {output.name!r} must have its shape {show(output.shape)}, got {show(cotangent.shape)}"
            )
        parts.setdefault(output, []).append(astype(cotangent, output.dtype))
    found: dict[Tensor, list[Tensor]] = {}
    with scope("gradient"):
        for node in reversed(order):
            arrived = parts.pop(node, None)
            if arrived is None or node not in wanted:
                continue
            if node in ends:
                found[node] = arrived
                if partial:
                    continue
            if not any(source in wanted for source in node.inputs):
                continue
            with (
                scope(place) if (place := scope_of(node)) else nullcontext()
            ):  # as in gradient/block1/matmul_12
                carried = _carried(node, arrived)
            for source, given in zip(node.inputs, carried, strict=True):
                if given is not None and source in wanted:
                    parts.setdefault(source, []).extend(
                        _fitting(node, source, each)
                        for each in (given if isinstance(given, list) else (given,))
                    )
    return found


def vjp(function: Callable[..., Any], *inputs: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return what ``function`` makes of the inputs, and the function from a cotangent of that to one for each input.

    The cotangent is a tree like the result, with None where a result is to have none; arrays will do.  Inputs on which the
    result does not depend get zeros, integers get None.  With ``has_aux`` the function returns (result, aux), as in JAX, and
    aux comes third.

    Raises:
        NotDifferentiable: the result holds no tensor of floats.
        BadTensor: the cotangent does not fit the result.
    """
    leaves, arguments = marked(inputs)
    result, aux = _with_aux(function(*arguments), has_aux, "result")
    outputs, _ = flatten(result)
    if not any(is_float(each) for each in outputs):
        raise NotDifferentiable(
            f"vjp wants a function that returns a tensor of floats, got {brief(result, 80)}"
        )

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given = leaves_like(result, cotangent, "the cotangent")
        seeds = [
            (output, _as_cotangent(each, output))
            for output, each in zip(outputs, given, strict=True)
            if each is not None and is_float(output)
        ]
        return tuple(in_place_of(inputs, pulled_to(leaves, seeds)))

    return (result, pull, aux) if has_aux else (result, pull)


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives what ``function`` gives, and its gradient by the arguments ``argnums``.

    ``function`` returns a tensor of shape () and with ``has_aux`` anything else beside it: ``((loss, aux), gradient)`` comes
    back.  The gradient has the shape of the argument, or is a tuple for several; it is zeros where the result does not
    depend on the argument.  Arguments given by name are handed on.

    Raises:
        NotDifferentiable: an argument is an integer or no tensor, or the result is no tensor of floats.
        BadTensor: the result has another shape than (), or there is no such argument.
    """

    def both(*inputs: Any, **settings: Any) -> Any:
        several = not isinstance(argnums, (int, np.integer))
        places = _places(argnums if several else (argnums,), len(inputs))  # type: ignore[arg-type]
        chosen = tuple(inputs[place] for place in places)
        leaves, arguments = marked(chosen)
        for leaf in leaves:
            _check_float(leaf, "a gradient is by")
        given = list(inputs)
        for place, argument in zip(places, arguments, strict=True):
            given[place] = argument
        result = function(*given, **settings)
        loss, aux = _loss_and_aux(result, has_aux)
        pulled = pulled_to(leaves, [(loss, constant(np.ones((), loss.dtype)))])
        gradients = tuple(in_place_of(chosen, pulled))
        return ((loss, aux) if has_aux else loss), (gradients if several else gradients[0])

    return both


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Return the function that gives the gradient of ``function``, with ``has_aux`` beside the aux; see ``value_and_grad``."""
    both = value_and_grad(function, argnums, has_aux=has_aux)

    def gradient(*inputs: Any, **settings: Any) -> Any:
        value, result = both(*inputs, **settings)
        return (result, value[1]) if has_aux else result

    return gradient


def filled(value: float, like: Tensor) -> Tensor:
    """Return ``value`` everywhere in the shape and dtype of ``like``."""
    scalar = constant(np.asarray(value, like.dtype))
    return scalar if like.shape == () else apply("broadcast_to", scalar, shape=like.shape)


def marked(inputs: Any) -> tuple[list[Any], Any]:
    """Return the leaves of ``inputs``, each tensor as a node of its own, and the tree of them."""
    leaves, rebuild = flatten(inputs)
    own = [identity(each) if isinstance(each, Tensor) else each for each in map(snapshot, leaves)]
    return own, rebuild(own)


def pulled_to(leaves: Sequence[Any], seeds: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor | None]:
    """Return the gradients by marked leaves: zeros where nothing arrives, None for what has no derivative."""
    ends = [leaf for leaf in leaves if is_float(leaf)]
    found = gather(between([output for output, _ in seeds], set(ends)), seeds, ends, partial=True)
    with scope("gradient"):
        return [
            (total(found[leaf]) if leaf in found else filled(0, leaf)) if is_float(leaf) else None
            for leaf in leaves
        ]


def in_place_of(tree: Any, others: Sequence[Any]) -> Any:
    """Return ``tree`` with ``others`` in the places of its leaves."""
    _, rebuild = flatten(tree)
    return rebuild(list(others))


def leaves_like(tree: Any, values: Any, what: str) -> list[Any]:
    """Return the parts of ``values`` in the places of the leaves of ``tree``; None may stand for any part of it."""
    try:
        return values_like(tree, values, none_fits=True)
    except ValueError as error:
        raise BadTensor(f"{what}: {error}") from None


def is_float(value: Any) -> bool:
    """Whether ``value`` is a tensor of floats, the only thing that has a derivative."""
    return isinstance(value, Tensor) and value.dtype.kind == "f"


def total(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of one or more tensors, added from the left."""
    first, *others = parts
    for part in others:
        first = apply("add", first, part)
    return first


def _carried(node: Tensor, arrived: list[Any]) -> Sequence[Any]:
    if node.op.kind == "identity":
        # Not summed here: then a value's cotangents are added in one order, marked or not, and give the same bits.
        return (arrived,)
    rule = GRADIENTS[node.op.kind]
    if rule is None:
        raise NotDifferentiable(
            f"{node.name!r}: the operator {node.op.kind!r} has no gradient rule; "
            "put stop_gradient around its inputs, or give it one with custom_vjp"
        )
    if node.op.kind != "call":
        return rule(node, total(arrived), *node.inputs)
    by_result: dict[int, list[Tensor]] = {}
    for each in arrived:
        by_result.setdefault(each.index, []).append(each.cotangent)
    return rule(node, {at: total(parts) for at, parts in sorted(by_result.items())}, *node.inputs)


def _fitting(node: Tensor, source: Tensor, part: Any) -> Any:
    """Return a cotangent in the dtype of its tensor: a float32 beside float64 keeps float32 gradients."""
    if isinstance(part, ResultCotangent):
        return part
    if part.shape != source.shape:
        raise BadTensor(
            f"the gradient rule of {node.op.kind!r} gave the cotangent of {source.name!r} the shape "
            f"{show(part.shape)}, not {show(source.shape)}"
        )
    return astype(part, source.dtype)


def _as_cotangent(value: Any, output: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else constant(value, output.dtype)


def _places(argnums: Sequence[int], count: int) -> list[int]:
    places = []
    for each in argnums:
        place = index(each)
        if not -count <= place < count:
            raise BadTensor(f"argnums {place} is out of range: the function is given {count} arguments")
        places.append(place % count)
    if len(set(places)) < len(places):
        raise BadTensor(f"argnums {tuple(argnums)} names an argument twice")
    return places


def _with_aux(result: Any, has_aux: bool, what: str) -> tuple[Any, Any]:
    if has_aux and not (isinstance(result, tuple) and len(result) == 2):
        raise NotDifferentiable(
            f"with has_aux=True the function returns ({what}, aux), got {brief(result, 80)}"
        )
    return result if has_aux else (result, None)


def _loss_and_aux(result: Any, has_aux: bool) -> tuple[Tensor, Any]:
    loss, aux = _with_aux(result, has_aux, "loss")
    if not isinstance(loss, Tensor):
        hint = "; has_aux=True passes on what stands beside the loss" if isinstance(loss, tuple) else ""
        raise NotDifferentiable(f"grad wants a function that returns a tensor, got {brief(loss, 80)}{hint}")
    if loss.shape != ():
        raise BadTensor(
            f"grad wants a function whose result has the shape (), got {show(loss.shape)}; use vjp, or sum it"
        )
    _check_float(loss, "a gradient is of")
    return loss, aux


def _check_float(tensor: Any, what: str) -> None:
    if not isinstance(tensor, Tensor):
        raise NotDifferentiable(f"{what} tensors, got {brief(tensor)}")
    if tensor.dtype.kind != "f":
        name = tensor.inputs[0].name if tensor.op.kind == "identity" else tensor.name
        raise NotDifferentiable(
            f"{what} a tensor of floats; {name!r} has the dtype {tensor.dtype}: convert it with astype, or leave it out"
        )
