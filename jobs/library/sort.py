"""Sort lines or rows: a chain of two stages.

``mr run sort big.txt -o sorted``, ``-p key=3 -p numeric=true`` for the third field, ``-p key=price`` for a
column

The first stage looks at short ranges all over the input and sorts what it finds: a sample, from which the
runner takes the cut points.  The second puts each row into the partition between its cuts and sorts there,
so the parts in name order are sorted as a whole (Hadoop's TeraSort does the same).  Rows with equal keys
keep their input order, also when descending.

Fields of text are separated by blanks and tabs, or by ``separator``.  Text sorts by unsigned bytes.  A line
without the field comes first (last when descending); with ``numeric`` so does one whose field is no number,
and both are counted.  Numbers compare as 64-bit floats, integers exactly.  Columns of CSV or Parquet sort
by their own type, nulls first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mapreduce import BadJob, Dataset, Stage, job

if TYPE_CHECKING:
    import pyarrow as pa

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
INTEGER = re.compile(r"[+-]?\d+")
EXACT = 2.0**53  # every integer below is a float
SAMPLE_RANGES = 64
SAMPLE_ROWS = 10_000


def field_pattern(number: int, separator: str | None) -> str:
    """Return a regular expression whose group ``key`` is field ``number`` (from 1) of a line."""
    if separator is None:
        return rf"^[ \t]*(?:[^ \t]+[ \t]+){{{number - 1}}}(?P<key>[^ \t]+)"
    edge = re.escape(separator)
    before = rf"(?:.*?{edge}){{{number - 1}}}" if number > 1 else ""
    return rf"(?s)^{before}(?P<key>.*?)(?:{edge}|$)"


def text_keys(lines: pa.Array, pattern: str) -> pa.Array:
    """Return the field of each line, null where there is none."""
    import pyarrow.compute as pc

    found = pc.struct_field(pc.extract_regex(lines, pattern), "key")
    # The nulls of a struct are not those of its children.
    return pc.if_else(pc.match_substring_regex(lines, pattern), found, None)


def numeric_keys(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return each text as a float, null if it is no number, and what a large integer loses by that."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.if_else(pc.match_substring_regex(texts, NUMBER), texts, None).cast(pa.string())
    floats = texts.cast(pa.float64())
    lost = np.zeros(len(texts), np.int64)
    large = pc.and_(pc.greater_equal(pc.abs(floats), EXACT), pc.is_finite(floats))
    for row in pc.indices_nonzero(pc.fill_null(large, False)).to_pylist():
        text = texts[row].as_py()
        if INTEGER.fullmatch(text):
            lost[row] = max(-(2**63), min(2**63 - 1, int(text) - int(floats[row].as_py())))
    return floats, pa.array(lost)


def thin(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return evenly spaced rows of a sorted sample, enough for the cuts of many partitions."""
    import pyarrow as pa

    rows = pa.Table.from_batches(held) if (held := list(batches)) else None
    if rows is not None:
        step = max(1, rows.num_rows // SAMPLE_ROWS)
        yield from rows.take(pa.array(range(0, rows.num_rows, step), pa.int64())).to_batches()


def drop_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
    pattern = field_pattern(number, separator)
    line = pa.field("line", pa.binary())
    keys = (
        [pa.field("key", pa.float64()), pa.field("lost", pa.int64())]
        if numeric
        else [pa.field("key", pa.binary())]
    )

    def with_keys(batch: pa.RecordBatch, *, counters: Any) -> pa.RecordBatch:
        lines = batch.column("line")
        texts = text_keys(lines, pattern)
        columns = numeric_keys(texts) if numeric else (texts,)
        if columns[0].null_count:
            counters["lines without a key"] += columns[0].null_count
        return pa.RecordBatch.from_arrays([lines, *columns], schema=pa.schema([line, *keys]))

    def keys_alone(batch: pa.RecordBatch) -> pa.RecordBatch:
        return with_keys(batch, counters={"lines without a key": 0}).select([key.name for key in keys])

    order = [f"-{key.name}" if descending else key.name for key in keys]
    cuts = Stage(
        name="sample",
        map_batch=keys_alone,
        schema=pa.schema(keys),
        keys=order,
        reduce_batch=thin,
        partitions=1,
    )(text.lines().sample(SAMPLE_RANGES))
    return Stage(
        name="sort",
        map_batch=with_keys,
        schema=pa.schema([line, *keys]),
        keys=order,
        partition="range",
        side={"cuts": cuts},
        partitions=partitions,
        reduce_batch=drop_keys,
        output_schema=pa.schema([line]),
    )(text.lines())


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
                if name == "line":
                    raise BadJob(
                        f"job 'sort': a table needs -p key=COLUMN, of {', '.join(schema.names)}; "
                        "or --format text sorts its lines"
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
    cuts = Stage(
        name="sample", map_batch=select, schema=keys_only, keys=order, reduce_batch=thin, partitions=1
    )(rows.sample(SAMPLE_RANGES))
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
