"""The reduce side of the shuffle: many sorted runs in, one sorted stream of batches out, within a memory limit.

Each round fills a window of blocks per run.  The *bound* is the smallest of the last keys loaded, over the runs that go on on
disk: nothing below it can still come, so these rows of all runs are joined, sorted and yielded at once.  Rows equal to
the bound are yielded as far as the run order allows, so a single hot key streams through without being held.

Result order: (keys, secondary order, run order, position in the run).  When there are more runs than the memory has
windows for, neighbouring runs are merged into larger ones first, which keeps that order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mapreduce.aggregate import reduce_sorted
from mapreduce.gather import Gatherer, concat, cut_blocks
from mapreduce.order import Order, SortedKeys, sort_permutation
from mapreduce.runs import BLOCK_BYTES, Run, RunReader, remove_runs, write_run
from mapreduce.shuffle import SORT_BYTES, Shuffle

INPUT_COLUMN = "__input__"
_LARGEST_WINDOW_BYTES = 8 << 20
_ROUND_BYTES = (
    16 << 20
)  # of all windows together: the next round finds the memory of this one warm, and fresh pages cost more than the sort
_SMALL_BYTES = 1 << 20  # of a partition that is sorted as it is: to merge it would take longer
_MOST_OPEN_RUNS = 512


def merge(
    runs: Sequence[Run],
    partition: int,
    shuffle: Shuffle,
    memory_bytes: int,
    *,
    with_input: bool = False,
    folder: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``partition`` of all ``runs`` in sorted order, aggregated where the shuffle declares it.

    ``with_input`` adds an int32 column INPUT_COLUMN with the number of the input (``run.order[0]``) of each row.  Larger runs
    of a merge in several passes go to ``folder`` (default: beside the first run) and are removed at the end.

    Raises:
        Damaged: a run file is gone or not what was written.
    """
    merged = _merge_all(
        sorted(runs, key=lambda run: run.order), partition, shuffle, memory_bytes, with_input, folder
    )
    if shuffle.aggregate and not with_input:
        return reduce_sorted(merged, shuffle.keys, shuffle.aggregate)
    return merged


def _merge_all(
    runs: Sequence[Run],
    partition: int,
    shuffle: Shuffle,
    memory_bytes: int,
    with_input: bool,
    folder: str | None,
) -> Iterator[pa.RecordBatch]:
    cursors: list[_Cursor] = []
    made: list[Run] = []
    try:
        cursors = _open(runs, partition, shuffle.schema, with_input)
        fan_in = _fan_in(cursors, memory_bytes)
        while len(cursors) > fan_in:
            larger = _merge_pass(
                cursors, fan_in, shuffle, memory_bytes, folder or os.path.dirname(runs[0].path), made
            )
            schema = tagged(shuffle.schema) if with_input else shuffle.schema
            cursors = _open(larger, 0, schema, with_input=False)  # their rows have it already
            fan_in = _fan_in(cursors, memory_bytes)
        yield from _merge_open(cursors, shuffle.order, memory_bytes)
    finally:
        for cursor in cursors:
            cursor.reader.close()
        remove_runs(made)


def _open(runs: Sequence[Run], partition: int, schema: pa.Schema, with_input: bool) -> list[_Cursor]:
    cursors: list[_Cursor] = []
    try:
        for run in runs:
            if run.rows[partition]:
                reader = RunReader(run, partition, schema)
                cursors.append(_Cursor(reader, run.order[0] if with_input else None))
    except BaseException:
        for cursor in cursors:
            cursor.reader.close()
        raise
    return cursors


def _fan_in(cursors: Sequence[_Cursor], memory_bytes: int) -> int:
    """Return how many runs can be merged at once: each needs two blocks, and a round's rows are held three times."""
    block = max((cursor.reader.largest_block_bytes for cursor in cursors), default=1)
    return min(max(int(memory_bytes / (3 * 2 * max(block, 1) * _weight(cursors))), 2), _MOST_OPEN_RUNS)


def _weight(cursors: Sequence[_Cursor]) -> float:
    """Return the memory for a byte of rows that is held three times in a round, with what sorting takes, divided by 3."""
    rows = sum(int(cursor.reader.index[:, 3].sum()) for cursor in cursors)
    size = sum(int(cursor.reader.index[:, 2].sum()) for cursor in cursors)
    return 1 + (SORT_BYTES + 24) / 3 * rows / max(size, 1)  # 24: the words kept to search in a block


def _merge_pass(
    cursors: Sequence[_Cursor], fan_in: int, shuffle: Shuffle, memory_bytes: int, folder: str, made: list[Run]
) -> list[Run]:
    larger: list[Run] = []
    os.makedirs(folder, exist_ok=True)
    for start in range(0, len(cursors), fan_in):
        path = os.path.join(folder, f"merge-{os.getpid()}-{id(made):x}-{len(made)}")
        group = cursors[start : start + fan_in]
        batches = _merge_open(group, shuffle.order, memory_bytes)
        run = write_run(path, (len(made),), 1, ((0, block) for batch in batches for block in _blocks(batch)))
        made.append(run)
        larger.append(run)
    return larger


