"""What is not the work itself: starting, the store's put and get, the coordinator's decisions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from measuring import CORES, HERE, MR, PYTHON, Contender, Row, generated, keep, run_side_by_side, sha256
from sorting import ratio_row


def startup(folder: Path, rounds: int, with_mr: bool) -> None:
    """Start ``mr --help``, and count the words of 1 kB."""
    if not with_mr:
        return
    source, output = generated(folder, "text-1k.txt", "text", "1KB"), folder / "startup.out"
    options = ["--workers", str(CORES), "--replication", "1", "--quiet"]
    contenders = [
        Contender(name="mr --help", command=[MR, "--help"]),
        Contender(
            name="mr run wordcount, 1 kB",
            command=[MR, "run", "wordcount", str(source), "-o", str(output), *options],
            outputs=[output],
        ),
    ]
    timings = run_side_by_side(contenders, rounds=max(rounds, 10), folder=folder)
    rows = [
        Row(
            work=name,
            ours=f"{timings[name].median_s:.2f} s",
            theirs="",
            measured=f"{timings[name].median_s:.2f} s",
            wanted=f"under {limit_s} s",
            met=timings[name].median_s < limit_s,
        )
        for name, limit_s in (("mr --help", 0.3), ("mr run wordcount, 1 kB", 1.0))
    ]
    keep("startup", rows=rows, timings=timings)


def simulator(folder: Path, rounds: int, with_mr: bool) -> None:
    """Simulate a ring of 24,576 ranks, message by message."""
    if not with_mr:
        return
    name, limit_s = "mr simulate allreduce, a ring of 24,576 ranks, 64 MB", 60
    command = [MR, "simulate", "allreduce", "--algorithm", "ring", "--ranks", "24576", "--bytes", "64MB"]
    contender = Contender(name=name, command=[*command, "--network", "summit", "--json"])
    timings = run_side_by_side([contender], rounds=rounds, folder=folder)
    took_s = timings[name].median_s
    row = Row(
        work=name,
        ours=f"{took_s:.1f} s",
        theirs="",
        measured=f"{took_s:.1f} s",
        wanted=f"under {limit_s} s",
        met=took_s < limit_s,
    )
    keep("simulator", rows=[row], timings=timings)


def store(folder: Path, rounds: int, with_mr: bool) -> None:
    """Put 1 GB into the store and get it back, beside ``cp``."""
    if not with_mr:
        return
    source = generated(folder, "records-1g.txt", "records", "1GB")
    expected = sha256(source)
    copy, fetched, stored = folder / "copy.out", folder / "fetched.out", "gfs:///records-1g.txt"
    environment = {"MR_HOME": str(folder / "store-home")}

    contenders = [
        Contender(name="cp", command=["cp", str(source), str(copy)], outputs=[copy]),
        Contender(
            name="put",
            command=[MR, "fs", "put", "--overwrite", "--replication", "1", str(source), stored],
            environment=environment,
        ),
        Contender(
            name="get",
            command=[MR, "fs", "get", stored, str(fetched)],
            outputs=[fetched],
            environment=environment,
        ),
    ]

    def check(contender: Contender) -> None:
        if contender.outputs and sha256(contender.outputs[0]) != expected:
            raise RuntimeError(f"{contender.name} gave other bytes than the source's")

    timings = run_side_by_side(contenders, rounds=rounds, folder=folder, check=check)
    rows = [
        ratio_row(
            f"{name} 1 GB, replication 1", timings[name], timings["cp"], wanted=2, words="at most twice"
        )
        for name in ("put", "get")
    ]
    keep("store", rows=rows, timings=timings, input_bytes=source.stat().st_size)


def coordinator(folder: Path, rounds: int, with_mr: bool) -> None:
    """Drive the coordinator alone through 99,000 maps and 1,000 reduces on 2,000 workers."""
    if not with_mr:
        return
    command = [PYTHON, str(HERE / "coordinator_alone.py")]
    contenders = [Contender(name="coordinator", command=command)]
    timings = run_side_by_side(contenders, rounds=rounds, folder=folder)
    inside = [
        json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(rounds)
    ]
    decisions_s = sorted(each["decisions_s"] for each in inside)[rounds // 2]
    heartbeats_s = sorted(each["heartbeats_s"] for each in inside)[rounds // 2]
    peak = max(each["peak_bytes"] for each in inside)
    rows = [
        Row(
            work="coordinator alone, 99,000 maps and 1,000 reduces",
            ours=f"{decisions_s:.2f} s",
            theirs="",
            measured=f"{decisions_s:.2f} s of decisions, {heartbeats_s:.2f} s more for heartbeats",
            wanted="under 10 s",
            met=decisions_s < 10,
        ),
        Row(
            work="coordinator alone, memory of the process",
            ours=f"{peak / 1e6:.0f} MB",
            theirs="",
            measured=f"VmHWM {peak / 1e6:.0f} MB",
            wanted="under 500 MB",
            met=peak < 500_000_000,
        ),
    ]
    keep("coordinator", rows=rows, timings=timings, inside=inside)
