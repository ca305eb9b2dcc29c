"""Run a job's graph on a small sample of its input, to learn what its operators take and make."""

from __future__ import annotations

import functools
import inspect
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dag.errors import GraphError
from jobs.engine import run
from jobs.explain import TRIAL_BYTES, TRIAL_RANGES, first_dataset, splits_of
from mapreduce.errors import JobError
from mapreduce.home import find_run
from mapreduce.inputs import Source, list_files
from mapreduce.options import Options
from mapreduce.scratch import Scratch
from mapreduce.stages import Dataset, Job


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Seconds of one core and bytes of values by operator, scaled from the sample to the whole input.

    An operator that aggregates makes less than that says.
    """

    work_s: Mapping[str, float]
    size_bytes: Mapping[str, int]


def try_graph(
    job: Job, sources: Sequence[Source], parameters: Mapping[str, Any], options: Options
) -> Trial | str:
    """Run the graph of ``job``, up to its first yield, on short pieces of the input; or say why that was not done."""
    sampled = [replace(source, sample_ranges=TRIAL_RANGES) for source in sources]
    size = sum(splits_of(Dataset(source=source), options)[1] for source in sampled)
    if size > TRIAL_BYTES:
        return "the input is large and cannot be read in parts, so no sample was run"

    @functools.wraps(job.function)
    def first(*datasets: Dataset, **values: Any) -> Dataset:
        return first_dataset(job.function(*datasets, **values))

    tried = Job(function=first, name=f"explain-{job.name}", doc=job.doc)
    # What a job looks at is no result: it may have columns that text has no place for, and is not written.
    loops = inspect.isgenerator(job.build([Dataset(source=source) for source in sampled], parameters))
    with Scratch() as scratch:
        settings = replace(options, output_format="text", compression=None)
        try:
            result = run(
                tried, *sampled, output=None if loops else f"{scratch.folder}/output", parameters=parameters,
                options=settings, scheduler="threads",
            )  # fmt: skip
        except (JobError, GraphError) as error:
            return f"a trial on a sample of the input failed: {error}"
        shutil.rmtree(find_run(result.run))
    scale = sum(splits_of(Dataset(source=source), options)[1] for source in sources) / max(size, 1)
    work: dict[str, float] = {}
    made: dict[str, int] = {}
    for row in result.rows:
        name = row.stage.removesuffix(".split")
        work[name] = work.get(name, 0.0) + (row.end - row.start) * scale
        made[name] = made.get(name, 0) + int(row.bytes_out * scale)
    return Trial(work_s=work, size_bytes=made)


def measured_sizes(
    job: Job, sources: Sequence[Source], parameters: Mapping[str, Any], options: Options
) -> Mapping[str, int]:
    """Measure what operators make, if the input is so large that this decides whether the graph fits in memory."""
    given = sum(file.bytes for source in sources for file in list_files(source))
    if given * 3 < max(options.workers, 1) * options.memory_bytes:
        return {}
    trial = try_graph(job, sources, parameters, options)
    return {} if isinstance(trial, str) else trial.size_bytes
