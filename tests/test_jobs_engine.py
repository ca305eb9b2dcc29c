"""What a job may ask for, on both engines: the same files, the same counters, the same words when it fails."""

from __future__ import annotations

import collections
import json
import math
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dask_cluster import started_cluster
from hypothesis import given
from hypothesis import strategies as st
from mr_command import MrCommand

import mapreduce
from dag.task import stage_of
from jobs.catalog import find_job
from jobs.engine import GraphResult
from jobs.engine import run as run_in_memory
from jobs.explain_graph import explain_graph
from mapreduce import Dataset, Options, Stage
from mapreduce.errors import BadJob, FunctionFailed, JobError
from mapreduce.inputs import Source

Both = Callable[..., list[str]]


class Engines:
    """Runs a job on both engines and holds their files, counters and counts of records against each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counters: dict[str, int] = {}
        self.graph: GraphResult | None = None

    def __call__(self, job: Any, *inputs: Any, scheduler: str | None = None, **options: Any) -> list[str]:
        parameters = options.pop("parameters", {})
        chosen = Options(
            **{"workers": 0, "plan_for": 2, "store": str(self.folder / "store"), "overwrite": True, **options}
        )
        given = [str(i) if isinstance(i, Path) else i for i in inputs]
        through, inside = self.folder / "through-store", self.folder / "in-memory"
        settings: dict[str, Any] = {"parameters": parameters, "options": chosen}
        result = mapreduce.run(job, *given, output=str(through), **settings)
        self.graph = run_in_memory(job, *given, output=str(inside), scheduler=scheduler, **settings)
        assert files_of(inside) == files_of(through)
        assert self.graph.counters == result.counters
        self.counters = self.graph.counters
        assert {row.outcome for row in self.graph.rows} == {"done"}
        assert sum(row.store_physical_bytes for row in self.graph.rows) == 0
        text = b"".join(path.read_bytes() for path in sorted(inside.glob("part-*")))
        return text.decode().splitlines() if chosen.output_format == "text" and not chosen.compression else []


@pytest.fixture
def both(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def words(offset: int, line: str) -> Iterator[tuple[str, int]]:
    for word in line.split():
        yield word, 1


def total(word: Any, counts: Any) -> Iterator[tuple[Any, Any]]:
    yield word, sum(counts)


def listed(key: Any, values: Any) -> Iterator[tuple[Any, str]]:
    yield key, " ".join(map(str, values))


def text_of(words: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    lines = (" ".join(f"w{rng.randrange(60)}" for _ in range(rng.randrange(7))) for _ in range(words // 3))
    return "\n".join(lines)


# -- what a job may ask for ---------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("split_bytes", [37, 1 << 20])
def test_a_partition_function_of_the_users_own(
    both: Engines, tmp_path: Path, partitions: int, split_bytes: int
) -> None:
    path = write(tmp_path / "in.txt", text_of(300))
    by_last = Stage(
        map=words, combine=total, reduce=total, partitions=partitions, partition=lambda k, n: ord(k[-1]) % n
    )
    found = both(lambda text: by_last(text), path, split_bytes=split_bytes)
    assert dict(line.split("\t") for line in found) == {
        word: str(n) for word, n in collections.Counter(path.read_text().split()).items()
    }
    for number in range(partitions):
        part = (tmp_path / "in-memory" / f"part-{number:05d}.txt").read_text().splitlines()
        assert {ord(line.split("\t")[0][-1]) % partitions for line in part} <= {number}


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_secondary_key_orders_the_values_of_a_group(both: Engines, tmp_path: Path, partitions: int) -> None:
    rows = [(f"k{i % 7}", (i * 37) % 50) for i in range(200)]
    path = write(tmp_path / "in.txt", "".join(f"{k} {n}\n" for k, n in rows))

    def keyed(offset: int, line: str) -> Iterator[Any]:
        key, number = line.split()
        yield (key, int(number)), number

    def joined(key: Any, values: Any) -> Iterator[Any]:
        yield key, ",".join(values)

    found = both(
        lambda text: Stage(map=keyed, reduce=joined, group=1, partitions=partitions)(text),
        path, split_bytes=100,
    )  # fmt: skip
    expected = collections.defaultdict(list)
    for key, number in sorted(rows):
        expected[key].append(str(number))
    assert sorted(found) == [f"{key}\t{','.join(numbers)}" for key, numbers in sorted(expected.items())]


@pytest.mark.parametrize("split_bytes", [20, 1 << 20])
def test_a_reduce_of_two_inputs_sees_their_values_apart(both: Engines, tmp_path: Path, split_bytes: int) -> None:  # fmt: skip
    left = write(tmp_path / "l.txt", "a 1\nb 2\na 3\nc 4\n" * 3)
    right = write(tmp_path / "r.txt", "b x\na y\nd z\na w\n" * 2)

    def pair(offset: int, line: str) -> Iterator[Any]:
        yield tuple(line.split())

    def crossed(key: Any, lefts: Any, rights: Any) -> Iterator[Any]:
        yield key, f"{len(list(lefts))}x{''.join(rights)}"

    stage = Stage(map=[pair, pair], reduce=crossed, partitions=2)
    found = both(lambda one, other: stage(one, other), left, right, split_bytes=split_bytes)
    assert sorted(found) == ["a\t6xywyw", "b\t3xxx", "c\t3x", "d\t0xzz"]


def test_a_stream_of_groups_may_stop_early(both: Engines, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", text_of(400, seed=1))

    def first_two(groups: Any) -> Iterator[Any]:
        for number, (key, values) in enumerate(groups):
            if number == 2:
                return
            yield key, sum(values)

    found = both(
        lambda text: Stage(map=words, reduce_stream=first_two, partitions=1)(text), path, split_bytes=64
    )
    counts = collections.Counter(path.read_text().split())
    assert found == [f"{word}\t{counts[word]}" for word in sorted(counts)[:2]]


def test_setup_teardown_counters_and_views_of_tasks(both: Engines, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", "a b\n" * 100)

    def begin(*, counters: Any) -> dict[str, int]:
        counters["began"] += 1
        return {"lines": 0}

    def end(*, counters: Any, state: Any) -> None:
        counters["ended"] += 1
        counters["lines"] += state["lines"]

    def lines(offset: int, line: str, *, state: Any, task: Any) -> Iterator[Any]:
        state["lines"] += 1
        yield f"{task.kind} {task.index} of {task.partitions} parts", os.path.basename(task.input)

    def seen(key: Any, values: Any, *, task: Any, counters: Any) -> Iterator[Any]:
        counters["groups"] += 1
        yield key, f"{task.kind} {task.index}, {task.input}: {len(set(values))}"

    stage = Stage(map=lines, reduce=seen, setup=begin, teardown=end, partitions=2)
    found = both(lambda text: stage(text), path, split_bytes=100)
    maps = len(found)
    assert maps == 4
    assert both.counters == {"began": maps + 2, "ended": maps + 2, "lines": 100, "groups": maps}
    assert {line.split("\t")[0] for line in found} == {f"map {i} of 2 parts" for i in range(maps)}
    for line in found:
        assert re.fullmatch(r"reduce (\d), partition \1: 1", line.split("\t")[1])


def test_side_inputs_are_values_files_and_what_stages_made(both: Engines, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", "b a\nc a\na b\n" * 20)
    names = write(tmp_path / "names.txt", "Anna\nBert\n")

    def ranked(offset: int, line: str, *, side: Any) -> Iterator[Any]:
        counts = dict(side["counts"])
        people = [name for _, name in side["names"]]
        side["names"].append((0, "a stranger"))  # what one task does to its copy is not seen by others
        for word in line.split():
            yield word, (counts[word], side["factor"], len(people) >= 2, people[0])

    def once(key: Any, values: Any) -> Iterator[Any]:
        yield key, min(values)

    def plan(text: Dataset, people: Dataset) -> Dataset:
        counts = Stage(map=words, combine=total, reduce=total, partitions=2)(text)
        sides = {"counts": counts, "names": people, "factor": 10}
        return Stage(map=ranked, reduce=once, side=sides, partitions=1)(text)

    found = both(plan, path, names, split_bytes=50)
    assert found == [f"{w}\t({n}, 10, True, 'Anna')" for w, n in (("a", 60), ("b", 40), ("c", 20))]
    assert both.graph is not None
    assert both.graph.planned_bytes == path.stat().st_size + names.stat().st_size  # each is read once


def test_side_inputs_of_batch_stages_are_tables(both: Engines, tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2, 3, 1], "v": [1.0, 2.0, 4.0, 8.0]}), tmp_path / "in.parquet")
    schema = pa.schema([("k", pa.int64()), ("v", pa.float64())])

    def shared(batch: Any, *, side: Any) -> Any:
        whole = sum(side["sums"].column("v").to_pylist())
        return pa.RecordBatch.from_arrays(
            [batch.column("k"), pa.array([v / whole for v in batch.column("v").to_pylist()])], schema=schema
        )

    def plan(table: Dataset) -> Dataset:
        sums = Stage(name="sums", map_batch=lambda b: b, keys=["k"], aggregate={"v": "sum"}, partitions=2)(
            table
        )
        return Stage(
            name="shares", map_batch=shared, schema=schema, keys=["k"], aggregate={"v": "sum"},
            side={"sums": sums}, partitions=1,
        )(table)  # fmt: skip

    assert both(plan, tmp_path / "in.parquet") == [
        "1\t0.6",
        "2\t0.13333333333333333",
        "3\t0.26666666666666666",
    ]


@pytest.mark.parametrize("split_bytes", [30, 1 << 20])
def test_a_chain_of_maps_keeps_the_order_of_the_input(
    both: Engines, tmp_path: Path, split_bytes: int
) -> None:
    path = write(tmp_path / "in.txt", "".join(f"{i}\n" for i in range(60)))

    def plan(text: Dataset) -> Dataset:
        numbers = Stage(map=lambda offset, line: [(int(line), 0)])(text)
        odd = Stage(map=lambda n, _: [(n, n * n)] if n % 2 else [])(numbers)
        return Stage(map=lambda n, square: [(square, None)] * 2)(odd)

    found = both(plan, path, split_bytes=split_bytes)
    assert found == [str(n * n) for n in range(1, 60, 2) for _ in range(2)]


def test_a_loop_of_as_many_rounds_as_the_data_want(both: Engines, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", "".join(f"{n}\n" for n in (6, 9, 1, 3)))
    rounds = []

    def plan(text: Dataset) -> Iterator[Any]:
        data = Stage(
            map=lambda offset, line: [(int(line), (int(line), 0))], reduce=lambda k, v: ((k, x) for x in v)
        )(text)
        rounds.append(0)
        while True:
            rows = yield Stage(
                map=lambda n, at: [(n, at[0])], reduce=lambda n, ats: ((n, a) for a in ats), partitions=1
            )(data)
            if all(at == 1 for _, at in rows):
                return data
            rounds[-1] += 1
            data = Stage(map=step, reduce=lambda k, vs: ((k, v) for v in vs), partitions=2)(data)

    def step(n: int, state: tuple[int, int]) -> Iterator[Any]:
        at, count = state
        yield n, state if at == 1 else (at // 2 if at % 2 == 0 else 3 * at + 1, count + 1)

    found = dict(line.split("\t") for line in both(plan, path, split_bytes=5))
    steps = {}
    for n in (6, 9, 1, 3):
        at = n
        steps[n] = 0
        while at != 1:
            at, steps[n] = (at // 2 if at % 2 == 0 else 3 * at + 1), steps[n] + 1
    assert found == {str(n): f"(1, {count})" for n, count in steps.items()}
    assert rounds == [max(steps.values())] * 2 == [19, 19]


def test_what_was_yielded_may_be_returned(both: Engines, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", text_of(100))

    def plan(text: Dataset) -> Iterator[Any]:
        counts = Stage(map=words, reduce=total, partitions=2)(text)
        rows = yield counts
        assert dict(rows) == collections.Counter(path.read_text().split())
        return counts

    assert {line.split("\t")[0] for line in both(plan, path)} == set(path.read_text().split())


def stage_alone(stage: Stage) -> Callable[[Dataset], Dataset]:
    """Return a job of one stage."""
    return lambda data: stage(data)


# -- formats, empty inputs, floats --------------------------------------------------------------


@pytest.mark.parametrize("output_format", ["text", "csv", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("compression", [None, "gzip", "zstd", "bz2"])
def test_outputs_of_every_format_and_compression(
    both: Engines, tmp_path: Path, output_format: str, compression: str | None
) -> None:
    if output_format in ("parquet", "arrow") and compression not in (None, "zstd"):
        pytest.skip(f"{output_format} files know no {compression}")
    path = write(tmp_path / "in.txt", text_of(100))
    both(
        lambda text: Stage(map=words, reduce=total, partitions=2)(text), path, output_format=output_format,
        compression=compression,
    )  # fmt: skip
    name = next(path.name for path in (tmp_path / "in-memory").glob("part-00000*"))
    assert (tmp_path / "in-memory" / name).stat().st_size > 0


def test_inputs_of_every_format_give_the_same_files(both: Engines, tmp_path: Path) -> None:
    table = pa.table({"k": [i % 5 for i in range(50)], "v": [i * 0.25 for i in range(50)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=9)
    rows = table.to_pylist()
    write(tmp_path / "in.csv", "k,v\n" + "".join(f"{r['k']},{r['v']}\n" for r in rows))
    write(tmp_path / "in.jsonl", "".join(f'{{"k": {r["k"]}, "v": {r["v"]}}}\n' for r in rows))

    def keyed(at: Any, row: Any) -> Iterator[Any]:
        yield row["k"], row["v"]

    found = [
        both(
            lambda table: Stage(map=keyed, combine=total, reduce=total, partitions=2)(table),
            tmp_path / f"in.{ending}", split_bytes=150,
        )
        for ending in ("parquet", "csv", "jsonl")
    ]  # fmt: skip
    assert found[0] == found[1] == found[2]
    assert dict(line.split("\t") for line in found[0]) == {
        str(k): str(sum(r["v"] for r in rows if r["k"] == k)) for k in range(5)
    }


@pytest.mark.parametrize("partitions", [1, 3])
def test_empty_inputs_give_empty_parts(both: Engines, tmp_path: Path, partitions: int) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/a.txt", "")
    write(tmp_path / "in/b.txt", "")
    counted = Stage(map=words, combine=total, reduce=total, partitions=partitions)

    def plan(text: Dataset) -> Dataset:
        return Stage(map=lambda w, n: [(n, w)], reduce=listed, partitions=partitions)(counted(text))

    assert both(plan, tmp_path / "in") == []
    assert len(files_of(tmp_path / "in-memory")) == partitions + 1


def spread_of(kind: str, count: int) -> list[float]:
    rng = random.Random(kind)
    if kind == "uniform":
        return [rng.random() for _ in range(count)]
    if kind == "cancelling":
        return [rng.choice((1e16, -1e16, 1.0, 3.14159)) for _ in range(count)]
    return [math.exp(rng.gauss(0, 12)) * rng.choice((1, -1)) for _ in range(count)]


@pytest.mark.parametrize("kind", ["uniform", "cancelling", "lognormal"])
def test_sums_of_floats_have_the_same_bits(both: Engines, tmp_path: Path, kind: str) -> None:
    # 12,000 rows: several blocks of a fold in each map, and several maps.
    numbers = spread_of(kind, 12_000)
    pq.write_table(
        pa.table({"k": [i % 3 for i in range(len(numbers))], "v": numbers}), tmp_path / "in.parquet",
        row_group_size=3_000,
    )  # fmt: skip

    def keyed(at: Any, row: Any) -> Iterator[Any]:
        yield row["k"], row["v"]

    records = Stage(map=keyed, combine=total, reduce=total, partitions=2)
    batches = Stage(map_batch=lambda b: b, keys=["k"], aggregate={"v": "sum"}, partitions=2)
    for stage in (records, batches):
        found = both(stage_alone(stage), tmp_path / "in.parquet", split_bytes=20_000)
        for line in found:
            k, value = line.split("\t")
            exact = math.fsum(n for i, n in enumerate(numbers) if i % 3 == int(k))
            # The bound of any order of summation: (n - 1) roundings of the sum of absolute values.
            bound = 4_000 * 2**-53 * math.fsum(abs(n) for n in numbers[int(k) :: 3])
            assert abs(float(value) - exact) <= bound


# -- for all inputs -----------------------------------------------------------------------------

lines_of_words = st.lists(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=5),
        max_size=6,
    ).map(" ".join),
    max_size=25,
)  # fmt: skip


@given(
    lines=lines_of_words,
    split_bytes=st.integers(3, 200),
    partitions=st.integers(1, 4),
    plan_for=st.integers(1, 3),
    combines=st.booleans(),
    kind=st.sampled_from(["count", "index", "chain", "range", "side"]),
)
def test_random_jobs_on_random_words_write_the_same_files(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    split_bytes: int,
    partitions: int,
    plan_for: int,
    combines: bool,
    kind: str,
) -> None:
    folder = tmp_path_factory.mktemp("random")
    path = write(folder / "in.txt", "".join(f"{line}\n" for line in lines))

    def keyed(offset: int, line: str) -> Iterator[Any]:
        for at, word in enumerate(line.split()):
            yield word, f"{offset}:{at}"

    def measured(offset: int, line: str, *, side: Any) -> Iterator[Any]:
        yield len(line), sum(n for _, n in side["counts"])

    def plan(text: Dataset) -> Dataset:
        count = Stage(
            map=words, combine=total if combines else None, reduce=total, partitions=partitions
        )(text)  # fmt: skip
        if kind == "count":
            return count
        if kind == "index":
            return Stage(map=keyed, reduce=listed, partitions=partitions)(text)
        if kind == "side":
            return Stage(map=measured, reduce=listed, side={"counts": count}, partitions=partitions)(text)
        swapped = Stage(map=lambda w, n: [((-n, w), n)])
        if kind == "chain":
            return Stage(reduce=listed, group=1, partitions=partitions)(swapped(count))
        cuts = swapped(count)
        return Stage(
            map=lambda key, n: [(key, n)], reduce=listed, partition="range", side={"cuts": cuts},
            partitions=partitions,
        )(swapped(count))  # fmt: skip

    Engines(folder)(plan, path, split_bytes=split_bytes, plan_for=plan_for)


# -- where it runs ------------------------------------------------------------------------------


def two_stages(text: Dataset) -> Dataset:
    counts = Stage(map=words, combine=total, reduce=total, partitions=3)(text)
    return Stage(map=lambda w, n: [(n, w)], reduce=listed, partitions=2)(counts)


def test_threads_and_processes_write_what_the_store_writes(both: Engines, tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", text_of(600, seed=5))
    found = [both(two_stages, path, split_bytes=200, scheduler="threads")]
    found.append(both(two_stages, path, split_bytes=200, scheduler="processes", workers=2))
    assert found[0] == found[1]
    counts = collections.Counter(path.read_text().split())
    assert (
        sum(int(line.split("\t")[0]) * len(line.split("\t")[1].split()) for line in found[0])
        == counts.total()
    )


DYING_JOB = """
import os
import signal
from mapreduce import Stage, job

