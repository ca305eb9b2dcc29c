"""Map side, runs and merge together, against one sort of all rows in memory."""

from __future__ import annotations

import math
import os
import pickle
import sys
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapreduce.aggregate import Aggregate, reduce_sorted
from mapreduce.errors import BadJob, Damaged
from mapreduce.merge import INPUT_COLUMN, merge
from mapreduce.order import Order, sort_permutation
from mapreduce.partition import HashPartitioner, RangePartitioner, range_cuts
from mapreduce.records import RecordBuffer, iterate_groups, iterate_tagged_groups
from mapreduce.runs import Run, RunReader, give_back, write_run
from mapreduce.shuffle import MapBuffer, Shuffle, record_shuffle

SCHEMA = pa.schema(
    [("key", pa.binary()), ("second", pa.int64()), ("split", pa.int64()), ("position", pa.int64())]
)


def rows_of(split: int, keys: list[bytes], seconds: list[int]) -> pa.RecordBatch:
    splits, positions = [split] * len(keys), list(range(len(keys)))
    columns = [pa.array(keys, pa.binary()), *(pa.array(c, pa.int64()) for c in (seconds, splits, positions))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def spill_all(
    shuffle: Shuffle, folder: str, splits: list[pa.RecordBatch], memory_bytes: int, pieces: int = 3
) -> list[Run]:
    runs = []
    for split, batch in enumerate(splits):
        buffer = MapBuffer(shuffle, folder, (0, split), memory_bytes)
        step = max(batch.num_rows // pieces, 1)
        for start in range(0, batch.num_rows, step):
            buffer.add(batch.slice(start, step))
        runs += buffer.finish()
    return runs


def merged(runs: list[Run], shuffle: Shuffle, memory_bytes: int) -> list[list[dict[str, Any]]]:
    return [
        [row for batch in merge(runs, part, shuffle, memory_bytes) for row in batch.to_pylist()]
        for part in range(shuffle.partitions)
    ]


@given(
    seed=st.integers(0, 2**32 - 1),
    splits=st.integers(1, 6),
    rows=st.integers(0, 4000),
    distinct=st.sampled_from([1, 2, 50, 10**6]),
    partitions=st.integers(1, 4),
    memory_bytes=st.sampled_from([1 << 14, 1 << 17, 1 << 21, 1 << 26]),
    descending=st.booleans(),
    by_range=st.booleans(),
)
def test_partitions_hold_what_one_sort_of_all_rows_gives(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    splits: int,
    rows: int,
    distinct: int,
    partitions: int,
    memory_bytes: int,
    descending: bool,
    by_range: bool,
) -> None:
    folder = str(tmp_path_factory.mktemp("runs"))
    rng = np.random.default_rng(seed)
    batches = []
    for split in range(splits):
        numbers = rng.integers(0, distinct, rows)
        keys = [b"key-" * int(number % 5) + b"%d" % number for number in numbers]
        batches.append(rows_of(split, keys, rng.integers(0, 3, rows).tolist()))
    order = (Order("key", descending), Order("second", not descending))
    cuts = range_cuts(batches[0], order[:1], partitions)
    partitioner = RangePartitioner(order[:1], cuts) if by_range else HashPartitioner(("key",))
    shuffle = Shuffle(
        schema=SCHEMA, keys=("key",), order=order, partitions=partitions, partitioner=partitioner
    )
    runs = pickle.loads(pickle.dumps(spill_all(shuffle, folder, batches, memory_bytes)))
    found = merged(runs[::-1], shuffle, memory_bytes)

    everything = pa.concat_batches(batches)
    expected: list[list[dict[str, Any]]] = [[] for _ in range(partitions)]
    parts = partitioner(everything, partitions).tolist()
    listed = everything.to_pylist()
    sign = -1 if descending else 1
    by_second = sorted(range(len(listed)), key=lambda row: -sign * listed[row]["second"])
    for row in sorted(by_second, key=lambda row: listed[row]["key"], reverse=descending):
        expected[parts[row]].append(listed[row])
    assert found == expected
    assert sum(sum(run.rows) for run in runs) == everything.num_rows
    assert sorted(os.listdir(folder)) == sorted(os.path.basename(run.path) for run in runs)


def test_one_hot_key_streams_in_run_order_within_the_window(tmp_path: Path) -> None:
    shuffle = Shuffle(
        schema=SCHEMA,
        keys=("key",),
        order=(Order("key"),),
        partitions=1,
        partitioner=HashPartitioner(("key",)),
    )
    rows = 60_000
    splits = [rows_of(split, [b"hot"] * rows, [0] * rows) for split in range(4)]
    memory_bytes = 2 << 20
    runs = spill_all(shuffle, str(tmp_path), splits, memory_bytes)
    assert len(runs) >= 8
    seen = 0
    for batch in merge(runs, 0, shuffle, memory_bytes):
        assert batch.nbytes <= memory_bytes // 2
        places = batch.column("split").to_numpy() * rows + batch.column("position").to_numpy()
        assert (places == np.arange(seen, seen + batch.num_rows)).all()
        seen += batch.num_rows
    assert seen == 4 * rows


@pytest.mark.parametrize("width", [100, 8])
def test_memory_stays_below_the_limit_while_spilling_and_merging(tmp_path: Path, width: int) -> None:
    rng = np.random.default_rng(3)
    memory_bytes = 8 << 20
    shuffle = record_like(2)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    arrow = 0
    warm = spill_all(shuffle, str(tmp_path), [random_lines(rng, 100, width)], memory_bytes)  # libraries load
    assert (
        sum(batch.num_rows for part in range(2) for batch in merge(warm, part, shuffle, memory_bytes)) == 100
    )
    runs: list[Run] = []
    tracemalloc.start()  # numpy reports its arrays to it
    for split in range(4):
        buffer = MapBuffer(shuffle, str(tmp_path), (0, split), memory_bytes)
        for _ in range(40):
            buffer.add(random_lines(rng, 250_000 // width, width))
            arrow = max(arrow, pool.bytes_allocated() - before)
        runs += buffer.finish()
    assert len(runs) > 8
    rows = 0
    for part in range(2):
        for batch in merge(runs, part, shuffle, memory_bytes):
            rows += batch.num_rows
            arrow = max(arrow, pool.bytes_allocated() - before)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 4 * 40 * (250_000 // width)
    assert arrow + most <= memory_bytes * 5 // 4


def record_like(partitions: int) -> Shuffle:
    return Shuffle(
        schema=pa.schema([("line", pa.binary())]),
        keys=("line",),
        order=(Order("line"),),
        partitions=partitions,
        partitioner=HashPartitioner(("line",)),
    )


def random_lines(rng: np.random.Generator, rows: int, width: int) -> pa.RecordBatch:
    data = rng.integers(32, 127, (rows, width), dtype=np.uint8)
    offsets = (np.arange(rows + 1) * width).astype(np.int32)
    lines = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.record_batch([lines], names=["line"])


def test_very_long_rows_and_empty_rows_pass(tmp_path: Path) -> None:
    lines = [b"", b"x" * 3_000_000, b"a", b"", b"y" * 2_000_000, b"b" * 70_000]
    batch = pa.record_batch([pa.array(lines, pa.binary())], names=["line"])
    shuffle = record_like(1)
    runs = spill_all(shuffle, str(tmp_path), [batch, batch], 1 << 20)
    found = [line for out in merge(runs, 0, shuffle, 1 << 20) for line in out.column(0).to_pylist()]
    assert found == sorted(lines * 2)


# --- aggregation ---

AGGREGATED = pa.schema(
    [
        ("key", pa.int64()),
        ("total", pa.int64()),
        ("low", pa.int32()),
        ("high", pa.string()),
        ("weight", pa.float64()),
    ]
)


def aggregated(*, floats: bool, partitions: int = 2) -> Shuffle:
    parts = [Aggregate("total", "sum"), Aggregate("low", "min"), Aggregate("high", "max")]
    schema = AGGREGATED if floats else AGGREGATED.remove(4)
    return Shuffle(
        schema=schema,
        keys=("key",),
        order=(Order("key"),),
        partitions=partitions,
        partitioner=HashPartitioner(("key",)),
        aggregate=(*parts, Aggregate("weight", "sum")) if floats else tuple(parts),
    )


def numbers_to_aggregate(rng: np.random.Generator, rows: int) -> pa.RecordBatch:
    def some(values: Any, kind: Any) -> pa.Array:
        return pa.array(values, kind, mask=rng.random(rows) < 0.3)

    return pa.RecordBatch.from_arrays(
        [
            pa.array(rng.integers(0, 40, rows)),
            some(rng.integers(-(2**50), 2**50, rows), pa.int64()),
            some(rng.integers(-1000, 1000, rows).astype(np.int32), pa.int32()),
            some(np.array([f"s{n}" for n in rng.integers(0, 999, rows)], object), pa.string()),
            some(rng.normal(size=rows) * 10.0 ** rng.integers(-9, 9, rows), pa.float64()),
        ],
        schema=AGGREGATED,
    )


@pytest.mark.parametrize("memory_bytes", [1 << 16, 1 << 26])
@pytest.mark.parametrize("floats", [False, True])
def test_aggregates_are_those_of_a_dict(tmp_path: Path, memory_bytes: int, floats: bool) -> None:
    rng = np.random.default_rng(11)
    shuffle = aggregated(floats=floats)
    splits = [numbers_to_aggregate(rng, 3000).select(shuffle.schema.names) for _ in range(3)]
    runs = spill_all(shuffle, str(tmp_path), splits, memory_bytes)
    values: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for batch in splits:
        for row in batch.to_pylist():
            key = row.pop("key")
            for name, value in row.items():
                if value is not None:
                    values[key][name].append(value)
    found = {row["key"]: row for part in merged(runs, shuffle, memory_bytes) for row in part}
    assert sorted(found) == sorted(values)
    for key, row in found.items():
        assert row["total"] == sum(values[key]["total"])
        assert row["low"] == min(values[key]["low"])
        assert row["high"] == max(values[key]["high"])
        if floats:
            assert math.isclose(row["weight"], math.fsum(values[key]["weight"]), rel_tol=1e-9)


def test_sums_of_floats_have_the_same_bytes_at_any_memory_limit(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    shuffle = aggregated(floats=True)
    splits = [numbers_to_aggregate(rng, rows) for rows in (200_000, 1000, 150_000)]
    results = []
    for memory_bytes, pieces in ((1 << 14, 40), (1 << 20, 7), (1 << 28, 1)):
        folder = tmp_path / str(memory_bytes)
        folder.mkdir()
        runs = spill_all(shuffle, str(folder), splits, memory_bytes, pieces)
        results.append(
            [[row["weight"].hex() for row in part] for part in merged(runs, shuffle, memory_bytes)]
        )
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_a_sum_of_floats_is_rounded_once_wherever_its_group_was_cut(kind: pa.DataType) -> None:
    values = np.random.default_rng(4).random(48).astype(kind.to_pandas_dtype())
    keys = np.repeat([1, 2, 3], [30, 1, 17])
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values, kind)], names=["k", "x"])
    sums = [0.0, 0.0, 0.0]
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):  # one after the other, in 64 bits
        sums[key - 1] += value
    expected = values.dtype.type(sums).tobytes()
    cuts = [(at,) for at in range(49)] + [(at, at + 1, at + 2) for at in range(47)] + [tuple(range(49))]
    for cut in cuts:
        edges = zip((0, *cut), (*cut, 48), strict=True)
        folded = list(
            reduce_sorted([batch.slice(a, b - a) for a, b in edges], ["k"], [Aggregate("x", "sum")])
        )
        found = pa.Table.from_batches(folded, batch.schema)
        assert found.column("k").to_pylist() == [1, 2, 3]
        assert found.column("x").to_numpy().tobytes() == expected, cut


def test_a_group_of_nulls_sums_to_null(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    shuffle = Shuffle(
        schema=schema, keys=("key",), order=(Order("key"),), partitions=1,
        partitioner=HashPartitioner(("key",)), aggregate=(Aggregate("n", "sum"),),
    )  # fmt: skip
    batch = pa.RecordBatch.from_pydict({"key": [1, 1, 2, 2], "n": [None, None, 3, None]}, schema=schema)
    runs = spill_all(shuffle, str(tmp_path), [batch, batch], 1 << 20)
    assert merged(runs, shuffle, 1 << 20) == [[{"key": 1, "n": None}, {"key": 2, "n": 6}]]


def test_the_few_equal_keys_among_many_are_added_up_too(tmp_path: Path) -> None:
    # so few that a sample of them is taken for distinct, and one map leaves the adding to the sort
    rows = 40_000
    keys = [b"%d" % (key * 7919 % rows) for key in range(rows)] + [b"1", b"2", b"2"]
    schema = pa.schema([("key", pa.binary()), ("n", pa.int64())])
    shuffle = Shuffle(
        schema=schema, keys=("key",), order=(Order("key"),), partitions=2,
        partitioner=HashPartitioner(("key",)), aggregate=(Aggregate("n", "sum"),),
    )  # fmt: skip
    batch = pa.record_batch([pa.array(keys), pa.array(range(1, len(keys) + 1))], schema=schema)
    expected: dict[bytes, int] = {}
    for at, key in enumerate(keys):
        expected[key] = expected.get(key, 0) + at + 1
    runs = spill_all(shuffle, str(tmp_path), [batch], 1 << 26, pieces=1)
    assert sum(sum(run.rows) for run in runs) == len(expected)
    found = [row for part in merged(runs, shuffle, 1 << 26) for row in part]
    assert {row["key"]: row["n"] for row in found} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.int32()])
def test_a_sum_that_leaves_its_type_is_an_error_and_no_wrapped_number(
    tmp_path: Path, kind: pa.DataType
) -> None:
    largest = 2 ** (kind.bit_width - (0 if kind == pa.uint64() else 1)) - 1
    schema = pa.schema([("key", pa.int64()), ("n", kind)])
    shuffle = Shuffle(
        schema=schema, keys=("key",), order=(Order("key"),), partitions=1,
        partitioner=HashPartitioner(("key",)), aggregate=(Aggregate("n", "sum"),),
    )  # fmt: skip

    def total(values: list[int]) -> Any:
        splits = [
            pa.RecordBatch.from_pydict({"key": [1], "n": pa.array([value], kind)}, schema=schema)
            for value in values
        ]
        runs = spill_all(shuffle, str(tmp_path), splits, 1 << 20)
        return merged(runs, shuffle, 1 << 20)[0][0]["n"]

    assert total([largest - 3, 1, 2]) == largest
    with pytest.raises(BadJob, match=rf"the sum of column 'n' reaches {largest + 2}"):
        total([largest - 3, 3, 2])


# --- several inputs ---


def fill(
    shuffle: Shuffle, folder: Path, place: tuple[int, int], pairs: list[tuple[Any, Any]], memory_bytes: int
) -> list[Run]:
    buffer = MapBuffer(shuffle, str(folder), place, memory_bytes)
    records = RecordBuffer(None, buffer.add, memory_bytes)
    records.add(pairs)
    records.flush()
    return buffer.finish()


@pytest.mark.parametrize("memory_bytes", [1 << 14, 1 << 24])
def test_inputs_of_a_join_come_apart_and_the_last_may_be_left_unread(
    tmp_path: Path, memory_bytes: int
) -> None:
    shuffle = record_shuffle(2)
    sizes = (300, 500, 400)
    runs = []
    for source, size in enumerate(sizes):
        for split in range(2):
            pairs = [(number % size, (source, split, number)) for number in range(1500)]
            runs += fill(shuffle, tmp_path, (source, split), pairs, memory_bytes)

    def wanted(source: int, key: int) -> list[Any]:
        return [(source, split, n) for split in range(2) for n in range(1500) if n % sizes[source] == key]

    seen = []
    for part in range(2):
        groups = iterate_tagged_groups(merge(runs, part, shuffle, memory_bytes, with_input=True), inputs=3)
        for at, (key, (first, second, third)) in enumerate(groups):
            seen.append(key)
            if key % 7 == 0:
                assert first == wanted(0, key)
                assert second == wanted(1, key)
            if at % 3:
                assert list(third) == wanted(2, key)
    assert sorted(seen) == list(range(500))


def test_joined_groups_by_a_prefix_hold_all_inputs(tmp_path: Path) -> None:
    shuffle = record_shuffle(1)
    runs = fill(shuffle, tmp_path, (0, 0), [(("a", 2), "l2"), (("b", 0), "l0")], 1 << 20)
    runs += fill(shuffle, tmp_path, (1, 0), [(("a", 1), "r1"), (("a", 3), "r3")], 1 << 20)
    groups = iterate_tagged_groups(
        merge(runs, 0, shuffle, 1 << 20, with_input=True), inputs=2, group_fields=1
    )
    assert [(key, lefts, list(rights)) for key, (lefts, rights) in groups] == [
        ("a", ["l2"], ["r1", "r3"]),
        ("b", ["l0"], []),
    ]


def test_the_input_of_each_row_is_known_through_merges_in_several_passes(tmp_path: Path) -> None:
    shuffle = record_shuffle(1)
    runs = []
    for source in range(2):
        for split in range(8):
            pairs = [(number, (source, split)) for number in range(2000)]
            runs += fill(shuffle, tmp_path, (source, split), pairs, 1 << 14)
    assert len(runs) > 16
    rows = 0
    for batch in merge(runs, 0, shuffle, 1 << 12, with_input=True):
        for value, source in zip(
            batch.column("value").to_pylist(), batch.column(INPUT_COLUMN).to_pylist(), strict=True
        ):
            assert pickle.loads(value)[0] == source
            rows += 1
    assert rows == 2 * 8 * 2000
    assert len(os.listdir(tmp_path)) == len(runs)


# --- what can be wrong ---


def test_rows_with_nulls_and_every_type_come_through_a_run(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("list", pa.list_(pa.int64())),
            ("when", pa.timestamp("us")),
            ("flag", pa.bool_()),
        ]
    )
    batch = pa.RecordBatch.from_pydict(
        {"key": ["b", None, "a"], "list": [[1], None, []], "when": [None, 5, 6], "flag": [True, None, False]},
        schema=schema,
    )
    shuffle = Shuffle(
        schema=schema,
        keys=("key",),
        order=(Order("key"),),
        partitions=1,
        partitioner=HashPartitioner(("key",)),
    )
    runs = spill_all(shuffle, str(tmp_path), [batch], 1 << 20)
    expected = batch.take(pa.array(sort_permutation(batch, shuffle.order))).to_pylist()
    assert merged(runs, shuffle, 1 << 20) == [expected]
    assert [row["key"] for row in expected] == [None, "a", "b"]


