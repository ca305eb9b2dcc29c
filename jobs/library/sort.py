"""Sort lines or rows: a chain of two stages.

``mr run sort big.txt -o sorted``, ``-p key=3 -p numeric=true`` for the third field, ``-p key=price`` for a
column

The first stage looks at short ranges all over the input and sorts what it finds: a sample, from which the
runner takes the cut points.  The second puts each row into the partition between its cuts and sorts there,
so the parts in name order are sorted as a whole (Hadoop's TeraSort does the same).  Rows with equal keys
keep their input order, also when descending.

Fields of text are separated by blanks and tabs, or by ``separator``.  Text sorts by unsigned bytes.  A line
without the field comes first (last when descending); with ``numeric`` so does one whose field is no number,
and both are counted.  Numbers compare as 64-bit floats.  Columns of CSV or Parquet sort by their own type,
nulls first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mapreduce import BadJob, Dataset, Stage, job

if TYPE_CHECKING:
    import pyarrow as pa

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def field_column(number: int, separator: str | None, numeric: bool) -> Callable[[pa.Array, Any], pa.Array]:
    """Return a function from lines to field ``number`` (from 1) of each, null where there is none."""
    if separator is None:
        pattern = rf"^[ \t]*(?:[^ \t]+[ \t]+){{{number - 1}}}(?P<key>[^ \t]+)"
    else:
        edge = re.escape(separator)
        before = rf"(?:.*?{edge}){{{number - 1}}}" if number > 1 else ""
        pattern = rf"^{before}(?P<key>.*?)(?:{edge}|$)"

    def extract(lines: pa.Array, counters: Any) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.struct_field(pc.extract_regex(lines, f"(?s){pattern}"), "key")
        # A struct's own nulls are not its children's.
        keys = pc.if_else(pc.match_substring_regex(lines, f"(?s){pattern}"), found, None)
        if numeric:
            is_number = pc.match_substring_regex(keys, NUMBER)
            keys = pc.if_else(is_number, keys, None).cast(pa.string()).cast(pa.float64())
        if keys.null_count:
            counters["lines without a key"] += keys.null_count
        return keys

    return extract


def drop_key(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the lines alone."""
    for batch in batches:
        yield batch.select(["line"])


def sort_by_field(
    text: Dataset, number: int, separator: str | None, numeric: bool, descending: bool, partitions: int | None
) -> Dataset:
    """Sort text by one field; the field travels beside its line and is dropped at the end."""
    import pyarrow as pa

    if number < 1:
        raise BadJob(f"job 'sort': key must be a field number from 1 or a column name, got {number}")
    extract = field_column(number, separator, numeric)
    kind = pa.float64() if numeric else pa.binary()

    def key_only(batch: pa.RecordBatch, *, counters: Any) -> pa.RecordBatch:
        keys = extract(_lines(batch.schema, batch), {"lines without a key": 0})
        return pa.RecordBatch.from_arrays([keys], names=["key"])

    def with_key(batch: pa.RecordBatch, *, counters: Any) -> pa.RecordBatch:
        lines = _lines(batch.schema, batch)
        return pa.RecordBatch.from_arrays([lines, extract(lines, counters)], names=["line", "key"])

    order = ["-key" if descending else "key"]
    cuts = Stage(
        name="sample", map_batch=key_only, schema=pa.schema([("key", kind)]), keys=order, partitions=1
    )(text.sample(SAMPLE_RANGES))
    return Stage(
        name="sort",
        map_batch=with_key,
        schema=pa.schema([("line", pa.binary()), ("key", kind)]),
        keys=order,
        partition="range",
        side={"cuts": cuts},
        partitions=partitions,
        reduce_batch=drop_key,
        output_schema=pa.schema([("line", pa.binary())]),
    )(text)


SAMPLE_RANGES = 64


def _lines(schema: pa.Schema, batch: pa.RecordBatch) -> pa.Array:
    return batch.column("line")


def sort_by_columns(
    rows: Dataset, names: list[str], numeric: bool, descending: bool, partitions: int | None
) -> Dataset:
    """Sort by columns as they are; the only column of text is ``line``."""
    import pyarrow as pa

    def check(schema: pa.Schema) -> pa.Schema:
        for name in names:
            if name not in schema.names:
                if schema.names == ["line"]:
                    raise BadJob(
                        f"job 'sort': text has no column {name!r}; give a field number, such as key=1"
                    )
                raise BadJob(f"job 'sort': no column {name!r}; the columns are: {', '.join(schema.names)}")
            kind = schema.field(name).type
            if numeric and not (
                pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
            ):
                raise BadJob(f"job 'sort': numeric=true, but column {name!r} has the type {kind}")
        return schema

    def keys_only(schema: pa.Schema) -> pa.Schema:
        check(schema)
        return pa.schema([schema.field(name) for name in names])

    def select(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(names)

    order = [f"-{name}" if descending else name for name in names]
    cuts = Stage(name="sample", map_batch=select, schema=keys_only, keys=order, partitions=1)(
        rows.sample(SAMPLE_RANGES)
    )
    return Stage(
        name="sort", schema=check, keys=order, partition="range", side={"cuts": cuts}, partitions=partitions
    )(rows)


@job
def sort(
    rows: Dataset,
    *,
    key: str | None = None,
    descending: bool = False,
    numeric: bool = False,
    separator: str | None = None,
    partitions: int | None = None,
) -> Dataset:
    """Sort lines, or rows by a field number or by column names (a,b); parts are sorted as a whole."""
    if key is not None and key.lstrip("-").isdigit():
        return sort_by_field(rows, int(key), separator, numeric, descending, partitions)
    if separator is not None:
        raise BadJob("job 'sort': separator goes with a field number, such as key=1")
    if key is None and numeric:
        raise BadJob("job 'sort': numeric goes with a key, such as key=1")
    names = key.split(",") if key is not None else ["line"]
    return sort_by_columns(rows, names, numeric, descending, partitions)
