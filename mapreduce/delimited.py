"""CSV: fields between commas or another separator, names in the first line, quotes as in RFC 4180.

A quoted field may hold line feeds, and where a row ends then depends on all the bytes before.  So a file is
cut only when it has no quote, no blank line and no carriage return inside a line, which a scan finds out; any
other file is one piece.  Either way the rows are the same at every split size.

A column is ``int64``, ``double``, ``bool`` or ``string``, by its first 4 MiB.  Later text that does not fit
is an error that names file, column and row, never a null.  An empty field, ``NA``, ``N/A`` and ``NULL`` are
null in columns of numbers and booleans; strings are never null.  ``types=string`` takes all columns as they
are written.  A file that holds only its header says nothing about types (``schemas`` does).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from mapreduce.errors import BadInput, BadJob
from mapreduce.files import CountedReader, first_line, open_decompressed
from mapreduce.formats import guess_separator, parse_format, separator_name
from mapreduce.pieces import Piece, check_head, ignore, reading, whole_piece
from mapreduce.schemas import NO_ROWS, inexact_integer, may_be_inexact
from mapreduce.sources import InputFile, Source
from mapreduce.text import BOM, ENCODING_BYTES, bad_encoding, read_lines

HEAD_BYTES = 4 << 20
SMALLEST_BLOCK_BYTES = 1 << 20
"""A row must fit into a block, so blocks are not smaller than this."""
LARGEST_BLOCK_BYTES = 1 << 29
SEPARATOR_BYTES = 1 << 16
SEPARATOR_LINES = 10
"""So much of a file of one column is looked at for another separator."""
NULLS = ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null"]


class _Bytes(io.RawIOBase):
    """Chunks of bytes as a file that ends in a line feed.

    Bytes that are no UTF-8 are replaced or left out first, when ``errors`` asks for it.
    """

    def __init__(self, chunks: Iterator[bytes], errors: str) -> None:
        super().__init__()
        self._chunks = chunks if errors == "strict" else _repaired(chunks, errors)
        self._rest = memoryview(b"")
        self._last = b"\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        filled = 0
        while filled < len(buffer):
            if not self._rest:
                chunk = next(self._chunks, b"")
                if not chunk:
                    if self._last == b"\n":
                        break
                    chunk = b"\n"
                self._rest = memoryview(chunk)
                self._last = chunk[-1:]
            part = self._rest[: len(buffer) - filled]
            buffer[filled : filled + len(part)] = part
            self._rest = self._rest[len(part) :]
            filled += len(part)
        return filled


def _repaired(chunks: Iterator[bytes], errors: str) -> Iterator[bytes]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    for chunk in chunks:
        yield decoder.decode(chunk).encode()
    yield decoder.decode(b"", final=True).encode()


def _chunks(file: Any, piece: Piece, source: Source, block_bytes: int) -> Iterator[bytes]:
    if piece.whole:
        begins = piece.compression is not None  # else the plan has looked at the beginning
        while chunk := bytes(file.read(block_bytes)):
            if begins:
                begins = False
                check_head(chunk[:ENCODING_BYTES], piece, source)
            yield chunk
        return
    for lines in read_lines(file, url=piece.url, start=piece.start, stop=piece.stop, block_bytes=block_bytes):
        yield bytes(lines.data[: lines.size])


def _open(
    chunks: Iterator[bytes],
    piece: Piece,
    source: Source,
    block_bytes: int,
    options: pyarrow.csv.ConvertOptions,
) -> pyarrow.csv.CSVStreamingReader | None:
    """Start to parse; None when there is not even a header."""
    if source.errors == "surrogateescape":
        raise BadJob(
            "errors=surrogateescape is for text; columns cannot hold such strings: use replace or ignore"
        )
    first = next(chunks, b"")
    if not first.removeprefix(BOM).strip(b"\r\n"):
        rest = next(chunks, b"")
        if not rest:
            return None
        first += rest
    return pyarrow.csv.open_csv(
        _Bytes(_chain(first, chunks), source.errors),
        pyarrow.csv.ReadOptions(
            block_size=block_bytes,
            use_threads=False,
            column_names=piece.columns if piece.start else None,
        ),
        pyarrow.csv.ParseOptions(delimiter=piece.separator, newlines_in_values=True),
        options,
    )


def _chain(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from chunks


def _options(types: dict[str, pa.DataType], columns: Sequence[str] | None) -> pyarrow.csv.ConvertOptions:
    return pyarrow.csv.ConvertOptions(
        column_types=types,
        include_columns=columns,
        include_missing_columns=columns is not None,
        null_values=NULLS,
        strings_can_be_null=False,
    )


def file_schema(file: InputFile, source: Source) -> pa.Schema:
    """Return the names in a file's header with the types of its first 4 MiB, null where there is no row."""
    piece = whole_piece(file)
    head = _first_batch(piece, source, _options({}, None))
    if head is None:
        return NO_ROWS
    if head.num_columns == 1:
        _check_separator(piece, source)
    if source.format is not None and parse_format(source.format).is_untyped:
        return pa.schema([(name, pa.string()) for name in head.schema.names])
    if not head.num_rows:
        return head.schema.with_metadata(NO_ROWS.metadata)
    types = {}
    for name, column in zip(head.schema.names, head.columns, strict=True):
        type = column.type
        if pa.types.is_binary(type):
            raise _no_utf8(piece, source)
        if pa.types.is_temporal(type):
            type = pa.string()
        elif pa.types.is_floating(type) and may_be_inexact(column):
            # Numbers beyond int64 are identifiers more often than quantities: keep their digits.
            texts = _first_batch(piece, source, _options({name: pa.string()}, [name]))
            assert texts is not None
            wholes = [text for text in texts.column(0).to_pylist() if text not in NULLS]
            if all(re.fullmatch(r"[+-]?\d+", text) for text in wholes):
                type = pa.string()
        types[name] = type
    if len(types) < head.num_columns:
        return head.schema  # a name twice: the caller says so
    return pa.schema(list(types.items()))


