"""A graph as text: one line per node, with rails that show which values are alive and who takes them."""

from __future__ import annotations

from collections.abc import Collection

from .boxes import Picture, names_its_kind, picture_of
from .graph import Graph
from .units import cells, show_bytes, show_seconds, visible


def draw_text(
    graph: Graph,
    *,
    limit: int = 100,
    rounds: int | None = None,
    on_disk: Collection[str] = (),
    width: int | None = None,
    unknown: Collection[str] = (),
) -> str:
    """Return a drawing for a terminal, inputs first; above ``limit`` nodes (or four times as many
    edges), tasks of one name share a line, and of more than ``rounds`` rounds of a loop the third to the last but
    one do.

    Where a line would be longer than ``width``, the names of inputs are left to the rails.

    A dot is a node, a diamond an output; the rail under it is its value, down to the last line that takes it.  Values of
    nodes named ``on_disk`` are marked; of nodes named ``unknown``, bytes and time are a question mark.

    >>> graph = Graph.from_tasks({"text": (min,), "left": (min, "text"), "right": (min, "text"), "both": (min, "left", "right")})
    >>> print(draw_text(graph))
           name   kind  from
    ●      text   min
    ├─●    left   min   text
    ● │    right  min   text
    ◆─╯    both   min   left, right

    Raises:
        BadGraph: ``limit`` is below 3.
    """
    picture = picture_of(graph, limit=limit, rounds=rounds, on_disk=on_disk)
    rails = _rails(picture)
    rows = [("name", "kind", "value", "parts", "bytes", "time", "from"), *_cells(picture, frozenset(unknown))]
    used = [at for at in range(7) if at == 0 or any(row[at] for row in rows[1:])]
    widths = {at: max(cells(row[at]) for row in rows) for at in used}
    room = max(map(len, rails), default=0)
    if width is not None and 6 in used and room + 4 + sum(widths.values()) + 2 * (len(used) - 1) > width:
        used.remove(6)  # the rails say it too
    lines = []
    for rail, row in zip(["", *rails], rows, strict=True):
        words = []
        for at in used:
            space = " " * (widths[at] - cells(row[at]))
            words.append(space + row[at] if at in (3, 4, 5) else row[at] + space)
        lines.append(f"{rail.ljust(room)}    {'  '.join(words)}".rstrip())
    return "\n".join(lines)


def _cells(picture: Picture, unknown: frozenset[str]) -> list[tuple[str, ...]]:
    inputs: dict[int, list[str]] = {}
    disk: set[int] = set()
    for edge in picture.edges:
        inputs.setdefault(edge.target, []).append(picture.boxes[edge.source].name)
        if edge.on_disk:
            disk.add(edge.source)
    found: list[tuple[str, ...]] = []
    for at, box in enumerate(picture.boxes):
        sources = inputs.get(at, [])
        if len(sources) > 5:
            sources = [*sources[:4], f"... {len(sources) - 4} more"]
        untold = any(node.name in unknown for node in box.nodes)
        kind = (
            ("" if names_its_kind(box) else box.kind)
            + (" (kept)" if box.kept else "")
            + (" (on disk)" if at in disk else "")
        )
        found.append(
            (
                visible(box.name),
                visible(kind),
                visible(box.outline),
                "" if box.partitions is None else f"{box.partitions:,}",
                "?" if untold else show_bytes(box.size_bytes) if box.size_bytes else "",
                "?" if untold else show_seconds(box.work_s) if box.work_s else "",
                visible(", ".join(sources)),
            )
        )
    return found


def _rails(picture: Picture) -> list[str]:
    inputs: dict[int, list[int]] = {}
    waiting = [0] * len(picture.boxes)
    for edge in picture.edges:
        inputs.setdefault(edge.target, []).append(edge.source)
        waiting[edge.source] += 1
    lanes: list[int | None] = []  # whose value each lane carries
    rails: list[str] = []
    above = -1  # the lane of a node just drawn that nobody takes: a dot right under it would seem to
    for at, box in enumerate(picture.boxes):
        joined = sorted(lanes.index(source) for source in inputs.get(at, []))
        for lane in joined:
            waiting[lanes[lane] or 0] -= 1
        ended = {lane for lane in joined if waiting[lanes[lane] or 0] == 0}
        if ended:
            own = min(ended)
        else:
            own = next(
                (lane for lane, value in enumerate(lanes) if value is None and lane != above), len(lanes)
            )
            own += own == above
            lanes += [None] * (own + 1 - len(lanes))
        rails.append(_rail(lanes, joined, ended, own, "◆" if box.output else "●"))
        for lane in ended:
            lanes[lane] = None
        lanes[own] = at if waiting[at] else None
        above = -1 if waiting[at] else own
        while lanes and lanes[-1] is None:
            lanes.pop()
    return rails


def _rail(lanes: list[int | None], joined: list[int], ended: set[int], own: int, dot: str) -> str:
    low, high = min([own, *joined]), max([own, *joined])
    drawn = ""
    for lane, value in enumerate(lanes):
        if lane == own:
            mark = dot
        elif lane in joined:
            ends = "╰┴╯" if lane in ended else "├┼┤"
            mark = ends[0 if lane == low else 2 if lane == high else 1]
        elif value is not None:
            mark = "│"
        else:
            mark = "─" if low < lane < high else " "
        drawn += mark + ("─" if low <= lane < high else " ")
    return drawn.rstrip()
