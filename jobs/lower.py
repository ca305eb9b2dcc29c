"""From a job's plan to one graph: every handle on a stage's output becomes an edge in memory.

Both engines plan a stage with the same function, so splits, partitions and the order in which rows meet are the same;
``mapreduce.inmemory`` does the work of each node.  A stage becomes::

    read ─ map ─ group ─ reduce           the last one writes its part instead

``Lowering`` keeps its nodes while a job goes on that decides by what it sees (a generator): what one round has made stays in
memory for the next, and is let go when the next did not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dag.graph import Graph, Node
from dag.logical import Combine, Group, Map, Read
from jobs.stage_tasks import (
    ReadPart,
    SideInputs,
    map_rows,
    map_splits,
    merge_rows,
    read_side,
    read_split,
    read_together,
    reduce_rows,
    split_rows,
    whole_side,
    write_rows,
)
from mapreduce.aggregate import FOLD_FAN_IN
from mapreduce.inmemory import StageInMemory
from mapreduce.inputs import Source
from mapreduce.options import Options
from mapreduce.partition import FieldPartitioner, HashPartitioner
from mapreduce.planning import Known, Made, StagePlan, plan_stage
from mapreduce.sides import SideSource
from mapreduce.splits import plan_splits
from mapreduce.stages import Dataset, Stage, plan
from mapreduce.task import MapWork

if TYPE_CHECKING:
    import pyarrow as pa


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
            wanted = Stage(name="publish")(wanted)
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
        writes = folder is not None and planned.program.shuffle is None
        for number, given in enumerate(dataset.inputs):
            works = tuple(work for work in planned.maps if work.input == number)
            size = sum(work.split.bytes for work in works)
            source = self._input(given, in_memory, works, size)
            suffix = f".{number}" if len(dataset.inputs) > 1 else ""
            function = stage.maps()[number] if len(stage.maps()) > 1 else stage.maps()[0]
            reads = given.stage is None and not writes
            run = write_rows if writes else map_splits if reads else map_rows
            folds = "combine" if stage.combine and planned.program.shuffle else "fold" if stage.fold else ""
            mapped.append(
                Node(
                    name=f"{name}.{'write' if writes else 'map'}{suffix}",
                    op=Map(
                        kind="write" if writes else f"map+{folds}" if folds else "map",
                        function=partial(run, in_memory, works, first, sides),
                        indexed=not reads, rowwise=reads, whole=whole, releases_gil=gil,
                        keeps_partitioning=function is None and stage.map_end is None,
                    ),
                    inputs=(source, *side_nodes),
                    size_bytes=0 if writes else sizes.get(f"{name}.map{suffix}", source.size_bytes),
                    keep=self.keep and planned.program.shuffle is None and not writes,
                )
            )  # fmt: skip
            first += len(works)
        if planned.program.shuffle is None:
            return mapped[0] if len(mapped) == 1 else self._flat(name, mapped)
        grouped = self._grouped(name, stage, planned, in_memory, mapped)
        writes = folder is not None
        return Node(
            name=f"{name}.{'write' if writes else 'reduce'}",
            op=Map(
                kind="write" if writes else "reduce", indexed=True, whole=whole, releases_gil=gil,
                function=partial(reduce_rows, in_memory, sides, writes),
                keeps_partitioning=stage.keeps_keys,
            ),
            inputs=(grouped, *side_nodes), keep=self.keep and not writes,
            size_bytes=0 if writes else sizes.get(f"{name}.reduce", grouped.size_bytes),
        )  # fmt: skip

    def _grouped(
        self, name: str, stage: Stage, planned: StagePlan, in_memory: StageInMemory, mapped: Sequence[Node]
    ) -> Node:
        """Return the node of the rows by partition, sorted, and folded where the stage declares it."""
        shuffle = planned.program.shuffle
        assert shuffle is not None
        size = sum(node.size_bytes for node in mapped)
        if (
            stage.fold is not None
        ):  # each map has made one row, and the tree is over the maps: nothing to sort
            tree = Map(
                kind="fold", function=in_memory.fold_neighbours, whole=(0,), associative=True,
                fan_in=FOLD_FAN_IN, releases_gil=True,
            )  # fmt: skip
            given = mapped[0] if len(mapped) == 1 else self._flat(name, mapped)
            return Node(
                name=f"{name}.fold", op=tree, inputs=(given,), size_bytes=size // max(len(planned.maps), 1)
            )
        group = Node(
            name=f"{name}.group",
            op=Group(
                partitions=shuffle.partitions, splits=(partial(split_rows, in_memory),),
                merge=partial(merge_rows, in_memory), releases_gil=stage.is_batch,
                partitioning=_partitioning(planned, stage.is_batch), exact=shuffle.exact,
            ),
            inputs=tuple(mapped), size_bytes=size,
        )  # fmt: skip
        if not shuffle.aggregate:
            return group
        fold = Combine(
            kind="fold", function=in_memory.fold_sorted, loose=in_memory.fold_loose, exact=shuffle.exact,
            releases_gil=True,
        )  # fmt: skip
        return Node(name=f"{name}.fold", op=fold, inputs=(group,), size_bytes=size)

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
            parts = tuple(ReadPart(number=number, work=work) for number, work in enumerate(works))
            read = partial(read_split, stage)
            self._reads[key] = Node(
                name=self._name("read"),
                op=Read(function=read, parts=parts, together=read_together, releases_gil=is_batch),
                size_bytes=size, keep=self.keep,
            )  # fmt: skip
        return self._reads[key]

    def _sides(self, planned: StagePlan, side: Mapping[str, Any]) -> tuple[SideInputs, list[Node]]:
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
                given[name] = whole_side(list(made.values), made.schema is not None)
        return SideInputs(names=tuple(nodes), are_batches=tuple(batches), given=given), list(nodes.values())

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
                    parts=tuple(
                        ReadPart(number=split.index, work=MapWork(input=0, split=split)) for split in splits
                    ),
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
