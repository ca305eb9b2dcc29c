"""What all kernels for PyTorch share: its dtypes, casts to the dtype that NumPy computes in, and how a kernel is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch

from ..errors import BadTensor
from .tables import KERNELS, Kernel
from .tensor import DType, Tensor

Array: TypeAlias = torch.Tensor
#: Takes the node; returns the function that computes it, without ``out``.
ComputeRule = Callable[[Tensor], Callable[..., Array]]

DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool, "uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32,
    "int64": torch.int64, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64,
}  # fmt: skip


#: Torch knows these too, but hardly an operator of it takes them.
STORED = DTYPES | {"uint16": torch.uint16, "uint32": torch.uint32, "uint64": torch.uint64}


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return torch's dtype of the same numbers, to compute with; raises BadTensor if its operators do not take such."""
    found = DTYPES.get(dtype.name)
    if found is None:
        raise BadTensor(
            f"the backend 'torch' has no arithmetic for {dtype}, only for {', '.join(DTYPES)}; use astype"
        )
    return found


def add_kernel(kind: str, rule: ComputeRule) -> None:
    """Write the kernel of an operator, made by ``rule`` without ``out``, unless the operator's own file has one."""
    KERNELS.setdefault("torch", {}).setdefault(kind, lambda node: _with_out(rule(node)))


def stored_dtype(dtype: DType) -> torch.dtype:
    """Return torch's dtype of the same numbers, to keep and to convert; raises BadTensor if there is none."""
    found = STORED.get(dtype.name)
    if found is None:
        raise BadTensor(f"the backend 'torch' has no {dtype}, only {', '.join(STORED)}; use astype")
    return found


#: Functions that take ``out`` themselves, and return memory of their own without it.
TAKE_OUT: set[Callable[..., Array]] = set()


def _with_out(compute: Callable[..., Array]) -> Kernel:
    if compute in TAKE_OUT:
        return compute

    def kernel(*inputs: Array, out: Array | None = None) -> Array:
        made = compute(*inputs)
        return made if out is None else out.copy_(made)

    return kernel


def cast(value: Array, dtype: torch.dtype) -> Array:
    """Return ``value`` as ``dtype``; itself if it has it."""
    return value if value.dtype == dtype else value.to(dtype)


def elementwise(function: Callable[..., Array]) -> ComputeRule:
    """Return the rule for a function whose inputs are cast to the dtype of the result, or, where that holds truth values, to
    the one that they have together."""

    def rule(node: Tensor) -> Callable[..., Array]:
        dtypes = [each.dtype for each in node.inputs]
        wanted = np.result_type(*dtypes) if node.dtype.kind == "b" else node.dtype
        dtype = torch_dtype(wanted)
        if all(each == wanted for each in dtypes):
            return function
        return lambda *inputs: function(*[cast(each, dtype) for each in inputs])

    return rule
