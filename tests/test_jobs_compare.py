"""``mr compare``: what it measures, what it refuses, what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from mr_command import MrCommand

from jobs.generate import generate
from jobs.report.derive import difference
from jobs.report.model import Comparison
from jobs.report.stored import from_json, to_json
from mapreduce.inputs import Source
from mapreduce.scratch import remove_abandoned
from mapreduce.splits import plan_splits

JOBS = '''
import os, pathlib, time
from functools import partial
from mapreduce import Stage, job, take, total
from mapreduce.files import CountedReader
from mapreduce.meter import current_meter

def words(offset, line):
    for word in line.split():
        yield word, 1

def swap(word, count):
    yield -count, word

def look(name, *, task):
    """Read one byte of a file that no plan knows of."""
    if task.kind == "map" and task.index == 0:
        meter = current_meter()
        with CountedReader(name, {}, partial(meter.count_read, stored=True)) as file:
            file.read(1)

@job
def top(text, *, n: int = 3, look_at: str = ""):
    """Two stages; the second one may read a byte too many."""
    counts = Stage(map=words, combine=total, reduce=total, partitions=2)(text)
    setup = partial(look, look_at) if look_at else None
    return Stage(map=swap, setup=setup, reduce_stream=take(n), partitions=1)(counts)

@job
def by_process(text):
    """What nobody can compare."""
    return Stage(map=lambda offset, line: [(os.getpid(), line)])(text)

def raises(offset, line):
    raise KeyError("missing field")

@job
def raising(text):
    return Stage(map=raises)(text)

def sleeps(offset, line):
    pathlib.Path(f"started-{os.getpid()}").touch()
    time.sleep(600)

@job
def sleeping(text):
    return Stage(map=sleeps)(text)
'''
TEXT = "the ant and the bee\nthe cow\n\nant\n" * 300


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> MrCommand:
    command = MrCommand(tmp_path, monkeypatch, capfd)
    Path("jobs_.py").write_text(JOBS)
    Path("in.txt").write_text(TEXT)
    return command


def compared(mr: MrCommand, *arguments: object) -> Comparison:
    """``mr compare`` to success, with nothing left behind; return what its JSON file says."""
    before = processes_here()
    ended = mr("compare", *arguments, "--runs", 1, "--json", "a.json")
    assert ended.code == 0, ended.err
    assert processes_here() == before
    mr.check_nothing_left()
    text = Path("a.json").read_text()
    comparison = from_json(text)
    assert to_json(comparison) == text
    return comparison


def processes_here() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def check_bytes(comparison: Comparison) -> None:
    """What every run must hold: replicas, modelled bytes, and where the time went."""
    for engine in comparison.engines:
        for run in engine.runs:
            assert run.store_physical_bytes == engine.replication * run.store_written_bytes
            assert (run.store_written_bytes > 0) == (engine.engine != "dag")
            assert run.output_bytes >= comparison.output_bytes  # and _SUCCESS
            assert 0 < run.peak_worker_bytes <= run.peak_memory_bytes
        assert sum(engine.breakdown.values()) == pytest.approx(engine.run.wall_s * engine.workers, rel=0.02)
        assert min(engine.breakdown.values()) >= 0
        assert {attempt.outcome for attempt in engine.attempts} == {"done"}
        assert all(0 <= a.start_s <= a.end_s <= engine.run.wall_s + 0.01 for a in engine.attempts)


def off_the_model(comparison: Comparison) -> dict[tuple[str, str], int]:
    """Return (engine's label, stage): bytes too many, of stages where measurement and model differ at all."""
    return {
        (engine.label, stage.name): difference(stage.measured, stage.modelled).extra_bytes
        for engine in comparison.engines
        for stage in engine.stages
        if stage.measured != stage.modelled
    }


def read_ahead(name: str, split_bytes: int) -> int:
    """Return what splits of text ask for beyond their ends, to find the end of their last line: 4 KiB, or to the file's end.

    It is the only thing that the model leaves out.  (Splits of more than a block look 64 KiB ahead.)
    """
    size = Path(name).stat().st_size
    splits = plan_splits(Source(urls=(name,)), split_bytes=split_bytes)
    return sum(min(4096, size - piece.stop) for split in splits for piece in split.pieces)


def test_a_job_of_two_stages_is_compared_with_one_and_three_copies_and_in_one_thread(mr: MrCommand) -> None:
    Path("queue.py").write_text("raise ImportError('a file of the user in the place of a library')")
    found = compared(mr, "jobs_.py:top", "in.txt", "--workers", 2, "--split-size", "2KB")
    assert [(e.label, e.engine, e.replication, e.workers, len(e.runs)) for e in found.engines] == [
        ("MapReduce, 1 copy", "mapreduce", 1, 2, 1),
        ("MapReduce, 3 copies", "mapreduce", 3, 2, 1),
        ("DAG", "dag", 0, 2, 1),
        ("one thread", "single", 1, 1, 1),
    ]
    check_bytes(found)
    slack = read_ahead("in.txt", 2_000)
    assert slack > 0
    assert off_the_model(found) == {
        ("MapReduce, 1 copy", "words"): slack, ("MapReduce, 3 copies", "words"): slack,
        ("DAG", "words.map"): slack, ("one thread", "words"): slack,
    }  # fmt: skip
    first, third, graph, single = (engine.run for engine in found.engines)
    assert first.store_written_bytes == third.store_written_bytes == single.store_written_bytes
    assert first.store_read_bytes == first.store_written_bytes
    assert graph.input_bytes == first.input_bytes == len(TEXT) + slack
    assert graph.store_read_bytes == graph.spilled_bytes == 0
    stages = {stage.name: stage for stage in found.engines[1].stages}
    assert list(stages) == ["words", "swap"]
    assert stages["words"].measured.intermediate_bytes == third.store_physical_bytes
    assert stages["swap"].measured.input_bytes == first.store_read_bytes
    assert (stages["words"].tasks, stages["swap"].tasks) == (7, 3)
    assert [edge.source for edge in found.drawing.edges if edge.size_bytes == 0] == []
    assert found.parallelism is not None
    assert found.parallelism.tasks == len(found.dag.attempts)
    assert found.parallelism.span_s <= found.parallelism.work_s
    assert list(found.inputs.values()) == [len(TEXT)]
    assert found.output_bytes == len("-600\tant\n-600\tthe\n-300\tand\n")


def test_a_loop_reads_its_side_inputs_as_the_model_says(mr: MrCommand) -> None:
    generate("points", "points.csv", size_bytes=20_000, seed=1)
    found = compared(
        mr, "gradient", "points.csv", "-p", "iterations=3", "--workers", 1, "--no-baseline", "--quiet"
    )
    check_bytes(found)
    assert off_the_model(found) == {}
    assert [s.name for s in found.mapreduce.stages] == [
        "summary", "iteration", "iteration#2", "iteration#3", "weights",
    ]  # fmt: skip
    assert len(found.mapreduce.iterations_s) == 3
    assert found.dag.run.input_bytes == sum(found.inputs.values())
    assert (
        found.mapreduce.run.input_bytes == 4 * found.dag.run.input_bytes
    )  # the summary, and three iterations
    # Side inputs: each iteration reads the summary, and all but the first the iterate before.
    parts = [stage.measured.intermediate_bytes for stage in found.mapreduce.stages]
    summary, first, second, third, _ = parts
    expected = summary + (summary + first) + (summary + second) + (summary + third)
    assert found.mapreduce.run.store_read_bytes == expected


def test_cut_points_that_a_job_looks_at_are_read_as_the_model_says(mr: MrCommand) -> None:
    generate("records", "records.txt", size_bytes=20_000, seed=1)
    found = compared(
        mr,
        "sort",
        "records.txt",
        "--workers",
        2,
        "--partitions",
        2,
        "--no-baseline",
        "--quiet",
        "--replication",
        1,
    )
    sample, _, looks = found.mapreduce.stages
    assert looks.name == "looks of the job"
    assert looks.measured == looks.modelled
    assert looks.measured.total == sample.measured.intermediate_bytes > 0
    assert found.mapreduce.run.store_read_bytes == looks.measured.total


def test_a_side_file_is_read_once_by_each_worker_and_once_by_the_graph(mr: MrCommand) -> None:
    rows = [f"{i % 5}\t{i}" for i in range(400)]
    Path("left.csv").write_text("k,v\n" + "".join(row.replace("\t", ",") + "\n" for row in rows))
    Path("right.csv").write_text("k,w\n" + "".join(f"{i},{i * i}\n" for i in range(5)))
    found = compared(
        mr, "join", "left.csv", "right.csv", "-p", "on=k", "-p", "strategy=broadcast", "--split-size", "1KB",
        "--workers", 2, "--no-baseline", "--quiet", "--replication", 1,
    )  # fmt: skip
    slack = read_ahead("left.csv", 1_000)
    assert off_the_model(found) == {("MapReduce, 1 copy", "join"): slack, ("DAG", "join.write"): slack}
    left, right = (Path(name).stat().st_size for name in ("left.csv", "right.csv"))
    workers = {attempt.worker for attempt in found.mapreduce.attempts}
    assert found.mapreduce.run.input_bytes == left + slack + right * len(workers)
    assert found.dag.run.input_bytes == left + slack + right


def test_one_byte_that_a_stage_reads_too_many_is_found_and_shown_also_when_drawn_again(mr: MrCommand) -> None:
    arguments = [
        "--workers",
        1,
        "--no-baseline",
        "--replication",
        1,
        "--markdown",
        "a.md",
        "--report",
        "a.html",
    ]
    found = compared(mr, "jobs_.py:top", "in.txt", "-p", f"look_at={mr.folder}/in.txt", *arguments)
    assert off_the_model(found)["MapReduce, 1 copy", "swap"] == 1
    assert "+1 byte" in Path("a.md").read_text()
    # The same report with the model one byte larger: now they agree, and nothing is shown.
    text = Path("a.json").read_text()
    stage = found.mapreduce.stages[1]
    assert stage.modelled.input_bytes != found.mapreduce.stages[0].modelled.input_bytes
    mended = json.loads(text)
    mended["engines"][0]["stages"][1]["modelled"]["input_bytes"] += 1
    Path("b.json").write_text(json.dumps(mended))
    assert mr("compare", "b.json", "--markdown", "b.md").code == 0
    assert ("MapReduce, 1 copy", "swap") not in off_the_model(from_json(Path("b.json").read_text()))
    assert Path("b.md").read_text().count("+1 byte") < Path("a.md").read_text().count("+1 byte")
    # And as it was, without the input, the job or a run.
    Path("in.txt").unlink()
    Path("jobs_.py").unlink()
    runs = mr("runs").out
    drawn = mr("compare", "a.json", "--report", "c.html", "--markdown", "c.md", "--json", "c.json")
    assert drawn.code == 0
    for ending in ("html", "md", "json"):
        assert Path(f"a.{ending}").read_bytes() == Path(f"c.{ending}").read_bytes()
    assert mr("runs").out == runs


def test_outputs_that_differ_are_refused_and_both_are_kept(mr: MrCommand) -> None:
    before = processes_here()
    ended = mr(
        "compare", "jobs_.py:by_process", "in.txt", "--runs", 1, "--workers", 1, "--no-baseline", "--quiet"
    )
    assert ended.code == 1
    line = ended.complaint
    assert "the outputs differ: MapReduce, 1 copy wrote " in line
    assert "MapReduce, 3 copies wrote " in line
    (folder,) = mr.temporary.iterdir()
    kept = sorted(folder.iterdir())
    assert len(kept) == 2
    assert all(str(output) in line for output in kept)
    assert len({(output / "part-00000.txt").read_text() for output in kept}) == 2
    os.utime(folder, (0, 0))
    remove_abandoned()  # as every later run does
    assert sorted(folder.iterdir()) == kept
    assert processes_here() == before
    assert [p for p in (mr.home / "store").rglob("*") if p.suffix == ".chunk"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["wordcount", "nowhere.txt"], 1, "nowhere.txt"),
        (["wordcont", "in.txt"], 1, "wordcount"),
        (["jobs_.py:top", "in.txt", "-p", "m=3"], 1, "has no parameter 'm'"),
        (["jobs_.py:top"], 2, "takes an input for each of: text; got 0"),
        (["jobs_.py:top", "-"], 2, "standard input can be read only once"),
        (["wordcount", "in.txt", "--store", "here", "--replication", "2"], 2, "belongs to gfs:// stores"),
        (["wordcount", "--input", "text=-"], 1, "standard input (-) can be read only once"),
        (["wordcount", "in.txt", "--report", "nowhere/r.html"], 2, "the folder of nowhere/r.html does not exist"),
        (["bad.json"], 1, "bad.json: this is no JSON"),
        (["old.json"], 1, "old.json: schema version 0, this mr reads version 2"),
        (["none.json"], 1, "none.json"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said_in_one_line(
    mr: MrCommand, arguments: list[str], code: int, says: str
) -> None:
    Path("bad.json").write_text("{")
    Path("old.json").write_text('{"schema_version": 0}')
    before = processes_here()
    ended = mr("compare", *arguments, "--quiet")
    assert ended.code == code, ended
    assert says in (ended.complaint if code == 1 else ended.err.splitlines()[-1])
    assert "Traceback" not in ended.err
    assert processes_here() == before
    mr.check_nothing_left()


def test_a_function_that_raises_ends_the_comparison_with_its_own_traceback(mr: MrCommand) -> None:
    ended = mr("compare", "jobs_.py:raising", "in.txt", "--workers", 1, "--no-baseline", "--quiet")
    line, *trace = ended.err.splitlines()
    assert ended.code == 1
    for part in ("mr: ", "job 'raising'", "in.txt", "record 0", "KeyError: 'missing field'"):
        assert part in line
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "KeyError: 'missing field'")
    assert not any("mapreduce/" in shown or "jobs/" in shown for shown in trace)
    mr.check_nothing_left()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_comparison_leaves_no_process_and_no_file(mr: MrCommand, sent: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT)
    if sent is signal.SIGKILL:  # a shell in the background has its commands ignore Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    process = mr.start("compare", "jobs_.py:sleeping", "in.txt", "--workers", 1, "--no-baseline")
    signal.signal(signal.SIGINT, before)
    wait_for(lambda: list(Path().glob("started-*")), process)
    below = psutil.Process(process.pid).children(recursive=True)
    assert len(below) >= 4  # a driver for each of three ways, and a worker of the first
    os.killpg(process.pid, sent)
    ended = mr.finish(process)
    _, alive = psutil.wait_procs(below, timeout=60)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    if sent is signal.SIGKILL:  # nobody was there to remove the folder of the outputs
        assert mr("clean").code == 0
    else:
        assert ended.code == 130, ended
        assert "Traceback" not in ended.err
    mr.check_nothing_left()


def wait_for(found: Any, process: subprocess.Popen[str]) -> None:
    """Wait until ``found()``; a process that ended before is a failure."""
    deadline = time.monotonic() + 120
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
