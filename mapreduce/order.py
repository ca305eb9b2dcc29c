"""One total order over the rows of batches, computed without Python per row.

Columns are compared as words (mapreduce.words): by the first words, then rows that are still equal by their next
words.  ``descending`` reverses the whole order of a column (null last, NaN first).  Ties keep their position in both
directions.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mapreduce.errors import BadJob
from mapreduce.words import ColumnWords, Flags, Rows, Words, column_words

__all__ = ["Order", "SortedKeys", "column_words", "group_boundaries", "order_words", "sort_permutation"]

_FEW_RUNS = 12  # up to here merging is faster


@dataclass(frozen=True)
class Order:
    """One column of a sort order."""

    column: str
    descending: bool = False


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
            leaders, spots = spots[leads], spots[tied]
            follows = words.follows(level, found[moved[tied]]) if more else np.zeros(len(spots), np.bool_)
            if not follows.all():
                settled.append((spots[~follows], leaders[~follows]))
                spots, leaders = spots[follows], leaders[follows]
            groups = leaders
            level += 1
        if settled:
            spots = np.concatenate([part for part, _ in settled])
            leaders = np.concatenate([part for _, part in settled])
            if len(settled) > 1:
                by_place = np.argsort(spots)
                spots, leaders = spots[by_place], leaders[by_place]
            groups = leaders
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
