"""What broke for users of other systems, on inputs made here: text, compression, folders, sorting, Parquet.

Each test runs ``mr run`` and compares with an answer worked out by hand or by plain Python.
"""

from __future__ import annotations

import bz2
import collections
import csv
import datetime
import gzip
import hashlib
import io
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mr_command import MrCommand

JOBS = '''
from mapreduce import Stage, job

def split(offset, line):
    key, _, value = line.partition("\\t")
    yield key, value

def every(key, values):
    for value in values:
        yield key, value

@job
def cat(text, *, partitions: int = 1):
    """Records by the text before their first tab."""
    return Stage(map=split, reduce=every, partitions=partitions)(text)

@job
def groups(text, *, partitions: int = 1):
    """One line per key with all its values."""
    return Stage(map=split, reduce=lambda k, vs: [(k, "|".join(vs))], partitions=partitions)(text)

@job
def lines(text):
    """The lines as they are, in input order."""
    return Stage(map=lambda offset, line: [(line, None)])(text)

@job
def sizes(text):
    """How long each line is."""
    return Stage(map=lambda offset, line: [(len(line), None)])(text)

@job
def rows(table):
    """Rows of a table as Python shows them."""
    return Stage(map=lambda number, row: [(repr(row), None)])(table)

@job
def by_k(table, *, partitions: int = 1):
    """Rows sorted by their field k, whatever it is."""
    show = lambda k, seqs: [(repr(k), ",".join(map(str, seqs)))]
    return Stage(map=lambda n, row: [(row["k"], row["seq"])], reduce=show, partitions=partitions)(table)

@job
def count(text, *, partitions: int = 4):
    """How often each key occurs."""
    one = lambda offset, line: [(line.partition("\\t")[0], 1)]
    return Stage(map=one, reduce=lambda k, ns: [(k, sum(ns))], partitions=partitions)(text)

@job
def sorted_keys(text, *, partitions: int = 16):
    """Total order of records by a sample of them."""
    cuts = Stage(map=split, reduce=every, partitions=1)(text)
    return Stage(map=split, reduce=every, partition="range", side={"cuts": cuts}, partitions=partitions)(text)
'''


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> MrCommand:
    command = MrCommand(tmp_path, monkeypatch, capfd)
    Path("jobs_.py").write_text(JOBS)
    return command


