"""Tables: files that differ become one schema, no value changes, and no row depends on the split size."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapreduce.errors import BadEncoding, BadInput, BadJob
from mapreduce.inputs import Source, plan_splits, read_batches, read_records, read_schema

HUGE = 2**53 + 1  # the first whole number that is no double


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def rows(
    *urls: str | Path,
    split_bytes: int = 1 << 26,
    columns: Sequence[str] | None = None,
    block_bytes: int = 1 << 20,
    **options: Any,
) -> list[dict[str, Any]]:
    """Read the batches, each of which must have the schema that was promised."""
    source = Source(urls=tuple(map(str, urls)), **options)
    schema = read_schema(source)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    found: list[dict[str, Any]] = []
    for split in plan_splits(source, split_bytes=split_bytes):
        for batch in read_batches(split, source, columns=columns, block_bytes=block_bytes):
            assert batch.schema.equals(schema)
            batch.validate(full=True)
            found += batch.to_pylist()
    return found


def records(*urls: str | Path, split_bytes: int = 1 << 26, **options: Any) -> list[tuple[Any, Any]]:
    source = Source(urls=tuple(map(str, urls)), **options)
    found: list[tuple[Any, Any]] = []
    for split in plan_splits(source, split_bytes=split_bytes):
        for keys, values in read_records(split, source):
            found += zip(keys, values, strict=True)
    return found


def pieces(path: Path, split_bytes: int) -> int:
    return len(plan_splits(Source(urls=(str(path),)), split_bytes=split_bytes))


# ------------------------------------------------------------------------------------------- CSV


def test_quoted_newlines_tear_no_row_at_any_split_size(tmp_path: Path) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["id", "note"])
    notes = []
    for i in range(40):
        forms = [f"plain {i}", f"line one {i}\nline two\n\n1,2\n", f'say "{i}", twice', f"\n{i}\n"]
        notes.append(forms[i % 4])
        writer.writerow([i, notes[-1]])
    path = put(tmp_path / "a.csv", buffer.getvalue())
    expected = [{"id": i, "note": note} for i, note in enumerate(notes)]
    for split_bytes in (1, 16, 64, 256, 1 << 26):
        assert rows(path, split_bytes=split_bytes) == expected
        assert records(path, split_bytes=split_bytes) == list(enumerate(expected))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_csv_file_without_quotes_is_cut_and_its_rows_are_numbered_through(tmp_path: Path, end: str) -> None:
    expected = [{"id": i, "name": f"näme {i % 7}", "x": i / 4} for i in range(60)]
    text = "".join(f"{row['id']},{row['name']},{row['x']}{end}" for row in expected)
    path = put(tmp_path / "a.csv", "\ufeffid,name,x" + end + text)
    assert pieces(path, 100) > 5
    for split_bytes in (3, 17, 100, 1 << 26):
        assert records(path, split_bytes=split_bytes) == list(enumerate(expected))
    assert rows(path, split_bytes=50, columns=["x", "id"]) == [{"x": r["x"], "id": r["id"]} for r in expected]


@pytest.mark.parametrize(
    ("text", "count"),
    [("a,b\n1,2\n\n3,4\n", 2), ("a,b\n1,2\n3,4\n\n\n", 2), ("a,b\n1,x\rx\n3,4\n", 3), ('a,b\n1,"2"\n3,4', 2)],
    ids=["blank line", "blank end", "carriage return inside", "quote"],
)
def test_a_csv_file_whose_rows_are_not_its_lines_stays_whole(tmp_path: Path, text: str, count: int) -> None:
    path = put(tmp_path / "a.csv", text)
    assert pieces(path, 4) == 1
    if count == 2:
        assert [row["a"] for row in rows(path, split_bytes=4)] == [1, 3]
    else:
        # A lone carriage return ends a row for the parser: the torn row is an error, not a guess.
        with pytest.raises(BadInput, match=r"a\.csv: .*Expected 2 columns, got 1"):
            rows(path)


def test_csv_files_that_are_empty_or_only_a_header_give_no_row_and_no_error(tmp_path: Path) -> None:
    put(tmp_path / "empty.csv", "")
    put(tmp_path / "blank.csv", "\n")
    put(tmp_path / "header_only.csv", "id,name\n")
    put(tmp_path / "no_newline.csv", "id,name")
    assert rows(tmp_path) == []
    put(tmp_path / "data.csv", "id,name\n1,x\n")
    assert rows(tmp_path) == [{"id": 1, "name": "x"}]
    assert rows(tmp_path, split_bytes=3) == [{"id": 1, "name": "x"}]
    assert rows(tmp_path / "empty.csv") == []


def test_columns_of_a_csv_without_rows_take_the_types_of_other_files_or_can_be_added_up(
    tmp_path: Path,
) -> None:
    header = put(tmp_path / "header.csv", "id,name\n")
    data = put(tmp_path / "data.csv", "id,name,nothing\n1,x,\n")
    assert read_schema(Source(urls=(str(header),))).types == [pa.int64(), pa.int64()]
    both = read_schema(Source(urls=(str(header), str(data))))
    assert both.types == [pa.int64(), pa.string(), pa.string()]


def test_csv_nulls_nan_and_nul_bytes(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "k,v,s\nNaN,1,\n,2,NA\n1.5,NA,x\x00y\n")
    assert [row["v"] for row in rows(path)] == [1, 2, None]
    assert [row["s"] for row in rows(path)] == ["", "NA", "x\x00y"]
    keys = [row["k"] for row in rows(path)]
    assert keys[0] != keys[0]
    assert keys[1:] == [None, 1.5]


def test_csv_dates_and_numbers_beyond_int64_stay_the_text_they_are(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "day,id\n2006-01-02,12345678901234567890\n2007-01-01T00:00:00Z,\n")
    assert rows(path) == [
        {"day": "2006-01-02", "id": "12345678901234567890"},
        {"day": "2007-01-01T00:00:00Z", "id": ""},
    ]


def test_a_whole_number_that_no_double_is_is_refused_by_file_and_column(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", f"n\n0.5\n{HUGE}\n")
    with pytest.raises(BadInput, match=rf"a\.csv: column 'n' is double, which cannot hold {HUGE} exactly"):
        rows(path)
    assert rows(put(tmp_path / "a.csv", f"n\n0.5\n{2**53}\n1e300\n")) == [
        {"n": 0.5},
        {"n": 2.0**53},
        {"n": 1e300},
    ]
    put(tmp_path / "b.csv", f"n\n{HUGE}\n")
    with pytest.raises(BadInput, match=rf"b\.csv: column 'n' .*{HUGE}"):
        rows(tmp_path / "a.csv", tmp_path / "b.csv")


def test_csv_errors_name_file_column_and_what_was_found(tmp_path: Path) -> None:
    late = put(tmp_path / "late.csv", "a,b\n" + "1,2\n" * 1_500_000 + "1,x\n")
    with pytest.raises(BadInput, match=r"late\.csv: column 'b': .*invalid value 'x'"):
        rows(late, columns=["a", "b"])
    declared = rows(late, schema=pa.schema([("b", pa.string())]))
    assert declared[-1] == {"b": "x"}
    with pytest.raises(BadInput, match=r"ragged\.csv: .*Expected 2 columns, got 1"):
        rows(put(tmp_path / "ragged.csv", "a,b\n1\n"))
    with pytest.raises(BadInput, match=r"twice\.csv: there are several columns named 'a'"):
        rows(put(tmp_path / "twice.csv", "a,a\n1,2\n"))
    source = Source(urls=(str(put(tmp_path / "plain.csv", "a,b\n1,2\n")),))
    (split,) = plan_splits(source, split_bytes=99)
    with pytest.raises(BadInput, match=r"plain\.csv: there is no column 'z'; the columns are a, b"):
        list(read_batches(split, source, columns=["z"]))


def test_a_csv_quote_that_is_never_closed_swallows_no_rows(tmp_path: Path) -> None:
    open_quote = put(tmp_path / "open.csv", 'a,b\n1,x\n2,"unclosed\n3,y\n')
    with pytest.raises(
        BadInput, match=r"open\.csv: the quote that opens column 'b' of row 2 is never closed"
    ):
        rows(open_quote)
    inches = put(tmp_path / "inches.csv", 'a,b\n1,5" disk\n2,"two\nlines"\n')
    assert [row["b"] for row in rows(inches)] == ['5" disk', "two\nlines"]
    ends = put(tmp_path / "ends.csv", 'a,b\n1,"ends in a line feed\n"\n')
    assert [row["b"] for row in rows(ends)] == ["ends in a line feed\n"]


def test_csv_bytes_that_are_no_utf8_are_named_or_replaced(tmp_path: Path) -> None:
    path = put(tmp_path / "b.csv", b"a\nok\ncaf\xe9\n")
    with pytest.raises(BadEncoding, match=r"b\.csv: byte 0xe9 at offset 8"):
        rows(path)
    for split_bytes in (3, 1 << 20):
        assert rows(path, errors="replace", split_bytes=split_bytes) == [{"a": "ok"}, {"a": "caf\ufffd"}]
        assert rows(path, errors="ignore", split_bytes=split_bytes) == [{"a": "ok"}, {"a": "caf"}]
    with pytest.raises(BadJob, match="surrogateescape"):
        rows(path, errors="surrogateescape")
    with pytest.raises(BadEncoding, match=r"h\.csv: byte 0xff at offset 0"):
        rows(put(tmp_path / "h.csv", b"\xff\n1\n"))


def test_a_csv_row_longer_than_a_block_is_read_whole_and_once(tmp_path: Path) -> None:
    long = "x" * (3 << 20)
    expected = [{"i": i, "s": long if i == 5000 else f"s{i}"} for i in range(9000)]
    path = put(tmp_path / "a.csv", "i,s\n" + "".join(f'{row["i"]},"{row["s"]}"\n' for row in expected))
    assert rows(path, block_bytes=1) == expected


FIELDS = st.lists(st.sampled_from(["a", "é", " ", ",", '"', "\n", "\r\n", "1", "\0"]), max_size=4).map(
    "".join
)


@given(table=st.lists(st.tuples(FIELDS, FIELDS), max_size=8), split_bytes=st.integers(1, 60))
def test_csv_text_is_read_as_pythons_csv_reads_it(
    tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, str]], split_bytes: int
) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerows([("x", "y"), *table])
    path = put(tmp_path_factory.mktemp("csv") / "a.csv", buffer.getvalue())
    schema = pa.schema([("x", pa.string()), ("y", pa.string())])
    found = rows(path, split_bytes=split_bytes, schema=schema)
    expected = list(csv.DictReader(io.StringIO(buffer.getvalue(), newline="")))
    assert found == expected == [{"x": x, "y": y} for x, y in table]


# ------------------------------------------------------------------------------------------- JSON lines


def test_blank_json_lines_are_skipped_and_counted_and_a_byte_order_mark_is_no_data(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"id": 1}\n\n   \n{"id": 2}\r\n\n{"id": 3}')
    expected = [{"id": 1}, {"id": 2}, {"id": 3}]
    for split_bytes in (1, 5, 1 << 20):
        assert rows(path, split_bytes=split_bytes) == expected
        assert [value for _, value in records(path, split_bytes=split_bytes)] == expected
    source = Source(urls=(str(path),))
    skipped: list[int] = []
    for split in plan_splits(source, split_bytes=1 << 20):
        for _ in read_records(split, source, skipped=skipped.append):
            pass
    assert sum(skipped) == 3


def test_json_records_keep_any_value_exactly_and_unicode_separators_cut_nothing(tmp_path: Path) -> None:
    expected = [
        HUGE,
        12345678901234567890,
        0.5,
        None,
        True,
        "2006-01-02",
        [1, "x"],
        {"t": "a\u2028b\u2029c\u0085d"},
    ]
    text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in expected)
    path = put(tmp_path / "a.jsonl", text)
    for split_bytes in (1, 17, 1 << 20):
        found = records(path, split_bytes=split_bytes)
        assert [value for _, value in found] == expected
        data = path.read_bytes()
        assert [json.loads(data[key:].split(b"\n")[0]) for key, _ in found] == expected


def test_json_batches_have_one_type_per_column_and_times_stay_strings(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", '{"i": 1, "d": "2006-01-02", "n": {"t": "2006-01-02 03:04:05", "x": []}}\n')
    put(tmp_path / "b.jsonl", '{"i": 0.5, "new": "x"}\n{"i": null}\n')
    put(tmp_path / "c.jsonl", "\n")
    assert rows(tmp_path) == [
        {"i": 1.0, "d": "2006-01-02", "n": {"t": "2006-01-02 03:04:05", "x": []}, "new": None},
        {"i": 0.5, "d": None, "n": None, "new": "x"},
        {"i": None, "d": None, "n": None, "new": None},
    ]


def test_json_errors_name_file_and_byte(tmp_path: Path) -> None:
    bad = put(tmp_path / "bad.jsonl", '{"k": 1}\n\n{"k": \n{"k": 3}\n')
    for read in (rows, records):
        with pytest.raises(BadInput, match=r"bad\.jsonl: the line at byte 10 is no JSON"):
            read(bad)
    for text in ('{"k": 1}{"k": 2}\n', '{"k":\n2}\n'):
        for read in (rows, records):
            with pytest.raises(BadInput, match=r"shape\.jsonl: the line at byte 0 is no JSON"):
                read(put(tmp_path / "shape.jsonl", text))
    with pytest.raises(BadInput, match=r"list\.jsonl: the line at byte 9 is \[1\], not an object"):
        rows(put(tmp_path / "list.jsonl", '{"k": 1}\n[1]\n'))
    with pytest.raises(BadInput, match=r"mixed\.jsonl: .*/k\) changed from number to string"):
        rows(put(tmp_path / "mixed.jsonl", '{"k": 1}\n{"k": "1"}\n'))
    with pytest.raises(BadEncoding, match=r"bytes\.jsonl: byte 0xff at offset 7"):
        rows(put(tmp_path / "bytes.jsonl", b'{"k": "\xff"}\n'))
    with pytest.raises(
        BadInput, match=rf"huge\.jsonl: column 'n' is double, which cannot hold {HUGE} exactly"
    ):
        rows(put(tmp_path / "huge.jsonl", f'{{"n": 0.5}}\n{{"n": {HUGE}}}\n'))


def test_json_nested_too_deep_is_named_and_crashes_nothing(tmp_path: Path) -> None:
    path = put(tmp_path / "deep.jsonl", '{"a": 1}\n' + "[" * 100_000 + "]" * 100_000 + "\n")
    with pytest.raises(BadInput, match=r"deep\.jsonl: the line at byte 9 is no JSON: maximum recursion"):
        rows(path)
    with pytest.raises(BadInput, match=r"deep\.jsonl: the line at byte 9 is no JSON"):
        read_schema(Source(urls=(str(path),)))


def test_json_values_of_mixed_types_are_records_without_a_schema(tmp_path: Path) -> None:
    expected = [{"k": k, "seq": i} for i, k in enumerate([1, "1", None, 2.5, True, [1], {"a": 1}, "z", -3])]
    path = put(
        tmp_path / "a.jsonl.gz", gzip.compress("".join(json.dumps(r) + "\n" for r in expected).encode())
    )
    assert [value for _, value in records(path)] == expected


# ------------------------------------------------------------------------------------------- Parquet and Arrow


def write(folder: Path, **tables: pa.Table) -> None:
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")


def test_a_column_that_is_null_in_one_file_takes_its_type_from_the_others(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=pa.table({"id": [1, 2], "v": pa.nulls(2)}),
        b=pa.table({"id": [3, 4], "v": pa.array([30, None], pa.int64())}),
        c=pa.table({"id": [5], "v": [0.5]}),
    )
    expected = [(1, None), (2, None), (3, 30.0), (4, None), (5, 0.5)]
    for order in ("abc", "cba", "bac"):
        found = rows(*(tmp_path / f"{name}.parquet" for name in order))
        assert sorted((row["id"], row["v"]) for row in found) == expected
    assert rows(tmp_path / "a.parquet") == [{"id": 1, "v": None}, {"id": 2, "v": None}]


def test_integers_keep_their_value_or_the_file_and_column_are_refused(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=pa.table({"n": pa.array([1], pa.int32())}),
        b=pa.table({"n": pa.array([HUGE], pa.int64())}),
        c=pa.table({"n": [0.5]}),
        d=pa.table({"n": pa.array([2**64 - 1], pa.uint64())}),
    )
    assert rows(tmp_path / "a.parquet", tmp_path / "b.parquet") == [{"n": 1}, {"n": HUGE}]
    assert rows(tmp_path / "a.parquet", tmp_path / "c.parquet") == [{"n": 1.0}, {"n": 0.5}]
    assert rows(tmp_path / "d.parquet") == [{"n": 2**64 - 1}]
    with pytest.raises(BadInput, match=rf"b\.parquet: column 'n' is int64 and cannot become double.*{HUGE}"):
        rows(*(tmp_path / f"{name}.parquet" for name in "abc"))
    with pytest.raises(BadInput, match=r"d\.parquet: column 'n'"):
        rows(tmp_path / "a.parquet", tmp_path / "d.parquet")


def test_columns_are_matched_by_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=pa.table({"x": [1], "y": [10]}),
        b=pa.table({"y": [20], "x": [2]}),
        c=pa.table({"x": [3]}),
        d=pa.table({"x": [4], "y": [40], "z": [400]}),
    )
    found = rows(tmp_path)
    assert [row["x"] for row in found] == [1, 2, 3, 4]
    assert [row["y"] for row in found] == [10, 20, None, 40]
    assert [value for _, value in records(tmp_path)] == found
    assert rows(tmp_path, columns=["z"]) == [{"z": None}, {"z": None}, {"z": None}, {"z": 400}]


def test_types_that_cannot_be_one_are_refused_with_both_files(tmp_path: Path) -> None:
    write(tmp_path, a=pa.table({"k": [1]}), b=pa.table({"k": ["1"]}))
    with pytest.raises(BadInput, match=r"column 'k' is int64 in .*a\.parquet but string in .*b\.parquet"):
        rows(tmp_path)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_dictionaries_of_many_files_do_not_overflow(tmp_path: Path, format: str) -> None:
    for name, low in (("a", 0), ("b", 100)):
        column = pa.array([f"v{i}" for i in range(low, low + 100)]).cast(
            pa.dictionary(pa.int8(), pa.string())
        )
        table = pa.table({"c": column})
        if format == "parquet":
            pq.write_table(table, tmp_path / f"{name}.parquet")
        else:
            with pa.ipc.new_file(tmp_path / f"{name}.arrow", table.schema) as writer:
                writer.write_table(table)
    assert [row["c"] for row in rows(tmp_path)] == [f"v{i}" for i in range(200)]


def test_files_without_rows_or_row_groups_have_their_columns(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema):
        pass
    pq.write_table(schema.empty_table(), tmp_path / "b.parquet")
    assert rows(tmp_path) == []
    assert read_schema(Source(urls=(str(tmp_path / "a.parquet"),))).equals(schema)
    pq.write_table(pa.table({"id": [1], "name": ["x"]}, schema=schema), tmp_path / "c.parquet")
    assert rows(tmp_path, split_bytes=1) == [{"id": 1, "name": "x"}]


@pytest.mark.parametrize("int96", [False, True], ids=["us", "int96"])
def test_far_dates_stay_what_they_are(tmp_path: Path, int96: bool) -> None:
    years = (9999, 1, 1677, 2006)
    times = [datetime.datetime(year, 1, 2, 3, 4, 5) for year in years]
    table = pa.table({"ts": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=int96)
    assert [row["ts"] for row in rows(tmp_path)] == times


def test_nested_columns_ride_along(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [3, 1, 2],
            "items": pa.array(
                [[{"n": "a", "q": 1}], [], None], pa.list_(pa.struct([("n", pa.string()), ("q", pa.int32())]))
            ),
            "tags": pa.array([[("x", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "where": pa.array([{"c": "B"}, {"c": "A"}, None], pa.struct([("c", pa.string())])),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows(tmp_path) == table.to_pylist()
    assert rows(tmp_path, columns=["where", "id"]) == table.select(["where", "id"]).to_pylist()


@pytest.mark.parametrize("format", ["parquet", "arrow", "stream"])
def test_columnar_files_are_cut_by_row_groups_and_rows_are_numbered_through(
    tmp_path: Path, format: str
) -> None:
    table = pa.table({"i": range(1000), "s": [f"{i:0600d}" for i in range(1000)]})
    path = tmp_path / ("a.parquet" if format == "parquet" else "a.arrow")
    if format == "parquet":
        pq.write_table(table, path, row_group_size=64, use_dictionary=False, compression="none")
    elif format == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=64)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=64)
    size = path.stat().st_size
    assert pieces(path, size // 4) in ({1} if format == "stream" else {4, 5, 6})
    for split_bytes in (1, size // 4, size * 2):
        assert rows(path, split_bytes=split_bytes) == table.to_pylist()
        assert records(path, split_bytes=split_bytes) == list(enumerate(table.to_pylist()))
    assert rows(path, block_bytes=100) == table.to_pylist()
    sample = rows(path, sample_ranges=3)
    assert sample == sorted(sample, key=lambda row: row["i"])
    if format != "stream":
        assert 3 <= len(sample) <= 3 * 64


def test_a_damaged_or_misnamed_columnar_file_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(1000)}), tmp_path / "good.parquet")
    data = (tmp_path / "good.parquet").read_bytes()
    for content in (b"", b"text", data[:-20], gzip.compress(data)):
        path = put(tmp_path / "bad.parquet", content)
        with pytest.raises(BadInput, match=r"bad\.parquet"):
            rows(path)
    with pytest.raises(BadInput, match=r"bad\.arrow"):
        rows(put(tmp_path / "bad.arrow", b"k1\tsome text\n" * 10))


def test_values_over_two_gib_in_total_would_come_in_batches_of_a_block(tmp_path: Path) -> None:
    # The real case has 22 rows of 100 MB; the rule that keeps it right is that a batch holds about one block.
    table = pa.table({"k": range(64), "s": ["abcdefghij" * 1000] * 64})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    source = Source(urls=(str(tmp_path),))
    (split,) = plan_splits(source, split_bytes=1 << 26)
    batches = list(read_batches(split, source, block_bytes=40_000))
    assert max(batch.nbytes for batch in batches) <= 40_000
    assert pa.Table.from_batches(batches).column("k").to_pylist() == list(range(64))
