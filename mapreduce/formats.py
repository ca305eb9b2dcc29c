"""The formats of files by the names that users give them: ``csv``, ``tsv``, ``csv:sep=;``, ``csv:types=string``.

Nothing here opens a file: a name in, a value out.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mapreduce.errors import BadJob

FORMATS = ("text", "csv", "tsv", "jsonl", "parquet", "arrow", "records", "raw")
OUTPUT_FORMATS = ("text", "csv", "tsv", "jsonl", "parquet", "arrow", "records")
EXTENSIONS = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".records": "records",
}
COMPRESSED_EXTENSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
SETTINGS = r"(tsv|csv(:sep=(?P<separator>.*?))?)(?P<types>:types=string)?"
"""What may follow the name of a format of tables in text."""
SEPARATORS = (",", ";", "\t", "|")
"""What separates fields in most files of this kind; ``guess_separator`` knows no others."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """How the bytes of a file are to be taken.

    ``name`` is ``csv`` for every separator.  ``is_stated`` says that the user wrote ``sep=``, so that the
    separator is no guess; ``is_untyped`` that he wrote ``types=string``, so that every column is text.
    """

    name: str
    separator: str = ","
    is_stated: bool = False
    is_untyped: bool = False


def parse_format(text: str, known: tuple[str, ...] = FORMATS) -> Format:
    r"""Return the format that a name means.

    >>> parse_format("tsv").separator, parse_format("csv:sep=;").separator, parse_format(r"csv:sep=\t").name
    ('\t', ';', 'csv')
    >>> parse_format("csv:sep=::types=string")
    Format(name='csv', separator=':', is_stated=True, is_untyped=True)

    Raises:
        BadJob: the name is none of ``known``, or the separator is not one ASCII character that can separate.
    """
    name, colon, _ = text.partition(":")
    if name not in known:
        raise BadJob(
            f"format {text!r} is not known; choose one of {', '.join(known)}, or csv:sep=; and the like"
        )
    if not colon:
        return Format(name="csv", separator="\t") if name == "tsv" else Format(name=name)
    found = re.fullmatch(SETTINGS, text, re.DOTALL)
    if found is None:
        raise BadJob(
            f"format {text!r} is not known; csv takes a separator, csv:sep=; and text without types, csv:types=string"
        )
    stated = found["separator"]
    separator = "\t" if stated == r"\t" or name == "tsv" else "," if stated is None else stated
    if len(separator) != 1 or not separator.isascii() or separator in '"\r\n\0':
        raise BadJob(
            f"format {text!r}: the separator must be one ASCII character, no quote and no line end; got {stated!r}"
        )
    return Format(
        name="csv", separator=separator, is_stated=stated is not None, is_untyped=found["types"] is not None
    )


def format_by_name(url: str) -> Format:
    """Return the format that the extension of a file tells, text if it tells none."""
    stem, extension = os.path.splitext(url)
    if extension in COMPRESSED_EXTENSIONS:
        extension = os.path.splitext(stem)[1]
    return parse_format(EXTENSIONS.get(extension, "text"))


def guess_separator(lines: Sequence[str], separator: str) -> str | None:
    """Return the separator that the first lines of a table show, where ``separator`` finds one column only.

    It cuts the header into several names, and each line below into as many fields.

    >>> guess_separator(["a;b", "1,5;2"], ","), guess_separator(["a;b", "1"], ","), guess_separator(['"a;b"'], ",")
    (';', None, None)
    """
    filled = [line for line in lines if line]
    if not filled or _count_fields(filled[0], separator) > 1:
        return None
    for other in SEPARATORS:
        count = _count_fields(filled[0], other)
        if count > 1 and all(_count_fields(line, other) == count for line in filled[1:]):
            return other
    return None


def _count_fields(line: str, separator: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=separator)))
    except csv.Error:  # a field too long for Python's reader
        return 1


def separator_name(separator: str) -> str:
    r"""Return how the format of a table with this separator is written.

    >>> separator_name(";"), separator_name("\t"), separator_name(",")
    ('csv:sep=;', 'tsv', 'csv')
    """
    return {",": "csv", "\t": "tsv"}.get(separator, f"csv:sep={separator}")
