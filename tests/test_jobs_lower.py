"""What a lowered job knows of its stages: combiners, trees and small splits, and that no rewrite changes a byte."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import mapreduce
from jobs.engine import run as run_in_memory
from jobs.explain_graph import ExplainedGraph, explain_graph
from mapreduce import Dataset, Options, Stage
from mapreduce.errors import BadJob, FunctionFailed
from mapreduce.inputs import Source
from mapreduce.stages import Job

NUMBERS = pa.schema([("key", pa.int64()), ("number", pa.float64())])
WHOLE = pa.schema([("key", pa.int64()), ("number", pa.int64())])


def numbers_in(batch: pa.RecordBatch, kind: pa.Schema = NUMBERS) -> pa.RecordBatch:
    values = [float(line) for line in batch.column("line").to_pylist()]
    keys = pa.array([round(abs(value)) % 7 for value in values], pa.int64())
    return pa.RecordBatch.from_arrays(
        [keys, pa.array(values, pa.float64()).cast(kind.field(1).type, safe=False)], schema=kind
    )


def whole_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return numbers_in(batch, WHOLE)


def each_map(batch: pa.RecordBatch, *, state: list[float]) -> None:
    state.extend(numbers_in(batch).column("number").to_pylist())


def begin() -> list[float]:
    return []


def end(*, task: Any, state: list[float]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([task.index]), pa.array([sum(state)])], schema=NUMBERS)


def neighbours(rows: pa.RecordBatch) -> pa.RecordBatch:
    assert 2 <= rows.num_rows <= 8
    total = sum(rows.column("number").to_pylist())
    return pa.RecordBatch.from_arrays([rows.column("key").slice(0, 1), pa.array([total])], schema=NUMBERS)


def in_tree(values: list[float]) -> float:
    while len(values) > 1:
        runs = [values[at : at + 8] for at in range(0, len(values), 8)]
        values = [run[0] if len(run) == 1 else sum(run) for run in runs]
    return values[0]


FOLDED = Stage(
    name="sum", map_batch=each_map, setup=begin, map_end=end, fold=neighbours, schema=NUMBERS, keys=["key"], partitions=1
)  # fmt: skip


def job_of(stage: Stage) -> Job:
    def only(text: Dataset) -> Dataset:
        return stage(text)

    return Job(function=only, name="only", doc="")


def files_of_numbers(folder: Path, files: int, lines: int) -> list[list[float]]:
    """Write files of numbers whose sum depends on the order; return them by file."""
    dice = random.Random(files)
    folder.mkdir()
    found = []
    for at in range(files):
        values = [dice.uniform(-1, 1) * 10.0 ** dice.randrange(12) for _ in range(lines)]
        (folder / f"{at:03d}.txt").write_text("".join(f"{value!r}\n" for value in values))
        found.append(values)
    return found


def one_file_a_split(path: Path) -> Options:
    return Options(workers=2, split_bytes=max(file.stat().st_size for file in path.iterdir()))


def both_engines(job: Job, source: Path, tmp_path: Path, options: Options) -> dict[str, bytes]:
    """Return the files that both engines write, which are the same."""
    mapreduce.run(
        job, str(source), output=str(tmp_path / "store"), options=replace(options, workers=0, plan_for=2)
    )
    run_in_memory(job, str(source), output=str(tmp_path / "memory"), options=options, scheduler="threads")
    made = [
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir() if file.name.startswith("part")}
        for name in ("store", "memory")
    ]
    assert made[0] == made[1]
    assert any(made[0].values())
    return made[0]


def explained(stage: Stage, source: Path, options: Options) -> ExplainedGraph:
    return explain_graph(job_of(stage), [Source(urls=(str(source),))], {}, options)


@pytest.mark.parametrize("files", [1, 2, 9, 70])
def test_a_fold_is_one_tree_over_the_map_tasks_whoever_runs_it(tmp_path: Path, files: int) -> None:
    values = files_of_numbers(tmp_path / "in", files, lines=40)
    options = one_file_a_split(tmp_path / "in")
    tasks = explained(FOLDED, tmp_path / "in", options).tasks
    maps = sum(node.name.startswith(("sum.map[", "read+sum.map[")) for node in tasks.nodes)
    [(_, part)] = both_engines(job_of(FOLDED), tmp_path / "in", tmp_path, options).items()
    assert maps == files
    assert float(part.split()[-1]) == in_tree([sum(each) for each in values])
    assert math.isclose(
        float(part.split()[-1]), math.fsum(x for each in values for x in each), rel_tol=1e-9, abs_tol=1e-3
    )


def test_a_fold_over_many_map_tasks_is_a_tree_of_tasks(tmp_path: Path) -> None:
    files_of_numbers(tmp_path / "in", 70, lines=40)
    found = explained(FOLDED, tmp_path / "in", one_file_a_split(tmp_path / "in"))
    kinds = Counter(node.op.kind for node in found.tasks.nodes)
    assert kinds["gather"] >= 9
    assert max(len(node.inputs) for node in found.tasks.nodes) <= 8
    assert any("in a tree of fan-in 8" in line for line in found.applied)


@pytest.mark.parametrize("engine", [mapreduce.run, run_in_memory])
@pytest.mark.parametrize(
    ("fold", "words"),
    [
        (lambda rows: rows, "fold returns a RecordBatch of one row"),
        (lambda rows: 1, "got int"),
        (lambda rows: rows.column("nothing"), "nothing"),
    ],
)
def test_a_fold_that_makes_no_row_is_told_so(
    tmp_path: Path, engine: Callable[..., Any], fold: Callable[..., Any], words: str
) -> None:
    files_of_numbers(tmp_path / "in", 3, lines=40)
    with pytest.raises(FunctionFailed, match=words):
        engine(
            job_of(replace(FOLDED, fold=fold)), str(tmp_path / "in"), output=str(tmp_path / "out"),
            options=replace(one_file_a_split(tmp_path / "in"), workers=1),
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_a_map_without_a_row_to_fold_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    without_end = replace(FOLDED, map_batch=numbers_in, setup=None, map_end=None)
    for engine in (mapreduce.run, run_in_memory):
        with pytest.raises(FunctionFailed, match="there is no row to fold"):
            engine(job_of(without_end), str(tmp_path / "empty.txt"), options=Options(workers=1))
    [row] = (
        run_in_memory(job_of(FOLDED), str(tmp_path / "empty.txt"), options=Options(workers=1)).records or ()
    )
    assert row == (0, 0.0)


def test_a_fold_that_does_not_fit_its_stage_is_refused() -> None:
    for wrong in ({"partitions": 2}, {"keys": []}, {"aggregate": {"number": "sum"}}):
        with pytest.raises(BadJob, match="fold"):
            replace(FOLDED, **wrong)

    def asks(rows: Any, *, side: Any) -> Any:
        return rows

    with pytest.raises(BadJob, match="fold is given rows alone"):
        replace(FOLDED, fold=asks)


def test_an_exact_aggregation_is_lifted_in_front_of_the_shuffle(tmp_path: Path) -> None:
    files_of_numbers(tmp_path / "in", 4, lines=400)
    options = one_file_a_split(tmp_path / "in")
    stage = Stage(name="n", map_batch=whole_numbers, schema=WHOLE, keys=["key"], aggregate={"number": "max"})
    applied = explained(stage, tmp_path / "in", options).applied
    assert any("n.fold folds each partition in front of n.group" in line for line in applied)
    both_engines(job_of(stage), tmp_path / "in", tmp_path, options)
    rows = run_in_memory(job_of(stage), str(tmp_path / "in"), options=options).rows
    # Seven keys: what is left of 400 lines after the fold.
    assert all(0 < row.shuffle_bytes < 4 * 7 * 16 * 40 for row in rows if "merge" in row.kind)


def test_a_sum_of_floats_is_not_lifted_and_says_why(tmp_path: Path) -> None:
    files_of_numbers(tmp_path / "in", 4, lines=400)
    options = one_file_a_split(tmp_path / "in")
    stage = Stage(name="n", map_batch=numbers_in, schema=NUMBERS, keys=["key"], aggregate={"number": "sum"})
    refused = explained(stage, tmp_path / "in", options).refused
    assert any("n.fold is not lifted over n.group: it is not exact" in line for line in refused)
    both_engines(job_of(stage), tmp_path / "in", tmp_path, options)


def tell_task(batch: pa.RecordBatch, *, task: Any, state: Any, counters: Any) -> pa.RecordBatch:
    counters["batches"] += 1
    state.append(batch.num_rows)
    keys = pa.array([task.index] * batch.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([keys, pa.array([float(len(state))] * batch.num_rows)], schema=NUMBERS)


def test_many_small_splits_are_read_in_a_few_tasks_and_mapped_one_by_one(tmp_path: Path) -> None:
    files_of_numbers(tmp_path / "in", 40, lines=40)
    options = one_file_a_split(tmp_path / "in")
    stage = Stage(
        name="tell", map_batch=tell_task, setup=begin, map_end=end, schema=NUMBERS, keys=["key"], partitions=3
    )  # fmt: skip
    found = explained(stage, tmp_path / "in", options)
    assert any("for 2 workers" in line and "read reads" in line for line in found.applied)
    assert len(found.tasks) <= 8 + 3
    parts = both_engines(job_of(stage), tmp_path / "in", tmp_path, options)
    numbers = {int(line.split()[0]) for part in parts.values() for line in part.splitlines()}
    assert len(numbers) > 8  # each split has its own task, state and end


def records(offset: int, line: str) -> Iterator[tuple[int, str]]:
    yield len(line), line


def together(key: int, lines: Any) -> Iterator[tuple[int, str]]:
    yield key, " ".join(lines)


def test_records_of_small_splits_keep_their_order(tmp_path: Path) -> None:
    files_of_numbers(tmp_path / "in", 40, lines=40)
    options = one_file_a_split(tmp_path / "in")
    stage = Stage(name="listed", map=records, reduce=together, partitions=3)
    assert any("for 2 workers" in line for line in explained(stage, tmp_path / "in", options).applied)
    both_engines(job_of(stage), tmp_path / "in", tmp_path, options)


def test_an_end_that_adds_rows_does_not_keep_a_partitioning(tmp_path: Path) -> None:
    """A stage without a map passes rows on where they are, but its map_end may add rows that belong elsewhere."""
    files_of_numbers(tmp_path / "in", 4, lines=400)
    options = one_file_a_split(tmp_path / "in")
    first = Stage(
        name="first", map_batch=numbers_in, schema=NUMBERS, keys=["key"], partitions=3, keeps_keys=True
    )
    second = Stage(
        name="second", keys=["key"], setup=begin, map_end=end, partitions=3, aggregate={"number": "max"}
    )

    def chain(text: Dataset) -> Dataset:
        return second(first(text))

    job = Job(function=chain, name="chain", doc="")
    both_engines(job, tmp_path / "in", tmp_path, options)
    refused = explain_graph(job, [Source(urls=(str(tmp_path / "in"),))], {}, options).refused
    assert any("second.map may have moved the rows that first.group placed" in line for line in refused)


def test_a_partition_is_refused_for_a_column_whose_offsets_end_not_for_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_of_numbers(tmp_path / "in", 4, lines=400)
    options = Options(workers=1)
    monkeypatch.setattr(
        "mapreduce.inmemory._MOST_BYTES", 10_000
    )  # 1,600 rows of two numbers have 25,600 bytes
    numbers = Stage(name="numbers", map_batch=numbers_in, schema=NUMBERS, keys=["key"], partitions=1)
    assert len(run_in_memory(job_of(numbers), str(tmp_path / "in"), options=options).records or ()) == 1_600
    lines = Stage(name="lines", keys=["line"], partitions=1)
    with pytest.raises(BadJob, match="GB in column 'line'"):
        run_in_memory(job_of(lines), str(tmp_path / "in"), options=options)
