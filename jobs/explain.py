"""Say what a job would do: its stages, tasks and the bytes it would put into the store.

Inputs and splits are exact.  What a stage writes depends on its functions, so it is measured: the job runs
on short, evenly spaced pieces of the input, in this process and with a store of its own that goes at once,
and again on longer ones (see ``samples``).  A stage that meets fewer new
keys the more it has seen writes less than that says.  Of a job that is a generator only the plan up to its
first ``yield`` is known before it runs.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jobs.samples import bytes_of_sources, first_dataset, follow, on_two_samples, splits_of, up_to_first_yield
from mapreduce.home import find_run
from mapreduce.inputs import Source
from mapreduce.options import Options
from mapreduce.planning import default_partitions
from mapreduce.runner import StageReport, run
from mapreduce.scratch import Scratch
from mapreduce.stages import Dataset, Job, plan


@dataclass(frozen=True, kw_only=True)
class ExplainedInput:
    """One dataset that the job takes."""

    name: str
    what: str
    splits: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ExplainedStage:
    """One stage of the plan: numbers of tasks, and expected bytes (None: unknown)."""

    name: str
    reads: str
    maps: int
    partitions: int
    to_store: bool
    shuffle_bytes: int | None
    bytes_out: int | None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The plan of a job on given inputs; ``store_bytes`` is None if unknown."""

    job: str
    inputs: tuple[ExplainedInput, ...]
    stages: tuple[ExplainedStage, ...]
    store_bytes: int | None
    notes: tuple[str, ...]


def explain(
    job: Job, sources: Sequence[Source], parameters: Mapping[str, Any], options: Options
) -> Explanation:
    """Return the plan of ``job`` on ``sources``; nothing but a sample is run.

    Raises:
        BadJob, MissingInput, BadInput: as for running the job.
    """
    datasets = [Dataset(source=source) for source in sources]
    built = job.build(datasets, parameters)
    final = first_dataset(built)
    notes = []
    if final is not built:
        notes.append("the job is a generator: this is its plan up to the first yield")
    run_sample = functools.partial(
        _run_sample, up_to_first_yield(job), parameters, options, final is not built
    )
    tried = on_two_samples(run_sample, sources, options)
    if isinstance(tried, str):
        notes.append(f"the bytes are unknown: {tried}")

    def expected(stage: int, field: str) -> int | None:
        if isinstance(tried, str):
            return None
        low, high = ((each.bytes, getattr(each.stages[stage], field)) for each in tried)
        return int(follow(low, high, bytes_of_sources(sources, options)))

    steps = plan(final)
    numbers = {step.computation: number for number, step in enumerate(steps, 1)}
    parts: dict[object, int] = {}
    bytes_of: dict[object, int] = {}
    stages = []
    for number, step in enumerate(steps, 1):
        stage = step.stage
        assert stage is not None
        maps = bytes_in = 0
        for given in step.inputs:
            if given.source is not None:
                count, size = splits_of(given, options)
                maps, bytes_in = maps + count, bytes_in + size
            else:
                before = given.computation
                maps, bytes_in = maps + parts[before], bytes_in + bytes_of[before]
        partitions = 0
        if stage.shuffles:
            partitions = (
                stage.partitions
                or options.partitions
                or default_partitions(bytes_in, options.planned_workers)
            )
        bytes_out = expected(number - 1, "written_bytes")
        stages.append(
            ExplainedStage(
                name=stage.title,
                reads=", ".join(_describe(given, numbers) for given in (*step.inputs, *_sides(step))),
                maps=maps,
                partitions=partitions,
                to_store=step is not final or final is not built,
                shuffle_bytes=expected(number - 1, "shuffle_bytes"),
                bytes_out=bytes_out,
            )
        )
        parts[step.computation] = partitions or maps
        bytes_of[step.computation] = bytes_in if bytes_out is None else bytes_out
    return Explanation(
        job=job.name,
        inputs=tuple(
            ExplainedInput(name=name, what=given.describe(), splits=count, bytes=size)
            for name, given in zip(job.input_names, datasets, strict=True)
            for count, size in [splits_of(given, options)]
        ),
        stages=tuple(stages),
        store_bytes=sum(s.bytes_out or 0 for s in stages if s.to_store)
        if not isinstance(tried, str)
        else None,
        notes=tuple(notes),
    )


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """What the stages of a plan did on a sample of so many bytes."""

    bytes: int
    stages: tuple[StageReport, ...]


def _run_sample(
    job: Job,
    parameters: Mapping[str, Any],
    options: Options,
    to_store: bool,
    sampled: Sequence[Source],
) -> _Tried:
    """Run a job on a sample.

    ``to_store`` says that what it makes is no result: it may have columns that text has no place for.
    """
    with Scratch() as scratch:
        settings = replace(
            options,
            workers=0,
            store=f"{scratch.folder}/store",
            store_options={},
            output_format="text",
            compression=None,
        )
        output = None if to_store else f"{scratch.folder}/output"
        result = run(job, *sampled, output=output, parameters=parameters, options=settings)
        shutil.rmtree(find_run(result.run))
    return _Tried(bytes=bytes_of_sources(sampled, options), stages=result.stages)


def _sides(step: Dataset) -> list[Dataset]:
    assert step.stage is not None
    return [side for side in step.stage.side.values() if isinstance(side, Dataset)]


def _describe(given: Dataset, numbers: Mapping[object, int]) -> str:
    if given.source is None:
        return f"stage {numbers[given.computation]}"
    if given.sample_ranges is not None:
        return f"{given.describe()} ({given.sample_ranges} short ranges)"
    return given.describe()
