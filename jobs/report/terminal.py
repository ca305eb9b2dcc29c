"""The report's verdict and scoreboard for a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .derive import sources
from .model import Comparison
from .sentences import say_idle, say_shown
from .tables import Table, score_tables, time_table
from .words import say_scheduler, say_subject, say_verdict

if TYPE_CHECKING:
    from rich.table import Table as Grid


def print_comparison(comparison: Comparison) -> None:
    """Print what was compared, the verdict, the scoreboard and where the time went.

    Made for 80 columns: the column of noise becomes a word beside the ratio, and of several files only the scoreboard is
    printed.
    """
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a pipe has no width; do not fold the tables
    console.print(say_subject(comparison), highlight=False, markup=False)
    console.print(say_verdict(comparison), style="bold", highlight=False, markup=False)
    for line in comparison.warnings:
        console.print(f"Note: {line}", highlight=False, markup=False)
    if scheduler := say_scheduler(comparison):
        console.print(scheduler, highlight=False, markup=False)
    for titled in score_tables(comparison):
        console.print()
        if titled.title:
            console.print(titled.title, style="bold", highlight=False, markup=False)
        console.print(grid(_with_noise_in_words(titled.table)))
    if idle := say_idle(comparison):
        console.print()
        console.print(idle, highlight=False, markup=False)
    if len(sources(comparison)) == 1:
        console.print()
        if shown := say_shown(comparison):
            console.print(shown, highlight=False, markup=False)
        console.print(grid(time_table(comparison)))


def grid(table: Table) -> Grid:
    """Return a table for a terminal, its first column whole and the others to the right."""
    from rich.table import Table as Grid
    from rich.text import Text

    made = Grid(box=None, pad_edge=False)
    for number, name in enumerate(table.head):
        made.add_column(
            Text(name), justify="right" if number else "left", overflow="fold", no_wrap=not number
        )
    for row in table.rows:
        made.add_row(*(Text(cell.text, style="red" if cell.marked else "") for cell in row))
    return made


def _with_noise_in_words(table: Table) -> Table:
    """Return the scoreboard without its column of noise; where noise decides, the ratio says so."""
    if table.head[-1] != "noise":
        return table
    rows = []
    for *cells, ratio, noise in table.rows:
        said = f"{ratio.text} noise" if noise.marked else ratio.text
        rows.append((*cells, replace(ratio, text=said, marked=noise.marked)))
    return Table(head=table.head[:-1], rows=tuple(rows))
