"""Jobs of many rounds: the graph engine beside the MapReduce engine, PySpark and plain dask.

Each program is a whole process, its start and its first look at the data included; rounds are timed inside: by the
records of ``mr`` from end to end of a round, by the peers with a clock around it.  A later round is any but the first.
"""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from measuring import (
    CORES,
    HERE,
    MR,
    PYTHON,
    Contender,
    Row,
    Timing,
    generated,
    keep,
    parts,
    run_side_by_side,
)
from rounds import RATE, ROUNDS, K
from sorting import ratio_row

POINTS_SIZE, GRAPH_SIZE = "200MB", "10MB"  # of edges: PySpark takes a minute even so
MAPREDUCE, DAG, SPARK, DASK, FRAMES = "mr, mapreduce", "mr, dag", "pyspark", "dask", "dask.dataframe"
ROWS_PER_GROUP = 1 << 16
# Each peer has two threads or processes of its own; BLAS is to add none to them.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a run says of itself: the seconds of its rounds, and the rows of its tasks if it is one of ``mr``."""

    rounds_s: list[float]
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def later_s(self) -> float:
        """Return the median of all rounds but the first."""
        return statistics.median(self.rounds_s[1:])


def record_of(name: str, folder: Path) -> Path:
    """Return where a contender leaves what it says of itself."""
    return folder / f"{name.replace(', ', '-')}.json"


def mr_rounds(job: str, source: Path, folder: Path, engine: str, *options: str, name: str = "") -> Contender:
    """Return ``mr run`` with one of the engines."""
    name = name or f"mr, {engine}"
    output, record = folder / f"rounds-{name.replace(', ', '-')}.out", record_of(name, folder)
    command = [MR, "run", job, str(source), "-o", str(output), "--engine", engine, "--workers", str(CORES)]
    if engine == "mapreduce":
        command += ["--replication", "1"]
    command += [*options, "--output-format", "csv", "--json", str(record), "--quiet"]
    return Contender(name=name, command=command, outputs=[output, record])


def peer_rounds(name: str, work: str, source: Path, folder: Path) -> Contender:
    """Return the same work by PySpark or dask."""
    script = "spark_rounds.py" if name == SPARK else "dask_rounds.py"
    work += "-frames" if name == FRAMES else ""
    output, record = folder / f"rounds-{name}.out", record_of(name, folder)
    return Contender(
        name=name,
        command=[PYTHON, str(HERE / script), work, str(source), str(output), str(record)],
        outputs=[output, record, folder / "spark-scratch"],
        environment=ONE_THREAD,
    )


def rounds_of(record: Mapping[str, Any], stage: str) -> Told:
    """Return what a record of ``mr`` says; ``stage`` is the stage of a round."""
    if "stages" in record:
        ends = [each["end"] for each in record["stages"] if each["stage"] == stage]
        first = next(each["begin"] for each in record["stages"] if each["stage"] == stage)
        rows = [row for each in record["stages"] for row in each["attempts"]]
    else:
        rows = record["rows"]
        named = re.compile(rf"{re.escape(stage)}(#\d+)?\.")
        by_round: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if found := named.match(row["stage"]):
                by_round.setdefault(found.group(1) or "#1", []).append(row)
        ends = [max(row["end"] for row in each) for each in by_round.values()]
        first = min(row["start"] for row in by_round["#1"])
    if len(ends) != ROUNDS:
        raise RuntimeError(f"the record shows {len(ends)} rounds of stage {stage!r} instead of {ROUNDS}")
    return Told(rounds_s=[after - before for before, after in pairwise([first, *sorted(ends)])], rows=rows)


def numbers_in(output: Path) -> dict[str, list[float]]:
    """Return the numbers of each line by its name: a feature of weights, a number of a centre, a node of ranks."""
    found: dict[str, list[float]] = {}
    for path in parts(output):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        heading = rows[0] if rows and rows[0][0] in ("class", "cluster", "node") else None
        for row in rows[1:] if heading else rows:
            # Of mr's columns, class says the same everywhere, and points counts what is near a centre.
            if heading and heading[0] == "class":
                row = row[1:]
            elif heading and heading[0] == "cluster":
                row = [row[0], *row[2:]]
            if row[0] in found:
                raise RuntimeError(f"{output}: there are two lines for {row[0]}")
            found[row[0]] = [float(cell) for cell in row[1:]]
    return found


