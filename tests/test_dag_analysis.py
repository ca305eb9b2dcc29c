"""Work, span, schedules and memory agree with closed forms and with their definitions."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dag
from dag import BadGraph, Graph, Group, Map, Node, Op, Part, Read, TaskRow, analyse, expand, simulate
from dag.analysis import Schedule, describe, edge_bytes, measured_by

NOTHING = Op(kind="nothing")


def make(
    name: str, *inputs: Node | Part, work_s: float = 1.0, size_bytes: int = 0, keep: bool = False
) -> Node:
    return Node(name=name, op=NOTHING, inputs=inputs, work_s=work_s, size_bytes=size_bytes, keep=keep)


def chain(count: int) -> Graph:
    node = make("0", size_bytes=10)
    for number in range(1, count):
        node = make(str(number), node, size_bytes=10)
    return Graph((node,))


def fan(width: int) -> Graph:
    source = make("source", size_bytes=10)
    leaves = [make(f"leaf[{at}]", source, size_bytes=10) for at in range(width)]
    return Graph((make("sink", *leaves, size_bytes=10),))


def binary_tree(depth: int) -> Graph:
    level = [make(f"0.{at}", size_bytes=10) for at in range(2**depth)]
    for height in range(1, depth + 1):
        level = [
            make(f"{height}.{at}", level[2 * at], level[2 * at + 1], size_bytes=10)
            for at in range(len(level) // 2)
        ]
    return Graph((level[0],))


def cilk_example() -> Graph:
    """Strands of 181 ms in all, whose longest chain takes 68 ms, as in the example of Intel's Cilk Plus manual."""
    first = make("first", work_s=0.008)
    split = make("split", first, work_s=0.010)
    branches = [make(f"branch[{at}]", split, work_s=work) for at, work in enumerate((0.030, 0.030, 0.028))]
    side = [make(f"side[{at}]", first, work_s=0.0275) for at in range(2)]
    last = make("last", *branches, *side, work_s=0.020)
    return Graph((last,))


@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_chain_has_parallelism_one_and_holds_two_values(count: int) -> None:
    found = analyse(chain(count), workers=4)
    assert (found.work_s, found.span_s, found.parallelism) == (count, count, 1.0)
    assert found.width == ((0.0, 1), (float(count), 0))
    assert [node.name for node in found.critical_path] == [str(at) for at in range(count)]
    assert found.schedule.end_s == count
    assert found.peak_memory_bytes == (10 if count == 1 else 20)
    assert found.burdened_span_s == pytest.approx(count * 1.0002)


@pytest.mark.parametrize(("width", "workers"), [(1, 1), (7, 3), (64, 8), (10, 100)])
def test_a_fan_takes_as_many_rounds_as_its_leaves_fill(width: int, workers: int) -> None:
    found = analyse(fan(width), workers=workers)
    assert found.work_s == width + 2
    assert found.span_s == 3
    assert found.width == (
        ((0.0, 1), (3.0, 0)) if width == 1 else ((0.0, 1), (1.0, width), (2.0, 1), (3.0, 0))
    )
    assert found.schedule.end_s == 2 + math.ceil(width / workers)
    assert found.peak_memory_bytes == 10 * (width + 1)


@pytest.mark.parametrize("depth", [1, 4, 8])
def test_a_binary_tree_has_the_parallelism_of_its_closed_form(depth: int) -> None:
    found = analyse(binary_tree(depth), workers=1)
    assert found.work_s == 2 ** (depth + 1) - 1
    assert found.span_s == depth + 1
    assert found.max_width == 2**depth
    assert [running for _, running in found.width] == [2**level for level in range(depth, -1, -1)] + [0]
    # Depth first, one value per level waits for its sibling: depth first needs depth + 2, breadth first 2 ** depth.
    assert found.peak_memory_bytes == 10 * (depth + 2)


def test_the_example_of_the_cilk_manual_has_its_parallelism() -> None:
    found = analyse(cilk_example(), workers=2)
    assert found.work_s == pytest.approx(0.181)
    assert found.span_s == pytest.approx(0.068)
    assert round(found.parallelism, 2) == 2.66
    assert [node.name for node in found.critical_path] == ["first", "split", "branch[0]", "last"]
    assert found.lower_s == pytest.approx(0.0905)
    assert found.upper_s == pytest.approx(0.1585)
    assert found.burdened_span_s == pytest.approx(0.068 + 4 * 0.0002)


def test_a_graph_without_times_counts_every_node_as_one() -> None:
    tasks = {"a": (min,), "b": (min, "a"), "c": (min, "a"), "d": (min, "b", "c")}
    found = analyse(Graph.from_tasks(tasks), workers=2)
    assert not found.timed
    assert (found.work_s, found.span_s, found.parallelism, found.max_width) == (4, 3, 4 / 3, 2)
    assert "burdened" not in describe(found)
    assert "work           4 tasks" in describe(found)


