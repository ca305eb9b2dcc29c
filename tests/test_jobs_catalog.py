"""Finding jobs by what people type, and the commands that look at jobs and outputs."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from jobs.catalog import find_job, jobs_of, library_names
from jobs.cli.inspect import cat, explain, head, jobs
from jobs.explain import explain as explain_job
from jobs.show import print_head, print_output
from mapreduce import Options
from mapreduce.errors import BadJob, MissingInput
from mapreduce.inputs import Source

ONE_JOB = """
from mapreduce import Stage, job

@job
def shout(text):
    "Lines in capitals."
    return Stage(map=lambda offset, line: [(None, line.upper())])(text)
"""


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def test_a_library_name_finds_its_job() -> None:
    for name in library_names():
        assert find_job(name).name == name


def test_the_library_has_the_jobs_that_are_promised() -> None:
    promised = "wordcount wordcount_records grep sort distinct top_words inverted_index join url_count sessions ngrams group_by"
    assert set(promised.split()) <= set(library_names())


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadJob, match=r"no job 'wordcont' in the library; did you mean wordcount"):
        find_job("wordcont")


def test_a_file_with_one_job_needs_no_name(tmp_path: Path) -> None:
    assert find_job(str(write(tmp_path / "mine.py", ONE_JOB))).doc == "Lines in capitals."


def test_the_only_job_of_a_file_is_not_one_that_it_imports(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", "from jobs.library.wordcount import wordcount\n" + ONE_JOB)
    assert find_job(str(path)).name == "shout"


def test_a_file_with_several_jobs_lists_them_unless_one_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "two.py", ONE_JOB + ONE_JOB.replace("shout", "cry"))
    with pytest.raises(BadJob, match=r"has 2 jobs; say which: .*two.py:cry, .*two.py:shout"):
        find_job(str(path))
    assert find_job(f"{path}:cry").name == "cry"
    with pytest.raises(BadJob, match=r"has no job 'crry'; did you mean cry"):
        find_job(f"{path}:crry")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n\nimport nowhere_to_be_found\n", r"bad\.py:3: ModuleNotFoundError: No module named"),
        ("def f(:\n    pass\n", r"bad\.py:1: SyntaxError: "),
        ("def f():\n    return 1 / 0\n\nf()\n", r"bad\.py:2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('enough')\n", r"bad\.py:2: SystemExit: enough"),
        ("x = 1\n", r"bad\.py defines no job; put @job above"),
    ],
)
def test_a_file_that_gives_no_job_is_one_line_that_says_where(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path / "bad.py", text)
    with pytest.raises(BadJob, match=message) as caught:
        find_job(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_plain_function_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match=r"nothing\.py does not exist"):
        find_job(str(tmp_path / "nothing.py"))
    path = write(tmp_path / "plain.py", ONE_JOB + "\ndef helper(text):\n    return text\n")
    with pytest.raises(BadJob, match="'helper' is a function but no job; put @job above it"):
        find_job(f"{path}:helper")


def test_the_folder_of_a_job_file_never_hides_installed_modules(tmp_path: Path) -> None:
    write(tmp_path / "json.py", "raise RuntimeError('not me')\n")
    write(tmp_path / "random.py", ONE_JOB + "\nimport json\njson.dumps\n")
    assert find_job(str(tmp_path / "random.py")).name == "shout"
    assert sys.path[0] != str(tmp_path)
    assert sys.path[-1] == str(tmp_path)
    import random

    assert random.Random(1).random() < 1


def test_jobs_of_a_module_are_found_by_attribute() -> None:
    import jobs.library.sort

    assert list(jobs_of(jobs.library.sort)) == ["sort"]


JOB_WITH_NEIGHBOUR = """
from dataclasses import dataclass
from mapreduce import Stage, job
import neighbour

@dataclass(frozen=True)
class Seen:
    length: int

def by_length(offset, line):
    yield neighbour.measure(line), Seen(len(line))

