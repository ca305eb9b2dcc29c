"""Columns of several files as one schema, and batches that take it on.

Columns are matched by name.  A column that a file lacks is null there; one that is null everywhere is a
string, and ``int64`` when no file has a single row, so that it can be added up (to nothing).  Integers of
different widths become ``int64``; integers and floats become ``double`` as long as every integer is one
exactly (2**53), otherwise the file is refused, for no number changes its value here.  Dictionaries are
decoded, so their indices cannot overflow.  Text columns stay as they are written: dates in CSV and JSON are
strings.

Nothing here opens a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from mapreduce.errors import BadInput
from mapreduce.files import first_line

NO_ROWS = pa.schema([], metadata={b"rows": b"0"})
"""How a reader's ``file_schema`` says that the file has no row, so that its null columns may be anything."""


def unify(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return one schema for files given as (URL, schema), columns in the order of their first appearance.

    Raises:
        BadInput: a column's types cannot be one; the column and both files are named.
    """
    found: dict[str, tuple[pa.DataType, str]] = {}
    unknown = pa.int64()  # the type of columns that are null everywhere
    for file_url, schema in schemas:
        if schema.metadata != NO_ROWS.metadata:
            unknown = pa.string()
        for name, count in Counter(schema.names).items():
            if count > 1:
                raise BadInput(f"{file_url}: there are several columns named {name!r}; rename all but one")
        for field in schema:
            type = _plain_type(field.type)
            if field.name in found:
                known, url = found[field.name]
                common = _common_type(known, type)
                if common is None:
                    raise BadInput(
                        f"column {field.name!r} is {known} in {url} but {type} in {file_url}; "
                        "give them one type, or read the files as different inputs"
                    )
                # Name the file that made the type what it is.
                found[field.name] = (common, url if common == known else file_url)
            else:
                found[field.name] = (type, file_url)
    return pa.schema(
        [(name, unknown if pa.types.is_null(type) else type) for name, (type, _) in found.items()]
    )


def _plain_type(type: pa.DataType) -> pa.DataType:
    """Return the type that the values of a column have in a batch."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    if type == pa.string_view():
        return pa.string()
    if type == pa.binary_view():
        return pa.binary()
    return type


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both, or None.

    >>> _common_type(pa.int32(), pa.int64()), _common_type(pa.int8(), pa.float32())
    (DataType(int64), DataType(double))
    >>> _common_type(pa.bool_(), pa.int8()) is None
    True
    """
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if types.is_integer(one) and types.is_integer(other):
        return pa.int64()
    numeric = (types.is_integer, types.is_floating)
    if any(is_kind(one) for is_kind in numeric) and any(is_kind(other) for is_kind in numeric):
        return pa.float64()
    try:
        fields = [pa.schema([("x", one)]), pa.schema([("x", other)])]
        return pa.unify_schemas(fields, promote_options="permissive").field("x").type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def conform(batch: pa.RecordBatch, schema: pa.Schema, url: str) -> pa.RecordBatch:
    """Return a batch of a file with the columns, order and types of ``schema``.

    Raises:
        BadInput: a value has no exact place in the type of its column; file and column are named.
    """
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(index)
        try:
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            columns.append(column if column.type == field.type else column.cast(field.type, safe=True))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadInput(
                f"{url}: column {field.name!r} is {column.type} and cannot become {field.type}, as in other "
                f"files, without changing a value: {first_line(error)}"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def inexact_integer(texts: Iterable[str | None]) -> str | None:
    """Return the first text that is a whole number which a double cannot hold, or None.

    >>> inexact_integer(["1.5", None, "9007199254740992", "9007199254740993", "1e30"])
    '9007199254740993'
    """
    for text in texts:
        if text is not None and len(text) > 15:
            digits = text.strip()
            if digits.lstrip("+-").isdecimal() and int(float(digits)) != int(digits):
                return digits
    return None


def may_be_inexact(column: pa.Array) -> bool:
    """Return whether a column of doubles reaches 2**53, where whole numbers stop being exact."""
    import pyarrow.compute as pc

    extremes = pc.min_max(column).as_py()
    return any(value is not None and abs(value) >= 2.0**53 for value in extremes.values())
