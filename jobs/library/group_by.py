"""Aggregate columns of a table by groups.

``mr run group_by sales.parquet -o totals -p by=country,year -p sum=amount -p mean=price --output-format
csv``

Each of ``sum``, ``mean``, ``min`` and ``max`` takes column names separated by commas; ``count`` counts the
rows of each group unless it is false.  The result has the columns of ``by``, then ``sum_amount``,
``mean_price``, ..., ``count``. Nulls form a group of their own and are left out of the aggregates, as in
SQL: a sum of nulls only is null.

A mean does not fold, but its sum and count do: the first stage folds those, and a second, map-only one
divides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mapreduce import BadJob, Dataset, Stage, job

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Folded:
    """One column of the first stage: ``function`` over ``column`` (None counts rows)."""

    name: str
    column: str | None
    function: str


def plan_columns(
    sums: list[str], means: list[str], mins: list[str], maxs: list[str], count: bool
) -> list[Folded]:
    """Return what the first stage folds, in the order of the result; a mean takes two columns."""
    folded = [Folded(name=f"sum_{c}", column=c, function="sum") for c in sums]
    for c in means:
        folded.append(Folded(name=f"mean_{c}", column=c, function="sum"))
        folded.append(Folded(name=f"mean_{c}:n", column=c, function="count"))
    folded += [Folded(name=f"min_{c}", column=c, function="min") for c in mins]
    folded += [Folded(name=f"max_{c}", column=c, function="max") for c in maxs]
    if count:
        folded.append(Folded(name="count", column=None, function="count"))
    return folded


def folded_schema(by: list[str], folded: list[Folded]) -> Callable[[pa.Schema], pa.Schema]:
    """Return a function from the input's schema to the first stage's, which checks names and types."""

    def schema_of(given: pa.Schema) -> pa.Schema:
        import pyarrow as pa

        for name in [*by, *(f.column for f in folded if f.column is not None)]:
            if name not in given.names:
                raise BadJob(f"job 'group_by': no column {name!r}; the columns are: {', '.join(given.names)}")
        fields = [given.field(name) for name in by]
        for f in folded:
            kind = given.field(f.column).type if f.column is not None else pa.int64()
            if f.function == "count":
                kind = pa.int64()
            elif f.function == "sum":
                if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
                    kind = pa.int64()
                elif pa.types.is_floating(kind):
                    kind = pa.float64()
                elif pa.types.is_decimal(kind):  # with all the digits that there can be
                    wide = kind.bit_width > 128
                    kind = pa.decimal256(76, kind.scale) if wide else pa.decimal128(38, kind.scale)
                else:
                    raise BadJob(f"job 'group_by': cannot add up column {f.column!r} of type {kind}")
            fields.append(pa.field(f.name, kind))
        return pa.schema(fields)

    return schema_of


def take_columns(by: list[str], folded: list[Folded]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a map that lays out the columns of the first stage."""
    schema_of = folded_schema(by, folded)

    def select(batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc

        schema = schema_of(batch.schema)
        columns = [batch.column(name) for name in by]
        for f in folded:
            kind = schema.field(f.name).type
            if f.function == "count":
                # The counts of single rows, which then add up: 1, or 0 for a null.
                ones = (
                    pc.is_valid(batch.column(f.column))
                    if f.column is not None
                    else pa.array([True] * batch.num_rows)
                )
                columns.append(ones.cast(kind))
            else:
                columns.append(batch.column(f.column).cast(kind))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return select


def result_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the result: the helper columns of means gone, means as float64."""
    import pyarrow as pa

    counted = {name.removesuffix(":n") for name in schema.names if name.endswith(":n")}
    return pa.schema(
        [
            pa.field(f.name, pa.float64()) if f.name in counted else f
            for f in schema
            if not f.name.endswith(":n")
        ]
    )


def divide(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Turn sums and counts into means."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = result_schema(batch.schema)
    columns = []
    for name in wanted.names:
        column = batch.column(name)
        if f"{name}:n" in batch.schema.names:
            column = pc.divide(column.cast(pa.float64()), batch.column(f"{name}:n").cast(pa.float64()))
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


@job
def group_by(
    table: Dataset,
    *,
    by: str,
    sum: str | None = None,
    mean: str | None = None,
    min: str | None = None,
    max: str | None = None,
    count: bool = True,
    partitions: int | None = None,
) -> Dataset:
    """Sums, means, minima, maxima and counts of the columns of a table, by groups (by=a,b sum=x ...)."""
    groups = _names(by)
    folded = plan_columns(_names(sum), _names(mean), _names(min), _names(max), count)
    if not groups:
        raise BadJob("job 'group_by': by needs at least one column name")
    if not folded:
        raise BadJob("job 'group_by': nothing to compute; give sum=, mean=, min=, max= or count=true")
    names = [*groups, *(f.name for f in folded)]
    for name in names:
        if names.count(name) > 1:
            raise BadJob(f"job 'group_by': the result would have column {name!r} twice")
    totals = Stage(
        name="group",
        map_batch=take_columns(groups, folded),
        schema=folded_schema(groups, folded),
        keys=groups,
        aggregate={f.name: "sum" if f.function == "count" else f.function for f in folded},
        partitions=partitions,
    )(table)
    if not _names(mean):
        return totals
    return Stage(name="means", map_batch=divide, schema=result_schema)(totals)
