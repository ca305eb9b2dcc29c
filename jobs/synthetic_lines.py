"""Lines made by arithmetic: sort records, text, access logs and graph edges, block after block.

Each function is an endless iterator of :class:`Block` values and holds one block at a time; a block is
valid until the next is asked for.  The bytes depend on the arguments alone: random bits come from PCG64,
whose stream numpy promises to keep, and all else is integer arithmetic or a correctly rounded operation.
Nothing here opens a file or knows about sizes.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

PRINTABLE = 95
"""Printable ASCII characters, from the space to the tilde."""
VOCABULARY_WORDS = 100_000

_RECORDS_PER_BLOCK = 40_000
_LINES_PER_BLOCK = 60_000
_TABLE_BITS = 21
_TAIL = 10_000

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Whole lines: ``data`` is their bytes, ``ends[i]`` the offset just past the newline of line ``i``."""

    data: memoryview
    ends: Int64s


class Bits:
    """Random integers from one seed; the same on every machine and every numpy."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._raw = np.random.PCG64(np.random.SeedSequence([seed, *purpose.encode()]))

    def words(self, count: int) -> UInt64s:
        """Return ``count`` integers of 64 bits."""
        return self._raw.random_raw(count)

    def below(self, limit: int, count: int) -> Int64s:
        """Return ``count`` integers in [0, limit), for limits to 2**31 (the bias is below limit / 2**32)."""
        halves = self.words(-(-count // 2)).view(np.uint32)[:count]
        return (halves.astype(np.uint64) * np.uint64(limit) >> np.uint64(32)).view(np.int64)

    def unit(self, count: int) -> npt.NDArray[np.float64]:
        """Return ``count`` floats in (0, 1]."""
        return ((self.words(count) >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53


def _hex_digits(numbers: UInt64s) -> npt.NDArray[np.uint8]:
    """Return 16 upper-case hexadecimal digits for each number, shape (n, 16)."""
    pairs = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)
    big_endian = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    digits: npt.NDArray[np.uint8] = pairs[big_endian].view(np.uint8)
    return digits


def _printable(bits: Bits, shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    halves = bits.words(-(-shape[0] * shape[1] // 4)).view(np.uint16)[: shape[0] * shape[1]]
    return ((halves.astype(np.uint32) * PRINTABLE >> 16) + 32).astype(np.uint8).reshape(shape)


def _filler(bits: Bits, rows: int, groups: int) -> npt.NDArray[np.uint8]:
    """Return ``groups`` random hexadecimal digits per row, each four times, shape (rows, 4 * groups)."""
    quads = np.frombuffer("".join(digit * 4 for digit in "0123456789ABCDEF").encode(), np.uint32)
    digits = bits.words(-(-rows * groups // 8)).view(np.uint8)[: rows * groups].reshape(rows, groups) & 15
    filler: npt.NDArray[np.uint8] = quads[digits].view(np.uint8)
    return filler


def record_blocks(seed: int) -> Iterator[Block]:
    """Yield sort records of 100 bytes in gensort's ASCII layout, ended by a single LF.

    Ten random printable characters, two spaces, the record number in 32 hexadecimal digits, two spaces, 13
    random digits four times each.  gensort ends that with CR LF; here the CR's place is a 53rd filler
    character (the last digit once more), so that records keep their 100 bytes and no tool has to decide
    whether CR is data (http://www.ordinal.com/gensort.html).
    """
    bits = Bits(seed, "records")
    rows = _RECORDS_PER_BLOCK
    block = np.full((rows, 100), ord(" "), np.uint8)
    block[:, 12:28] = ord("0")
    block[:, 99] = ord("\n")
    ends = np.arange(1, rows + 1, dtype=np.int64) * 100
    first = 0
    while True:
        block[:, :10] = _printable(bits, (rows, 10))
        block[:, 28:44] = _hex_digits(np.arange(first, first + rows, dtype=np.uint64))
        block[:, 46:98] = _filler(bits, rows, 13)
        block[:, 98] = block[:, 97]
        first += rows
        yield Block(data=block.reshape(-1).data, ends=ends)


def variable_record_blocks(seed: int) -> Iterator[Block]:
    """Yield records as :func:`record_blocks` with a key of 1 to 19 characters and a filler of 0 to 27 digits.

    Lines have 38 to 164 bytes, 101 on average.  Short keys are followed by spaces, so many pairs of lines
    differ only far behind their beginning.
    """
    bits = Bits(seed, "variable records")
    rows, key_bytes, groups = _RECORDS_PER_BLOCK, 19, 27
    width = key_bytes + 36 + 4 * groups + 1
    block = np.full((rows, width), ord(" "), np.uint8)
    block[:, key_bytes + 2 : key_bytes + 18] = ord("0")
    block[:, -1] = ord("\n")
    row_starts = np.arange(rows, dtype=np.int32) * width
    every_second = np.arange(0, 2 * rows, 2, dtype=np.int32)
    bounds = np.empty(2 * rows, np.int32)
    first = 0
    while True:
        block[:, :key_bytes] = _printable(bits, (rows, key_bytes))
        numbers = np.arange(first, first + rows, dtype=np.uint64)
        block[:, key_bytes + 18 : key_bytes + 34] = _hex_digits(numbers)
        block[:, key_bytes + 36 : -1] = _filler(bits, rows, groups)
        key_start = key_bytes - 1 - bits.below(key_bytes, rows)
        filler_stop = key_bytes + 36 + 4 * bits.below(groups + 1, rows)
        block[np.arange(rows), filler_stop] = ord("\n")
        # What is kept of the rows and what lies between takes turns in memory.
        bounds[0::2] = row_starts + key_start.astype(np.int32)
        bounds[1::2] = row_starts + (filler_stop + 1).astype(np.int32)
        parts = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * rows - 1, [None, pa.py_buffer(bounds), pa.py_buffer(block)], null_count=0
        )
        first += rows
        yield line_block(pick(parts, every_second))


@functools.cache
def vocabulary(words: int = VOCABULARY_WORDS) -> tuple[str, ...]:
    """Return distinct made-up words, the most frequent first: short ones early, about 3 % not ASCII."""
    onsets = ["", *"bcdfghlmnprst", "th", "w", "st", "tr", "pl", "ch"]
    vowels = [*"aeiou", "ea", "ou", "ai"]
    codas = ["", "", "", *"nrstldm", "ng", "st", "nd", "ck"]
    accents = {"a": "ä", "e": "é", "i": "ï", "o": "ø", "u": "ü", "n": "ñ", "s": "š", "c": "ç"}
    foreign = ["слово", "λόγος", "言葉", "שלום", "données", "größe", "niño", "žena"]
    # random.random() is the one method of that module whose sequence Python promises to keep.
    draw = random.Random(2004).random
    found: dict[str, None] = {}
    while len(found) < words:
        rank = len(found)
        longest = 1 if rank < 60 else 2 if rank < 2_000 else 3 if rank < 30_000 else 4
        word = ""
        for _ in range(1 + int(draw() * longest)):
            word += onsets[int(draw() * 20)] + vowels[int(draw() ** 2 * 8)] + codas[int(draw() * 14)]
        if rank > 40 and draw() < 0.03:
            word = "".join(accents.get(letter, letter) for letter in word)
        if rank > 40 and draw() < 0.002:
            word = foreign[int(draw() * 8)] + word
        found[word] = None
    return tuple(found)


def rank_table(ranks: int, bits: int) -> npt.NDArray[np.int32]:
    """Return 2**bits ranks whose frequencies follow Zipf's law: a random index draws one, with no search."""
    cumulative = np.cumsum(1.0 / np.arange(1, ranks + 1))
    points = (np.arange(1 << bits) + 0.5) * (cumulative[-1] / (1 << bits))
    stops = points.searchsorted(cumulative, side="right")  # rank r has the points up to its cumulative weight
    stops[-1] = len(points)
    return np.repeat(np.arange(ranks, dtype=np.int32), np.diff(stops, prepend=0))


def text_blocks(seed: int) -> Iterator[Block]:
    """Yield lines of 10 to 12 words in UTF-8 whose frequencies follow Zipf's law over 100,000 words."""
    words = vocabulary()
    # Each word twice, followed by a space or by the newline: one take() is then the text itself.
    pieces = pa.array([word + " " for word in words] + [word + "\n" for word in words], pa.string())
    table = pa.array(rank_table(len(words), _TABLE_BITS))
    bits = Bits(seed, "text")
    while True:
        last = np.cumsum(10 + bits.below(3, _LINES_PER_BLOCK)) - 1
        count = int(last[-1]) + 1
        draws = bits.words(-(-count // 2)).view(np.uint32)[:count] >> np.uint32(32 - _TABLE_BITS)
        # Arrow's take leaves the indices as wide as they are, where numpy's would widen them first.
        chosen = pick(table, draws).to_numpy().copy()
        chosen[last] += len(words)
        yield line_block(pick(pieces, chosen), last)


def pick(values: Any, places: npt.NDArray[Any]) -> Any:
    """Return the values of an Arrow array at ``places``, all of which must lie inside it."""
    return pc.take(values, pa.array(places), boundscheck=False)


def line_block(pieces: Any, last: Int64s | slice = slice(None)) -> Block:
    """Return a string array of pieces of lines as a block; ``last`` says which pieces end a line, by default all."""
    _, offsets, data = pieces.buffers()
    ends = np.frombuffer(offsets, np.int32)[1 : len(pieces) + 1][last].astype(np.int64)
    return Block(data=memoryview(data)[: int(ends[-1])], ends=ends)


def graph_blocks(seed: int, nodes: int) -> Iterator[Block]:
    """Yield edges ``source TAB target`` with power-law degrees on both sides and no self-loops.

    Nodes 0 to ``nodes - 1`` come in order, each with all its edges (degree Pareto with exponent 2, 10 on
    average, at most ``nodes - 1`` and 100,000); targets favour low numbers, and an edge may occur twice.
    After the last node a further pass over all follows.

    Raises:
        ValueError: ``nodes`` is not in [2, 2**31).
    """
    if not 2 <= nodes < 2**31:
        raise ValueError(f"nodes must be in [2, 2**31), got {nodes}")
    bits = Bits(seed, "graph")
    # A target is written in two pieces: what stands before its last four digits, and those.
    heads = pa.array(["", *map(str, range(1, (nodes - 1) // _TAIL + 1))])
    tails = pa.array([f"{n:04}\n" for n in range(_TAIL)] + [f"{n}\n" for n in range(_TAIL)])
    first = 0
    while True:
        sources = np.arange(first, min(first + 10_000, nodes))
        # A Pareto variable with exponent 2 and least value m is m / sqrt(u) and has mean 2 m.
        degrees = (5.25 / np.sqrt(bits.unit(len(sources)))).clip(1, min(nodes - 1, 100_000))
        edges = degrees.astype(np.int64)
        source = np.repeat(sources, edges)
        skewed = bits.unit(len(source))
        target = np.minimum((skewed * skewed * skewed * (nodes - 1)).astype(np.int64), nodes - 2)
        target += target >= source
        # No number becomes text here but the sources, once each; one take() is then the text itself.
        begins = pc.binary_join_element_wise(pa.array(sources).cast(pa.string()), "\t", "")
        high, low = np.divmod(target, _TAIL)
        chosen = np.empty(3 * len(target), np.int32)
        chosen[0::3] = source - first
        chosen[1::3] = high + len(begins)
        chosen[2::3] = low + np.where(high > 0, 0, _TAIL) + (len(begins) + len(heads))
        yield line_block(pick(pa.concat_arrays([begins, heads, tails]), chosen), slice(2, None, 3))
        first = 0 if int(sources[-1]) == nodes - 1 else first + len(sources)
