"""Small tensors fused into one all-reduce, in the order of the calls.

Which tensors go together depends on their sizes and dtypes and on the order in which they are added, never on time: so all
ranks fuse alike, and the order of each sum is the same in every run.  It is the order in which the schedule sums the fused
vector; with a schedule that keeps the order of ranks for all elements alike (sharded, tree) it does not depend on the
bucket's size either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import BadCollective
from .pending import Pending
from .transport import Array


class Bucket:
    """Fuses tensors of one dtype up to ``nbytes``, and reduces each full load in the background while more are added.

    Use it in a ``with`` block, or call ``wait``: the tensors then hold the results.  It may be used again.

    Args:
        reduce: begins the all-reduce of a vector, in which tensors of these shapes lie one after another; ranks compare
            them too, since tensors in another order may make a vector as long.
        empty: makes the vector.
    """

    def __init__(
        self,
        nbytes: int,
        reduce: Callable[[Array, tuple[tuple[int, ...], ...]], Pending[Array]],
        empty: Callable[[int, Any], Array],
    ) -> None:
        if nbytes < 1:
            raise BadCollective(f"a bucket holds at least 1 byte, got {nbytes}")
        self.nbytes = nbytes
        self._reduce, self._empty = reduce, empty
        self._vectors: list[Array] = []  # to be used again
        self._tensors: list[Array] = []  # of the load that fills up
        self._vector: Array | None = None
        self._filled = 0
        self._under_way: list[tuple[Pending[Array], list[Array], Array | None]] = []

    def add(self, tensor: Array) -> None:
        """Add a tensor; it holds the result after ``wait`` and is not to be touched before.

        Raises:
            BadCollective: it is no array that can be written.
        """
        if not isinstance(tensor, np.ndarray) or not tensor.flags.writeable:
            raise BadCollective(f"a bucket takes arrays that can be written, got {type(tensor).__qualname__}")
        if isinstance(tensor, np.ma.MaskedArray):
            raise BadCollective("a bucket takes no masked arrays: each rank may mask others; fill them first")
        if self._vector is not None and (
            self._vector.dtype != tensor.dtype or (self._filled + tensor.size) > len(self._vector)
        ):
            self._flush()
        if tensor.nbytes >= self.nbytes:
            self._under_way.append((self._reduce(tensor, ()), [], None))
            return
        if self._vector is None:
            self._vector = self._fresh(tensor)
        self._vector[self._filled : self._filled + tensor.size] = tensor.reshape(-1)
        self._tensors.append(tensor)
        self._filled += tensor.size

    def wait(self) -> None:
        """Reduce what is left and return when all tensors hold their results; raises what a collective raised."""
        self._flush()
        under_way, self._under_way = self._under_way, []
        for pending, tensors, vector in under_way:
            total = pending.wait()
            at = 0
            for tensor in tensors:
                tensor[...] = total[at : at + tensor.size].reshape(tensor.shape)
                at += tensor.size
            if vector is not None:
                self._vectors.append(vector)

    def __enter__(self) -> Bucket:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.wait()

    def _flush(self) -> None:
        if self._vector is not None and self._tensors:
            shapes = tuple(tensor.shape for tensor in self._tensors)
            pending = self._reduce(self._vector[: self._filled], shapes)
            self._under_way.append((pending, self._tensors, self._vector))
        self._vector, self._tensors, self._filled = None, [], 0

    def _fresh(self, tensor: Array) -> Array:
        for at, vector in enumerate(self._vectors):
            if vector.dtype == tensor.dtype:
                return self._vectors.pop(at)
        return self._empty(self.nbytes // tensor.itemsize, tensor.dtype)
