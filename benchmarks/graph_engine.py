"""The graph engine by itself: sorting in memory, a cache for part of the data, and what a task costs."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from dag_overhead import measure_overhead
from graphs import GRADIENT, mr_rounds, points, record_of
from measuring import CORES, Contender, Row, Timing, generated, keep, run_side_by_side
from rounds import ROUNDS
from sorting import PEERS, mr_sort, peers, ratio_row, same_bytes

SORT_SIZE = "1GB"
SPLIT_SIZE = "10MB"
CACHED_PERCENT = (0, 25, 50, 75, 100)
TASKS, TASK_LIMIT_S = 100_000, 0.0002


def graph_sort(folder: Path, rounds: int, with_mr: bool) -> None:
    """Sort 1 GB of 100-byte records in memory, beside the MapReduce engine, Polars, DuckDB and GNU sort."""
    source = generated(folder, f"records-{SORT_SIZE[:-1].lower()}.txt", "records", SORT_SIZE)
    contenders = peers(source, folder, "graph-sort")
    dag, mapreduce = "mr, dag", "mr, mapreduce"
    if with_mr:
        output = folder / "graph-sort-dag"
        command = [*mr_sort(source, output).command, "--engine", "dag"]
        at = command.index("--replication")
        del command[at : at + 2]
        contenders = [
            mr_sort(source, folder / "graph-sort-mr", name=mapreduce),
            Contender(name=dag, command=command, outputs=[output]),
            *contenders,
        ]
    digests: set[str] = set()
    timings = run_side_by_side(contenders, rounds=rounds, folder=folder, check=same_bytes(digests))
    if with_mr:
        work = "sort 1 GB, 10 M lines of 100 bytes, in memory"
        fastest = min((timings[peer] for peer in PEERS), key=lambda timing: timing.median_s)
        rows = [
            ratio_row(work, timings[dag], timings[mapreduce], wanted=1, words="below 1"),
            ratio_row(work, timings[dag], fastest, wanted=0.4, words="at most 0.4"),
        ]
        keep(
            "graph_sort", rows=rows, timings=timings, input_bytes=source.stat().st_size, sha256=digests.pop()
        )


def graph_cache(folder: Path, rounds: int, with_mr: bool) -> None:
    """Train by 10 iterations with 0 to 100 % of 200 MB of points in memory: what is parsed, and the time."""
    if not with_mr:
        return
    source = points(folder)
    # A tolerance that is never met: the job looks at each iterate, so that each iteration is a graph of its own.
    options = (*GRADIENT, "-p", "tolerance=1e-30", "--split-size", SPLIT_SIZE)

    def caching(name: str, *more: str) -> Contender:
        return mr_rounds("gradient", source, folder, "dag", *options, *more, name=name)

    sizes: list[int] = []
    parsed: dict[str, list[int]] = {}

    def read_rows(contender: Contender) -> list[dict[str, Any]]:
        record = json.loads(record_of(contender.name, folder).read_text())
        return [row for row in record["rows"] if row["stage"] == "read"]

    def see_sizes(contender: Contender) -> None:
        sizes.extend(row["bytes_out"] for row in read_rows(contender))

    def count_parsed(contender: Contender) -> None:
        parsed.setdefault(contender.name, []).append(len(read_rows(contender)))

    run_side_by_side([caching("all in memory")], rounds=1, folder=folder, check=see_sizes)
    cached = {percent: round(len(sizes) * percent / 100) for percent in CACHED_PERCENT}
    names = {percent: f"{percent} % cached" for percent in CACHED_PERCENT}
    contenders = [
        caching(names[percent], "--cache", str(count * max(sizes))) for percent, count in cached.items()
    ]
    timings = run_side_by_side(contenders, rounds=max(rounds, 5), folder=folder, check=count_parsed)
    rows: list[Row] = []
    for percent, count in cached.items():
        wanted = count + (len(sizes) - count) * ROUNDS
        found = sorted(set(parsed[names[percent]]))
        rows.append(
            Row(
                work=f"gradient, {ROUNDS} iterations, --cache for {count} of {len(sizes)} partitions",
                ours=f"{timings[names[percent]].median_s:.2f} s",
                theirs="",
                measured=f"{', '.join(map(str, found))} partitions parsed",
                wanted=f"{wanted}: cached ones once, the others {ROUNDS} times",
                met=found == [wanted],
            )
        )
    medians = [timings[name].median_s for name in names.values()]
    rows.append(
        Row(
            work=f"gradient, {ROUNDS} iterations, {', '.join(map(str, CACHED_PERCENT))} % of the data cached",
            ours=", ".join(f"{median:.2f}" for median in medians) + " s",
            theirs="",
            measured=f"{medians[0] / medians[-1]:.1f} times as fast with all as with none",
            wanted="each faster than the one before",
            met=all(after < before for before, after in pairwise(medians)),
        )
    )
    keep(
        "graph_cache", rows=rows, timings=timings, input_bytes=source.stat().st_size, partition_bytes=sizes,
        parsed=parsed,
    )  # fmt: skip


def graph_overhead(folder: Path, rounds: int, with_mr: bool) -> None:
    """Run chains, fans and trees of 100,000 empty tasks on threads."""
    if not with_mr:
        return
    seconds: dict[str, list[float]] = {}
    for number in range(rounds):
        for shape, each in measure_overhead(tasks=TASKS, workers=CORES, runs=1).items():
            seconds.setdefault(shape, []).append(each)
            print(f"  round {number + 1}: {shape:<28} {each * 1e6:8.1f} us per task", flush=True)
    rows = []
    for shape, taken in seconds.items():
        median = statistics.median(taken)
        rows.append(
            Row(
                work=f"{TASKS:,} empty tasks on {CORES} threads, a {shape}",
                ours=f"{median * 1e3:.3f} ms a task",
                theirs="",
                measured=f"{median * 1e3:.3f} ms a task, all run to the end",
                wanted="under 0.2 ms",
                met=median < TASK_LIMIT_S,
            )
        )
    timings = {
        shape: Timing(
            name=shape,
            command="python benchmarks/dag_overhead.py",
            seconds=[each * TASKS for each in taken],
            peak_bytes=0,
        )
        for shape, taken in seconds.items()
    }
    keep("graph_overhead", rows=rows, timings=timings)
