"""Logistic and softmax regression in numpy: moments of columns, losses and gradients of blocks of rows, and steps.

What comes out is a function of the rows, their order and where blocks end, to the last bit, in every process of a
machine.  That rules out three things that are faster: numpy's own exp and log, which differ in the last bit with the
instruction set that a process may use, and products by BLAS, whose sums depend on its number of threads.  So exponentials
come from the C library by way of Arrow, and sums are those of ``einsum`` without BLAS.

A model is an array of weights of shape (sets, 1 + features): one set of weights for two classes (logistic), else one per
class (softmax).  The first weight of a set is the intercept, which no penalty touches.  Nothing here knows of stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]
T = TypeVar("T")

BLOCK_VALUES = 1 << 19
"""A block of rows has so many values at most, 4 MiB of them."""
FAR_DEVIATIONS = 1_000.0
"""A column whose mean is more than so many deviations from zero is centred before it is multiplied."""
MOST_PAIRED = 128
"""With more features than this only their variances are found, since products of all pairs cost features**2 per row."""
LANES = 512
LOGARITHMS = 128
_LARGEST_POWER = 1_000  # products below 2**1000 do not overflow


def fold_in_tree(parts: Sequence[T], add: Callable[[T, T], T]) -> T:
    """Return the sum of ``parts``, one at least: neighbours first, then neighbours of those.

    >>> fold_in_tree(["a", "b", "c", "d", "e"], lambda one, other: f"({one}{other})")
    '(((ab)(cd))e)'
    """
    while len(parts) > 1:
        pairs = [add(parts[at], parts[at + 1]) for at in range(0, len(parts) - 1, 2)]
        parts = [*pairs, *parts[len(parts) - len(parts) % 2 :]]
    return parts[0]


# -- moments ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Rows, means of the columns, and sums of products of deviations: all pairs, or squares alone (one dimension)."""

    rows: int
    means: Floats
    products: Floats

    @property
    def deviations(self) -> Floats:
        """Return the standard deviation of each column, 1 for a column that never changes."""
        found = self._deviations()
        found[found == 0] = 1.0
        return found

    @property
    def far(self) -> Ints:
        """Return the numbers of the columns in which too many digits would cancel if they were centred after a product."""
        return np.flatnonzero(np.abs(self.means) > FAR_DEVIATIONS * self._deviations())

    def _deviations(self) -> Floats:
        squares = self.products if self.products.ndim == 1 else np.diagonal(self.products)
        found: Floats = np.sqrt(squares / max(self.rows, 1))
        return found

    def largest_eigenvalue(self, scale: Floats) -> float:
        """Return a bound from above on the largest eigenvalue of the covariance of the columns divided by ``scale``.

        With all pairs it exceeds the eigenvalue by at most ``features**(1/64)``: 7 per cent for 64 columns.
        """
        rows = max(self.rows, 1)
        if self.products.ndim == 1:
            return float((self.products / rows / scale**2).sum())
        power = self.products / rows / np.outer(scale, scale)
        # The eigenvalue of power**64 is at most the largest sum of a row; powers are scaled to stay in range.
        found, exponent = 0.0, 1.0
        for _ in range(6):
            size = float(np.abs(power).sum(axis=1).max())
            if size == 0:
                return 0.0
            found += math.log(size) * exponent
            power = np.einsum("ij,jk->ik", power / size, power / size)
            exponent /= 2
        return math.exp(found + math.log(float(np.abs(power).sum(axis=1).max())) * exponent)


def measure(columns: Floats) -> Moments:
    """Return the moments of ``columns``, shape (features, rows), which are overwritten."""
    features, rows = columns.shape
    if not rows:
        return Moments(rows=0, means=np.zeros(features), products=np.zeros((features, features)))
    # Counted from the first row, a column that never changes has a deviation of exactly 0.
    first = columns[:, :1].copy()
    columns -= first
    middle = np.add.reduce(columns, axis=1, keepdims=True) / rows
    columns -= middle
    means = (first + middle)[:, 0]
    if features > MOST_PAIRED:
        return Moments(rows=rows, means=means, products=np.einsum("ij,ij->i", columns, columns))
    products = np.zeros((features, features))
    for at in range(features):
        products[at, at:] = products[at:, at] = weighted_sums(columns[at:], columns[at])
    return Moments(rows=rows, means=means, products=products)


