"""Each job of the library, on both engines, against a few lines of plain Python that say what it should give."""

from __future__ import annotations

import csv
import io
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapreduce
from jobs.catalog import find_job, library_job, library_names
from jobs.engine import run as run_in_memory
from jobs.generate import generate
from jobs.show import print_output
from jobs.words import WordCounter
from mapreduce import BadJob

TEXT = (
    "the cat sat\n\nthe  dog\tsat on the cat\n"
    "Éa straße the\nlonglonglonglongword x longlonglonglongword\n"
    "fourteen-bytes fifteen--bytes. eightbyt sevenby\n"
) * 7 + "no newline at the end"


@pytest.fixture
def run_job(tmp_path: Path) -> Any:
    """Return a function that runs a job on both engines, sees that they write the same files, and returns the lines."""

    def run_it(name: str, *inputs: Any, output_format: str = "text", **parameters: Any) -> list[str]:
        settings = {k: parameters.pop(k) for k in ("workers", "split_bytes") if k in parameters}
        options = mapreduce.Options(
            workers=settings.pop("workers", 0),
            store=str(tmp_path / "store"),
            output_format=output_format,
            overwrite=True,
            **settings,
        )
        output = tmp_path / "output"
        given = [str(i) if isinstance(i, Path) else i for i in inputs]
        mapreduce.run(find_job(name), *given, output=str(output), parameters=parameters, options=options)
        in_memory = tmp_path / "in-memory"
        run_in_memory(find_job(name), *given, output=str(in_memory), parameters=parameters, options=options)
        assert files_of(in_memory) == files_of(output)
        text = b"".join(print_output(str(output))).decode("utf-8", "surrogateescape")
        assert text == "" or text.endswith("\n")
        return text.split("\n")[:-1]

    return run_it


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def counted(lines: Sequence[str]) -> dict[str, int]:
    pairs = [line.split("\t") for line in lines]
    assert len({word for word, _ in pairs}) == len(pairs)
    return {word: int(n) for word, n in pairs}


def test_every_job_has_a_line_of_documentation_and_the_name_of_its_module() -> None:
    for name in library_names():
        found = library_job(name)
        assert found.name == name
        assert found.doc.partition("\n")[0].endswith(".")


@pytest.mark.parametrize("name", ["wordcount", "wordcount_records"])
@pytest.mark.parametrize("split_bytes", [16, 1 << 20])
def test_words_are_counted_as_by_split(run_job: Any, tmp_path: Path, name: str, split_bytes: int) -> None:
    found = run_job(name, write(tmp_path / "in.txt", TEXT), split_bytes=split_bytes, partitions=3)
    assert counted(found) == Counter(TEXT.split())


