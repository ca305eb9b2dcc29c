"""What one rank does for ``mr allreduce``: all-reduces in turn, each timed from a barrier on and compared with NumPy's fold.

The numbers that ranks bring are small whole ones, so that a sum is exact in every dtype and order; they repeat with a prime
period, so that a part in a wrong place is a wrong result; and each run has others, so that what is left from the last is too.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from dag.collectives import Comm, Counts, Operator, count
from dag.collectives.prepared import is_short_float
from dag.errors import BadCollective

from .allreduce_roof import Asked, Roof, asked, measure_stream, measure_triad

Array = npt.NDArray[Any]
WARM_UPS = 5
PERIOD = 65_521
STREAM_BYTES = 8 << 20
ROOF_RUNS = 5
_SHIFT = 7919


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a rank is to do.

    Args:
        algorithms: by name, done in turn in each run.
        dtype: by name, also of ml_dtypes.
        own: the arrays are NumPy's, as callers have them; False: those of ``comm.empty``.
        runs: timed ones, after the warm-ups.
        roof: what is measured beside them: memory, stream or nothing.
    """

    algorithms: tuple[str, ...]
    elements: int
    dtype: str
    op: str | Operator
    own: bool
    runs: int
    roof: str | None


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a rank has seen.

    Args:
        seconds: of each run, by algorithm as it was asked for.
        plans: what ran, by the same names; of rank 0 alone.
        wrong: the first wrong result in words.
    """

    seconds: dict[str, list[float]]
    plans: dict[str, Planned]
    wrong: str | None
    roof: Roof | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """The schedule that ran: its name, its counts in elements, and what it asks of the machine.

    ``itemsize`` is that of the numbers that travel: partial sums of 16 bits go as float32.
    """

    algorithm: str
    itemsize: int
    counts: Counts
    asked: Asked


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a name; raises BadCollective if there is none, or no numbers of it."""
    try:
        return np.dtype(name)
    except (TypeError, ValueError, SyntaxError):  # of ",", which NumPy reads as a list of fields
        pass
    try:
        found: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except ModuleNotFoundError:
        why = "; for bfloat16 install ml_dtypes" if name.startswith(("bfloat", "float8")) else ""
        raise BadCollective(f"there is no dtype {name!r}{why}") from None
    except (AttributeError, TypeError):
        raise BadCollective(f"there is no dtype {name!r}; take float32, float16, int64, ...") from None
    return found


def measure_each(comm: Comm, tasks: Sequence[Task]) -> list[Done]:
    """Do several tasks one after another."""
    return [measure(comm, task) for task in tasks]


def measure(comm: Comm, task: Task) -> Done:
    """Do all runs on this rank."""
    dtype = dtype_of(task.dtype)
    roof = None
    if task.roof == "memory" and task.elements:
        roof = measure_triad(comm, task.elements * dtype.itemsize, ROOF_RUNS)
    elif task.roof == "stream" and task.elements and comm.size > 1:
        roof = measure_stream(comm, STREAM_BYTES, ROOF_RUNS)
    brought = bring(comm.rank, task.op, dtype)
    wanted = fold([bring(rank, task.op, dtype) for rank in range(comm.size)], task.op)
    x = np.zeros(task.elements, dtype) if task.own else comm.empty(task.elements, dtype)
    seconds: dict[str, list[float]] = {name: [] for name in task.algorithms}
    plans: dict[str, Planned] = {}
    for name in task.algorithms if comm.rank == 0 else ():
        prepared = comm.prepared(x, task.op, name)
        schedule = prepared.schedule
        plans[name] = Planned(
            algorithm=schedule.algorithm, itemsize=prepared.dtype.itemsize, counts=count(schedule, len(x)),
            asked=asked(schedule, len(x)),
        )  # fmt: skip
    wrong: str | None = None
    for run in range(-WARM_UPS, task.runs):
        mine, right = (np.roll(each, run * _SHIFT) for each in (brought, wanted))
        for name in task.algorithms:
            # Once before, as a training step follows another: each algorithm meets the caches and pages that it left itself,
            # not those of the one before it.
            for _ in range(2):
                for start in range(0, len(x), PERIOD):
                    x[start : start + PERIOD] = mine[: len(x) - start]
                comm.barrier()
                began = time.perf_counter()
                comm.allreduce(x, task.op, name)
                ended = time.perf_counter()
            if run >= 0:
                seconds[name].append(ended - began)
            wrong = wrong or find_wrong(x, right, comm.rank, name, run)
    return Done(seconds=seconds, plans=plans, wrong=wrong, roof=roof)


def bring(rank: int, op: str | Operator, dtype: np.dtype[Any]) -> Array:
    """Return what a rank brings, one period of it."""
    rng = np.random.default_rng([rank, PERIOD])
    if op == "prod":  # powers of two, few of them: exact, and within the range of float16
        return rng.integers(1, 3 if rank < 8 else 2, PERIOD).astype(dtype)
    return rng.integers(0, 4, PERIOD).astype(dtype)


def fold(brought: list[Array], op: str | Operator) -> Array:
    """Return what NumPy makes of what all bring, folded in the order of ranks."""
    dtype = brought[0].dtype
    short = is_short_float(dtype)
    wide = [each.astype(np.float32) if short else each for each in brought]
    if isinstance(op, Operator):
        return np.asarray(reduce(op.function, wide)).astype(dtype)
    ufunc = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}[op]
    total: Array = ufunc.reduce(np.stack(wide), axis=0, dtype=wide[0].dtype)
    if op == "mean":
        total = total / total.dtype.type(len(brought))
    return total.astype(dtype)


def find_wrong(x: Array, right: Array, rank: int, name: str, run: int) -> str | None:
    """Return in words where ``x`` is not what is wanted; None where all is right.

    Integers and exact sums are equal; a last digit of a mean, or of an operator of the user's own, may differ.
    """
    for start in range(0, len(x), PERIOD):
        piece = x[start : start + PERIOD]
        target = right[: len(piece)]
        if np.array_equal(piece, target):
            continue
        differs = piece != target
        if x.dtype.kind not in "iub":
            spacing = float(np.finfo(np.float32).eps) if x.dtype.itemsize > 2 else 2.0**-7
            wide = np.complex128 if x.dtype.kind == "c" else np.float64
            differs &= ~np.isclose(piece.astype(wide), target.astype(wide), rtol=4 * spacing, atol=0.0)
        if differs.any():
            at = int(np.flatnonzero(differs)[0])
            which = f"run {run + 1}" if run >= 0 else f"warm-up {run + WARM_UPS + 1}"
            return (
                f"{name} is wrong at rank {rank} in {which}: element {start + at} is {piece[at]}, "
                f"wanted {target[at]}"
            )
    return None
