"""From operators over partitions to tasks: names, inputs, origins, and what runs in a task."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from dag import run
from dag.errors import BadGraph, NodeFailed
from dag.expand import expand, expand_with_origins
from dag.graph import Graph, Node, Op, Part
from dag.logical import (
    Combine,
    Flatten,
    Fused,
    Gather,
    Group,
    Map,
    Read,
    Split,
    Step,
    Write,
    fold_in_tree,
    partitions_of,
)
from dag.rewrite import fuse


def values_of(graph: Graph) -> list[Any]:
    made: dict[Node, Any] = {}
    for task in graph.nodes:
        inputs = [
            made[each.node][each.index] if isinstance(each, Part) else made[each] for each in task.inputs
        ]
        assert task.op.function is not None
        made[task] = task.op.function(*inputs)
    return [made[task] for task in graph.outputs]


def node(name: str, op: Op, *inputs: Node | Part, **more: Any) -> Node:
    return Node(name=name, op=op, inputs=inputs, **more)


def letters(name: str, text: str, **more: Any) -> Node:
    """One letter per partition."""
    return node(name, Read(function=str.upper, parts=tuple(text)), **more)


def cut(value: Any, *, index: int) -> list[str]:
    return [f"{value}{index}a", f"{value}{index}b"]


def join(pieces: list[str], *, index: int) -> str:
    return f"{index}:{'+'.join(pieces)}"


GROUP = Group(partitions=2, splits=(cut,), merge=join)


def test_every_operator_gives_its_tasks_what_it_says() -> None:
    r, s = letters("r", "abc"), letters("s", "de")
    assert values_of(expand(Graph((r,)))) == ["A", "B", "C"]
    both = node("f", Flatten(), r, s)
    assert values_of(expand(Graph((both,)))) == ["A", "B", "C", "D", "E"]
    indexed = Map(
        function=lambda own, all_of_s, *, index: f"{own}{''.join(all_of_s)}{index}", indexed=True, whole=(1,)
    )
    assert values_of(expand(Graph((node("m", indexed, r, s),)))) == ["ADE0", "BDE1", "CDE2"]
    counting = Write(function=lambda value, *, index: (index, value), index_from=5)
    assert values_of(expand(Graph((node("w", counting, s),)))) == [(5, "D"), (6, "E")]
    assert values_of(expand(Graph((node("c", Combine(function=str.lower), s),)))) == ["d", "e"]
    assert values_of(expand(Graph((node("g", GROUP, r, s),)))) == [
        "0:A0a+B1a+C2a+D0a+E1a",
        "1:A0b+B1b+C2b+D0b+E1b",
    ]
    assert values_of(expand(Graph((node("t", Gather(function="".join, fan_in=2), both),)))) == [
        "AB",
        "CD",
        "E",
    ]
    assert values_of(expand(Graph((node("all", Map(function="".join, whole=(0,)), both),)))) == ["ABCDE"]


def test_each_input_of_a_group_may_have_its_own_split_and_first_index() -> None:
    def cut_right(value: Any, *, index: int) -> list[str]:
        return [f"<{value}{index}", f"{value}{index}>"]

    op = Group(partitions=2, splits=(cut, cut_right), merge=join, index_from=(0, 10))
    graph = expand(Graph((node("g", op, letters("r", "a"), letters("s", "bc")),)))
    assert values_of(graph) == ["0:A0a+<B10+<C11", "1:A0b+B10>+C11>"]


def test_tasks_are_named_by_operator_and_partition_and_know_their_origin() -> None:
    r = letters("r", "abc", work_s=3.0, size_bytes=300)
    g = node("g", GROUP, r, work_s=4.0, size_bytes=600, keep=True)
    tasks, origins = expand_with_origins(Graph((node("f", Flatten(), g, r),)))
    assert [task.name for task in tasks.nodes] == [
        "r[0]", "g.split[0]", "r[1]", "g.split[1]", "r[2]", "g.split[2]", "g[0]", "g[1]",
    ]  # fmt: skip
    assert [task.name for task in tasks.outputs] == ["g[0]", "g[1]", "r[0]", "r[1]", "r[2]"]
    assert list(origins) == list(tasks.nodes)
    assert {task.name: origin.name for task, origin in origins.items()} == {
        task.name: task.name[0] for task in tasks.nodes
    }
    assert [task.name for task in tasks.nodes if task.keep] == ["g[0]", "g[1]"]
    assert sum(task.work_s for task in tasks.nodes) == pytest.approx(7.0)
    assert {task.name: task.size_bytes for task in tasks.nodes if "2" in task.name or "g[" in task.name} == {
        "r[2]": 100, "g.split[2]": 200, "g[0]": 300, "g[1]": 300,
    }  # fmt: skip


def test_a_kept_flatten_keeps_what_it_names() -> None:
    r, s = letters("r", "ab"), letters("s", "c")
    tasks = expand(Graph((node("f", Flatten(), r, node("h", Flatten(), s), keep=True),)))
    assert [(task.name, task.keep) for task in tasks.nodes] == [
        ("r[0]", True),
        ("r[1]", True),
        ("s[0]", True),
    ]


def test_operators_that_occur_again_have_the_same_tasks_again() -> None:
    r = letters("r", "ab")
    g = node("g", GROUP, r, keep=True)
    first, origins = expand_with_origins(Graph((g,)))
    again = node("again", Combine(function=str.lower), g)
    second, more = expand_with_origins(Graph((again, r)), origins)
    assert all(second[task.name] is task for task in first.nodes)
    assert [task.name for task in second.nodes if task not in origins] == ["again[0]", "again[1]"]
    assert set(more) == set(second.nodes)
    apart = expand(Graph((g,)))
    assert not set(apart.nodes) & set(first.nodes)


def test_a_placed_input_goes_to_its_own_partition_alone() -> None:
    op = Group(partitions=2, splits=(cut,), merge=join, placed=(1,))
    tasks = expand(Graph((node("g", op, letters("r", "abc"), letters("s", "de")),)))
    assert values_of(tasks) == ["0:A0a+B1a+C2a+D0a", "1:A0b+B1b+C2b+E1b"]
    assert tasks["g[1]"].inputs[3] is tasks["s[1]"]


class Value:
    """Something that can be watched."""


def test_a_step_value_is_let_go_when_no_later_step_needs_it() -> None:
    seen: list[tuple[str, bool]] = []
    watched: list[weakref.ref[Value]] = []

    def make(part: Any) -> Value:
        value = Value()
        watched.append(weakref.ref(value))
        return value

    def look(step: str) -> Any:
        def see(value: Any) -> str:
            seen.append((step, watched[0]() is not None))
            return step

        return see

    chain = node("r", Read(function=make, parts=(0,)))
    for step in ("one", "two", "three"):
        chain = node(step, Map(function=look(step)), chain)
    done = fuse(Graph((chain,)))
    assert len(done.graph) == 1
    assert values_of(expand(done.graph)) == ["three"]
    assert seen == [("one", True), ("two", False), ("three", False)]


def test_rows_that_can_be_read_once_reach_every_step_that_needs_them() -> None:
    def rows(part: int) -> Iterator[int]:
        return iter(range(part))

    r = node("r", Read(function=rows, parts=(3, 4)))
    top = node("top", Map(function=max), r)
    total = node("total", Map(function=sum), r)
    both = fuse(Graph((node("both", Map(function=lambda a, b: (a, b)), top, total),)))
    assert len(expand(both.graph)) == 2
    assert values_of(expand(both.graph)) == [(2, 3), (3, 6)]
    alone = fuse(Graph((node("next", Map(function=lambda rows: (type(rows).__name__, sum(rows))), r),)))
    assert values_of(expand(alone.graph)) == [("range_iterator", 3), ("range_iterator", 6)]


def test_a_failure_in_a_fused_task_names_the_step() -> None:
    r = letters("r", "ab")
    graph = expand(
        fuse(Graph((node("number", Map(function=float), node("lower", Map(function=str.lower), r)),))).graph
    )
    with pytest.raises(ValueError, match="could not convert") as caught:
        values_of(graph)
    assert caught.value.__notes__ == ["while 'number' ran, a step of 'number'"]
    with pytest.raises(
        NodeFailed, match=r"^number\[0\] .* raised ValueError: could not convert .*, while 'number' ran"
    ):
        run(graph, workers=1)


def test_a_task_carries_its_own_part_of_the_input_alone() -> None:
    parts = tuple(f"{at}" * 10_000 for at in range(50))
    r = node("r", Read(function=str.upper, parts=parts))
    for graph in (Graph((node("m", Map(function=len), r),)), Graph((r,))):
        tasks = expand(fuse(graph).graph)
        assert max(len(cloudpickle.dumps(task.op.function)) for task in tasks.nodes) < 25_000


def test_a_split_that_makes_too_few_pieces_is_told_so() -> None:
    op = Group(partitions=3, splits=(cut,), merge=join)
    graph = Graph((node("g", op, letters("r", "a")),))
    for tasks in (expand(graph), expand(fuse(graph).graph)):
        with pytest.raises(ValueError, match="one piece per partition: 3, got 2"):
            values_of(tasks)


def test_no_parts_are_no_tasks_and_a_group_of_nothing_merges_nothing() -> None:
    r = node("r", Read(function=str.upper, parts=()))
    m = node("m", Map(function=str.lower), r)
    assert len(expand(Graph((m,)))) == 0
    assert values_of(expand(Graph((node("g", GROUP, m),)))) == ["0:", "1:"]
    assert values_of(expand(fuse(Graph((node("g", GROUP, m),))).graph)) == ["0:", "1:"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda r, s: node("m", Map(function=str), r, s), "m: the inputs of a map must have equal numbers"),
        (lambda r, s: node("m", Map(), r), "m: a map needs a function"),
        (lambda r, s: node("m", Op(kind="matmul"), r), "m: 'matmul' is no operator over partitions"),
        (lambda r, s: node("c", Combine(function=str), r, s), "c: a combine has one input, got 2"),
        (lambda r, s: node("g", Group(partitions=0, splits=(cut,), merge=join), r), "g: a group needs partitions >= 1"),
        (lambda r, s: node("g", Group(partitions=2, splits=(cut, cut), merge=join), r), "2 splits for 1 inputs"),
        (lambda r, s: node("g", Group(partitions=2, splits=(cut,), merge=join, placed=(0,)), r), "input 0 is said to be"),
        (lambda r, s: node("m", Map(function=sum, associative=True), r), "an associative map has one input, whole"),
        (lambda r, s: node("f", Flatten(), Part(r, 0)), "f: an output must be a value of its own"),
        (lambda r, s: node("m", Map(function=str), Part(node("f", Flatten(), Part(r, 0)), 0)), "f: its partitions are parts"),
        (lambda r, s: fuse(Graph((node("m", Map(), r),))).graph.outputs[0], "m: a map needs a function"),
    ],
)  # fmt: skip
def test_a_graph_that_cannot_run_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(BadGraph, match=words.replace("(", r"\(")):
        expand(Graph((make(letters("r", "abc"), letters("s", "de")),)))


def test_parts_of_a_fused_value_are_single_values_and_runs_of_pieces() -> None:
    steps = (
        Step(name="up", op=Map(function=str.upper), inputs=(-1,)),
        Step(name="cut", op=Split(function=cut, partitions=2), inputs=(0,)),
        Step(name="twice", op=Map(function=lambda text: text * 2), inputs=(0,)),
    )
    op = Fused(partitions=2, steps=steps, exposed=(0, 1, 2), takes=("own",))
    fused = node("f", op, letters("r", "ab"))
    assert values_of(expand(Graph((fused,)))) == [("A", "A0a", "A0b", "AA"), ("B", "B1a", "B1b", "BB")]
    picked = node(
        "m", Map(function=lambda one, rest: (one, rest), whole=(1,)), Part(fused, 0), Part(fused, 3)
    )
    assert values_of(expand(Graph((picked,)))) == [("A", ["AA", "BB"]), ("B", ["AA", "BB"])]


def test_fold_in_tree_keeps_the_order_and_passes_single_values_on() -> None:
    for count in range(1, 40):
        for fan_in in (2, 3, 5):
            text = [chr(0x4E00 + at) for at in range(count)]
            assert fold_in_tree("".join, text, fan_in) == "".join(text)
    sizes: list[int] = []
    fold_in_tree(lambda values: sizes.append(len(values)), [None] * 10, 3)
    assert sizes == [3, 3, 3, 3, 2]


def test_a_long_chain_is_counted_and_expanded_without_recursion() -> None:
    chain = letters("r", "ab")
    for at in range(20_000):
        chain = node(f"m{at}", Map(function=str), chain)
    assert partitions_of(chain) == 2
    assert len(expand(Graph((chain,)))) == 40_002


def test_what_is_kept_only_later_is_made_anew_with_all_that_takes_it() -> None:
    read = Node(name="read", op=Read(function=str, parts=(1, 2)))
    twice = Node(name="twice", op=Map(function=lambda text: text * 2), inputs=(read,), keep=True)
    first, origins = expand_with_origins(Graph((twice,)))
    flat = Node(name="flat", op=Flatten(), inputs=(read,), keep=True)
    later, origins = expand_with_origins(Graph((flat, twice)), origins)
    assert run(later) == ["1", "2", "11", "22"]
    assert all(task.keep for task in later.nodes)
    again, _ = expand_with_origins(Graph((read, twice)), origins)
    assert again.nodes == later.nodes  # kept already: the same tasks, though only one is to be kept now
    assert set(first.nodes).isdisjoint(later.nodes)
