"""Groups of equal keys in a sorted stream of record batches, read one value at a time.

A group may be larger than memory: its values come from an iterator that reads on as it is consumed.  Values that the
consumer leaves unread are skipped without being decoded.  An iterator of values belongs to its group: ask for the next group, and
the iterator of the one before yields nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from mapreduce.columns import decode_keys, decode_uniform, decode_value
from mapreduce.errors import BadKey
from mapreduce.keys import prefix_bytes
from mapreduce.merge import INPUT_COLUMN
from mapreduce.meter import timing
from mapreduce.order import group_boundaries

_SLICE_ROWS = 1 << 13  # rows decoded at a time
_SLICE_BYTES = 1 << 20


class _Slice:
    """Some rows in a row, cut into groups; values are decoded when they are asked for."""

    def __init__(self, batch: pa.RecordBatch, fields: int | None) -> None:
        keys = batch.column("key")
        if fields is not None:
            keys = pa.array([prefix_bytes(key, fields) for key in keys.to_pylist()], pa.binary())
        starts = group_boundaries(pa.record_batch([keys], names=["key"]), ["key"])
        self.inputs: Any = None
        if INPUT_COLUMN in batch.schema.names:
            inputs = batch.column(INPUT_COLUMN).to_numpy()
            starts = np.union1d(starts, np.flatnonzero(inputs[1:] != inputs[:-1]) + 1)
            self.inputs = inputs[starts].tolist()
        firsts = pa.array(starts)
        self.identities: list[bytes] = keys.take(firsts).to_pylist()
        with timing("serialise"):
            self.keys = _shown(decode_keys(batch.take(firsts)), fields)
        self.edges: list[int] = [*starts.tolist(), batch.num_rows]
        self.column = batch.column("value")
        self.decoded: list[Any] | None = None
        self.raw: list[bytes] | None = None

    def identity(self, group: int) -> tuple[bytes, int]:
        return self.identities[group], self.inputs[group] if self.inputs is not None else 0

    def values(self, group: int) -> Iterator[Any]:
        start, stop = self.edges[group], self.edges[group + 1]
        if self.decoded is not None:
            return iter(self.decoded[start:stop])
        if self.raw is None:
            with timing("serialise"):
                self.decoded = decode_uniform(self.column)
            if self.decoded is not None:
                return iter(self.decoded[start:stop])
            self.raw = self.column.to_pylist()
        return map(decode_value, self.raw[start:stop])


def _shown(keys: list[Any], fields: int | None) -> list[Any]:
    if fields is None:
        return keys
    for key in keys:
        if not isinstance(key, tuple):
            raise BadKey(
                f"grouping by the first {fields} fields needs tuple keys, got {type(key).__name__} {key!r}"
            )
    return [key[0] if fields == 1 else key[:fields] for key in keys]


def _slices(batches: Iterable[pa.RecordBatch], fields: int | None) -> Iterator[_Slice]:
    for batch in batches:
        rows = batch.num_rows
        step = max(min(_SLICE_ROWS, rows * _SLICE_BYTES // max(batch.nbytes, 1)), 1)
        for start in range(0, rows, step):
            yield _Slice(batch.slice(start, step), fields)


class _Tail:
    """The values of the last group of a slice, which may go on in the next slices."""

    def __init__(self, slice_: _Slice, slices: Iterator[_Slice]) -> None:
        last = len(slice_.keys) - 1
        self.slices, self.identity = slices, slice_.identity(last)
        self.here: tuple[_Slice, int] | None = (slice_, last)
        self.values: Iterator[Any] | None = None
        self.over = False
        self.following: tuple[_Slice, int] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while self.here is not None:
            if self.values is None:
                self.values = self.here[0].values(self.here[1])
            for value in self.values:
                return value
            self._read_on()
        raise StopIteration

    def _read_on(self) -> None:
        self.here, self.values = None, None
        if self.over:
            return
        slice_ = next(self.slices, None)
        if slice_ is None or slice_.identity(0) != self.identity:
            self.over = True
            self.following = None if slice_ is None else (slice_, 0)
            return
        self.here = (slice_, 0)
        if len(slice_.keys) > 1:
            self.over = True
            self.following = (slice_, 1)

    def finish(self) -> tuple[_Slice, int] | None:
        """Skip what was left unread; return where the next group begins."""
        while not self.over:
            self._read_on()
        self.here = None
        return self.following


def _groups(
    batches: Iterable[pa.RecordBatch], fields: int | None
) -> Iterator[tuple[Any, bytes, int, Iterator[Any]]]:
    """Yield (key, its bytes, input, values) of each group of one key and one input."""
    slices = _slices(batches, fields)
    first = next(slices, None)
    place = None if first is None else (first, 0)
    while place is not None:
        slice_, begin = place
        last = len(slice_.keys) - 1
        for group in range(begin, last):
            yield slice_.keys[group], *slice_.identity(group), slice_.values(group)
        tail = _Tail(slice_, slices)
        yield slice_.keys[last], *slice_.identity(last), tail
        place = tail.finish()


def iterate_groups(
    batches: Iterable[pa.RecordBatch], group_fields: int | None = None
) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Yield (key, iterator of values) of each group in sorted ``batches`` of RECORD_SCHEMA.

    With ``group_fields=n`` keys are tuples whose first n elements make the group (n = 1: the element itself is the key), which
    is secondary sort: the values come in the order of the whole keys.

    Raises:
        BadKey: ``group_fields`` is given and a key is no tuple.
    """
    for key, _, _, values in _groups(batches, group_fields):
        yield key, values


def iterate_tagged_groups(
    batches: Iterable[pa.RecordBatch], *, inputs: int, group_fields: int | None = None
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield (key, (values of input 0, ..., values of the last input)) of each key in sorted ``batches``, for joins.

    The batches have the column INPUT_COLUMN, as from ``merge(..., with_input=True)``.
    The values of all inputs but the last are lists; the last is an iterator that reads on, so the largest input belongs
    last.  With ``group_fields`` the inputs of a group alternate, and so the last one is held too.
    """
    last = inputs - 1
    found: list[list[Any]] = [[] for _ in range(inputs)]
    key: Any = None
    identity: bytes | None = None
    for next_key, next_identity, source, values in _groups(batches, group_fields):
        if next_identity != identity:
            if identity is not None:
                yield key, (*found[:last], iter(found[last]))
            key, identity = next_key, next_identity
            found = [[] for _ in range(inputs)]
        if source < last or group_fields is not None:
            found[source].extend(values)
        else:
            yield key, (*found[:last], values)
            identity = None
    if identity is not None:
        yield key, (*found[:last], iter(found[last]))
