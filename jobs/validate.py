"""The verdict on a sort, in three parts, as TeraValidate gives it.

An output is valid when its records are in order inside each part, in order from part to part (by name), and
are the input's records: the same number with the same checksum, the 128-bit sum of a 64-bit fingerprint of
each record.  The checksum does not depend on the order, and it changes with a record lost, added or altered
(but not when two changes cancel out, which random damage does once in 2**64).

Records are lines, with the ends the reader gives them (LF, or CR LF), or the rows of a table, whose columns
are matched by name. The two sides may have different formats; a value must then be one that both can hold
(a null of text is none in CSV). Where one side is text and the other a table, the table is judged as the
lines that ``mr run`` writes for its rows. Each side is read once, in blocks. For lines the code shares
nothing with the sort but finding, opening and decompressing files. Rows are Python objects, read by the
readers of ``mr run`` and compared by the documented order of keys.
"""

from __future__ import annotations

import io
import itertools
import operator
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.fingerprints import WORD_BYTES, Block, add_up, fingerprints, first_out_of_order
from jobs.sort_key import ColumnsOfLines, SortKey
from mapreduce.errors import BadInput, BadJob
from mapreduce.files import open_decompressed
from mapreduce.inputs import plan_splits, read_batches, read_records, read_schema
from mapreduce.keys import encode_key
from mapreduce.line_writer import TextWriter
from mapreduce.sources import InputFile, Source, list_files

BLOCK_BYTES = 1 << 20
"""Small enough for the processor's cache: the arrays of a block are gone over once for every 8 bytes of a line."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether an output is its input, sorted; ``fault`` says where it first fails to be."""

    fault: str | None
    records: int
    checksum: int
    parts: int

    @property
    def valid(self) -> bool:
        """Return whether all three parts of the verdict are good."""
        return self.fault is None

    def describe(self) -> str:
        """Return the verdict in one line."""
        if self.fault is not None:
            return f"invalid: {self.fault}"
        parts = "1 part" if self.parts == 1 else f"{self.parts} parts"
        records = "1 record" if self.records == 1 else f"{self.records:,} records"
        return f"valid: {records} in {parts}, in order, checksum {self.checksum:032x} as input"


def validate(
    input_url: str, output_url: str, key: SortKey | None = None, *, format: str | None = None
) -> Verdict:
    """Compare ``output_url`` with the input it was sorted from; both are a file, a folder or a pattern.

    Compressed files are read as such; names below a folder that begin with ``_`` or ``.`` are no part of
    it.  ``format`` None goes by the names of the files.  The verdict's ``records`` and ``checksum`` are the
    output's.

    Raises:
        MissingInput: one of the two does not exist or holds no file.
        BadInput: a file cannot be read, or is raw.
        BadJob: the key does not fit the records: columns for lines, or none for rows.
    """
    sources = _Side(input_url, format)
    parts = _Side(output_url, format)
    key = key or SortKey()
    # What was a table and is text now is judged as the lines that `mr run` writes for its rows.
    for table, other in ((sources, parts), (parts, sources)):
        if table.format in ("csv", "jsonl", "parquet", "arrow") and other.format == "text":
            key = table.as_lines(key)
    for side in (sources, parts):
        side.check(key)
    order = _Order(key)
    records = checksum = 0
    fault: str | None = None
    for part in parts.files:
        number = 0
        for batch in parts.read(part, key):
            if fault is None:
                fault = order.fault(batch, part.url, number)
            number += batch.count
            checksum += batch.checksum
        records += number
    expected = expected_checksum = 0
    # An output out of order is invalid whatever the input holds.
    for source in sources.files if fault is None else ():
        for batch in sources.read(source, key):
            expected += batch.count
            expected_checksum += batch.checksum
    checksum, expected_checksum = checksum % 2**128, expected_checksum % 2**128
    if fault is None and records != expected:
        fault = f"{output_url} has {records:,} records, {input_url} has {expected:,}"
    if fault is None and checksum != expected_checksum:
        fault = (
            f"{output_url} has as many records as {input_url} ({records:,}) but not the same ones: "
            f"checksum {checksum:032x} instead of {expected_checksum:032x}"
        )
    return Verdict(fault=fault, records=records, checksum=checksum, parts=len(parts.files))