def merge_moments(one: Moments, other: Moments) -> Moments:
    """Return the moments of the rows of both (Chan, Golub and LeVeque 1979, equation 2.1)."""
    rows = one.rows + other.rows
    if not one.rows or not other.rows:
        return one if one.rows else other
    apart = other.means - one.means
    squares = apart * apart if one.products.ndim == 1 else np.outer(apart, apart)
    return Moments(
        rows=rows,
        means=one.means + apart * (other.rows / rows),
        products=one.products + other.products + squares * (one.rows * (other.rows / rows)),
    )


# -- gradients --------------------------------------------------------------------------------------


def weighted_sums(matrix: Floats, weights: Floats) -> Floats:
    """Return ``matrix @ weights`` for rows as long as ``weights``: LANES sums side by side, then those of the lanes."""
    whole = len(weights) - len(weights) % LANES
    total: Floats = np.einsum("ij,j->i", matrix[:, whole:], weights[whole:])
    if whole:
        blocks = matrix[:, :whole].reshape(len(matrix), -1, LANES)
        lanes = np.einsum("ijk,jk->ik", blocks, weights[:whole].reshape(-1, LANES))
        total += np.add.reduce(lanes, axis=1)
    return total


def exponential(exponents: Floats) -> Floats:
    """Return e to the power of each; the result may be read only."""
    found: Floats = pc.exp(pa.array(exponents.reshape(-1))).to_numpy()
    return found.reshape(exponents.shape)


