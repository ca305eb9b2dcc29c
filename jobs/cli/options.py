"""Kinds of option values that several commands share."""

from __future__ import annotations

from typing import Any

import click

from jobs.sizes import parse_size
from mapreduce.errors import BadJob
from mapreduce.formats import parse_format


class Size(click.ParamType[int]):
    """A number of bytes, such as ``64MB``: kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024, a bare number is bytes."""

    name = "size"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N[kB|MB|GB|MiB|GiB]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FormatName(click.ParamType[str]):
    """The name of a file format, one of ``known``, such as ``csv`` or ``csv:sep=;``; ``reads`` says that it is for input."""

    name = "format"

    def __init__(self, *known: str, reads: bool) -> None:
        self.known = known
        self.reads = reads

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"[{'|'.join(self.known)}|csv:sep=CHAR{'|csv:types=string' * self.reads}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            found = parse_format(value, self.known)
        except BadJob as error:
            self.fail(str(error), param, ctx)
        if found.is_untyped and not self.reads:
            self.fail(f"format {value!r}: types= is for input; leave it out", param, ctx)
        return str(value)


INPUT_FORMAT = FormatName("text", "csv", "tsv", "jsonl", "parquet", "arrow", "raw", reads=True)
OUTPUT_FORMAT = FormatName("text", "csv", "tsv", "jsonl", "parquet", "arrow", reads=False)


def split_parameters(given: tuple[str, ...], option: str = "-p") -> dict[str, str]:
    """Return ``{name: value}`` of repeated ``name=value`` words.

    Raises:
        click.UsageError: a word has no ``=``, or a name comes twice.
    """
    values: dict[str, str] = {}
    for word in given:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise click.UsageError(f"{option} takes name=value, got {word!r}")
        if name in values:
            raise click.UsageError(f"{option} {name}= is given twice: {values[name]!r} and {value!r}")
        values[name] = value
    return values
