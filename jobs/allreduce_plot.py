"""Curves on logarithmic axes as an SVG picture, readable on light and dark ground; it refers to nothing outside itself."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 720, 420
LEFT, TOP, BOTTOM = 92, 48, 52
#: Apart by colour and by mark; the dark ones are the same hues, lighter.
LIGHT = [
    "#0969da",
    "#bc4c00",
    "#1a7f37",
    "#8250df",
    "#cf222e",
    "#0e7490",
    "#bf3989",
    "#7d5a00",
    "#57606a",
    "#4d7c0f",
    "#3b4a9e",
]
DARK = [
    "#58a6ff",
    "#f0883e",
    "#56d364",
    "#bc8cff",
    "#ff7b72",
    "#4cc9dc",
    "#f778ba",
    "#d4a72c",
    "#a0a8b0",
    "#a5c953",
    "#93a1f5",
]
MARKS = (
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",
    "M-2.9 -2.9h5.8v5.8h-5.8z",
    "M0 -3.9L3.7 2.7L-3.7 2.7z",
    "M0 -4.2L4.2 0L0 4.2L-4.2 0z",
)
_LINE_PX = 15
_LABEL_PX = 58


def _style() -> str:
    light = "".join(f"--k{at}:{colour};" for at, colour in enumerate(LIGHT))
    dark = "".join(f"--k{at}:{colour};" for at, colour in enumerate(DARK))
    own = "".join(f".plot .k{at}{{--own:var(--k{at})}}" for at in range(len(LIGHT)))
    return (
        f".plot{{--ground:#fff;--ink:#1f2328;--faint:#59636e;--grid:#d8dee4;{light}}}\n"
        "@media screen and (prefers-color-scheme:dark)"
        f"{{.plot{{--ground:#0d1117;--ink:#e6edf3;--faint:#9198a1;--grid:#30363d;{dark}}}}}\n"
        '.plot text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--faint)}\n'
        ".plot .title{font-size:15px;font-weight:600;fill:var(--ink)}.plot .ground{fill:var(--ground)}\n"
        ".plot .grid{stroke:var(--grid);stroke-width:1}.plot .path{fill:none;stroke:var(--own);stroke-width:1.8;"
        "stroke-linejoin:round}.plot .mark{fill:var(--own);stroke:var(--ground);stroke-width:.8}\n"
        ".plot .bar{stroke:var(--own);stroke-width:1.2;opacity:.6}.plot .to{stroke:var(--own);stroke-width:.8;opacity:.5}"
        ".plot text.name{fill:var(--own);font-weight:600}.plot .open{fill:var(--ground);stroke:var(--own);stroke-width:1.6}\n"
        ".plot:has(.one:hover) .one:not(:hover){opacity:.15}\n"
        f"{own}\n"
    )


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve.

    Args:
        points: (x, y), both above 0, x ascending.
        bars: (x, lowest y, highest y), drawn as upright lines.
        line: joined, with small marks; False: open marks alone, as for what others have published.
        colour: a number of the palette; None: the next one.
    """

    name: str
    points: Sequence[tuple[float, float]]
    bars: Sequence[tuple[float, float, float]] = ()
    line: bool = True
    colour: int | None = None


