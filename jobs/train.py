"""Training: minibatches in a seeded order, each step one program, and a state that continues to the last bit.

A step is one graph: loss, gradient and the optimiser's step.  What a run has come to is a ``State``; where it stands in the
order of the examples follows from the seed and the number of steps, so a state that was saved goes on as if nothing had been.
Nothing here reads a clock, a signal or a file; saving, showing and stopping are functions that the caller gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dag import dataflow as df
from dag.dataflow.backends import backend_named
from dag.dataflow.trees import flatten, map_tree
from dag.errors import NotFinite
from jobs.train_data import Examples
from jobs.train_models import Model, Tree
from mapreduce.errors import BadJob, JobError

Floats = npt.NDArray[np.float64]

EVALUATE_ROWS = 1_000
OPTIMISERS: dict[str, Callable[[float], Any]] = {"sgd": df.sgd, "momentum": df.momentum, "adam": df.adam}


class Diverged(JobError, ArithmeticError):
    """The loss or the weights left the range of numbers."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides on the numbers of a run, beside the model and the data.

    Args:
        batch: examples per step; the last step of an epoch may have fewer.
        optimiser: a name in ``OPTIMISERS``.
        seed: of the first parameters, of the order of examples and of which are held out.
        validation: the fraction of examples held out.
        dtype: of parameters and of inputs that are no integers.
    """

    batch: int = 64
    optimiser: str = "adam"
    learning_rate: float = 0.001
    seed: int = 0
    validation: float = 0.1
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """What a run has come to after some steps.

    Args:
        params: the parameters.
        memory: what the optimiser keeps.
        losses: the mean loss of the batch of each step so far.
        checks: for each epoch loss and accuracy on what is held out; NaN where nothing is.
    """

    params: Tree
    memory: Tree
    losses: Floats = field(default_factory=lambda: np.zeros(0))
    checks: Floats = field(default_factory=lambda: np.zeros((0, 2)))

    @property
    def step(self) -> int:
        """The number of steps taken."""
        return len(self.losses)


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a run stands, for a person to see; an epoch counts from 1 and has ended if ``loss`` is there."""

    epoch: int
    step: int
    step_loss: float
    loss: float | None = None
    check_loss: float = math.nan
    accuracy: float = math.nan


