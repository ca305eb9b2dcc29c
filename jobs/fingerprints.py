"""Lines of a block as arrays: a 64-bit fingerprint of each, and whether each comes after the one before.

``mr validate`` lives on this.  It shares no code with the sort, so that a fault there cannot hide here.
Lines are places in one buffer; nothing is copied and no Python runs per line, except for lines above 4 KiB
and neighbours that are equal in their first 64 bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

WORD_BYTES = 8
LONG_BYTES = 4096
"""From here on a line is hashed by itself, which costs less than a pass over all lines for every word of it."""
COMPARED_WORDS = 8
ODD = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)
MASKS = np.array([(1 << 8 * size) - 1 for size in range(WORD_BYTES)] + [2**64 - 1], "<u8")
"""By the bytes of a little-endian word that belong to the line."""

Places = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Lines ``data[starts[i]:ends[i]]``, in order and at least one; ``data`` has 8 bytes to spare at its end."""

    data: bytes
    starts: Places
    ends: Places

    def line(self, number: int) -> bytes:
        """Return one line."""
        return self.data[self.starts[number] : self.ends[number]]

    def lines(self) -> list[bytes]:
        """Return all lines."""
        data = self.data
        return [data[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def words(self, at: Places, left: Places) -> Words:
        """Return the little-endian words that begin ``at``, zeros behind the ``left`` bytes of each line."""
        everywhere = np.ndarray(
            (len(self.data) - WORD_BYTES + 1,), "<u8", buffer=self.data, strides=(1,)
        )  # a word at every byte
        found: Words = everywhere[at]
        if int(left.min()) < WORD_BYTES:
            found &= MASKS[np.clip(left, 0, WORD_BYTES)]
        return found


def fingerprints(block: Block) -> Words:
    """Return a fingerprint of each line, which differs between two different lines but once in 2**64."""
    lengths = block.ends - block.starts
    found: Words = lengths.astype(np.uint64) * ODD
    lines = np.arange(len(lengths))
    long = np.flatnonzero(lengths > LONG_BYTES)
    for number in long.tolist():
        digest = hashlib.blake2b(block.line(number), digest_size=8).digest()
        found[number] = int.from_bytes(digest, "little")
    if len(long):
        lines = np.flatnonzero(lengths <= LONG_BYTES)
    mixed, at, left = found[lines], block.starts[lines], lengths[lines]
    while len(lines):
        if int(left.min()) <= 0:
            found[lines] = mixed
            going_on = left > 0
            lines, mixed, at, left = lines[going_on], mixed[going_on], at[going_on], left[going_on]
            continue
        mixed ^= block.words(at, left)
        mixed *= ODD
        mixed ^= mixed >> HALF
        at += WORD_BYTES
        left -= WORD_BYTES
    return found


def add_up(found: Words) -> int:
    """Return the sum of fingerprints, which no word of the machine has to hold.

    >>> add_up(np.array([2**64 - 1, 3], np.uint64)) == 2**64 + 2
    True
    """
    low = int((found & np.uint64(0xFFFFFFFF)).sum())
    return low + (int((found >> HALF).sum()) << 32)


def first_out_of_order(block: Block, *, descending: bool) -> int | None:
    """Return the number of the first line that belongs before the one before it, by bytes; None if none does."""
    undecided = np.arange(1, len(block.starts))
    wrong = len(block.starts)
    for number in range(COMPARED_WORDS):
        if not len(undecided):
            break
        before, here = (_word_of(block, lines, number) for lines in (undecided - 1, undecided))
        against = np.flatnonzero(here > before if descending else here < before)
        if len(against):
            wrong = int(undecided[against[0]])
        undecided = undecided[here == before]
        undecided = undecided[undecided < wrong]
    for number in undecided.tolist():  # equal so far, or longer than what was compared
        before_line, line = block.line(number - 1), block.line(number)
        if (line > before_line) if descending else (line < before_line):
            return int(number)
    return wrong if wrong < len(block.starts) else None


def _word_of(block: Block, lines: Places, number: int) -> Words:
    """Return word ``number`` of some lines as a number that orders as its bytes do."""
    at = block.starts[lines] + number * WORD_BYTES
    left = block.ends[lines] - at
    np.minimum(at, len(block.data) - WORD_BYTES, out=at)  # of lines that have ended
    return block.words(at, left).byteswap()
