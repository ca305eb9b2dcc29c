"""Run a job as MapReduce: stage after stage, every intermediate through the store.

``run`` promises: the output appears whole or not at all; what the run made for itself is gone when
it returns or raises; the same input and the same plan give the same bytes, whatever was retried.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from . import publish
from .driving import Begun, absolute, drive, recorded
from .events import StageResult
from .inputs import Source
from .meter import Meter, metering
from .options import Options
from .owed import Owed
from .planning import Known, Made, StagePlan, plan_stage
from .pool import AttemptRow, Event, Pool, Task, run_stage
from .processes import no_interrupt
from .scratch import Scratch
from .sides import SideSource
from .stages import Dataset, Job, plan


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """What one stage did, in totals of the accepted attempts; the bytes are those of ``AttemptRow``.

    ``begin`` and ``end`` are seconds since the epoch, between which its tasks ran.  ``shuffle_bytes`` are those that the maps
    wrote.  What the measured bytes should be: ``planned_bytes`` are those of the splits, and of the side inputs for every
    worker that loads them; ``run_bytes`` of the runs' indexes; ``part_bytes`` of the part files as the filesystem lists them.
    ``attempts`` has a row for every attempt, also of those that came to nothing.
    """

    stage: str
    maps: int
    reduces: int
    begin: float
    end: float
    seconds: float
    records_in: int
    bytes_in: int
    store_read_bytes: int
    shuffle_records: int
    shuffle_bytes: int
    records_out: int
    bytes_out: int
    store_written_bytes: int
    store_physical_bytes: int
    planned_bytes: int
    run_bytes: int
    part_bytes: int
    through_store: bool
    counters: Mapping[str, int]
    attempts: tuple[AttemptRow, ...] = field(default=(), repr=False)

    @property
    def read_bytes(self) -> int:
        """Asked of files, input and intermediate."""
        return self.bytes_in + self.store_read_bytes

    @property
    def written_bytes(self) -> int:
        """Given to files, output and intermediate."""
        return self.bytes_out + self.store_written_bytes


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Where the output lies and what it took; ``seconds`` are those of the record, until the run has tidied up.

    ``driver_read_bytes`` are those of intermediates that no attempt read but this process: for a job that looks at results, and
    for cut points; ``driver_planned_bytes`` are the sizes of what it meant to read.
    """

    run: str
    job: str
    output: str | None
    seconds: float
    driver_read_bytes: int
    driver_planned_bytes: int
    stages: tuple[StageReport, ...] = field(repr=False)
    #: of the result, when no output URL was given
    records: list[tuple[Any, Any]] | None = field(default=None, repr=False)

    @property
    def counters(self) -> dict[str, int]:
        """The sum of all stages' counters, of accepted attempts only."""
        total: dict[str, int] = {}
        for stage in self.stages:
            for name, value in stage.counters.items():
                total[name] = total.get(name, 0) + value
        return total


Report = Callable[[str, StagePlan, Event | None], None]


def run(
    job: Job | Callable[..., Any],
    *inputs: str | Sequence[str] | Source,
    output: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    options: Options | None = None,
    report: Report | None = None,
    pool: Pool | None = None,
) -> RunResult:
    """Run ``job`` on ``inputs`` and publish its result at ``output``.

    Args:
        job: a ``Job``, or a plain function from datasets to a dataset.
        inputs: one per dataset that the job takes: a URL, path, pattern or folder, or several.
        output: URL of the folder to make; without it the records come back in the result.
        parameters: values of the job's keyword-only parameters.
        options: how to run.
        report: called at the start of a stage and for each event, for progress bars.
        pool: workers that are there already and stay when the run is over; their number, memory and
            time-out are then the pool's.

    Raises:
        BadJob, MissingInput, OutputExists: before anything was read or written.
        JobError: the run failed; there is no output and nothing is left behind.
    """
    options = options or Options()
    if pool is None and options.scheduler is not None:
        with Scratch() as scratch, open_pool(options, scratch.folder) as there:
            return run(
                job, *inputs, output=output, parameters=parameters, options=options, report=report, pool=there
            )
    if pool is not None:
        options = replace(
            options, workers=pool.workers, memory_bytes=pool.memory_bytes, timeout_s=pool.timeout_s,
            scheduler=pool.scheduler,
        )  # fmt: skip
    publish.open_url(options.store, options.store_options)
    with recorded(job, inputs, output, parameters or {}, options, engine="mapreduce") as begun:
        if pool is not None and pool.scheduler is not None:  # its workers may have other working folders
            begun.sources[:] = [absolute(source) for source in begun.sources]
        engine = _Run(begun=begun, options=options, report=report, pool=pool)
        try:
            result = engine.run(output)
        finally:
            with no_interrupt():  # a second Ctrl-C must not leave what the first one set out to remove
                engine.close()
                begun.record["driver_read_bytes"] = engine.meter.store_read_bytes
                begun.record["stages"] = [asdict(s) for s in engine.reports]
    return replace(result, seconds=begun.record["seconds"])