def put(name: str, data: bytes | str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def hex_lines(count: int) -> bytes:
    return b"".join(
        b"%08d\t%s\n" % (i, hashlib.sha256(b"%d" % i).hexdigest()[:32].encode()) for i in range(count)
    )


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("split_size", [7, 1000])
def test_crlf_and_lf_are_the_same_records(mr: MrCommand, split_size: int) -> None:
    put("in.txt", b"apple\t1\r\npear\t2\nfig\t3\r\n")
    found = mr.run("jobs_.py:cat", "in.txt", "--split-size", split_size)
    assert found == [b"apple\t1", b"fig\t3", b"pear\t2"]


@pytest.mark.parametrize("split_size", [5, 1000])
def test_a_lone_carriage_return_is_data(mr: MrCommand, split_size: int) -> None:
    put("in.txt", b"k1\tfoo\rbar\nk2\tbaz\n")
    assert mr.run("jobs_.py:cat", "in.txt", "--split-size", split_size) == [b"k1\tfoo\rbar", b"k2\tbaz"]
    assert mr.run("sort", "out", output="again") == [b"k1\tfoo\rbar", b"k2\tbaz"]


@pytest.mark.parametrize("split_size", [1, 3, 1000])
def test_a_last_line_without_a_newline_is_a_record_of_its_own(mr: MrCommand, split_size: int) -> None:
    put("in/a.txt", b"a\t1")
    put("in/b.txt", b"b\t2\nc\t3")
    assert mr.run("jobs_.py:cat", "in", "--split-size", split_size) == [b"a\t1", b"b\t2", b"c\t3"]
    assert mr.run("sort", "in", "--split-size", split_size, output="o2") == [b"a\t1", b"b\t2", b"c\t3"]


@pytest.mark.parametrize(
    "job", ["jobs_.py:cat", "wordcount", "sort", "distinct", "top_words", "jobs_.py:lines"]
)
def test_empty_files_give_empty_parts(mr: MrCommand, job: str) -> None:
    put("in/e1.txt", b"")
    put("in/e2.txt", b"")
    assert mr.run(job, "in", "--split-size", "10") == []


@pytest.mark.parametrize("split_size", [4, 1000])
def test_csv_files_without_rows_beside_one_with_a_row(mr: MrCommand, split_size: int) -> None:
    put("in/empty.csv", b"")
    put("in/header_only.csv", b"id,name\n")
    put("in/z.csv", b"id,name\n1,x\n")
    found = mr.run("jobs_.py:rows", "in", "--split-size", split_size)
    assert found == [b"{'id': 1, 'name': 'x'}"]


def test_json_lines_skip_blank_lines_and_the_byte_order_mark(mr: MrCommand) -> None:
    put("blank.jsonl", b'{"id": 1}\n\n   \n{"id": 2}\r\n\n')
    put("bom.jsonl", b'\xef\xbb\xbf{"id": 1}\n{"id": 2}\n{"id": 3}\n')
    assert mr.run("jobs_.py:rows", "blank.jsonl", output="o1") == [b"{'id': 1}", b"{'id': 2}"]
    found = mr.run("jobs_.py:rows", "bom.jsonl", "--split-size", 8, output="o2")
    assert found == [b"{'id': 1}", b"{'id': 2}", b"{'id': 3}"]


def test_text_keeps_blank_lines(mr: MrCommand) -> None:
    put("in.txt", b"a\n\n \nb\n\n")
    assert mr.run("jobs_.py:lines", "in.txt", "--split-size", 2) == [b"a", b"", b" ", b"b", b""]


NOT_UTF8 = b"caf\xe9\t1\nok\t2\n\xff\xfe\t3\n\xed\xa0\x80\t4\n"


def test_bytes_that_are_not_utf8_pass_through_surrogateescape(mr: MrCommand) -> None:
    put("in.txt", NOT_UTF8)
    found = mr.run("jobs_.py:cat", "in.txt", "--errors", "surrogateescape", "--split-size", 6)
    assert sorted(found) == sorted(NOT_UTF8.splitlines())
    assert (
        mr.run("jobs_.py:lines", "in.txt", "--errors", "surrogateescape", output="o2")
        == NOT_UTF8.splitlines()
    )


def test_bytes_that_are_not_utf8_are_replaced_or_ignored_on_request(mr: MrCommand) -> None:
    put("in.txt", NOT_UTF8)
    for errors in ("replace", "ignore"):
        found = mr.run("jobs_.py:lines", "in.txt", "--errors", errors, output=errors)
        assert b"\n".join(found).decode() + "\n" == NOT_UTF8.decode("utf-8", errors)


def test_batch_jobs_on_lines_never_decode_them(mr: MrCommand) -> None:
    put("in.txt", NOT_UTF8)
    assert mr.run("sort", "in.txt") == sorted(NOT_UTF8.splitlines())


def test_nul_bytes_are_kept_in_keys_and_values(mr: MrCommand) -> None:
    put("in.txt", b"a\x00b\t1\n\x00\t2\nplain\tx\x00y\na\t3\n")
    expected = sorted(
        [b"a\x00b\t1", b"\x00\t2", b"plain\tx\x00y", b"a\t3"], key=lambda li: li.split(b"\t")[0]
    )
    assert mr.run("jobs_.py:cat", "in.txt") == expected
    put("in.csv", b'a\n"x\x00y"\n')
    assert mr.run("jobs_.py:rows", "in.csv", output="o2") == [b"{'a': 'x\\x00y'}"]


def test_a_line_far_longer_than_a_split_is_read_once_and_whole(mr: MrCommand) -> None:
    put("in.txt", b"first\t1\nlong\t" + b"x" * 3_000_000 + b"\nlast\t3")
    assert mr.run("jobs_.py:sizes", "in.txt", "--split-size", "64KiB") == [b"7", b"3000005", b"6"]
    found = mr.run("jobs_.py:cat", "in.txt", "--split-size", "300KB", output="o2")
    assert [len(line) for line in found] == [7, 6, 3000005]


@pytest.mark.parametrize("split_size", [1, 2, 3, 7, 64])
def test_a_split_inside_a_character_damages_nothing(mr: MrCommand, split_size: int) -> None:
    words = ["naïve", "日本語", "😀😃", "ß", "ﬁ", "Ω≈ç"]
    lines = [f"{words[i % 6]}{i}\t{words[(i * 5) % 6] * (i % 4)}" for i in range(50)]
    put("in.txt", "\n".join(lines) + "\n")
    found = mr.run("jobs_.py:lines", "in.txt", "--split-size", split_size)
    assert [line.decode() for line in found] == lines


def test_unicode_line_separators_are_data(mr: MrCommand) -> None:
    texts = ["a\u2028b", "c\u2029d", "e\u0085f", "g\x0bh\x0ci\x1cj"]
    put("in.jsonl", "".join(json.dumps({"t": t}, ensure_ascii=False) + "\n" for t in texts))
    put("in.txt", "".join(t + "\n" for t in texts))
    found = mr.run("jobs_.py:rows", "in.jsonl", "--split-size", 5)
    assert found == [repr({"t": t}).encode() for t in texts]
    assert mr.run("jobs_.py:lines", "in.txt", output="o2") == [t.encode() for t in texts]


@pytest.mark.parametrize("split_size", [16, 64, 256, 100_000])
def test_quoted_newlines_in_csv_tear_no_row(mr: MrCommand, split_size: int) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["id", "note"])
    notes = ["plain {}", "line one {}\nline two\n\n1,2\n", 'say "{}", twice', "\n{}\n"]
    for i in range(40):
        writer.writerow([i, notes[i % 4].format(i)])
    put("in.csv", buffer.getvalue())
    found = mr.run("jobs_.py:rows", "in.csv", "--split-size", split_size)
    assert found == [repr({"id": i, "note": notes[i % 4].format(i)}).encode() for i in range(40)]


