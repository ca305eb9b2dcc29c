"""Kinds of option values that several commands share."""

from __future__ import annotations

from typing import Any

import click

from jobs.sizes import parse_size


class Size(click.ParamType[int]):
    """A number of bytes, such as ``64MB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


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
