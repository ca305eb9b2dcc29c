"""From a stage to its tasks: splits, partitions, schemas, and where its parts go.

A plan is a value that can be printed (`mr explain`) before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .columns import RECORD_SCHEMA, to_pairs
from .errors import BadJob, BadKey
from .inputs import InputFile, Source, ignore, list_files, read_schema
from .keys import encode_key
from .meter import current_meter
from .order import Order, column_words
from .outputs import check_columns
from .partition import (
    FieldPartitioner,
    FunctionPartitioner,
    HashPartitioner,
    Partitioner,
    RangePartitioner,
    range_cuts,
)
from .shuffle import Aggregate, Shuffle
from .sides import SideSource, read_all_batches, read_all_records
from .splits import Split, plan_splits
from .stages import Dataset, Stage
from .task import MapWork, Output, StageProgram

if TYPE_CHECKING:
    import pyarrow as pa

    from .options import Options

PARTITION_BYTES = 32 << 20  # input that justifies one more partition, up to one per worker
LARGE_PARTITION_BYTES = 128 << 20  # several per worker: a partition's space is free again when it is done


@dataclass(frozen=True, kw_only=True)
class Made:
    """The data behind a dataset: files to read, and their schema if they hold batches.

    What a stage makes has ``parts``, one split for each, of ``stored_bytes`` in all; ``origin_bytes`` of input
    went into it, which is what decides how many partitions a stage has that does not say.  An engine that keeps
    values in memory gives small datasets that a plan depends on as ``values``, and others without any data.
    """

    source: Source
    schema: pa.Schema | None
    parts: int | None = None
    origin_bytes: int = 0
    values: Sequence[pa.RecordBatch] | None = None
    stored_bytes: int = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all of it as batches."""
        if self.values is not None:
            return iter(self.values)
        return read_all_batches(self.source, self._counted())

    def records(self) -> list[tuple[Any, Any]]:
        """Read all of it as ``(key, value)`` pairs."""
        if self.values is None:
            return read_all_records(self.source, self._counted())
        return [pair for batch in self.values for pair in to_pairs(batch)]

    def _counted(self) -> Callable[[int], None]:
        meter = current_meter()
        if meter is None:
            return ignore
        meter.planned_bytes += self.stored_bytes
        return partial(meter.count_read, stored=self.parts is not None)

    def rows(self) -> list[Any]:
        """Read all of it as what a job sees that asks for it: pairs, or a tuple per row of a batch."""
        if self.schema is None:
            return self.records()
        return [tuple(row.values()) for batch in self.batches() for row in batch.to_pylist()]


Known = dict[tuple[Any, ...], tuple[Made, list[Split]]]


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """One stage, ready to run.

    ``input_bytes`` went into it from the job's inputs on, through all stages before it.
    """

    title: str
    maps: tuple[MapWork, ...]
    reduces: tuple[int, ...]
    program: StageProgram
    made: Made
    input_bytes: int