@pytest.mark.parametrize("split_size", [1, 2, 3, 4, 5, 8, 15])
def test_a_delimiter_of_two_bytes_that_overlaps_itself(mr: MrCommand, split_size: int) -> None:
    put("in.txt", b"1|2||3|||4||5|")
    found = mr.run("jobs_.py:lines", "in.txt", "--delimiter", "||", "--split-size", split_size)
    assert found == [b"1|2", b"3", b"|4", b"5|"]


# ---------------------------------------------------------------- compression


def raw_frame(data: bytes) -> bytes:
    """A zstd frame of one stored block."""
    head = struct.pack("<I", 0xFD2FB528) + bytes([0xA0]) + struct.pack("<I", len(data))
    return head + struct.pack("<I", len(data) << 3 | 1)[:3] + data


def test_all_members_of_a_compressed_file_are_read(mr: MrCommand) -> None:
    put("in.txt.gz", gzip.compress(b"a\t1\nb\t2\n") + gzip.compress(b"c\t3\n"))
    put("in.txt.bz2", bz2.compress(b"a\t1\nb") + bz2.compress(b"\t2\n") + bz2.compress(b"c\t3\n"))
    skippable = struct.pack("<II", 0x184D2A50, 5) + b"index"
    put("in.txt.zst", raw_frame(b"a\t1\nb\t") + skippable + raw_frame(b"2\nc\t3\n"))
    for extension in ("gz", "bz2", "zst"):
        found = mr.run("jobs_.py:cat", f"in.txt.{extension}", output=extension)
        assert found == [b"a\t1", b"b\t2", b"c\t3"]


def compress_zstd(data: bytes) -> bytes:
    found: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return found


@pytest.mark.parametrize("keep", [0.7, -8, -1])
@pytest.mark.parametrize("extension", ["gz", "bz2", "zst"])
def test_a_truncated_compressed_file_fails_and_is_named(mr: MrCommand, extension: str, keep: float) -> None:
    compress = {"gz": gzip.compress, "bz2": bz2.compress, "zst": compress_zstd}[extension]
    whole = compress(hex_lines(2000))
    put(f"in.txt.{extension}", whole[: int(len(whole) * keep)] if keep > 0 else whole[: int(keep)])
    for job in ("jobs_.py:lines", "sort"):
        assert f"in.txt.{extension}" in mr.refuse(job, f"in.txt.{extension}")


def test_plain_text_named_gz_is_read_by_what_it_is(mr: MrCommand) -> None:
    put("in.txt.gz", b"plain\t1\ntext\t2\n")
    put("other.txt", gzip.compress(b"packed\t1\n"))
    assert mr.run("jobs_.py:cat", "in.txt.gz") == [b"plain\t1", b"text\t2"]
    assert mr.run("jobs_.py:cat", "other.txt", output="o2") == [b"packed\t1"]


