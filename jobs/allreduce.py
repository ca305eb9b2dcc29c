"""``mr allreduce``: every algorithm on real ranks, timed, checked, and set against what the machine could do.

It starts processes by ``dag.collectives.launch``, once for each size.  A run's time is that of its slowest rank.
"""

from __future__ import annotations

import dataclasses
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dag.collectives import Counts, Operator, Schedule, algorithms, launch
from dag.collectives.choose import planned, ranks_per_machine
from dag.collectives.operators import OPERATORS, operator, refuse
from dag.collectives.prepared import check_operator
from dag.errors import BadCollective, GraphError

from .algorithm_names import split_names
from .allreduce_rank import Done, Task, dtype_of, measure
from .allreduce_roof import Roof, asked
from .report.derive import Spread, spread
from .sizes import exact_size, format_size, say_count

#: Timed runs of sizes up to so many bytes where nobody says how many; above the last, 5.
RUNS = ((1 << 20, 20), (16 << 20, 10))
#: What a process takes beside its arrays.
_PROCESS_BYTES = 60_000_000
#: Of more ranks than this the steps are not looked through for what they keep aside.
_MOST_LOOKED_AT = 256


class WrongResult(GraphError, ArithmeticError):
    """An all-reduce did not return what NumPy makes of the same numbers."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be measured.

    Args:
        algorithms: by name; ``auto`` stands for the one that it chooses.
        transport: shm, tcp or auto.
        op: by name, or an operator of the user's own.
        runs: timed runs; None: by size, see ``RUNS``.
        own: arrays as callers have them; False: from ``comm.empty``.
        scheduler: the address of a Dask cluster whose workers start the ranks.
        notes: what a reader should know of the choice.
    """

    algorithms: tuple[str, ...]
    ranks: int
    sizes: tuple[int, ...]
    transport: str = "shm"
    dtype: str = "float32"
    op: str | Operator = "sum"
    runs: int | None = None
    own: bool = True
    scheduler: str | None = None
    notes: tuple[str, ...] = ()

    def runs_of(self, nbytes: int) -> int:
        """Return how many timed runs a size has."""
        return self.runs or next((runs for most, runs in RUNS if nbytes <= most), 5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One algorithm at one size.

    Args:
        name: as it was asked for; ``auto (sharded)`` where that was chosen.
        seconds: of each run, the slowest rank's.
        counts: in elements, ``itemsize`` bytes each where they travel.
        roof_s: how long the machine would take for the bytes of this algorithm; None where no roof was measured.
    """

    name: str
    nbytes: int
    itemsize: int
    ranks: int
    seconds: tuple[float, ...]
    counts: Counts
    roof_s: float | None

    @property
    def spread(self) -> Spread:
        """Median and bounds of the runs."""
        return spread(self.seconds)

    @property
    def algbw(self) -> float:
        """Bytes of the result per second, as nccl-tests has it."""
        return self.nbytes / self.spread.median

    @property
    def busbw(self) -> float:
        """Bytes per second that each link would carry around a ring: algbw x 2(P-1)/P (nccl-tests, doc/PERFORMANCE.md)."""
        return self.algbw * 2 * (self.ranks - 1) / self.ranks

    @property
    def roof_share(self) -> float | None:
        """How near the measured roof it came: 1 is at the roof."""
        return None if self.roof_s is None else self.roof_s / self.spread.median

    @property
    def rank_bytes(self) -> int:
        """The most that one rank sends or receives."""
        return int(max(self.counts.sent.max(initial=0), self.counts.received.max(initial=0))) * self.itemsize

    @property
    def peers(self) -> int:
        """The most others that one rank holds a connection to."""
        return int(self.counts.peers.max(initial=0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """All rows, sizes in the order in which they were asked for, and the roof beside each size."""

    wanted: Wanted
    rows: tuple[Row, ...]
    roofs: dict[int, Roof]


def names_of(said: str, ranks: int, op: str | Operator) -> tuple[tuple[str, ...], str]:
    """Return the algorithms that ``--algorithm`` means, and a note on what ``all`` left out.

    Raises:
        BadCollective: see ``split_names``; or the operator does not commute and an algorithm does not keep the order of ranks.
    """
    known = algorithms()
    left_out = []
    chosen: list[str] = []
    for name in split_names(said, known, "auto"):
        for each in known if name == "all" else [name]:
            try:
                if each != "auto":
                    refuse(schedule_of(each, ranks, 0), operator(op))
            except BadCollective:
                if name != "all":
                    raise
                left_out.append(each)
                continue
            chosen.append(each)
    note = f"left out, since they do not keep the order of ranks: {', '.join(left_out)}" if left_out else ""
    return tuple(chosen), note


def schedule_of(name: str, ranks: int, nbytes: int) -> Schedule:
    """Return the schedule that ranks of one machine run for an algorithm."""
    return planned("allreduce", name, ranks, nbytes, per_machine=ranks_per_machine([""] * ranks))


def operator_of(said: str) -> str | Operator:
    """Return the operator that ``--op`` means: a name, or ``FILE.py:NAME`` of an ``Operator`` or a function of two arrays.

    A plain function is taken not to commute, since nobody has said so.

    Raises:
        BadCollective: there is none.
    """
    file, _, name = said.rpartition(":")
    if not file.endswith(".py"):
        if said not in OPERATORS:
            raise BadCollective(
                f"--op: there is no operator {said!r}; there are: {', '.join(OPERATORS)}, or FILE.py:NAME"
            )
        return said
    if not Path(file).is_file():
        raise BadCollective(f"--op: there is no file {file}")
    try:
        found = runpy.run_path(file).get(name)
    except (Exception, SystemExit) as error:
        raise BadCollective(f"--op: {file} does not run: {type(error).__name__}: {error}") from error
    if isinstance(found, Operator):
        return found
    if not callable(found):
        raise BadCollective(f"--op: {file} has no operator and no function {name!r}")
    return Operator(found, commutative=False, name=name)


def check(wanted: Wanted) -> None:
    """Raise BadCollective where something cannot be measured as asked for; nothing has started yet."""
    dtype = dtype_of(wanted.dtype)
    check_operator(operator(wanted.op), dtype)
    for nbytes in wanted.sizes:
        if over := nbytes % dtype.itemsize:
            raise BadCollective(
                f"--bytes {exact_size(nbytes)} is no whole number of {dtype.name}, which have {dtype.itemsize} bytes: "
                f"take {nbytes - over} or {nbytes - over + dtype.itemsize}"
            )
    if wanted.scheduler is None:
        needed = max(bytes_needed(wanted, nbytes) for nbytes in wanted.sizes)
        free = psutil.virtual_memory().available
        if needed > free:
            raise BadCollective(
                f"{say_count(wanted.ranks, 'rank')} with {format_size(max(wanted.sizes))} need about {format_size(needed)} of "
                f"memory, and {format_size(free)} are free: take fewer ranks or smaller sizes"
            )


def bytes_needed(wanted: Wanted, nbytes: int) -> int:
    """Return about how much memory all ranks need together."""
    names = [name for name in wanted.algorithms if name != "auto"] if wanted.ranks <= _MOST_LOOKED_AT else []
    aside = max((asked(schedule_of(name, wanted.ranks, 0), nbytes).aside for name in names), default=0)
    return wanted.ranks * (nbytes + aside + _PROCESS_BYTES)


def run(wanted: Wanted, tell: Callable[[str], object] = lambda line: None) -> Measured:
    """Measure all that is wanted; ``tell`` gets a line before each size.

    Raises:
        WrongResult: an all-reduce did not return what NumPy makes of the same numbers.
        RankFailed: a rank died.
        BadCollective: it cannot be done as asked for.
    """
    check(wanted)
    rows: list[Row] = []
    roofs: dict[int, Roof] = {}
    for nbytes in wanted.sizes:
        runs = wanted.runs_of(nbytes)
        tell(f"{format_size(nbytes)}: {say_count(runs, 'run')} of {', '.join(wanted.algorithms)}")
        found, roof = _run_size(wanted, nbytes, runs)
        rows += found
        if roof is not None:
            roofs[nbytes] = roof
    return Measured(wanted=wanted, rows=tuple(rows), roofs=roofs)


def _run_size(wanted: Wanted, nbytes: int, runs: int) -> tuple[list[Row], Roof | None]:
    dtype = dtype_of(wanted.dtype)
    # Between machines there is no one memory and no one loopback to compare with.
    roof = {"shm": "memory", "tcp": "stream"}.get(wanted.transport) if wanted.scheduler is None else None
    task = Task(
        algorithms=wanted.algorithms, elements=nbytes // dtype.itemsize, dtype=wanted.dtype, op=wanted.op, own=wanted.own,
        runs=runs, roof=roof,
    )  # fmt: skip
    done: list[Done] = launch(
        measure, wanted.ranks, (task,), transport=wanted.transport, scheduler=wanted.scheduler
    )
    if wrong := next((each.wrong for each in done if each.wrong), None):
        raise WrongResult(f"{format_size(nbytes)} of {wanted.dtype}: {wrong}")
    return [make_row(wanted, name, nbytes, done) for name in wanted.algorithms], done[0].roof


def make_row(wanted: Wanted, name: str, nbytes: int, done: Sequence[Done]) -> Row:
    """Return what ranks have seen of one algorithm at one size as a row."""
    plan, roof = done[0].plans[name], done[0].roof
    roof_s = None
    if roof is not None and nbytes:
        asked_for = plan.asked.touched if roof.what == "memory" else plan.asked.sent
        if asked_for:  # one rank asks for nothing
            roof_s = asked_for * plan.itemsize / roof.bytes_per_s
    return Row(
        name=name if name == plan.algorithm else f"{name} ({plan.algorithm})",
        nbytes=nbytes,
        itemsize=plan.itemsize,
        ranks=wanted.ranks,
        seconds=tuple(max(each) for each in zip(*(rank.seconds[name] for rank in done), strict=True)),
        counts=plan.counts,
        roof_s=roof_s,
    )


def to_json(measured: Measured, **facts: Any) -> dict[str, Any]:
    """Return all that was measured, with ``facts`` such as the command and the machine, as JSON."""
    wanted = {field.name: getattr(measured.wanted, field.name) for field in dataclasses.fields(Wanted)}
    wanted["op"] = operator(measured.wanted.op).name
    return {
        "schema_version": 1,
        **facts,
        "wanted": wanted,
        "roofs": [
            {"bytes": nbytes, "what": roof.what, "bytes_per_s": roof.bytes_per_s}
            for nbytes, roof in measured.roofs.items()
        ],
        "rows": [_row_to_json(row) for row in measured.rows],
    }


def _row_to_json(row: Row) -> dict[str, Any]:
    times = row.spread
    return {
        "algorithm": row.name,
        "bytes": row.nbytes,
        "seconds": list(row.seconds),
        "median_s": times.median,
        "low_s": times.low,
        "high_s": times.high,
        "algbw_bytes_per_s": row.algbw,
        "busbw_bytes_per_s": row.busbw,
        "rounds": row.counts.rounds,
        "messages": row.counts.messages,
        "sent_bytes": (row.counts.sent * row.itemsize).tolist(),
        "received_bytes": (row.counts.received * row.itemsize).tolist(),
        "fan_in": row.counts.fan_in,
        "peers": row.counts.peers.tolist(),
        "roof_s": row.roof_s,
        "roof_share": row.roof_share,
    }
