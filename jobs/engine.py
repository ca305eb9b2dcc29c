"""Run a job as one graph, or as few as its decisions allow, with every intermediate in memory.

The counterpart of ``mapreduce.run``: the same job on the same input with the same options makes the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dag.expand import expand_with_origins
from dag.graph import Graph, Node
from dag.rewrite import optimise
from dag.rewrite_base import Rewritten
from dag.task import stage_of
from jobs.lower import Lowering
from jobs.stage_tasks import metered_graph
from mapreduce import publish
from mapreduce.driving import Begun, absolute, drive, recorded
from mapreduce.errors import BadJob, JobError
from mapreduce.inputs import Source
from mapreduce.options import MOST_WORKERS, Options
from mapreduce.owed import Owed
from mapreduce.planning import Made
from mapreduce.stages import Dataset, Job

if TYPE_CHECKING:
    import pyarrow as pa

    from dag.events import OnEvent, TaskRow
    from dag.run import Session

    Report = Callable[[int, TaskRow | None], None]
    Start = Callable[[Graph, OnEvent | None], Session]


@dataclass(frozen=True, kw_only=True)
class RanGraph:
    """One graph of a run: as the job says it, as it was rewritten, its tasks, and when it ran (seconds since the epoch)."""

    logical: Graph
    rewritten: Rewritten
    tasks: Graph
    begin: float = 0.0
    end: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GraphResult:
    """Where the output lies and what it took.

    ``rows`` has one row per attempt; ``planned_bytes`` of input were to be read, each range once.  ``scheduler`` is where the
    tasks ran ("threads", "processes" or an address), ``scheduler_reason`` why there.
    """

    run: str
    job: str
    output: str | None
    seconds: float
    graphs: tuple[RanGraph, ...] = field(repr=False)
    rows: tuple[TaskRow, ...] = field(repr=False)
    planned_bytes: int
    scheduler: str = ""
    scheduler_reason: str = ""
    records: list[Any] | None = field(default=None, repr=False)

    @property
    def done(self) -> tuple[TaskRow, ...]:
        """One row per task: of a value that was lost with its worker and computed again, the last."""
        return tuple({(row.stage, row.task): row for row in self.rows if row.outcome == "done"}.values())

    @property
    def counters(self) -> dict[str, int]:
        """The sum of all tasks' counters, of each task once."""
        total: dict[str, int] = {}
        for row in self.done:
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
    start: Start | None = None,
    sizes: Mapping[str, int] | None = None,
    keep_record: bool = True,
) -> GraphResult:
    """Run ``job`` on ``inputs`` and publish its result at ``output``.

    Args:
        job, inputs, output, parameters, options: as for ``mapreduce.run``; the store is not used.
        scheduler: threads, processes, or the address of a Dask scheduler (else that of ``options``); by default what suits the
            job.  A cluster has the workers and the memory that it has: there ``options`` only plan for so many workers.
        cache_bytes: what may stay in memory between the rounds of a job that decides as it goes; by default all.
        spill: Dask may put values on disk when memory is short.
        report: called with the number of tasks that a graph has to run when it begins, and again with the row of each attempt,
            but not of a task that was done already.
        start: returns workers that are there already and stay, for the first graph; instead of the three before.
        sizes: bytes that operators make, by name, where they are known (``jobs.trial`` measures them); else what they read.
        keep_record: whether `mr runs` shall list it.

    Raises:
        BadJob, MissingInput, OutputExists: before anything was read or written; BadJob also if ``options`` ask for a cluster and
            for fewer workers than it has, or for another place than ``scheduler``.
        JobError, dag.GraphError: the run failed; there is no output and nothing is left behind.
    """
    options = options or Options()
    if options.scheduler is not None:
        options, scheduler = _all_of_cluster(options, options.scheduler, scheduler)
    with (
        recorded(job, inputs, output, parameters or {}, options, engine="dag", keep=keep_record) as begun,
        ExitStack() as stack,
    ):
        if scheduler is not None and "://" in scheduler:  # its workers have other working folders
            begun.sources[:] = [absolute(source) for source in begun.sources]

        def open_here(graph: Graph, on_event: OnEvent | None) -> Session:
            return stack.enter_context(
                open_session(
                    graph,
                    options,
                    scheduler=scheduler,
                    cache_bytes=cache_bytes,
                    spill=spill,
                    on_event=on_event,
                    folder=begun.scratch.folder,
                )
            )

        engine = _Run(begun=begun, options=options, start=start or open_here, report=report, sizes=sizes)
        result = engine.run(output)
    return replace(result, seconds=begun.record["seconds"])


def _all_of_cluster(options: Options, address: str, scheduler: str | None) -> tuple[Options, str]:
    """Return options with as many workers as the cluster has that they name, and its address."""
    from dag.on_cluster import count_slots

    if scheduler not in (None, address):
        raise BadJob(f"a graph runs in one place: options say {address}, the scheduler is to be {scheduler}")
    slots = count_slots(address)
    if options.workers not in (MOST_WORKERS, slots):
        raise BadJob(
            f"a graph takes all {slots} slots of the cluster at {address}, got workers={options.workers}: leave it out"
        )
    return replace(options, workers=slots), address


