"""Run a job's graph on two samples of its input (see ``samples``), to learn what its operators take and make."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dag.events import OnEvent, TaskRow
from dag.graph import Graph
from dag.run import Session
from jobs.engine import GraphResult, run
from jobs.report.model import IO_PARTS
from jobs.samples import CONSTANT_BELOW, bytes_of_sources, first_dataset, follow, on_two_samples
from mapreduce.inputs import Source, list_files
from mapreduce.options import Options
from mapreduce.scratch import Scratch
from mapreduce.stages import Dataset, Job


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Seconds of one core and bytes of values by operator, for the whole input; ``tried_bytes`` of it were read for that."""

    work_s: Mapping[str, float]
    size_bytes: Mapping[str, int]
    tried_bytes: int


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """What operators took and made of a sample of ``sample_bytes``: seconds, bytes that they were given and made."""

    sample_bytes: int
    work_s: Mapping[str, float]
    taken: Mapping[str, int]
    made: Mapping[str, int]


def try_graph(
    job: Job, sources: Sequence[Source], parameters: Mapping[str, Any], options: Options
) -> Trial | str:
    """Run the graph of ``job``, up to its first yield, on short pieces of the input; or say why that was not done."""
    tried = on_two_samples(functools.partial(_run_sample, job, parameters, options), sources, options)
    return tried if isinstance(tried, str) else _extrapolate(*tried, bytes_of_sources(sources, options))


def _run_sample(
    job: Job, parameters: Mapping[str, Any], options: Options, sampled: Sequence[Source]
) -> _Tried:
    """Run a sample twice in one thread and return what it took at best, since the first time has to import."""
    # What a job looks at is no result: it may have columns that text has no place for, and is not written.
    loops = inspect.isgenerator(job.build([Dataset(source=source) for source in sampled], parameters))
    asked = _asking_once(job) if loops else job
    settings = replace(options, output_format="text", compression=None)
    tallies = []
    with Scratch() as scratch:
        for turn in range(2):
            with Session(scheduler="threads", workers=1) as session:
                result = run(
                    asked, *sampled, parameters=parameters, options=settings,
                    output=None if loops else f"{scratch.folder}/output{turn}",
                    start=functools.partial(_given, session), keep_record=False,
                )  # fmt: skip
            tallies.append(_tally(result, bytes_of_sources(sampled, options)))
    best = {name: min(each.work_s[name] for each in tallies) for name in tallies[0].work_s}
    return replace(tallies[0], work_s=best)


def _asking_once(job: Job) -> Job:
    """Return a generator that asks for what ``job`` first asks for and then stops.

    A generator's graph keeps values between rounds, which decides what is fused; a plain function has other operators.
    """

    @functools.wraps(job.function)
    def once(*datasets: Dataset, **values: Any) -> Generator[Dataset, Any, Dataset]:
        wanted = first_dataset(job.function(*datasets, **values))
        yield wanted
        return wanted  # is there already: nothing runs again

    return Job(function=once, name=f"explain-{job.name}", doc=job.doc)


def _given(session: Session, graph: Graph, on_event: OnEvent | None) -> Session:
    return session


def _tally(result: GraphResult, sample_bytes: int) -> _Tried:
    work: dict[str, float] = {}
    made: dict[str, int] = {}
    taken: dict[str, int] = {}
    for row in result.rows:
        name = row.stage.removesuffix(".split")
        work[name] = work.get(name, 0.0) + _spent_s(row)
        made[name] = made.get(name, 0) + row.bytes_out
        taken[name] = taken.get(name, 0) + row.bytes_in
    # By name: what two graphs of a run share ran once.
    for node in {node.name: node for ran in result.graphs for node in ran.rewritten.graph.nodes}.values():
        taken[node.name] = taken.get(node.name, 0) + sum(made.get(each.name, 0) for each in node.sources())
    return _Tried(sample_bytes=sample_bytes, work_s=work, taken=taken, made=made)


def _spent_s(row: TaskRow) -> float:
    """Return the seconds of a core and of I/O; not those in which others had the core."""
    return min(row.end - row.start, row.cpu_s + sum(row.seconds.get(part, 0.0) for part in IO_PARTS))


def _extrapolate(smaller: _Tried, larger: _Tried, whole_bytes: int) -> Trial:
    """Return what a line through two samples says of the whole input; from one sample, all is in proportion."""
    if smaller.sample_bytes * CONSTANT_BELOW > larger.sample_bytes:
        smaller = larger
    sizes = smaller.sample_bytes, larger.sample_bytes
    made, taken, work = {}, {}, {}
    for name, seconds in larger.work_s.items():
        before = {field: getattr(smaller, field).get(name, 0) for field in ("made", "taken", "work_s")}
        made[name] = int(follow((sizes[0], before["made"]), (sizes[1], larger.made[name]), whole_bytes))
        taken[name] = follow((sizes[0], before["taken"]), (sizes[1], larger.taken[name]), whole_bytes)
        work[name] = follow((before["taken"], before["work_s"]), (larger.taken[name], seconds), taken[name])
    return Trial(work_s=work, size_bytes=made, tried_bytes=larger.sample_bytes)


def decides(sources: Sequence[Source], options: Options) -> bool:
    """Tell whether the input is so large that what operators make decides whether the graph fits in memory."""
    given = sum(file.bytes for source in sources for file in list_files(source))
    return given * 3 >= max(options.workers, 1) * options.memory_bytes


def measured_sizes(
    job: Job, sources: Sequence[Source], parameters: Mapping[str, Any], options: Options
) -> Mapping[str, int]:
    """Measure what operators make, if that decides whether the graph fits in memory."""
    if not decides(sources, options):
        return {}
    trial = try_graph(job, sources, parameters, options)
    return {} if isinstance(trial, str) else trial.size_bytes
