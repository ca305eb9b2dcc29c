"""Parquet and Arrow IPC files, cut by row groups and by record batches.

Only the columns that are asked for are read from Parquet.  An Arrow file that is not local is one piece,
since finding out how many rows its batches have would mean to read it.  INT96 times are read in microseconds,
so the years 1 to 9999 stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from mapreduce.errors import BadInput
from mapreduce.files import CountedReader, is_local, local_path
from mapreduce.pieces import Piece, ignore, reading, whole_piece
from mapreduce.schemas import conform
from mapreduce.sources import InputFile, Source

ROWS_PER_BATCH = 1 << 16
#: An Arrow file up to this size is asked for at once, not in four or more small reads: intermediates of a loop are such.
READ_WHOLE_BYTES = 1 << 20
ARROW_MAGIC = b"ARROW1"


def cut_rows(file: InputFile, source: Source, target: int) -> Iterator[Piece]:
    """Yield pieces of about ``target`` bytes, made of whole row groups or batches."""
    if file.compression is not None:
        raise BadInput(f"{file.url}: a {file.format} file inside {file.compression}; decompress it first")
    whole = whole_piece(file)
    if not file.bytes and file.format == "parquet":
        raise BadInput(f"{file.url}: an empty file is no parquet")
    groups = _groups(whole, source) if file.bytes > target else []
    if len(groups) < 2:
        yield whole
        return
    start = first_row = size = rows = 0
    for number, (group_rows, group_bytes) in enumerate(groups):
        if number > start and size + group_bytes > target:
            yield _part(whole, start, number, first_row, size)
            start, first_row, size = number, rows, 0
        size += group_bytes
        rows += group_rows
    yield _part(whole, start, len(groups), first_row, size)


def _part(whole: Piece, start: int, stop: int, first_row: int, size: int) -> Piece:
    return Piece(
        url=whole.url, format=whole.format, start=start, stop=stop, file_bytes=whole.file_bytes,
        whole=False, bytes=size, first_row=first_row,
    )  # fmt: skip


def _groups(piece: Piece, source: Source) -> list[tuple[int, int]]:
    """Return (rows, bytes) of each row group or batch; nothing for a file that is better left whole."""
    if piece.format == "parquet":
        with CountedReader(piece.url, source.storage_options, ignore) as file, reading(piece):
            metadata = _parquet(file).metadata
            found = []
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
                found.append((group.num_rows, size))
            return found
    if not is_local(piece.url):
        return []
    # A memory map touches the pages of the batches' headers only.
    with reading(piece), pa.memory_map(local_path(piece.url)) as file:
        if file.read(len(ARROW_MAGIC)) != ARROW_MAGIC:
            return []
        reader = pa.ipc.open_file(file)
        counts = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
        per_row = piece.file_bytes / max(sum(counts), 1)
        return [(rows, round(rows * per_row)) for rows in counts]


def file_schema(file: InputFile, source: Source) -> pa.Schema:
    """Return the schema that a file's footer or header states."""
    piece = whole_piece(file)
    with CountedReader(file.url, source.storage_options, ignore) as opened, reading(piece):
        if file.format == "parquet":
            return _parquet(opened).schema_arrow.remove_metadata()
        reader = _arrow(opened)
        return pa.schema([]) if reader is None else reader.schema.remove_metadata()


def read_piece(
    piece: Piece, source: Source, schema: pa.Schema, block_bytes: int, counted: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece with the columns of ``schema``."""
    read = _read_parquet if piece.format == "parquet" else _read_arrow
    with CountedReader(piece.url, source.storage_options, counted) as file, reading(piece):
        for batch in read(file, piece, schema, block_bytes):
            yield conform(batch, schema, piece.url)


def _parquet(file: CountedReader) -> pyarrow.parquet.ParquetFile:
    return pyarrow.parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")


def _read_parquet(
    file: CountedReader, piece: Piece, schema: pa.Schema, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    parquet = _parquet(file)
    here = [name for name in parquet.schema_arrow.names if name in schema.names]
    groups = range(parquet.num_row_groups) if piece.whole else range(piece.start, piece.stop)
    for number in groups:
        group = parquet.metadata.row_group(number)
        row_bytes = group.total_byte_size / max(group.num_rows, 1)
        rows = int(min(ROWS_PER_BATCH, max(1, block_bytes // max(row_bytes, 1))))
        # Without a column in common the rows still count, so read them as they are.
        yield from parquet.iter_batches(
            batch_size=rows, row_groups=[number], columns=here or None, use_threads=False
        )


def _arrow(file: CountedReader | pa.BufferReader) -> Any:
    """Return the reader of an Arrow file or stream; None for an empty one."""
    head = file.read(len(ARROW_MAGIC))
    file.seek(0)
    if not head:
        return None
    return pa.ipc.open_file(file) if head == ARROW_MAGIC else pa.ipc.open_stream(file)


def _read_whole(file: CountedReader, size: int) -> bytes:
    """Return all of a file that had ``size`` bytes when it was listed."""
    data = bytearray(size)
    return bytes(memoryview(data)[: file.readinto(data)])


def _read_arrow(
    file: CountedReader, piece: Piece, schema: pa.Schema, block_bytes: int
) -> Iterator[pa.RecordBatch]:
    small = piece.whole and piece.file_bytes <= READ_WHOLE_BYTES
    reader = _arrow(pa.BufferReader(_read_whole(file, piece.file_bytes)) if small else file)
    if reader is None:
        return
    if isinstance(reader, pa.RecordBatchFileReader):
        numbers = range(reader.num_record_batches) if piece.whole else range(piece.start, piece.stop)
        batches: Iterator[pa.RecordBatch] = (reader.get_batch(number) for number in numbers)
    else:
        batches = iter(reader)
    for batch in batches:
        rows = max(1, batch.num_rows * block_bytes // max(batch.nbytes, 1))
        for begin in range(0, batch.num_rows, rows):
            yield batch.slice(begin, rows)
