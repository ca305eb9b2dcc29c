"""A schedule as a picture: who gives what to whom in each step, and how much of the sum everyone has by then.

Ranks are rows, time goes to the right.  Between the steps each rank's buffer is a strip of parts, darker the more
contributions are in it.  The picture is one SVG, readable on light and dark ground, that refers to nothing outside itself.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from ..errors import BadCollective
from .check import owners
from .schedule import FOLD, HOLD, REPLACE, Schedule, Step

#: More than this nobody can read.
MOST_NODES, MOST_STEPS = 16, 40
CELL, ROW, STRIP, GAP = 11, 40, 15, 58
LEFT, TOP, BOTTOM, RIGHT = 74, 66, 40, 20

STYLE = """
.schedule{--ground:#fff;--ink:#1f2328;--faint:#59636e;--grid:#d8dee4;--fold:#0969da;--replace:#1a7f37;--hold:#bc4c00}
@media screen and (prefers-color-scheme:dark){.schedule{--ground:#0d1117;--ink:#e6edf3;--faint:#9198a1;--grid:#30363d;
--fold:#58a6ff;--replace:#56d364;--hold:#f0883e}}
.schedule text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--faint)}
.schedule .title{font-size:15px;font-weight:600;fill:var(--ink)}.schedule .ground{fill:var(--ground)}
.schedule .cell{stroke:var(--faint);stroke-width:.6;fill:var(--fold)}.schedule .whole{fill:var(--replace)}
.schedule .given{stroke:var(--ink);stroke-width:1.7;fill:none}
.schedule .wire{stroke:var(--grid);stroke-width:1}
.schedule .move{fill:none;stroke-width:1.5}.schedule .head{stroke:none}
.schedule .fold{stroke:var(--fold);fill:var(--fold)}.schedule .replace{stroke:var(--replace);fill:var(--replace)}
.schedule .hold{stroke:var(--hold);fill:var(--hold)}.schedule path.move{fill:none}.schedule path.hold{stroke-dasharray:4 3}
"""
_MODES = {
    FOLD: ("fold", "folded into the receiver's own"),
    REPLACE: ("replace", "put in its place"),
    HOLD: ("hold", "kept aside, then folded"),
}


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    strip: int
    column: int
    width: int
    height: int


def draw_svg(schedule: Schedule, title: str = "") -> str:
    """Return the picture of a schedule with few ranks and steps.

    Raises:
        BadCollective: it has more than 16 nodes or 40 steps.
    """
    if schedule.nodes > MOST_NODES or schedule.steps > MOST_STEPS:
        raise BadCollective(
            f"{schedule} does not fit in a picture: at most {MOST_NODES} nodes and {MOST_STEPS} steps do"
        )
    strip = CELL * max(schedule.parts, 2)
    column = strip + GAP
    sizes = _Sizes(
        strip=strip, column=column, width=LEFT + column * schedule.steps + strip + RIGHT,
        height=TOP + ROW * schedule.nodes + BOTTOM,
    )  # fmt: skip
    sizes = _Sizes(strip=strip, column=column, width=max(sizes.width, 430), height=sizes.height)
    words = (
        title
        or f"{schedule.algorithm}: {_say(schedule.ranks, 'rank')}, {_say(schedule.parts, 'part')}, {_say(schedule.steps, 'step')}"
    )
    shapes = [f'<text class="title" x="16" y="26">{html.escape(words)}</text>']
    for node in range(schedule.nodes):
        y = _middle(node)
        name = f"rank {node}" if node < schedule.ranks else "server"
        end = LEFT + column * schedule.steps
        shapes.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{name}</text>')
        shapes.append(f'<line class="wire" x1="{LEFT}" y1="{y}" x2="{end}" y2="{y}"/>')
    state = _begin(schedule)
    held: dict[tuple[int, int], int] = {}
    modes: set[int] = set()
    for number in range(schedule.steps + 1):
        step = schedule.step(number) if number < schedule.steps else None
        x = LEFT + column * number
        shapes += _strips(schedule, state, step, x, sizes)
        if step is not None:
            shapes.append(
                f'<text x="{x + strip + GAP / 2}" y="{TOP - 12}" text-anchor="middle">step {number + 1}</text>'
            )
            shapes += _arrows(step, x, sizes)
            modes |= set(step.mode.tolist())
            _apply(step, state, held)
    shapes += _legend(modes, sizes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="schedule" viewBox="0 0 {sizes.width} {sizes.height}" '
        f'width="{sizes.width}" height="{sizes.height}" role="img"><title>{html.escape(words)}</title>'
        f'<style>{STYLE}</style><rect class="ground" width="{sizes.width}" height="{sizes.height}" rx="6"/>'
        f"{''.join(shapes)}</svg>\n"
    )


def _say(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _middle(node: int) -> int:
    return TOP + ROW * node + ROW // 2


def _begin(schedule: Schedule) -> list[list[int]]:
    """Return whose contributions each node has of each part, as bits."""
    state = [[0] * schedule.parts for _ in range(schedule.nodes)]
    for rank in range(schedule.ranks):
        for part in range(schedule.parts):
            state[rank][part] = (rank in owners(schedule, part)) << rank
    return state


def _apply(step: Step, state: list[list[int]], held: dict[tuple[int, int], int]) -> None:
    before = [list(each) for each in state]
    columns = (step.src, step.dst, step.start, step.stop, step.mode)
    for src, dst, start, stop, mode in zip(*(each.tolist() for each in columns), strict=True):
        for part in range(start, stop):
            given = before[src][part]
            if mode == REPLACE:
                state[dst][part] = given
            elif mode == FOLD:
                state[dst][part] |= given
            else:
                held[dst, part] = held.get((dst, part), 0) | given
    if step.settle:
        for (dst, part), bits in held.items():
            state[dst][part] |= bits
        held.clear()


def _strips(
    schedule: Schedule, state: list[list[int]], step: Step | None, x: int, sizes: _Sizes
) -> list[str]:
    shapes = []
    summed = schedule.kind in ("allreduce", "reduce_scatter", "reduce")
    width = sizes.strip / schedule.parts
    for node, parts in enumerate(state):
        y = _middle(node) - STRIP / 2
        for part, bits in enumerate(parts):
            have = bits.bit_count()
            whole = have == schedule.ranks if summed else have > 0
            share = 1.0 if whole else 0.75 * have / schedule.ranks
            ranks = ", ".join(str(rank) for rank in range(schedule.ranks) if bits >> rank & 1)
            shapes.append(
                f"<g><title>part {part}: {f'of ranks {ranks}' if have else 'nothing'}</title>"
                f'<rect class="ground" x="{x + part * width:.1f}" y="{y}" width="{width:.1f}" height="{STRIP}"/>'
                f'<rect class="cell{" whole" if whole else ""}" x="{x + part * width:.1f}" y="{y}" width="{width:.1f}" '
                f'height="{STRIP}" fill-opacity="{share:.2f}"/></g>'
            )
    if step is not None:
        leaving = set(zip(step.src.tolist(), step.start.tolist(), step.stop.tolist(), strict=True))
        for node, start, stop in sorted(leaving):
            shapes.append(
                f'<rect class="given" x="{x + start * width:.1f}" y="{_middle(node) - STRIP / 2}" '
                f'width="{(stop - start) * width:.1f}" height="{STRIP}"/>'
            )
    return shapes


def _arrows(step: Step, x: int, sizes: _Sizes) -> list[str]:
    shapes = []
    left, right = x + sizes.strip + 2, x + sizes.column - 3
    columns = (step.src, step.dst, step.start, step.stop, step.mode)
    for src, dst, start, stop, mode in zip(*(each.tolist() for each in columns), strict=True):
        kind = _MODES[mode][0]
        y1, y2 = _middle(src), _middle(dst) + (4 if src > dst else -4)
        parts = f"part {start}" if stop == start + 1 else f"parts {start} to {stop - 1}"
        bend = (right - left) * 0.45
        shapes.append(
            f"<g><title>{src} gives {parts} to {dst}: {_MODES[mode][1]}</title>"
            f'<path class="move {kind}" d="M{left} {y1}C{left + bend:.1f} {y1} {right - 8 - bend:.1f} {y2} {right - 6} {y2}"/>'
            f'<path class="head {kind}" d="M{right} {y2}l-7 -3.2v6.4z"/></g>'
        )
    return shapes


def _legend(modes: set[int], sizes: _Sizes) -> list[str]:
    shapes, x, y = [], 16.0, sizes.height - 16
    for mode in sorted(modes):
        kind, words = _MODES[mode]
        shapes.append(f'<path class="move {kind}" d="M{x:.0f} {y - 4}h20"/>')
        shapes.append(f'<text x="{x + 26:.0f}" y="{y}">{html.escape(words)}</text>')
        x += 26 + 6.2 * len(words) + 16
    return shapes
