"""The verdict on a sort against sorted(), and the fault it names."""

from __future__ import annotations

import bz2
import gzip
import itertools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import jobs.cli.data
from jobs.fingerprints import Block, add_up, fingerprints
from jobs.sort_key import SortKey
from jobs.validate import Verdict, read_blocks, validate
from mapreduce.errors import BadInput, BadJob, MissingInput
from mapreduce.sources import Source, list_files

# Few letters and short lines, so that equal lines and equal beginnings are common.
LINES = st.lists(st.binary(max_size=4).map(lambda line: bytes(byte % 4 + 97 for byte in line)), max_size=12)


def write(path: Path, lines: Sequence[bytes]) -> str:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def fingerprint(line: bytes) -> int:
    """The fingerprint of one line, whatever stands before and after it."""
    data = b"before\n" + line + b"\nafter" + bytes(8)
    block = Block(data=data, starts=np.array([7]), ends=np.array([7 + len(line)]))
    return add_up(fingerprints(block))


def judged(lines: Sequence[bytes], parts: Sequence[Sequence[bytes]], key: SortKey | None = None) -> Verdict:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "out")
        output.mkdir()
        for number, part in enumerate(parts):
            write(output / f"part-{number:05}", part)
        (output / "_SUCCESS").write_bytes(b"not a record")
        (output / ".part-00000.crc").write_bytes(b"nor this")
        return validate(write(Path(folder, "in"), lines), str(output), key)


@given(lines=LINES, cuts=st.lists(st.integers(0, 12), max_size=3))
def test_the_sorted_lines_in_any_number_of_parts_are_valid(lines: list[bytes], cuts: list[int]) -> None:
    ordered = sorted(lines)
    bounds = [0, *sorted(min(cut, len(lines)) for cut in cuts), len(lines)]
    parts = [ordered[start:stop] for start, stop in itertools.pairwise(bounds)]
    verdict = judged(lines, parts)
    assert verdict.fault is None
    assert verdict.records == len(lines)
    assert verdict.checksum == sum(fingerprint(line) for line in lines) % 2**128
    assert verdict.parts == len(parts)


@given(lines=LINES, output=LINES, cut=st.integers(0, 12))
def test_any_output_is_valid_exactly_if_it_is_the_sorted_lines(
    lines: list[bytes], output: list[bytes], cut: int
) -> None:
    assert judged(lines, [output[:cut], output[cut:]]).valid == (output == sorted(lines))


@given(lines=LINES.filter(bool), data=st.data())
def test_a_swap_a_loss_a_duplicate_and_a_changed_byte_are_all_found(
    lines: list[bytes], data: st.DataObject
) -> None:
    right = sorted(lines)
    output = list(right)
    i, j = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    damage = data.draw(st.sampled_from(["swap", "lose", "duplicate", "change"]))
    if damage == "swap":
        output[i], output[j] = output[j], output[i]
    elif damage == "lose":
        del output[i]
    elif damage == "duplicate":
        output.insert(i, output[i])
    else:
        output[i] += b"a"
    assert judged(lines, [output[:j], output[j:]]).valid == (output == right)


@given(numbers=st.lists(st.tuples(st.integers(-50, 50), st.sampled_from("xyz"))), descending=st.booleans())
def test_a_numeric_field_orders_by_value_and_leaves_ties_alone(
    numbers: list[tuple[int, str]], descending: bool
) -> None:
    lines = [f"{letter} {number}".encode() for number, letter in numbers]
    output = sorted(lines, key=lambda line: int(line.split()[1]), reverse=descending)
    key = SortKey(field=2, numeric=True, descending=descending)
    assert judged(lines, [output], key).fault is None
    distinct = len({number for number, _ in numbers})
    assert judged(lines, [output[::-1]], key).valid == (distinct < 2)