def test_an_empty_graph_has_no_work() -> None:
    found = analyse(Graph(()))
    assert (found.work_s, found.span_s, found.parallelism, found.peak_memory_bytes) == (0, 0, 0, 0)
    assert (found.critical_path, found.width, found.schedule.runs) == ((), (), ())


def test_the_words_name_every_figure() -> None:
    said = describe(analyse(cilk_example(), workers=2))
    for each in (
        "tasks          8",
        "work           181 ms",
        "span           68.0 ms",
        "2.66",
        "first > split > branch[0] > last",
    ):
        assert each in said


@pytest.mark.parametrize("wrong", [{"work_s": -1.0}, {"size_bytes": -1}, {"work_s": math.nan}])
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    graph = Graph((make("n", **wrong),))  # type: ignore[arg-type]
    with pytest.raises(BadGraph, match="n: time and size must be 0 or more"):
        analyse(graph)
    with pytest.raises(BadGraph, match="1 worker or more, got 0"):
        simulate(chain(2), workers=0)


def test_the_parts_of_a_value_share_its_bytes_and_a_value_used_twice_moves_once() -> None:
    split = make("split", size_bytes=100)
    merges = [make(f"merge[{at}]", Part(split, at)) for at in range(3)]
    both = make("both", Part(split, 0), Part(split, 1), merges[0])
    twice = make("twice", split, split)
    found = edge_bytes(Graph((*merges, both, twice)))
    assert [found[split, merge] for merge in merges] == [33, 33, 34]
    assert found[split, both] == 66
    assert found[split, twice] == 100
    assert found[merges[0], both] == 0


def test_values_kept_and_outputs_stay_to_the_end() -> None:
    kept = make("kept", size_bytes=5, keep=True)
    middle = make("middle", kept, size_bytes=3)
    out = make("out", middle, size_bytes=1)
    assert analyse(Graph((out,))).memory[-1] == (3.0, 6)
    free = make("kept", size_bytes=5)
    assert analyse(Graph((make("out", make("middle", free, size_bytes=3), size_bytes=1),))).memory[-1] == (
        3.0,
        1,
    )


def test_a_value_that_takes_no_time_still_takes_memory() -> None:
    big = make("big", make("start"), work_s=0, size_bytes=1000)
    assert analyse(Graph((make("small", big, work_s=0, size_bytes=1),))).peak_memory_bytes == 1001


graphs = st.integers(1, 10).flatmap(
    lambda count: st.tuples(
        *(
            st.tuples(
                st.lists(st.integers(0, at - 1), max_size=3) if at else st.just([]),
                st.integers(1, 9),
                st.integers(0, 99),
                st.booleans(),
            )
            for at in range(count)
        )
    )
)


def graph_from(rows: tuple[tuple[list[int], int, int, bool], ...]) -> Graph:
    nodes: list[Node] = []
    for number, (sources, work, size, keep) in enumerate(rows):
        inputs = [nodes[at] for at in sources]
        nodes.append(make(f"n{number}", *inputs, work_s=float(work), size_bytes=size, keep=keep))
    used = {at for sources, *_ in rows for at in sources}
    return Graph(tuple(node for at, node in enumerate(nodes) if at not in used))


def paths_to(node: Node) -> list[list[Node]]:
    return [[*path, node] for source in node.sources() for path in paths_to(source)] or [[node]]


@given(graphs)
def test_span_is_the_longest_of_all_paths_and_the_critical_path_is_one_of_them(
    rows: tuple[tuple[list[int], int, int, bool], ...],
) -> None:
    graph = graph_from(rows)
    found = analyse(graph, burden_s=0.5)
    paths = [path for node in graph.outputs for path in paths_to(node)]
    assert found.span_s == max(sum(node.work_s for node in path) for path in paths)
    assert list(found.critical_path) in paths
    assert sum(node.work_s for node in found.critical_path) == found.span_s
    assert found.burdened_span_s == max(sum(node.work_s + 0.5 for node in path) for path in paths)


def assert_valid(schedule: Schedule, graph: Graph) -> None:
    runs = {run.node: run for run in schedule.runs}
    assert len(runs) == len(schedule.runs) == len(graph)
    for node, run in runs.items():
        assert run.end_s - run.start_s == node.work_s
        assert 0 <= run.worker < schedule.workers
        assert all(runs[source].end_s <= run.start_s for source in node.sources())
    for one in schedule.runs:
        for other in schedule.runs:
            apart = one.end_s <= other.start_s or other.end_s <= one.start_s
            assert one is other or one.worker != other.worker or apart