def draw_plot(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    say_x: Callable[[float], str],
    say_y: Callable[[float], str],
    x_ticks: Sequence[float] = (),
) -> str:
    """Return the curves on logarithmic axes; names stand at the right ends, in the order of the curves there.

    ``say_x`` and ``say_y`` write values; ``x_ticks`` are where the axis has its labels, by default at powers of ten.
    """
    shown = [each for each in series if each.points]
    xs = [x for each in shown for x, _ in each.points] or [1.0]
    ys = [y for each in shown for _, y in each.points] + [
        y for each in shown for bar in each.bars for y in bar[1:]
    ]
    right = WIDTH - 28 - 7.6 * max((len(each.name) for each in shown), default=0)  # room for the names
    across = _Axis(min(xs), max(xs), LEFT, right)
    up = _Axis(min(ys, default=1.0), max(ys, default=1.0), HEIGHT - BOTTOM, TOP)
    shapes = [f'<text class="title" x="{LEFT - 74}" y="26">{html.escape(title)}</text>']
    for tick in up.ticks:
        y = up.place(tick)
        shapes.append(_line("grid", LEFT, y, right, y))
        shapes.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{html.escape(say_y(tick))}</text>'
        )
    labelled = -math.inf
    for tick in x_ticks or across.ticks:
        x = across.place(tick)
        shapes.append(_line("grid", x, TOP, x, HEIGHT - BOTTOM))
        if x - labelled >= _LABEL_PX:
            words, labelled = html.escape(say_x(tick)), x
            shapes.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{words}</text>')
    middle = (LEFT + right) / 2
    shapes.append(
        f'<text x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{html.escape(x_label)}</text>'
    )
    shapes.append(
        f'<text transform="translate({LEFT - 74} {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(y_label)}</text>"
    )
    ends = _apart([up.place(each.points[-1][1]) for each in shown])
    for at, each in enumerate(shown):
        number = (at if each.colour is None else each.colour) % len(LIGHT)
        places = [(across.place(x), up.place(y)) for x, y in each.points]
        shapes.append(f'<g class="one k{number}">')
        if each.line and len(places) > 1:
            shapes.append(f'<path class="path" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in places)}"/>')
        for x, low, high in each.bars:  # side by side, for all curves have theirs at the same places
            place = across.place(x) + 1.6 * (at - (len(shown) - 1) / 2)
            shapes.append(_line("bar", place, up.place(low), place, up.place(high)))
        for (x, y), (value_x, value_y) in zip(places, each.points, strict=True):
            words = html.escape(f"{each.name}, {say_x(value_x)}: {say_y(value_y)}")
            shapes.append(
                f'<path class="{"mark" if each.line else "open"}" transform="translate({x:.1f} {y:.1f})" '
                f'd="{MARKS[number % len(MARKS)]}"><title>{words}</title></path>'
            )
        left = right + 14
        shapes.append(_line("to", places[-1][0] + 5, places[-1][1], left - 3, ends[at]))
        shapes.append(
            f'<text class="name" x="{left:.1f}" y="{ends[at] + 4:.1f}">{html.escape(each.name)}</text></g>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img"><title>{html.escape(title)}</title><style>{_style()}</style>'
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="6"/>{"".join(shapes)}</svg>\n'
    )


class _Axis:
    """A logarithmic scale from a little below the least value to a little above the largest."""

    def __init__(self, least: float, most: float, start: float, end: float) -> None:
        low, high = math.log10(least), math.log10(most)
        margin = max((high - low) * 0.04, 0.05)
        self._low, self._high, self._start, self._end = low - margin, high + margin, start, end
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        factors = (1,) if high - low > 3 else (1, 2, 5)
        every = max(1, round((high - low) / 8))
        self.ticks = [
            factor * 10.0**power
            for power in powers
            if power % every == 0
            for factor in factors
            if self._low <= math.log10(factor) + power <= self._high
        ]

    def place(self, value: float) -> float:
        """Return where a value is drawn."""
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + (self._end - self._start) * share


def _apart(heights: Sequence[float]) -> list[float]:
    """Return heights for the names of curves that end at ``heights``, moved apart where they would overlap."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved = [heights[at] for at in order]
    for at in range(1, len(moved)):
        moved[at] = max(moved[at], moved[at - 1] + _LINE_PX)
    most = HEIGHT - BOTTOM + 10.0
    for at in range(len(moved) - 1, -1, -1):
        moved[at] = min(moved[at], most)
        most = moved[at] - _LINE_PX
    return [moved[order.index(at)] for at in range(len(heights))]


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
