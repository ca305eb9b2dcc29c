"""A graph as an SVG picture: boxes in layers, bytes on the edges, readable on light and dark ground.

The picture is one piece of text with no reference to anything outside itself and no identifiers, so several of them can
stand in one HTML page.  The same graph gives the same text.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from itertools import pairwise

from .boxes import Box, Edge, Picture, is_apart, names_its_kind, picture_of
from .graph import Graph
from .layout import Layout, Point, arrange
from .rails import draw_text
from .units import cells, show_bytes, show_seconds, visible

__all__ = ["draw_svg", "draw_text"]

MARGIN = 28.0
BOX_HEIGHT = 46.0
NAME_CELLS, KIND_CELLS = 34, 26
# Width of a character of a monospaced font over its size: DejaVu Sans Mono, the widest that is common, has 0.602.
CELL_EM = 0.605
NAME_PX, NOTE_PX, LABEL_PX = 12.5, 10.5, 10.5
TILE = 6.0  # the grain in which labels look for other edges
STUB = 22.0  # the arrow from or to a store
SHUFFLES = {"group", "split", "merge", "gather"}

STYLE = """
.mrdag{--ground:#ffffff;--rim:#d8dee4;--box:#f6f8fa;--line:#c4ccd4;--ink:#1f2328;--faint:#59636e;
--edge:#8c959f;--disk:#bc5f00;--hot:#d1242f;--work:#0969da;--shuffle:#8250df;--store:#bc5f00;
--apart:#1a7f37;--apart-box:#eaf7ed}
@media(prefers-color-scheme:dark){.mrdag{--ground:#0d1117;--rim:#30363d;--box:#161b22;--line:#3d444d;--ink:#e6edf3;
--faint:#9198a1;--edge:#6e7681;--disk:#f0883e;--hot:#ff7b72;--work:#4493f8;--shuffle:#ab7df8;--store:#f0883e;
--apart:#3fb950;--apart-box:#12261a}}
.mrdag text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:var(--ink)}
.mrdag .ground{fill:var(--ground);stroke:var(--rim)}
.mrdag .box>rect{fill:var(--box);stroke:var(--line)}
.mrdag .box>.bar{stroke:none;fill:var(--work)}
.mrdag .shuffle>.bar{fill:var(--shuffle)}
.mrdag .store>.bar{fill:var(--store)}
.mrdag .apart>.bar{fill:var(--apart)}
.mrdag .apart>.frame{fill:var(--apart-box);stroke:var(--apart)}
.mrdag .hot>.frame{stroke:var(--hot);stroke-width:2}
.mrdag .name{font-size:12.5px;font-weight:600}
.mrdag .note{font-size:10.5px;fill:var(--faint)}
.mrdag .label text{font-size:10.5px;fill:var(--faint)}
.mrdag .label rect{fill:var(--ground)}
.mrdag .edge path{fill:none;stroke:var(--edge);stroke-width:1.3}
.mrdag .edge polygon{fill:var(--edge)}
.mrdag .disk path{stroke:var(--disk);stroke-dasharray:5 4}
.mrdag .disk polygon{fill:var(--disk)}
.mrdag .hot path{stroke:var(--hot);stroke-width:2.8}
.mrdag .hot polygon{fill:var(--hot)}
.mrdag .edge.apart path{stroke:var(--apart);stroke-width:6}
.mrdag .title{font-size:14px;font-weight:600}
@media print{.mrdag{--ground:#fff;--box:#fff;--ink:#000;--faint:#333}}
"""


def draw_svg(
    graph: Graph,
    *,
    title: str = "",
    limit: int = 300,
    rounds: int | None = None,
    on_disk: Collection[str] = (),
    apart: Collection[str] = (),
) -> str:
    """Return a picture of ``graph`` as the text of an SVG file, data flowing down.

    The critical path is bold if any node says how long it takes.  Above ``limit`` nodes (or four times as many edges), tasks of
    one name become one box; of more than ``rounds`` rounds of a loop, the third to the last but one do.  The values of nodes (or
    families of tasks) named ``on_disk`` go through a disk: their edges are dashed, like those from the store to what reads it.
    Nodes whose names have one of ``apart`` before a slash, as ``gradient/matmul``, have another colour.

    Raises:
        BadGraph: ``limit`` is below 3.
    """
    picture = picture_of(graph, limit=limit, rounds=rounds, on_disk=on_disk)
    names = [_shorten(box.name, NAME_CELLS) for box in picture.boxes]
    notes = [_note(box, KIND_CELLS) for box in picture.boxes]
    sizes = [
        (max(92.0, 26 + max(cells(name) * NAME_PX, cells(note) * NOTE_PX) * CELL_EM), BOX_HEIGHT)
        for name, note in zip(names, notes, strict=True)
    ]
    layout = arrange(sizes, [(edge.source, edge.target) for edge in picture.edges])
    legend = _legend(picture, apart)
    left, top = MARGIN, MARGIN + STUB + (26 if title else 0)
    title = _shorten(title, 80)
    width = (
        max(layout.width, sum(_wide(words) for _, words in legend), cells(title) * 14 * CELL_EM) + 2 * MARGIN
    )
    left += (width - 2 * MARGIN - layout.width) / 2
    height = top + layout.height + STUB + MARGIN + (30 if legend else 0)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="mrdag" viewBox="0 0 {_n(width)} {_n(height)}" '
        f'width="{_n(width)}" height="{_n(height)}" style="max-width:100%;height:auto" role="img" '
        f'aria-label="{_text(title or "computation graph")}">',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" x="0.5" y="0.5" width="{_n(width - 1)}" height="{_n(height - 1)}" rx="8"/>',
    ]
    if title:
        drawn.append(f'<text class="title" x="{_n(MARGIN)}" y="{_n(MARGIN + 8)}">{_text(title)}</text>')
    drawn.append(f'<g transform="translate({_n(left)} {_n(top)})">')
    drawn += [_edge(edge, picture, layout) for edge in sorted(picture.edges, key=lambda edge: edge.critical)]
    drawn += [
        _box(box, centre, size, name, note, is_apart(box, apart))
        for box, centre, size, name, note in zip(
            picture.boxes, layout.centres, sizes, names, notes, strict=True
        )
    ]
    drawn += _labels(picture, layout, sizes)
    drawn.append("</g>")
    at = MARGIN
    for look, words in legend:
        drawn.append(_legend_entry(look, words, at, height - 24))
        at += _wide(words)
    return "\n".join([*drawn, "</svg>", ""])


def _note(box: Box, most: int) -> str:
    parts = [] if names_its_kind(box) else [_shorten(box.kind, most)]
    if box.outline:
        parts.append(box.outline)
    if box.partitions is not None:
        parts.append("1 part" if box.partitions == 1 else f"{box.partitions:,} parts")
    if box.size_bytes:
        parts.append(show_bytes(box.size_bytes))
    if box.work_s:
        parts.append(show_seconds(box.work_s))
    if box.kept:
        parts.append("kept")
    if box.outline and box.output:
        parts.append("output")
    return " · ".join(parts)


def _box(box: Box, centre: Point, size: tuple[float, float], name: str, note: str, apart: bool) -> str:
    width, height = size
    x, y = centre[0] - width / 2, centre[1] - height / 2
    kinds = set(box.kind.split("+"))
    look = (
        " store"
        if kinds & {"read", "write"}
        else " shuffle"
        if kinds & SHUFFLES
        else " apart"
        if apart
        else ""
    )
    hot = " hot" if box.critical else ""
    stubs = ""
    if "read" in kinds:
        stubs += _arrow([(centre[0], y - STUB), (centre[0], y)], "edge disk")
    if "write" in kinds:
        stubs += _arrow([(centre[0], y + height), (centre[0], y + height + STUB)], "edge disk")
    return (
        f'{stubs}<g class="box{look}{hot}"><title>{_text(box.name)}\n{_text(_note(box, 1000))}</title>'
        f'<rect class="frame" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="7"/>'
        f'<rect class="bar" x="{_n(x + 5)}" y="{_n(y + 8)}" width="3" height="{_n(height - 16)}" rx="1.5"/>'
        f'<text class="name" x="{_n(x + 15)}" y="{_n(y + 20)}">{_text(name)}</text>'
        f'<text class="note" x="{_n(x + 15)}" y="{_n(y + 35)}">{_text(note)}</text></g>'
    )


def _edge(edge: Edge, picture: Picture, layout: Layout) -> str:
    look = "edge" + (" disk" if edge.on_disk else "") + (" hot" if edge.critical else "")
    ends = f"{picture.boxes[edge.source].name} to {picture.boxes[edge.target].name}"
    flow = f", {show_bytes(edge.size_bytes)}" if edge.size_bytes else ""
    return _arrow(layout.routes[edge.source, edge.target], look, ends + flow)


def _arrow(points: Sequence[Point], look: str, told: str = "") -> str:
    x, y = points[-1]
    path = f"M{_n(points[0][0])} {_n(points[0][1])}"
    for (x0, y0), (x1, y1) in zip(points, [*points[1:-1], (x, y - 6)], strict=False):
        middle = (y0 + y1) / 2
        straight = abs(x0 - x1) < 0.05
        path += (
            f"V{_n(y1)}" if straight else f"C{_n(x0)} {_n(middle)} {_n(x1)} {_n(middle)} {_n(x1)} {_n(y1)}"
        )
    tip = f"{_n(x)},{_n(y)} {_n(x - 4)},{_n(y - 8)} {_n(x + 4)},{_n(y - 8)}"
    title = f"<title>{_text(told)}</title>" if told else ""
    return f'<g class="{look}">{title}<path d="{path}"/><polygon points="{tip}"/></g>'


Rectangle = tuple[float, float, float, float]


def _labels(picture: Picture, layout: Layout, sizes: Sequence[tuple[float, float]]) -> list[str]:
    """Return the bytes beside the edges, where there is room; the tooltip of each edge has them in any case."""
    taken: list[Rectangle] = [
        (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        for (x, y), (width, height) in zip(layout.centres, sizes, strict=True)
    ]
    # Where families are so entangled, labels cannot keep off the edges, and looking would take long.
    crossed = _edges_by_tile(layout) if len(layout.routes) <= 2000 else {}
    flows: dict[int, list[Edge]] = {}
    for edge in picture.edges:
        if edge.size_bytes and not picture.boxes[edge.source].outline:  # a tensor's box has it
            flows.setdefault(edge.source, []).append(edge)
    drawn: list[str] = []
    for edges in flows.values():
        alike = len(edges) > 1 and len({show_bytes(edge.size_bytes) for edge in edges}) == 1
        for edge in edges[:1] if alike else edges:
            said = show_bytes(edge.size_bytes) + (" each" if alike and edge.shares else "")
            ends = edge.source, edge.target
            route = layout.routes[ends]
            half = cells(said) * LABEL_PX * CELL_EM / 2 + 3
            spots = [(route[0][0], route[0][1] + 11)] if alike else _spots(route, half)
            places = [(x - half, y - 7, x + half, y + 7) for x, y in spots]
            free = [place for place in places if not any(_overlap(place, other) for other in taken)]
            # A label may stand on its own line; on another it would seem to be that one's.
            alone = [
                place for place in free if all(crossed.get(tile, ends) == ends for tile in _tiles(place))
            ]
            for place in (alone or free)[:1]:
                taken.append(place)
                drawn.append(_label(said, place))
    return drawn


def _label(said: str, place: Rectangle) -> str:
    x, y, right, _ = place
    return (
        f'<g class="label"><rect x="{_n(x)}" y="{_n(y)}" width="{_n(right - x)}" height="14" rx="4"/>'
        f'<text x="{_n((x + right) / 2)}" y="{_n(y + 10.5)}" text-anchor="middle">{said}</text></g>'
    )


def _overlap(one: Rectangle, other: Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _spots(route: Sequence[Point], half: float) -> list[Point]:
    """Return the places for a label of width ``2 * half``, the best first: on a bend, or beside a straight line."""
    spots = []
    for start, end in dict.fromkeys([(route[-2], route[-1]), *zip(route[::2], route[1::2], strict=False)]):
        for t in (0.5, 0.4, 0.6, 0.3, 0.7):
            x, y = _on_curve(start, end, t)
            spots += [(x, y)] if abs(end[0] - start[0]) > half else [(x + half + 2, y), (x - half - 2, y)]
    return spots


def _on_curve(start: Point, end: Point, t: float) -> Point:
    """Return a point of the curve that ``_arrow`` draws from ``start`` to ``end``; t from 0 to 1."""
    (x0, y0), (x1, y1) = start, end
    return x0 + (x1 - x0) * (3 * t**2 - 2 * t**3), y0 + (y1 - y0) * (1.5 * t - 1.5 * t**2 + t**3)


def _tiles(place: Rectangle) -> list[tuple[int, int]]:
    left, top, right, bottom = (int(value // TILE) for value in place)
    return [(x, y) for x in range(left, right + 1) for y in range(top, bottom + 1)]


def _edges_by_tile(layout: Layout) -> dict[tuple[int, int], tuple[int, int] | None]:
    """Return which edge passes each tile of the ground, None if several do."""
    found: dict[tuple[int, int], tuple[int, int] | None] = {}
    for ends, route in layout.routes.items():
        for start, end in pairwise(route):
            steps = 2 + int((abs(start[0] - end[0]) + abs(start[1] - end[1])) / TILE * 2)
            for step in range(steps + 1):
                x, y = _on_curve(start, end, step / steps)
                tile = int(x // TILE), int(y // TILE)
                if found.setdefault(tile, ends) != ends:
                    found[tile] = None
    return found


def _legend(picture: Picture, apart: Collection[str]) -> list[tuple[str, str]]:
    kinds = {kind for box in picture.boxes for kind in box.kind.split("+")}
    entries = []
    if any(not edge.on_disk and not picture.boxes[edge.source].outline for edge in picture.edges):
        entries.append(("edge", "in memory"))
    if any(edge.on_disk for edge in picture.edges) or kinds & {"read", "write"}:
        entries.append(("edge disk", "through files"))
    if any(box.critical for box in picture.boxes):
        entries.append(("edge hot", "critical path"))
    if any(is_apart(box, apart) for box in picture.boxes):
        entries.append(("edge apart", ", ".join(apart)))
    return entries


def _legend_entry(look: str, words: str, x: float, y: float) -> str:
    return (
        f'<g class="{look}"><path d="M{_n(x)} {_n(y)}h24"/></g>'
        f'<text class="note" x="{_n(x + 31)}" y="{_n(y + 3.5)}">{words}</text>'
    )


def _wide(words: str) -> float:
    return 31 + len(words) * NOTE_PX * CELL_EM + 22


def _shorten(text: str, most: int) -> str:
    """Return ``text`` with its middle left out if it is too wide; the end often has the number."""
    if cells(text) <= most:
        return text
    head, tail = "", ""
    for each in reversed(text):
        if cells(tail + each) > most // 3:
            break
        tail = each + tail
    for each in text:
        if cells(head + each) > most - cells(tail) - 1:
            break
        head += each
    return f"{head}…{tail}"


def _text(words: str) -> str:
    return html.escape("\n".join(visible(line) for line in words.split("\n")))


def _n(value: float) -> str:
    """Return a coordinate with at most one decimal; -0 is 0."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")
