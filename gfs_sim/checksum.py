"""Checksums of a replica: CRC-32C of every 64 KiB block, and the bytes of the file that keeps them.

A sums file is ``HEADER`` (magic, version, length, CRC-32C of the rest of the header and of all sums)
and then one little-endian 32-bit sum per block, the last over what the last block holds. Pure: bytes
in, bytes out.
"""

import struct
import sys
from array import array
from dataclasses import dataclass

from crc32c import crc32c

BLOCK_BYTES = 64 << 10
MAGIC = b"GFSSUM1\n"
HEADER = struct.Struct("<8sQQI")


class BadSums(ValueError):
    """The sums file itself is damaged."""


def add_blocks(sums: "array[int]", length: int, data: memoryview) -> None:
    """Extend ``sums``, which cover ``length`` bytes, by ``data`` (in place; any cut gives the same sums)."""
    position = 0
    size = len(data)
    filled = length % BLOCK_BYTES
    if filled and size:
        take = min(BLOCK_BYTES - filled, size)
        sums[-1] = crc32c(data[:take], sums[-1])
        position = take
    while position < size:
        end = position + BLOCK_BYTES
        sums.append(crc32c(data[position:end]))
        position = end


def first_bad_block(sums: "array[int]", block: int, data: memoryview) -> int | None:
    """Return the number of the first block in ``data`` that does not match, None if all do.

    ``data`` starts at the start of ``block`` and ends at a block's end or at the replica's.
    """
    for start in range(0, len(data), BLOCK_BYTES):
        if crc32c(data[start : start + BLOCK_BYTES]) != sums[block]:
            return block
        block += 1
    return None


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What a replica says about itself: version, length in bytes, one checksum per block."""

    version: int
    length: int
    blocks: "array[int]"

    def encode(self) -> bytes:
        """Return the bytes of the sums file.

        >>> Sums.decode(Sums(version=3, length=5, blocks=array("I", [7])).encode()).version
        3
        """
        body = array("I", self.blocks)
        if sys.byteorder == "big":
            body.byteswap()
        packed = body.tobytes()
        head = struct.pack("<QQ", self.version, self.length)
        return HEADER.pack(MAGIC, self.version, self.length, crc32c(packed, crc32c(head))) + packed

    @classmethod
    def decode(cls, data: bytes) -> "Sums":
        """Return what ``encode`` was given; BadSums if a bit is wrong."""
        if len(data) < HEADER.size or data[:8] != MAGIC:
            raise BadSums("no sums file")
        _, version, length, check = HEADER.unpack_from(data)
        packed = data[HEADER.size :]
        if len(packed) != 4 * -(-length // BLOCK_BYTES):
            raise BadSums(f"{len(packed)} bytes of sums for {length} bytes of data")
        if crc32c(packed, crc32c(struct.pack("<QQ", version, length))) != check:
            raise BadSums("checksum of the sums does not match")
        blocks = array("I")
        blocks.frombytes(packed)
        if sys.byteorder == "big":
            blocks.byteswap()
        return cls(version=version, length=length, blocks=blocks)