class _Lines:
    """Lines of one block; what the verdict needs of them is found out when it is asked for."""

    def __init__(self, block: Block, key: SortKey) -> None:
        self._block = block
        self._key = key
        self.count = len(block.starts)

    @property
    def checksum(self) -> int:
        return add_up(fingerprints(self._block))

    def key_of(self, number: int) -> Any:
        line = self._block.line(number)
        return line if self._key.field is None else self._key.of(line)

    def show(self, number: int) -> str:
        return _shown(self._block.line(number).decode(errors="backslashreplace"))

    def first_wrong(self) -> int | None:
        if self._key.field is None:
            return first_out_of_order(self._block, descending=self._key.descending)
        return _first_wrong([self._key.of(line) for line in self._block.lines()], self._key.descending)


class _Rows:
    """Some rows of a table, or pairs of keys and values."""

    def __init__(self, rows: list[Any], keys: list[bytes], key: SortKey) -> None:
        self._rows = rows
        self._keys = keys
        self._descending = key.descending
        self.count = len(rows)

    @property
    def checksum(self) -> int:
        # Twice 32 bits, of the text and of the text reversed.
        texts = [repr(_plain(row)).encode("utf-8", "surrogatepass") for row in self._rows]
        return sum(zlib.crc32(text) << 32 | zlib.crc32(text[::-1]) for text in texts)

    def key_of(self, number: int) -> Any:
        return self._keys[number]

    def show(self, number: int) -> str:
        return _shown(repr(self._rows[number]))

    def first_wrong(self) -> int | None:
        return _first_wrong(self._keys, self._descending)


