"""A graph holds what its outputs need, in an order in which it can run, and nothing that can never run."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dag import BadGraph, Graph, GraphError, Node, Op, Part

NOTHING = Op(kind="nothing")


def nodes_from(shape: list[list[int]]) -> list[Node]:
    """Node i has the inputs ``shape[i]``, all below i."""
    nodes: list[Node] = []
    for number, sources in enumerate(shape):
        nodes.append(Node(name=f"n{number}", op=NOTHING, inputs=tuple(nodes[at] for at in sources)))
    return nodes


shapes = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        *(st.lists(st.integers(0, at - 1), max_size=4) if at else st.just([]) for at in range(count))
    )
)


def needed_by(shape: tuple[list[int], ...], wanted: set[int]) -> set[int]:
    """What ``wanted`` need, found by adding inputs until nothing is new."""
    found = set(wanted)
    while True:
        more = found | {source for at in found for source in shape[at]}
        if more == found:
            return found
        found = more


@given(shapes, st.data())
def test_a_graph_holds_all_that_its_outputs_need_once_and_inputs_first(
    shape: tuple[list[int], ...], data: st.DataObject
) -> None:
    wanted = data.draw(st.lists(st.integers(0, len(shape) - 1), max_size=4))
    nodes = nodes_from(list(shape))
    graph = Graph(tuple(nodes[at] for at in wanted))
    names = [node.name for node in graph.nodes]
    assert sorted(names) == sorted(f"n{at}" for at in needed_by(shape, set(wanted)))
    place = {name: at for at, name in enumerate(names)}
    for node in graph.nodes:
        assert all(place[source.name] < place[node.name] for source in node.sources())
    assert len(graph) == len(names)
    assert all(graph[name].name == name for name in names)


@given(shapes)
def test_ancestors_and_consumers_are_those_of_the_plain_relation(shape: tuple[list[int], ...]) -> None:
    nodes = nodes_from(list(shape))
    graph = Graph(tuple(nodes))
    for at, node in enumerate(nodes):
        above = graph.ancestors(node)
        assert {nodes.index(each) for each in above} == needed_by(shape, {at}) - {at}
        seen: set[Node] = set()
        for each in above:
            assert set(each.sources()) <= seen
            seen.add(each)
        users = [nodes[user] for user in range(len(shape)) if at in shape[user]]
        assert set(graph.consumers[node]) == set(users)
        assert len(graph.consumers[node]) == len(users)


@given(shapes)
def test_a_graph_that_was_pickled_has_the_same_shape(shape: tuple[list[int], ...]) -> None:
    nodes = nodes_from(list(shape))
    last = Node(
        name="last", op=NOTHING, inputs=(Part(nodes[0], 2), nodes[-1]), work_s=2.0, size_bytes=7, keep=True
    )
    graph = Graph((nodes[0], last))
    copy = pickle.loads(pickle.dumps(graph))

    def rows(of: Graph) -> list[object]:
        return [
            (
                node.name, node.op.kind, node.work_s, node.size_bytes, node.keep,
                [(each.node.name, each.index) if isinstance(each, Part) else each.name for each in node.inputs],
            )
            for node in of.nodes
        ]  # fmt: skip

    assert rows(copy) == rows(graph)
    assert [node.name for node in copy.outputs] == ["n0", "last"]
    assert copy["last"] is not last


digraphs = st.integers(1, 7).flatmap(
    lambda count: st.fixed_dictionaries(
        {
            f"t{at}": st.lists(st.sampled_from([f"t{to}" for to in range(count)]), max_size=3)
            for at in range(count)
        }
    )
)


@given(digraphs)
def test_tasks_are_refused_exactly_when_they_run_in_a_circle_and_the_circle_is_named(
    wiring: dict[str, list[str]],
) -> None:
    left = dict(wiring)
    while ready := [name for name in left if not set(left[name]) & set(left)]:
        for name in ready:
            del left[name]
    tasks = {name: (min, *sources) for name, sources in wiring.items()}
    if not left:
        graph = Graph.from_tasks(tasks)
        assert {node.name for node in graph.nodes} == set(wiring)
        used = {source for sources in wiring.values() for source in sources}
        assert [node.name for node in graph.outputs] == [name for name in wiring if name not in used]
        return
    with pytest.raises(BadGraph, match="circle") as caught:
        Graph.from_tasks(tasks)
    circle = str(caught.value).split(": ")[1].split(" -> ")
    assert circle[0] == circle[-1]
    for source, user in itertools.pairwise(circle):
        assert source in wiring[user]


def test_nodes_that_run_in_a_circle_are_refused_with_their_names() -> None:
    first = Node(name="first", op=NOTHING)
    second = Node(name="second", op=NOTHING, inputs=(first,))
    third = Node(name="third", op=NOTHING, inputs=(second,))
    object.__setattr__(first, "inputs", (third,))
    with pytest.raises(BadGraph) as caught:
        Graph((Node(name="out", op=NOTHING, inputs=(third,)),))
    assert str(caught.value) == "the nodes run in a circle: third -> first -> second -> third"


def test_two_nodes_of_one_name_are_refused() -> None:
    left, right = Node(name="same", op=NOTHING), Node(name="same", op=NOTHING)
    with pytest.raises(BadGraph, match="two nodes have the name 'same'; give each its own"):
        Graph((left, right))
    assert Graph((left, left)).nodes == (left,)


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ({"a": (min, "b")}, "task 'a' needs 'b', which is no task of the graph"),
        ({"a": (min, 7)}, "task 'a' needs 7, which is no task of the graph"),
        ({"a": (min, ["a"])}, r"task 'a' needs \['a'\], which is no task"),
        ({"a": ()}, r"task 'a' needs a function and the names of its inputs, got \(\)"),
        ({"a": ("b",)}, "task 'a' needs a function"),
        ({"a": min}, "task 'a' needs a function"),
    ],
)
def test_tasks_that_can_never_run_are_refused(tasks: dict[str, tuple[object, ...]], said: str) -> None:
    with pytest.raises(BadGraph, match=said):
        Graph.from_tasks(tasks)


def test_an_output_that_is_no_task_is_refused() -> None:
    with pytest.raises(BadGraph, match="the output 'c' is no task of the graph"):
        Graph.from_tasks({"a": (min,)}, ["a", "c"])


def test_an_input_that_is_no_node_is_refused_with_its_owner() -> None:
    with pytest.raises(BadGraph, match=r"nodes, got \[3\] in the inputs of 'sum'"):
        Graph((Node(name="sum", op=NOTHING, inputs=([3],)),))  # type: ignore[arg-type]
    with pytest.raises(BadGraph, match=r"nodes, got 'sum'$"):
        Graph(("sum",))  # type: ignore[arg-type]
    with pytest.raises(BadGraph, match="a part of 'n' must have an index from 0 on, got -1"):
        Part(Node(name="n", op=NOTHING), -1)


def test_errors_of_a_graph_are_value_errors() -> None:
    assert issubclass(BadGraph, ValueError)
    assert issubclass(BadGraph, GraphError)
    assert str(pickle.loads(pickle.dumps(BadGraph("why")))) == "why"


def test_outputs_asked_for_leave_out_what_they_do_not_need() -> None:
    tasks = {"a": (min,), "b": (min, "a"), "c": (min, "a")}
    assert [node.name for node in Graph.from_tasks(tasks, "b").nodes] == ["a", "b"]
    assert [node.name for node in Graph.from_tasks(tasks, ["c", "a"]).outputs] == ["c", "a"]


def test_a_task_may_give_an_operator_in_place_of_a_function() -> None:
    op = Op(kind="matmul", function=min, releases_gil=True)
    assert Graph.from_tasks({"a": (op,)})["a"].op is op


def test_a_chain_is_ordered_depth_first_so_that_what_is_used_together_is_near() -> None:
    tasks = {f"read{i}": (min,) for i in range(3)} | {f"parse{i}": (min, f"read{i}") for i in range(3)}
    graph = Graph.from_tasks(tasks | {"sum": (min, "parse0", "parse1", "parse2")})
    names = [node.name for node in graph.nodes]
    assert names == ["read0", "parse0", "read1", "parse1", "read2", "parse2", "sum"]


def test_a_chain_of_fifty_thousand_nodes_is_no_recursion() -> None:
    node = Node(name="0", op=NOTHING)
    for number in range(1, 50_000):
        node = Node(name=str(number), op=NOTHING, inputs=(node,))
    graph = Graph((node,))
    assert len(graph) == 50_000
    assert graph.nodes[-1] is node
    assert graph.nodes[0].name == "0"
    assert len(graph.ancestors(node)) == 49_999


def test_a_deep_graph_is_pickled_measured_and_built_from_tasks() -> None:
    tasks = {str(at): (min, str(at - 1)) if at else (min,) for at in range(20_000)}
    graph = pickle.loads(pickle.dumps(Graph.from_tasks(tasks)))
    copy = graph.measured(work_s={"7": 1.5}, size_bytes={"8": 9})
    assert (copy["7"].work_s, copy["8"].size_bytes, copy["9"].work_s) == (1.5, 9, 0.0)
    assert [node.name for node in copy.nodes] == [str(at) for at in range(20_000)]
    assert graph["7"].work_s == 0.0
    backwards = {str(at): (min, str(at + 1)) for at in range(20_000)} | {"20000": (min, "0")}
    with pytest.raises(BadGraph, match="circle"):
        Graph.from_tasks(backwards)
