"""``mr allreduce --calibrate``: a few measurements of this machine, a model fitted to them, and what it says of all.

What the model is fitted to is part of what is measured, and is marked; the errors are told apart, and stand beside the spread
from run to run, below which no model can get.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dag.collectives import algorithms, launch

from .allreduce import WrongResult
from .allreduce_rank import Done, Task, measure_each
from .report.derive import Spread, spread
from .sizes import format_size

RANKS = tuple(range(2, 9))
SIZES = (1_000, 64_000, 1_000_000, 8_000_000)
RUNS = 10
ITEMSIZE = 4
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
    runs: int = RUNS,
    tell: Callable[[str], object] = lambda line: None,
) -> list[Case]:
    """Return what all algorithms took on so many ranks of this machine.

    Raises:
        WrongResult: an all-reduce did not return what NumPy makes of the same numbers.
    """
    names = tuple(name for name in algorithms() if name != "machine_tree")
    cases: list[Case] = []
    for size in ranks:
        tell(
            f"{size} ranks: {runs} runs of {len(names)} algorithms with {', '.join(map(format_size, sizes))}"
        )
        tasks = [
            Task(
                algorithms=names, elements=nbytes // ITEMSIZE, dtype="float32", op="sum", own=True, runs=runs, roof=None
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
