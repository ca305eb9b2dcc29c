"""Both engines say what happened in rows of the same columns, and numbers in the same words."""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal

import dag.events
import mapreduce.events
from jobs.sizes import format_size


def test_the_rows_of_both_engines_have_the_same_columns() -> None:
    columns = [(field.name, field.type) for field in fields(mapreduce.events.AttemptRow)]
    assert columns == [(field.name, field.type) for field in fields(dag.events.TaskRow)]


def test_a_size_is_said_with_three_digits_that_are_right() -> None:
    sizes = [
        0,
        1,
        999,
        1000,
        1001,
        9_994,
        9_995,
        9_996,
        99_949,
        99_950,
        99_951,
        999_499,
        999_500,
        10**18,
        999 * 10**18,
    ]
    for size in (*sizes, *(7**power for power in range(24))):
        number, unit = format_size(size).split()
        step = Decimal(1000) ** ("B", "kB", "MB", "GB", "TB", "PB").index(unit)
        last_digit = step.scaleb(Decimal(number).as_tuple().exponent)
        assert abs(Decimal(number) * step - size) <= last_digit / 2
        assert len(number.replace(".", "")) == 3 or step == 1 or size >= 10**18
        assert float(number) < 1000 or size >= 10**18
