"""The tables of the report: their cells in words, with the numbers behind them, for HTML and Markdown alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..sizes import format_size
from .derive import (
    Score,
    account,
    amplification,
    barrier_wait_s,
    cores_to_beat,
    difference,
    scoreboard,
    spread,
    sum_bytes,
    wall,
    wall_without_io_s,
)
from .model import Comparison, Engine, StageBytes
from .words import PART_WORDS, say, say_range, say_ratio, say_seconds


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a cell says, in small print under it, the number it is sorted by, and whether it is marked."""

    text: str
    small: str = ""
    value: float | None = None
    marked: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A head, and rows whose first cell names them."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def score_table(comparison: Comparison) -> Table:
    """Return medians with their intervals, MapReduce over DAG, and where noise decides."""
    engines = comparison.engines
    rows = [_score_row(score) for score in scoreboard(comparison) if any(s.high for s in score.spreads)]
    return Table(
        head=("", *(engine.label for engine in engines), "MapReduce / DAG", "noise"), rows=tuple(rows)
    )


def _score_row(score: Score) -> tuple[Cell, ...]:
    unit = score.metric.unit
    cells = [Cell(text=score.metric.name, small=score.metric.about)]
    for found in score.spreads:
        small = ""
        if found.low != found.high:
            small = f"{say_range(found.low, found.high, unit)}\nMAD {say(found.mad, unit)}"
        cells.append(Cell(text=say(found.median, unit), small=small, value=found.median))
    ratio = score.ratio
    said = "DAG has none" if ratio is None else say_ratio(ratio) if ratio else "MapReduce has none"
    cells.append(Cell(text=said, value=1e300 if ratio is None else ratio))
    cells.append(Cell(text="decides" if score.noise else "", value=float(score.noise), marked=score.noise))
    return tuple(cells)


def stage_table(comparison: Comparison, engine: Engine) -> Table:
    """Return the bytes of each stage beside the model, and their sum."""
    rows = [_stage_row(stage.name, stage.tasks, stage.measured, stage.modelled) for stage in engine.stages]
    whole = _stage_row(
        "all stages",
        sum(stage.tasks for stage in engine.stages),
        sum_bytes([stage.measured for stage in engine.stages]),
        sum_bytes([stage.modelled for stage in engine.stages]),
    )
    head = (
        "stage",
        "tasks",
        "input",
        "spill, out and in",
        "to the store",
        "output",
        "measured",
        "model",
        "difference",
    )
    return Table(head=head, rows=(*rows, whole) if rows else ())


def _stage_row(name: str, tasks: int, measured: StageBytes, modelled: StageBytes) -> tuple[Cell, ...]:
    found = difference(measured, modelled)
    return (
        Cell(text=name),
        Cell(text=f"{tasks:,}", value=tasks),
        *(
            Cell(text=format_size(size), value=size)
            for size in (
                measured.input_bytes,
                measured.spill_bytes,
                measured.intermediate_bytes,
                measured.output_bytes,
                measured.total,
                modelled.total,
            )
        ),
        Cell(text=found.words, value=found.extra_bytes, marked=found.marked),
    )


def say_amplification(comparison: Comparison) -> str:
    """Return how many bytes went through files for each byte that had to."""
    said = []
    for engine in (comparison.mapreduce, comparison.dag):
        factor = amplification(comparison, engine)
        if factor is not None and engine.stages:
            said.append(f"{engine.label}: {factor:.2f}")
    needed = sum(comparison.inputs.values()) + comparison.output_bytes
    if not said:
        return "The bytes of the stages were not recorded."
    return (
        f"For each byte of input and output ({format_size(needed)} together), bytes that went through files: "
        f"{'; '.join(said)}."
    )


def say_deviations(comparison: Comparison) -> str:
    """Return how well the model holds, over all engines."""
    found = [
        (engine.label, stage.name, difference(stage.measured, stage.modelled))
        for engine in comparison.engines
        for stage in engine.stages
    ]
    if not found:
        return ""
    marked = [f"{label}, {name}: {each.words}" for label, name, each in found if each.marked]
    exact = sum(not each.extra_bytes for _, _, each in found)
    if marked:
        return f"More than 5 % from the model: {'; '.join(marked[:5])}{' ...' if len(marked) > 5 else ''}."
    if exact == len(found):
        return f"All {len(found)} stages agree with the model to the byte."
    rest = [f"{label}, {name}: {each.words}" for label, name, each in found if each.extra_bytes]
    return f"{exact} of {len(found)} stages agree with the model to the byte; {'; '.join(rest[:5])}."


