"""Layers against their formulas: extreme logits, windows, convolutions in blocks, attention; float32 stays float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dag_cases import convolve, softmax
from tensor_graphs import naive as evaluate

from dag import Graph
from dag import dataflow as df
from dag.dataflow.tables import TRAITS


def layer(function: Any, *arrays: Any) -> Any:
    inputs = [df.input(f"x{at}", each.shape, each.dtype) for at, each in enumerate(arrays)]
    return evaluate([function(*inputs)], dict(zip(inputs, arrays, strict=True)))[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_and_cross_entropy_are_right_for_logits_of_ten_thousand(dtype: str) -> None:
    logits = np.array([[1e4, 0, -1e4], [-1e4, 1e4, 1e4]], dtype)
    labels = np.array([1, 0])
    x = df.input("x", logits.shape, logits.dtype)
    losses = df.softmax_cross_entropy(x, labels)
    slope = df.grad(lambda x: df.sum(df.softmax_cross_entropy(x, labels)))(x)
    outputs = [df.softmax(x), df.log_softmax(x), df.logsumexp(x, -1), losses, slope]
    with np.errstate(all="raise", under="ignore"):
        p, log_p, total, loss, gradient = evaluate(outputs, {x: logits})
    half = np.log(2).astype(dtype)
    np.testing.assert_array_equal(p, [[1, 0, 0], [0, 0.5, 0.5]])
    np.testing.assert_allclose(log_p, [[0, -1e4, -2e4], [-2e4 - half, -half, -half]], rtol=1e-6)
    np.testing.assert_allclose(total, [1e4, 1e4 + half], rtol=1e-7)
    np.testing.assert_allclose(loss, [1e4, 2e4 + half], rtol=1e-6)
    np.testing.assert_array_equal(gradient, p - np.eye(3)[labels])
    assert {each.dtype for each in (p, log_p, total, loss, gradient)} == {np.dtype(dtype)}


ROWS = np.random.default_rng(0).normal(size=(2, 70_000)) * 300
HALF: dict[str, Any] = {
    "mean": lambda x: df.mean(x, 1),
    "variance": lambda x: df.var(x / 2, 1),
    "deviation": lambda x: df.std(x, 1),
    "logsumexp": lambda x: df.logsumexp(x / 300, 1),
    "softmax": lambda x: df.softmax(x / 300),
    "log softmax": lambda x: df.log_softmax(x / 300),
    "cross entropy": lambda x: df.softmax_cross_entropy(x / 300, np.array([1, 2])),
    "layer norm": lambda x: df.layer_norm(x, np.ones(1, np.float16)),
    "gelu": df.gelu,
}


@pytest.mark.parametrize("name", HALF)
def test_what_sums_or_squares_half_precision_inside_is_right_where_the_result_is(name: str) -> None:
    weights = np.random.default_rng(1).normal(size=(2, 70_000)).astype(np.float16)

    def weighted(x: Any) -> Any:
        made = HALF[name](x)
        picked = weights if made.shape == weights.shape else weights[:, 0]
        return df.sum(made.astype(np.float32) * picked.astype(np.float32))

    rows = ROWS.astype(np.float16)
    for function in (HALF[name], df.grad(weighted)):
        found, expected = layer(function, rows), layer(function, rows.astype(np.float32))
        assert found.dtype == np.float16
        # One rounding of the result, and of x / 300 before.
        np.testing.assert_allclose(found, expected, rtol=4e-3, atol=1e-3 * np.abs(expected).max() + 6e-8)


def test_sigmoid_is_right_and_silent_far_from_zero() -> None:
    with np.errstate(all="raise", under="ignore"):
        values = layer(df.sigmoid, np.array([-1000.0, -40.0, 0.0, 40.0, 1000.0]))
    np.testing.assert_allclose(values, [0, np.exp(-40), 0.5, 1, 1], rtol=1e-15)


def test_logsumexp_of_infinities_is_that_of_limits() -> None:
    x = np.array([[-np.inf, -np.inf], [np.inf, 0], [-np.inf, 1]])
    np.testing.assert_array_equal(layer(lambda x: df.logsumexp(x, 1), x), [-np.inf, np.inf, 1])


def test_pooling_is_that_of_windows_taken_one_at_a_time() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 7, 6))
    for size, stride, padding in (
        ((2, 2), None, 0),
        ((3, 2), (2, 1), (1, 0)),
        ((7, 6), None, 0),
        ((1, 3), 3, (0, 1)),
    ):
        step = size if stride is None else (stride, stride) if isinstance(stride, int) else stride
        pads = (padding, padding) if isinstance(padding, int) else padding
        pads4 = ((0, 0), (0, 0), (pads[0],) * 2, (pads[1],) * 2)
        for function, fold, fill in ((df.max_pool2d, np.max, -np.inf), (df.average_pool2d, np.mean, 0)):
            padded = np.pad(x, pads4, constant_values=fill)
            windows = np.lib.stride_tricks.sliding_window_view(padded, size, (2, 3))[
                :, :, :: step[0], :: step[1]
            ]
            found = layer(lambda x, f=function, s=size, t=stride, p=padding: f(x, s, t, p), x)
            np.testing.assert_allclose(found, fold(windows, axis=(4, 5)), rtol=1e-12)


def test_a_convolution_whose_patches_need_several_blocks_is_the_same() -> None:
    random = np.random.default_rng(0)
    x, w = random.normal(size=(40, 8, 20, 20)), random.normal(size=(4, 8, 5, 5))
    found = layer(lambda x, w: df.conv2d(x, w, 1, 2), x, w)
    np.testing.assert_allclose(found, convolve(x, w, (1, 1), (2, 2)), rtol=1e-10, atol=1e-10)
    x_in, w_in = df.input("x", x.shape, x.dtype), df.input("w", w.shape, w.dtype)
    g = random.normal(size=found.shape)
    slopes = df.grad(lambda x, w: df.sum(df.conv2d(x, w, 1, 2) * g), argnums=(0, 1))(x_in, w_in)
    by_x, by_w = evaluate(slopes, {x_in: x, w_in: w})
    direction = random.normal(size=x.shape)
    assert (by_x * direction).sum() == pytest.approx(
        (convolve(direction, w, (1, 1), (2, 2)) * g).sum(), rel=1e-9
    )
    turn = random.normal(size=w.shape)
    assert (by_w * turn).sum() == pytest.approx((convolve(x, turn, (1, 1), (2, 2)) * g).sum(), rel=1e-9)


def test_causal_attention_sees_nothing_ahead() -> None:
    random = np.random.default_rng(0)
    q, k, v = random.normal(size=(2, 3, 4)), random.normal(size=(2, 5, 4)), random.normal(size=(2, 5, 6))
    scores = q @ k.swapaxes(1, 2) / 2
    np.testing.assert_allclose(layer(df.attention, q, k, v), softmax(scores) @ v, rtol=1e-12)
    scores[:, np.arange(5) > np.arange(3)[:, None] + 2] = -np.inf
    causal = layer(lambda q, k, v: df.attention(q, k, v, causal=True), q, k, v)
    np.testing.assert_allclose(causal, softmax(scores) @ v, rtol=1e-12)


def test_a_float32_model_and_its_gradient_have_no_float64_node() -> None:
    ids, labels = df.input("ids", (2, 5), np.int64), df.input("labels", (2,), np.int64)
    images = df.input("images", (2, 1, 6, 6))
    names = {"table": (7, 8), "w": (8, 8), "scale": (8,), "filters": (3, 1, 3, 3), "head": (8 + 12, 4)}
    params = {name: df.input(name, shape) for name, shape in names.items()}

    def loss(p: dict[str, df.Tensor]) -> df.Tensor:
        x = df.layer_norm(df.embedding(p["table"], ids), p["scale"], p["scale"])
        x = x + df.gelu(df.attention(x @ p["w"], x, x, causal=True))
        x = df.log_softmax(x) + df.sigmoid(df.std(x, -1, keepdims=True)) + df.logsumexp(x, -1, keepdims=True)
        picture = df.max_pool2d(df.relu(df.conv2d(images, p["filters"])), 2)
        pooled = df.average_pool2d(picture, 1)
        features = df.concatenate([df.max(x, 1) ** 2 * 0.5, df.reshape(pooled, (2, 12))], axis=1)
        one_hot = df.one_hot(labels, 4)
        losses = df.softmax_cross_entropy(features @ p["head"], labels) + df.sum(one_hot * 0.1, 1)
        return df.mean(df.where(losses > 0, losses, df.clip(losses, -1, 1)))

    value, gradients = df.value_and_grad(loss)(params)
    step = {name: params[name] - 0.1 * gradients[name] for name in params}
    nodes = Graph((value, *step.values())).nodes
    wide = [node for node in nodes if isinstance(node, df.Tensor) and node.dtype == np.float64]
    assert wide == []
    random = np.random.default_rng(0)
    given_values = {
        each: random.normal(size=each.shape).astype(np.float32) for each in (*params.values(), images)
    }
    given_values |= {ids: random.integers(0, 7, ids.shape), labels: random.integers(0, 4, labels.shape)}
    for name, array in zip(step, evaluate(list(step.values()), given_values), strict=True):
        assert array.dtype == np.float32, name
        assert np.isfinite(array).all(), name


def test_matrix_products_and_convolutions_count_two_operations_for_each_product() -> None:
    def flops(tensor: df.Tensor) -> int:
        return TRAITS[tensor.op.kind].flops(tensor)

    a, b = df.input("a", (7, 2, 3)), df.input("b", (7, 3, 5))
    assert flops(df.apply("matmul", a, b)) == 2 * 7 * 2 * 3 * 5
    x, w = df.input("x", (4, 3, 8, 8)), df.input("w", (6, 3, 3, 3))
    made = df.conv2d(x, w, padding=1)
    by_x, by_w = df.grad(lambda x, w: df.sum(df.conv2d(x, w, padding=1)), argnums=(0, 1))(x, w)
    assert [flops(each) for each in (made, by_x, by_w)] == [2 * 4 * 6 * 8 * 8 * 3 * 3 * 3] * 3
    assert flops(df.reshape(x, -1)) == flops(x[1:]) == flops(df.pad(x, 1)) == 0