def _check_separator(piece: Piece, source: Source) -> None:
    """Refuse a file of one column that another separator cuts into several, unless the user has named his."""
    if source.format is not None and parse_format(source.format).is_stated:
        return
    with (
        open_decompressed(piece.url, piece.compression, source.storage_options, ignore) as file,
        reading(piece),
    ):
        head = bytes(file.read(SEPARATOR_BYTES))
    lines = head.removeprefix(BOM).decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    if len(lines) > 1 and len(head) == SEPARATOR_BYTES:
        lines.pop()  # may be cut short
    separator = guess_separator(lines[:SEPARATOR_LINES], piece.separator)
    if separator is not None:
        this = separator_name(piece.separator).removeprefix("csv:sep=")
        raise BadInput(
            f"{piece.url}: read as {this}, it has one column named {lines[0][:60]!r}: is the separator"
            f" {separator!r}? give --format '{separator_name(separator)}' (format=), or"
            f" 'csv:sep={_escaped(piece.separator)}' if it is one column"
        )


def _escaped(separator: str) -> str:
    return separator.replace("\t", r"\t")


def _first_batch(piece: Piece, source: Source, options: pyarrow.csv.ConvertOptions) -> pa.RecordBatch | None:
    block_bytes = HEAD_BYTES
    while True:
        with (
            open_decompressed(piece.url, piece.compression, source.storage_options, ignore) as file,
            reading(piece),
        ):
            try:
                reader = _open(_chunks(file, piece, source, block_bytes), piece, source, block_bytes, options)
                if reader is None:
                    return None
                with reader:
                    return next(iter(reader), pa.RecordBatch.from_pylist([], schema=reader.schema))
            except UnicodeDecodeError:  # in the header
                raise _no_utf8(piece, source) from None
            except pa.ArrowInvalid as error:
                if "straddling" not in str(error) or block_bytes >= LARGEST_BLOCK_BYTES:
                    _check_separator(piece, source)
                    raise BadInput(f"{piece.url}: this is no CSV: {first_line(error)}") from error
        block_bytes *= 8