def test_a_run_that_is_cut_short_or_gone_is_reported_as_damaged(tmp_path: Path) -> None:
    shuffle = record_like(1)
    (run,) = spill_all(shuffle, str(tmp_path), [random_lines(np.random.default_rng(1), 1000, 50)], 1 << 20)
    with open(run.path, "r+b") as file:
        file.truncate(run.index_offset - 100)
    with pytest.raises(Damaged, match=r"run-0-0-0 ends at byte \d+, expected \d+; run its map task again"):
        list(merge([run], 0, shuffle, 1 << 20))
    os.unlink(run.path)
    with pytest.raises(Damaged, match="is gone; its map task has to run again"):
        list(merge([run], 0, shuffle, 1 << 20))


def test_a_flipped_bit_in_a_run_is_noticed(tmp_path: Path) -> None:
    shuffle = record_like(1)
    (run,) = spill_all(shuffle, str(tmp_path), [random_lines(np.random.default_rng(1), 1000, 50)], 1 << 20)
    with open(run.path, "r+b") as file:
        file.seek(run.index_offset // 2)
        byte = file.read(1)
        file.seek(run.index_offset // 2)
        file.write(bytes([byte[0] ^ 4]))
    with pytest.raises(Damaged, match="checksum"):
        list(merge([run], 0, shuffle, 1 << 20))


def test_a_merge_that_is_left_early_closes_its_files_and_removes_its_own_runs(tmp_path: Path) -> None:
    shuffle = record_shuffle(1)
    runs = [
        run
        for split in range(6)
        for run in fill(shuffle, tmp_path, (0, split), [(n, n) for n in range(2000)], 1 << 14)
    ]
    before = len(os.listdir("/proc/self/fd"))
    stream = merge(runs, 0, shuffle, 1 << 12)
    next(stream)
    assert len(os.listdir(tmp_path)) > len(runs)
    stream.close()  # type: ignore[attr-defined]
    assert len(os.listdir(tmp_path)) == len(runs)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partitions": 0}, "partitions must be >= 1, got 0"),
        ({"keys": ("nope",)}, "no column 'nope' to shuffle by; the columns are key, second, split, position"),
        ({"order": (Order("second"),)}, "must begin with the keys"),
        ({"aggregate": (Aggregate("gone", "sum"),)}, "no column 'gone'"),
    ],
)
def test_a_shuffle_that_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    given = {
        "schema": SCHEMA, "keys": ("key",), "order": (Order("key"),), "partitions": 1,
        "partitioner": HashPartitioner(("key",)),
    }  # fmt: skip
    with pytest.raises(BadJob, match=message):
        Shuffle(**{**given, **change})