def test_worker_processes_count_the_same_words(run_job: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", TEXT)
    assert counted(run_job("wordcount", path, workers=2, split_bytes=100)) == Counter(TEXT.split())


@given(
    batches=st.lists(
        st.lists(
            st.lists(
                st.sampled_from(
                    [
                        b" ",
                        b"\t",
                        b"\x0b",
                        b"\x0c",
                        b"\r",
                        b"a",
                        b"bc",
                        b"\x00",
                        b"\xff\xfe",
                        b"8bytes--",
                        b"9bytes---",
                        b"x" * 16,
                        b"x" * 24,
                        b"x" * 25,
                    ]
                ),
                max_size=30,
            ).map(b"".join),
            max_size=8,
        ),
        max_size=4,
    )
)
def test_counting_words_of_batches_equals_a_counter(batches: list[list[bytes]]) -> None:
    counter = WordCounter()
    for lines in batches:
        words, counts = counter.count(pa.array(lines, pa.binary()))
        found = dict(zip(words.to_pylist(), counts.to_pylist(), strict=True))
        assert len(found) == len(words)
        assert found == Counter(word for line in lines for word in line.split())


def test_words_that_find_no_place_in_the_table_are_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 slots for 3,000 words: nearly all are refused; blocks of 1 KiB make words meet their slots many times.
    monkeypatch.setattr("jobs.words.TABLE_BITS", 4)
    monkeypatch.setattr("jobs.words.BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr("jobs.words.ADDED_WORDS", 300)
    monkeypatch.setattr("jobs.words.WAITING_WORDS", 200)
    lines = [b" ".join(b"%d-%s" % (i * j % 3000, b"y" * (i % 29)) for j in range(20)) for i in range(500)]
    counter = WordCounter()
    for batch in (lines[:200], lines[200:]):
        words, counts = counter.count(pa.array(batch, pa.binary()))
        assert dict(zip(words.to_pylist(), counts.to_pylist(), strict=True)) == Counter(
            b" ".join(batch).split()
        )


def test_words_that_a_full_counter_gives_out_early_are_counted_once(
    run_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.words.TABLE_BITS", 4)
    monkeypatch.setattr("jobs.words.WAITING_WORDS", 10)
    monkeypatch.setattr("jobs.words.ADDED_WORDS", 10)
    monkeypatch.setattr("jobs.words.LEFT_WORDS", 100)
    monkeypatch.setattr("jobs.words._here", threading.local())
    text = "\n".join(f"{i * i % 700} {i % 11} x" for i in range(1000))
    counter = WordCounter()
    counter.add(pa.array([text.encode()]))
    assert counter.is_full
    assert sum(counter.take()[1].to_pylist()) == 3000
    assert not counter.is_full
    found = run_job("wordcount", write(tmp_path / "in.txt", text), split_bytes=3000)
    assert counted(found) == Counter(text.split())


def test_a_counter_starts_again_at_zero_and_keeps_no_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.words.TABLE_BITS", 6)
    counter = WordCounter()
    counter.count(pa.array([b"a b a"]))
    assert counter.start() is counter
    assert [c.to_pylist() for c in counter.count(pa.array([b"b"]))] == [[b"b"], [1]]
    counter.count(pa.array([b" ".join(b"%d" % i for i in range(1000))]))
    assert counter.start() is not counter


def test_lines_of_a_slice_and_null_lines_are_counted() -> None:
    lines = pa.array([b"a b", None, b"a", b"c"], pa.binary())
    words, counts = WordCounter().count(lines.slice(1))
    assert dict(zip(words.to_pylist(), counts.to_pylist(), strict=True)) == {b"a": 1, b"c": 1}


@pytest.mark.parametrize("invert", [False, True])
def test_grep_keeps_matching_lines_in_input_order(run_job: Any, tmp_path: Path, invert: bool) -> None:
    path = write(tmp_path / "in.txt", TEXT)
    found = run_job("grep", path, pattern="c.t|^$", invert=invert, split_bytes=50)
    assert found == [line for line in TEXT.split("\n") if bool(re.search("c.t|^$", line)) != invert]


def test_grep_matches_letters_not_their_bytes_and_passes_other_bytes_through(
    run_job: Any, tmp_path: Path
) -> None:
    lines = ["é", "Ã", "ü", "\udcff é", "a\udce9", "é\udce9"]
    data = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
    path = write(tmp_path / "in.txt", data)
    assert run_job("grep", path, pattern="^[éü]") == ["é", "ü", "é\udce9"]
    assert run_job("grep", path, pattern="^.$") == ["é", "Ã", "ü"]
    assert run_job("grep", path, pattern="É", ignore_case=True) == ["é", "\udcff é", "é\udce9"]
    assert run_job("grep", path, pattern="a", invert=True) == [line for line in lines if "a" not in line]


def test_grep_ignores_case_if_asked(run_job: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", "One\ntwo\nONE\n")
    assert run_job("grep", path, pattern="one", ignore_case=True) == ["One", "ONE"]


def test_a_pattern_that_is_no_regular_expression_is_refused(run_job: Any, tmp_path: Path) -> None:
    with pytest.raises(BadJob, match=r"pattern '\(' is no regular expression"):
        run_job("grep", write(tmp_path / "in.txt", "x\n"), pattern="(")


def test_distinct_keeps_each_line_once(run_job: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", TEXT)
    found = run_job("distinct", path, split_bytes=64, partitions=2)
    assert sorted(found) == sorted(set(TEXT.split("\n")))


def test_top_words_are_ranked_by_count_and_then_by_word(run_job: Any, tmp_path: Path) -> None:
    found = run_job("top_words", write(tmp_path / "in.txt", TEXT), n=5, split_bytes=64, partitions=2)
    ranked = sorted(Counter(TEXT.split()).items(), key=lambda pair: (-pair[1], pair[0].encode()))
    assert found == [f"{word}\t{n}" for word, n in ranked[:5]]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ngrams_are_the_windows_of_each_line(run_job: Any, tmp_path: Path, n: int) -> None:
    found = run_job("ngrams", write(tmp_path / "in.txt", TEXT), n=n, partitions=2)
    lines = [line.split() for line in TEXT.split("\n")]
    assert counted(found) == Counter(" ".join(w[i : i + n]) for w in lines for i in range(len(w) - n + 1))


def test_ngrams_below_the_minimum_are_left_out(run_job: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", "a b\na b\nb c\n")
    assert run_job("ngrams", path, minimum=2) == ["a b\t2"]


def test_the_index_names_each_file_and_offset_of_a_word(run_job: Any, tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    expected = defaultdict(list)
    for name in ("b.txt", "a.txt", "c.txt"):
        write(folder / name, f"one {name} one\n\ntwo one\n")
    for name in ("a.txt", "b.txt", "c.txt"):
        size = len(f"one {name} one\n\n")
        for word, offset in (("one", 0), (name, 0), ("two", size), ("one", size)):
            expected[word].append((name, offset))
    found = dict(line.split("\t") for line in run_job("inverted_index", folder, partitions=2))
    assert found == {
        word: " ".join(f"{folder}/{name}:{offset}" for name, offset in sorted(places))
        for word, places in expected.items()
    }


# Those with two inputs, with columns, and those that cannot learn from nothing: test_jobs_iterative, test_jobs_gradient.
@pytest.mark.parametrize(
    "name", sorted(set(library_names()) - {"join", "group_by", "matmul", "kmeans", "gradient"})
)
def test_an_empty_file_gives_an_empty_output(run_job: Any, tmp_path: Path, name: str) -> None:
    parameters = {"pattern": "x"} if name == "grep" else {}
    assert run_job(name, write(tmp_path / "empty.txt", ""), **parameters) == []


@pytest.mark.parametrize(
    ("name", "parameters", "header"),
    [("sort", {"key": "n"}, "city,n"), ("group_by", {"by": "city", "mean": "n"}, "city,mean_n,count")],
)
def test_a_table_without_rows_gives_its_header(
    run_job: Any, tmp_path: Path, name: str, parameters: dict[str, Any], header: str
) -> None:
    schema = pa.schema([("city", pa.string()), ("n", pa.int32())])
    pq.write_table(schema.empty_table(), tmp_path / "in.parquet")
    found = run_job(name, tmp_path / "in.parquet", output_format="csv", **parameters)
    assert [line.replace('"', "") for line in found] == [header]


# -- sort ---------------------------------------------------------------------------------------


@given(
    lines=st.lists(
        st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=60
    )
)
@settings(max_examples=settings.default.max_examples // 3)
@pytest.mark.parametrize("descending", [False, True])
def test_sorted_lines_are_python_s(
    tmp_path_factory: pytest.TempPathFactory, descending: bool, lines: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("sort")
    lines = [b"not the first bytes of a compressed file, nor a byte order mark", *lines]
    data = b"".join(line + b"\n" for line in lines)
    options = mapreduce.Options(workers=0, store=str(folder / "store"), split_bytes=97)
    result = mapreduce.run(
        find_job("sort"), str(write(folder / "in.txt", data)), options=options,
        parameters={"descending": descending, "partitions": 3},
    )  # fmt: skip
    assert result.records is not None
    assert [line for (line,) in result.records] == sorted(lines, reverse=descending)


def fields(line: str) -> list[str]:
    return re.split(r"[ \t]+", line.strip(" \t"))


@pytest.mark.parametrize("descending", [False, True])
def test_a_numeric_field_sorts_by_value_and_ties_keep_input_order(
    run_job: Any, tmp_path: Path, descending: bool
) -> None:
    numbers = ["3", "-2.5", "10", "1e1", "+3", "007", ".5", "-0", "0", "1E400", "-1e400", "5."]
    lines = [f"{i} {number} rest {i}" for i, number in enumerate(numbers * 3)]
    odd = ["x abc y", "short", "", "y nan z", "y inf z", "y 0x10 z", "  7", "y 1_0 z"]
    path = write(tmp_path / "in.txt", "".join(f"{line}\n" for line in odd + lines))
    found = run_job("sort", path, key="2", numeric=True, descending=descending, split_bytes=100, partitions=3)
    ranked = sorted(lines, key=lambda line: float(line.split()[1]), reverse=descending)
    assert found == (ranked + odd if descending else odd + ranked)


@pytest.mark.parametrize("descending", [False, True])
def test_integers_beyond_the_floats_sort_exactly(run_job: Any, tmp_path: Path, descending: bool) -> None:
    numbers = [
        sign * (base + i) for base in (2**53, 10**18, 10**25) for i in (3, 1, 2, 0) for sign in (1, -1)
    ]
    path = write(tmp_path / "in.txt", "".join(f"{n}\n" for n in numbers))
    found = run_job("sort", path, key="1", numeric=True, descending=descending, split_bytes=64, partitions=3)
    assert [int(line) for line in found] == sorted(numbers, reverse=descending)


@pytest.mark.parametrize("separator", [None, "\t", "|", "||"])
def test_a_text_field_sorts_by_bytes(run_job: Any, tmp_path: Path, separator: str | None) -> None:
    glue = separator or "  "
    lines = [
        f"{i}{glue}{'Zaéb '[i * 7 % 5] if separator else 'Zaéb_'[i * 7 % 5]}{glue}{i}" for i in range(40)
    ]
    path = write(tmp_path / "in.txt", "".join(f"{line}\n" for line in lines))
    found = run_job("sort", path, key="2", separator=separator, split_bytes=64, partitions=2)

    def key(line: str) -> bytes:
        return (line.split(separator)[1] if separator else fields(line)[1]).encode()

    assert found == sorted(lines, key=key)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_of_a_table_sort_by_columns(run_job: Any, tmp_path: Path, kind: str) -> None:
    rows = [{"name": f"n{i}", "price": (i * 37) % 11 - 5, "city": "zyx"[i % 3]} for i in range(60)]
    table = pa.Table.from_pylist(rows)
    path = tmp_path / f"in.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=7)
    else:
        write(path, "name,price,city\n" + "".join(f"{r['name']},{r['price']},{r['city']}\n" for r in rows))
    found = run_job("sort", path, key="city,price", partitions=3)
    ranked = sorted(rows, key=lambda r: (r["city"], r["price"]))
    assert found == [f"{r['name']}\t{r['price']}\t{r['city']}" for r in ranked]


def test_a_file_sorts_into_parts_that_are_sorted_as_a_whole(run_job: Any, tmp_path: Path) -> None:
    path = tmp_path / "records.txt"
    generate("records", str(path), size_bytes=2_000_000, seed=3)
    found = run_job("sort", path, split_bytes=300_000, partitions=4, workers=2)
    assert found == sorted(path.read_text().split("\n")[:-1])
    sizes = [part.stat().st_size for part in sorted((tmp_path / "output").glob("part-*"))]
    assert len(sizes) == 4
    assert max(sizes) < 2 * min(sizes)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"key": "0"}, "field number from 1"),
        ({"key": "price"}, "text has no column 'price'; give a field number"),
        ({"numeric": True}, "numeric goes with a key"),
        ({"separator": ","}, "separator goes with a field number"),
    ],
)
def test_a_sort_that_makes_no_sense_is_refused(
    run_job: Any, tmp_path: Path, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadJob, match=message):
        run_job("sort", write(tmp_path / "in.txt", "b\na\n"), **parameters)


# -- join ---------------------------------------------------------------------------------------

LEFT = [("1", "ann"), ("2", "bob"), ("2", "bea"), ("3", "cy"), ("5", "")]
RIGHT = [("2", "x"), ("2", "y"), ("3", "z"), ("4", "w")]


def joined(how: str) -> list[tuple[str, str | None, str | None]]:
    rows: list[tuple[str, str | None, str | None]] = [(a, v, w) for a, v in LEFT for b, w in RIGHT if a == b]
    if how != "inner":
        rows += [(a, v, None) for a, v in LEFT if a not in dict(RIGHT)]
    if how == "full":
        rows += [(b, None, w) for b, w in RIGHT if b not in dict(LEFT)]
    return rows


@pytest.mark.parametrize(
    ("how", "strategy"),
    [
        ("inner", "reduce"),
        ("left", "reduce"),
        ("full", "reduce"),
        ("inner", "broadcast"),
        ("left", "broadcast"),
    ],
)
def test_text_joins_as_nested_loops_do(run_job: Any, tmp_path: Path, how: str, strategy: str) -> None:
    left = write(tmp_path / "left.txt", "".join(f"{k}\t{v}\n" for k, v in LEFT))
    right = write(tmp_path / "right.txt", "".join(f"{k}\t{v}\n" for k, v in RIGHT))
    found = run_job("join", left, right, how=how, strategy=strategy, split_bytes=8)
    assert sorted(found) == sorted(f"{k}\t{v or ''}\t{w or ''}" for k, v, w in joined(how))


@pytest.mark.parametrize(
    ("how", "strategy"),
    [
        ("inner", "reduce"),
        ("left", "reduce"),
        ("full", "reduce"),
        ("inner", "broadcast"),
        ("left", "broadcast"),
    ],
)
def test_tables_join_as_nested_loops_do(run_job: Any, tmp_path: Path, how: str, strategy: str) -> None:
    left = write(tmp_path / "left.csv", "id,name\n" + "".join(f"{k},{v or 'nn'}\n" for k, v in LEFT))
    right = write(tmp_path / "right.csv", "name,id\n" + "".join(f"{w},{k}\n" for k, w in RIGHT))
    found = run_job(
        "join", left, right, on="id", how=how, strategy=strategy, partitions=1, output_format="csv"
    )
    rows = list(csv.DictReader(io.StringIO("\n".join(found) + "\n")))
    assert list(rows[0]) == ["id", "name", "name_right"]
    assert sorted(tuple(row.values()) for row in rows) == sorted(
        (k, ("nn" if v == "" else v) or "", w or "") for k, v, w in joined(how)
    )


@pytest.mark.parametrize("strategy", ["reduce", "broadcast"])
def test_keys_that_are_null_join_with_nothing(run_job: Any, tmp_path: Path, strategy: str) -> None:
    for name in ("left", "right"):
        table = pa.table({"id": pa.array([None, 1.0, float("nan")]), name: ["null", "one", "nan"]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    found = run_job(
        "join", tmp_path / "left.parquet", tmp_path / "right.parquet", on="id", how="left", strategy=strategy,
        output_format="jsonl", partitions=1,
    )  # fmt: skip
    assert sum('"one","right":"one"' in line.replace(" ", "") for line in found) == 1
    assert sum('"right":null' in line.replace(" ", "") for line in found) == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"how": "outer"}, "how must be inner, left, full, got 'outer'"),
        ({"strategy": "magic"}, "strategy must be reduce or broadcast"),
        ({"how": "full", "strategy": "broadcast"}, "cannot be broadcast"),
        ({"on": "id"}, "on must be a field number"),
    ],
)
def test_a_join_that_makes_no_sense_is_refused(
    run_job: Any, tmp_path: Path, parameters: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "in.txt", "1\ta\n")
    with pytest.raises(BadJob, match=message):
        run_job("join", path, path, **parameters)


# -- access logs --------------------------------------------------------------------------------

LOG = re.compile(r'^(\S+) - - \[([^\]]+)\] "\S+ (\S+) HTTP')


@pytest.fixture(scope="module")
def access_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "access.log"
    generate("logs", str(path), size_bytes=300_000, seed=5)
    return path


def requests_of(path: Path) -> list[tuple[str, int, str]]:
    found = []
    for line in path.read_text().splitlines():
        match = LOG.match(line)
        assert match is not None
        at = datetime.strptime(match[2], "%d/%b/%Y:%H:%M:%S %z")
        found.append((match[1], int(at.timestamp()), match[3]))
    return found


def test_urls_are_counted(run_job: Any, access_log: Path) -> None:
    found = run_job("url_count", access_log, split_bytes=50_000, partitions=2)
    assert counted(found) == Counter(url for _, _, url in requests_of(access_log))


def test_lines_that_are_no_request_are_counted_and_skipped(tmp_path: Path) -> None:
    good = '1.2.3.4 - - [01/Jan/2026:00:00:00 +0000] "GET /a HTTP/1.1" 200 5 "-" "x"\n'
    path = write(tmp_path / "in.log", good + "what?\n" + good.replace("Jan", "Foo") + "\n")
    for name, skipped in (("url_count", 2), ("sessions", 3)):
        options = mapreduce.Options(workers=0, store=str(tmp_path / "store"))
        result = mapreduce.run(find_job(name), str(path), options=options)
        assert result.counters == {"lines that are no request": skipped}
        assert result.records is not None
        assert len(result.records) == 1


@pytest.mark.parametrize("gap_s", [0, 30, 1800])
def test_sessions_end_where_a_gap_is_longer_than_asked(run_job: Any, access_log: Path, gap_s: int) -> None:
    by_host = defaultdict(list)
    for host, at, _ in requests_of(access_log):
        by_host[host].append(at)
    expected = []
    for host, times in by_host.items():
        times.sort()
        starts = [i for i in range(len(times)) if i == 0 or times[i] - times[i - 1] > gap_s]
        for begin, end in zip(starts, [*starts[1:], len(times)], strict=True):
            when = f"{datetime.fromtimestamp(times[begin], UTC):%Y-%m-%dT%H:%M:%SZ}"
            expected.append(f"{host}\t{when}\t{times[end - 1] - times[begin]}\t{end - begin}")
    found = run_job("sessions", access_log, gap_s=gap_s, split_bytes=40_000, partitions=3)
    assert sorted(found) == sorted(expected)


# -- group_by -----------------------------------------------------------------------------------


@pytest.mark.parametrize("split_bytes", [1, 1 << 20])
def test_groups_are_aggregated_and_nulls_are_a_group(run_job: Any, tmp_path: Path, split_bytes: int) -> None:
    rows = [
        {
            "city": [None, "a", "b"][i % 3],
            "year": 2000 + i % 2,
            "x": None if i % 5 == 0 else i,
            "y": i / 4 if i % 3 else None,
        }
        for i in range(200)
    ]
    path = tmp_path / "in.parquet"
    schema = pa.schema([("city", pa.string()), ("year", pa.int32()), ("x", pa.int16()), ("y", pa.float64())])
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=30)
    found = run_job(
        "group_by", path, by="city,year", sum="x,y", mean="x", min="y", max="x", partitions=1,
        split_bytes=split_bytes, output_format="csv",
    )  # fmt: skip
    groups = defaultdict(list)
    for row in rows:
        groups[row["city"], row["year"]].append(row)

    def values(members: list[dict[str, Any]], name: str) -> list[Any]:
        return [m[name] for m in members if m[name] is not None]

    expected = {}
    for (city, year), members in groups.items():
        x, y = values(members, "x"), values(members, "y")
        expected[city or "", str(year)] = [
            sum(x), sum(y) if y else "", sum(x) / len(x), min(y, default=""), max(x), len(members)
        ]  # fmt: skip
    header, *got = csv.reader(io.StringIO("\n".join(found) + "\n"))
    assert header == ["city", "year", "sum_x", "sum_y", "mean_x", "min_y", "max_x", "count"]
    assert len(got) == len(expected)
    assert {(row[0], row[1]): [float(v) if v else "" for v in row[2:]] for row in got} == expected


def test_decimals_are_added_exactly_past_their_own_digits(run_job: Any, tmp_path: Path) -> None:
    amounts = [None if i % 7 == 0 else Decimal(i * i * 1001 - 5) / 100 for i in range(90)]
    table = pa.table({
        "key": [("a", "b", None)[i % 3] for i in range(90)],
        "amount": pa.array(amounts, pa.decimal128(7, 2)),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=20)
    found = run_job(
        "group_by", tmp_path / "in.parquet", by="key", sum="amount", max="amount", partitions=1,
        split_bytes=1, output_format="csv",
    )  # fmt: skip
    expected = {}
    for key, first in (("a", 0), ("b", 1), ("", 2)):
        given = [amount for amount in amounts[first::3] if amount is not None]
        expected[key] = (sum(given), max(given))
    got = {key: (Decimal(total), Decimal(most)) for key, total, most, _ in list(csv.reader(found))[1:]}
    assert got == expected
    assert max(total for total, _ in got.values()) > 99999


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"by": "nope", "sum": "n"}, "no column 'nope'; the columns are: city, n"),
        ({"by": "city", "sum": "city"}, "cannot add up column 'city'"),
        ({"by": " "}, "by needs at least one column"),
        ({"by": "city", "count": False}, "nothing to compute"),
        ({"by": "city", "sum": "n,n"}, "'sum_n' twice"),
    ],
)
def test_a_grouping_that_makes_no_sense_is_refused(
    run_job: Any, tmp_path: Path, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadJob, match=message):
        run_job("group_by", write(tmp_path / "in.csv", "city,n\na,1\n"), **parameters)