def read_piece(
    piece: Piece, source: Source, schema: pa.Schema, block_bytes: int, counted: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece with the columns of ``schema``."""
    block_bytes = max(block_bytes, SMALLEST_BLOCK_BYTES)
    options = _options({field.name: field.type for field in schema}, schema.names)
    doubles = [number for number, field in enumerate(schema) if pa.types.is_floating(field.type)]
    rows = 0
    while True:
        skip = rows  # delivered before the blocks were made larger
        quotes = 0

        def watched(chunks: Iterator[bytes]) -> Iterator[bytes]:
            nonlocal quotes
            for chunk in chunks:
                quotes += chunk.count(b'"')
                yield chunk

        with (
            open_decompressed(piece.url, piece.compression, source.storage_options, counted) as file,
            reading(piece),
        ):
            try:
                chunks = watched(_chunks(file, piece, source, block_bytes))
                reader = _open(chunks, piece, source, block_bytes, options)
                if reader is None:
                    return
                last: pa.RecordBatch | None = None
                for batch in reader:
                    last = batch if batch.num_rows else last
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    batch, skip = batch.slice(skip), 0
                    rows += batch.num_rows
                    for number in list(doubles):
                        if may_be_inexact(batch.column(number)):
                            _check_exact(piece, source, schema.field(number).name, block_bytes)
                            doubles.remove(number)
                    yield batch
                if quotes % 2 and last is not None:
                    _check_closed(piece, last, rows)
                return
            except pa.ArrowInvalid as error:
                if "straddling" in str(error) and block_bytes < LARGEST_BLOCK_BYTES:
                    pass  # a row is longer than a block: start again with larger ones
                elif "invalid UTF8" in str(error):
                    raise _no_utf8(piece, source) from error
                else:
                    raise BadInput(f"{piece.url}: {_explained(error, schema)}") from error
        block_bytes *= 8


def _check_closed(piece: Piece, batch: pa.RecordBatch, rows: int) -> None:
    """Refuse a file with an odd number of quotes whose last field goes on to its end: a quote was never closed."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        text = column[-1].as_py() if pa.types.is_string(field.type) else None
        if text is not None and text.endswith("\n"):
            raise BadInput(
                f"{piece.url}: the quote that opens column {field.name!r} of row {rows} is never closed:"
                f" {text[:40]!r}; mend it, or double a quote that is data"
            )


def _explained(error: pa.ArrowInvalid, schema: pa.Schema) -> str:
    text = first_line(error)
    found = re.search(r"In CSV column #(\d+): (.*)", text)
    if found:
        index = int(found[1])
        name = repr(schema.names[index]) if index < len(schema) else f"number {index}"
        return (
            f"column {name}: {found[2]}; its type was taken from the beginning of the file: "
            "take all columns as text (--format csv:types=string), or mend the value"
        )
    return f"this is no CSV: {text}"


def _no_utf8(piece: Piece, source: Source) -> BadInput:
    offset = 0
    with open_decompressed(piece.url, piece.compression, source.storage_options, ignore) as file:
        for lines in read_lines(file, url=piece.url, start=0, stop=None):
            data = bytes(lines.data[: lines.size])
            offset = lines.offset
            try:
                data.decode()
            except UnicodeDecodeError:
                return bad_encoding(data, piece.url, offset)
    return bad_encoding(b"", piece.url, offset)


def _check_exact(piece: Piece, source: Source, name: str, block_bytes: int) -> None:
    """Refuse a column of doubles whose text has whole numbers that no double is."""
    options = _options({name: pa.string()}, [name])
    with (
        open_decompressed(piece.url, piece.compression, source.storage_options, ignore) as file,
        reading(piece),
    ):
        for batch in (
            _open(_chunks(file, piece, source, block_bytes), piece, source, block_bytes, options) or ()
        ):
            found = inexact_integer(batch.column(0).to_pylist())
            if found is not None:
                raise BadInput(
                    f"{piece.url}: column {name!r} is double, which cannot hold {found} exactly; "
                    "take all columns as text (--format csv:types=string), or separate the whole numbers from the fractions"
                )


def scan_csv(
    file: InputFile, source: Source, cuts: Sequence[int]
) -> tuple[tuple[str, ...], list[int]] | None:
    """Return the names of the columns and the first row of each piece; None when the file must stay whole."""
    columns: tuple[str, ...] = ()
    inner = np.array(cuts[1:-1])
    before = np.zeros(len(inner), np.int64)  # line feeds before each cut
    last = -1  # place of the last line feed
    has_returns = False
    offset = 0
    data = bytearray(16 << 20)
    with CountedReader(file.url, source.storage_options, ignore) as reader:
        while size := reader.readinto(data):
            if data.find(b'"', 0, size) >= 0:
                return None
            block = np.frombuffer(data, np.uint8)[:size]
            feeds = np.flatnonzero(block == 10) + offset
            if data.find(b"\r", 0, size) >= 0:
                returns = np.flatnonzero(block == 13) + offset
                if returns[-1] == offset + size - 1 or not np.isin(returns + 1, feeds).all():
                    return None
                has_returns = True
            if len(feeds):
                if not offset:
                    head = bytes(data[: feeds[0]]).removeprefix(BOM)
                    errors = "strict" if source.errors == "surrogateescape" else source.errors
                    try:
                        columns = tuple(
                            head.removesuffix(b"\r").decode("utf-8", errors).split(file.separator)
                        )
                    except UnicodeDecodeError:
                        raise bad_encoding(head, file.url, 0) from None
                gaps = np.diff(feeds, prepend=last)
                if gaps.min() <= (2 if has_returns else 1):
                    return None  # a blank line, which would count as a line but not as a row
                last = int(feeds[-1])
            elif not offset:
                return None  # a header longer than a block
            before += np.searchsorted(feeds, inner)
            offset += size
    # Records that begin up to a cut belong to the pieces before it; the header is no row.
    return columns, [0, *before.tolist()]
