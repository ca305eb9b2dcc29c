"""JSON lines: one JSON value per line, blank lines between them allowed.

As records the values may be anything JSON has, with Python's exact integers.  As batches each line is an
object and a column has one type, found out from the first MiB of each file; strings that look like times stay
strings.  Lines end at line feeds alone: U+2028, U+2029 and U+0085 are characters inside a string.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.json

from mapreduce.errors import BadInput, BadJob
from mapreduce.files import first_line
from mapreduce.pieces import RECORD_BLOCK_BYTES, Piece, Split, ignore, piece_lines, whole_piece
from mapreduce.schemas import conform, inexact_integer, may_be_inexact
from mapreduce.sources import InputFile, Source
from mapreduce.text import Lines, decode_lines

HEAD_BYTES = 1 << 20
UNREADABLE = (ValueError, RecursionError)
"""What Python's parser raises; the second for values nested some thousand levels deep."""


def read_values(
    split: Split, source: Source, counted: Callable[[int], None], skipped: Callable[[int], None]
) -> Iterator[tuple[Iterable[int], list[Any]]]:
    """Yield chunks of (byte offsets, values)."""
    for piece, lines in piece_lines(split, source, RECORD_BLOCK_BYTES, counted, b"\n"):
        offsets, texts = _filled(lines, piece, source, skipped)
        try:
            yield offsets, [json.loads(text) for text in texts]
        except UNREADABLE:
            raise _bad_line(offsets, texts, piece) from None


def _filled(
    lines: Lines, piece: Piece, source: Source, skipped: Callable[[int], None]
) -> tuple[list[int], list[str]]:
    """Return the offsets and texts of the lines that are not blank."""
    offsets = lines.file_offsets()
    texts = decode_lines(lines, url=piece.url, errors=source.errors)
    filled = [bool(text.strip(" \t\r")) for text in texts]
    blank = filled.count(False)
    if blank:
        skipped(blank)
        offsets = [offset for offset, keep in zip(offsets, filled, strict=True) if keep]
        texts = [text for text, keep in zip(texts, filled, strict=True) if keep]
    return offsets, texts


def _bad_line(offsets: list[int], texts: list[str], piece: Piece) -> BadInput:
    for offset, text in zip(offsets, texts, strict=True):
        try:
            json.loads(text)
        except UNREADABLE as error:
            return BadInput(f"{piece.url}: the line at byte {offset} is no JSON: {first_line(error)}")
    return BadInput(f"{piece.url}: a line after byte {offsets[0]} is no JSON object")


def file_schema(file: InputFile, source: Source) -> pa.Schema:
    """Return the fields of the objects in the first MiB of a file."""
    piece = whole_piece(file)
    split = Split(index=0, pieces=(piece,), bytes=0)
    for _, lines in piece_lines(split, source, HEAD_BYTES, ignore, b"\n"):
        table = _parsed(lines, piece, source, None)
        if table is not None:
            fields = []
            for name, column in zip(table.schema.names, table.columns, strict=True):
                type = _without_times(column.type)
                if pa.types.is_floating(type) and may_be_inexact(column):
                    _check_exact(lines, piece, source, name)
                fields.append(pa.field(name, type))
            return pa.schema(fields)
    return pa.schema([])


def _without_times(type: pa.DataType) -> pa.DataType:
    """JSON has no times: what Arrow takes for one stays the string it is."""
    if pa.types.is_temporal(type):
        return pa.string()
    if pa.types.is_list(type):
        return pa.list_(_without_times(type.value_type))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(field.name, _without_times(field.type)) for field in type])
    return type


def read_piece(
    piece: Piece, source: Source, schema: pa.Schema, block_bytes: int, counted: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece with the columns of ``schema``."""
    split = Split(index=0, pieces=(piece,), bytes=0)
    for _, lines in piece_lines(split, source, block_bytes, counted, b"\n"):
        table = _parsed(lines, piece, source, schema)
        if table is None:
            continue
        for field, column in zip(table.schema, table.columns, strict=True):
            if pa.types.is_floating(field.type) and may_be_inexact(column):
                _check_exact(lines, piece, source, field.name)
        for batch in table.to_batches():
            yield conform(batch, schema, piece.url)


def _parsed(lines: Lines, piece: Piece, source: Source, schema: pa.Schema | None) -> pa.Table | None:
    """Return the lines as a table; None when all of them are blank."""
    if source.errors == "surrogateescape":
        raise BadJob(
            "errors=surrogateescape is for text; Arrow has no place for such strings: use replace or ignore"
        )
    offsets, texts = _filled(lines, piece, source, ignore)
    if not texts:
        return None
    block = "\n".join(texts).encode("utf-8", "surrogatepass")
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        raise _explained(error, offsets, texts, piece) from None
    if table.num_rows != len(texts):  # Arrow takes several objects in a line, or one over several lines
        raise _bad_line(offsets, texts, piece)
    return table


def _explained(error: pa.ArrowInvalid, offsets: list[int], texts: list[str], piece: Piece) -> BadInput:
    for offset, text in zip(offsets, texts, strict=True):
        try:
            value = json.loads(text)
        except UNREADABLE:
            return _bad_line(offsets, texts, piece)
        if not isinstance(value, dict):
            return BadInput(
                f"{piece.url}: the line at byte {offset} is {text[:40]}, not an object with fields; "
                "batches need columns: read such files by a stage with map="
            )
    return BadInput(
        f"{piece.url}: from byte {offsets[0]} on a field has not one type: {first_line(error)}; "
        "mend the file, or read it by a stage with map="
    )


def _check_exact(lines: Lines, piece: Piece, source: Source, name: str) -> None:
    _, texts = _filled(lines, piece, source, ignore)
    values = (json.loads(text, parse_int=str, parse_float=lambda text: None).get(name) for text in texts)
    found = inexact_integer(value if isinstance(value, str) else None for value in values)
    if found is not None:
        raise BadInput(
            f"{piece.url}: column {name!r} is double, which cannot hold {found} exactly; write it as a string"
        )
