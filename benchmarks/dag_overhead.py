"""What a task costs: graphs of empty functions on threads, and on processes of this machine.

``python -m benchmarks.dag_overhead`` prints microseconds per task; the issue's limit is 200 on threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from dag import Graph, Node, Op, Session


def measure_overhead(
    *, tasks: int = 100_000, workers: int = 2, runs: int = 3, scheduler: str = "threads"
) -> Mapping[str, float]:
    """Return the median seconds per task of a chain, a fan of independent tasks, and a tree of additions."""
    graphs = {"chain": _chain(tasks), "fan": _fan(tasks), "tree": _tree(tasks)}
    found: dict[str, float] = {}
    for name, graph in graphs.items():
        taken = []
        for _ in range(runs):
            with Session(scheduler=scheduler, workers=workers) as session:
                start = time.perf_counter()
                session.run(graph)
                taken.append((time.perf_counter() - start) / len(graph))
        found[name] = statistics.median(taken)
    return found


def _node(name: str, function: object, *inputs: Node) -> Node:
    return Node(name=name, op=Op(kind="empty", function=function), inputs=inputs)  # type: ignore[arg-type]


def _chain(tasks: int) -> Graph:
    last = _node("step[0]", int)
    for at in range(1, tasks):
        last = _node(f"step[{at}]", abs, last)
    return Graph((last,))


def _fan(tasks: int) -> Graph:
    return Graph(tuple(_node(f"leaf[{at}]", int) for at in range(tasks)))


def _tree(tasks: int) -> Graph:
    level = [_node(f"leaf[{at}]", int) for at in range(tasks // 2)]
    height = 0
    while len(level) > 1:
        height += 1
        level = [
            _node(f"add{height}[{at // 2}]", max if len(level[at : at + 2]) > 1 else abs, *level[at : at + 2])
            for at in range(0, len(level), 2)
        ]
    return Graph(tuple(level))


def main() -> None:
    """Print the costs."""
    for scheduler, tasks in (("threads", 100_000), ("processes", 2_000)):
        for shape, seconds in measure_overhead(tasks=tasks, scheduler=scheduler).items():
            print(f"{scheduler:10} {tasks:7} tasks  {shape:6} {seconds * 1e6:7.1f} us per task")


if __name__ == "__main__":
    main()
