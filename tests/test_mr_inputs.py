"""Finding, cutting and opening input: every file once, in order, whatever it is called and however it is packed."""

from __future__ import annotations

import bz2
import gzip
import os
import pickle
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from mapreduce.errors import BadEncoding, BadInput, BadJob, MissingInput
from mapreduce.inputs import Source, list_files, plan_splits, read_batches, read_records, read_schema


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def records(
    *urls: str | Path, split_bytes: int = 1 << 26, min_splits: int = 1, **options: Any
) -> list[tuple[Any, Any]]:
    source = Source(urls=tuple(map(str, urls)), **options)
    found: list[tuple[Any, Any]] = []
    for split in plan_splits(source, split_bytes=split_bytes, min_splits=min_splits):
        for keys, values in read_records(split, source):
            found += zip(keys, values, strict=True)
    return found


def values(*urls: str | Path, **options: Any) -> list[Any]:
    return [value for _, value in records(*urls, **options)]


def lines(*urls: str | Path, split_bytes: int = 1 << 26, **options: Any) -> list[bytes]:
    source = Source(urls=tuple(map(str, urls)), **options)
    return [
        line
        for split in plan_splits(source, split_bytes=split_bytes)
        for batch in read_batches(split, source)
        for line in batch.column("line").to_pylist()
    ]


def hexlines(count: int) -> bytes:
    return b"".join(b"%032x\n" % (i * 0x9E3779B97F4A7C15 % 2**128) for i in range(count))


def zstd_frame(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


# ------------------------------------------------------------------------------------------- which files


def test_markers_and_hidden_names_are_no_input_of_a_folder_or_pattern(tmp_path: Path) -> None:
    put(tmp_path / "part-00000", b"a\t1\n")
    put(tmp_path / "part-00001", b"b\t2\n")
    for name in ("_SUCCESS", ".part-00000.crc", ".DS_Store", "_temporary/0/part-00000", "_logs/history.txt"):
        put(tmp_path / name, b"ghost\n")
    assert values(tmp_path) == ["a\t1", "b\t2"]
    assert values(f"{tmp_path}/*") == ["a\t1", "b\t2"]
    assert values(f"{tmp_path}/_logs/*") == ["ghost"]
    assert values(f"{tmp_path}/_log*") == ["ghost"]
    assert values(tmp_path / "_temporary") == ["ghost"]


def test_a_name_that_exists_as_written_wins_over_the_pattern(tmp_path: Path) -> None:
    put(tmp_path / "log[1].txt", b"brackets")
    put(tmp_path / "log1.txt", b"decoy")
    put(tmp_path / "a[b.txt", b"open")
    assert values(tmp_path / "log[1].txt") == ["brackets"]
    assert values(tmp_path / "a[b.txt") == ["open"]
    assert values(tmp_path / "log[0-9].txt") == ["decoy"]


@pytest.mark.parametrize(
    "name", ["a b.txt", "a%20b.txt", "a#b.txt", "100%.txt", "a+b.txt", "a?b.txt", "ü.txt"]
)
def test_a_name_is_taken_as_it_is_written(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, name.encode())
    put(tmp_path / "a b", b"decoy")
    assert values(tmp_path / name) == [name]
    assert name in values(tmp_path)


def test_a_folder_is_read_with_its_subfolders_and_links_are_followed_once(tmp_path: Path) -> None:
    put(tmp_path / "in/top.txt", b"top")
    put(tmp_path / "in/sub/inner.txt", b"inner")
    put(tmp_path / "in/sub/deep/deeper.txt", b"deeper")
    put(tmp_path / "elsewhere.txt", b"elsewhere")
    os.symlink("..", tmp_path / "in/sub/loop")
    os.symlink("sub/inner.txt", tmp_path / "in/again.txt")
    os.symlink("../elsewhere.txt", tmp_path / "in/linked.txt")
    assert sorted(values(tmp_path / "in")) == ["deeper", "elsewhere", "inner", "top"]


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"a")
    os.symlink("nowhere", tmp_path / "dangling")
    for url in (tmp_path, tmp_path / "dangling", f"{tmp_path}/*"):
        with pytest.raises(MissingInput, match=r"dangling is a link to nowhere"):
            values(url)