def time_table(comparison: Comparison) -> Table:
    """Return the seconds of all workers by part, for every engine with a breakdown."""
    engines = timed(comparison)
    accounts = [account(engine) for engine in engines]
    rows = [
        (
            Cell(text=PART_WORDS[part]),
            *(_seconds_of(each.parts[at][1], each.available_s) for each in accounts),
        )
        for at, (part, _) in enumerate(accounts[0].parts if accounts else ())
    ]
    if accounts:
        rows.append(
            (
                Cell(text="sum"),
                *(
                    Cell(
                        text=say_seconds(each.total_s),
                        small=f"{each.total_s / each.available_s:.1%} of wall time × workers"
                        if each.available_s
                        else "",
                        value=each.total_s,
                        marked=abs(each.error) > 0.02,
                    )
                    for each in accounts
                ),
            )
        )
    return Table(head=("", *(engine.label for engine in engines)), rows=tuple(rows))


def timed(comparison: Comparison) -> tuple[Engine, ...]:
    """Return the engines of which it is known where their time went."""
    return tuple(engine for engine in comparison.engines if engine.breakdown)


def _seconds_of(seconds: float, available_s: float) -> Cell:
    share = f"{seconds / available_s:.1%}" if available_s else ""
    return Cell(text=say_seconds(seconds), small=share, value=seconds)


def say_without_io(comparison: Comparison) -> str:
    """Return what would remain of the wall times if I/O were free."""
    said = []
    for engine in (comparison.mapreduce, comparison.dag):
        if engine.attempts:
            left = wall_without_io_s(engine)
            share = left / engine.run.wall_s if engine.run.wall_s else 1.0
            said.append(
                f"{engine.label}: {say_seconds(left)} ({share:.0%} of {say_seconds(engine.run.wall_s)})"
            )
    if not said:
        return "No attempts were recorded, so the schedule cannot be replayed without its I/O."
    return f"If I/O were free, at best this would remain: {'; '.join(said)}."


def say_barriers(comparison: Comparison) -> str:
    """Return what barriers cost."""
    said = []
    for engine in (comparison.mapreduce, comparison.dag):
        available = engine.run.wall_s * engine.workers
        if engine.attempts and available:
            waited = barrier_wait_s(engine)
            said.append(
                f"{engine.label}: {say_seconds(waited)} ({waited / available:.1%} of all worker time)"
            )
    return f"Workers that were done waited for the last one at barriers: {'; '.join(said)}." if said else ""


def say_cost(comparison: Comparison) -> str:
    """Return what one thread makes of it; empty if that was not run."""
    singles = [engine for engine in comparison.engines if engine.engine == "single"]
    if not singles:
        return ""
    alone = singles[0]
    said = []
    for engine in (comparison.mapreduce, comparison.dag):
        time, one = wall(engine).median, wall(alone).median
        if not time or not one:
            continue
        cores = cores_to_beat(alone, engine)
        words = f"{say_ratio(one / time)} as fast" if time <= one else f"{say_ratio(time / one)} slower"
        if cores is not None and time > one:
            words += f", and would need {cores:.0f} workers to draw level if it scaled perfectly"
        said.append(f"{engine.label}, on {_workers(engine)}, is {words}")
    return f"One thread takes {say_seconds(wall(alone).median)}: {'; '.join(said)}." if said else ""


def _workers(engine: Engine) -> str:
    return f"{engine.workers} worker{'' if engine.workers == 1 else 's'}"


def say_rounds(comparison: Comparison) -> str:
    """Return the first and the later rounds of a loop, as the RDD paper reports them; empty without rounds."""
    said = []
    later = []
    for engine in (comparison.mapreduce, comparison.dag):
        if len(engine.iterations_s) > 1:
            rest = spread(engine.iterations_s[1:]).median
            later.append(rest)
            said.append(f"{engine.label}: {say_seconds(engine.iterations_s[0])}, then {say_seconds(rest)}")
    if not said:
        return ""
    factor = (
        f" A later round is {say_ratio(later[0] / later[1])} faster." if len(later) == 2 and later[1] else ""
    )
    return f"First round, then the median of the later ones: {'; '.join(said)}.{factor}"


