"""Say what a job would be as a graph: its operators, what was rewritten and what not, and the shape of the tasks.

Times and sizes follow from trials on short, evenly spaced pieces of the input (``jobs.trial``); they are seconds of a core that
does nothing else.  Of a job that is a generator only the graph up to its first ``yield`` is known before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dag.analysis import Analysis, analyse
from dag.expand import expand
from dag.graph import Graph
from dag.rewrite import optimise
from dag.units import show_seconds
from jobs.engine import place_of
from jobs.graph_facts import say_rewrites, without_written
from jobs.lower import Lowering
from jobs.samples import first_dataset, splits_of
from jobs.sizes import format_size
from jobs.stage_tasks import metered_graph
from jobs.trial import decides, try_graph
from mapreduce.inputs import Source
from mapreduce.options import Options
from mapreduce.stages import Dataset, Job


@dataclass(frozen=True, kw_only=True)
class ExplainedGraph:
    """The graph of a job on given inputs, before it runs.

    ``measured`` is false where no sample could be tried, ``basis`` says what was; ``untried`` names the operators whose time and
    size are unknown (and 0 in ``graph``); ``scheduler`` is where it would run,
    ``scheduler_reason`` why there.
    """

    graph: Graph
    tasks: Graph
    analysis: Analysis
    applied: tuple[str, ...]
    refused: tuple[str, ...]
    measured: bool
    untried: frozenset[str]
    scheduler: str
    scheduler_reason: str
    basis: str
    notes: tuple[str, ...]


def explain_graph(
    job: Job, sources: Sequence[Source], parameters: Mapping[str, Any], options: Options
) -> ExplainedGraph:
    """Return the graph of ``job`` on ``sources``; nothing runs but its functions on a sample.

    Raises:
        BadJob, MissingInput, BadInput: as for running the job.
    """
    datasets = [Dataset(source=source) for source in sources]
    built = job.build(datasets, parameters)
    final = first_dataset(built)
    notes = [] if final is built else ["the job is a generator: this is its graph up to the first yield"]
    trial = try_graph(job, sources, parameters, options)
    tried = None if isinstance(trial, str) else trial
    workers = max(options.workers, 1)
    lowering = Lowering(
        options=options,
        job_name=job.name,
        values=lambda wanted: _values(wanted, options),
        keep=final is not built,
        sizes=tried.size_bytes if tried is not None and decides(sources, options) else {},
    )
    logical = lowering.graph(final, None if final is not built else "output")
    rewritten = optimise(logical, workers=workers)
    names = frozenset(node.name for node in rewritten.graph.nodes)
    untried = names if tried is None else names - set(tried.work_s)
    zeros = dict.fromkeys(untried, 0)
    work = zeros if tried is None else {**zeros, **tried.work_s}
    sizes = zeros if tried is None else {**zeros, **tried.size_bytes}
    graph = without_written(rewritten.graph.measured(work_s=work, size_bytes=sizes))
    # A run chooses before anything has run, so this is by its rule; what the trials took is said beside it.
    scheduler, reason = place_of(logical, workers)
    held_s = sum(node.work_s for node in graph.nodes if not node.op.releases_gil)
    if workers > 1 and held_s and not untried:
        reason += f" (by the trials they take {show_seconds(held_s)})"
    basis = ""
    if tried is None:
        notes.append(f"times and sizes are unknown: {trial}")
    else:
        if untried:
            notes.append(f"not met by the trials, so unknown: {', '.join(sorted(untried))}")
        whole = sum(splits_of(given, options)[1] for given in datasets)
        basis = (
            f"times and sizes are estimates, by trials on {format_size(tried.tried_bytes)} of the input's "
            f"{format_size(whole)}; times are those of a core that does nothing else"
        )
    tasks = expand(graph)
    applied, refused = say_rewrites(rewritten)
    return ExplainedGraph(
        graph=graph, tasks=tasks, analysis=analyse(tasks, workers=workers),
        applied=tuple(applied), refused=tuple(refused), measured=tried is not None, untried=untried,
        scheduler=scheduler, scheduler_reason=reason, basis=basis,
        notes=tuple(notes),
    )  # fmt: skip


def _values(wanted: Dataset, options: Options) -> list[Any]:
    """Compute a small dataset on which a plan depends, such as a sample of keys."""
    from dag.run import run as run_graph

    lowering = Lowering(options=options, job_name="explain", values=lambda nested: _values(nested, options))
    tasks = expand(optimise(lowering.graph(wanted)).graph)
    values = run_graph(metered_graph(tasks, {}), scheduler="threads", workers=1)
    return [batch for value in values for batch in value]