def open_pool(options: Options, scratch: str, *, shared: bool = False) -> Pool:
    """Return a pool as ``options`` say, on this machine or on a cluster; ``scratch`` and ``shared`` are those of the pool."""
    if options.scheduler is None:
        return Pool(
            options.workers, memory_bytes=options.memory_bytes, timeout_s=options.timeout_s, scratch=scratch
        )
    from .cluster import ClusterPool  # not at the top: distributed takes most of a second

    return ClusterPool(
        options.scheduler, workers=options.workers, memory_bytes=options.memory_bytes,
        timeout_s=options.timeout_s, scratch=scratch, shared=shared,
    )  # fmt: skip


class _Run:
    """The state of one run: what has been made so far, and the worker pool."""

    def __init__(self, *, begun: Begun, options: Options, report: Report | None, pool: Pool | None) -> None:
        self.begun = begun
        self.options = options
        self.report = report
        self.reports: list[StageReport] = []
        self.made: dict[object, Made] = {}
        self.known: Known = {}
        self.pool, self.lent = pool, pool is not None
        store = options.store if "://" in options.store else os.path.abspath(options.store)
        self.store = f"{store.rstrip('/')}/runs/{begun.run}"
        if options.store.endswith("://"):
            self.store = f"{options.store}runs/{begun.run}"
        self.owed = Owed(begun.run)
        self.wrote_store = False
        self.meter = Meter()

    def run(self, output: str | None) -> RunResult:
        with metering(self.meter):
            return self._run(output)

    def _run(self, output: str | None) -> RunResult:
        given = [url for source in self.begun.sources for url in source.urls]
        self._pool().check_sees([*given, self.store, *([] if output is None else [output])])
        final = drive(self.begun, lambda wanted: self._materialise(wanted).rows())
        records = None
        if output is None:
            records = self._materialise(final).rows()
        else:
            staging = publish.Staging(output, self.begun.run, self.options)
            self.owed.add("output", staging.folder)
            with staging:
                self._materialise(final, staging)
                staging.publish()
        return RunResult(
            run=self.begun.run, job=self.begun.job.name, output=output, seconds=self.begun.seconds,
            driver_read_bytes=self.meter.store_read_bytes, driver_planned_bytes=self.meter.planned_bytes,
            stages=tuple(self.reports), records=records,
        )  # fmt: skip

    def _materialise(self, wanted: Dataset, staging: publish.Staging | None = None) -> Made:
        if wanted.stage is None:
            assert wanted.source is not None
            return Made(source=wanted.source, schema=None)
        steps = [d for d in plan(wanted) if d.computation not in self.made]
        if staging is not None and (not steps or steps[-1].computation is not wanted.computation):
            # The result was needed for a decision of the job and is in the store: write it out once more.
            from .stages import Stage

            copy = Stage(name="publish")(wanted)
            steps = [copy]
        for step in steps:
            last = staging is not None and step is steps[-1]
            self.made[step.computation] = self._run_stage(step, staging if last else None)
        return self.made[steps[-1].computation if staging is not None else wanted.computation]

    def _run_stage(self, dataset: Dataset, staging: publish.Staging | None) -> Made:
        stage = dataset.stage
        assert stage is not None
        number = len(self.reports) + 1
        if staging is None:
            folder = f"{self.store}/{number:02d}-{_safe(stage.title)}"
            if not self.wrote_store:
                self.owed.add("store", self.store)
            self.wrote_store = True
        else:
            folder = staging.folder
        planned = plan_stage(
            dataset,
            self.made,
            self.options,
            folder=folder,
            final=staging is not None,
            job_name=self.begun.job.name,
            known=self.known,
        )
        filesystem = publish.open_folder(folder, planned.program.output.storage_options)
        began = time.perf_counter()
        if self.report is not None:
            self.report("stage", planned, None)

        def commit(task: Task, attempt: int, result: Any) -> None:
            publish.commit_part(filesystem, planned.program.output, result)

        def on_event(event: Event) -> None:
            if self.report is not None:
                self.report("event", planned, event)

        begin = time.time()
        outcome = run_stage(
            self._pool(), maps=planned.maps, reduces=planned.reduces, program=planned.program,
            title=stage.title, on_event=on_event, max_attempts=self.options.max_attempts, commit=commit,
        )  # fmt: skip
        assert planned.made.parts is not None
        part_bytes = publish.keep_parts(filesystem, planned.program.output, planned.made.parts)
        self.reports.append(_stage_report(planned, outcome, begin, time.perf_counter() - began, part_bytes))
        if self.report is not None:
            self.report("done", planned, None)
        return replace(planned.made, stored_bytes=part_bytes)

    def _pool(self) -> Pool:
        if self.pool is None:
            self.pool = open_pool(self.options, self.begun.scratch.folder)
            self.pool.start(1)  # it imports while this process plans
        return self.pool

    def close(self) -> None:
        """Stop the workers and drop what the run put into the store."""
        if self.pool is not None:
            if not self.lent:
                self.pool.close()
            self.pool.move_logs(self.begun.folder)
        settled = False
        try:
            if self.wrote_store:
                publish.drop_folder(self.store, self.options.store_options)
            settled = True
        except OSError:  # a later run tries again; what ended this one is the better story
            pass
        finally:
            self.owed.close(settled=settled)


