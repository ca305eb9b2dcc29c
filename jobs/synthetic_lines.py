"""Lines made by arithmetic: sort records, text, access logs and graph edges, block after block.

Each function is an endless iterator of :class:`Block` values and holds one block at a time.  The bytes depend on
the arguments alone: random bits come from PCG64, whose stream numpy promises to keep, and all else is integer
arithmetic or a correctly rounded operation.  Nothing here opens a file or knows about sizes.
"""

from __future__ import annotations

import datetime
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
    return pairs[big_endian].view(np.uint8)


def _printable(bits: Bits, shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    halves = bits.words(-(-shape[0] * shape[1] // 4)).view(np.uint16)[: shape[0] * shape[1]]
    return ((halves.astype(np.uint32) * PRINTABLE >> 16) + 32).astype(np.uint8).reshape(shape)


def _filler(bits: Bits, rows: int, groups: int) -> npt.NDArray[np.uint8]:
    """Return ``groups`` random hexadecimal digits per row, each written four times, shape (rows, 4 * groups)."""
    quads = np.frombuffer("".join(digit * 4 for digit in "0123456789ABCDEF").encode(), np.uint32)
    digits = bits.words(-(-rows * groups // 8)).view(np.uint8)[: rows * groups].reshape(rows, groups) & 15
    return quads[digits].view(np.uint8)


def record_blocks(seed: int) -> Iterator[Block]:
    """Yield sort records of 100 bytes in gensort's ASCII layout, ended by a single LF.

    Ten random printable characters, two spaces, the record number in 32 hexadecimal digits, two spaces, 13 random
    digits four times each.  gensort ends that with CR LF; here the CR's place is a 53rd filler character (the last
    digit once more), so that records keep their 100 bytes and no tool has to decide whether CR is data
    (http://www.ordinal.com/gensort.html).
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
        yield Block(data=memoryview(block.reshape(-1)), ends=ends)


def variable_record_blocks(seed: int) -> Iterator[Block]:
    """Yield records as :func:`record_blocks` whose key has 1 to 19 characters and whose filler 0 to 27 digits.

    Lines have 38 to 164 bytes, 101 on average, and short keys are followed by spaces, so some pairs of lines
    differ only far behind their beginning.
    """
    bits = Bits(seed, "variable records")
    rows, key_bytes, groups = _RECORDS_PER_BLOCK, 19, 27
    width = key_bytes + 36 + 4 * groups + 1
    block = np.full((rows, width), ord(" "), np.uint8)
    block[:, key_bytes + 2 : key_bytes + 18] = ord("0")
    block[:, -1] = ord("\n")
    column = np.arange(width)
    first = 0
    while True:
        block[:, :key_bytes] = _printable(bits, (rows, key_bytes))
        block[:, key_bytes + 18 : key_bytes + 34] = _hex_digits(np.arange(first, first + rows, dtype=np.uint64))
        block[:, key_bytes + 36 : -1] = _filler(bits, rows, groups)
        key_start = key_bytes - 1 - bits.below(key_bytes, rows)
        filler_stop = key_bytes + 36 + 4 * bits.below(groups + 1, rows)
        kept = (column >= key_start[:, None]) & (column < filler_stop[:, None])
        kept[:, -1] = True
        first += rows
        yield Block(data=memoryview(block[kept]), ends=np.cumsum(filler_stop - key_start + 1))


def vocabulary(words: int = VOCABULARY_WORDS) -> list[str]:
    """Return distinct made-up words, the most frequent first: short ones early, about 3 % not ASCII."""
    onsets = ["", "b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "th", "w", "st", "tr", "pl", "ch"]
    vowels = ["a", "e", "i", "o", "u", "ea", "ou", "ai"]
    codas = ["", "", "", "n", "r", "s", "t", "l", "d", "m", "ng", "st", "nd", "ck"]
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
    return list(found)


def _rank_table(ranks: int, bits: int) -> npt.NDArray[np.int32]:
    """Return 2**bits ranks whose frequencies follow Zipf's law: a random index draws one, with no search."""
    cumulative = np.cumsum(1.0 / np.arange(1, ranks + 1))
    points = (np.arange(1 << bits) + 0.5) * (cumulative[-1] / (1 << bits))
    return np.searchsorted(cumulative, points).astype(np.int32)


def text_blocks(seed: int) -> Iterator[Block]:
    """Yield lines of 10 to 12 words in UTF-8 whose frequencies follow Zipf's law over 100,000 words."""
    words = vocabulary()
    # Each word twice, followed by a space or by the newline: one take() is then the text itself.
    pieces = pa.array([word + " " for word in words] + [word + "\n" for word in words], pa.string())
    table = _rank_table(len(words), _TABLE_BITS)
    bits = Bits(seed, "text")
    while True:
        last = np.cumsum(10 + bits.below(3, _LINES_PER_BLOCK)) - 1
        count = int(last[-1]) + 1
        draws = bits.words(-(-count // 2)).view(np.uint32)[:count] >> np.uint32(32 - _TABLE_BITS)
        chosen = table[draws]
        chosen[last] += len(words)
        taken = pieces.take(pa.array(chosen))
        _, offsets, data = taken.buffers()
        ends = np.frombuffer(offsets, np.int32)[1 : count + 1][last].astype(np.int64)
        yield Block(data=memoryview(data)[: int(ends[-1])], ends=ends)


def line_block(lines: Any) -> Block:
    """Return a string array of lines that carry their newline as a block."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)[1 : len(lines) + 1].astype(np.int64)
    return Block(data=memoryview(data)[: int(ends[-1])], ends=ends)


def graph_blocks(seed: int, nodes: int) -> Iterator[Block]:
    """Yield edges ``source TAB target`` with power-law degrees on both sides and no self-loops.

    Nodes 0 to ``nodes - 1`` come in order, each with all its edges (degree Pareto with exponent 2, 10 on average,
    below ``nodes`` and 100,000); targets favour low numbers.  After the last node a further pass over all follows.

    Raises:
        ValueError: ``nodes`` is not in [2, 2**31).
    """
    if not 2 <= nodes < 2**31:
        raise ValueError(f"nodes must be in [2, 2**31), got {nodes}")
    bits = Bits(seed, "graph")
    first = 0
    while True:
        sources = np.arange(first, min(first + 10_000, nodes))
        # A Pareto variable with exponent 2 and least value m is m / sqrt(u) and has mean 2 m.
        degrees = np.minimum(5.25 / np.sqrt(bits.unit(len(sources))), min(nodes - 1, 100_000)).astype(np.int64)
        source = np.repeat(sources, np.maximum(degrees, 1))
        skewed = bits.unit(len(source))
        target = np.minimum((skewed * skewed * skewed * (nodes - 1)).astype(np.int64), nodes - 2)
        target += target >= source
        newline = pc.binary_join_element_wise(pa.array(target).cast(pa.string()), "", "\n")
        yield line_block(pc.binary_join_element_wise(pa.array(source).cast(pa.string()), newline, "\t"))
        first = 0 if int(sources[-1]) == nodes - 1 else first + len(sources)


_LOG_START = 1_767_225_600
"""2026-01-01 00:00:00 UTC, the first second of every generated log."""
_WINDOW_S = 3_600
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_5) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Safari/605.1",
    "curl/8.5.0",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
)


def log_blocks(seed: int) -> Iterator[Block]:
    """Yield access-log lines in Apache's combined format, in order of time, that fall into sessions.

    A visit is 1 to 40 requests of one host 1 to 60 seconds apart; hosts (20,000) and pages (5,000) follow Zipf's
    law, so the busiest hosts come back after pauses of minutes to hours and the rest after days.
    """
    bits = Bits(seed, "logs")
    hosts = pa.array([f"{10 + i % 89}.{i // 89 % 256}.{i * 7 % 256}.{1 + i % 254}" for i in range(20_000)])
    stems = vocabulary(2_000)
    pages = pa.array(
        ["/", *(f"/{stems[i % 40 + 50]}/{stems[i % 1900 + 60]}{i}.html".encode().decode() for i in range(1, 5_000))]
    )
    pages = pa.array([_quoted(page) for page in pages.to_pylist()])
    methods = pa.array(["GET"] * 29 + ["POST"] * 2 + ["HEAD"])
    statuses = pa.array(["200"] * 27 + ["304"] * 2 + ["301", "404", "500"])
    agents = pa.array(_AGENTS)
    host_table, page_table = _rank_table(len(hosts), 18), _rank_table(len(pages), 16)
    waiting: list[Int64s] = [np.empty(0, np.int64)] * 3
    start = _LOG_START
    while True:
        # Visits that begin in this window; their requests past its end wait for the next one.
        visits = 4_000
        begin = start + bits.below(_WINDOW_S, visits)
        length = 1 + (40 * bits.unit(visits) ** 3).astype(np.int64).clip(0, 39)
        visit = np.repeat(np.arange(visits), length)
        gap = 1 + bits.below(60, len(visit))
        first_of_visit = np.cumsum(length) - length
        gap[first_of_visit] = 0
        elapsed = np.cumsum(gap)
        time = begin[visit] + elapsed - elapsed[first_of_visit][visit]
        host = host_table[bits.below(len(host_table), visits)].astype(np.int64)[visit]
        page = page_table[bits.below(len(page_table), len(visit))].astype(np.int64)
        time, host, page = (
            np.concatenate(pair) for pair in zip(waiting, (time, host, page), strict=True)
        )
        order = np.argsort(time, kind="stable")
        ready = int(np.searchsorted(time[order], start + _WINDOW_S))
        waiting = [column[order[ready:]] for column in (time, host, page)]
        time, host, page = (column[order[:ready]] for column in (time, host, page))
        seconds = pa.array([_apache_time(second) for second in range(start, start + _WINDOW_S)])
        status = statuses.take(pa.array(bits.below(len(statuses), ready)))
        size = pc.if_else(
            pc.equal(status, "304"), "-", pa.array(200 + bits.below(50_000, ready)).cast(pa.string())
        )
        referer = pages.take(pa.array(page_table[bits.below(len(page_table), ready)]))
        lines = pc.binary_join_element_wise(
            hosts.take(pa.array(host)),
            " - - [",
            seconds.take(pa.array(time - start)),
            '] "',
            methods.take(pa.array(bits.below(len(methods), ready))),
            " ",
            pages.take(pa.array(page)),
            ' HTTP/1.1" ',
            status,
            " ",
            size,
            ' "https://www.example.com',
            referer,
            '" "',
            agents.take(pa.array(host % len(agents))),
            '"\n',
            "",
        )
        start += _WINDOW_S
        yield line_block(lines)


def _quoted(page: str) -> str:
    """Return ``page`` as it stands in a request line: bytes that are not ASCII in percent signs."""
    return "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in page.encode())


def _apache_time(second: int) -> str:
    moment = datetime.datetime.fromtimestamp(second, datetime.UTC)
    # Not strftime's %b: month names must not follow the locale.
    month = "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * moment.month - 3 : 3 * moment.month]
    return f"{moment:%d}/{month}/{moment:%Y:%H:%M:%S} +0000"
