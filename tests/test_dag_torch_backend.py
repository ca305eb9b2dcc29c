"""The same graph, the same answer: every operator's kernel for PyTorch beside the one for NumPy."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import dag_operators
import numpy as np
import pytest
from dag_cases import Chance
from hypothesis import given, settings
from hypothesis import strategies as st

from dag import Graph
from dag import dataflow as df
from dag.dataflow.backends import BACKENDS, backend_named
from dag.dataflow.tables import KERNELS, SHAPES
from dag.errors import BadTensor, NotFinite

torch = pytest.importorskip("torch", reason="PyTorch is not installed (the extra torch)")
torch.set_num_threads(1)
backend_named("torch")

Arrays = Sequence[np.ndarray[Any, Any]]
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
DEVICES = ["torch", pytest.param("torch:cuda", marks=no_gpu)]
TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3}

UNARY = [
    "negative",
    "square",
    "sqrt",
    "exp",
    "expm1",
    "log",
    "log1p",
    "tanh",
    "sin",
    "cos",
    "absolute",
    "sign",
    "floor",
    "ceil",
    "isnan",
    "isinf",
    "isfinite",
    "relu",
    "sigmoid",
    "logical_not",
]
BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "power",
    "maximum",
    "minimum",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "equal",
    "not_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
]
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.5, 3.0, 0.5, 100.0]


def example(kind: str, *arrays: Any, **attributes: Any) -> tuple[str, Arrays, dict[str, Any]]:
    return kind, [np.asarray(each) for each in arrays], attributes


def floats(*shape: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


ROWS, CUBE, IDS = floats(5, 4), floats(2, 3, 4), np.array([[2, 0, 2], [1, 2, 2]])
TIES = np.array([[1.0, 3.0, 3.0], [np.nan, 5.0, np.nan], [2.0, 2.0, 2.0]])
PLACING = {"stride": (2, 1), "padding": (1, 2)}
IMAGES, WEIGHTS, COTANGENT = floats(2, 3, 7, 6), floats(4, 3, 3, 2), floats(2, 4, 4, 9)
EXAMPLES = [
    *(example(kind, np.array(SPECIAL)) for kind in UNARY),
    *(example(kind, np.array(SPECIAL)[:, None], np.array(SPECIAL)) for kind in BINARY),
    example("where", ROWS > 0, ROWS, np.float64(1)),
    example("where", ROWS > 0, ROWS.astype(np.float32), np.arange(4)),
    example("astype", ROWS * 10, dtype=np.dtype(np.int32)),
    example("astype", SPECIAL, dtype=np.dtype(np.bool_)),
    example("astype", ROWS, dtype=np.dtype(np.float16)),
    example("reshape", ROWS, shape=(2, 10)),
    example("transpose", CUBE, axes=(2, 0, 1)),
    example("broadcast_to", floats(3, 1), shape=(2, 3, 4)),
    example("slice", CUBE, spans=((1, -1, 2), (0, 2, 2), (0, 1, 4))),
    example("slice", CUBE, spans=((0, 1, 2), (0, 1, 0), (3, -3, 2))),
    example("place", floats(2, 3), shape=(4, 7), spans=((3, -2, 2), (0, 3, 3)), fill=-np.inf),
    example("concatenate", ROWS, np.arange(10).reshape(5, 2), floats(5, 0), axis=1),
    *(
        example(kind, CUBE, axis=axis, keepdims=keepdims)
        for kind in ("sum", "max", "min")
        for axis in ((), (0,), (0, 2), (0, 1, 2))
        for keepdims in (False, True)
    ),
    example("sum", ROWS > 0, axis=(0,), keepdims=False),
    example("sum", IDS.astype(np.int8), axis=(0, 1), keepdims=False),
    example("sum", floats(0, 3), axis=(0,), keepdims=False),
    example("sum", np.full((2, 3), 200, np.uint8), axis=(0, 1), keepdims=False),
    example("sum", np.full((2, 3), 2**63 + 1, np.uint64), axis=(0,), keepdims=False),
    example("cumsum", np.full((2, 3), 200, np.uint8), axis=1, reverse=True),
    example("sum_to", np.full((2, 3), 100, np.int8), shape=(3,)),
    example("max", ROWS > 0, axis=(0,), keepdims=False),
    example("astype", np.array([1, 2**63 + 2**12], np.uint64), dtype=np.dtype(np.float64)),
    example("take", CUBE, np.array([[1, 2]], np.uint32), axis=1),
    example("max", TIES, axis=(1,), keepdims=False),
    example("max", IDS, axis=(1,), keepdims=False),
    example("sum_to", CUBE, shape=(3, 1)),
    example("sum_to", CUBE, shape=(2, 3, 4)),
    *(example(kind, TIES, axis=axis) for kind in ("argmax", "argmin") for axis in (0, 1)),
    *(example("cumsum", each, axis=1, reverse=reverse) for each in (ROWS, IDS) for reverse in (False, True)),
    example("matmul", floats(2, 1, 3, 4), floats(5, 4, 2)),
    example("matmul", IDS, IDS.T),
    example("matmul", ROWS.astype(np.float32), np.arange(8).reshape(4, 2)),
    example("matmul", ROWS > 0, ROWS.T > 0),
    example("matmul", floats(3, 0), floats(0, 2)),
    example("conv2d", IMAGES, WEIGHTS, **PLACING),
    example("conv2d", floats(0, 3, 5, 5), WEIGHTS, stride=(1, 1), padding=(0, 0)),
    example("conv2d_to_images", COTANGENT, WEIGHTS, shape=IMAGES.shape, **PLACING),
    example("conv2d_to_weights", IMAGES, COTANGENT, shape=WEIGHTS.shape, **PLACING),
    example("take", CUBE, IDS, axis=1),
    example("take", CUBE, np.array(2, np.uint8), axis=1),
    example("take", CUBE, np.zeros((0, 2), int), axis=1),
    example("scatter_add", floats(4, 2, 3), IDS, axis=1, length=4),
    example("scatter_add", floats(4, 0), np.zeros(0, int), axis=1, length=3),
    example("take_along_axis", CUBE, np.array([[[0], [3], [2]], [[1], [1], [0]]]), axis=2),
    example("scatter_along_axis", floats(2, 3), IDS, axis=1, length=4),
    example("one_hot", IDS, depth=4, dtype=np.dtype(np.float32)),
    *(example(kind, CUBE * 1e4, axis=axis) for kind in ("softmax", "log_softmax", "logsumexp") for axis in (0, 2)),
    example("softmax_cross_entropy", floats(2, 3, 5) * 1e4, IDS),
    example("softmax_cross_entropy_gradient", floats(2, 3), floats(2, 3, 5), IDS),
    example("normalise", CUBE + 100, epsilon=1e-5),
    example("inverse_deviation", CUBE + 100, epsilon=1e-5),
    *(example(kind, ROWS) for kind in ("stop_gradient",)),
]  # fmt: skip


def built(kind: str, arrays: Arrays, attributes: dict[str, Any]) -> tuple[df.Tensor, dict[df.Tensor, Any]]:
    """Return the node, and the values of its inputs."""
    given = {df.input(f"input {at}", each.shape, each.dtype): each for at, each in enumerate(arrays)}
    return df.apply(kind, *given, **attributes), given


def check_same(output: Any, inputs: dict[df.Tensor, Any], backend: str) -> None:
    """Check that a backend gives the dtype, the shape and the values that NumPy's kernels give."""
    with np.errstate(all="ignore"):
        wanted = df.evaluate(output, inputs)
        found = df.evaluate(output, inputs, backend=backend)
    for each, value, other in zip(*(_flat(tree) for tree in (output, wanted, found)), strict=True):
        assert isinstance(other, np.ndarray)
        assert value.dtype == other.dtype == each.dtype
        assert value.shape == other.shape == each.shape
        tolerance = TOLERANCE.get(value.dtype.name)
        if tolerance is None:
            np.testing.assert_array_equal(other, value)
        else:
            near = value[np.isfinite(value)]
            scale = float(np.abs(near).max()) if near.size else 0.0
            np.testing.assert_allclose(other, value, rtol=tolerance, atol=tolerance * max(scale, 1e-300))