def same_numbers(told: dict[str, list[Told]], folder: Path, stage: str) -> Callable[[Contender], None]:
    """Return a check that all outputs are equal to 9 digits, which adds what a run says of itself to ``told``."""
    first: dict[str, list[float]] = {}

    def check(contender: Contender) -> None:
        record = json.loads(record_of(contender.name, folder).read_text())
        said = Told(rounds_s=record["rounds_s"]) if "rounds_s" in record else rounds_of(record, stage)
        told.setdefault(contender.name, []).append(said)
        found = numbers_in(contender.outputs[0])
        if not first:
            first.update(found)
        if found.keys() != first.keys() or not all(
            math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9 if stage != "sum" else 1e-15)
            for name, numbers in found.items()
            for one, other in zip(numbers, first[name], strict=True)
        ):
            raise RuntimeError(f"{contender.name} found other numbers than {MAPREDUCE} did")

    return check


def later(told: Mapping[str, Sequence[Told]], name: str) -> Timing:
    """Return the later rounds of a contender: of each run their median."""
    seconds = [each.later_s for each in told[name]]
    return Timing(name=name, command="", seconds=seconds, peak_bytes=0)


def round_row(work: str, ours: Timing, theirs: Timing, *, wanted: float, words: str) -> Row:
    """Return the row that compares later rounds, in milliseconds."""
    row = ratio_row(work, ours, theirs, wanted=wanted, words=words)
    shown = {
        "ours": f"{ours.median_s * 1e3:.0f} ms",
        "theirs": f"{theirs.name} {theirs.median_s * 1e3:.0f} ms",
    }
    return Row(**{**vars(row), **shown})


def peer_rows(work: str, timings: Mapping[str, Timing], told: Mapping[str, Sequence[Told]]) -> list[Row]:
    """Return the rows against PySpark and dask: the whole run, and a later round."""
    return [
        row
        for peer in timings
        if not peer.startswith("mr, ")
        for row in (
            ratio_row(f"{work}, in all", timings[DAG], timings[peer], wanted=1, words="below 1"),
            round_row(f"{work}, a later round", later(told, DAG), later(told, peer), wanted=1, words="below 1"),
        )
    ]  # fmt: skip


def later_read_row(work: str, told: Sequence[Told], stage: str) -> Row:
    """Return the row of the bytes that the rounds of a graph read from files or the store."""
    read = max(
        sum(
            row["bytes_in"] + row["store_read_bytes"]
            for row in each.rows
            if row["stage"].startswith((f"{stage}.", f"{stage}#")) or row["store_read_bytes"]
        )
        for each in told
    )
    return Row(
        work=f"{work}: what rounds read",
        ours=f"{read:,} bytes",
        theirs="",
        measured=f"{read:,} bytes from files and the store",
        wanted="0 bytes",
        met=read == 0,
    )


def seconds_told(told: Mapping[str, Sequence[Told]]) -> dict[str, list[list[float]]]:
    """Return the seconds of all rounds of all runs, to be kept."""
    return {name: [[round(s, 5) for s in each.rounds_s] for each in runs] for name, runs in told.items()}


def as_parquet(source: Path) -> Path:
    """Return the same points as a Parquet file beside the CSV file."""
    import pyarrow.csv
    import pyarrow.parquet

    path = source.with_suffix(".parquet")
    if not path.exists():
        building = path.with_suffix(".tmp")
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(source), building, row_group_size=ROWS_PER_GROUP)
        building.replace(path)
    path.read_bytes()  # into the page cache
    return path


def points(folder: Path) -> Path:
    """Return the file of points."""
    return generated(folder, f"points-{POINTS_SIZE.lower()}.csv", "points", POINTS_SIZE)


GRADIENT = ("-p", f"iterations={ROUNDS}", "-p", "momentum=0", "-p", f"rate={RATE}")
KMEANS = ("-p", f"rounds={ROUNDS}", "-p", f"k={K}")
# Parts as large as the peers': three of the default 64 MiB would keep two cores busy for two thirds of the time.
SPLIT = ("--split-size", "8MiB")


def _beside(
    work: str, source: Path, folder: Path, rounds: int, with_mr: bool, stage: str, options: Sequence[str]
) -> tuple[dict[str, Timing], dict[str, list[Told]]]:
    peers = (SPARK, DASK, FRAMES) if work == "pagerank" else (SPARK, DASK)
    contenders = [peer_rounds(name, work, source, folder) for name in peers]
    if with_mr:
        both = [mr_rounds(work, source, folder, engine, *options, *SPLIT) for engine in ("mapreduce", "dag")]
        contenders = [*both, *contenders]
    told: dict[str, list[Told]] = {}
    check = same_numbers(told, folder, stage)
    return run_side_by_side(contenders, rounds=rounds, folder=folder, check=check), told


