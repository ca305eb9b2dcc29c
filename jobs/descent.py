"""The functions of the stages of a descent: partial gradients, steps, and the weights in the end.

What goes from stage to stage is a table of one row, with arrays as lists: a ``Summary``, then one ``Iterate`` after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.labelled_points import NUMBERS, Summary, class_numbers, floats_of, numbers_of, one_row, only_row
from jobs.linear_models import (
    Floats,
    Gradient,
    Ints,
    Iterate,
    Moments,
    Partial,
    choose_rows,
    fold_in_tree,
    safe_rate,
)
from mapreduce import BadJob

INTERCEPT = "(intercept)"

PARTIAL_SCHEMA = pa.schema(
    [("split", pa.int64()), ("rows", pa.int64()), ("loss", pa.float64()), ("sums", NUMBERS)]
)
ITERATE_SCHEMA = pa.schema(
    [
        ("iteration", pa.int64()),
        ("weights", NUMBERS),
        ("ahead", NUMBERS),
        ("age", pa.float64()),
        ("losses", NUMBERS),
        ("slope", pa.float64()),
    ]
)
WEIGHTS_SCHEMA = pa.schema([("class", pa.string()), ("feature", pa.string()), ("weight", pa.float64())])
LOSSES_SCHEMA = pa.schema([("iteration", pa.int64()), ("loss", pa.float64())])


def read_iterate(rows: pa.RecordBatch, sets: int) -> Iterate:
    """Return what an iteration has made."""
    return Iterate(
        iteration=rows.column("iteration")[0].as_py(),
        weights=floats_of(rows, "weights").reshape(sets, -1),
        ahead=floats_of(rows, "ahead").reshape(sets, -1),
        age=rows.column("age")[0].as_py(),
        losses=floats_of(rows, "losses"),
        slope=rows.column("slope")[0].as_py(),
    )


def add_partials(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the sum of what rows add to a gradient, neighbours first."""
    found = fold_in_tree([read_partial(rows, at, (-1,)) for at in range(rows.num_rows)], add)
    return one_row(PARTIAL_SCHEMA, rows.column("split")[0].as_py(), found.rows, found.loss, found.sums)


def read_partial(rows: pa.RecordBatch, at: int, shape: tuple[int, ...]) -> Partial:
    """Return what some rows add to a gradient."""
    return Partial(
        rows=rows.column("rows")[at].as_py(),
        loss=rows.column("loss")[at].as_py(),
        sums=floats_of(rows, "sums", at).reshape(shape),
    )


@dataclass(kw_only=True)
class Task:
    """What a task of an iteration keeps from batch to batch; ``row`` is the number of the next row among all."""

    split: int
    row: int
    summary: Summary
    iterate: Iterate
    gradient: Gradient


