"""The gradient of logistic and softmax regression from a dataflow graph: the loss is written, its derivative is not.

``DataflowGradient`` stands in for ``linear_models.Gradient``.  Both find the same sums; their last bits differ, since a derived
formula rounds in other places than one that was rearranged by hand.

Its kernels are the backend ``portable``: operators whose results have the same bits in every process of a machine, as
``linear_models`` explains.  Elementary arithmetic and NumPy's sums have them; exponentials and logarithms come from Arrow, matrix
products from ``einsum`` without BLAS.  Operators that are not listed here have no kernel there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dag import dataflow as df
from dag.dataflow.backends import Backend, all_finite, copies, register_backend
from dag.dataflow.tables import KERNELS
from jobs.linear_models import Column, Floats, Ints, Partial, exponential, weighted_sums

PORTABLE = (
    "add", "astype", "broadcast_to", "divide", "equal", "greater", "greater_equal", "identity", "less", "less_equal", "max",
    "maximum", "minimum", "multiply", "negative", "not_equal", "reshape", "stop_gradient", "subtract", "sum", "sum_to",
    "transpose", "where",
)  # fmt: skip
"""Operators of which NumPy's kernels have the same bits in every process."""


class DataflowGradient:
    """Finds losses and gradients of blocks of rows at one point; the arguments are those of ``linear_models.Gradient``."""

    def __init__(self, weights: Floats, shift: Floats, scale: Floats, far: Ints | None = None) -> None:
        self._weights, self._scale = weights, scale
        far = np.zeros(0, np.int64) if far is None else far
        self._far_shift, self._shift = np.zeros((len(shift), 1)), shift.copy()
        self._far_shift[far, 0], self._shift[far] = shift[far], 0.0
        self._programs: dict[int, df.Program] = {}

    def of(self, columns: Floats, targets: Column) -> Partial:
        """Return what rows add to the gradient; see ``linear_models.Gradient.of``."""
        rows = len(targets)
        if not rows:
            return Partial(rows=0, loss=0.0, sums=np.zeros(self._weights.shape))
        if rows not in self._programs:
            self._programs[rows] = self._program(rows)
        if len(self._weights) == 1:
            wanted = np.asarray(targets, np.float64)[None]
        else:
            wanted = (np.arange(len(self._weights))[:, None] == targets).astype(np.float64)
        loss, totals, sums = self._programs[rows](self._weights[:, 0], self._weights[:, 1:], columns, wanted)
        return Partial(rows=rows, loss=float(loss), sums=np.concatenate([totals[:, None], sums], axis=1))

    def _program(self, rows: int) -> df.Program:
        sets, features = len(self._weights), len(self._scale)
        intercepts = df.input("intercepts", (sets,), np.float64)
        weights = df.input("weights", (sets, features), np.float64)
        columns = df.input("columns", (features, rows), np.float64)
        wanted = df.input("wanted", (sets, rows), np.float64)

        def loss_of(intercepts: df.Tensor, weights: df.Tensor) -> df.Tensor:
            slopes = weights / self._scale
            near = columns - self._far_shift if self._far_shift.any() else columns
            constants = intercepts - df.sum(slopes * self._shift, axis=1)
            scores = slopes @ near + constants.reshape(sets, 1)
            return logistic_loss(scores, wanted) if sets == 1 else softmax_loss(scores, wanted)

        loss, slopes = df.value_and_grad(loss_of, argnums=(0, 1))(intercepts, weights)
        return df.Program(
            (loss, *slopes), (intercepts, weights, columns, wanted), backend="portable", optimise=False
        )


def logistic_loss(scores: df.Tensor, wanted: df.Tensor) -> df.Tensor:
    """Return the summed loss of rows, ``wanted`` being 1 for the second of two classes and else 0."""
    wrong = scores * (1.0 - 2.0 * wanted)  # how far a score is on the wrong side
    # Not absolute(): its derivative at 0, where all begins, is 0.  Two maxima that both go left there make the 1/2 that is right.
    size = df.maximum(wrong, -wrong)
    return df.sum(df.maximum(wrong, 0.0) + df.log(1.0 + df.exp(-size)))


def softmax_loss(scores: df.Tensor, wanted: df.Tensor) -> df.Tensor:
    """Return the summed loss of rows; ``wanted`` has a 1 in the row of each one's class."""
    # The same from all scores of a row changes neither loss nor derivative.
    less = scores - df.stop_gradient(df.max(scores, axis=0, keepdims=True))
    return df.sum(df.log(df.sum(df.exp(less), axis=0))) - df.sum(wanted * less)


def _exp(node: df.Tensor) -> Any:
    return lambda value, out=None: _given(exponential(np.ascontiguousarray(value)), out)


def _log(node: df.Tensor) -> Any:
    def kernel(value: Floats, out: Floats | None = None) -> Floats:
        flat = pa.array(np.ascontiguousarray(value).reshape(-1))
        return _given(pc.ln(flat).to_numpy().reshape(value.shape), out)

    return kernel


def _matmul(node: df.Tensor) -> Any:
    def kernel(left: Floats, right: Floats, out: Floats | None = None) -> Floats:
        if left.shape[1] > right.shape[1]:  # long sums: by rows of what is right, which is a transpose
            return _given(np.stack([weighted_sums(right.T, row) for row in left]), out)
        return _given(np.stack([np.einsum("ij,i->j", right, row) for row in left]), out)

    return kernel


def _given(value: Floats, out: Floats | None) -> Floats:
    if out is None:
        return value
    np.copyto(out, value)
    return out


def _portable(device: str) -> Backend:
    numpy = KERNELS["numpy"]
    KERNELS["portable"] = {
        **{kind: numpy[kind] for kind in PORTABLE}, "exp": _exp, "log": _log, "matmul": _matmul,
    }  # fmt: skip
    return Backend(kernels="portable", take=np.asarray, give=copies, is_finite=all_finite)


register_backend("portable", _portable)
