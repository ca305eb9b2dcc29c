"""From a job's plan to one graph: every handle on a stage's output becomes an edge in memory.

Both engines plan a stage with the same function, so splits, partitions and the order in which rows meet are the same;
``mapreduce.inmemory`` does the work of each node.  A stage becomes::

    read ─ map ─ group ─ reduce           the last one writes its part instead

``Lowering`` keeps its nodes while a job goes on that decides by what it sees (a generator): what one round has made stays in
memory for the next, and is let go when the next did not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dag.graph import Graph, Node, Part
from dag.logical import Group, Map, Read
from mapreduce.columns import to_batch, to_pairs
from mapreduce.inmemory import StageInMemory
from mapreduce.inputs import Source, read_records
from mapreduce.meter import Meter, current_meter, metering
from mapreduce.options import Options
from mapreduce.partition import FieldPartitioner, HashPartitioner
from mapreduce.planning import Known, Made, StagePlan, plan_stage
from mapreduce.sides import SideSource
from mapreduce.splits import plan_splits
from mapreduce.stages import Dataset, Stage, plan
from mapreduce.task import MapWork

if TYPE_CHECKING:
    import pyarrow as pa

    from mapreduce.worker import TaskInfo


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Names of the side inputs that are datasets, in the order in which a task gets them, and all others."""

    names: tuple[str, ...]
    are_batches: tuple[bool, ...]
    given: Mapping[str, Any]

    def load(self, values: Sequence[Sequence[Any]]) -> Mapping[str, Any]:
        """Return the side inputs by name, as functions of a job see them."""
        from mapreduce.sides import Sides as Loaded

        found = dict(self.given)
        for name, batches, partitions in zip(self.names, self.are_batches, values, strict=True):
            found[name] = _whole([batch for value in partitions for batch in value], batches)
        return Loaded(found)


def _whole(batches: list[pa.RecordBatch], as_batches: bool) -> Any:
    """Return a side input as a table, or for records as a list of pairs."""
    if not as_batches:
        return [pair for batch in batches for pair in to_pairs(batch)]
    import pyarrow as pa

    return pa.Table.from_batches(batches) if batches else None


# What tasks do.  ``stage`` comes first, bound when the graph is made; the rest is what the graph gives them.


def read_split(stage: StageInMemory, work: MapWork) -> Any:
    """Read and parse one split."""
    return _counted(stage.task("map", work.split.index), lambda task: stage.read(work, task))


def read_side(source: Source, work: MapWork) -> list[pa.RecordBatch]:
    """Read one split of a file that is a side input: records, encoded, so that no task can change what others see."""
    meter = current_meter() or Meter()
    chunks = read_records(work.split, source, counted=partial(meter.count_read, stored=False))
    return [to_batch(list(zip(keys, values, strict=False))) for keys, values in chunks]


def map_rows(
    stage: StageInMemory,
    works: Sequence[MapWork],
    first: int,
    sides: Sides,
    rows: Any,
    *values: Any,
    index: int,
) -> Any:
    """Run the map function on one split's rows; ``first`` is the number of the first of ``works`` among all maps."""
    loaded = sides.load(values)
    task = stage.task("map", first + index)
    return _counted(task, lambda task: stage.map(works[index], rows, loaded, task))


def write_rows(
    stage: StageInMemory,
    works: Sequence[MapWork],
    first: int,
    sides: Sides,
    rows: Any,
    *values: Any,
    index: int,
) -> Any:
    """Run the map function of a stage without a shuffle, and write the part."""
    loaded = sides.load(values)
    task = stage.task("map", first + index)
    return _counted(task, lambda task: stage.write_mapped(works[index], rows, loaded, task))


def split_rows(stage: StageInMemory, rows: Any, *, index: int) -> Any:
    """Cut one map task's rows by partition."""
    return stage.split(rows)


def merge_rows(stage: StageInMemory, pieces: Sequence[Any], *, index: int) -> Any:
    """Sort the rows of one partition."""
    return stage.merge(pieces)


def reduce_rows(stage: StageInMemory, sides: Sides, rows: Any, *values: Any, index: int) -> Any:
    """Run the reduce function on one partition."""
    loaded = sides.load(values)
    task = stage.task("reduce", index)
    return _counted(task, lambda task: stage.reduce(index, rows, loaded, task))


