"""Dataflow graphs: tensors as nodes, derivatives as larger graphs, kernels for each backend.

>>> import numpy as np
>>> from dag import dataflow as df
>>> w = df.input("w", (3,), np.float64)
>>> slope = df.grad(lambda w: df.sum(w * w))(w)
>>> df.evaluate(slope, {w: [1.0, 2.0, 3.0]})
array([2., 4., 6.])
"""

from __future__ import annotations

from .boundaries import barrier, identity, named, stop_gradient
from .checkpoint import checkpoint, save_all, save_matmuls, save_names, save_nothing
from .custom_rules import custom_vjp
from .derivatives import elementwise_grad, hessian, hvp, jacobian, jvp
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
from .optimisers import Optimiser, adam, clip_by_global_norm, momentum, sgd, warmup_cosine
from .passes_all import optimise
from .passes_common import dead_code, eliminate_common
from .passes_fold import fold_constants
from .passes_fuse import fuse
from .passes_simplify import simplify
from .passes_verify import verify
from .program import Program, evaluate
from .tables import define
from .tensor import Tensor, TensorOp, apply, astype, constant, input, scope
from .textual import build

__all__ = [
    "Optimiser", "Program", "Tensor", "TensorOp", "adam", "add", "apply", "astype", "barrier",
    "broadcast_to", "build", "checkpoint", "clip_by_global_norm", "constant", "custom_vjp", "dead_code",
    "define", "elementwise_grad", "eliminate_common", "evaluate", "exp", "fold_constants", "fuse", "grad",
    "hessian", "hvp", "identity", "input", "jacobian", "jvp", "log", "matmul", "maximum", "mean",
    "momentum", "multiply", "named", "optimise", "pull_back", "reshape", "save_all", "save_matmuls",
    "save_names", "save_nothing", "scope", "sgd", "simplify", "stop_gradient", "sum", "tanh", "transpose",
    "value_and_grad", "verify", "vjp", "warmup_cosine",
]  # fmt: skip
