"""Stay within a limit of memory by computing values again instead of keeping them.

Where the memory plan has its peak, some values only wait: they were used before and will be used after.  The cheapest of
them, by operations for each byte it frees, is computed again just before its later use, behind a ``barrier`` that makes it
wait until then; and so on, until the plan fits or nothing helps.  This is greedy (as in Jain et al. 2020, Checkmate, section
6.2, where optimal plans come from an integer program): the least memory it finds is not the least there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any

from ..errors import TooLarge
from ..graph import Graph
from ..rewrite_base import Names
from .inputs import graph_of
from .memory_plan import MemoryPlan, plan_memory
from .memory_views import Storages
from .passes_base import Notes, derived, tensors
from .tables import TRAITS
from .tensor import Tensor

#: An input that is this many times smaller than the value is kept for it rather than computed again as well.
KEPT_SHARE = 4
#: A value that needs more others computed again with it is no candidate.
MOST_TOGETHER = 64
#: Candidates tried one by one where several at once did not help.
MOST_TRIES = 8
#: Before the name of a value that is computed again.
SCOPE = "recomputed/"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Again:
    """A value to compute again.

    Args:
        value: what is freed over the peak.
        nodes: what is computed again for it, inputs first.
        when: the step before which it happens.
        after: a value that is there only then.
        freed_bytes: at the peak.
        flops: operations that are spent again; an element that is only moved counts as one.
    """

    value: Tensor
    nodes: tuple[Tensor, ...]
    when: int
    after: Tensor
    freed_bytes: int
    flops: int

    @property
    def cost(self) -> float:
        return self.flops / self.freed_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class _Peak:
    """A plan as seen from the step where it takes most.

    Args:
        step: its number.
        order: the nodes by step.
        at: the step of each node.
        shown: the values made before the peak, each with those that are views of it.
    """

    step: int
    order: tuple[Tensor, ...]
    at: Mapping[Tensor, int]
    storages: Storages
    users: Mapping[Any, tuple[Any, ...]]
    shown: Mapping[Tensor, Sequence[Tensor]]

    def uses_after(self, node: Tensor) -> list[int]:
        """Return the steps after the peak that use a node."""
        return [self.at[user] for user in self.users[node] if self.at[user] > self.step]


def rematerialise(graph: Graph | Any, limit_bytes: int, notes: Notes | None = None) -> Graph:
    """Return a graph whose planned peak, ``plan_memory(graph).peak_bytes``, is within ``limit_bytes``; the bits stay.

    Matrix products are computed again only where nothing cheaper is left.  Inputs and constants do not count, as in the plan.
    Optimise before, best with ``fused=False``, since a fused operator needs all its inputs at once; ``fuse`` afterwards keeps
    within the limit.

    Raises:
        TooLarge: no choice of values that this pass finds keeps within the limit; says which limit it can keep.
    """
    graph = graph_of(graph)
    before = plan_memory(graph)
    least_bytes = before.peak_bytes
    # With a lower aim more is computed again at once, which costs more and leads further down.
    for aim_bytes in (limit_bytes, limit_bytes // 2, 0):
        made, least_bytes, said = _descend(graph, before, limit_bytes, aim_bytes)
        if least_bytes <= limit_bytes:
            if notes is not None:
                notes.applied += said
            return made
    raise TooLarge(
        f"the graph needs {before.peak_bytes:,} bytes for values at its peak, and still {least_bytes:,} with what this pass "
        f"finds to compute again; the limit is {limit_bytes:,}: raise it, or make the batch smaller"
    )


def _descend(
    graph: Graph, plan: MemoryPlan, limit_bytes: int, aim_bytes: int
) -> tuple[Graph, int, list[str]]:
    """Take steps until the plan is within the limit or no step helps; return the graph, its peak and what was done."""
    said: list[str] = []
    origins: dict[str, str] = {}
    while plan.peak_bytes > limit_bytes:
        better = _improved(graph, plan, aim_bytes, origins, said)
        if better is None:
            break
        graph, plan = better
    return graph, plan.peak_bytes, said


def _improved(
    graph: Graph, plan: MemoryPlan, aim_bytes: int, origins: dict[str, str], said: list[str]
) -> tuple[Graph, MemoryPlan] | None:
    """Return the graph with some values computed again, and its plan, if it takes less."""
    peak = _look(graph, plan)
    chosen = _choose(peak, plan.peak_bytes - aim_bytes)
    trials = [chosen[: max(1, len(chosen) >> halvings)] for halvings in range(len(chosen).bit_length())]
    trials += [[each] for each in chosen[1:MOST_TRIES]]
    for values in trials:
        dropped = {each.value: each.when for each in values}
        trial = [again for each in values if (again := _again(peak, each.value, dropped)) is not None]
        renamed = dict(origins)
        made = _apply(graph, plan, trial, renamed)
        after = plan_memory(made)
        if _measure(after, aim_bytes) < _measure(plan, aim_bytes):
            origins.update(renamed)
            said += [
                f"{each.value.name} is computed again before {peak.order[each.when].name}: {each.freed_bytes:,} bytes less "
                f"at the peak for {each.flops:,} operations more"
                for each in trial
            ]
            return made, after
    return None


def _measure(plan: MemoryPlan, aim_bytes: int) -> tuple[int, int]:
    return plan.peak_bytes, sum(max(0, live - aim_bytes) for live in plan.live_bytes)


def _look(graph: Graph, plan: MemoryPlan) -> _Peak:
    step = plan.live_bytes.index(plan.peak_bytes)
    order = tuple(each.node for each in plan.steps)
    at = {node: number for number, node in enumerate(order)}
    given = [node for node in tensors(graph) if node not in at]
    storages = Storages(order, outputs=graph.outputs, given=given)
    shown: dict[Tensor, list[Tensor]] = {}
    for node in order[:step]:
        shown.setdefault(storages.owner[node], []).append(node)
    return _Peak(step=step, order=order, at=at, storages=storages, users=graph.consumers, shown=shown)


def _choose(peak: _Peak, wanted_bytes: int) -> list[_Again]:
    """Return values that wait over the peak and free ``wanted_bytes`` together, or all there are; the cheapest first.

    A value whose inputs are dropped too costs these as well, so that dropped values come to lie apart.
    """
    if peak.step >= len(peak.order):
        return []  # outputs are handed over
    storages, busy = peak.storages, set(peak.storages.reads[peak.order[peak.step]])
    waiting: list[tuple[float, int, _Again]] = []
    for number, value in enumerate(peak.order[: peak.step]):
        if value not in storages.views and value not in storages.outputs and value not in busy:
            again = _again(peak, value, {})
            if again is not None:
                waiting.append((again.cost, number, again))
    heapify(waiting)
    chosen: list[_Again] = []
    dropped: dict[Tensor, int] = {}
    while waiting and wanted_bytes > 0:
        _, number, old = heappop(waiting)
        again = _again(peak, old.value, dropped)
        if again is None:
            continue
        if waiting and again.cost > waiting[0][0]:
            heappush(waiting, (again.cost, number, again))
            continue
        chosen.append(again)
        dropped[again.value] = again.when
        wanted_bytes -= again.freed_bytes
    return chosen


def _again(peak: _Peak, value: Tensor, dropped: Mapping[Tensor, int]) -> _Again | None:
    """Return what computing a value again takes while others are dropped until a step; None: it does not pay."""
    at, storages = peak.at, peak.storages
    late = [node for node in peak.shown[value] if peak.uses_after(node)]
    if not late:
        return None
    when = min(step for node in late for step in peak.uses_after(node))
    kept_bytes = 0
    found: set[Tensor] = set()
    pending = list(late)
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        if len(found) > MOST_TOGETHER:
            return None
        for source in node.inputs:
            owner = storages.owner[source]
            if owner is value:
                pending.append(source)
            elif owner in dropped:
                if dropped[owner] > when:
                    pending.append(source)
            elif owner in at and owner not in storages.outputs and not _lasts(peak, owner, when):
                if owner.size_bytes * KEPT_SHARE <= value.size_bytes:
                    kept_bytes += owner.size_bytes
                else:
                    pending.append(source)
    freed_bytes = value.size_bytes - kept_bytes
    if freed_bytes <= 0:
        return None
    made = [node for node in found if node not in storages.views]
    flops = sum(max(TRAITS[node.op.kind].flops(node), node.size) for node in made)
    waits_for = [source for source in peak.order[when].inputs if at.get(source, -1) > peak.step]
    after = max(waits_for, key=at.__getitem__, default=peak.order[when - 1])
    nodes = tuple(sorted(found, key=at.__getitem__))
    return _Again(value=value, nodes=nodes, when=when, after=after, freed_bytes=freed_bytes, flops=flops)


def _lasts(peak: _Peak, owner: Tensor, when: int) -> bool:
    """Return whether a value is there at a step anyway."""
    return any(peak.at[reader] >= when for reader in peak.storages.readers[owner])


def _apply(graph: Graph, plan: MemoryPlan, trial: Sequence[_Again], origins: dict[str, str]) -> Graph:
    """Return the graph in which the values of ``trial`` are computed again; ``origins`` gets the names of the copies.

    From then on every use of such a value is one of the copy, also where an earlier trial made it a later copy, which goes.
    """
    names = Names(node.name for node in graph.nodes)
    became: dict[Any, Tensor] = {node: node for node in graph.nodes if not node.inputs}  # type: ignore[misc]
    copies: dict[str, Tensor] = {}
    waiting = sorted(trial, key=lambda each: each.when, reverse=True)

    def origin(node: Tensor) -> str:
        return origins.get(node.name, node.name)

    def current(node: Tensor) -> Tensor:
        copy = copies.get(origin(node))
        return became[node] if copy is None else copy

    for number, step in enumerate(plan.steps):
        while waiting and waiting[-1].when == number:
            again = waiting.pop()
            inside = set(again.nodes)
            after = became[again.after]
            for node in again.nodes:
                if origin(node) in copies:
                    continue
                inputs = [current(source) for source in node.inputs]
                if not any(source in inside for source in node.inputs):
                    name = names.fresh(f"{SCOPE}barrier")
                    inputs[0] = derived(inputs[0], "barrier", [inputs[0], after], name)
                name = names.fresh(f"{SCOPE}{node.name.removeprefix(SCOPE).partition('~')[0]}")
                copies[origin(node)] = replace(node, name=name, inputs=tuple(inputs))
                origins[name] = origin(node)
        node = step.node
        inputs = [current(source) for source in node.inputs]
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        became[node] = node if same else replace(node, inputs=tuple(inputs))
    return Graph(tuple(became[node] for node in graph.outputs))
