"""A model of this machine, fitted to a few all-reduces, beside all that was measured: how far its predictions are off.

``python benchmarks/run.py calibration`` measures and keeps all times.  ``mr allreduce --calibrate`` is the same for anyone.
"""

from __future__ import annotations

import os
from pathlib import Path

from measuring import Row, Timing, keep

TRANSPORTS = {"shm": "shared memory", "tcp": "TCP over loopback"}


def calibration(folder: Path, rounds: int, ours: bool) -> None:
    """How long all-reduces take by a model that has seen a few of them, 2 to 8 ranks."""
    from jobs.allreduce_calibrate import calibration_to_json, measure_machine, predict_all, summarise
    from jobs.sizes import format_size

    rows: list[Row] = []
    timings: dict[str, Timing] = {}
    facts = {}
    for transport, words in TRANSPORTS.items():
        cases = measure_machine(
            transport, runs=rounds if rounds > 10 else None, tell=lambda line: print(f"  {line}", flush=True)
        )
        machines, predicted = predict_all(cases, cores=len(os.sched_getaffinity(0)), transport=transport)
        facts[transport] = calibration_to_json(machines, predicted)
        for each in facts[transport]["cases"]:
            del each["seconds"]  # they stand among the timings
        for case in predicted:
            timings[f"{transport}, {case.ranks} ranks, {format_size(case.nbytes)}, {case.algorithm}"] = (
                Timing(
                    name=case.algorithm,
                    command="mr allreduce --calibrate",
                    seconds=list(case.seconds),
                    peak_bytes=0,
                )
            )
        for each in summarise(predicted)[:2]:  # 2 ranks, and more
            rows.append(
                Row(
                    work=f"all-reduces over {words}, {each.ranks} ranks, predicted",
                    ours=f"{each.within} of {each.cases}",
                    theirs=f"run to run ± {each.median_noise:.0%}",
                    measured=f"median error {each.median_error:.0%}, largest {each.largest_error:.0%}",
                    wanted=f"each within {each.aim:.0%}",
                    met=each.within == each.cases,
                )
            )
    keep("calibration", rows=rows, timings=timings, calibration=facts)
