"""Rows of a batch in another order, and how many bytes each of them has.

Arrow's ``take`` handles every type.  Binary columns whose values all have one size, as fixed-width lines have, are
gathered by numpy in half the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mapreduce.words import Rows, byte_ranges, common_size

_WIDEST = 1 << 12
#: From here on numpy asks the system for huge pages.
_HUGE_PAGE_BYTES = 4 << 20
TAKE_BYTES = 512 << 10
"""Of rows taken at a time: they are still in the processor's cache when they are written."""


def concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches of one schema as one batch."""
    if len(batches) == 1:
        return batches[0]
    columns = [
        _concat_column([batch.column(at) for batch in batches]) for at in range(batches[0].num_columns)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def _concat_column(columns: Sequence[pa.Array]) -> pa.Array:
    """Return columns of one type as one, in memory of numpy: if large, it lies on huge pages.

    To touch other memory for the first time costs ten times what it costs to copy into it.
    """
    kind = columns[0].type
    if sum(each.nbytes for each in columns) >= _HUGE_PAGE_BYTES and not any(
        each.null_count for each in columns
    ):
        if pa.types.is_primitive(kind) and kind.bit_width >= 8:
            values = [_values(each, f"V{kind.bit_width // 8}") for each in columns]
            whole = np.concatenate(values)
            return pa.Array.from_buffers(kind, len(whole), [None, pa.py_buffer(whole)], null_count=0)
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            return _concat_binary(columns)
    return pa.concat_arrays(columns)


def _concat_binary(columns: Sequence[pa.Array]) -> pa.Array:
    edges = [_values(each, "i4", 1) if len(each) else np.zeros(1, np.int32) for each in columns]
    size = sum(int(each[-1] - each[0]) for each in edges)
    if size >= 1 << 31:
        return pa.concat_arrays(columns)  # which raises
    data, ends = np.empty(size, np.uint8), np.zeros(sum(map(len, columns)) + 1, np.int32)
    at = row = 0
    for column, edge in zip(columns, edges, strict=True):
        first, last = int(edge[0]), int(edge[-1])
        if last > first:
            data[at : at + last - first] = np.frombuffer(column.buffers()[2], np.uint8)[first:last]
        np.add(edge[1:], at - first, out=ends[row + 1 : row + len(edge)])
        at, row = at + last - first, row + len(edge) - 1
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(columns[0].type, row, buffers, null_count=0)


def _values(column: pa.Array, dtype: str, more: int = 0) -> npt.NDArray[Any]:
    """Return the second buffer of a column as an array of its length and ``more``."""
    if not len(column):
        return np.empty(0, dtype)
    # Counted, since a buffer may be longer, and then no multiple of the element.
    at = column.offset * np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column) + more, at)


class Gatherer:
    """Takes rows out of one batch, as often as needed.

    ``row_bytes`` is the size of each row (int64), or one number when all rows have the same size.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.uniform: list[npt.NDArray[Any] | None] = []  # the values of a column as numpy's fixed-size bytes
        fixed, varying = 0, None
        for column in batch.columns:
            kind = column.type
            uniform: npt.NDArray[Any] | None = None
            if kind.num_fields == 0 and pa.types.is_primitive(kind):
                fixed += max(kind.bit_width // 8, 1)
            elif pa.types.is_binary(kind) or pa.types.is_string(kind):
                fixed += 4
                starts, lengths, data = byte_ranges(column)
                width = common_size(lengths)
                if width:
                    fixed += width
                    if width <= _WIDEST and column.null_count == 0:
                        first = int(starts[0])
                        uniform = data[first : first + width * len(lengths)].view(f"V{width}")
                else:
                    varying = lengths if varying is None else varying + lengths
            else:
                fixed += column.nbytes // max(len(column), 1) + 1
            self.uniform.append(uniform)
        self.row_bytes: Rows | int = fixed if varying is None else varying + fixed

    def take(self, rows: Rows) -> pa.RecordBatch:
        """Return ``rows`` in their order."""
        indices = pa.array(rows)
        columns = []
        for column, uniform in zip(self.batch.columns, self.uniform, strict=True):
            if uniform is None:
                columns.append(column.take(indices))
                continue
            width = uniform.dtype.itemsize
            values = uniform.take(rows, mode="clip")
            offsets = np.arange(0, (len(rows) + 1) * width, width, dtype=np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
            columns.append(pa.Array.from_buffers(column.type, len(rows), buffers))
        return pa.RecordBatch.from_arrays(columns, schema=self.batch.schema)

    def take_blocks(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        """Yield ``rows`` in their order in batches of about TAKE_BYTES."""
        sizes = self.row_bytes
        if not isinstance(sizes, int):
            sizes = sizes[rows]
        for _, start, stop in cut_blocks(sizes, [0, len(rows)], TAKE_BYTES):
            yield self.take(rows[start:stop])


def cut_blocks(
    row_bytes: Rows | int, edges: Sequence[int], block_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (partition, start, stop) of blocks of about ``block_bytes`` between the ``edges`` of partitions."""
    if isinstance(row_bytes, int):
        step = max(block_bytes // max(row_bytes, 1), 1)
        for partition in range(len(edges) - 1):
            for start in range(edges[partition], edges[partition + 1], step):
                yield partition, start, min(start + step, edges[partition + 1])
        return
    ends = np.cumsum(row_bytes)
    for partition in range(len(edges) - 1):
        start, stop = edges[partition], edges[partition + 1]
        while start < stop:
            before = int(ends[start - 1]) if start else 0
            end = min(max(int(np.searchsorted(ends, before + block_bytes, "right")), start + 1), stop)
            yield partition, start, end
            start = end