def log_total(factors: Floats, most: float) -> float:
    """Return the sum of the natural logarithms of ``factors``, all between 1 and ``most``: logarithms of products."""
    step = max(1, min(int(_LARGEST_POWER // math.log2(most)), len(factors) // LOGARITHMS))
    whole = len(factors) - len(factors) % step
    total = math.log(np.multiply.reduce(factors[whole:]))
    if whole:
        products = np.multiply.reduce(factors[:whole].reshape(step, -1), axis=0)
        total += math.fsum(map(math.log, products.tolist()))
    return total


@dataclass(frozen=True, kw_only=True, eq=False)
class Partial:
    """What some rows add to a gradient: their number, their summed loss, and sums of the shape of the weights."""

    rows: int
    loss: float
    sums: Floats

    def __add__(self, other: Partial) -> Partial:
        return Partial(rows=self.rows + other.rows, loss=self.loss + other.loss, sums=self.sums + other.sums)


class Gradient:
    """Finds losses and gradients of blocks of rows at one point; keeps its buffers from block to block.

    ``weights`` are those of columns from which ``shift`` is subtracted and which are then divided by ``scale``.  The sum of a
    product is centred in the place of its factor, but for the columns with the numbers ``far``.
    """

    def __init__(self, weights: Floats, shift: Floats, scale: Floats, far: Ints | None = None) -> None:
        self._slopes = weights[:, 1:] / scale
        self._scale = scale
        self._far = np.zeros(0, np.int64) if far is None else far
        self._far_shift = shift[self._far, None]
        self._shift = shift.copy()
        self._shift[self._far] = 0.0
        self._constants = weights[:, 0] - np.add.reduce(self._slopes * self._shift, axis=1)
        self._vectors = np.empty((3, 0))

    def of(self, columns: Floats, targets: Column) -> Partial:
        """Return what rows add to the gradient; ``columns`` has the shape (features, rows).

        ``targets`` are numbers of classes; with one set of weights 1 for the second class, else 0.
        """
        rows = len(targets)
        if not rows:
            return Partial(rows=0, loss=0.0, sums=np.zeros((len(self._slopes), 1 + len(columns))))
        if len(self._far):
            columns = columns.copy()
            columns[self._far] -= self._far_shift
        add = self._logistic if len(self._slopes) == 1 else self._softmax
        loss, totals, sums = add(columns, targets)
        sums = (sums - self._shift * totals[:, None]) / self._scale
        return Partial(rows=rows, loss=loss, sums=np.concatenate([totals[:, None], sums], axis=1))

    def _logistic(self, columns: Floats, targets: Column) -> tuple[float, Floats, Floats]:
        rows = len(targets)
        if self._vectors.shape[1] < rows:
            self._vectors = np.empty((3, rows))
        score, size, share = self._vectors[:, :rows]
        np.einsum("ij,i->j", columns, self._slopes[0], out=score)
        score += self._constants[0]
        np.copysign(score, -1.0, out=size)
        # A row's loss is log(1 + exp(-|score|)), and |score| where it is on the wrong side.
        loss = (float(np.add.reduce(score)) - float(np.add.reduce(size))) / 2
        loss -= float(np.einsum("i,i->", score, targets))
        decay = exponential(size)  # at most 1: nothing overflows
        whole = np.add(decay, 1.0, out=size)
        loss += log_total(whole, 2.0)
        np.maximum(decay, score > 0, out=share)
        share /= whole
        share -= targets
        return loss, np.add.reduce(share, keepdims=True), weighted_sums(columns, share)[None]

    def _softmax(self, columns: Floats, targets: Column) -> tuple[float, Floats, Floats]:
        scores = np.empty((len(self._slopes), columns.shape[1]))
        for row, slopes in zip(scores, self._slopes, strict=True):
            np.einsum("ij,i->j", columns, slopes, out=row)
        scores += self._constants[:, None]
        scores -= scores.max(axis=0)
        own = (targets.astype(np.intp), np.arange(len(targets)))
        loss = -float(np.add.reduce(scores[own]))
        shares = exponential(scores)
        whole = np.add.reduce(shares, axis=0)
        loss += log_total(whole, float(len(scores)))
        np.divide(shares, whole, out=scores)
        scores[own] -= 1.0
        sums = np.stack([weighted_sums(columns, row) for row in scores])
        return loss, np.add.reduce(scores, axis=1), sums


# -- steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Iterate:
    """Where a descent stands after ``iteration`` steps.

    Args:
        weights: the result so far.
        ahead: where the next gradient is taken; past the weights when there is momentum.
        age: the sequence t of Nesterov's method, 1 at the beginning and after a restart.
        losses: mean loss of a row and penalty, at each point where a gradient was taken.
        slope: the largest part of the last gradient.
    """

    iteration: int
    weights: Floats
    ahead: Floats
    age: float
    losses: Floats
    slope: float

    @classmethod
    def start(cls, sets: int, features: int) -> Iterate:
        """Return weights of zero."""
        weights = np.zeros((sets, 1 + features))
        return cls(iteration=0, weights=weights, ahead=weights, age=1.0, losses=np.zeros(0), slope=math.inf)

    def step(self, found: Partial, *, rate: float, l2: float, momentum: float | None) -> Iterate:
        """Go ``rate`` down the gradient of the mean loss plus ``l2`` / 2 times the squares of all weights but intercepts.

        A ``momentum`` of None grows as in Nesterov's method and begins anew when the step goes uphill (Beck and
        Teboulle 2009, section 4; O'Donoghue and Candes 2015, section 3.2, the gradient scheme).
        """
        penalised = self.ahead.copy()
        penalised[:, 0] = 0.0
        rows = max(found.rows, 1)
        gradient = found.sums / rows + l2 * penalised
        weights = self.ahead - rate * gradient
        move = weights - self.weights
        age = 1.0
        if momentum is None:
            if float(np.add.reduce((gradient * move).reshape(-1))) <= 0:
                age = (1.0 + math.sqrt(1.0 + 4.0 * self.age * self.age)) / 2.0
            momentum = (self.age - 1.0) / age if age > 1.0 else 0.0
        loss = found.loss / rows + l2 / 2 * float(np.add.reduce((penalised * penalised).reshape(-1)))
        return Iterate(
            iteration=self.iteration + 1,
            weights=weights,
            ahead=weights + momentum * move,
            age=age,
            losses=np.append(self.losses, loss),
            slope=float(np.abs(gradient).max()),
        )


def safe_rate(moments: Moments, scale: Floats, sets: int, l2: float) -> float:
    """Return a rate with which every step over all rows goes down: 1 over a bound on the curvature of the loss.

    That is a quarter of the largest eigenvalue of the columns' covariance for two classes, half of it for more (Bohning
    1992), with 1 for the column of the intercept.
    """
    curvature = (0.25 if sets == 1 else 0.5) * max(1.0, moments.largest_eigenvalue(scale))
    return 1.0 / (curvature + l2)


def choose_rows(first: int, rows: int, *, parts: int, part: int, epoch: int, seed: int) -> Ints:
    """Return which of the rows ``first``, ``first + 1``, ... are in ``part`` of ``parts``, as numbers from 0.

    In each epoch a hash puts every row into one part, whatever the rows before it hold (SplitMix64's mixing).
    """
    key = (seed * 0x9E3779B97F4A7C15 + epoch * 0xD1B54A32D192ED03) % 2**64
    hashes = np.arange(first, first + rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    places = ((hashes >> np.uint64(32)) * np.uint64(parts)) >> np.uint64(32)
    return np.flatnonzero(places == np.uint64(part)).astype(np.int64)
