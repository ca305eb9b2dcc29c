"""Drawings tell the truth about their graph, stay inside their boxes and point to nothing outside."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest
from browser import needs_browser, texts_of_boxes
from hypothesis import given, settings
from hypothesis import strategies as st

from dag import BadGraph, Graph, Group, Map, Node, Op, Part, Read, Write, draw_svg, draw_text, expand
from dag.layout import _nearest, arrange

NOTHING = Op(kind="nothing")
SVG = "{http://www.w3.org/2000/svg}"


def nothing(*values: object, **more: object) -> None:
    """What the nodes of these graphs do."""


def word_count(parts: int = 4, partitions: int = 3) -> Graph:
    """Plan of a word count with times and sizes."""
    text = Node(
        name="text", op=Read(function=nothing, parts=tuple(range(parts))), size_bytes=64_000_000, work_s=0.4
    )
    words = Node(name="words", op=Map(function=nothing), inputs=(text,), size_bytes=48_000_000, work_s=1.2)
    group = Group(partitions=partitions, splits=(nothing,), merge=nothing)  # type: ignore[arg-type]
    count = Node(name="count", op=group, inputs=(words,), size_bytes=24_000_000, work_s=0.5, keep=True)
    return Graph(
        (Node(name="out", op=Write(function=nothing), inputs=(count,), size_bytes=1_000_000, work_s=0.01),)
    )


def diamond() -> Graph:
    return Graph.from_tasks(
        {"text": (min,), "left": (min, "text"), "right": (min, "text"), "both": (max, "left", "right")}
    )


shapes = st.integers(1, 14).flatmap(
    lambda count: st.tuples(
        *(
            st.lists(st.integers(0, at - 1), max_size=3, unique=True) if at else st.just([])
            for at in range(count)
        )
    )
)


def graph_from(shape: tuple[list[int], ...]) -> Graph:
    nodes: list[Node] = []
    for number, sources in enumerate(shape):
        inputs = tuple(nodes[at] for at in sources)
        nodes.append(
            Node(name=f"n{number}", op=NOTHING, inputs=inputs, size_bytes=1000 * number, work_s=number / 10)
        )
    return Graph(tuple(nodes))


def edges_of(graph: Graph) -> set[tuple[str, str]]:
    return {(source.name, node.name) for node in graph.nodes for source in node.sources()}


def test_a_diamond_is_drawn_so_that_its_shape_is_seen() -> None:
    assert draw_text(diamond()).splitlines() == [
        "       name   kind  from",
        "●      text   min",
        "├─●    left   min   text",
        "● │    right  min   text",
        "◆─╯    both   max   left, right",
    ]


def test_a_plan_is_drawn_with_partitions_bytes_and_times() -> None:
    assert draw_text(word_count(), on_disk=["count"]).splitlines() == [
        "     name   kind                    parts    bytes     time  from",
        "●    text   read                        4  64.0 MB   400 ms",
        "●    words  map                         4  48.0 MB   1.20 s  text",
        "●    count  group (kept) (on disk)      3  24.0 MB   500 ms  words",
        "◆    out    write                       3  1.00 MB  10.0 ms  count",
    ]


def read_rails(drawing: str) -> set[tuple[str, str]]:
    """Follow the rails with a finger: which dots does each dot hang on?"""
    rows = [(re.match(r"[^a-z]*", line)[0], re.search(r"n\d+", line)[0]) for line in drawing.splitlines()[1:]]  # type: ignore[index]
    found: set[tuple[str, str]] = set()
    lanes: dict[int, str] = {}  # column -> whose rail comes down there
    for rail, name in rows:
        own = next(at for at, mark in enumerate(rail) if mark in "●◆")
        if own in lanes:
            found.add((lanes[own], name))
        for step in (-1, 1):
            at = own + step
            while 0 <= at < len(rail) and rail[at] in "─│├┼┤╰┴╯":
                if rail[at] in "├┼┤╰┴╯":
                    found.add((lanes[at], name))
                at += step
        lanes = {at: lanes[at] for at, mark in enumerate(rail) if mark in "│├┼┤"}
        lanes[own] = name
    return found


@given(shapes)
@settings(max_examples=settings.default.max_examples * 4)
def test_who_follows_the_rails_of_a_drawing_finds_the_edges_of_the_graph(
    shape: tuple[list[int], ...],
) -> None:
    graph = graph_from(shape)
    # A sink's dot has no rail; a dot right under it must not seem to hang on it, so this finds no edge too many.
    assert read_rails(draw_text(graph)) == edges_of(graph)


def test_names_of_any_script_keep_the_columns_of_a_drawing_straight() -> None:
    lines = draw_text(Graph.from_tasks({"数える": (min,), "b\n": (min, "数える")})).splitlines()
    assert lines[1] == "●    数える  min"
    assert lines[2] == "◆    b\ufffd      min   数える"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def frames(svg: str) -> dict[str, tuple[float, float, float, float]]:
    """Boxes by full name: left, top, right, bottom."""
    found = {}
    for group in parsed(svg).iter(f"{SVG}g"):
        if "box" in group.get("class", "").split():
            frame = group.find(f"{SVG}rect[@class='frame']")
            title = group.find(f"{SVG}title")
            assert frame is not None
            assert title is not None
            x, y, width, height = (float(frame.get(key, "nan")) for key in ("x", "y", "width", "height"))
            found[(title.text or "").split("\n")[0]] = (x, y, x + width, y + height)
    return found


def arrows(
    svg: str, look: str = ""
) -> dict[tuple[str, str], tuple[tuple[float, float], tuple[float, float]]]:
    """Edges by names of their ends: where they start and where their tip is."""
    found = {}
    for group in parsed(svg).iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        classes = group.get("class", "").split()
        if "edge" in classes and title is not None and (not look or look in classes):
            source, target = (title.text or "").split(",")[0].split(" to ")
            path, tip = group.find(f"{SVG}path"), group.find(f"{SVG}polygon")
            assert path is not None
            assert tip is not None
            x, y = map(float, re.match(r"M([\d.]+) ([\d.]+)", path.get("d", ""))[0][1:].split())  # type: ignore[index]
            tip_x, tip_y = map(float, tip.get("points", "").split()[0].split(","))
            found[source, target] = ((x, y), (tip_x, tip_y))
    return found


@given(shapes)
def test_boxes_stand_apart_and_every_edge_runs_down_from_its_source_to_its_target(
    shape: tuple[list[int], ...],
) -> None:
    graph = graph_from(shape)
    svg = draw_svg(graph)
    boxes, edges = frames(svg), arrows(svg)
    assert set(boxes) == {node.name for node in graph.nodes}
    assert set(edges) == edges_of(graph)
    for one, (left, top, right, bottom) in boxes.items():
        for other, (left2, top2, right2, bottom2) in boxes.items():
            assert one == other or right < left2 or right2 < left or bottom < top2 or bottom2 < top
    for (source, target), ((x, y), (tip_x, tip_y)) in edges.items():
        assert y == pytest.approx(boxes[source][3], abs=0.2)
        assert boxes[source][0] < x < boxes[source][2]
        assert tip_y == pytest.approx(boxes[target][1], abs=0.2)
        assert boxes[target][0] < tip_x < boxes[target][2]
        assert y < tip_y
    width, height = float(parsed(svg).get("width", "0")), float(parsed(svg).get("height", "0"))
    assert max(box[2] for box in boxes.values()) < width
    assert max(box[3] for box in boxes.values()) < height


@given(shapes)
def test_labels_cover_no_box_and_no_other_label(shape: tuple[list[int], ...]) -> None:
    svg = draw_svg(graph_from(shape))
    taken = list(frames(svg).values())
    for group in parsed(svg).iter(f"{SVG}g"):
        if group.get("class") == "label":
            rect = group.find(f"{SVG}rect")
            assert rect is not None
            x, y, width, height = (float(rect.get(key, "nan")) for key in ("x", "y", "width", "height"))
            for left, top, right, bottom in taken:
                assert (
                    x + width <= left + 0.2
                    or right <= x + 0.2
                    or y + height <= top + 0.2
                    or bottom <= y + 0.2
                )
            taken.append((x, y, x + width, y + height))


def test_a_value_on_disk_is_dashed_and_the_critical_path_is_bold() -> None:
    svg = draw_svg(word_count(), on_disk=["words"])
    assert set(arrows(svg, "disk")) == {("words", "count")}
    assert set(arrows(svg, "hot")) == {("text", "words"), ("words", "count"), ("count", "out")}
    assert ".disk path{stroke:var(--disk);stroke-dasharray" in svg
    for words in ("in memory", "through files", "critical path", "4 parts", "64.0 MB", "kept"):
        assert words in svg
    plain = draw_svg(diamond())
    assert "critical path" not in plain
    assert "through files" not in plain


def test_bytes_stand_on_the_edges_and_the_parts_of_a_value_are_said_to_be_for_each() -> None:
    svg = draw_svg(expand(word_count()))
    assert svg.count(">2.00 MB each<") == 4
    assert svg.count(">12.0 MB<") == 4
    assert "count.split[0] to count[2], 2.00 MB" in svg


def test_a_picture_points_to_nothing_outside_itself_and_has_no_identifiers() -> None:
    svg = draw_svg(word_count(), title="words & <counts>")
    assert "words &amp; &lt;counts&gt;" in svg
    bare = svg.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|href|url\(|@import|<script|\sid=", bare)
    assert "prefers-color-scheme:dark" in svg


def test_names_that_no_xml_can_hold_are_drawn() -> None:
    svg = draw_svg(
        Graph.from_tasks({"<&\"'>\x07\ud800": (min,), "w" * 200 + "[7]": (min, "<&\"'>\x07\ud800")})
    )
    parsed(svg.encode().decode())
    shown = [text.text or "" for text in parsed(svg).iter(f"{SVG}text")]
    assert "<&\"'>\ufffd\ufffd" in shown
    assert any(text.startswith("www") and text.endswith("[7]") and "…" in text for text in shown)


def test_tasks_of_one_family_share_a_box_when_there_are_too_many() -> None:
    tasks = expand(word_count(parts=400, partitions=64))
    assert len(tasks) == 3 * 400 + 2 * 64
    svg = draw_svg(tasks)
    assert set(frames(svg)) == {"text x 400", "words x 400", "count.split x 400", "count x 64", "out x 64"}
    assert "words x 400 to count.split x 400, 48.0 MB" in svg
    assert len(arrows(svg)) == 4
    assert draw_text(tasks).count("\n") == 5


def test_an_all_to_all_shuffle_is_collapsed_for_the_number_of_its_edges() -> None:
    splits = [Node(name=f"split[{at}]", op=NOTHING) for at in range(40)]
    merges = [Node(name=f"merge[{to}]", op=NOTHING, inputs=tuple(splits)) for to in range(31)]
    assert len(frames(draw_svg(Graph(tuple(merges[:30]))))) == 70
    assert set(frames(draw_svg(Graph(tuple(merges))))) == {"split x 40", "merge x 31"}


def test_a_drawing_is_collapsed_only_above_its_limit() -> None:
    tasks = expand(word_count())
    assert len(frames(draw_svg(tasks, limit=len(tasks)))) == len(tasks)
    assert len(frames(draw_svg(tasks, limit=len(tasks) - 1))) == 5
    with pytest.raises(BadGraph, match="limit of 3 boxes or more, got 2"):
        draw_svg(tasks, limit=2)


def test_families_that_need_each_other_are_divided_by_depth() -> None:
    """a[0] > b[0] > a[1] > b[1]: one box for all a and one for all b would run in a circle."""
    level = [Node(name=f"a[{at}]", op=NOTHING) for at in range(10)]
    for step in range(1, 4):
        halves = [
            Node(name=f"b[{10 * step + at}]", op=NOTHING, inputs=(node,)) for at, node in enumerate(level)
        ]
        level = [
            Node(name=f"a[{10 * step + at}]", op=NOTHING, inputs=(node,)) for at, node in enumerate(halves)
        ]
    drawn = draw_text(Graph(tuple(level)), limit=20).splitlines()[1:]
    assert [line.split()[1] for line in drawn] == ["a", "b", "a", "b", "a", "b", "a"]
    assert all("x 10" in line for line in drawn)


def test_a_chain_of_many_families_has_its_middle_in_one_box() -> None:
    tasks = {f"step {at}": (min, f"step {at - 1}") if at else (min,) for at in range(1000)}
    boxes = list(frames(draw_svg(Graph.from_tasks(tasks), limit=20)))
    assert len(boxes) == 20
    assert boxes[9:12] == ["step 9", "... 981 more ...", "step 991"]


def test_a_shuffle_of_many_pieces_is_collapsed_with_its_bytes() -> None:
    splits = [Node(name=f"split[{at}]", op=NOTHING, size_bytes=100) for at in range(300)]
    merges = [
        Node(name=f"merge[{to}]", op=NOTHING, inputs=tuple(Part(split, to) for split in splits))
        for to in range(7)
    ]
    assert "split x 300 to merge x 7, 30.0 kB" in draw_svg(Graph(tuple(merges)))


def test_a_drawing_does_not_depend_on_how_strings_are_hashed() -> None:
    code = (
        "from dag import Graph, draw_svg, draw_text;"
        "g = Graph.from_tasks({'a': (min,), 'b': (min, 'a'), 'c': (min, 'a'), 'd': (max, 'b', 'c'), 'e': (max, 'a', 'd')});"
        "print(draw_svg(g), draw_text(g))"
    )
    drawn = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(drawn) == 1


def test_parallel_chains_are_drawn_without_a_crossing() -> None:
    sizes = [(90.0, 40.0)] * 12
    # Three chains of four, named so that the first guess of an order mixes them.
    chains = [(0, 5, 6, 11), (1, 3, 8, 9), (2, 4, 7, 10)]
    edges = sorted(edge for chain in chains for edge in pairwise(chain))
    layout = arrange(sizes, edges)
    for chain in chains:
        assert len({layout.centres[at][0] for at in chain}) == 1


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9)), min_size=1, max_size=6),
    st.lists(st.integers(0, 20), min_size=5, max_size=5),
    st.lists(st.integers(-60, 60), min_size=6, max_size=6),
)
def test_places_in_a_layer_are_apart_and_no_other_places_are_nearer_to_those_wanted(
    wanted: list[tuple[int, int]], gaps: list[int], other: list[int]
) -> None:
    apart = gaps[: len(wanted) - 1]
    places = _nearest(wanted, apart)

    def far(at: list[float]) -> float:
        return sum(weight * (place - goal) ** 2 for place, (goal, weight) in zip(at, wanted, strict=True))

    assert all(right - left >= gap - 1e-9 for (left, right), gap in zip(pairwise(places), apart, strict=True))
    rival = [float(other[0])]
    for place, gap in zip(other[1 : len(wanted)], apart, strict=True):
        rival.append(max(float(place), rival[-1] + gap))
    assert far(places) <= far(rival) + 1e-6


@needs_browser
def test_no_text_leaves_its_box_in_a_browser(tmp_path: Path) -> None:
    names = {
        "W" * 60: (min,),
        "単語の数を数える関数の名前がとても長い場合でも": (min, "W" * 60),
        "Ämter/Öl\u0301 x 1": (min, "W" * 60),
    }
    pictures = [
        draw_svg(Graph.from_tasks(names)),
        draw_svg(word_count(), title="words"),
        draw_svg(expand(word_count())),
    ]
    seen, outside = texts_of_boxes(pictures, tmp_path)
    assert seen > 60
    assert outside == []


def loop_of(rounds: int, *, turns: bool = False) -> Graph:
    """Return a loop over data that stays: each round maps the data with the weights before, and reduces."""
    size = {"work_s": 1.0, "size_bytes": 1000}
    data = Node(name="data", op=Op(kind="read"), **size)
    weights = Node(name="start", op=Op(kind="make"), **size)
    for number in range(1, rounds + 1):
        mark = f"#{number}" if number > 1 else ""
        other = "turn" if turns else "step"
        mapped = Node(name=f"step{mark}.map", op=Op(kind="map"), inputs=(data, weights), **size)
        weights = Node(name=f"{other}{mark}.reduce", op=Op(kind="reduce"), inputs=(mapped,), **size)
    return Graph((Node(name="end", op=Op(kind="write"), inputs=(weights,), **size),))


@pytest.mark.parametrize("turns", [False, True])
def test_the_middle_rounds_of_a_loop_are_one_box_with_all_that_they_take_and_make(turns: bool) -> None:
    graph = loop_of(12, turns=turns)  # also where a round is two loops that need each other
    svg = draw_svg(graph, rounds=5)
    called = "step+turn #3-11" if turns else "step #3-11"
    assert set(frames(svg)) - {node.name for node in graph.nodes} == {called}
    assert (
        len(frames(svg)) == 2 + 2 * 2 + 1 + 2 + 1
    )  # data and start, two rounds, the middle, the last, the end
    assert {(a, b) for a, b in arrows(svg) if called in (a, b)} == {
        ("data", called), ("turn#2.reduce" if turns else "step#2.reduce", called), (called, "step#12.map"),
    }  # fmt: skip
    assert "9 rounds" in svg
    assert f"data to {called}, 9.00 kB" in svg
    assert any(called in line and "9 rounds" in line for line in draw_text(graph, rounds=5).splitlines())


def test_few_rounds_and_those_that_something_between_them_needs_are_drawn_one_by_one() -> None:
    few = loop_of(5)
    assert draw_svg(few, rounds=5) == draw_svg(few)
    many = loop_of(12)
    assert draw_text(many) == draw_text(many, rounds=12) != draw_text(many, rounds=5)
    third = next(node for node in many.nodes if node.name == "step#3.reduce")
    fifth = next(node for node in many.nodes if node.name == "step#5.map")
    between = Node(name="between", op=Op(kind="look"), inputs=(third,))
    again = Node(name="step#6.map", op=Op(kind="map"), inputs=(between, fifth))
    last = Node(name="step#9.map", op=Op(kind="map"), inputs=(again,))
    circle = Graph((last,))
    assert set(frames(draw_svg(circle, rounds=5))) == {node.name for node in circle.nodes}


def test_a_narrow_drawing_leaves_the_names_of_inputs_to_the_rails() -> None:
    graph = graph_from(([], [0], [0], [1, 2], [0, 3]))
    wide = draw_text(graph)
    longest = max(map(len, wide.splitlines()))
    assert draw_text(graph, width=longest) == wide
    narrow = draw_text(graph, width=longest - 1)
    assert "from" in wide
    assert "from" not in narrow
    assert read_rails(narrow) == edges_of(graph)


def test_what_nobody_measured_is_a_question_mark() -> None:
    lines = draw_text(word_count(), unknown=["words"]).splitlines()
    assert lines[2].split() == ["●", "words", "map", "4", "?", "?", "text"]
    assert "64.0 MB" in lines[1]