def test_a_compressed_file_is_one_piece_at_any_split_size(mr: MrCommand) -> None:
    put("in.txt.gz", gzip.compress(hex_lines(20_000), 1))
    assert mr.run("sort", "in.txt.gz", "--split-size", "64KiB") == hex_lines(20_000).splitlines()


# ---------------------------------------------------------------- folders and names


def test_marker_and_hidden_files_are_no_data(mr: MrCommand) -> None:
    put("in/part-00000", b"a\t1\n")
    put("in/part-00001", b"b\t2\n")
    put("in/_SUCCESS", b"")
    put("in/.part-00000.crc", b"crc\x00\x00")
    put("in/.DS_Store", b"\x00\x00\x00\x01Bud1")
    put("in/_temporary/0/part-00000", b"ghost\t1\n")
    put("in/_logs/history.txt", b"ghost\t2\n")
    for given in ("in", "in/", "in/*"):
        assert mr.run("jobs_.py:cat", given, output=f"o{len(given)}") == [b"a\t1", b"b\t2"]


def test_a_name_with_brackets_that_exists_is_no_pattern(mr: MrCommand) -> None:
    put("in/log[1].txt", b"brackets\t1\n")
    put("in/log1.txt", b"decoy\t1\n")
    put("in/a[b.txt", b"open\t1\n")
    assert mr.run("jobs_.py:cat", "in/log[1].txt") == [b"brackets\t1"]
    assert mr.run("jobs_.py:cat", "in/a[b.txt", output="o2") == [b"open\t1"]
    for name in ("log[1].txt", "log1.txt", "a[b.txt"):
        Path("one").mkdir(exist_ok=True)
        assert mr("fs", "put", f"in/{name}", f"gfs://in/{name}").code == 0
    assert mr("fs", "cat", "gfs://in/log[1].txt").out == "brackets\t1\n"
    found = mr("run", "jobs_.py:cat", "gfs://in/log[1].txt", "-o", "o3", "--workers", 0)
    assert (found.code, mr.parts("o3")) == (0, [b"brackets\t1\n"])
    assert mr("fs", "rm", "gfs://in/log[1].txt").code == 0
    assert mr("fs", "cat", "gfs://in/log1.txt").out == "decoy\t1\n"


ODD_NAMES = [
    "a b.txt",
    "a%20b.txt",
    "a#b.txt",
    "100%.txt",
    "a+b.txt",
    "a?b.txt",
    "ä.txt",
    "-x.txt",
    "a:b.txt",
]


def test_odd_names_are_read_as_they_are_written(mr: MrCommand) -> None:
    for name in ODD_NAMES:
        put(f"in/{name}", f"{name}\t1\n")
    assert sorted(mr.run("jobs_.py:lines", "in")) == sorted(f"{n}\t1".encode() for n in ODD_NAMES)
    for number, name in enumerate(ODD_NAMES):
        found = mr.run("jobs_.py:lines", f"in/{name}", output=f"o{number}")
        assert found == [f"{name}\t1".encode()]


def test_odd_names_are_the_same_in_the_chunk_store(mr: MrCommand) -> None:
    import fsspec

    store = fsspec.filesystem("gfs")
    for name in ODD_NAMES:
        store.pipe(f"/in/{name}", f"{name}\t1\n".encode())
    for number, given in enumerate(["gfs://in", *(f"gfs://in/{name}" for name in ODD_NAMES)]):
        ended = mr("run", "jobs_.py:lines", given, "-o", f"o{number}", "--workers", 0, "--quiet")
        assert (ended.code, ended.err) == (0, "")
        names = ODD_NAMES if number == 0 else [given.removeprefix("gfs://in/")]
        assert sorted(b"".join(mr.parts(f"o{number}")).splitlines()) == sorted(
            f"{n}\t1".encode() for n in names
        )


def test_links_are_followed_once_and_a_dangling_one_is_named(mr: MrCommand) -> None:
    put("in/real/x.txt", b"x\t1\n")
    os.symlink("..", "in/real/loop")
    os.symlink("real/x.txt", "in/link.txt")
    assert mr.run("jobs_.py:cat", "in") == [b"x\t1"]
    os.symlink("nowhere", "in/dangling")
    assert "in/dangling is a link to nowhere" in mr.refuse("jobs_.py:cat", "in", output="o2")


