"""Count how often each word occurs, in plain Python, one line at a time.

``mr run wordcount_records book.txt -o counts``

The first job to read.  The map sees a line and its byte offset and yields pairs; pairs with equal keys meet
in one call of the reduce.  The combine is the same sum, run early on each worker so that fewer pairs
travel.
"""

from __future__ import annotations

from collections.abc import Iterator

from mapreduce import Dataset, Stage, job, total


def words(offset: int, line: str) -> Iterator[tuple[str, int]]:
    """Yield each word of the line with the count 1."""
    for word in line.split():
        yield word, 1


@job
def wordcount_records(text: Dataset, *, partitions: int | None = None) -> Dataset:
    """How often each word occurs, by Python functions per record."""
    return Stage(name="count", map=words, combine=total, reduce=total, partitions=partitions)(text.lines())
