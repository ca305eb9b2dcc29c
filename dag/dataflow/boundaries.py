"""Operators without a value of their own: they pass their first input on and tell passes and derivatives where to stop.

``identity`` makes another node of one value; ``stop_gradient`` has no derivative; ``barrier`` cannot run before its other
inputs have, and is no copy of anything.  ``call`` and ``call_result`` stand around a function with a gradient rule of its
own: ``call`` takes the results and the arguments of the function, each ``call_result`` one result and the ``call``, so that
``call`` meets the cotangents of all results at once.

After differentiation all but ``barrier`` mean nothing: ``PASSED_ON`` names those that a pass may take out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .tables import GradientRule, ShapeRule, Traits, define
from .tensor import DType, Tensor, TensorLike, apply

PASSED_ON = frozenset({"identity", "stop_gradient", "call", "call_result"})

#: Takes the ``call`` node and the cotangents of its results by their number; returns for each input None, a cotangent, or a
#: list of cotangents that are still to be summed.
CallRule = Callable[[Tensor, Mapping[int, Tensor]], tuple[Any, ...]]


@dataclass(frozen=True)
class ResultCotangent:
    """The cotangent of result ``index`` of a call, on its way to the call."""

    index: int
    cotangent: Tensor


def stop_gradient(value: TensorLike) -> Tensor:
    """Return ``value`` as something that derivatives take for a constant."""
    return apply("stop_gradient", value)


def identity(value: TensorLike) -> Tensor:
    """Return another node of the same value: a gradient by it is by this use of the value alone."""
    return apply("identity", value)


def named(value: TensorLike, name: str) -> Tensor:
    """Return ``value`` under a name by which ``save_names`` finds it."""
    return apply("identity", value, label=name)


def barrier(value: Tensor, *after: Tensor) -> Tensor:
    """Return ``value``, but not before ``after`` have been computed."""
    return apply("barrier", value, *after)


def bound(results: list[Tensor], arguments: list[Tensor], rule: CallRule) -> list[Tensor]:
    """Return the results as nodes whose cotangents go to ``rule``, and from it to the arguments alone.

    The results are floats and one at least; ``rule`` finds results and arguments among the inputs of the call it is given,
    results first, since a copy of the call has others.
    """
    call = apply("call", *results, *arguments, results=len(results), rule=rule)
    return [apply("call_result", each, call, index=index) for index, each in enumerate(results)]


def _first(value: Tensor, *others: Tensor, **attributes: Any) -> tuple[tuple[int, ...], DType]:
    return value.shape, value.dtype


def _pass_on(node: Tensor) -> Any:
    def kernel(value: Any, *others: Any, out: Any = None) -> Any:
        if out is None:
            return value
        out[...] = value
        return out

    return kernel


def _rows(kind: str, gradient: GradientRule | None, shape: ShapeRule = _first) -> None:
    define(
        kind,
        shape=shape,
        gradient=gradient,
        kernels={"numpy": _pass_on},
        traits=Traits(view=True, flops=lambda node: 0),
    )


_rows("identity", lambda node, g, value: (g,))
_rows("stop_gradient", lambda node, g, value: (None,))
_rows("barrier", lambda node, g, value, *after: (g, *(None for _ in after)))
_rows("call", lambda node, g, *inputs: node.op.attributes["rule"](node, g))
_rows("call_result", lambda node, g, value, call: (None, ResultCotangent(node.op.attributes["index"], g)))
