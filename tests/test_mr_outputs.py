"""Sinks: what is written is what the other libraries, and our own readers, read back."""

from __future__ import annotations

import bz2
import csv
import datetime
import gzip
import json
import os
import pickle
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mapreduce.errors import BadJob, OutputFailed
from mapreduce.formats import OUTPUT_FORMATS, parse_format
from mapreduce.inputs import Source, plan_splits, read_batches, read_records
from mapreduce.outputs import extension_of, open_sink


def write_records(
    path: Path, format: str, *chunks: list[tuple[Any, Any]], discard: bool = True, **options: Any
) -> tuple[int, int]:
    sink = open_sink(str(path), format=format, **options)
    try:
        for chunk in chunks:
            sink.write_records(chunk)
        return sink.close()
    except BaseException:
        if discard:  # not a device
            sink.abort()
        raise


def write_batches(path: Path, format: str, *batches: pa.RecordBatch, **options: Any) -> tuple[int, int]:
    sink = open_sink(str(path), format=format, **options)
    for batch in batches:
        sink.write_batch(batch)
    return sink.close()


# ------------------------------------------------------------------------------------------- text


def test_a_text_record_is_key_tab_value_and_none_leaves_its_side_out(tmp_path: Path) -> None:
    pairs = [
        ("a", 1),
        (None, "v"),
        ("k", None),
        (b"\xff\x00", 2.5),
        (("x", 1), [1]),
        ("", ""),
        ("é", b"\xc3\xa9"),
        (None, None),
    ]
    size = write_records(tmp_path / "o", "text", pairs)
    data = b"a\t1\nv\nk\n\xff\x00\t2.5\n('x', 1)\t[1]\n\t\n\xc3\xa9\t\xc3\xa9\n\n"
    assert (tmp_path / "o").read_bytes() == data
    assert size == (8, len(data))


def test_text_that_was_read_with_surrogateescape_goes_out_as_it_came(tmp_path: Path) -> None:
    data = b"caf\xe9\t1\n\xff\xfe\t3\n\xed\xa0\x80\t4\n"
    (tmp_path / "in").write_bytes(data)
    source = Source(urls=(str(tmp_path / "in"),), errors="surrogateescape")
    (split,) = plan_splits(source, split_bytes=1 << 20)
    for _, values in read_records(split, source):
        write_records(tmp_path / "out", "text", [(None, value) for value in values])
    assert (tmp_path / "out").read_bytes() == data


@pytest.mark.parametrize("length", [None, 0, 7], ids=["variable", "empty", "fixed"])
def test_a_batch_of_one_column_is_a_line_per_row(tmp_path: Path, length: int | None) -> None:
    rng = random.Random(1)
    lines = [
        rng.randbytes(length if length is not None else rng.randrange(20)).replace(b"\n", b"")
        for _ in range(999)
    ]
    batch = pa.record_batch({"line": pa.array(lines, pa.binary())})
    write_batches(tmp_path / "o", "text", batch.slice(0, 0), batch.slice(3, 500), batch.slice(503))
    assert (tmp_path / "o").read_bytes() == b"".join(line + b"\n" for line in lines[3:])


def test_several_columns_are_joined_by_tabs_and_a_null_is_empty(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "w": pa.array(["a", None, "é"]),
            "b": pa.array([b"\xff", b"", None], pa.binary()),
            "n": pa.array([1, None, -3]),
            "x": pa.array([0.5, 1e300, None]),
            "d": pa.array(["p", "q", "p"]).dictionary_encode(),
        }
    )
    write_batches(tmp_path / "o", "text", batch)
    assert (tmp_path / "o").read_bytes() == b"a\t\xff\t1\t0.5\tp\n\t\t\t1e+300\tq\n\xc3\xa9\t\t-3\t\tp\n"
    write_batches(tmp_path / "o", "text", pa.record_batch({"w": pa.array(["a", None, "b"])}))
    assert (tmp_path / "o").read_bytes() == b"a\n\nb\n"


def test_a_nested_column_has_no_place_in_a_line(tmp_path: Path) -> None:
    batch = pa.record_batch({"x": [[1], [2]]})
    for format in ("text", "csv"):
        with pytest.raises(BadJob, match="column 'x' is list"):
            write_batches(tmp_path / "o", format, batch)


# ------------------------------------------------------------------------------------------- tables

ROWS = [
    {"k": "a\n,\"b'", "n": 1, "x": 0.5},
    {"k": "", "n": -(2**60), "x": None},
    {"k": "é\u2028", "n": 3, "x": 1e300},
]
BATCH = pa.RecordBatch.from_pylist(ROWS)


