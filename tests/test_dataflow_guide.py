"""The guide of dataflow graphs says what Python says, its pictures show its graphs, and it knows all that there is."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import needs_browser, texts_of_boxes

import dag
from dag import Graph
from dag import dataflow as df
from dag.dataflow.backends import BACKENDS
from dag.dataflow.tables import GRADIENTS, KERNELS, SHAPES, TRAITS

DOCS = Path(__file__).parent.parent / "docs"
GUIDE = (DOCS / "dataflow.md").read_text()
BLOCK = re.compile(r"```python( torch)?\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


@pytest.fixture
def tables() -> Iterator[None]:
    """Take what the guide defines out of the tables again."""
    yield
    for rows in (SHAPES, GRADIENTS, TRAITS, *KERNELS.values()):
        rows.pop("softplus", None)  # type: ignore[attr-defined]
    KERNELS.pop("counting", None)
    BACKENDS.pop("counting", None)


def without_numbers(text: str) -> str:
    """Return what was printed without the numbers in names of nodes, which depend on what was built before."""
    return re.sub(r"\b([a-z_0-9]*[a-z])_\d+", r"\1", text)


@pytest.mark.usefixtures("tables")
def test_every_block_of_the_guide_runs_and_prints_what_stands_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "guide"}
    blocks = BLOCK.findall(GUIDE)
    assert len(blocks) > 15
    for needs_torch, code, expected in blocks:
        if needs_torch and importlib.util.find_spec("torch") is None:
            continue  # the extra; what it prints was seen where it is installed
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/dataflow.md", "exec"), names)
        assert without_numbers(printed.getvalue()) == without_numbers(expected), code

    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert drawn == sorted(path.name for path in DOCS.glob("dataflow-*.svg"))
    for name in drawn:
        assert (tmp_path / name).read_text() == (DOCS / name).read_text(), f"docs/{name} shows another graph"
        assert f"]({name})" in GUIDE


def test_the_guide_names_all_that_the_package_offers() -> None:
    words = set(re.findall(r"\w+", GUIDE))
    assert [name for name in df.__all__ if name not in words] == []


def a_network() -> Graph:
    x = df.input("x", (8, 5))
    w, b, v = df.input("w", (5, 4)), df.input("b", (4,)), df.input("v", (4, 3))

    def loss(w: df.Tensor, b: df.Tensor, v: df.Tensor) -> df.Tensor:
        with df.scope("model"):
            return df.mean(df.square(df.tanh(x @ w + b) @ v)) * 0.5

    value, slopes = df.value_and_grad(loss, (0, 1, 2))(w, b, v)
    return df.simplify(Graph((value, *slopes)))


def test_a_drawing_is_the_same_whatever_was_built_before() -> None:
    first = df.draw_svg(a_network()), df.draw_text(a_network())
    df.exp(df.input("x", (2,)))
    assert (df.draw_svg(a_network()), df.draw_text(a_network())) == first


def test_a_drawing_has_a_box_for_each_node_with_dtype_and_shape_and_those_of_the_gradient_apart() -> None:
    graph = a_network()
    picture = df.draw_svg(graph)
    assert picture.count('<g class="box') == len(graph)
    of_gradient = [node for node in graph.nodes if "gradient/" in node.name]
    assert 5 < len(of_gradient) < len(graph)
    assert picture.count('<g class="box apart"') == len(of_gradient)
    assert "<title>model/matmul\nfloat32 (8, 4) · 128 B</title>" in picture
    assert "<title>w\ninput · float32 (5, 4) · 80 B</title>" in picture
    # As they are, without new names, dag draws them too.
    plain = dag.draw_svg(graph)
    assert plain.count("float32 (8, 4)") >= 3
    assert 'class="box apart"' not in plain


def test_a_drawing_keeps_values_operators_and_edges() -> None:
    graph = a_network()
    copy = df.draw.numbered(graph)
    assert [node.op for node in copy.nodes] == [node.op for node in graph.nodes]
    place = {node: at for at, node in enumerate(graph.nodes)}
    copied = {node: at for at, node in enumerate(copy.nodes)}
    assert [[copied[each] for each in node.inputs] for node in copy.nodes] == [  # type: ignore[index]
        [place[each] for each in node.inputs]
        for node in graph.nodes  # type: ignore[index]
    ]


def test_of_a_large_graph_each_scope_is_one_box_and_its_gradient_another() -> None:
    x = df.input("x", (8, 4))
    weights = [df.input(f"w{at}", (4, 4)) for at in range(6)]

    def deep(weights: list[df.Tensor]) -> df.Tensor:
        value = x
        for at, each in enumerate(weights):
            with df.scope(f"block{at}"):
                value = df.tanh(df.sin(value @ each) * df.exp(value)) + value
        return df.sum(value)

    value, slopes = df.value_and_grad(deep)(weights)
    graph = df.simplify(Graph((value, *slopes)))
    assert len(graph) > 80
    titles = re.findall(r"<title>([^<\n]*)\n", df.draw_svg(graph, limit=40))
    for at in range(6):
        assert sum(title.startswith(f"block{at} x ") for title in titles) == 1
        assert sum(title.startswith(f"gradient/block{at} x ") for title in titles) == 1
    assert "x" in titles
    lines = df.draw_text(graph, limit=40).splitlines()
    assert len(lines) == 1 + len(titles) <= 41


def test_fused_operators_are_named_by_their_steps_and_constants_by_their_value() -> None:
    x = df.input("tanh", (300, 400))
    graph = df.fuse(Graph((df.tanh(df.exp(x) + 0.25),)))
    assert [node.name for node in df.draw.numbered(graph).nodes] == ["tanh", "0.25", "exp+add+tanh"]
    twice = Graph((df.tanh(x) * df.tanh(x) + df.constant(np.ones(2))[0],))
    names = [node.name for node in df.draw.numbered(twice).nodes]
    assert names == ["tanh", "tanh (2)", "tanh (3)", "multiply", "constant", "slice", "reshape", "add"]


@needs_browser
def test_no_text_of_the_pictures_leaves_its_box_in_a_browser(tmp_path: Path) -> None:
    pictures = [path.read_text() for path in sorted(DOCS.glob("dataflow-*.svg"))]
    seen, outside = texts_of_boxes(pictures, tmp_path)
    assert seen > 60
    assert outside == []
