"""What a worker does for one stage: read a split, run the user's functions, shuffle, write a part.

A ``StageProgram`` is built by the runner, travels to each worker once per stage and is asked to run
single tasks there.  It knows nothing of other tasks, of retries or of where it runs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .aggregate import fold_in_tree
from .errors import Damaged
from .groups import iterate_groups, iterate_tagged_groups
from .guard import Guard, WrongResult, fill
from .inputs import Source, read_batches, read_records, say_records
from .merge import merge
from .outputs import extension_of, open_sink
from .records import RecordBuffer, cut_pairs
from .runs import Run, give_back
from .shuffle import MapBuffer, Shuffle, conform
from .sides import Sides
from .signatures import inject
from .splits import Split
from .stages import Stage
from .worker import MapOutputLost

if TYPE_CHECKING:
    import pyarrow as pa

    from .pool import TaskInfo

MAP_SHARE = 0.5  # of a worker's memory for buffered map output; the rest is for blocks, sorting and Python
WRITE_BYTES = 8 << 20  # of records that are written at once


@dataclass(frozen=True, kw_only=True)
class MapWork:
    """One map task: a split of one of the stage's inputs."""

    input: int
    split: Split

    def describe(self) -> str:
        return self.split.describe()


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where and how a stage writes its parts."""

    folder: str
    format: str
    compression: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    stored: bool = False  # an intermediate, not the job's output

    def attempt_url(self, part: int, attempt: int) -> str:
        """Return the name of a part until it is committed, which no reader of the folder takes for data."""
        return f"{self.folder}/_{self.part_name(part)}.attempt-{attempt}"

    def part_name(self, part: int) -> str:
        return f"part-{part:05d}{extension_of(self.format, self.compression)}"


@dataclass(frozen=True, kw_only=True)
class Written:
    """A part file, under the name of its attempt, waiting to be published."""

    part: int
    url: str


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """Sorted runs on the worker's local disk."""

    runs: tuple[Run, ...]


@dataclass(kw_only=True)
class View:
    """What a function of the job sees of its task when it asks for ``task``.

    ``input`` is the URL of the file that a record map is reading; for a batch map, which may see several
    small files at once, the split in words; for a reduce its partition.
    """

    kind: str
    index: int
    attempt: int
    worker: int
    partitions: int
    input: str


