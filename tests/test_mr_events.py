"""Rows of attempts: what was read and written, and what the time went to."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mapreduce
from jobs.breakdown import break_down_mapreduce
from mapreduce import Dataset, Options, RunResult, Stage
from mapreduce.home import find_run
from mapreduce.meter import Meter, current_meter, metering, timing
from mapreduce.runner import StageReport

LINES = [f"{i % 97} {i}" for i in range(20_000)]
BYTE_COLUMNS = (
    "bytes_in", "bytes_out", "store_read_bytes", "store_written_bytes", "store_physical_bytes",
    "shuffle_bytes", "moved_bytes",
)  # fmt: skip


def first_word(offset: int, line: str) -> list[tuple[str, int]]:
    return [(line.partition(" ")[0], 1)]


def total(key: str, values: Any) -> list[tuple[str, int]]:
    return [(key, sum(values))]


def swap(key: str, count: int) -> list[tuple[int, str]]:
    return [(count, key)]


def smallest(count: int, keys: Any) -> list[tuple[int, str]]:
    return [(count, min(keys))]


def two_stages(text: Dataset) -> Dataset:
    counts = Stage(name="count", map=first_word, reduce=total, partitions=3)(text)
    return Stage(name="swap", map=swap, reduce=smallest, partitions=2)(counts)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(line + "\n" for line in LINES))
    return path


def run(tmp_path: Path, job: Any, *inputs: Any, **options: Any) -> RunResult:
    settings: dict[str, Any] = {"workers": 2, "store": str(tmp_path / "store"), "split_bytes": 60_000}
    return mapreduce.run(
        job, *inputs, output=str(tmp_path / "out"), options=Options(**{**settings, **options})
    )


def summed(stage: StageReport, column: str, kind: str = "") -> int:
    return sum(getattr(row, column) for row in stage.attempts if row.kind.startswith(kind))


def parts_bytes(folder: Path) -> int:
    return sum(part.stat().st_size for part in folder.glob("part-*"))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_bytes_of_a_chain_are_those_of_its_files(tmp_path: Path, text: Path, workers: int) -> None:
    store_bytes: list[int] = []

    def looked_at(what: str, plan: Any, event: Any) -> None:
        if what == "done" and plan.program.output.stored:
            store_bytes.append(parts_bytes(Path(plan.program.output.folder)))

    options = Options(workers=workers, store=str(tmp_path / "store"), split_bytes=60_000)
    result = mapreduce.run(
        two_stages, str(text), output=str(tmp_path / "out"), options=options, report=looked_at
    )
    count, swapped = result.stages
    # One split reads a little beyond its end, to finish its last line, and what it skips is read by two.
    assert text.stat().st_size <= count.bytes_in < text.stat().st_size * 1.2
    assert count.store_written_bytes == count.store_physical_bytes == store_bytes[0] > 0
    assert count.bytes_out == count.store_read_bytes == swapped.bytes_in == swapped.store_written_bytes == 0
    assert swapped.store_read_bytes == pytest.approx(store_bytes[0], rel=0.25)  # but for what footers repeat
    assert swapped.bytes_out == parts_bytes(tmp_path / "out")
    for stage in result.stages:
        assert summed(stage, "shuffle_bytes", "map") == stage.shuffle_bytes > 0
        assert summed(stage, "shuffle_bytes", "reduce") == stage.shuffle_bytes
        for column in ("bytes_in", "bytes_out", "store_read_bytes", "store_written_bytes"):
            assert summed(stage, column) == getattr(stage, column)
    assert [(s.records_in, s.shuffle_records, s.records_out) for s in result.stages] == [
        (20_000, 20_000, 97), (97, 97, len({206, 207})),
    ]  # fmt: skip
    assert summed(count, "records_in", "reduce") == 20_000
    assert {(row.engine, row.stage) for stage in result.stages for row in stage.attempts} == {
        ("mapreduce", "count"), ("mapreduce", "swap"),
    }  # fmt: skip


@pytest.mark.parametrize("replication", [1, 3])
def test_the_store_writes_the_bytes_of_every_replica(tmp_path: Path, text: Path, replication: int) -> None:
    result = run(
        tmp_path, two_stages, str(text), store=f"gfs://{replication}", workers=0,
        store_options={"root": str(tmp_path / "gfs"), "replication": replication},
    )  # fmt: skip
    count, swapped = result.stages
    assert count.store_written_bytes > 0
    assert count.store_physical_bytes == replication * count.store_written_bytes
    assert swapped.store_physical_bytes == 0  # the output is no intermediate


def test_an_output_in_the_store_is_output(tmp_path: Path, text: Path) -> None:
    out = f"gfs://out-{tmp_path.name}"
    one = Stage(name="count", map=first_word, reduce=total, partitions=1)
    result = mapreduce.run(
        lambda text: one(text), str(text), output=out, options=Options(workers=0)
    )  # fmt: skip
    (stage,) = result.stages
    fs, path = fsspec.core.url_to_fs(out)
    assert stage.bytes_out == sum(fs.info(name)["size"] for name in fs.find(path)) > 0
    assert stage.store_written_bytes == stage.store_physical_bytes == 0


def test_a_side_from_a_stage_is_read_from_the_store_and_one_from_the_input_is_input(
    tmp_path: Path, text: Path
) -> None:
    def lookup(offset: int, line: str, *, side: Any) -> list[tuple[str, int]]:
        word = line.partition(" ")[0]
        return [(word, dict(side["counts"])[word] + len(side["lines"]))] if offset == 0 else []

    small = tmp_path / "small.txt"
    small.write_text("a\nb\n")

    def job(text: Dataset, lines: Dataset) -> Dataset:
        counts = Stage(name="count", map=first_word, reduce=total, partitions=1)(text)
        return Stage(name="look", map=lookup, side={"counts": counts, "lines": lines})(text)

    result = run(tmp_path, job, str(text), str(small), workers=0, split_bytes=10**6)
    count, look = result.stages
    assert look.bytes_in == text.stat().st_size + small.stat().st_size
    assert look.store_read_bytes == pytest.approx(count.store_written_bytes, rel=0.25)
    zeros = sum(line.startswith("0 ") for line in LINES)
    assert (tmp_path / "out" / "part-00000.txt").read_text() == f"0\t{zeros + 2}\n"


def test_what_a_job_looks_at_itself_is_told_apart_from_what_attempts_read(tmp_path: Path, text: Path) -> None:
    def looks(text: Dataset) -> Any:
        counts = Stage(name="count", map=first_word, reduce=total, partitions=1)(text)
        rows = yield counts
        assert len(rows) == 97
        return Stage(name="swap", map=swap, reduce=smallest, partitions=1)(counts)

    result = run(tmp_path, looks, str(text), workers=0)
    count, swapped = result.stages
    assert result.driver_read_bytes == swapped.store_read_bytes > 0
    assert count.store_read_bytes == 0
    assert run(tmp_path, two_stages, str(text), workers=0, overwrite=True).driver_read_bytes == 0


def test_what_a_reduce_reads_from_another_workers_disk_has_moved(tmp_path: Path, text: Path) -> None:
    one = run(tmp_path, two_stages, str(text), workers=1)
    assert all(summed(stage, "moved_bytes") == 0 for stage in one.stages)
    two = run(tmp_path, two_stages, str(text), workers=2, overwrite=True)
    for stage in two.stages:
        by_worker = {row.worker: 0 for row in stage.attempts}
        for row in stage.attempts:
            by_worker[row.worker] += row.shuffle_bytes if row.kind == "map" else 0
        for row in stage.attempts:
            if row.kind == "reduce":
                assert row.moved_bytes <= row.shuffle_bytes
                if by_worker[row.worker] == 0:
                    assert row.moved_bytes == row.shuffle_bytes


@pytest.mark.parametrize("workers", [0, 2])
def test_the_seconds_of_an_attempt_fit_into_it_and_name_what_it_did(
    tmp_path: Path, text: Path, workers: int
) -> None:
    result = run(tmp_path, two_stages, str(text), workers=workers)
    for stage in result.stages:
        assert stage.begin <= min(row.start for row in stage.attempts)
        assert stage.end >= max(row.end for row in stage.attempts)
        for row in stage.attempts:
            assert min(row.seconds.values()) >= 0
            assert math.fsum(row.seconds.values()) <= row.end - row.start
            done = {"compute", "store_read" if row.kind == "map" else "store_write"}
            assert set(row.seconds) == done | ({"serialise", "shuffle"} if row.records_in else set())
            assert row.peak_memory_bytes > 10_000_000


def columns_file(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / f"in.{kind}"
    numbers = list(range(50_000))
    if kind == "parquet":
        pq.write_table(pa.table({"a": numbers}), path, row_group_size=10_000)
    elif kind == "csv":
        path.write_text("a\n" + "".join(f"{n}\n" for n in numbers))
    else:
        path.write_bytes(gzip.compress("".join(f"{n}\n" for n in numbers).encode()))
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "txt.gz"])
def test_what_a_thread_of_a_library_reads_is_counted_and_timed_too(tmp_path: Path, kind: str) -> None:
    path = columns_file(tmp_path, kind)
    job = lambda rows: Stage(name="copy", map_batch=lambda batch: batch)(rows)  # noqa: E731
    result = run(tmp_path, job, str(path), workers=0, split_bytes=10**9)
    (stage,) = result.stages
    (row,) = stage.attempts
    assert row.records_in == row.records_out == 50_000
    footer_bytes = 1 << 16 if kind == "parquet" else 0  # a Parquet reader asks for the end of the file first
    assert path.stat().st_size <= row.bytes_in <= path.stat().st_size + footer_bytes
    assert row.seconds["store_read"] > 0
    assert math.fsum(row.seconds.values()) <= row.end - row.start


def test_one_more_byte_of_input_output_or_intermediate_is_one_more_in_the_rows(tmp_path: Path) -> None:
    def copy(offset: int, line: str) -> list[tuple[None, str]]:
        return [(None, line)]

    def job(text: Dataset) -> Dataset:
        return Stage(name="copy", map=copy)(text)

    def measure(content: str) -> tuple[int, int]:
        (tmp_path / "in.txt").write_text(content)
        (stage,) = run(tmp_path, job, str(tmp_path / "in.txt"), workers=0, overwrite=True).stages
        return stage.bytes_in, stage.bytes_out

    assert measure("one line\n" * 1000) == (9000, 9000)
    assert measure("one line\n" * 999 + "one linee\n") == (9001, 9001)


def test_a_lost_attempt_keeps_what_its_worker_said_last(tmp_path: Path, text: Path) -> None:
    said = tmp_path / "said"

    def die_once(offset: int, line: str, *, task: Any) -> list[tuple[str, int]]:
        if task.attempt == 0 and task.index == 0 and offset > 50_000:
            while not said.exists():
                signal.sigtimedwait([], 0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return [(line, 1)]

    def job(text: Dataset) -> Dataset:
        return Stage(name="die", map=die_once)(text)

    def look(what: str, plan: Any, event: Any) -> None:
        if what == "event" and event.outcome == "running" and event.bytes_in > 0:
            said.touch()

    result = mapreduce.run(
        job, str(text), output=str(tmp_path / "out"), report=look,
        options=Options(workers=1, split_bytes=10**6, timeout_s=4.0),
    )  # fmt: skip
    (stage,) = result.stages
    lost, done = stage.attempts
    assert (lost.outcome, done.outcome) == ("lost", "done")
    assert lost.bytes_in == done.bytes_in == stage.bytes_in == text.stat().st_size
    assert stage.records_in == 20_000
    parts = break_down_mapreduce([stage], began=stage.begin, ended=stage.end, workers=1)
    assert math.fsum(parts.values()) == pytest.approx(stage.end - stage.begin)


def test_the_record_of_a_run_holds_the_rows(tmp_path: Path, text: Path) -> None:
    result = run(tmp_path, two_stages, str(text), workers=0)
    record = json.loads((find_run(result.run) / "record.json").read_text())
    for stage, told in zip(result.stages, record["stages"], strict=True):
        assert told["begin"] == stage.begin
        for row, said in zip(stage.attempts, told["attempts"], strict=True):
            assert {column: said[column] for column in BYTE_COLUMNS} == {
                column: getattr(row, column) for column in BYTE_COLUMNS
            }
            assert said["seconds"] == row.seconds


def test_a_moment_is_counted_once_in_the_innermost_block() -> None:
    with metering(Meter()) as meter:
        for _ in range(50):
            with timing("store_write"), timing("serialise"):
                sum(range(500))
        assert current_meter() is meter
    assert current_meter() is None
    columns = meter.finish()
    assert set(columns["seconds"]) == {"store_write", "serialise", "compute"}
    assert columns["seconds"]["serialise"] > columns["seconds"]["store_write"]
    with timing("shuffle"):  # nobody's
        pass
    assert "shuffle" not in meter.seconds


def test_two_runs_count_the_same_bytes(tmp_path: Path, text: Path) -> None:
    first = run(tmp_path, two_stages, str(text), workers=0)
    second = run(tmp_path, two_stages, str(text), workers=0, overwrite=True)
    for one, other in zip(first.stages, second.stages, strict=True):
        for column in BYTE_COLUMNS:
            assert summed(one, column) == summed(other, column)