def parallelism_table(comparison: Comparison) -> Table:
    """Return work, span and what follows from them."""
    found = comparison.parallelism
    if found is None:
        return Table(head=("", ""), rows=())
    widths = [moment.running for moment in found.width]
    share = found.work_s / found.span_s if found.span_s else 0.0
    lower, upper = bounds(comparison)
    rows: list[tuple[str, str, str]] = [
        ("work", say_seconds(found.work_s), "all tasks one after the other"),
        ("span", say_seconds(found.span_s), "the longest path: no number of workers is faster"),
        ("burdened span", say_seconds(found.burdened_span_s), "with the cost of starting each task on that path"),
        ("parallelism", f"{share:.1f}", "work / span: more workers than this idle"),
        ("width", f"{max(widths, default=0):,}", "most tasks that could run at once"),
        ("lower bound", say_seconds(lower), f"max(work / {found.workers}, span)"),
        ("measured", say_seconds(found.measured_s), f"on {found.workers} workers"),
        ("upper bound", say_seconds(upper), f"work / {found.workers} + span, for any greedy schedule"),
    ]  # fmt: skip
    return Table(
        head=("", "", ""), rows=tuple((Cell(text=a), Cell(text=b), Cell(text=c)) for a, b, c in rows)
    )


def bounds(comparison: Comparison) -> tuple[float, float]:
    """Return between which times a greedy schedule must end (Graham 1969; Brent 1974)."""
    found = comparison.parallelism
    assert found is not None
    return max(found.work_s / found.workers, found.span_s), found.work_s / found.workers + found.span_s


def edge_table(comparison: Comparison) -> Table:
    """Return the edges of the drawn plan, the largest first."""
    edges = sorted(comparison.drawing.edges, key=lambda edge: -edge.size_bytes)
    return Table(
        head=("from", "to", "bytes", "through", "critical path"),
        rows=tuple(
            (
                Cell(text=edge.source),
                Cell(text=edge.target),
                Cell(text=format_size(edge.size_bytes), value=edge.size_bytes),
                Cell(text="disk" if edge.on_disk else "memory"),
                Cell(text="yes" if edge.critical else ""),
            )
            for edge in edges
        ),
    )


def run_table(comparison: Comparison) -> Table:
    """Return every single run's wall and CPU time."""
    return Table(
        head=("engine", "run", "wall time", "CPU time", "peak memory"),
        rows=tuple(
            (
                Cell(text=engine.label),
                Cell(text=f"{at + 1}{', shown' if at == engine.shown else ''}", value=at + 1),
                Cell(text=say_seconds(run.wall_s), value=run.wall_s),
                Cell(text=say_seconds(run.cpu_s), value=run.cpu_s),
                Cell(text=format_size(run.peak_memory_bytes), value=run.peak_memory_bytes),
            )
            for engine in comparison.engines
            for at, run in enumerate(engine.runs)
        ),
    )


def environment_table(comparison: Comparison) -> Table:
    """Return the machine, the versions and the settings, a row each."""
    limit = comparison.memory_limit_bytes
    facts: list[tuple[str, str]] = [
        ("measured", comparison.started),
        *((name, f"{url_bytes:,} bytes") for name, url_bytes in comparison.inputs.items()),
        ("output", f"{comparison.output_bytes:,} bytes"),
        ("output sha256", comparison.output_sha256),
        ("threads per worker", str(comparison.threads_per_worker)),
        ("memory limit, all workers", format_size(limit) if limit is not None else "none"),
        *comparison.machine.items(),
        *comparison.versions.items(),
    ]
    return _facts(facts)


def _facts(facts: Iterable[tuple[str, str]]) -> Table:
    return Table(head=("", ""), rows=tuple((Cell(text=name), Cell(text=value)) for name, value in facts))


NOISE_RULE = (
    "Medians. Below them the interval that covers the true median with 95 % (order statistics, no distribution assumed; with"
    " fewer than six runs it is the fastest to the slowest) and the median absolute deviation. Where the intervals of MapReduce"
    " and DAG overlap, noise decides, and no difference is claimed."
)
MODEL_RULE = (
    "Model, MapReduce: the sum over stages of input + 2 × spill + replication × intermediate, + output. DAG: input + output."
    " Input means bytes asked for. A stage with a kind of bytes off by more than 5 % of its total is marked."
)
IO_RULE = (
    "The schedule is replayed without the seconds that attempts spent reading and writing; order and barriers stay. Faster disks"
    " cannot bring more than this unless tasks move up into the gaps."
)