def test_all_missing_inputs_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    put(tmp_path / "here.txt", b"x")
    with pytest.raises(MissingInput) as caught:
        values(tmp_path / "here.txt", tmp_path / "gone.txt", f"{tmp_path}/no_such_*", tmp_path / "empty")
    for part in ("gone.txt does not exist", "nothing matches", "no_such_*", "empty holds no file"):
        assert part in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(MissingInput):
        values()


def test_a_pipe_is_refused_instead_of_read_as_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match=r"pipe is neither a file nor a folder; pass - "):
        values(tmp_path / "pipe")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    put(tmp_path / "secret.txt", b"x").chmod(0)
    with pytest.raises(BadInput, match=r"secret\.txt: Permission denied"):
        values(tmp_path / "secret.txt")


def test_files_of_different_formats_need_a_format(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", b"x\n1\n")
    put(tmp_path / "b.txt", b"x\n")
    with pytest.raises(BadInput, match=r"a\.csv is csv, .*b\.txt is text"):
        values(tmp_path)
    assert values(tmp_path, format="text") == ["x", "1", "x"]


def test_a_delimiter_is_refused_where_it_would_be_ignored(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", b"x\n1\n")
    with pytest.raises(BadJob, match=r"a\.csv is csv: a record delimiter is for text only"):
        values(path, delimiter=b"|")
    assert values(path, delimiter=b"1", format="text") == ["x\n", "\n"]


@pytest.mark.parametrize(
    "options",
    [{"format": "xml"}, {"errors": "sloppy"}, {"delimiter": b""}],
    ids=lambda options: next(iter(options)),
)
def test_an_unknown_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadJob):
        Source(urls=("x",), **options)


# ------------------------------------------------------------------------------------------- splits


def test_files_come_in_the_order_given_and_those_of_a_folder_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a/x.txt", "a.txt", "a/1/y.txt"):
        put(tmp_path / name, name.encode())
    urls = [file.url for file in list_files(Source(urls=(str(tmp_path / "b.txt"), str(tmp_path))))]
    assert [os.path.relpath(url, tmp_path) for url in urls] == [
        "b.txt",
        "a.txt",
        "a/1/y.txt",
        "a/x.txt",
        "b.txt",
    ]


@pytest.mark.parametrize("split_bytes", [1, 7, 33, 100, 10_000, 1 << 26])
def test_records_and_their_order_do_not_depend_on_the_split_size(tmp_path: Path, split_bytes: int) -> None:
    put(tmp_path / "a.txt", hexlines(20))
    put(tmp_path / "b.txt", b"")
    put(tmp_path / "c.txt", b"no newline")
    put(tmp_path / "d.txt.gz", gzip.compress(hexlines(10)))
    put(tmp_path / "e.txt", b"last\r\n")
    expected = [*hexlines(20).split(), b"no newline", *hexlines(10).split(), b"last"]
    assert lines(tmp_path, split_bytes=split_bytes) == expected
    found = records(tmp_path, split_bytes=split_bytes)
    assert [value.encode() for _, value in found] == expected
    assert [key for key, _ in found] == [*range(0, 660, 33), 0, *range(0, 330, 33), 0]


def test_splits_have_the_size_asked_for_and_small_files_share_one(tmp_path: Path) -> None:
    put(tmp_path / "big.txt", bytes(1000))
    assert [s.bytes for s in plan_splits(Source(urls=(str(tmp_path),)), split_bytes=300)] == [
        300,
        300,
        300,
        100,
    ]
    assert [s.bytes for s in plan_splits(Source(urls=(str(tmp_path),)), split_bytes=480)] == [480, 520]
    for number in range(50):
        put(tmp_path / f"small/{number}", bytes(10))
    splits = plan_splits(Source(urls=(str(tmp_path / "small"),)), split_bytes=100)
    assert [len(split.pieces) for split in splits] == [11, 11, 11, 11, 6]
    assert [split.index for split in splits] == [0, 1, 2, 3, 4]
    assert splits[0].describe().startswith("11 pieces, ")


def test_min_splits_cuts_a_file_for_all_workers_but_not_into_crumbs(tmp_path: Path) -> None:
    source = Source(urls=(str(put(tmp_path / "a.txt", bytes(8 << 20))),))
    assert [s.bytes for s in plan_splits(source, split_bytes=1 << 30, min_splits=4)] == [2 << 20] * 4
    assert len(plan_splits(source, split_bytes=1 << 30, min_splits=100)) == 8
    assert plan_splits(source, split_bytes=1 << 30)[0].describe().endswith("a.txt")
    assert plan_splits(source, split_bytes=4 << 20)[1].describe().endswith("a.txt bytes 4194304-8388608")


def test_zero_byte_files_give_no_record_and_no_error(tmp_path: Path) -> None:
    put(tmp_path / "e1.txt", b"")
    put(tmp_path / "e2.txt", b"")
    assert records(tmp_path) == []
    assert lines(tmp_path) == []
    assert len(plan_splits(Source(urls=(str(tmp_path),)), split_bytes=1)) >= 1


def test_three_thousand_small_files_make_few_splits_and_keep_few_files_open(tmp_path: Path) -> None:
    for number in range(3000):
        put(tmp_path / f"{number % 50:02d}/f{number:05d}.txt", b"%d\t1" % (number % 7))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    already_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (already_open + 200, hard))
    try:
        source = Source(urls=(str(tmp_path),))
        assert len(plan_splits(source, split_bytes=1 << 26, min_splits=2)) == 1
        found = lines(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    names = sorted(range(3000), key=lambda number: (number % 50, number))
    assert found == [b"%d\t1" % (number % 7) for number in names]


def test_small_files_keep_their_byte_order_marks_and_delimiters_apart(tmp_path: Path) -> None:
    put(tmp_path / "1", b"\xef\xbb\xbfa|b")
    put(tmp_path / "2", b"c|")
    put(tmp_path / "3", b"")
    put(tmp_path / "4", b"d")
    assert lines(tmp_path, delimiter=b"|") == [b"a", b"b", b"c", b"d"]
    put(tmp_path / "2", b"c|||")
    assert lines(tmp_path, delimiter=b"||") == [b"a|b", b"c", b"|", b"d"]


def test_a_sample_is_evenly_spaced_and_small(tmp_path: Path) -> None:
    count = 40_000
    put(tmp_path / "a.txt", b"".join(b"%019d\n" % i for i in range(count)))
    source = Source(urls=(str(tmp_path),), sample_ranges=4)
    found = [
        int(line)
        for split in plan_splits(source, split_bytes=1 << 26)
        for batch in read_batches(split, source)
        for line in batch.column("line").to_pylist()
    ]
    assert len(found) < count * 0.4
    assert found == sorted(set(found))
    for quarter in range(4):
        assert any(quarter * count / 4 <= line < (quarter + 1) * count / 4 for line in found)


def test_a_sample_of_many_files_reads_few_of_them(tmp_path: Path) -> None:
    for number in range(100):
        put(tmp_path / f"{number:03d}", b"%d\n" % number)
    assert values(tmp_path, sample_ranges=4) == ["0", "25", "50", "75"]


def test_a_split_size_is_a_whole_number(tmp_path: Path) -> None:
    source = Source(urls=(str(put(tmp_path / "a.txt", b"a\n")),))
    with pytest.raises(BadJob, match=r"split size must be a whole number of bytes, got 64000000\.0"):
        plan_splits(source, split_bytes=64e6)  # type: ignore[arg-type]


def test_a_sample_of_a_terabyte_is_planned_without_all_its_pieces(tmp_path: Path) -> None:
    with put(tmp_path / "a.txt", b"a line\n").open("r+b") as file:
        file.truncate(1 << 40)  # holes: nothing is written
    source = Source(urls=(str(tmp_path / "a.txt"),), sample_ranges=64, sample_range_bytes=8000)
    pieces = [piece for split in plan_splits(source, split_bytes=1 << 26) for piece in split.pieces]
    # All but the last have their length; a rest of up to a tenth of one goes to the last.
    count = -(-((1 << 40) - 8800) // 8000) + 1
    assert [piece.start for piece in pieces] == [8000 * (number * count // 64) for number in range(64)]
    assert {piece.stop - piece.start for piece in pieces} == {8000}


# ------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("members.txt.gz", gzip.compress(b"a\t1\nb\t2\n") + gzip.compress(b"c\t3\n")),
        ("streams.txt.bz2", bz2.compress(b"a\t1\nb") + bz2.compress(b"\t2\n") + bz2.compress(b"c\t3\n")),
        (
            "frames.txt.zst",
            zstd_frame(b"a\t1\nb\t") + b"\x50\x2a\x4d\x18\x05\0\0\0index" + zstd_frame(b"2\nc\t3\n"),
        ),
        ("skip_first.zst", b"\x5f\x2a\x4d\x18\x01\0\0\0i" + zstd_frame(b"a\t1\nb\t2\nc\t3\n")),
        ("plain_named.txt.gz", b"a\t1\nb\t2\nc\t3\n"),
        ("gzip_without_its_name", gzip.compress(b"a\t1\nb\t2\nc\t3\n")),
        ("padded.gz", gzip.compress(b"a\t1\nb\t2\n") + gzip.compress(b"c\t3\n") + b"\0" * 300_000),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_compressed_files_are_read_to_their_end_and_magic_bytes_decide(
    tmp_path: Path, name: str, data: bytes
) -> None:
    path = put(tmp_path / name, data)
    for split_bytes in (1, 4, 1 << 26):
        assert values(path, split_bytes=split_bytes) == ["a\t1", "b\t2", "c\t3"]
        assert lines(path, split_bytes=split_bytes) == [b"a\t1", b"b\t2", b"c\t3"]


def test_a_compressed_file_is_one_piece(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt.gz", gzip.compress(hexlines(20_000)))
    source = Source(urls=(str(path),))
    assert len(plan_splits(source, split_bytes=1 << 16, min_splits=4)) == 1
    assert len(values(path, split_bytes=1 << 16)) == 20_000


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, zstd_frame], ids=["gzip", "bz2", "zstd"])
@pytest.mark.parametrize("share", [0.7, 0.999])
def test_a_truncated_file_fails_by_name_and_is_never_taken_for_the_whole(
    tmp_path: Path, compress: Any, share: float
) -> None:
    data = compress(hexlines(2000))
    path = put(tmp_path / "cut.txt", data[: int(len(data) * share)])
    for read in (values, lines):
        with pytest.raises(BadInput, match=r"cut\.txt: cannot read this as "):
            read(path)


@pytest.mark.parametrize("text", [b"BZh91 is text\n", b"BZh9", b"BZh91AY&S is text too\n", b"P*M\n"])
def test_text_that_begins_like_a_compressed_file_is_text(tmp_path: Path, text: bytes) -> None:
    path = put(tmp_path / "a.txt", text)
    assert lines(path) == text.splitlines()
    assert values(put(tmp_path / "empty.bz2", bz2.compress(b""))) == []


def test_a_gzip_file_that_is_cut_changed_or_followed_by_other_bytes_fails(tmp_path: Path) -> None:
    data = gzip.compress(hexlines(2000))
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 255
    for damaged in (data[:-8], bytes(flipped), data + b"\0\0garbage", data + data[:5]):
        with pytest.raises(BadInput, match=r"bad\.gz"):
            values(put(tmp_path / "bad.gz", damaged))


# ------------------------------------------------------------------------------------------- reading


def test_counted_bytes_are_those_of_the_file(tmp_path: Path) -> None:
    def count(path: Path, read: Any) -> int:
        source = Source(urls=(str(path),))
        sizes: list[int] = []
        for split in plan_splits(source, split_bytes=1 << 26):
            for _ in read(split, source, counted=sizes.append):
                pass
        return sum(sizes)

    plain = put(tmp_path / "a.txt", hexlines(5000))
    packed = put(tmp_path / "a.txt.gz", gzip.compress(hexlines(5000)))
    for read in (read_batches, read_records):
        assert count(plain, read) == plain.stat().st_size
        assert count(packed, read) == packed.stat().st_size


def test_bytes_that_are_no_utf8_pass_through_batches_and_follow_errors_in_records(tmp_path: Path) -> None:
    path = put(tmp_path / "b.txt", b"caf\xe9\t1\nok\t2\n\xff\xfe\t3\n")
    assert lines(path) == [b"caf\xe9\t1", b"ok\t2", b"\xff\xfe\t3"]
    with pytest.raises(BadEncoding, match=r"b\.txt: byte 0xe9 at offset 3 is no UTF-8"):
        values(path)
    assert values(path, errors="replace") == ["caf\ufffd\t1", "ok\t2", "\ufffd\ufffd\t3"]
    escaped = values(path, errors="surrogateescape")
    assert [value.encode("utf-8", "surrogateescape") for value in escaped] == lines(path)


def test_nul_bytes_stay_in_the_data(tmp_path: Path) -> None:
    path = put(tmp_path / "nul.txt", b"a\x00b\t1\n\x00\t2\n")
    assert values(path) == ["a\x00b\t1", "\x00\t2"]
    assert lines(path) == [b"a\x00b\t1", b"\x00\t2"]


def test_raw_files_come_whole_with_their_url(tmp_path: Path) -> None:
    one = put(tmp_path / "1.bin", b"\x1f\x8b not gzip\n\n")
    two = put(tmp_path / "2.bin", b"")
    source = Source(urls=(str(tmp_path),), format="raw")
    assert records(tmp_path, format="raw") == [(str(one), one.read_bytes()), (str(two), b"")]
    table = pa.Table.from_batches(
        [batch for split in plan_splits(source, split_bytes=1) for batch in read_batches(split, source)],
        schema=read_schema(source),
    )
    assert table.to_pydict() == {"url": [str(one), str(two)], "content": [one.read_bytes(), b""]}


@pytest.fixture
def memory_urls() -> Iterable[str]:
    fs = fsspec.filesystem("memory")
    fs.pipe("/mr-inputs/a.txt", hexlines(10))
    fs.pipe("/mr-inputs/sub/b.txt.gz", gzip.compress(b"b\n"))
    fs.pipe("/mr-inputs/_SUCCESS", b"ghost")
    yield "memory://mr-inputs"
    fs.rm("/mr-inputs", recursive=True)


def test_a_remote_folder_reads_as_a_local_one(memory_urls: str) -> None:
    expected = [line.decode() for line in hexlines(10).split()]
    for split_bytes in (1, 50, 1 << 20):
        assert values(memory_urls, split_bytes=split_bytes) == [*expected, "b"]
    assert values(f"{memory_urls}/*.txt") == expected
    assert values(f"{memory_urls}/a.txt") == expected
    with pytest.raises(MissingInput, match="memory://mr-inputs/none does not exist"):
        values(f"{memory_urls}/none")
    with pytest.raises(MissingInput, match="nothing to read at"):
        values(f"{memory_urls}/*.csv")


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(BadInput, match="nope://x/y: cannot open this kind of URL"):
        values("nope://x/y")


def test_sources_and_splits_pickle(tmp_path: Path) -> None:
    source = Source(
        urls=(str(put(tmp_path / "a.txt", b"a\nb\n")),), schema=pa.schema([("line", pa.binary())])
    )
    splits = plan_splits(source, split_bytes=2)
    assert pickle.loads(pickle.dumps(splits)) == splits
    assert pickle.loads(pickle.dumps(source)) == source
