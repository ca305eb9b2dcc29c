"""A made-up comparison to draw: gradient descent on two workers.  Its numbers are plausible, not measured."""

from __future__ import annotations

import random
from dataclasses import replace

from dag.draw import draw_svg, draw_text
from dag.graph import Graph, Node, Op
from jobs.report.derive import model_stage
from jobs.report.model import (
    PARTS,
    Attempt,
    Comparison,
    Drawing,
    Edge,
    Engine,
    Moment,
    Parallelism,
    Rewrites,
    Run,
    Sample,
    Stage,
    StageBytes,
)

INPUT = 200_000_000
OUTPUT = 2_472
WEIGHTS = 2_480
WORKERS = 2


def make_comparison(*, iterations: int = 10, maps: int = 4, runs: int = 5, seed: int = 1) -> Comparison:
    """Return a comparison with ``iterations * (maps + 1)`` attempts or more in each engine."""
    chance = random.Random(seed)
    slow = _mapreduce(chance, iterations, maps, runs, 1)
    return Comparison(
        job="gradient",
        parameters={"iterations": str(iterations), "model": "logistic", "rate": "0.5"},
        inputs={"points.csv": INPUT},
        output_bytes=OUTPUT,
        output_sha256="9f2c1d6a7b3e58c04c7a1e9d2b6f80a35d4e7c1b9a2f6e8d0c3b5a7f1e2d4c6b",
        command="mr compare gradient points.csv -p iterations=10 --runs 5 --report report.html",
        started="2026-11-30T12:00:00+00:00",
        machine={
            "cpu": "AMD EPYC",
            "cores": "2",
            "memory": "25 GB",
            "kernel": "Linux 6.18",
            "page cache": "warm",
        },
        versions={
            "python": "3.11.7",
            "mrdag": "0.1.0",
            "dask": "2026.8.0",
            "numpy": "2.4.6",
            "pyarrow": "26.0.1",
        },
        memory_limit_bytes=2_000_000_000,
        engines=(
            slow,
            _dag(chance, iterations, maps, runs),
            _mapreduce(chance, iterations, maps, runs, 3),
            _single(chance, runs),
        ),
        drawing=_drawing(maps),
        parallelism=Parallelism(
            work_s=2.9,
            span_s=0.81,
            burdened_span_s=0.83,
            tasks=iterations * (maps + 3),
            workers=WORKERS,
            measured_s=1.71,
            width=(
                *(
                    moment
                    for i in range(iterations)
                    for moment in (
                        Moment(at_s=i * 0.08, running=maps),
                        Moment(at_s=i * 0.08 + 0.06, running=1),
                    )
                ),
                Moment(at_s=iterations * 0.08, running=0),
            ),
            critical_path=("parse[0]", "partial[0]", "sum[0]", "step"),
        ),
        rewrites=Rewrites(
            applied=(
                "points.csv is read once for all 10 iterations: nothing between the rounds changes it",
                "sum of 4 partial gradients became a tree of fan-in 2: span 4 -> 2",
            ),
            refused=("partial and parse stay apart: parse has 10 consumers, so its value is kept",),
        ),
        warnings=("the input lay in the page cache: reading it from disk would take longer",),
    )


