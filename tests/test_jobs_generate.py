"""Generated data: its bytes by independent recomputation, its statistics, and what a failure leaves."""

from __future__ import annotations

import bz2
import collections
import datetime
import gzip
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import click
import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import jobs.cli.data
from jobs import synthetic_points
from jobs.generate import KINDS, LINES, generate
from jobs.sizes import parse_size
from mapreduce.errors import BadJob, OutputExists, OutputFailed

RECORD = re.compile(rb"[ -~]{10}  ([0-9A-F]{32})  ([0-9A-F]{53})\n")
VARIABLE_RECORD = re.compile(rb"[ -~]{1,19}  ([0-9A-F]{32})  ([0-9A-F]*)\n")
LOG = re.compile(
    r"(\d+\.\d+\.\d+\.\d+) - - \[([^]]+)\] "
    r'"(GET|POST|HEAD) (/[!-~]*) HTTP/1\.1" (\d{3}) (\d+|-) "([^"]+)" "([^"]+)"'
)


def made(path: Path, kind: str, size_bytes: int, **options: object) -> bytes:
    generate(kind, str(path), size_bytes=size_bytes, **options)  # type: ignore[arg-type]
    return path.read_bytes()


@pytest.mark.parametrize(
    ("kind", "options", "digest"),
    [
        ("text", {}, "730a6325fa423897f20995ef12160c4e"),
        ("records", {}, "6c58b03535c895531247fa20640150b4"),
        ("records", {"lines": "variable"}, "cddec32d600deb0d222b19beaee39c0c"),
        ("logs", {}, "84df0b8e664b1e63dc7f2ee3be1e7f95"),
        ("points", {}, "822ab383b1e3f34e36da3e64efc79343"),
        ("points", {"features": 3}, "56e120bed19c79f706c2d546a316f35d"),
        ("graph", {}, "f8d1a3e7a3ca651a92eba911875b3d96"),
        ("graph", {"nodes": 50}, "6bf5329918850ae71d6a913320730b88"),
    ],
    ids=str,
)
def test_a_seed_gives_the_bytes_that_it_always_gave(
    tmp_path: Path, kind: str, options: dict[str, object], digest: str
) -> None:
    # Of files that the first version of the generators wrote; a faster one may change no byte.
    data = made(tmp_path / "file", kind, 6_000_000, seed=7, **options)
    assert hashlib.sha256(data).hexdigest().startswith(digest)


def test_records_have_gensorts_layout_in_100_bytes_numbered_from_0(tmp_path: Path) -> None:
    data = made(tmp_path / "r", "records", 5_000_050)
    assert len(data) == 5_000_000
    for number in range(50_000):
        match = RECORD.fullmatch(data[100 * number : 100 * number + 100])
        assert match is not None
        assert int(match[1], 16) == number
        filler = match[2]
        assert all(filler[i : i + 4] == filler[i : i + 1] * 4 for i in range(0, 52, 4))
        assert filler[52] == filler[51]


def test_record_keys_use_all_95_printable_characters_evenly_in_every_place(tmp_path: Path) -> None:
    data = np.frombuffer(made(tmp_path / "r", "records", 9_500_000), np.uint8).reshape(-1, 100)
    for place in range(10):
        counts = np.bincount(data[:, place], minlength=127)[32:]
        assert len(counts) == 95
        # 95,000 keys: 1,000 of each character with standard deviation 31.5; six of those either way.
        assert all(811 < count < 1189 for count in counts)


def test_variable_records_have_lengths_of_38_to_164_bytes_and_101_on_average(tmp_path: Path) -> None:
    lines = made(tmp_path / "r", "records", 5_000_000, lines="variable").splitlines(keepends=True)
    for number, line in enumerate(lines):
        match = VARIABLE_RECORD.fullmatch(line)
        assert match is not None
        assert int(match[1], 16) == number
        assert len(match[2]) % 4 == 0
    lengths = [len(line) for line in lines]
    assert (min(lengths), max(lengths)) == (38, 164)
    assert abs(sum(lengths) / len(lines) - 101) < 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path, kind: str) -> None:
    first = made(tmp_path / "a", kind, 300_000, seed=7)
    assert made(tmp_path / "b", kind, 300_000, seed=7) == first
    assert made(tmp_path / "c", kind, 300_000, seed=8) != first


@pytest.mark.parametrize("kind", KINDS)
def test_a_smaller_file_is_the_beginning_of_a_larger_one(tmp_path: Path, kind: str) -> None:
    options = {"nodes": 1000} if kind == "graph" else {}
    large = made(tmp_path / "large", kind, 2_000_000, **options)
    small = made(tmp_path / "small", kind, 150_000, **options)
    assert large.startswith(small)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size_bytes", [1, 999, 1_000_000, 6_000_001])
