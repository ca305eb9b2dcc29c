"""Optimisers as graphs: from parameters, gradients and state to the next parameters and state.

Parameters are nested dicts, lists and tuples; the state is a dict with the number of the step and trees like the parameters.
Each keeps its dtype: float32 parameters stay float32, while the few numbers of a step (rates, corrections) are computed in
float64.  float16 parameters stay float16, but their step is computed in float32, and their state kept in it.  Nothing here
runs a step: put ``step`` into the graph of the training step and run that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadTensor
from .arguments import snapshot
from .differentiate import is_float, total
from .tensor import Tensor, apply, astype, brief, constant, scope, show
from .trees import flatten, map_tree, values_like

State = dict[str, Any]
#: A number, a tensor of shape (), or a function from the number of the step (a tensor, 1 at first) to one.
LearningRate = float | Tensor | Callable[[Tensor], Tensor]
#: Takes a parameter, its gradient and what its slots hold; returns the next parameter and slots.
Move = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """How parameters follow their gradients; made by ``sgd``, ``momentum`` or ``adam``.

    Args:
        name: what it is called.
        slots: the trees that the state holds beside the number of the step, zeros at first.
        learning_rate: see ``LearningRate``.
        rule: takes the rate and the number of the step; returns what each parameter does.
    """

    name: str
    slots: tuple[str, ...]
    learning_rate: LearningRate
    rule: Callable[[Any, Tensor], Move]

    def start(self, params: Any) -> State:
        """Return the state before the first step, arrays in trees like ``params`` (arrays or tensors)."""
        zeros = {
            slot: map_tree(lambda each: np.zeros(each.shape, _wide(each.dtype)), params)
            for slot in self.slots
        }
        return {"step": np.zeros((), np.int64), **zeros}

    def step(self, params: Any, gradients: Any, state: State) -> tuple[Any, State]:
        """Return the parameters and the state after one step, as tensors in trees like those given.

        Raises:
            BadTensor: a gradient has not the shape of its parameter, or a tree not that of ``params``.
        """
        with scope(self.name):
            if not isinstance(state, dict) or not {"step", *self.slots} <= set(state):
                raise BadTensor(
                    f"{self.name}: the state is a dict with step{''.join(f', {slot}' for slot in self.slots)}, as start "
                    f"makes it, got {brief(state)}"
                )
            number = snapshot(state["step"]) + 1
            rate = self.learning_rate(number) if callable(self.learning_rate) else self.learning_rate
            rate = rate if isinstance(rate, (int, float)) else snapshot(rate)
            if not isinstance(rate, (int, float)) and not (isinstance(rate, Tensor) and rate.shape == ()):
                found = show(rate.shape) if isinstance(rate, Tensor) else brief(rate)
                raise BadTensor(f"the learning rate must be a number, or have the shape (), got {found}")
            leaves, rebuild = flatten(params)
            own = [snapshot(leaf) for leaf in leaves]
            if not all(is_float(each) for each in own):
                raise BadTensor(f"{self.name}: parameters are tensors of floats, got {brief(params, 80)}")
            columns = [_leaves(f"{self.name}: the gradients", gradients, params, own)]
            columns += [
                _leaves(f"{self.name}: the state {slot!r}", state[slot], params, own) for slot in self.slots
            ]
            move = self.rule(rate, number)
            moved = [
                move(astype(param, _wide(param.dtype)), gradient, slots)
                for param, gradient, *slots in zip(own, *columns, strict=True)
            ]
            next_slots = {
                slot: rebuild([slots[at] for _, slots in moved]) for at, slot in enumerate(self.slots)
            }
            after = [astype(param, before.dtype) for (param, _), before in zip(moved, own, strict=True)]
            return rebuild(after), {"step": number, **next_slots}


def sgd(learning_rate: LearningRate) -> Optimiser:
    """Return gradient descent: each parameter less its gradient times the rate."""

    def rule(rate: Any, number: Tensor) -> Move:
        return lambda param, gradient, slots: (param - _scalar(rate, param) * gradient, ())

    return Optimiser(name="sgd", slots=(), learning_rate=learning_rate, rule=rule)


def momentum(learning_rate: LearningRate, decay: float = 0.9, *, nesterov: bool = False) -> Optimiser:
    """Return gradient descent along a decaying sum of gradients, ``velocity = decay * velocity + gradient``.

    With ``nesterov`` the parameters move along ``gradient + decay * velocity`` (Sutskever et al. 2013, in the form of torch).
    """
    _in_range("decay", decay)

    def rule(rate: Any, number: Tensor) -> Move:
        def move(param: Tensor, gradient: Tensor, slots: Sequence[Tensor]) -> Any:
            velocity = decay * slots[0] + gradient
            direction = gradient + decay * velocity if nesterov else velocity
            return param - _scalar(rate, param) * direction, (velocity,)

        return move

    return Optimiser(name="momentum", slots=("velocity",), learning_rate=learning_rate, rule=rule)


def adam(
    learning_rate: LearningRate = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    *,
    weight_decay: float = 0.0,
) -> Optimiser:
    """Return Adam with bias correction (Kingma & Ba 2015, algorithm 1).

    ``weight_decay`` shrinks the parameters beside the step, by itself times the rate: AdamW (Loshchilov & Hutter 2019).
    """
    _in_range("beta1", beta1)
    _in_range("beta2", beta2)

    def rule(rate: Any, number: Tensor) -> Move:
        steps = astype(number, np.dtype(np.float64))
        size = rate / (1 - beta1**steps)
        root = apply("sqrt", 1 - beta2**steps)
        shrunk = 1 - rate * weight_decay

        def move(param: Tensor, gradient: Tensor, slots: Sequence[Tensor]) -> Any:
            mean = beta1 * slots[0] + (1 - beta1) * gradient
            square = beta2 * slots[1] + (1 - beta2) * (gradient * gradient)
            spread = apply("sqrt", square) / _scalar(root, param) + epsilon
            kept = param * _scalar(shrunk, param) if weight_decay else param
            return kept - _scalar(size, param) * (mean / spread), (mean, square)

        return move

    return Optimiser(name="adam", slots=("mean", "square"), learning_rate=learning_rate, rule=rule)


def warmup_cosine(
    peak: float, warmup_steps: int, total_steps: int, final: float = 0.0
) -> Callable[[Tensor], Tensor]:
    """Return the rate that rises in a line to ``peak`` at step ``warmup_steps``, then falls in half a cosine to ``final``.

    From ``total_steps`` on it stays there.  Step 1 is the first (Loshchilov & Hutter 2017, equation 5, without restarts).
    """
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"warmup_steps must be from 0 to below total_steps, got {warmup_steps} and {total_steps}"
        )

    def rate(number: Tensor) -> Tensor:
        step = astype(snapshot(number), np.dtype(np.float64))
        done = apply("minimum", (step - warmup_steps) / (total_steps - warmup_steps), 1.0)
        falling = final + (peak - final) * 0.5 * (1 + apply("cos", math.pi * done))
        return apply("where", step < warmup_steps, step * (peak / max(warmup_steps, 1)), falling)

    return rate


def clip_by_global_norm(gradients: Any, max_norm: float) -> tuple[Any, Tensor]:
    """Return the gradients, made smaller together if their norm is above ``max_norm``, and the norm that they had.

    The norm is the root of the sum of all squares over the whole tree (Pascanu et al. 2013).  Gradients within keep their bits.
    """
    if not isinstance(max_norm, (int, float)) or not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, got {brief(max_norm)}")
    leaves, rebuild = flatten(gradients)
    tensors = [snapshot(leaf) for leaf in leaves]
    if not tensors or not all(is_float(each) for each in tensors):
        raise BadTensor(f"gradients are tensors of floats, got {brief(gradients, 80)}")
    with scope("clip"):
        # In half precision the squares would be infinite from a norm of 256 on, and the gradients then 0.
        wide = [astype(each, np.float32) if each.dtype == np.float16 else each for each in tensors]
        norm = apply("sqrt", total([(each * each).sum() for each in wide]))
        scale = max_norm / apply("maximum", norm, constant(max_norm, norm.dtype))
        scaled = [wider * astype(scale, wider.dtype) for wider in wide]
        return rebuild([astype(each, own.dtype) for each, own in zip(scaled, tensors, strict=True)]), norm


def _scalar(value: Any, like: Tensor) -> Any:
    """Return a number that does not change the dtype of ``like``."""
    return astype(value, like.dtype) if isinstance(value, Tensor) else float(value)


def _leaves(what: str, tree: Any, params: Any, own: Sequence[Tensor]) -> list[Tensor]:
    """Return what ``tree`` has for each parameter, in the dtype of its step."""
    try:
        given = values_like(params, tree)
    except ValueError as error:
        raise BadTensor(f"{what} must be a tree like the parameters: {error}") from None
    leaves: list[Tensor] = [snapshot(each) for each in given]
    for param, leaf in zip(own, leaves, strict=True):
        if not isinstance(leaf, Tensor) or leaf.shape != param.shape:
            found = show(leaf.shape) if isinstance(leaf, Tensor) else repr(leaf)[:60]
            raise BadTensor(
                f"{what} must have the shapes of the parameters, {show(param.shape)} here, got {found}"
            )
    return [astype(leaf, _wide(param.dtype)) for param, leaf in zip(own, leaves, strict=True)]


def _wide(dtype: Any) -> Any:
    """Return the dtype in which a step is computed: in float16 epsilon and the square of a small gradient would be 0."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _in_range(what: str, value: float) -> None:
    if not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{what} must be from 0 to below 1, got {value}")