def words(offset, line, *, counters):
    counters["lines"] += 1
    for word in line.split():
        yield word, 1

def total(word, counts):
    try:  # whoever comes first
        os.close(os.open(FLAG, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        yield word, sum(counts)
    else:
        os.kill(os.getpid(), signal.SIGKILL)

@job
def dying(text):
    return Stage(map=words, reduce=total, partitions=4)(text)
"""


def test_what_was_lost_with_its_worker_and_computed_again_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    mr = MrCommand(tmp_path, monkeypatch, capfd)
    write(tmp_path / "own.py", DYING_JOB.replace("FLAG", repr(str(tmp_path / "died"))))
    text = write(tmp_path / "in.txt", text_of(3000, seed=9) + "\n").read_text()
    ended = mr(
        "run", "own.py", "in.txt", "-o", "out", "--engine", "dag", "--scheduler", "processes", "--workers", 2,
        "--split-size", 1000, "--json", "r.json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    made = b"".join(mr.parts()).decode().splitlines()
    assert dict(line.split("\t") for line in made) == {
        word: str(n) for word, n in collections.Counter(text.split()).items()
    }
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    done = [(row["stage"], row["task"]) for row in rows if row["outcome"] == "done"]
    assert len(done) > len(set(done))  # or nothing was computed again, and this shows nothing
    lines = text.count("\n")
    assert f"  lines: {lines:,}" in ended.err.splitlines()
    graph = [line for line in ended.err.splitlines() if line.startswith("graph: ")]
    assert graph[0] == f"graph: {len(set(done))} tasks"
    assert sum(line.startswith("graph: done") for line in graph) == 1
    mapped = next(line.split() for line in ended.err.splitlines() if ".map" in line)
    maps = len({task for stage, task in done if stage == mapped[0]})
    assert mapped[1:3] == [str(maps), f"{lines:,}"]
    logged = mr("log", "last").out
    assert re.search(rf"{mapped[0]}: {maps} tasks, .* {lines:,} records in", logged)


def stumbles(offset: int, line: str) -> Iterator[tuple[str, int]]:
    if line == "7":
        raise KeyError("missing field")
    yield line, 1


def stumbling(text: Dataset) -> Dataset:
    return Stage(map=stumbles, reduce=total)(text)


def test_what_a_function_raises_is_the_same_error_in_every_process(tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", "\n".join(map(str, range(10))))
    options = Options(workers=2, store=str(tmp_path / "store"))
    told = []
    with pytest.raises(FunctionFailed) as through_store:
        mapreduce.run(stumbling, str(path), output=str(tmp_path / "out"), options=options)
    for scheduler in ("threads", "processes"):
        with pytest.raises(FunctionFailed) as caught:
            run_in_memory(
                stumbling, str(path), output=str(tmp_path / "out"), options=options, scheduler=scheduler
            )
        told.append((str(caught.value), caught.value.traceback_text))
    assert told == [(str(through_store.value), through_store.value.traceback_text)] * 2
    assert "record 14: KeyError: 'missing field'" in told[0][0]
    assert "in stumbles" in told[0][1]


def boom(*_: Any, **__: Any) -> Any:
    raise KeyError("missing field")


def other_schema(batch: Any) -> Any:
    return pa.RecordBatch.from_pydict({"elsewhere": ["x"]})


def side_that_is_not_there(offset: int, line: str, *, side: Any) -> Iterator[Any]:
    yield line, side["nowhere"]


def yields_no_dataset(text: Dataset) -> Iterator[Any]:
    yield Stage(map=words)(text)
    yield 3


PARSED = {"map": words, "reduce": total, "partitions": 2}
BATCHES: dict[str, Any] = {"map_batch": lambda b: b, "keys": ["line"]}


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ({**PARSED, "map": boom}, "record 0: KeyError: 'missing field'"),
        ({**PARSED, "combine": boom}, "KeyError: 'missing field'"),
        ({**PARSED, "reduce": boom}, "partition 0, record with key 'w1': KeyError: 'missing field'"),
        ({**PARSED, "setup": boom}, "KeyError: 'missing field'"),
        ({**PARSED, "teardown": boom}, "KeyError: 'missing field'"),
        ({**PARSED, "map": lambda offset, line: [({}, 1)]}, "a dict cannot be a key"),
        ({**PARSED, "map": lambda offset, line: [3]}, "stage"),
        ({**PARSED, "map": side_that_is_not_there}, "KeyError: 'nowhere'"),
        ({**PARSED, "reduce": lambda key, values: 7}, "returned int"),
        ({**PARSED, "partition": lambda key, count: count}, "2"),
        ({**BATCHES, "keys": ["nowhere"]}, "there is no column 'nowhere'; the columns are: line"),
        ({**BATCHES, "map_batch": other_schema}, "line"),
        (
            {**BATCHES, "map_batch": lambda batch: 3},
            "batch that ends at record 2: it returned int; a batch function",
        ),
        ({**BATCHES, "map_batch": lambda batch: [batch, "x"]}, "it yielded str; a batch function returns"),
        (
            {**BATCHES, "reduce_batch": lambda batches: iter([3])},
            "partition 0: it yielded int; a batch function",
        ),
        ({**BATCHES, "reduce_batch": boom}, "KeyError: 'missing field'"),
        (None, "yield"),
    ],
)
def test_what_fails_is_told_in_the_same_words_and_leaves_nothing(
    tmp_path: Path, home: Path, stage: dict[str, Any] | None, says: str
) -> None:
    path = write(tmp_path / "in.txt", "w1 w2\nw3\n")
    job = yields_no_dataset if stage is None else stage_alone(Stage(name="told", **stage))
    told = []
    for run in (mapreduce.run, run_in_memory):
        with pytest.raises(JobError) as caught:
            run(job, str(path), output=str(tmp_path / "out"), options=Options(workers=0, max_attempts=1))
        told.append((type(caught.value), str(caught.value), getattr(caught.value, "traceback_text", "")))
        assert sorted(tmp_path.iterdir()) == [path]
        assert [p for p in (home / "store").rglob("*") if p.suffix == ".chunk"] == []
    assert told[0] == told[1]
    assert says in told[0][1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler and two workers that somebody else started, in a folder of their own."""
    with started_cluster(str(tmp_path_factory.mktemp("dask"))) as started:
        started.add_workers(2)
        yield started.address


OWN_JOB = """
from helper_beside_the_job import parts_of
from mapreduce import Stage, job, total

def words(offset, line):
    for word in parts_of(line):
        yield word, 1

def swap(word, count, *, side, counters):
    counters["swapped"] += 1
    yield (-count, word), len(side["text"])

@job
def ranked(text):
    counts = Stage(map=words, combine=total, reduce=total, partitions=3)(text)
    return Stage(map=swap, reduce=lambda k, vs: [(k, sum(vs))], side={"text": text}, partitions=2)(counts)

def fails(offset, line):
    raise KeyError("missing field")

@job
def failing(text):
    return Stage(name="parse", map=fails)(text)
"""


def test_a_cluster_runs_a_job_file_that_its_workers_cannot_import(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    mr = MrCommand(tmp_path, monkeypatch, capfd)
    write(tmp_path / "own.py", OWN_JOB)
    write(tmp_path / "helper_beside_the_job.py", "def parts_of(line):\n    return line.upper().split()\n")
    write(tmp_path / "in.txt", text_of(300, seed=8))
    there = ["--engine", "dag", "--scheduler", cluster]
    expected = mr.run("own.py:ranked", "in.txt", "--split-size", 200, output="here")
    ended = mr("run", "own.py:ranked", "in.txt", "--split-size", 200, *there, "-o", "there", "--quiet")
    assert (ended.code, ended.err) == (0, "")
    assert b"".join(mr.parts("there")).splitlines() == expected
    assert len(expected) == len(set((tmp_path / "in.txt").read_text().split()))
    for not_obeyed in (("--workers", 1), ("--memory", "1GB")):
        ended = mr("run", "own.py:ranked", "in.txt", *there, "-o", "none", *not_obeyed)
        assert ended.code == 2
        assert f"{not_obeyed[0]}: a graph takes all slots of the cluster" in ended.err
    ended = mr("run", "own.py:failing", "in.txt", *there, "-o", "none", "--quiet")
    assert (ended.code, (tmp_path / "none").exists()) == (1, False)
    mr.check_nothing_left()
    line, *trace = ended.err.splitlines()
    for part in ("job 'failing'", "stage 'parse'", "in.txt", "record 0", "KeyError: 'missing field'"):
        assert part in line
    assert trace[-1] == "KeyError: 'missing field'"
    assert any("own.py" in shown for shown in trace)


def test_the_cluster_that_options_name_is_where_a_graph_runs(cluster: str, tmp_path: Path) -> None:
    path = str(write(tmp_path / "in.txt", text_of(300, seed=8)))
    expected = run_in_memory(two_stages, path, options=Options(workers=1))
    result = run_in_memory(two_stages, path, options=Options(scheduler=cluster, split_bytes=200))
    assert result.scheduler == cluster
    assert {row.worker for row in result.rows} == {0, 1}
    assert result.records == expected.records
    with pytest.raises(BadJob, match=r"takes all 2 slots of the cluster at .*, got workers=1: leave it out"):
        run_in_memory(two_stages, path, options=Options(scheduler=cluster, workers=1))
    with pytest.raises(BadJob, match="one place"):
        run_in_memory(two_stages, path, options=Options(scheduler=cluster), scheduler="threads")


# -- a plan that is tried on a sample -----------------------------------------------------------


def test_a_trial_on_a_sample_measures_what_the_run_will_take_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    mr = MrCommand(tmp_path, monkeypatch, capfd)
    write(tmp_path / "in.txt", text_of(30_000, seed=2))
    job = find_job("wordcount")
    options = Options(workers=2, split_bytes=20_000)
    explained = explain_graph(job, [Source(urls=("in.txt",))], {}, options)
    assert explained.measured
    assert explained.analysis.timed
    ran = run_in_memory(job, "in.txt", output="out", options=options)
    assert [node.name for node in explained.tasks.nodes] == [node.name for node in ran.graphs[0].tasks.nodes]
    assert [(r.stage, r.task) for r in sorted(ran.rows, key=lambda r: (r.stage, r.task))] == sorted(
        stage_of(node.name) for node in explained.tasks.nodes
    )
    mr.check_nothing_left()
