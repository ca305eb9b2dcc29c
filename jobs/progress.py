"""Progress of a run for a person: a bar per stage on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jobs.rounds import number_round
from jobs.sizes import format_size, say_count

if TYPE_CHECKING:
    from dag.events import TaskRow
    from mapreduce.planning import StagePlan
    from mapreduce.pool import Event

LINE_EVERY_S = 5.0  # between plain lines of one stage


class Progress:
    """Shows the events of a run as they come; ``report`` is what ``mapreduce.run`` calls."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()
        self.bars: Any = None
        self.bar: Any = None
        self.done = 0
        self.records = 0
        self.bytes = 0
        self.rounds: dict[str, int] = {}
        self.title = ""
        self.began = 0.0
        self.spoke = 0.0

    def __enter__(self) -> Progress:
        if self.terminal and not self.quiet:
            from rich import progress
            from rich.console import Console

            self.bars = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(bar_width=24),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[amount]}"),
                progress.TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def report(self, what: str, plan: StagePlan, event: Event | None) -> None:
        """Take note of the start of a stage, of an event in it, or of its end."""
        if self.quiet:
            return
        total = len(plan.maps) + len(plan.reduces)
        if what == "stage":
            self.done = self.records = self.bytes = 0
            self.began = self.spoke = time.monotonic()
            self.title = number_round(plan.title, self.rounds)
            if self.bars is not None:
                self.bar = self.bars.add_task(self.title, total=total, amount="")
            else:
                self._say(
                    f"{self.title}: {say_count(len(plan.maps), 'map')}, {say_count(len(plan.reduces), 'reduce')}"
                )
            return
        if event is not None:
            self._count(event)
        if self.bars is not None:
            self.bars.update(self.bar, completed=self.done, amount=self._amount())
        elif what == "done":
            self._say(f"{self.title}: done, {self._amount()}")
        elif time.monotonic() - self.spoke >= LINE_EVERY_S:
            self.spoke = time.monotonic()
            self._say(f"{self.title}: {self.done} of {say_count(total, 'task')}, {self._amount()}")

    def report_graph(self, tasks: int, row: TaskRow | None) -> None:
        """Take note of a graph of so many tasks that begins, or of the end of one of them."""
        if self.quiet:
            return
        if row is None:
            self.done = self.records = self.bytes = 0
            self.began = self.spoke = time.monotonic()
            if self.bars is not None:
                self.bar = self.bars.add_task("graph", total=tasks, amount="")
            else:
                self._say(f"graph: {say_count(tasks, 'task')}")
            return
        if row.outcome == "done":
            self.done += 1
            self.records += row.records_in
            self.bytes += row.bytes_in
        if self.bars is not None:
            self.bars.update(self.bar, completed=self.done, amount=self._amount())
        elif self.done == tasks:
            self._say(f"graph: done, {self._amount()}")
        elif time.monotonic() - self.spoke >= LINE_EVERY_S:
            self.spoke = time.monotonic()
            self._say(f"graph: {self.done} of {say_count(tasks, 'task')}, {self._amount()}")

    def _count(self, event: Event) -> None:
        if event.outcome != "done" or event.task is None:
            return
        self.done += 1
        if event.task.kind == "map":
            self.records += event.records_in
            self.bytes += event.bytes_in

    def _amount(self) -> str:
        if not self.bytes:
            return say_count(self.records, "record")
        rate = self.bytes / max(1e-9, time.monotonic() - self.began)
        return f"{say_count(self.records, 'record')}, {format_size(self.bytes)}, {format_size(rate)}/s"

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
