"""Writing one part file: text, CSV, JSON lines, Parquet, Arrow, or the records of a stage.

How records become rows.  In text a record is ``key TAB value`` (see ``line_writer``).  In the other formats a record is a row
``key, value``; a value that is a dict gives its fields in place of ``value``; a key or value that is None is left out.

A sink writes to the URL it is given.  Publishing under a final name is somebody else's; ``abort`` leaves
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from mapreduce.errors import BadJob, OutputFailed
from mapreduce.files import CountedWriter, first_line
from mapreduce.formats import OUTPUT_FORMATS, Format, parse_format
from mapreduce.line_writer import JsonWriter, TextWriter
from mapreduce.table_writer import RecordWriter, TableWriter

OUTPUT_COMPRESSIONS = ("gzip", "bz2", "zstd")
_EXTENSIONS = {"text": ".txt"}
_COMPRESSED_EXTENSIONS = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst"}
_INSIDE = {"parquet": ("gzip", "zstd"), "arrow": ("zstd",), "records": ("zstd",)}
"""Formats that compress inside the file, and the compressions that they have."""


def extension_of(format: str, compression: str | None = None) -> str:
    """Return how the names of files in a format end.

    >>> extension_of("csv", "gzip"), extension_of("text"), extension_of("tsv"), extension_of("csv:sep=;")
    ('.csv.gz', '.txt', '.tsv', '.csv')

    Raises:
        BadJob: the format or compression is unknown, or the two do not go together.
    """
    given = parse_format(format, OUTPUT_FORMATS)
    if given.is_untyped:
        raise BadJob(f"output format {format!r}: types= is for input; leave it out")
    format = "tsv" if given.separator == "\t" else given.name
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
    format = parse_format(format, OUTPUT_FORMATS).name
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
        self._writer = _writer(parse_format(format, OUTPUT_FORMATS), self._file, compression, schema)

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


def _writer(
    format: Format, file: pa.NativeFile, compression: str | None, schema: pa.Schema | None
) -> _Writer:
    if format.name == "text":
        return TextWriter(file)
    if format.name == "jsonl":
        return JsonWriter(file)
    if format.name == "records":
        return RecordWriter(file, compression)
    return TableWriter(file, format, compression, schema)
