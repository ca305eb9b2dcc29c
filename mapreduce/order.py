"""One total order over the rows of batches, computed without Python per row.

A column is seen as a sequence of 64-bit *words* per row whose unsigned order is the order of the values:

* binary and text: seven bytes and one byte that says how much follows (0 null, else ``min(rest, 8) + 1``), so a
  shorter value that is a prefix sorts first and no second pass over lengths is needed;
* numbers, dates and times: a word for null or not, then the value with its sign bit turned; ``-0.0`` is ``0.0``, NaN is
  one value after all other numbers; decimals take two or four words.

Null sorts first.  ``descending`` reverses the whole order of a column (null last, NaN first).  Ties keep their position
in both directions.

Nested types (lists, structs, maps) have no order here and are refused with BadKey.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mapreduce.errors import BadJob, BadKey

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
WORD_BYTES = 7
REST_LEVEL = (
    16  # text that agrees in so many words is compared as Python bytes: long equal lines must not take long
)
_MORE = np.uint64(9)
_SIGN = np.uint64(1 << 63)
_FEW_RUNS = 12  # up to here merging is faster
_MASKS = np.array([(1 << 64) - (1 << (64 - 8 * n)) for n in range(8)], dtype=np.uint64)
_MASKS = np.append(_MASKS, _MASKS[7])


@dataclass(frozen=True)
class Order:
    """One column of a sort order."""

    column: str
    descending: bool = False


class ColumnWords(Protocol):
    """The words of one column; level 0 is the most significant, those before ``first_level`` are all alike."""

    first_level: int
    rest_level: int  # from here on a value is compared as a whole, by ``rests``

    def rests(self, rows: Rows | list[int]) -> list[bytes]:
        """Return what is left of the values of ``rows`` at ``rest_level``."""

    def words(self, level: int, rows: Rows | slice) -> Words:
        """Return the words of ``rows`` at ``level``."""

    def follows(self, level: int, words: Words) -> npt.NDArray[np.bool_]:
        """Tell which of ``words`` (all from ``level``) are followed by a word at the next level."""


class FixedWords:
    """Words of a column whose values all have the same number of words."""

    def __init__(self, levels: list[Words | None], rows: int) -> None:
        self.levels = levels  # None: no nulls, every word is 1
        self.rows = rows
        self.first_level = int(levels[0] is None)
        self.rest_level = len(levels)

    def rests(self, rows: Rows | list[int]) -> list[bytes]:
        raise AssertionError("values of fixed size have no rest")

    def words(self, level: int, rows: Rows | slice) -> Words:
        words = self.levels[level]
        if words is None:
            count = len(range(*rows.indices(self.rows))) if isinstance(rows, slice) else len(rows)
            return np.broadcast_to(np.uint64(1), (count,))
        return words[rows]

    def follows(self, level: int, words: Words) -> npt.NDArray[np.bool_]:
        return np.broadcast_to(np.bool_(level + 1 < len(self.levels)), (len(words),))


class BytesWords:
    """Words of a binary or text column, gathered from its buffers when they are asked for."""

    first_level = 0
    rest_level = REST_LEVEL

    def __init__(self, array: pa.Array) -> None:
        starts, lengths, data = byte_ranges(array)
        self.uniform = len(lengths) > 0 and bool((lengths == lengths[0]).all()) and array.null_count == 0
        self.valid = _validity(array)
        self.starts, self.lengths = starts, lengths
        self.data = data if len(data) >= 8 else np.concatenate([data, np.zeros(8, np.uint8)])
        self.first: Words | None = None

    def rests(self, rows: Rows | list[int]) -> list[bytes]:
        starts, lengths = self.starts[rows].tolist(), self.lengths[rows].tolist()
        skip = WORD_BYTES * REST_LEVEL
        return [
            self.data[start + skip : start + size].tobytes()
            for start, size in zip(starts, lengths, strict=True)
        ]

    def words(self, level: int, rows: Rows | slice) -> Words:
        if level == 0:
            if self.first is None:
                self.first = self._gather(0, slice(None))
            return self.first[rows]
        return self._gather(level, rows)

    def _gather(self, level: int, rows: Rows | slice) -> Words:
        skip = WORD_BYTES * level
        last = len(self.data) - 8
        starts = self.starts[rows] + skip
        view: npt.NDArray[Any] = np.ndarray((last + 1,), dtype=">u8", buffer=self.data.data, strides=(1,))
        if len(starts) == 0:
            return np.empty(0, np.uint64)
        over = starts - last
        if int(over.max()) > 0:
            words = view[np.minimum(starts, last)].astype(np.uint64)
            words <<= np.clip(over, 0, 8).astype(np.uint64) * np.uint64(8)
        elif self.uniform and level == 0 and isinstance(rows, slice) and rows == slice(None):
            step = int(self.lengths[0])
            lined: npt.NDArray[Any] = np.ndarray(
                (len(starts),), dtype=">u8", buffer=self.data.data, offset=int(starts[0]), strides=(step,)
            )
            words = lined.astype(np.uint64)
        else:
            words = view[starts].astype(np.uint64)
        if self.uniform:
            rest = max(min(int(self.lengths[0]) - skip, 8), 0)
            words &= _MASKS[rest]
            words |= np.uint64(rest + 1)
            return words
        rests = np.clip(self.lengths[rows] - skip, 0, 8)
        words &= _MASKS[rests]
        words |= rests.astype(np.uint64) + np.uint64(1)
        if self.valid is not None:
            words[~self.valid[rows]] = 0
        return words

    def follows(self, level: int, words: Words) -> npt.NDArray[np.bool_]:
        return (words & np.uint64(0xFF)) == _MORE


def byte_ranges(array: pa.Array) -> tuple[Rows, Rows, npt.NDArray[np.uint8]]:
    """Return starts and lengths (int64, one per row) of a binary-like array, and the bytes they point into."""
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        size = len(array) + array.offset
        data = _bytes_of(array.buffers()[1])
        starts = np.arange(array.offset, size, dtype=np.int64) * kind.byte_width
        return starts, np.full(len(array), kind.byte_width, np.int64), data
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        width: Any = np.int32
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        width = np.int64
    else:
        array, width = array.cast(pa.large_binary()), np.int64
    _, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, width)[array.offset : array.offset + len(array) + 1].astype(
        np.int64
    )
    return offsets[:-1], np.diff(offsets), _bytes_of(data_buffer)


def _bytes_of(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _validity(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    if array.null_count == 0:
        return None
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def column_words(array: pa.Array) -> ColumnWords:
    """Return the words of one column.

    Raises:
        BadKey: the type has no order.
    """
    kind = array.type
    types = pa.types
    if types.is_dictionary(kind):
        return column_words(array.dictionary_decode())
    if (
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_string_view(kind)
        or types.is_binary_view(kind)
    ):
        if types.is_string_view(kind):
            array = array.cast(pa.large_string())
        elif types.is_binary_view(kind):
            array = array.cast(pa.large_binary())
        return BytesWords(array)
    rows = len(array)
    if types.is_null(kind):
        return FixedWords([np.zeros(rows, np.uint64)], rows)
    valid = _validity(array)
    values = _value_words(array)
    if valid is None:
        return FixedWords([None, *values], rows)
    for words in values:
        words[~valid] = 0
    return FixedWords([valid.astype(np.uint64), *values], rows)


def _value_words(array: pa.Array) -> list[Words | Any]:
    kind, types = array.type, pa.types
    if types.is_boolean(kind):
        return [array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)]
    if types.is_decimal128(kind) or types.is_decimal256(kind):
        count = kind.bit_width // 64
        raw = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, count)
        raw = raw[array.offset : array.offset + len(array)]
        high = raw[:, count - 1] ^ _SIGN
        return [high, *(raw[:, level].copy() for level in range(count - 2, -1, -1))]
    if types.is_floating(kind):
        floats = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        bits = floats.view(np.uint64)
        words = np.where(bits & _SIGN, ~bits, bits | _SIGN)
        words[np.isnan(floats)] = np.iinfo(np.uint64).max
        return [words]
    if types.is_integer(kind):
        numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    elif types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind) or types.is_duration(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        numbers = array.view(width).fill_null(0).to_numpy(zero_copy_only=False)
    else:
        raise BadKey(
            f"a column of type {kind} has no order: sort and group by text, binary, numbers, dates, times or decimals"
        )
    if numbers.dtype.kind == "u":
        return [numbers.astype(np.uint64)]
    return [numbers.astype(np.int64).view(np.uint64) ^ _SIGN]


def order_words(batch: pa.RecordBatch, order: Sequence[Order]) -> list[tuple[ColumnWords, bool]]:
    """Return (words, descending) of each column of ``order``.

    Raises:
        BadJob: a column is missing.
        BadKey: a column's type has no order.
    """
    for part in order:
        if part.column not in batch.schema.names:
            raise BadJob(
                f"no column {part.column!r} to sort or group by; the columns are {', '.join(batch.schema.names)}"
            )
    return [(column_words(batch.column(part.column)), part.descending) for part in order]


def sort_permutation(batch: pa.RecordBatch, order: Sequence[Order]) -> Rows:
    """Return the row numbers of ``batch`` in sorted order, int64; rows that compare equal keep their order.

    Raises:
        BadJob: a column is missing.
        BadKey: a column's type has no order.
    """
    rows = batch.num_rows
    permutation = np.arange(rows, dtype=np.int64)
    spots = permutation.copy()  # the places in ``permutation`` whose rows are tied so far, ascending
    groups: Rows | None = (
        None  # the first place of the tie that each of them belongs to; None is one tie of all
    )
    columns = order_words(batch, order)
    for at, (words, descending) in enumerate(columns if rows > 1 else []):
        settled: list[tuple[Rows, Rows]] = []  # tied in this column to its end
        level = words.first_level
        while len(spots):
            if level == words.rest_level:
                found = _ranks(words.rests(permutation[spots]))
            else:
                found = words.words(level, slice(None) if groups is None else permutation[spots])
            moved, same = stable_order(groups, ~found if descending else found)
            if groups is None:
                permutation = moved
            else:
                permutation[spots] = permutation[spots][moved]
            more = level < words.rest_level
            if at == len(columns) - 1:  # ties that no word follows keep their place
                after = np.flatnonzero(same)
                same[after] = more and words.follows(level, found[moved[after]])
            tied, leads = _ties(same)
            groups, spots = spots[leads], spots[tied]
            follows = words.follows(level, found[moved[tied]]) if more else np.zeros(len(spots), np.bool_)
            if not follows.all():
                settled.append((spots[~follows], groups[~follows]))
                spots, groups = spots[follows], groups[follows]
            level += 1
        if settled:
            spots = np.concatenate([part for part, _ in settled])
            groups = np.concatenate([part for _, part in settled])
        if len(settled) > 1:
            by_place = np.argsort(spots)
            spots, groups = spots[by_place], groups[by_place]
    return permutation


def _ranks(values: list[bytes]) -> Words:
    ranks = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return np.array([ranks[value] for value in values], np.uint64)


def _ties(same: Flags) -> tuple[Rows, Rows]:
    """From "row i + 1 equals row i" return the rows in ties of two or more, and for each the first row of its tie."""
    after = np.flatnonzero(same) + 1
    if len(after) == 0:
        return after, after
    begins = np.concatenate([[True], after[1:] != after[:-1] + 1])
    firsts = after[begins] - 1
    tie = np.cumsum(begins) - 1
    tied = np.insert(after, np.flatnonzero(begins), firsts)
    leads = firsts[np.insert(tie, np.flatnonzero(begins), np.arange(len(firsts)))]
    return tied, leads


def stable_order(groups: Rows | None, words: Words) -> tuple[Rows, Flags]:
    """Return the stable order of rows by (``groups``, ``words``), and which neighbours in it are equal.

    ``groups`` ascend; None is one group.  Group, as much of the word as fits, and position are packed into one 64-bit
    number, because numpy sorts numbers several times faster than it finds an order.  Rows that only differ in what did
    not fit are sorted once more.
    """
    rows = len(words)
    low, high = words.min(), words.max()
    changes = None if groups is None else groups[1:] != groups[:-1]
    if low == high:
        same = np.ones(rows - 1, np.bool_) if changes is None else ~changes
        return np.arange(rows, dtype=np.int64), same
    shift = (rows - 1).bit_length()
    group_bits = 0
    packed = words - low
    word_bits = int(high - low).bit_length()
    if changes is not None:
        ranks = np.zeros(rows, np.uint64)
        np.cumsum(changes, out=ranks[1:])
        group_bits = int(ranks[-1]).bit_length()
    dropped = max(group_bits + word_bits + shift - 64, 0)
    below = np.uint64((1 << shift) - 1)
    if dropped < shift:
        packed <<= np.uint64(shift - dropped)
    else:
        packed >>= np.uint64(dropped - shift)
    if dropped:
        packed &= ~below
    if group_bits:
        ranks <<= np.uint64(64 - group_bits if dropped else word_bits + shift)
        packed |= ranks
    packed |= np.arange(rows, dtype=np.uint64)
    sort_numbers(packed)
    same = (packed[1:] ^ packed[:-1]) <= below
    packed &= below
    moved = packed.view(np.int64)
    if dropped:
        alike = np.flatnonzero(same)
        differ = words[moved[alike]] != words[moved[alike + 1]]
        if differ.any():
            tied, leads = _ties(same)
            again = moved[tied]
            order, equal = stable_order(leads, (words[again] - low) & np.uint64((1 << dropped) - 1))
            moved[tied] = again[order]
            same[:] = False
            same[tied[:-1][equal]] = True
    return moved, same


def sort_numbers(numbers: Words) -> None:
    """Sort ``numbers`` in place: a few ascending runs, as merges have them, by timsort, all else by numpy's SIMD sort.

    On the processors where that sort is slow, workers choose a better one (mapreduce.tuning).
    """
    descents = int(np.count_nonzero(numbers[1:] < numbers[:-1]))
    numbers.sort(kind="stable" if descents < _FEW_RUNS else "quicksort")


class SortedKeys:
    """The keys of one sorted batch, to be searched."""

    def __init__(self, batch: pa.RecordBatch, order: Sequence[Order]) -> None:
        self.rows: int = batch.num_rows
        self.columns = order_words(batch, order)

    def search(self, bound: SortedKeys, row: int, *, low: int = 0, right: bool = False) -> int:
        """Return the first row, from ``low`` on, that is not before row ``row`` of ``bound`` (``right``: that is after it)."""
        high = self.rows
        here = slice(row, row + 1)
        for (words, descending), (sought, _) in zip(self.columns, bound.columns, strict=True):
            level = 0
            while low < high:
                if level == words.rest_level:
                    (rest,) = sought.rests([row])
                    low, high = _search_rests(words, low, high, rest, descending)
                    break
                found, want = words.words(level, slice(low, high)), sought.words(level, here)
                more = bool(sought.follows(level, want)[0])
                if descending:
                    found, want = ~found, ~want
                first = int(np.searchsorted(found, want[0], "left"))
                last = int(np.searchsorted(found, want[0], "right"))
                low, high = low + first, low + last
                if not more:
                    break
                level += 1
        return high if right else low

    def is_less(self, row: int, other: SortedKeys, other_row: int) -> bool:
        """Tell whether row ``row`` sorts before row ``other_row`` of ``other``."""
        for (words, descending), (others, _) in zip(self.columns, other.columns, strict=True):
            level = 0
            while True:
                if level == words.rest_level:
                    (my_rest,), (your_rest,) = words.rests([row]), others.rests([other_row])
                    if my_rest != your_rest:
                        return (my_rest < your_rest) != descending
                    break
                mine = words.words(level, slice(row, row + 1))
                yours = others.words(level, slice(other_row, other_row + 1))
                if mine[0] != yours[0]:
                    return bool(mine[0] < yours[0]) != descending
                if not words.follows(level, mine)[0]:
                    break
                level += 1
        return False


def _search_rests(words: ColumnWords, low: int, high: int, rest: bytes, descending: bool) -> tuple[int, int]:
    """Return the first and the last + 1 of the sorted rows ``low`` to ``high`` whose rest is ``rest``."""

    def place(row: int) -> int:
        (found,) = words.rests([row])
        return (found > rest) - (found < rest) if not descending else (found < rest) - (found > rest)

    rows = range(low, high)
    return low + bisect.bisect_left(rows, 0, key=place), low + bisect.bisect_right(rows, 0, key=place)


def group_boundaries(batch: pa.RecordBatch, keys: Sequence[str]) -> Rows:
    """Return the first row of each group of equal ``keys`` in a sorted batch, int64, starting with 0."""
    rows: int = batch.num_rows
    if rows == 0:
        return np.empty(0, np.int64)
    starts = np.zeros(rows, np.bool_)
    starts[0] = True
    for words, _ in order_words(batch, [Order(key) for key in keys]):
        pairs = np.flatnonzero(~starts[1:]) + 1  # rows that so far equal the row before
        level = 0
        while len(pairs):
            if level == words.rest_level:
                rests, before = words.rests(pairs), words.rests(pairs - 1)
                starts[pairs[[one != other for one, other in zip(rests, before, strict=True)]]] = True
                break
            found = words.words(level, pairs)
            same = found == words.words(level, pairs - 1)
            starts[pairs[~same]] = True
            pairs = pairs[same & words.follows(level, found)]
            level += 1
    return np.flatnonzero(starts)
