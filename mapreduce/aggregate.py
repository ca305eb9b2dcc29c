"""Declared aggregations over sorted batches, without Python per row.

A fold goes from left to right, so cutting a group anywhere and carrying its partial row over gives the same bytes.
Sums of integers that leave 64 bits are an error, never a wrapped number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mapreduce.errors import BadJob
from mapreduce.gather import concat
from mapreduce.guard import WrongResult
from mapreduce.order import group_boundaries

FOLD_FAN_IN = 8
_SAMPLE_ROWS = 8192
FUNCTIONS = ("sum", "min", "max", "count")


@dataclass(frozen=True)
class Aggregate:
    """How the values of ``column`` in equal keys become one: ``sum``, ``min``, ``max`` or ``count``.

    Nulls are passed over.  ``count`` adds partial counts: the map side puts 1 (or 0) into the column.
    """

    column: str
    function: str

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise BadJob(
                f"aggregation {self.function!r} of column {self.column!r} is unknown: use {', '.join(FUNCTIONS)}"
            )

    def is_exact(self, schema: pa.Schema) -> bool:
        """Whether the result does not depend on how rows are grouped while folding."""
        return self.function != "sum" or not pa.types.is_floating(schema.field(self.column).type)


def fold_in_tree(
    batches: Iterable[pa.RecordBatch], fold: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> pa.RecordBatch:
    """Return one row for all rows: FOLD_FAN_IN neighbours at a time, then neighbours of those; one left over is passed on.

    The tree is a function of the number of rows, so an engine may fold it level by level, in as many tasks as it likes.

    Raises:
        WrongResult: there are no rows, or ``fold`` makes something else than one row.
    """
    held = [batch for batch in batches if batch.num_rows]
    if not held:
        raise WrongResult("there is no row to fold; map_end can make one where the input has none")
    rows = concat(held)
    while rows.num_rows > 1:
        runs = [rows.slice(at, FOLD_FAN_IN) for at in range(0, rows.num_rows, FOLD_FAN_IN)]
        rows = concat([run if run.num_rows == 1 else _one_row(fold(run), rows.schema) for run in runs])
    return rows


def _one_row(made: Any, schema: pa.Schema) -> pa.RecordBatch:
    if not isinstance(made, pa.RecordBatch) or made.num_rows != 1 or not made.schema.equals(schema):
        what = f"{made.num_rows} rows of {made.schema}" if hasattr(made, "num_rows") else type(made).__name__
        raise WrongResult(f"fold returns a RecordBatch of one row with the columns of its rows, got {what}")
    return made


def combine_rows(
    batch: pa.RecordBatch, keys: Sequence[str], aggregates: Sequence[Aggregate]
) -> pa.RecordBatch:
    """Return one row per group of a batch sorted by ``keys``: aggregated columns folded, others from the first row.

    Raises:
        BadJob: a sum leaves 64 bits, or a column's type cannot be aggregated so.
    """
    starts = group_boundaries(batch, keys)
    # floats are folded even when alone, so that -0.0 becomes 0.0 wherever the batch was cut
    floats = any(pa.types.is_floating(batch.schema.field(part.column).type) for part in aggregates)
    if len(starts) == batch.num_rows and not floats:
        return batch
    functions = {part.column: part.function for part in aggregates}
    first = pa.array(starts)
    columns = [
        _fold(batch.column(at), starts, functions[field.name], field.name)
        if field.name in functions
        else batch.column(at).take(first)
        for at, field in enumerate(batch.schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def combine_unsorted(
    batch: pa.RecordBatch, keys: Sequence[str], aggregates: Sequence[Aggregate]
) -> pa.RecordBatch:
    """Return one row per group of a batch in any order, by hashing; the batch itself where that would not be exact.

    Hashing a row costs a tenth of sorting it.  It is left to ``combine_rows`` if keys are neither text nor integers
    (whose equal values all have equal bytes), if there are other columns, if a sum might leave its type, or if the keys
    seem to be distinct already.
    """
    functions = {part.column: part.function for part in aggregates}
    for field in batch.schema:
        kind, function = field.type, functions.get(field.name)
        if field.name in keys:
            if function is not None or not (
                pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_integer(kind)
            ):
                return batch
        elif function is None or not pa.types.is_signed_integer(kind) or not _sums_fit(batch, field.name):
            return batch
    if _seems_distinct(batch, keys):
        return batch
    grouped = pa.Table.from_batches([batch]).group_by(list(keys), use_threads=False)
    found = grouped.aggregate([(name, "sum" if how == "count" else how) for name, how in functions.items()])
    columns = [
        found.column(field.name)
        if field.name in keys
        else found.column(
            f"{field.name}_{'sum' if functions[field.name] == 'count' else functions[field.name]}"
        )
        for field in batch.schema
    ]
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays(c.chunks).cast(f.type) for c, f in zip(columns, batch.schema, strict=True)],
        schema=batch.schema,
    )


def _seems_distinct(batch: pa.RecordBatch, keys: Sequence[str]) -> bool:
    """Tell whether no two of some thousand rows have equal keys: then hashing all rows would leave nearly all of them.

    Of s rows of d keys in any order about s * s / 2d pairs are equal: 300 for a hundred thousand keys.
    """
    step = batch.num_rows // _SAMPLE_ROWS
    if step < 2:
        return False
    sample = batch.select(list(keys)).take(pa.array(np.arange(0, batch.num_rows, step)))
    found = pa.Table.from_batches([sample]).group_by(list(keys), use_threads=False).aggregate([])
    return bool(found.num_rows == sample.num_rows)


def _sums_fit(batch: pa.RecordBatch, name: str) -> bool:
    """Tell whether no sum over rows of an integer column can leave its type."""
    column = batch.column(name)
    if column.null_count == len(column):
        return True
    extremes = pc.min_max(column).as_py()
    most = max(abs(extremes["min"]), abs(extremes["max"])) * len(column)
    return bool(most < 2 ** (column.type.bit_width - 1))


def _fold(column: pa.Array, starts: Any, function: str, name: str) -> pa.Array:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        if function in ("min", "max") or (function == "sum" and pa.types.is_decimal(kind)):
            return _fold_any(column, starts, function, name)
        raise BadJob(f"column {name!r} is {kind}: {function} needs numbers")
    valid: Any = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False) if valid is not None else column.to_numpy()
    counted = None if valid is None else np.add.reduceat(valid.astype(np.int64), starts)
    if function in ("sum", "count"):
        folded = _fold_sum(numbers, starts, name)
    else:
        if valid is not None:
            edge = _edge(numbers.dtype, function)
            numbers = np.where(valid, numbers, edge)
        if numbers.dtype.kind == "f":
            numbers = numbers + numbers.dtype.type(0)
        folded = (np.minimum if function == "min" else np.maximum).reduceat(numbers, starts)
    mask = None if counted is None else counted == 0
    return pa.array(folded.astype(numbers.dtype, copy=False), kind, mask=mask)


def _edge(dtype: Any, function: str) -> Any:
    if dtype.kind == "f":
        return dtype.type(np.inf if function == "min" else -np.inf)
    limits = np.iinfo(dtype)
    return limits.max if function == "min" else limits.min


def _fold_sum(numbers: Any, starts: Any, name: str) -> Any:
    if numbers.dtype.kind == "f":
        groups = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(numbers))))
        return np.bincount(groups, weights=numbers, minlength=len(starts))  # adds one after the other
    limits = np.iinfo(numbers.dtype)
    wide = np.uint64 if numbers.dtype.kind == "u" else np.int64
    folded = np.add.reduceat(numbers.astype(wide, copy=False), starts)
    largest = max(abs(int(numbers.max())), abs(int(numbers.min())))
    most = int(np.diff(np.append(starts, len(numbers))).max())
    if largest * most > limits.max:  # it might have left the type: look closely
        about = np.add.reduceat(numbers.astype(np.float64), starts)
        for at in np.flatnonzero(np.abs(about) > 0.99 * float(limits.max)):
            stop = int(starts[at + 1]) if at + 1 < len(starts) else len(numbers)
            exact = sum(numbers[int(starts[at]) : stop].tolist())
            if not limits.min <= exact <= limits.max:
                raise BadJob(f"the sum of column {name!r} reaches {exact}, more than {numbers.dtype} holds")
    return folded


def _fold_any(column: pa.Array, starts: Any, function: str, name: str) -> pa.Array:
    """Fold what numpy has no numbers for: text and dates by their order, decimals also by their sum."""
    groups = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(column))))
    table = pa.table({"group": groups, "value": column})
    folded = table.group_by("group", use_threads=False).aggregate([("value", function)]).sort_by("group")
    try:
        found = folded.column(f"value_{function}").combine_chunks().cast(column.type)
        found.validate(full=True)  # the digits of a decimal: a cast to the same type does not count them
    except pa.ArrowInvalid as error:
        raise BadJob(f"the {function} of column {name!r} does not fit in {column.type}: {error}") from None
    return found


def reduce_sorted(
    batches: Iterable[pa.RecordBatch], keys: Sequence[str], aggregates: Sequence[Aggregate]
) -> Iterator[pa.RecordBatch]:
    """Fold the groups of sorted batches, also where a group goes on in the next batch."""
    schema: pa.Schema | None = None
    carried: pa.RecordBatch | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        schema = schema or batch.schema
        batch = batch.cast(_carrying(schema, aggregates))
        if carried is not None:
            batch = concat([carried, batch])
        folded = combine_rows(batch, keys, aggregates)
        if folded.num_rows > 1:
            yield folded.slice(0, folded.num_rows - 1).cast(schema)
        carried = folded.slice(folded.num_rows - 1)
    if carried is not None:
        yield carried.cast(schema)


def _carrying(schema: pa.Schema, aggregates: Sequence[Aggregate]) -> pa.Schema:
    """Return the columns of partial rows: floats are added as 64 bits, and rounded to fewer only when a group is whole."""
    for part in aggregates:
        at = schema.get_field_index(part.column)
        if not part.is_exact(schema):
            schema = schema.set(at, schema.field(at).with_type(pa.float64()))
    return schema