def _plain(value: Any) -> Any:
    """Return a value as every format gives it: a whole float as an integer, no null columns, columns by name."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in sorted(value) if value[name] is not None}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _first_wrong(keys: list[Any], descending: bool) -> int | None:
    in_order = operator.ge if descending else operator.le
    if all(map(in_order, keys, keys[1:])):
        return None
    return next(i for i, pair in enumerate(itertools.pairwise(keys), 1) if not in_order(*pair))


class _Side:
    """The files of the input or of the output, and how they are read."""

    def __init__(self, url: str, format: str | None) -> None:
        self._source = Source(urls=(url,), format=format)
        self.files = sorted(list_files(self._source), key=lambda file: file.url)
        self.format = self.files[0].format
        if self.format in ("csv", "parquet", "arrow"):
            self._source = replace(self._source, schema=read_schema(self._source, files=self.files))

    def as_lines(self, key: SortKey) -> SortKey:
        """Have the rows of this table read as lines; returns a key for those, of the columns or fields of ``key``."""
        self._source = replace(self._source, schema=read_schema(self._source, files=self.files))
        assert self._source.schema is not None
        fields = {field.name: field.type for field in self._source.schema}
        if (key.columns or len(fields) > 1) and key.separator is None:
            self.check(key if key.field is None else replace(key, field=None, columns=(next(iter(fields)),)))
            key = ColumnsOfLines.of_table(key, fields)
        self.format = "lines"
        return key

    def check(self, key: SortKey) -> None:
        """Raise BadJob or BadInput unless the records can be judged by ``key``."""
        url = self.files[0].url
        if self.format == "raw":
            raise BadInput(f"{url} is raw: whole files have no order")
        if self.format == "text" and key.columns:
            raise BadJob(
                f"{url} is text: give --key the number of a field instead of {','.join(key.columns)}"
            )
        if self.format in ("text", "lines", "records"):
            return
        if not key.columns:
            raise BadJob(
                f"{url} is {self.format}: give --key the columns it is sorted by (a,b),"
                " or --format text to judge its lines"
            )
        if self._source.schema is None:
            return
        for name in key.columns:
            if name not in self._source.schema.names:
                known = ", ".join(self._source.schema.names)
                raise BadJob(f"{url} has no column {name!r}; the columns are: {known}")

    def read(self, file: InputFile, key: SortKey) -> Iterator[_Lines | _Rows]:
        """Yield the records of one file in order, some at a time."""
        if self.format == "text":
            for block in read_blocks(file):
                yield _Lines(block, key)
            return
        if self.format == "lines":
            for batch in _batches(self._source, file):
                yield _Lines(_as_block(batch), key)
            return
        for split in plan_splits(self._source, split_bytes=1 << 62, files=[file]):
            for numbers, rows in read_records(split, self._source):
                if self.format == "records":
                    pairs = list(zip(numbers, rows, strict=True))
                    yield _Rows(pairs, [encode_key(number) for number in numbers], key)
                else:
                    yield _Rows(rows, [_row_key(row, key, file.url) for row in rows], key)


def _row_key(row: Any, key: SortKey, url: str) -> bytes:
    """Return what a row is compared by; of JSON lines, a field that is not there is null."""
    if not isinstance(row, dict):
        raise BadInput(f"{url} holds {_shown(repr(row))}, not an object with fields")
    return encode_key(tuple(row.get(name) for name in key.columns))


class _Order:
    """Checks records that come in batches; remembers the last one from batch to batch and part to part."""

    def __init__(self, key: SortKey) -> None:
        self._in_order = operator.ge if key.descending else operator.le
        self._last_key: Any = None
        self._last_shown: str | None = None
        self._last_at = ""

    def fault(self, batch: _Lines | _Rows, url: str, before: int) -> str | None:
        """Return what is wrong in ``batch``, which follows record number ``before`` of ``url``, or None."""
        if self._last_shown is not None and not self._in_order(self._last_key, batch.key_of(0)):
            return self._message(
                f"{url} record {before + 1:,}", batch.show(0), self._last_at, self._last_shown
            )
        wrong = batch.first_wrong()
        if wrong is not None:
            at = f"{url} record {before + wrong + 1:,}"
            return self._message(at, batch.show(wrong), f"record {before + wrong:,}", batch.show(wrong - 1))
        self._last_key, self._last_shown = batch.key_of(batch.count - 1), batch.show(batch.count - 1)
        self._last_at = f"record {before + batch.count:,} of {url}"
        return None

    @staticmethod
    def _message(at: str, record: str, before: str, previous: str) -> str:
        return f"{at} ({record}) belongs before {before} ({previous})"


def _shown(text: str) -> str:
    return f"{text[:37]}..." if len(text) > 40 else text


def read_blocks(file: InputFile, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield the lines of a file in order, without their ends, in blocks of about ``block_bytes``.

    Raises:
        BadInput: the file cannot be read, or its compressed data is damaged.
    """
    with open_decompressed(file.url, file.compression, {}, _uncounted) as stream:
        head = b""
        while len(head) < 3 and (read := _read(stream, file.url, 3 - len(head))):
            head += read
        pieces = [] if head == b"\xef\xbb\xbf" else [head]
        while True:
            read = _read(stream, file.url, block_bytes)
            pieces.append(read)
            if not read or b"\n" in read or b"\n" in head:
                head = b""
                data = b"".join((*pieces, bytes(WORD_BYTES)))
                whole = data.rfind(b"\n") + 1
                if whole:
                    yield _cut(data, whole)
                pieces = [data[whole:-WORD_BYTES]]
            if not read:
                if size := len(pieces[0]):  # the last line has no end, and a carriage return there is data
                    data = pieces[0] + bytes(WORD_BYTES)
                    yield Block(data=data, starts=np.zeros(1, np.int64), ends=np.array([size]))
                return


def _batches(source: Source, file: InputFile) -> Iterator[pa.RecordBatch]:
    for split in plan_splits(source, split_bytes=1 << 62, files=[file]):
        yield from (batch for batch in read_batches(split, source) if batch.num_rows)


def _as_block(batch: pa.RecordBatch) -> Block:
    """Return the rows of a batch as the lines that the writer of text makes of them."""
    sink = io.BytesIO()
    TextWriter(sink).write_batch(batch)
    return _cut(sink.getvalue() + bytes(WORD_BYTES), sink.tell())


def _cut(data: bytes, size: int) -> Block:
    """Return the lines of ``data[:size]``, which ends in a line feed."""
    symbols = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(symbols[:size] == 10)
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    if b"\r" in data:
        ends = ends - ((symbols[ends - 1] == 13) & (ends > starts))
    return Block(data=data, starts=starts, ends=ends)


def _read(stream: Any, url: str, size_bytes: int) -> bytes:
    try:
        return bytes(stream.read(size_bytes))
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        raise BadInput(f"{url} is damaged or cut short: {str(error).splitlines()[0]}") from error


def _uncounted(count: int) -> None:
    """Take a count of bytes read; a verdict reports none."""
