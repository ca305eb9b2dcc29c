"""Points read as columns of numbers: from the numeric columns of a table, or from lines of text.

A line has numbers apart by blanks, tabs or commas, as many as the first one; blank lines are passed over.  A row of a
table in which a coordinate is missing, NaN or infinite is no point and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mapreduce import BadJob, Dataset
from mapreduce.inputs import plan_splits, read_batches, read_schema

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Points:
    """How the coordinates of points are found in a batch."""

    names: tuple[str, ...]
    text: bool

    def of(self, batch: pa.RecordBatch, counters: Any = None) -> tuple[Floats, Flags]:
        """Return the coordinates, a row per column and a column per point, and which rows of the batch these are."""
        if self.text:
            return self._of_lines(batch.column("line"))
        columns = [batch.column(name).cast(pa.float64()) for name in self.names]
        points = np.stack([column.to_numpy(zero_copy_only=False) for column in columns])
        kept = np.isfinite(points).all(axis=0)
        if kept.all():
            return points, kept
        if counters is not None:
            counters["points without all coordinates"] += len(kept) - int(kept.sum())
        return points[:, kept], kept

    def _of_lines(self, lines: pa.Array) -> tuple[Floats, Flags]:
        fields = split_numbers(lines)
        sizes = pc.list_value_length(fields).to_numpy(zero_copy_only=False)
        kept = sizes > 0
        if not (sizes[kept] == len(self.names)).all():
            bad = lines[int(np.flatnonzero(kept & (sizes != len(self.names)))[0])].as_py()
            raise BadJob(f"the first point has {len(self.names)} coordinates, but not {bad!r}")
        values = to_floats(fields.flatten()).reshape(-1, len(self.names))
        if not np.isfinite(values).all():
            raise BadJob("lines of text must hold finite numbers; use a table for missing ones")
        return np.ascontiguousarray(values.T), kept


def split_numbers(lines: pa.Array) -> pa.Array:
    """Return the fields of each line, an empty list for a blank one."""
    text = pc.ascii_trim_whitespace(pc.replace_substring(lines.cast(pa.string()), ",", " "))
    return pc.if_else(
        pc.equal(text, ""), pa.scalar([], pa.list_(pa.string())), pc.ascii_split_whitespace(text)
    )


def to_floats(fields: pa.Array) -> Floats:
    """Return fields of text as numbers.

    Raises:
        BadJob: one is no number.
    """
    try:
        found: Floats = fields.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise BadJob(f"a coordinate is no number: {error}") from None
    return found


def points_of(data: Dataset, columns: str | None, taken: Sequence[str] = ()) -> Points:
    """Find out from the head of the input what the coordinates are; names ``taken`` are the job's own.

    Raises:
        BadJob: a column is missing or no number, or there is none.
    """
    if data.source is None:
        raise BadJob("points are read from files, not from the output of a stage")
    schema = read_schema(data.source)
    if schema.names == ["line"] and columns is None:
        batches = (
            b for s in plan_splits(data.source, split_bytes=64 << 20) for b in read_batches(s, data.source)
        )
        for batch in batches:
            sizes = [len(f) for f in split_numbers(batch.column("line").slice(0, 100)).to_pylist() if f]
            if sizes:
                return Points(names=tuple(f"x{i}" for i in range(sizes[0])), text=True)
        raise BadJob("the input has no point")

    def is_number(kind: pa.DataType) -> bool:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    if columns is None:
        names = [f.name for f in schema if is_number(f.type) and f.name != "label"]
    else:
        names = [name.strip() for name in columns.split(",")]
    for name in taken:
        if name in schema.names:
            raise BadJob(f"a column is called {name!r}, as one of the result; rename it in the input")
    for name in names:
        if name not in schema.names:
            raise BadJob(f"no column {name!r}; the columns are: {', '.join(schema.names)}")
        if not is_number(schema.field(name).type):
            raise BadJob(f"column {name!r} is {schema.field(name).type}; coordinates are numbers")
    if not names:
        raise BadJob(f"there is no numeric column; the columns are: {', '.join(schema.names)}")
    return Points(names=tuple(names), text=False)
