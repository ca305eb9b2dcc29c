"""What an appended record looks like in its file, and a reader that drops padding and duplicates (GFS 2.7.2).

A record is ``HEADER`` (magic, length, 16-byte id, CRC-32C over length, id and bytes) and its bytes. It
never crosses a chunk; zeros fill a chunk whose room was too small for the next record.
"""

import struct
from collections.abc import Iterator
from typing import Any

from crc32c import crc32c

MAGIC = b"GREC"
HEADER = struct.Struct("<4sI16sI")
WINDOW_BYTES = 1 << 20


def frame(record: bytes, record_id: bytes) -> bytes:
    """Return the bytes of a record in its file."""
    check = crc32c(record, crc32c(struct.pack("<I16s", len(record), record_id)))
    return HEADER.pack(MAGIC, len(record), record_id, check) + record


def _frame_at(file: Any, offset: int, end: int) -> tuple[bytes, bytes] | None:
    if end - offset < HEADER.size:
        return None
    file.seek(offset)
    magic, length, record_id, check = HEADER.unpack(file.read(HEADER.size))
    if magic != MAGIC or offset + HEADER.size + length > end:
        return None
    record = file.read(length)
    if crc32c(record, crc32c(struct.pack("<I16s", length, record_id))) != check:
        return None
    return record_id, record


def _next_magic(file: Any, offset: int, end: int) -> int:
    while offset < end:
        file.seek(offset)
        window = file.read(min(WINDOW_BYTES, end - offset))
        found = window.find(MAGIC)
        if found >= 0:
            return offset + int(found)
        if offset + len(window) >= end:
            break
        offset += max(1, len(window) - len(MAGIC) + 1)
    return end


def read_frames(file: Any, size: int, chunk_bytes: int) -> Iterator[bytes]:
    """Yield each record once, in file order; what is no whole record is passed over.

    The ids seen are kept in memory: 16 bytes and a set entry per record.
    """
    seen: set[bytes] = set()
    for start in range(0, size, chunk_bytes):
        offset, end = start, min(start + chunk_bytes, size)
        while offset < end:
            found = _frame_at(file, offset, end)
            if found is None:
                offset = _next_magic(file, offset + 1, end)
                continue
            record_id, record = found
            offset += HEADER.size + len(record)
            if record_id not in seen:
                seen.add(record_id)
                yield record
