"""Join two data sets on a key.

``mr run join users.csv orders.csv -o joined -p on=user_id -p how=left --output-format csv``

``on`` is the name of a column, or for text the number of a field (fields are separated by tabs).  Text
gives ``key TAB left fields TAB right fields``; rows of tables give one row with the columns of both, those
of the right side that clash named ``name_right``.  Keys that are None or NaN join with nothing, as in SQL.

Two strategies.  ``reduce`` sends both sides by key to the reduce, which gets one iterable per input: the
left rows of a key as a list, the right ones streamed, so put the side with fewer rows per key first.
``broadcast`` moves nothing: each map task holds the whole right side in memory, which pays when it is
small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mapreduce import BadJob, Dataset, Stage, job

HOW = ("inner", "left", "full")
Pairs = Iterator[tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class TextRows:
    """How lines are keyed and put together."""

    field: int

    def split(self, line: str) -> tuple[Any, Any]:
        """Return the key of a line, None if it has too few fields, and the other fields."""
        fields = line.split("\t")
        if len(fields) < self.field:
            return None, line
        key = fields.pop(self.field - 1)
        return key, "\t".join(fields)

    def pair(self, key: Any, left: Any, right: Any) -> tuple[Any, Any]:
        """Return the joined record; a side is None where it has no row."""
        return key, f"{left or ''}\t{right or ''}"


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """How rows of tables are keyed and put together."""

    on: str
    left_columns: tuple[str, ...]
    right_columns: tuple[str, ...]

    def split(self, row: dict[str, Any]) -> tuple[Any, Any]:
        """Return the key of a row and the row."""
        return row[self.on], row

    def pair(self, key: Any, left: Any, right: Any) -> tuple[Any, Any]:
        """Return the joined record; a side is None where it has no row."""
        joined = {self.on: key}
        for name in self.left_columns:
            joined[name] = left[name] if left is not None else None
        for name in self.right_columns:
            joined[f"{name}_right" if name in joined else name] = right[name] if right is not None else None
        return None, joined


Rows = TextRows | TableRows


def joins(key: Any) -> bool:
    """Tell whether a key can equal another: None and NaN cannot."""
    return key is not None and key == key


def reduce_side(left: Dataset, right: Dataset, rows: Rows, how: str, partitions: int | None) -> Dataset:
    """Join where the rows of a key meet."""

    def by_key(number: Any, row: Any) -> Pairs:
        yield rows.split(row)

    def match(key: Any, lefts: list[Any], rights: Iterable[Any]) -> Pairs:
        matched = False
        for found in rights:
            if lefts and joins(key):
                matched = True
                for one in lefts:
                    yield rows.pair(key, one, found)
            elif how == "full":
                yield rows.pair(key, None, found)
        if not matched and how != "inner":
            for one in lefts:
                yield rows.pair(key, one, None)

    return Stage(name="join", map=[by_key, by_key], reduce=match, partitions=partitions)(left, right)


def broadcast(left: Dataset, right: Dataset, rows: Rows, how: str) -> Dataset:
    """Join in the map, against the whole right side in memory."""

    def index(*, side: Any) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for _, row in side["right"]:
            key, rest = rows.split(row)
            if joins(key):
                found.setdefault(key, []).append(rest)
        return found

    def look_up(number: Any, row: Any, *, state: Any) -> Pairs:
        key, rest = rows.split(row)
        found = state.get(key, ()) if joins(key) else ()
        for other in found:
            yield rows.pair(key, rest, other)
        if not found and how == "left":
            yield rows.pair(key, rest, None)

    return Stage(name="join", map=look_up, setup=index, side={"right": right})(left)


def rows_of(left: Dataset, right: Dataset, on: str) -> Rows:
    """Find out from the files' heads whether the inputs are text or tables, and check ``on``."""
    from mapreduce.inputs import read_schema

    names = []
    for side, data in (("left", left), ("right", right)):
        assert data.source is not None
        columns = tuple(read_schema(data.source).names)
        names.append(columns)
        if columns != ("line",) and on not in columns:
            raise BadJob(f"job 'join': the {side} input has no column {on!r}; it has: {', '.join(columns)}")
    texts = [columns == ("line",) for columns in names]
    if any(texts):
        if not all(texts):
            raise BadJob("job 'join': one input is text and the other a table; give both one format")
        if not on.isdigit() or int(on) < 1:
            raise BadJob(f"job 'join': for text, on must be a field number from 1, got {on!r}")
        return TextRows(field=int(on))
    left_columns, right_columns = (tuple(c for c in columns if c != on) for columns in names)
    return TableRows(on=on, left_columns=left_columns, right_columns=right_columns)


@job
def join(
    left: Dataset,
    right: Dataset,
    *,
    on: str = "1",
    how: str = "inner",
    strategy: str = "reduce",
    partitions: int | None = None,
) -> Dataset:
    """Join two inputs on a field or column: how=inner|left|full, strategy=reduce|broadcast."""
    if how not in HOW:
        raise BadJob(f"job 'join': how must be {', '.join(HOW)}, got {how!r}")
    if strategy not in ("reduce", "broadcast"):
        raise BadJob(f"job 'join': strategy must be reduce or broadcast, got {strategy!r}")
    rows = rows_of(left, right, on)
    if strategy == "reduce":
        return reduce_side(left, right, rows, how, partitions)
    if how == "full":
        raise BadJob(
            "job 'join': a full join cannot be broadcast, as no task knows what matched nowhere; "
            "use strategy=reduce"
        )
    return broadcast(left, right, rows, how)