def test_a_file_holds_the_whole_lines_that_fit_and_one_at_least(
    tmp_path: Path, kind: str, size_bytes: int
) -> None:
    result = generate(kind, str(tmp_path / "f"), size_bytes=size_bytes)
    data = (tmp_path / "f").read_bytes()
    header = 1 if kind == "points" else 0
    assert data.endswith(b"\n")
    assert data.count(b"\n") == result.lines + header
    assert result.size_bytes == len(data)
    assert size_bytes - 400 < len(data) <= size_bytes or result.lines == 1


def test_text_has_10_to_12_words_a_line_with_zipfs_frequencies_and_words_that_are_not_ascii(
    tmp_path: Path,
) -> None:
    text = made(tmp_path / "t", "text", 6_000_000).decode()
    per_line = collections.Counter(len(line.split(" ")) for line in text.splitlines())
    assert sorted(per_line) == [10, 11, 12]
    words = collections.Counter(text.split())
    ranked = [count for _, count in words.most_common()]
    total = sum(ranked)
    # Zipf over 100,000 words: the k-th has a share of 1 / (12.09 k).
    for rank in (1, 2, 10, 100):
        assert abs(ranked[rank - 1] * 12.09 * rank / total - 1) < 0.15
    assert 40_000 < len(words) <= 100_000
    foreign = sum(count for word, count in words.items() if not word.isascii()) / total
    assert 0.01 < foreign < 0.1
    mean_length = sum(len(word) * count for word, count in words.items()) / total
    assert 4 < mean_length < 8


def test_logs_are_combined_format_in_order_of_time_with_sessions_of_several_requests(tmp_path: Path) -> None:
    lines = made(tmp_path / "l", "logs", 8_000_000).decode().splitlines()
    times, last_seen, gaps = [], {}, []
    for line in lines:
        match = LOG.fullmatch(line)
        assert match is not None, line
        host = match[1]
        second = datetime.datetime.strptime(match[2], "%d/%b/%Y:%H:%M:%S %z").timestamp()
        assert (match[6] == "-") == (match[5] == "304")
        times.append(second)
        if host in last_seen:
            gaps.append(second - last_seen[host])
        last_seen[host] = second
    assert times == sorted(times)
    # Requests inside a visit come at most a minute apart; visits are pauses of more than half an hour.
    assert sum(gap <= 60 for gap in gaps) > len(gaps) / 2
    assert sum(gap > 1800 for gap in gaps) > 50


def test_points_lie_on_the_side_of_the_hyperplane_that_their_label_says_but_for_one_in_twenty(
    tmp_path: Path,
) -> None:
    data = made(tmp_path / "p.csv", "points", 1_500_000, seed=3, features=4).decode().splitlines()
    assert data[0] == "x0,x1,x2,x3,label"
    rows = np.array([[float(value) for value in line.split(",")] for line in data[1:]])
    sides = rows[:, :4] @ synthetic_points.hyperplane(3, 4) > 1e-9
    wrong = np.mean(sides != rows[:, 4])
    assert abs(wrong - 1 / 20) < 0.005
    assert np.allclose(rows[:, :4].std(axis=0), 1, atol=0.02)
    assert np.allclose(rows[:, :4].mean(axis=0), 0, atol=0.02)


def test_points_as_parquet_are_the_points_as_csv(tmp_path: Path) -> None:
    rows = made(tmp_path / "p.csv", "points", 400_000, features=3).decode().splitlines()
    generate("points", str(tmp_path / "p.parquet"), size_bytes=8 * 4 * (len(rows) - 1), features=3)
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.column_names == rows[0].split(",")
    expected = [tuple(float(value) for value in row.split(",")) for row in rows[1:]]
    assert list(zip(*table.to_pydict().values(), strict=True)) == expected


def test_a_graph_names_every_node_as_source_and_has_a_few_nodes_with_most_edges(tmp_path: Path) -> None:
    lines = made(tmp_path / "g", "graph", 2_000_000, nodes=10_000).decode().splitlines()
    edges = [tuple(map(int, line.split("\t"))) for line in lines]
    assert all(source != target for source, target in edges)
    assert {source for source, _ in edges} == set(range(10_000))
    assert all(0 <= target < 10_000 for _, target in edges)
    first_pass = next(i for i in range(1, len(edges)) if edges[i][0] < edges[i - 1][0])
    out = np.array(sorted(collections.Counter(source for source, _ in edges[:first_pass]).values()))
    assert abs(out.mean() - 10) < 1
    # Pareto with exponent 2: P(degree > d) = (5.25 / d)**2 beyond the least degree.
    for degree in (20, 50):
        assert abs((out >= degree).mean() / (5.25 / degree) ** 2 - 1) < 0.35