def _flat(tree: Any) -> list[Any]:
    return [leaf for each in tree for leaf in _flat(each)] if isinstance(tree, (list, tuple)) else [tree]


def test_every_operator_of_the_package_has_a_kernel_for_torch() -> None:
    ours = {kind for kind, rule in SHAPES.items() if rule.__module__.startswith("dag.")}
    assert len(ours) > 30
    assert ours - KERNELS["torch"].keys() == set()


def test_every_kernel_for_torch_has_an_example() -> None:
    ours = {kind for kind, rule in SHAPES.items() if rule.__module__.startswith("dag.")}
    elsewhere = {
        "identity",
        "barrier",
        "call",
        "call_result",
        "fused",
    }  # what users' functions make: tests below
    assert ours - {kind for kind, _, _ in EXAMPLES} == elsewhere


@pytest.mark.parametrize(
    ("kind", "arrays", "attributes"), EXAMPLES, ids=[f"{at}-{each[0]}" for at, each in enumerate(EXAMPLES)]
)
def test_an_operator_gives_the_same_on_torch(kind: str, arrays: Arrays, attributes: dict[str, Any]) -> None:
    check_same(*built(kind, arrays, attributes), "torch")


@pytest.mark.parametrize("kind", sorted(dag_operators.EXAMPLES))
@settings(max_examples=settings.default.max_examples // 3)
@given(data=st.data())
def test_an_operator_and_its_gradient_give_the_same_on_torch_over_random_shapes(
    kind: str, data: st.DataObject
) -> None:
    chance = Chance(data)
    case = dag_operators.EXAMPLES[kind](chance)
    inputs = case.inputs()
    values = dict(zip(inputs, case.arrays, strict=True))
    outputs = [case.apply(*inputs)]
    if kind in dag_operators.SMOOTH and outputs[0].dtype.kind == "f":
        cotangent = df.input("cotangent", outputs[0].shape, outputs[0].dtype)
        values[cotangent] = chance.normal(cotangent.shape)
        outputs += [each for each in df.pull_back(outputs, [cotangent], inputs) if each is not None]
    check_same(outputs, values, "torch")


@no_gpu
def test_every_operator_gives_the_same_on_a_gpu() -> None:
    for kind, arrays, attributes in EXAMPLES:
        if kind == "matmul" and all(each.dtype.kind in "iub" for each in arrays):
            continue  # torch multiplies matrices of integers on the CPU alone
        check_same(*built(kind, arrays, attributes), "torch:cuda")


DTYPES = [np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]


@pytest.mark.parametrize("kind", [*BINARY, *UNARY])
def test_dtypes_meet_as_in_numpy_whatever_the_number_of_dimensions(kind: str) -> None:
    pairs = itertools.product(DTYPES, DTYPES) if kind in BINARY else ((each,) for each in DTYPES)
    seen = 0
    for dtypes in pairs:
        # An array of no dimensions counts as much as any other, which torch sees otherwise.
        values = [np.asarray(value, dtype) for value, dtype in zip(([1, 2, 3], 2), dtypes, strict=False)]
        try:
            node, given = built(kind, values, {})
        except BadTensor:  # NumPy has no such loop
            continue
        check_same(node, given, "torch")
        seen += 1
    assert seen >= 7


def test_a_dtype_that_torch_does_not_compute_with_is_named() -> None:
    x = df.input("x", (2,), np.uint32)
    with pytest.raises(BadTensor, match="the backend 'torch' has no arithmetic for uint32, only for bool, "):
        df.evaluate(x + x, {x: np.array([1, 2], np.uint32)}, backend="torch")


@pytest.mark.parametrize("backend", ["numpy", *DEVICES])
@pytest.mark.parametrize("bad", [-1, 3])
def test_an_id_out_of_range_is_an_error_on_every_backend(backend: str, bad: int) -> None:
    ids = np.array([[0, bad, 1]])
    for kind, arrays, attributes in (
        ("take", [floats(3, 2), ids], {"axis": 0}),
        ("scatter_add", [floats(1, 3), ids], {"axis": 0, "length": 3}),
        ("take_along_axis", [floats(1, 3), ids], {"axis": 1}),
        ("scatter_along_axis", [floats(1, 3), ids], {"axis": 1, "length": 3}),
        ("one_hot", [ids], {"depth": 3, "dtype": np.dtype(np.float32)}),
        ("softmax_cross_entropy", [floats(1, 3, 3), ids], {}),
        ("softmax_cross_entropy_gradient", [floats(1, 3), floats(1, 3, 3), ids], {}),
    ):
        node, given = built(kind, [np.asarray(each) for each in arrays], attributes)
        with pytest.raises(IndexError, match=rf"id {bad} at \[0, 1\] is outside 0 to 2"):
            df.evaluate(node, given, backend=backend)


def test_kernels_write_to_out_if_it_is_given() -> None:
    for kind, arrays, attributes in EXAMPLES:
        node, _ = built(kind, arrays, attributes)
        given = [torch.from_numpy(np.array(each)) for each in arrays]
        kernel = KERNELS["torch"][kind](node)
        alone = kernel(*given)
        out = torch.zeros_like(alone, memory_format=torch.contiguous_format)
        assert kernel(*given, out=out) is out, kind
        assert torch.equal(torch.nan_to_num(out), torch.nan_to_num(alone)), kind


def test_kernels_stay_on_the_device_of_their_inputs() -> None:
    """On torch's device "meta", which has shapes and no values, arrays of two devices cannot meet either."""
    by_ids = {
        kind for kind in KERNELS["torch"] if "take" in kind or "scatter" in kind or "cross_entropy" in kind
    }
    seen = set()
    for kind, arrays, attributes in EXAMPLES:
        if kind in by_ids | {"one_hot"}:
            continue  # they look at the values of ids
        node, _ = built(kind, arrays, attributes)
        made = KERNELS["torch"][kind](node)(*[torch.from_numpy(np.array(each)).to("meta") for each in arrays])
        assert (made.device.type, tuple(made.shape)) == ("meta", node.shape), kind
        seen.add(kind)
    assert len(seen) > 45


def a_step(rate: float = 0.1) -> tuple[Any, list[Any], Callable[[int], list[np.ndarray[Any, Any]]]]:
    """Return the outputs and inputs of a training step of a small perceptron, and a batch by its number."""
    x, labels = df.input("x", (8, 5), np.float64), df.input("labels", (8,), np.int64)
    params = {"w": df.input("w", (5, 4), np.float64), "v": df.input("v", (4, 3), np.float64)}

    def loss(params: dict[str, df.Tensor]) -> df.Tensor:
        return df.mean(df.softmax_cross_entropy(df.tanh(x @ params["w"]) @ params["v"], labels))

    value, slopes = df.value_and_grad(loss)(params)
    new = {name: params[name] - rate * slopes[name] for name in params}

    def batch(number: int) -> list[np.ndarray[Any, Any]]:
        return [floats(8, 5, seed=number), np.random.default_rng(number).integers(0, 3, 8)]

    return (value, new), [params, x, labels], batch


@pytest.mark.parametrize("backend", DEVICES)
def test_a_training_loop_in_tensors_stays_on_the_device_and_gives_what_numpy_gives(backend: str) -> None:
    outputs, inputs, batch = a_step()
    here, there = df.Program(outputs, inputs), df.Program(outputs, inputs, backend=backend)
    start = {"w": floats(5, 4), "v": floats(4, 3)}
    device = backend.partition(":")[2] or "cpu"
    arrays, tensors = dict(start), {name: torch.tensor(value, device=device) for name, value in start.items()}
    for number in range(5):
        loss, arrays = here(arrays, *batch(number))
        found, tensors = there(tensors, *batch(number))
        assert isinstance(found, torch.Tensor)
        assert {each.device.type for each in tensors.values()} == {device}
        assert float(found) == pytest.approx(float(loss), rel=1e-12)
    for name in start:
        np.testing.assert_allclose(tensors[name].cpu().numpy(), arrays[name], rtol=1e-12)


def test_a_program_on_torch_travels_and_traces_a_nan_to_its_node() -> None:
    outputs, inputs, batch = a_step()
    program = df.Program(outputs, inputs, backend="torch")
    weights = {"w": floats(5, 4), "v": floats(4, 3)}
    loss, _ = program(weights, *batch(0))
    copy = pickle.loads(pickle.dumps(program))
    assert copy(weights, *batch(0))[0] == loss

    x = df.input("x", (3,), np.float64)
    with df.scope("model"):
        root = df.sqrt(x)
    watched = df.Program(df.exp(root) + 1, [x], backend="torch", check_nan=True)
    assert watched(np.array([0.0, 1.0, 4.0])).shape == (3,)
    for value in (np.array([1.0, -1.0, 4.0]), torch.tensor([1.0, -1.0, 4.0], dtype=torch.float64)):
        with pytest.raises(
            NotFinite, match=r"'model/sqrt_\d+' \(sqrt, float64 \(3,\)\) made 1 NaN of 3 elements"
        ):
            watched(value)


def test_a_tensor_that_is_on_the_device_is_not_copied_on_the_way_in() -> None:
    value = torch.ones(4, dtype=torch.float32)
    taken = backend_named("torch").take(value, np.dtype(np.float32))
    assert taken.data_ptr() == value.data_ptr()
    array = np.ones(4, np.float32)
    assert backend_named("torch").take(array, np.dtype(np.float32)).data_ptr() == array.ctypes.data


def test_fractions_are_no_ids_whether_they_come_as_an_array_or_a_tensor() -> None:
    ids = df.input("ids", (2,), np.int64)
    program = df.Program(ids + 1, [ids], backend="torch")
    for value in (np.array([0.5, 1]), torch.tensor([0.5, 1]), [0.5, 1]):
        with pytest.raises(BadTensor, match=r"has the dtype int64, got (torch\.)?float"):
            program(value)
    np.testing.assert_array_equal(program(np.array([1, 2], np.int32)), [2, 3])


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_integer_has_no_negative_power(backend: str) -> None:
    n, powers = df.input("n", (3,), np.int64), df.input("powers", (3,), np.int64)
    program = df.Program(n**powers, [n, powers], backend=backend)
    assert program([2, 3, 4], [3, 2, 0]).tolist() == [8, 9, 1]
    with pytest.raises(ValueError, match="ntegers to negative integer powers are not allowed"):
        program([2, 3, 4], [3, 2, -1])


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:overflow")
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool"])
@pytest.mark.parametrize("operator", ["floor_divide", "remainder"])
def test_integers_are_divided_as_numpy_divides_them_by_zero_too(operator: str, dtype: str) -> None:
    n, by = df.input("n", (6,), dtype), df.input("by", (6,), dtype)
    values = np.array([7, -7, 7, 0, -128, 5]).astype(dtype), np.array([2, 2, -2, 3, -1, 0]).astype(dtype)
    program = df.Program(df.apply(operator, n, by), [n, by], backend="torch")
    made, wanted = program(*values), getattr(np, operator)(*values)
    assert made.dtype == wanted.dtype
    assert made.tolist() == wanted.tolist()


@pytest.mark.parametrize("as_tensor", [False, True])
def test_results_share_memory_with_nothing(as_tensor: bool) -> None:
    x = df.input("x", (2, 3), np.float64)
    constant = df.constant(np.ones(3))
    total = x + constant
    outputs = [
        x,
        x,
        df.reshape(x, (3, 2)),
        x.T,
        total,
        total,
        total.T,
        df.broadcast_to(constant, (2, 3)),
        constant,
    ]
    program = df.Program(outputs, [x], backend="torch")
    value = (
        torch.arange(6.0, dtype=torch.float64).reshape(2, 3) if as_tensor else np.arange(6.0).reshape(2, 3)
    )
    before = [np.asarray(each).copy() for each in program(value)]
    results = program(value)
    for result in results:
        assert isinstance(result, torch.Tensor if as_tensor else np.ndarray)
        result[...] = -1
    np.testing.assert_array_equal(np.asarray(value), np.arange(6.0).reshape(2, 3))
    for result, wanted in zip(program(value), before, strict=True):
        np.testing.assert_array_equal(np.asarray(result), wanted)


def test_arrays_that_cannot_be_written_or_run_backwards_are_taken() -> None:
    x = df.input("x", (3,), np.float64)
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    np.testing.assert_array_equal(df.evaluate(x * 2, {x: fixed[::-1]}, backend="torch"), [4.0, 2.0, 0.0])
    np.testing.assert_array_equal(
        df.evaluate(x * 2, {x: np.broadcast_to(1.0, 3)}, backend="torch"), [2.0, 2.0, 2.0]
    )


def test_gradients_that_users_wrote_and_recomputed_parts_run_on_torch() -> None:
    @df.custom_vjp
    def clipped(x: df.Tensor) -> df.Tensor:
        return x * 1.0

    clipped.defvjp(lambda x: (x * 1.0, x), lambda kept, g: (df.minimum(g, 0.5),))
    x = df.input("x", (4, 4), np.float64)

    def loss(x: df.Tensor) -> df.Tensor:
        hidden = df.checkpoint(lambda x: df.tanh(x @ x) * df.exp(x))(x)
        return df.sum(clipped(hidden) * df.stop_gradient(x))

    check_same(df.value_and_grad(loss)(x), {x: floats(4, 4)}, "torch")


@pytest.mark.parametrize("backend", DEVICES)
def test_a_transformer_block_and_a_convolutional_net_have_the_same_values_and_gradients(backend: str) -> None:
    ids, labels = df.input("ids", (2, 6), np.int64), df.input("labels", (2,), np.int64)
    images = df.input("images", (2, 1, 8, 8), np.float64)
    shapes = {
        "table": (11, 8), "q": (8, 8), "k": (8, 8), "v": (8, 8), "scale": (8,), "shift": (8,), "up": (8, 16), "down": (16, 8)
    }  # fmt: skip
    params = {name: df.input(name, shape, np.float64) for name, shape in shapes.items()}
    kernels = {
        "first": df.input("first", (3, 1, 3, 3), np.float64),
        "last": df.input("last", (27, 4), np.float64),
    }

    def block(p: dict[str, df.Tensor]) -> df.Tensor:
        x = df.embedding(p["table"], ids)
        y = df.layer_norm(x, p["scale"], p["shift"])
        x = x + df.attention(y @ p["q"], y @ p["k"], y @ p["v"], causal=True)
        x = x + df.gelu(df.layer_norm(x, p["scale"], p["shift"]) @ p["up"]) @ p["down"]
        return df.mean(df.softmax_cross_entropy(df.mean(x, 1), labels))

    def net(p: dict[str, df.Tensor]) -> df.Tensor:
        x = df.max_pool2d(df.relu(df.conv2d(images, p["first"])), 2)
        return df.mean(df.softmax_cross_entropy(df.reshape(x, (2, 27)) @ p["last"], labels))

    values: dict[df.Tensor, Any] = {each: floats(*each.shape, seed=3) for each in params.values()}
    values[ids], values[labels] = np.random.default_rng(1).integers(0, 11, (2, 6)), np.array([1, 3])
    value, slopes = df.value_and_grad(block)(params)
    check_same([value, *slopes.values()], values, backend)
    values = {each: floats(*each.shape, seed=4) for each in (images, *kernels.values())}
    values[labels] = np.array([1, 3])
    value, slopes = df.value_and_grad(net)(kernels)
    check_same([value, *slopes.values()], values, backend)


def test_fused_operators_write_over_what_they_made_themselves_and_never_over_an_input() -> None:
    x, y = df.input("x", (40, 10), np.float64), df.input("y", (10,), np.float64)
    # Steps that may return their input as it is (absolute of truth values, astype), and steps over those.
    steps = df.absolute(x > y)
    z = df.astype(steps, np.dtype(np.float64)) * df.exp(x) - y
    same = df.apply("astype", x, dtype=np.dtype(np.float64))
    z = df.sqrt(df.absolute(z)) * z + same * df.maximum(z, 0)
    graph = df.fuse(Graph((z,)))
    fused = [node for node in graph.nodes if node.op.kind == "fused"]
    assert fused
    values = {x: floats(40, 10, dtype=np.float64), y: floats(10, dtype=np.float64)}
    values[x][0] = SPECIAL
    before = {node: value.copy() for node, value in values.items()}
    check_same(list(graph.outputs), values, "torch")
    check_same(list(graph.outputs), values, "torch")
    for node, value in values.items():
        np.testing.assert_array_equal(value, before[node])


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="torch knows no device 'gpu'"):
        backend_named("torch:gpu")
    with pytest.raises(ValueError, match=r"'torch:cuda:99' needs a GPU that torch can use; it finds \d+"):
        backend_named("torch:cuda:99")
    with pytest.raises(ValueError, match="there is no backend 'tpu'; there are: "):
        backend_named("tpu")
    with pytest.raises(ValueError, match="the backend numpy has no device 'cuda'"):
        backend_named("numpy:cuda")
    assert "torch" in BACKENDS


def test_graphs_need_no_torch_until_it_is_asked_for_and_then_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from dag import dataflow as df\n"
        "x = df.input('x', (2,)); print(df.evaluate(x + x, {x: [1, 2]}))\n"
        "try: df.Program(x, [x], backend='torch')\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[2. 4.]",
        "the backend 'torch' needs the package 'torch', which is not installed: pip install 'mrdag[torch]'",
    ]
    loaded = "import sys; from dag import dataflow; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