def test_subfolders_are_read(mr: MrCommand) -> None:
    put("in/top.txt", b"top\t1\n")
    put("in/sub/inner.txt", b"inner\t1\n")
    put("in/sub/deep/deeper.txt", b"deeper\t1\n")
    assert mr.run("jobs_.py:cat", "in") == [b"deeper\t1", b"inner\t1", b"top\t1"]


def test_thousands_of_small_files_need_few_tasks_and_few_open_files(mr: MrCommand) -> None:
    for i in range(3000):
        put(f"in/{i % 50:02d}/f{i:05d}.txt", f"{i % 7}\t1\n")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        process = mr.start("run", "jobs_.py:count", "in", "-o", "out", "--workers", 2, "--json", "run.json")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ended = mr.finish(process)
    assert ended.code == 0, ended.err
    found = sorted(b"".join(mr.parts()).splitlines())
    expected = collections.Counter(i % 7 for i in range(3000))
    assert found == [f"{k}\t{expected[k]}".encode() for k in range(7)]
    assert json.loads(Path("run.json").read_text())["stages"][0]["maps"] < 10


# ---------------------------------------------------------------- output


def test_a_failed_run_does_not_stand_in_the_way_of_the_next(mr: MrCommand) -> None:
    put("in.txt", b"a\t1\n" * 10)
    put("fails.py", JOBS.replace("yield key, value", "yield key, value, 1 / 0"))
    mr.fail("fails.py:cat", "in.txt")
    assert mr.run("jobs_.py:cat", "in.txt") == [b"a\t1"] * 10


def test_a_function_that_fails_on_its_first_attempt_costs_no_record(mr: MrCommand) -> None:
    put("in.txt", hex_lines(1000))
    put("flaky.py", """
import hashlib, os
from mapreduce import Stage, job

def split(offset, line, *, task):
    if task.attempt == 0 and offset > 20_000:
        raise RuntimeError("first attempt")
    key, _, value = line.partition("\\t")
    yield key, value

@job
def flaky(text):
    return Stage(map=split, reduce=lambda k, vs: [(k, v) for v in vs], partitions=3)(text)
""")  # fmt: skip
    found = mr.run("flaky.py", "in.txt", "--split-size", "10KB", workers=2)
    assert sorted(found) == hex_lines(1000).splitlines()


# ---------------------------------------------------------------- sort and shuffle


def test_one_key_with_all_values_fills_one_part(mr: MrCommand) -> None:
    put("in.txt", b"".join(b"k\t%d\n" % i for i in range(20_000)))
    found = mr.run("jobs_.py:cat", "in.txt", "-p", "partitions=4", "--split-size", "20KB")
    assert found == [b"k\t%d" % i for i in range(20_000)]
    assert sorted(len(part) > 0 for part in mr.parts()) == [False, False, False, True]
    assert mr.run("sort", "in.txt", "-p", "key=1", "--partitions", 4, output="o2") == found


def test_null_and_nan_keys_lose_no_row(mr: MrCommand) -> None:
    keys = [None, 1.5, float("nan"), -2.0, None, float("nan")]
    pq.write_table(pa.table({"k": pa.array(keys, pa.float64()), "v": [1, 2, 3, 4, 5, 6]}), "in.parquet")
    for partitions in (1, 4):
        found = mr.run(
            "sort", "in.parquet", "-p", "key=k", "--partitions", partitions, output=f"s{partitions}"
        )
        assert found == [b"\t1", b"\t5", b"-2\t4", b"1.5\t2", b"nan\t3", b"nan\t6"]
        found = mr.run(
            "group_by", "in.parquet", "-p", "by=k", "-p", "sum=v", "--partitions", partitions,
            output=f"g{partitions}",
        )  # fmt: skip
        assert sorted(found) == [b"\t6\t2", b"-2\t4\t1", b"1.5\t2\t1", b"nan\t9\t2"]


