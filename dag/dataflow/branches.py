"""Whether the branches of a graph are worth running side by side, and the tasks to do it with.

A task is a node together with the nodes before it that only it needs: those in a line with it, and those that take less time than
starting a task.  Times follow from the operations and bytes of each node and the speed of a core, which is measured elsewhere.
Nothing here runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from ..analysis import BURDEN_S, Analysis, analyse, simulate
from ..graph import Graph, Node, Op
from ..units import show_seconds
from .cost import cost_of
from .memory_views import Storages
from .tensor import Tensor

#: What a program spends on a node beside its kernel, and NumPy on a call.
NODE_S = 1e-6
#: Two runs that are nearer to each other than this are no reason for anything.
WORTH = 0.8


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What one core does in a second: operations of a float32 matrix product, and bytes read and written from memory."""

    flops: float
    bytes: float

    def seconds(self, node: Tensor) -> float:
        """Return what a node takes: its operations or its bytes, whichever take longer (the roofline)."""
        cost = cost_of(node)
        per_second = self.flops * 4 / max(4, node.dtype.itemsize)
        return NODE_S + max(cost.flops / per_second, cost.moved_bytes / self.bytes)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Nodes that run one after the other, of which others need the last alone.

    Args:
        root: the last.
        needs: the inputs of the graph and the roots of other tasks that they take.
        work_s: what they are expected to take.
    """

    root: Tensor
    needs: tuple[Tensor, ...]
    work_s: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Where to run a graph.

    Args:
        runner: "rank" (one program) or "dask" (tasks side by side).
        reason: in a sentence.
        analysis: work, span and the rest, of the graph of tasks.
    """

    runner: str
    reason: str
    analysis: Analysis


def tasks_of(graph: Graph, speed: Speed, burden_s: float = BURDEN_S) -> tuple[Task, ...]:
    """Return the tasks that make the outputs which are not given, in an order in which they can run."""
    tensors = [node for node in graph.nodes if isinstance(node, Tensor)]
    given = {node for node in tensors if node.op.kind in ("input", "constant")}
    made = [node for node in tensors if node not in given]
    views = Storages(made, outputs=graph.outputs, given=given).views
    needs: dict[Tensor, dict[Tensor, None]] = {node: {node: None} for node in given}
    for node in made:
        # A view is made again in each task that reads it, so that it lies in memory as it does in one program.
        sources = dict.fromkeys(
            need for source in node.inputs for need in (needs[source] if source in views else [source])
        )
        needs[node] = sources
    roots = {node for node in graph.outputs if isinstance(node, Tensor) and node not in given}
    steps = [node for node in made if node not in views or node in roots]
    users: dict[Tensor, list[Tensor]] = {node: [] for node in tensors}
    for node in steps:
        for source in needs[node]:
            users[source].append(node)
    work_s = {node: speed.seconds(node) for node in steps}
    task_of: dict[Tensor, Tensor] = {}
    for node in reversed(steps):
        after = {task_of[user] for user in users[node]}
        waits_alone = all(set(needs[user]) - given == {node} for user in users[node])
        joins = node not in roots and len(after) == 1 and (waits_alone or work_s[node] < burden_s)
        task_of[node] = after.pop() if joins else node
    members: dict[Tensor, list[Tensor]] = {}
    for node in steps:
        members.setdefault(task_of[node], []).append(node)
    position = {node: at for at, node in enumerate(tensors)}
    found = []
    for root in sorted(members, key=position.__getitem__):
        inside = set(members[root])
        outside = {need for node in inside for need in needs[node] if need not in inside}
        taken = sorted((need for need in outside if need.op.kind != "constant"), key=position.__getitem__)
        found.append(Task(root=root, needs=tuple(taken), work_s=sum(work_s[node] for node in members[root])))
    return tuple(found)


def task_graph(graph: Graph, tasks: tuple[Task, ...], functions: Mapping[Tensor, Op]) -> Graph:
    """Return the graph of tasks; ``functions`` has the operator of each task's root and of each input."""
    made: dict[Tensor, Node] = {}
    for task in tasks:
        for need in task.needs:
            if need not in made:
                made[need] = Node(name=need.name, op=functions[need], size_bytes=need.size_bytes)
        made[task.root] = Node(
            name=task.root.name, op=functions[task.root], inputs=tuple(made[need] for need in task.needs),
            work_s=task.work_s, size_bytes=task.root.size_bytes,
        )  # fmt: skip
    return Graph(tuple(made[node] for node in dict.fromkeys(graph.outputs) if node in made))


def choose(graph: Graph, *, workers: int, speed: Speed, burden_s: float = BURDEN_S) -> Choice:
    """Say whether running the branches of ``graph`` side by side pays, and why.

    ``speed`` is that of one core, and workers are taken not to slow each other down: with a BLAS that uses all cores in one
    product, or arrays too large for the caches, they do.
    """
    tasks = tasks_of(graph, speed, burden_s)
    nothing = {node: Op(kind=node.op.kind) for node in graph.nodes if isinstance(node, Tensor)}
    drawn = task_graph(graph, tasks, nothing)
    found = analyse(drawn, workers=workers, burden_s=burden_s)
    burdened = drawn.measured(work_s={task.root.name: task.work_s + burden_s for task in tasks})
    together_s = simulate(burdened, workers=workers).end_s if tasks else inf
    pays = workers > 1 and together_s < WORTH * found.work_s
    verdict = "run it on dask" if pays else "run it on one rank"
    compared = (
        f"{workers} workers would take about {show_seconds(together_s)} where one takes {show_seconds(found.work_s)}"
        if tasks
        else "nothing is to be computed"
    )
    reason = (
        f"{verdict}: {compared} ({len(tasks)} task{'' if len(tasks) == 1 else 's'}, work over span {found.parallelism:.2f}, "
        f"{show_seconds(burden_s)} to start each)"
    )
    return Choice(runner="dask" if pays else "rank", reason=reason, analysis=found)
