"""Sorting 1 GB of lines, of one length and of many, and 4 GB with little memory."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

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
    sha256,
)

PEERS = ("polars", "polars, scan_lines", "duckdb", "gnu sort")
MEMORY_LIMIT_BYTES = 700_000_000


def mr_sort(source: Path, output: Path, *options: str, name: str = "mr") -> Contender:
    """Return ``mr run sort`` as this benchmark runs it."""
    command = [MR, "run", "sort", str(source), "-o", str(output), "--workers", str(CORES)]
    return Contender(
        name=name, command=[*command, "--replication", "1", *options, "--quiet"], outputs=[output]
    )


def hadoop_sort(source: Path, folder: Path, name: str) -> Contender:
    """Return Hadoop's local job runner on the same sort; compiles it with javac first."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    classes = folder / "classes"
    # In the work folder too, so that the command line that is kept names no path of this machine.
    link = folder / "jars"
    if not link.exists():
        link.symlink_to(jars)
    subprocess.run(
        ["javac", "-cp", f"{jars}/*", "-d", str(classes), str(HERE / "HadoopSort.java")], check=True
    )
    output, scratch = folder / f"{name}-hadoop", folder / f"{name}-hadoop-scratch"
    return Contender(
        name="hadoop",
        command=[
            "java",
            "-Xmx4g",
            "-cp",
            "classes:jars/*",
            "HadoopSort",
            str(source),
            str(output),
            str(scratch),
        ],
        outputs=[output, scratch],
    )


def peers(source: Path, folder: Path, name: str) -> list[Contender]:
    """Return what users would sort a file of lines with."""
    polars, lines, duckdb, gnu = (folder / f"{name}-{i}.out" for i in range(4))
    script, two = str(HERE / "peers.py"), {"POLARS_MAX_THREADS": str(CORES)}
    return [
        Contender(
            name="polars",
            command=[PYTHON, script, "polars-sort", str(source), str(polars)],
            outputs=[polars],
            environment=two,
        ),
        Contender(
            name="polars, scan_lines",
            command=[PYTHON, script, "polars-lines-sort", str(source), str(lines)],
            outputs=[lines],
            environment=two,
        ),
        Contender(
            name="duckdb",
            command=[PYTHON, script, "duckdb-sort", str(source), str(duckdb)],
            outputs=[duckdb],
        ),
        Contender(
            name="gnu sort",
            command=["sort", f"--parallel={CORES}", "-S", "4G", str(source), "-o", str(gnu)],
            outputs=[gnu],
            environment={"LC_ALL": "C", "TMPDIR": str(folder)},
        ),
    ]


def same_bytes(digests: set[str]) -> Callable[[Contender], None]:
    """Return a check that adds each output's SHA-256 to ``digests`` and allows only one."""

    def check(contender: Contender) -> None:
        digests.add(sha256(contender.outputs[0]))
        if len(digests) > 1:
            raise RuntimeError(f"{contender.name} wrote other bytes than those before it")

    return check


def sort(folder: Path, rounds: int, with_mr: bool) -> None:
    """Sort 1 GB of 100-byte records beside Polars, DuckDB, GNU sort and Hadoop MapReduce."""
    source = generated(folder, "records-1g.txt", "records", "1GB")
    _sort(folder, rounds, with_mr, source, "sort", "sort 1 GB, 10 M lines of 100 bytes", hadoop=True)


def sort_variable(folder: Path, rounds: int, with_mr: bool) -> None:
    """Sort 1 GB of lines of 38 to 164 bytes beside Polars, DuckDB, GNU sort and Hadoop MapReduce."""
    source = generated(folder, "records-var-1g.txt", "records", "1GB", "--lines", "variable")
    _sort(
        folder, rounds, with_mr, source, "sort_variable", "sort 1 GB, lines of 38 to 164 bytes", hadoop=True
    )


def _sort(
    folder: Path, rounds: int, with_mr: bool, source: Path, name: str, work: str, *, hadoop: bool
) -> None:
    contenders = peers(source, folder, name)
    if hadoop:
        contenders.append(hadoop_sort(source, folder, name))
    if with_mr:
        contenders.insert(0, mr_sort(source, folder / f"{name}-mr"))
    digests: set[str] = set()
    timings = run_side_by_side(contenders, rounds=rounds, folder=folder, check=same_bytes(digests))
    fastest = min((timings[peer] for peer in PEERS), key=lambda timing: timing.median_s)
    rows = []
    if with_mr:
        rows.append(ratio_row(work, timings["mr"], fastest, wanted=0.5, words="at most half"))
        if hadoop:
            rows.append(
                ratio_row(work, timings["mr"], timings["hadoop"], wanted=0.1, words="at most a tenth")
            )
        keep(name, rows=rows, timings=timings, input_bytes=source.stat().st_size, sha256=digests.pop())


