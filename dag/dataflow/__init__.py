"""Dataflow graphs: tensors as nodes, derivatives as larger graphs, kernels for each backend.

>>> import numpy as np
>>> from dag import dataflow as df
>>> w = df.input("w", (3,), np.float64)
>>> slope = df.grad(lambda w: df.sum(w * w))(w)
>>> df.evaluate(slope, {w: [1.0, 2.0, 3.0]})
array([2., 4., 6.])
"""

from __future__ import annotations

from .differentiate import grad, pull_back, value_and_grad, vjp
from .functions import (
    add,
    broadcast_to,
    exp,
    log,
    matmul,
    maximum,
    mean,
    multiply,
    reshape,
    sum,
    tanh,
    transpose,
)
from .program import Program, evaluate
from .tables import define
from .tensor import Tensor, TensorOp, apply, astype, constant, input, scope

__all__ = [
    "Program", "Tensor", "TensorOp", "add", "apply", "astype", "broadcast_to", "constant", "define", "evaluate", "exp",
    "grad", "input", "log", "matmul", "maximum", "mean", "multiply", "pull_back", "reshape", "scope", "sum", "tanh",
    "transpose", "value_and_grad", "vjp",
]  # fmt: skip
