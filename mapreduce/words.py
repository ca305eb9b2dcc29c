"""Columns as sequences of 64-bit words whose unsigned order is the order of the values.

* Binary and text: seven bytes and one byte that says how much follows (0 null, else ``min(rest, 8) + 1``), so a
  shorter value that is a prefix sorts first and no second pass over lengths is needed.
* Numbers, dates and times: a word for null or not, then the value with its sign bit turned; ``-0.0`` is ``0.0``, NaN
  is one value after all other numbers; decimals take two or four words.

Null comes first.  Nested types (lists, structs, maps) have no order here and are refused with BadKey.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mapreduce.errors import BadKey

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
WORD_BYTES = 7
REST_LEVEL = (
    16  # text that agrees in so many words is compared as Python bytes: long equal lines must not take long
)
_MORE = np.uint64(9)
_SIGN = np.uint64(1 << 63)
_MASKS = np.array([(1 << 64) - (1 << (64 - 8 * n)) for n in range(8)], dtype=np.uint64)
_MASKS = np.append(_MASKS, _MASKS[7])


class ColumnWords(Protocol):
    """The words of one column; level 0 is the most significant, those before ``first_level`` are all alike."""

    first_level: int
    rest_level: int  # from here on a value is compared as a whole, by ``rests``

    def rests(self, rows: Rows | list[int]) -> list[bytes]:
        """Return what is left of the values of ``rows`` at ``rest_level``."""

    def words(self, level: int, rows: Rows | slice) -> Words:
        """Return the words of ``rows`` at ``level``."""

    def follows(self, level: int, words: Words) -> Flags:
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

    def follows(self, level: int, words: Words) -> Flags:
        return np.broadcast_to(np.bool_(level + 1 < len(self.levels)), (len(words),))


class BytesWords:
    """Words of a binary or text column, gathered from its buffers when they are asked for."""

    first_level = 0
    rest_level = REST_LEVEL

    def __init__(self, array: pa.Array) -> None:
        starts, lengths, data = byte_ranges(array)
        self.width = common_size(lengths)
        self.valid = _validity(array)
        self.starts, self.lengths = starts, lengths
        self.shortest = 0
        if len(lengths) and self.valid is None:
            self.shortest = self.width or int(lengths.min())
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
                if isinstance(rows, slice) and len(range(*rows.indices(len(self.starts)))) == 1:
                    return self._gather(0, rows)  # a look at one row needs no other
                self.first = self._gather(0, slice(None))
            return self.first[rows]
        return self._gather(level, rows)

    def _gather(self, level: int, rows: Rows | slice) -> Words:
        skip = WORD_BYTES * level
        last = len(self.data) - 8
        # every place of the data as the start of a word in big-endian bytes
        places: npt.NDArray[Any] = np.ndarray((last + 1,), dtype="<u8", buffer=self.data.data, strides=(1,))
        whole = isinstance(rows, slice) and rows == slice(None)
        if self.width and level == 0 and whole and self.starts[-1] <= last:
            words = places[int(self.starts[0]) :: self.width][: len(self.starts)].byteswap()
        else:
            starts = self.starts[rows] + skip
            if len(starts) == 0:
                return np.empty(0, np.uint64)
            if int(starts.max()) > last:
                words = places[np.minimum(starts, last)].byteswap(inplace=True)
                words <<= np.clip(starts - last, 0, 8).astype(np.uint64) * np.uint64(8)
            else:
                words = places[starts].byteswap(inplace=True)
        if self.shortest - skip > WORD_BYTES:
            words &= _MASKS[WORD_BYTES]
            words |= _MORE
            return words
        rests = self.lengths[rows] - skip
        np.clip(rests, 0, 8, out=rests)
        words &= _MASKS.take(rests)
        rests += 1
        words |= rests.view(np.uint64)
        if self.valid is not None:
            words[~self.valid[rows]] = 0
        return words

    def follows(self, level: int, words: Words) -> Flags:
        more: Flags = (words & np.uint64(0xFF)) == _MORE
        return more


def byte_ranges(array: pa.Array) -> tuple[Rows, Rows, npt.NDArray[np.uint8]]:
    """Return starts and lengths (int64, one per row) of a binary-like array, and the bytes they point into.

    Lengths that are all alike are one number with a stride of 0, as ``common_size`` finds them: lines of one length need
    no passes over lengths.
    """
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        size = len(array) + array.offset
        data = _bytes_of(array.buffers()[1])
        starts = np.arange(array.offset, size, dtype=np.int64) * kind.byte_width
        return starts, np.broadcast_to(np.int64(kind.byte_width), (len(array),)), data
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        width: Any = np.int32
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        width = np.int64
    else:
        array, width = array.cast(pa.large_binary()), np.int64
    _, offset_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, width)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets)
    size = int(lengths[0])
    if size and (lengths == size).all():
        first = int(offsets[0])
        starts = np.arange(first, first + size * len(array), size, dtype=np.int64)
        return starts, np.broadcast_to(np.int64(size), (len(array),)), _bytes_of(data_buffer)
    return offsets[:-1].astype(np.int64), lengths.astype(np.int64), _bytes_of(data_buffer)


def common_size(lengths: Rows) -> int:
    """Return the length that all values have, as ``byte_ranges`` found it; 0 where they differ, or there are none."""
    return int(lengths[0]) if len(lengths) and lengths.strides == (0,) else 0


def _bytes_of(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _validity(array: pa.Array) -> Flags | None:
    if array.null_count == 0:
        return None
    valid: Flags = array.is_valid().to_numpy(zero_copy_only=False)
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
