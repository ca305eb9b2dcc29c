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
            table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
            fields = [
                pa.field(field.name, pa.string()) if pa.types.is_null(field.type) else field
                for field in table.schema
            ]
            self._schema = pa.schema(fields)
        for row in rows:
            unknown = row.keys() - set(self._schema.names)
            if unknown:
                raise BadJob(
                    f"a record has the field {min(unknown)!r}, which the first records did not have; "
                    "yield every field from the start, None where there is no value"
                )
        self.write_batch(pa.RecordBatch.from_pylist(rows, schema=self._schema))

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
                f"column {field.name!r} is {type}, which has no place in CSV; write jsonl or parquet"
            )
        if pa.types.is_dictionary(type):
            type = type.value_type
        fields.append(pa.field(field.name, pa.string() if pa.types.is_binary(type) else type))
    return pa.schema(fields)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = _plain_schema(batch.schema)
    return batch if schema.equals(batch.schema) else batch.cast(schema)
