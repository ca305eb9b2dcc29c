"""What a graph costs before it runs: work, span, parallelism, width, bytes per edge, memory.

The words are those of Cilkview (He, Leiserson, Leiserson 2010): *work* is the time on one core, *span* the longest chain of
nodes that need each other, and their ratio how many workers can be kept busy.  ``simulate`` is a list scheduler
in virtual time, whose schedule keeps the bounds of Graham (1969) and Brent (1974).

All of it follows from ``work_s`` and ``size_bytes`` of the nodes, which are somebody's expectation; ``Graph.measured`` puts
measurements in their place.  Transfers between workers take no time here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import BadGraph
from .graph import Graph, Node, Part
from .units import show_bytes, show_seconds

if TYPE_CHECKING:
    from .events import TaskRow

BURDEN_S = 0.0002  # what starting one task may cost; measured by benchmarks/dag_overhead.py


@dataclass(frozen=True, kw_only=True)
class Run:
    """When and where a schedule runs one node; seconds from the start of the graph."""

    node: Node
    worker: int
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One run per node, in the order in which they start."""

    workers: int
    runs: tuple[Run, ...]

    @property
    def end_s(self) -> float:
        """When the last node is done."""
        return max((run.end_s for run in self.runs), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What is known of a graph for a number of workers.

    Args:
        workers: how many nodes run at once.
        timed: false if no node says what it takes; every node then counts as one second.
        tasks: number of nodes.
        work_s: all of it on one worker (T1).
        span_s: the longest chain (Tinf), which no number of workers can shorten.
        critical_path: the nodes of that chain, first to last.
        burdened_span_s: the longest chain when starting a task costs ``burden_s``; far above ``span_s``, the tasks are too small.
        width: steps ``(from this second on, so many nodes run)`` with no limit on workers.
        edge_bytes: bytes that flow from a node to one of its consumers.
        lower_s: no schedule on these workers ends before: max(T1 / P, Tinf).
        upper_s: every greedy schedule ends by then: T1 / P + Tinf.
        schedule: a list schedule in the graph's order on these workers.
        memory: ``(second, bytes alive)`` whenever that changes in the schedule: a value lives from its node's start to the end of
            its last consumer, an output or a kept value to the end.
    """

    workers: int
    timed: bool
    tasks: int
    work_s: float
    span_s: float
    critical_path: tuple[Node, ...]
    burden_s: float
    burdened_span_s: float
    width: tuple[tuple[float, int], ...]
    edge_bytes: Mapping[tuple[Node, Node], int]
    lower_s: float
    upper_s: float
    schedule: Schedule
    memory: tuple[tuple[float, int], ...]

    @property
    def parallelism(self) -> float:
        """Work over span: how many workers are of use; 0 for an empty graph."""
        return self.work_s / self.span_s if self.span_s else 0.0

    @property
    def burdened_parallelism(self) -> float:
        """Parallelism when every task of the longest chain costs ``burden_s`` more."""
        return self.work_s / self.burdened_span_s if self.burdened_span_s else 0.0

    @property
    def max_width(self) -> int:
        """The most nodes that ever run at once, with no limit on workers."""
        return max((running for _, running in self.width), default=0)

    @property
    def peak_memory_bytes(self) -> int:
        """The most bytes that the schedule ever holds."""
        return max((live for _, live in self.memory), default=0)


def analyse(graph: Graph, *, workers: int = 1, burden_s: float = BURDEN_S) -> Analysis:
    """Analyse ``graph`` as it stands; ``expand`` a logical graph first to see its tasks.

    Raises:
        BadGraph: ``workers`` is below 1, or a node has a negative time or size.
    """
    takes = _times(graph)
    starts, ends = _as_soon_as_possible(graph, takes)
    _, burdened = _as_soon_as_possible(graph, {node: took + burden_s for node, took in takes.items()})
    work = sum(takes.values())
    span = max(ends.values(), default=0.0)
    schedule, events = _list_schedule(graph, workers, takes)
    return Analysis(
        workers=workers,
        timed=any(node.work_s for node in graph.nodes),
        tasks=len(graph),
        work_s=work,
        span_s=span,
        critical_path=critical_path(graph),
        burden_s=burden_s,
        burdened_span_s=max(burdened.values(), default=0.0),
        width=_running(starts, ends),
        edge_bytes=edge_bytes(graph),
        lower_s=max(work / workers, span),
        upper_s=work / workers + span,
        schedule=schedule,
        memory=_live_bytes(graph, events),
    )


def simulate(graph: Graph, *, workers: int) -> Schedule:
    """Return the list schedule of ``graph``: a free worker takes the first node in the graph's order whose inputs are there.

    It ends no later than T1 / P + Tinf * (1 - 1 / P) (Graham 1969), whatever the order.

    Raises:
        BadGraph: ``workers`` is below 1, or a node has a negative time or size.
    """
    return _list_schedule(graph, workers, _times(graph))[0]


def critical_path(graph: Graph) -> tuple[Node, ...]:
    """Return the nodes of the longest chain, first to last; of several, the one whose last node comes first in the graph.

    Raises:
        BadGraph: a node has a negative time or size.
    """
    _, ends = _as_soon_as_possible(graph, _times(graph))
    span = max(ends.values(), default=0.0)
    # A consumer of what ends last ends last too, so one of these has no consumer.
    node = next((node for node in graph.nodes if ends[node] == span and not graph.consumers[node]), None)
    path: list[Node] = []
    while node is not None:
        path.append(node)
        node = max(node.sources(), key=ends.__getitem__, default=None)
    return tuple(reversed(path))


def measured_by(graph: Graph, rows: Iterable[TaskRow]) -> Graph:
    """Return ``graph`` with the times and sizes of a run of it, whose rows these are; what did not run stays as expected.

    Of a task that ran several times, the last time counts.  An operator of a logical graph has the sums over its tasks, a Group
    the time of its splits too.
    """
    last = {(row.stage, row.task): row for row in rows if row.outcome == "done"}
    work_s: dict[str, float] = {}
    size_bytes: dict[str, int] = {}
    names = {node.name for node in graph.nodes}
    for (stage, task), row in last.items():
        own = f"{stage}[{task}]"
        name = own if own in names else stage
        if name in names:
            size_bytes[name] = size_bytes.get(name, 0) + row.bytes_out
        else:
            name = stage.removesuffix(".split")
        work_s[name] = work_s.get(name, 0.0) + row.end - row.start
    return graph.measured(work_s=work_s, size_bytes=size_bytes)


def edge_bytes(graph: Graph) -> dict[tuple[Node, Node], int]:
    """Return the bytes that flow along each edge; the parts of a value that are asked for share its size evenly."""
    asked: dict[Node, set[int]] = {}
    for node in graph.nodes:
        for given in node.inputs:
            if isinstance(given, Part):
                asked.setdefault(given.node, set()).add(given.index)
    number = {node: {index: at for at, index in enumerate(sorted(parts))} for node, parts in asked.items()}
    found: dict[tuple[Node, Node], int] = {}
    for node in graph.nodes:
        for given in dict.fromkeys(node.inputs):
            source = given.node if isinstance(given, Part) else given
            size = source.size_bytes
            if isinstance(given, Part):
                at, count = number[source][given.index], len(number[source])
                size = size * (at + 1) // count - size * at // count
            found[source, node] = found.get((source, node), 0) + size
    return found


def describe(analysis: Analysis, *, partly: bool = False) -> str:
    """Return the analysis in words, a few lines for a terminal.

    ``partly``: of some nodes time and size are unknown (and 0 here): then only what holds whatever they are.
    """
    seconds = show_seconds if analysis.timed else _in_steps
    path = [node.name for node in analysis.critical_path]
    if len(path) > 8:
        path = [*path[:4], f"... {len(path) - 7} more ...", *path[-3:]]
    if partly:
        least = "at least " if analysis.timed else ""
        return "\n".join(
            [
                f"tasks          {analysis.tasks:,}",
                f"work           {least}{seconds(analysis.work_s)}",
                f"span           {least}{seconds(analysis.span_s)}",
            ]
        )
    lines = [
        f"tasks          {analysis.tasks:,}",
        f"work           {seconds(analysis.work_s)}",
        f"span           {seconds(analysis.span_s)}",
        f"parallelism    {analysis.parallelism:.2f}, at most {_tasks(analysis.max_width)} at once",
        f"{f'on {_cores(analysis.workers)}':<15}between {seconds(analysis.lower_s)} and {seconds(analysis.upper_s)};"
        f" in this order {seconds(analysis.schedule.end_s)}",
        f"peak memory    {show_bytes(analysis.peak_memory_bytes)}",
        f"critical path  {' > '.join(path)}",
    ]
    if analysis.timed:
        lines.insert(
            4,
            f"burdened       parallelism {analysis.burdened_parallelism:.2f}"
            f" when starting a task costs {show_seconds(analysis.burden_s)}",
        )
    return "\n".join(lines)


def _in_steps(count: float) -> str:
    return f"{count:g} task{'' if count == 1 else 's'}"


def _tasks(count: int) -> str:
    return f"{count:,} task{'' if count == 1 else 's'}"


def _cores(count: int) -> str:
    return f"{count} core{'' if count == 1 else 's'}"


def _times(graph: Graph) -> dict[Node, float]:
    for node in graph.nodes:
        if not (node.work_s >= 0 and node.size_bytes >= 0):
            raise BadGraph(
                f"{node.name}: time and size must be 0 or more, got {node.work_s} s, {node.size_bytes} bytes"
            )
    if any(node.work_s for node in graph.nodes):
        return {node: node.work_s for node in graph.nodes}
    return dict.fromkeys(graph.nodes, 1.0)


def _as_soon_as_possible(
    graph: Graph, takes: Mapping[Node, float]
) -> tuple[dict[Node, float], dict[Node, float]]:
    """Return starts and ends with no limit on workers."""
    starts: dict[Node, float] = {}
    ends: dict[Node, float] = {}
    for node in graph.nodes:
        starts[node] = max((ends[source] for source in node.sources()), default=0.0)
        ends[node] = starts[node] + takes[node]
    return starts, ends


def _running(starts: Mapping[Node, float], ends: Mapping[Node, float]) -> tuple[tuple[float, int], ...]:
    changes: dict[float, int] = {}
    for node, start in starts.items():
        # To the nanosecond: two paths that add up the same times in another order meet at one moment.
        for moment, change in ((start, 1), (ends[node], -1)):
            at = round(moment, 9)
            changes[at] = changes.get(at, 0) + change
    steps: list[tuple[float, int]] = []
    running = 0
    for moment in sorted(changes):
        if changes[moment]:
            running += changes[moment]
            steps.append((moment, running))
    return tuple(steps)


def _list_schedule(
    graph: Graph, workers: int, takes: Mapping[Node, float]
) -> tuple[Schedule, list[tuple[float, Node, bool]]]:
    """Return the schedule, and what starts (True) and ends (False) in the order in which it happens."""
    if workers < 1:
        raise BadGraph(f"a graph needs 1 worker or more, got {workers}")
    order = {node: at for at, node in enumerate(graph.nodes)}
    missing = {node: len(set(node.sources())) for node in graph.nodes}
    ready = [at for node, at in order.items() if missing[node] == 0]
    free = list(range(min(workers, max(len(graph), 1))))
    busy: list[tuple[float, int, int]] = []  # end, node, worker
    runs: list[Run] = []
    events: list[tuple[float, Node, bool]] = []
    now = 0.0
    while ready or busy:
        while ready and free:
            at, worker = heapq.heappop(ready), heapq.heappop(free)
            node = graph.nodes[at]
            runs.append(Run(node=node, worker=worker, start_s=now, end_s=now + takes[node]))
            events.append((now, node, True))
            heapq.heappush(busy, (now + takes[node], at, worker))
        now = busy[0][0]
        while busy and busy[0][0] == now:
            _, at, worker = heapq.heappop(busy)
            heapq.heappush(free, worker)
            node = graph.nodes[at]
            events.append((now, node, False))
            for consumer in graph.consumers[node]:
                missing[consumer] -= 1
                if missing[consumer] == 0:
                    heapq.heappush(ready, order[consumer])
    return Schedule(workers=workers, runs=tuple(runs)), events


def _live_bytes(graph: Graph, events: Iterable[tuple[float, Node, bool]]) -> tuple[tuple[float, int], ...]:
    """Return the bytes alive after each change; in the order of events, since what takes no time has a size too."""
    stays = set(graph.outputs) | {node for node in graph.nodes if node.keep}
    waiting = {node: len(users) for node, users in graph.consumers.items()}
    steps: list[tuple[float, int]] = []
    live = 0
    for moment, node, begins in events:
        before = live
        if begins:
            live += node.size_bytes
        else:
            for source in set(node.sources()):
                waiting[source] -= 1
                if waiting[source] == 0 and source not in stays:
                    live -= source.size_bytes
        if live != before:
            steps.append((moment, live))
    return tuple(steps)
