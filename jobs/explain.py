"""Say what a job would do: its stages, tasks and the bytes it would put into the store.

Inputs and splits are exact.  What a stage writes depends on its functions, so it is measured: the job runs
on short, evenly spaced pieces of the input, in this process and with a store of its own that goes at once,
and the sizes are scaled up.  A stage that aggregates writes less than that says.  Of a job that is a
generator only the plan up to its first ``yield`` is known before it runs.
"""

from __future__ import annotations

import functools
import inspect
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mapreduce.errors import BadJob, JobError
from mapreduce.home import find_run
from mapreduce.inputs import Source, plan_splits
from mapreduce.options import Options
from mapreduce.planning import default_partitions
from mapreduce.runner import StageReport, run
from mapreduce.scratch import Scratch
from mapreduce.stages import Dataset, Job, plan

TRIAL_RANGES = 16
#: The job is not tried on more than this, as for large files that cannot be read in ranges.
TRIAL_BYTES = 64 << 20


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
    trial, problem = _try(job, sources, parameters, options, to_store=final is not built)
    if problem:
        notes.append(f"the bytes are unknown: {problem}")

    steps = plan(final)
    numbers = {step.computation: number for number, step in enumerate(steps, 1)}
    parts: dict[object, int] = {}
    bytes_of: dict[object, int] = {}
    scales: dict[object, float] = {}
    stages = []
    for number, step in enumerate(steps, 1):
        stage = step.stage
        assert stage is not None
        maps = bytes_in = 0
        scale = 0.0
        for given in step.inputs:
            if given.source is not None:
                count, size = splits_of(given, options)
                tried = splits_of(replace(given, sample_ranges=given.sample_ranges or TRIAL_RANGES), options)[
                    1
                ]
                maps, bytes_in, scale = maps + count, bytes_in + size, max(scale, size / max(tried, 1))
            else:
                before = given.computation
                maps, bytes_in = maps + parts[before], bytes_in + bytes_of[before]
                scale = max(scale, scales[before])
        partitions = 0
        if stage.shuffles:
            partitions = (
                stage.partitions
                or options.partitions
                or default_partitions(bytes_in, options.planned_workers)
            )
        report = trial[number - 1] if trial else None
        stages.append(
            ExplainedStage(
                name=stage.title,
                reads=", ".join(_describe(given, numbers) for given in (*step.inputs, *_sides(step))),
                maps=maps,
                partitions=partitions,
                to_store=step is not final or final is not built,
                shuffle_bytes=int(report.shuffle_bytes * scale) if report else None,
                bytes_out=int(report.written_bytes * scale) if report else None,
            )
        )
        parts[step.computation], scales[step.computation] = partitions or maps, scale
        bytes_of[step.computation] = int(report.written_bytes * scale) if report else bytes_in
    return Explanation(
        job=job.name,
        inputs=tuple(
            ExplainedInput(name=name, what=given.describe(), splits=count, bytes=size)
            for name, given in zip(job.input_names, datasets, strict=True)
            for count, size in [splits_of(given, options)]
        ),
        stages=tuple(stages),
        store_bytes=sum(s.bytes_out or 0 for s in stages if s.to_store) if trial else None,
        notes=tuple(notes),
    )


def first_dataset(built: Any) -> Dataset:
    """Return what a job returns, or the first dataset that it yields."""
    if inspect.isgenerator(built):
        try:
            built = next(built)
        except StopIteration as stop:
            built = stop.value
    if not isinstance(built, Dataset):
        raise BadJob(f"a job returns (or yields) a dataset, got {type(built).__name__}")
    return built


def splits_of(given: Dataset, options: Options) -> tuple[int, int]:
    """Return the number of splits of a dataset with a source, and their bytes."""
    assert given.source is not None
    source = given.source
    if given.sample_ranges is not None:
        source = replace(source, sample_ranges=given.sample_ranges)
    splits = plan_splits(source, split_bytes=options.split_bytes, min_splits=options.planned_workers)
    return len(splits), sum(split.bytes for split in splits)


def _try(
    job: Job, sources: Sequence[Source], parameters: Mapping[str, Any], options: Options, *, to_store: bool
) -> tuple[tuple[StageReport, ...] | None, str]:
    """Run the plan up to the first yield on a sample; return what its stages did, or why they did not.

    ``to_store`` says that the last of them is no result, which may have columns that text has no place for.
    """
    sampled = [replace(source, sample_ranges=TRIAL_RANGES) for source in sources]
    size = sum(splits_of(Dataset(source=source), options)[1] for source in sampled)
    if size > TRIAL_BYTES:
        return None, "the input is large and cannot be read in parts, so no sample was run"

    @functools.wraps(job.function)
    def first(*datasets: Dataset, **values: Any) -> Dataset:
        return first_dataset(job.function(*datasets, **values))

    tried = Job(function=first, name=f"explain-{job.name}", doc=job.doc)
    with Scratch() as scratch:
        settings = replace(
            options,
            workers=0,
            store=f"{scratch.folder}/store",
            store_options={},
            output_format="text",
            compression=None,
        )
        try:
            output = None if to_store else f"{scratch.folder}/output"
            result = run(tried, *sampled, output=output, parameters=parameters, options=settings)
        except JobError as error:
            return None, f"a trial on a sample of the input failed: {error}"
        shutil.rmtree(find_run(result.run))
    return result.stages, ""


def _sides(step: Dataset) -> list[Dataset]:
    assert step.stage is not None
    return [side for side in step.stage.side.values() if isinstance(side, Dataset)]


def _describe(given: Dataset, numbers: Mapping[object, int]) -> str:
    if given.source is None:
        return f"stage {numbers[given.computation]}"
    if given.sample_ranges is not None:
        return f"{given.describe()} ({given.sample_ranges} short ranges)"
    return given.describe()