class Training:
    """A model, examples and settings, made ready to take steps.

    Args:
        held_out: examples that accuracy is found on and nothing is learned from; may have none.
        backend: whose kernels compute, see ``dag.dataflow.Program``.
        check_nan: find the first node that makes a NaN or an infinity, at the cost of looking at every value.
    """

    def __init__(
        self, model: Model, examples: Examples, held_out: Examples | None, settings: Settings, *,
        backend: str = "numpy", check_nan: bool = False,
    ) -> None:  # fmt: skip
        self.model = model
        self.examples = examples
        self.held_out = held_out if held_out is not None and len(held_out) else None
        self.settings = settings
        self.batch = min(settings.batch, len(examples))
        self.epoch_steps = -(-len(examples) // self.batch)
        self._backend = backend
        self._check_nan = check_nan
        self._optimiser = OPTIMISERS[settings.optimiser](settings.learning_rate)
        self._take = backend_named(backend).take
        self._like = self.start()
        self._ordered = -1  # the epoch whose order is known
        self._order = np.zeros(0, np.int64)
        self._step = cache(self._step_program)
        self._score = cache(self._score_program)

    def start(self) -> State:
        """Return the state before the first step."""
        dice = np.random.default_rng([self.settings.seed, 0])
        params = self.model.start(dice, self.settings.dtype)
        return State(params=params, memory=self._optimiser.start(params))

    def run(
        self, state: State, until: int, *, save: Callable[[State], None] | None = None,
        report: Callable[[Moment], None] | None = None, due: Callable[[], bool] = lambda: True,
        stop: Callable[[], bool] = lambda: False,
    ) -> State:  # fmt: skip
        """Take steps until there are ``until`` of them, or until ``stop`` says so after a step; return the new state.

        ``save`` gets the state at the end, and after each epoch at which it is ``due``; ``report`` gets a moment after each
        step and each epoch.

        Raises:
            Diverged: the loss or a parameter is no finite number; what was saved before stays.
            NotFinite: likewise with ``check_nan``, which names the node.
        """
        params, memory = self._carried(state.params), self._carried(state.memory)
        losses, checks = state.losses.tolist(), [tuple(check) for check in state.checks.tolist()]
        begun, saved = len(losses), False
        while len(losses) < until and not (len(losses) > begun and stop()):
            epoch, at = divmod(len(losses), self.epoch_steps)
            rows = self._rows(epoch, at)
            try:
                with np.errstate(all="ignore"):  # what is not finite is refused below
                    params, memory, value = self._step(len(rows))(
                        params, memory, self.examples.inputs[rows], self.examples.targets[rows]
                    )
            except NotFinite as error:
                raise NotFinite(f"training: {self._place(len(losses))}: {error}") from None
            losses.append(float(value))
            saved = False
            if not math.isfinite(losses[-1]):
                raise self._diverged(f"the loss is {losses[-1]}", losses)
            if report is not None:
                report(Moment(epoch=epoch + 1, step=len(losses), step_loss=losses[-1]))
            if at + 1 < self.epoch_steps:
                continue
            checks.append(self.check(params))
            if report is not None:
                loss, (check_loss, accuracy) = self.epoch_loss(losses, epoch), checks[-1]
                report(
                    Moment(
                        epoch=epoch + 1, step=len(losses), step_loss=losses[-1], loss=loss, check_loss=check_loss,
                        accuracy=accuracy,
                    )
                )  # fmt: skip
            if save is not None and due():
                save(self._state(params, memory, losses, checks))
                saved = True
        final = self._state(params, memory, losses, checks)
        if save is not None and not saved:
            save(final)
        return final

    def check(self, params: Tree) -> tuple[float, float]:
        """Return loss and accuracy on what is held out, NaN where nothing is."""
        return (math.nan, math.nan) if self.held_out is None else self.measure(params, self.held_out)

    def measure(self, params: Tree, examples: Examples) -> tuple[float, float]:
        """Return the mean loss and the share of right classes on examples."""
        carried = self._carried(params)
        loss, right, count = 0.0, 0, 0
        for at in range(0, len(examples), EVALUATE_ROWS):
            some = examples.take(slice(at, at + EVALUATE_ROWS))
            with np.errstate(all="ignore"):
                value, scores = self._score(len(some))(carried, some.inputs, some.targets)
            loss += float(value) * some.targets.size
            found = to_numpy(scores)
            sure = np.isfinite(found).all(
                axis=-1
            )  # of scores that are no numbers argmax names one all the same
            right += int(((found.argmax(axis=-1) == some.targets) & sure).sum())
            count += some.targets.size
        return loss / count, right / count

    def epoch_loss(self, losses: Any, epoch: int) -> float:
        """Return the mean loss of the examples of an epoch, each at the time of its step, of the steps that there are."""
        some = losses[epoch * self.epoch_steps : (epoch + 1) * self.epoch_steps]
        rest = len(self.examples) - (self.epoch_steps - 1) * self.batch
        weights = [self.batch] * (self.epoch_steps - 1) + [rest]
        total = math.fsum(loss * size for loss, size in zip(some, weights, strict=False))
        return total / sum(weights[: len(some)])

    def _rows(self, epoch: int, at: int) -> npt.NDArray[np.int64]:
        if self._ordered != epoch:
            dice = np.random.default_rng([self.settings.seed, 1, epoch])
            self._order, self._ordered = dice.permutation(len(self.examples)), epoch
        return self._order[at * self.batch : (at + 1) * self.batch]

    def _step_program(self, batch: int) -> df.Program:
        params = df.inputs_like(self._like.params, "params.")
        memory = df.inputs_like(self._like.memory, "optimiser.")
        inputs, targets = self.model.inputs(batch, self.settings.dtype), self.model.targets(batch)

        def loss_of(params: Tree) -> df.Tensor:
            return mean_loss(self.model.scores(params, inputs), targets)

        loss, gradients = df.value_and_grad(loss_of)(params)
        with df.scope("step"):
            after, remembered = self._optimiser.step(params, gradients, memory)
        return df.Program(
            (after, remembered, loss), (params, memory, inputs, targets), backend=self._backend,
            check_nan=self._check_nan, donated=(params, memory),
        )  # fmt: skip

    def _score_program(self, batch: int) -> df.Program:
        params = df.inputs_like(self._like.params, "params.")
        inputs, targets = self.model.inputs(batch, self.settings.dtype), self.model.targets(batch)
        scores = self.model.scores(params, inputs)
        return df.Program(
            (mean_loss(scores, targets), scores), (params, inputs, targets), backend=self._backend
        )

    def _carried(self, tree: Tree) -> Tree:
        """Return the arrays of a tree as copies of the backend's own, which it may overwrite."""

        def carry(leaf: Any) -> Any:
            array = np.array(to_numpy(leaf))
            return self._take(array, array.dtype)

        return map_tree(carry, tree)

    def _state(self, params: Tree, memory: Tree, losses: list[float], checks: list[Any]) -> State:
        if not all(np.isfinite(to_numpy(leaf)).all() for leaf in flatten(params)[0]):
            raise self._diverged("a weight is no finite number", losses)
        # Copies: the next step may write over what a program was given.
        return State(
            params=map_tree(lambda leaf: np.array(to_numpy(leaf)), params),
            memory=map_tree(lambda leaf: np.array(to_numpy(leaf)), memory),
            losses=np.array(losses), checks=np.array(checks).reshape(-1, 2),
        )  # fmt: skip

    def _diverged(self, what: str, losses: list[float]) -> Diverged:
        advice = "a smaller --learning-rate may help"
        if not self._check_nan:
            advice += "; --check-nan names the first node that makes it"
        return Diverged(f"training: {self._place(len(losses) - 1)}: {what}; {advice}")

    def _place(self, step: int) -> str:
        epoch, at = divmod(step, self.epoch_steps)
        return f"epoch {epoch + 1}, step {at + 1} of {self.epoch_steps}"


def mean_loss(scores: df.Tensor, targets: df.Tensor) -> df.Tensor:
    """Return the mean cross entropy of scores (..., classes) against classes (...), in nats."""
    with df.scope("loss"):
        flat = scores.reshape(-1, scores.shape[-1])
        return df.mean(df.softmax_cross_entropy(flat, targets.reshape(-1)))


def to_numpy(value: Any) -> Any:
    """Return an array of any backend as NumPy's."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)


def check_settings(settings: Settings) -> None:
    """Raise BadJob for a setting that no run can have."""
    for name, value, wanted, right in (
        ("--batch", settings.batch, "at least 1", settings.batch >= 1),
        ("--learning-rate", settings.learning_rate, "above 0", 0 < settings.learning_rate < math.inf),
        ("--validation", settings.validation, "from 0 to below 1", 0 <= settings.validation < 1),
        ("--seed", settings.seed, "from 0", settings.seed >= 0),
        ("--optimiser", settings.optimiser, ", ".join(OPTIMISERS), settings.optimiser in OPTIMISERS),
        ("--dtype", settings.dtype, "float32 or float64", settings.dtype in ("float32", "float64")),
    ):
        if not right:
            raise BadJob(f"training: {name} must be {wanted}, got {value}")
