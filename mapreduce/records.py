"""The border between Python records ``(key, value)`` and batches.

Everything that a stage of Python functions needs is here: encoding and decoding of keys and whole batches, the buffer that
groups and combines native Python keys and encodes only what survives, and the groups on the reduce side.
Of keys that are equal, the first one is shown to ``reduce``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from sys import getsizeof
from typing import Any

import pyarrow as pa

from mapreduce.columns import RECORD_SCHEMA, Pair, to_batch, to_pairs
from mapreduce.errors import BadKey
from mapreduce.groups import iterate_groups, iterate_tagged_groups
from mapreduce.keys import SUPPORTED, decode_key, encode_key, prefix_bytes, shorten

__all__ = [
    "RECORD_SCHEMA",
    "Pair",
    "RecordBuffer",
    "decode_key",
    "encode_key",
    "iterate_groups",
    "iterate_tagged_groups",
    "prefix_bytes",
    "to_batch",
    "to_pairs",
]

_CHUNK_PAIRS = 4096
_BLOCK_BYTES = 32 << 20
_BATCH_PAIRS = 1 << 17


class RecordBuffer:
    """Collects pairs, combines the values of equal keys as native Python objects, and encodes what is left.

    The pairs are cut into blocks whose end depends on the pairs alone, never on ``memory_bytes``: so a combine that is not
    exact (a sum of floats) gives the same bytes at any memory limit.  Only a limit below the size of a block (about
    32 MiB) ends blocks early.  With ``combine=None`` pairs are encoded straight away.
    """

    def __init__(
        self,
        combine: Callable[[Any, list[Any]], Iterable[Pair]] | None,
        emit: Callable[[pa.RecordBatch], None],
        memory_bytes: int,
    ) -> None:
        self.combine, self.emit = combine, emit
        self.block_bytes = min(_BLOCK_BYTES, max(memory_bytes // 2, 1 << 20))
        self.groups: dict[Any, list[Any]] = {}
        self.pairs: list[Pair] = []
        self.held_bytes = 0

    def add(self, pairs: Iterable[Pair]) -> int:
        """Take pairs and return how many there were.

        Raises:
            BadKey: a key's type has no place in the order of keys.
        """
        return self._collect(pairs) if self.combine is None else self._group(pairs)

    def _collect(self, pairs: Iterable[Pair]) -> int:
        feed = iter(pairs)
        count = 0
        while chunk := list(islice(feed, _CHUNK_PAIRS)):
            self.pairs.extend(chunk)
            count += len(chunk)
            self.held_bytes += _bytes_of_chunk(chunk)
            if len(self.pairs) >= _BATCH_PAIRS or self.held_bytes >= self.block_bytes:
                self.flush()
        return count

    def _group(self, pairs: Iterable[Pair]) -> int:
        feed = iter(pairs)
        count = 0
        while chunk := list(islice(feed, _CHUNK_PAIRS)):
            groups = self.groups
            before = len(groups)
            try:
                for key, value in chunk:
                    if key in groups:
                        groups[key].append(value)
                    else:
                        groups[key] = [value]
            except TypeError as error:
                raise BadKey(
                    f"{error}: {shorten(repr(key))} cannot be a key; keys are made of {SUPPORTED}"
                ) from None
            count += len(chunk)
            new = len(groups) - before
            key, value = chunk[0]
            value_bytes = 8 if type(value) is int and -6 < value < 257 else 8 + _deep_bytes(value)
            self.held_bytes += new * (200 + getsizeof(key)) + len(chunk) * value_bytes
            if self.held_bytes >= self.block_bytes:
                self.flush()
        return count

    def flush(self) -> None:
        """Encode and emit everything that is held."""
        if self.combine is not None:
            groups, self.groups = self.groups, {}
            combine = self.combine
            self.pairs = [pair for key, values in groups.items() for pair in combine(key, values)]
        pairs, self.pairs = self.pairs, []
        self.held_bytes = 0
        for start in range(0, len(pairs), _BATCH_PAIRS):
            self.emit(to_batch(pairs[start : start + _BATCH_PAIRS]))


def _deep_bytes(value: object) -> int:
    if isinstance(value, tuple | list):
        return getsizeof(value) + sum(map(getsizeof, value))
    if isinstance(value, dict):
        return getsizeof(value) + sum(map(getsizeof, value)) + sum(map(getsizeof, value.values()))
    return getsizeof(value)


def _bytes_of_chunk(chunk: list[Pair]) -> int:
    sample = chunk[:: max(len(chunk) // 16, 1)]
    return (
        sum(72 + _deep_bytes(key) + _deep_bytes(value) for key, value in sample) * len(chunk) // len(sample)
    )
