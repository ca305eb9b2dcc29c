"""What is said before and after a run in the graph engine: where it runs and why, and what a trial foretells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mr_command import MrCommand

from jobs.catalog import find_job
from jobs.engine import run
from jobs.explain_graph import explain_graph
from jobs.graph_facts import describe_run
from jobs.trial import Trial, _extrapolate, _Tried, try_graph
from mapreduce import Options
from mapreduce.inputs import Source


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> MrCommand:
    return MrCommand(tmp_path, monkeypatch, capfd)


def write_lines(count: int) -> None:
    Path("in.txt").write_text("".join(f"word{n % 97} and{n % 89} some more of it\n" for n in range(count)))


def test_where_a_graph_runs_and_why_stands_in_its_plan_its_summary_its_record_and_its_log(
    mr: MrCommand,
) -> None:
    write_lines(2000)
    reason = "one worker needs no other process"
    said = mr("explain", "wordcount", "in.txt", "--engine", "dag", "--workers", 1).out
    assert f"would run on   threads: {reason}" in said
    for more, where, why in (
        ((), "threads", reason),
        (("--scheduler", "threads"), "threads", "as asked for"),
    ):
        ended = mr(
            "run", "wordcount", "in.txt", "-o", "out", "--engine", "dag", "--workers", 1, "--overwrite", "--json", "r.json",
            *more,
        )  # fmt: skip
        assert f"ran on {where}: {why}\n" in ended.err
        record = json.loads(Path("r.json").read_text())
        assert (record["scheduler"], record["scheduler_reason"]) == (where, why)
        assert f"ran on {where}: {why}\n" in mr("log", "last").out


def test_one_map_and_one_reduce_are_not_several(mr: MrCommand) -> None:
    write_lines(10)
    ended = mr("run", "wordcount", "in.txt", "-o", "out", "--workers", 1, "--partitions", 1)
    assert "count: 1 map, 1 reduce\n" in ended.err
    assert "1 map, 1 reduce, " in mr("log", "last").out


def test_the_middle_rounds_of_a_loop_are_one_line_of_the_plan(mr: MrCommand) -> None:
    assert mr("generate", "points", "p.csv", "--size", "50kB", "--quiet").code == 0
    said = mr("explain", "gradient", "p.csv", "-p", "iterations=12", "--engine", "dag").out.splitlines()
    assert [line for line in said if "iteration #3-11" in line and "9 rounds" in line]
    assert sum("rounds alike" in line for line in said) >= 2
    assert len(said) < 40


def test_a_trial_foretells_the_bytes_of_what_grows_and_of_what_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(190_000)  # 5.7 MB with 190 words, whatever the size
    job, options = find_job("wordcount_records"), Options(workers=1, split_bytes=10**8)
    trial = try_graph(job, [Source(urls=("in.txt",))], {}, options)
    assert isinstance(trial, Trial)
    assert trial.tried_bytes < 5_000_000 < Path("in.txt").stat().st_size
    ran = run(job, "in.txt", output="out", options=options)
    made: dict[str, int] = {}
    for row in ran.rows:
        name = row.stage.removesuffix(".split")
        made[name] = made.get(name, 0) + row.bytes_out
    assert made
    for name, size in made.items():
        assert trial.size_bytes[name] == pytest.approx(size, rel=0.15), name
    explained = explain_graph(job, [Source(urls=("in.txt",))], {}, options)
    assert "by trials on 4.19 MB of the input's" in explained.basis


LOOP = """
from mapreduce import Stage, job
def m(k, line): yield line.split()[0], len(line)
def s(word, sizes): yield word, sum(sizes)
def half(word, size): yield word, size // 2
def largest(_, sizes): yield None, max(sizes)
def all_(word, size): yield None, size
@job
def loop(text):
    sums = Stage(map=m, reduce=s)(text)
    for _ in range(2):
        sums = Stage(map=half)(sums)
        yield Stage(map=all_, reduce=largest, partitions=1)(sums)
    return sums
