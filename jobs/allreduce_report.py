"""What ``mr allreduce`` has measured, for a terminal and as one HTML file that opens offline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from dag.units import TIME_UNITS, show_time, three_digits

from .allreduce import Measured, Row
from .allreduce_plot import Series, draw_plot
from .allreduce_rank import dtype_of
from .report.tables import Cell, Table
from .report.terminal import grid
from .sizes import format_size, say_count

HEAD = ("algorithm", "time", "from - to", "algbw", "busbw", "roof", "rounds", "bytes/rank", "fan-in", "peers")


def say_rate(bytes_per_s: float) -> str:
    """Return bytes per second with three digits and a unit."""
    return f"{format_size(bytes_per_s)}/s"


def rows_of(measured: Measured, nbytes: int) -> list[Row]:
    """Return the rows of a size, the fastest first."""
    return sorted((row for row in measured.rows if row.nbytes == nbytes), key=lambda row: row.spread.median)


def cells_of(row: Row) -> tuple[Cell, ...]:
    """Return what stands in the table about one algorithm at one size."""
    times = row.spread
    share = row.roof_share
    shown: tuple[tuple[str, float | None], ...] = (
        (row.name, None),
        (show_time(times.median), times.median),
        (f"{_digits(times.low, times.median)} - {_digits(times.high, times.median)}", times.high - times.low),
        (say_rate(row.algbw), row.algbw),
        (say_rate(row.busbw), row.busbw),
        ("" if share is None else f"{share:.0%}", share),
        (f"{row.counts.rounds:,}", row.counts.rounds),
        (format_size(row.rank_bytes), row.rank_bytes),
        (f"{row.counts.fan_in:,}", row.counts.fan_in),
        (f"{row.peers:,}", row.peers),
    )
    return tuple(Cell(text=text, value=value) for text, value in shown)


def _digits(seconds: float, like: float) -> str:
    """Return a time without unit, in the unit in which ``like`` is written."""
    unit = show_time(like).split()[1]
    return three_digits(seconds / TIME_UNITS[unit])


def say_size(measured: Measured, nbytes: int) -> str:
    """Return the line over the table of a size."""
    wanted = measured.wanted
    row = next(row for row in measured.rows if row.nbytes == nbytes)
    elements = f"{nbytes // dtype_of(wanted.dtype).itemsize:,} {wanted.dtype}"
    line = f"{format_size(nbytes)}: {elements}, {say_count(wanted.ranks, 'rank')}, {say_count(len(row.seconds), 'run')}"
    if roof := measured.roofs.get(nbytes):
        what = "memory" if roof.what == "memory" else "raw loopback"
        line += f"; {what} {roof.bytes_per_s / 1e9:.1f} GB/s"
    return line


def print_measured(measured: Measured) -> None:
    """Print a table for each size, the fastest first, and what the columns mean."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    for nbytes in dict.fromkeys(row.nbytes for row in measured.rows):
        console.print(say_size(measured, nbytes), style="bold", highlight=False, markup=False)
        table = Table(head=HEAD, rows=tuple(map(cells_of, rows_of(measured, nbytes))))
        console.print(grid(table))
        console.print()
    for line in notes(measured):
        console.print(line, highlight=False, markup=False, style="dim")


def notes(measured: Measured) -> list[str]:
    """Return what a reader has to know about the numbers, in sentences."""
    wanted = measured.wanted
    lines = [
        "time: median over the runs of the slowest rank's, from a barrier on and right after an untimed call of the same "
        "algorithm, after 5 warm-ups; from - to: an interval that holds the true median with 95 % (with fewer than six runs the "
        "lowest and the highest).",
        f"algbw: size / time; busbw: algbw x 2(P-1)/P, here x {2 * (wanted.ranks - 1) / wanted.ranks:.3g}; "
        "bytes/rank: the most that one rank sends or receives.",
    ]
    if any(roof.what == "memory" for roof in measured.roofs.values()):
        lines.append(
            "roof: the time that a triad a = b + c of all ranks at once, in as much memory, would take for what the algorithm "
            "reads and writes, by the time measured; above 100 % where it finds in a core's own cache what it has just written."
        )
    if any(roof.what == "stream" for roof in measured.roofs.values()):
        lines.append(
            "roof: the time that raw sockets between all ranks at once would take for the bytes of the algorithm, by the time "
            "measured."
        )
    lines.append(
        f"Every result of every run was compared with NumPy's fold of the same numbers: {wanted.dtype}, all right."
    )
    return [*lines, *wanted.notes]


