"""What is shown while a graph runs, and that a trial of a graph leaves no run behind."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mr_command import MrCommand

from jobs.generate import generate
from jobs.trial import try_graph
from mapreduce import Options, Stage
from mapreduce.inputs import Source
from mapreduce.stages import Job


def test_every_graph_of_a_loop_ends_with_as_many_tasks_as_it_was_said_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    mr = MrCommand(tmp_path, monkeypatch, capfd)
    generate("points", "points.csv", size_bytes=30_000, seed=1)
    ended = mr(
        "run", "kmeans", "points.csv", "-o", "out", "-p", "k=3", "-p", "tolerance=1e-9", "--engine", "dag",
        "--scheduler", "threads", "--workers", 2, "--json", "r.json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    said = [line for line in ended.err.splitlines() if line.startswith("graph: ")]
    counts = [int(found[1]) for line in said if (found := re.fullmatch(r"graph: (\d+) tasks?", line))]
    assert len(counts) > 2
    assert sum("graph: done" in line for line in said) == len(counts)
    # Later rounds find what the first has read and parsed.
    assert max(counts[1:-1]) < counts[0]


def test_a_trial_that_fails_and_one_that_does_not_leave_no_run(tmp_path: Path, home: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb\n" * 1000)

    def count(offset: int, line: str) -> list[tuple[str, int]]:
        return [(line, 1)]

    def fail(offset: int, line: str) -> list[tuple[str, int]]:
        raise ValueError(line)

    def counting(function: Any, text: Any) -> Any:
        return Stage(map=function)(text)

    for function, outcome in ((count, "Trial("), (fail, "a trial on a sample of the input failed: ")):
        job = Job(function=partial(counting, function), name="counting", doc="")
        trial = try_graph(job, [Source(urls=(str(tmp_path / "in.txt"),))], {}, Options(workers=1))
        assert str(trial).startswith(outcome)
        assert list((home / "runs").iterdir()) == []
