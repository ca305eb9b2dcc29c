"""The work of a stage on values in memory, for an engine that keeps them there.

The same functions of the job see the same rows in the same order as when every stage goes through a store, so the results are
the same bytes.  What differs: rows are partitioned but not sorted before the shuffle, no run is written, and what a stage
makes is a list of batches.  Records stay encoded between stages, so that a function which changes its arguments cannot harm a
value that is used again.

Each method may return an iterator: the next one can be run on it at once, or its batches can be held as a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from .aggregate import combine_rows, combine_unsorted, fold_in_tree, reduce_sorted
from .columns import to_batch, to_pairs
from .errors import BadJob
from .gather import Gatherer, concat
from .inputs import read_batches, read_records
from .merge import tagged
from .meter import Meter, current_meter
from .order import sort_permutation
from .records import RecordBuffer, cut_pairs
from .shuffle import FOLD_ROWS, Shuffle, conform, partition_rows
from .signatures import inject
from .task import MAP_SHARE, WRITE_BYTES, MapWork, StageProgram, Tally, Written
from .worker import TaskInfo

Batches = Iterable[pa.RecordBatch]
Chunks = Iterable[tuple[str, Iterable[Any], Sequence[Any]]]  # (url, keys, values) of records

_MOST_BYTES = (1 << 31) - (1 << 20)  # of a column whose offsets have 32 bits
_COMBINE_ROWS = 1 << 20
_PAIRS = 5_000  # of a batch of records


@dataclass(frozen=True, kw_only=True)
class StageInMemory:
    """One stage; ``memory_bytes`` has to be that of the other engine's workers, for blocks that end by memory."""

    program: StageProgram
    memory_bytes: int

    def task(self, kind: str, index: int) -> TaskInfo:
        """Return what an attempt knows about itself; it also counts what the attempt reads."""
        return TaskInfo(
            kind=kind, index=index, attempt=0, worker=0, scratch="", memory_bytes=self.memory_bytes,
            meter=current_meter() or Meter(),
        )  # fmt: skip

    # -- map ------------------------------------------------------------------------------------

    def read(self, work: MapWork, task: TaskInfo) -> Batches | Chunks:
        """Read and parse a split of a file: batches, or for a record stage chunks of keys and values."""
        program, read = self.program, Tally(task)
        source = program.sources[work.input]
        with program.guard(f"input {work.describe()}"):
            if program.stage.is_batch:
                yield from read_batches(work.split, source, counted=read.count)
                return
            for piece, split in work.split.apart():
                for keys, values in read_records(split, source, counted=read.count):
                    yield piece.url, keys, values

    def map(
        self, work: MapWork, rows: Batches | Chunks, sides: Mapping[str, Any], task: TaskInfo
    ) -> Iterator[pa.RecordBatch]:
        """Run the map, and the combine of a record stage, on what ``read`` or a stage before has made."""
        program, stage, read = self.program, self.program.stage, Tally(task)
        guard = program.guard_map(work)
        with guard, program.opened(task, work.split.describe(), sides) as available:
            if stage.is_batch:
                mapped = program.mapped_batches(work.input, rows, available, guard, read)
                schema = program.shuffle.schema if program.shuffle else program.output_schema
                for batch in mapped:
                    yield batch if schema is None or batch.schema.equals(schema) else conform(batch, schema)
                return
            combine = stage.combine if program.shuffle else None
            held: list[pa.RecordBatch] = []
            buffer = RecordBuffer(
                inject(combine, available) if combine else None, held.append,
                int(self.memory_bytes * MAP_SHARE / 2),
            )  # fmt: skip
            chunks = _chunks(rows, work, available["task"], guard)
            buffer.add(program.mapped_pairs(work.input, chunks, available, guard, read))
            buffer.flush()
            yield from (_with_input(batch, work.input) for batch in held) if program.is_tagged else held

    def write_mapped(
        self, work: MapWork, rows: Batches | Chunks, sides: Mapping[str, Any], task: TaskInfo
    ) -> Written:
        """Run the map of a stage without a shuffle and write its part."""
        program, read = self.program, Tally(task)
        guard = program.guard_map(work)
        with guard, program.opened(task, work.split.describe(), sides) as available:
            made: Any
            if program.stage.is_batch:
                made = program.mapped_batches(work.input, rows, available, guard, read)
            else:
                chunks = _chunks(rows, work, available["task"], guard)
                made = program.mapped_pairs(work.input, chunks, available, guard, read)
            return program.write(task.index, task, made)

    # -- shuffle --------------------------------------------------------------------------------

    def split(self, rows: Batches) -> list[list[pa.RecordBatch]]:
        """Return the rows of one map task by partition; where the blocks in which floats fold belong to the plan, folded so."""
        shuffle = self._shuffle()
        pieces: list[list[pa.RecordBatch]] = [[] for _ in range(shuffle.partitions)]
        for batch in rows if shuffle.exact else _folded(rows, shuffle):
            if shuffle.partitions == 1:
                pieces[0].append(batch)
                continue
            places, edges = partition_rows(batch, shuffle)
            gatherer = Gatherer(batch)
            for partition, piece in enumerate(pieces):
                start, stop = edges[partition], edges[partition + 1]
                if stop > start:
                    piece.append(gatherer.take(places[start:stop]))
        return pieces

    def merge(self, pieces: Sequence[Sequence[pa.RecordBatch]]) -> Batches:
        """Return the rows of one partition, sorted; ``pieces`` in the order of the maps."""
        return _sorted([batch for piece in pieces for batch in piece if batch.num_rows], self._shuffle())

    def fold_loose(self, rows: Batches) -> Batches:
        """Aggregate rows as a map has made them, as far as that is cheap; only where folding parts first is exact."""
        return _folded(rows, self._shuffle())

    def fold_sorted(self, merged: Batches) -> Batches:
        """Aggregate the sorted rows of one partition."""
        shuffle = self._shuffle()
        return reduce_sorted(merged, shuffle.keys, shuffle.aggregate)

    def fold_neighbours(self, values: Sequence[Batches]) -> list[pa.RecordBatch]:
        """Fold what neighbouring map tasks have made, FOLD_FAN_IN at most, or what was made of those."""
        assert self.program.stage.fold is not None
        with self.program.guard("partition 0"):
            return [fold_in_tree((batch for value in values for batch in value), self.program.stage.fold)]

    def _shuffle(self) -> Shuffle:
        assert self.program.shuffle is not None
        return self.program.shuffle

    # -- reduce ---------------------------------------------------------------------------------

    def reduce(
        self, partition: int, merged: Batches, sides: Mapping[str, Any], task: TaskInfo
    ) -> Iterator[pa.RecordBatch]:
        """Run the reduce on the sorted rows of a partition."""
        program = self.program
        guard = program.guard(f"partition {partition}")
        with guard, program.opened(task, f"partition {partition}", sides) as available:
            made = program.reduced(merged, available, guard)
            if program.stage.is_batch:
                yield from made
                return
            yield from map(to_batch, cut_pairs(made, _PAIRS, WRITE_BYTES, self.memory_bytes // 2))

    def write_reduced(
        self, partition: int, merged: Batches, sides: Mapping[str, Any], task: TaskInfo
    ) -> Written:
        """Run the reduce on the sorted rows of a partition and write its part."""
        program = self.program
        guard = program.guard(f"partition {partition}")
        with guard, program.opened(task, f"partition {partition}", sides) as available:
            return program.write(partition, task, program.reduced(merged, available, guard))


def _chunks(rows: Any, work: MapWork, view: Any, guard: Any) -> Iterator[tuple[Iterable[Any], Sequence[Any]]]:
    """Yield chunks of (keys, values), of a file or of what a stage made."""
    if not work.split.pieces:
        for batch in rows:
            pairs = to_pairs(batch)
            yield [key for key, _ in pairs], [value for _, value in pairs]
        return
    for url, keys, values in rows:
        if view.input != url:
            view.input = url
            guard.place = f"input {url}" if len(work.split.pieces) > 1 else f"input {work.describe()}"
        yield keys, values


def _folded(rows: Batches, shuffle: Shuffle) -> Iterator[pa.RecordBatch]:
    """Combine rows of equal keys: all of them if that is exact, else in blocks of FOLD_ROWS from the first row."""
    held: list[pa.RecordBatch] = []
    count = 0
    most = _COMBINE_ROWS if shuffle.exact else FOLD_ROWS
    for batch in rows:
        at = 0
        while at < batch.num_rows:
            piece = batch.slice(at) if shuffle.exact else batch.slice(at, FOLD_ROWS - count)
            at += piece.num_rows
            held.append(piece)
            count += piece.num_rows
            if count < most:
                continue
            folded = _fold(held, shuffle)
            if shuffle.exact:
                # Where few keys are equal, what was folded is not folded again for each batch.
                held, count, most = [folded], folded.num_rows, max(_COMBINE_ROWS, 2 * folded.num_rows)
            else:
                yield folded
                held, count = [], 0
    if held:
        yield _fold(held, shuffle)


def _fold(batches: Sequence[pa.RecordBatch], shuffle: Shuffle) -> pa.RecordBatch:
    rows = concat(batches)
    if shuffle.exact:
        rows = combine_unsorted(rows, shuffle.keys, shuffle.aggregate)
    permutation = sort_permutation(rows, shuffle.order)
    if (permutation[1:] < permutation[:-1]).any():  # else they are in order, as what a reduce has made may be
        rows = rows.take(pa.array(permutation))
    return combine_rows(rows, shuffle.keys, shuffle.aggregate)


def _with_input(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    tags = pa.array(np.full(batch.num_rows, number, np.int32))
    return pa.RecordBatch.from_arrays([*batch.columns, tags], schema=tagged(batch.schema))


def _sorted(batches: Sequence[pa.RecordBatch], shuffle: Shuffle) -> Iterator[pa.RecordBatch]:
    """Yield all rows in the shuffle's order; rows that compare equal keep theirs."""
    if not batches:
        return
    _check_offsets(batches)
    rows = concat(batches)
    permutation = sort_permutation(rows, shuffle.order)
    yield from Gatherer(rows).take_blocks(permutation)


def _check_offsets(batches: Sequence[pa.RecordBatch]) -> None:
    """Refuse rows that cannot be one batch: there may be any number of numbers, but text and lists have offsets of 32 bits."""
    for at, field in enumerate(batches[0].schema):
        if pa.types.is_primitive(field.type):
            continue
        size = sum(batch.column(at).nbytes for batch in batches)
        if size > _MOST_BYTES:
            raise BadJob(
                f"a partition has {size / 1e9:.1f} GB in column {field.name!r}, of which {_MOST_BYTES / 1e9:.1f} GB can be "
                "sorted in memory at once; give more --partitions, or use --engine mapreduce"
            )
