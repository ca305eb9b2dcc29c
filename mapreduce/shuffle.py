"""The map side of the shuffle: rows in, sorted and partitioned runs out, within a memory limit.

``Shuffle`` says what is shuffled and how; it is the one value that map side and reduce side share.  ``MapBuffer`` keeps
rows until its memory is used, then sorts them by (partition, order), and writes one run.

Declared aggregations are combined before each spill.  Exact ones (integers, min, max, counts) combine whenever that saves
memory.  Sums of floats are folded in blocks of FOLD_ROWS rows counted from the start of the split, and never again before
the reduce side, which adds the partial sums in the order (input, split, position): the bytes of the result
depend on the splits alone, not on the memory limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mapreduce.aggregate import Aggregate, combine_rows, combine_unsorted
from mapreduce.columns import RECORD_SCHEMA
from mapreduce.errors import BadJob
from mapreduce.gather import Gatherer, concat, cut_blocks
from mapreduce.order import Order, sort_permutation
from mapreduce.partition import HashPartitioner, Partitioner, RangePartitioner
from mapreduce.runs import BLOCK_BYTES, Run, write_run
from mapreduce.words import Rows

__all__ = ["Aggregate", "MapBuffer", "Order", "Shuffle", "record_shuffle"]

FOLD_ROWS = 1 << 17
_COMBINE_ROWS = 1 << 20
SORT_BYTES = 80  # of words, places and ties per row, while it is sorted
_MOST_BYTES = 1 << 30  # of one binary column, far from the 2 GiB that its 32-bit offsets can reach


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """What is shuffled: schema of the rows, key columns, sort order (keys first), and where rows go.

    Raises:
        BadJob: a key or order column is not in the schema, the order does not begin with the keys, or partitions < 1.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    order: tuple[Order, ...]
    partitions: int
    partitioner: Partitioner
    aggregate: tuple[Aggregate, ...] = ()

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise BadJob(f"partitions must be >= 1, got {self.partitions}")
        names = self.schema.names
        types = pa.types
        for field in self.schema:
            kind = field.type
            if types.is_dictionary(kind) or types.is_string_view(kind) or types.is_binary_view(kind):
                raise BadJob(
                    f"column {field.name!r} of type {kind} cannot be shuffled: cast it to its plain type"
                )
        for column in [
            *self.keys,
            *(part.column for part in self.order),
            *(part.column for part in self.aggregate),
        ]:
            if column not in names:
                raise BadJob(f"no column {column!r} to shuffle by; the columns are {', '.join(names)}")
        if {part.column for part in self.order[: len(self.keys)]} != set(self.keys):
            raise BadJob(
                f"the order {[part.column for part in self.order]} must begin with the keys {list(self.keys)}"
            )

    @property
    def exact(self) -> bool:
        """Whether rows may be aggregated in any grouping with the same result."""
        return all(part.is_exact(self.schema) for part in self.aggregate)


def record_shuffle(
    partitions: int, partitioner: Partitioner | None = None, *, descending: bool = False
) -> Shuffle:
    """Return the shuffle of a stage of Python records: by the encoded key, hashed unless told otherwise."""
    return Shuffle(
        schema=RECORD_SCHEMA,
        keys=("key",),
        order=(Order("key", descending),),
        partitions=partitions,
        partitioner=partitioner or HashPartitioner(("key",)),
    )


