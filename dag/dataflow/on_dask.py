"""Graphs evaluated once: by one program, or their branches side by side through ``dag.run``.

On threads the bits are the same.  In other processes NumPy may use other instructions than here (see ``dag.run``), and exp or a
matrix product may end in another last bit.
A program that is run again and again is ``Program``; this is for wide graphs, where the analysis says that starting tasks
pays, and for values that fit on no single machine of a cluster.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..graph import Graph, Op
from ..run import run
from .branches import Choice, Speed, choose, task_graph, tasks_of
from .inputs import graph_of
from .program import Program, taken
from .tensor import Tensor
from .trees import flatten

RUNNERS = ("rank", "dask", "auto")


def evaluate(
    outputs: Any,
    inputs: Mapping[Tensor, Any] | None = None,
    *,
    backend: str = "numpy",
    check_nan: bool = False,
    runner: str = "rank",
    workers: int | None = None,
    scheduler: str | None = "threads",
) -> Any:
    """Return the values of ``outputs`` once, given the values of the inputs.

    Args:
        runner: "rank" (one program), "dask" (branches side by side), or "auto" (what ``choose_runner`` says).
        workers: on Dask, by default one per core.
        scheduler: as for ``dag.run``: "threads", "processes", or the address of a Dask scheduler.

    Raises:
        ValueError: there is no such runner.
        BadTensor: as ``Program`` and its calls.
        NotFinite: with ``check_nan``, which one rank does.
        NodeFailed: on Dask, when a kernel raised.
    """
    given = dict(inputs or {})
    if runner not in RUNNERS:
        raise ValueError(f"runner must be one of {', '.join(RUNNERS)}, got {runner!r}")
    program = Program(outputs, list(given), backend=backend, optimise=False, check_nan=check_nan)
    if runner == "auto":
        runner = "rank" if check_nan else choose_runner(program.graph, workers=workers).runner
    if runner == "rank":
        return program(*given.values())
    if check_nan:
        raise ValueError("check_nan follows the nodes one after the other: ask for runner='rank'")
    values = dict(zip(program.inputs, given.values(), strict=True))
    _, rebuild = flatten(outputs)
    return rebuild(_run_tasks(program.graph, values, backend, workers, scheduler))


def choose_runner(graph: Graph | Any, *, workers: int | None = None) -> Choice:
    """Say whether running the branches of ``graph`` side by side pays on this machine, and why."""
    return choose(graph_of(graph), workers=workers or len(os.sched_getaffinity(0)), speed=measure_speed())


@functools.cache
def measure_speed() -> Speed:
    """Return what one call of NumPy reaches here, measured once, in about 20 milliseconds."""
    left, right, out = (np.ones((512, 512), np.float32) for _ in range(3))
    product_s = _least_seconds(lambda: np.matmul(left, right, out))
    long = [np.ones(1 << 20, np.float32) for _ in range(3)]
    sum_s = _least_seconds(lambda: np.add(*long))
    return Speed(flops=2 * 512**3 / product_s, bytes=3 * long[0].nbytes / sum_s)


def _least_seconds(call: Callable[[], Any], times: int = 4) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


class _Value:
    """An input's value, as the function of its task."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


class _Piece:
    """The nodes of a task, as its function; no buffers stay behind."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __call__(self, *values: Any) -> Any:
        return self.program.run_once(*values)


def _run_tasks(
    graph: Graph, values: Mapping[Tensor, Any], backend: str, workers: int | None, scheduler: str | None
) -> list[Any]:
    tasks = tasks_of(graph, measure_speed())
    functions: dict[Tensor, Op] = {
        node: Op(kind="input", function=_Value(taken(node, value)), releases_gil=True)
        for node, value in values.items()
    }
    for task in tasks:
        program = Program(task.root, list(task.needs), backend=backend, optimise=False)
        functions[task.root] = Op(kind=task.root.op.kind, function=_Piece(program), releases_gil=True)
    drawn = task_graph(graph, tasks, functions)
    results = run(drawn, scheduler=scheduler, workers=workers) if tasks else []
    by_name = dict(zip((node.name for node in drawn.outputs), results, strict=True))
    found = []
    for node in graph.outputs:
        assert isinstance(node, Tensor)
        if node.op.kind == "constant":
            found.append(np.array(node.op.attributes["value"]))
        elif node.op.kind == "input":
            found.append(np.array(taken(node, values[node])))
        else:  # an output that is there twice is an array for each
            found.append(np.array(by_name[node.name]))
    return found