def write_reduced(stage: StageInMemory, sides: Sides, rows: Any, *values: Any, index: int) -> Any:
    """Run the reduce function on one partition, and write the part."""
    loaded = sides.load(values)
    task = stage.task("reduce", index)
    return _counted(task, lambda task: stage.write_reduced(index, rows, loaded, task))


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


@dataclass(kw_only=True)
class Lowering:
    """The nodes of a job so far.

    Args:
        options: how to run; what the other engine has too has the same meaning here.
        sizes: bytes that operators make, by name, where they have been measured; else what they read.
        values: computes the dataset of a node now and returns its batches, for plans that depend on data (cut points).
        keep: have the session hold what stages make until it is told to forget it.
    """

    options: Options
    job_name: str
    values: Callable[[Dataset], list[pa.RecordBatch]]
    keep: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    made: dict[object, Made] = field(default_factory=dict)
    known: Known = field(default_factory=dict)
    nodes: dict[object, Node] = field(default_factory=dict)
    plans: list[StagePlan] = field(default_factory=list)
    planned_bytes: int = 0
    _reads: dict[Any, Node] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def graph(self, wanted: Dataset, folder: str | None = None) -> Graph:
        """Return the logical graph of a dataset; with ``folder`` its parts are written there."""
        if (
            folder is not None and wanted.computation in self.nodes
        ):  # the job has looked at it: write it out as it is
            wanted = Stage(name="output")(wanted)
        node: Node | None = None
        for dataset in plan(wanted):
            final = folder is not None and dataset.computation is wanted.computation
            if dataset.computation in self.nodes and not final:
                continue
            node = self._stage(dataset, folder if final else None)
            if not final:
                self.nodes[dataset.computation] = node
        return Graph((node if folder is not None and node is not None else self.nodes[wanted.computation],))

    def _stage(self, dataset: Dataset, folder: str | None) -> Node:
        stage = dataset.stage
        assert stage is not None
        if stage.partition == "range":
            self._need_values(stage.side.get("cuts"))
        planned = plan_stage(
            dataset,
            self.made,
            self.options,
            folder=folder or "",
            final=folder is not None,
            job_name=self.job_name,
            known=self.known,
        )
        self.plans.append(planned)
        self.made[dataset.computation] = replace(planned.made, source=Source(urls=()))
        name = self._name(stage.title)
        sides, side_nodes = self._sides(planned, stage.side)
        # Side inputs that are values come with each task; the program must not carry what it knows of their files.
        program = replace(planned.program, sides=sides.given)
        in_memory = StageInMemory(program=program, memory_bytes=self.options.memory_bytes)
        whole = tuple(range(1, 1 + len(side_nodes)))
        gil = stage.is_batch
        mapped: list[Node] = []
        # Of a few short ranges a sample is no smaller.
        sizes = {} if any(given.sample_ranges is not None for given in dataset.inputs) else self.sizes
        first = 0
        for number, given in enumerate(dataset.inputs):
            works = tuple(work for work in planned.maps if work.input == number)
            size = sum(work.split.bytes for work in works)
            source = self._input(given, in_memory, works, size)
            writes = folder is not None and planned.program.shuffle is None
            suffix = f".{number}" if len(dataset.inputs) > 1 else ""
            function = stage.maps()[number] if len(stage.maps()) > 1 else stage.maps()[0]
            mapped.append(
                Node(
                    name=f"{name}.{'write' if writes else 'map'}{suffix}",
                    op=Map(
                        kind="write" if writes else "map",
                        function=partial(write_rows if writes else map_rows, in_memory, works, first, sides),
                        indexed=True,
                        whole=whole,
                        releases_gil=gil,
                        keeps_partitioning=function is None,
                    ),
                    inputs=(source, *side_nodes),
                    size_bytes=0 if writes else sizes.get(f"{name}.map{suffix}", source.size_bytes),
                    keep=self.keep and planned.program.shuffle is None and not writes,
                )
            )
            first += len(works)
        if planned.program.shuffle is None:
            return mapped[0] if len(mapped) == 1 else self._flat(name, mapped)
        size = sum(node.size_bytes for node in mapped)
        group = Node(
            name=f"{name}.group",
            op=Group(
                partitions=planned.program.shuffle.partitions, splits=(partial(split_rows, in_memory),),
                merge=partial(merge_rows, in_memory), releases_gil=gil,
                partitioning=_partitioning(planned, stage.is_batch),
            ),
            inputs=tuple(mapped), size_bytes=size,
        )  # fmt: skip
        writes = folder is not None
        return Node(
            name=f"{name}.{'write' if writes else 'reduce'}",
            op=Map(
                kind="write" if writes else "reduce", indexed=True, whole=whole, releases_gil=gil,
                function=partial(write_reduced if writes else reduce_rows, in_memory, sides),
                keeps_partitioning=stage.keeps_keys,
            ),
            inputs=(group, *side_nodes), keep=self.keep and not writes,
            size_bytes=0 if writes else sizes.get(f"{name}.reduce", size),
        )  # fmt: skip

    def _flat(self, name: str, mapped: Sequence[Node]) -> Node:
        from dag.logical import Flatten

        return Node(name=f"{name}.all", op=Flatten(), inputs=tuple(mapped))

    def _need_values(self, cuts: Any) -> None:
        if isinstance(cuts, Dataset) and cuts.stage is not None:
            found = self.made.get(cuts.computation)
            if found is None or found.values is None:
                batches = self.values(cuts)
                self.made[cuts.computation] = replace(self.made[cuts.computation], values=batches)

    def _input(self, given: Dataset, stage: StageInMemory, works: Sequence[MapWork], size: int) -> Node:
        if given.stage is not None:
            return self.nodes[given.computation]
        source = stage.program.sources[works[0].input]
        is_batch = stage.program.stage.is_batch
        key = (given.computation, given.sample_ranges, is_batch, source.schema if is_batch else None)
        if key not in self._reads:
            self.planned_bytes += size
            self._reads[key] = Node(
                name=self._name("read"),
                op=Read(function=partial(read_split, stage), parts=tuple(works), releases_gil=is_batch),
                size_bytes=size, keep=self.keep,
            )  # fmt: skip
        return self._reads[key]

    def _sides(self, planned: StagePlan, side: Mapping[str, Any]) -> tuple[Sides, list[Node]]:
        given = dict(planned.program.sides)
        nodes: dict[str, Node] = {}
        batches = []
        for name, value in side.items():
            if not isinstance(value, Dataset):
                continue
            if value.stage is None:
                if planned.program.stage.asking_for("side"):
                    nodes[name] = self._read_side(value, given.pop(name))
                    batches.append(False)
                continue
            made = self.made[value.computation]
            if made.values is None:
                del given[name]
                nodes[name] = self.nodes[value.computation]
                batches.append(made.schema is not None)
            else:  # looked at already, so it is small and here
                given[name] = _whole(list(made.values), made.schema is not None)
        return Sides(names=tuple(nodes), are_batches=tuple(batches), given=given), list(nodes.values())

    def _read_side(self, given: Dataset, side: SideSource) -> Node:
        """Return the node that reads a file once for all tasks of all stages."""
        key = (given.computation, given.sample_ranges, "side")
        if key not in self._reads:
            size = side.planned_bytes()
            splits = plan_splits(side.source, split_bytes=self.options.split_bytes)
            self.planned_bytes += size
            self._reads[key] = Node(
                name=self._name("read"),
                op=Read(
                    function=partial(read_side, side.source),
                    parts=tuple(MapWork(input=0, split=split) for split in splits),
                ),
                size_bytes=size, keep=self.keep,
            )  # fmt: skip
        return self._reads[key]

    def _name(self, title: str) -> str:
        count = self._names[title] = self._names.get(title, 0) + 1
        return title if count == 1 else f"{title}#{count}"


def _partitioning(planned: StagePlan, is_batch: bool) -> Any:
    """Return what says where the stage's rows go: equal values put equal keys into the same partition."""
    shuffle = planned.program.shuffle
    assert shuffle is not None
    partitioner = shuffle.partitioner
    if isinstance(partitioner, HashPartitioner | FieldPartitioner):
        kinds = tuple(str(shuffle.schema.field(key).type) for key in shuffle.keys) if is_batch else ()
        return (partitioner, shuffle.keys, kinds, shuffle.partitions)
    return None
