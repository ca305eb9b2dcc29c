"""Which partition a row goes to: values that travel with a job and compute whole batches at once.

Promises: equal keys always meet in one partition, on every machine and in every run (nothing here uses ``hash()``).
It does not look at how large a partition becomes; RangePartitioner balances by the sample that its cuts came from.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mapreduce.errors import BadJob
from mapreduce.keys import decode_key, prefix_bytes
from mapreduce.order import Order, SortedKeys, order_words, sort_permutation
from mapreduce.words import ColumnWords, Rows

Partitions = npt.NDArray[np.int32]
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xBF58476D1CE4E5B9)
_THIRD = np.uint64(0x94D049BB133111EB)


class Partitioner(Protocol):
    """Maps the rows of a batch to partitions."""

    def __call__(self, batch: pa.RecordBatch, partitions: int) -> Partitions:
        """Return the partition of each row, int32 in ``[0, partitions)``."""


def hash_rows(columns: Sequence[ColumnWords], rows: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash per row of the columns' words (SplitMix64's mixing, Steele et al. 2014).

    Equal values of one type have equal hashes in every batch, whether or not other rows are null.
    """
    hashes = np.full(rows, _FIRST, np.uint64)
    for words in columns:
        here = np.arange(rows, dtype=np.int64)
        level = 0
        while len(here):
            whole = len(here) == rows
            if level == words.rest_level:
                digests = [hashlib.blake2b(rest, digest_size=8).digest() for rest in words.rests(here)]
                found = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
            else:
                found = words.words(level, slice(None) if whole else here)
            mixed = (hashes if whole else hashes[here]) ^ found
            mixed ^= mixed >> np.uint64(30)
            mixed *= _SECOND
            mixed ^= mixed >> np.uint64(27)
            mixed *= _THIRD
            mixed ^= mixed >> np.uint64(31)
            mixed += _FIRST
            if whole:
                hashes = mixed
            else:
                hashes[here] = mixed
            if level == words.rest_level:
                break
            here = here[words.follows(level, found)]
            level += 1
    return hashes