def test_csv_is_read_back_by_pythons_csv(tmp_path: Path) -> None:
    write_batches(tmp_path / "o.csv", "csv", BATCH, BATCH.slice(1))
    with open(tmp_path / "o.csv", newline="") as file:
        found = list(csv.DictReader(file))
    expected = [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in ROWS + ROWS[1:]
    ]
    assert [{**row, "x": row["x"] and str(float(row["x"]))} for row in found] == expected


def test_json_lines_are_read_back_by_pythons_json(tmp_path: Path) -> None:
    write_batches(tmp_path / "o.jsonl", "jsonl", BATCH)
    assert [json.loads(line) for line in (tmp_path / "o.jsonl").read_bytes().split(b"\n")[:-1]] == ROWS
    values: list[Any] = [{1, 2}, {"d": datetime.date(2020, 1, 2), "x": Decimal("1.5")}, b"by", (1, 2), None]
    write_records(tmp_path / "r.jsonl", "jsonl", [("k", value) for value in values])
    assert [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()] == [
        {"key": "k", "value": [1, 2]},
        {"key": "k", "d": "2020-01-02", "x": 1.5},
        {"key": "k", "value": "by"},
        {"key": "k", "value": [1, 2]},
        {"key": "k"},
    ]


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_parquet_is_read_back_and_small_batches_share_a_row_group(
    tmp_path: Path, compression: str | None
) -> None:
    batches = [BATCH] * 50
    counts = write_batches(tmp_path / "o.parquet", "parquet", *batches, compression=compression)
    assert counts == (150, (tmp_path / "o.parquet").stat().st_size)
    assert pq.read_table(tmp_path / "o.parquet").to_pylist() == ROWS * 50
    metadata = pq.ParquetFile(tmp_path / "o.parquet").metadata
    assert metadata.num_row_groups == 1
    assert (
        metadata.row_group(0).column(0).compression
        == {None: "SNAPPY", "gzip": "GZIP", "zstd": "ZSTD"}[compression]
    )


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_is_read_back(tmp_path: Path, compression: str | None) -> None:
    write_batches(tmp_path / "o.arrow", "arrow", BATCH, BATCH, compression=compression)
    assert pa.ipc.open_file(tmp_path / "o.arrow").read_all().to_pylist() == ROWS * 2


@pytest.mark.parametrize("format", ["csv", "parquet", "arrow", "jsonl"])
def test_records_become_rows_of_key_and_value_or_of_a_dicts_fields(tmp_path: Path, format: str) -> None:
    def read(path: Path) -> list[dict[str, Any]]:
        source = Source(urls=(str(path),), format=format)
        return [
            row for split in plan_splits(source, split_bytes=1 << 20)
            for batch in read_batches(split, source) for row in batch.to_pylist()
        ]  # fmt: skip

    write_records(tmp_path / "o", format, [("a", 1), ("b", None)], [("c", 3)])
    assert read(tmp_path / "o") == [
        {"key": "a", "value": 1},
        {"key": "b", "value": None},
        {"key": "c", "value": 3},
    ]
    write_records(tmp_path / "o", format, [(None, {"x": None, "y": "p"}), (None, {"x": 2, "y": "q"})])
    assert read(tmp_path / "o") == [{"x": None, "y": "p"}, {"x": 2, "y": "q"}]
    write_records(tmp_path / "o", format, [("a", {"x": 1.5}), ("b", {"x": 2})])
    assert read(tmp_path / "o") == [{"key": "a", "x": 1.5}, {"key": "b", "x": 2.0}]


def test_rows_that_do_not_fit_are_refused_in_one_line_and_leave_no_file(tmp_path: Path) -> None:
    path = tmp_path / "o"
    cases: list[tuple[str, list[list[tuple[Any, Any]]], str]] = [
        ("csv", [[("a", 1), ("b", "x")]], "cannot be csv"),
        ("parquet", [[("a", 1)], [("b", "x")]], "cannot be parquet"),
        ("parquet", [[(None, {"x": 1})], [(None, {"x": 1, "late": 2})]], "field 'late'"),
        ("jsonl", [[("a", object())]], "type object cannot be JSON"),
        ("jsonl", [[("a", b"\xff")]], "cannot be JSON"),
        ("csv", [[("a", {"key": 1})]], "has a field 'key' too"),
    ]
    for format, chunks, message in cases:
        with pytest.raises(BadJob, match=message) as caught:
            write_records(path, format, *chunks)
        assert "\n" not in str(caught.value)
        assert not path.exists()


