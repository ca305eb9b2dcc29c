"""Small datasets that are read whole: side inputs, samples, and what a looping job looks at."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .inputs import Source, ignore, list_files, read_batches, read_records
from .meter import Meter, current_meter
from .splits import plan_splits

if TYPE_CHECKING:
    import pyarrow as pa


class Sides(Mapping[str, Any]):
    """The side inputs by name, each read when a function first asks for it."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            value = self._given[name]
            self._loaded[name] = value.load() if isinstance(value, SideSource) else value
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


@dataclass(frozen=True, kw_only=True)
class SideSource:
    """A side dataset, read whole by each worker on first use: a table for batches, else a list of pairs.

    ``stored`` says that it is an intermediate, not an input of the job.
    """

    source: Source
    batches: bool
    stored: bool = False

    def load(self) -> Any:
        """Read the dataset.

        Returns:
            ``pa.Table`` for batches, else the list of ``(key, value)``.
        """
        meter = current_meter() or Meter()
        counted = functools.partial(meter.count_read, stored=self.stored)
        if self.batches:
            import pyarrow as pa

            found = list(meter.watch(read_all_batches(self.source, counted)))
            return pa.Table.from_batches(found) if found else None
        return read_all_records(self.source, counted)

    def planned_bytes(self) -> int:
        """Return how many bytes a worker will ask for that loads it."""
        if self.source.sample_ranges is not None:
            return sum(split.bytes for split in plan_splits(self.source, split_bytes=64 << 20))
        return sum(file.bytes for file in list_files(self.source))


def read_all_batches(source: Source, counted: Callable[[int], None] = ignore) -> Iterator[pa.RecordBatch]:
    """Read a whole dataset as batches, in order; ``counted`` is told the bytes."""
    for split in plan_splits(source, split_bytes=64 << 20):
        yield from read_batches(split, source, counted=counted)


def read_all_records(source: Source, counted: Callable[[int], None] = ignore) -> list[tuple[Any, Any]]:
    """Read a whole dataset as ``(key, value)`` pairs, in order; ``counted`` is told the bytes."""
    pairs: list[tuple[Any, Any]] = []
    for split in plan_splits(source, split_bytes=64 << 20):
        for keys, values in read_records(split, source, counted=counted):
            pairs.extend(zip(keys, values, strict=False))
    return pairs
