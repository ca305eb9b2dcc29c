"""The order of rows and partitions, against Python's own sort."""

from __future__ import annotations

import datetime
import decimal
import functools
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapreduce.errors import BadJob, BadKey
from mapreduce.order import Order, SortedKeys, group_boundaries, sort_permutation
from mapreduce.partition import HashPartitioner, RangePartitioner, range_cuts
from mapreduce.words import REST_LEVEL

# Few letters and lengths around the seven bytes of a word, so that ties and prefixes are common.
short_bytes = (
    st.binary(max_size=3)
    | st.text("ab\0", max_size=18).map(str.encode)
    | st.text("ab\0", max_size=9).map(lambda text: b"-" * (7 * REST_LEVEL - 4) + text.encode())
)
floats = st.floats(width=64) | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1.0])
COLUMNS: dict[str, tuple[Any, Any]] = {
    "binary": (pa.binary(), short_bytes),
    "large_binary": (pa.large_binary(), short_bytes),
    "fixed_binary": (pa.binary(9), st.text("ab\0", min_size=9, max_size=9).map(str.encode)),
    "string": (pa.string(), st.text(max_size=10)),
    "large_string": (pa.large_string(), st.text("aé\0", max_size=9)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1) | st.integers(0, 3)),
    "float64": (pa.float64(), floats),
    "float32": (pa.float32(), st.floats(width=32)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "decimal": (pa.decimal128(30, 2), st.integers(-(10**27), 10**27).map(lambda n: decimal.Decimal(n) / 100)),
    "null": (pa.null(), st.none()),
}


def compare(left: Any, right: Any) -> int:
    """Compare two values as the order promises: None, then values, NaN last."""

    def rank(value: Any) -> int:
        return 0 if value is None else 2 if isinstance(value, float) and math.isnan(value) else 1

    if rank(left) != rank(right):
        return -1 if rank(left) < rank(right) else 1
    if rank(left) != 1:
        return 0
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    return (left > right) - (left < right)


def compare_rows(descending: tuple[bool, ...]) -> Callable[[Any, Any], int]:
    def of_rows(left: tuple[Any, ...], right: tuple[Any, ...]) -> int:
        for one, other, down in zip(left, right, descending, strict=False):
            if found := compare(one, other):
                return -found if down else found
        return 0

    return of_rows


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.RecordBatch, tuple[Order, ...]]:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True))
    rows = draw(st.integers(0, 30))
    arrays = []
    for name in names:
        kind, values = COLUMNS[name]
        found = draw(st.lists(values | st.none(), min_size=rows, max_size=rows))
        if draw(st.booleans()) and kind != pa.null():
            found = [draw(values) if value is None else value for value in found]
        arrays.append(pa.array(found, kind))
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    start = draw(st.integers(0, rows))
    order = tuple(Order(name, draw(st.booleans())) for name in names)
    return batch.slice(start), order