def _runs(chance: random.Random, count: int, base: Run, noise: float) -> tuple[tuple[Run, ...], int]:
    """Return the runs and the number of the one with the median wall time, which is ``base`` exactly."""
    factors = sorted(1 + chance.gauss(0, noise) for _ in range(count))
    middle = factors[count // 2]
    order = list(range(count))
    chance.shuffle(order)
    made = tuple(
        replace(
            base,
            wall_s=base.wall_s * factors[i] / middle,
            cpu_s=base.cpu_s * factors[i] / middle,
            peak_memory_bytes=base.peak_memory_bytes + chance.randrange(1 << 20),
        )
        for i in order
    )
    return made, order.index(count // 2)


def _mapreduce(chance: random.Random, iterations: int, maps: int, runs: int, replication: int) -> Engine:
    attempts: list[Attempt] = []
    stages: list[Stage] = []
    clock = 0.12
    ends = []
    for i in range(iterations):
        name = f"gradient[{i}]"
        free = [clock] * WORKERS
        for task in range(maps):
            for attempt in range(2 if (i, task) == (5, 1) else 1):
                worker = free.index(min(free))
                took = (
                    1.1
                    * chance.uniform(0.9, 1.15)
                    * (0.4 if (i, task, attempt) == (5, 1, 0) else 1)
                    * 4
                    / maps
                )
                attempts.append(
                    Attempt(
                        stage=name,
                        kind="map",
                        task=task,
                        attempt=attempt,
                        worker=worker,
                        start_s=free[worker],
                        end_s=free[worker] + took,
                        outcome="lost" if (i, task, attempt) == (5, 1, 0) else "done",
                        records_in=250_000,
                        records_out=1,
                        bytes_in=INPUT // maps,
                        bytes_out=WEIGHTS,
                        peak_memory_bytes=180 << 20,
                        seconds={"store_read": took * 0.17, "shuffle": took * 0.03, "serialise": took * 0.04},
                    )
                )
                free[worker] += took + 0.004
        clock = max(free) + 0.02
        took = 0.05 * replication**0.5
        attempts.append(
            Attempt(
                stage=name,
                kind="reduce",
                task=0,
                worker=i % WORKERS,
                start_s=clock,
                end_s=clock + took,
                records_in=maps,
                records_out=1,
                bytes_in=maps * WEIGHTS,
                bytes_out=WEIGHTS,
                peak_memory_bytes=60 << 20,
                seconds={"store_write": took * 0.6, "shuffle": took * 0.2},
            )
        )
        clock += took + 0.02
        ends.append(clock)
        last = i == iterations - 1
        modelled = model_stage(
            input_bytes=INPUT + (maps * WEIGHTS if i else 0),
            spill_bytes=maps * WEIGHTS,
            intermediate_bytes=0 if last else WEIGHTS,
            replication=replication,
            output_bytes=OUTPUT if last else 0,
        )
        stages.append(Stage(name=name, tasks=maps + 1, measured=modelled, modelled=modelled))
    stages[3] = replace(
        stages[3], measured=replace(stages[3].measured, input_bytes=stages[3].measured.input_bytes + 1)
    )
    wall_s = clock + 0.05
    store = (iterations - 1) * WEIGHTS
    base = Run(
        wall_s=wall_s,
        cpu_s=wall_s * 1.8,
        input_bytes=iterations * INPUT,
        output_bytes=OUTPUT,
        store_read_bytes=store * maps,
        store_written_bytes=store,
        store_physical_bytes=store * replication,
        shuffle_bytes=iterations * maps * WEIGHTS * 2,
        spilled_bytes=iterations * maps * WEIGHTS,
        peak_memory_bytes=400_000_000,
        peak_worker_bytes=190_000_000,
        tasks=len(attempts),
    )
    made, shown = _runs(chance, runs, base, 0.03)
    label = "MapReduce" if replication == 1 else f"MapReduce, replication {replication}"
    busy = {part: sum(a.seconds.get(part, 0.0) for a in attempts) for part in PARTS}
    busy["compute"] = sum(a.end_s - a.start_s for a in attempts) - sum(busy.values())
    busy["scheduling"] = 0.24 * iterations
    busy["idle"] = made[shown].wall_s * WORKERS - sum(busy.values())
    return Engine(
        engine="mapreduce",
        label=label,
        workers=WORKERS,
        replication=replication,
        runs=made,
        shown=shown,
        command=f"mr run gradient points.csv -o out --engine mapreduce --store gfs://?replication={replication}",
        stages=tuple(stages),
        attempts=tuple(attempts),
        breakdown=busy,
        memory=_memory(chance, wall_s, 380_000_000),
        iterations_s=_gaps(ends),
    )


def _dag(chance: random.Random, iterations: int, maps: int, runs: int) -> Engine:
    attempts: list[Attempt] = []
    free = [0.05] * WORKERS
    for task in range(maps):
        worker = task % WORKERS
        took = 0.7 * chance.uniform(0.95, 1.05) * 4 / maps
        attempts.append(
            Attempt(
                stage="parse",
                kind="read",
                task=task,
                worker=worker,
                start_s=free[worker],
                end_s=free[worker] + took,
                bytes_in=INPUT // maps,
                bytes_out=INPUT // maps * 2 // 5,
                records_in=250_000,
                records_out=250_000,
                peak_memory_bytes=260 << 20,
                seconds={"store_read": took * 0.15},
            )
        )
        free[worker] += took
    ends = []
    for i in range(iterations):
        start = max(free)
        free = [start] * WORKERS
        for task in range(maps):
            worker = task % WORKERS
            took = 0.016 * chance.uniform(0.9, 1.1) * 4 / maps
            attempts.append(
                Attempt(
                    stage=f"gradient[{i}]",
                    kind="map",
                    task=task,
                    worker=worker,
                    start_s=free[worker],
                    end_s=free[worker] + took,
                    bytes_in=INPUT // maps * 2 // 5,
                    bytes_out=WEIGHTS,
                    peak_memory_bytes=200 << 20,
                )
            )
            free[worker] += took + 0.0002
        end = max(free) + 0.003
        attempts.append(
            Attempt(
                stage=f"step[{i}]",
                kind="combine",
                task=0,
                worker=0,
                start_s=max(free),
                end_s=end,
                bytes_in=maps * WEIGHTS,
                bytes_out=WEIGHTS,
                peak_memory_bytes=160 << 20,
            )
        )
        free = [end] * WORKERS
        ends.append(end)
    wall_s = max(free) + 0.03
    base = Run(
        wall_s=wall_s,
        cpu_s=wall_s * 1.75,
        input_bytes=INPUT,
        output_bytes=OUTPUT,
        moved_bytes=iterations * WEIGHTS,
        peak_memory_bytes=720_000_000,
        peak_worker_bytes=380_000_000,
        tasks=len(attempts),
    )
    made, shown = _runs(chance, runs, base, 0.04)
    measured = StageBytes(input_bytes=INPUT)
    final = StageBytes(output_bytes=OUTPUT)
    busy = {"store_read": sum(a.seconds.get("store_read", 0.0) for a in attempts)}
    busy["compute"] = sum(a.end_s - a.start_s for a in attempts) - sum(busy.values())
    busy["scheduling"] = 0.03
    busy["idle"] = made[shown].wall_s * WORKERS - sum(busy.values())
    return Engine(
        engine="dag",
        label="DAG",
        workers=WORKERS,
        runs=made,
        shown=shown,
        command="mr run gradient points.csv -o out --engine dag",
        stages=(
            Stage(name="parse", tasks=maps, measured=measured, modelled=measured),
            Stage(
                name="gradient and step",
                tasks=iterations * (maps + 1),
                measured=StageBytes(),
                modelled=StageBytes(),
            ),
            Stage(name="write", tasks=1, measured=final, modelled=final),
        ),
        attempts=tuple(attempts),
        breakdown=busy,
        memory=_memory(chance, wall_s, 700_000_000),
        iterations_s=_gaps(ends),
    )


def _single(chance: random.Random, runs: int) -> Engine:
    base = Run(
        wall_s=3.1,
        cpu_s=3.05,
        input_bytes=INPUT,
        output_bytes=OUTPUT,
        peak_memory_bytes=510_000_000,
        peak_worker_bytes=510_000_000,
        tasks=1,
    )
    made, shown = _runs(chance, runs, base, 0.02)
    return Engine(engine="single", label="single thread", workers=1, runs=made, shown=shown)


def _gaps(ends: list[float]) -> tuple[float, ...]:
    return tuple(end - start for start, end in zip([0.0, *ends], ends, strict=False))


def _memory(chance: random.Random, wall_s: float, peak: int) -> tuple[Sample, ...]:
    count = 80
    return tuple(
        Sample(
            at_s=wall_s * i / count,
            memory_bytes=int(peak * min(1.0, 0.35 + i / 14) * chance.uniform(0.93, 1.0)),
        )
        for i in range(count + 1)
    )


def _drawing(maps: int) -> Drawing:
    """Draw three rounds with the dag room's own pen."""
    points = [
        Node(
            name=f"points[{i}]", op=Op(kind="read"), keep=True, work_s=0.7, size_bytes=INPUT * 2 // 5 // maps
        )
        for i in range(maps)
    ]
    weights = Node(name="weights", op=Op(kind="zeros"), size_bytes=WEIGHTS)
    for round_ in range(3):
        partials = [
            Node(
                name=f"gradient {round_ + 1}[{i}]",
                op=Op(kind="map"),
                inputs=(part, weights),
                work_s=0.016,
                size_bytes=WEIGHTS,
            )
            for i, part in enumerate(points)
        ]
        weights = Node(
            name=f"step {round_ + 1}",
            op=Op(kind="combine"),
            inputs=(*partials, weights),
            work_s=0.003,
            size_bytes=WEIGHTS,
        )
    graph = Graph((weights,))
    return Drawing(
        svg=draw_svg(graph, limit=12, on_disk=["step 3"]),
        text=draw_text(graph, limit=12),
        edges=(
            Edge(source="points.csv", target="points", size_bytes=INPUT, on_disk=True, critical=True),
            Edge(source="points", target="gradient", size_bytes=INPUT * 2 // 5, critical=True),
            Edge(source="gradient", target="step", size_bytes=maps * WEIGHTS),
        ),
    )
