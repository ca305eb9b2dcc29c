"""Values that are computed again keep the bits, and keep the memory within its limit, planned and counted."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor_graphs import arrays_for, naive, same_bits, tensor_graphs

from dag import Graph
from dag import dataflow as df
from dag.dataflow.memory_plan import plan_memory
from dag.dataflow.passes_base import Notes
from dag.dataflow.tables import TRAITS
from dag.errors import TooLarge

Drawn = tuple[list[df.Tensor], list[df.Tensor]]


def chain(length: int, size: int = 100) -> Drawn:
    """Return the gradient of tanh of tanh of ...: every value is needed again, in the opposite order."""
    x = df.input("x", (size,), np.float64)

    def value(x: df.Tensor) -> df.Tensor:
        for _ in range(length):
            x = df.tanh(x) * 1.5
        return df.sum(x)

    return [df.grad(value)(x)], [x]


def perceptron(layers: int = 6) -> Drawn:
    params = [
        (df.input(f"w{at}", (8, 8), "float32"), df.input(f"b{at}", (8,), "float32")) for at in range(layers)
    ]
    x = df.input("x", (64, 8), "float32")

    def loss(params: Any) -> df.Tensor:
        value = x
        for weights, bias in params:
            value = df.tanh(value @ weights + bias)
        return df.mean(df.square(value))

    found, gradients = df.value_and_grad(loss)(params)
    return [found, *(each for pair in gradients for each in pair)], [
        *(each for pair in params for each in pair),
        x,
    ]


def transformer() -> Drawn:
    x = df.input("x", (2, 6, 8), np.float64)
    params = [[df.input(f"{name}{at}", (8, 8), np.float64) for name in "qkvm"] for at in range(2)]
    scale, shift = df.input("scale", (8,), np.float64), df.input("shift", (8,), np.float64)

    def loss(params: Any) -> df.Tensor:
        value = x
        for queries, keys, values, mixed in params:
            inner = df.layer_norm(value, scale, shift)
            value = value + df.attention(inner @ queries, inner @ keys, inner @ values, causal=True)
            value = value + df.gelu(df.layer_norm(value, scale, shift) @ mixed)
        return df.mean(df.square(value))

    return [each for row in df.grad(loss)(params) for each in row], [
        x,
        *(w for row in params for w in row),
        scale,
        shift,
    ]


def prepared(outputs: list[df.Tensor]) -> Graph:
    return df.optimise(Graph(tuple(outputs)), fused=False).graph


def flops(graph: Graph) -> int:
    return sum(TRAITS[node.op.kind].flops(node) for node in graph.nodes if node.inputs)


@pytest.mark.parametrize(
    ("make", "share"), [(lambda: chain(30), 0.2), (perceptron, 0.6), (transformer, 0.75)], ids=["chain", "mlp", "transformer"]
)  # fmt: skip
def test_a_graph_keeps_within_its_limit_planned_and_counted_and_keeps_every_bit(
    make: Callable[[], Drawn], share: float
) -> None:
    outputs, inputs = make()
    graph = prepared(outputs)
    limit_bytes = int(plan_memory(graph).peak_bytes * share)
    notes = Notes()
    made = df.verify(df.rematerialise(graph, limit_bytes, notes))
    assert plan_memory(made).peak_bytes <= limit_bytes < plan_memory(graph).peak_bytes
    assert notes.applied
    arrays = arrays_for(inputs, 3)
    found, counts = df.Program(list(made.outputs), inputs, optimise=False).run_counted(*arrays)
    assert max(counts) <= limit_bytes
    assert all(map(same_bits, found, naive(outputs, dict(zip(inputs, arrays, strict=True)))))
    assert [each.name for each in made.outputs] == [each.name for each in outputs]
    assert flops(graph) < flops(made)


@pytest.mark.parametrize(
    "make", [lambda: chain(30), perceptron, transformer], ids=["chain", "mlp", "transformer"]
)
def test_passes_and_a_program_afterwards_undo_nothing(make: Callable[[], Drawn]) -> None:
    outputs, inputs = make()
    graph = prepared(outputs)
    limit_bytes = int(plan_memory(graph).peak_bytes * 0.8)
    made = df.rematerialise(graph, limit_bytes)
    program = df.Program(list(made.outputs), inputs)
    assert program.memory.peak_bytes <= limit_bytes
    arrays = arrays_for(inputs, 4)
    assert all(map(same_bits, program(*arrays), naive(outputs, dict(zip(inputs, arrays, strict=True)))))


@given(tensor_graphs(most=20), st.floats(0.3, 1.1), st.integers(0, 9))
def test_any_graph_is_within_its_limit_with_every_bit_or_refused(
    graph: Drawn, share: float, seed: int
) -> None:
    outputs, inputs = graph
    whole = Graph(tuple(outputs))
    limit_bytes = int(plan_memory(whole).peak_bytes * share)
    try:
        made = df.verify(df.rematerialise(whole, limit_bytes))
    except TooLarge:
        assert plan_memory(whole).peak_bytes > limit_bytes
        return
    assert plan_memory(made).peak_bytes <= limit_bytes
    arrays = arrays_for(inputs, seed)
    values = dict(zip(inputs, arrays, strict=True))
    assert all(map(same_bits, naive(made.outputs, values), naive(outputs, values)))  # type: ignore[arg-type]


def test_a_graph_that_fits_stays_the_very_graph() -> None:
    graph = prepared(chain(5)[0])
    assert df.rematerialise(graph, plan_memory(graph).peak_bytes) is graph


@pytest.mark.parametrize("make", [lambda: chain(20), perceptron], ids=["chain", "mlp"])
def test_what_cannot_be_reached_is_refused_with_what_can(make: Callable[[], Drawn]) -> None:
    graph = prepared(make()[0])
    peak_bytes = plan_memory(graph).peak_bytes
    with pytest.raises(TooLarge, match=f"needs {peak_bytes:,} bytes .* the limit is 100: ") as caught:
        df.rematerialise(graph, 100)
    least_bytes = int(re.search(r"still ([\d,]+)", str(caught.value))[1].replace(",", ""))  # type: ignore[index]
    assert 100 < least_bytes < peak_bytes
    assert plan_memory(df.rematerialise(graph, least_bytes)).peak_bytes <= least_bytes


def test_matrix_products_are_computed_again_last() -> None:
    x, w = df.input("x", (16, 16), np.float64), df.input("w", (16, 16), np.float64)
    product, cheap = x @ w, df.exp(x)  # both are used, wait over the peak, and are used again
    between = df.sum(df.cumsum(df.concatenate([product + cheap] * 3), 0))
    graph = Graph((df.sum(df.sin(product * between)), df.sum(df.sin(cheap * between))))
    value_bytes, peak_bytes = 16 * 16 * 8, plan_memory(graph).peak_bytes

    def again(limit_bytes: int) -> list[str]:
        made = df.rematerialise(graph, limit_bytes)
        return sorted(
            each.op.kind for each in made.nodes if each.name in (f"recomputed/{n.name}" for n in graph.nodes)
        )

    assert again(peak_bytes) == []
    assert again(peak_bytes - value_bytes) == ["exp"]
    assert again(peak_bytes - 2 * value_bytes) == ["exp", "matmul"]


def test_a_chain_of_n_values_needs_few_more_operations_for_much_less_memory() -> None:
    graph = prepared(chain(100)[0])
    made = df.rematerialise(graph, plan_memory(graph).peak_bytes // 5)
    assert flops(made) < 1.4 * flops(graph)  # a forward run again would be 1.33 times


def test_copies_never_run_early_though_their_inputs_are_there() -> None:
    x = df.input("x", (1000,), np.float64)
    early = df.exp(x)
    value = early
    for _ in range(4):
        value = df.sin(df.concatenate([value, value]))[:1000]
    graph = Graph((df.sum(value * early),))
    before = plan_memory(graph)
    made = df.rematerialise(graph, before.peak_bytes - 8000)
    order = [step.node for step in plan_memory(made).steps]
    (copy,) = (node for node in order if node.name == f"recomputed/{early.name}")
    assert order.index(copy) > len(order) - 5


def test_memory_that_the_interpreter_takes_falls_as_planned() -> None:
    (output,), inputs = chain(40, 20_000)
    graph = prepared([output])
    peak_bytes = plan_memory(graph).peak_bytes
    made = df.rematerialise(graph, peak_bytes // 4)
    arrays = arrays_for(inputs, 0)

    def traced(graph: Graph) -> int:
        program = df.Program(list(graph.outputs), inputs, optimise=False)
        tracemalloc.start()
        program.run_counted(*arrays)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert traced(made) < traced(graph) / 3
