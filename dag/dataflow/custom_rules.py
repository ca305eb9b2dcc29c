"""Functions with a gradient rule of their own, for where the derivative of the formula is not what is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadTensor, NotDifferentiable
from .boundaries import bound
from .differentiate import filled, in_place_of, is_float, leaves_like, marked
from .regions import between, depending
from .tensor import Tensor, brief, constant, show
from .trees import flatten


class CustomVjp:
    """A function that is differentiated by a rule given with ``defvjp``; see ``custom_vjp``."""

    def __init__(self, function: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.nondiff_argnums = tuple(nondiff_argnums)
        if any(at < 0 for at in self.nondiff_argnums):
            raise BadTensor(
                f"custom_vjp: nondiff_argnums of {self.name} are places from 0 on, got {nondiff_argnums}"
            )
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None
        self.__doc__ = function.__doc__

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Set the rule.

        ``forward`` takes what the function takes and returns its result and what ``backward`` needs (any tree of tensors);
        it is asked when a gradient is.  ``backward(needed, cotangent)``, with the arguments of ``nondiff_argnums`` first,
        returns a tuple with one cotangent for each other argument; None where there is none.
        """
        self.forward, self.backward = forward, backward

    def __call__(self, *inputs: Any) -> Any:
        """Return what the function makes of the inputs, as nodes whose gradient is by the rule."""
        if self.forward is None:
            raise NotDifferentiable(f"custom_vjp: {self.name} has no rule yet; give it one with defvjp")
        aside = set(self.nondiff_argnums)
        if aside and max(aside) >= len(inputs):
            raise BadTensor(
                f"custom_vjp: {self.name} was given {len(inputs)} arguments by place; nondiff_argnums names {max(aside)}"
            )
        chosen = tuple(each for at, each in enumerate(inputs) if at not in aside)
        leaves, arguments = marked(chosen)
        for leaf in leaves:
            if not isinstance(leaf, Tensor):
                raise NotDifferentiable(
                    f"custom_vjp: {self.name} was given {brief(leaf)}, which is no tensor; "
                    "name its place in nondiff_argnums"
                )
        statics = tuple(inputs[at] for at in sorted(aside))
        result = self.function(*_woven(arguments, statics, aside))
        outputs, rebuild = flatten(result)
        floats = [each for each in outputs if is_float(each)]
        if not floats or not leaves:
            return result
        self._check_closed(floats, leaves)
        rule = _Rule(self, chosen, statics, aside, result)
        made = dict(zip(floats, bound(floats, leaves, rule), strict=True))
        return rebuild([made.get(each, each) if isinstance(each, Tensor) else each for each in outputs])

    def _check_closed(self, outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
        order = between(outputs, set(leaves))
        inner = depending(order, leaves)
        for node in order:
            if node.op.kind == "input" and node not in inner and node.dtype.kind == "f":
                raise NotDifferentiable(
                    f"custom_vjp: {self.name} uses {node.name!r}, which is none of its arguments, so no gradient would "
                    "reach it; make it an argument, or put stop_gradient around it outside"
                )


def custom_vjp(function: Callable[..., Any], *, nondiff_argnums: Sequence[int] = ()) -> CustomVjp:
    """Return ``function`` to be differentiated by the rule that ``defvjp(forward, backward)`` sets, as in JAX.

    >>> clipped = custom_vjp(lambda x: x)
    >>> clipped.defvjp(lambda x: (x, None), lambda _, g: (np.clip(g, -1, 1),))

    The function takes and returns trees of tensors; ``nondiff_argnums`` are the places of arguments that are anything else.
    It may be differentiated as often as ``backward`` can be.

    Raises:
        NotDifferentiable: no rule was set, an argument is no tensor, or the function uses an input that is no argument.
    """
    return CustomVjp(function, nondiff_argnums)


class _Rule:
    """The gradient rule of one call: asks ``forward`` for what ``backward`` needs, then ``backward``."""

    def __init__(
        self,
        owner: CustomVjp,
        chosen: tuple[Any, ...],
        statics: tuple[Any, ...],
        aside: set[int],
        result: Any,
    ) -> None:
        self.owner, self.chosen, self.statics, self.aside, self.result = owner, chosen, statics, aside, result

    def __call__(self, call: Tensor, cotangents: Mapping[int, Tensor]) -> tuple[Any, ...]:
        owner, count = self.owner, call.op.attributes["results"]
        results, leaves = call.inputs[:count], call.inputs[count:]
        assert owner.forward is not None
        assert owner.backward is not None
        arguments = in_place_of(self.chosen, leaves)
        made = owner.forward(*_woven(arguments, self.statics, self.aside))
        if not isinstance(made, tuple) or len(made) != 2:
            raise BadTensor(
                f"custom_vjp: forward of {owner.name} must return (result, needed), got {brief(made, 80)}"
            )
        self._check_same(made[0])
        carried = iter(
            [cotangents[at] if at in cotangents else filled(0, each) for at, each in enumerate(results)]
        )
        outputs, rebuild = flatten(self.result)
        given = rebuild([next(carried) if is_float(each) else None for each in outputs])
        back = owner.backward(*self.statics, made[1], given)
        if not isinstance(back, tuple) or len(back) != len(self.chosen):
            raise BadTensor(
                f"custom_vjp: backward of {owner.name} must return a tuple of {len(self.chosen)}, "
                f"a cotangent or None for each argument, got {brief(back, 80)}"
            )
        sent = leaves_like(self.chosen, back, f"custom_vjp: what backward of {owner.name} returns")
        return (
            *(None for _ in results),
            *(self._fitting(each, leaf) for each, leaf in zip(sent, leaves, strict=True)),
        )

    def _check_same(self, again: Any) -> None:
        def outline(tree: Any) -> Any:
            leaves, rebuild = flatten(tree)
            return rebuild([getattr(each, "shape", None) for each in leaves])

        if outline(again) != outline(self.result):
            raise BadTensor(
                f"custom_vjp: forward of {self.owner.name} returns a result of the shapes {outline(again)}, "
                f"the function one of {outline(self.result)}"
            )

    def _fitting(self, cotangent: Any, leaf: Tensor) -> Tensor | None:
        if cotangent is None or not is_float(leaf):
            return None
        tensor = cotangent if isinstance(cotangent, Tensor) else constant(np.asarray(cotangent, leaf.dtype))
        if tensor.shape != leaf.shape:
            raise BadTensor(
                f"custom_vjp: backward of {self.owner.name} gave a cotangent of the shape {show(tensor.shape)} "
                f"for an argument of {show(leaf.shape)}"
            )
        return tensor


def _woven(arguments: Sequence[Any], statics: Sequence[Any], aside: set[int]) -> list[Any]:
    """Return all arguments in their order; ``aside`` are the places of ``statics``."""
    rest, fixed = iter(arguments), iter(statics)
    return [next(fixed if at in aside else rest) for at in range(len(arguments) + len(statics))]
