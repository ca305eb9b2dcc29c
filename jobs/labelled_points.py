"""Rows of numbers with a label: a first look at all of them.

``LabelledPoints`` has the functions of a stage that finds out, in one pass, the moments of the features and the classes, and
that refuses cells which are no numbers: each is counted, and the first one named.  What it makes is a ``Summary``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jobs.linear_models import Floats, Ints, Moments, fold_in_tree, measure, merge_moments
from mapreduce import BadJob

MOST_CLASSES = 1_000

NUMBERS = pa.list_(pa.float64())
_COUNTS = pa.list_(pa.int64())


def summary_schema(label: pa.DataType) -> pa.Schema:
    """Return the columns of the first stage: of its map a row per batch, of its reduce one row for all."""
    return pa.schema(
        [
            ("split", pa.int64()),
            ("rows", _COUNTS),  # of the batch; in the end of each split
            ("features", pa.list_(pa.string())),
            ("means", NUMBERS),
            ("products", NUMBERS),
            ("bad", _COUNTS),  # cells that are no finite numbers, by feature and at last for the label
            ("first_bad", _COUNTS),  # where the first of them is in the split
            ("classes", pa.list_(label)),
        ]
    )


def one_row(schema: pa.Schema, *values: Any) -> pa.RecordBatch:
    """Return a batch of one row; arrays become lists."""
    columns = []
    for kind, value in zip(schema.types, values, strict=True):
        if pa.types.is_list(kind):
            items = value if isinstance(value, pa.Array) else pa.array(value, kind.value_type)
            columns.append(pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items))
        else:
            columns.append(pa.array([value], kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def only_row(table: pa.Table) -> pa.RecordBatch:
    """Return a table of one row as a batch."""
    row: pa.RecordBatch = table.combine_chunks().to_batches()[0]
    return row


def floats_of(rows: pa.RecordBatch, name: str, at: int = 0) -> Floats:
    """Return the list in one cell as an array."""
    found: Floats = rows.column(name)[at].values.to_numpy()
    return found


def numbers_of(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """Return a column of numbers, without a copy where it has no nulls, which become NaN."""
    column = batch.column(name)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def class_numbers(labels: pa.Array, classes: pa.Array) -> npt.NDArray[Any]:
    """Return the number of the class of each row; of two classes, whether it is the second."""
    numbers: npt.NDArray[Any]
    if len(classes) > 2:
        numbers = pc.index_in(labels, classes).to_numpy(zero_copy_only=False)
    elif pa.types.is_integer(labels.type) or pa.types.is_floating(labels.type):
        numbers = labels.to_numpy() == classes[1].as_py()  # a fifth of the time of pc.equal
    else:
        numbers = pc.equal(labels, classes[1]).to_numpy(zero_copy_only=False)
    return numbers


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What the first stage has found out about all rows."""

    moments: Moments
    features: tuple[str, ...]
    classes: pa.Array
    split_rows: tuple[int, ...]

    @classmethod
    def of(cls, table: pa.Table) -> Summary:
        """Take it out of the first stage's row."""
        row = only_row(table)
        return cls(
            moments=read_moments(row, 0),
            features=tuple(row.column("features")[0].as_py()),
            classes=row.column("classes")[0].values,
            split_rows=tuple(row.column("rows")[0].as_py()),
        )


def read_moments(rows: pa.RecordBatch, at: int) -> Moments:
    """Return the moments in a row of the first stage."""
    means, products = floats_of(rows, "means", at), floats_of(rows, "products", at)
    if len(products) == len(means) ** 2:
        products = products.reshape(len(means), -1)
    return Moments(rows=sum(rows.column("rows")[at].as_py()), means=means, products=products)


@dataclass(kw_only=True)
class Place:
    """Where in its split a task is, and a buffer that it uses again."""

    row: int = 0
    buffer: Floats = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True, kw_only=True)
