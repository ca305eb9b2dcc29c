"""Rows as lines: text and JSON.

In text a record is ``key TAB value``; a key or value that is None is left out together with the tab.  Strings are written as
UTF-8 (what ``surrogateescape`` let in goes out as it came), bytes as they are, other values by ``str``.  Of a batch one column
is a line per row, several are joined by tabs, a null is empty.  Nothing is escaped: use another format for values that
hold tabs or line feeds.

In JSON lines dates are ISO strings, bytes must be UTF-8, and NaN and the infinities are written as Python's ``json`` writes
and reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mapreduce.errors import BadJob
from mapreduce.files import first_line

JOIN_BYTES = 1 << 20
"""Text is joined in pieces of about this: they are still in the processor's cache when they are written."""


class TextWriter:
    """Writes lines of text to an open file."""

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


class JsonWriter:
    """Writes a JSON object per row to an open file."""

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
