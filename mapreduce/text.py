"""Text as records: lines of a byte range, found on bytes and without Python per line.

The rules, the same for every format that has lines and at every split size:

* A record ends at the delimiter, by default a line feed, or at the end of the file; a delimiter that ends the
  file starts no empty record.  With the line feed, one carriage return at the end of a record is dropped; a
  carriage return elsewhere is data.
* A range ``(start, stop)`` owns the records that begin after ``start`` and not after ``stop``; the first
  range also owns the record at 0.  So every record has one owner wherever the cuts fall, inside a character
  or a delimiter too (as Hadoop's LineRecordReader: skip the first partial line, read one line past the end).
* A UTF-8 byte order mark at the start of a file is no part of its first record.
* Bytes are not decoded here, except by ``decode_lines``, after the cut.  UTF-16 and UTF-32, whose line ends are
  other bytes, are found out from the beginning of a file and refused, unless ``errors`` asks for its bytes.

A record longer than ``MAX_LINE_BYTES`` is refused, never cut.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mapreduce.errors import BadEncoding, BadInput

MAX_LINE_BYTES = 1 << 29
BOM = b"\xef\xbb\xbf"
ENCODING_BYTES = 4096
"""So much of a file's beginning shows its encoding."""
ENCODINGS = {
    "utf-32-le": b"\xff\xfe\0\0",  # before UTF-16, whose mark begins this one
    "utf-32-be": b"\0\0\xfe\xff",
    "utf-16-le": b"\xff\xfe",
    "utf-16-be": b"\xfe\xff",
}
"""Encodings of Unicode that are not UTF-8, with their byte order marks."""
LINE_SCHEMA = pa.schema([("line", pa.binary())])
SLACK_BYTES = 1 << 16

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Whole records of one block; valid until the next block is asked for, since the memory is used again.

    ``data[:size]`` holds the records, each with its delimiter (one is added after the last record of a file
    that lacks it).  ``ends`` are the positions of the delimiters in ``data``, ``offset`` is the place of
    ``data[0]`` in the file.
    """

    data: bytearray
    size: int
    ends: Positions
    offset: int
    delimiter: bytes

    def starts(self) -> Positions:
        """Return the positions in ``data`` at which the records begin."""
        starts = np.empty_like(self.ends)
        starts[:1] = 0
        starts[1:] = self.ends[:-1] + len(self.delimiter)
        return starts

    def file_offsets(self) -> list[int]:
        """Return the byte offsets in the file at which the records begin."""
        found: list[int] = (self.starts() + self.offset).tolist()
        return found

    def carriage_returns(self) -> npt.NDArray[np.bool_] | None:
        """Return which records have a carriage return before their line feed; None when none has."""
        if self.delimiter != b"\n" or self.data.find(b"\r", 0, self.size) < 0:
            return None
        found = np.frombuffer(self.data, np.uint8)[self.ends - 1] == 13
        found &= self.ends > self.starts()
        return found if bool(found.any()) else None


def overlaps_itself(delimiter: bytes) -> bool:
    """Return whether two occurrences can overlap, so that where they lie depends on all the bytes before.

    >>> overlaps_itself(b"||"), overlaps_itself(b"+-"), overlaps_itself(b"aba")
    (True, False, True)
    """
    return any(delimiter.endswith(delimiter[:size]) for size in range(1, len(delimiter)))


def delimiter_positions(data: bytearray, delimiter: bytes, begin: int, end: int) -> Positions:
    """Return where delimiters start in ``data[begin:end]``, from left to right and not overlapping."""
    if len(delimiter) == 1:
        block = np.frombuffer(data, np.uint8)[begin:end]
        found = np.flatnonzero(block == delimiter[0])
        if begin:
            found += begin
        return found
    # finditer, since bytes.find would search an empty rest again for each of the last records
    matches = re.compile(re.escape(delimiter)).finditer(data, begin, end)
    return np.fromiter((match.start() for match in matches), np.int64)


def read_lines(
    file: Any,
    *,
    url: str,
    start: int,
    stop: int | None,
    delimiter: bytes = b"\n",
    block_bytes: int = 16 << 20,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Lines]:
    """Yield the records that the range owns, in blocks of about ``block_bytes``.

    ``file`` has ``readinto``, and ``seek`` when ``start`` is not 0.  ``stop`` None means to the end of the
    file.  A delimiter that overlaps itself needs the whole file as one range.  Each byte is read once, and a
    record longer than a block costs time in proportion to its length.

    Raises:
        BadInput: a record is longer than ``max_line_bytes``.
    """
    width = len(delimiter)
    room = block_bytes if stop is None else min(block_bytes, stop - start + SLACK_BYTES)
    data = bytearray(max(room, 1))
    offset = start
    if start:
        # A delimiter that ends after start may begin up to width - 1 bytes before it.
        offset = max(0, start - (width - 1))
        file.seek(offset)
    skipping = start > 0  # still looking for the first record that begins in the range
    held = 0  # bytes of data that begin an unfinished record
    while True:
        if held == len(data):
            data = data + bytearray(len(data))
        limit = len(data)
        if stop is not None:  # what lies beyond the range belongs to the next one: read little of it
            limit = min(limit, held + max(stop - offset - held, 0) + SLACK_BYTES)
        with memoryview(data) as view, view[held:limit] as free:
            got = file.readinto(free)
        end = held + got
        if not got:
            if held and not skipping and (offset or data[:end] != BOM):
                while end + width > len(data):
                    data = data + bytearray(len(data))
                data[end : end + width] = delimiter
                yield from _whole(data, end + width, np.array([end], np.int64), offset, delimiter)
            return
        ends = delimiter_positions(data, delimiter, max(0, held - width + 1), end)
        last = False
        if stop is not None and offset + end > stop and len(ends):
            beyond = int(np.searchsorted(ends, stop - width - offset, side="right"))
            if beyond < len(ends):  # the record that this delimiter ends is the last one of the range
                ends, last = ends[: beyond + 1], True
        begin = 0
        if skipping:
            if len(ends):
                begin, ends, skipping = int(ends[0]) + width, ends[1:], False
                if stop is not None and offset + begin > stop:
                    return
            elif stop is not None and offset + end > stop:
                return  # one record covers the whole range: its owner reads it
            else:
                begin = max(0, end - width + 1)
        if len(ends):
            size = int(ends[-1]) + width
            if size - begin > max_line_bytes:
                _check_length(ends, begin, width, offset, url, max_line_bytes)
            if begin:
                # Rare (once per range): move the records to the front, so that data[0] begins one.
                data[0 : size - begin] = data[begin:size]
                yield from _whole(data, size - begin, ends - begin, offset + begin, delimiter)
            else:
                yield from _whole(data, size, ends, offset, delimiter)
            begin = size
        if last:
            return
        held = end - begin
        if held > max_line_bytes:
            raise _too_long(url, offset + begin, max_line_bytes)
        if begin:
            data[0:held] = data[begin:end]
            offset += begin


def _check_length(ends: Positions, begin: int, width: int, offset: int, url: str, limit: int) -> None:
    lengths = np.diff(ends, prepend=begin - width) - width
    longest = int(np.argmax(lengths))
    if lengths[longest] > limit:
        raise _too_long(url, offset + int(ends[longest] - lengths[longest]), limit)


def _too_long(url: str, offset: int, limit: int) -> BadInput:
    return BadInput(
        f"{url}: the record at byte {offset} is longer than {limit} bytes; "
        "is this text, and is the delimiter right?"
    )


def _whole(data: bytearray, size: int, ends: Positions, offset: int, delimiter: bytes) -> Iterator[Lines]:
    if offset == 0 and data[:3] == BOM:
        data, size, ends, offset = data[3:], size - 3, ends - 3, 3
    yield Lines(data=data, size=size, ends=ends, offset=offset, delimiter=delimiter)


def lines_batch(lines: Lines) -> pa.RecordBatch:
    """Return the records as a batch with the binary column ``line``, without their delimiters (one copy)."""
    count = len(lines.ends)
    width = len(lines.delimiter)
    returns = lines.carriage_returns()
    if returns is None:
        length = _common_length(lines)
        if length:
            # Large memory of numpy lies on huge pages, which cost little to touch for the first time.
            rows = np.frombuffer(lines.data, np.uint8, count * (length + width)).reshape(count, -1)
            edges = np.arange(0, (count + 1) * length, length, dtype=np.int32)
            buffers = [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(rows[:, :length]))]
            return pa.record_batch(
                [pa.BinaryArray.from_buffers(pa.binary(), count, buffers, null_count=0)], schema=LINE_SCHEMA
            )
        offsets = np.empty(count + 1, np.int32)
        offsets[0] = 0
        offsets[1:] = lines.ends
        offsets[1:] += width
        whole = _binary(count, offsets, lines.data)
        return pa.record_batch([pc.binary_slice(whole, 0, -width)], schema=LINE_SCHEMA)
    # Records and what ends them alternate in memory; every second value is a record.
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0] = 0
    offsets[1::2] = lines.ends - returns
    offsets[2::2] = lines.ends + 1
    parts = _binary(2 * count, offsets, lines.data)
    return pa.record_batch([parts.take(pa.array(np.arange(0, 2 * count, 2)))], schema=LINE_SCHEMA)


def _common_length(lines: Lines) -> int:
    """Return the length of all records; 0 where they differ, are empty or are fewer than two."""
    count, width = len(lines.ends), len(lines.delimiter)
    if count < 2:
        return 0
    length = int(lines.ends[0])
    step = length + width
    if lines.ends[-1] != count * step - width:  # most that differ are told by this alone
        return 0
    return length if bool((np.diff(lines.ends) == step).all()) else 0


def _binary(count: int, offsets: npt.NDArray[np.int32], data: bytearray) -> pa.BinaryArray:
    return pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0
    )


def lines_bytes(lines: Lines) -> list[bytes]:
    """Return the records as bytes, without their delimiters."""
    data = lines.data
    returns = lines.carriage_returns()
    ends = lines.ends if returns is None else lines.ends - returns
    return [bytes(data[start:end]) for start, end in zip(lines.starts().tolist(), ends.tolist(), strict=True)]


def decode_lines(lines: Lines, *, url: str, errors: str = "strict") -> list[str]:
    """Return the records as text.

    Raises:
        BadEncoding: a record is no UTF-8 and ``errors`` is ``"strict"``; file and byte offset are named.
    """
    try:
        if len(lines.delimiter) > 1 or lines.delimiter[0] > 127:
            return [line.decode("utf-8", errors) for line in lines_bytes(lines)]
        with memoryview(lines.data) as view:
            text = str(view[: lines.size], "utf-8", errors)
    except UnicodeDecodeError:
        raise bad_encoding(bytes(lines.data[: lines.size]), url, lines.offset) from None
    if lines.delimiter == b"\n" and "\r" in text:
        text = text.replace("\r\n", "\n")
    found = text.split(lines.delimiter.decode())
    found.pop()
    return found


def bad_encoding(data: bytes, url: str, offset: int) -> BadEncoding:
    """Return the error for ``data`` that is no UTF-8, where ``data[0]`` lies at ``offset`` in the file."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return BadEncoding(
            f"{url}: byte 0x{data[error.start]:02x} at offset {offset + error.start} is no UTF-8; "
            "pass --errors (errors=) replace, surrogateescape or ignore to read it all the same"
        )
    return BadEncoding(f"{url}: bytes after offset {offset} are no UTF-8 in a record of their own")


