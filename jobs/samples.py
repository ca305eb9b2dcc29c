"""Short samples of a job's inputs, two of them, and the line through what was seen on both.

A sample is as many evenly spaced ranges of each input, longer ones in the second.  What is alike on both (the weights of a
model, what a task costs to begin) does not grow with the input; a line through both is followed to the whole input.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dag.errors import GraphError
from mapreduce.errors import BadJob, JobError
from mapreduce.inputs import Source, plan_splits
from mapreduce.options import Options
from mapreduce.stages import Dataset, Job

RANGES = 4
SMALLER_RANGE_BYTES, LARGER_RANGE_BYTES = 64 << 10, 1 << 20
#: What grows by less than this from one sample to the other is taken to be constant.
CONSTANT_BELOW = 1.1
#: A job is not tried on more than this, as for large files that cannot be read in ranges.
TRIAL_BYTES = 64 << 20

Tried = TypeVar("Tried")


def on_two_samples(
    tried: Callable[[list[Source]], Tried], sources: Sequence[Source], options: Options
) -> tuple[Tried, Tried] | str:
    """Return what ``tried`` found on a short sample and on a longer one, or why there is nothing to be had.

    Both are the longer one's where the job cannot run on so little as the short one.
    """
    shorter, longer = (
        [source.sampled(RANGES, range_bytes) for source in sources]
        for range_bytes in (SMALLER_RANGE_BYTES, LARGER_RANGE_BYTES)
    )
    if bytes_of_sources(longer, options) > TRIAL_BYTES:
        return "the input is large and cannot be read in parts, so no sample was run"
    try:
        on_longer = tried(longer)
    except (JobError, GraphError) as error:
        return f"a trial on a sample of the input failed: {error}"
    try:
        return tried(shorter), on_longer
    except (JobError, GraphError):
        return on_longer, on_longer


def follow(low: tuple[float, float], high: tuple[float, float], at: float) -> float:
    """Return y at ``at`` on the line through two points (x, y), which does not fall.

    Where the points are one, because all was tried or nothing shorter could be, y is in proportion to x.
    """
    if low == high:
        return high[1] * at / high[0] if high[0] else high[1]
    if high[0] < low[0] * CONSTANT_BELOW:  # x does not grow, so y has no reason to
        return high[1]
    return high[1] + max((high[1] - low[1]) / (high[0] - low[0]), 0.0) * max(at - high[0], 0.0)


def up_to_first_yield(job: Job) -> Job:
    """Return the job that makes what ``job`` returns, or the first dataset that it asks for."""

    @functools.wraps(job.function)
    def first(*datasets: Dataset, **values: Any) -> Dataset:
        return first_dataset(job.function(*datasets, **values))

    return Job(function=first, name=f"explain-{job.name}", doc=job.doc)


def first_dataset(built: Any) -> Dataset:
    """Return what a job returns, or the first dataset that it yields.

    Raises:
        BadJob: it is no dataset.
    """
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
