"""Mistakes of people who write their first job, or come from another framework: each is told in words that lead on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mr_command import MrCommand

from dag.units import show_seconds
from mapreduce import BadJob, Stage

CSV = "ts,user\n3,ann\n1,bob\n2,ann\n"


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> MrCommand:
    command = MrCommand(tmp_path, monkeypatch, capfd)
    Path("visits.csv").write_text(CSV)
    return command


def job_file(*lines: str, stage: str = "map=m") -> None:
    text = "".join(f"    {line}\n" for line in lines)
    Path("j.py").write_text(
        f"from mapreduce import Stage, job\ndef m(key, value):\n{text}\n@job\ndef j(rows):\n    return Stage({stage})(rows)\n"
    )


@pytest.mark.parametrize("engine", ["mapreduce", "dag"])
def test_the_record_on_which_a_function_raised_is_shown(mr: MrCommand, engine: str) -> None:
    job_file("if value['ts'] == 2: raise KeyError('x')", "yield key, 1")
    said = mr("run", "j.py", "visits.csv", "-o", "out", "--engine", engine, "--workers", 1, "--quiet").err
    assert "record 2: KeyError: 'x'; the record is {'ts': 2, 'user': 'ann'}\n" in said


@pytest.mark.parametrize("engine", ["mapreduce", "dag"])
def test_a_function_that_takes_rows_for_lines_hears_what_records_are(mr: MrCommand, engine: str) -> None:
    job_file("for word in value.split():", "    yield word, 1")
    said = mr("run", "j.py", "visits.csv", "-o", "out", "--engine", engine, "--workers", 1, "--quiet").err
    assert (
        "visits.csv are (row number, dict of columns), since it is read as csv; --format text gives lines"
        in said
    )


def test_one_pair_that_is_returned_is_named_as_one(mr: MrCommand) -> None:
    job_file("return value['user'], 1")
    said = mr.refuse("j.py", "visits.csv")
    assert (
        "m returned one pair, ('ann', 1): yield it, or return a list of pairs; the record is {'ts': 3" in said
    )
    for stage in ("map=m, map_end=lambda: ('a', 1)", "reduce_stream=lambda groups: ('a', 1)"):
        job_file("return []", stage=stage)
        assert "<lambda> returned one pair, ('a', 1): yield it" in mr.refuse("j.py", "visits.csv")
    job_file("return [(value['user'], 1)]")
    assert mr.run("j.py", "visits.csv") == [b"ann\t1", b"bob\t1", b"ann\t1"]


@pytest.mark.parametrize(
    ("part", "function", "complaint"),
    [
        ("map", lambda self, key, value: [], r"map takes \(key, value\), but .*\(self, key, value\) \(no self"),
        ("map", lambda line: [], r"map takes \(key, value\), but .*\(line\)"),
        ("reduce", lambda values: [], r"reduce takes \(key, values\), but"),
        ("partition", lambda key: 0, r"partition takes \(key, partitions\), but"),
        ("setup", lambda task: [], r"setup takes nothing, but"),
        ("map_batch", lambda key, value: [], r"map_batch takes \(batch\), but"),
    ],
)  # fmt: skip
def test_a_function_with_wrong_parameters_is_refused_with_the_plan(
    part: str, function: Any, complaint: str
) -> None:
    with pytest.raises(BadJob, match=complaint):
        Stage(**{part: function})
    with pytest.raises(BadJob, match=r"reduce takes \(key, values_1, values_2\)"):
        Stage(map=[lambda k, v: [], lambda k, v: []], reduce=lambda key, values: [])


@pytest.mark.parametrize(
    ("name", "meant"), [("mapper", "map"), ("reducer", "reduce"), ("partitons", "partitions")]
)
def test_a_stage_says_which_keyword_was_meant(name: str, meant: str) -> None:
    with pytest.raises(BadJob, match=f"a Stage has no {name}=; write {meant}="):
        Stage(**{name: 1})  # type: ignore[arg-type]


def test_standard_input_is_called_by_its_name_in_errors(mr: MrCommand) -> None:
    job_file("raise ValueError(1)", "yield")
    ended = subprocess.run(
        [sys.executable, "-c", "from jobs.cli import main; main()", "run", "j.py", "-", "-o", "out", "--quiet"],
        input="a\n", capture_output=True, text=True,
    )  # fmt: skip
    assert "input -, record 0" in ended.stderr, ended.stderr
    assert "stdin" not in ended.stderr
    assert json.loads(mr("log", "last", "--json").out)["inputs"] == [["-"]]


@pytest.mark.parametrize("engine", ["mapreduce", "dag"])
def test_the_time_that_is_printed_is_that_of_the_record(mr: MrCommand, engine: str) -> None:
    job_file("yield value['user'], 1")
    ended = mr(
        "run", "j.py", "visits.csv", "-o", "out", "--json", "a.json", "--engine", engine, "--workers", 1
    )
    seconds = json.loads(Path("a.json").read_text())["seconds"]
    assert f"j: {show_seconds(seconds)}" in ended.err


def test_runs_of_a_comparison_are_left_out_of_the_list_and_what_they_print_is_in_their_logs(
    mr: MrCommand,
) -> None:
    job_file("yield value['user'], 1")
    Path("j.py").write_text(
        Path("j.py").read_text().replace("def j(rows):", "def j(rows):\n    print('hello')")
    )
    mr.run("j.py", "visits.csv")
    arguments = ("--runs", 1, "--workers", 1, "--replication", 1, "--no-baseline")
    ended = mr("compare", "j.py", "visits.csv", *arguments)
    assert ended.code == 0, ended.err
    assert "hello" not in ended.out + ended.err
    few, every = mr("runs"), mr("runs", "--all").out.splitlines()
    assert few.out.splitlines()[0].split() == ["run", "engine", "outcome", "time", "output"]
    assert len(few.out.splitlines()) == 2
    assert few.err == "4 runs of mr compare left out; --all lists them too\n"
    assert [line.split()[1] for line in every[1:]].count("dag") == 2
    assert len(every) == 6
    for line in every[2:]:
        assert "--- driver.log\nhello\n" in mr("log", line.split()[0]).out


@pytest.mark.parametrize("key", ["ts", "user,ts", "user"])
def test_a_table_that_was_sorted_into_text_is_judged_by_the_same_key(mr: MrCommand, key: str) -> None:
    rows = [f"{number * 7 % 12},u{number * 5 % 11}\n" for number in range(30)]
    Path("visits.csv").write_text("ts,user\n" + "".join(rows))
    mr.run("sort", "visits.csv", "-p", f"key={key}", "-p", "partitions=2")
    assert mr("validate", "visits.csv", "out", "--key", key).out.startswith("valid: 30 records in 2 parts")
    lines = [line for part in mr.parts() for line in part.decode().splitlines()]
    number = {"ts": 1, "user": 2}.get(key)
    if number is not None:  # the number of the field does as well
        assert mr("validate", "visits.csv", "out", "--key", number).code == 0
    Path("wrong.txt").write_text("".join(f"{line}\n" for line in [*lines[1:], lines[0]]))
    assert "belongs before" in mr("validate", "visits.csv", "wrong.txt", "--key", key).err
    Path("other.txt").write_text("".join(f"{line}\n" for line in [*lines[:-1], lines[-1] + "x"]))
    assert "not the same ones" in mr("validate", "visits.csv", "other.txt", "--key", key).err
    assert "no column 'x'; the columns are: ts, user" in mr("validate", "visits.csv", "out", "--key", "x").err


def test_lines_that_were_sorted_into_a_table_are_judged_as_lines(mr: MrCommand) -> None:
    Path("in.txt").write_text("a 3\nb 1\nc 2\n")
    mr.run("sort", "in.txt", "-p", "key=2", "--output-format", "csv")
    assert mr("validate", "in.txt", "out", "--key", "2").out.startswith("valid: 3 records")
    assert mr("validate", "in.txt", "out", "--key", "1").code == 1


def test_library_jobs_on_lines_say_what_to_do_with_a_table(mr: MrCommand) -> None:
    assert mr.refuse("sort", "visits.csv") == (
        "job 'sort': a table needs -p key=COLUMN, of ts, user; or --format text sorts its lines"
    )
    for job in ("wordcount", "distinct", "pagerank", "connected_components"):
        assert f"job '{job}' reads lines of text, but visits.csv is read as csv; give" in mr.refuse(
            job, "visits.csv"
        )


@pytest.mark.parametrize("lines", [100, 40_000])
def test_a_sample_of_a_small_file_reads_no_more_than_the_file(mr: MrCommand, lines: int) -> None:
    Path("in.txt").write_text("".join(f"{number * 7919 % 100_003:08d} and more\n" for number in range(lines)))
    mr.run("sort", "in.txt")
    record = json.loads(mr("log", "last", "--json").out)
    assert [stage["bytes_in"] for stage in record["stages"]] == [Path("in.txt").stat().st_size] * 2


def test_memory_that_runs_out_in_processes_of_a_graph_is_one_line(mr: MrCommand) -> None:
    job_file("held = bytearray(1 << 30)", "held[::4096] = bytes(1 << 18)", "yield key, len(held + held)")
    process = mr.start(
        "run", "j.py", "visits.csv", "-o", "out", "--engine", "dag", "--scheduler", "processes",
        "--workers", 1, "--memory", "100MB", "--quiet",
    )  # fmt: skip
    complaint = mr.finish(process).complaint
    assert "workers died while they had it" in complaint
    assert "too little memory" in complaint


LOOP = """
from mapreduce import Stage, job, total

