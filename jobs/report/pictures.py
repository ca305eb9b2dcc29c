"""The pictures of the report as SVG: positions in per cent, heights in pixels, colours by class.

So they fit any width, text keeps its size, and one style sheet serves light, dark and print.  A picture refers to nothing
outside its page; ``#hatch`` and ``#wait`` are patterns that the page defines.  Details stand in ``<title>``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ..sizes import format_size
from .derive import Phase, phases
from .model import Attempt, Engine, Moment, Sample
from .words import say_seconds

ROW_PX = 20
GAP_PX = 4
#: Finer than any screen: neighbours closer than this are drawn as one.
FINEST = 1 / 2400


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a stacked bar."""

    style: str
    value: float
    title: str


def draw_bar(pieces: Iterable[Piece], full: float, height_px: int = 18) -> Markup:
    """Return a horizontal bar, stacked from the left; ``full`` is the value of the whole width."""
    shapes: list[str] = []
    left = 0.0
    for piece in pieces:
        if piece.value > 0 and full > 0:
            shapes.append(_rect(left / full, piece.value / full, 0, height_px, piece.style, piece.title))
        left += piece.value
    return _svg(height_px, shapes)


def draw_columns(rows: Sequence[tuple[str, str, Sequence[float]]], height_px: int = 120) -> Markup:
    """Return columns side by side, such as seconds of each round: (style, label, values) for each engine."""
    count = max((len(values) for _, _, values in rows), default=0)
    wide = 0.8 / max(len(rows), 1)  # of a column, where a round is 1
    top = 1.1 * max((value for _, _, values in rows for value in values), default=0.0)
    shapes: list[str] = []
    for tick in ticks(top, 3):
        y = height_px * (1 - tick / top) if top else 0.0
        shapes.append(_line(0, y, 1, y, "grid" if tick else "axis"))
        if tick:
            shapes.append(f'<text x="100%" y="{y - 4:.1f}" text-anchor="end">{_tick(tick)}</text>')
    for at, (style, label, values) in enumerate(rows):
        for index, value in enumerate(values):
            tall = max(height_px * value / top, 1.0) if value else 0.0
            title = f"{label}, round {index + 1}: {say_seconds(value)}"
            x = (index + 0.06 + at * wide) / count * 0.94
            shapes.append(_rect(x, 0.95 * wide / count * 0.94, height_px - tall, tall, style, title))
    for index in range(0, count, max(1, count // 10)):
        x = (index + 0.45) / count * 0.94
        shapes.append(f'<text x="{x:.2%}" y="{height_px + 16}" text-anchor="middle">{index + 1}</text>')
    return _svg(height_px + 18, shapes)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Rows of one engine: labels of the rows in one picture, the attempts in another."""

    labels: Markup
    bars: Markup


def draw_timeline(engine: Engine, span_s: float, style: str) -> Timeline:
    """Return a row per worker slot, stages in shades of ``style``, repeated attempts hatched, waits at barriers dotted."""
    workers = max([engine.workers, *(attempt.worker + 1 for attempt in engine.attempts)])
    row_px = ROW_PX if workers <= 16 else 8
    gap_px = GAP_PX if workers <= 16 else 1
    height = workers * (row_px + gap_px) + gap_px
    shades = {group: at % 4 for at, group in enumerate(groups_of(engine.attempts))}
    shapes: list[str] = []
    for phase in phases(engine):
        shapes.extend(_draw_waits(phase, span_s, row_px, gap_px, height))
    for run in _merged(engine.attempts, span_s * FINEST):
        first, last = run[0], run[-1]
        y = gap_px + first.worker * (row_px + gap_px)
        x, width = first.start_s / span_s, (last.end_s - first.start_s) / span_s
        title = _title_of(run)
        shapes.append(_rect(x, width, y, row_px, f"{style} s{shades[first.stage, first.kind]}", title))
        if first.attempt or first.outcome != "done":
            shapes.append(_rect(x, width, y, row_px, "bad" if first.outcome != "done" else "again", title))
    end = engine.run.wall_s / span_s
    shapes.append(_line(end, 0, end, height, f"end {style}"))
    step = 1 if row_px == ROW_PX else max(workers // 8, 1)
    labels = [
        f'<text x="0" y="{gap_px + worker * (row_px + gap_px) + row_px / 2 + 4:g}">worker {worker}</text>'
        for worker in range(0, workers, step)
    ]
    return Timeline(labels=_svg(height, labels), bars=_svg(height, shapes))


def draw_axis(span_s: float) -> Markup:
    """Return an axis of time from 0 to ``span_s``."""
    shapes = [_line(0, 0.5, 1, 0.5, "axis")]
    for tick in ticks(span_s):
        x = tick / span_s if span_s > 0 else 0.0
        anchor = "start" if not tick else "end" if x > 0.96 else "middle"
        shapes.append(_line(x, 0, x, 5, "axis"))
        shapes.append(f'<text x="{x:.2%}" y="18" text-anchor="{anchor}">{_tick(tick)}</text>')
    return _svg(20, shapes)


def draw_memory(
    curves: Sequence[tuple[str, str, Sequence[Sample]]], span_s: float, limit_bytes: int | None
) -> Markup:
    """Return memory over time of each engine, and the limit as a line where it is not far away."""
    peak = max((sample.memory_bytes for _, _, samples in curves for sample in samples), default=0)
    top = max(peak, limit_bytes or 0) if limit_bytes and limit_bytes < 4 * peak else peak
    scale = 1.12 * top or 1.0
    height = 170
    shapes: list[str] = []
    for tick in ticks(scale, 4):
        y = height * (1 - tick / scale)
        shapes.append(_line(0, y, 1, y, "grid"))
        if tick:
            shapes.append(f'<text x="100%" y="{y - 4:.1f}" text-anchor="end">{format_size(tick)}</text>')
    for style, label, samples in curves:
        points = [
            (1000 * sample.at_s / span_s, height * (1 - sample.memory_bytes / scale))
            for sample in thinned(samples)
        ]
        shapes.append(_curve(points, height, f"curve {style}", f"{label}: {_peak_of(samples)}"))
    if limit_bytes and limit_bytes <= scale:
        y = height * (1 - limit_bytes / scale)
        shapes.append(_line(0, y, 1, y, "limit"))
        shapes.append(f'<text x="2" y="{y - 4:.1f}" class="limit">limit {format_size(limit_bytes)}</text>')
    return _svg(height, shapes)


def draw_width(width: Sequence[Moment], workers: int) -> Markup:
    """Return how many tasks could run at once over time, and the workers that there are as a line."""
    end = max((moment.at_s for moment in width), default=0.0) or 1.0
    top = max([workers, *(moment.running for moment in width)]) * 1.1
    height = 110
    points: list[tuple[float, float]] = [(0.0, float(height))]
    for moment in width:
        x = 1000 * moment.at_s / end
        points += [(x, points[-1][1]), (x, height * (1 - moment.running / top))]
    y = height * (1 - workers / top)
    return _svg(
        height,
        [
            _curve(points, height, "curve dag filled", "tasks that could run at once"),
            _line(0, y, 1, y, "limit"),
            f'<text x="100%" y="{y - 4:.1f}" text-anchor="end" class="limit">workers {workers}</text>',
            _line(0, height - 0.5, 1, height - 0.5, "axis"),
        ],
    )


def draw_bounds(lower_s: float, measured_s: float, upper_s: float) -> Markup:
    """Return the bounds of the run time as a band and the measured time as a mark on it."""
    full = max(lower_s, measured_s, upper_s) * 1.1 or 1.0
    x = measured_s / full

    def label(at_s: float, y: int, words: str) -> str:
        place = at_s / full
        anchor = "start" if place < 0.12 else "end" if place > 0.88 else "middle"
        return f'<text x="{place:.2%}" y="{y}" text-anchor="{anchor}">{words} {say_seconds(at_s)}</text>'

    return _svg(
        56,
        [
            _line(0, 28, 1, 28, "grid"),
            _rect(
                lower_s / full, (upper_s - lower_s) / full, 21, 14, "band", "what the graph's shape allows"
            ),
            _rect(max(x - 0.003, 0), 0.006, 16, 24, "dag s0", f"measured: {say_seconds(measured_s)}"),
            label(measured_s, 11, "measured"),
            label(lower_s, 54, "at least"),
            label(upper_s, 54, "at most"),
        ],
    )


def groups_of(attempts: Iterable[Attempt]) -> list[tuple[str, str]]:
    """Return the pairs of stage and kind in the order in which they began."""
    ordered = sorted(attempts, key=lambda attempt: attempt.start_s)
    return list(dict.fromkeys((attempt.stage, attempt.kind) for attempt in ordered))


def ticks(end: float, most: int = 6) -> list[float]:
    """Return round numbers from 0 to ``end``, at most ``most`` and one.

    >>> ticks(24.6), ticks(0.8, 4)
    ([0.0, 5.0, 10.0, 15.0, 20.0], [0.0, 0.2, 0.4, 0.6, 0.8])
    """
    if end <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(end / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if end / (power * factor) <= most)
    return [round(step * at, 12) for at in range(int(end / step + 1e-9) + 1)]


def thinned(samples: Sequence[Sample], most: int = 600) -> list[Sample]:
    """Return at most ``2 * most`` samples: the lowest and the highest of each stretch, so that no peak is lost."""
    if len(samples) <= 2 * most:
        return list(samples)
    kept: list[Sample] = []
    for at in range(most):
        stretch = samples[at * len(samples) // most : (at + 1) * len(samples) // most]
        ends = {min(stretch, key=lambda s: s.memory_bytes), max(stretch, key=lambda s: s.memory_bytes)}
        kept.extend(sorted(ends, key=lambda s: s.at_s))
    return kept


def _draw_waits(phase: Phase, span_s: float, row_px: int, gap_px: int, height: int) -> Iterable[str]:
    seen = False
    for worker, seconds in phase.waits:
        if seconds < span_s * FINEST * 4:
            continue
        seen = True
        yield _rect(
            (phase.end_s - seconds) / span_s, seconds / span_s, gap_px + worker * (row_px + gap_px), row_px, "wait",
            f"worker {worker} waits {say_seconds(seconds)} at a barrier",
        )  # fmt: skip
    if seen:
        yield _line(phase.end_s / span_s, 0, phase.end_s / span_s, height, "barrier")


def _merged(attempts: Iterable[Attempt], finest_s: float) -> Iterable[list[Attempt]]:
    """Yield attempts, neighbours of one stage on one worker together where one alone could not be seen."""
    open_runs: dict[int, list[Attempt]] = {}
    for attempt in sorted(attempts, key=lambda each: each.start_s):
        run = open_runs.get(attempt.worker)
        if run is not None:
            first, last = run[0], run[-1]
            alike = (attempt.stage, attempt.kind, attempt.attempt, attempt.outcome) == (
                first.stage, first.kind, first.attempt, first.outcome,
            )  # fmt: skip
            small = attempt.end_s - attempt.start_s < finest_s or last.end_s - last.start_s < finest_s
            if alike and small and 0 <= attempt.start_s - last.end_s < finest_s:
                run.append(attempt)
                continue
            yield run
        open_runs[attempt.worker] = [attempt]
    yield from open_runs.values()


def _title_of(run: Sequence[Attempt]) -> str:
    first, last = run[0], run[-1]
    took = say_seconds(last.end_s - first.start_s)
    if len(run) > 1:
        return f"{first.stage} {first.kind}: {len(run)} tasks on worker {first.worker}, {took}"
    lines = [f"{first.stage} {first.kind} {first.task} on worker {first.worker}: {took}"]
    if first.attempt:
        lines[0] += f", attempt {first.attempt + 1}"
    if first.outcome != "done":
        lines[0] += f", {first.outcome}"
    if first.bytes_in or first.bytes_out:
        lines.append(f"{format_size(first.bytes_in)} in, {format_size(first.bytes_out)} out")
    return "\n".join(lines)


def _peak_of(samples: Sequence[Sample]) -> str:
    peak = max(samples, key=lambda sample: sample.memory_bytes, default=None)
    return f"peak {format_size(peak.memory_bytes)} at {say_seconds(peak.at_s)}" if peak else "not sampled"


def _tick(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 or not seconds else f"{seconds * 1000:g} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def _rect(x: float, width: float, y: float, height: float, style: str, title: str = "") -> str:
    about = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{_percent(x)}" width="{_percent(max(width, 0.0004))}" y="{y:g}" height="{height:.4g}"'
        f' class="{style}">{about}</rect>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return (
        f'<line x1="{_percent(x1)}" y1="{y1:.4g}" x2="{_percent(x2)}" y2="{y2:.4g}" class="{escape(style)}"/>'
    )


def _curve(points: Sequence[tuple[float, float]], height: int, style: str, title: str) -> str:
    """Return a curve over the whole width: x from 0 to 1000, stretched, with a stroke that is not."""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    if not points:
        return ""
    area = f"M{points[0][0]:.1f} {height}L{path}L{points[-1][0]:.1f} {height}Z"
    return (
        f'<svg viewBox="0 0 1000 {height}" preserveAspectRatio="none" width="100%" height="{height}" class="{style}">'
        f'<title>{escape(title)}</title><path class="area" d="{area}"/><path class="stroke" d="M{path}"/></svg>'
    )


def _svg(height: float, shapes: Iterable[str]) -> Markup:
    return Markup(f'<svg class="c" width="100%" height="{height:g}" role="img">{"".join(shapes)}</svg>')
