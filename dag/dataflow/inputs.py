"""Inputs for whole trees of arrays at once: parameters, the state of an optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np

from .tensor import input
from .trees import flatten, names


def inputs_like(tree: Any, prefix: str = "") -> Any:
    """Return a tree of inputs with the shapes and dtypes of the arrays or tensors of ``tree``, named by ``prefix`` and place.

    >>> inputs_like({"layers": [{"w": np.zeros((2, 3))}]}, "model.")
    {'layers': [{'w': Tensor('model.layers.0.w', input, (2, 3), float64)}]}
    """
    leaves, rebuild = flatten(tree)
    arrays = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves]
    return rebuild(
        [
            input(f"{prefix}{name}", array.shape, array.dtype)
            for name, array in zip(names(tree), arrays, strict=True)
        ]
    )