def test_rows_of_another_schema_are_cast_when_safe_and_refused_otherwise(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.int64())])
    shuffle = Shuffle(
        schema=schema,
        keys=("key",),
        order=(Order("key"),),
        partitions=1,
        partitioner=HashPartitioner(("key",)),
    )
    buffer = MapBuffer(shuffle, str(tmp_path), (0, 0), 1 << 20)
    buffer.add(pa.record_batch({"key": pa.array([2, 1], pa.int32()), "more": ["x", "y"]}))
    assert merged(buffer.finish(), shuffle, 1 << 20) == [[{"key": 1}, {"key": 2}]]
    with pytest.raises(BadJob, match="the rows lack column 'key'; they have other"):
        buffer.add(pa.record_batch({"other": [1]}))
    with pytest.raises(BadJob, match="column 'key' is double, declared int64"):
        buffer.add(pa.record_batch({"key": [1.5]}))


def test_a_partitioner_that_leaves_its_range_is_named(tmp_path: Path) -> None:
    def astray(batch: pa.RecordBatch, partitions: int) -> Any:
        return np.full(batch.num_rows, partitions, np.int32)

    shuffle = Shuffle(schema=SCHEMA, keys=("key",), order=(Order("key"),), partitions=3, partitioner=astray)
    with pytest.raises(BadJob, match=r"astray.* returned 3 to 3: it must stay in 0 to 2"):
        spill_all(shuffle, str(tmp_path), [rows_of(0, [b"a"], [1])], 1 << 20)
    assert os.listdir(tmp_path) == []


