"""Gradients as graphs: right to every order, by each argument alone, and no larger than they must be.

References are closed forms and central finite differences, computed by numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dataflow_functions import F64, Plan, X, Y, composed, matrices, number, plans
from hypothesis import given

from dag import Graph
from dag import dataflow as df
from dag.dataflow import tables
from dag.errors import BadTensor, NotDifferentiable


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
@pytest.mark.parametrize("wrapped", ["plain", "checkpoint", "by jvp", "checkpoint by jvp"])
def test_derivatives_up_to_the_fifth_are_those_of_the_closed_form(formula: str, wrapped: str) -> None:
    function, expected = FIFTH_DERIVATIVES[formula]

    def next_one(f: Callable[..., Any]) -> Callable[..., Any]:
        g = df.checkpoint(f) if "checkpoint" in wrapped else f
        return (lambda x: df.jvp(g, (x,), (1.0,))[1]) if "by jvp" in wrapped else df.grad(g)

    x = number()
    values = []
    current = function
    for _ in range(5):
        current = next_one(current)
        values.append(current(x))
    at = 1.3
    assert df.evaluate(values, {x: at}) == pytest.approx([expected(at, n) for n in range(1, 6)], rel=1e-11)


# -- random functions against finite differences


@given(plans, matrices)
def test_grad_and_jvp_and_hvp_of_random_functions_are_their_finite_differences(
    plan: Plan, points: np.ndarray
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
    cube, pull, beside = df.vjp(lambda x: (x**3, {"half": x / 2}), x, has_aux=True)
    assert df.evaluate([cube, *pull(1.0), beside["half"]], {x: 3.0}) == [27, 27, 1.5]
    assert df.evaluate([loss, aux, slope_of, gradient, same], {x: 3.0}) == [
        9.0, {"half": 1.5}, 6.0, 6.0, {"half": 1.5}
    ]  # fmt: skip


def test_arrays_and_numbers_as_arguments_are_constants_and_give_tensors() -> None:
    gradient = df.grad(lambda w, x: df.sum(w * w * x))(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    assert isinstance(gradient, df.Tensor)
    assert df.evaluate(gradient).tolist() == [6.0, 16.0]
    assert df.evaluate(df.grad(df.exp)(1.0)) == math.e


def test_what_is_given_to_grad_may_change_afterwards_and_is_not_changed_by_the_function() -> None:
    array, x = np.array([1.0, 2.0]), number()
    gradient = df.grad(lambda a: df.sum(a * a))(array)
    array[:] = 100

    def doubling(params: Any) -> Any:
        params["w"] = params["w"] * 2
        return params["w"] * params["w"]

    params = {"w": x}
    by_w = df.grad(doubling)(params)
    assert params == {"w": x}
    values = df.evaluate([gradient, by_w["w"]], {x: 3.0})
    assert values[0].tolist() == [2.0, 4.0]
    assert values[1] == 24.0


def test_arguments_by_name_are_handed_on_and_a_function_may_return_what_it_was_given() -> None:
    x = number()
    found = [
        df.grad(lambda x, scale=1.0: x * scale)(x, scale=3.0),
        df.grad(lambda x: x)(x),
        df.grad(df.checkpoint(lambda x: x))(x),
        *df.jvp(lambda x: (x, x), (x,), (2.0,))[1],
    ]
    assert df.evaluate(found, {x: 5.0}) == [3.0, 1.0, 1.0, 2.0, 2.0]


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


def test_pull_back_gives_each_node_all_that_flows_through_it_and_none_where_nothing_does() -> None:
    x, other = number(), number("other")
    square = x * x
    fourth = square * square
    by_x, by_square, by_self, by_other = df.pull_back(
        [fourth, square], [df.constant(1.0), df.constant(10.0)], [x, square, fourth, other]
    )
    assert by_other is None
    found = df.evaluate([by_x, by_square, by_self], {x: 3.0})
    assert found == [4 * 27.0 + 10 * 6.0, 2 * 9.0 + 10.0, 1.0]


def test_a_graph_that_passes_have_rewritten_can_be_differentiated_unless_it_is_fused() -> None:
    x = number()

    def loss(x: Any) -> Any:
        y = df.tanh(x * 1.0 + 0.0) * df.tanh(x)
        return df.exp(df.identity(y) * 1.0) * y + (x * 2.0) / 1.0

    for graph in (Graph((loss(x),)), df.optimise(Graph((loss(x),)), fused=False).graph):
        (by_x,) = df.pull_back(graph.outputs, [df.constant(1.0)], [x])  # type: ignore[arg-type]
        t = math.tanh(0.3)
        expected = math.exp(t * t) * (1 + t * t) * 2 * t * (1 - t * t) + 2
        assert df.evaluate(by_x, {x: 0.3}) == pytest.approx(expected, rel=1e-13)
    fused = df.optimise(Graph((loss(x),))).graph
    with pytest.raises(NotDifferentiable, match="fused"):
        df.pull_back(fused.outputs, [df.constant(1.0)], [x])  # type: ignore[arg-type]


def test_vjp_takes_a_cotangent_for_each_result_and_none_for_results_that_have_none() -> None:
    x = df.input("x", (2,), F64)
    (product, larger), pull = df.vjp(lambda x: (x * x, x > 0), x)
    (back,) = pull((np.array([1.0, 10.0]), None))
    assert larger.dtype == np.bool_
    assert df.evaluate(back, {x: [3.0, 4.0]}).tolist() == [6.0, 80.0]
    assert product.shape == (2,)
    with pytest.raises(BadTensor, match=r"the cotangent of .* must have its shape \(2,\), got \(3,\)"):
        pull((np.ones(3), None))
    with pytest.raises(BadTensor, match="the cotangent: a tuple of 2 is wanted, got ndarray"):
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
        for table in (tables.SHAPES, tables.GRADIENTS, tables.TRAITS, tables.KERNELS["numpy"]):
            del table["test_no_rule"]  # type: ignore[attr-defined]


def test_a_hessian_vector_product_costs_a_constant_times_the_gradient() -> None:
    def loss(x: Any) -> Any:
        for _ in range(5):
            x = df.tanh(df.matmul(x, np.full((20, 20), 0.1)))
        return df.sum(x)

    def flops(outputs: Any) -> int:
        return sum(
            tables.TRAITS[node.op.kind].flops(node)
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
        (lambda x, n: df.vjp(lambda x: df.sum(x), x, has_aux=True), NotDifferentiable,
         r"with has_aux=True the function returns \(result, aux\), got Tensor"),
        (lambda x, n: df.jvp(df.sum, x, x), BadTensor, r"two tuples, as in jvp\(f, \(x,\), \(v,\)\); got Tensor\('x'"),
        (lambda x, n: df.hvp(df.sum, (x,), x), BadTensor, r"two tuples, as in hvp\(f, \(x,\), \(v,\)\); got Tensor\('x'"),
        (lambda x, n: df.grad(lambda x: df.sum(x), has_aux=True)(x), NotDifferentiable,
         r"with has_aux=True the function returns \(loss, aux\)"),
        (lambda x, n: df.grad(lambda x: df.sum(x), 1)(x), BadTensor,
         "argnums 1 is out of range: the function is given 1 argument"),
        (lambda x, n: df.grad(lambda x, y: df.sum(x), (0, -2))(x, x), BadTensor, "names an argument twice"),
        (lambda x, n: df.grad(lambda x: df.sum(x))("text"), NotDifferentiable, "a gradient is by tensors, got 'text'"),
        (lambda x, n: df.vjp(lambda x: x > 0, x), NotDifferentiable, "vjp wants a function that returns a tensor"),
        (lambda x, n: df.jvp(lambda x: x, (x,), (np.ones(2),)), BadTensor,
         r"a tangent must have the shape \(3,\) of its input, got \(2,\)"),
        (lambda x, n: df.jvp(lambda x: x, (x,), ()), BadTensor, "jvp: the tangents: a tuple of 1 is wanted, got a tuple of 0"),
        (lambda x, n: df.grad(lambda p: df.sum(p[1]))({1: x, "b": x}), ValueError,
         r"the keys of a dict of tensors must have an order, got \[1, 'b'\]"),
        (lambda x, n: df.hvp(lambda x: df.sum(x), (x,), (None,)), BadTensor, "a vector is wanted for one input"),
        (lambda x, n: df.jacobian(lambda x: x, 2)(x), BadTensor, "argnums names one of 1 arguments here, got 2"),
        (lambda x, n: df.hessian(df.sum, argnums=(0,))(x), BadTensor, r"argnums names one of 1 arguments here, got \(0,\)"),
    ],
)  # fmt: skip
def test_what_has_no_derivative_is_told_in_one_line(ask: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        ask(df.input("x", (3,), F64), df.input("n", (3,), np.int64))
    assert "\n" not in str(caught.value)
