"""Count how often each word occurs, a batch of lines at a time.

``mr run wordcount book.txt -o counts``

A batch stage: the map counts the words of each batch of lines, ``map_end`` gives out a task's words with their
counts, and declaring ``aggregate={"n": "sum"}`` has the counts of a word added up wherever they meet: in a
worker's memory, when sorted runs merge, and in the reduce.  ``wordcount_records`` does the same one word at a time, in plain
Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapreduce import Dataset, Stage, job

if TYPE_CHECKING:
    import pyarrow as pa

    from jobs.words import WordCounter


def new_counter() -> WordCounter:
    """Return what a task keeps from batch to batch: a table of words, kept from task to task."""
    from jobs.words import next_counter

    return next_counter()


def count_words(batch: pa.RecordBatch, *, state: WordCounter) -> pa.RecordBatch | None:
    """Count the words of the column ``line``; words are what ``bytes.split()`` returns.

    Where most words occur once, they are given out now and then: the counter holds only so many.
    """
    state.add(batch.column("line"))
    return give_out(state=state) if state.is_full else None


def give_out(*, state: WordCounter) -> pa.RecordBatch:
    """Return the words that the task has seen, with their counts."""
    import pyarrow as pa

    words, counts = state.take()
    return pa.RecordBatch.from_arrays([words, counts], names=["word", "n"])


@job
def wordcount(text: Dataset, *, partitions: int | None = None) -> Dataset:
    """How often each word occurs, in order of words inside each part."""
    import pyarrow as pa

    schema = pa.schema([("word", pa.binary()), ("n", pa.int64())])
    count = Stage(
        name="count",
        setup=new_counter,
        map_batch=count_words,
        map_end=give_out,
        schema=schema,
        keys=["word"],
        aggregate={"n": "sum"},
        partitions=partitions,
    )
    return count(text.lines())
