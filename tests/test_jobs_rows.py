"""Both engines say what happened in rows of the same columns, and numbers in the same words."""

from __future__ import annotations

from dataclasses import fields

import dag.events
import mapreduce.events
from dag.units import show_bytes
from jobs.sizes import format_size


def test_the_rows_of_both_engines_have_the_same_columns() -> None:
    columns = [(field.name, field.type) for field in fields(mapreduce.events.AttemptRow)]
    assert columns == [(field.name, field.type) for field in fields(dag.events.TaskRow)]


def test_both_engines_say_sizes_alike() -> None:
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
        assert show_bytes(size) == format_size(size)
