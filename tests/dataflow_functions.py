"""Random functions that run on arrays and on tensors alike, for tests of derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dag import dataflow as df

F64 = np.dtype(np.float64)
#: Steps to run: which of ``STEPS``, and which two earlier values it takes.
Plan = list[tuple[int, int, int]]


def number(name: str = "x") -> df.Tensor:
    return df.input(name, (), F64)


#: Smooth, and bounded enough that nine of them overflow nowhere.
STEPS: list[Callable[..., Any]] = [
    lambda a, b: a + b,
    lambda a, b: a - b * 0.5,
    lambda a, b: a * b,
    lambda a, b: np.tanh(a) / (2 + np.tanh(b) * np.tanh(b)),
    lambda a, b: np.exp(np.tanh(a)) * b,
    lambda a, b: np.tanh(np.matmul(a, np.transpose(b))),
    lambda a, b: np.reshape(np.transpose(a), (3, 3)) + b,
    lambda a, b: np.broadcast_to(np.sum(a, axis=0, keepdims=True), (3, 3)) * b,
    lambda a, b: np.sqrt(1 + np.square(a)) - np.sin(b),
    lambda a, b: np.concatenate([a[1:], b[:1]])[:, ::-1],
    lambda a, b: np.cumsum(np.tanh(a), axis=1) * np.cos(b),
    lambda a, b: (1.5 + np.tanh(a)) ** 3.0 * 0.25 + b[0],
    lambda a, b: np.log(3 + np.tanh(a)) + np.broadcast_to(np.mean(b), (3, 3)),
]


def composed(plan: Plan) -> Callable[..., Any]:
    """The function of two matrices to a number that makes these steps."""

    def function(x: Any, y: Any) -> Any:
        values = [x, y]
        for step, left, right in plan:
            values.append(STEPS[step](values[left % len(values)], values[right % len(values)]))
        return np.mean(np.tanh(values[-1] + values[-1 - len(plan) // 2]))

    return function


plans = st.lists(
    st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=9
)
matrices = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(size=(2, 3, 3)))
X, Y = df.input("x", (3, 3), F64), df.input("y", (3, 3), F64)
