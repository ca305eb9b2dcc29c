"""Rules of one's own with custom_vjp: used in place of the formula's, to every order, and checked when they are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dataflow_functions import F64, STEPS, Plan, X, Y, composed, matrices, number, plans
from hypothesis import given
from hypothesis import strategies as st

from dag import Graph
from dag import dataflow as df
from dag.dataflow.trees import flatten
from dag.errors import BadTensor, NotDifferentiable


def clipped_identity() -> Any:
    clipped = df.custom_vjp(lambda x: x * 1.0)
    clipped.defvjp(lambda x: (x * 1.0, None), lambda _, g: (np.minimum(np.maximum(g, -1.0), 1.0),))
    return clipped


def log1pexp() -> Any:
    """log(1 + e^x), whose formula overflows in the derivative and whose rule does not (JAX's example)."""
    function = df.custom_vjp(lambda x: np.log(1 + np.exp(x)))
    function.defvjp(lambda x: (np.log(1 + np.exp(x)), x), lambda x, g: (g * (1 - 1 / (1 + np.exp(x))),))
    return function


def test_a_custom_rule_takes_the_place_of_the_formulas_derivative() -> None:
    x = number()
    assert df.evaluate(df.grad(lambda x: clipped_identity()(x) * 100)(x), {x: 1.0}) == 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        assert df.evaluate(df.grad(log1pexp())(x), {x: 1000.0}) == 1.0
        assert np.isnan(df.evaluate(df.grad(log1pexp().function)(x), {x: 1000.0}))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_custom_rule_is_differentiated_itself_for_higher_orders(order: int) -> None:
    x = number()
    ours, plain = log1pexp(), log1pexp().function
    for _ in range(order):
        ours, plain = df.grad(ours), df.grad(plain)
    assert df.evaluate(ours(x), {x: 0.7}) == pytest.approx(df.evaluate(plain(x), {x: 0.7}), rel=1e-12)
    along = df.evaluate(df.hvp(log1pexp(), (x,), (2.0,)), {x: 0.7})[0]
    assert along == pytest.approx(2 * np.exp(0.7) / (1 + np.exp(0.7)) ** 2, rel=1e-12)
    assert df.evaluate(df.jvp(log1pexp(), (x,), (2.0,))[1], {x: 0.7}) == pytest.approx(
        2 / (1 + np.exp(-0.7)), rel=1e-12
    )


def test_a_custom_rule_sees_the_cotangents_of_all_results_at_once_and_trees_and_arguments_set_aside() -> None:
    seen = []

    @df.custom_vjp
    def both(p: Any, x: Any) -> Any:
        return {"product": p["a"] * x, "sum": [p["a"] + x]}

    def backward(needed: Any, cotangent: Any) -> Any:
        p, x = needed
        seen.append(cotangent)
        return {"a": cotangent["product"] * x + cotangent["sum"][0]}, cotangent["product"] * p["a"]

    both.defvjp(lambda p, x: (both.function(p, x), (p, x)), backward)
    a, x = number("a"), number("x")
    loss = lambda a, x: both({"a": a}, x)["product"] * both({"a": a}, x)["sum"][0]  # noqa: E731
    found = df.evaluate(df.grad(loss, (0, 1))(a, x), {a: 2.0, x: 3.0})
    # d/da a x (a + x) = x (a + x) + a x; the second cotangent that backward here leaves out for x is a x
    assert found == (3.0 * 5.0 + 6.0, 2.0 * 5.0)
    assert len(seen) == 2

    powered = df.custom_vjp(lambda n, x: x**n, nondiff_argnums=(0,))
    powered.defvjp(lambda n, x: (x**n, x), lambda n, x, g: (g * n * x ** (n - 1),))
    assert df.evaluate(df.grad(lambda x: powered(3, x))(x), {x: 2.0}) == 12.0


def test_a_custom_rule_inside_a_checkpoint_and_a_checkpoint_inside_a_checkpoint_work_to_second_order() -> (
    None
):
    x = number()
    inner = df.checkpoint(lambda x: log1pexp()(df.tanh(x)) * x)
    outer = df.checkpoint(lambda x: inner(inner(x)) + df.exp(x))
    plain_inner = lambda x: np.log(1 + np.exp(np.tanh(x))) * x  # noqa: E731
    plain = lambda x: plain_inner(plain_inner(x)) + np.exp(x)  # noqa: E731
    found = df.evaluate(
        [
            f(x)
            for g in (outer, plain)
            for f in (df.grad(g), df.grad(df.grad(g)), df.grad(df.grad(df.grad(g))))
        ],
        {x: 0.4},
    )
    found = [*map(float, found)]
    assert found[:3] == pytest.approx(found[3:], rel=1e-11)


@pytest.mark.parametrize(
    ("forward", "backward", "message"),
    [
        (lambda x: x, lambda r, g: (g,), r"forward of .* must return \(result, needed\)"),
        (lambda x: (x[0], x), lambda r, g: (g,), r"forward of .* returns a result of the shapes \(\), the function"),
        (lambda x: (x * 1, None), lambda r, g: g, "backward of .* must return a tuple of 1"),
        (lambda x: (x * 1, None), lambda r, g: (g, g), "backward of .* must return a tuple of 1"),
        (lambda x: (x * 1, None), lambda r, g: (g[0],), r"gave a cotangent of the shape \(\) for an argument of \(2,\)"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_told_when_it_is_used(forward: Any, backward: Any, message: str) -> None:
    function = df.custom_vjp(lambda x: x * 1)
    function.defvjp(forward, backward)
    with pytest.raises(BadTensor, match=message):
        df.grad(lambda x: df.sum(function(x)))(df.input("x", (2,), F64))


def by_its_own_rule(step: Any) -> Any:
    """The step with a rule that says what the formula says: the pull of its vjp."""
    custom = df.custom_vjp(step)
    custom.defvjp(lambda a, b: (step(a, b), (a, b)), lambda kept, g: df.vjp(step, *kept)[1](g))
    return custom


WRAPPED = [(step, by_its_own_rule(step), df.checkpoint(by_its_own_rule(step))) for step in STEPS]


@given(plans, matrices, st.lists(st.integers(0, 2), min_size=9, max_size=9))
def test_rules_that_say_what_the_formula_says_change_no_derivative_of_random_functions(
    plan: Plan, points: np.ndarray, wrapping: list[int]
) -> None:
    def wrapped(x: Any, y: Any) -> Any:
        values = [x, y]
        for (step, left, right), how in zip(plan, wrapping, strict=False):
            values.append(WRAPPED[step][how](values[left % len(values)], values[right % len(values)]))
        return np.mean(np.tanh(values[-1] + values[-1 - len(plan) // 2]))

    along = np.ones((3, 3))
    outputs = [
        (
            df.value_and_grad(f, (0, 1))(X, Y),
            df.hvp(f, (X, Y), (along, along)),
            df.jvp(f, (X, Y), (along, along))[1],
        )
        for f in (composed(plan), wrapped)
    ]
    plain, ours = (flatten(each)[0] for each in df.evaluate(outputs, dict(zip((X, Y), points, strict=True))))
    for left, right in zip(plain, ours, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-12)


def test_a_rule_that_is_not_linear_has_gradients_but_no_change_along_a_direction() -> None:
    x = number()
    with pytest.raises(NotDifferentiable, match="is not linear in its cotangent"):
        df.jvp(clipped_identity(), (x,), (1.0,))
    curved = lambda x: clipped_identity()(x * x * x) * 0.5  # noqa: E731
    assert df.evaluate(df.hvp(curved, (x,), (1.0,))[0], {x: 2.0}) == 0.5 * 6 * 2.0


def test_what_forward_computes_again_is_shared_with_the_function_by_the_passes() -> None:
    x = df.input("x", (3,), F64)
    graph = Graph(df.value_and_grad(lambda x: df.sum(log1pexp()(x)))(x))
    kinds = [node.op.kind for node in df.optimise(graph, fused=False).graph.nodes]
    assert kinds.count("exp") == 1
    assert "call" not in kinds
    assert "identity" not in kinds


def test_a_custom_function_without_rule_or_with_what_no_gradient_reaches_is_refused() -> None:
    x, outside = number(), number("outside")
    with pytest.raises(NotDifferentiable, match="has no rule yet; give it one with defvjp"):
        df.custom_vjp(lambda x: x)(x)
    closed = df.custom_vjp(lambda x: x * outside)
    closed.defvjp(lambda x: (x * outside, None), lambda r, g: (g,))
    with pytest.raises(NotDifferentiable, match="uses 'outside', which is none of its arguments"):
        closed(x)
    with pytest.raises(
        NotDifferentiable, match="'three', which is no tensor; name its place in nondiff_argnums"
    ):
        clipped_identity()("three")
    powered = df.custom_vjp(lambda x, n: x**n, nondiff_argnums=(1,))
    powered.defvjp(lambda x, n: (x**n, x), lambda n, x, g: (g * n * x ** (n - 1),))
    with pytest.raises(BadTensor, match="was given 1 arguments by place; nondiff_argnums names 1"):
        powered(x)
    with pytest.raises(BadTensor, match=r"nondiff_argnums of .* are places from 0 on, got \(-1,\)"):
        df.custom_vjp(lambda x: x, nondiff_argnums=(-1,))