def test_groups_larger_than_memory_come_value_by_value(tmp_path: Path) -> None:
    shuffle = record_shuffle(1)
    rows = 30_000
    runs = fill(shuffle, tmp_path, (0, 0), [("hot", n) for n in range(rows)] + [("last", -1)], 1 << 18)
    groups = iterate_groups(merge(runs, 0, shuffle, 1 << 18))
    key, values = next(groups)
    assert key == "hot"
    assert next(values) == 0
    assert sum(1 for _ in values) == rows - 1
    assert [(key, list(values)) for key, values in groups] == [("last", [-1])]
    assert RunReader(runs[0], 0, shuffle.schema).largest_block_bytes <= 1 << 18


@pytest.mark.skipif(sys.platform != "linux", reason="holes in files are made on Linux only")
def test_a_partition_that_is_done_gives_its_space_back_and_harms_no_other(tmp_path: Path) -> None:
    shuffle = record_like(3)
    (run,) = spill_all(shuffle, str(tmp_path), [random_lines(np.random.default_rng(1), 60_000, 100)], 1 << 28)
    assert min(run.bytes) > 1 << 20

    def rows(part: int) -> list[dict[str, Any]]:
        return [row for batch in merge([run], part, shuffle, 1 << 27) for row in batch.to_pylist()]

    others = [rows(0), rows(2)]
    before = os.stat(run.path)
    give_back([run], 1)
    after = os.stat(run.path)
    assert after.st_size == before.st_size
    assert (before.st_blocks - after.st_blocks) * 512 > run.bytes[1] - 3 * 4096
    assert [rows(0), rows(2)] == others
    with pytest.raises(Damaged, match="run its map task again"):
        list(merge([run], 1, shuffle, 1 << 27))


def test_each_of_very_many_partitions_finds_its_blocks_in_the_index(tmp_path: Path) -> None:
    schema = pa.schema([("number", pa.int64())])
    counts = [(partition * 7919) % 4 for partition in range(4000)]  # blocks, also none at all
    numbers = iter(range(sum(counts)))
    blocks = [
        (partition, pa.record_batch([pa.array([next(numbers)])], schema=schema))
        for partition, count in enumerate(counts)
        for _ in range(count)
    ]
    run = write_run(str(tmp_path / "run"), (0, 0), len(counts), blocks)
    assert run.blocks == len(blocks) == 6000
    first = 0
    for partition, count in enumerate(counts):
        reader = RunReader(run, partition, schema)
        found = [batch.column(0)[0].as_py() for batch in reader.read(1 << 20)]
        reader.close()
        assert found == list(range(first, first + count))
        first += count
