"""What the report says of the graph that ran: its picture, its bytes, its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dag.analysis import analyse, edge_bytes, measured_by
from dag.draw import draw_svg, draw_text
from dag.errors import BadGraph
from dag.events import TaskRow
from dag.graph import Graph, Node, Op
from dag.logical import Fused, Read
from dag.rewrite_base import Rewritten
from dag.task import stage_of
from jobs.engine import GraphResult, RanGraph
from jobs.stage_tasks import planned_bytes

#: More rounds of a loop than this are not drawn one by one.
ROUNDS = 5


def describe_run(result: GraphResult, workers: int) -> dict[str, Any]:
    """Return picture, edges, parallelism and rewrites of a run's graphs together, with what their tasks took.

    Where one name stands for two nodes, as where a later graph of a loop was rewritten otherwise, of the largest graph alone.
    """
    tasks = _union([ran.tasks for ran in result.graphs])
    logical = _union([ran.rewritten.graph for ran in result.graphs])
    title = f"{result.job}: the graph as it ran"
    graphs = result.graphs
    if tasks is None or logical is None:
        largest = max(graphs, key=lambda each: len(each.tasks))
        every = {node.name for ran in graphs for node in ran.tasks.nodes}
        title += f", the largest of {len(graphs)}: {len(largest.tasks)} of {len(every)} tasks"
        graphs, tasks, logical = (largest,), largest.tasks, largest.rewritten.graph
    names = {node.name for node in tasks.nodes}
    rows = [row for row in result.rows if f"{row.stage}[{row.task}]" in names]
    analysis = analyse(measured_by(tasks, rows), workers=workers)
    whole = without_written(measured_by(logical, rows))
    critical = {stage_of(node.name)[0] for node in analysis.critical_path}
    return {
        "svg": draw_svg(whole, title=title, rounds=ROUNDS),
        "text": draw_text(whole, rounds=ROUNDS),
        "edges": _edges(whole, critical),
        "parallelism": {
            "work_s": analysis.work_s,
            "span_s": analysis.span_s,
            "burdened_span_s": analysis.burdened_span_s,
            "tasks": analysis.tasks,
            "workers": workers,
            "measured_s": _running_s(graphs, rows),
            "width": [{"at_s": at, "running": running} for at, running in analysis.width],
            "critical_path": tuple(node.name for node in analysis.critical_path),
        },
        "applied": [line for each in result.graphs for line in say_rewrites(each.rewritten)[0]],
        "refused": [line for each in result.graphs for line in say_rewrites(each.rewritten)[1]],
    }


def _union(graphs: Sequence[Graph]) -> Graph | None:
    """Return all graphs as one, the nodes that they share once; None if one name stands for two nodes."""
    try:
        return Graph(tuple(dict.fromkeys(node for graph in graphs for node in graph.outputs)))
    except BadGraph:
        return None


def _running_s(graphs: Sequence[RanGraph], rows: Sequence[TaskRow]) -> float:
    """Return the sum over graphs of the time from the first task's start to the last one's end; a task is the first graph's."""
    of = {node.name: at for at, ran in reversed(list(enumerate(graphs))) for node in ran.tasks.nodes}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    for row in rows:
        at = of[f"{row.stage}[{row.task}]"]
        starts[at] = min(starts.get(at, row.start), row.start)
        ends[at] = max(ends.get(at, row.end), row.end)
    return sum(ends[at] - starts[at] for at in starts)


def say_rewrites(rewritten: Rewritten) -> tuple[list[str], list[str]]:
    """Return what was done to a plan and what was refused, with the boxes that names stand in which the picture does not have."""
    drawn = {node.name for node in rewritten.graph.nodes}
    inside = {
        step.name: node.name
        for node in rewritten.graph.nodes
        if isinstance(node.op, Fused)
        for step in node.op.steps
        if step.name not in drawn
    }
    applied = []
    for line in rewritten.applied:
        words = [word.rstrip(",:;") for word in line.split()]
        boxes = dict.fromkeys(inside[word] for word in words if word in inside and inside[word] not in words)
        applied.append(f"{line} (drawn as {', '.join(boxes)})" if boxes else line)
    refused = [
        f"{line} (a Stage with keeps_keys=True does not)" if "may have moved the rows" in line else line
        for line in rewritten.refused
    ]
    return applied, refused


def _edges(graph: Graph, critical: set[str]) -> list[dict[str, Any]]:
    return [
        {
            "source": source.name,
            "target": target.name,
            "size_bytes": size,
            "critical": source.name in critical and target.name in critical,
        }
        for (source, target), size in edge_bytes(graph).items()
    ]


def without_written(graph: Graph) -> Graph:
    """Return the graph with no size where a node writes: its value is the names of files, which says nothing of their bytes."""
    return graph.measured(size_bytes={node.name: 0 for node in graph.nodes if _writes(node)})


def _writes(node: Node) -> bool:
    return any(op.kind == "write" for op in _ops(node))


def _ops(node: Node) -> list[Op]:
    return [step.op for step in node.op.steps] if isinstance(node.op, Fused) else [node.op]


def planned_by_stage(graphs: Sequence[RanGraph]) -> dict[str, int]:
    """Return the bytes of input that each operator was to read: those of the splits that it was given."""
    found: dict[str, int] = {}
    for ran in graphs:
        for node in ran.rewritten.graph.nodes:
            size = _read_bytes(node)
            if size:
                found[node.name] = size
    return found


def _read_bytes(node: Node) -> int:
    return sum(planned_bytes(part) for op in _ops(node) if isinstance(op, Read) for part in op.parts)


def ready_times(graphs: Sequence[RanGraph], rows: Sequence[Any]) -> list[float]:
    """Return for each row when its task could have run: when the last of its inputs had ended."""
    ends = {f"{row.stage}[{row.task}]": row.end for row in rows}
    begin = min((row.start for row in rows), default=0.0)
    inputs = {
        node.name: [source.name for source in node.sources()] for ran in graphs for node in ran.tasks.nodes
    }
    return [
        max(
            (ends[name] for name in inputs.get(f"{row.stage}[{row.task}]", []) if name in ends),
            default=begin,
        )
        for row in rows
    ]