def test_keys_of_mixed_type_have_the_documented_order(mr: MrCommand) -> None:
    values = [1, "1", None, 2.5, True, "z", -3, 1.0, False]
    put("in.jsonl", "".join(json.dumps({"k": k, "seq": i}) + "\n" for i, k in enumerate(values)))
    # None, then numbers by value (bool is one: 1, True and 1.0 are one key, as in a dict), then text.
    expected = [b"None\t2", b"-3\t6", b"False\t8", b"1\t0,4,7", b"2.5\t3", b"'1'\t1", b"'z'\t5"]
    assert mr.run("jobs_.py:by_k", "in.jsonl") == expected
    assert mr.run("jobs_.py:by_k", "in.jsonl", "--split-size", 20, output="o2", workers=2) == expected


def test_a_key_without_a_place_in_the_order_is_refused_by_name(mr: MrCommand) -> None:
    for key, kind in (('{"a": 1}', "dict"), ("[1]", "list")):
        put("in.jsonl", f'{{"k": 1, "seq": 0}}\n{{"k": {key}, "seq": 1}}\n')
        said = mr.refuse("jobs_.py:by_k", "in.jsonl")
        assert said.startswith("job 'by_k', stage '")
        assert f"a {kind} cannot be a key" in said
        assert "in.jsonl" in said


@pytest.mark.parametrize("partitions", [1, 3])
def test_ties_keep_their_input_order_in_both_directions(mr: MrCommand, partitions: int) -> None:
    rows = [(k, i) for i, k in enumerate([2, 1, 2, 3, 1, 2, 3, 1] * 5)]
    put("in.csv", "k,seq\n" + "".join(f"{k},{s}\n" for k, s in rows))
    for descending in (False, True):
        found = mr.run(
            "sort", "in.csv", "-p", "key=k", "-p", f"descending={descending}", "--partitions", partitions,
            "--split-size", 40, output=f"o{descending}",
        )  # fmt: skip
        expected = sorted(rows, key=lambda r: -r[0] if descending else r[0])
        assert found == [f"{k}\t{s}".encode() for k, s in expected]