def _spread(hashes: npt.NDArray[np.uint64], partitions: int) -> Partitions:
    return (((hashes >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)).astype(np.int32)


@dataclass(frozen=True)
class HashPartitioner:
    """Spreads keys evenly by a stable hash of the columns ``keys``."""

    keys: tuple[str, ...]

    def __call__(self, batch: pa.RecordBatch, partitions: int) -> Partitions:
        if partitions == 1:
            return np.zeros(batch.num_rows, np.int32)
        columns = [words for words, _ in order_words(batch, [Order(key) for key in self.keys])]
        return _spread(hash_rows(columns, batch.num_rows), partitions)


@dataclass(frozen=True)
class RangePartitioner:
    """Partition ``i`` holds the rows from cut ``i - 1`` (inclusive) to cut ``i`` (exclusive) of ``order``.

    So the partitions one after the other are sorted as a whole, and equal keys are never in two of them.
    """

    order: tuple[Order, ...]
    cuts: pa.RecordBatch

    def __call__(self, batch: pa.RecordBatch, partitions: int) -> Partitions:
        self.check(partitions)
        rows, count = batch.num_rows, self.cuts.num_rows
        if count == 0 or rows == 0:
            return np.zeros(rows, np.int32)
        (cut_words, descending), *_ = order_words(self.cuts, self.order)
        words = order_words(batch, self.order[:1])[0][0].words(0, slice(None))
        edges = cut_words.words(0, slice(None))
        if descending:
            words, edges = ~words, ~edges
        found = np.searchsorted(edges, words, "right").astype(np.int32)
        # cuts that are not greater; where the last of them has the row's first word, more has to be looked at
        unsure = np.flatnonzero(edges.take(found - 1, mode="clip") == words)
        if len(unsure):
            names = [part.column for part in self.order]
            few = batch.select(names).take(pa.array(unsure))
            both = pa.Table.from_batches([self.cuts.select(names), few.cast(self.cuts.select(names).schema)])
            permutation = sort_permutation(one_batch(both), self.order)
            is_cut = permutation < count
            cuts_before = np.cumsum(is_cut)
            found[unsure[permutation[~is_cut] - count]] = cuts_before[~is_cut]
        return found

    def split_ordered(self, batch: pa.RecordBatch, rows: Rows, partitions: int) -> list[int]:
        """Return the ``partitions + 1`` edges of the partitions among ``rows`` of a batch.

        The rows are in an order that begins with ours.  A few rows are looked at for each cut, instead of all cuts for each row.
        """
        self.check(partitions)
        keys, cuts = SortedKeys(batch, self.order), SortedKeys(self.cuts, self.order)

        def first_after(cut: int) -> int:
            places = range(len(rows))
            return bisect.bisect_left(places, True, key=lambda at: not keys.is_less(int(rows[at]), cuts, cut))

        inner = [first_after(cut) for cut in range(cuts.rows)]
        return [0, *inner, *[len(rows)] * (partitions - len(inner))]

    def check(self, partitions: int) -> None:
        """Raise BadJob when there are more ranges than partitions."""
        if self.cuts.num_rows >= partitions:
            raise BadJob(
                f"{self.cuts.num_rows} cuts make {self.cuts.num_rows + 1} ranges, but the stage has {partitions} "
                "partitions: make the cuts with range_cuts(sample, order, partitions)"
            )


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch (no copy when it is one already)."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 else pa.RecordBatch.from_pylist([], schema=table.schema)


def range_cuts(sample: pa.RecordBatch | pa.Table, order: Sequence[Order], partitions: int) -> pa.RecordBatch:
    """Return at most ``partitions - 1`` distinct cut rows that split ``sample`` evenly (columns of ``order`` only).

    The sorted sample of n rows is cut at every n/R-th row, as Hadoop's InputSampler does.  A key so frequent that several
    cuts fall on it gives one cut, so there can be fewer than asked for.
    """
    names = [part.column for part in order]
    table = pa.Table.from_batches([sample]) if isinstance(sample, pa.RecordBatch) else sample
    batch = one_batch(table.select(names))
    rows = batch.num_rows
    if rows == 0 or partitions <= 1:
        return batch.slice(0, 0)
    permutation = sort_permutation(batch, order)
    wanted = [min(round(rows * cut / partitions), rows - 1) for cut in range(1, partitions)]
    chosen = batch.take(pa.array(permutation[np.unique(wanted)]))
    keys = SortedKeys(chosen, order)
    distinct = [row for row in range(chosen.num_rows) if keys.search(keys, row) == row]
    return chosen.take(pa.array(distinct, pa.int64()))


@dataclass(frozen=True)
class FunctionPartitioner:
    """Asks ``function(key, partitions)`` for each key of a record stage; it must answer alike for equal keys.

    Raises:
        BadJob: the answer is no integer in ``[0, partitions)``.
    """

    function: Callable[[Any, int], int]

    def __call__(self, batch: pa.RecordBatch, partitions: int) -> Partitions:
        known: dict[bytes, int] = {}
        found = np.empty(batch.num_rows, np.int32)
        for row, encoded in enumerate(batch.column("key").to_pylist()):
            partition = known.get(encoded)
            if partition is None:
                partition = known[encoded] = self._ask(decode_key(encoded), partitions)
            found[row] = partition
        return found

    def _ask(self, key: object, partitions: int) -> int:
        answer = self.function(key, partitions)
        try:
            partition = answer.__index__()
        except AttributeError:
            partition = -1
        if not 0 <= partition < partitions:
            name = getattr(self.function, "__name__", repr(self.function))
            raise BadJob(
                f"partitioner {name} returned {answer!r} for key {key!r}: it must return an integer "
                f"from 0 to {partitions - 1}"
            )
        return partition


@dataclass(frozen=True)
class FieldPartitioner:
    """Spreads the tuple keys of a record stage by their first ``fields`` elements (another key counts as one field)."""

    fields: int

    def __call__(self, batch: pa.RecordBatch, partitions: int) -> Partitions:
        prefixes = pa.array(
            [prefix_bytes(key, self.fields) for key in batch.column("key").to_pylist()], pa.binary()
        )
        prefix_batch = pa.record_batch([prefixes], names=["key"])
        return HashPartitioner(("key",))(prefix_batch, partitions)