def test_a_tiny_graph_has_no_self_loop(tmp_path: Path) -> None:
    lines = made(tmp_path / "g", "graph", 2_000, nodes=2).split()
    assert set(zip(lines[::2], lines[1::2], strict=True)) == {(b"0", b"1"), (b"1", b"0")}


@pytest.mark.parametrize(("suffix", "decompress"), [(".gz", gzip.decompress), (".bz2", bz2.decompress)])
def test_a_compressed_name_holds_the_same_bytes_compressed(
    tmp_path: Path, suffix: str, decompress: collections.abc.Callable[[bytes], bytes]
) -> None:
    plain = made(tmp_path / "t.txt", "text", 200_000)
    assert decompress(made(tmp_path / f"t.txt{suffix}", "text", 200_000)) == plain


def test_any_fsspec_url_can_be_written(tmp_path: Path) -> None:
    plain = made(tmp_path / "r", "records", 10_000)
    generate("records", "memory://generated/deep/r", size_bytes=10_000)
    memory = fsspec.filesystem("memory")
    assert memory.cat_file("/generated/deep/r") == plain
    assert [name.rpartition("/")[2] for name in memory.ls("/generated/deep", detail=False)] == ["r"]
    with pytest.raises(OutputExists):
        generate("records", "memory://generated/deep/r", size_bytes=10_000)
    memory.rm("/generated", recursive=True)


def test_an_existing_file_stays_unless_overwrite_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"precious")
    with pytest.raises(OutputExists, match="--overwrite"):
        generate("records", str(tmp_path / "r"), size_bytes=1_000)
    assert (tmp_path / "r").read_bytes() == b"precious"
    generate("records", str(tmp_path / "r"), size_bytes=1_000, overwrite=True)
    assert (tmp_path / "r").stat().st_size == 1_000


def test_a_write_that_fails_midway_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"precious")
    # In a process whose files may not pass 5 MB: the write fails like that on a full disk.
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, 5_000_000));"
        "from jobs.generate import generate;"
        "generate('records', sys.argv[1], size_bytes=20_000_000, overwrite=True)"
    )
    for name in ("kept", "new"):
        target = str(tmp_path / name)
        result = subprocess.run(
            [sys.executable, "-c", program, target], capture_output=True, text=True, check=False
        )
        assert result.returncode == 1
        assert result.stderr.splitlines()[-1].startswith(
            f"mapreduce.errors.OutputFailed: cannot write {target}: "
        )
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_bytes() == b"precious"


def test_a_place_that_cannot_hold_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(OutputFailed, match=r"cannot write .*/file/below-a-file: "):
        generate("records", str(tmp_path / "file" / "below-a-file"), size_bytes=1_000)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputExists, match="folder"):
        generate("records", str(tmp_path / "folder"), size_bytes=1_000, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "poems"},
        {"size_bytes": 0},
        {"seed": -1},
        {"lines": "long"},
        {"kind": "points", "features": 0},
        {"kind": "graph", "nodes": 1},
        {"kind": "graph", "nodes": 2**31},
    ],
)
def test_arguments_out_of_range_are_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, object]
) -> None:
    arguments: dict[str, object] = {"kind": "records", "size_bytes": 1_000} | options
    kind = str(arguments.pop("kind"))
    with pytest.raises(BadJob):
        generate(kind, str(tmp_path / "f"), **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1KB", 1000),
        ("1kb", 1000),
        ("1.5 MB", 1_500_000),
        ("1GiB", 2**30),
        ("2T", 2 * 10**12),
        ("7", 7),
        ("7B", 7),
    ],
)
def test_sizes_are_decimal_as_written_and_binary_with_an_i(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1KB", "1XB", "1iB", "1.0005KB", "1e3", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def test_the_command_writes_what_the_function_writes(tmp_path: Path) -> None:
    arguments = ["records", str(tmp_path / "a"), "--size", "2KB", "--seed", "5", "--lines", "variable"]
    result = CliRunner().invoke(jobs.cli.data.generate, arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a").read_bytes() == made(tmp_path / "b", "records", 2000, seed=5, lines="variable")
    assert str(tmp_path / "a") in result.output


def test_an_option_of_another_kind_is_a_wrong_command_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(jobs.cli.data.generate, ["text", str(tmp_path / "a"), "--nodes", "5"])
    assert result.exit_code == 2
    assert "--nodes is for graph" in result.output
    assert list(tmp_path.iterdir()) == []


def test_the_command_knows_the_kinds_that_the_function_knows() -> None:
    choices = {
        parameter.name: parameter.type.choices
        for parameter in jobs.cli.data.generate.params
        if isinstance(parameter.type, click.Choice)
    }
    assert {name: tuple(values) for name, values in choices.items()} == {"kind": KINDS, "lines": LINES}
