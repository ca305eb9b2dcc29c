"""Count requests per URL in access logs (Apache's combined format).

``mr run url_count access.log -o urls``

One regular expression over a whole batch of lines picks the URL; lines that do not match are counted, not
lost in silence: ask for ``counters`` by name and see them in the summary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mapreduce import Dataset, Stage, job

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST = r'^\S+ \S+ \S+ \[[^\]]*\] "[A-Z]+ (?P<url>[^ "]+)[^"]*" (?P<status>\d{3}) '


def count_urls(batch: pa.RecordBatch, *, counters: Any) -> pa.RecordBatch:
    """Return the URLs of a batch of log lines with their counts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    urls = (
        pc.extract_regex(batch.column("line"), REQUEST)
        .field("url")
        .filter(pc.match_substring_regex(batch.column("line"), REQUEST))
    )
    if len(urls) < batch.num_rows:
        counters["lines that are no request"] += batch.num_rows - len(urls)
    counted = pc.value_counts(urls)
    return pa.RecordBatch.from_arrays([counted.field(0), counted.field(1)], names=["url", "n"])


@job
def url_count(log: Dataset, *, partitions: int | None = None) -> Dataset:
    """How often each URL was requested, in order of URLs inside each part."""
    import pyarrow as pa

    return Stage(
        name="urls",
        map_batch=count_urls,
        schema=pa.schema([("url", pa.binary()), ("n", pa.int64())]),
        keys=["url"],
        aggregate={"n": "sum"},
        partitions=partitions,
    )(log.lines())
