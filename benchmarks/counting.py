"""Counting words: the vectorised job beside Polars and DuckDB, Python functions beside dask.bag and mrjob."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from measuring import CORES, HERE, MR, PYTHON, Contender, generated, keep, run_side_by_side, word_counts
from sorting import ratio_row

MRJOB_SIZE = "50MB"


def mr_count(job: str, source: Path, output: Path) -> Contender:
    """Return ``mr run wordcount`` or ``mr run wordcount_records``."""
    command = [MR, "run", job, str(source), "-o", str(output), "--workers", str(CORES)]
    return Contender(name="mr", command=[*command, "--replication", "1", "--quiet"], outputs=[output])


def peer(name: str, source: Path, folder: Path) -> Contender:
    """Return a word count of peers.py."""
    output = folder / f"{name}.out"
    return Contender(
        name=name,
        command=[PYTHON, str(HERE / "peers.py"), f"{name}-wordcount", str(source), str(output)],
        outputs=[output],
        environment={"POLARS_MAX_THREADS": str(CORES)} if name == "polars" else {},
    )


def same_counts() -> Callable[[Contender], None]:
    """Return a check that all outputs hold the same counts."""
    first: dict[str, int] = {}

    def check(contender: Contender) -> None:
        counts = word_counts(contender.outputs[0])
        if not first:
            first.update(counts)
        if counts != first:
            raise RuntimeError(f"{contender.name} counted other words than those before it")

    return check


def wordcount(folder: Path, rounds: int, with_mr: bool) -> None:
    """Count words in 500 MB beside Polars and DuckDB."""
    source = generated(folder, "text-500m.txt", "text", "500MB")
    contenders = [peer("polars", source, folder), peer("duckdb", source, folder)]
    if with_mr:
        contenders.insert(0, mr_count("wordcount", source, folder / "wordcount-mr"))
    timings = run_side_by_side(contenders, rounds=rounds, folder=folder, check=same_counts())
    if with_mr:
        fastest = min((timings["polars"], timings["duckdb"]), key=lambda timing: timing.median_s)
        work = "count words, 500 MB, vectorised"
        row = ratio_row(work, timings["mr"], fastest, wanted=2 / 3, words="at most two thirds")
        keep("wordcount", rows=[row], timings=timings, input_bytes=source.stat().st_size)


def wordcount_records(folder: Path, rounds: int, with_mr: bool) -> None:
    """Count words by Python functions: 500 MB beside dask.bag, 50 MB beside mrjob, the slower one."""
    large = generated(folder, "text-500m.txt", "text", "500MB")
    small = generated(folder, "text-50m.txt", "text", MRJOB_SIZE)
    against_dask = [peer("dask-bag", large, folder)]
    output = folder / "mrjob.out"
    command = [PYTHON, str(HERE / "mrjob_wordcount.py"), "-r", "local", "--no-conf", str(small)]
    against_mrjob = [
        Contender(name="mrjob", command=[*command, "--output-dir", str(output)], outputs=[output])
    ]
    if with_mr:
        against_dask.insert(0, mr_count("wordcount_records", large, folder / "records-mr"))
        against_mrjob.insert(0, mr_count("wordcount_records", small, folder / "records-small-mr"))
    dask = run_side_by_side(against_dask, rounds=rounds, folder=folder, check=same_counts())
    mrjob = run_side_by_side(against_mrjob, rounds=rounds, folder=folder, check=same_counts())
    if with_mr:
        work = "count words by Python functions"
        rows = [
            ratio_row(f"{work}, 500 MB", dask["mr"], dask["dask-bag"], wanted=1, words="below 1"),
            ratio_row(f"{work}, 50 MB", mrjob["mr"], mrjob["mrjob"], wanted=0.1, words="at most a tenth"),
        ]
        timings = {
            f"{size}, {name}": t
            for size, by in (("500 MB", dask), ("50 MB", mrjob))
            for name, t in by.items()
        }
        keep("wordcount_records", rows=rows, timings=timings)