def plan_stage(
    dataset: Dataset,
    made: Mapping[object, Made],
    options: Options,
    *,
    folder: str,
    final: bool,
    job_name: str = "",
    known: Known | None = None,
) -> StagePlan:
    """Plan the stage behind ``dataset``, whose inputs have been made.

    ``known`` keeps what was found out about input files, for stages that read them again.

    Raises:
        BadJob: columns or schemas do not fit.
        MissingInput, BadInput: an input is not there or not what it should be.
    """
    stage = dataset.stage
    assert stage is not None
    inputs: list[Made] = []
    maps: list[MapWork] = []
    total_bytes = 0
    for number, dataset_in in enumerate(dataset.inputs):
        given = _made(dataset_in, made)
        if given.parts is not None:
            inputs.append(_read_as(given))
            splits = part_splits(given)
            total_bytes += given.origin_bytes
        else:
            source, splits = _file_splits(dataset_in, given, stage.is_batch, options, job_name, known)
            inputs.append(source)
            total_bytes += sum(split.bytes for split in splits)
        maps.extend(MapWork(input=number, split=split) for split in splits)

    batch_schema = _map_schema(stage, inputs) if stage.is_batch else None
    shuffle = None
    if stage.shuffles:
        partitions = (
            stage.partitions or options.partitions or default_partitions(total_bytes, options.planned_workers)
        )
        shuffle = _shuffle(stage, batch_schema, partitions, made)
    out_schema = (stage.output_schema or batch_schema) if stage.is_batch else None
    if final:
        if out_schema is not None:
            check_columns(out_schema, options.output_format)
        output = Output(
            folder=folder, format=options.output_format, compression=options.compression,
            storage_options=options.storage_options,
        )  # fmt: skip
    else:
        output = Output(
            folder=folder, format="arrow" if stage.is_batch else "records",
            storage_options=options.store_options, stored=True,
        )  # fmt: skip
    program = StageProgram(
        # Sides travel as what was made of them: their own plans would be all the stages before this one.
        stage=replace(stage, side={}), sources=tuple(m.source for m in inputs), schemas=tuple(m.schema for m in inputs),
        output=output, shuffle=shuffle, output_schema=out_schema,
        sides={name: _side(value, made) for name, value in stage.side.items()}, job_name=job_name,
        stored=tuple(m.parts is not None for m in inputs),
    )  # fmt: skip
    result = Source(urls=(folder,), format=output.format, storage_options=output.storage_options)
    parts = shuffle.partitions if shuffle else len(maps)
    return StagePlan(
        title=stage.title, maps=tuple(maps), reduces=tuple(range(shuffle.partitions)) if shuffle else (),
        program=program, input_bytes=total_bytes,
        made=Made(source=result, schema=out_schema, parts=parts, origin_bytes=total_bytes),
    )  # fmt: skip


def _made(dataset: Dataset, made: Mapping[object, Made]) -> Made:
    found = made[dataset.computation] if dataset.stage is not None else None
    if found is None:
        assert dataset.source is not None
        found = Made(source=dataset.source, schema=None)
    if dataset.sample_ranges is not None and found.parts is None:  # what a stage made is seen whole
        found = replace(found, source=found.source.sampled(dataset.sample_ranges))
    return found


def _file_splits(
    dataset: Dataset, given: Made, is_batch: bool, options: Options, job_name: str, known: Known | None
) -> tuple[Made, list[Split]]:
    """Look at the files of an input: their schema, and where to cut them; once for all stages that read them."""
    key = (dataset.computation, dataset.sample_ranges, dataset.as_lines, is_batch)
    if known is not None and key in known:
        return known[key]
    files = list_files(given.source)
    if dataset.as_lines:
        _check_lines(files[0], job_name)
    found = _with_schema(given, files, is_batch)
    splits = plan_splits(
        given.source, split_bytes=options.split_bytes, min_splits=options.planned_workers, files=files
    )
    if known is not None:
        known[key] = found, splits
    return found, splits


def part_splits(given: Made) -> list[Split]:
    """Return the splits of what a stage made: one for each of its parts.

    So the splits belong to the plan, and are the same for values in memory as for files in a store.
    """
    if given.values is not None or not given.source.urls:
        return [Split(index=index, pieces=(), bytes=0) for index in range(given.parts or 0)]
    files = list_files(given.source)
    whole = 1 << 62
    return [
        replace(plan_splits(given.source, split_bytes=whole, files=[file])[0], index=index)
        for index, file in enumerate(files)
    ]


def _read_as(given: Made) -> Made:
    """Let the schema of what a stage made travel with its source."""
    return (
        given if given.schema is None else replace(given, source=replace(given.source, schema=given.schema))
    )


def _with_schema(given: Made, files: list[InputFile], is_batch: bool) -> Made:
    """Find the schema of a source once, so that no task has to look at all files again."""
    source = given.source
    # Records of JSON lines may hold values that no schema has: do not ask for one.
    schemaless = ("records",) if is_batch else ("records", "jsonl")
    if files[0].format in schemaless or source.schema is not None:
        return given
    return replace(given, source=replace(source, schema=given.schema or read_schema(source, files=files)))


def default_partitions(total_bytes: int, workers: int) -> int:
    few = min(max(1, workers), max(1, math.ceil(total_bytes / PARTITION_BYTES)))
    return max(few, math.ceil(total_bytes / LARGE_PARTITION_BYTES))