class MapBuffer:
    """Collects the output rows of one map task of (input, split) ``order`` and writes sorted runs into ``folder``.

    ``memory_bytes`` bounds what the buffer holds at any moment, sorting included; a single batch is held whole.
    """

    def __init__(self, shuffle: Shuffle, folder: str, order: tuple[int, ...], memory_bytes: int) -> None:
        self.shuffle, self.folder, self.order = shuffle, folder, order
        # at a spill rows are held twice, as they came and joined, and sorting takes SORT_BYTES a row
        self.spill_bytes = min(max(memory_bytes * 9 // 20, 1 << 16), _MOST_BYTES)
        self.held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        self.loose_rows = 0  # rows at the end of ``held`` that were not combined yet
        self.loose_from = 0
        self.runs: list[Run] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch of the shuffle's schema; spills when the memory is used.

        Raises:
            BadJob: the batch has another schema.
        """
        if not batch.schema.equals(self.shuffle.schema):
            batch = conform(batch, self.shuffle.schema)
        if self.shuffle.aggregate and not self.shuffle.exact:
            self._add_folded(batch)
            return
        for piece in _pieces(batch, self.spill_bytes):
            self._hold(piece)
            if self.shuffle.aggregate and self.loose_rows >= _COMBINE_ROWS:
                self._combine_loose()
            if self.held_bytes >= self.spill_bytes:
                self.spill()

    def _hold(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self.held_bytes + batch.nbytes > _MOST_BYTES:
            self.spill()
        self.held.append(batch)
        self.held_bytes += _cost(batch)
        self.loose_rows += batch.num_rows

    def _add_folded(self, batch: pa.RecordBatch) -> None:
        """Cut the rows of the split into blocks of FOLD_ROWS and fold each on its own."""
        at = 0
        while at < batch.num_rows:
            piece = batch.slice(at, FOLD_ROWS - self.loose_rows)
            at += piece.num_rows
            self._hold(piece)
            if self.loose_rows == FOLD_ROWS:
                self._combine_loose()
                if self.held_bytes >= self.spill_bytes:
                    self.spill()

    def _combine_loose(self) -> None:
        loose = self.held[self.loose_from :]
        if loose:
            rows = concat(loose)
            if self.shuffle.exact:
                rows = combine_unsorted(rows, self.shuffle.keys, self.shuffle.aggregate)
            rows = rows.take(pa.array(sort_permutation(rows, self.shuffle.order)))
            combined = combine_rows(rows, self.shuffle.keys, self.shuffle.aggregate)
            self.held[self.loose_from :] = [combined]
            self.held_bytes = sum(map(_cost, self.held))
        self.loose_from, self.loose_rows = len(self.held), 0

    def spill(self) -> None:
        """Write what is held as one run; does nothing when that is nothing."""
        if self.shuffle.aggregate and not self.shuffle.exact:
            self._combine_loose()
        if not self.held:
            return
        batch = concat(self.held)
        self.held, self.held_bytes, self.loose_rows, self.loose_from = [], 0, 0, 0
        path = os.path.join(self.folder, "-".join(map(str, ("run", *self.order, len(self.runs)))))
        order = (*self.order, len(self.runs))
        self.runs.append(write_run(path, order, self.shuffle.partitions, self._sorted_blocks(batch)))

    def _sorted_blocks(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        shuffle = self.shuffle
        if shuffle.aggregate and shuffle.exact:
            batch = combine_unsorted(batch, shuffle.keys, shuffle.aggregate)
        permutation = sort_permutation(batch, shuffle.order)
        if shuffle.aggregate and shuffle.exact:
            batch = combine_rows(batch.take(pa.array(permutation)), shuffle.keys, shuffle.aggregate)
            permutation = np.arange(batch.num_rows, dtype=np.int64)
        permutation, edges = partition_rows(batch, shuffle, permutation)
        gatherer = Gatherer(batch)
        sizes = gatherer.row_bytes
        if not isinstance(sizes, int):
            sizes = sizes[permutation]
        for partition, start, stop in cut_blocks(sizes, edges, BLOCK_BYTES):
            yield partition, gatherer.take(permutation[start:stop])

    def finish(self) -> list[Run]:
        """Spill the rest and return all runs of the task, in their order."""
        self.spill()
        return self.runs


def partition_rows(
    batch: pa.RecordBatch, shuffle: Shuffle, permutation: Rows | None = None
) -> tuple[Rows, list[int]]:
    """Return the row numbers of a batch by partition, and the edges of the partitions among them.

    Within a partition they keep the order of ``permutation``, by default the order of the rows.

    Raises:
        BadJob: the partitioner answers something else than a partition for each row.
    """
    partitions, partitioner = shuffle.partitions, shuffle.partitioner
    if partitions == 1:
        rows = np.arange(batch.num_rows, dtype=np.int64) if permutation is None else permutation
        return rows, [0, len(rows)]
    if (
        permutation is not None
        and isinstance(partitioner, RangePartitioner)
        and shuffle.order[: len(partitioner.order)] == tuple(partitioner.order)
    ):  # rows in the order that the ranges have are in partition order already
        return permutation, partitioner.split_ordered(batch, permutation, partitions)
    found = partitioner(batch, partitions)
    low, high = (int(found.min()), int(found.max())) if len(found) else (0, 0)
    if low < 0 or high >= partitions or len(found) != batch.num_rows:
        raise BadJob(
            f"partitioner {partitioner!r} returned {low} to {high}: it must stay in 0 to {partitions - 1}"
        )
    edges = [0, *np.cumsum(np.bincount(found, minlength=partitions)).tolist()]
    small = found.astype(
        np.uint8 if partitions <= 1 << 8 else np.uint16 if partitions <= 1 << 16 else np.int32
    )
    if permutation is None:
        return np.argsort(small, kind="stable"), edges
    return permutation[np.argsort(small[permutation], kind="stable")], edges


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``batch`` with the columns of ``schema`` in its order; types must agree but for safe casts.

    Raises:
        BadJob: a column is missing or has values that the type cannot hold.
    """
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise BadJob(f"the rows lack column {missing[0]!r}; they have {', '.join(batch.schema.names)}")
    columns = []
    for field in schema:
        column = batch.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadJob(f"column {field.name!r} is {column.type}, declared {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cost(batch: pa.RecordBatch) -> int:
    rows: int = batch.num_rows
    return int(batch.nbytes) + rows * SORT_BYTES // 2


def _pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch that is larger than a spill should be."""
    cost = _cost(batch)
    if cost <= most_bytes or batch.num_rows <= 1:
        yield batch
        return
    piece_bytes = max(most_bytes * batch.nbytes // cost, 1)
    for _, start, stop in cut_blocks(Gatherer(batch).row_bytes, [0, batch.num_rows], piece_bytes):
        yield batch.slice(start, stop - start)
