"""Random inputs for one tensor operator, and what NumPy makes of them: the form of the examples in ``dag_operators``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import strategies as st

from dag import dataflow as df

Array = Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operator on arrays: how it is applied to tensors, and what NumPy (or a loop) makes of the arrays."""

    apply: Callable[..., df.Tensor]
    expected: Callable[..., Array]
    arrays: Sequence[Array]

    def inputs(self) -> list[df.Tensor]:
        return [df.input(f"x{at}", each.shape, each.dtype) for at, each in enumerate(self.arrays)]

    def floats(self) -> list[int]:
        return [at for at, each in enumerate(self.arrays) if each.dtype.kind == "f"]


class Chance:
    """Random shapes that Hypothesis draws and shrinks, and values from a seed that it draws."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.random = np.random.default_rng(self.draw(st.integers(0, 2**32 - 1)))

    def shape(self, least: int = 0, most: int = 3, side: int = 0) -> tuple[int, ...]:
        return self.draw(hnp.array_shapes(min_dims=least, max_dims=most, min_side=side, max_side=3))

    def together(self, count: int) -> list[tuple[int, ...]]:
        shapes = hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=3, min_side=0, max_side=3)
        return list(self.draw(shapes).input_shapes)

    def one(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def axis(self, shape: Sequence[int]) -> int:
        return self.draw(st.integers(0, len(shape) - 1))

    def axes(self, shape: Sequence[int]) -> tuple[int, ...]:
        chosen = self.draw(st.sets(st.integers(0, len(shape) - 1))) if shape else set()
        return tuple(sorted(chosen))

    def normal(self, shape: Sequence[int]) -> Array:
        return self.random.normal(size=tuple(shape))

    def positive(self, shape: Sequence[int]) -> Array:
        return self.random.uniform(0.5, 2, tuple(shape))

    def apart(self, shape: Sequence[int]) -> Array:
        """Values none of which is near another or near 0, so that a maximum does not change hands in a small step."""
        size = int(np.prod(shape))
        return (self.random.permutation(size) - size // 2 + 0.25 + 0.5 * self.random.random(size)).reshape(
            shape
        )

    def integers(self, shape: Sequence[int], most: int) -> Array:
        return self.random.integers(0, max(most, 1), tuple(shape))

    def truth(self, shape: Sequence[int]) -> Array:
        return self.random.random(tuple(shape)) < 0.5


def convolve(x: Array, w: Array, stride: Sequence[int], padding: Sequence[int]) -> Array:
    """Convolution as its definition says it, one product of a window at a time."""
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    high = (x.shape[2] - w.shape[2]) // stride[0] + 1
    wide = (x.shape[3] - w.shape[3]) // stride[1] + 1
    made = np.zeros((x.shape[0], w.shape[0], high, wide))
    for row in range(high):
        for column in range(wide):
            top, left = row * stride[0], column * stride[1]
            window = x[:, :, top : top + w.shape[2], left : left + w.shape[3]]
            made[:, :, row, column] = np.einsum("nchw,ochw->no", window, w)
    return made


def slope(linear: Callable[[Array], Array], shape: tuple[int, ...], g: Array) -> Array:
    """Return what pulls ``g`` back through a linear function, one unit vector at a time."""
    made = np.zeros(shape)
    for at in np.ndindex(*shape):
        unit = np.zeros(shape)
        unit[at] = 1
        made[at] = (linear(unit) * g).sum()
    return made


def softmax(x: Array, axis: int = -1) -> Array:
    powers = np.exp(x)
    return powers / powers.sum(axis, keepdims=True)
