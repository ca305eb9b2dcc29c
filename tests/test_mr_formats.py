"""Formats as users name and meet them: separators, encodings, types of columns, ends of lines."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapreduce.errors import BadEncoding, BadInput, BadJob
from mapreduce.formats import FORMATS, parse_format
from mapreduce.inputs import Source, plan_splits, read_batches, read_records, read_schema
from mapreduce.outputs import open_sink
from mapreduce.text import foreign_encoding
from tests.mr_command import MrCommand

PAGE = Path(__file__).parent.parent / "docs" / "formats.md"


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> MrCommand:
    return MrCommand(tmp_path, monkeypatch, capfd)


def put(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def values(path: Path, *, split_bytes: int = 1 << 26, **options: Any) -> list[Any]:
    source = Source(urls=(str(path),), **options)
    splits = plan_splits(source, split_bytes=split_bytes)
    return [value for split in splits for _, found in read_records(split, source) for value in found]


def rows(path: Path, *, split_bytes: int = 1 << 26, **options: Any) -> list[dict[str, Any]]:
    source = Source(urls=(str(path),), **options)
    splits = plan_splits(source, split_bytes=split_bytes)
    return [row for split in splits for batch in read_batches(split, source) for row in batch.to_pylist()]


# ------------------------------------------------------------------------------------------- separators


@pytest.mark.parametrize(
    ("format", "separator"),
    [
        ("tsv", "\t"),
        (r"csv:sep=\t", "\t"),
        ("csv:sep=;", ";"),
        ("csv:sep=|", "|"),
        ("csv:sep= ", " "),
        ("csv", ","),
    ],
)
def test_a_table_with_any_separator_is_written_and_read_as_pythons_csv_does(
    tmp_path: Path, format: str, separator: str
) -> None:
    table = [{"a": f"x{separator}y", "b": 1}, {"a": 'say "no"\n', "b": 2}, {"a": ",;\t|", "b": 3}]
    path = tmp_path / "out"
    sink = open_sink(str(path), format=format)
    sink.write_records([(None, row) for row in table])
    sink.close()
    with path.open(newline="") as file:
        found = list(csv.DictReader(file, delimiter=separator))
    assert found == [{"a": row["a"], "b": str(row["b"])} for row in table]
    assert values(path, format=format) == table
    # Without quotes a file is cut, and the names in its header are found by the plan itself.
    plain = put(
        tmp_path / "plain",
        "".join(f"{x}{separator}{y}\n" for x, y in [("p", "q"), *zip("abcdefgh", range(8), strict=True)]),
    )
    assert len(plan_splits(Source(urls=(str(plain),), format=format), split_bytes=6)) > 3
    assert values(plain, format=format, split_bytes=6) == [{"p": x, "q": y} for y, x in enumerate("abcdefgh")]


def test_a_name_that_ends_in_tsv_is_a_table_with_tabs(tmp_path: Path) -> None:
    put(tmp_path / "a.tsv", "a\tb\n1\t2\n")
    put(tmp_path / "b.csv", "a,b\n3,4\n")
    put(tmp_path / "c.tsv.gz", gzip.compress(b"a\tb\n5\t6\n"))
    assert values(tmp_path) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 5, "b": 6}]


@pytest.mark.parametrize(
    "format",
    ["csv:", "csv:sep", "csv:sep=", "csv:sep=ab", "csv:sep=é", 'csv:sep="', "csv:sep=\n", "csv:x=;", "text:sep=;", "tvs"],
)  # fmt: skip
def test_a_format_that_cannot_be_is_refused(format: str) -> None:
    with pytest.raises(BadJob, match="format"):
        parse_format(format, FORMATS)


@pytest.mark.parametrize(
    ("text", "format", "advice"),
    [
        ("a;b;c\n1;2;3\n", None, "csv:sep=;"),
        ("a;b\n1,5;2\n2,5;3\n", "csv", "csv:sep=;"),  # a comma for the decimal point
        ('"a";"b"\n"x;y";1\n', "csv", "csv:sep=;"),
        ("a\tb\n1\t2\n", "csv", "tsv"),
        ("a|b\n", "csv", "csv:sep=|"),
        ("a,b\n1,2\n", "tsv", "csv"),
    ],
)
def test_a_table_that_another_separator_cuts_is_refused_with_that_separator(
    tmp_path: Path, text: str, format: str | None, advice: str
) -> None:
    path = put(tmp_path / "in.csv", text)
    with pytest.raises(BadInput, match=re.escape(f"--format '{advice}' (format=)")) as caught:
        read_schema(Source(urls=(str(path),), format=format))
    assert f"one column named {text.splitlines()[0]!r}" in str(caught.value)
    assert len(read_schema(Source(urls=(str(path),), format=advice))) > 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "format"),
    [("note\na;b\nc;d\n", "csv"), ("a;b\nno such\n", "csv"), ("a;b\n1;2\n", "csv:sep=,"), ('"a;b"\n1\n', "csv"), ("a\n", "csv")],
)  # fmt: skip
def test_a_table_of_one_column_is_read_where_no_separator_cuts_it_or_the_user_insists(
    tmp_path: Path, text: str, format: str
) -> None:
    source = Source(urls=(str(put(tmp_path / "in.csv", text)),), format=format)
    assert read_schema(source).names == [text.splitlines()[0].strip('"')]


def test_both_engines_read_and_write_any_separator_and_mr_shows_it(mr: MrCommand) -> None:
    put(Path("in.csv"), "city;n\nÅ;2\nB;3\nÅ;4\n")
    group = ["group_by", "in.csv", "--format", "csv:sep=;", "-p", "by=city", "-p", "sum=n"]
    wanted = '"city"|"sum_n"|"count"\n"B"|3|1\n"Å"|6|2\n'
    for engine in ("mapreduce", "dag"):
        ended = mr(
            "run",
            *group,
            "--engine",
            engine,
            "--output-format",
            "csv:sep=|",
            "--workers",
            "1",
            "-o",
            engine,
            "--quiet",
        )
        assert ended.code == 0, ended.err
        assert mr("cat", engine).out == wanted
        assert mr("head", engine, "-n", "1").out == "".join(wanted.splitlines(keepends=True)[:2])
    assert Path("dag/part-00000.csv").read_bytes() == Path("mapreduce/part-00000.csv").read_bytes()
    assert "in.csv" in mr("explain", *group).out
    assert mr("validate", "dag", "mapreduce", "--key", "city", "--format", "csv:sep=|").code == 0
    ended = mr("run", "group_by", "in.csv", "-p", "by=city", "-o", "no")
    assert ended.code == 1
    assert "is the separator ';'? give --format 'csv:sep=;'" in ended.complaint
    ended = mr("run", *group[:3], "csv:sep=", "-o", "no")
    assert ended.code == 2
    assert "one ASCII character" in ended.err


# ------------------------------------------------------------------------------------------- encodings

TEXTS = {
    "text": ("txt", "é one\ntwo\n", ["é one", "two"]),
    "csv": ("csv", "a,b\né,1\nx,2\n", [{"a": "é", "b": 1}, {"a": "x", "b": 2}]),
    "jsonl": ("jsonl", '{"a": "é"}\n{"a": "x"}\n', [{"a": "é"}, {"a": "x"}]),
}


@pytest.mark.parametrize("format", TEXTS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-16", "UTF-16LE"), ("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"),
        ("utf-32", "UTF-32LE"), ("utf-32-le", "UTF-32LE"), ("utf-32-be", "UTF-32BE"),
    ],
)  # fmt: skip
def test_utf16_and_utf32_are_named_and_refused(
    tmp_path: Path, format: str, packed: bool, encoding: str, name: str
) -> None:
    extension, text, _ = TEXTS[format]
    data = text.encode(encoding)
    path = put(tmp_path / f"in.{extension}", gzip.compress(data) if packed else data)
    for read in (values, rows):
        with pytest.raises(
            BadEncoding, match=f"this is {name}.*iconv -f {name} -t UTF-8.*--errors"
        ) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_utf16_is_found_in_a_large_file_before_any_of_its_splits_is_read(tmp_path: Path) -> None:
    path = put(tmp_path / "in.txt", ("一行字\n" * 5000).encode("utf-16"))
    with pytest.raises(BadEncoding, match="UTF-16LE"):
        plan_splits(Source(urls=(str(path),)), split_bytes=1000)
    assert b"".join(row["line"] + b"\n" for row in rows(path, errors="replace")) == path.read_bytes() + b"\n"


@pytest.mark.parametrize("format", TEXTS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("split_bytes", [1, 5, 1 << 26])
def test_a_byte_order_mark_of_utf8_is_no_data(
    tmp_path: Path, format: str, packed: bool, split_bytes: int
) -> None:
    extension, text, wanted = TEXTS[format]
    data = text.encode("utf-8-sig")
    path = put(tmp_path / f"in.{extension}", gzip.compress(data) if packed else data)
    assert values(path, split_bytes=split_bytes) == wanted
    if format == "text":
        wanted = [{"line": line.encode()} for line in wanted]
    assert rows(path, split_bytes=split_bytes) == wanted


@given(text=st.text(max_size=60))
def test_no_text_in_utf8_is_taken_for_another_encoding(text: str) -> None:
    if text.count("\0") * 4 < len(text):
        assert foreign_encoding(text.encode("utf-8", "replace")) is None


# ------------------------------------------------------------------------------------------- values


def test_a_csv_column_becomes_what_the_page_on_formats_says(tmp_path: Path) -> None:
    table = re.search(
        r"\| fields \| column \| values \|\n\|---\|---\|---\|\n((?:\|.*\|\n)+)", PAGE.read_text()
    )
    assert table is not None
    lines = table[1].splitlines()
    assert len(lines) > 10
    for line in lines:
        fields, type, shown = line.strip("| ").split(" | ")
        given = [field.replace("(empty)", "") for field in re.findall("`([^`]*)`", fields)]
        # A second column, since a line without anything is no row.
        path = put(tmp_path / "in.csv", "x,y\n" + "".join(f"{field},0\n" for field in given))
        assert str(read_schema(Source(urls=(str(path),))).field("x").type) == type, line
        wanted = eval(shown.strip("`"), {"inf": float("inf"), "nan": float("nan")})
        assert repr([row["x"] for row in values(path)]) == repr(wanted), line


@pytest.mark.parametrize(
    ("format", "separator"),
    [("csv:types=string", ","), ("tsv:types=string", "\t"), ("csv:sep=::types=string", ":")],
)
@pytest.mark.parametrize("split_bytes", [8, 1 << 26])
def test_a_table_without_types_keeps_every_field_as_it_is_written(
    tmp_path: Path, format: str, separator: str, split_bytes: int
) -> None:
    table = [("007", "NA"), ("1.50", "true"), ("", "9007199254740993"), ("x", "0.5")]
    text = "".join(separator.join(row) + "\n" for row in [("p", "q"), *table])
    path = put(tmp_path / "in", text)
    assert values(path, format=format, split_bytes=split_bytes) == [{"p": p, "q": q} for p, q in table]
    empty = Source(urls=(str(put(tmp_path / "none", f"p{separator}q\n")),), format=format)
    assert [str(field.type) for field in read_schema(empty)] == ["string", "string"]
    with pytest.raises(BadJob, match="types= is for input"):
        open_sink(str(tmp_path / "out"), format=format)


def test_a_tuple_in_the_output_becomes_what_the_page_on_formats_says(tmp_path: Path) -> None:
    pair = ("a", 1)

    def write(format: str, key: Any) -> bytes:
        sink = open_sink(str(tmp_path / format), format=format)
        sink.write_records([(key, 2)])
        sink.close()
        return (tmp_path / format).read_bytes()

    assert "`('a', 1)` | a list: `[\"a\", 1]`" in PAGE.read_text()
    assert write("text", pair) == b"('a', 1)\t2\n"
    assert json.loads(write("jsonl", pair)) == {"key": ["a", 1], "value": 2}
    write("parquet", ("a", "b"))
    assert rows(tmp_path / "parquet", format="parquet") == [{"key": ["a", "b"], "value": 2}]
    for format, key in (("parquet", pair), ("csv", pair), ("csv", ("a", "b")), ("tsv", (1, 2))):
        with pytest.raises(BadJob, match=r"column 'key' .*yield its parts as fields"):
            write(format, key)


# ------------------------------------------------------------------------------------------- ends of lines

PLAIN = st.text(st.sampled_from(["a", "é", " ", "\0", "\u2028", "\x1c", "\x85", "\t", "'"]), max_size=4)
ENDS = st.sampled_from(["\n", "\r\n"])


@given(
    lines=st.lists(PLAIN, max_size=8), end=ENDS, ended=st.booleans(), mark=st.booleans(), split_bytes=st.integers(1, 40)
)  # fmt: skip
def test_text_is_cut_as_pythons_bytes_are_split(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    end: str,
    ended: bool,
    mark: bool,
    split_bytes: int,
) -> None:
    data = end.join(lines).encode() + (end.encode() if ended else b"")
    path = put(tmp_path_factory.getbasetemp() / "lines.txt", (b"\xef\xbb\xbf" if mark else b"") + data)
    wanted = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    if not wanted[-1]:
        wanted.pop()
    assert values(path, split_bytes=split_bytes, errors="replace") == [line.decode() for line in wanted]
    assert [row["line"] for row in rows(path, split_bytes=split_bytes, errors="replace")] == wanted


@given(
    table=st.lists(st.tuples(PLAIN, st.text(st.sampled_from('a"\n\r,;\0é'), max_size=5)), max_size=8),
    separator=st.sampled_from(",;\t|"), end=ENDS, ended=st.booleans(), mark=st.booleans(),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), split_bytes=st.integers(1, 60),
)  # fmt: skip
def test_csv_is_read_as_pythons_csv_reads_it_whatever_its_ends_and_separator(
    tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, str]], separator: str, end: str, ended: bool,
    mark: bool, quoting: Any, split_bytes: int,
) -> None:  # fmt: skip
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator=end, delimiter=separator, quoting=quoting)
    if quoting == csv.QUOTE_MINIMAL:  # a carriage return outside quotes is refused, see test_mr_tables
        table = [(p, q.replace("\r", "")) for p, q in table]
    # A letter in front keeps every column text.
    writer.writerows([("p", "q"), *(("x" + p, "x" + q) for p, q in table)])
    text = buffer.getvalue() if ended else buffer.getvalue().removesuffix(end)
    path = put(tmp_path_factory.getbasetemp() / "any.csv", text.encode("utf-8-sig" if mark else "utf-8"))
    wanted = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=separator))
    format = f"csv:sep={separator}"
    assert values(path, split_bytes=split_bytes, format=format) == wanted
    assert rows(path, split_bytes=split_bytes, format=format) == wanted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=5,
)


@given(
    table=st.lists(JSON, max_size=6), blank=st.sampled_from(["", "  ", "\t"]), end=ENDS, ended=st.booleans(),
    mark=st.booleans(), is_ascii=st.booleans(), split_bytes=st.integers(1, 60),
)  # fmt: skip
def test_json_lines_are_read_as_pythons_json_reads_each_line(
    tmp_path_factory: pytest.TempPathFactory, table: list[Any], blank: str, end: str, ended: bool, mark: bool,
    is_ascii: bool, split_bytes: int,
) -> None:  # fmt: skip
    texts = [json.dumps(value, ensure_ascii=is_ascii) for value in table]
    text = (end + blank + end).join(texts) + (end if ended else "")
    path = put(tmp_path_factory.getbasetemp() / "any.jsonl", text.encode("utf-8-sig" if mark else "utf-8"))
    assert values(path, split_bytes=split_bytes) == [json.loads(text) for text in texts] == table


@pytest.mark.parametrize("data", ["", "\n", "\r\n", "\n\n\n", "\ufeff", "\ufeff\n"], ids=repr)
@pytest.mark.parametrize("split_bytes", [1, 1 << 26])
def test_a_file_of_nothing_or_of_newlines_has_no_row_and_as_text_empty_lines(
    tmp_path: Path, data: str, split_bytes: int
) -> None:
    for extension in ("csv", "tsv", "jsonl"):
        path = put(tmp_path / f"in.{extension}", data)
        assert values(path, split_bytes=split_bytes) == []
        assert rows(path, split_bytes=split_bytes) == []
    assert values(put(tmp_path / "in.txt", data), split_bytes=split_bytes) == [""] * data.count("\n")