def as_rows(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


@settings(max_examples=settings.default.max_examples * 4)
@given(tables())
def test_rows_sort_as_python_sorts_them_and_ties_keep_their_place(
    table: tuple[pa.RecordBatch, tuple[Order, ...]],
) -> None:
    batch, order = table
    rows = as_rows(batch)
    key = functools.cmp_to_key(compare_rows(tuple(part.descending for part in order)))
    expected = sorted(range(len(rows)), key=lambda row: key(rows[row]))
    assert sort_permutation(batch, order).tolist() == expected


@pytest.mark.parametrize("descending", [False, True])
def test_many_rows_sort_as_python_sorts_them(descending: bool) -> None:
    rng = np.random.default_rng(7)
    # 64 significant bits and many rows: the packed word has to drop bits, and some rows differ only in these
    numbers = rng.integers(-(2**63), 2**63 - 1, 20_000)
    numbers[10_000:] = numbers[:10_000] + rng.integers(-2, 3, 10_000)
    lines = [b"http://example.com/%d" % number for number in rng.integers(0, 5_000, 20_000)]
    for values in (numbers, pa.array(lines)):
        batch = pa.record_batch([values], names=["key"])
        listed = batch.column(0).to_pylist()
        expected = sorted(range(len(listed)), key=listed.__getitem__, reverse=descending)
        assert sort_permutation(batch, [Order("key", descending)]).tolist() == expected


@settings(max_examples=settings.default.max_examples * 4)
@given(tables(), st.data())
def test_search_finds_where_a_row_belongs(
    table: tuple[pa.RecordBatch, tuple[Order, ...]], data: st.DataObject
) -> None:
    batch, order = table
    if batch.num_rows < 2:
        return
    cut = data.draw(st.integers(1, batch.num_rows - 1))
    first = batch.slice(0, cut).take(pa.array(sort_permutation(batch.slice(0, cut), order)))
    other = batch.slice(cut)
    keys, bounds = SortedKeys(first, order), SortedKeys(other, order)
    compared = compare_rows(tuple(part.descending for part in order))
    rows = as_rows(first)
    for at, bound in enumerate(as_rows(other)):
        assert keys.search(bounds, at) == sum(compared(row, bound) < 0 for row in rows)
        assert keys.search(bounds, at, right=True) == sum(compared(row, bound) <= 0 for row in rows)
        assert keys.is_less(0, bounds, at) == (compared(rows[0], bound) < 0)


@settings(max_examples=settings.default.max_examples * 4)
@given(tables())
def test_groups_begin_where_python_sees_another_key(table: tuple[pa.RecordBatch, tuple[Order, ...]]) -> None:
    batch, order = table
    batch = batch.take(pa.array(sort_permutation(batch, order)))
    rows = as_rows(batch)
    compared = compare_rows((False,) * len(order))
    expected = [row for row in range(len(rows)) if row == 0 or compared(rows[row - 1], rows[row]) != 0]
    assert group_boundaries(batch, [part.column for part in order]).tolist() == expected


@settings(max_examples=settings.default.max_examples * 4)
@given(tables(), st.integers(1, 7))
def test_ranges_keep_order_and_never_part_equal_keys(
    table: tuple[pa.RecordBatch, tuple[Order, ...]], partitions: int
) -> None:
    batch, order = table
    cuts = range_cuts(batch, order, partitions)
    assert cuts.num_rows <= partitions - 1 or partitions == 1
    partitioner = pickle.loads(pickle.dumps(RangePartitioner(order, cuts)))
    found = partitioner(batch, partitions)
    compared = compare_rows(tuple(part.descending for part in order))
    cut_rows = as_rows(cuts)
    expected = [sum(compared(cut, row) <= 0 for cut in cut_rows) for row in as_rows(batch)]
    assert found.tolist() == expected
    in_order = batch.take(pa.array(sort_permutation(batch, order)))
    assert partitioner(in_order, partitions).tolist() == sorted(expected)
    edges = partitioner.split_ordered(batch, sort_permutation(batch, order), partitions)
    assert edges == [sum(place < partition for place in expected) for partition in range(partitions + 1)]


def test_range_cuts_make_even_partitions_of_distinct_keys() -> None:
    batch = pa.record_batch([np.random.default_rng(1).permutation(10_000)], names=["key"])
    cuts = range_cuts(batch, [Order("key")], 8)
    counts = np.bincount(RangePartitioner((Order("key"),), cuts)(batch, 8), minlength=8)
    assert counts.tolist() == [1250] * 8


def test_a_key_that_fills_many_ranges_gets_one_cut() -> None:
    batch = pa.record_batch([pa.array([b"hot"] * 90 + [b"a"] * 5 + [b"z"] * 5)], names=["key"])
    assert range_cuts(batch, [Order("key")], 10).column(0).to_pylist() == [b"hot"]


def test_more_cuts_than_partitions_are_refused() -> None:
    cuts = pa.record_batch([pa.array([1, 2, 3])], names=["key"])
    with pytest.raises(BadJob, match="3 cuts make 4 ranges, but the stage has 2 partitions"):
        RangePartitioner((Order("key"),), cuts)(cuts, 2)


@settings(max_examples=settings.default.max_examples * 4)
@given(tables(), st.integers(1, 9))
def test_equal_keys_have_one_hash_partition_wherever_they_stand(
    table: tuple[pa.RecordBatch, tuple[Order, ...]], partitions: int
) -> None:
    batch, order = table
    partitioner = HashPartitioner(tuple(part.column for part in order))
    found = partitioner(batch, partitions).tolist()
    assert all(0 <= part < partitions for part in found)
    alone = [int(partitioner(batch.slice(row, 1), partitions)[0]) for row in range(batch.num_rows)]
    assert found == alone
    compared = compare_rows((False,) * len(order))
    rows = as_rows(batch)
    for one, other in itertools.combinations(range(len(rows)), 2):
        if compared(rows[one], rows[other]) == 0:
            assert found[one] == found[other]


def test_the_hash_of_a_key_never_changes() -> None:
    """A result's part files keep their content from version to version."""
    batch = pa.record_batch([pa.array([b"", b"a", b"abcdefg", b"abcdefgh", b"x" * 30])], names=["key"])
    assert HashPartitioner(("key",))(batch, 1000).tolist() == [511, 448, 414, 988, 879]


def test_hash_partitions_are_even() -> None:
    for keys in (pa.array([b"key-%d" % n for n in range(20_000)]), pa.array(range(20_000))):
        counts = np.bincount(
            HashPartitioner(("key",))(pa.record_batch([keys], names=["key"]), 16), minlength=16
        )
        assert counts.min() > 1100
        assert counts.max() < 1400  # 1250 expected, standard deviation 34


def test_a_missing_column_and_a_type_without_order_are_named() -> None:
    batch = pa.record_batch([pa.array([[1]])], names=["list"])
    with pytest.raises(BadJob, match="no column 'key' to sort or group by; the columns are list"):
        sort_permutation(batch.slice(0, 1), [Order("key")])
    with pytest.raises(BadKey, match=r"a column of type list<.*> has no order"):
        HashPartitioner(("list",))(batch, 2)


def test_time_zones_and_units_sort_by_instant() -> None:
    moments = [datetime.datetime(2024, 1, day, tzinfo=datetime.UTC) for day in (3, 1, 2)]
    for unit in ("s", "ms", "us", "ns"):
        batch = pa.record_batch([pa.array(moments, pa.timestamp(unit, "UTC"))], names=["at"])
        assert sort_permutation(batch, [Order("at")]).tolist() == [1, 2, 0]
