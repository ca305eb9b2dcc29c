"""The models that ``mr train`` knows: functions from trees of parameters and inputs to scores, written as dataflow graphs.

A model is a value that JSON can hold; its parameters are nested dicts and lists.  Adding one is a class that is a ``Model``, a
line in ``MODELS``, and in ``train_run`` how its data are read.  Nothing here trains or reads files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from dag import dataflow as df
from dag.dataflow.trees import flatten
from mapreduce.errors import BadJob

Tree = Any
"""Nested dicts, lists and tuples of arrays, or of tensors."""
Dice = np.random.Generator


class Model(Protocol):
    """What training needs of a model."""

    name: ClassVar[str]

    def start(self, dice: Dice, dtype: str) -> Tree:
        """Return parameters drawn at random."""

    def scores(self, params: Tree, inputs: df.Tensor) -> df.Tensor:
        """Return a score per class: the shape of the targets and one dimension more."""

    def inputs(self, batch: int, dtype: str) -> df.Tensor:
        """Return the tensor that stands for the inputs of so many examples."""

    def targets(self, batch: int) -> df.Tensor:
        """Return the tensor that stands for the classes wanted of so many examples."""


def he(dice: Dice, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Return weights for a layer with ReLU: normal, variance 2 / inputs (He et al. 2015, section 2.2)."""
    return (dice.standard_normal(shape) * math.sqrt(2 / shape[0])).astype(dtype)


