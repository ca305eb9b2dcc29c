"""Progress of a training run for a person: a bar of steps on a terminal, a line per epoch elsewhere."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.train import Moment

LINE_EVERY_S = 1.0  # between plain lines, but for the first epoch
STEP_LINE_EVERY_S = 10.0  # likewise for steps, where an epoch takes longer
BAR_EVERY_S = 0.05


class TrainingProgress:
    """Shows the moments of a run as they come; ``report`` is what ``Training.run`` calls."""

    def __init__(self, *, steps: int, done: int, epochs: int, quiet: bool = False) -> None:
        self.steps, self.epochs, self.quiet = steps, epochs, quiet
        self.done = done
        self.terminal = sys.stderr.isatty()
        self.bars: Any = None
        self.bar: Any = None
        self.spoke = time.monotonic() - LINE_EVERY_S  # so that the first epoch is told
        self.shown = ""
        self.held_back = ""

    def __enter__(self) -> TrainingProgress:
        if self.terminal and not self.quiet:
            from rich import progress
            from rich.console import Console

            self.bars = progress.Progress(
                progress.TextColumn("training"),
                progress.BarColumn(bar_width=24),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[amount]}"),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self.bar = self.bars.add_task("training", total=self.steps, completed=self.done, amount="")
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()
        elif self.held_back:
            self._say(self.held_back)

    def report(self, moment: Moment) -> None:
        """Take note of a step or of the end of an epoch."""
        if self.quiet:
            return
        now = time.monotonic()
        if moment.loss is not None:
            line = f"epoch {moment.epoch} of {self.epochs}: loss {moment.loss:.4f}"
            if not math.isnan(moment.check_loss):
                line += f", held out: loss {moment.check_loss:.4f}, accuracy {moment.accuracy:.1%}"
            self.held_back = line
            self.shown = f"loss {moment.loss:.4f}"  # short: a bar shares its line
            if not math.isnan(moment.accuracy):
                self.shown += f", held out {moment.accuracy:.1%}"
        elif self.bars is None and now - self.spoke < STEP_LINE_EVERY_S:
            return
        if self.bars is not None:
            if moment.loss is not None or moment.step == self.steps or now - self.spoke >= BAR_EVERY_S:
                self.spoke = now
                amount = self.shown or f"loss {moment.step_loss:.4f}"
                self.bars.update(self.bar, completed=moment.step, amount=amount)
            return
        if now - self.spoke >= LINE_EVERY_S:
            if moment.loss is None:
                line = f"step {moment.step:,} of {self.steps:,}: loss {moment.step_loss:.4f}"
            self.spoke, self.held_back = now, ""
            self._say(line)

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
