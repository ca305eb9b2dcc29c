"""Both engines say what happened in rows of the same columns."""

from __future__ import annotations

from dataclasses import fields

import dag.events
import mapreduce.events


def test_the_rows_of_both_engines_have_the_same_columns() -> None:
    columns = [(field.name, field.type) for field in fields(mapreduce.events.AttemptRow)]
    assert columns == [(field.name, field.type) for field in fields(dag.events.TaskRow)]