def graph_gradient(folder: Path, rounds: int, with_mr: bool) -> None:
    """Train logistic regression in 10 iterations on 200 MB of CSV, and on the same as Parquet."""
    rows: list[Row] = []
    kept: dict[str, Timing] = {}
    facts: dict[str, Any] = {}
    source = points(folder)
    for kind, path in (("CSV", source), ("Parquet", as_parquet(source))):
        timings, told = _beside("gradient", path, folder, rounds, with_mr, "iteration", GRADIENT)
        if not with_mr:
            continue
        work = f"gradient, {ROUNDS} iterations on {POINTS_SIZE.replace('MB', ' MB')} of CSV"
        work += "" if kind == "CSV" else " as Parquet"
        ratio = round_row(
            f"{work}, a later round", later(told, DAG), later(told, MAPREDUCE), wanted=0.1,
            words="at most a tenth",
        )  # fmt: skip
        rows += [later_read_row(work, told[DAG], "iteration"), ratio, *peer_rows(work, timings, told)]
        kept |= {f"{kind}, {name}": timing for name, timing in timings.items()}
        facts[f"rounds_s, {kind}"] = seconds_told(told)
    if with_mr:
        keep("graph_gradient", rows=rows, timings=kept, input_bytes=source.stat().st_size, **facts)


def graph_kmeans(folder: Path, rounds: int, with_mr: bool) -> None:
    """Find 8 centres in 10 rounds on 200 MB of CSV, and see that the graph gains less than it does with gradient."""
    source = points(folder)
    timings, told = _beside("kmeans", source, folder, rounds, with_mr, "round", KMEANS)
    if not with_mr:
        return
    gradient: dict[str, list[Told]] = {}
    again = [
        mr_rounds("gradient", source, folder, engine, *GRADIENT, *SPLIT) for engine in ("mapreduce", "dag")
    ]
    check = same_numbers(gradient, folder, "iteration")
    kept = run_side_by_side(again, rounds=rounds, folder=folder, check=check)
    work = f"kmeans, {K} centres, {ROUNDS} rounds on {POINTS_SIZE.replace('MB', ' MB')} of CSV"
    gains = [later(each, MAPREDUCE).median_s / later(each, DAG).median_s for each in (told, gradient)]
    rows = [
        later_read_row(work, told[DAG], "round"),
        Row(
            work=f"{work}: what the graph gains in a later round",
            ours=f"{gains[0]:.1f} times",
            theirs=f"gradient {gains[1]:.1f} times",
            measured=f"MapReduce takes {gains[0]:.1f} times as long, with gradient {gains[1]:.1f} times",
            wanted="less than with gradient",
            met=gains[0] < gains[1],
        ),
        *peer_rows(work, timings, told),
    ]
    keep(
        "graph_kmeans", rows=rows,
        timings=timings | {f"gradient, {name}": timing for name, timing in kept.items()},
        input_bytes=source.stat().st_size, rounds_s=seconds_told(told), rounds_gradient_s=seconds_told(gradient),
    )  # fmt: skip


def graph_pagerank(folder: Path, rounds: int, with_mr: bool) -> None:
    """Rank the nodes of a graph of 10 MB of edges in 10 rounds, and see what is moved without links in their places."""
    source = generated(folder, f"graph-{GRAPH_SIZE.lower()}.txt", "graph", GRAPH_SIZE)
    options = ("-p", f"rounds={ROUNDS}")
    timings, told = _beside("pagerank", source, folder, rounds, with_mr, "sum", options)
    if not with_mr:
        return
    moved = "mr, dag that moves links"
    variant = mr_rounds(str(HERE / "pagerank_moved.py"), source, folder, "dag", *options, *SPLIT, name=moved)
    unplaced: dict[str, list[Told]] = {}
    check = same_numbers(unplaced, folder, "sum")
    timings |= run_side_by_side([variant], rounds=rounds, folder=folder, check=check)
    in_place, without = (
        max(sum(row["shuffle_bytes"] for row in each.rows) for each in runs)
        for runs in (told[DAG], unplaced[moved])
    )
    work = f"pagerank, {ROUNDS} rounds on {GRAPH_SIZE.replace('MB', ' MB')} of edges"
    share = in_place / without
    rows = [
        Row(
            work=f"{work}: bytes through shuffles",
            ours=f"{in_place / 1e6:,.0f} MB",
            theirs=f"links not in place {without / 1e6:,.0f} MB",
            measured=f"{share:.2f} of what it moves when links are not in place",
            wanted="under half",
            met=share < 0.5,
        ),
        ratio_row(f"{work}, in all", timings[DAG], timings[MAPREDUCE], wanted=1, words="below 1"),
        *peer_rows(work, timings, told),
    ]
    keep(
        "graph_pagerank", rows=rows, timings=timings, input_bytes=source.stat().st_size,
        shuffle_bytes={"in place": in_place, "not in place": without}, rounds_s=seconds_told(told | unplaced),
    )  # fmt: skip