def may_be_foreign(head: bytes) -> bool:
    """Return whether the first bytes of a file give a reason to look for an encoding that is not UTF-8."""
    return b"\0" in head or head.startswith(tuple(ENCODINGS.values()))


def foreign_encoding(head: bytes) -> str | None:
    """Return the encoding of Unicode that the first bytes of a text show, None if it may be UTF-8.

    Bytes with no byte order mark need ASCII lines: most characters with zero bytes around them, and a line feed.

    >>> foreign_encoding("é\\n".encode("utf-16")), foreign_encoding("a,b\\n1,2\\n".encode("utf-32-be"))
    ('UTF-16LE', 'UTF-32BE')
    >>> foreign_encoding(b"\\xff\\xfe is no text"), foreign_encoding(b"a\\0b\\0c\\0")
    (None, None)
    """
    for codec, mark in ENCODINGS.items():
        marked = head.startswith(mark)
        try:  # not to the end: the head may stop inside a character
            text = codecs.getincrementaldecoder(codec)().decode(head.removeprefix(mark))
        except UnicodeDecodeError:
            continue
        ascii_letters = sum(letter < "\x7f" and (letter >= " " or letter in "\t\r\n\f") for letter in text)
        if "\0" in text or not ascii_letters:
            continue
        if marked or ("\n" in text and len(text) >= 4 and ascii_letters >= 0.75 * len(text)):
            return codec.upper().replace("-L", "L").replace("-B", "B")
    return None


def check_encoding(encoding: str | None, url: str, errors: str) -> None:
    """Refuse a text whose beginning shows an encoding that is not UTF-8, if ``errors`` is ``"strict"``.

    Raises:
        BadEncoding: file and encoding are named, with the command that converts it.
    """
    if encoding is not None and errors == "strict":
        raise BadEncoding(
            f"{url}: this is {encoding}, and text must be UTF-8; convert it first (iconv -f {encoding} -t UTF-8),"
            f" or, for lines of text, pass --errors (errors=) replace, surrogateescape or ignore to take its bytes as they are"
        )
