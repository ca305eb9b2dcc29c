"""A training run from what a person names to what is saved: data, model, settings, and how a file of weights goes on.

The settings of a run that is continued are those in the file, so that what follows is what would have followed.  Nothing here
speaks to a person.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jobs.train import Diverged, Moment, Settings, State, Training, check_settings
from jobs.train_data import NAMED, DataSet, Examples, Scaling, entropy_of, read_named, read_points, read_text
from jobs.train_models import (
    MODELS,
    Mlp,
    Model,
    Transformer,
    count_parameters,
    defaults_of,
    describe_model,
    model_from,
    show_option,
)
from jobs.train_weights import FORMAT_VERSION, Saved, load, name_arrays, save
from mapreduce.errors import BadJob, MissingInput

__all__ = ["Diverged", "Run", "Wanted", "prepare"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a person asked for; ``given`` has only what was said, to be held against a file that is continued.

    Args:
        model: a name in ``MODELS``.
        data: a URL, or a name in ``NAMED``.
        given: settings, ``label``, ``features``, ``format`` and what the model has of its own (``layers``, ``width``, ...).
        epochs, steps: how far to go in all; at most one of them.
        resume: a file of weights to go on from.
    """

    model: str
    data: str
    given: Mapping[str, Any]
    epochs: int | None = None
    steps: int | None = None
    resume: str | None = None
    backend: str = "numpy"
    check_nan: bool = False


READING: dict[str, dict[str, Any]] = {
    "mlp": {"label": "label", "features": (), "format": None},
    "transformer": {},
}
"""What can be said of how the data of each model are read, and what holds if nothing is."""
EPOCHS = 10
SAVE_EVERY_S = 1.0


