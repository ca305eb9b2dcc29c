"""checkpoint computes values again for the gradient: the same bits, fewer bytes alive, at every order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dataflow_functions import F64, STEPS, Plan, X, Y, composed, matrices, number, plans
from hypothesis import given
from hypothesis import strategies as st

from dag import Graph
from dag import dataflow as df
from dag.dataflow.trees import flatten


@given(plans, matrices, st.integers(0, 9), st.sampled_from(["nothing", "all", "matmuls"]))
def test_a_checkpoint_gives_the_same_bits_and_its_second_derivatives_agree(
    plan: Plan, points: np.ndarray, cut: int, policy: str
) -> None:
    def split(x: Any, y: Any) -> Any:
        """The same steps, those up to ``cut`` in a checkpoint that hands on all its values, the rest in another."""
        kept = {"nothing": df.save_nothing, "all": df.save_all, "matmuls": df.save_matmuls}[policy]

        def run(some: Plan) -> Callable[[list[Any]], list[Any]]:
            def part(values: list[Any]) -> list[Any]:
                values = list(values)
                for step, left, right in some:
                    values.append(STEPS[step](values[left % len(values)], values[right % len(values)]))
                return values

            return part

        values = df.checkpoint(run(plan[:cut]), kept)([x, y])
        values = df.checkpoint(run(plan[cut:]), kept)(values)
        return np.mean(np.tanh(values[-1] + values[-1 - len(plan) // 2]))

    at = dict(zip((X, Y), points, strict=True))
    plain, again = df.evaluate([df.value_and_grad(f, (0, 1))(X, Y) for f in (composed(plan), split)], at)
    assert plain[0] == again[0]
    for left, right in zip(plain[1], again[1], strict=True):
        np.testing.assert_array_equal(left, right)
    along = np.ones((3, 3))
    plain, again = df.evaluate([df.hvp(f, (X, Y), (along, along)) for f in (composed(plan), split)], at)
    for left, right in zip(plain, again, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-12)


def live_bytes(outputs: list[df.Tensor]) -> int:
    """The most bytes of values alive at once when a graph runs in the order in which its nodes were made."""
    graph = Graph(tuple(outputs))
    order = sorted(graph.nodes, key=lambda node: int(node.name.rpartition("_")[2]) if node.inputs else -1)
    last = {source: at for at, node in enumerate(order) for source in node.inputs}
    last |= dict.fromkeys(outputs, len(order))
    owners: dict[Any, Any] = {}  # views own nothing; what they show lives as long as they do
    for node in order:
        view = node.op.kind in {
            "identity",
            "call",
            "call_result",
            "barrier",
            "reshape",
            "transpose",
            "broadcast_to",
        }
        owners[node] = owners[node.inputs[0]] if view else node
    until: dict[Any, int] = {}
    for node in order:
        until[owners[node]] = max(until.get(owners[node], 0), last.get(node, 0))
    return max(
        sum(
            node.size_bytes
            for at, node in enumerate(order[: now + 1])
            if owners[node] is node and until[node] >= now
        )
        for now in range(len(order))
    )


def tower(checkpointed: bool, policy: Any = None) -> tuple[list[df.Tensor], dict[Any, Any]]:
    def block(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = df.tanh(df.matmul(x, w) + x * 0.5)
        return x

    step = df.checkpoint(block, policy) if checkpointed else block

    def loss(x: Any, w: Any) -> Any:
        for _ in range(6):
            x = step(x, w)
        return df.sum(x)

    x, w = df.input("x", (50, 8), F64), df.input("w", (8, 8), F64)
    value, gradients = df.value_and_grad(loss, (0, 1))(x, w)
    rng = np.random.default_rng(1)
    return [value, *gradients], {x: rng.normal(size=(50, 8)), w: rng.normal(size=(8, 8))}


def test_a_checkpoint_holds_fewer_bytes_at_once_and_gives_the_same_bits() -> None:
    plain, values = tower(False)
    again, others = tower(True)
    dots, more = tower(True, df.save_matmuls)
    everything, rest = tower(True, df.save_all)
    assert live_bytes(again) < 0.6 * live_bytes(plain)
    planned = [df.plan_memory(Graph(tuple(outputs))).peak_bytes for outputs in (again, plain)]
    assert planned[0] < 0.5 * planned[1]
    count = lambda outputs: sum(node.op.kind == "tanh" for node in Graph(tuple(outputs)).nodes)  # noqa: E731
    assert (count(plain), count(again), count(everything)) == (24, 48, 24)
    expected = df.evaluate(plain, values)
    for outputs, fed in ((again, others), (dots, more), (everything, rest)):
        for left, right in zip(expected, df.evaluate(outputs, fed), strict=True):
            np.testing.assert_array_equal(left, right)


def test_passes_keep_what_is_computed_again_apart_and_the_peak_low() -> None:
    (plain, _), (again, values) = tower(False), tower(True)
    before, after = (df.optimise(Graph(tuple(outputs)), check=True).graph for outputs in (plain, again))
    assert df.plan_memory(after).peak_bytes < 0.5 * df.plan_memory(before).peak_bytes
    programs = [df.Program(again, list(values), optimise=each) for each in (True, False)]
    for left, right in zip(*(program(*values.values()) for program in programs), strict=True):
        np.testing.assert_array_equal(left, right)


def transformer(params: Any, ids: Any, block: Callable[..., Any]) -> Any:
    x = df.embedding(params["table"], ids)
    for layer in params["layers"]:
        x = block(x, layer)
    logits = (x @ params["table"].T).reshape(-1, 11)
    return df.softmax_cross_entropy(logits, np.arange(12) % 11).mean()


def block(x: Any, p: Any) -> Any:
    """Attention with two heads and a gelu network, each after a layer norm."""
    heads = lambda y: df.transpose(y.reshape(2, 6, 2, 4), (0, 2, 1, 3))  # noqa: E731
    h = df.layer_norm(x, p["scale"], p["shift"])
    mixed = df.attention(heads(h @ p["q"]), heads(h @ p["k"]), heads(h @ p["v"]), causal=True)
    x = x + df.transpose(mixed, (0, 2, 1, 3)).reshape(2, 6, 8)
    h = df.layer_norm(x, p["scale"], p["shift"])
    return x + df.gelu(h @ p["up"]) @ p["up"].T


@pytest.mark.parametrize("policy", [df.save_nothing, df.save_matmuls])
def test_a_transformers_gradient_has_the_same_bits_and_its_second_derivative_agrees(policy: Any) -> None:
    rng = np.random.default_rng(2)
    shapes = {"q": (8, 8), "k": (8, 8), "v": (8, 8), "up": (8, 16), "scale": (8,), "shift": (8,)}
    layers = [{name: rng.normal(size=shape) for name, shape in shapes.items()} for _ in range(3)]
    values = {"table": rng.normal(size=(11, 8)), "layers": layers}
    leaves, rebuild = flatten(values)
    params = rebuild([df.input(f"p{at}", leaf.shape, F64) for at, leaf in enumerate(leaves)])
    along = rebuild([rng.normal(size=leaf.shape) for leaf in leaves])
    ids = rng.integers(0, 11, (2, 6))
    plain, again = (
        lambda p, step=step: transformer(p, ids, step) for step in (block, df.checkpoint(block, policy))
    )
    program = df.Program([df.value_and_grad(f)(params) for f in (plain, again)], [params])
    for left, right in zip(*(flatten(each)[0] for each in program(values)), strict=True):
        np.testing.assert_array_equal(left, right)
    products = [df.hvp(f, (params,), (along,)) for f in (plain, again)]
    products.append(df.jvp(df.grad(again), (params,), (along,))[1])
    found = [flatten(each)[0] for each in df.Program(products, [params])(values)]
    for left, right, forward in zip(*found, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(left, forward, rtol=1e-9, atol=1e-9)


def test_on_torch_recomputation_gives_the_same_bits_too() -> None:
    torch = pytest.importorskip("torch", reason="runs the graphs on torch; pip install 'mrdag[torch]'")
    torch.set_num_threads(1)
    results = []
    for outputs, values in (tower(False), tower(True)):
        results.append(df.Program(outputs, list(values), backend="torch")(*values.values()))
    for left, right in zip(*results, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_policy_keeps_matrix_products_or_what_was_named() -> None:
    def block(x: Any, w: Any) -> Any:
        return df.sum(df.tanh(df.named(df.tanh(df.matmul(x, w)), "middle")))

    x, w = df.input("x", (4, 8), F64), df.input("w", (8, 8), F64)
    counts = {}
    for name, policy in {
        "nothing": None, "matmuls": df.save_matmuls, "middle": df.save_names("middle"), "all": df.save_all,
    }.items():  # fmt: skip
        outputs = df.value_and_grad(df.checkpoint(block, policy), 1)(x, w)
        kinds = [node.op.kind for node in Graph(outputs).nodes]
        counts[name] = kinds.count("matmul"), kinds.count("tanh")
    # one product is the gradient's own; both tanh are run again unless kept, since their rule wants their results
    assert counts == {"nothing": (3, 4), "matmuls": (2, 4), "middle": (2, 3), "all": (2, 2)}


def test_what_is_computed_again_waits_for_the_cotangent() -> None:
    x = df.input("x", (3,), F64)
    gradient = df.grad(lambda x: df.sum(df.exp(df.checkpoint(lambda x: df.tanh(df.tanh(x)))(x))))(x)
    graph = Graph((gradient,))
    (exp,) = [node for node in graph.nodes if node.op.kind == "exp"]
    again = [node for node in graph.nodes if "recomputed" in node.name and node.op.kind == "tanh"]
    assert len(again) == 2
    assert all(exp in graph.ancestors(node) for node in again)


def test_results_that_come_from_outside_or_straight_through_keep_their_gradients() -> None:
    x, w = number(), number("w")

    def loss(x: Any, w: Any) -> Any:
        doubled, outside, same, step = df.checkpoint(lambda x: (x * 2, w, x, df.constant(3)))(x)
        return doubled * outside * same * step

    by_x, by_w = df.evaluate(df.grad(loss, (0, 1))(x, w), {x: 5.0, w: 7.0})
    assert (by_x, by_w) == (2 * 3 * 2 * 5.0 * 7.0, 2 * 3 * 25.0)


def test_tensors_that_a_checkpointed_function_finds_outside_get_their_gradients() -> None:
    x, w = number(), number("w")

    def loss(x: Any, w: Any) -> Any:
        outside = df.tanh(w) * x
        return df.checkpoint(lambda x: df.exp(x * outside) * w)(x)

    plain = lambda x, w: df.exp(x * (df.tanh(w) * x)) * w  # noqa: E731
    found = df.evaluate([df.grad(f, (0, 1))(x, w) for f in (loss, plain)], {x: 0.3, w: 0.5})
    assert [*found[0]] == pytest.approx([*map(float, found[1])], rel=1e-14)