@dataclass(frozen=True, kw_only=True)
class Descent:
    """What to train and how: the parameters of the job ``gradient``."""

    label: str
    softmax: bool  # also for two classes
    rate: float | None
    l2: float
    momentum: float | None
    batch: int | None
    standardise: bool
    seed: int

    def scale(self, moments: Moments) -> Floats:
        """Return what the columns are divided by."""
        return moments.deviations if self.standardise else np.ones(len(moments.means))

    def iterate(self, side: Any, summary: Summary) -> Iterate:
        """Return where the descent stands."""
        if "iterate" not in side:
            return Iterate.start(self.sets(summary), len(summary.features))
        return read_iterate(only_row(side["iterate"]), self.sets(summary))

    def sets(self, summary: Summary) -> int:
        """Return how many sets of weights the model has."""
        return len(summary.classes) if self.softmax or len(summary.classes) > 2 else 1

    def open(self, *, side: Any, task: Any) -> Task:
        """Start a task of an iteration."""
        summary = Summary.of(side["summary"])
        iterate = self.iterate(side, summary)
        moments = summary.moments
        return Task(
            split=task.index,
            row=sum(summary.split_rows[: task.index]),
            summary=summary,
            iterate=iterate,
            gradient=Gradient(iterate.ahead, moments.means, self.scale(moments)),
        )

    def add_up(self, batch: pa.RecordBatch, *, state: Task) -> pa.RecordBatch | None:
        """Return what the rows of a batch add to the gradient."""
        if not batch.num_rows:
            return None
        summary, gradient = state.summary, state.gradient
        columns = [numbers_of(batch, name) for name in summary.features]
        targets = class_numbers(batch.column(self.label), summary.classes)
        chosen = self._chosen(state, batch.num_rows)
        state.row += batch.num_rows
        with np.errstate(over="ignore", invalid="ignore"):  # the step refuses what is not finite
            found = gradient.of(columns, targets, chosen)
        return one_row(PARTIAL_SCHEMA, state.split, found.rows, found.loss, found.sums.reshape(-1))

    def add_nothing(self, *, state: Task) -> pa.RecordBatch:
        """Return what a task adds to the gradient that may have seen no row."""
        return one_row(PARTIAL_SCHEMA, state.split, 0, 0.0, np.zeros(state.iterate.weights.size))

    def _chosen(self, state: Task, rows: int) -> Ints | None:
        parts = self._parts(state.summary)
        if parts == 1:
            return None
        epoch, part = divmod(state.iterate.iteration, parts)
        return choose_rows(state.row, rows, parts=parts, part=part, epoch=epoch, seed=self.seed)

    def _parts(self, summary: Summary) -> int:
        """Return the number of mini-batches in an epoch."""
        return 1 if self.batch is None else max(1, round(summary.moments.rows / self.batch))

    def update(self, batches: Iterable[pa.RecordBatch], *, state: Task) -> Iterator[pa.RecordBatch]:
        """Take a step down the gradient, which is one row.

        Raises:
            BadJob: the weights are no longer finite.
        """
        summary, iterate = state.summary, state.iterate
        [row] = batches
        gradient = read_partial(row, 0, iterate.weights.shape)
        sets, scale = self.sets(summary), self.scale(summary.moments)
        rate = safe_rate(summary.moments, scale, sets, self.l2) if self.rate is None else self.rate
        parts = self._parts(summary)
        momentum = self.momentum
        if parts > 1:
            rate /= math.sqrt(1 + iterate.iteration // parts)
            momentum = momentum or 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            after = iterate.step(gradient, rate=rate, l2=self.l2, momentum=momentum)
        if not (np.isfinite(after.ahead).all() and np.isfinite(after.losses[-1])):
            raise BadJob(
                f"job 'gradient': the weights left the range of numbers in iteration {after.iteration} with a rate of "
                f"{rate:.3g}; give a smaller rate=, or none to have it chosen"
            )
        yield one_row(
            ITERATE_SCHEMA, after.iteration, after.weights.reshape(-1), after.ahead.reshape(-1), after.age,
            after.losses, after.slope,
        )  # fmt: skip

    def show_weights(self, batch: pa.RecordBatch, *, side: Any, counters: Any) -> pa.RecordBatch:
        """Return the weights for the columns as they are in the input."""
        summary = Summary.of(side["summary"])
        iterate = read_iterate(batch, self.sets(summary))
        counters["iterations"] += iterate.iteration
        counters["last loss in millionths"] += round(float(iterate.losses[-1]) * 1e6)
        weights = iterate.weights.copy()
        weights[:, 1:] /= self.scale(summary.moments)
        weights[:, 0] -= np.add.reduce(weights[:, 1:] * summary.moments.means, axis=1)
        classes = summary.classes.cast(pa.string()).to_pylist()[-len(weights) :]
        names = [INTERCEPT, *summary.features]
        columns = [
            [name for name in classes for _ in names],
            names * len(classes),
            weights.reshape(-1),
        ]
        return pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=WEIGHTS_SCHEMA)

    def show_losses(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the loss at the beginning of each iteration."""
        losses = batch.column("losses")[0].values
        numbers = pa.array(range(1, len(losses) + 1), pa.int64())
        return pa.RecordBatch.from_arrays([numbers, losses], schema=LOSSES_SCHEMA)
