"""The verdict on a sort, in three parts, as TeraValidate gives it.

An output is valid when its records are in order inside each part, in order from part to part (by name), and
are the input's records: the same number with the same checksum, the 128-bit sum of the CRC-32 of each
record.  The checksum does not depend on the order, and it changes with a record lost, added or altered (but
not when two changes cancel out, which random damage does once in 2**32).

Records are lines, with the ends the reader gives them: LF, or CR LF.  Each side is read once, in blocks.
The code shares nothing with the sort but the list of files: no numpy, no Arrow, only ``bytes`` compared and
summed.
"""

from __future__ import annotations

import itertools
import operator
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mapreduce.errors import BadInput, BadJob
from mapreduce.files import open_decompressed
from mapreduce.splits import InputFile, Source, list_files

BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class SortKey:
    """What lines are ordered by: the whole line, or field ``field`` of it, counted from 1.

    Fields are separated by ``separator``, or by runs of blanks when that is empty.  A ``numeric`` key is
    compared as a number (a key that is none is a fault of the output).
    """

    field: int | None = None
    separator: str = ""
    numeric: bool = False
    descending: bool = False

    def __post_init__(self) -> None:
        if self.field is not None and self.field < 1:
            raise BadJob(f"key must be 1 or more, the number of a field, got {self.field}")


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
        BadInput: a file cannot be read.
    """
    sources = list_files(Source(urls=(input_url,), format="text"))
    parts = sorted(list_files(Source(urls=(output_url,), format="text")), key=lambda part: part.url)
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


class _Order:
    """Checks lines that come in blocks; remembers the last key from block to block and part to part."""

    def __init__(self, key: SortKey) -> None:
        self._key = key
        self._in_order = operator.ge if key.descending else operator.le
        self._last: Any = None
        self._last_at = ""

    def fault(self, lines: list[bytes], url: str, before: int) -> str | None:
        """Return what is wrong in ``lines``, which follow record number ``before`` of ``url``, or None."""
        keys: list[Any] = lines
        if self._key.field is not None or self._key.numeric:
            keys = []
            for number, line in enumerate(lines, before + 1):
                found = _key_of(line, self._key)
                if isinstance(found, str):
                    return f"{url} record {number:,}: {found}"
                keys.append(found)
        if self._last is not None and not self._in_order(self._last, keys[0]):
            return self._message(url, before + 1, keys[0], self._last, self._last_at)
        if not all(map(self._in_order, keys, keys[1:])):
            wrong = next(i for i, pair in enumerate(itertools.pairwise(keys)) if not self._in_order(*pair))
            return self._message(
                url, before + wrong + 2, keys[wrong + 1], keys[wrong], f"record {before + wrong + 1:,}"
            )
        self._last = keys[-1]
        self._last_at = f"record {before + len(lines):,} of {url}"
        return None

    def _message(self, url: str, number: int, key: Any, previous: Any, previous_at: str) -> str:
        relation = "greater" if self._key.descending else "less"
        return (
            f"{url} record {number:,} ({_shown(key)}) is {relation} than {previous_at} ({_shown(previous)})"
        )


def _key_of(line: bytes, key: SortKey) -> Any:
    """Return the key of a line, or, as ``str``, why it has none."""
    found = line
    if key.field is not None:
        fields = line.split(key.separator.encode() or None)
        if len(fields) < key.field:
            return f"it has {len(fields)} fields, the key is field {key.field}"
        found = fields[key.field - 1]
    if not key.numeric:
        return found
    try:
        return int(found)
    except ValueError:
        pass
    try:
        return float(found)
    except ValueError:
        return f"its key {_shown(found)} is no number"


def _shown(key: Any) -> str:
    text = key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
    return repr(text if len(text) <= 40 else text[:37] + "...")


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