def _blocks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for _, start, stop in cut_blocks(Gatherer(batch).row_bytes, [0, batch.num_rows], BLOCK_BYTES):
        yield batch.slice(start, stop - start)


@dataclass
class _Block:
    """Rows of one block from ``start`` on are not yet merged."""

    batch: pa.RecordBatch
    keys: SortedKeys
    start: int = 0


class _Cursor:
    """The window of one run: blocks that were read and not yet merged."""

    def __init__(self, reader: RunReader, tag: int | None) -> None:
        self.reader, self.tag = reader, tag
        self.window: deque[_Block] = deque()
        self.held_bytes = 0

    def read(self, wanted_bytes: int) -> Iterator[pa.RecordBatch]:
        """Read the next blocks, about ``wanted_bytes``, with the column of their input if that is wanted."""
        for batch in self.reader.read(wanted_bytes):
            if self.tag is not None:
                tags = pa.array(np.full(batch.num_rows, self.tag, np.int32))
                batch = pa.RecordBatch.from_arrays([*batch.columns, tags], schema=tagged(batch.schema))
            yield batch

    def fill(self, window_bytes: int, order: Sequence[Order]) -> None:
        """Read blocks until the window is full or the run ends."""
        if self.reader.exhausted:
            return
        if self.window and self.held_bytes + self.reader.next_block_bytes > window_bytes:
            return
        for batch in self.read(window_bytes - self.held_bytes):
            self.window.append(_Block(batch, SortedKeys(batch, order)))
            self.held_bytes += batch.nbytes

    def take(self, bound: SortedKeys | None, row: int, right: bool) -> list[pa.RecordBatch]:
        """Remove and return the rows before the bound (with ``right`` also those equal to it); all without a bound."""
        taken: list[pa.RecordBatch] = []
        while self.window:
            block = self.window[0]
            rows = block.batch.num_rows
            stop = rows if bound is None else block.keys.search(bound, row, low=block.start, right=right)
            if stop > block.start:
                taken.append(block.batch.slice(block.start, stop - block.start))
                block.start = stop
            if stop < rows:
                break
            self.window.popleft()
            self.held_bytes -= block.batch.nbytes
        return taken


def tagged(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` with the column INPUT_COLUMN."""
    return schema.append(pa.field(INPUT_COLUMN, pa.int32()))


def _merge_open(
    cursors: Sequence[_Cursor], order: Sequence[Order], memory_bytes: int
) -> Iterator[pa.RecordBatch]:
    live = list(cursors)
    weight = _weight(live)
    size = sum(int(cursor.reader.index[:, 2].sum()) for cursor in live)
    if len(live) > 1 and size <= min(_SMALL_BYTES, int(memory_bytes / (3 * weight))):
        joined = concat([batch for cursor in live for batch in cursor.read(size)])
        yield Gatherer(joined).take(sort_permutation(joined, order))
        return
    while live:
        if len(live) == 1:
            yield from _rest(live[0], min(memory_bytes // 4, _LARGEST_WINDOW_BYTES))
            return
        window_bytes = min(int(memory_bytes / (3 * weight)), _ROUND_BYTES) // len(live)
        for cursor in live:
            cursor.fill(window_bytes, order)
        last, limit = _bound(live)
        pieces: list[pa.RecordBatch] = []
        sources = 0
        for at, cursor in enumerate(live):
            bound, row = (None, 0) if limit is None else (limit, limit.rows - 1)
            taken = cursor.take(bound, row, right=at <= last)
            sources += bool(taken)
            pieces.extend(taken)
        live = [cursor for cursor in live if cursor.window or not cursor.reader.exhausted]
        if sources == 1:
            yield from pieces
        elif pieces:
            joined = concat(pieces)
            yield from Gatherer(joined).take_blocks(sort_permutation(joined, order))


def _rest(cursor: _Cursor, window_bytes: int) -> Iterator[pa.RecordBatch]:
    yield from cursor.take(None, 0, right=True)
    while not cursor.reader.exhausted:
        cursor.fill(window_bytes, [])
        yield from cursor.take(None, 0, right=True)


def _bound(live: Sequence[_Cursor]) -> tuple[int, SortedKeys | None]:
    """Return (the first run, in run order, that ends at the bound and goes on on disk; the keys whose last row is the bound).

    Rows equal to the bound in later runs must wait for that run.  Without a run that goes on there is no bound.
    """
    found, limit = -1, None
    for at, cursor in enumerate(live):
        if cursor.reader.exhausted:
            continue
        keys = cursor.window[-1].keys
        if limit is None or keys.is_less(keys.rows - 1, limit, limit.rows - 1):
            found, limit = at, keys
    return found, limit