def test_a_fault_inside_a_part_names_file_record_and_both_keys(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out" / "part-00000", [b"a", b"b"])
    write(tmp_path / "out" / "part-00001", [b"b", b"d", b"c"])
    verdict = validate(write(tmp_path / "in", [b"a", b"b", b"b", b"c", b"d"]), str(tmp_path / "out"))
    assert verdict.fault == f"{tmp_path}/out/part-00001 record 3 (c) belongs before record 2 (d)"


def test_a_fault_across_parts_names_the_first_record_of_the_later_part(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out" / "part-00000", [b"a", b"x"])
    write(tmp_path / "out" / "part-00001", [])
    write(tmp_path / "out" / "part-00002", [b"b"])
    verdict = validate(write(tmp_path / "in", [b"a", b"b", b"x"]), str(tmp_path / "out"))
    assert verdict.fault == (
        f"{tmp_path}/out/part-00002 record 1 (b) belongs before record 2 of {tmp_path}/out/part-00000 (x)"
    )


def test_order_is_checked_between_blocks_of_a_file_larger_than_one(tmp_path: Path) -> None:
    lines = [b"%09d" % number for number in range(900_000)]
    source = write(tmp_path / "in", lines)
    assert validate(source, source).records == 900_000
    block = 1 << 20
    first_of_second_block = block // 10
    lines[first_of_second_block - 1], lines[first_of_second_block] = (
        lines[first_of_second_block],
        lines[first_of_second_block - 1],
    )
    fault = validate(source, write(tmp_path / "out", lines)).fault
    assert fault is not None
    assert f"record {first_of_second_block + 1:,} " in fault


@given(
    pieces=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\r", b"bc", b"\xef\xbb\xbf"]), max_size=20),
    block_bytes=st.integers(1, 9),
)
def test_lines_are_those_of_a_simple_split_whatever_the_block_size(
    pieces: list[bytes], block_bytes: int
) -> None:
    data = b"".join(pieces)
    whole, newline, rest = data.removeprefix(b"\xef\xbb\xbf").rpartition(b"\n")
    expected = [line.removesuffix(b"\r") for line in whole.split(b"\n")] if newline else []
    expected += [rest] if rest else []
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        (found,) = list_files(Source(urls=(file.name,), format="text"))
        assert [line for block in read_blocks(found, block_bytes) for line in block.lines()] == expected


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".txt", gzip.compress)]
)
def test_compressed_files_are_judged_by_what_they_hold(tmp_path: Path, suffix: str, compress: object) -> None:
    assert callable(compress)
    source = write(tmp_path / "in", [b"b", b"a"])
    (tmp_path / f"out{suffix}").write_bytes(compress(b"a\n") + compress(b"b\n"))
    assert validate(source, str(tmp_path / f"out{suffix}")).fault is None


def test_a_truncated_gzip_file_is_an_error_and_no_verdict(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [b"a"] * 1000)
    (tmp_path / "out.gz").write_bytes(gzip.compress(b"a\n" * 1000)[:-9])
    with pytest.raises(BadInput, match=r"out\.gz"):
        validate(source, str(tmp_path / "out.gz"))


def test_a_pattern_selects_the_parts(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [b"b", b"a"])
    write(tmp_path / "part-1", [b"b"])
    write(tmp_path / "part-0", [b"a"])
    write(tmp_path / "other", [b"zzz"])
    assert validate(source, str(tmp_path / "part-*")).fault is None


