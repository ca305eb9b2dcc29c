"""Run a job as one graph, or as few as its decisions allow, with every intermediate in memory.

The counterpart of ``mapreduce.run``: the same job on the same input with the same options makes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dag.expand import expand_with_origins
from dag.graph import Graph, Node, Part
from jobs.lower import Lowering, metered
from mapreduce import publish
from mapreduce.driving import Begun, drive, recorded
from mapreduce.errors import JobError
from mapreduce.inputs import Source
from mapreduce.owed import Owed
from mapreduce.planning import Made
from mapreduce.runner import Options
from mapreduce.stages import Dataset, Job

if TYPE_CHECKING:
    import pyarrow as pa

    from dag.events import OnEvent, TaskRow
    from dag.run import Session

    Report = Callable[[Graph, TaskRow | None], None]


@dataclass(frozen=True, kw_only=True)
class GraphResult:
    """Where the output lies and what it took.

    ``graphs`` are the logical graphs that ran, as they ran; ``rows`` has one row per task.
    """

    run: str
    job: str
    output: str | None
    seconds: float
    graphs: tuple[Graph, ...]
    rows: tuple[TaskRow, ...]
    records: list[Any] | None = None

    @property
    def counters(self) -> dict[str, int]:
        """The sum of all tasks' counters."""
        total: dict[str, int] = {}
        for row in self.rows:
            if row.outcome == "done":
                for name, value in row.counters.items():
                    total[name] = total.get(name, 0) + value
        return total


def run(
    job: Job | Callable[..., Any],
    *inputs: str | Sequence[str] | Source,
    output: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    options: Options | None = None,
    scheduler: str | None = None,
    cache_bytes: int | None = None,
    spill: bool = False,
    report: Report | None = None,
    session: Session | None = None,
) -> GraphResult:
    """Run ``job`` on ``inputs`` and publish its result at ``output``.

    Args:
        job, inputs, output, parameters, options: as for ``mapreduce.run``; the store is not used.
        scheduler: threads, processes, or the address of a Dask scheduler; by default what suits the job.
        cache_bytes: what may stay in memory between the rounds of a job that decides as it goes; by default all.
        spill: Dask may put values on disk when memory is short.
        report: called with the graph of tasks when it begins, and again with the row of each task.
        session: workers that are there already and stay; then the three before belong to it.

    Raises:
        BadJob, MissingInput, OutputExists: before anything was read or written.
        JobError, dag.GraphError: the run failed; there is no output and nothing is left behind.
    """
    options = options or Options()
    with (
        recorded(job, inputs, output, parameters or {}, options, engine="dag") as begun,
        ExitStack() as stack,
    ):

        def start(graph: Graph, on_event: OnEvent) -> Session:
            from dag.run import Session as New
            from dag.run import choose_scheduler

            workers = max(options.workers, 1)
            where = scheduler or ("processes" if spill else choose_scheduler(graph, workers)[0])
            return stack.enter_context(
                New(
                    scheduler=where, workers=None if "://" in where else workers, cache_bytes=cache_bytes,
                    spill=spill, memory_bytes=None if "://" in where else workers * options.memory_bytes,
                    on_event=on_event,
                )
            )  # fmt: skip

        return _Run(begun=begun, options=options, session=session, start=start, report=report).run(output)


class _Run:
    """The state of one run: the graphs so far, and the session that holds their values."""

    def __init__(
        self,
        *,
        begun: Begun,
        options: Options,
        session: Session | None,
        start: Callable[[Graph, OnEvent], Session],
        report: Report | None,
    ) -> None:
        self.begun, self.options, self.session, self.start = begun, options, session, start
        self.report = report
        self.running = Graph(())
        self.lowering = Lowering(
            options=options, job_name=begun.job.name, values=self._values, keep=begun.job.is_generator
        )
        self.graphs: list[Graph] = []
        self.origins: dict[Node, Node] = {}
        self.tasks: dict[Node, Node] = {}
        self.kept: set[Node] = set()
        self.first_row = len(session.rows) if session is not None else 0

    def run(self, output: str | None) -> GraphResult:
        try:
            final = drive(self.begun, lambda wanted: self._made(wanted).rows())
            records = None
            if output is None:
                records = self._made(final).rows()
            else:
                self._write(final, output)
        finally:
            rows = () if self.session is None else tuple(self.session.rows[self.first_row :])
            self.begun.record["rows"] = [asdict(row) for row in rows]
            if self.session is not None:
                self.session.forget(self.kept)
        return GraphResult(
            run=self.begun.run, job=self.begun.job.name, output=output, seconds=self.begun.seconds,
            graphs=tuple(self.graphs), rows=rows, records=records,
        )  # fmt: skip

    def _on_event(self, row: TaskRow) -> None:
        if self.report is not None:
            self.report(self.running, row)

    def _write(self, final: Dataset, output: str) -> None:
        staging = publish.Staging(output, self.begun.run, self.options)
        owed = Owed(self.begun.run)
        owed.add("output", staging.folder)
        settled = False
        try:
            with staging:
                graph = self.lowering.graph(final, staging.folder)
                program = self.lowering.plans[-1].program
                filesystem = publish.open_folder(staging.folder, program.output.storage_options)
                for written in self._compute(graph):
                    publish.commit_part(filesystem, program.output, written)
                staging.publish()
            settled = True
        finally:
            owed.close(settled=settled)

    def _made(self, wanted: Dataset) -> Made:
        """Compute a dataset now and return it with its values."""
        if wanted.stage is None:
            assert wanted.source is not None
            return Made(source=wanted.source, schema=None)
        batches = self._values(wanted)
        return replace(self.lowering.made[wanted.computation], values=batches)

    def _values(self, wanted: Dataset) -> list[pa.RecordBatch]:
        return [batch for value in self._compute(self.lowering.graph(wanted)) for batch in value]

    def _compute(self, graph: Graph) -> list[Any]:
        self.graphs.append(graph)
        tasks, self.origins = expand_with_origins(graph, self.origins)
        tasks = self._metered(tasks)
        self.running = tasks
        if self.session is None:
            self.session = self.start(graph, self._on_event)
        if self.report is not None:
            self.report(tasks, None)
        try:
            values = self.session.run(tasks)
            # What the round before has kept and this one did not use will hardly be used again.
            kept = {node for node in tasks.nodes if node.keep}
            self.session.forget(self.kept - kept)
            self.kept = kept
            return values
        except Exception as error:
            cause = error.__cause__
            if isinstance(cause, JobError):  # ours, with its own words
                raise cause from None
            raise

    def _metered(self, tasks: Graph) -> Graph:
        """Return the tasks with what they read and write in their rows; a task that was seen before is the same again."""
        for node in tasks.nodes:
            if node not in self.tasks:
                inputs = tuple(
                    Part(self.tasks[given.node], given.index)
                    if isinstance(given, Part)
                    else self.tasks[given]
                    for given in node.inputs
                )
                assert node.op.function is not None
                op = replace(node.op, function=partial(metered, node.op.function))
                self.tasks[node] = replace(node, op=op, inputs=inputs)
        return Graph(tuple(self.tasks[node] for node in tasks.outputs))
