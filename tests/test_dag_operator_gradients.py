"""Each operator's gradient rule against finite differences and against its own dual, over random shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dag_cases import Case, Chance
from dag_operators import EXAMPLES, SMOOTH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensor_graphs import naive as evaluate

from dag import dataflow as df

FEW = settings(max_examples=settings.default.max_examples // 2, suppress_health_check=list(HealthCheck))
STEP = 1e-5


class Directions:
    """A case whose float inputs are moved along a random direction."""

    def __init__(self, case: Case, chance: Chance) -> None:
        self.case, self.by = case, case.floats()
        self.inputs = case.inputs()
        self.tensors = [self.inputs[at] for at in self.by]
        self.directions = [chance.normal(case.arrays[at].shape) for at in self.by]
        self.result = case.apply(*self.inputs)
        self.weights = chance.normal(self.result.shape)

    def at(self, step: float) -> dict[df.Tensor, Any]:
        arrays = list(self.case.arrays)
        for at, direction in zip(self.by, self.directions, strict=True):
            arrays[at] = arrays[at] + step * direction
        return dict(zip(self.inputs, arrays, strict=True))

    def weighted(self, *tensors: df.Tensor) -> df.Tensor:
        """The sum of the result times the weights, as a function of the float inputs."""
        inputs = list(self.inputs)
        for at, tensor in zip(self.by, tensors, strict=True):
            inputs[at] = tensor
        return df.sum(self.case.apply(*inputs) * self.weights)

    def along(self, gradients: Any) -> float:
        return sum(float((g * d).sum()) for g, d in zip(gradients, self.directions, strict=True))


def directions_of(kind: str, data: st.DataObject) -> Directions | None:
    chance = Chance(data)
    case = EXAMPLES[kind](chance)
    made = Directions(case, chance)
    return made if made.result.dtype.kind == "f" else None


@pytest.mark.parametrize("kind", SMOOTH)
@FEW
@given(data=st.data())
def test_the_gradient_is_the_slope_that_finite_differences_find(kind: str, data: st.DataObject) -> None:
    found = directions_of(kind, data)
    if found is None:
        return
    loss = found.weighted(*found.tensors)
    above, below = (evaluate([loss], found.at(step))[0] for step in (STEP, -STEP))
    gradients = df.grad(found.weighted, argnums=tuple(range(len(found.by))))(*found.tensors)
    values = evaluate(gradients, found.at(0))
    for at, value in zip(found.by, values, strict=True):
        assert value.shape == found.case.arrays[at].shape
        assert value.dtype == found.case.arrays[at].dtype
    assert found.along(values) == pytest.approx((above - below) / (2 * STEP), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", SMOOTH)
@FEW
@given(data=st.data())
def test_the_products_with_the_jacobian_from_either_side_agree(kind: str, data: st.DataObject) -> None:
    found = directions_of(kind, data)
    if found is None:
        return

    def function(*tensors: df.Tensor) -> df.Tensor:
        inputs = list(found.inputs)
        for at, tensor in zip(found.by, tensors, strict=True):
            inputs[at] = tensor
        return found.case.apply(*inputs)

    directions = tuple(df.constant(each) for each in found.directions)
    _, change = df.jvp(function, tuple(found.tensors), directions)
    (pushed,) = evaluate([change], found.at(0))
    above, below = (evaluate([found.result], found.at(step))[0] for step in (STEP, -STEP))
    np.testing.assert_allclose(pushed, (above - below) / (2 * STEP), rtol=1e-6, atol=1e-6)
    gradients = df.grad(found.weighted, argnums=tuple(range(len(found.by))))(*found.tensors)
    pulled = found.along(evaluate(gradients, found.at(0)))
    assert pulled == pytest.approx(float((found.weights * pushed).sum()), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("kind", SMOOTH)
@FEW
@given(data=st.data())
def test_the_gradient_of_the_gradient_is_its_slope(kind: str, data: st.DataObject) -> None:
    found = directions_of(kind, data)
    if found is None:
        return
    by = tuple(range(len(found.by)))
    gradients = df.grad(found.weighted, argnums=by)(*found.tensors)
    above, below = (found.along(evaluate(gradients, found.at(step))) for step in (STEP, -STEP))

    def slope(*tensors: df.Tensor) -> df.Tensor:
        parts = df.grad(found.weighted, argnums=by)(*tensors)
        products = [df.sum(part * each) for part, each in zip(parts, found.directions, strict=True)]
        total = products[0]
        for each in products[1:]:
            total = total + each
        return total

    second = df.grad(slope, argnums=by)(*found.tensors)
    curvature = found.along(evaluate(second, found.at(0)))
    assert curvature == pytest.approx((above - below) / (2 * STEP), rel=2e-6, abs=2e-6)


def gradient_at(function: Any, *values: Any) -> list[Any]:
    inputs = [df.input(f"x{at}", np.shape(each), np.float64) for at, each in enumerate(values)]
    gradients = df.grad(lambda *tensors: df.sum(function(*tensors)), argnums=tuple(range(len(values))))(
        *inputs
    )
    given_values = {each: np.asarray(value, np.float64) for each, value in zip(inputs, values, strict=True)}
    return [each.tolist() for each in evaluate(gradients, given_values)]


def test_powers_of_zero_have_the_derivatives_of_polynomials() -> None:
    zero = [0.0]
    assert gradient_at(lambda x: x**2, zero) == [[0.0]]
    assert gradient_at(lambda x: x**1, zero) == [[1.0]]
    assert gradient_at(lambda x: x**0, zero) == [[0.0]]
    assert gradient_at(lambda x: x**3, zero) == [[0.0]]
    assert gradient_at(df.power, zero, [2.0]) == [[0.0], [0.0]]
    with np.errstate(invalid="ignore"):  # by the exponent there is none
        assert gradient_at(df.power, [-2.0], [3.0])[0] == [12.0]


def test_where_two_elements_tie_the_derivative_is_shared_as_documented() -> None:
    assert gradient_at(df.maximum, [1.0], [1.0]) == [[1.0], [0.0]]
    assert gradient_at(df.minimum, [1.0], [1.0]) == [[1.0], [0.0]]
    assert gradient_at(df.max, [2.0, 1.0, 2.0]) == [[0.5, 0.0, 0.5]]
    assert gradient_at(df.relu, [0.0, -1.0, 1.0]) == [[0.0, 0.0, 1.0]]
    assert gradient_at(df.absolute, [0.0, -1.0]) == [[0.0, -1.0]]


def test_no_derivative_goes_through_a_cast_to_integers() -> None:
    x = df.input("x", (2,), np.float64)
    slope = df.grad(lambda x: df.sum(df.astype(x, np.dtype(np.int64)) * 1.5 + x))(x)
    assert evaluate([slope], {x: np.array([1.2, 3.4])})[0].tolist() == [1.0, 1.0]


def test_a_mean_of_float32_next_to_float64_gives_each_its_own_dtype_of_gradient() -> None:
    x, y = df.input("x", (3,), np.float32), df.input("y", (3,), np.float64)
    slopes = df.grad(lambda x, y: df.mean(x * y), argnums=(0, 1))(x, y)
    assert [each.dtype for each in slopes] == [np.float32, np.float64]