@dataclass(kw_only=True)
class StageProgram:
    """The work of one stage, ready to run its tasks anywhere."""

    stage: Stage
    sources: tuple[Source, ...]
    schemas: tuple[pa.Schema | None, ...]
    output: Output
    shuffle: Shuffle | None
    output_schema: pa.Schema | None
    sides: Mapping[str, Any]  # plain values, or SideSource
    job_name: str = ""
    stored: tuple[bool, ...] = ()  # which of the sources are intermediates

    def __post_init__(self) -> None:
        self._loaded = Sides(self.sides)  # kept from task to task

    # -- map ------------------------------------------------------------------------------------

    def run_map(self, payload: MapWork, task: TaskInfo) -> Written | Mapped:
        """Run one map task; returns its runs, or its part for a stage without a shuffle."""
        guard = self.guard_map(payload)
        with guard, self.opened(task, payload.split.describe()) as available:
            read = Tally(task, stored=self.is_stored(payload.input))
            if self.shuffle is None:
                return self.write(task.index, task, self._map_rows(payload, available, guard, read))
            buffer = MapBuffer(
                self.shuffle, task.scratch, (payload.input, payload.split.index),
                int(task.memory_bytes * MAP_SHARE),
            )  # fmt: skip
            if self.stage.is_batch:
                for batch in self._map_batches(payload, available, guard, read):
                    buffer.add(batch)
            else:
                combine = self.stage.combine
                groups = RecordBuffer(
                    inject(combine, available) if combine else None,
                    buffer.add,
                    int(task.memory_bytes * MAP_SHARE / 2),
                )
                groups.add(self._map_pairs(payload, available, guard, read))
                groups.flush()
            runs = buffer.finish()
        task.meter.records_out += sum(sum(run.rows) for run in runs)
        return Mapped(runs=tuple(runs))

    def _map_rows(self, payload: MapWork, available: dict[str, Any], guard: Guard, read: Tally) -> Any:
        if self.stage.is_batch:
            return self._map_batches(payload, available, guard, read)
        return self._map_pairs(payload, available, guard, read)

    def _map_batches(
        self, payload: MapWork, available: dict[str, Any], guard: Guard, read: Tally
    ) -> Iterator[pa.RecordBatch]:
        source = self.sources[payload.input]
        batches = read.task.meter.watch(read_batches(payload.split, source, counted=read.count))
        return self.mapped_batches(payload.input, batches, available, guard, read)

    def mapped_batches(
        self,
        number: int,
        batches: Iterable[pa.RecordBatch],
        available: dict[str, Any],
        guard: Guard,
        read: Tally,
    ) -> Iterator[pa.RecordBatch]:
        """Yield what the map function of input ``number`` makes of batches; one row of it all for a stage that folds."""
        made = self._each_batch(number, batches, available, guard, read)
        if self.stage.fold is None or self.shuffle is None:
            yield from made
        else:
            yield fold_in_tree((conform(batch, self.shuffle.schema) for batch in made), self.stage.fold)

    def _each_batch(
        self, number: int, batches: Iterable[pa.RecordBatch], available: dict[str, Any], guard: Guard, read: Tally
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        function = self._map_function(number)
        bound = inject(function, available) if function else None
        for batch in batches:
            read.add_rows(batch.num_rows)
            if bound is None:
                yield batch
                continue
            guard.at(f"batch that ends at record {read.rows}")
            yield from _batches(bound(batch))
        if self.stage.map_end is not None:
            guard.at("the end of the input")
            yield from _batches(inject(self.stage.map_end, available)())

    def _map_pairs(
        self, payload: MapWork, available: dict[str, Any], guard: Guard, read: Tally
    ) -> Iterator[tuple[Any, Any]]:
        chunks = self._record_chunks(payload, available["task"], guard, read)
        return self.mapped_pairs(payload.input, chunks, available, guard, read)

    def mapped_pairs(
        self,
        number: int,
        chunks: Iterable[tuple[Iterable[Any], Sequence[Any]]],
        available: dict[str, Any],
        guard: Guard,
        read: Tally,
    ) -> Iterator[tuple[Any, Any]]:
        """Yield what the map function of input ``number`` makes of chunks of (keys, values)."""
        function = self._map_function(number)
        if function is None:
            for keys, values in chunks:
                read.add_rows(len(values))
                yield from zip(keys, values, strict=False)
        else:
            bound = inject(function, available)
            for keys, values in chunks:
                # map() and chain run the user's function without a frame of ours per record.
                yield from itertools.chain.from_iterable(map(fill(bound), *guard.watch(keys, values)))
                read.add_rows(len(values))
                guard.at(None)
        if self.stage.map_end is not None:
            guard.at("the end of the input")
            yield from fill(inject(self.stage.map_end, available))()

    def _record_chunks(
        self, payload: MapWork, view: View, guard: Guard, read: Tally
    ) -> Iterator[tuple[Iterable[Any], list[Any]]]:
        # Piece by piece, so that functions and errors know which of a split's files a record is from.
        for piece, split in payload.split.apart():
            view.input = piece.url
            guard.place = f"input {piece.describe()}"
            chunks = read_records(split, self.sources[payload.input], counted=read.count)
            yield from read.task.meter.watch(chunks)

    def _map_function(self, number: int) -> Callable[..., Any] | None:
        maps = self.stage.maps()
        return maps[number] if len(maps) > 1 else maps[0]

    # -- reduce ---------------------------------------------------------------------------------

    def run_reduce(self, payload: int, mapped: Sequence[Mapped], task: TaskInfo) -> Written:
        """Merge one partition of all maps' runs, reduce it and write its part.

        Raises:
            MapOutputLost: a run is gone or damaged; its map has to run again.
        """
        assert self.shuffle is not None
        runs = sorted((run for m in mapped for run in m.runs), key=lambda run: run.order)
        guard = self.guard(f"partition {payload}")
        try:
            with guard, self.opened(task, f"partition {payload}") as available:
                task.meter.records_in += sum(run.rows[payload] for run in runs)
                memory_bytes = int(task.memory_bytes * MAP_SHARE)
                rows = self._reduced(runs, payload, task.scratch, memory_bytes, available, guard)
                written = self.write(payload, task, rows)
        except Damaged as error:
            for index, made in enumerate(mapped):
                if any(run.path == error.path for run in made.runs):
                    raise MapOutputLost(index, task.map_attempts[index]) from error
            raise
        # A reduce that is done is not done again; were its answer lost, the maps would be.
        give_back(runs, payload)
        return written

    def _reduced(
        self, runs: list[Run], partition: int, folder: str, memory_bytes: int, available: dict[str, Any],
        guard: Guard,
    ) -> Any:  # fmt: skip
        assert self.shuffle is not None
        merged = merge(runs, partition, self.shuffle, memory_bytes, with_input=self.is_tagged, folder=folder)
        return self.reduced(merged, available, guard)

    @property
    def is_tagged(self) -> bool:
        """True if the reduce has to know which input a row comes from."""
        return not self.stage.is_batch and len(self.stage.maps()) > 1

    def reduced(
        self, merged: Iterable[pa.RecordBatch], available: dict[str, Any], guard: Guard
    ) -> Iterable[Any]:
        """Return what the reduce makes of the sorted rows of a partition: batches, or pairs for records."""
        stage = self.stage
        if stage.is_batch:
            if stage.fold is not None:
                merged = (fold_in_tree(rows, stage.fold) for rows in (merged,))
            if stage.reduce_batch is None:
                return merged
            return _batches(inject(stage.reduce_batch, available)(merged))
        function = stage.reduce or stage.reduce_stream
        assert function is not None
        bound = inject(function, available)
        tagged = self.is_tagged
        groups: Iterator[tuple[Any, Any]]
        if tagged:
            groups = iterate_tagged_groups(merged, inputs=len(stage.maps()), group_fields=stage.group)
        else:
            groups = iterate_groups(merged, stage.group)
        if stage.reduce_stream is not None:
            return fill(bound)(groups)
        spread = ((key, *values) for key, values in groups) if tagged else groups
        return itertools.chain.from_iterable(itertools.starmap(fill(bound), guard.watch_groups(spread)))

    # -- common ---------------------------------------------------------------------------------

    def write(self, part: int, task: TaskInfo, rows: Any) -> Written:
        """Write a part under the name of its attempt."""
        output = self.output
        url = output.attempt_url(part, task.attempt)
        schema = self.output_schema if self.stage.is_batch else None
        sink = open_sink(
            url, format=output.format, compression=output.compression,
            storage_options=output.storage_options, schema=schema,
            counted=functools.partial(task.meter.count_written, stored=output.stored),
        )  # fmt: skip
        try:
            if self.stage.is_batch:
                for batch in rows:
                    sink.write_batch(batch)
            else:
                for chunk in cut_pairs(rows, 5_000, WRITE_BYTES, task.memory_bytes // 2):
                    sink.write_records(chunk)
            count, _ = sink.close()
        except BaseException:
            sink.abort()
            raise
        task.meter.records_out += count
        if output.stored:
            task.meter.store_physical_bytes += sink.physical_bytes()
        return Written(part=part, url=url)

    def is_stored(self, number: int) -> bool:
        """True if input ``number`` is an intermediate in the store."""
        return bool(self.stored) and self.stored[number]

    def guard(self, place: str) -> Guard:
        return Guard(job_name=self.job_name, stage=self.stage.title, place=place)

    def guard_map(self, work: MapWork) -> Guard:
        """Return the guard of a map task, which knows what the records of a file are."""
        guard = self.guard(f"input {work.describe()}")
        if work.split.pieces and not self.is_stored(work.input) and not self.stage.is_batch:
            guard.reads = say_records(work.split.pieces[0])
        return guard

    @contextmanager
    def opened(
        self, task: TaskInfo, place: str, sides: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield what functions may ask for; ``setup`` has run before, ``teardown`` runs after, also on failure."""
        view = View(
            kind=task.kind, index=task.index, attempt=task.attempt, worker=task.worker,
            partitions=self.shuffle.partitions if self.shuffle else 0, input=place,
        )  # fmt: skip
        available = {
            "side": self._loaded if sides is None else sides,
            "counters": task.counters,
            "task": view,
            "state": None,
        }
        if self.stage.setup is not None:
            available["state"] = inject(self.stage.setup, available)()
        try:
            yield available
        finally:
            if self.stage.teardown is not None:
                inject(self.stage.teardown, available)()


@dataclass
class Tally:
    """What a task has read so far; the pool hears of it with the heartbeat.

    ``stored`` says that it reads an intermediate, not the job's input.
    """

    task: TaskInfo
    stored: bool = False
    rows: int = 0

    def count(self, size: int) -> None:
        self.task.meter.count_read(size, stored=self.stored)

    def add_rows(self, rows: int) -> None:
        self.rows += rows
        self.task.meter.records_in += rows


def _batches(made: Any) -> Iterator[pa.RecordBatch]:
    """Yield what a batch function made: a batch, several, or None.

    Raises:
        WrongResult: it is something else.
    """
    if made is None:
        return
    if isinstance(made, str | bytes | dict) or not (hasattr(made, "num_rows") or isinstance(made, Iterable)):
        raise WrongResult(f"it returned {type(made).__name__}; {_WANTED_BATCHES}")
    for batch in (made,) if hasattr(made, "num_rows") else made:
        if not hasattr(batch, "num_rows"):
            raise WrongResult(f"it yielded {type(batch).__name__}; {_WANTED_BATCHES}")
        yield batch


_WANTED_BATCHES = "a batch function returns a pyarrow.RecordBatch, yields several, or returns None"
