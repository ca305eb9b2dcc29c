"""The losses of a run as an SVG picture, readable on light and dark ground; it refers to nothing outside itself."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jobs.report.pictures import ticks

Floats = npt.NDArray[np.float64]

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 64, 48
MOST_POINTS = 600
LOG_FROM = 30.0
"""From this ratio of largest to smallest loss on, the losses are drawn on a logarithmic scale."""

STYLE = """
.loss{--ground:#fff;--ink:#1f2328;--faint:#59636e;--grid:#d8dee4;--train:#0969da;--check:#bc4c00}
@media(prefers-color-scheme:dark){.loss{--ground:#0d1117;--ink:#e6edf3;--faint:#9198a1;--grid:#30363d;--train:#4493f8;
--check:#f0883e}}
.loss text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--faint)}
.loss .title{font-size:15px;font-weight:600;fill:var(--ink)}
.loss .ground{fill:var(--ground)}
.loss .grid{stroke:var(--grid);stroke-width:1}
.loss path{fill:none;stroke-linejoin:round}
.loss .steps{stroke:var(--train);stroke-width:1;opacity:.45}
.loss .train{stroke:var(--train);stroke-width:2}
.loss .check{stroke:var(--check);stroke-width:2}
.loss circle{fill:var(--check)}
.loss .base{stroke:var(--faint);stroke-width:1.2;stroke-dasharray:5 4}
@media print{.loss{--ground:#fff;--ink:#000;--faint:#333}}
"""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What is drawn.

    Args:
        title: over the picture.
        epoch_steps: steps of an epoch.
        losses: of each step.
        epoch_losses: the mean of each epoch that has ended.
        check_losses: on what is held out, after each epoch; NaN where nothing is.
        baseline: a loss to compare with and what it is, such as the entropy of single characters.
    """

    title: str
    epoch_steps: int
    losses: Floats
    epoch_losses: Sequence[float]
    check_losses: Sequence[float]
    baseline: tuple[float, str] | None = None


def draw_curve(curve: Curve) -> str:
    """Return the picture: losses of steps, their means by epoch, and the losses on what was held out."""
    epochs = max(len(curve.losses) / curve.epoch_steps, 1e-9)
    steps_x, steps_y = _thinned(curve.losses, curve.epoch_steps)
    # The mean of an epoch stands in its middle, what was held out at its end, when it was looked at.
    train = [(at + 0.5, loss) for at, loss in enumerate(curve.epoch_losses)]
    check = [(at + 1.0, loss) for at, loss in enumerate(curve.check_losses) if math.isfinite(loss)]
    shown = [*steps_y, *(y for _, y in train), *(y for _, y in check)]
    if curve.baseline is not None:
        shown.append(curve.baseline[0])
    place = _Axis(max(shown), min(shown))

    def x_of(epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * epoch / epochs

    shapes = [f'<text class="title" x="{LEFT}" y="26">{html.escape(curve.title)}</text>']
    for tick in place.ticks:
        y = place.y_of(tick)
        shapes.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in ticks(epochs, 8):
        shapes.append(
            f'<text x="{x_of(tick):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{tick:g}</text>'
        )
    shapes.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">epochs</text>'
    )
    legend = [("steps", "loss of a step")]
    shapes.append(_path("steps", [(x_of(x), place.y_of(y)) for x, y in zip(steps_x, steps_y, strict=True)]))
    if curve.baseline is not None:
        y = place.y_of(curve.baseline[0])
        shapes.append(_path("base", [(LEFT, y), (WIDTH - RIGHT, y)]))
        legend.append(("base", curve.baseline[1]))
    if len(train) > 1:
        shapes.append(_path("train", [(x_of(x), place.y_of(y)) for x, y in train]))
        legend.insert(1, ("train", "mean of an epoch"))
    if check:
        points = [(x_of(x), place.y_of(y)) for x, y in check]
        shapes.append(_path("check", points))
        if len(points) <= 40:
            shapes.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in points)
        legend.append(("check", "held out"))
    shapes.extend(_legend(legend))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="loss" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img"><title>{html.escape(curve.title)}</title><style>{STYLE}</style>'
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="6"/>{"".join(shapes)}</svg>\n'
    )


class _Axis:
    """The scale of losses: from 0, or logarithmic where they span much."""

    def __init__(self, most: float, least: float) -> None:
        self.logarithmic = least > 0 and most / least > LOG_FROM
        if self.logarithmic:
            first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
            every = max(1, round((last - first) / 6))
            self.ticks = [10.0**power for power in range(first, last + 1, every)]
            self.low, self.high = math.log10(least) - 0.05, math.log10(most) + 0.05
            self.ticks = [tick for tick in self.ticks if self.low <= math.log10(tick) <= self.high]
        else:
            self.low, self.high = min(0.0, least), max(most, 1e-12) * 1.05
            self.ticks = ticks(self.high, 5)

    def y_of(self, loss: float) -> float:
        """Return where a loss is drawn."""
        value = math.log10(loss) if self.logarithmic else loss
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - self.low) / (self.high - self.low))


def _thinned(losses: Floats, epoch_steps: int) -> tuple[list[float], list[float]]:
    """Return places in epochs and losses of steps; of very many the least and the largest of each group."""
    group = -(-2 * len(losses) // MOST_POINTS)
    places: list[int] = []
    for at in range(0, len(losses), max(group, 1)):
        some = losses[at : at + group]
        places.extend(sorted({at + int(some.argmin()), at + int(some.argmax())}))
    return [(place + 1) / epoch_steps for place in places], losses[places].tolist()


def _path(style: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<path class="{style}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def _legend(entries: Sequence[tuple[str, str]]) -> list[str]:
    shapes, x = [], float(LEFT)
    for style, words in entries:
        shapes.append(_path(style, [(x, 46), (x + 22, 46)]))
        shapes.append(f'<text x="{x + 28:.0f}" y="50">{html.escape(words)}</text>')
        x += 28 + 6.4 * len(words) + 24
    return shapes
