"""``mr allreduce --calibrate``: a few measurements of this machine, a model fitted to them, and what it says of all.

What the model is fitted to is part of what is measured, and is marked; the errors are told apart, and stand beside the spread
from run to run, below which no model can get.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dag.collectives import algorithms, launch
from dag.collectives.calibrate import Machine, Timed, fit, predict
from dag.collectives.letters import SHORT_BYTES
from dag.collectives.one_machine import Means
from dag.errors import BadCollective
from dag.units import show_time

from .allreduce import WrongResult
from .allreduce_rank import Done, Task, measure_each
from .report.derive import Spread, spread
from .report.tables import Cell, Table
from .report.terminal import grid
from .sizes import exact_size, format_size

RANKS = tuple(range(2, 9))
SIZES = (1_000, 64_000, 1_000_000, 8_000_000)
RUNS = 10
#: Below so many bytes of all ranks together a call takes microseconds, and times spread: it is timed so many times as often.
SMALL_BYTES, SMALL_TIMES = 1_000_000, 5
ITEMSIZE = 4
#: A model is fitted to these for each number of ranks; it has not seen the other algorithms.  Few and many steps, one with a
#: fan-in at one rank and one at all of them, two that put aside what arrives.
FITTED = ("ring", "doubling", "central", "direct_whole", "sharded")
#: Within so much of what was measured: the aim for 2 ranks, and for more ranks than cores.
AIMS = {2: 0.15, 3: 0.30}


@dataclass(frozen=True, kw_only=True)
class Case:
    """What one algorithm took.

    Args:
        seconds: of each run, the slowest rank's.
        fitted: the model was fitted to it.
        predicted_s: by the model.
    """

    algorithm: str
    ranks: int
    nbytes: int
    seconds: tuple[float, ...]
    fitted: bool = False
    predicted_s: float | None = None

    @property
    def spread(self) -> Spread:
        """Median and bounds of the runs."""
        return spread(self.seconds)

    @property
    def error(self) -> float:
        """How far the prediction is off: 0.1 is 10 % too long."""
        assert self.predicted_s is not None
        return self.predicted_s / self.spread.median - 1

    @property
    def noise(self) -> float:
        """Half the interval that holds the median, by the median."""
        times = self.spread
        return (times.high - times.low) / 2 / times.median


def measure_machine(
    transport: str = "shm",
    *,
    ranks: Sequence[int] = RANKS,
    sizes: Sequence[int] = SIZES,
    runs: int | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> list[Case]:
    """Return what all algorithms took on so many ranks of this machine.

    Args:
        runs: of each case; None: ``RUNS``, and ``SMALL_TIMES`` as many where calls are short.

    Raises:
        BadCollective: no model could be fitted to so few ranks or sizes; nothing was measured.
        WrongResult: an all-reduce did not return what NumPy makes of the same numbers.
    """
    if not ranks or min(ranks) < 2:
        raise BadCollective("a model is fitted to times of 2 ranks or more: take --ranks 2 or more")
    if len({nbytes for nbytes in sizes if nbytes}) < 2:
        raise BadCollective(f"a model is fitted to at least 2 sizes, got {', '.join(map(exact_size, sizes))}")
    for nbytes in sizes:
        if nbytes % ITEMSIZE:
            raise BadCollective(
                f"--bytes {exact_size(nbytes)} is no whole number of float32, which have {ITEMSIZE} bytes"
            )
    names = tuple(algorithms())
    cases: list[Case] = []
    for size in ranks:
        tell(
            f"{size} ranks: {runs or f'{RUNS} or more'} runs of {len(names)} algorithms with {', '.join(map(format_size, sizes))}"
        )
        tasks = [
            Task(
                algorithms=names, elements=nbytes // ITEMSIZE, dtype="float32", op="sum", own=True, roof=None,
                runs=runs or RUNS * (SMALL_TIMES if size * nbytes < SMALL_BYTES else 1),
            )
            for nbytes in sizes
        ]  # fmt: skip
        by_rank: list[list[Done]] = launch(measure_each, size, (tasks,), transport=transport)
        for nbytes, done in zip(sizes, zip(*by_rank, strict=True), strict=True):
            if wrong := next((each.wrong for each in done if each.wrong), None):
                raise WrongResult(f"{format_size(nbytes)} over {size} ranks: {wrong}")
            cases += [
                Case(
                    algorithm=name,
                    ranks=size,
                    nbytes=nbytes,
                    seconds=tuple(
                        max(each) for each in zip(*(rank.seconds[name] for rank in done), strict=True)
                    ),
                )
                for name in names
            ]
    return cases


def predict_all(
    cases: Sequence[Case], *, cores: int, transport: str
) -> tuple[dict[int, Machine], list[Case]]:
    """Return for each number of ranks the model fitted to the algorithms ``FITTED``, and all cases with what it predicts.

    One model for all numbers of ranks would have to know what a turn costs where several ranks wait for one core.

    Raises:
        BadCollective: there are too few cases to fit a model to.
    """
    pulled = transport == "shm"
    means = Means(cores=cores, pulled=pulled, short_bytes=SHORT_BYTES if pulled else 0)
    machines: dict[int, Machine] = {}
    predicted: list[Case] = []
    for ranks in sorted({case.ranks for case in cases}):
        some = [
            replace(case, fitted=case.algorithm in FITTED and case.nbytes > 0)
            for case in cases
            if case.ranks == ranks
        ]
        machine = fit(
            [replace(_timed(case), seconds=case.spread.median) for case in some if case.fitted],
            means,
            itemsize=ITEMSIZE,
        )
        machines[ranks] = machine
        predicted += [
            replace(case, predicted_s=predict(machine, _timed(case), itemsize=ITEMSIZE)) for case in some
        ]
    return machines, predicted


def _timed(case: Case) -> Timed:
    return Timed(algorithm=case.algorithm, ranks=case.ranks, nbytes=case.nbytes)


CASE_HEAD = ("ranks", "bytes", "algorithm", "measured", "spread", "predicted", "error", "")
SUMMARY_HEAD = ("ranks", "cases", "median error", "largest error", "within aim", "aim", "median spread")


def aim_of(ranks: int) -> float:
    """Return within how much of what was measured a prediction is to be."""
    return AIMS[2] if ranks <= 2 else AIMS[3]


def case_table(cases: Sequence[Case]) -> Table:
    """Return measured beside predicted, case by case."""
    rows = []
    for case in cases:
        assert case.predicted_s is not None
        beyond = abs(case.error) > aim_of(case.ranks)
        rows.append(
            (
                Cell(text=str(case.ranks)),
                Cell(text=format_size(case.nbytes)),
                Cell(text=case.algorithm),
                Cell(text=show_time(case.spread.median)),
                Cell(text=f"± {case.noise:.0%}"),
                Cell(text=show_time(case.predicted_s)),
                Cell(text=f"{case.error:+.0%}", marked=beyond),
                Cell(text="fitted" if case.fitted else ""),
            )
        )
    return Table(head=CASE_HEAD, rows=tuple(rows))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How good the predictions for some ranks are: errors without their sign, of what the model was not fitted to."""

    ranks: str
    cases: int
    median_error: float
    largest_error: float
    within: int
    aim: float
    median_noise: float


