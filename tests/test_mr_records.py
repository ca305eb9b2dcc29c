"""Keys and values as bytes, against Python's own equality, order and dicts."""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import itertools
import math
import operator
import pickle
import tracemalloc
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapreduce import Dataset, Stage, each, folding, job, run, total
from mapreduce.errors import BadJob, BadKey, BadValue, FunctionFailed
from mapreduce.guard import WrongResult
from mapreduce.options import Options
from mapreduce.partition import FieldPartitioner, FunctionPartitioner
from mapreduce.records import (
    RecordBuffer,
    decode_key,
    encode_key,
    iterate_groups,
    prefix_bytes,
    to_batch,
    to_pairs,
)

UTC = datetime.UTC
ZONES = st.sampled_from([UTC, datetime.timezone(datetime.timedelta(hours=5, minutes=30))])
numbers = (
    st.booleans()
    | st.integers()
    | st.integers(-3, 3)
    | st.integers(2**53 - 3, 2**53 + 3)
    | st.integers(-(2**1100), 2**1100)
    | st.floats()
    | st.integers(-(2**60), 2**60).map(float)
    | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**53, 2.0**1023, -(2.0**1023), 5e-324])
)
texts = st.text(st.characters(exclude_categories=())) | st.text("a\0\ud800", max_size=4)
plain = (
    st.none()
    | numbers
    | st.binary(max_size=6)
    | texts
    | st.dates()
    | st.datetimes()
    | st.datetimes(
        min_value=datetime.datetime(2, 1, 1), max_value=datetime.datetime(9998, 1, 1), timezones=ZONES
    )
)
keys = st.recursive(plain, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)


def rank(key: object) -> int:
    """Return the place of a key's type in the order."""
    if key is None:
        return 0
    if isinstance(key, bool | int | float):
        return 1
    if isinstance(key, datetime.datetime):
        return 6 if key.tzinfo is None else 7
    return {bytes: 3, str: 4, datetime.date: 5, tuple: 8}[type(key)]


def compare(left: Any, right: Any) -> int:
    """The documented order, by Python's own comparisons."""
    if rank(left) != rank(right):
        return -1 if rank(left) < rank(right) else 1
    if left is None:
        return 0
    if isinstance(left, tuple):
        for one, other in zip(left, right, strict=False):
            if found := compare(one, other):
                return found
        return (len(left) > len(right)) - (len(left) < len(right))
    if rank(left) == 1 and (left != left or right != right):
        return (left != left) - (right != right)
    return (left > right) - (left < right)


