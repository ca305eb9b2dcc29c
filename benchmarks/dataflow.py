"""Dataflow graphs beside NumPy by hand and beside torch: several processes, the median of what each found."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from pathlib import Path

from measuring import HERE, LEAST_ROUNDS, PYTHON, Row, Timing, keep

THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
COMMAND = "OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 python -m benchmarks.dataflow_step --json"
STEP = "training step, perceptron 784-512-512-10, batch 256, SGD, one thread"


def dataflow(folder: Path, rounds: int, with_mr: bool) -> None:
    """Train a perceptron by a graph, by hand and by torch; build and interpret graphs; count FLOPs per second."""
    if not with_mr:
        return
    found = []
    for number in range(max(rounds, LEAST_ROUNDS)):
        done = subprocess.run(
            [PYTHON, "-m", "benchmarks.dataflow_step", "--json"],
            env={**os.environ, **THREADS}, cwd=HERE.parent, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        found.append(json.loads(done.stdout))
        told = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in found[-1]["steps"].items())
        print(f"  round {number + 1}: {told}", flush=True)

    def median(group: str, name: str) -> float:
        return statistics.median(each[group][name] for each in found)

    timings = {
        name: Timing(
            name=name, command=COMMAND, seconds=[each["steps"][name] for each in found], peak_bytes=0
        )
        for name in found[0]["steps"]
    }
    ours, node = median("steps", "program"), median("building", "step")
    interpreter, used = median("interpreter", "difference"), median("utilisation", "MFU")
    peak = median("utilisation", "peak FLOP/s")
    rows = [
        *(
            Row(
                work=STEP,
                ours=f"{ours * 1e3:.2f} ms",
                theirs=f"{peer} {median('steps', peer) * 1e3:.2f} ms",
                measured=f"{ours / median('steps', peer):.2f} of the time {words}",
                wanted=wanted,
                met=ours / median("steps", peer) <= limit,
            )
            for peer, words, wanted, limit in (
                ("by hand", "of NumPy by hand", "at most 1.15", 1.15),
                ("torch", "of torch, eager", "below 1", 1.0),
            )
            if peer in timings
        ),
        Row(
            work="building the graph of that step, gradient and optimiser included",
            ours=f"{node * 1e6:.1f} microseconds a node",
            theirs="",
            measured=f"{node * 1e6:.1f} microseconds a node",
            wanted="under 50",
            met=node < 50e-6,
        ),
        Row(
            work="running 1,000 additions of 8 numbers as a program, less the same loop by hand",
            ours=f"{interpreter * 1e6:.2f} microseconds a node",
            theirs=f"loop {median('interpreter', 'loop') * 1e6:.2f} microseconds",
            measured=f"{interpreter * 1e6:.2f} microseconds a node",
            wanted="under 3",
            met=interpreter < 3e-6,
        ),
        Row(
            work="training step of three layers of 2,048, batch 2,048: MFU",
            ours=f"{median('utilisation', 'model FLOP/s') / 1e9:.0f} GFLOP/s",
            theirs=f"NumPy's best product {peak / 1e9:.0f} GFLOP/s",
            measured=f"{used:.2f}",
            wanted="at least 0.6",
            met=used >= 0.6,
        ),
    ]
    keep("dataflow", rows=rows, timings=timings, measured=found)
