"""Where tasks should run, so that producers are where their consumers will be.

A scheduler that looks at inputs alone puts the first tasks anywhere, and every task that takes several of them has to fetch.
Here tasks whose values meet are put on one worker beforehand, as long as no worker gets more than its share of the work; the
merging tasks of a shuffle are spread evenly.  Tasks that gain nothing are left to the scheduler, which sends those out only as
fast as workers take them; the others are held back here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .graph import Node, Part

#: How many values a worker may make before it has to use them.
AHEAD = 8


def place(nodes: Sequence[Node], workers: int) -> dict[Node, int]:
    """Return a worker's number for each node that gains by being there; ``nodes`` come inputs first.

    Merging tasks with equal positions in shuffles of equal width get the same worker, whatever the shuffle: what was
    partitioned alike lies together.
    """
    if workers < 2:
        return {}
    placed = _spread_merges(nodes, workers)
    weights = _weights(nodes)
    meetings = _join(nodes, placed, weights, sum(weights.values()) / workers)
    total = sum(weights[node] for group in meetings for node in group)
    before = 0.0
    for group in meetings:  # in blocks, since neighbours are likely to meet later
        weight = sum(weights[node] for node in group)
        worker = min(int((before + weight / 2) * workers / total), workers - 1)
        placed.update(dict.fromkeys(group, worker))
        before += weight
    return placed


def hold_back(nodes: Sequence[Node], placed: Mapping[Node, int]) -> dict[Node, Node]:
    """Return, for tasks without inputs that are placed, a task of their worker that should be done before.

    Dask sends out at once whatever is bound to a worker, which would then run far ahead of the consumers.  Here a source
    waits until what ``AHEAD`` sources earlier on its worker was made for is done.  Only earlier nodes are waited for, so that
    nothing can wait in a circle.
    """
    position = {node: at for at, node in enumerate(nodes)}
    first_use: dict[Node, Node] = {}
    for node in nodes:
        for source in node.sources():
            first_use.setdefault(source, node)
    uses: dict[int, list[Node]] = {}  # by worker, of its sources in turn
    after: dict[Node, Node] = {}
    for node in nodes:
        if node.inputs or node not in placed or node not in first_use:
            continue
        before = uses.setdefault(placed[node], [])
        for use in reversed(before[: max(len(before) - AHEAD + 1, 0)]):
            if position[use] < position[node]:
                after[node] = use
                break
        before.append(first_use[node])
    return after


def _spread_merges(nodes: Sequence[Node], workers: int) -> dict[Node, int]:
    """Return the workers of all tasks that take pieces, those of one shuffle in blocks.

    A task that only picks one value of several out of a fused task merges nothing: it belongs where that value is.
    """
    shuffles: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op.kind == "pick":
            continue
        first = next((given.node for given in node.inputs if isinstance(given, Part)), None)
        if first is not None:
            shuffles.setdefault(first, []).append(node)
    return {
        node: at * workers // len(merges) for merges in shuffles.values() for at, node in enumerate(merges)
    }


def _weights(nodes: Sequence[Node]) -> dict[Node, float]:
    if any(node.work_s for node in nodes):
        return {node: node.work_s or 1e-4 for node in nodes}
    return dict.fromkeys(nodes, 1.0)


def _join(
    nodes: Sequence[Node], placed: dict[Node, int], weights: dict[Node, float], most: float
) -> list[list[Node]]:
    """Return groups of tasks in which values meet, none heavier than ``most``, in the order of the nodes."""
    uses: dict[Node, int] = {}
    for node in nodes:
        for source in set(node.sources()):
            uses[source] = uses.get(source, 0) + 1
    groups: dict[Node, list[Node]] = {}  # by the last of the group, the one that later tasks can join
    sums: dict[Node, float] = {}
    meets: set[Node] = set()
    above: set[Node] = set()
    for node in nodes:
        if node in placed:
            continue
        givers = [
            source for source in dict.fromkeys(node.sources()) if source in groups and uses[source] == 1
        ]
        weight = weights[node] + sum(sums[source] for source in givers)
        if weight > most or any(source in above and uses[source] == 1 for source in node.sources()):
            above.add(node)  # where the branches of several workers meet
            continue
        groups[node] = [each for source in givers for each in groups.pop(source)] + [node]
        sums[node] = weight
        if len(givers) > 1 or any(source in meets for source in givers):
            meets.add(node)
    return [group for last, group in groups.items() if last in meets]
