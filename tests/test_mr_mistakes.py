"""Mistakes of people who write their first job, or come from another framework: each is told in words that lead on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mr_command import MrCommand

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
    job_file("return [(value['user'], 1)]")
    assert mr.run("j.py", "visits.csv") == [b"ann\t1", b"bob\t1", b"ann\t1"]


@pytest.mark.parametrize(
    ("part", "function", "complaint"),
    [
        ("map", lambda self, key, value: [], r"map takes \(key, value\), but .*\(self, key, value\) \(no self"),
        ("map", lambda line: [], r"map takes \(key, value\), but .*\(line\)"),
        ("reduce", lambda values: [], r"reduce takes \(key, values\), but"),
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


@pytest.mark.parametrize("engine", ["mapreduce"])
def test_the_time_that_is_printed_is_that_of_the_record(mr: MrCommand, engine: str) -> None:
    job_file("yield value['user'], 1")
    ended = mr(
        "run", "j.py", "visits.csv", "-o", "out", "--json", "a.json", "--engine", engine, "--workers", 1
    )
    seconds = json.loads(Path("a.json").read_text())["seconds"]
    assert f"j: {seconds:.2f} s" in ended.err or f"j: {seconds * 1000:.3g} ms" in ended.err, ended.err
