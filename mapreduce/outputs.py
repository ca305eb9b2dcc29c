"""Writing one part file: text, CSV, JSON lines, Parquet, Arrow, or the records of a stage.

How records become rows.  In text a record is ``key TAB value``; a key or value that is None is left out
together with the tab.  Strings are written as UTF-8 (what ``surrogateescape`` let in goes out as it came),
bytes as they are, other values by ``str``.  In the other formats a record is a row ``key, value``; a value
that is a dict gives its fields in place of ``value``; again None is left out.  In JSON lines, dates are ISO
strings, bytes must be UTF-8, and NaN and the infinities are written as Python's ``json`` writes and reads them.

How batches become text: one column is a line per row, several are joined by tabs, a null is empty.  Nothing
is escaped in text: use another format for values that hold tabs or line feeds.

A sink writes to the URL it is given.  Publishing under a final name is somebody else's; ``abort`` leaves
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mapreduce.errors import BadJob, OutputFailed
from mapreduce.files import CountedWriter, first_line

OUTPUT_FORMATS = ("text", "csv", "jsonl", "parquet", "arrow", "records")
OUTPUT_COMPRESSIONS = ("gzip", "bz2", "zstd")
_EXTENSIONS = {"text": ".txt"}
_COMPRESSED_EXTENSIONS = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst"}
_INSIDE = {"parquet": ("gzip", "zstd"), "arrow": ("zstd",), "records": ("zstd",)}
"""Formats that compress inside the file, and the compressions that they have."""
JOIN_BYTES = 1 << 28
"""Text is joined in pieces of at most this, far from the 2 GiB that 32-bit offsets allow."""
PARQUET_GROUP_BYTES = 32 << 20


def extension_of(format: str, compression: str | None = None) -> str:
    """Return how the names of files in a format end.

    >>> extension_of("csv", "gzip"), extension_of("text"), extension_of("parquet", "zstd")
    ('.csv.gz', '.txt', '.parquet')

    Raises:
        BadJob: the format or compression is unknown, or the two do not go together.
    """
    if format not in OUTPUT_FORMATS:
        raise BadJob(f"output format {format!r} is not known; choose one of {', '.join(OUTPUT_FORMATS)}")
    extension = _EXTENSIONS.get(format, f".{format}")
    if compression is None:
        return extension
    known = _INSIDE.get(format, OUTPUT_COMPRESSIONS)
    if compression not in known:
        raise BadJob(
            f"{format} output cannot be compressed by {compression!r}; choose one of {', '.join(known)}"
        )
    return extension if format in _INSIDE else extension + _COMPRESSED_EXTENSIONS[compression]


def check_columns(schema: pa.Schema, format: str) -> None:
    """Refuse columns for which a format has no place, before anything runs.

    Raises:
        BadJob: a nested column, in text or CSV.
    """
    for field in schema if format in ("text", "csv") else ():
        if pa.types.is_nested(field.type):
            raise BadJob(
                f"column {field.name!r} is {field.type}, which has no place in {format}; write jsonl or parquet"
            )


class Sink:
    """One part file being written.  End it by ``close`` or ``abort``."""

    def __init__(
        self,
        url: str,
        *,
        format: str,
        compression: str | None,
        storage_options: Mapping[str, Any],
        schema: pa.Schema | None,
        counted: Callable[[int], None] | None,
    ) -> None:
        extension_of(format, compression)  # refuse before a file is made
        self.url = url
        self._rows = 0
        self._format = format
        self._raw = CountedWriter(url, storage_options, counted)
        self._file: pa.NativeFile = pa.PythonFile(self._raw, mode="w")
        if compression is not None and format not in _INSIDE:
            self._file = pa.CompressedOutputStream(self._file, compression)
        self._writer = _writer(format, self._file, compression, schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch.

        Raises:
            OutputFailed: the file cannot be written; the message names it.
            BadJob: the rows have no place in the format, or other columns than the rows before.
        """
        self._rows += batch.num_rows
        try:
            self._writer.write_batch(batch)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise BadJob(
                f"{self.url}: these rows cannot be {self._format}: {first_line(error)}; "
                "write text or parquet, which hold any bytes"
            ) from error
        except OSError as error:
            raise self._failed(error) from error

    def write_records(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Append ``(key, value)`` pairs; raises as ``write_batch``."""
        pairs = pairs if isinstance(pairs, list) else list(pairs)
        self._rows += len(pairs)
        try:
            self._writer.write_records(pairs)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise BadJob(
                f"{self.url}: these records cannot be {self._format}: {first_line(error)}"
            ) from error
        except UnicodeEncodeError as error:
            raise BadJob(
                f"{self.url}: a record has characters that are no UTF-8, which {self._format} cannot hold "
                f"({ascii(error.object)[:60]}); write text, or read with --errors (errors=) replace"
            ) from None
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> tuple[int, int]:
        """Finish the file and return (rows, bytes in the file)."""
        try:
            self._writer.close()
            self._file.close()
            self._raw.close()
        except OSError as error:
            raise self._failed(error) from error
        return self._rows, self._raw.bytes

    def physical_bytes(self) -> int:
        """Return the bytes of all replicas of the closed file; raises as the filesystem does."""
        return self._raw.physical_bytes()

    def abort(self) -> None:
        """Give up: close without error and leave nothing behind."""
        self._raw.discard()

    def _failed(self, error: OSError) -> OutputFailed:
        if isinstance(error, OutputFailed):
            return error
        return OutputFailed(f"cannot write {self.url}: {first_line(error)}")


def open_sink(
    url: str,
    *,
    format: str = "text",
    compression: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    schema: pa.Schema | None = None,
    counted: Callable[[int], None] | None = None,
) -> Sink:
    """Open a part file for writing.

    ``schema`` fixes the columns; without it the first rows decide.  With it, a file without rows still has
    its columns.  ``counted`` is told the bytes that the file gets.

    Raises:
        OutputFailed: the file cannot be made.
        BadJob: format and compression are unknown or do not go together.
    """
    return Sink(
        url, format=format, compression=compression, storage_options=storage_options or {}, schema=schema,
        counted=counted,
    )  # fmt: skip


class _Writer(Protocol):
    def write_batch(self, batch: pa.RecordBatch) -> None: ...
    def write_records(self, pairs: list[tuple[Any, Any]]) -> None: ...
    def close(self) -> None: ...


def _writer(format: str, file: pa.NativeFile, compression: str | None, schema: pa.Schema | None) -> _Writer:
    if format == "text":
        return _TextWriter(file)
    if format == "jsonl":
        return _JsonWriter(file)
    if format == "records":
        return _RecordWriter(file, compression)
    return _TableWriter(file, format, compression, schema)


class _TextWriter:
    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file

    def write_batch(self, batch: pa.RecordBatch) -> None:
        pieces = max(1, -(-batch.nbytes // JOIN_BYTES))
        rows = max(1, -(-batch.num_rows // pieces))
        for begin in range(0, batch.num_rows, rows):
            self._file.write(_joined(batch.slice(begin, rows)))
            self._file.write(b"\n")

    def write_records(self, pairs: list[tuple[Any, Any]]) -> None:
        lines = [
            f"{key}\t{value}\n"
            if key is not None
            and value is not None
            and key.__class__ is not bytes
            and value.__class__ is not bytes
            else _odd_line(key, value)
            for key, value in pairs
        ]
        self._file.write("".join(lines).encode("utf-8", "surrogateescape"))

    def close(self) -> None:
        pass


def _odd_line(key: Any, value: Any) -> str:
    # surrogateescape carries any bytes through str and out again
    parts = [
        part.decode("utf-8", "surrogateescape") if isinstance(part, bytes) else str(part)
        for part in (key, value)
        if part is not None
    ]
    return "\t".join(parts) + "\n"


def _joined(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the rows as lines, without the last line feed."""
    columns = [
        _as_binary(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    lines = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, pa.scalar(b"\t"))
    if lines.null_count:
        lines = lines.fill_null(b"")
    whole = pa.ListArray.from_arrays(pa.array(np.array([0, len(lines)], np.int32)), lines)
    return pc.binary_join(whole, pa.scalar(b"\n"))[0].as_buffer()


def _as_binary(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_nested(column.type):
        raise BadJob(
            f"column {name!r} is {column.type}, which has no place in a line of text; write jsonl or parquet"
        )
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.string()).cast(pa.binary())
    return column.fill_null(b"") if column.null_count else column


def row_of(key: Any, value: Any) -> dict[str, Any]:
    """Return a record as the row of a table.

    >>> row_of("a", 1), row_of(None, {"x": 2}), row_of("a", {"x": 2}), row_of("a", None)
    ({'key': 'a', 'value': 1}, {'x': 2}, {'key': 'a', 'x': 2}, {'key': 'a'})
    """
    row: dict[str, Any] = {} if key is None else {"key": key}
    if isinstance(value, dict):
        if key is not None and "key" in value:
            raise BadJob(
                f"the record with key {key!r} has a field 'key' too; yield (None, row) or rename the field"
            )
        return row | value
    if value is not None:
        row["value"] = value
    return row


class _JsonWriter:
    def __init__(self, file: pa.NativeFile) -> None:
        import json

        self._file = file
        self._dumps = json.JSONEncoder(ensure_ascii=False, default=_json_value).encode

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._write(batch.to_pylist(maps_as_pydicts="lossy"))

    def write_records(self, pairs: list[tuple[Any, Any]]) -> None:
        self._write([row_of(key, value) for key, value in pairs])

    def _write(self, rows: list[dict[str, Any]]) -> None:
        dumps = self._dumps
        try:
            text = "".join([dumps(row) + "\n" for row in rows])
        except (TypeError, ValueError) as error:
            raise BadJob(
                f"a row cannot be JSON: {first_line(error)}; write text, which holds any bytes"
            ) from error
        self._file.write(text.encode("utf-8", "surrogatepass"))

    def close(self) -> None:
        pass


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "__float__"):  # Decimal, and numpy's numbers
        return int(value) if value == int(value) and not hasattr(value, "as_tuple") else float(value)
    raise BadJob(f"a value of type {type(value).__name__} cannot be JSON: {value!r}")


class _RecordWriter:
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


class _TableWriter:
    """CSV, Parquet and Arrow: one schema per file, which the first rows decide unless it is given."""

    def __init__(
        self, file: pa.NativeFile, format: str, compression: str | None, schema: pa.Schema | None
    ) -> None:
        self._file = file
        self._format = format
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

                self._writer = pyarrow.csv.CSVWriter(self._file, _plain_schema(schema))
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
