"""What a training step costs: a graph's program beside the same step written by hand in NumPy, and beside torch's.

``OPENBLAS_NUM_THREADS=1 python -m benchmarks.dataflow_step`` prints medians of interleaved rounds in one process, all on one
thread: the step of a perceptron 784-512-512-10, batch 256, SGD, float32; building a graph, per node; running a program of 1,000
small additions, per node, less the same additions in a loop; and the share of this machine's measured matrix-multiply peak
that a step of width 2,048 reaches.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dag import Graph
from dag import dataflow as df

LAYERS = (784, 512, 512, 10)
BATCH = 256
LEARNING_RATE = 0.05
Array = Any
Step = Callable[[], float]


def seconds_of(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round of each contender, one call of each in turn."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for each in contenders.values():
        each()
        each()
    for _ in range(rounds):
        for name, each in contenders.items():
            start = time.perf_counter()
            each()
            taken[name].append(time.perf_counter() - start)
    return taken


def median_seconds(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each contender, one call of each in turn."""
    return {name: statistics.median(times) for name, times in seconds_of(contenders, rounds).items()}


def parameters(layers: Sequence[int], seed: int = 0) -> list[tuple[Array, Array]]:
    """Return weights and biases, as He et al. (2015) start them, float32."""
    rng = np.random.default_rng(seed)
    return [
        (
            (rng.standard_normal((one, two)) * (2 / one) ** 0.5).astype(np.float32),
            np.zeros(two, np.float32),
        )
        for one, two in itertools.pairwise(layers)
    ]


def batch_of(layers: Sequence[int], batch: int, seed: int = 1) -> tuple[Array, Array]:
    """Return random points and labels."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((batch, layers[0]), dtype=np.float32)
    return points, rng.integers(0, layers[-1], batch)


def loss_of(values: Any, points: df.Tensor, labels: df.Tensor) -> df.Tensor:
    """Return the mean cross entropy of a perceptron."""
    *hidden, (last, shift) = values
    for weights, bias in hidden:
        points = df.relu(points @ weights + bias)
    return df.mean(df.softmax_cross_entropy(points @ last + shift, labels))


def step_graph(layers: Sequence[int], batch: int) -> tuple[Any, list[Any]]:
    """Return the outputs (new parameters and the loss) and the inputs (parameters, points, labels) of a step."""
    given = [
        (df.input(f"w{at}", (one, two)), df.input(f"b{at}", (two,)))
        for at, (one, two) in enumerate(itertools.pairwise(layers))
    ]
    points, labels = df.input("points", (batch, layers[0])), df.input("labels", (batch,), np.int64)
    loss, gradients = df.value_and_grad(loss_of)(given, points, labels)
    optimiser = df.sgd(LEARNING_RATE)
    new, _ = optimiser.step(given, gradients, optimiser.start(given))
    return (new, loss), [given, points, labels]


def by_program(layers: Sequence[int], batch: int) -> Step:
    """Return the step as a program whose parameters are donated."""
    outputs, inputs = step_graph(layers, batch)
    program = df.Program(outputs, inputs, donated=inputs[0])
    points, labels = batch_of(layers, batch)
    now = [parameters(layers)]

    def step() -> float:
        now[0], loss = program(now[0], points, labels)
        return float(loss)

    return step


def by_hand(layers: Sequence[int], batch: int) -> Step:
    """Return the step as one would write it in NumPy for speed: every array allocated once, every operation in place."""
    points, labels = batch_of(layers, batch)
    layers_now = parameters(layers)
    outs = [np.empty((batch, width), np.float32) for width in layers[1:]]
    backs = [np.empty((batch, width), np.float32) for width in layers[1:]]
    masks = [np.empty((batch, width), np.bool_) for width in layers[1:-1]]
    to_weights = [np.empty_like(weights) for weights, _ in layers_now]
    to_biases = [np.empty_like(bias) for _, bias in layers_now]
    column = np.empty((batch, 1), np.float32)
    rows = np.arange(batch)

    def step() -> float:
        value = points
        for at, (weights, bias) in enumerate(layers_now):
            np.matmul(value, weights, out=outs[at])
            outs[at] += bias
            if at < len(masks):
                np.maximum(outs[at], 0, out=outs[at])
            value = outs[at]
        np.max(value, axis=1, keepdims=True, out=column)
        value -= column
        picked = value[rows, labels]
        back = backs[-1]
        np.exp(value, out=back)
        np.sum(back, axis=1, keepdims=True, out=column)
        back /= column
        np.log(column, out=column)
        loss = float((column[:, 0] - picked).mean())
        back[rows, labels] -= 1
        back *= np.float32(1 / batch)
        for at in reversed(range(len(layers_now))):
            weights, bias = layers_now[at]
            before = outs[at - 1] if at else points
            np.matmul(before.T, back, out=to_weights[at])
            np.sum(back, axis=0, out=to_biases[at])
            if at:
                np.matmul(back, weights.T, out=backs[at - 1])
                back = backs[at - 1]
                np.greater(outs[at - 1], 0, out=masks[at - 1])
                back *= masks[at - 1]
            to_weights[at] *= np.float32(LEARNING_RATE)
            weights -= to_weights[at]
            to_biases[at] *= np.float32(LEARNING_RATE)
            bias -= to_biases[at]
        return loss

    return step


def by_torch(layers: Sequence[int], batch: int) -> Step | None:
    """Return the step in eager torch with its own SGD, or None without torch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    points, labels = (torch.from_numpy(each) for each in batch_of(layers, batch))
    modules: list[Any] = []
    for weights, bias in parameters(layers):
        linear = torch.nn.Linear(*weights.shape)
        linear.weight.data.copy_(torch.from_numpy(weights.T))
        linear.bias.data.copy_(torch.from_numpy(bias))
        modules += [linear, torch.nn.ReLU()]
    model = torch.nn.Sequential(*modules[:-1])
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step() -> float:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimiser.step()
        return loss.item()

    return step


