"""Print an output as bytes, whatever its format.

Text, CSV and JSON lines come out as they are in their files, decompressed, one part after the other; the
header of CSV appears once.  Parquet and Arrow become CSV with a header, or JSON lines if a column is
nested.  The records between stages become text.  It reads through fsspec, so the output may lie anywhere.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mapreduce.files import open_decompressed
from mapreduce.inputs import (
    InputFile,
    Source,
    list_files,
    plan_splits,
    read_batches,
    read_records,
    read_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 20


def print_output(url: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the bytes of all records of an output.

    Raises:
        MissingInput: nothing is there.
        BadInput: a part is damaged.
    """
    source = Source(urls=(url,), storage_options=storage_options or {})
    files = list_files(source)
    kind = files[0].format
    if kind in ("text", "csv", "jsonl"):
        for number, file in enumerate(files):
            blocks = _blocks(file, source)
            yield from _without_first_line(blocks) if kind == "csv" and number else blocks
    elif kind == "records":
        for keys_and_values in _records(source):
            yield b"".join(keys_and_values)
    else:
        yield from _tables(source)


def print_head(url: str, count: int, storage_options: Mapping[str, Any] | None = None) -> Iterator[bytes]:
    """Yield the bytes of the first ``count`` records of an output; the header of a table comes on top.

    Raises:
        MissingInput, BadInput: as ``print_output``.
    """
    source = Source(urls=(url,), storage_options=storage_options or {})
    kind = list_files(source)[0].format
    if kind in ("parquet", "arrow"):
        yield from _tables(source, count)
        return
    wanted = count + (kind == "csv")
    quotes = 0
    for line in _lines(print_output(url, storage_options)):
        if wanted <= 0:
            return
        yield line
        # A line feed between quotes is part of a field: a row is over where the quotes are even.
        quotes += line.count(b'"') if kind == "csv" else 0
        wanted -= quotes % 2 == 0


def _blocks(file: InputFile, source: Source) -> Iterator[bytes]:
    from mapreduce.errors import BadInput

    def ignore(count: int) -> None:
        pass

    with open_decompressed(file.url, file.compression, source.storage_options, ignore) as opened:
        while True:
            try:
                block = opened.read(BLOCK_BYTES)
            except (OSError, ValueError) as error:
                raise BadInput(f"{file.url}: cannot read this: {error}") from error
            if not block:
                return
            yield bytes(block)


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


def _without_first_line(blocks: Iterator[bytes]) -> Iterator[bytes]:
    skipping = True
    for block in blocks:
        if skipping:
            _, found, block = block.partition(b"\n")
            skipping = not found
        yield block


def _records(source: Source) -> Iterator[list[bytes]]:
    for split in plan_splits(source, split_bytes=64 << 20):
        for keys, values in read_records(split, source):
            yield [
                _field(key) + b"\t" + _field(value) + b"\n" for key, value in zip(keys, values, strict=True)
            ]


def _field(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    return ("" if value is None else str(value)).encode("utf-8", "surrogateescape")


def _tables(source: Source, count: int | None = None) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.csv

    schema = read_schema(source)
    nested = any(pa.types.is_nested(field.type) for field in schema)
    buffer = io.BytesIO()
    writer = None if nested else pyarrow.csv.CSVWriter(buffer, schema)
    for batch in _batches(source, schema, count):
        if writer is None:
            rows = (json.dumps(row, default=str, ensure_ascii=False) for row in batch.to_pylist())
            yield "".join(f"{row}\n" for row in rows).encode()
            continue
        writer.write_batch(batch)
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    if writer is not None:
        writer.close()
        yield buffer.getvalue()  # the header, where there is no row


def _batches(source: Source, schema: pa.Schema, count: int | None) -> Iterator[pa.RecordBatch]:
    left = count
    for split in plan_splits(source, split_bytes=64 << 20):
        for batch in read_batches(split, source):
            if left is not None:
                if left <= 0:
                    return
                batch = batch.slice(0, left)
                left -= batch.num_rows
            yield batch
