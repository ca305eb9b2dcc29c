"""What a rank does with the others: collectives on NumPy arrays, in place, at once or in the background.

All ranks call the same collectives in the same order with the same shapes and dtypes; what differs is found and named.  A sum
has the same bits at all ranks and in all runs with as many ranks: its order belongs to the schedule (``check`` returns
it).  Floats of 16 bits are summed in float32 and rounded once; integers wrap around as NumPy's do.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..errors import BadCollective, GraphError, RankFailed
from .buckets import Bucket
from .execute import Spare, exchange_rows, execute
from .lookout import Lookout
from .operators import Operator
from .pending import Background, Pending
from .prepared import Prepared, Preparing
from .schedule import Schedule, bounds, check_root
from .transport import Array, FoldsAndShares, Transport

Value = TypeVar("Value")
Op = str | Operator
Algorithm = str | Schedule
_MASK = (1 << 63) - 1
_ODD = 0x9E3779B97F4A7C15


class Comm:
    """One rank among ``size``; made by ``launch``, and given to the function as its first argument.

    Collectives are called from one thread.  ``algorithm`` is a name, a schedule of ``plan`` for as many ranks, or ``auto``,
    which goes by kind, bytes and machines.  With ``wait=False`` a call returns a ``Pending`` at once, and one background
    thread does the calls in their order.

    All raise RankFailed where another rank is dead, late or gone, RanksDiffer where what they bring does not fit, and
    BadCollective where this rank's own arguments do not; after a fault every further call raises it again.
    """

    def __init__(
        self, transport: Transport, lookout: Lookout, machines: Sequence[str], near: bool = True
    ) -> None:
        self.rank, self.size = transport.rank, transport.size
        #: What carries the bytes, for those who count them.
        self.transport = transport
        # All ranks do it or none: a rank may have all its peers near while they have others far away.
        self._sharing = transport if near and isinstance(transport, FoldsAndShares) else None
        self._lookout = lookout
        self._background = Background()
        self._preparing = Preparing(self.rank, machines, near)
        self._fault: GraphError | None = None
        self._spare = Spare()

    @overload
    def allreduce(
        self, x: Array, op: Op = "sum", algorithm: Algorithm = "auto", wait: Literal[True] = True
    ) -> Array: ...
    @overload
    def allreduce(
        self, x: Array, op: Op = "sum", algorithm: Algorithm = "auto", *, wait: Literal[False]
    ) -> Pending[Array]: ...
    @overload
    def allreduce(self, x: Array, op: Op, algorithm: Algorithm, wait: bool) -> Array | Pending[Array]: ...
    def allreduce(self, x: Array, op: Op = "sum", algorithm: Algorithm = "auto", wait: bool = True) -> Any:
        """Fold ``x`` over all ranks, in place, and return it; ``op`` is sum, mean, min, max, prod or an ``Operator``."""
        _check(x)
        prepared = self._preparing.prepare("allreduce", x.dtype, x.shape, op, algorithm)
        return self._call(prepared, partial(self._fold, prepared, x), wait)

    def reduce_scatter(
        self, x: Array, op: Op = "sum", algorithm: Algorithm = "auto", wait: bool = True
    ) -> Any:
        """Return this rank's part of the fold, one-dimensional: elements ``comm.part(x.size)`` of the flattened array.

        The part is a view of ``x`` where that is contiguous; the rest of ``x`` is undefined afterwards.
        """
        _check(x)
        prepared = self._preparing.prepare("reduce_scatter", x.dtype, x.shape, op, algorithm)
        part = self.part(x.size)

        def work() -> Array:
            self._fold(prepared, x, part)
            return np.asarray(x).reshape(-1)[part]

        return self._call(prepared, work, wait)

    def all_gather(self, x: Array, algorithm: Algorithm = "auto", wait: bool = True) -> Any:
        """Return a new array whose row r is what rank r brought, of shape ``(size, *x.shape)``."""
        _check(x, written=False)
        prepared = self._preparing.prepare("all_gather", x.dtype, (self.size, *x.shape), None, algorithm)

        def work() -> Array:
            rows = np.empty((self.size, *x.shape), x.dtype)
            rows[self.rank] = x
            execute(prepared.steps, self.transport, rows.reshape(-1), None)
            return rows

        return self._call(prepared, work, wait)

    def all_gather_parts(self, x: Array, algorithm: Algorithm = "auto", wait: bool = True) -> Any:
        """Give this rank's part of ``x`` (see ``part``) to all and take theirs, in place: what follows a reduce_scatter."""
        _check(x)
        prepared = self._preparing.prepare("all_gather", x.dtype, x.shape, None, algorithm)
        return self._call(prepared, partial(self._move, prepared, x), wait)

    def broadcast(self, x: Array, root: int = 0, algorithm: Algorithm = "auto", wait: bool = True) -> Any:
        """Put what rank ``root`` has in ``x`` into everyone's ``x`` and return it."""
        check_root(self.size, root)
        _check(x, written=self.rank != root)
        prepared = self._preparing.prepare("broadcast", x.dtype, x.shape, None, algorithm, root)
        return self._call(prepared, partial(self._move, prepared, x), wait)

    def reduce(
        self, x: Array, op: Op = "sum", root: int = 0, algorithm: Algorithm = "auto", wait: bool = True
    ) -> Any:
        """Fold ``x`` over all ranks into the ``x`` of rank ``root`` and return it; that of the others stays."""
        check_root(self.size, root)
        _check(x, written=self.rank == root)
        prepared = self._preparing.prepare("reduce", x.dtype, x.shape, op, algorithm, root)

        def work() -> Array:
            if self.rank == root:
                return self._fold(prepared, x)
            flat = np.ascontiguousarray(x).reshape(-1)
            if any(step.gathers for step in prepared.steps):
                aside = self._spare.take(flat)
                np.copyto(aside, flat)
                self._fold(prepared, aside)
                self._spare.give(aside)
            else:  # it only gives away
                execute(
                    prepared.steps, self.transport, flat.astype(prepared.dtype, copy=False), prepared.fold
                )
            return x

        return self._call(prepared, work, wait)

    def all_to_all(self, x: Array, algorithm: Algorithm = "auto", wait: bool = True) -> Any:
        """Return a new array whose row s is what rank s had in its row with this rank's number; ``x`` has ``size`` rows."""
        _check(x, written=False)
        if x.ndim < 1 or len(x) != self.size:
            raise BadCollective(f"all_to_all takes an array of {self.size} rows, got shape {x.shape}")
        prepared = self._preparing.prepare("all_to_all", x.dtype, x.shape, None, algorithm)

        def work() -> Array:
            given = np.ascontiguousarray(x)
            taken = np.empty_like(given)
            rows = [each.reshape(self.size, -1) for each in (given, taken)]
            if given.size:
                exchange_rows(prepared.schedule, self.transport, *rows)
            return taken

        return self._call(prepared, work, wait)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.allreduce(np.zeros(1, np.uint8), "max")

    def empty(self, shape: int | np.integer[Any] | Sequence[int], dtype: npt.DTypeLike = np.float64) -> Array:
        """Return a new array that the others can read with the least copying, in shared memory where there is some."""
        kind = np.dtype(dtype)
        dimensions = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if any(length < 0 for length in dimensions):
            raise BadCollective(f"an array has no negative length, got shape {dimensions}")
        elements = int(np.prod(dimensions, dtype=np.int64))
        if not elements or kind.hasobject:
            return np.empty(dimensions, kind)
        return self.transport.empty(elements * kind.itemsize).view(kind).reshape(dimensions)

    def bucket(self, nbytes: int = 25_000_000, op: Op = "sum", algorithm: Algorithm = "auto") -> Bucket:
        """Return a bucket that fuses small tensors into all-reduces of up to ``nbytes``; see there."""

        def reduce(vector: Array, shapes: tuple[tuple[int, ...], ...]) -> Pending[Array]:
            _check(vector)
            prepared = self._preparing.prepare(
                "allreduce", vector.dtype, vector.shape, op, algorithm, fused=shapes
            )
            pending: Pending[Array] = self._call(prepared, partial(self._fold, prepared, vector), False)
            return pending

        return Bucket(nbytes, reduce, lambda n, kind: self.empty(n, kind))

    def prepared(self, x: Array, op: Op = "sum", algorithm: Algorithm = "auto") -> Prepared:
        """Return what ``allreduce`` of such an array runs: its schedule, and the dtype that travels; nothing is sent."""
        return self._preparing.prepare("allreduce", x.dtype, x.shape, op, algorithm)

    def part(self, elements: int) -> slice:
        """Return which of so many elements are this rank's in ``reduce_scatter`` and ``all_gather_parts``."""
        at = bounds(elements, self.size)
        return slice(int(at[self.rank]), int(at[self.rank + 1]))

    def finish(self) -> None:
        """Wait for what is under way; raises the first error that nobody has waited for."""
        self._background.finish()

    def close(self) -> None:
        """Give back what the transport holds; no collective can follow."""
        self.transport.close()

    def _call(self, prepared: Prepared, work: Callable[[], Any], wait: bool) -> Any:
        if wait and self._background.idle:
            return self._do(prepared, work)
        pending = self._background.call(partial(self._do, prepared, work))
        return pending.wait() if wait else pending

    def _do(self, prepared: Prepared, work: Callable[[], Value]) -> Value:
        if self._fault is not None:
            raise pickle.loads(pickle.dumps(self._fault))
        number = self._lookout.begin(prepared.call)
        self.transport.signature = (prepared.signature ^ (number * _ODD)) & _MASK
        try:
            return work()
        except GraphError as error:
            self._fault = error
            raise
        except BaseException as error:
            self._fault = RankFailed(
                f"rank {self.rank} raised {type(error).__name__} in {prepared.call}", self.rank
            )
            raise
        finally:
            self._lookout.end()

    def _move(self, prepared: Prepared, x: Array) -> Array:
        flat = np.ascontiguousarray(x).reshape(-1)
        execute(prepared.steps, self.transport, flat, None)
        if not x.flags.c_contiguous and x.flags.writeable:
            x[...] = flat.reshape(x.shape)
        return x

    def _fold(self, prepared: Prepared, x: Array, part: slice = slice(None)) -> Array:
        """Run the schedule on ``x`` and put what it makes of ``part`` back into it."""
        if prepared.dtype == x.dtype and prepared.wide is None:
            return self._fold_as(prepared, x, part)
        overflows: list[object] = []
        with np.errstate(over="call", call=lambda *what: overflows.append(what)):
            self._fold_as(prepared, x, part)
        if overflows:
            warnings.warn(
                f"{prepared.call}: infinite where the result does not fit in {x.dtype.name}",
                RuntimeWarning,
                2,
            )
        return x

    def _fold_as(self, prepared: Prepared, x: Array, part: slice) -> Array:
        flat = np.ascontiguousarray(x).reshape(-1)
        # A copy where the array is not contiguous or where the schedule folds in a wider type.
        buffer = flat.astype(prepared.dtype, copy=False)
        if not self._fold_and_share(prepared, buffer):
            execute(prepared.steps, self.transport, buffer, prepared.fold, prepared.wide, self._spare)
            if prepared.finish is not None and prepared.wide is None:
                prepared.finish(buffer[part])
        if buffer is not flat:
            flat[part] = buffer[part]
        if not x.flags.c_contiguous:
            x[...] = flat.reshape(x.shape)
        return x

    def _fold_and_share(self, prepared: Prepared, buffer: Array) -> bool:
        """Run the schedule as one, where it is of that kind and the transport has a better way than its two steps."""
        if not prepared.shares or self._sharing is None or prepared.fold is None:
            return False
        wide = prepared.wide
        if wide is None:
            return self._sharing.fold_and_share(buffer, prepared.fold, prepared.finish)
        return self._sharing.fold_and_share(buffer, prepared.fold, wide.finish, wide.dtype)


def alone() -> Comm:
    """Return the communicator of a single rank, in this process: no other process, no network, the same checks."""
    from .pairs import Alone

    return Comm(Alone(0, 1), Lookout(None, 1.0), machines=[""])


def _check(x: Any, *, written: bool = True) -> None:
    if not isinstance(x, np.ndarray):
        raise BadCollective(f"a collective takes a NumPy array, got {type(x).__qualname__}")
    if isinstance(x, np.ma.MaskedArray):
        raise BadCollective("a collective takes no masked array: each rank may mask others; fill it first")
    if x.dtype.hasobject:
        raise BadCollective(f"a collective takes numbers, got an array of dtype {x.dtype}")
    if written and not x.flags.writeable:
        raise BadCollective("the result is written into the array, and this one is read-only")
