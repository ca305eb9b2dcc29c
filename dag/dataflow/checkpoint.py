"""Rematerialisation by choice: functions whose inner values are computed again for the gradient, in place of being kept.

The first run's inner values are free to go once the results are there.  The gradient computes them again behind a
``barrier`` that waits for the cotangents, so that the second computation can neither run early nor be merged with the first
(Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost).  A policy says which values are kept all the same.
The gradient has the same bits as without.  In second derivatives the values that were computed again are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .boundaries import barrier, bound
from .differentiate import gather, is_float, marked
from .regions import between, depending, substitute
from .tensor import Tensor, scope
from .trees import flatten

#: True for a value that is to be kept.
Policy = Callable[[Tensor], bool]

#: What costs most to compute again.
CONTRACTIONS = frozenset({"matmul", "conv2d"})


def save_nothing(value: Tensor) -> bool:
    """Compute everything again: the least memory."""
    return False


def save_all(value: Tensor) -> bool:
    """Keep everything: as without ``checkpoint``."""
    return True


def save_matmuls(value: Tensor) -> bool:
    """Keep matrix products and convolutions; compute the cheap rest again."""
    return value.op.kind in CONTRACTIONS


def save_names(*labels: str) -> Policy:
    """Return the policy that keeps what was given one of these names with ``named(value, name)``."""
    wanted = frozenset(labels)

    def policy(value: Tensor) -> bool:
        return value.op.attributes.get("label") in wanted

    return policy


def checkpoint(function: Callable[..., Any], policy: Policy | None = None) -> Callable[..., Any]:
    """Return the function whose inner values are computed again for its gradient, except what ``policy`` keeps.

    ``function`` takes and returns nested dicts, lists and tuples of tensors; anything else among its arguments is handed on.
    Tensors that it finds outside of its arguments are kept, and get their gradients.
    """

    def checkpointed(*inputs: Any, **settings: Any) -> Any:
        leaves, (arguments, named_ones) = marked((inputs, settings))
        result = function(*arguments, **named_ones)
        outputs, rebuild = flatten(result)
        own = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        order = between([each for each in outputs if is_float(each)], set(own))
        inner = depending(order, own)
        floats = [each for each in outputs if is_float(each) and each in inner]
        if inner <= set(own):
            return result
        found_outside = dict.fromkeys(
            source for node in order if node in inner and node not in own for source in node.inputs
        )
        outside = [each for each in found_outside if each not in inner and each.op.kind != "constant"]
        made = dict(
            zip(floats, bound(floats, [*own, *outside], _Recomputed(policy or save_nothing)), strict=True)
        )
        return rebuild([made.get(each, each) if isinstance(each, Tensor) else each for each in outputs])

    return checkpointed


class _Recomputed:
    """The gradient rule of a call to a checkpointed function; ``results`` and arguments are the inputs of the call."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __call__(self, call: Tensor, cotangents: Mapping[int, Tensor]) -> tuple[Any, ...]:
        count = call.op.attributes["results"]
        results, arguments = call.inputs[:count], call.inputs[count:]
        seeds = [(results[at], cotangent) for at, cotangent in cotangents.items()]
        order = between([result for result, _ in seeds], set(arguments))
        found = gather(order, seeds, [each for each in arguments if is_float(each)], partial=True)
        parts = [(at, part) for at, each in enumerate(arguments) for part in found.get(each, ())]
        exchanged = self._again(order, arguments, tuple(cotangents.values()))
        with scope("recomputed"):
            copies = substitute([part for _, part in parts], exchanged)
        sent: list[list[Tensor]] = [[] for _ in arguments]
        for (at, _), copy in zip(parts, copies, strict=True):
            sent[at].append(copy)
        return (*(None for _ in results), *(each or None for each in sent))

    def _again(
        self, order: list[Tensor], arguments: tuple[Tensor, ...], cotangents: tuple[Tensor, ...]
    ) -> dict[Tensor, Tensor]:
        """Return what stands for the arguments and the kept values in the gradient.

        The cotangents stand for themselves: what they came from is not part of this function.
        """
        exchanged = {each: each for each in cotangents}
        for each in arguments:
            exchanged.setdefault(each, barrier(each, *cotangents))
        for node in order:
            if node not in exchanged and node.inputs and self.policy(node):
                kept = barrier(node, *cotangents)
                exchanged[node] = kept
                # Under a name the same value goes on: a rule may ask for it by either node.
                while node.op.kind == "identity" and node.inputs[0] not in exchanged:
                    (node,) = node.inputs
                    exchanged[node] = kept
        return exchanged