def open_session(
    graph: Graph,
    options: Options,
    *,
    scheduler: str | None = None,
    cache_bytes: int | None = None,
    spill: bool = False,
    on_event: OnEvent | None = None,
    folder: str,
) -> Session:
    """Start workers where ``scheduler`` says, else where they suit ``graph``, with the memory of the other engine's.

    ``folder`` is for the files of processes of this machine, which Dask leaves behind.
    """
    import dask

    from dag.run import Session

    workers = max(options.workers, 1)
    where, reason = place_of(graph, workers, scheduler=scheduler, spill=spill)
    own = "://" not in where
    with dask.config.set({"temporary-directory": folder}):
        return Session(
            scheduler=where, reason=reason, workers=workers if own else None, cache_bytes=cache_bytes, spill=spill,
            memory_bytes=workers * options.memory_bytes if own else None, on_event=on_event,
        )  # fmt: skip


def place_of(
    graph: Graph, workers: int, *, scheduler: str | None = None, spill: bool = False
) -> tuple[str, str]:
    """Return where the tasks of ``graph`` run, and why there in words."""
    from dag.run import choose_scheduler

    if scheduler is not None:
        return scheduler, "as asked for"
    if spill:
        return "processes", "threads cannot spill"
    return choose_scheduler(graph, workers)


class _Run:
    """The state of one run: the graphs so far, and the session that holds their values."""

    def __init__(
        self,
        *,
        begun: Begun,
        options: Options,
        start: Start,
        report: Report | None,
        sizes: Mapping[str, int] | None,
    ) -> None:
        self.begun, self.options, self.start, self.report = begun, options, start, report
        self.session: Session | None = None
        self.lowering = Lowering(
            options=options, job_name=begun.job.name, values=self._values, sizes=sizes or {}
        )
        self.graphs: list[RanGraph] = []
        self.became: Mapping[Node, Node] = {}
        self.origins: dict[Node, Node] = {}
        self.tasks: dict[Node, Node] = {}
        self.kept: set[Node] = set()
        self.first_row = 0
        self.to_run = 0  # tasks of the last graph
        self.waited_for: set[tuple[str, int]] = set()  # those of them that are not done

    def run(self, output: str | None) -> GraphResult:
        rows: tuple[TaskRow, ...] = ()
        try:
            final = drive(self.begun, self._round)
            records = None
            if output is None:
                records = self._made(final).rows()
            else:
                self._write(final, output)
        finally:
            if self.session is not None:
                rows = tuple(self.session.rows[self.first_row :])
                self.session.forget(self.kept)
                self.begun.record["scheduler"] = self.session.scheduler
                self.begun.record["scheduler_reason"] = self.session.reason
            self.begun.record["rows"] = [asdict(row) for row in rows]
        return GraphResult(
            run=self.begun.run, job=self.begun.job.name, output=output, seconds=self.begun.seconds,
            graphs=tuple(self.graphs), rows=rows, planned_bytes=self.lowering.planned_bytes, records=records,
            scheduler=self.session.scheduler if self.session else "",
            scheduler_reason=self.session.reason if self.session else "",
        )  # fmt: skip

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
                parts = self._compute(graph)
                for written in parts:
                    publish.commit_part(filesystem, program.output, written)
                publish.keep_parts(filesystem, program.output, len(parts))
                staging.publish()
            settled = True
        finally:
            owed.close(settled=settled)

    def _round(self, wanted: Dataset) -> list[Any]:
        """Compute what a job looks at before it goes on; what this makes may be needed again."""
        self.lowering.keep = True
        return self._made(wanted).rows()

    def _made(self, wanted: Dataset) -> Made:
        """Compute a dataset now and return it with its values."""
        if wanted.stage is None:
            assert wanted.source is not None
            return Made(source=wanted.source, schema=None)
        batches = self._values(wanted)
        return replace(self.lowering.made[wanted.computation], values=batches)

    def _values(self, wanted: Dataset) -> list[pa.RecordBatch]:
        return [batch for value in self._compute(self.lowering.graph(wanted)) for batch in value]

    def _compute(self, logical: Graph) -> list[Any]:
        rewritten = optimise(logical, workers=max(self.options.workers, 1), earlier=self.became)
        self.became = rewritten.became
        expanded, self.origins = expand_with_origins(rewritten.graph, self.origins)
        tasks = metered_graph(expanded, self.tasks)
        self.graphs.append(RanGraph(logical=logical, rewritten=rewritten, tasks=tasks))
        if self.session is None:
            self.session = self.start(logical, self._tell if self.report else None)
            self.first_row = len(self.session.rows)
        if self.report is not None:
            self.waited_for = {stage_of(node.name) for node in self.session.needed(tasks)}
            self.to_run = len(self.waited_for)
            self.report(self.to_run, None)
        begin = time.time()
        try:
            values = self.session.run(tasks)
        except Exception as error:
            cause = error.__cause__
            if isinstance(cause, JobError):  # ours, with its own words
                raise cause from None
            raise
        self.graphs[-1] = replace(self.graphs[-1], begin=begin, end=time.time())
        # What the round before has kept and this one did not use will hardly be used again.
        kept = {node for node in tasks.nodes if node.keep}
        self.session.forget(self.kept - kept)
        self.kept = kept
        return values

    def _tell(self, row: TaskRow) -> None:
        task = row.stage, row.task
        if self.report is not None and task in self.waited_for:
            if row.outcome == "done":
                self.waited_for.remove(task)
            self.report(self.to_run, row)
