"""What the report says of the graph that ran: its picture, its bytes, its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dag.analysis import analyse, edge_bytes, measured_by
from dag.draw import draw_svg, draw_text
from dag.graph import Graph, Node, Op
from dag.logical import Fused, Read
from dag.task import stage_of
from jobs.engine import GraphResult, RanGraph
from jobs.stage_tasks import planned_bytes

#: More rounds of a loop than this are not drawn one by one.
ROUNDS = 5


def describe_run(result: GraphResult, workers: int) -> dict[str, Any]:
    """Return picture, edges, parallelism and rewrites of the largest graph of a run, with what its tasks took."""
    ran = max(result.graphs, key=lambda each: len(each.tasks))
    names = {node.name for node in ran.tasks.nodes}
    rows = [row for row in result.rows if f"{row.stage}[{row.task}]" in names]
    analysis = analyse(measured_by(ran.tasks, rows), workers=workers)
    whole = measured_by(ran.rewritten.graph, rows)
    critical = {stage_of(node.name)[0] for node in analysis.critical_path}
    title = f"{result.job}: the graph as it ran"
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
            "measured_s": max(row.end for row in rows) - min(row.start for row in rows) if rows else 0.0,
            "width": [{"at_s": at, "running": running} for at, running in analysis.width],
            "critical_path": tuple(node.name for node in analysis.critical_path),
        },
        "applied": [line for each in result.graphs for line in each.rewritten.applied],
        "refused": [line for each in result.graphs for line in each.rewritten.refused],
    }


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
