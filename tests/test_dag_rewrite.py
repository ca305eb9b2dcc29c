"""Rewrites: every graph gives the same values before and after, and says what was done and what was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from dag.expand import expand, expand_with_origins
from dag.graph import Graph, Node, Part
from dag.logical import Combine, Flatten, Group, Map, Read, Write, count_partitions
from dag.rewrite import (
    Rewritten,
    fuse,
    fused_operations,
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


def node(name: str, op: Any, *inputs: Node, keep: bool = False, size_bytes: int = 0) -> Node:
    return Node(name=name, op=op, inputs=inputs, keep=keep, size_bytes=size_bytes)


def reading(name: str, parts: int = 3, **more: Any) -> Node:
    rows = tuple([(at * 7 + row, row - at) for row in range(4)] for at in range(parts))
    return node(name, Read(function=read, parts=rows, together=chain), **more)


def do(name: str, *inputs: Node, function: Any = double, **more: Any) -> Node:
    return node(name, Map(function=function if len(inputs) == 1 else beside, **more), *inputs)


def flatten(name: str, *inputs: Node) -> Node:
    return node(name, Flatten(), *inputs)


def group(name: str, *inputs: Node, partitions: int = 4, partitioning: Any = None) -> Node:
    return node(name, group_op(partitions, partitioning), *inputs)


def combine(name: str, given: Node, exact: bool = True) -> Node:
    return node(name, Combine(function=sums, exact=exact), given)


def write(name: str, given: Node) -> Node:
    return node(name, Write(function=numbered), given)


# Four pipelines in the shape of those that FlumeJava's authors report (PLDI 2010, table 1 and figure 5).


def ads_logs() -> Graph:
    """Four kinds of logs, cleaned, brought together and counted."""
    clean = [do(f"clean{at}", do(f"parse{at}", reading(f"log{at}"))) for at in range(4)]
    counted = combine("count", group("by_ad", do("extract", flatten("all", *clean), function=rekey)))
    return Graph((write("out", do("format", do("rate", counted))),))


def index_stats() -> Graph:
    """Two statistics of one index, whose results are grouped once more."""
    parsed = do("valid", do("parse", reading("index")))
    terms = do(
        "name_terms", do("scale", combine("terms", group("by_term", do("tokens", parsed, function=rekey))))
    )
    sizes = do("name_sizes", combine("sizes", group("by_size", do("lengths", parsed))))
    both = do("tag", flatten("both", terms, sizes), function=rekey)
    return Graph((write("out", do("format", combine("totals", group("by_name", both, partitions=2)))),))


def build_logs() -> Graph:
    """Two statistics of one log, each an output of its own."""
    parsed = do("parse", reading("log"))
    errors = combine("errors", group("by_error", do("failures", parsed, function=rekey)))
    times = combine("times", group("by_target", do("durations", parsed)))
    return Graph((write("errors.out", errors), write("times.out", times)))


def site_data() -> Graph:
    """The best score and the best address of each site, joined with what is known of its documents."""
    pages = reading("pages")
    scores = flatten("scores", do("page_scores", pages, function=rekey), do("link_scores", reading("links")))
    best = do("site_scores", combine("best_score", group("by_host", scores)))
    chosen = do("best_url", group("by_site", do("addresses", do("page_info", pages))))
    tagged = [
        do("tag_scores", best),
        do("tag_urls", chosen),
        do("traits", reading("documents"), function=rekey),
    ]
    return Graph((write("out", do("site_data", group("join", flatten("tagged", *tagged)))),))


@pytest.mark.parametrize(
    ("plan", "operations", "left"),
    [(ads_logs, 14, 1), (index_stats, 16, 2), (build_logs, 7, 1), (site_data, 16, 2)],
)
def test_flumejava_plans_shrink_to_the_published_numbers_of_operations(
    plan: Callable[[], Graph], operations: int, left: int
) -> None:
    graph = plan()
    assert fused_operations(graph) == operations
    done = optimise(graph)
    assert fused_operations(done.graph) == left
    assert values_of(expand(done.graph)) == model(graph)
    assert len(expand(done.graph)) < len(expand(graph)) / 2


def test_a_word_count_is_one_task_per_split_and_one_per_partition() -> None:
    counted = combine("count", group("by_word", do("words", reading("text", 5)), partitions=2))
    done = optimise(Graph((write("out", counted),)), workers=2)
    assert [(each.name, each.op.kind) for each in done.graph.nodes] == [
        ("words", "read+map+combine+split"),
        ("out", "merge+combine+write"),
    ]
    assert len(expand(done.graph)) == 5 + 2
    assert done.refused == ()
    assert done.applied == (
        "count folds each partition in front of by_word too, so that less is moved",
        "text, words and by_word.split run in one task per partition: 5 tasks instead of 15",
        "by_word, count and out run in one task per partition: 2 tasks instead of 6",
    )


def test_equal_operators_over_equal_inputs_are_computed_once() -> None:
    parts = ([(1, 1)], [(2, 2)])
    reads = [node(name, Read(function=read, parts=parts, key="file")) for name in ("r1", "r2")]
    maps = [node(f"m{at}", Map(function=double, key=("double", at < 2)), reads[at % 2]) for at in range(3)]
    done = share(Graph((group("g", *maps),)))
    assert done.applied == (
        "r2 is the same as r1: it is computed once",
        "m1 is the same as m0: it is computed once",
    )
    assert [each.name for each in done.graph.nodes] == ["r1", "m0", "m2", "g"]
    assert done.became[maps[1]] is done.became[maps[0]]


def test_what_is_kept_once_is_kept_when_shared() -> None:
    source = reading("r")
    once, again = node("once", DOUBLE, source), node("again", DOUBLE, source, keep=True)
    done = share(Graph((group("g", once, again),)))
    assert [(each.name, each.keep) for each in done.graph.nodes] == [
        ("r", False),
        ("once", True),
        ("g", False),
    ]


def test_operators_move_in_front_of_a_flatten_and_count_on() -> None:
    flat = flatten("f", reading("a", 2), flatten("inner", reading("b", 1), reading("c", 3)))
    numbered_rows = node("m", REVERSE, flat)
    graph = Graph((write("out", numbered_rows), group("g", flat)))
    done = sink_flattens(graph)
    assert done.applied == (
        "f takes the inputs of inner one by one",
        "m runs in front of f, on each of 3 inputs",
        "out runs in front of m, on each of 3 inputs",
        "g takes the inputs of f one by one",
    )
    assert [each.name for each in done.graph["out"].inputs if isinstance(each, Node)] == [
        "out.0",
        "out.1",
        "out.2",
    ]
    assert values_of(expand(done.graph)) == model(graph)


def test_a_map_stays_behind_a_flatten_that_is_kept_or_cut_otherwise() -> None:
    a, b, c = reading("a", 2), reading("b", 1), reading("c", 3)
    apart = sink_flattens(Graph((do("m", flatten("f", a, b), c),)))
    assert apart.refused == ("m stays behind f: not all of its inputs are flattened in the same way",)
    swapped = sink_flattens(Graph((do("m", flatten("f", a, b), flatten("h", b, a)),)))
    assert swapped.refused == apart.refused
    kept = node("f", Flatten(), a, b, keep=True)
    graph = Graph((do("m", kept), group("g", kept), do("n", kept, flatten("h", a, b))))
    done = sink_flattens(graph)
    assert done.refused == tuple(f"{name} stays behind f: that is kept" for name in "mgn")
    assert done.graph.nodes == graph.nodes


def test_a_group_with_an_input_in_place_leaves_its_flattens_alone() -> None:
    graph = Graph(
        (node("g", replace(group_op(3), placed=(1,)), flatten("f", reading("a")), reading("b", 3)),)
    )
    assert sink_flattens(graph).graph.nodes == graph.nodes


def test_partial_sums_are_made_in_front_of_the_split_only_where_that_changes_no_byte() -> None:
    def refusal(graph: Graph) -> str:
        done = lift_combiners(graph)
        assert done.applied == ()
        return done.refused[0]

    grouped = group("g", reading("r"))
    assert "not exact" in refusal(Graph((combine("c", grouped, exact=False),)))
    assert "others need" in refusal(Graph((combine("c", grouped), do("m", grouped))))
    two = Group(partitions=2, splits=(split_by(2), split_by(2)), merge=merge)
    assert "different kinds" in refusal(Graph((combine("c", node("j", two, reading("a"), reading("b"))),)))
    placed = do("m", group("h", reading("r"), partitioning="p"), keeps_partitioning=True)
    in_place = skip_shuffles(Graph((combine("c", group("g", placed, partitioning="p")),))).graph
    assert "nothing moves" in refusal(in_place)


def test_a_lifted_combiner_leaves_one_row_per_key_and_split_to_move() -> None:
    rows = tuple([(row % 2, 1) for row in range(50)] for _ in range(3))
    graph = Graph((combine("c", group("g", node("r", Read(function=read, parts=rows)), partitions=2)),))

    def moved_rows(graph: Graph) -> int:
        tasks = expand(graph)
        splits = Graph(tuple(task for task in tasks.nodes if task.op.kind == "split"))
        return sum(len(piece) for pieces in values_of(splits) for piece in pieces)

    assert (moved_rows(graph), moved_rows(lift_combiners(graph).graph)) == (150, 6)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 27, 30])
@pytest.mark.parametrize("fan_in", [2, 3, 8])
def test_a_tree_of_tasks_folds_floats_as_the_plan_says_bit_for_bit(count: int, fan_in: int) -> None:
    parts = tuple(0.1 * 3**at for at in range(count))
    source = node("r", Read(function=lambda part: part, parts=parts))
    graph = Graph((node("sum", Map(function=sum, whole=(0,), associative=True, fan_in=fan_in), source),))
    done = reduce_in_trees(graph)
    before, after = expand(graph), expand(done.graph)
    assert values_of(before) == values_of(after)
    assert max(len(task.inputs) for task in after.nodes) <= fan_in
    assert bool(done.applied) == (count > fan_in)
    more = 0
    while count > fan_in:
        count = -(-count // fan_in)
        more += count
    assert len(after) - len(before) == more


def test_a_fold_that_is_not_associative_stays_one_task() -> None:
    graph = Graph((node("last", LAST, reading("r", 20)),))
    done = reduce_in_trees(graph)
    assert done.graph.nodes == graph.nodes
    assert done.refused == ("last takes 20 partitions at once: its function is not said to be associative",)


def placed_join(partitions: int = 4, partitioning: Any = "mod", keeps: bool = True) -> Graph:
    links = group("links", reading("edges", 6), partitions=partitions, partitioning=partitioning)
    parsed = do("parsed", links, keeps_partitioning=keeps)
    return Graph((group("join", parsed, reading("ranks", 3), partitioning="mod"),))


def test_a_join_moves_only_the_side_that_is_not_in_place() -> None:
    graph = placed_join()
    done = skip_shuffles(graph)
    assert done.applied == (
        "join finds the rows of parsed in place (links put them there): 4 splits and 16 pieces less",
    )
    before, after = expand(graph), expand(done.graph)
    assert values_of(after) == values_of(before) == model(graph)
    splits = [
        [task.name for task in each.nodes if task.name.startswith("join.split")] for each in (before, after)
    ]
    assert [len(each) for each in splits] == [7, 3]
    assert after["join[2]"].inputs[0] is after["parsed[2]"]


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (placed_join(partitions=3), "join shuffles parsed: it has 3 partitions, not 4"),
        (
            placed_join(partitioning="other"),
            "join shuffles parsed: links placed its rows by another partitioning",
        ),
        (placed_join(keeps=False), "join shuffles parsed: parsed may have moved the rows that links placed"),
    ],
    ids=["number of partitions", "partitioning", "a map between"],
)
def test_rows_that_may_be_elsewhere_are_shuffled(graph: Graph, reason: str) -> None:
    done = skip_shuffles(graph)
    assert (done.applied, done.refused) == ((), (reason,))
    assert done.graph.nodes == graph.nodes


def test_a_placed_partition_can_be_made_a_piece_without_its_split() -> None:
    tagged = Group(
        partitions=2, splits=(split_by(2),), merge=merge, partitioning="mod",
        as_piece=lambda value, *, index: [(key, number + 100) for key, number in value],
    )  # fmt: skip
    placed = group("g", reading("r"), partitions=2, partitioning="mod")
    done = skip_shuffles(Graph((node("again", tagged, placed),)))
    wanted = [[(key, number + 100) for key, number in value] for value in model(Graph((placed,)))]
    assert values_of(expand(done.graph)) == wanted
    assert values_of(expand(fuse(done.graph).graph)) == wanted


def test_tiny_parts_are_read_together_down_to_a_few_per_worker() -> None:
    source = reading("r", 100, size_bytes=1000)
    graph = Graph((write("out", group("g", node("m", DOUBLE, source))),))
    done = size_partitions(graph, workers=2)
    assert done.applied == ("r reads 100 parts in 8 tasks, for 2 workers",)
    assert values_of(expand(done.graph)) == model(graph)
    assert len(expand(done.graph)) == len(expand(graph)) - 3 * 92


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: do("m", r, rowwise=False), "m works on partitions, not on rows"),
        (lambda r: node("m", WITH_ALL, r, r), "m works on partitions, not on rows"),
        (lambda r: node("m", REVERSE, r), "m works on partitions, not on rows"),
        (lambda r: node("g", group_op(2, exact=False), r), "g is not exact"),
        (lambda r: flatten("f", r), "f flattens"),
        (lambda r: node("m", DOUBLE, r, keep=True), "m is kept for graphs that may need its partitions"),
    ],
)
def test_partitions_stay_where_someone_would_see_that_they_were_joined(
    change: Callable[[Node], Node], reason: str
) -> None:
    graph = Graph((group("end", change(reading("r", 100, size_bytes=1000))),))
    done = size_partitions(graph, workers=2)
    assert (done.applied, done.refused) == ((), (f"r keeps its 100 partitions: {reason}",))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (reading("r", 100), "their size is not known"),
        (reading("r", 100, size_bytes=1 << 30), "they have 10737418 bytes on average, 4194304 are worth a task"),
        (node("r", Read(function=read, parts=((),) * 100), size_bytes=1), "nothing says how to read several parts together"),
    ],
)  # fmt: skip
def test_parts_that_are_large_or_not_known_to_be_small_stay_apart(source: Node, reason: str) -> None:
    done = size_partitions(Graph((group("g", source),)), workers=2)
    assert (done.applied, done.refused) == ((), (f"r keeps its 100 partitions: {reason}",))


def test_fusion_says_why_a_value_stays_between_tasks() -> None:
    source = reading("r")
    points = do("points", source)
    kept = node("kept", DOUBLE, points, keep=True)
    weights = node("weights", TOTAL, kept)
    step = node("step", WITH_ALL, kept, weights)
    done = fuse(Graph((step, do("report", weights))))
    assert done.applied == ("r, points and kept run in one task per partition: 3 tasks instead of 9",)
    assert done.refused == (
        "kept is not fused with weights and step: weights needs all of its partitions",
        "weights is not fused with step and report: step needs all of its partitions",
    )
    assert [each.keep for each in done.graph.nodes if each.name == "kept"] == [True]


def test_what_needs_a_value_of_all_partitions_first_is_not_fused_into_a_circle() -> None:
    source = reading("r")
    left = do("left", source)
    graph = Graph((node("right", WITH_ALL, source, node("total", TOTAL, left)),))
    done = fuse(graph)
    assert (
        done.refused[0]
        == "r is not fused with left and right: others between them need all of its partitions first"
    )
    assert values_of(expand(done.graph)) == model(graph)


def test_with_fewer_partitions_than_workers_what_can_run_side_by_side_does() -> None:
    source = reading("r", 2)
    graph = Graph((group("g", do("left", source)), group("h", do("right", source))))
    assert len(expand(fuse(graph, workers=2).graph)) == 2 + 8
    apart = fuse(graph, workers=3)
    assert "they can run side by side; joined, they would use 2 of 3 workers" in apart.refused[0]
    assert len(expand(apart.graph)) == 2 + 4 + 8


def test_tasks_that_read_the_same_kept_partitions_become_one() -> None:
    kept = node("kept", DOUBLE, reading("r"), keep=True)
    graph = Graph((group("g", do("left", kept)), group("h", do("right", kept, function=rekey))))
    done = fuse(graph)
    assert done.applied[1] == (
        "left, g.split, right and h.split run in one task per partition, making 2 values: 3 tasks instead of 12"
    )
    assert len(expand(done.graph)) == 3 + 3 + 4 + 4
    assert values_of(expand(done.graph)) == model(graph)


def test_outputs_have_tasks_of_their_own_where_joining_them_would_save_none() -> None:
    kept = node("kept", DOUBLE, reading("r"), keep=True)
    graph = Graph((do("left", kept), do("right", kept)))
    done = fuse(graph)
    assert done.refused[1] == (
        "right reads kept in other tasks than those before: it would save no task, as each output has one of its own"
    )
    assert len(expand(done.graph)) == 9


def test_an_output_inside_a_larger_task_is_handed_out_under_its_name() -> None:
    parsed = do("parsed", reading("r"))
    graph = Graph((do("seen", parsed), group("g", do("counted", parsed))))
    done = optimise(graph)
    tasks = expand(done.graph)
    assert [task.name for task in tasks.outputs[:3]] == ["seen[0]", "seen[1]", "seen[2]"]
    assert len(tasks) == 3 + 3 + 4
    assert values_of(tasks) == model(graph)
    assert fused_operations(done.graph) == 1


def test_a_new_node_gives_way_to_an_old_one_of_its_name() -> None:
    source = reading("r")
    grouped = node("g", group_op(2), source)
    kept = node("kept", DOUBLE, grouped, keep=True)
    first = optimise(Graph((kept,)))
    assert [each.name for each in first.graph.nodes] == ["r", "kept"]
    second = optimise(Graph((kept, node("other", REKEY, grouped))), earlier=first.became)
    assert [each.name for each in second.graph.nodes] == ["r", "kept", "r~2", "other"]
    assert values_of(expand(second.graph)) == model(Graph((kept, node("other", REKEY, grouped))))


def test_a_loop_reads_and_parses_once_for_all_rounds() -> None:
    calls: Counter[str] = Counter()

    def counted(part: Any) -> Pairs:
        calls["read"] += 1
        return list(part)

    source = node("r", Read(function=counted, parts=([(0, 1)], [(1, 2)], [(2, 3)])))
    points = node("points", DOUBLE, source, keep=True)
    links = node("links", group_op(3, "mod"), points, keep=True)
    result: Node = reading("start", 3)
    became: Any = {}
    origins: Any = {}
    held: dict[Node, Any] = {}
    for number in range(4):
        joined = node(f"join{number}", group_op(3, "mod"), links, result)
        result = node(f"result{number}", SUMS, joined, keep=True)
        more = [node("other", REKEY, source)] if number == 2 else []  # needs what was fused away
        graph = Graph((result, *more))
        done = optimise(graph, earlier=became)
        became = done.became
        tasks, origins = expand_with_origins(done.graph, origins)
        values, held = run_again(tasks, held)
        assert values == model(graph)
        assert calls["read"] == (3 if number < 2 else 6)
        if number:
            assert "links is in memory: it is not read or computed again" in done.applied
            assert any(f"join{number} finds the rows of links in place" in each for each in done.applied)


def run_again(tasks: Graph, held: dict[Node, Any]) -> tuple[list[Any], dict[Node, Any]]:
    """Return the outputs, computing what is not held, and what is kept."""
    made = dict(held)

    def value(task: Node) -> Any:
        if task not in made:
            given = [value(e.node)[e.index] if isinstance(e, Part) else value(e) for e in task.inputs]
            assert task.op.function is not None
            made[task] = task.op.function(*given)
        return made[task]

    outputs = [value(task) for task in tasks.outputs]
    return outputs, {task: made[task] for task in tasks.nodes if task.keep and task in made}


@st.composite
def rounds(draw: Any) -> list[Graph]:
    """Draw graphs that a loop may compute one after the other: outputs from one pool of nodes."""
    pool = draw(graphs()).nodes
    some = st.lists(st.sampled_from(pool), min_size=1, max_size=3)
    return [Graph(tuple(draw(some))) for _ in range(draw(st.integers(2, 4)))]


@given(rounds())
def test_graphs_of_a_loop_have_the_values_that_each_has_alone(loop: list[Graph]) -> None:
    became: Any = {}
    origins: Any = {}
    held: dict[Node, Any] = {}
    for graph in loop:
        note("\n".join(map(shown, graph.nodes)))
        note(f"outputs: {[each.name for each in graph.outputs]}")
        done = optimise(graph, earlier=became)
        tasks, now = expand_with_origins(done.graph, origins)
        values, held = run_again(tasks, held)
        assert values == model(graph)
        for each in graph.nodes:
            if each in became and each.keep and became[each] in done.graph.nodes:
                assert done.became[each] is became[each]
        became, origins = done.became, now