def _stage_report(
    planned: StagePlan, outcome: StageResult, begin: float, seconds: float, part_bytes: int
) -> StageReport:
    # A map whose output was lost is done twice, and the last time counts.
    accepted = {(row.kind, row.task): row for row in outcome.rows if row.outcome == "done"}.values()
    maps = [row for row in accepted if row.kind == "map"]
    makers = [row for row in accepted if row.kind == "reduce"] if planned.reduces else maps
    return StageReport(
        stage=planned.title,
        maps=len(planned.maps),
        reduces=len(planned.reduces),
        begin=begin,
        end=time.time(),
        seconds=seconds,
        records_in=sum(row.records_in for row in maps),
        bytes_in=sum(row.bytes_in for row in accepted),
        store_read_bytes=sum(row.store_read_bytes for row in accepted),
        shuffle_records=sum(row.records_out for row in maps) if planned.reduces else 0,
        shuffle_bytes=sum(row.shuffle_bytes for row in maps),
        records_out=sum(row.records_out for row in makers),
        bytes_out=sum(row.bytes_out for row in accepted),
        store_written_bytes=sum(row.store_written_bytes for row in accepted),
        store_physical_bytes=sum(row.store_physical_bytes for row in accepted),
        planned_bytes=sum(work.split.bytes for work in planned.maps) + _side_bytes(planned, outcome),
        run_bytes=sum(sum(run.bytes) for made in outcome.map_results for run in getattr(made, "runs", ())),
        part_bytes=part_bytes,
        through_store=planned.program.output.stored,
        counters=dict(outcome.counters),
        attempts=tuple(outcome.rows),
    )


def _side_bytes(planned: StagePlan, outcome: StageResult) -> int:
    """Return what all workers were to ask for of side inputs: each loads them once, if it runs a function that wants them."""
    kinds = planned.program.stage.asking_for("side")
    loaders = {row.worker for row in outcome.rows if row.kind in kinds}
    sides = [side for side in planned.program.sides.values() if isinstance(side, SideSource)]
    return len(loaders) * sum(side.planned_bytes() for side in sides) if loaders else 0


def _safe(title: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in title)[:40]


__all__ = ["Options", "Report", "RunResult", "StageReport", "run"]
