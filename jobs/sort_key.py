"""What the records of a sorted output are ordered by, for the verdict of ``mr validate``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mapreduce.errors import BadJob

BLANKS_APART = re.compile(rb"[^ \t]+")
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class SortKey:
    """What records are ordered by, as for the job ``sort``.

    Lines: by the whole line, or by field ``field`` of it, from 1.  Rows: by ``columns``, nulls first.

    Fields are separated by ``separator``, or by runs of blanks and tabs without one.  A ``numeric`` field
    is compared as a 64-bit float.  Lines without the field (or whose field is no number) come before all
    others, after them when ``descending``.

    Raises:
        BadJob: ``field`` is below 1, or ``separator`` or ``numeric`` stand without it.
    """

    field: int | None = None
    columns: tuple[str, ...] = ()
    separator: str | None = None
    numeric: bool = False
    descending: bool = False

    def __post_init__(self) -> None:
        if not all(self.columns):
            raise BadJob(
                f"key must be a field number or names of columns (a,b), got {','.join(self.columns)!r}"
            )
        if self.columns and (self.field is not None or self.numeric or self.separator is not None):
            raise BadJob("numeric and separator go with the number of a field, not with columns")
        if self.field is not None and self.field < 1:
            raise BadJob(f"key must be the number of a field, from 1, got {self.field}")
        if self.separator == "":
            raise BadJob("separator is empty; leave it out for blanks and tabs")
        if self.field is None and (self.numeric or self.separator is not None):
            raise BadJob("numeric and separator go with a key, such as --key 1")

    def of(self, line: bytes) -> Any:
        """Return what a line is compared by."""
        assert self.field is not None
        separator = None if self.separator is None else self.separator.encode()
        fields = BLANKS_APART.findall(line) if separator is None else line.split(separator)
        if len(fields) < self.field:
            return -math.inf if self.numeric else b""
        found = fields[self.field - 1]
        if self.numeric:
            return float(found) if NUMBER.fullmatch(found) else -math.inf
        return b"." + found  # so that an empty field is more than none


@dataclass(frozen=True, kw_only=True)
class ColumnsOfLines(SortKey):
    """Columns of a table in the lines of text that are written for its rows: tabs between fields, nulls empty.

    ``places`` are their numbers, from 0, and whether they are compared as numbers; ``field`` is the first of them, from 1.
    """

    places: tuple[tuple[int, bool], ...] = ()

    @classmethod
    def of_table(cls, key: SortKey, fields: Mapping[str, pa.DataType]) -> ColumnsOfLines:
        """Return the key for a table of such columns; ``key`` has the names of some of them, or the number of one.

        Raises:
            BadJob: there is no such field.
        """
        names = list(fields)
        if key.field is not None and key.field > len(names):
            raise BadJob(f"--key {key.field}: there are {len(names)} columns: {', '.join(names)}")
        chosen = [names[key.field - 1]] if key.field is not None else key.columns
        places = tuple((names.index(name), key.numeric or _is_number(fields[name])) for name in chosen)
        return cls(field=places[0][0] + 1, places=places, descending=key.descending)

    def of(self, line: bytes) -> Any:
        """Return what a line is compared by."""
        found = line.split(b"\t")
        return tuple(_value(found[at] if at < len(found) else b"", number) for at, number in self.places)


def _value(text: bytes, number: bool) -> bytes | float:
    if not number:
        return text
    if NUMBER.fullmatch(text):
        return float(text)
    return {b"inf": math.inf, b"nan": math.inf}.get(text.lower(), -math.inf)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