def same(left: Any, right: Any) -> bool:
    """Equal in value and in type, all the way down; NaN is NaN and -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, datetime.datetime):
        return bool(left == right) and left.tzinfo == right.tzinfo
    return bool(left == right)


@settings(max_examples=settings.default.max_examples * 4)
@given(keys, keys)
def test_bytes_compare_as_keys_do(left: Any, right: Any) -> None:
    one, other = encode_key(left), encode_key(right)
    assert (one > other) - (one < other) == compare(left, right)


@settings(max_examples=settings.default.max_examples * 4)
@given(numbers, numbers)
def test_numbers_of_all_types_are_one_line(left: Any, right: Any) -> None:
    one, other = encode_key(left), encode_key(right)
    assert (one > other) - (one < other) == compare(left, right)


@settings(max_examples=settings.default.max_examples * 4)
@given(st.lists(keys, max_size=8))
def test_keys_come_back_with_the_types_they_had(given_keys: list[Any]) -> None:
    back = to_pairs(to_batch([(key, None) for key in given_keys]))
    assert all(same(key, found) for key, (found, _) in zip(given_keys, back, strict=True))


def test_the_order_over_types_is_the_documented_one() -> None:
    day, moment = datetime.date(1, 1, 1), datetime.datetime(1, 1, 1)
    line = [
        None, -math.inf, -(10**400), -1, -5e-324, 0, False + 0.5, True, 2**53, 2**53 + 1, 1e300, 10**400, math.inf, math.nan,
        b"", b"\0", b"z", "", "a", "a\0", "b", day, moment, moment.replace(tzinfo=UTC),
        (), (None,), (1,), (1, "a"), ("a",), ((),),
    ]  # fmt: skip
    encoded = [encode_key(key) for key in line]
    assert encoded == sorted(set(encoded))


class Colour(enum.IntEnum):
    RED = 1


class Point(collections.namedtuple("Point", "x y")):
    pass


@pytest.mark.parametrize(
    ("key", "equal"),
    [
        (True, 1), (1.0, 1), (-0.0, 0), (Colour.RED, 1), (np.int64(7), 7), (np.float64(0.5), 0.5), (np.float32(0.5), 0.5),
        (np.str_("a"), "a"), (Point(1, 2), (1, 2)), ((True, "a"), (1.0, "a")), (2.0**70, 2**70),
        (
            datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
            datetime.datetime(2024, 1, 1, 10, tzinfo=UTC),
        ),
    ],
)  # fmt: skip
def test_keys_that_are_equal_in_python_are_one_key_and_keep_their_type(key: Any, equal: Any) -> None:
    assert key == equal
    assert encode_key(key) == encode_key(equal)
    ((found, value),) = to_pairs(to_batch([(key, "v")]))
    assert (type(found), found, value) == (type(key), key, "v")


@pytest.mark.parametrize("key", [[1], {"a": 1}, {1}, 1j, Fraction(1, 3), object, ("a", [1])])
def test_a_key_without_a_place_is_named_with_its_type_and_what_is_supported(key: Any) -> None:
    culprit = key[1] if isinstance(key, tuple) else key
    with pytest.raises(BadKey) as caught:
        encode_key(key)
    message = str(caught.value)
    assert type(culprit).__name__ in message
    assert "keys are made of None, bool, int, float" in message
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), BadKey)


UNIFORM = st.sampled_from(
    [
        st.integers(),
        st.integers(-5, 5),
        st.floats(),
        texts,
        st.binary(),
        st.none(),
        st.booleans(),
        st.lists(plain),
    ]
)


@settings(max_examples=settings.default.max_examples * 4)
@given(UNIFORM.flatmap(lambda kind: st.lists(kind, max_size=8)) | st.lists(plain, max_size=8), st.data())
def test_values_come_back_as_they_were(values: list[Any], data: st.DataObject) -> None:
    batch = to_batch([(number, value) for number, value in enumerate(values)])
    start = data.draw(st.integers(0, len(values)))
    back = [value for _, value in to_pairs(batch.slice(start))]
    assert [(type(value), repr(value)) for value in back] == [
        (type(value), repr(value)) for value in values[start:]
    ]


@settings(max_examples=settings.default.max_examples * 4)
@given(st.lists(keys, max_size=4).map(tuple), st.integers(1, 3))
def test_the_bytes_of_a_prefix_are_those_of_its_fields(key: tuple[Any, ...], fields: int) -> None:
    end = b"\0"
    whole = encode_key(key) if len(key) <= fields else encode_key(key[:fields])
    assert prefix_bytes(encode_key(key), fields) + end == whole


@settings(max_examples=settings.default.max_examples * 4)
@given(keys)
def test_decoding_alone_gives_an_equal_key(key: Any) -> None:
    assert compare(decode_key(encode_key(key)), key) == 0


# --- the buffer ---


def sums(key: Any, values: list[Any]) -> Iterator[tuple[Any, Any]]:
    yield key, sum(values)


def collect(pairs: Iterable[tuple[Any, Any]], memory_bytes: int, combine: Any = sums) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    buffer = RecordBuffer(combine, batches.append, memory_bytes)
    listed = list(pairs)
    middle = len(listed) // 2
    buffer.add(listed[:middle])
    buffer.add(iter(listed[middle:]))
    buffer.flush()
    return batches


@given(
    st.lists(st.tuples(st.sampled_from([1, 1.0, True, "a", b"a", None, (1, "x"), (1.0, "x")]), st.integers()))
)
def test_combining_is_what_a_dict_does(pairs: list[tuple[Any, int]]) -> None:
    expected: dict[Any, int] = {}
    for key, value in pairs:
        expected[key] = expected.get(key, 0) + value
    found = [pair for batch in collect(pairs, 1 << 20) for pair in to_pairs(batch)]
    assert [(type(key), key, value) for key, value in found] == [(type(k), k, v) for k, v in expected.items()]


@pytest.mark.parametrize("combine", [None, sums, total])
def test_no_pair_is_lost_or_moved_when_blocks_end_early(combine: Any) -> None:
    pairs = [(number % 5000 if combine else number, number) for number in range(150_000)]
    batches = collect(pairs, 1 << 20, combine)
    assert len(batches) > 2
    found = [pair for batch in batches for pair in to_pairs(batch)]
    if combine is None:
        assert found == pairs
    else:
        totals: collections.Counter[int] = collections.Counter()
        for key, value in found:
            totals[key] += value
        assert totals == {key: sum(range(key, 150_000, 5000)) for key in range(5000)}


@pytest.mark.parametrize("combine", [sums, total])
def test_the_blocks_of_a_combine_do_not_depend_on_memory(combine: Any) -> None:
    pairs = [(str(number % 60_000).ljust(1000), float(number) / 7) for number in range(80_000)]
    small, large = (collect(pairs, memory, combine) for memory in (64 << 20, 1 << 30))
    assert sum(batch.num_rows for batch in small) > 60_000  # a block has ended between two pairs of one key
    assert [batch.to_pydict() for batch in small] == [batch.to_pydict() for batch in large]


@given(st.lists(st.tuples(st.sampled_from([1, 1.0, "a", None, (1, "x")]), st.text("ab", max_size=3))))
def test_a_combine_that_says_that_it_folds_gives_what_it_gives_otherwise(
    pairs: list[tuple[Any, str]],
) -> None:
    def joined(key: Any, values: list[str]) -> Iterator[tuple[Any, str]]:
        yield key, "".join(values)

    plain, folded = (
        collect(pairs, 1 << 20, how)
        for how in (joined, folding(operator.add)(lambda key, values: joined(key, values)))
    )
    assert [batch.to_pydict() for batch in plain] == [batch.to_pydict() for batch in folded]


@pytest.mark.parametrize("combine", [sums, total])
def test_a_full_block_whose_keys_combine_to_little_is_not_emitted(combine: Any) -> None:
    (batch,) = collect(((number % 1000, number) for number in range(100_000)), 1 << 20, combine)
    assert sorted(to_pairs(batch)) == [(key, sum(range(key, 100_000, 1000))) for key in range(1000)]


def test_a_combine_may_give_other_keys_and_run_on_what_it_made() -> None:
    def lower(key: str, values: list[int]) -> Iterator[tuple[str, int]]:
        if sum(values):  # and none at all
            yield key.lower(), sum(values)

    pairs = [("aAbBcC"[number % 6] * 3, number % 3) for number in range(150_000)]
    found: collections.Counter[str] = collections.Counter()
    for batch in collect(pairs, 1 << 20, lower):
        for key, value in to_pairs(batch):
            found[key] += value
    wanted: collections.Counter[str] = collections.Counter()
    for key, value in pairs:
        wanted[key.lower()] += value
    assert found == +wanted


@pytest.mark.parametrize("combine", [None, sums, total])
def test_an_unhashable_key_is_named(combine: Any) -> None:
    with pytest.raises(BadKey, match=r"\['a'\]"):
        collect([(["a"], 1)], 1 << 20, combine)


@pytest.mark.parametrize("combine", [None, sums, total])
def test_an_error_of_the_function_stays_what_it_is(combine: Any) -> None:
    def failing() -> Iterator[tuple[Any, Any]]:
        yield "a", 1
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        RecordBuffer(combine, lambda batch: None, 1 << 20).add(failing())


@pytest.mark.parametrize("combine", [None, sums, total])
@pytest.mark.parametrize(
    "wrong", ["ab", b"ab", {1: 2, 3: 4}, {1, 2}, range(2), ("a",), ("a", 1, 2), ["a"], None, 7]
)
def test_only_a_tuple_or_list_of_two_is_a_pair(combine: Any, wrong: Any) -> None:
    right = [("a", 1), ["b", 2], Point("c", 3)]
    found = [pair for batch in collect(right, 1 << 20, combine) for pair in to_pairs(batch)]
    assert found == [("a", 1), ("b", 2), ("c", 3)]
    with pytest.raises(WrongResult, match=rf"\(key, value\) pairs; here it is {type(wrong).__name__}"):
        collect([*right, wrong], 1 << 20, combine)


def longest(key: Any, values: list[Any]) -> Iterator[tuple[Any, Any]]:
    yield key, max(values, key=repr)


@folding(lambda one, other: max(one, other, key=repr))
def folding_longest(key: Any, values: list[Any]) -> Iterator[tuple[Any, Any]]:
    yield from longest(key, values)


@pytest.mark.parametrize("combine", [None, longest, folding_longest])
def test_each_large_value_is_counted_before_the_next_is_made(combine: Any) -> None:
    def pairs() -> Iterator[tuple[int, Any]]:
        for number in range(3000):
            yield number, 1
        for number in range(40):
            yield number, f"{number}" * 500_000
            yield number, [("x" * 200_000, number) for _ in range(5)]

    rows = 0

    def emit(batch: pa.RecordBatch) -> None:
        nonlocal rows
        rows += batch.num_rows

    collect([("a", ["b"])], 1 << 20, combine)  # imports what the first batch does
    buffer = RecordBuffer(combine, emit, 4 << 20)
    tracemalloc.start()
    try:
        buffer.add(pairs())
        buffer.flush()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows >= 3000
    assert peak < 16 << 20  # of 80 MB


def lines_alone(offset: int, line: str) -> Iterator[Any]:
    yield (line, 1) if offset < 8 else line


@pytest.mark.parametrize("parts", [{}, {"reduce": each}, {"combine": sums, "reduce": sums}])
def test_a_record_whose_map_yields_no_pair_is_named(tmp_path: Path, parts: dict[str, Any]) -> None:
    @job
    def unpaired(text: Dataset) -> Dataset:
        return Stage(map=lines_alone, **parts)(text)

    given = tmp_path / "in.txt"
    given.write_text("".join(f"l{number}\n" for number in range(9)))
    wanted = r"^job 'unpaired', stage 'lines_alone', input .*in.txt, record 9: .* here it is str: 'l3'; the record is 'l3'$"
    with pytest.raises(FunctionFailed, match=wanted):
        run(unpaired, str(given), output=tmp_path / "out", options=Options(workers=0))


@pytest.mark.parametrize("combine", [None, sums, total])
def test_a_value_larger_than_half_of_memory_is_named_by_its_key(combine: Any) -> None:
    with pytest.raises(BadValue, match=r"the value of key 'big' is a str of about 9 MB; .* here 8 MB"):
        collect([("a", 1), ("big", "x" * 9_000_000)], 4 << 20, combine)


def large(offset: int, line: str) -> Iterator[tuple[int, str]]:
    yield int(line) % 3, line[-1] * 4_000_000


def test_values_of_megabytes_go_through_a_worker_of_little_memory(tmp_path: Path) -> None:
    @job
    def letters(text: Dataset) -> Dataset:
        return Stage(map=large, reduce=each, partitions=2)(text)

    given = tmp_path / "in.txt"
    given.write_text("".join(f"{number}\n" for number in range(40)))
    options = Options(workers=1, memory_bytes=64 << 20)
    run(letters, str(given), output=tmp_path / "out", options=options)
    sizes = collections.Counter(
        line[:3] for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()
    )
    assert sizes == collections.Counter(f"{number % 3}\t{number % 10}" for number in range(40))


# --- groups ---


def cut(batch: pa.RecordBatch, edges: Iterable[int]) -> Iterator[pa.RecordBatch]:
    places = [0, *sorted(edges), batch.num_rows]
    for start, stop in itertools.pairwise(places):
        yield batch.slice(start, stop - start)


@settings(max_examples=settings.default.max_examples * 4)
@given(
    st.lists(st.integers(0, 6), max_size=30).map(sorted),
    st.lists(st.integers(0, 30), max_size=6),
    st.lists(st.integers(0, 4), min_size=31, max_size=31),
)
def test_groups_are_those_of_itertools_however_batches_are_cut_and_much_is_read(
    sorted_keys: list[int], edges: list[int], read: list[int]
) -> None:
    pairs = [(key, (key, place)) for place, key in enumerate(sorted_keys)]
    batches = cut(to_batch(pairs), [min(edge, len(pairs)) for edge in edges])
    found = [
        (key, list(itertools.islice(values, read[at])))
        for at, (key, values) in enumerate(iterate_groups(batches))
    ]
    expected = [
        (key, [value for _, value in group][: read[at]])
        for at, (key, group) in enumerate(itertools.groupby(pairs, key=lambda pair: pair[0]))
    ]
    assert found == expected


def test_unread_values_are_never_unpickled() -> None:
    batch = to_batch([("a", [1]), ("b", [2])])
    broken = pa.array([b"\x80 no pickle", batch.column("value")[1].as_py()], pa.binary())
    batch = batch.set_column(1, "value", broken)
    assert [(key, [] if key == "a" else list(values)) for key, values in iterate_groups([batch])] == [
        ("a", []),
        ("b", [[2]]),
    ]


def test_group_fields_sort_the_values_of_a_group_by_the_rest_of_the_key() -> None:
    wanted = [(("ann", 1), "x"), (("ann", 2), "y"), (("bob", 0), "z")]
    batch = to_batch(wanted)
    assert [(key, list(values)) for key, values in iterate_groups(cut(batch, [1]), 1)] == [
        ("ann", ["x", "y"]),
        ("bob", ["z"]),
    ]
    assert [key for key, _ in iterate_groups([batch], 2)] == [("ann", 1), ("ann", 2), ("bob", 0)]
    with pytest.raises(BadKey, match="needs tuple keys, got str 'a'"):
        list(iterate_groups([to_batch([("a", 1)])], 1))


# --- partitioners of record stages ---


def test_fields_keep_equal_prefixes_together() -> None:
    batch = to_batch([((name, number), None) for name in "abcdefgh" for number in range(5)])
    found = FieldPartitioner(1)(batch, 7).reshape(8, 5)
    assert (found == found[:, :1]).all()
    assert len(set(found[:, 0].tolist())) > 2


def test_a_function_sees_each_key_and_its_answer_is_checked() -> None:
    def by_length(key: str, partitions: int) -> int:
        return len(key) % partitions

    batch = to_batch([("a", 1), ("bb", 2), ("a", 3), ("ccc", 4)])
    assert FunctionPartitioner(by_length)(batch, 3).tolist() == [1, 2, 1, 0]
    for answer in (3, -1, "x", 1.0):
        with pytest.raises(BadJob, match=r"returned .* for key 'a': it must return an integer from 0 to 2"):
            FunctionPartitioner(lambda key, partitions, answer=answer: answer)(batch, 3)


def test_sorting_encoded_keys_sorts_a_mixed_column() -> None:
    mixed = ["b", 3, None, (1, 2), 2.5, b"x", True, (1,)]
    in_order = sorted(mixed, key=functools.cmp_to_key(compare))
    assert [
        key for key, _ in to_pairs(to_batch([(key, 0) for key in sorted(mixed, key=encode_key)]))
    ] == in_order
