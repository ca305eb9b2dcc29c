"""The tables of the report: their cells in words, with the numbers behind them, for HTML and Markdown alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..sizes import format_size, say_count
from .derive import (
    Score,
    account,
    difference,
    scoreboard,
    shown_engines,
    sources,
    sum_bytes,
)
from .model import Comparison, Engine, StageBytes
from .words import PART_WORDS, say, say_range, say_ratio, say_seconds

#: More engines than this stand under each other in a table, not side by side.
MOST_COLUMNS = 5


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


@dataclass(frozen=True, kw_only=True)
class Titled:
    """A table with what stands over it; ``style`` is the engine that it is of, ``aside`` what the verdict does not speak of."""

    title: str
    style: str
    table: Table
    aside: bool = False


def score_tables(comparison: Comparison) -> tuple[Titled, ...]:
    """Return medians with their intervals, a ratio, and where noise decides.

    One table, with MapReduce over DAG; of several files a table for each way of running, with the first file over the last.
    """
    found = sources(comparison)
    if len(found) == 1:
        made = _score_table(
            comparison.engines, [e.label for e in comparison.engines], comparison.mapreduce, comparison.dag,
            ("MapReduce / DAG", "MapReduce", "DAG"),
        )  # fmt: skip
        return (Titled(title="", style="", table=made),)
    ways: dict[str, list[Engine]] = {}
    for engine in comparison.engines:
        ways.setdefault(engine.label.removesuffix(f" ({engine.source})"), []).append(engine)
    return tuple(
        Titled(
            title=way, style=each[0].engine, aside=each[0] not in shown_engines(comparison),
            table=_score_table(
                each, [engine.source for engine in each], each[0], each[-1],
                (f"{each[0].source} / {each[-1].source}", each[0].source, each[-1].source),
            ),
        )
        for way, each in ways.items()
    )  # fmt: skip


def _score_table(
    engines: Sequence[Engine], heads: Sequence[str], one: Engine, other: Engine, names: tuple[str, str, str]
) -> Table:
    scores = scoreboard(engines, one, other)
    met = [score for score in scores if any(s.high for s in score.spreads)]
    noisy = any(score.noise for score in met)  # else a column with nothing in it
    rows = [_score_row(score, *names[1:])[: None if noisy else -1] for score in met]
    return Table(head=("", *heads, names[0], *(["noise"] if noisy else [])), rows=tuple(rows))


def _score_row(score: Score, one: str, other: str) -> tuple[Cell, ...]:
    unit = score.metric.unit
    cells = [Cell(text=score.metric.name, small=score.metric.about)]
    for found in score.spreads:
        small = ""
        if found.low != found.high:
            small = f"{say_range(found.low, found.high, unit)}\nMAD {say(found.mad, unit)}"
        cells.append(Cell(text=say(found.median, unit), small=small, value=found.median))
    ratio = score.ratio
    said = f"{other} has none" if ratio is None else say_ratio(ratio) if ratio else f"{one} has none"
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
    made = Table(head=("", *(engine.label for engine in engines)), rows=tuple(rows))
    return _turned(made) if len(engines) > MOST_COLUMNS else made


def _turned(table: Table) -> Table:
    """Return a table with its columns as rows."""
    names = [row[0].text for row in table.rows]
    rows = [
        (Cell(text=name), *(row[at] for row in table.rows)) for at, name in enumerate(table.head) if at > 0
    ]
    return Table(head=("", *names), rows=tuple(rows))


def timed(comparison: Comparison) -> tuple[Engine, ...]:
    """Return the engines of which it is known where their time went."""
    return tuple(engine for engine in comparison.engines if engine.breakdown)


def _seconds_of(seconds: float, available_s: float) -> Cell:
    share = f"{seconds / available_s:.1%}" if available_s else ""
    return Cell(text=say_seconds(seconds), small=share, value=seconds)


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
        ("lower bound", say_seconds(lower), f"max(work / {found.workers}, span), on {say_count(found.workers, 'worker')}"),
        ("measured", say_seconds(found.measured_s), _say_measured(comparison)),
        ("upper bound", say_seconds(upper), f"work / {found.workers} + span, for greedy schedules that start tasks at no cost"),
    ]  # fmt: skip
    return Table(
        head=("", "", ""), rows=tuple((Cell(text=a), Cell(text=b), Cell(text=c)) for a, b, c in rows)
    )


def _say_measured(comparison: Comparison) -> str:
    """Say what a graph's measured time is beside its bounds and the wall time that the verdict speaks of."""
    found = comparison.parallelism
    assert found is not None
    _, upper = bounds(comparison)
    said = "from the first task's start to the last one's end, of each graph of the run"
    if found.measured_s > upper:
        said += (
            f"; {say_seconds(found.measured_s - upper)} above the upper bound: starting tasks and waiting for the rounds before,"
            " which the bounds leave out"
        )
    whole = comparison.dag.run.wall_s
    if whole > found.measured_s:
        said += f"; the other {say_seconds(whole - found.measured_s)} of this run's {say_seconds(whole)} plan and publish"
    return said


def bounds(comparison: Comparison) -> tuple[float, float]:
    """Return between which times a greedy schedule must end that starts tasks at no cost (Graham 1969; Brent 1974)."""
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
                Cell(text="files" if edge.on_disk else "memory"),
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