"""


def test_the_graph_of_a_generator_job_has_the_operators_bytes_and_times_that_its_first_round_will_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(190_000)
    Path("loop.py").write_text(LOOP)
    job, options = find_job("loop.py"), Options(workers=2)
    explained = explain_graph(job, [Source(urls=("in.txt",))], {}, options)
    ran = run(job, "in.txt", output="out", options=options, scheduler="threads")
    assert not explained.untried
    nodes = {node.name: node for node in explained.graph.nodes}
    assert set(nodes) == {node.name for node in ran.graphs[0].rewritten.graph.nodes}
    made = sum(row.bytes_out for row in ran.rows if row.stage == "read")
    assert made > 10_000_000
    assert nodes["read"].size_bytes == pytest.approx(made, rel=0.15)
    assert all(node.work_s > 0 for node in nodes.values())
    assert explained.analysis.peak_memory_bytes >= nodes["read"].size_bytes


def test_what_no_trial_met_is_unknown_and_not_taken_for_what_was_planned(mr: MrCommand) -> None:
    Path("in.txt").write_text("a b\n" * 10_000)
    Path("bad.py").write_text(
        "from mapreduce import Stage, job\n"
        "def m(k, line): raise ValueError('no')\n"
        "def s(k, v): yield k, sum(v)\n"
        "@job\ndef bad(text):\n    return Stage(map=m, reduce=s)(text)\n"
    )
    said = mr("explain", "bad.py", "in.txt", "--engine", "dag", "--workers", 2).out
    assert "times and sizes are unknown: a trial on a sample" in said
    assert "?" in said.splitlines()[1]
    assert "peak memory" not in said
    assert " kB" not in said.partition("rewritten")[0]


def test_the_names_of_files_that_a_graph_wrote_are_not_the_size_of_its_output(mr: MrCommand) -> None:
    write_lines(2000)
    said = mr("explain", "wordcount", "in.txt", "--engine", "dag", "--workers", 1).out
    (written,) = (line for line in said.splitlines() if "write" in line and "●" not in line and "◆" in line)
    assert " B" not in written


def tried(size: int, *, taken: int, made: int, work_s: float) -> _Tried:
    return _Tried(sample_bytes=size, taken={"op": taken}, made={"op": made}, work_s={"op": work_s})


@pytest.mark.parametrize(
    ("smaller", "larger", "work_s", "made"),
    [
        # 2 ms to begin and 1 ms for each 100 bytes; 1 byte made of each
        (tried(100, taken=100, made=100, work_s=0.003), tried(500, taken=500, made=500, work_s=0.007), 0.102, 10_000),
        # what it takes and makes stays, and so does its time
        (tried(100, taken=40, made=8, work_s=0.003), tried(500, taken=40, made=8, work_s=0.004), 0.004, 8),
        # a measurement that fell is no reason for a time below what was seen
        (tried(100, taken=100, made=50, work_s=0.009), tried(500, taken=500, made=50, work_s=0.007), 0.007, 50),
        # the same sample twice: all of the input, or one that cannot be cut
        (tried(500, taken=500, made=5, work_s=0.007), tried(500, taken=500, made=5, work_s=0.007), 0.14, 100),
    ],
)  # fmt: skip
def test_a_line_through_two_samples_leads_to_the_whole_input(
    smaller: _Tried, larger: _Tried, work_s: float, made: int
) -> None:
    found = _extrapolate(smaller, larger, 10_000)
    assert found.work_s["op"] == pytest.approx(work_s)
    assert found.size_bytes["op"] == made


def test_the_picture_and_the_numbers_of_a_loop_that_decides_as_it_goes_are_of_all_its_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(500)
    Path("loop.py").write_text(LOOP)
    ran = run(find_job("loop.py"), "in.txt", output="out", options=Options(workers=2), scheduler="threads")
    said = describe_run(ran, 2)
    assert len(ran.graphs) == 3
    assert said["parallelism"]["tasks"] == len(ran.rows)
    assert said["parallelism"]["work_s"] == pytest.approx(sum(row.end - row.start for row in ran.rows))
    assert said["parallelism"]["measured_s"] <= max(row.end for row in ran.rows) - min(
        row.start for row in ran.rows
    )
    assert all(f" {row.stage} " in said["text"] for row in ran.rows)
    assert "the graph as it ran<" in said["svg"]
    assert any("keeps_keys=True" in line for line in said["refused"])
    # Two graphs with one name for two nodes cannot be drawn as one.
    other = run(find_job("loop.py"), "in.txt", output="out2", options=Options(workers=2), scheduler="threads")
    mixed = describe_run(replace(ran, graphs=(*ran.graphs, other.graphs[0])), 2)
    largest = max(len(each.tasks) for each in ran.graphs)
    assert f"the largest of 4: {largest} of {len(ran.rows)} tasks" in mixed["svg"]
    assert mixed["parallelism"]["tasks"] == largest < len(ran.rows)


def test_a_rewrite_names_the_box_that_its_operators_are_drawn_as(mr: MrCommand) -> None:
    assert mr("generate", "points", "p.csv", "--size", "20kB", "--quiet").code == 0
    said = mr("explain", "gradient", "p.csv", "-p", "iterations=2", "--engine", "dag", "--workers", 2).out
    boxes, _, rewrites = said.partition("rewritten:")
    assert "iteration.fold " not in boxes
    (line,) = (line for line in rewrites.splitlines() if line.startswith("  iteration.fold"))
    assert "iteration.reduce" in boxes
    assert "iteration.reduce" in line