def glorot(dice: Dice, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Return weights for a layer without ReLU: uniform, variance 2 / (inputs + outputs) (Glorot and Bengio 2010, eq. 16)."""
    limit = math.sqrt(6 / sum(shape))
    return dice.uniform(-limit, limit, shape).astype(dtype)


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """A multilayer perceptron: layers of ReLU of the widths ``layers``, then one score per class."""

    name: ClassVar[str] = "mlp"
    doc: ClassVar[str] = "Which class a row of numbers belongs to, by layers of ReLU."
    batch: ClassVar[int] = 64
    rates: ClassVar[Mapping[str, float]] = {"sgd": 0.1, "momentum": 0.05, "adam": 0.001}
    data: ClassVar[str] = "a table with a column of classes, or a named set such as sklearn:digits"

    features: int
    classes: int
    layers: tuple[int, ...] = (512, 512)

    def start(self, dice: Dice, dtype: str) -> Tree:
        """Return weights after He, those of the last layer after Glorot, and shifts of zero."""
        widths = [self.features, *self.layers, self.classes]
        last = len(widths) - 2
        return [
            {
                "shift": np.zeros(widths[at + 1], dtype),
                "weights": (glorot if at == last else he)(dice, (widths[at], widths[at + 1]), dtype),
            }
            for at in range(last + 1)
        ]

    def scores(self, params: Tree, inputs: df.Tensor) -> df.Tensor:
        """Return scores of the shape (batch, classes)."""
        values = inputs
        for number, layer in enumerate(params):
            with df.scope(f"layer{number}"):
                values = values @ layer["weights"] + layer["shift"]
                if number < len(params) - 1:
                    values = df.relu(values)
        return values

    def inputs(self, batch: int, dtype: str) -> df.Tensor:
        """Return the tensor of a batch of rows."""
        return df.input("inputs", (batch, self.features), dtype)

    def targets(self, batch: int) -> df.Tensor:
        """Return the tensor of a class per row."""
        return df.input("targets", (batch,), np.int64)


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A small character transformer: blocks of causal attention and an MLP, each after a layer norm (Radford et al. 2019)."""

    name: ClassVar[str] = "transformer"
    doc: ClassVar[str] = "Which character comes next in a text, by causal attention."
    batch: ClassVar[int] = 16
    rates: ClassVar[Mapping[str, float]] = {"sgd": 0.3, "momentum": 0.05, "adam": 0.003}
    data: ClassVar[str] = "a text file"

    classes: int
    context: int = 64
    width: int = 64
    heads: int = 4
    blocks: int = 2

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise BadJob(
                f"training: --width {self.width} is no multiple of --heads {self.heads}; each head takes an equal part of it"
            )

    def start(self, dice: Dice, dtype: str) -> Tree:
        """Return weights after Glorot, embeddings with a deviation of 0.02, norms that change nothing."""
        width = self.width

        def norm() -> Tree:
            return {"scale": np.ones(width, dtype), "shift": np.zeros(width, dtype)}

        def linear(wide: int, far: int, factor: float = 1.0) -> Tree:
            weights = glorot(dice, (wide, far), dtype) * np.asarray(factor, dtype)
            return {"shift": np.zeros(far, dtype), "weights": weights}

        def table(rows: int) -> npt.NDArray[Any]:
            return (0.02 * dice.standard_normal((rows, width))).astype(dtype)

        # What each block adds starts smaller the more of them there are, so that their sum does not grow.
        less = 1 / math.sqrt(2 * self.blocks)
        blocks = [
            {
                "attention": {
                    "norm": norm(),
                    "in": linear(width, 3 * width),
                    "out": linear(width, width, less),
                },
                "mlp": {
                    "norm": norm(),
                    "in": linear(width, 4 * width),
                    "out": linear(4 * width, width, less),
                },
            }
            for _ in range(self.blocks)
        ]
        return {
            "blocks": blocks, "characters": table(self.classes), "head": linear(width, self.classes), "norm": norm(),
            "places": table(self.context),
        }  # fmt: skip

    def scores(self, params: Tree, inputs: df.Tensor) -> df.Tensor:
        """Return scores of the shape (batch, context, characters)."""
        with df.scope("embedding"):
            values = df.embedding(params["characters"], inputs) + params["places"]
        for number, block in enumerate(params["blocks"]):
            with df.scope(f"block{number}/attention"):
                values = values + self._attend(block["attention"], values)
            with df.scope(f"block{number}/mlp"):
                part = block["mlp"]
                hidden = df.gelu(_linear(part["in"], _normed(part["norm"], values)))
                values = values + _linear(part["out"], hidden)
        with df.scope("head"):
            return _linear(params["head"], _normed(params["norm"], values))

    def inputs(self, batch: int, dtype: str) -> df.Tensor:
        """Return the tensor of a batch of windows of character numbers."""
        return df.input("inputs", (batch, self.context), np.int64)

    def targets(self, batch: int) -> df.Tensor:
        """Return the tensor of the character after each."""
        return df.input("targets", (batch, self.context), np.int64)

    def _attend(self, part: Tree, values: df.Tensor) -> df.Tensor:
        batch, context, width = values.shape
        deep = width // self.heads
        all_three = _linear(part["in"], _normed(part["norm"], values))
        # (batch, context, 3, heads, deep) to three of (batch, heads, context, deep)
        apart = all_three.reshape(batch, context, 3, self.heads, deep).transpose(2, 0, 3, 1, 4)
        mixed = df.attention(apart[0], apart[1], apart[2], causal=True)
        return _linear(part["out"], mixed.transpose(0, 2, 1, 3).reshape(batch, context, width))


def _linear(part: Tree, values: df.Tensor) -> df.Tensor:
    # As one matrix: the gradient of the weights is then one product, not one per example and their sum.
    flat: df.Tensor = values.reshape(-1, values.shape[-1]) @ part["weights"] + part["shift"]
    return df.reshape(flat, (*values.shape[:-1], flat.shape[-1]))


def _normed(part: Tree, values: df.Tensor) -> df.Tensor:
    return df.layer_norm(values, part["scale"], part["shift"])


MODELS: dict[str, type[Mlp] | type[Transformer]] = {kind.name: kind for kind in (Mlp, Transformer)}


def defaults_of(kind: type[Mlp] | type[Transformer]) -> dict[str, Any]:
    """Return what can be said of a model, and what holds if nothing is."""
    return {each.name: each.default for each in fields(kind) if each.default is not MISSING}


def show_option(value: Any) -> str:
    """Return the value of an option as it is typed."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def describe_model(model: Model) -> dict[str, Any]:
    """Return a model as JSON takes it; ``model_from`` makes it again."""
    return {"model": model.name, **asdict(model)}  # type: ignore[call-overload]


def model_from(described: Mapping[str, Any]) -> Model:
    """Return the model that ``describe_model`` has described.

    Raises:
        BadJob: this version knows no such model.
    """
    given = dict(described)
    kind = MODELS.get(given.pop("model", ""))
    if kind is None:
        raise BadJob(
            f"training: there is no model {described.get('model')!r}; there are: {', '.join(MODELS)}"
        )
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    try:
        return kind(**values)
    except TypeError as error:
        raise BadJob(f"training: this is no {kind.name}: {described!r:.80} ({error})") from None


def count_parameters(params: Tree) -> int:
    """Return how many numbers a tree of parameters holds."""
    return sum(int(leaf.size) for leaf in flatten(params)[0])