@dataclass(kw_only=True, eq=False)
class Run:
    """A run that is ready to go: ``go`` takes the steps, ``result`` says what came of them."""

    wanted: Wanted
    data: DataSet
    training: Training
    scaling: Scaling | None
    reading: Mapping[str, Any]
    state: State
    until: int

    @property
    def epochs(self) -> int:
        """The epochs in all, the last one perhaps a part."""
        return -(-self.until // self.training.epoch_steps)

    def go(self, *, save_to: str | None, report: Callable[[Moment], None], stop: Callable[[], bool]) -> None:
        """Take the steps; a file to save to is replaced at the end and after epochs, at most once a second, whole.

        Raises:
            Diverged, NotFinite: see ``Training.run``.
        """

        last = -math.inf

        def keep(state: State) -> None:
            nonlocal last
            if save_to is not None:
                save(save_to, self.saved(state))
            last = time.monotonic()

        self.state = self.training.run(
            self.state, self.until, save=keep if save_to is not None else None, report=report,
            due=lambda: time.monotonic() - last >= SAVE_EVERY_S, stop=stop,
        )  # fmt: skip

    def saved(self, state: State) -> Saved:
        """Return all that a file needs, to predict and to go on."""
        arrays = {
            **name_arrays(state.params, "params."), **name_arrays(state.memory, "optimiser."),
            "history.losses": state.losses, "history.checks": state.checks,
        }  # fmt: skip
        if self.scaling is not None:
            arrays |= {"scaling.shift": self.scaling.shift, "scaling.scale": self.scaling.scale}
        about = {
            "version": FORMAT_VERSION, "model": describe_model(self.training.model), "settings": asdict(self.training.settings),
            "data": self.wanted.data, "digest": self.data.digest, "reading": dict(self.reading),
            "classes": list(self.data.classes), "features": list(self.data.features), "until": self.until,
        }  # fmt: skip
        return Saved(arrays=arrays, about=about)

    def epoch_losses(self) -> list[float]:
        """Return the mean loss of each epoch, of the last one as far as it went."""
        losses, count = self.state.losses.tolist(), self.training.epoch_steps
        return [self.training.epoch_loss(losses, epoch) for epoch in range(-(-len(losses) // count))]

    def result(self, *, seconds: float, steps_before: int) -> dict[str, Any]:
        """Return what came of the run, as JSON takes it; None stands for what was not measured."""
        training, state = self.training, self.state
        held_out = training.held_out
        loss, accuracy = training.measure(
            state.params, held_out if held_out is not None else training.examples
        )
        taken = state.step - steps_before
        whole, rest = divmod(taken, training.epoch_steps)
        examples = whole * len(training.examples) + min(
            rest * training.settings.batch, len(training.examples)
        )
        per_example = int(np.prod(training.examples.targets.shape[1:]))
        losses = self.epoch_losses()
        return {
            "model": describe_model(training.model), "parameters": count_parameters(state.params), "data": self.wanted.data,
            "settings": asdict(training.settings), "backend": self.wanted.backend, "steps": state.step,
            "epochs": state.step / training.epoch_steps, "loss": losses[-1], "measured_on": "held out" if held_out else "all",
            "measured_examples": len(held_out or training.examples), "measured_loss": _or_none(loss), "accuracy": accuracy,
            "seconds": seconds, "examples_per_s": examples * per_example / seconds if seconds else None,
            "epoch_losses": losses, "checks": [_plain(check) for check in state.checks.tolist()],
            "entropy": self.entropy,
        }  # fmt: skip

    @property
    def entropy(self) -> float | None:
        """The entropy of single characters of a text, in nats: what knowing nothing of their order comes to."""
        return entropy_of(self.data.examples.targets) if self.data.in_order else None


def prepare(wanted: Wanted) -> Run:
    """Read the data, and make the model or take it from the file to resume.

    Raises:
        BadJob: a setting is none, or differs from that of the file; the data are others.
        BadInput, MissingInput: a file cannot be read.
    """
    before = load(wanted.resume) if wanted.resume is not None else None
    if before is not None:
        _check_same(wanted, before)
    kept = _kept(before)
    for name, allowed in (("--epochs", wanted.epochs), ("--steps", wanted.steps)):
        if allowed is not None and allowed < 1:
            raise BadJob(f"training: {name} must be at least 1, got {allowed}")
    reading = _chosen(READING[wanted.model], wanted.given, kept.get("reading", {}))
    shape = _chosen(defaults_of(MODELS[wanted.model]), wanted.given, kept.get("model", {}))
    optimiser = wanted.given.get("optimiser", kept.get("settings", {}).get("optimiser", "adam"))
    kind = MODELS[wanted.model]
    start = asdict(
        Settings(batch=kind.batch, optimiser=optimiser, learning_rate=kind.rates.get(optimiser, 0.0))
    )
    settings = Settings(**_chosen(start, wanted.given, kept.get("settings", {})))
    check_settings(settings)
    _check_shape(shape)
    data = _read(wanted, reading, shape)
    if before is not None and (data.digest, list(data.classes), list(data.features)) != (
        kept["digest"], kept["classes"], kept["features"],
    ):  # fmt: skip
        raise BadJob(
            f"training: {wanted.resume} is of other data than {wanted.data} ({kept['data']} as it was then); a run goes on "
            "with the data that it began with"
        )
    learned, held = data.split(settings.validation, settings.seed)
    scaling = data.scaling(learned) if wanted.model == "mlp" else None
    model: Model
    if before is not None:
        model = model_from(kept["model"])
    elif wanted.model == "mlp":
        model = Mlp(features=learned.inputs.shape[1], classes=len(data.classes), **shape)
    else:
        model = Transformer(classes=len(data.classes), **shape)
    try:
        training = Training(
            model, _scaled(learned, scaling, settings), _scaled(held, scaling, settings), settings,
            backend=wanted.backend, check_nan=wanted.check_nan,
        )  # fmt: skip
    except (ModuleNotFoundError, ValueError) as error:
        raise BadJob(f"training: --backend {wanted.backend}: {error}") from error
    state = training.start()
    if before is not None:
        state = _state_of(before, state)
    until = _until(wanted, training, kept, state)
    return Run(
        wanted=wanted,
        data=data,
        training=training,
        scaling=scaling,
        reading=reading,
        state=state,
        until=until,
    )


def _read(wanted: Wanted, reading: Mapping[str, Any], shape: Mapping[str, Any]) -> DataSet:
    named = wanted.data in NAMED or wanted.data.startswith(("sklearn:", "mlxtend:"))
    if wanted.model == "transformer":
        if named:
            raise BadJob(f"training: the transformer learns from a text file, not from {wanted.data}")
        return read_text(wanted.data, context=shape["context"])
    if not named:
        try:
            return read_points(wanted.data, **reading)
        except MissingInput as error:
            meant = [name for name in NAMED if name.endswith(f":{wanted.data}")]
            if not meant:
                raise
            raise MissingInput(f"{error}; did you mean {meant[0]}?") from None
    for name in READING["mlp"]:
        if name in wanted.given:
            raise BadJob(f"training: --{name} is for tables; {wanted.data} has its own")
    return read_named(wanted.data)


def _chosen(defaults: Mapping[str, Any], given: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return for each name what was given, else what a file has kept, else the default."""
    found = {name: given.get(name, kept.get(name, default)) for name, default in defaults.items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def _kept(before: Saved | None) -> Mapping[str, Any]:
    return {} if before is None else before.about


def _check_same(wanted: Wanted, before: Saved) -> None:
    """Refuse what would make another run of the one in the file; the learning rate may change."""
    about = before.about
    found = about["model"].get("model")
    if found != wanted.model:
        raise BadJob(f"training: {wanted.resume} has a {found}, not the model {wanted.model}")
    kept = {**about["settings"], **about["model"], **about["reading"]}
    kept.pop("format", None)  # how the file is read may differ, if the same data come of it
    if "features" in about["reading"]:
        kept["features"] = about["features"]  # also where all were meant and none named
    for name, value in wanted.given.items():
        have = tuple(kept[name]) if isinstance(kept.get(name), list) else kept.get(name)
        if name != "learning_rate" and name in kept and have != value:
            option = name.replace("_", "-")
            raise BadJob(
                f"training: {wanted.resume} was trained with --{option} {show_option(have)}, not {show_option(value)}; leave "
                "the option out to go on, or --resume out to begin anew"
            )


def _check_shape(shape: Mapping[str, Any]) -> None:
    for name, value in shape.items():
        for each in value if isinstance(value, tuple) else (value,):
            if each < 1:
                raise BadJob(f"training: --{name} must be at least 1, got {each}")


def _state_of(before: Saved, like: State) -> State:
    return State(
        params=before.tree("params.", like.params), memory=before.tree("optimiser.", like.memory),
        losses=before.array("history.losses"), checks=before.array("history.checks"),
    )  # fmt: skip


def _until(wanted: Wanted, training: Training, kept: Mapping[str, Any], state: State) -> int:
    count = training.epoch_steps
    until: int
    if wanted.steps is not None:
        until = wanted.steps
    elif wanted.epochs is not None:
        until = wanted.epochs * count
    else:
        until = kept.get("until", EPOCHS * count)
    if until <= state.step:
        raise BadJob(
            f"training: {wanted.resume} has taken {state.step:,} steps, which are {state.step / count:g} epochs; "
            f"give --epochs or --steps for more in all"
        )
    return until


def _scaled(examples: Examples, scaling: Scaling | None, settings: Settings) -> Examples:
    if scaling is None:
        return examples
    return Examples(inputs=scaling.of(examples.inputs, settings.dtype), targets=examples.targets)


def _plain(check: list[float]) -> list[float | None]:
    return [_or_none(value) for value in check]


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