# -- documentation ------------------------------------------------------------------------------

DOCUMENTED = re.findall(
    r"```python\n# (\w+)\.py\n(.*?)```",
    (Path(__file__).parents[1] / "docs" / "jobs.md").read_text(),
    re.DOTALL,
)


@pytest.mark.parametrize(("name", "source"), DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_a_job_file_of_the_documentation_runs(run_job: Any, tmp_path: Path, name: str, source: str) -> None:
    job_file = write(tmp_path / f"{name}.py", source)
    path = write(tmp_path / "in.txt", "the cat\na of the\ncat the cats\n")
    inputs = len(find_job(str(job_file)).input_names)
    expected = {
        "lengths": ["a\t1", "c\t4", "o\t2", "t\t3"],
        "words": ["a\t1", "cat\t2", "cats\t1", "of\t1", "the\t3"],
        "known": ["cat\t0", "cat\t17", "cats\t17"],
        "top": ["-3\tthe", "-2\tcat", "-1\ta"],
        "halve": ["12\t0", "7\t0", "8\t0"],
        "least": ["a\ta", "cat\tcat", "of\ta", "the\tcat"],
        "both": ["a\t(1, 1)", "cat\t(2, 2)", "cats\t(1, 1)", "of\t(1, 1)", "the\t(3, 3)"],
        "visits": ["a\tof", "cat\tthe", "the\tcat"],
        "by_length": ["12\t1", "7\t1", "8\t1"],
        "order": ["a of the", "cat the cats", "the cat"],
    }
    found = run_job(str(job_file), *[path] * inputs)
    assert (found if name in ("top", "order") else sorted(found)) == expected[name]
