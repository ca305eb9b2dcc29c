"""Count the distinct words of batches of lines without a Python loop over words.

Words are what ``bytes.split()`` returns: maximal runs of bytes other than ASCII whitespace, inside one line.
A word of up to 14 bytes is one or two 64-bit numbers, its length among them, so equal numbers are equal
words; they are counted in a table addressed by a hash, which stays from batch to batch.  A word that is
longer, or that finds its places in the table taken, is left for Arrow's own (slower) count.  The result is
exact whatever the hash does.

Nothing here folds case, strips punctuation or knows an encoding.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: Bytes handled at a time: the arrays made on the way then stay in the processor's cache.
BLOCK_BYTES = 512 << 10
TABLE_BITS = 17
#: A word looks for a free place at that many addresses.
PROBES = 3
#: Odd numbers with well mixed bits; the first is 2**64 divided by the golden ratio.
_MULTIPLIERS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]


class WordCounter:
    """Counts words batch by batch; a batch is faster the more of its words were in those before."""

    def __init__(self) -> None:
        self._short, self._long = _Table(columns=1), _Table(columns=2)
        self._left: list[pa.Array] = []  # words without a place, one by one

    def count(self, lines: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the distinct words of ``lines`` and how often each occurs; as ``add`` and then ``take``."""
        self.add(lines)
        return self.take()

    def add(self, lines: pa.Array) -> None:
        """Count the words of ``lines`` (binary, nulls have none)."""
        data = joined(lines)
        begin = 0
        while begin < len(data):
            stop = end_of_word(data, begin + BLOCK_BYTES)
            self._left += self._add_block(data[begin:stop])
            begin = stop

    def take(self) -> tuple[pa.Array, pa.Array]:
        """Return the distinct words since the last call, each once in no particular order, and their counts (int64)."""
        counted = [self._short.take_counts(), self._long.take_counts()]
        if self._left:
            others = pc.value_counts(pa.concat_arrays(self._left))
            counted.append((others.field(0), others.field(1)))
            self._left = []
        words, counts = zip(*counted, strict=True)
        return pa.concat_arrays(words), pa.concat_arrays(counts)

    def start(self) -> WordCounter:
        """Return a counter at zero: this one, with the words that it knows, or a new one where few places are left."""
        if self._short.is_crowded or self._long.is_crowded:
            return WordCounter()
        self.take()
        return self

    def _add_block(self, data: Bytes) -> list[pa.Array]:
        """Count the words of ``data``; return those that have no place in the tables, one by one."""
        block = np.full(len(data) + 17, 32, dtype=np.uint8)  # the numbers of the last word end in the margin
        block[1 : 1 + len(data)] = data
        starts, ends = word_bounds(block)
        sizes = ends - starts
        # Position i of this view is the 64-bit number whose lowest byte is byte i.
        numbers: Numbers = np.ndarray((len(block) - 7,), dtype="<u8", buffer=block, strides=(1,))
        first = numbers[starts]
        left = []
        middle = np.flatnonzero(sizes >= 8)
        if len(middle):
            tails = sizes[middle]
            if tails.max() > 14:
                giants, middle = middle[tails > 14], middle[tails <= 14]
                left.append(slices(block, starts[giants], ends[giants]))
                tails = sizes[middle]
            places = starts[middle]
            second = shifted(numbers[places + 7], tails - 7)  # bytes 7 to 13 and the size, so never 0
            left += self._long.add((second, first[middle]), block, places, tails)
        left += self._short.add((shifted(first, sizes),), block, starts, sizes)
        return left


def joined(lines: pa.Array) -> Bytes:
    """Return the bytes of ``lines`` with a newline between them."""
    if lines.null_count:
        lines = lines.drop_null()
    if not len(lines):
        return np.zeros(0, dtype=np.uint8)
    bounds = pa.array([0, len(lines)], pa.int32())
    text = pc.binary_join(pa.ListArray.from_arrays(bounds, lines.cast(pa.binary())), b"\n")
    return np.frombuffer(text[0].as_buffer(), dtype=np.uint8)


