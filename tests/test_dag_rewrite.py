"""Rewrites: every graph gives the same values before and after, and says what was done and what was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from dag.expand import expand
from dag.graph import Graph, Node, Part
from dag.logical import Combine, Flatten, Group, Map, Read, Write, count_partitions
from dag.rewrite import (
    Rewritten,
    fuse,
    lift_combiners,
    optimise,
    reduce_in_trees,
    share,
    sink_flattens,
    size_partitions,
    skip_shuffles,
)

Pairs = list[tuple[int, int]]

REWRITES: dict[str, Callable[[Graph], Rewritten]] = {
    "share": share,
    "sink_flattens": sink_flattens,
    "size_partitions": lambda graph: size_partitions(graph, workers=1),
    "skip_shuffles": skip_shuffles,
    "lift_combiners": lift_combiners,
    "reduce_in_trees": reduce_in_trees,
    "fuse": fuse,
    "optimise": optimise,
    "optimise for 8 workers": lambda graph: optimise(graph, workers=8),
}


def values_of(graph: Graph) -> list[Any]:
    """Run a graph of tasks one after the other."""
    made: dict[Node, Any] = {}
    for task in graph.nodes:
        inputs = [
            made[each.node][each.index] if isinstance(each, Part) else made[each] for each in task.inputs
        ]
        assert task.op.function is not None
        made[task] = task.op.function(*inputs)
    return [made[task] for task in graph.outputs]


# Functions of pairs, which do not change what they are given.


def read(part: Any) -> Pairs:
    return list(part)


def chain(values: list[Pairs]) -> Pairs:
    return [pair for value in values for pair in value]


def double(value: Pairs) -> Pairs:
    return [(key, 2 * number) for key, number in value]


def rekey(value: Pairs) -> Pairs:
    return [(key + number, number) for key, number in value]


def reverse_at(value: Pairs, *, index: int) -> Pairs:
    return [(key, number + index) for key, number in reversed(value)]


def beside(left: Pairs, right: Pairs) -> Pairs:
    return left + right[::-1]


def with_all(own: Pairs, everything: list[Pairs]) -> Pairs:
    return [(key, number + len(everything) + sum(map(len, everything))) for key, number in own]


def sums(value: Pairs) -> Pairs:
    totals: Counter[int] = Counter()
    for key, number in value:
        totals[key] += number
    return sorted(totals.items())


def firsts(value: Pairs) -> Pairs:
    return value[:2]


def total(values: list[Pairs]) -> Pairs:
    return [(0, sum(number for value in values for _, number in value))]


def last_ones(values: list[Pairs]) -> Pairs:
    return [pair for value in values for pair in value[-1:]]


def numbered(value: Pairs, *, index: int) -> tuple[int, Pairs]:
    return index, value


def split_by(partitions: int) -> Callable[..., list[Pairs]]:
    def split(value: Pairs, *, index: int) -> list[Pairs]:
        return [[pair for pair in value if pair[0] % partitions == at] for at in range(partitions)]

    return split


def merge(pieces: list[Pairs], *, index: int) -> Pairs:
    return [pair for piece in pieces for pair in piece]


def group_op(partitions: int, partitioning: Any = None, exact: bool = True) -> Group:
    return Group(
        partitions=partitions,
        splits=(split_by(partitions),),
        merge=merge,
        partitioning=partitioning,
        exact=exact,
    )


def model(graph: Graph) -> list[Any]:
    """Compute a logical graph by what its operators mean, on lists of partitions."""
    made: dict[Node, list[Any]] = {}
    for node in graph.nodes:
        op = node.op
        sources = [made[source] for source in node.sources()]
        call: Any = op.function
        if isinstance(op, Read):
            made[node] = [list(part) for part in op.parts]
        elif isinstance(op, Flatten):
            made[node] = [value for source in sources for value in source]
        elif isinstance(op, Group):
            rows = [pair for source in sources for value in source for pair in value]
            placed = {
                at: [pair for pair in rows if pair[0] % op.partitions == at] for at in range(op.partitions)
            }
            made[node] = list(placed.values())
        elif isinstance(op, Map) and op.associative:
            made[node] = [call(sources[0])]
        elif isinstance(op, Map):
            count = count_partitions(graph)[node]
            made[node] = []
            for index in range(count):
                own = [each if at in op.whole else each[index] for at, each in enumerate(sources)]
                made[node].append(call(*own, index=index) if op.indexed else call(*own))
        elif isinstance(op, Write):
            made[node] = [call(value, index=index) for index, value in enumerate(sources[0])]
        else:
            made[node] = [call(value) for value in sources[0]]
    return [value for node in graph.outputs for value in made[node]]


# Ops of which several nodes may have one and the same object, so that there is something to share.
DOUBLE = Map(function=double, keeps_partitioning=True, rowwise=True)
REKEY = Map(function=rekey, rowwise=True)
REVERSE = Map(function=reverse_at, indexed=True, keeps_partitioning=True)
BESIDE = Map(function=beside, keeps_partitioning=True)
WITH_ALL = Map(function=with_all, whole=(1,), keeps_partitioning=True)
TOTAL = Map(function=total, whole=(0,), associative=True, fan_in=2)
LAST = Map(function=last_ones, whole=(0,))
SUMS = Combine(function=sums)
FIRSTS = Combine(function=firsts, exact=False)
ONE_INPUT = [DOUBLE, REKEY, REVERSE, TOTAL, LAST, SUMS, FIRSTS]

small_pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3)), max_size=4)


@st.composite
def graphs(draw: Any) -> Graph:
    """Draw a logical graph over small lists of pairs."""
    made: list[Node] = []
    sinks: list[Node] = []

    def add(op: Any, *inputs: Node) -> None:
        name = f"{op.kind}{len(made) + len(sinks)}"
        node = Node(
            name=name,
            op=op,
            inputs=inputs,
            keep=draw(st.integers(0, 9)) == 0,
            size_bytes=draw(st.integers(0, 9)),
        )
        (sinks if isinstance(op, Write) else made).append(node)

    def pick() -> Node:
        return made[-1 - draw(st.integers(0, min(len(made) - 1, 3)))]

    def counts() -> dict[Node, int]:
        return count_partitions(Graph(tuple(made)))

    for _ in range(draw(st.integers(1, 2))):
        parts = draw(st.lists(small_pairs, min_size=1, max_size=6))
        add(Read(function=read, parts=tuple(parts), together=chain))
    for _ in range(draw(st.integers(1, 9))):
        kind = draw(
            st.sampled_from(["one", "one", "beside", "all", "flatten", "group", "group", "combined", "write"])
        )
        if kind == "one":
            add(draw(st.sampled_from(ONE_INPUT)), pick())
        elif kind == "beside":
            left, known = pick(), counts()
            add(BESIDE, left, draw(st.sampled_from([node for node in made if known[node] == known[left]])))
        elif kind == "all":
            add(WITH_ALL, pick(), pick())
        elif kind == "flatten":
            add(Flatten(), pick(), pick())
        elif kind == "write":
            add(Write(function=numbered), pick())
        else:
            partitions = draw(st.integers(1, 4))
            inputs = [pick() for _ in range(draw(st.integers(1, 2)))]
            add(group_op(partitions, draw(st.sampled_from([None, "mod"]))), *inputs)
            if kind == "combined":
                add(draw(st.sampled_from([SUMS, FIRSTS])), made[-1])
    used = {source for node in (*made, *sinks) for source in node.sources()}
    ends = [node for node in made if node not in used]
    more = draw(st.lists(st.sampled_from(made), max_size=2))
    return Graph((*sinks, *ends, *more))


def shown(node: Node) -> str:
    what = getattr(node.op.function, "__name__", "") or [len(part) for part in getattr(node.op, "parts", ())]
    return f"{node.name}: {what} of {[given.name for given in node.sources()]} {'kept' * node.keep}"


@pytest.mark.parametrize("name", REWRITES)
@settings(max_examples=60, deadline=None)
@given(graph=graphs())
def test_a_rewrite_changes_no_value_adds_no_task_and_changes_nothing_twice(name: str, graph: Graph) -> None:
    rewrite = REWRITES[name]
    for node in graph.nodes:
        note(shown(node))
    note(f"outputs: {[node.name for node in graph.outputs]}")
    wanted = model(graph)
    before = expand(graph)
    assert values_of(before) == wanted
    done = rewrite(graph)
    note("\n".join(done.applied + done.refused))
    after = expand(done.graph)
    assert values_of(after) == wanted
    gathers = sum(task.op.kind == "gather" for task in after.nodes)
    assert len(after) - gathers <= len(before)
    again = rewrite(done.graph)
    assert again.applied == ()
    assert again.graph.nodes == done.graph.nodes
    for node, now in done.became.items():
        if now in done.graph.nodes:
            assert values_of(expand(Graph((now,)))) == model(Graph((node,)))
