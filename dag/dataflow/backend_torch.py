"""The backend PyTorch, on the CPU or on a GPU: ``torch``, ``torch:cuda``, ``torch:cuda:1``.

Its answers are those of NumPy's kernels: integers exactly, floats but for rounding, the same dtypes, NaN in the same places.  So
inputs are cast to the dtype that NumPy computes in (to torch, arrays of no dimensions count less), of equal elements ``argmax``
names the first, and an index out of range is an error on every device.  Torch differentiates nothing here: gradients are graphs.

Tensors given as inputs stay on their device if it is this one, and results are then tensors too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..errors import BadTensor
from . import backend_torch_elements, backend_torch_folds  # noqa: F401  (they fill the table)
from .backend_torch_base import Array, stored_dtype
from .backends import Backend, register_backend
from .tensor import DType


def _make(name: str) -> Backend:
    device = _device(name)

    def take(value: Any, dtype: DType) -> Array:
        wanted = stored_dtype(dtype)
        if isinstance(value, torch.Tensor):
            if value.dtype != wanted and not torch.can_cast(value.dtype, wanted):
                raise BadTensor(f"an input has the dtype {dtype}, got {value.dtype}: convert it with .to()")
        else:
            array = np.asarray(value, dtype, order="C")
            value = torch.from_numpy(array if array.flags.writeable else array.copy())
        found: Array = value.detach()
        if found.dtype != wanted or found.device != device:
            found = found.to(device=device, dtype=wanted)
        return found.view(found.shape)  # marked as a view: ``give`` returns none as it is

    def give(results: Sequence[Array], given: Sequence[Any]) -> list[Any]:
        seen: set[int] = set()
        found = []
        for each in results:
            shared = each._is_view() or id(each) in seen
            seen.add(id(each))
            found.append(each.clone(memory_format=torch.contiguous_format) if shared else each)
        if any(isinstance(each, torch.Tensor) for each in given):
            return found
        return [each.cpu().numpy() for each in found]

    def is_finite(value: Array) -> bool:
        return bool(torch.isfinite(value).all())

    return Backend(kernels="torch", take=take, give=give, is_finite=is_finite)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name or "cpu")
    except RuntimeError:
        raise ValueError(
            f"torch knows no device {name!r}; write 'torch', 'torch:cuda' or 'torch:cuda:1'"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(f"the backend 'torch:{name}' needs a GPU that torch can use; it finds {count}")
    return device


register_backend("torch", _make)
