"""Say what a job would be as a graph: its operators, what was rewritten and what not, and the shape of the tasks.

Times and sizes are measured on short, evenly spaced pieces of the input and scaled up by its size; an operator that aggregates
makes less than that says.  Of a job that is a generator only the graph up to its first ``yield`` is known before it runs.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dag.analysis import Analysis, analyse
from dag.expand import expand
from dag.graph import Graph
from dag.rewrite import optimise
from jobs.engine import GraphResult, run
from jobs.explain import TRIAL_BYTES, TRIAL_RANGES, first_dataset, splits_of
from jobs.lower import Lowering
from mapreduce.errors import JobError
from mapreduce.home import find_run
from mapreduce.inputs import Source
from mapreduce.runner import Options
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
    graph, scale = rewritten.graph, 1.0
    tried = _try(job, sources, parameters, options)
    if isinstance(tried, str):
        notes.append(f"times and sizes are unknown: {tried}")
    else:
        result, tried_bytes = tried
        whole = sum(splits_of(Dataset(source=source), options)[1] for source in sources)
        scale = whole / max(tried_bytes, 1)
        work: dict[str, float] = {}
        size: dict[str, int] = {}
        for row in result.rows:
            name = row.stage.removesuffix(".split")
            work[name] = work.get(name, 0.0) + (row.end - row.start) * scale
            size[name] = size.get(name, 0) + int(row.bytes_out * scale)
        graph = graph.measured(work_s=work, size_bytes=size)
    tasks = expand(graph)
    return ExplainedGraph(
        graph=graph, tasks=tasks, analysis=analyse(tasks, workers=max(options.workers, 1)),
        applied=rewritten.applied, refused=rewritten.refused, measured=not isinstance(tried, str),
        notes=tuple(notes),
    )  # fmt: skip


def _values(wanted: Dataset, options: Options) -> list[Any]:
    """Compute a small dataset on which a plan depends, such as a sample of keys."""
    from dag.run import run as run_graph

    lowering = Lowering(options=options, job_name="explain", values=lambda nested: _values(nested, options))
    tasks = expand(optimise(lowering.graph(wanted)).graph)
    return [batch for value in run_graph(_listed(tasks), scheduler="threads", workers=1) for batch in value]


def _listed(tasks: Graph) -> Graph:
    from dag.graph import Node, Part
    from jobs.lower import metered

    made: dict[Node, Node] = {}
    for node in tasks.nodes:
        inputs = tuple(
            Part(made[given.node], given.index) if isinstance(given, Part) else made[given]
            for given in node.inputs
        )
        assert node.op.function is not None
        made[node] = replace(
            node, inputs=inputs, op=replace(node.op, function=functools.partial(metered, node.op.function))
        )
    return Graph(tuple(made[node] for node in tasks.outputs))


def _try(
    job: Job, sources: Sequence[Source], parameters: Mapping[str, Any], options: Options
) -> tuple[GraphResult, int] | str:
    """Run the graph up to the first yield on a sample; return what its tasks took, or why it did not run."""
    sampled = [replace(source, sample_ranges=TRIAL_RANGES) for source in sources]
    size = sum(splits_of(Dataset(source=source), options)[1] for source in sampled)
    if size > TRIAL_BYTES:
        return "the input is large and cannot be read in parts, so no sample was run"

    @functools.wraps(job.function)
    def first(*datasets: Dataset, **values: Any) -> Dataset:
        return first_dataset(job.function(*datasets, **values))

    tried = Job(function=first, name=f"explain-{job.name}", doc=job.doc)
    with tempfile.TemporaryDirectory(prefix="mrdag-explain-") as folder:
        settings = replace(options, output_format="text", compression=None)
        try:
            result = run(
                tried, *sampled, output=f"{folder}/output", parameters=parameters, options=settings,
                scheduler="threads",
            )  # fmt: skip
        except JobError as error:
            return f"a trial on a sample of the input failed: {error}"
        shutil.rmtree(find_run(result.run))
    return result, size
