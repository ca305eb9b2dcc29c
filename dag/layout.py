"""Layers for a drawing: where boxes stand so that edges run down, cross seldom and bend little.

The method of Sugiyama, Tagawa and Toda (1981) in its light form: longest-path layers, ordering by barycentres, then positions
by weighted least squares in one layer at a time.  Long edges of one source share their way down.  Geometry alone: nothing
here knows what is drawn.  Same input, same output.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]

ORDER_SWEEPS = 12
PLACE_SWEEPS = 60
LANE = 14.0  # width kept free for a long edge that passes a layer


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Centres of the boxes and the points that each edge runs through, from box to box."""

    width: float
    height: float
    centres: tuple[Point, ...]
    routes: Mapping[tuple[int, int], tuple[Point, ...]]


def arrange(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    *,
    gap_x: float = 26.0,
    gap_y: float = 58.0,
) -> Layout:
    """Place boxes of ``sizes`` (width, height); every edge goes from a lower to a higher number."""
    layer = _layers(len(sizes), edges)
    grid = _Grid(sizes, edges, layer)
    _order(grid)
    x = _positions(grid, gap_x)
    tops: list[float] = []
    top = 0.0
    for members in grid.layers:
        tops.append(top)
        top += max(grid.size(item)[1] for item in members) + gap_y
    left = min((x[at] - width / 2 for at, (width, _) in enumerate(sizes)), default=0.0)
    left = min([left, *(value - LANE / 2 for value in x[len(sizes) :])])
    x = [value - left for value in x]
    heights = [max(grid.size(item)[1] for item in members) for members in grid.layers]
    centres = tuple((x[at], tops[layer[at]] + heights[layer[at]] / 2) for at in range(len(sizes)))
    right = max(
        [x[at] + width / 2 for at, (width, _) in enumerate(sizes)]
        + [at + LANE / 2 for at in x[len(sizes) :]],
        default=0.0,
    )
    return Layout(
        width=right,
        height=max(top - gap_y, 0.0),
        centres=centres,
        routes=_routes(grid, sizes, edges, centres, x, tops, heights),
    )


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        above[target].append(source)
        below[source].append(target)
    layer = [0] * count
    for at in range(count):
        layer[at] = max((layer[source] + 1 for source in above[at]), default=0)
    for at in reversed(range(count)):
        if len(below[at]) > len(above[at]):  # lower down, its edges are shorter in all
            layer[at] = min(layer[target] for target in below[at]) - 1
    return layer


class _Grid:
    """Boxes and the lanes of long edges (numbers above the boxes'), layer by layer."""

    def __init__(
        self, sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]], layer: Sequence[int]
    ) -> None:
        self.sizes = sizes
        self.boxes = len(sizes)
        self.layers: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
        for at, level in enumerate(layer):
            self.layers[level].append(at)
        self.lanes: dict[tuple[int, int], int] = {}  # source and layer -> lane
        self.ways: dict[tuple[int, int], list[int]] = {}
        links: dict[tuple[int, int], None] = {}
        total = self.boxes
        for source, target in edges:
            way = [source]
            for level in range(layer[source] + 1, layer[target]):
                if (source, level) not in self.lanes:
                    self.lanes[source, level] = total
                    self.layers[level].append(total)
                    total += 1
                way.append(self.lanes[source, level])
            way.append(target)
            self.ways[source, target] = way
            links.update(dict.fromkeys(pairwise(way)))
        self.up: list[list[int]] = [[] for _ in range(total)]
        self.down: list[list[int]] = [[] for _ in range(total)]
        for upper, lower in links:
            self.down[upper].append(lower)
            self.up[lower].append(upper)

    def size(self, item: int) -> tuple[float, float]:
        return self.sizes[item] if item < self.boxes else (LANE, 0.0)

    def weight(self, one: int, other: int) -> float:
        """How much a link wants to be straight: lanes more than boxes (Gansner et al. 1993, section 4)."""
        return (1.0, 3.0, 40.0)[(one >= self.boxes) + (other >= self.boxes)]


