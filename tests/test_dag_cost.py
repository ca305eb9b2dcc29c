"""What a graph is said to cost is what closed forms say and what its kernels are seen to touch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dag import Graph, Node, Op
from dag import dataflow as df
from dag.dataflow.backends import BACKENDS, copies
from dag.dataflow.cost import show_count
from dag.dataflow.tables import KERNELS
from dag.dataflow.trees import flatten
from dag.errors import BadTensor

PRODUCTS = ("matmul",)
sizes = st.integers(1, 9)


def graph_of(*trees: Any) -> Graph:
    return Graph(tuple(flatten(trees)[0]))


@given(sizes, sizes, sizes)
def test_a_matrix_product_takes_two_operations_per_pair_and_moves_each_element_once(
    m: int, k: int, n: int
) -> None:
    cost = df.cost_of(df.input("a", (m, k)) @ df.input("b", (k, n)))
    assert cost.flops == 2 * m * k * n
    assert cost.read_bytes == 4 * (m * k + k * n)
    assert cost.written_bytes == 4 * m * n
    assert cost.intensity == pytest.approx(2 * m * k * n / (4 * (m * k + k * n + m * n)))


def perceptron(batch: int, widths: list[int]) -> tuple[Callable[..., df.Tensor], list[df.Tensor], df.Tensor]:
    weights = [df.input(f"w{at}", ends, np.float32) for at, ends in enumerate(pairwise(widths))]

    def loss(weights: list[df.Tensor], x: df.Tensor) -> df.Tensor:
        for each in weights[:-1]:
            x = df.relu(x @ each)
        return df.mean(df.square(x @ weights[-1]))

    return loss, weights, df.input("x", (batch, widths[0]))


def test_a_perceptron_takes_two_operations_per_weight_and_example_forward_and_six_with_its_gradient() -> None:
    batch, widths = 32, [20, 50, 30, 10]
    loss, weights, x = perceptron(batch, widths)
    parameters = sum(each.size for each in weights)
    assert df.flops(graph_of(loss(weights, x)), PRODUCTS) == 2 * parameters * batch
    both = graph_of(df.value_and_grad(loss, (0, 1))(weights, x))
    assert df.flops(both, PRODUCTS) == 6 * parameters * batch
    # Nobody wants the gradient by the examples, so the first layer passes none on.
    step = graph_of(df.value_and_grad(loss)(weights, x))
    assert df.flops(step, PRODUCTS) == (6 * parameters - 2 * weights[0].size) * batch
    # The products are nearly all of it.
    assert 1 < df.flops(step) / df.flops(step, PRODUCTS) < 1.1


@pytest.mark.parametrize(("batch", "length", "width", "heads"), [(2, 8, 12, 3), (1, 5, 16, 4), (3, 4, 6, 1)])
def test_a_transformer_layer_takes_what_the_zero_bubble_paper_counts(
    batch: int, length: int, width: int, heads: int
) -> None:
    """Qi et al., Zero Bubble Pipeline Parallelism, table 1: F sbh(24h + 4s); B and W together twice that."""
    shapes = {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    params = {name: df.input(name, shape) for name, shape in shapes.items()}
    scale, shift = df.input("scale", (width,)), df.input("shift", (width,))

    def split(x: df.Tensor) -> df.Tensor:
        return df.transpose(df.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))

    def layer(p: dict[str, df.Tensor], x: df.Tensor) -> df.Tensor:
        queries, keys, values = df.split(df.layer_norm(x, scale, shift) @ p["qkv"], 3, axis=-1)
        seen = df.attention(split(queries), split(keys), split(values), causal=True)
        x = x + df.reshape(df.transpose(seen, (0, 2, 1, 3)), (batch, length, width)) @ p["out"]
        return x + df.gelu(df.layer_norm(x, scale, shift) @ p["up"]) @ p["down"]

    x = df.input("x", (batch, length, width))
    forward = length * batch * width * (24 * width + 4 * length)
    assert df.flops(graph_of(layer(params, x)), PRODUCTS) == forward
    result, pull = df.vjp(layer, params, x)
    both = graph_of(result, pull(df.input("cotangent", x.shape)))
    assert df.flops(both, PRODUCTS) == 3 * forward


def test_a_convolution_takes_two_operations_per_weight_and_place_and_three_times_that_with_its_gradients() -> (
    None
):
    x, w = df.input("x", (2, 3, 9, 8)), df.input("w", (5, 3, 3, 2))
    kinds = ("conv2d", "conv2d_to_images", "conv2d_to_weights")
    result, pull = df.vjp(lambda x, w: df.conv2d(x, w, stride=2), x, w)
    assert result.shape == (2, 5, 4, 4)
    forward = 2 * (2 * 5 * 4 * 4) * (3 * 3 * 2)
    assert df.flops(graph_of(result), kinds) == forward
    assert df.flops(graph_of(result, pull(df.input("cotangent", result.shape))), kinds) == 3 * forward


def test_views_move_nothing_and_are_read_as_what_lies_beneath_them() -> None:
    row, table = df.input("row", (1, 100)), df.input("table", (50, 100))
    wide = df.broadcast_to(row, (50, 100))
    assert df.cost_of(wide) == df.cost_of(table.T) == df.Cost()
    assert df.cost_of(df.exp(wide)) == df.Cost(flops=5000, read_bytes=400, written_bytes=20_000)
    assert df.cost_of(df.exp(table[:10].T)) == df.Cost(flops=1000, read_bytes=4000, written_bytes=4000)
    assert df.cost_of(table * table).read_bytes == 20_000


def test_fusion_saves_bytes_and_no_operations() -> None:
    x, b = df.input("x", (100, 40)), df.input("b", (40,))
    graph = graph_of(df.tanh(df.exp(x + b)))
    fused = df.fuse(graph)
    assert df.total_cost(graph).flops == df.total_cost(fused).flops == 3 * 4000
    assert df.total_cost(graph).moved_bytes == 6 * 16_000 + 160
    assert df.total_cost(fused).moved_bytes == 2 * 16_000 + 160


def test_bytes_are_those_of_the_arrays_that_kernels_are_seen_to_take_and_make() -> None:
    moved: dict[str, int] = {"read": 0, "written": 0}

    def beneath(array: Any) -> int:
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        return min(int(array.nbytes), int(base.nbytes))

    def watched(rule: Any) -> Any:
        def kernel_rule(node: Any) -> Any:
            kernel = rule(node)

            def kernel_seen(*inputs: Any) -> Any:
                made = np.asarray(kernel(*inputs))
                if not any(np.shares_memory(made, each) for each in inputs):
                    moved["read"] += sum(
                        beneath(each) for each in {id(each): each for each in inputs}.values()
                    )
                    moved["written"] += made.nbytes
                return made

            return kernel_seen

        return kernel_rule

    loss, weights, x = perceptron(16, [6, 10, 4])
    outputs = df.value_and_grad(loss, (0, 1))(weights, x)
    KERNELS["watched"] = {kind: watched(rule) for kind, rule in KERNELS["numpy"].items()}
    df.register_backend(
        "watched",
        lambda device: df.Backend(
            kernels="watched", take=np.array, give=copies, is_finite=lambda value: True
        ),
    )
    try:
        program = df.Program(outputs, [weights, x], backend="watched", optimise=False)
        program([np.ones(each.shape, np.float32) for each in weights], np.ones(x.shape, np.float32))
    finally:
        del KERNELS["watched"], BACKENDS["watched"]
    cost = df.total_cost(graph_of(outputs))
    assert (cost.read_bytes, cost.written_bytes) == (moved["read"], moved["written"])
    assert cost.read_bytes > 1000


def test_the_table_has_the_dearest_nodes_first_and_adds_up() -> None:
    loss, weights, x = perceptron(256, [784, 512, 10])
    graph = graph_of(df.value_and_grad(loss)(weights, x))
    lines = df.describe(graph, rows=3).splitlines()
    assert lines[0].split() == ["node", "value", "FLOPs", "read", "written", "FLOPs/byte"]
    assert [line.split()[0] for line in lines[1:4]] == ["matmul", "gradient/matmul", "matmul"]
    products = 2 * 256 * (2 * 784 * 512 + 3 * 512 * 10)
    assert df.flops(graph, PRODUCTS) == products
    assert lines[5].split()[:3] == ["all", *show_count(df.flops(graph)).split()]
    plan = df.plan_memory(graph)
    assert f"at most {plan.peak_bytes / 1e6:.2f} MB alive" in lines[-1]
    computed = sum(node.op.kind not in ("input", "constant") for node in graph.nodes)
    assert lines[-1].startswith(f"{computed} nodes to compute;")


@given(st.integers(0, 10**21))
def test_a_count_is_shown_with_three_digits(count: int) -> None:
    number, _, unit = show_count(count).partition(" ")
    shown = float(number) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}[unit]
    assert shown == pytest.approx(count, rel=6e-3)
    assert float(number) < 1001


def test_trees_of_tensors_do_for_graphs_and_anything_else_is_told() -> None:
    x = df.input("x", (3, 4))
    tree = {"a": [df.exp(x), x + 1], "b": x * 2}
    for ask in (df.total_cost, df.flops, df.describe, df.draw_text, df.draw_svg):
        assert ask(tree) == ask(graph_of(tree))
        with pytest.raises(BadTensor, match=r"a graph of tensors is wanted, got Node\('a', read\) in it"):
            ask(Graph((Node(name="a", op=Op(kind="read")),)))
        with pytest.raises(BadTensor, match="a graph of tensors is wanted, got 3 in it"):
            ask([x, 3])


def test_a_graph_of_one_input_costs_nothing() -> None:
    x = df.input("x", (3, 4))
    assert df.total_cost(Graph((x,))) == df.Cost()
    assert df.total_cost(Graph((x,))).intensity == 0
