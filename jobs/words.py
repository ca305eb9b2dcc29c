"""Count the distinct words of a batch of lines without a Python loop over words.

Words are what ``bytes.split()`` returns: maximal runs of bytes other than ASCII whitespace, inside one
line. A word of up to 14 bytes is one or two 64-bit numbers, its length among them, so equal numbers are
equal words; they are counted in a small table addressed by a hash.  A word that is longer, or whose place
in the table is taken by another, is left for Arrow's own (slower) count.  The result is exact whatever the
hash does.

Nothing here folds case, strips punctuation or knows an encoding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: Bytes handled at a time: the arrays made on the way then stay in the processor's cache.
BLOCK_BYTES = 512 << 10
TABLE_BITS = 16
#: Odd numbers with well mixed bits; the first is 2**64 divided by the golden ratio.
_MULTIPLIERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]


def count_distinct(lines: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the distinct words of ``lines`` (binary, nulls have none) and how often each occurs (int64).

    The words come in no particular order, each once.
    """
    data = joined(lines)
    short, long = _Table(columns=1), _Table(columns=2)
    giants: list[tuple[Ints, Ints]] = []
    begin = 0
    while begin < len(data):
        stop = end_of_word(data, begin + BLOCK_BYTES)
        block = np.full(
            stop - begin + 17, 32, dtype=np.uint8
        )  # the numbers of the last word end in the margin
        block[1 : 1 + stop - begin] = data[begin:stop]
        starts, ends = word_bounds(block)
        sizes = ends - starts
        # Position i of this view is the 64-bit number whose lowest byte is byte i.
        numbers: Numbers = np.ndarray((len(block) - 7,), dtype="<u8", buffer=block, strides=(1,))
        first = numbers[starts]
        middle = np.flatnonzero(sizes >= 8)
        starts = starts + (begin - 1)
        if len(middle):
            tails = sizes[middle]
            if tails.max() > 14:
                is_giant = tails > 14
                giants.append((starts[middle[is_giant]], ends[middle[is_giant]] + (begin - 1)))
                middle, tails = middle[~is_giant], tails[~is_giant]
            second = numbers[starts[middle] + (8 - begin)]  # bytes 7 to 14
            long.add((shifted(second, tails - 7), first[middle]), starts[middle], tails)
        short.add((shifted(first, sizes),), starts, sizes)
        begin = stop
    return _collect(data, (short, long), giants)


def joined(lines: pa.Array) -> Bytes:
    """Return the bytes of ``lines`` with a newline between them."""
    if lines.null_count:
        lines = lines.drop_null()
    if not len(lines):
        return np.zeros(0, dtype=np.uint8)
    bounds = pa.array([0, len(lines)], pa.int32())
    text = pc.binary_join(pa.ListArray.from_arrays(bounds, lines.cast(pa.binary())), b"\n")
    return np.frombuffer(text[0].as_buffer(), dtype=np.uint8)


def is_in_word(data: Bytes) -> npt.NDArray[np.bool_]:
    """Return which bytes are not ASCII whitespace (as in ``bytes.split``)."""
    inside = data != 32
    inside &= (
        data - np.uint8(9)
    ) > 4  # tab, newline, vertical tab, form feed, carriage return; wraps below 9
    return inside


def end_of_word(data: Bytes, place: int) -> int:
    """Return the first whitespace at or after ``place``, or the end."""
    step = 4096
    while place < len(data):
        inside = is_in_word(data[place : place + step])
        if not inside.all():
            return place + int(np.argmin(inside))
        place += step
        step *= 2
    return len(data)


def word_bounds(data: Bytes) -> tuple[Ints, Ints]:
    """Return where the words of ``data`` start and end (exclusive); there is whitespace at both its ends."""
    inside = is_in_word(data)
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    edges += 1
    return edges[0::2], edges[1::2]


def shifted(numbers: Numbers, sizes: Ints) -> Numbers:
    """Return the first ``sizes`` bytes of each number, the size in the lowest byte; 0 for a size above 7."""
    sizes = np.minimum(sizes, 8)
    left = (56 - 8 * sizes).view(np.uint64)  # shifting by 64 or more, as a wrapped -8 is, gives 0
    return ((numbers << np.uint64(8)) << left) | (sizes & 7).view(np.uint64)