def halve(key, value):
    yield None, int(value) // 2

def of_text(offset, line):
    yield None, int(line)

@job
def loop(text):
    numbers = Stage(name="read", map=of_text)(text)
    while True:
        rows = yield numbers
        if sum(value for _, value in rows) == 0:
            return numbers
        numbers = Stage(name="shrink", map=halve)(numbers)
"""


@pytest.mark.parametrize(("engine", "ending"), [("mapreduce", ""), ("dag", ".map")])
def test_rounds_of_a_loop_are_numbered_and_those_in_the_middle_are_one_row(
    mr: MrCommand, engine: str, ending: str
) -> None:
    Path("loop.py").write_text(LOOP)
    Path("in.txt").write_text("100\n")  # seven times halved it is 0
    ended = mr("run", "loop.py", "in.txt", "-o", "out", "--engine", engine, "--workers", 1, "--partitions", 3)
    assert ended.code == 0, ended.err
    assert all(line == line.rstrip() for line in ended.err.splitlines())
    assert ", 0 B" not in ended.err
    rows = [line.split("  ")[0] for line in ended.err.splitlines()]
    rows = rows[rows.index("operator" if engine == "dag" else "stage") + 1 :]
    shrinks = [f"shrink{number}{ending}" for number in ("", "#2", "#3 to #6", "#7")]
    assert [row for row in rows if row.startswith("shrink")] == shrinks
    assert any(row.startswith("publish") for row in rows)
    assert "--partitions 3: no use, the stages of loop have a number of their own" in ended.err
    assert "shrink#7" in mr("log", "last").out