def summarise(cases: Sequence[Case]) -> list[Summary]:
    """Return the errors for 2 ranks, for more together, and for each number of these."""
    numbers = sorted({case.ranks for case in cases})
    more = [number for number in numbers if number > 2]
    together = {f"{more[0]} to {more[-1]}": more} if len(more) > 1 else {}
    groups = {"2": [2], **together, **{str(each): [each] for each in more}}
    found = []
    for label, group in groups.items():
        some = [case for case in cases if case.ranks in group and not case.fitted]
        if some:
            found.append(_summary(label, some))
    return found


def _summary(label: str, cases: Sequence[Case]) -> Summary:
    errors = [abs(case.error) for case in cases]
    return Summary(
        ranks=label,
        cases=len(cases),
        median_error=statistics.median(errors),
        largest_error=max(errors),
        within=sum(error <= aim_of(case.ranks) for error, case in zip(errors, cases, strict=True)),
        aim=aim_of(cases[0].ranks),
        median_noise=statistics.median(case.noise for case in cases),
    )


def summary_table(cases: Sequence[Case]) -> Table:
    """Return the errors by number of ranks as a table."""
    rows = [
        (
            Cell(text=each.ranks),
            Cell(text=str(each.cases)),
            Cell(text=f"{each.median_error:.0%}", marked=each.median_error > each.aim),
            Cell(text=f"{each.largest_error:.0%}"),
            Cell(text=f"{each.within} of {each.cases}"),
            Cell(text=f"{each.aim:.0%}"),
            Cell(text=f"± {each.median_noise:.0%}"),
        )
        for each in summarise(cases)
    ]
    return Table(head=SUMMARY_HEAD, rows=tuple(rows))


MODEL_HEAD = (
    "ranks",
    "met within",
    "call",
    "turn",
    "message",
    "ns to take, to fold, to fold and share a byte, by the memory of all ranks",
)


def model_table(machines: Mapping[int, Machine]) -> Table:
    """Return the models as a table; a message is what it costs its sender and its receiver."""
    rows = []
    for ranks, machine in machines.items():
        bytes_ = ", ".join(
            f"{format_size(each.memory_bytes)}: "
            + " ".join(f"{cost_s * 1e9:.2g}" for cost_s in (each.take_s, each.fold_s, each.share_s))
            for each in machine.bytes_
        )
        cells = (
            ranks,
            f"{machine.error:.0%}",
            *map(show_time, (machine.start_s, machine.turn_s, machine.post_s + machine.take_s)),
            bytes_,
        )
        rows.append(tuple(Cell(text=str(cell)) for cell in cells))
    return Table(head=MODEL_HEAD, rows=tuple(rows))


def print_calibration(machines: Mapping[int, Machine], cases: Sequence[Case]) -> None:
    """Print measured beside predicted, the errors by number of ranks, and the models."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    for table in (case_table(cases), summary_table(cases), model_table(machines)):
        console.print(grid(table))
        console.print()
    for line in describe(cases):
        console.print(line, highlight=False, markup=False, style="dim")


def describe(cases: Sequence[Case]) -> list[str]:
    """Return how to read the errors, in sentences."""
    seen = sum(case.fitted for case in cases)
    return [
        f"The models, one for each number of ranks, were fitted to {seen} of {len(cases)} cases: {', '.join(FITTED)}. The errors "
        "by ranks are those of the others.",
        "spread: half the interval that holds the true median with 95 %, by the median: no model can be nearer than that.",
    ]


def calibration_to_json(
    machines: Mapping[int, Machine], cases: Sequence[Case], **facts: Any
) -> dict[str, Any]:
    """Return models, cases and errors as JSON."""
    return {
        "schema_version": 1,
        **facts,
        "models": {str(ranks): asdict(machine) for ranks, machine in machines.items()},
        "errors": [asdict(each) for each in summarise(cases)],
        "cases": [
            {
                **{
                    name: getattr(case, name)
                    for name in ("algorithm", "ranks", "nbytes", "fitted", "predicted_s")
                },
                "median_s": case.spread.median,
                "low_s": case.spread.low,
                "high_s": case.spread.high,
                "error": case.error,
                "seconds": list(case.seconds),
            }
            for case in cases
        ],
    }