def test_a_part_without_rows_is_a_valid_file_with_its_columns(tmp_path: Path) -> None:
    for format in OUTPUT_FORMATS:
        path = tmp_path / f"o{extension_of(format)}"
        assert write_records(path, format, [])[0] == 0
        assert path.exists()
    schema = BATCH.schema
    write_batches(tmp_path / "o.csv", "csv", schema=schema)
    assert (tmp_path / "o.csv").read_text() == '"k","n","x"\n'
    for format, read in (("parquet", pq.read_schema), ("arrow", lambda path: pa.ipc.open_file(path).schema)):
        write_batches(tmp_path / "o", format, schema=schema)
        assert read(tmp_path / "o").equals(schema)


def test_stage_records_keep_any_value(tmp_path: Path) -> None:
    pairs = [("a", 1), (2, None), (("x", 1.5), {"y": [1]}), (None, b"\xff"), (b"k", {1, 2}), (True, "t")]
    write_records(tmp_path / "o.records", "records", pairs, [], pairs)
    source = Source(urls=(str(tmp_path),))
    for split_bytes in (1, 1 << 20):
        found = [
            pair
            for split in plan_splits(source, split_bytes=split_bytes)
            for keys, values in read_records(split, source)
            for pair in zip(keys, values, strict=True)
        ]
        assert found == pairs * 2
        assert [type(key) for key, _ in found] == [type(key) for key, _ in pairs * 2]


# ------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("compression", "decompress"),
    [
        ("gzip", gzip.decompress),
        ("bz2", bz2.decompress),
        ("zstd", lambda data: pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()),
    ],
    ids=["gzip", "bz2", "zstd"],
)
def test_compressed_output_is_what_other_tools_read_and_the_same_every_time(
    tmp_path: Path, compression: str, decompress: Any
) -> None:
    pairs = [(f"key {i}", i) for i in range(5000)]
    for format in ("text", "csv", "jsonl"):
        write_records(tmp_path / "plain", format, pairs)
        rows, size = write_records(tmp_path / "packed", format, pairs, compression=compression)
        data = (tmp_path / "packed").read_bytes()
        assert (rows, size) == (5000, len(data))
        assert decompress(data) == (tmp_path / "plain").read_bytes()
        write_records(tmp_path / "again", format, pairs, compression=compression)
        assert (tmp_path / "again").read_bytes() == data


def test_extensions_are_read_back_as_the_format_that_wrote_them(tmp_path: Path) -> None:
    for format in OUTPUT_FORMATS:
        path = tmp_path / f"part{extension_of(format)}"
        write_records(path, format, [("a", 1)])
        (split,) = plan_splits(Source(urls=(str(path),)), split_bytes=1 << 20)
        given = parse_format(format)
        assert (split.pieces[0].format, split.pieces[0].separator) == (given.name, given.separator)


@pytest.mark.parametrize(
    ("format", "compression"), [("xml", None), ("text", "lzma"), ("parquet", "bz2"), ("arrow", "gzip")]
)
def test_formats_and_compressions_that_do_not_go_together_make_no_file(
    tmp_path: Path, format: str, compression: str | None
) -> None:
    with pytest.raises(BadJob, match="choose one of"):
        open_sink(str(tmp_path / "o"), format=format, compression=compression)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("format", OUTPUT_FORMATS)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_full_disk_is_named(format: str, compression: str | None) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("/dev/full, a device without space, is Linux only")
    records = [(f"key {i}", i) for i in range(1000)]
    with pytest.raises(OutputFailed, match="cannot write /dev/full: No space left on device") as caught:
        write_records(Path("/dev/full"), format, *[records] * 10, compression=compression, discard=False)
    alone = OutputFailed(*caught.value.args)  # dask, if imported, would pickle the traceback too
    assert str(pickle.loads(pickle.dumps(alone))) == str(caught.value)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "blocker").write_bytes(b"")
    with pytest.raises(OutputFailed, match=r"cannot write .*blocker/out: "):
        open_sink(str(tmp_path / "blocker/out"))


@pytest.mark.parametrize("format", OUTPUT_FORMATS)
@pytest.mark.parametrize("place", ["local", "memory"])
def test_abort_leaves_nothing(tmp_path: Path, format: str, place: str) -> None:
    folder = str(tmp_path) if place == "local" else "memory://mr-outputs"
    sink = open_sink(f"{folder}/o", format=format)
    sink.write_records([("a", 1)])
    sink.abort()
    sink.abort()
    fs, path = fsspec.url_to_fs(folder)
    assert fs.ls(path) == []


def test_a_remote_part_is_written_whole_and_its_bytes_are_counted() -> None:
    fs = fsspec.filesystem("memory")
    sink = open_sink("memory://mr-outputs/p.txt.gz", compression="gzip")
    sink.write_records([("a", 1)])
    rows, size = sink.close()
    data = fs.cat("/mr-outputs/p.txt.gz")
    assert (rows, size) == (1, len(data))
    assert gzip.decompress(data) == b"a\t1\n"
    fs.rm("/mr-outputs", recursive=True)
