"""Tables, whatever their format: CSV, JSON lines, Parquet, Arrow, and the encoded records between stages.

How each format is read is in ``delimited`` (CSV), ``jsonlines`` and ``columnar`` (Parquet, Arrow), which load
when a file of theirs turns up; how columns of several files become one schema is in ``schemas``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa

from mapreduce.pieces import RECORD_BLOCK_BYTES, Piece, Split
from mapreduce.schemas import unify
from mapreduce.sources import InputFile, Source, list_files
from mapreduce.text import check_encoding

COLUMNAR = ("parquet", "arrow", "records")
"""Formats that are cut between row groups or batches, not at bytes."""


def _reader(format: str) -> ModuleType:
    if format == "csv":
        from mapreduce import delimited

        return delimited
    if format == "jsonl":
        from mapreduce import jsonlines

        return jsonlines
    from mapreduce import columnar

    return columnar


def cut_rows(file: InputFile, source: Source, target: int) -> Iterator[Piece]:
    """Yield the pieces of a columnar file, of about ``target`` bytes each."""
    from mapreduce import columnar

    return columnar.cut_rows(file, source, target)


def scan_csv(
    file: InputFile, source: Source, cuts: Sequence[int]
) -> tuple[tuple[str, ...], list[int]] | None:
    """Return the columns of a CSV file and the first row behind each cut; None when it must stay whole."""
    from mapreduce import delimited

    return delimited.scan_csv(file, source, cuts)


def read_table_schema(source: Source, files: Sequence[InputFile] | None = None) -> pa.Schema:
    """Return one schema for all files of a source, or the one that it declares.

    Raises:
        BadInput: a column's types cannot be one; the column and both files are named.
    """
    if source.schema is not None:
        return source.schema
    files = list_files(source) if files is None else files
    for file in files:
        check_encoding(file.encoding, file.url, source.errors)
    reader = _reader(files[0].format)
    return unify((file.url, reader.file_schema(file, source)) for file in files)


def read_tables(
    split: Split, source: Source, schema: pa.Schema, block_bytes: int, counted: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split with ``schema``, in order, in batches of about ``block_bytes``."""
    for piece in split.pieces:
        yield from _reader(piece.format).read_piece(piece, source, schema, block_bytes, counted)


def read_table_records(
    split: Split, source: Source, counted: Callable[[int], None], skipped: Callable[[int], None]
) -> Iterator[tuple[Iterable[Any], list[Any]]]:
    """Yield the rows of a split as chunks of (keys, values), as ``inputs.read_records`` describes."""
    kind = split.pieces[0].format
    if kind == "jsonl":
        from mapreduce.jsonlines import read_values

        yield from read_values(split, source, counted, skipped)
        return
    if kind == "records":
        from mapreduce.records import RECORD_SCHEMA, to_pairs

        for batch in read_tables(split, source, RECORD_SCHEMA, RECORD_BLOCK_BYTES, counted):
            pairs = to_pairs(batch)
            yield [key for key, _ in pairs], [value for _, value in pairs]
        return
    schema = read_table_schema(source)
    for piece in split.pieces:
        row = piece.first_row
        for batch in _reader(kind).read_piece(piece, source, schema, RECORD_BLOCK_BYTES, counted):
            yield range(row, row + batch.num_rows), batch.to_pylist()
            row += batch.num_rows
