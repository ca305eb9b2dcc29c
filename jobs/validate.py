"""The verdict on a sort, in three parts, as TeraValidate gives it.

An output is valid when its records are in order inside each part, in order from part to part (by name), and
are the input's records: the same number with the same checksum, the 128-bit sum of the CRC-32 of each
record.  The checksum does not depend on the order, and it changes with a record lost, added or altered (but
not when two changes cancel out, which random damage does once in 2**32).

Records are lines, with the ends the reader gives them: LF, or CR LF.  Each side is read once, in blocks.
The code shares nothing with the sort but finding, opening and decompressing files; lines are ``bytes``, compared
and summed one by one.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mapreduce.errors import BadInput, BadJob
from mapreduce.files import open_decompressed
from mapreduce.sources import InputFile, Source, format_of, list_files

BLOCK_BYTES = 4 << 20
BLANKS_APART = re.compile(rb"[^ \t]+")
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class SortKey:
    """What lines are ordered by, as for the job ``sort``: the whole line, or field ``field`` of it, from 1.

    Fields are separated by ``separator``, or by runs of blanks and tabs without one.  A ``numeric`` field
    is compared as a 64-bit float.  Lines without the field (or whose field is no number) come before all
    others, after them when ``descending``.

    Raises:
        BadJob: ``field`` is below 1, or ``separator`` or ``numeric`` stand without it.
    """

    field: int | None = None
    separator: str | None = None
    numeric: bool = False
    descending: bool = False

    def __post_init__(self) -> None:
        if self.field is not None and self.field < 1:
            raise BadJob(f"key must be the number of a field, from 1, got {self.field}")
        if self.separator == "":
            raise BadJob("separator is empty; leave it out for blanks and tabs")
        if self.field is None and (self.numeric or self.separator is not None):
            raise BadJob("numeric and separator go with a key, such as --key 1")

    def of(self, line: bytes) -> bytes | float:
        """Return what a line is compared by."""
        assert self.field is not None
        separator = None if self.separator is None else self.separator.encode()
        fields = BLANKS_APART.findall(line) if separator is None else line.split(separator)
        if len(fields) < self.field:
            return -math.inf if self.numeric else b""
        found = fields[self.field - 1]
        if self.numeric:
            return float(found) if NUMBER.fullmatch(found) else -math.inf
        return b"." + found  # so that an empty field is more than none


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
        return f"valid: {self.records:,} records in {parts}, in order, checksum {self.checksum:032x} as input"


def validate(input_url: str, output_url: str, key: SortKey | None = None) -> Verdict:
    """Compare ``output_url`` with the input it was sorted from; both are a file, a folder or a pattern.

    Compressed files are read as such; names below a folder that begin with ``_`` or ``.`` are no part of
    it.  The verdict's ``records`` and ``checksum`` are the output's.

    Raises:
        MissingInput: one of the two does not exist or holds no file.
        BadInput: a file cannot be read, or holds no lines by its name (Parquet, Arrow, records).
    """
    sources = _list_text(input_url)
    parts = sorted(_list_text(output_url), key=lambda part: part.url)
    order = _Order(key or SortKey())
    records = checksum = 0
    fault: str | None = None
    for part in parts:
        number = 0
        for lines in read_lines(part):
            if fault is None:
                fault = order.fault(lines, part.url, number)
            number += len(lines)
            checksum += sum(map(zlib.crc32, lines))
        records += number
    expected = expected_checksum = 0
    # An output out of order is invalid whatever the input holds.
    for source in sources if fault is None else ():
        for lines in read_lines(source):
            expected += len(lines)
            expected_checksum += sum(map(zlib.crc32, lines))
    checksum, expected_checksum = checksum % 2**128, expected_checksum % 2**128
    if fault is None and records != expected:
        fault = f"{output_url} has {records:,} records, {input_url} has {expected:,}"
    if fault is None and checksum != expected_checksum:
        fault = (
            f"{output_url} has as many records as {input_url} ({records:,}) but not the same ones: "
            f"checksum {checksum:032x} instead of {expected_checksum:032x}"
        )
    return Verdict(fault=fault, records=records, checksum=checksum, parts=len(parts))


def _list_text(url: str) -> list[InputFile]:
    files = list_files(Source(urls=(url,), format="text"))
    for file in files:
        found = format_of(file.url, Source(urls=(url,)))
        if found in ("parquet", "arrow", "records"):
            raise BadInput(f"{file.url} is {found}; mr validate judges lines of text")
    return files


class _Order:
    """Checks lines that come in blocks; remembers the last key from block to block and part to part."""

    def __init__(self, key: SortKey) -> None:
        self._key = key
        self._in_order = operator.ge if key.descending else operator.le
        self._last_key: Any = None
        self._last_line: bytes | None = None
        self._last_at = ""

    def fault(self, lines: list[bytes], url: str, before: int) -> str | None:
        """Return what is wrong in ``lines``, which follow record number ``before`` of ``url``, or None."""
        key = self._key
        keys: list[Any] = lines if key.field is None else [key.of(line) for line in lines]
        if self._last_line is not None and not self._in_order(self._last_key, keys[0]):
            at = f"{url} record {before + 1:,}"
            return self._message(at, lines[0], self._last_at, self._last_line)
        if not all(map(self._in_order, keys, keys[1:])):
            wrong = next(i for i, pair in enumerate(itertools.pairwise(keys), 1) if not self._in_order(*pair))
            at = f"{url} record {before + wrong + 1:,}"
            return self._message(at, lines[wrong], f"record {before + wrong:,}", lines[wrong - 1])
        self._last_key, self._last_line = keys[-1], lines[-1]
        self._last_at = f"record {before + len(lines):,} of {url}"
        return None

    @staticmethod
    def _message(at: str, line: bytes, before: str, previous: bytes) -> str:
        return f"{at} ({_shown(line)}) belongs before {before} ({_shown(previous)})"


def _shown(line: bytes) -> str:
    text = line.decode(errors="backslashreplace")
    return f"{text[:37]}..." if len(text) > 40 else text


def read_lines(file: InputFile, block_bytes: int = BLOCK_BYTES) -> Iterator[list[bytes]]:
    """Yield the lines of a file in order, without their ends, in non-empty lists of about ``block_bytes``.

    Raises:
        BadInput: the file cannot be read, or its compressed data is damaged.
    """
    with open_decompressed(file.url, file.compression, {}, _uncounted) as stream:
        head = b""
        while len(head) < 3 and (block := _read(stream, file.url, 3 - len(head))):
            head += block
        pieces = [] if head == b"\xef\xbb\xbf" else [head]
        if b"\n" in head:
            *lines, rest = head.split(b"\n")
            pieces = [rest]
            yield [line.removesuffix(b"\r") for line in lines]
        while block := _read(stream, file.url, block_bytes):
            end = block.rfind(b"\n") + 1
            if end == 0:
                pieces.append(block)
                continue
            lines = b"".join((*pieces, block[:end])).split(b"\n")
            lines.pop()
            pieces = [block[end:]]
            if b"\r\n" in block or lines[0].endswith(b"\r"):
                lines = [line.removesuffix(b"\r") for line in lines]
            yield lines
    rest = b"".join(pieces)
    if rest:
        yield [rest]


def _read(stream: Any, url: str, size_bytes: int) -> bytes:
    try:
        return bytes(stream.read(size_bytes))
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        raise BadInput(f"{url} is damaged or cut short: {str(error).splitlines()[0]}") from error


def _uncounted(count: int) -> None:
    """Take a count of bytes read; a verdict reports none."""
