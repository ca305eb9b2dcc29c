"""The n most frequent words: a chain of two stages.

``mr run top_words book.txt -o top -p n=20``

The first stage counts as in ``wordcount``; its output goes through the store.  The second sorts by falling
count into one partition and stops after n rows.  Each of its maps passes on no more than n rows of a batch:
a row outside these cannot be among the first n of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from jobs.library.wordcount import wordcount
from mapreduce import BadJob, Dataset, Stage, job

if TYPE_CHECKING:
    import pyarrow as pa


def largest(n: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a map that keeps the ``n`` rows of a batch with the highest counts, equal counts by word."""

    def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
        ranked = batch.sort_by([("n", "descending"), ("word", "ascending")])
        return ranked.slice(0, n)

    return keep


def first_rows(n: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a reduce that passes on the first ``n`` rows of its partition and stops."""

    def first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = n
        for batch in batches:
            if left <= 0:
                return
            yield batch.slice(0, left)
            left -= batch.num_rows

    return first


@job
def top_words(text: Dataset, *, n: int = 10, partitions: int | None = None) -> Dataset:
    """The n most frequent words, the most frequent first, equal counts in order of words."""
    if n < 1:
        raise BadJob(f"job 'top_words': n must be >= 1, got {n}")
    counts = wordcount(text, partitions=partitions)
    top = Stage(
        name="top", map_batch=largest(n), keys=["-n", "word"], reduce_batch=first_rows(n), partitions=1
    )
    made: Dataset = top(counts)
    return made