@given(graphs, st.integers(1, 5))
def test_a_list_schedule_is_valid_greedy_and_within_the_bounds_of_graham_and_brent(
    rows: tuple[tuple[list[int], int, int, bool], ...], workers: int
) -> None:
    graph = graph_from(rows)
    found = analyse(graph, workers=workers)
    schedule = simulate(graph, workers=workers)
    assert schedule == found.schedule
    assert_valid(schedule, graph)
    work, span = found.work_s, found.span_s
    assert (
        max(work / workers, span) - 1e-9 <= schedule.end_s <= work / workers + span * (1 - 1 / workers) + 1e-9
    )
    assert (found.lower_s, found.upper_s) == (max(work / workers, span), work / workers + span)
    runs = {run.node: run for run in schedule.runs}
    for half_step in range(int(2 * schedule.end_s)):
        moment = half_step / 2 + 0.25
        busy = sum(run.start_s < moment < run.end_s for run in schedule.runs)
        waiting = [
            run
            for run in schedule.runs
            if run.start_s > moment and all(runs[source].end_s < moment for source in run.node.sources())
        ]
        assert busy == workers or not waiting


@given(graphs, st.integers(1, 4))
def test_memory_is_what_started_and_is_still_needed(
    rows: tuple[tuple[list[int], int, int, bool], ...], workers: int
) -> None:
    graph = graph_from(rows)
    found = analyse(graph, workers=workers)
    runs = {run.node: run for run in found.schedule.runs}
    for step in range(int(found.schedule.end_s)):
        moment = step + 0.5
        expected = sum(
            node.size_bytes
            for node in graph.nodes
            if runs[node].start_s < moment
            and (
                node.keep
                or node in graph.outputs
                or any(moment < runs[user].end_s for user in graph.nodes if node in user.sources())
            )
        )
        assert [live for at, live in ((0.0, 0), *found.memory) if at < moment][-1] == expected
        assert expected <= found.peak_memory_bytes


@given(graphs)
def test_width_counts_what_could_run_at_each_moment(
    rows: tuple[tuple[list[int], int, int, bool], ...],
) -> None:
    graph = graph_from(rows)
    found = analyse(graph, workers=len(rows))
    for step in range(int(found.span_s)):
        moment = step + 0.5
        running = sum(run.start_s < moment < run.end_s for run in found.schedule.runs)
        assert [width for at, width in found.width if at < moment][-1] == running
    assert found.width[-1][1] == 0
    area = sum((b[0] - a[0]) * a[1] for a, b in itertools.pairwise(found.width))
    assert area == found.work_s


def test_twenty_thousand_tasks_are_analysed() -> None:
    reads = [make(f"read[{at}]", size_bytes=1) for at in range(10_000)]
    maps = [make(f"map[{at}]", read, size_bytes=1) for at, read in enumerate(reads)]
    found = analyse(Graph(tuple(maps)), workers=100)
    assert found.schedule.end_s == 200
    assert found.max_width == 10_000


def test_a_graph_takes_its_times_and_sizes_from_the_rows_of_its_run() -> None:
    read = Node(name="read", op=Read(function=lambda part: bytes(1000 * part), parts=(1, 2)))
    double = Node(name="double", op=Map(function=lambda value: value + value), inputs=(read,))
    group = Group(
        partitions=1, splits=(lambda value, index: [value],), merge=lambda pieces, index: b"".join(pieces)
    )
    logical = Graph((Node(name="all", op=group, inputs=(double,)),))
    tasks = expand(logical)
    rows: list[TaskRow] = []
    assert dag.run(tasks, on_event=rows.append) == [bytes(6000)]
    took = {(row.stage, row.task): row.end - row.start for row in rows}
    of_tasks, of_plan = measured_by(tasks, rows), measured_by(logical, rows)
    assert {node.name: node.work_s for node in of_tasks.nodes} == {
        "all[0]" if stage == "all" else f"{stage}[{task}]": seconds for (stage, task), seconds in took.items()
    }
    assert 2000 <= of_tasks["double[0]"].size_bytes < 2100
    assert 6000 <= of_plan["double"].size_bytes < 6200
    assert 6000 <= of_plan["all"].size_bytes < 6100
    assert of_plan["all"].work_s == pytest.approx(sum(took[key] for key in took if key[0].startswith("all")))
    again = [*rows, *(row for row in rows if row.stage == "read")]
    assert measured_by(logical, again)["read"].work_s == of_plan["read"].work_s


def test_of_a_graph_that_is_measured_in_part_only_lower_bounds_are_said() -> None:
    said = describe(analyse(cilk_example(), workers=2), partly=True).splitlines()
    assert said == ["tasks          8", "work           at least 181 ms", "span           at least 68.0 ms"]
