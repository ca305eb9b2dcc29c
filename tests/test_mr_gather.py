"""Columns put together in memory of numpy are those that Arrow puts together."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapreduce import gather
from mapreduce.gather import concat

BLOBS = st.binary(max_size=12)
TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.date32(), st.dates(datetime.date(1900, 1, 1))),
    (pa.decimal128(10, 2), st.integers(-(10**6), 10**6).map(lambda cents: decimal.Decimal(cents) / 100)),
    (pa.binary(), BLOBS),
    (pa.string(), st.text(max_size=12)),
    (pa.large_binary(), BLOBS),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.list_(pa.int32()), st.lists(st.integers(0, 9), max_size=4)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b"])),
]


@st.composite
def batches(draw: st.DrawFn) -> list[pa.RecordBatch]:
    kind, values = draw(st.sampled_from(TYPES))
    nulls = draw(st.booleans())
    each = st.lists(st.none() | values if nulls else values, max_size=9)
    found = []
    for items in draw(st.lists(each, min_size=1, max_size=5)):
        start, stop = sorted((draw(st.integers(0, len(items))), draw(st.integers(0, len(items)))))
        found.append(pa.record_batch([pa.array(items, kind)], names=["x"]).slice(start, stop - start))
    return found


@given(given=batches())
def test_batches_put_together_are_those_of_arrow_also_where_they_are_slices(
    given: list[pa.RecordBatch],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "_HUGE_PAGE_BYTES", 0)  # as if all were large
        found = concat(given)
    found.validate(full=True)
    assert found.equals(
        pa.Table.from_batches(given).combine_chunks().to_batches()[0] if found.num_rows else found
    )
    assert found.schema == given[0].schema
    assert found.num_rows == sum(batch.num_rows for batch in given)


def test_buffers_that_go_on_behind_their_last_element_are_taken_as_arrow_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gather, "_HUGE_PAGE_BYTES", 0)
    words = np.array([0, 2, 5], np.int32).tobytes() + b"odd"
    numbers = pa.Array.from_buffers(pa.int32(), 3, [None, pa.py_buffer(words)])
    texts = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(words), pa.py_buffer(b"helloxyz")])
    for column, wanted in ((numbers, [0, 2, 5, 2, 5]), (texts, ["he", "llo", "llo"])):
        whole = pa.record_batch([column], names=["x"])
        assert concat([whole, whole.slice(1)]).column(0).to_pylist() == wanted


def test_large_columns_keep_every_value() -> None:
    numbers = np.random.default_rng(1).integers(0, 2**40, 900_000)
    texts = pa.array(np.char.mod("%d", numbers % 10 ** (numbers % 9)))
    whole = pa.record_batch([pa.array(numbers), texts], names=["n", "t"])
    parts = [whole.slice(start, 250_000) for start in range(0, 900_000, 250_000)]
    assert concat(parts).equals(whole)
    assert concat(parts[:1]) is parts[0]
