"""Gradients as graphs: right to every order, by each argument alone, and no larger than they must be.

References are closed forms and central finite differences, computed by numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dag import BadGraph, Graph
from dag import dataflow as df
from dag.errors import BadTensor, NotDifferentiable, UnknownOperator

F64 = np.dtype(np.float64)


def number(name: str = "x") -> df.Tensor:
    return df.input(name, (), F64)


def slope(function: Callable[[np.ndarray], Any], at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The gradient of a function to a number, by central differences."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        move = np.zeros_like(at)
        move[place] = step
        found[place] = (function(at + move) - function(at - move)) / (2 * step)
    return found


# -- a formula, to every order


FIFTH_DERIVATIVES: dict[str, tuple[Callable[..., Any], Callable[[float, int], float]]] = {
    "x ** 5": (lambda x: x**5, lambda x, n: math.perm(5, n) * x ** (5 - n)),
    "x * x * x * x * x": (lambda x: x * x * x * x * x, lambda x, n: math.perm(5, n) * x ** (5 - n)),
    "exp": (df.exp, lambda x, n: math.exp(x)),
    "sin": (lambda x: df.apply("sin", x), lambda x, n: math.sin(x + n * math.pi / 2)),
    "1 / x": (lambda x: 1 / x, lambda x, n: (-1) ** n * math.factorial(n) * x ** -(n + 1)),
    "log": (df.log, lambda x, n: (-1) ** (n - 1) * math.factorial(n - 1) * x**-n),
}


@pytest.mark.parametrize("formula", FIFTH_DERIVATIVES)
@pytest.mark.parametrize("wrapped", ["plain", "checkpoint", "by jvp"])
def test_derivatives_up_to_the_fifth_are_those_of_the_closed_form(formula: str, wrapped: str) -> None:
    function, expected = FIFTH_DERIVATIVES[formula]

    def next_one(f: Callable[..., Any]) -> Callable[..., Any]:
        if wrapped == "by jvp":
            return lambda x: df.jvp(f, (x,), (1.0,))[1]
        return df.grad(df.checkpoint(f) if wrapped == "checkpoint" else f)

    x = number()
    values = []
    current = function
    for _ in range(5):
        current = next_one(current)
        values.append(current(x))
    at = 1.3
    assert df.evaluate(values, {x: at}) == pytest.approx([expected(at, n) for n in range(1, 6)], rel=1e-11)


# -- random functions against finite differences


STEPS: list[Callable[..., Any]] = [
    lambda a, b: a + b,
    lambda a, b: a - b * 0.5,
    lambda a, b: a * b,
    lambda a, b: np.tanh(a) / (2 + np.tanh(b) * np.tanh(b)),
    lambda a, b: np.exp(np.tanh(a)) * b,
    lambda a, b: np.tanh(np.matmul(a, np.transpose(b))),
    lambda a, b: np.reshape(np.transpose(a), (3, 3)) + b,
    lambda a, b: np.broadcast_to(np.sum(a, axis=0, keepdims=True), (3, 3)) * b,
    lambda a, b: np.log(3 + np.tanh(a)) + np.broadcast_to(np.mean(b), (3, 3)),
]


def composed(plan: list[tuple[int, int, int]]) -> Callable[..., Any]:
    """A function of two matrices to a number that runs on arrays and on tensors: step, and which earlier values it takes."""

    def function(x: Any, y: Any) -> Any:
        values = [x, y]
        for step, left, right in plan:
            values.append(STEPS[step](values[left % len(values)], values[right % len(values)]))
        return np.mean(np.tanh(values[-1] + values[-1 - len(plan) // 2]))

    return function


plans = st.lists(
    st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=9
)
matrices = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(size=(2, 3, 3)))
X, Y = df.input("x", (3, 3), F64), df.input("y", (3, 3), F64)


@settings(max_examples=40)
@given(plans, matrices)
def test_grad_and_jvp_and_hvp_of_random_functions_are_their_finite_differences(
    plan: list[tuple[int, int, int]], points: np.ndarray
) -> None:
    function = composed(plan)
    x, y = points
    along = np.cos(np.arange(9.0)).reshape(3, 3)
    gradients = df.grad(function, (0, 1))(X, Y)
    value, change = df.jvp(function, (X, Y), (along, None))
    products = df.hvp(function, (X, Y), (along, along))
    by_xy, value, change, products = df.evaluate([gradients, value, change, products], {X: x, Y: y})
    assert value == pytest.approx(function(x, y), rel=1e-12)
    np.testing.assert_allclose(by_xy[0], slope(lambda at: function(at, y), x), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(by_xy[1], slope(lambda at: function(x, at), y), rtol=1e-5, atol=1e-8)
    step = 1e-5
    moved = function(x + step * along, y) - function(x - step * along, y)
    assert change == pytest.approx(moved / (2 * step), rel=1e-5, abs=1e-8)
    slopes = df.Program(gradients, [X, Y])
    ahead, behind = slopes(x + step * along, y + step * along), slopes(x - step * along, y - step * along)
    for product, more, less in zip(products, ahead, behind, strict=True):
        np.testing.assert_allclose(product, (more - less) / (2 * step), rtol=1e-4, atol=1e-7)


@settings(max_examples=40)
@given(plans, matrices, st.integers(0, 9), st.sampled_from(["nothing", "all", "matmuls"]))
def test_a_checkpoint_gives_the_same_bits_and_its_second_derivatives_agree(
    plan: list[tuple[int, int, int]], points: np.ndarray, cut: int, policy: str
) -> None:
    def split(x: Any, y: Any) -> Any:
        """The same steps, those up to ``cut`` in a checkpoint that hands on all its values, the rest in another."""
        kept = {"nothing": df.save_nothing, "all": df.save_all, "matmuls": df.save_matmuls}[policy]

        def run(some: list[tuple[int, int, int]]) -> Callable[[list[Any]], list[Any]]:
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


# -- which derivative is meant


def test_the_gradient_by_one_argument_is_by_that_alone_even_where_two_are_one_tensor() -> None:
    x = number()
    found = df.evaluate(
        [
            df.grad(lambda a, b: a * b, 0)(x, x),
            df.grad(lambda a, b: a * b, (0, 1))(x, x),
            df.grad(lambda a: a * x)(x),
            df.grad(lambda a: df.grad(lambda b: a * b)(a) * a)(x),  # a * a: 2 a
            df.grad(lambda a: df.grad(lambda b: a + b)(1.0) * a)(x),  # perturbation confusion gives 2
            df.jvp(lambda a, b: a * b, (x, x), (1.0, None))[1],
        ],
        {x: 3.0},
    )
    assert found == [3.0, (3.0, 3.0), 3.0, 6.0, 1.0, 3.0]


def test_argnums_choose_arguments_and_trees_come_back_as_trees() -> None:
    params = {"w": df.input("w", (2,), F64), "layers": [(df.input("b", (), F64), None)]}
    x = df.input("data", (2,), F64)

    def loss(data: Any, p: Any) -> Any:
        return df.sum(data * p["w"]) * p["layers"][0][0]

    values = {x: [1.0, 2.0], params["w"]: [3.0, 4.0], params["layers"][0][0]: 5.0}
    found = df.evaluate(df.grad(loss, 1)(x, params), values)
    assert found["w"].tolist() == [5.0, 10.0]
    assert found["layers"][0] == (11.0, None)
    by_both = df.evaluate(df.grad(loss, (-1, 0))(x, params), values)
    assert by_both[0]["w"].tolist() == [5.0, 10.0]
    assert by_both[1].tolist() == [15.0, 20.0]


def test_aux_stands_beside_the_loss_and_beside_the_gradient() -> None:
    x = number()
    (loss, aux), slope_of = df.value_and_grad(lambda x: (x * x, {"half": x / 2}), has_aux=True)(x)
    gradient, same = df.grad(lambda x: (x * x, {"half": x / 2}), has_aux=True)(x)
    assert df.evaluate([loss, aux, slope_of, gradient, same], {x: 3.0}) == [
        9.0, {"half": 1.5}, 6.0, 6.0, {"half": 1.5}
    ]  # fmt: skip


def test_arrays_and_numbers_as_arguments_are_constants_and_give_tensors() -> None:
    gradient = df.grad(lambda w, x: df.sum(w * w * x))(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    assert isinstance(gradient, df.Tensor)
    assert df.evaluate(gradient).tolist() == [6.0, 16.0]
    assert df.evaluate(df.grad(df.exp)(1.0)) == math.e


def test_where_nothing_depends_the_gradient_is_zeros_in_shape_and_dtype() -> None:
    w = df.input("w", (2, 3), np.float32)
    x = number()
    found = df.evaluate(df.grad(lambda w, x: x * 2, (0, 1))(w, x), {w: np.ones((2, 3)), x: 1.0})
    assert found[0].dtype == np.float32
    np.testing.assert_array_equal(found[0], np.zeros((2, 3)))
    assert found[1] == 2.0


def test_a_gradient_has_the_dtype_of_its_argument() -> None:
    w = df.input("w", (3,), np.float32)
    gradient = df.grad(lambda w: df.sum(w * np.arange(3.0)))(w)  # float64 constants: the loss is float64
    assert gradient.dtype == np.float32
    assert df.evaluate(gradient, {w: np.ones(3)}).tolist() == [0.0, 1.0, 2.0]


def test_a_stopped_gradient_is_a_constant_to_derivatives_and_changes_no_value() -> None:
    x = number()
    loss, gradient = df.value_and_grad(lambda x: x * df.stop_gradient(x * x))(x)
    assert df.evaluate([loss, gradient], {x: 3.0}) == [27.0, 9.0]
    assert df.evaluate(df.jvp(lambda x: x * df.stop_gradient(x), (x,), (1.0,))[1], {x: 3.0}) == 3.0


def test_vjp_takes_a_cotangent_for_each_result_and_none_for_results_that_have_none() -> None:
    x = df.input("x", (2,), F64)
    (product, larger), pull = df.vjp(lambda x: (x * x, x > 0), x)
    (back,) = pull((np.array([1.0, 10.0]), None))
    assert larger.dtype == np.bool_
    assert df.evaluate(back, {x: [3.0, 4.0]}).tolist() == [6.0, 80.0]
    assert product.shape == (2,)
    with pytest.raises(BadTensor, match=r"the cotangent of .* must have its shape \(2,\), got \(3,\)"):
        pull((np.ones(3), None))
    with pytest.raises(BadTensor, match="the cotangent must be a tuple of 2"):
        pull(np.ones(2))


def test_the_jacobian_holds_each_derivative_and_the_hessian_is_that_of_the_gradient() -> None:
    x = df.input("x", (3,), F64)
    matrix = np.arange(6.0).reshape(2, 3)

    def function(x: Any) -> Any:
        return df.tanh(df.reshape(df.matmul(matrix, df.reshape(x, (3, 1))), (2,)))

    at = np.array([0.1, -0.2, 0.3])
    found = df.evaluate(df.jacobian(function)(x), {x: at})
    np.testing.assert_allclose(found, (1 - np.tanh(matrix @ at) ** 2)[:, None] * matrix, rtol=1e-12)
    curvature = df.evaluate(df.hessian(lambda x: df.sum(x * x * x) + x[0] * x[2])(x), {x: at})
    expected = np.diag(6 * at)
    expected[0, 2] = expected[2, 0] = 1
    np.testing.assert_allclose(curvature, expected, rtol=1e-12, atol=1e-15)
    assert df.jacobian(lambda x: df.reshape(x, (1, 3)) * x)(x).shape == (1, 3, 3)
    assert df.jacobian(lambda x: x)(df.input("none", (0,), F64)).shape == (0, 0)


def test_elementwise_grad_is_the_derivative_at_each_element() -> None:
    x = df.input("x", (4,), F64)
    at = np.linspace(-1, 1, 4)
    found = df.evaluate(df.elementwise_grad(df.elementwise_grad(df.tanh))(x), {x: at})
    np.testing.assert_allclose(found, -2 * np.tanh(at) * (1 - np.tanh(at) ** 2), rtol=1e-12)


# -- rules of one's own


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


# -- recomputation


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


def test_tensors_that_a_checkpointed_function_finds_outside_get_their_gradients() -> None:
    x, w = number(), number("w")

    def loss(x: Any, w: Any) -> Any:
        outside = df.tanh(w) * x
        return df.checkpoint(lambda x: df.exp(x * outside) * w)(x)

    plain = lambda x, w: df.exp(x * (df.tanh(w) * x)) * w  # noqa: E731
    found = df.evaluate([df.grad(f, (0, 1))(x, w) for f in (loss, plain)], {x: 0.3, w: 0.5})
    assert [*found[0]] == pytest.approx([*map(float, found[1])], rel=1e-14)


# -- size


def test_the_gradient_of_a_chain_is_linear_in_its_length_and_ten_thousand_nodes_are_no_matter() -> None:
    def loss(length: int) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for _ in range(length):
                x = df.tanh(x)
            return x

        return run

    x = number()
    sizes = [len(Graph((df.grad(loss(length))(x),))) for length in (100, 200, 400)]
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0])
    gradient = df.grad(loss(10_000))(x)
    assert len(Graph((gradient,))) < 6 * 10_000
    at, expected = 0.5, 1.0
    for _ in range(3_000):
        at = math.tanh(at)
        expected *= 1 - at * at
    assert df.evaluate(df.grad(df.checkpoint(loss(3_000)))(x), {x: 0.5}) == pytest.approx(expected, rel=1e-9)
    assert len(Graph((df.hvp(loss(2_000), (x,), (1.0,))[0],))) < 40 * 2_000


def test_diamonds_in_a_row_are_walked_once_each() -> None:
    def loss(x: Any) -> Any:
        for _ in range(200):  # 2 ** 200 paths
            x = (x + x * x) * 0.5
        return x

    x = number()
    gradient = df.grad(loss)(x)
    assert len(Graph((gradient,))) < 200 * 14
    at, expected = 0.9, 1.0
    for _ in range(200):
        expected *= (1 + 2 * at) * 0.5
        at = (at + at * at) * 0.5
    assert df.evaluate(gradient, {x: 0.9}) == pytest.approx(expected, rel=1e-10)


def test_branches_that_do_not_lead_to_the_wanted_inputs_cost_no_nodes() -> None:
    x, y = number(), number("y")

    def side(y: Any) -> Any:
        for _ in range(50):
            y = df.tanh(y)
        return y

    assert len(Graph((df.grad(lambda x: x * 2 + side(y))(x),))) < 8
    # an operator without a rule may stand where no derivative is wanted
    df.define(
        "test_no_rule", shape=lambda value: (value.shape, value.dtype), gradient=None,
        kernels={"numpy": lambda node: np.positive},
    )  # fmt: skip
    try:
        assert df.evaluate(df.grad(lambda x: x * df.apply("test_no_rule", y))(x), {y: 4.0, x: 1.0}) == 4.0
        with pytest.raises(
            NotDifferentiable, match=r"the operator 'test_no_rule' has no gradient rule; put stop_grad"
        ):
            df.grad(lambda x: df.apply("test_no_rule", x))(x)
    finally:
        from dag.dataflow import tables

        for table in (tables.SHAPES, tables.GRADIENTS, tables.TRAITS, tables.KERNELS["numpy"]):
            del table["test_no_rule"]  # type: ignore[attr-defined]


def test_a_hessian_vector_product_costs_a_constant_times_the_gradient() -> None:
    def loss(x: Any) -> Any:
        for _ in range(5):
            x = df.tanh(df.matmul(x, np.full((20, 20), 0.1)))
        return df.sum(x)

    def flops(outputs: Any) -> int:
        from dag.dataflow.tables import TRAITS

        return sum(
            TRAITS[node.op.kind].flops(node)
            for node in Graph(outputs).nodes
            if node.op.kind not in {"input", "constant"}
        )

    for rows in (1, 30):
        x = df.input("x", (rows, 20), F64)
        assert flops(df.hvp(loss, (x,), (np.ones((rows, 20)),))) < 3 * flops((df.grad(loss)(x),))


# -- what cannot be


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda x, n: df.grad(lambda n: df.sum(n))(n), NotDifferentiable,
         "a gradient is by a tensor of floats; 'n' has the dtype int64: convert it with astype, or leave it out"),
        (lambda x, n: df.grad(lambda x: df.sum(x.astype(np.int64)))(x), NotDifferentiable,
         "a gradient is of a tensor of floats; 'sum_.*' has the dtype int64"),
        (lambda x, n: df.grad(lambda x: x * 2)(x), BadTensor,
         r"a function whose result has the shape \(\), got \(3,\); use vjp, or sum it"),
        (lambda x, n: df.grad(lambda x: None)(x), NotDifferentiable,
         "a function that returns a tensor, got None"),
        (lambda x, n: df.grad(lambda x: (df.sum(x), x))(x), NotDifferentiable,
         "has_aux=True passes on what stands beside the loss"),
        (lambda x, n: df.grad(lambda x: df.sum(x), has_aux=True)(x), NotDifferentiable,
         r"with has_aux=True the function returns \(loss, aux\)"),
        (lambda x, n: df.grad(lambda x: df.sum(x), 1)(x), BadTensor,
         "argnums 1 is out of range: the function is given 1 argument"),
        (lambda x, n: df.grad(lambda x, y: df.sum(x), (0, -2))(x, x), BadTensor, "names an argument twice"),
        (lambda x, n: df.grad(lambda x: df.sum(x))("text"), NotDifferentiable, "a gradient is by tensors, got 'text'"),
        (lambda x, n: df.vjp(lambda x: x > 0, x), NotDifferentiable, "vjp wants a function that returns a tensor"),
        (lambda x, n: df.jvp(lambda x: x, (x,), (np.ones(2),)), BadTensor,
         r"a tangent must have the shape \(3,\) of its input, got \(2,\)"),
        (lambda x, n: df.jvp(lambda x: x, (x,), ()), BadTensor, "the tangents must be a tuple of 1"),
        (lambda x, n: df.jvp(clipped_identity(), (x,), (np.ones(3),)), NotDifferentiable,
         "is not linear in its cotangent"),
        (lambda x, n: df.hvp(lambda x: df.sum(x), (x,), (None,)), BadTensor, "a vector is wanted for one input"),
        (lambda x, n: df.jacobian(lambda x: x, 2)(x), BadTensor, "argnum 2 is out of range"),
    ],
)  # fmt: skip
def test_what_has_no_derivative_is_told_in_one_line(ask: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        ask(df.input("x", (3,), F64), df.input("n", (3,), np.int64))
    assert "\n" not in str(caught.value)


# -- graphs from names


def test_a_graph_from_names_is_the_graph_of_the_calls() -> None:
    x, w = df.input("x", (4, 3), F64), df.input("weights", (3, 2), F64)
    made = df.build(
        {
            "loss": ("mean", "hidden", {"axis": (0, 1)}),
            "product": ("matmul", "x", "w"),
            "hidden": ("tanh", "halved"),
            "halved": ("multiply", "product", 0.5),
            "same": ("reshape", "x", {"shape": (4, 3)}),
        },
        {"x": x, "w": w},
    )
    assert list(made) == ["loss", "product", "hidden", "halved", "same"]
    assert [tensor.name for tensor in made.values()] == list(made)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 3)), rng.normal(size=(3, 2))
    loss, same = df.evaluate([made["loss"], made["same"]], {x: a, w: b})
    assert loss == pytest.approx(np.mean(np.tanh(a @ b * 0.5)), rel=1e-14)
    np.testing.assert_array_equal(same, a)
    assert made["loss"] in Graph((made["loss"],)).nodes


@pytest.mark.parametrize(
    ("tasks", "error", "message"),
    [
        ({"a": ("tanh", "c"), "b": ("tanh", "a"), "c": ("add", "b", "x")}, BadGraph,
         r"^the nodes run in a circle: (a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c)$"),
        ({"a": ("tanh", "a")}, BadGraph, "^the nodes run in a circle: a -> a$"),
        ({"a": ("matmull", "x", "x")}, UnknownOperator, r"^there is no operator 'matmull'; did you mean matmul"),
        ({"a": ("tanh", "z")}, BadGraph, "^the task 'a' needs 'z', which is no task and no input$"),
        ({"a": "tanh"}, BadGraph, r"^the task 'a' must be \(operator, input, ..., \{attributes\}\), got 'tanh'$"),
        ({"x": ("tanh", "x")}, BadGraph, "^the name 'x' stands for an input and for a task; give each its own$"),
        ({"a": ("matmul", "x", "x")}, BadTensor, r"matmul: \(2, 3\) x \(2, 3\): inner dimensions 3 and 2 differ"),
        ({"a": ("sum", "x", {"axes": 0})}, BadGraph, "^the task 'a': sum does not take what it was given"),
    ],
)  # fmt: skip
def test_names_that_make_no_graph_are_told_in_one_line(
    tasks: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        df.build(tasks, {"x": df.input("x", (2, 3), F64)})


def test_two_inputs_of_one_name_are_refused() -> None:
    one, other = number("x"), number("x")
    with pytest.raises(BadGraph, match="two nodes have the name 'x'; give each its own"):
        df.build({"a": ("add", "x", "y")}, {"x": one, "y": other})
    with pytest.raises(BadGraph, match="two nodes have the name 'x'; give each its own"):
        df.evaluate(df.grad(lambda a, b: a * b)(one, other) + one, {one: 1.0, other: 2.0})
