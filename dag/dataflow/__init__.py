"""Dataflow graphs: tensors as nodes, derivatives as larger graphs, kernels for each backend.

>>> import numpy as np
>>> from dag import dataflow as df
>>> w = df.input("w", (3,), np.float64)
>>> slope = df.grad(lambda w: df.sum(w * w))(w)
>>> df.evaluate(slope, {w: [1.0, 2.0, 3.0]})
array([2., 4., 6.])
"""

from __future__ import annotations

from .backends import Backend, register_backend
from .boundaries import barrier, identity, named, stop_gradient
from .checkpoint import checkpoint, save_all, save_matmuls, save_names, save_nothing
from .cost import Cost, cost_of, describe, flops, total_cost
from .custom_rules import custom_vjp
from .derivatives import elementwise_grad, hessian, hvp, jacobian, jvp
from .differentiate import grad, pull_back, value_and_grad, vjp
from .draw import draw_svg, draw_text
from .from_names import build
from .functions import (
    absolute,
    add,
    argmax,
    argmin,
    broadcast_to,
    ceil,
    clip,
    concatenate,
    cos,
    cumsum,
    divide,
    dot,
    einsum,
    equal,
    exp,
    expand_dims,
    expm1,
    flip,
    floor,
    floor_divide,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    logsumexp,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    moveaxis,
    multiply,
    negative,
    not_equal,
    ones_like,
    pad,
    power,
    ravel,
    remainder,
    reshape,
    sigmoid,
    sign,
    sin,
    split,
    sqrt,
    square,
    squeeze,
    stack,
    std,
    subtract,
    sum,
    swapaxes,
    take,
    take_along_axis,
    tanh,
    tensordot,
    transpose,
    var,
    where,
    zeros_like,
)
from .inputs import graph_of, inputs_like
from .layers import (
    attention,
    average_pool2d,
    conv2d,
    embedding,
    gelu,
    layer_norm,
    log_softmax,
    max_pool2d,
    one_hot,
    relu,
    softmax,
    softmax_cross_entropy,
)
from .memory_plan import MemoryPlan, plan_memory
from .on_dask import choose_runner, evaluate
from .optimisers import Optimiser, adam, clip_by_global_norm, momentum, sgd, warmup_cosine
from .passes_all import optimise
from .passes_common import dead_code, eliminate_common
from .passes_fold import fold_constants
from .passes_fuse import fuse
from .passes_rematerialise import rematerialise
from .passes_simplify import simplify
from .passes_verify import verify
from .program import Program
from .tables import define, operators
from .tensor import Tensor, TensorOp, apply, astype, constant, input, scope
from .trees import map_tree

__all__ = [
    "Backend", "Cost", "MemoryPlan", "Optimiser", "Program", "Tensor", "TensorOp", "absolute", "adam", "add",
    "apply", "argmax", "argmin", "astype", "attention", "average_pool2d", "barrier", "broadcast_to", "build",
    "ceil", "checkpoint", "choose_runner", "clip", "clip_by_global_norm", "concatenate", "constant", "conv2d",
    "cos", "cost_of", "cumsum", "custom_vjp", "dead_code", "define", "describe", "divide", "dot", "draw_svg",
    "draw_text", "einsum", "elementwise_grad", "eliminate_common", "embedding", "equal", "evaluate", "exp",
    "expand_dims", "expm1", "flip", "floor", "floor_divide", "flops", "fold_constants", "fuse", "gelu",
    "grad", "graph_of", "greater", "greater_equal", "hessian", "hvp", "identity", "input", "inputs_like",
    "isfinite", "isinf", "isnan", "jacobian", "jvp", "layer_norm", "less", "less_equal", "log", "log1p",
    "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp", "map_tree",
    "matmul", "max", "max_pool2d", "maximum", "mean", "min", "minimum", "momentum", "moveaxis", "multiply",
    "named", "negative", "not_equal", "one_hot", "ones_like", "operators", "optimise", "pad", "plan_memory",
    "power", "pull_back", "ravel", "register_backend", "relu", "remainder", "rematerialise", "reshape",
    "save_all", "save_matmuls", "save_names", "save_nothing", "scope", "sgd", "sigmoid", "sign", "simplify",
    "sin", "softmax", "softmax_cross_entropy", "split", "sqrt", "square", "squeeze", "stack", "std",
    "stop_gradient", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tanh", "tensordot",
    "total_cost", "transpose", "value_and_grad", "var", "verify", "vjp", "warmup_cosine", "where",
    "zeros_like",
]  # fmt: skip
