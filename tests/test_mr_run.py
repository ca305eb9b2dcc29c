"""Whole runs of small jobs against plain Python, with processes and without."""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import mapreduce
from mapreduce import Options, Stage, job, take
from mapreduce.errors import BadJob, FunctionFailed, JobError, MissingInput, OutputExists

WORDS = ["ant", "bee", "cow", "dog", "eel", "fox", "größe", "hen"]


def make_text(path: Path, lines: int = 300, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    made = [" ".join(rng.choices(WORDS, k=rng.randint(0, 9))) for _ in range(lines)]
    path.write_text("\n".join(made) + "\n")
    return made


def words(offset, line):
    for word in line.split():
        yield word, 1


def total(word, counts):
    yield word, sum(counts)


def swap(word, count):
    yield -count, word


@job
def wordcount(text):
    """Count words."""
    return Stage(map=words, combine=total, reduce=total)(text)


@job
def top_words(text, *, n: int = 3):
    counts = Stage(map=words, combine=total, reduce=total, partitions=3)(text)
    return Stage(map=swap, reduce_stream=take(n), partitions=1)(counts)


def read_text(folder: Path) -> list[str]:
    parts = sorted(folder.glob("part-*"))
    assert (folder / "_SUCCESS").exists()
    assert {p.name for p in folder.iterdir()} == {p.name for p in parts} | {"_SUCCESS"}
    return [line for part in parts for line in part.read_text().splitlines()]


def run(
    given: Any, *inputs: Any, output: Path, workers: int = 2, parameters: Any = None, **settings: Any
) -> Any:
    options = Options(workers=workers, **settings)
    return mapreduce.run(given, *inputs, output=str(output), parameters=parameters, options=options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_word_count_equals_a_counter(tmp_path: Path, workers: int) -> None:
    lines = make_text(tmp_path / "in.txt")
    run(
        wordcount,
        str(tmp_path / "in.txt"),
        output=tmp_path / "out",
        workers=workers,
        split_bytes=1000,
        partitions=3,
    )
    found = dict(line.split("\t") for line in read_text(tmp_path / "out"))
    assert found == {w: str(n) for w, n in collections.Counter(w for li in lines for w in li.split()).items()}


def test_the_bytes_are_the_same_with_processes_without_and_at_any_memory_limit(tmp_path: Path) -> None:
    make_text(tmp_path / "in.txt", lines=2000)
    outputs = []
    for number, (workers, memory) in enumerate([(0, 64), (1, 256), (2, 64), (2, 2048)]):
        run(
            top_words, str(tmp_path / "in.txt"), output=tmp_path / f"out{number}", workers=workers,
            memory_bytes=memory << 20, split_bytes=5000, parameters={"n": 100},
        )  # fmt: skip
        outputs.append([(p.name, p.read_bytes()) for p in sorted((tmp_path / f"out{number}").iterdir())])
    assert outputs[0] == outputs[1] == outputs[2] == outputs[3]


def test_a_chain_takes_the_most_frequent_words_and_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    lines = make_text(tmp_path / "in.txt")
    store = tmp_path / "store"
    result = run(top_words, str(tmp_path / "in.txt"), output=tmp_path / "out", store=f"file://{store}")
    counted = collections.Counter(w for li in lines for w in li.split())
    expected = sorted((-n, w) for w, n in counted.items())[:3]
    found = [tuple(line.split("\t")) for line in read_text(tmp_path / "out")]
    assert sorted(found) == sorted((str(n), w) for n, w in expected)
    assert [s.through_store for s in result.stages] == [True, False]
    assert not [p for p in store.rglob("*") if p.is_file()]


def test_a_chain_goes_through_the_chunk_store_by_default(tmp_path: Path, home: Path) -> None:
    make_text(tmp_path / "in.txt")
    run(top_words, str(tmp_path / "in.txt"), output=tmp_path / "out")
    assert (home / "store").is_dir()
    assert not [p for p in (home / "store").rglob("*") if p.is_file() and "part-" in p.name]


def test_a_loop_that_stops_on_a_condition_sees_the_records_of_each_round(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("1\n2\n3\n")

    def parse(offset, line):
        yield int(line), 0

    def halve(key, value):
        yield key // 2, value

    @job
    def halving(text):
        numbers = Stage(map=parse)(text)
        rounds = 0
        while True:
            rows = yield numbers
            if all(key == 0 for key, _ in rows):
                break
            rounds += 1
            numbers = Stage(map=halve)(numbers)
        return Stage(map=lambda key, value: [(rounds, key)])(numbers)

    assert mapreduce.run(halving, str(tmp_path / "in.txt")).records == [(2, 0)] * 3


def test_a_join_sees_the_values_of_each_input_apart(tmp_path: Path) -> None:
    (tmp_path / "left.txt").write_text("a 1\nb 2\nb 3\n")
    (tmp_path / "right.txt").write_text("b x\nb y\nc z\n")

    def split(offset, line):
        key, value = line.split()
        yield key, value

    def pair(key, lefts, rights):
        lefts = list(lefts)
        for right in rights:
            for left in lefts:
                yield key, left + right

    @job
    def join(left, right):
        return Stage(map=[split, split], reduce=pair, partitions=2)(left, right)

    found = mapreduce.run(join, str(tmp_path / "left.txt"), str(tmp_path / "right.txt")).records
    assert sorted(found or []) == [("b", "2x"), ("b", "2y"), ("b", "3x"), ("b", "3y")]


def test_functions_get_the_side_the_counters_the_task_and_the_state_that_they_ask_for(tmp_path: Path) -> None:
    make_text(tmp_path / "in.txt", lines=50)

    def opened(*, side):
        return {"stop": set(side["plain"])}

    def keep(offset, line, *, side, counters, task, state):
        for word in line.split():
            if word in state["stop"]:
                counters["stopped"] += 1
            else:
                yield word, (dict(side["counts"])[word], task.kind)

    @job
    def filtered(text):
        counts = Stage(map=words, reduce=total)(text)
        return Stage(map=keep, setup=opened, side={"counts": counts, "plain": ["ant"]})(text)

    lines = make_text(tmp_path / "in.txt", lines=50)
    counted = collections.Counter(w for li in lines for w in li.split())
    result = mapreduce.run(filtered, str(tmp_path / "in.txt"), options=Options(split_bytes=200))
    assert result.counters["stopped"] == counted["ant"]
    assert {w: n for w, (n, _) in result.records or []} == {w: n for w, n in counted.items() if w != "ant"}
    assert {kind for _, (_, kind) in result.records or []} == {"map"}


def test_setup_and_teardown_run_once_per_task_also_without_a_shuffle_and_on_failure(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("1\n2\nthree\n")
    marks = tmp_path / "marks"
    marks.mkdir()

    def opened(*, task):
        (marks / f"{task.kind}-{task.index}-{task.attempt}-open").touch(exist_ok=False)

    def closed(*, task):
        (marks / f"{task.kind}-{task.index}-{task.attempt}-closed").touch(exist_ok=False)

    def parse(offset, line):
        yield int(line), 1

    def keep(offset, line):
        yield line, 1

    both = {"setup": opened, "teardown": closed}
    mapreduce.run(lambda t: Stage(map=keep, **both)(t), str(tmp_path / "in.txt"))
    assert sorted(os.listdir(marks)) == ["map-0-0-closed", "map-0-0-open"]
    for mark in marks.iterdir():
        mark.unlink()
    mapreduce.run(lambda t: Stage(map=keep, reduce=total, **both)(t), str(tmp_path / "in.txt"))
    assert sorted(os.listdir(marks)) == [
        "map-0-0-closed",
        "map-0-0-open",
        "reduce-0-0-closed",
        "reduce-0-0-open",
    ]
    for mark in marks.iterdir():
        mark.unlink()
    with pytest.raises(FunctionFailed, match="three"):
        mapreduce.run(lambda t: Stage(map=parse, **both)(t), str(tmp_path / "in.txt"))
    names = os.listdir(marks)
    assert (
        len([n for n in names if n.endswith("open")]) == len([n for n in names if n.endswith("closed")]) >= 1
    )


def test_values_come_in_the_order_of_the_input_and_sorted_only_by_a_secondary_key(tmp_path: Path) -> None:
    rng = random.Random(4)
    rows = [(rng.choice("abc"), rng.randint(0, 99)) for _ in range(200)]
    (tmp_path / "in.txt").write_text("".join(f"{k} {v}\n" for k, v in rows))

    def plain(offset, line):
        key, value = line.split()
        yield key, int(value)

    def second(offset, line):
        key, value = line.split()
        yield (key, int(value)), int(value)

    def collect(key, values):
        yield key, list(values)

    as_read = mapreduce.run(
        lambda t: Stage(map=plain, reduce=collect)(t),
        str(tmp_path / "in.txt"),
        options=Options(split_bytes=100),
    )
    assert dict(as_read.records or []) == {k: [v for key, v in rows if key == k] for k in "abc"}
    ordered = mapreduce.run(
        lambda t: Stage(map=second, reduce=collect, group=1)(t), str(tmp_path / "in.txt"),
        options=Options(split_bytes=100, partitions=2),
    )  # fmt: skip
    assert dict(ordered.records or []) == {k: sorted(v for key, v in rows if key == k) for k in "abc"}


def test_a_map_only_stage_keeps_the_order_of_the_input(tmp_path: Path) -> None:
    lines = make_text(tmp_path / "in.txt", lines=400)
    run(
        lambda t: Stage(map=lambda offset, line: [(None, line.upper())])(t), str(tmp_path / "in.txt"),
        output=tmp_path / "out", split_bytes=700,
    )  # fmt: skip
    assert read_text(tmp_path / "out") == [line.upper() for line in lines]


def test_a_partition_function_of_the_users_own_decides_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    make_text(tmp_path / "in.txt")

    def by_first(key, partitions):
        return (ord(key[0]) - ord("a")) % partitions

    stage = Stage(map=words, reduce=total, partitions=4, partition=by_first)
    run(lambda t: stage(t), str(tmp_path / "in.txt"), output=tmp_path / "out")
    for number in range(4):
        for line in (tmp_path / "out" / f"part-{number:05d}.txt").read_text().splitlines():
            assert by_first(line, 4) == number
    wrong = Stage(map=words, reduce=total, partitions=4, partition=lambda key, partitions: 9)
    with pytest.raises(JobError, match="9"):
        run(lambda t: wrong(t), str(tmp_path / "in.txt"), output=tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_a_function_that_raises_is_named_with_job_stage_split_record_and_its_own_traceback(
    tmp_path: Path,
) -> None:
    (tmp_path / "in.txt").write_text("1\n2\nthree\n4\n")

    def parse(offset, line):
        yield int(line), 1

    @job
    def parsing(text):
        return Stage(map=parse, reduce=total)(text)

    with pytest.raises(FunctionFailed) as caught:
        run(parsing, str(tmp_path / "in.txt"), output=tmp_path / "out")
    message = str(caught.value)
    for part in ("parsing", "parse", "in.txt", "record 4", "ValueError", "three"):
        assert part in message
    assert "yield int(line), 1" in caught.value.traceback_text
    assert not (tmp_path / "out").exists()
    assert os.listdir(tmp_path) == ["in.txt"]


@pytest.mark.parametrize("returned", [5, "text", {"a": 1}, [("a", 1, 2)], [3]])
def test_a_map_that_returns_no_pairs_is_named(tmp_path: Path, returned: Any) -> None:
    (tmp_path / "in.txt").write_text("x\n")
    with pytest.raises(JobError, match="pairs"):
        run(
            lambda t: Stage(map=lambda k, v: returned, reduce=total)(t), str(tmp_path / "in.txt"),
            output=tmp_path / "out",
        )  # fmt: skip


def test_inputs_and_outputs_that_cannot_be_are_refused_before_anything_runs(tmp_path: Path) -> None:
    make_text(tmp_path / "in.txt")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "keep.txt").write_text("keep")
    with pytest.raises(MissingInput, match="absent"):
        run(wordcount, str(tmp_path / "absent.txt"), output=tmp_path / "out")
    with pytest.raises(OutputExists, match="exists already"):
        run(wordcount, str(tmp_path / "in.txt"), output=tmp_path / "old")
    with pytest.raises(OutputExists, match="inside"):
        run(wordcount, str(tmp_path), output=tmp_path / "new", overwrite=True)
    with pytest.raises(OutputExists, match="inside"):
        run(wordcount, str(tmp_path / "old" / "keep.txt"), output=tmp_path / "old", overwrite=True)
    with pytest.raises(BadJob, match="stage to run"):
        run(lambda t: t, str(tmp_path / "in.txt"), output=tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "old"]
    assert (tmp_path / "old" / "keep.txt").read_text() == "keep"


def test_overwrite_replaces_the_old_output_only_when_the_new_one_is_complete(tmp_path: Path) -> None:
    make_text(tmp_path / "in.txt")
    run(wordcount, str(tmp_path / "in.txt"), output=tmp_path / "out", partitions=5)
    before = read_text(tmp_path / "out")

    def fails(offset, line):
        raise RuntimeError("no")

    with pytest.raises(JobError):
        run(lambda t: Stage(map=fails)(t), str(tmp_path / "in.txt"), output=tmp_path / "out", overwrite=True)
    assert read_text(tmp_path / "out") == before
    run(wordcount, str(tmp_path / "in.txt"), output=tmp_path / "out", partitions=1, overwrite=True)
    assert sorted(read_text(tmp_path / "out")) == sorted(before)
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "out"]


SCRIPT = """
import mapreduce
from helping import double
from mapreduce import Stage

class Doubler:
    def __call__(self, offset, line):
        yield double(line), 1

result = mapreduce.run(lambda text: Stage(map=Doubler())(text), "in.txt")
print(result.records)
"""


def test_a_script_without_a_main_guard_and_with_modules_beside_it_runs(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb\n")
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "helping.py").write_text("def double(text):\n    return text * 2\n")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[('aa', 1), ('bb', 1)]\n", done.stderr


@pytest.mark.parametrize("harm", ["flip", "remove", "cut"])
def test_a_run_that_is_damaged_or_gone_has_its_map_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """The first reduce harms a run of the first map before it reads it, as a bad disk would."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = make_text(tmp_path / "in.txt")
    done = tmp_path / "harmed"

    def damage(*, task):
        if (task.kind, task.index) == ("reduce", 0) and not done.exists():  # one of two: they run at once
            done.touch()
            run = min(Path(os.environ["TMPDIR"]).glob("mrdag-*/worker-*/stage-*/map-00000-*/run-*"))
            if harm == "remove":
                run.unlink()
            elif harm == "cut":
                os.truncate(run, 10)
            else:
                data = bytearray(run.read_bytes())
                data[len(data) // 4] ^= 1
                run.write_bytes(data)

    @job
    def count(text):
        return Stage(setup=damage, map=words, reduce=total, partitions=2)(text)

    found = mapreduce.run(
        count, str(tmp_path / "in.txt"), output=str(tmp_path / "out"),
        options=Options(workers=2, split_bytes=1000, store=str(tmp_path / "store")),
    )  # fmt: skip
    counted = dict(line.split("\t") for line in read_text(tmp_path / "out"))
    assert {word: int(n) for word, n in counted.items()} == collections.Counter(
        word for line in made for word in line.split()
    )
    again = [row for row in found.stages[0].attempts if row.kind == "map" and row.task == 0]
    assert [row.outcome for row in again] == ["done", "done"]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_map_gathers_comes_out_at_the_end_of_its_input(tmp_path: Path, workers: int) -> None:
    made = make_text(tmp_path / "in.txt")

    def gather(offset, line, *, state):
        state.update(line.split())

    def give(*, state):
        yield from state.items()

    @job
    def count(text):
        return Stage(setup=collections.Counter, map=gather, map_end=give, reduce=total, partitions=2)(text)

    mapreduce.run(
        count, str(tmp_path / "in.txt"), output=str(tmp_path / "out"),
        options=Options(workers=workers, split_bytes=1000, store=str(tmp_path / "store")),
    )  # fmt: skip
    counted = dict(line.split("\t") for line in read_text(tmp_path / "out"))
    assert {word: int(n) for word, n in counted.items()} == collections.Counter(
        word for line in made for word in line.split()
    )


def test_standard_input_is_read_whole_and_refused_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = make_text(tmp_path / "in.txt")
    with (tmp_path / "in.txt").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        run(wordcount, "-", output=tmp_path / "out", workers=0)
        counted = collections.Counter(word for line in lines for word in line.split())
        assert sorted(read_text(tmp_path / "out")) == sorted(f"{w}\t{n}" for w, n in counted.items())
        file.seek(0)
        with pytest.raises(BadJob, match="given twice"):
            run(wordcount, ["-", "-"], output=tmp_path / "twice", workers=0)
    assert not (tmp_path / "twice").exists()


def test_a_stage_of_a_long_loop_travels_with_no_more_than_one_of_a_short_loop(tmp_path: Path) -> None:
    from mapreduce.inputs import Source
    from mapreduce.pickling import pickle_by_value
    from mapreduce.planning import Made, plan_stage
    from mapreduce.stages import Dataset, plan

    (tmp_path / "in.txt").write_text("a\n")

    def program_of(rounds: int) -> bytes:
        source = Source(urls=(str(tmp_path / "in.txt"),))
        last = Dataset(source=source)
        for _ in range(rounds):
            last = Stage(map=words, side={"aside": Stage(map=words)(last)})(last)
        made = {step.computation: Made(source=Source(urls=()), schema=None, parts=1) for step in plan(last)}
        folder = str(tmp_path / "out")
        return pickle_by_value(plan_stage(last, made, Options(workers=1), folder=folder, final=True).program)

    assert len(program_of(300)) == len(program_of(2))
