"""Optimisers as graphs make the steps of torch.optim and of the formula written out in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dag import Graph
from dag import dataflow as df
from dag.dataflow.trees import flatten, names
from dag.errors import BadTensor

F64 = np.dtype(np.float64)
STEPS = 20


def start(seed: int = 3, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "layers": [rng.normal(size=(4, 3)).astype(dtype), (rng.normal(size=(3,)).astype(dtype),)],
        "scale": np.asarray(rng.normal(), dtype),
    }


DATA = np.random.default_rng(5).normal(size=(7, 4))
TARGET = np.random.default_rng(6).normal(size=(7, 3))


def loss_of(params: Any) -> Any:
    made = np.tanh(DATA @ params["layers"][0] + params["layers"][1][0]) * params["scale"]
    return ((made - TARGET) * (made - TARGET)).mean()


def inputs_like(tree: Any, prefix: str) -> Any:
    leaves, rebuild = flatten(tree)
    return rebuild(
        [
            df.input(prefix + name, leaf.shape, leaf.dtype)
            for name, leaf in zip(names(tree), leaves, strict=True)
        ]
    )


def flat(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in flatten(tree)[0]]


def trained(optimiser: df.Optimiser, params: Any, steps: int = STEPS, loss: Any = loss_of) -> tuple[Any, Any]:
    """Run one program ``steps`` times: loss, gradient and step in one graph."""
    state = optimiser.start(params)
    given, held = inputs_like(params, "p."), inputs_like(state, "s.")
    _, gradients = df.value_and_grad(loss)(given)
    program = df.Program(optimiser.step(given, gradients, held), [given, held])
    for _ in range(steps):
        params, state = program(params, state)
    return params, state


def by_hand(
    rule: Callable[[int, np.ndarray, np.ndarray, dict[str, Any]], np.ndarray], steps: int = STEPS
) -> Any:
    """The same steps, with gradients written out by hand and a rule on one array."""
    arrays = flat(start())
    memory: list[dict[str, Any]] = [{} for _ in arrays]
    for step in range(1, steps + 1):
        w, b, s = arrays
        hidden = np.tanh(DATA @ w + b)
        back = 2 * (hidden * s - TARGET) / TARGET.size
        pre = back * s * (1 - hidden * hidden)
        gradients = [DATA.T @ pre, pre.sum(0), np.asarray((back * hidden).sum())]
        arrays = [rule(step, *each) for each in zip(arrays, gradients, memory, strict=True)]
    return arrays


def sgd_rule(step: int, p: Any, g: Any, memory: dict[str, Any]) -> Any:
    return p - 0.3 * g


def momentum_rule(step: int, p: Any, g: Any, memory: dict[str, Any]) -> Any:
    memory["v"] = 0.9 * memory.get("v", 0) + g
    return p - 0.1 * memory["v"]


def nesterov_rule(step: int, p: Any, g: Any, memory: dict[str, Any]) -> Any:
    memory["v"] = 0.8 * memory.get("v", 0) + g
    return p - 0.1 * (g + 0.8 * memory["v"])


def adam_rule(step: int, p: Any, g: Any, memory: dict[str, Any], decay: float = 0.0) -> Any:
    memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * g
    memory["v"] = 0.99 * memory.get("v", 0) + 0.01 * g**2
    mean, square = memory["m"] / (1 - 0.9**step), memory["v"] / (1 - 0.99**step)
    return p - 0.05 * decay * p - 0.05 * mean / (np.sqrt(square) + 1e-8)


def adamw_rule(step: int, p: Any, g: Any, memory: dict[str, Any]) -> Any:
    return adam_rule(step, p, g, memory, 0.1)


CASES: dict[str, tuple[df.Optimiser, Any, str, dict[str, Any]]] = {
    "sgd": (df.sgd(0.3), sgd_rule, "SGD", {"lr": 0.3}),
    "momentum": (df.momentum(0.1), momentum_rule, "SGD", {"lr": 0.1, "momentum": 0.9}),
    "nesterov": (
        df.momentum(0.1, 0.8, nesterov=True), nesterov_rule, "SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True},
    ),
    "adam": (df.adam(0.05, 0.9, 0.99), adam_rule, "Adam", {"lr": 0.05, "betas": (0.9, 0.99)}),
    "adamw": (
        df.adam(0.05, 0.9, 0.99, weight_decay=0.1), adamw_rule,
        "AdamW", {"lr": 0.05, "betas": (0.9, 0.99), "weight_decay": 0.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_the_formula_in_numpy(name: str) -> None:
    optimiser, rule, _, _ = CASES[name]
    params, state = trained(optimiser, start())
    assert state["step"] == STEPS
    for ours, hand in zip(flat(params), by_hand(rule), strict=True):
        np.testing.assert_allclose(ours, hand, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with torch.optim; pip install 'mrdag[torch]'")
    torch.set_num_threads(1)
    optimiser, _, kind, options = CASES[name]
    tensors = [torch.tensor(each, requires_grad=True) for each in flat(start())]
    theirs = getattr(torch.optim, kind)(tensors, **options)
    data, target = torch.tensor(DATA), torch.tensor(TARGET)
    for _ in range(STEPS):
        theirs.zero_grad()
        w, b, s = tensors
        ((torch.tanh(data @ w + b) * s - target) ** 2).mean().backward()
        theirs.step()
    params, _ = trained(optimiser, start())
    for ours, other in zip(flat(params), tensors, strict=True):
        np.testing.assert_allclose(ours, other.detach().numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_float32_parameters_and_their_state_stay_float32(name: str) -> None:
    optimiser, *_ = CASES[name]

    def loss(params: Any) -> Any:
        made = np.tanh(params["layers"][0] + params["layers"][1][0]) * params["scale"]
        return (made * made).sum()

    for rate in (optimiser.learning_rate, df.warmup_cosine(0.1, 2, 30)):
        chosen = replace(optimiser, learning_rate=rate)
        params, state = trained(chosen, start(dtype=np.float32), 3, loss)
        assert {each.dtype for each in flat(params)} == {np.dtype(np.float32)}
        assert {each.dtype for slot in chosen.slots for each in flat(state[slot])} <= {np.dtype(np.float32)}
        given, held = inputs_like(params, "p."), inputs_like(state, "s.")
        moved, _ = chosen.step(given, df.grad(loss)(given), held)
        large = [node for node in Graph(tuple(flat_tensors(moved))).nodes if node.size > 1]  # type: ignore[attr-defined]
        assert {node.dtype for node in large} == {np.dtype(np.float32)}  # type: ignore[attr-defined]


def flat_tensors(tree: Any) -> list[df.Tensor]:
    return flatten(tree)[0]


def test_a_rate_may_be_a_number_a_tensor_or_a_function_of_the_step() -> None:
    p, rate = df.input("p", (2,), F64), df.input("rate", (), F64)
    state = df.sgd(0.5).start({"p": p})
    for learning_rate, expected in (
        (0.5, 0.5), (rate, 0.25), (lambda step: 1.0 / step, 1 / 3), (df.constant(0.125), 0.125)
    ):  # fmt: skip
        moved, after = df.sgd(learning_rate).step({"p": p}, {"p": np.ones(2)}, {**state, "step": np.int64(2)})
        values = df.evaluate([moved, after], {p: [1.0, 2.0], rate: 0.25})
        np.testing.assert_allclose(values[0]["p"], [1 - expected, 2 - expected], rtol=1e-15)
        assert values[1]["step"] == 3


def test_the_rate_warms_up_in_a_line_and_falls_in_half_a_cosine() -> None:
    step = df.input("step", (), np.int64)
    program = df.Program(df.warmup_cosine(2.0, 10, 50, 0.5)(step), [step])
    for at in range(1, 61):
        falling = 0.5 + 1.5 * 0.5 * (1 + math.cos(math.pi * min((at - 10) / 40, 1)))
        expected = 2.0 * at / 10 if at < 10 else falling
        assert program(at) == pytest.approx(expected, rel=1e-12)
    without = df.Program(df.warmup_cosine(2.0, 0, 4)(step), [step])
    assert [float(without(at)) for at in (0, 2, 4)] == pytest.approx([2.0, 1.0, 0.0])
    with pytest.raises(ValueError, match="warmup_steps must be from 0 to below total_steps, got 5 and 5"):
        df.warmup_cosine(1.0, 5, 5)


def test_gradients_are_clipped_together_and_keep_their_bits_within_the_norm() -> None:
    tree = {"a": df.input("a", (2,), F64), "b": [df.input("b", (), np.float32)]}
    program = df.Program(df.clip_by_global_norm(tree, 6.5), [tree])
    (clipped, norm) = program({"a": [3.0, 4.0], "b": [12.0]})
    assert norm == 13.0
    assert clipped["a"].tolist() == [1.5, 2.0]
    assert (clipped["b"][0], clipped["b"][0].dtype) == (6.0, np.float32)
    within = {"a": np.array([0.1, 0.3]), "b": [np.float32(0.7)]}
    same, _ = program(within)
    np.testing.assert_array_equal(same["a"], within["a"])
    assert same["b"][0] == within["b"][0]
    nothing, _ = program({"a": [0.0, 0.0], "b": [0.0]})
    assert nothing["a"].tolist() == [0.0, 0.0]


def test_a_step_can_be_differentiated_by_its_rate() -> None:
    """One step of training as a function of the rate: what learned optimisers do."""
    rate = df.input("rate", (), F64)
    params = start()

    def after(rate: Any) -> Any:
        moved, _ = df.adam(rate).step(params, df.grad(loss_of)(params), df.adam().start(params))
        return loss_of(moved)

    program = df.Program([after(rate), df.grad(after)(rate)], [rate])
    _, by_rate = program(0.02)
    difference = (program(0.02 + 1e-6)[0] - program(0.02 - 1e-6)[0]) / 2e-6
    assert by_rate == pytest.approx(difference, rel=1e-6)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda p: df.sgd(0.1).step({"p": p}, {"p": np.ones(3)}, {"step": 0}), BadTensor,
         r"sgd: the gradients must have the shapes of the parameters, \(2,\) here, got \(3,\)"),
        (lambda p: df.sgd(0.1).step({"p": p}, {}, {"step": 0}), BadTensor,
         r"sgd: the gradients must be a tree like the parameters: a dict with the keys \['p'\] is wanted"),
        (lambda p: df.momentum(0.1).step({"p": p}, {"p": p}, {"step": 0, "velocity": {"q": p}}), BadTensor,
         r"momentum: the state 'velocity' must be a tree like the parameters: .* got a dict with the keys \['q'\]"),
        (lambda p: df.sgd(0.1).step({"p": p}, {"p": "text"}, {"step": 0}), BadTensor,
         r"the shapes of the parameters, \(2,\) here, got 'text'"),
        (lambda p: df.sgd(0.1).step([np.arange(2)], [p], {"step": 0}), BadTensor,
         "sgd: parameters are tensors of floats"),
        (lambda p: df.sgd(np.ones(2)).step({"p": p}, {"p": p}, {"step": 0}), BadTensor,
         r"the learning rate must be a number, or have the shape \(\), got \(2,\)"),
        (lambda p: df.adam(beta2=1.0), ValueError, "beta2 must be from 0 to below 1, got 1.0"),
        (lambda p: df.momentum(0.1, -0.5), ValueError, "decay must be from 0 to below 1, got -0.5"),
        (lambda p: df.clip_by_global_norm([p], 0), ValueError, "max_norm must be above 0, got 0"),
        (lambda p: df.clip_by_global_norm([], 1.0), BadTensor, "gradients are tensors of floats"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_in_one_line(ask: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ask(df.input("p", (2,), F64))


def test_gradients_of_half_precision_are_clipped_by_a_norm_that_does_not_overflow() -> None:
    gradient = np.full(100, 300, np.float16)
    clipped, norm = df.clip_by_global_norm(df.constant(gradient), 30.0)
    found, length = df.evaluate((clipped, norm), {})
    assert found.dtype == np.float16
    np.testing.assert_allclose(length, 3000, rtol=1e-6)
    np.testing.assert_array_equal(found, np.full(100, 3, np.float16))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda x: df.adam().step(x, x, {}),
            "adam: the state is a dict with step, mean, square, as start makes it, got {}",
        ),
        (
            lambda x: df.sgd(0.1).step(x, x, None),
            "sgd: the state is a dict with step, as start makes it, got None",
        ),
        (
            lambda x: df.sgd("fast").step(x, x, {"step": 0}),
            "the learning rate must be a number, .* got 'fast'",
        ),  # type: ignore[arg-type]
        (lambda x: df.momentum(0.1, None), "decay must be from 0 to below 1, got None"),  # type: ignore[arg-type]
        (lambda x: df.clip_by_global_norm(x, None), "max_norm must be above 0, got None"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_state_and_no_number_is_refused(step: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step(df.input("x", (2,)))


@pytest.mark.parametrize("make", [df.sgd, df.momentum, df.adam])
def test_half_precision_takes_the_steps_of_single_precision_rounded(
    make: Callable[[float], df.Optimiser],
) -> None:
    optimiser = make(0.01)
    gradient = np.array([0, 1e-6, 1e-4, 3, 6e4], np.float16)

    def run(dtype: Any) -> Any:
        params = np.ones(5, dtype)
        state = optimiser.start(params)
        given, memory = df.inputs_like(params, "p"), df.inputs_like(state, "state.")
        step = df.Program(
            optimiser.step(given, gradient.astype(dtype), memory), [given, memory], donated=[given, memory]
        )
        return step(params, state)

    (half, remembered), (single, expected) = run(np.float16), run(np.float32)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, single.astype(np.float16))
    for one, other in zip(flatten(remembered)[0], flatten(expected)[0], strict=True):
        np.testing.assert_array_equal(one, other)