def is_in_word(data: Bytes) -> Bools:
    """Return which bytes are not ASCII whitespace (as in ``bytes.split``)."""
    inside: Bools = data != 32
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
    """Words that got a slot, and their counts since these were taken last.

    The first key of a word is never 0: 0 marks a free slot, and in slot 0 the words that are counted elsewhere.
    """

    def __init__(self, columns: int) -> None:
        size = 1 << TABLE_BITS
        self._keys = [np.zeros(size, dtype=np.uint64) for _ in range(columns)]
        self._counts = np.zeros(size, dtype=np.int64)
        self._word_of = np.zeros(size, dtype=np.int64)  # position in ``_words``
        self._words = pa.array([], pa.binary())

    def add(self, keys: tuple[Numbers, ...], data: Bytes, starts: Ints, sizes: Ints) -> list[pa.Array]:
        """Count words given as numbers and as places in ``data``; return those that find no slot."""
        mixed = keys[0] * _MULTIPLIERS[0]
        for key, multiplier in zip(keys[1:], _MULTIPLIERS[1:], strict=False):
            mixed ^= key
            mixed *= multiplier
        slots = (mixed >> np.uint64(64 - TABLE_BITS)).view(np.int64)
        missing = self._differ(slots, keys)
        self._counts += np.bincount(slots, minlength=len(self._counts))
        if not len(missing):
            return []
        self._counts -= np.bincount(slots[missing], minlength=len(self._counts))
        slots = slots[missing]
        for probe in range(PROBES):
            if probe:
                address = mixed[missing] >> np.uint64(64 - TABLE_BITS - 8 * probe)
                slots = (address & np.uint64((1 << TABLE_BITS) - 1)).view(np.int64)
            few = tuple(key[missing] for key in keys)
            self._settle(slots, few, data, starts[missing], sizes[missing])
            refused = self._differ(slots, few)
            kept = np.ones(len(slots), dtype=bool)
            kept[refused] = False
            np.add.at(self._counts, slots[kept], 1)
            missing, slots = missing[refused], slots[refused]
            if not len(missing):
                return []
        return [slices(data, starts[missing], starts[missing] + sizes[missing])]

    @property
    def is_crowded(self) -> bool:
        """Whether most slots are taken, perhaps by words that do not come again."""
        return len(self._words) > (3 << TABLE_BITS) // 4

    def take_counts(self) -> tuple[pa.Array, pa.Array]:
        """Return the words counted since the last call and how often each was; the counts start at 0 again."""
        used = 1 + np.flatnonzero(self._counts[1:])
        counts = self._counts[used]
        self._counts[:] = 0
        return self._words.take(pa.array(self._word_of[used])), pa.array(counts)

    def _differ(self, slots: Ints, keys: tuple[Numbers, ...]) -> Ints:
        # take with a mode is twice as fast as [slots], which looks at every slot first
        differ = self._keys[0].take(slots, mode="clip") != keys[0]
        for table, key in zip(self._keys[1:], keys[1:], strict=True):
            differ |= table.take(slots, mode="clip") != key
        return np.flatnonzero(differ)

    def _settle(self, slots: Ints, keys: tuple[Numbers, ...], data: Bytes, starts: Ints, sizes: Ints) -> None:
        """Give each free slot to one of the words that want it."""
        new = np.flatnonzero((self._keys[0][slots] == 0) & (slots != 0))
        if not len(new):
            return
        # Of several assignments to one place the last one stays: that word is the slot's.
        self._word_of[slots[new]] = new
        new = np.unique(self._word_of[slots[new]])
        for table, key in zip(self._keys, keys, strict=True):
            table[slots[new]] = key[new]
        self._word_of[slots[new]] = np.arange(len(self._words), len(self._words) + len(new))
        self._words = pa.concat_arrays([self._words, slices(data, starts[new], starts[new] + sizes[new])])


def slices(data: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """Return ``data[start:end]`` of each pair as a binary array; the slices are in order, none overlap."""
    bounds = np.empty(2 * len(starts) + 1, dtype=np.int32)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2] if len(starts) else 0
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    slices_and_gaps = pa.Array.from_buffers(pa.binary(), 2 * len(starts), buffers)
    return slices_and_gaps.take(pa.array(np.arange(0, 2 * len(starts), 2)))


_here = threading.local()


def next_counter() -> WordCounter:
    """Return a counter at zero for the next task of this thread; it knows the words of the task before."""
    last: WordCounter = getattr(_here, "counter", None) or WordCounter()
    _here.counter = counter = last.start()
    return counter
