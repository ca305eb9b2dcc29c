"""Backends: how values come to the kernels of a table, and how results come back.

A backend is a row of ``KERNELS`` and three functions.  ``numpy`` is always there; ``torch`` is loaded when it is first asked for,
from the module ``backend_torch``; others come with ``register_backend``.  Nothing here computes.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Backend:
    """What a program needs beside kernels.

    Args:
        kernels: the row of ``KERNELS``.
        take: from a value and a NumPy dtype to what the kernels take; copies nothing that is there already.
        give: from the values of the outputs, and the values given as inputs as they came, to what the caller gets: arrays that
            share memory with no input, no constant and no other output.
        is_finite: whether a value has neither NaN nor infinity in it.
        buffers: the kernels write to NumPy arrays given as ``out``, so a program may plan and reuse them.
    """

    kernels: str
    take: Callable[[Any, np.dtype[Any]], Any]
    give: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    is_finite: Callable[[Any], bool]
    buffers: bool = False


def copies(results: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """Return the results as NumPy arrays of their own: the ``give`` of a backend whose arrays are NumPy's."""
    return [np.array(result) for result in results]


def all_finite(value: Any) -> bool:
    """Return whether an array has neither NaN nor infinity in it."""
    return bool(np.isfinite(value).all())


BACKENDS: dict[str, Callable[[str], Backend]] = {}


def register_backend(name: str, make: Callable[[str], Backend]) -> None:
    """Add a backend: ``make`` takes the device, what stands after the colon in ``torch:cuda``, else "", and returns it."""
    BACKENDS[name] = make


def backend_named(name: str) -> Backend:
    """Return the backend ``name``, as in ``numpy``, ``torch`` or ``torch:cuda``.

    Raises:
        ValueError: there is none of this name, or not on this device.
        ModuleNotFoundError: the package behind it is not installed.
    """
    first, _, device = name.partition(":")
    if first not in BACKENDS and first.isidentifier():
        module = f"{__package__}.backend_{first}"
        if importlib.util.find_spec(module) is not None:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(
                    f"the backend {first!r} needs the package {error.name!r}, which is not installed: "
                    f"pip install 'mrdag[{first}]'",
                    name=error.name,
                ) from error
    if first not in BACKENDS:
        raise ValueError(
            f"there is no backend {name!r}; there are: {', '.join(sorted({*BACKENDS, 'torch'}))}"
        )
    return BACKENDS[first](device)


def _numpy(device: str) -> Backend:
    if device:
        raise ValueError(f"the backend numpy has no device {device!r}; write just 'numpy'")
    return Backend(kernels="numpy", take=np.asarray, give=copies, is_finite=all_finite, buffers=True)


register_backend("numpy", _numpy)