class LabelledPoints:
    """Which columns are the label and the features (none: all other numeric ones), and how many classes there may be."""

    label: str
    features: tuple[str, ...]
    two_classes: bool
    asker: str = "job 'gradient'"  # whom errors name

    def names(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the features among the columns of the input.

        Raises:
            BadJob: a column is missing or of the wrong type.
        """

        def is_number(kind: pa.DataType) -> bool:
            return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

        for name, what in ((self.label, "label"), *((name, "feature") for name in self.features)):
            if name not in schema.names:
                hint = "; for a table of another name give --format csv" if schema.names == ["line"] else ""
                raise BadJob(
                    f"{self.asker}: there is no column {name!r} for {what}=; "
                    f"the columns are: {', '.join(schema.names)}{hint}"
                )
        for name in self.features:
            if self.features.count(name) > 1:
                raise BadJob(f"{self.asker}: feature {name!r} is given twice")
            if name == self.label:
                raise BadJob(f"{self.asker}: {name!r} is the label and cannot be a feature as well")
            if not is_number(schema.field(name).type):
                kind = schema.field(name).type
                raise BadJob(f"{self.asker}: feature {name!r} has the type {kind}; features are numbers")
        found = self.features or tuple(f.name for f in schema if is_number(f.type) and f.name != self.label)
        if not found:
            raise BadJob(
                f"{self.asker}: there is no numeric column beside the label {self.label!r}; "
                f"the columns are: {', '.join(schema.names)}"
            )
        return found

    def checked(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the first stage, once those of the input are known to do."""
        self.names(schema)
        return summary_schema(schema.field(self.label).type)

    def start(self) -> Place:
        """Start a task of the first stage."""
        return Place()

    def summarise(self, batch: pa.RecordBatch, *, state: Place, task: Any) -> pa.RecordBatch | None:
        """Return what is to be known of the rows of a batch, if it has any."""
        if not batch.num_rows:
            return None
        names = self.names(batch.schema)
        if state.buffer.shape[1] < batch.num_rows:
            state.buffer = np.empty((len(names), batch.num_rows))
        columns = state.buffer[:, : batch.num_rows]
        for row, name in zip(columns, names, strict=True):
            row[:] = numbers_of(batch, name)
        labels = batch.column(self.label)
        missing = labels.is_null(nan_is_null=True)
        bad = np.vstack([~np.isfinite(columns), missing.to_numpy(zero_copy_only=False)])
        classes = pc.unique(labels.filter(pc.invert(missing)))
        self._check_classes(len(classes))
        first = np.zeros(len(bad), np.int64)
        if bad.any():  # it will be refused, once all such cells are counted
            columns[bad[:-1]] = 0.0
            first = np.where(bad.any(axis=1), state.row + bad.argmax(axis=1), 0)
        with np.errstate(over="ignore", invalid="ignore"):
            moments = measure(columns)
        state.row += batch.num_rows
        return one_row(
            self.checked(batch.schema), task.index, [batch.num_rows], names, moments.means,
            moments.products.reshape(-1), bad.sum(axis=1), first, classes,
        )  # fmt: skip

    def merge_summaries(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return what is to be known of all rows, as one row.

        Raises:
            BadJob: there are no rows, cells that are no numbers, or classes that the model is not for.
        """
        held = [batch for batch in batches if batch.num_rows]
        if not held:
            raise BadJob(f"{self.asker}: the input has no rows to learn from")
        rows = pa.Table.from_batches(held).combine_chunks().to_batches()[0]
        counts = rows.column("rows").flatten().to_numpy()
        split_rows = np.bincount(rows.column("split").to_numpy(), counts).astype(np.int64)
        names = rows.column("features")[0].as_py()
        self._refuse_bad_cells([*names, self.label], rows, split_rows)
        kind = rows.schema.field("classes").type.value_type
        classes = sorted({name for each in rows.column("classes").to_pylist() for name in each})
        self._check_classes(len(classes))
        if len(classes) < 2:
            raise BadJob(
                f"{self.asker}: the label {self.label!r} has the same value in all {counts.sum():,} rows, "
                f"{classes[0]!r}; there is nothing to tell apart"
            )
        if self.two_classes and len(classes) > 2:
            raise BadJob(
                f"{self.asker}: model=logistic is for two classes, but the label {self.label!r} has "
                f"{len(classes)}; give model=softmax"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            moments = fold_in_tree([read_moments(rows, at) for at in range(rows.num_rows)], merge_moments)
            for name, deviation in zip(names, moments.deviations.tolist(), strict=True):
                if not np.isfinite(deviation):
                    raise BadJob(
                        f"{self.asker}: the numbers of column {name!r} are too large to be squared; divide them"
                    )
        yield one_row(
            rows.schema, 0, split_rows, names, moments.means, moments.products.reshape(-1), [], [],
            pa.array(classes, kind),
        )  # fmt: skip

    def _check_classes(self, count: int) -> None:
        if count > MOST_CLASSES:
            raise BadJob(
                f"{self.asker}: the label {self.label!r} has more than {MOST_CLASSES:,} different values; "
                "this job tells classes apart and does not predict numbers"
            )

    def _refuse_bad_cells(self, names: list[str], rows: pa.RecordBatch, split_rows: Ints) -> None:
        bad = rows.column("bad").flatten().to_numpy().reshape(-1, len(names))
        if not bad.any():
            return
        before = np.concatenate([[0], np.cumsum(split_rows)])[rows.column("split").to_numpy()]
        places = rows.column("first_bad").flatten().to_numpy().reshape(-1, len(names)) + before[:, None]
        told = [
            f"{name!r} {bad[:, at].sum():,} (the first in row {places[bad[:, at] > 0, at].min() + 1:,})"
            for at, name in enumerate(names)
            if bad[:, at].any()
        ]
        raise BadJob(
            f"{self.asker}: cells that are empty, NaN or infinite, by column: "
            f"{', '.join(told[:3])}{f' and {len(told) - 3} more columns' if len(told) > 3 else ''}; "
            "fill them or drop their rows (rows count from 1 without the header)"
        )
