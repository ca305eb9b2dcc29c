"""Say what a job would be as a graph: its operators, what was rewritten and what not, and the shape of the tasks.

Times and sizes are measured on short, evenly spaced pieces of the input and scaled up by its size; an operator that aggregates
makes less than that says.  Of a job that is a generator only the graph up to its first ``yield`` is known before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dag.analysis import Analysis, analyse
from dag.expand import expand
from dag.graph import Graph
from dag.rewrite import optimise
from jobs.explain import first_dataset
from jobs.lower import Lowering
from jobs.stage_tasks import metered_graph
from jobs.trial import try_graph
from mapreduce.inputs import Source
from mapreduce.options import Options
from mapreduce.stages import Dataset, Job


@dataclass(frozen=True, kw_only=True)
class ExplainedGraph:
    """The graph of a job on given inputs, before it runs; ``measured`` is false where no sample could be tried."""

    graph: Graph
    tasks: Graph
    analysis: Analysis
    applied: tuple[str, ...]
    refused: tuple[str, ...]
    measured: bool
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
    lowering = Lowering(
        options=options,
        job_name=job.name,
        values=lambda wanted: _values(wanted, options),
        keep=final is not built,
    )
    rewritten = optimise(
        lowering.graph(final, None if final is not built else "output"), workers=max(options.workers, 1)
    )
    graph = rewritten.graph
    trial = try_graph(job, sources, parameters, options)
    if isinstance(trial, str):
        notes.append(f"times and sizes are unknown: {trial}")
    else:
        graph = graph.measured(work_s=trial.work_s, size_bytes=trial.size_bytes)
    tasks = expand(graph)
    return ExplainedGraph(
        graph=graph, tasks=tasks, analysis=analyse(tasks, workers=max(options.workers, 1)),
        applied=rewritten.applied, refused=rewritten.refused, measured=not isinstance(trial, str),
        notes=tuple(notes),
    )  # fmt: skip


def _values(wanted: Dataset, options: Options) -> list[Any]:
    """Compute a small dataset on which a plan depends, such as a sample of keys."""
    from dag.run import run as run_graph

    lowering = Lowering(options=options, job_name="explain", values=lambda nested: _values(nested, options))
    tasks = expand(optimise(lowering.graph(wanted)).graph)
    values = run_graph(metered_graph(tasks, {}), scheduler="threads", workers=1)
    return [batch for value in values for batch in value]
