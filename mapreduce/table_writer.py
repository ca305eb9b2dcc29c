"""Rows as tables: CSV, Parquet, Arrow, and the encoded records between stages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mapreduce.errors import BadJob
from mapreduce.formats import Format
from mapreduce.line_writer import row_of

PARQUET_GROUP_BYTES = 32 << 20


class RecordWriter:
    """The records of a stage, encoded, for the next stage to read."""

    def __init__(self, file: pa.NativeFile, compression: str | None) -> None:
        from mapreduce.records import RECORD_SCHEMA

        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._writer = pa.ipc.new_file(file, RECORD_SCHEMA, options=options)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def write_records(self, pairs: list[tuple[Any, Any]]) -> None:
        from mapreduce.records import to_batch

        if pairs:
            self._writer.write_batch(to_batch(pairs))

    def close(self) -> None:
        self._writer.close()


class TableWriter:
    """CSV, Parquet and Arrow: one schema per file, which the first rows decide unless it is given."""

    def __init__(
        self, file: pa.NativeFile, format: Format, compression: str | None, schema: pa.Schema | None
    ) -> None:
        self._file = file
        self._format = format.name
        self._separator = format.separator
        self._compression = compression
        self._schema = schema
        self._writer: Any = None
        self._waiting: list[dict[str, Any]] = []
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def write_batch(self, batch: pa.RecordBatch) -> None:
        if self._format == "parquet":
            # Each call makes a row group: gather small batches.
            self._held.append(batch)
            self._held_bytes += batch.nbytes
            if self._held_bytes >= PARQUET_GROUP_BYTES:
                self._flush()
        else:
            self._open(batch.schema).write_batch(_plain(batch) if self._format == "csv" else batch)

    def write_records(self, pairs: list[tuple[Any, Any]]) -> None:
        rows = [row_of(key, value) for key, value in pairs]
        if not rows:
            return
        if self._schema is None:
            # Types come from all of the first rows: a column may begin with None or with an integer.
            names = dict.fromkeys(name for row in rows for name in row)
            types = {name: self._column(rows, name, None).type for name in names}
            self._schema = pa.schema(
                [(name, pa.string() if pa.types.is_null(type) else type) for name, type in types.items()]
            )
        for row in rows:
            unknown = row.keys() - set(self._schema.names)
            if unknown:
                raise BadJob(
                    f"a record has the field {min(unknown)!r}, which the first records did not have; "
                    "yield every field from the start, None where there is no value"
                )
        columns = [self._column(rows, field.name, field.type) for field in self._schema]
        self.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _column(self, rows: list[dict[str, Any]], name: str, type: pa.DataType | None) -> pa.Array:
        """Return a field of all rows as a column, of the given type or of the one that its values have."""
        values = [row.get(name) for row in rows]
        try:
            return pa.array(values, type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise BadJob(self._explained(values, name, type, error)) from None

    def _explained(self, values: list[Any], name: str, type: pa.DataType | None, error: Exception) -> str:
        found = f"column {name!r} of the output cannot be {self._format}: "
        for value in values:
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                return found + f"{value} has more than 64 bits; write text or jsonl, or yield it as a string"
            if (
                isinstance(value, tuple | list)
                and type is None
                and len({each.__class__ for each in value}) > 1
            ):
                return (
                    found + f"{value!r:.60} holds several types; yield its parts as fields, "
                    "(None, {'a': ..., 'b': ...}), or write text or jsonl"
                )
            try:
                pa.array([value], type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
                if type is None:
                    return found + f"a {value.__class__.__name__} has no place in a table: {value!r:.60}"
                break
        else:
            value = next((each for each in values if each.__class__ is not values[0].__class__), None)
        other = type if type is not None else values[0].__class__.__name__
        return (
            found
            + f"it has {value!r:.60} beside values of type {other}; yield one type per column, or write text or jsonl"
        )

    def close(self) -> None:
        self._flush()
        if self._schema is None and self._format == "csv":
            return  # no rows, no columns: an empty file
        self._open(self._schema or pa.schema([])).close()

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held)
            self._held, self._held_bytes = [], 0
            self._open(table.schema).write_table(table, row_group_size=max(1, table.num_rows))

    def _open(self, schema: pa.Schema) -> Any:
        if self._writer is None:
            self._schema = schema = self._schema or schema
            if self._format == "csv":
                import pyarrow.csv

                self._writer = pyarrow.csv.CSVWriter(
                    self._file,
                    _plain_schema(schema),
                    write_options=pyarrow.csv.WriteOptions(delimiter=self._separator),
                )
            elif self._format == "parquet":
                import pyarrow.parquet

                codec = self._compression or "snappy"
                self._writer = pyarrow.parquet.ParquetWriter(self._file, schema, compression=codec)
            else:
                options = pa.ipc.IpcWriteOptions(compression=self._compression)
                self._writer = pa.ipc.new_file(self._file, schema, options=options)
        return self._writer


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with which a batch is written as CSV: no binary, no dictionaries."""
    fields = []
    for field in schema:
        type = field.type
        if pa.types.is_nested(type):
            raise BadJob(
                f"column {field.name!r} is {type}, which has no place in CSV; yield its parts as fields, "
                "(None, {'a': ..., 'b': ...}), or write jsonl or parquet"
            )
        if pa.types.is_dictionary(type):
            type = type.value_type
        fields.append(pa.field(field.name, pa.string() if pa.types.is_binary(type) else type))
    return pa.schema(fields)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = _plain_schema(batch.schema)
    return batch if schema.equals(batch.schema) else batch.cast(schema)