def test_the_order_is_by_bytes_under_any_locale_and_hash_seed(mr: MrCommand) -> None:
    keys = ["Z", "a", "A", "é", "z", "_", "-", "1", "10", "2", "a b", "a-b", "ab", "E", "e"]
    put("in.txt", "".join(f"{k}\t{i}\n" for i, k in enumerate(keys)))
    settings = [
        {"LC_ALL": "C", "PYTHONHASHSEED": "0"},
        {"LC_ALL": "en_US.UTF-8", "PYTHONHASHSEED": "1"},
        {"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ]
    started = [
        mr.start(
            "run", "jobs_.py:cat", "in.txt", "-o", f"o{i}", "-p", "partitions=3", "--workers", 1, **setting
        )
        for i, setting in enumerate(settings)
    ]
    for i, process in enumerate(started):
        ended = mr.finish(process)
        assert ended.code == 0, ended.err
        assert mr.parts(f"o{i}") == mr.parts("o0")
    found = [line.split(b"\t")[0].decode() for line in b"".join(mr.parts("o0")).splitlines()]
    assert sorted(found) == sorted(keys)
    expected = sorted(keys, key=str.encode)
    one = mr.run("jobs_.py:cat", "in.txt", output="one")
    assert [line.split(b"\t")[0].decode() for line in one] == expected


def test_values_keep_their_order_of_arrival_and_keys_sort_alone(mr: MrCommand) -> None:
    put("in.txt", b"k\t10\nk\t9\na\tx\na\x01\ty\nk\t2\na\tw\n")
    found = mr.run("jobs_.py:groups", "in.txt", "--split-size", 6)
    assert found == [b"a\tx|w", b"a\x01\ty", b"k\t10|9|2"]


@pytest.mark.parametrize("records", [0, 1, 100])
def test_fewer_distinct_keys_than_parts(mr: MrCommand, records: int) -> None:
    rng = random.Random(59)
    lines = [f"{rng.choice('abc')}\t{i}" for i in range(records)]
    put("in.txt", "".join(line + "\n" for line in lines))
    expected = [line.encode() for line in sorted(lines, key=lambda li: li[0])]
    assert mr.run("jobs_.py:sorted_keys", "in.txt", "--split-size", 50) == expected
    found = mr.run("sort", "in.txt", "-p", "key=1", "--partitions", 16, output="o2")
    assert found == expected
    for output in ("out", "o2"):
        assert len(mr.parts(output)) == 16
        holders = collections.Counter(
            k for part in mr.parts(output) for k in {li[:1] for li in part.splitlines()}
        )
        assert set(holders.values()) <= {1}


def test_parts_in_name_order_are_sorted_every_time(mr: MrCommand) -> None:
    rng = random.Random(62)
    lines = [f"{rng.randrange(10**6):06d}\t{i}" for i in range(1000)]
    put("in.txt", "".join(line + "\n" for line in lines))
    expected = [line.encode() for line in sorted(lines)]
    for turn in range(2):
        found = mr.run(
            "sort", "in.txt", "--partitions", 12, "--split-size", "2KB", output=f"o{turn}", workers=4
        )
        assert found == expected


def test_equal_keys_meet_whatever_process_hashed_them(mr: MrCommand) -> None:
    rng = random.Random(83)
    words = [f"word{rng.randrange(500)}" for _ in range(5000)]
    put("in.txt", "".join(f"{w}\t1\n" for w in words))
    found = mr.run("jobs_.py:count", "in.txt", "--split-size", "12KB", workers=2)
    assert len(found) == 500
    assert {k: int(n) for k, n in (li.decode().split("\t") for li in found)} == collections.Counter(words)


# ---------------------------------------------------------------- Arrow and Parquet


def rows_of(mr: MrCommand, given: str, *more: object, output: str = "out") -> list[Any]:
    found = mr.run("jobs_.py:rows", given, *more, output=output)
    return [eval(line, {"datetime": datetime, "nan": float("nan")}) for line in found]


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_a_column_of_nulls_only_takes_the_type_of_the_other_files(mr: MrCommand, order: str) -> None:
    tables = {
        "a": pa.table({"id": [1, 2], "v": pa.nulls(2)}),
        "b": pa.table({"id": [3, 4], "v": pa.array([30.0, None])}),
        "c": pa.table({"id": [5], "v": pa.array([0.5])}),
    }
    Path("in").mkdir()
    for number, name in enumerate(order):
        pq.write_table(tables[name], f"in/{number}.parquet")
    found = rows_of(mr, "in")
    assert sorted((r["id"], r["v"]) for r in found if r["v"] is not None) == [(3, 30.0), (5, 0.5)]
    assert sorted(r["id"] for r in found) == [1, 2, 3, 4, 5]
    assert len(mr.run("sort", "in", "-p", "key=id", output="o2")) == 5


def test_integers_of_several_widths_are_read_exactly(mr: MrCommand) -> None:
    Path("in").mkdir()
    pq.write_table(pa.table({"n": pa.array([1], pa.int32())}), "in/a.parquet")
    pq.write_table(pa.table({"n": pa.array([2**53 + 1], pa.int64())}), "in/b.parquet")
    assert [r["n"] for r in rows_of(mr, "in")] == [1, 2**53 + 1]
    pq.write_table(pa.table({"n": pa.array([0.5])}), "in/c.parquet")
    said = mr.refuse("jobs_.py:rows", "in", output="o2")
    assert "'n'" in said
    assert "int64" in said
    assert "double" in said
    assert "b.parquet" in said


def test_columns_are_matched_by_name_and_missing_ones_are_null(mr: MrCommand) -> None:
    Path("in").mkdir()
    pq.write_table(pa.table({"x": [1], "y": [10]}), "in/a.parquet")
    pq.write_table(pa.table({"y": [20], "x": [2]}), "in/b.parquet")
    pq.write_table(pa.table({"x": [3]}), "in/c.parquet")
    pq.write_table(pa.table({"x": [4], "y": [40], "z": [400]}), "in/d.parquet")
    found = rows_of(mr, "in")
    assert [r["x"] for r in found] == [1, 2, 3, 4]
    assert [r["y"] for r in found] == [10, 20, None, 40]
    assert [r["z"] for r in found] == [None, None, None, 400]


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_dictionaries_of_several_files_join(mr: MrCommand, format: str) -> None:
    Path("in").mkdir()
    kind = pa.dictionary(pa.int8(), pa.string())
    for name, low in (("a", 0), ("b", 100)):
        table = pa.table({"c": pa.array([f"v{i:03d}" for i in range(low, low + 100)]).cast(kind)})
        if format == "parquet":
            pq.write_table(table, f"in/{name}.parquet")
        else:
            with pa.ipc.new_file(f"in/{name}.arrow", table.schema) as writer:
                writer.write_table(table)
    found = mr.run("sort", "in", "-p", "key=c", "-p", "descending=true")
    assert found == [b"v%03d" % i for i in range(199, -1, -1)]
    assert len(mr.run("group_by", "in", "-p", "by=c", output="o2")) == 200


def test_parquet_without_row_groups_or_rows(mr: MrCommand) -> None:
    Path("in").mkdir()
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pq.ParquetWriter("in/a.parquet", schema):
        pass
    pq.write_table(schema.empty_table(), "in/b.parquet")
    alone = ["sort", "in/a.parquet", "-p", "key=id", "--output-format", "parquet"]
    assert mr("run", *alone, "-o", "o1", "--workers", 0, "--quiet").code == 0
    read = pq.read_table("o1")
    assert (read.num_rows, read.column_names) == (0, ["id", "name"])
    pq.write_table(pa.table({"id": [1], "name": ["x"]}, schema=schema), "in/c.parquet")
    assert rows_of(mr, "in") == [{"id": 1, "name": "x"}]


def test_rows_of_megabytes_are_sorted_in_less_memory_than_their_column(mr: MrCommand) -> None:
    # 22 rows of 100 MB, which pass 2 GiB in one column, sort as these do; they take half a minute.
    schema = pa.schema([("k", pa.int64()), ("s", pa.string())])
    with pq.ParquetWriter("in.parquet", schema, compression="zstd", use_dictionary=False) as writer:
        for number in range(22):
            rows = {"k": [21 - number], "s": [f"{number:02}" * 2_000_000]}
            writer.write_table(pa.table(rows, schema=schema))
    options = ["-p", "key=k", "--output-format", "parquet", "--memory", "64MiB", "--partitions", "1"]
    ended = mr("run", "sort", "in.parquet", "-o", "out", "--workers", 0, "--quiet", *options)
    assert (ended.code, ended.err) == (0, "")
    found = pq.read_table("out").to_pydict()
    assert found["k"] == list(range(22))
    assert found["s"] == [f"{21 - number:02}" * 2_000_000 for number in range(22)]


@pytest.mark.parametrize("int96", [False, True])
def test_far_dates_do_not_wrap(mr: MrCommand, int96: bool) -> None:
    dates = [
        datetime.datetime(9999, 12, 31, 23, 59, 59), datetime.datetime(1, 1, 1),
        datetime.datetime(1677, 1, 1), datetime.datetime(2006, 1, 2, 3, 4, 5),
    ]  # fmt: skip
    table = pa.table({"ts": pa.array(dates, pa.timestamp("us"))})
    pq.write_table(table, "in.parquet", use_deprecated_int96_timestamps=int96)
    assert [r["ts"] for r in rows_of(mr, "in.parquet")] == dates
    found = mr.run("sort", "in.parquet", "-p", "key=ts", output="o2")
    assert [line[:19].decode().replace(" ", "T") for line in found] == [d.isoformat() for d in sorted(dates)]


def nested_table() -> pa.Table:
    item = pa.struct([("n", pa.string()), ("q", pa.int32())])
    return pa.table({
        "id": [3, 1, 2],
        "items": pa.array([[{"n": "a", "q": 1}], [], None], pa.list_(item)),
        "tags": pa.array([[("x", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "where": pa.array([{"c": "B"}, {"c": "A"}, None], pa.struct([("c", pa.string())])),
    })  # fmt: skip


def test_nested_columns_ride_along_through_a_shuffle(mr: MrCommand) -> None:
    pq.write_table(nested_table(), "in.parquet")
    arguments = ["sort", "in.parquet", "-p", "key=id", "--output-format", "parquet"]
    ended = mr("run", *arguments, "-o", "out", "--workers", 0, "--quiet")
    assert (ended.code, ended.err) == (0, "")
    assert pq.read_table("out").to_pylist() == nested_table().sort_by("id").to_pylist()


@pytest.mark.parametrize("arguments", [("sort", "-p", "key=items"), ("group_by", "-p", "by=tags")])
def test_a_nested_key_is_refused_by_name_before_any_task(mr: MrCommand, arguments: tuple[str, ...]) -> None:
    pq.write_table(nested_table(), "in.parquet")
    said = mr.refuse(arguments[0], "in.parquet", *arguments[1:])
    assert repr(arguments[2].partition("=")[2]) in said