class _Table:
    """Counts of the words that got a slot, and the words that did not.

    The first key of a word is never 0: 0 marks a free slot, and words that are counted elsewhere, in slot 0.
    """

    def __init__(self, columns: int) -> None:
        size = 1 << TABLE_BITS
        self._keys = [np.zeros(size, dtype=np.uint64) for _ in range(columns)]
        self._starts = np.zeros(size, dtype=np.int64)
        self._sizes = np.zeros(size, dtype=np.int64)
        self._counts = np.zeros(size, dtype=np.int64)
        self.left: list[tuple[Ints, Ints]] = []  # places of words without a slot, occurrence by occurrence

    def add(self, keys: tuple[Numbers, ...], starts: Ints, sizes: Ints) -> None:
        """Count words given as numbers and as places in the data."""
        mixed = keys[0] * _MULTIPLIERS[0]
        for key, multiplier in zip(keys[1:], _MULTIPLIERS[1:], strict=False):
            mixed ^= key
            mixed *= multiplier
        mixed >>= np.uint64(64 - TABLE_BITS)
        slots = mixed.view(np.int64)
        found = self._keys[0][slots]
        missing = found != keys[0]
        for table, key in zip(self._keys[1:], keys[1:], strict=True):
            missing |= table[slots] != key
        absent = np.flatnonzero(missing)
        self._counts += np.bincount(slots, minlength=len(self._counts))
        if not len(absent):
            return
        new = absent[(found[absent] == 0) & (slots[absent] != 0)]
        # Several words may want one free slot; the last assignment wins, the same one in every column.
        self._starts[slots[new]] = new
        new = self._starts[slots[new]]
        for table, key in zip(self._keys, keys, strict=True):
            table[slots[new]] = key[new]
        self._starts[slots[new]], self._sizes[slots[new]] = starts[new], sizes[new]
        refused = np.zeros(len(absent), dtype=bool)
        for table, key in zip(self._keys, keys, strict=True):
            refused |= table[slots[absent]] != key[absent]
        absent = absent[refused]
        if len(absent):
            self.left.append((starts[absent], starts[absent] + sizes[absent]))
            self._counts -= np.bincount(slots[absent], minlength=len(self._counts))

    def result(self) -> tuple[Ints, Ints, Ints]:
        """Return one place (start, end) and the count of each word that has a slot."""
        used = 1 + np.flatnonzero(self._counts[1:])
        return self._starts[used], self._starts[used] + self._sizes[used], self._counts[used]


def slices(data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """Return ``data[start:end]`` of each pair as a binary array; the slices are in order, none overlap."""
    bounds = np.empty(2 * len(starts) + 1, dtype=np.int32)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2] if len(starts) else 0
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    slices_and_gaps = pa.Array.from_buffers(pa.binary(), 2 * len(starts), buffers)
    return slices_and_gaps.take(pa.array(np.arange(0, 2 * len(starts), 2)))


def _collect(
    data: Bytes, tables: tuple[_Table, ...], giants: list[tuple[Ints, Ints]]
) -> tuple[pa.Array, pa.Array]:
    """Join what the tables counted with Arrow's count of the words that have no slot."""
    starts, ends, counts = (
        np.concatenate(part) for part in zip(*(table.result() for table in tables), strict=True)
    )
    order = np.argsort(starts)
    words, numbers = [slices(data, starts[order], ends[order])], [pa.array(counts[order])]
    for place in [*giants, *(place for table in tables for place in table.left)]:
        left = pc.value_counts(slices(data, *place))
        words.append(left.field(0))
        numbers.append(left.field(1))
    if len(words) == 1:
        return words[0], numbers[0]
    both = pa.table([pa.concat_arrays(words), pa.concat_arrays(numbers)], names=["word", "n"])
    summed = both.group_by("word", use_threads=False).aggregate([("n", "sum")])
    return summed["word"].combine_chunks(), summed["n_sum"].combine_chunks()
