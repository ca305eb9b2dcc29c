"""The border between Python records ``(key, value)`` and batches.

Everything that a stage of Python functions needs is here: encoding and decoding of keys and whole batches, the buffer that
groups and combines native Python keys and encodes only what survives, and the groups on the reduce side.
Of keys that are equal, the first one is shown to ``reduce``.

Pairs are pulled one at a time, so that each large value is counted before the next one is made, and so that an error
knows the record whose pair it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice, starmap
from sys import getsizeof
from typing import Any

import pyarrow as pa

from mapreduce.columns import RECORD_SCHEMA, Pair, to_batch, to_pairs
from mapreduce.errors import BadKey, BadValue
from mapreduce.groups import iterate_groups, iterate_tagged_groups
from mapreduce.guard import WrongResult, fill
from mapreduce.keys import SUPPORTED, decode_key, encode_key, prefix_bytes, shorten

__all__ = [
    "RECORD_SCHEMA",
    "Pair",
    "RecordBuffer",
    "cut_pairs",
    "decode_key",
    "encode_key",
    "iterate_groups",
    "iterate_tagged_groups",
    "prefix_bytes",
    "to_batch",
    "to_pairs",
]

_BLOCK_BYTES = 64 << 20
_BATCH_PAIRS = 1 << 17
_AT_ONCE = 256  # pairs between two looks at how much is held
_LARGE_BYTES = 1 << 20  # of values: enough to look at once
_KEY_BYTES = 100  # of a key's place and a small value, without the key itself
_LIST_BYTES = 100  # of the list of a key's values, without the values
_PAIR_BYTES = 128  # of a tuple, a small key and a small value
_SMALL = frozenset({int, float, bool, complex, type(None)})


class RecordBuffer:
    """Collects pairs, combines the values of equal keys as native Python objects, and encodes what is left.

    A combine that was marked by ``folding`` works as pairs come.  Of another one the values are held, and when a block is
    full, its keys are combined where they are.  A block that stays full is emitted.  All that depends on the pairs alone,
    and not on ``memory_bytes``, which are a quarter of what the task may use, as long as they hold a block of 64 MiB: so from
    256 MiB per task on, a combine that is not exact (a sum of floats) gives the same bytes at any memory limit.  Below that
    blocks end early.  (Blocks that fit always, of 16 MiB, send ten times the bytes of a word count of 100 MB to its shuffle.)
    With ``combine=None`` pairs are encoded straight away.
    """

    def __init__(
        self,
        combine: Callable[[Any, list[Any]], Iterable[Pair] | None] | None,
        emit: Callable[[pa.RecordBatch], None],
        memory_bytes: int,
    ) -> None:
        self.combine, self.emit = fill(combine) if combine else None, emit
        self.block_bytes = min(_BLOCK_BYTES, max(memory_bytes, 1 << 20))
        self.value_bytes = 2 * memory_bytes
        self.two: Callable[[Any, Any], Any] | None = getattr(combine, "folds_by", None)
        self.folded: dict[Any, Any] = {}
        self.groups: defaultdict[Any, list[Any]] = defaultdict(list)
        self.held_bytes = 0

    def add(self, pairs: Iterable[Pair]) -> None:
        """Take pairs.

        Raises:
            BadKey: a key's type has no place in the order of keys.
            BadValue: a value is larger than half of what the task may use.
            WrongResult: something is no pair.
        """
        if self.combine is None:
            self._emit(pairs)
            return
        feed, most = iter(pairs), 1
        take = self._group if self.two is None else partial(self._fold_in, self.two)
        while added_bytes := take(feed, most):
            # Keys are weighed after they are taken, so many are taken at once only where they are small.
            most = min(2 * most, _AT_ONCE) if added_bytes < _LARGE_BYTES else 1
            self.held_bytes += added_bytes
            if self.held_bytes >= self.block_bytes:
                self._combine()
                if self.held_bytes > self.block_bytes * 3 // 4:
                    self.flush()

    def _group(self, feed: Iterator[Pair], most: int) -> int:
        """Take up to ``most`` pairs; return how many bytes they hold, 0 at the end."""
        groups, known = self.groups, len(self.groups)
        pair: Any = None
        key, value, large_bytes = None, None, 0
        try:
            for pair in islice(feed, most):
                if type(pair) is not tuple:
                    _check_pair(pair)
                key, value = pair
                groups[key].append(value)
                if type(value) not in _SMALL:
                    large_bytes += _bytes_of(value)
                    if large_bytes > _LARGE_BYTES:
                        break
        except (TypeError, ValueError) as error:
            _explain(error, pair, key)
            raise
        if pair is None:
            return 0
        if large_bytes > self.value_bytes:
            _check_size(key, value, self.value_bytes)
        each = 8 if type(value) is int and -6 < value < 257 else 32  # small integers are shared
        return (
            large_bytes + most * each + _bytes_of_last(groups, len(groups) - known, _KEY_BYTES + _LIST_BYTES)
        )

    def _fold_in(self, two: Callable[[Any, Any], Any], feed: Iterator[Pair], most: int) -> int:
        """Do as ``_group``, holding one value per key."""
        folded, known = self.folded, len(self.folded)
        pair: Any = None
        key, value, large_bytes = None, None, 0
        try:
            for pair in islice(feed, most):
                if type(pair) is not tuple:
                    _check_pair(pair)
                key, value = pair
                folded[key] = two(folded[key], value) if key in folded else value
                if type(value) not in _SMALL:
                    large_bytes += _bytes_of(value)
                    if large_bytes > _LARGE_BYTES:
                        break
        except (TypeError, ValueError) as error:
            _explain(error, pair, key)
            raise
        if pair is None:
            return 0
        if large_bytes > self.value_bytes:
            _check_size(key, value, self.value_bytes)
        return 1 + large_bytes + _bytes_of_last(folded, len(folded) - known, _KEY_BYTES)

    def _combine(self) -> None:
        """Combine the values of each key that has several, and weigh what is held now."""
        assert self.combine is not None
        if self.two is not None:
            self.held_bytes = sum(
                _KEY_BYTES + _bytes_of(key) + _bytes_of(value) for key, value in self.folded.items()
            )
            return
        old, self.groups = self.groups, defaultdict(list)
        for key, values in old.items():
            for made, value in self.combine(key, values) if len(values) > 1 else ((key, values[0]),):
                self.groups[made].append(value)
        self.held_bytes = sum(
            _KEY_BYTES + _LIST_BYTES + _bytes_of(key) + sum(map(_bytes_of, values))
            for key, values in self.groups.items()
        )

    def flush(self) -> None:
        """Encode and emit everything that is held."""
        if self.combine is not None:
            folded, self.folded = self.folded, {}
            groups, self.groups, self.held_bytes = self.groups, defaultdict(list), 0
            held = chain(((key, [value]) for key, value in folded.items()), groups.items())
            self._emit(chain.from_iterable(starmap(self.combine, held)))

    def _emit(self, pairs: Iterable[Pair]) -> None:
        for chunk in cut_pairs(pairs, _BATCH_PAIRS, self.block_bytes // 4, self.value_bytes):
            self.emit(to_batch(chunk))


def cut_pairs(
    pairs: Iterable[Pair], most_pairs: int, most_bytes: int, value_bytes: int
) -> Iterator[list[Pair]]:
    """Yield the pairs in lists of about ``most_bytes``; only the last pair of a list may be too large for that.

    Raises:
        BadValue: a value has more than ``value_bytes``.
        WrongResult: something is no pair.
    """
    feed = iter(pairs)
    most = max(min(most_pairs, most_bytes // _PAIR_BYTES), 1)
    while True:
        chunk: list[Pair] = []
        add, held_bytes = chunk.append, 0
        pair: Any = None
        try:
            for pair in islice(feed, most):
                if type(pair) is not tuple:
                    _check_pair(pair)
                key, value = pair
                add(pair)
                if type(key) is str:
                    held_bytes += len(key)
                elif type(key) not in _SMALL:
                    held_bytes += _bytes_of(key)
                if type(value) is str:
                    held_bytes += len(value)
                elif type(value) not in _SMALL:
                    held_bytes += _bytes_of(value)
                if held_bytes > most_bytes:
                    break
        except ValueError as error:
            _explain(error, pair, None)
            raise
        if not chunk:
            return
        if held_bytes > value_bytes:
            _check_size(*chunk[-1], value_bytes)
        yield chunk


def _check_size(key: Any, value: Any, most_bytes: int) -> None:
    size = _bytes_of(value)
    if size > most_bytes:
        raise BadValue(
            f"the value of key {shorten(repr(key))} is a {type(value).__name__} of about {size / 1e6:.0f} MB; "
            f"one value may take half of --memory, here {most_bytes / 1e6:.0f} MB: give more, or yield smaller values"
        )


def _check_pair(pair: Any) -> None:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        size = f" of {len(pair)}" if isinstance(pair, tuple | list) else ""
        raise WrongResult(
            f"functions of a job yield (key, value) pairs; here it is {type(pair).__name__}{size}: "
            f"{shorten(repr(pair))}"
        )


def _explain(error: Exception, pair: Any, key: Any) -> None:
    """Raise what was meant by an error of taking a pair apart or of looking up its key; else it is the user's own."""
    if pair is not None:
        _check_pair(pair)
    try:
        hash(key)
    except TypeError:
        raise BadKey(f"{error}: {shorten(repr(key))} cannot be a key; keys are made of {SUPPORTED}") from None


def _bytes_of_last(held: dict[Any, Any], keys: int, each_bytes: int) -> int:
    """Return how many bytes the newest keys take, besides their values."""
    newest = list(islice(reversed(held), keys))
    weigh = getsizeof if set(map(type, newest)) == {str} else _bytes_of
    return keys * each_bytes + sum(map(weigh, newest))


def _bytes_of(value: object, levels: int = 4) -> int:
    """Return about how many bytes a value holds; of what has many parts, some are weighed."""
    size = getsizeof(value)
    if levels == 0:
        return size
    if isinstance(value, tuple | list):
        parts: list[Any] = list(value[:: max(len(value) // 16, 1)])
        count = len(value)
    elif isinstance(value, dict):
        parts = list(chain(*islice(value.items(), 16)))
        count = 2 * len(value)
    else:
        return size
    if not parts:
        return size
    return size + sum(_bytes_of(part, levels - 1) for part in parts) * count // len(parts)
