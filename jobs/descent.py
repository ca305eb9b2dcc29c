"""The functions of the stages of a descent: partial gradients, steps, and the weights in the end.

What goes from stage to stage is a table of one row, with arrays as lists: a ``Summary``, then one ``Iterate`` after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import add
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from jobs.labelled_points import NUMBERS, Summary, class_numbers, floats_of, numbers_of, one_row, only_row
from jobs.linear_models import (
    BLOCK_VALUES,
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


class Adds(Protocol):
    """What finds a gradient: ``linear_models.Gradient``, or the derivative of a graph."""

    def of(self, columns: Floats, targets: Floats) -> Partial:
        """Return what rows add to the gradient."""


@dataclass(kw_only=True)
class Task:
    """What a task of an iteration keeps: a block of rows that is being filled, and ``row``, the number of its first among all.

    The block is memory that is used again for the next one, so it is still in the processor's cache.
    """

    split: int
    row: int
    summary: Summary
    iterate: Iterate
    gradient: Adds
    columns: Floats
    targets: Floats
    filled: int = 0

    def fill(self, batch: pa.RecordBatch, label: str) -> pa.RecordBatch:
        """Copy the rows of a batch that the block has room for; return the others."""
        count = min(batch.num_rows, len(self.targets) - self.filled)
        rows, taken = slice(self.filled, self.filled + count), batch.slice(0, count)
        for column, name in zip(self.columns, self.summary.features, strict=True):
            column[rows] = numbers_of(taken, name)
        self.targets[rows] = class_numbers(taken.column(label), self.summary.classes)
        self.filled += count
        return batch.slice(count)


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
    form: str = "formula"  # or dataflow

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
        features = len(summary.features)
        most = max(BLOCK_VALUES // (features + 4 * self.sets(summary)), 1)
        rows = min(sum(summary.split_rows[task.index : task.index + 1]), most)
        return Task(
            split=task.index,
            row=sum(summary.split_rows[: task.index]),
            summary=summary,
            iterate=iterate,
            gradient=self._gradient(iterate.ahead, moments),
            columns=np.empty((features, max(rows, 1))),
            targets=np.empty(max(rows, 1)),
        )

    def _gradient(self, weights: Floats, moments: Moments) -> Adds:
        if self.form == "formula":
            return Gradient(weights, moments.means, self.scale(moments), moments.far)
        from jobs.dataflow_gradient import DataflowGradient

        return DataflowGradient(weights, moments.means, self.scale(moments), moments.far)

    def add_up(self, batch: pa.RecordBatch, *, state: Task) -> Iterator[pa.RecordBatch]:
        """Yield what each block of rows that is full adds to the gradient."""
        while batch.num_rows:
            batch = state.fill(batch, self.label)
            if state.filled == len(state.targets):
                yield self.add_block(state=state)

    def add_block(self, *, state: Task) -> pa.RecordBatch:
        """Return what the rows of the block add, which may be none."""
        columns, targets = state.columns[:, : state.filled], state.targets[: state.filled]
        chosen = self._chosen(state)
        if chosen is not None:
            columns, targets = columns.take(chosen, axis=1), targets.take(chosen)
        with np.errstate(over="ignore", invalid="ignore"):  # the step refuses what is not finite
            found = state.gradient.of(columns, targets)
        state.row, state.filled = state.row + state.filled, 0
        return one_row(PARTIAL_SCHEMA, state.split, found.rows, found.loss, found.sums.reshape(-1))

    def _chosen(self, state: Task) -> Ints | None:
        """Return the numbers of the rows of a block that are in the mini-batch, None for all."""
        parts = self._parts(state.summary)
        if parts == 1:
            return None
        epoch, part = divmod(state.iterate.iteration, parts)
        return choose_rows(state.row, state.filled, parts=parts, part=part, epoch=epoch, seed=self.seed)

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