def measure_steps(
    *, layers: Sequence[int] = LAYERS, batch: int = BATCH, rounds: int = 100
) -> dict[str, float]:
    """Return the median seconds of a step: of ours, by hand, of torch where it is installed.

    Raises:
        ValueError: they do not compute the same losses.
    """
    found = {
        "program": by_program(layers, batch),
        "by hand": by_hand(layers, batch),
        "torch": by_torch(layers, batch),
    }
    contenders = {name: step for name, step in found.items() if step is not None}
    losses = {name: [step() for _ in range(3)] for name, step in contenders.items()}
    for name, each in losses.items():
        if not np.allclose(each, losses["by hand"], rtol=1e-4):
            raise ValueError(f"the losses differ: by hand {losses['by hand']}, {name} {each}")
    return median_seconds(contenders, rounds)


def measure_building(rounds: int = 20) -> dict[str, float]:
    """Return the median seconds per node of building a chain, and of the whole graph of the perceptron's step."""

    def chain() -> int:
        value = df.input("x", (8,))
        for _ in range(1000):
            value = value + value
        return 1000

    def step() -> int:
        (new, loss), _ = step_graph(LAYERS, BATCH)
        return len(Graph((loss, *(each for pair in new for each in pair))))

    counts = {"chain": chain(), "step": step()}
    taken = median_seconds({"chain": chain, "step": step}, rounds)
    return {name: seconds / counts[name] for name, seconds in taken.items()}


def measure_interpreter(nodes: int = 1000, rounds: int = 200) -> dict[str, float]:
    """Return the median seconds per node of a program of additions on arrays of 8, of the same in a loop, and the difference."""
    x, y = df.input("x", (8,)), df.input("y", (8,))
    value = x
    for _ in range(nodes):
        value = value + y
    program = df.Program(value, [x, y], optimise=False)
    left, right = np.ones(8, np.float32), np.full(8, 1e-3, np.float32)
    out = np.empty(8, np.float32)

    def loop() -> None:
        np.add(left, right, out)
        for _ in range(nodes - 1):
            np.add(out, right, out)

    taken = median_seconds({"program": lambda: program(left, right), "loop": loop}, rounds)
    per_node = {name: seconds / nodes for name, seconds in taken.items()}
    return {**per_node, "difference": per_node["program"] - per_node["loop"]}


def measure_utilisation(width: int = 2048, batch: int = 2048, rounds: int = 5) -> dict[str, float]:
    """Return the model's FLOPs per second in a step of three layers of one width, the peak, and their ratio (MFU).

    The peak is the best of all rounds of a float32 product of two ``width`` x ``width`` matrices into an array that is there.
    The model's operations are those of its matrix products alone, forward and backward, less the gradient by the points,
    which nobody needs; what is computed beside them counts as lost time.
    """
    layers = (width, width, width, width)
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((width, width), dtype=np.float32) for _ in range(2))
    out = np.empty((width, width), np.float32)
    program = by_program(layers, batch)
    taken = seconds_of({"product": lambda: np.matmul(left, right, out=out), "step": program}, rounds)
    products = 3 * (len(layers) - 1) - 1
    peak = 2 * width**3 / min(taken["product"])
    reached = products * 2 * batch * width**2 / statistics.median(taken["step"])
    return {"peak FLOP/s": peak, "model FLOP/s": reached, "MFU": reached / peak}


def measure() -> dict[str, dict[str, float]]:
    """Return everything measured once: seconds, seconds per node, FLOP/s."""
    return {
        "steps": measure_steps(),
        "building": measure_building(),
        "interpreter": measure_interpreter(),
        "utilisation": measure_utilisation(),
    }


def main() -> None:
    """Print what was measured, with ``--json`` as JSON; a BLAS with several threads would compare other things."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        sys.exit("set OPENBLAS_NUM_THREADS=1: it is read when NumPy is loaded")
    found = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(found))
        return
    print(f"a step of {'-'.join(map(str, LAYERS))}, batch {BATCH}, SGD, float32, one thread:")
    for name, seconds in found["steps"].items():
        print(f"  {name:10} {seconds * 1e3:8.3f} ms   {seconds / found['steps']['by hand']:.2f} x by hand")
    for name, seconds in found["building"].items():
        print(f"building a node ({name}): {seconds * 1e6:.1f} microseconds")
    for name, seconds in found["interpreter"].items():
        print(f"1,000 additions of 8, per node ({name}): {seconds * 1e9:.0f} ns")
    for name, value in found["utilisation"].items():
        print(f"width 2,048, batch 2,048, {name}: {value:.3g}")


if __name__ == "__main__":
    main()
