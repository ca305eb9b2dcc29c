"""Count the distinct words of batches of lines without a Python loop over words.

Words are what ``bytes.split()`` returns: maximal runs of bytes other than ASCII whitespace, inside one line.
A word of up to 24 bytes is one to three 64-bit numbers: its bytes, each changed so that a blank would be 0, and zeros after
them.  As no word has a blank in it, equal numbers are equal words.  They are counted in a table addressed by a hash, which stays
from batch to batch and holds the numbers alone: the words are made of them again when the counts are taken.  A word
that is longer, or that finds its places in the table taken, is left for Arrow's own (slower) count.  The result is
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
#: Words are counted when there are so many: a table then comes into the processor's cache once for all of them.
ADDED_WORDS = 1 << 18
#: Words that are not in their first place wait until there are so many: a step of numpy costs little more for all of them.
WAITING_WORDS = 1 << 15
#: Words that no table takes are kept one by one; a counter with so many is full.
LEFT_WORDS = 1 << 18
#: Odd numbers with well mixed bits; the first is 2**64 divided by the golden ratio.
_MULTIPLIERS = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)))
COLUMNS = len(_MULTIPLIERS)
BLANK = 32
#: What keeps the first n bytes of a number, for n up to 8; more belongs to a table of more columns, as 0.
_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(9)] + [0], dtype=np.uint64)

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
Keys = tuple[Numbers, ...]


class WordCounter:
    """Counts words batch by batch; a batch is faster the more of its words were in those before."""

    def __init__(self) -> None:
        self._tables = [_Table(columns) for columns in range(1, COLUMNS + 1)]
        self._left: list[pa.Array] = []  # words that no table takes, one by one

    def count(self, lines: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the distinct words of ``lines`` and how often each occurs; as ``add`` and then ``take``."""
        self.add(lines)
        return self.take()

    def add(self, lines: pa.Array) -> None:
        """Count the words of ``lines`` (binary, nulls have none)."""
        rows = max(1, len(lines) * BLOCK_BYTES // max(lines.nbytes, 1))
        for first in range(0, len(lines), rows):
            data = joined(lines.slice(first, rows))
            begin = 0
            while begin < len(data):
                stop = end_of_word(data, begin + 2 * BLOCK_BYTES)
                self._add_block(data[begin:stop])
                begin = stop

    def take(self) -> tuple[pa.Array, pa.Array]:
        """Return the distinct words since the last call, each once in no particular order, and their counts (int64)."""
        counted = []
        for table in self._tables:
            counted.append(table.take_counts())
            self._left += table.take_left()
        if self._left:
            others = pc.value_counts(pa.concat_arrays(self._left))
            counted.append((others.field(0), others.field(1)))
            self._left = []
        words, counts = zip(*counted, strict=True)
        return pa.concat_arrays(words), pa.concat_arrays(counts)

    @property
    def is_full(self) -> bool:
        """Whether so many words are held one by one that they should be taken."""
        left = sum(map(len, self._left)) + sum(table.left_words for table in self._tables)
        return left >= LEFT_WORDS

    def start(self) -> WordCounter:
        """Return a counter at zero: this one, with the words that it knows, or a new one where few places are left."""
        if any(table.is_crowded for table in self._tables):
            return WordCounter()
        self.take()
        return self

    def _add_block(self, data: Bytes) -> None:
        """Count the words of ``data``."""
        block = np.zeros((len(data) + 9) & ~7, dtype=np.uint8)
        np.bitwise_xor(data, BLANK, out=block[1 : 1 + len(data)])
        starts, sizes = word_places(block[: len(data) + 2])
        numbers: Numbers = block.view("<u8")
        keys: Keys = (numbers_at(numbers, starts),)
        for table in self._tables:
            last = keys[-1] & _MASKS.take(sizes, mode="clip")
            table.add((*(key * (last != 0) for key in keys[:-1]), last))
            longer = np.flatnonzero(sizes > 8)
            if not len(longer):
                return
            starts, sizes = starts[longer] + 8, sizes[longer] - 8
            if len(keys) < COLUMNS:
                keys = (*(key[longer] for key in keys), numbers_at(numbers, starts))
        starts -= 1  # the place in ``data``
        self._left.append(slices(data, starts - 8 * COLUMNS, starts + sizes))


def joined(lines: pa.Array) -> Bytes:
    """Return the bytes of ``lines`` with a newline between them."""
    if lines.null_count:
        lines = lines.drop_null()
    if not len(lines):
        return np.zeros(0, dtype=np.uint8)
    bounds = pa.array(np.array([0, len(lines)], dtype=np.int32))
    text = pc.binary_join(pa.ListArray.from_arrays(bounds, lines.cast(pa.binary())), b"\n")
    return np.frombuffer(text[0].as_buffer(), dtype=np.uint8)


def end_of_word(data: Bytes, place: int) -> int:
    """Return the first whitespace at or after ``place``, or the end."""
    step = 4096
    while place < len(data):
        found = is_space(data[place : place + step] ^ np.uint8(BLANK))
        if found.any():
            return place + int(np.argmax(found))
        place += step
        step *= 2
    return len(data)


def is_space(block: Bytes) -> Bools:
    """Return which bytes, changed by BLANK, are ASCII whitespace (as in ``bytes.split``)."""
    found: Bools = block == 0
    # tab, newline, vertical tab, form feed and carriage return are 9 to 13, and 41 to 45 when changed
    found |= (block - np.uint8(9 ^ BLANK)) <= 4
    return found


def word_places(block: Bytes) -> tuple[Ints, Ints]:
    """Return where the words of ``block`` start and their sizes; there is whitespace at both its ends.

    Where spaces follow each other there is a word of size 0 between them.
    """
    spaces = np.flatnonzero(is_space(block))
    starts = spaces[:-1] + 1
    return starts, spaces[1:] - starts


def numbers_at(numbers: Numbers, places: Ints) -> Numbers:
    """Return the 64-bit number that begins at each byte ``places`` of ``numbers`` (little-endian).

    Two aligned reads are faster than one that numpy has to copy byte by byte.
    """
    at = places >> 3
    bits = ((places & 7) << 3).view(np.uint64)
    found: Numbers = numbers.take(at, mode="clip")  # a mode spares a look at every index first
    found >>= bits
    at += 1
    above = numbers.take(at, mode="clip")
    above <<= np.uint64(64) - bits  # numpy shifts by 64 to 0
    found |= above
    return found


def mixed(keys: Keys) -> Numbers:
    """Return a hash of each word, 0 for one whose numbers are 0."""
    hashes: Numbers = keys[0] * _MULTIPLIERS[0]
    for key, multiplier in zip(keys[1:], _MULTIPLIERS[1:], strict=False):
        hashes ^= key
        hashes *= multiplier
    return hashes


def slots_of(hashes: Numbers, probe: int) -> Ints:
    """Return the slot of each hash that is tried as number ``probe``: its uppermost bits, then some below them."""
    slots = hashes >> np.uint64(64 - TABLE_BITS - 8 * probe)
    if probe:
        slots &= np.uint64((1 << TABLE_BITS) - 1)
    return slots.view(np.int64)


class _Table:
    """Words that got a slot, and their counts since these were taken last.

    The last key of a word is never 0: 0 marks a free slot, and in slot 0 the words that are counted elsewhere.
    """

    def __init__(self, columns: int) -> None:
        size = 1 << TABLE_BITS
        self._keys = [np.zeros(size, dtype=np.uint64) for _ in range(columns)]
        self._counts = np.zeros(size, dtype=np.int64)
        self._added: list[Keys] = []  # words to be counted
        self._added_words = 0
        self._waiting: list[Keys] = []  # words that are not in their first place, one by one
        self._waiting_words = 0
        self._left: list[Keys] = []  # words without a slot, one by one

    def add(self, keys: Keys) -> None:
        """Count words, at once or later."""
        self._added.append(keys)
        self._added_words += len(keys[0])
        if self._added_words >= ADDED_WORDS:
            self._count_added()

    def _count_added(self) -> None:
        """Count the words that were added; those that are not in their first place have to wait."""
        added, self._added, self._added_words = self._added, [], 0
        counted = []
        for keys in added:
            slots = slots_of(mixed(keys), 0)
            missing = self._differ(slots, keys)
            if len(missing):
                self._waiting.append(tuple(key[missing] for key in keys))
                self._waiting_words += len(missing)
                slots[missing] = 0
            counted.append(slots)
        for slots in counted:
            np.add.at(self._counts, slots, 1)
        if self._waiting_words >= WAITING_WORDS:
            self._place_waiting()

    def _place_waiting(self) -> None:
        """Count the words that wait, giving those that are new a slot."""
        if not self._waiting:
            return
        keys: Keys = tuple(map(np.concatenate, zip(*self._waiting, strict=True)))
        self._waiting, self._waiting_words = [], 0
        hashes = mixed(keys)
        for probe in range(PROBES):
            slots = slots_of(hashes, probe)
            self._settle(slots, keys)
            refused = self._differ(slots, keys)
            slots[refused] = 0
            np.add.at(self._counts, slots, 1)
            if not len(refused):
                return
            keys, hashes = tuple(key[refused] for key in keys), hashes[refused]
        self._left.append(keys)

    @property
    def is_crowded(self) -> bool:
        """Whether most slots are taken, perhaps by words that do not come again."""
        return int(np.count_nonzero(self._keys[-1])) > (3 << TABLE_BITS) // 4

    @property
    def left_words(self) -> int:
        """How many words found no slot since they were taken last."""
        return sum(len(keys[0]) for keys in self._left)

    def take_counts(self) -> tuple[pa.Array, pa.Array]:
        """Return the words counted since the last call and how often each was; the counts start at 0 again."""
        self._count_added()
        self._place_waiting()
        used = 1 + np.flatnonzero(self._counts[1:])
        counts = self._counts[used]
        self._counts[:] = 0
        return spelled(tuple(column[used] for column in self._keys)), pa.array(counts)

    def take_left(self) -> list[pa.Array]:
        """Return the words that found no slot since the last call, one by one."""
        left, self._left = [spelled(keys) for keys in self._left], []
        return left

    def _differ(self, slots: Ints, keys: Keys) -> Ints:
        # take with a mode is twice as fast as [slots], which looks at every slot first
        differ = self._keys[0].take(slots, mode="clip") != keys[0]
        for table, key in zip(self._keys[1:], keys[1:], strict=True):
            differ |= table.take(slots, mode="clip") != key
        return np.flatnonzero(differ)

    def _settle(self, slots: Ints, keys: Keys) -> None:
        """Give each free slot to one of the words that want it."""
        new = np.flatnonzero((self._keys[-1].take(slots, mode="clip") == 0) & (slots != 0))
        # Of several assignments to one place the last one stays, in each of the columns: that word is the slot's.
        for table, key in zip(self._keys, keys, strict=True):
            table[slots[new]] = key[new]


def spelled(keys: Keys) -> pa.Array:
    """Return the words that ``keys`` stand for, as a binary array."""
    letters = np.stack(keys, axis=1).astype("<u8").view(np.uint8)
    kept = letters != 0
    ends = np.zeros(len(letters) + 1, dtype=np.int32)
    np.cumsum(np.count_nonzero(kept, axis=1), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(letters[kept] ^ np.uint8(BLANK))]
    return pa.Array.from_buffers(pa.binary(), len(letters), buffers)


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