def ratio_row(work: str, ours: Timing, theirs: Timing, *, wanted: float, words: str) -> Row:
    """Return the row that compares two medians; ``wanted`` is the greatest ratio that meets the claim."""
    ratio = ours.median_s / theirs.median_s
    return Row(
        work=work,
        ours=f"{ours.median_s:.2f} s",
        theirs=f"{theirs.name} {theirs.median_s:.2f} s",
        measured=f"{ratio:.2f} of {theirs.name}'s time",
        wanted=words,
        met=ratio <= wanted,
    )


def memory(folder: Path, rounds: int, with_mr: bool) -> None:
    """Sort 1 GB and 4 GB with 512 MB per worker process: the peak of each process, and how time grows."""
    if not with_mr:
        return
    small = generated(folder, "records-1g.txt", "records", "1GB")
    large = generated(folder, "records-4g.txt", "records", "4GB")
    options = ("--memory", "512MB")
    contenders = [
        mr_sort(small, folder / "memory-1g", *options, name="mr, 1 GB"),
        mr_sort(large, folder / "memory-4g", *options, name="mr, 4 GB"),
    ]
    scratch = {"TMPDIR": str(folder)}
    contenders = [
        Contender(name=each.name, command=each.command, outputs=each.outputs, environment=scratch)
        for each in contenders
    ]

    def check(contender: Contender) -> None:
        source = small if "1 GB" in contender.name else large
        subprocess.run([MR, "validate", str(source), str(contender.outputs[0]), "--quiet"], check=True)

    timings = run_side_by_side(contenders, rounds=rounds, folder=folder, check=check, watch_memory=True)
    one, four = timings["mr, 1 GB"], timings["mr, 4 GB"]
    growth, allowed = four.median_s / one.median_s, 4 * math.log(40e6) / math.log(10e6)
    peak = four.peak_bytes
    rows = [
        Row(
            work="sort 4 GB with --memory 512MB",
            ours=f"{peak / 1e6:.0f} MB",
            theirs="",
            measured=f"VmHWM of the largest process {peak / 1e6:.0f} MB",
            wanted=f"at most {MEMORY_LIMIT_BYTES / 1e6:.0f} MB",
            met=peak <= MEMORY_LIMIT_BYTES,
        ),
        Row(
            work="sort 4 GB after 1 GB, both with --memory 512MB",
            ours=f"{four.median_s:.2f} s",
            theirs=f"1 GB in {one.median_s:.2f} s",
            measured=f"{growth:.2f} times the time",
            wanted=f"at most {allowed:.2f} (n log n)",
            met=growth <= allowed,
        ),
    ]
    keep("memory", rows=rows, timings=timings, sampling="VmHWM from /proc of all processes, every 20 ms")


def small_files(folder: Path, rounds: int, with_mr: bool) -> None:
    """Count words in 3,000 files of 1 kB beside one file of the same bytes."""
    if not with_mr:
        return
    whole, many = folder / "small-whole.txt", folder / "small-files"
    if not many.exists():
        building = folder / "small-files.tmp"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        text = generated(folder, "small-text.txt", "text", "4MB").read_bytes().splitlines(keepends=True)
        lines = iter(text)
        pieces = []
        for number in range(3_000):
            piece = b""
            while len(piece) < 950:
                piece += next(lines)
            pieces.append(piece)
            (building / f"{number:04}.txt").write_bytes(piece)
        whole.write_bytes(b"".join(pieces))
        os.replace(building, many)
    options = ["--workers", str(CORES), "--replication", "1", "--quiet"]
    contenders = [
        Contender(
            name=name,
            command=[MR, "run", "wordcount", str(source), "-o", str(folder / output), *options],
            outputs=[folder / output],
        )
        for name, source, output in (
            ("mr, 3,000 files", many, "small-many.out"),
            ("mr, one file", whole, "small-one.out"),
        )
    ]
    digests: set[str] = set()
    timings = run_side_by_side(contenders, rounds=max(rounds, 5), folder=folder, check=same_bytes(digests))
    work = "count words in 3,000 files of 1 kB"
    row = ratio_row(work, timings["mr, 3,000 files"], timings["mr, one file"], wanted=3, words="under 3")
    keep("small_files", rows=[row], timings=timings, files=len(parts(many)), input_bytes=whole.stat().st_size)
