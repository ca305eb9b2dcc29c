"""Say what a job would do: its stages, tasks and the bytes it would put into the store.

Inputs and splits are exact.  What a stage writes depends on its functions, so it is measured: the job runs
on short, evenly spaced pieces of the input, in this process and with a store of its own that goes at once,
and again on longer ones; a line through both is followed to the whole input.  A stage that meets fewer new
keys the more it has seen writes less than that says.  Of a job that is a generator only the plan up to its
first ``yield`` is known before it runs.
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

RANGES = 4
SMALLER_RANGE_BYTES, LARGER_RANGE_BYTES = 64 << 10, 1 << 20
#: What grows by less than this from one sample to the other is taken to be constant.
CONSTANT_BELOW = 1.1
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
    smaller, larger, problem = _try(job, sources, parameters, options, to_store=final is not built)
    if problem:
        notes.append(f"the bytes are unknown: {problem}")

    def expected(stage: int, field: str) -> int | None:
        if larger is None:
            return None
        low, high = ((each.bytes, getattr(each.stages[stage], field)) for each in (smaller or larger, larger))
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
        store_bytes=sum(s.bytes_out or 0 for s in stages if s.to_store) if larger else None,
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
        source = source.sampled(given.sample_ranges)
    splits = plan_splits(source, split_bytes=options.split_bytes, min_splits=options.planned_workers)
    return len(splits), sum(split.bytes for split in splits)


def bytes_of_sources(sources: Sequence[Source], options: Options) -> int:
    """Return the bytes of what is to be read of some sources."""
    return sum(splits_of(Dataset(source=source), options)[1] for source in sources)


def follow(low: tuple[float, float], high: tuple[float, float], at: float) -> float:
    """Return y at ``at`` on the line through two points (x, y), which does not fall.

    Where the points are one, because all was tried or nothing shorter could be, y is in proportion to x.
    """
    if low == high:
        return high[1] * at / high[0] if high[0] else high[1]
    if high[0] < low[0] * CONSTANT_BELOW:  # x does not grow, so y has no reason to
        return high[1]
    return high[1] + max((high[1] - low[1]) / (high[0] - low[0]), 0.0) * max(at - high[0], 0.0)


@dataclass(frozen=True, kw_only=True)
class _Tried:
    """What the stages of a plan did on a sample of so many bytes."""

    bytes: int
    stages: tuple[StageReport, ...]


def _try(
    job: Job, sources: Sequence[Source], parameters: Mapping[str, Any], options: Options, *, to_store: bool
) -> tuple[_Tried | None, _Tried | None, str]:
    """Run the plan up to the first yield on two samples; return what its stages did, or why they did not.

    The first is None where the job cannot run on so little.  ``to_store`` says that the last stage is no result, which may have
    columns that text has no place for.
    """
    shorter, longer = (
        [source.sampled(RANGES, range_bytes) for source in sources]
        for range_bytes in (SMALLER_RANGE_BYTES, LARGER_RANGE_BYTES)
    )
    if bytes_of_sources(longer, options) > TRIAL_BYTES:
        return None, None, "the input is large and cannot be read in parts, so no sample was run"
    try:
        larger = _run_sample(job, longer, parameters, options, to_store=to_store)
    except JobError as error:
        return None, None, f"a trial on a sample of the input failed: {error}"
    try:
        return _run_sample(job, shorter, parameters, options, to_store=to_store), larger, ""
    except JobError:
        return None, larger, ""


def _run_sample(
    job: Job, sampled: Sequence[Source], parameters: Mapping[str, Any], options: Options, *, to_store: bool
) -> _Tried:
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
        output = None if to_store else f"{scratch.folder}/output"
        result = run(tried, *sampled, output=output, parameters=parameters, options=settings)
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
