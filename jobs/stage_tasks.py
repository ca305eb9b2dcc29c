"""What the tasks of a lowered stage do: each function is one step on one partition, with all but its values bound.

Rows of a file come as a stream of (number of the split, batch or chunk of records), which begins each split with None.  So a
task that reads several splits maps each of them by itself, as the other engine's tasks do: how many splits a task has
changes no byte.  Between stages a partition is a list of batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dag.graph import Graph, Node, Part
from mapreduce.columns import to_batch, to_pairs
from mapreduce.inmemory import StageInMemory
from mapreduce.inputs import Source, read_records
from mapreduce.meter import Meter, current_meter, metering
from mapreduce.sides import Sides
from mapreduce.task import MapWork

if TYPE_CHECKING:
    import pyarrow as pa

    from mapreduce.worker import TaskInfo

    OfSplits = Iterable[tuple[int, Any]]


@dataclass(frozen=True, kw_only=True)
class SideInputs:
    """Names of the side inputs that are datasets, in the order in which a task gets them, and all others."""

    names: tuple[str, ...]
    are_batches: tuple[bool, ...]
    given: Mapping[str, Any]

    def load(self, values: Sequence[Sequence[Any]]) -> Mapping[str, Any]:
        """Return the side inputs by name, as functions of a job see them."""
        found = dict(self.given)
        for name, batches, partitions in zip(self.names, self.are_batches, values, strict=True):
            found[name] = whole_side([batch for value in partitions for batch in value], batches)
        return Sides(found)


@dataclass(frozen=True, kw_only=True)
class ReadPart:
    """A split to read, and its number among those of the same file or files."""

    number: int
    work: MapWork


def planned_bytes(part: ReadPart | tuple[ReadPart, ...]) -> int:
    """Return the bytes of input behind a part of a Read, or behind several that are read together."""
    parts = part if isinstance(part, tuple) else (part,)
    return sum(each.work.split.bytes for each in parts)


def whole_side(batches: list[pa.RecordBatch], as_batches: bool) -> Any:
    """Return a side input as a table, or for records as a list of pairs."""
    if not as_batches:
        return [pair for batch in batches for pair in to_pairs(batch)]
    import pyarrow as pa

    return pa.Table.from_batches(batches) if batches else None


# -- reading ----------------------------------------------------------------------------------------


def read_split(stage: StageInMemory, part: ReadPart) -> OfSplits:
    """Read and parse one split."""
    work = part.work
    rows = _counted(stage.task("map", work.split.index), lambda task: stage.read(work, task))
    yield part.number, None
    for each in rows:
        yield part.number, each


def read_together(splits: list[OfSplits]) -> OfSplits:
    """Return several splits as one stream."""
    return itertools.chain.from_iterable(splits)


def read_side(source: Source, part: ReadPart) -> list[pa.RecordBatch]:
    """Read one split of a file that is a side input: records, encoded, so that no task can change what others see."""
    meter = current_meter() or Meter()
    chunks = read_records(part.work.split, source, counted=partial(meter.count_read, stored=False))
    return [to_batch(list(zip(keys, values, strict=False))) for keys, values in chunks]


# -- map, shuffle, reduce ---------------------------------------------------------------------------


def map_splits(
    stage: StageInMemory,
    works: Sequence[MapWork],
    first: int,
    sides: SideInputs,
    rows: OfSplits,
    *values: Any,
) -> Iterator[Any]:
    """Run the map on each split of a file; ``first`` is the number of the first of ``works`` among all map tasks."""
    loaded = sides.load(values)
    for number, own in itertools.groupby(rows, key=itemgetter(0)):
        yield from _map_one(stage, works[number], first + number, loaded, _rows_of(own))


def map_rows(
    stage: StageInMemory,
    works: Sequence[MapWork],
    first: int,
    sides: SideInputs,
    rows: Any,
    *values: Any,
    index: int,
) -> Iterator[Any]:
    """Run the map on a partition that a stage has made."""
    return _map_one(stage, works[index], first + index, sides.load(values), rows)


def _map_one(
    stage: StageInMemory, work: MapWork, number: int, sides: Mapping[str, Any], rows: Any
) -> Iterator[Any]:
    made: Iterator[Any] = _counted(stage.task("map", number), lambda task: stage.map(work, rows, sides, task))
    return made


def write_rows(
    stage: StageInMemory,
    works: Sequence[MapWork],
    first: int,
    sides: SideInputs,
    rows: Any,
    *values: Any,
    index: int,
) -> Any:
    """Run the map function of a stage without a shuffle, and write the part."""
    work, loaded = works[index], sides.load(values)
    own = _rows_of(rows) if work.split.pieces else rows
    task = stage.task("map", first + index)
    return _counted(task, lambda task: stage.write_mapped(work, own, loaded, task))


def _rows_of(rows: OfSplits) -> Iterator[Any]:
    return (each for _, each in rows if each is not None)


def split_rows(stage: StageInMemory, rows: Any, *, index: int) -> Any:
    """Cut what a map has made by partition."""
    return stage.split(rows)


def merge_rows(stage: StageInMemory, pieces: Sequence[Any], *, index: int) -> Any:
    """Sort the rows of one partition."""
    return stage.merge(pieces)


def reduce_rows(
    stage: StageInMemory, sides: SideInputs, writes: bool, rows: Any, *values: Any, index: int
) -> Any:
    """Run the reduce function on one partition; ``writes`` makes its part of the result."""
    loaded = sides.load(values)
    reduced = stage.write_reduced if writes else stage.reduce
    return _counted(stage.task("reduce", index), lambda task: reduced(index, rows, loaded, task))


def _counted(task: TaskInfo, work: Callable[[TaskInfo], Any]) -> Any:
    """Do the work, at once or as it is asked for, and add the counters to the row of the graph's task."""
    made = work(task)
    return _following(made, task) if isinstance(made, Iterator) else _noted(made, task)


def _following(rows: Iterator[Any], task: TaskInfo) -> Iterator[Any]:
    yield from rows
    _noted(None, task)


def _noted(made: Any, task: TaskInfo) -> Any:
    from dag.events import note

    if task.counters:
        note(counters=dict(task.counters))
    return made


# -- measuring --------------------------------------------------------------------------------------


def metered(function: Callable[..., Any], *values: Any) -> Any:
    """Run a whole task: what it makes is held as a list, and what it reads and writes is in its row."""
    from dag.events import note

    with metering(Meter()) as meter:
        made = function(*values)
        if isinstance(made, Iterator):
            made = list(made)
    facts = meter.finish()
    # What values weigh, and what moved, the runner sees for itself.
    files = ("records_in", "bytes_in", "store_read_bytes", "store_written_bytes", "store_physical_bytes")
    note(seconds=facts["seconds"], **{name: facts[name] for name in files})
    return made


def metered_graph(tasks: Graph, known: dict[Node, Node]) -> Graph:
    """Return the tasks ``metered``; one that is in ``known`` becomes what it became before, others are added there."""
    for node in tasks.nodes:
        if node not in known:
            inputs = tuple(
                Part(known[given.node], given.index) if isinstance(given, Part) else known[given]
                for given in node.inputs
            )
            assert node.op.function is not None
            op = replace(node.op, function=partial(metered, node.op.function))
            known[node] = replace(node, op=op, inputs=inputs)
    return Graph(tuple(known[node] for node in tasks.outputs))
