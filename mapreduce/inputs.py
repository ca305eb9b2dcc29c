"""Reading a split: as Arrow batches, or as records for Python functions.

What each format gives:

=========  ======================================  ==================================================
format     batches                                 records (key, value)
=========  ======================================  ==================================================
text       ``line``, binary, as it is in the file  byte offset in the file, str
csv        a column per name in the headers        number of the row in the file, dict
jsonl      a column per field                      byte offset in the file, any JSON value
parquet    its columns                             number of the row in the file, dict
arrow      its columns                             number of the row in the file, dict
records    encoded key and value                   the pairs that a stage wrote
raw        ``url`` and ``content``, a row a file   URL, bytes
=========  ======================================  ==================================================

Batches of one source all have the schema that ``read_schema`` returns.  Offsets count uncompressed bytes.
Every error is a ``BadInput`` that names the file, and the byte or column where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from mapreduce.errors import BadInput
from mapreduce.pieces import RECORD_BLOCK_BYTES, Piece, Split, ignore, piece_lines, read_whole
from mapreduce.sources import InputFile, Source, list_files
from mapreduce.splits import plan_splits
from mapreduce.text import BOM, LINE_SCHEMA, decode_lines, lines_batch, overlaps_itself, read_lines

__all__ = [
    "InputFile",
    "Piece",
    "Source",
    "Split",
    "ignore",
    "list_files",
    "plan_splits",
    "read_batches",
    "read_records",
    "read_schema",
    "say_records",
]

BLOCK_BYTES = 4 << 20
"""Blocks that stay in the processor's cache from reading to cutting: half the time of 16 MiB blocks."""
SMALL_FILE_BYTES = 1 << 16
RAW_SCHEMA = pa.schema([("url", pa.string()), ("content", pa.binary())])


def read_schema(source: Source, *, files: Sequence[InputFile] | None = None) -> pa.Schema:
    """Return the schema of a source's batches, from the heads or footers of its files.

    ``files`` are those of ``list_files(source)``, when the caller has them.  Records of JSON lines need no
    schema, and may hold values that have none.

    Raises:
        MissingInput: as ``plan_splits``.
        BadInput: a file is not in its format, or a column has types that cannot be one; both are named.
    """
    if source.schema is not None:
        return source.schema
    files = list_files(source) if files is None else files
    if files[0].format == "text":
        return LINE_SCHEMA
    if files[0].format == "raw":
        return RAW_SCHEMA
    from mapreduce.tables import read_table_schema

    return read_table_schema(source, files)


def read_batches(
    split: Split,
    source: Source,
    *,
    columns: Sequence[str] | None = None,
    block_bytes: int = BLOCK_BYTES,
    counted: Callable[[int], None] = ignore,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in batches of about ``block_bytes``, in order, with the source's schema.

    ``columns`` picks columns, in the order given.  ``counted`` is told the bytes read, as they are in the
    file.  A table format with ``source.schema`` None looks at all files again to find the schema: call
    ``read_schema`` once and put it into the source.
    """
    if not split.pieces:
        return
    kind = split.pieces[0].format
    if kind == "text":
        batches = _text_batches(split, source, block_bytes, counted)
    elif kind == "raw":
        batches = (_raw_batch(piece, source, counted) for piece in split.pieces)
    else:
        from mapreduce.tables import read_tables

        schema = read_schema(source)
        if columns is not None:
            for name in columns:
                if name not in schema.names:
                    known = ", ".join(schema.names)
                    raise BadInput(
                        f"{split.pieces[0].url}: there is no column {name!r}; the columns are {known}"
                    )
            schema = pa.schema([schema.field(name) for name in columns])
        yield from read_tables(split, source, schema, block_bytes, counted)
        return
    for batch in batches:
        yield batch if columns is None else batch.select(list(columns))


def read_records(
    split: Split,
    source: Source,
    *,
    counted: Callable[[int], None] = ignore,
    skipped: Callable[[int], None] = ignore,
) -> Iterator[tuple[Iterable[Any], list[Any]]]:
    """Yield chunks of (keys, values), equally many of both, in order.

    ``skipped`` is told how many blank lines of JSON lines were left out.

    Raises:
        BadEncoding: text that is no UTF-8 with ``errors="strict"``.
    """
    if not split.pieces:
        return
    kind = split.pieces[0].format
    if kind == "text":
        for piece, lines in piece_lines(split, source, RECORD_BLOCK_BYTES, counted):
            yield lines.file_offsets(), decode_lines(lines, url=piece.url, errors=source.errors)
    elif kind == "raw":
        for piece in split.pieces:
            yield [piece.url], [read_whole(piece, source, counted)]
    else:
        from mapreduce.tables import read_table_records

        yield from read_table_records(split, source, counted, skipped)


def say_records(piece: Piece) -> str:
    """Return in words what a function of a record stage is given of a file, and why."""
    row = "(row number, dict of columns)"
    kinds = {
        "text": "(byte offset, line as str)", "csv": row, "parquet": row, "arrow": row,
        "jsonl": "(byte offset, JSON value)", "raw": "(URL, bytes)",
    }  # fmt: skip
    if piece.format not in kinds:
        return ""
    other = "; --format text gives lines" if piece.format in ("csv", "jsonl") else ""
    return f"records of {piece.url} are {kinds[piece.format]}, since it is read as {piece.format}{other}"


def _text_batches(
    split: Split, source: Source, block_bytes: int, counted: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    may_join = not overlaps_itself(source.delimiter)

    def is_small(piece: Piece) -> bool:
        return may_join and piece.whole and piece.compression is None and piece.file_bytes <= SMALL_FILE_BYTES

    for small, pieces in groupby(split.pieces, is_small):
        if small:
            joined = _Joined(list(pieces), source, counted)
            for lines in read_lines(
                joined,
                url=split.describe(),
                start=0,
                stop=None,
                delimiter=source.delimiter,
                block_bytes=block_bytes,
            ):
                yield lines_batch(lines)
        else:
            part = Split(index=split.index, pieces=tuple(pieces), bytes=0)
            for _, lines in piece_lines(part, source, block_bytes, counted):
                yield lines_batch(lines)


class _Joined:
    """Small files as one file, each with a delimiter at its end and without a byte order mark.

    Thousands of files then cost one batch, not one each.
    """

    def __init__(self, pieces: list[Piece], source: Source, counted: Callable[[int], None]) -> None:
        self._contents = (read_whole(piece, source, counted) for piece in pieces)
        self._delimiter = source.delimiter
        self._rest = b""

    def readinto(self, buffer: memoryview) -> int:
        filled = 0
        while filled < len(buffer):
            if not self._rest:
                content = next(self._contents, None)
                if content is None:
                    break
                content = content.removeprefix(BOM)
                if content and not content.endswith(self._delimiter):
                    content += self._delimiter
                self._rest = content
            part = self._rest[: len(buffer) - filled]
            buffer[filled : filled + len(part)] = part
            self._rest = self._rest[len(part) :]
            filled += len(part)
        return filled


def _raw_batch(piece: Piece, source: Source, counted: Callable[[int], None]) -> pa.RecordBatch:
    return pa.record_batch([[piece.url], [read_whole(piece, source, counted)]], schema=RAW_SCHEMA)