def _map_schema(stage: Stage, inputs: list[Made]) -> pa.Schema:
    import pyarrow as pa

    if isinstance(stage.schema, pa.Schema):
        return stage.schema
    schemas = [_known(m.source.schema) for m in inputs]
    if stage.schema is not None:
        return stage.schema(schemas[0])
    for other in schemas[1:]:
        if not other.equals(schemas[0]):
            raise BadJob(
                f"stage {stage.title!r}: its inputs have different schemas "
                f"({', '.join(schemas[0].names)} and {', '.join(other.names)}); give schema="
            )
    return schemas[0]


def _known(schema: pa.Schema | None) -> pa.Schema:
    if schema is None:
        raise BadJob("a batch stage cannot read the output of a record stage; give it batches or files")
    return schema


def _shuffle(stage: Stage, schema: pa.Schema | None, partitions: int, made: Mapping[object, Made]) -> Shuffle:
    if not stage.is_batch:
        order: tuple[Order, ...] = (Order("key"),)
        keys: tuple[str, ...] = ("key",)
        schema = RECORD_SCHEMA
    else:
        assert schema is not None
        keys = tuple(k.removeprefix("-") for k in stage.keys)
        order = tuple(Order(c.removeprefix("-"), c.startswith("-")) for c in (*stage.keys, *stage.order))
        for column in (*(o.column for o in order), *stage.aggregate):
            if column not in schema.names:
                have = ", ".join(schema.names)
                raise BadJob(f"stage {stage.title!r}: there is no column {column!r}; the columns are: {have}")
        for column in (o.column for o in order):
            _check_order(stage, schema.field(column))
    return Shuffle(
        schema=schema, keys=keys, order=order, partitions=partitions,
        partitioner=_partitioner(stage, keys, order, partitions, made),
        aggregate=tuple(Aggregate(column, how) for column, how in stage.aggregate.items()),
    )  # fmt: skip


def _check_lines(file: InputFile, job_name: str) -> None:
    if file.format != "text":
        raise BadJob(
            f"job {job_name!r} reads lines of text, but {file.url} is read as {file.format}; "
            "give another file, or --format text (format=) to read it as text"
        )


def _check_order(stage: Stage, field: pa.Field) -> None:
    import pyarrow as pa

    try:
        column_words(pa.nulls(1, field.type))
    except BadKey as error:
        raise BadKey(f"stage {stage.title!r}, column {field.name!r}: {error}") from None


def _partitioner(
    stage: Stage,
    keys: tuple[str, ...],
    order: tuple[Order, ...],
    partitions: int,
    made: Mapping[object, Made],
) -> Partitioner:
    given: Any = stage.partition
    if given is None:
        return FieldPartitioner(stage.group) if stage.group is not None else HashPartitioner(keys)
    if given == "range":
        by = order[: len(keys)]
        return RangePartitioner(by, range_cuts(_sample(stage, keys, made), by, partitions))
    if isinstance(given, str):
        raise BadJob(f"stage {stage.title!r}: partition must be a function or 'range', got {given!r}")
    if isinstance(given, (HashPartitioner, RangePartitioner, FieldPartitioner, FunctionPartitioner)):
        return given
    if not stage.is_batch:
        return FunctionPartitioner(given)
    return given  # type: ignore[no-any-return]


def _sample(stage: Stage, keys: tuple[str, ...], made: Mapping[object, Made]) -> pa.Table:
    """Read the keys from which the cut points of a range partition are chosen."""
    import pyarrow as pa

    cuts = stage.side.get("cuts")
    if not isinstance(cuts, Dataset):
        raise BadJob(
            f"stage {stage.title!r}: partition='range' needs a sample of keys: side={{'cuts': dataset}}"
        )
    found = _made(cuts, made)
    if not stage.is_batch:
        encoded = [encode_key(key) for key, _ in found.records()]
        return pa.table({"key": pa.array(encoded, pa.binary())})
    if found.schema is None:
        raise BadJob(f"stage {stage.title!r}: a batch stage needs a sample made by a batch stage")
    schema = pa.schema([found.schema.field(k) for k in keys])
    return pa.Table.from_batches([b.select(list(keys)) for b in found.batches()], schema)


def _side(value: Any, made: Mapping[object, Made]) -> Any:
    if not isinstance(value, Dataset):
        return value
    found = _made(value, made)
    source = _read_as(found).source
    return SideSource(source=source, batches=found.schema is not None, stored=found.parts is not None)