def largest(key, values):
    yield key, max(value.length for value in values)

@job
def lengths(text, *, partitions: int = 2):
    "Longest line per measure."
    return Stage(map=by_length, reduce=largest, partitions=partitions)(text)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_job_file_brings_its_neighbours_and_classes_to_the_workers(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    write(folder / "neighbour.py", "LIMIT = 3\n\ndef measure(line):\n    return min(len(line), LIMIT)\n")
    write(folder / "mine.py", JOB_WITH_NEIGHBOUR)
    write(tmp_path / "in.txt", "a\nbb\nccccc\ndddd\n")
    command = ["run", "project/mine.py", "in.txt", "-o", "out", "--workers", str(workers), "--quiet"]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from jobs.cli import main; main()",
            *command,
            "--store",
            str(tmp_path / "store"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert done.stderr == ""
    lines = [
        line for part in sorted((tmp_path / "out").glob("part-*")) for line in part.read_text().splitlines()
    ]
    assert sorted(lines) == ["1\t1", "2\t2", "3\t5"]


def test_a_module_is_found_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_package").mkdir()
    write(tmp_path / "some_package" / "__init__.py", "")
    write(tmp_path / "some_package" / "inner.py", ONE_JOB)
    monkeypatch.chdir(tmp_path)
    assert find_job("some_package.inner:shout").name == "shout"
    with pytest.raises(BadJob, match=r"there is no module .some_package\.other."):
        find_job("some_package.other:shout")


# -- commands -----------------------------------------------------------------------------------


def test_the_list_of_jobs_has_names_and_parameters() -> None:
    result = CliRunner().invoke(jobs)
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.output.splitlines() if line.strip()}
    assert set(library_names()) <= set(rows)
    assert "pattern (needed)" in rows["grep"]
    assert "n=10" in rows["top_words"]


def test_explain_says_what_the_run_then_does(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{i * 7919 % 10007} some words of a line\n" for i in range(100_000)))
    options = Options(workers=0, store=str(tmp_path / "store"), split_bytes=500_000, partitions=3)
    found = explain_job(find_job("top_words"), [Source(urls=(str(path),))], {}, options)
    import mapreduce

    result = mapreduce.run(find_job("top_words"), str(path), output=str(tmp_path / "out"), options=options)
    assert [s.name for s in found.stages] == [s.stage for s in result.stages]
    assert found.stages[0].maps == result.stages[0].maps == found.inputs[0].splits
    assert [s.partitions for s in found.stages] == [s.reduces for s in result.stages]
    assert [s.to_store for s in found.stages] == [s.through_store for s in result.stages] == [True, False]


def test_explain_expects_the_bytes_that_a_stage_then_writes(tmp_path: Path) -> None:
    job_file = write(
        tmp_path / "twice.py",
        """
        from mapreduce import Stage, job

        def same(offset, line):
            yield line, offset

        def keep(line, offsets):
            for offset in offsets:
                yield None, line

        @job
        def twice(text):
            first = Stage(map=same, reduce=keep)(text)
            return Stage(map=lambda key, line: [(None, line)])(first)
        """,
    )
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{i:08d} a line of text that differs in its number\n" for i in range(60_000)))
    options = Options(workers=0, store=str(tmp_path / "store"))
    found = explain_job(find_job(str(job_file)), [Source(urls=(str(path),))], {}, options)
    import mapreduce

    result = mapreduce.run(find_job(str(job_file)), str(path), output=str(tmp_path / "out"), options=options)
    written = sum(s.written_bytes for s in result.stages if s.through_store)
    assert found.store_bytes == pytest.approx(written, rel=0.1)


def test_explain_of_a_generator_stops_at_its_first_yield_and_leaves_nothing(
    tmp_path: Path, home: Path
) -> None:
    job_file = write(
        tmp_path / "loop.py",
        """
        from mapreduce import Stage, job, total

        @job
        def loop(text):
            for _ in range(3):
                rows = yield Stage(name="round", map=lambda o, line: [(line, 1)], reduce=total)(text)
                raise RuntimeError("explain went on")
            return text
        """,
    )
    write(tmp_path / "in.txt", "a\nb\n")
    result = CliRunner().invoke(explain, [str(job_file), str(tmp_path / "in.txt")], catch_exceptions=False)
    assert "1 round" in result.output
    assert "the job is a generator: this is its plan up to the first yield" in result.output
    assert list((home / "runs").iterdir()) == []


def test_explain_names_a_trial_that_failed(tmp_path: Path) -> None:
    job_file = write(tmp_path / "mine.py", ONE_JOB.replace("line.upper()", "line.nothing()"))
    write(tmp_path / "in.txt", "a\n")
    result = CliRunner().invoke(explain, [str(job_file), str(tmp_path / "in.txt")], catch_exceptions=False)
    assert "the bytes are unknown: a trial on a sample of the input failed" in result.output


def parts(folder: Path, contents: dict[str, bytes]) -> str:
    folder.mkdir()
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return str(folder)


def test_text_parts_are_printed_in_order_and_decompressed(tmp_path: Path) -> None:
    url = parts(
        tmp_path / "out",
        {
            "part-00001.txt.gz": gzip.compress(b"c\n\xff\n"),
            "part-00000.txt.gz": gzip.compress(b"a\nb\n"),
            "_SUCCESS": b"",
        },
    )
    assert b"".join(print_output(url)) == b"a\nb\nc\n\xff\n"
    assert b"".join(print_head(url, 3)) == b"a\nb\nc\n"
    assert b"".join(print_head(url, 0)) == b""


def test_the_header_of_csv_is_printed_once_and_quoted_line_feeds_are_no_rows(tmp_path: Path) -> None:
    url = parts(
        tmp_path / "out",
        {
            "part-00000.csv": b'a,b\n1,"x\ny"\n2,z\n',
            "part-00001.csv": b"a,b\n",
            "part-00002.csv": b"a,b\n3,007\n",
        },
    )
    assert b"".join(print_output(url)) == b'a,b\n1,"x\ny"\n2,z\n3,007\n'
    assert b"".join(print_head(url, 1)) == b'a,b\n1,"x\ny"\n'


@pytest.mark.parametrize("count", [0, 1, 5, 99])
def test_parquet_is_printed_as_csv(tmp_path: Path, count: int) -> None:
    table = pa.table({"n": list(range(20)), "word": [f"w,{i}" for i in range(20)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    rows = [f'{i},"w,{i}"\n' for i in range(20)]
    assert b"".join(print_output(str(tmp_path / "x.parquet"))).decode() == '"n","word"\n' + "".join(rows)
    shown = b"".join(print_head(str(tmp_path / "x.parquet"), count)).decode()
    assert shown == '"n","word"\n' + "".join(rows[:count])


def test_nested_columns_are_printed_as_json_lines(tmp_path: Path) -> None:
    rows = [{"a": [1, 2], "b": {"c": "é"}}, {"a": [], "b": {"c": None}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    shown = b"".join(print_output(str(tmp_path / "x.parquet"))).decode()
    assert [json.loads(line) for line in shown.splitlines()] == rows


def test_cat_and_head_print_from_a_store(tmp_path: Path) -> None:
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.makedirs("/shown", exist_ok=True)
    fs.pipe("/shown/part-00000.txt", b"one\ntwo\n")
    assert CliRunner().invoke(cat, ["memory://shown"]).stdout_bytes == b"one\ntwo\n"
    assert CliRunner().invoke(head, ["-n", "1", "memory://shown"]).stdout_bytes == b"one\n"
    with pytest.raises(MissingInput, match="nowhere"):
        CliRunner().invoke(cat, [str(tmp_path / "nowhere")], catch_exceptions=False)
