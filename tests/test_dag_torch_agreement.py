"""Three models against torch's eager autograd, in float64: values and all gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dag import dataflow as df

torch = pytest.importorskip("torch", reason="torch is an extra; it is not installed")

BATCH, LENGTH, WIDTH, HEADS, WORDS = 3, 7, 12, 3, 11

Params = dict[str, Any]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_params(shapes: dict[str, tuple[int, ...]], seed: int) -> Params:
    random = np.random.default_rng(seed)
    return {name: 0.4 * random.normal(size=shape) for name, shape in shapes.items()}


def ours(loss: Callable[..., df.Tensor], params: Params, *data: Any) -> tuple[Any, Params]:
    tensors = {name: df.input(name, each.shape, each.dtype) for name, each in params.items()}
    inputs = [df.input(f"data{at}", each.shape, each.dtype) for at, each in enumerate(data)]
    outputs = df.value_and_grad(loss)(tensors, *inputs)
    return df.Program(outputs, [tensors, *inputs])(params, *data)


def theirs(loss: Callable[..., Any], params: Params, *data: Any) -> tuple[Any, Params]:
    tensors = {name: torch.tensor(each, requires_grad=True) for name, each in params.items()}
    value = loss(tensors, *[torch.tensor(each) for each in data])
    value.backward()
    return value.detach().numpy(), {name: each.grad.numpy() for name, each in tensors.items()}


def agree(mine: tuple[Any, Params], other: tuple[Any, Params]) -> None:
    np.testing.assert_allclose(mine[0], other[0], rtol=1e-9)
    assert mine[1].keys() == other[1].keys()
    for name, gradient in other[1].items():
        scale = np.abs(gradient).max()
        assert scale > 0, name
        assert np.abs(mine[1][name] - gradient).max() <= 1e-9 * scale, name


BLOCK = {
    "scale1": (WIDTH,), "shift1": (WIDTH,), "qkv": (WIDTH, 3 * WIDTH), "qkv_bias": (3 * WIDTH,), "out": (WIDTH, WIDTH),
    "scale2": (WIDTH,), "shift2": (WIDTH,), "up": (WIDTH, 4 * WIDTH), "up_bias": (4 * WIDTH,), "down": (4 * WIDTH, WIDTH),
}  # fmt: skip
TRANSFORMER = {
    "words": (WORDS, WIDTH), "places": (LENGTH, WIDTH), "head": (WIDTH, WORDS),
    **{f"{layer}.{name}": shape for layer in (0, 1) for name, shape in BLOCK.items()},
}  # fmt: skip


def our_block(p: Params, x: df.Tensor) -> df.Tensor:
    normal = df.layer_norm(x, p["scale1"], p["shift1"])
    parts = df.split(normal @ p["qkv"] + p["qkv_bias"], 3, axis=-1)
    q, k, v = (each.reshape(BATCH, LENGTH, HEADS, -1).transpose(0, 2, 1, 3) for each in parts)
    seen = df.attention(q, k, v, causal=True).transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH)
    x = x + seen @ p["out"]
    normal = df.layer_norm(x, p["scale2"], p["shift2"])
    return x + df.gelu(normal @ p["up"] + p["up_bias"]) @ p["down"]


def our_transformer(p: Params, ids: df.Tensor, labels: df.Tensor) -> df.Tensor:
    x = df.embedding(p["words"], ids) + p["places"]
    for layer in (0, 1):
        x = our_block({name: p[f"{layer}.{name}"] for name in BLOCK}, x)
    return df.mean(df.softmax_cross_entropy(df.layer_norm(x) @ p["head"], labels))


def their_transformer(p: Params, ids: Any, labels: Any) -> Any:
    f = torch.nn.functional
    x = f.embedding(ids, p["words"]) + p["places"]
    for layer in (0, 1):
        q = {name: p[f"{layer}.{name}"] for name in BLOCK}
        normal = f.layer_norm(x, (WIDTH,), q["scale1"], q["shift1"])
        parts = (normal @ q["qkv"] + q["qkv_bias"]).chunk(3, dim=-1)
        heads = [each.reshape(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for each in parts]
        seen = f.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + seen.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH) @ q["out"]
        normal = f.layer_norm(x, (WIDTH,), q["scale2"], q["shift2"])
        x = x + f.gelu(normal @ q["up"] + q["up_bias"], approximate="tanh") @ q["down"]
    logits = f.layer_norm(x, (WIDTH,)) @ p["head"]
    return f.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1))


def test_a_transformer_of_two_blocks_agrees_with_torch() -> None:
    random = np.random.default_rng(5)
    data = [random.integers(0, WORDS, (BATCH, LENGTH)) for _ in range(2)]
    params = random_params(TRANSFORMER, 1)
    agree(ours(our_transformer, params, *data), theirs(their_transformer, params, *data))


CONVOLUTIONS = {
    "first": (4, 2, 3, 3), "bias": (4, 1, 1), "second": (6, 4, 3, 2), "third": (5, 6, 2, 2), "head": (20, 3),
}  # fmt: skip


def our_convolutions(p: Params, images: df.Tensor, labels: df.Tensor) -> df.Tensor:
    x = df.max_pool2d(df.relu(df.conv2d(images, p["first"], padding=1) + p["bias"]), 3, stride=2, padding=1)
    x = df.average_pool2d(df.tanh(df.conv2d(x, p["second"], stride=(1, 2), padding=(1, 0))), (2, 1))
    x = df.relu(df.conv2d(x, p["third"], padding=(0, 1)))
    x = df.max_pool2d(x, 2)
    return df.mean(df.softmax_cross_entropy(x.reshape(x.shape[0], -1) @ p["head"], labels))


def their_convolutions(p: Params, images: Any, labels: Any) -> Any:
    f = torch.nn.functional
    x = f.max_pool2d(torch.relu(f.conv2d(images, p["first"], padding=1) + p["bias"]), 3, 2, 1)
    x = f.avg_pool2d(torch.tanh(f.conv2d(x, p["second"], stride=(1, 2), padding=(1, 0))), (2, 1))
    x = torch.relu(f.conv2d(x, p["third"], padding=(0, 1)))
    return f.cross_entropy(f.max_pool2d(x, 2).reshape(len(images), -1) @ p["head"], labels)


def test_a_small_convolutional_net_agrees_with_torch() -> None:
    random = np.random.default_rng(6)
    images, labels = random.normal(size=(4, 2, 12, 12)), random.integers(0, 3, 4)
    features = our_convolution_features()
    params = random_params({**CONVOLUTIONS, "head": (features, 3)}, 2)
    agree(ours(our_convolutions, params, images, labels), theirs(their_convolutions, params, images, labels))


def our_convolution_features() -> int:
    """Return how many features the last layer sees: what torch computes for one image."""
    f = torch.nn.functional
    x = f.max_pool2d(torch.zeros(1, 4, 12, 12), 3, 2, 1)
    x = f.avg_pool2d(f.conv2d(x, torch.zeros(6, 4, 3, 2), stride=(1, 2), padding=(1, 0)), (2, 1))
    return f.max_pool2d(f.conv2d(x, torch.zeros(5, 6, 2, 2), padding=(0, 1)), 2).numel()


def test_a_multilayer_perceptron_agrees_with_torch() -> None:
    sizes = (20, 16, 16, 5)
    shapes: dict[str, tuple[int, ...]] = {}
    for at, (one, two) in enumerate(pairwise(sizes)):
        shapes |= {f"w{at}": (one, two), f"b{at}": (two,)}
    random = np.random.default_rng(7)
    points, labels = random.normal(size=(32, 20)), random.integers(0, 5, 32)
    params = random_params(shapes, 3)

    def our_loss(p: Params, x: df.Tensor, labels: df.Tensor) -> df.Tensor:
        for at in range(2):
            x = df.relu(x @ p[f"w{at}"] + p[f"b{at}"])
        return df.mean(df.softmax_cross_entropy(x @ p["w2"] + p["b2"], labels))

    def their_loss(p: Params, x: Any, labels: Any) -> Any:
        for at in range(2):
            x = torch.relu(x @ p[f"w{at}"] + p[f"b{at}"])
        return torch.nn.functional.cross_entropy(x @ p["w2"] + p["b2"], labels)

    agree(ours(our_loss, params, points, labels), theirs(their_loss, params, points, labels))


def test_the_hessian_of_a_transformer_times_a_direction_agrees_with_torch() -> None:
    random = np.random.default_rng(8)
    data = [random.integers(0, WORDS, (BATCH, LENGTH)) for _ in range(2)]
    params = random_params(TRANSFORMER, 4)
    direction = random.normal(size=params["0.qkv"].shape)
    inputs = [df.input(f"data{at}", each.shape, each.dtype) for at, each in enumerate(data)]
    tensors = {name: df.input(name, each.shape, each.dtype) for name, each in params.items()}

    def loss_of(qkv: df.Tensor) -> df.Tensor:
        return our_transformer({**tensors, "0.qkv": qkv}, *inputs)

    product = df.grad(lambda qkv: df.sum(df.grad(loss_of)(qkv) * direction))(tensors["0.qkv"])
    found = df.Program(product, [tensors, *inputs])(params, *data)
    there = {name: torch.tensor(each) for name, each in params.items()}
    qkv = there["0.qkv"].requires_grad_()
    with torch.nn.attention.sdpa_kernel(
        torch.nn.attention.SDPBackend.MATH
    ):  # the others have no second derivative
        loss = their_transformer(there, *[torch.tensor(each) for each in data])
        (slope,) = torch.autograd.grad(loss, qkv, create_graph=True)
        (expected,) = torch.autograd.grad((slope * torch.tensor(direction)).sum(), qkv)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-7, atol=1e-10)
