"""The report's verdict and scoreboard for a terminal."""

from __future__ import annotations

from .model import Comparison
from .tables import Titled, score_tables, time_table
from .words import say_scheduler, say_subject, say_verdict


def print_comparison(comparison: Comparison) -> None:
    """Print what was compared, the verdict, the scoreboard and where the time went."""
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a pipe has no width; do not fold the tables
    console.print(say_subject(comparison), highlight=False)
    console.print(say_verdict(comparison), style="bold", highlight=False, markup=False)
    if scheduler := say_scheduler(comparison):
        console.print(scheduler, highlight=False, markup=False)
    for titled in (*score_tables(comparison), Titled(title="", style="", table=time_table(comparison))):
        table = titled.table
        grid = Grid(box=None, pad_edge=False)
        for number, name in enumerate(table.head):
            grid.add_column(name, justify="right" if number else "left")
        for row in table.rows:
            grid.add_row(*(f"[red]{cell.text}[/red]" if cell.marked else cell.text for cell in row))
        console.print()
        if titled.title:
            console.print(titled.title, style="bold", highlight=False)
        console.print(grid)
