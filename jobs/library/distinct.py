"""Keep each distinct line once.

``mr run distinct names.txt -o unique``

The whole line is the key and nothing else travels.  Equal lines come one after the other to the reduce,
which passes on the first of each; the map does the same for its own batch, so that a line that is
everywhere travels seldom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mapreduce import Dataset, Stage, job

if TYPE_CHECKING:
    import pyarrow as pa


def once_per_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the distinct lines of a batch."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pa.RecordBatch.from_arrays([pc.unique(batch.column("line"))], names=["line"])


def first_of_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the first of each run of equal lines in a sorted stream, runs that span batches included."""
    import pyarrow as pa

    from mapreduce.order import group_boundaries

    last = None
    for batch in batches:
        firsts = group_boundaries(batch, ["line"])
        if len(firsts) and last is not None and batch.column("line")[0] == last:
            firsts = firsts[1:]
        if batch.num_rows:
            last = batch.column("line")[batch.num_rows - 1]
        yield batch.take(pa.array(firsts))


@job
def distinct(text: Dataset, *, partitions: int | None = None) -> Dataset:
    """Each distinct line once, sorted inside each part."""
    import pyarrow as pa

    return Stage(
        name="distinct",
        map_batch=once_per_batch,
        schema=pa.schema([("line", pa.binary())]),
        keys=["line"],
        reduce_batch=first_of_each,
        partitions=partitions,
    )(text.lines())