def to_html(
    measured: Measured, *, command: str, started: str, machine: Mapping[str, str], versions: Mapping[str, str]
) -> str:
    """Return the report as one HTML document that refers to nothing outside itself."""
    sizes = list(dict.fromkeys(row.nbytes for row in measured.rows))
    return _template().render(
        title=_headline(measured, sizes),
        subject=_subject(measured, sizes),
        verdicts=[_verdict(measured, nbytes) for nbytes in sizes],
        plots=_plots(measured, sizes),
        tables=[
            _Titled(
                title=say_size(measured, nbytes),
                table=Table(head=HEAD, rows=tuple(map(cells_of, rows_of(measured, nbytes)))),
            )
            for nbytes in sizes
        ],
        notes=notes(measured),
        command=command,
        facts={"measured": started, **machine, **versions},
    )


@dataclass(frozen=True, kw_only=True)
class _Titled:
    title: str
    table: Table


@functools.cache
def _template() -> jinja2.Template:
    folder = files("jobs.report")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals.update(
        css=Markup((folder / "report.css").read_text("utf-8")),
        js=Markup((folder / "report.js").read_text("utf-8")),
    )
    return environment.from_string((folder / "allreduce.html.jinja").read_text("utf-8"))


def _headline(measured: Measured, sizes: Sequence[int]) -> str:
    best = rows_of(measured, max(sizes))[0]
    size, ranks = format_size(best.nbytes), say_count(best.ranks, "rank")
    return f"{best.name}: {size} over {ranks} in {show_time(best.spread.median)}"


def _subject(measured: Measured, sizes: Sequence[int]) -> str:
    wanted = measured.wanted
    op = wanted.op if isinstance(wanted.op, str) else wanted.op.name
    arrays = "the callers' own arrays" if wanted.own else "arrays of comm.empty()"
    how = {"shm": "shared memory", "tcp": "TCP", "auto": "shared memory or TCP"}[wanted.transport]
    return f"All-reduce: {op} of {wanted.dtype} over {how}, {arrays}, {say_count(len(sizes), 'size')}"


def _verdict(measured: Measured, nbytes: int) -> str:
    rows = rows_of(measured, nbytes)
    first = rows[0]
    line = f"{format_size(nbytes)}: {first.name} is the fastest, {show_time(first.spread.median)}"
    if first.roof_share is not None:
        line += f", {first.roof_share:.0%} of the roof"
    level = [row.name for row in rows[1:] if row.spread.low <= first.spread.high]
    if len(rows) > 1 and len(level) == len(rows) - 1:
        line += "; all others are within the spread of it"
    elif level:
        line += f"; within the spread of it: {', '.join(level)}"
    if len(rows) > 1:
        slower = rows[-1].spread.median / first.spread.median
        line += f"; the slowest, {rows[-1].name}, takes {slower:.1f} times as long"
    return f"{line}."


def _plots(measured: Measured, sizes: Sequence[int]) -> list[Markup]:
    names = list(dict.fromkeys(row.name.split(" (")[0] for row in measured.rows))
    by_name = {
        name: [row for row in measured.rows if row.name.split(" (")[0] == name and row.nbytes]
        for name in names
    }

    def curves(value: Callable[[Row], float], bars: bool) -> list[Series]:
        found = []
        for name, rows in by_name.items():
            ordered = sorted(rows, key=lambda row: row.nbytes)
            found.append(
                Series(
                    name=name,
                    points=[(row.nbytes, value(row)) for row in ordered if value(row) > 0],
                    bars=[(row.nbytes, row.spread.low, row.spread.high) for row in ordered] if bars else (),
                )
            )
        return found

    shared: dict[str, Any] = {
        "x_label": "bytes that each rank brings", "say_x": format_size, "x_ticks": [size for size in sorted(sizes) if size]
    }  # fmt: skip
    times, rates = curves(lambda row: row.spread.median, True), curves(lambda row: row.busbw, False)
    pictures = [draw_plot(times, title="Time", y_label="time", say_y=show_time, **shared)]
    if any(each.points for each in rates):  # one rank has no bus
        pictures.append(
            draw_plot(rates, title="Bus bandwidth", y_label="bus bandwidth", say_y=say_rate, **shared)
        )
    return [Markup(each) for each in pictures]