def _order(grid: _Grid) -> None:
    best = [list(members) for members in grid.layers]
    fewest = _crossings(grid)
    for sweep in range(ORDER_SWEEPS):
        downwards = sweep % 2 == 0
        levels = range(1, len(grid.layers)) if downwards else range(len(grid.layers) - 2, -1, -1)
        for level in levels:
            beside = grid.layers[level - 1 if downwards else level + 1]
            place = {item: at for at, item in enumerate(beside)}
            members = grid.layers[level]
            wanted: dict[int, float] = {}
            for at, item in enumerate(members):
                near = (grid.up if downwards else grid.down)[item]
                wanted[item] = sum(place[other] for other in near) / len(near) if near else float(at)
            members.sort(key=wanted.__getitem__)
        crossings = _crossings(grid)
        if crossings < fewest:
            fewest = crossings
            best = [list(members) for members in grid.layers]
    grid.layers[:] = best


def _crossings(grid: _Grid) -> int:
    total = 0
    for upper, lower in pairwise(grid.layers):
        place = {item: at for at, item in enumerate(lower)}
        seen: list[int] = []
        for item in upper:
            ends = sorted(place[other] for other in grid.down[item])
            total += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _positions(grid: _Grid, gap_x: float) -> list[float]:
    x = [0.0] * len(grid.up)
    for members in grid.layers:
        at = 0.0
        for item in members:
            x[item] = at + grid.size(item)[0] / 2
            at += grid.size(item)[0] + gap_x
        for item in members:
            x[item] -= at / 2
    for sweep in range(PLACE_SWEEPS):
        downwards = sweep % 2 == 0
        both = sweep >= PLACE_SWEEPS // 3
        for members in grid.layers if downwards else reversed(grid.layers):
            wanted: list[tuple[float, float]] = []
            for item in members:
                near = (
                    grid.up[item] + grid.down[item] if both else (grid.up if downwards else grid.down)[item]
                )
                total = sum(grid.weight(item, other) for other in near)
                mean = sum(grid.weight(item, other) * x[other] for other in near) / total if near else x[item]
                wanted.append((mean, total or 0.1))
            apart = [
                (grid.size(one)[0] + grid.size(other)[0]) / 2 + gap_x for one, other in pairwise(members)
            ]
            for item, value in zip(members, _nearest(wanted, apart), strict=True):
                x[item] = value
    return x


def _nearest(wanted: Sequence[tuple[float, float]], apart: Sequence[float]) -> list[float]:
    """Return the places nearest to ``wanted`` (place, weight) that keep neighbours ``apart``: pool adjacent violators."""
    offsets = [0.0]
    for gap in apart:
        offsets.append(offsets[-1] + gap)
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for (place, weight), offset in zip(wanted, offsets, strict=True):
        mean, count = place - offset, 1
        while pools and pools[-1][0] > mean:
            earlier, heavier, members = pools.pop()
            mean = (earlier * heavier + mean * weight) / (heavier + weight)
            weight += heavier
            count += members
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _routes(
    grid: _Grid,
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    centres: Sequence[Point],
    x: Sequence[float],
    tops: Sequence[float],
    heights: Sequence[float],
) -> dict[tuple[int, int], tuple[Point, ...]]:
    level = {lane: at for (_, at), lane in grid.lanes.items()}
    entries: dict[int, list[tuple[float, int]]] = {}
    for source, target in edges:
        before = grid.ways[source, target][-2]
        entries.setdefault(target, []).append((x[before], source))
    doors: dict[tuple[int, int], float] = {}
    for target, given in entries.items():
        given.sort()
        room = min(18.0, (sizes[target][0] - 28) / max(len(given) - 1, 1))
        for at, (_, source) in enumerate(given):
            doors[source, target] = centres[target][0] + (at - (len(given) - 1) / 2) * room
    found: dict[tuple[int, int], tuple[Point, ...]] = {}
    for source, target in edges:
        points = [(centres[source][0], centres[source][1] + sizes[source][1] / 2)]
        for lane in grid.ways[source, target][1:-1]:
            top = tops[level[lane]]
            points += [(x[lane], top), (x[lane], top + heights[level[lane]])]
        points.append((doors[source, target], centres[target][1] - sizes[target][1] / 2))
        found[source, target] = tuple(points)
    return found