ROWS: list[dict[str, Any]] = [
    {"n": None, "word": "b", "price": 2.0},
    {"n": 1, "word": "b", "price": 0.5},
    {"n": 1, "word": "a", "price": -0.0},
    {"n": 9007199254740993, "word": "c", "price": None},
]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    table = pa.Table.from_pylist(
        rows, schema=pa.schema([("n", pa.int64()), ("word", pa.string()), ("price", pa.float64())])
    )
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        pa.csv.write_csv(table.select(["price", "word", "n"]), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("output", ["out.parquet", "out.csv", "out.jsonl"])
@pytest.mark.parametrize("source", ["in.parquet", "in.csv", "in.jsonl"])
def test_rows_of_any_format_are_judged_by_the_columns_they_are_sorted_by(
    tmp_path: Path, source: str, output: str
) -> None:
    given = write_rows(tmp_path / source, ROWS[::-1])
    right = write_rows(tmp_path / output, ROWS)
    assert validate(given, right, SortKey(columns=("n",))).fault is None
    fault = validate(given, right, SortKey(columns=("n", "word"))).fault
    assert fault is not None
    assert " record 3 (" in fault
    swapped = write_rows(tmp_path / f"swapped-{output}", [*ROWS[:3], {**ROWS[3], "word": "d"}])
    fault = validate(given, swapped, SortKey(columns=("n",))).fault
    assert fault is not None
    assert "not the same ones" in fault


def test_a_key_that_does_not_fit_the_records_is_refused(tmp_path: Path) -> None:
    table = write_rows(tmp_path / "in.csv", ROWS)
    text = write(tmp_path / "in.txt", [b"a"])
    for source, key, says in [
        (table, SortKey(), "give --key the columns"),
        (table, SortKey(field=1), "give --key the columns"),
        (table, SortKey(columns=("x",)), "no column 'x'; the columns are: price, word, n"),
        (text, SortKey(columns=("n",)), "give --key the number of a field"),
    ]:
        with pytest.raises(BadJob, match=says):
            validate(source, source, key)
    assert validate(table, table, format="text").fault is not None  # its header comes first


@given(lines=st.lists(st.binary(max_size=40).map(lambda line: bytes(b % 3 for b in line)), min_size=1))
def test_lines_with_zeros_and_common_beginnings_are_told_apart(lines: list[bytes]) -> None:
    lines = [line.ljust(len(line) + 1, b"x") if line.endswith(b"\r") else line for line in lines]
    found = [fingerprint(line) for line in lines]
    assert len(set(found)) == len(set(lines))
    assert judged(lines, [sorted(lines)]).valid
    assert judged(lines, [lines]).valid == (lines == sorted(lines))
    long = [b"z" * 5000 + line for line in lines]
    assert judged(long, [sorted(long)]).valid
    assert judged(long, [long], SortKey(descending=True)).valid == (long == sorted(long, reverse=True))


def test_a_missing_side_is_an_error(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [b"a"])
    with pytest.raises(MissingInput, match="nothing-here"):
        validate(source, str(tmp_path / "nothing-here"))
    with pytest.raises(MissingInput, match="nothing-here"):
        validate(str(tmp_path / "nothing-here"), source)


@pytest.mark.parametrize(
    ("key", "ordered"),
    [
        (SortKey(field=2), [b"alone", b"", b"x 10", b"x\t9", b"  x  9 z"]),
        (SortKey(field=2, descending=True), [b"x 9", b"x 10", b"alone"]),
        (
            SortKey(field=2, numeric=True),
            [b"alone", b"x nan", b"x word", b"x -1e3", b"x 9", b"x 10", b"x 1e9"],
        ),
        (SortKey(field=2, numeric=True, descending=True), [b"x 10", b"x 9.5", b"x .5", b"x word", b""]),
        (SortKey(field=2, separator=","), [b"a", b"a,,z", b"b,", b"a, ", b"a,b"]),
    ],
)
def test_a_line_without_its_key_comes_first_and_last_when_descending(
    key: SortKey, ordered: list[bytes]
) -> None:
    assert judged(ordered, [ordered], key).fault is None
    assert not judged(ordered, [[*ordered[1:], ordered[0]]], key).valid


@pytest.mark.parametrize(
    "options", [{"field": 0}, {"numeric": True}, {"separator": ","}, {"field": 1, "separator": ""}]
)
def test_a_key_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadJob):
        SortKey(**options)  # type: ignore[arg-type]


def test_the_command_exits_0_for_valid_and_1_with_one_line_for_invalid(tmp_path: Path) -> None:
    source = write(tmp_path / "in", [b"b", b"a"])
    good, bad = write(tmp_path / "good", [b"a", b"b"]), write(tmp_path / "bad", [b"a", b"b", b"c"])
    run = CliRunner().invoke
    result = run(jobs.cli.data.validate, [source, good], standalone_mode=False)
    assert result.return_value == 0
    assert result.output.startswith("valid: 2 records in 1 part")
    result = run(jobs.cli.data.validate, [source, bad], standalone_mode=False)
    assert result.return_value == 1
    assert result.output == f"invalid: {bad} has 3 records, {source} has 2\n"
    result = run(jobs.cli.data.validate, [source, bad, "--quiet"], standalone_mode=False)
    assert (result.return_value, result.output) == (1, "")
