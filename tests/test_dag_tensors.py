"""Tensor operators against NumPy: values, dtypes, and kernels that write where they are told."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from dag_cases import Chance, softmax
from dag_operators import EXAMPLES, MARKS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensor_graphs import naive as evaluate

from dag import Graph
from dag import dataflow as df
from dag.dataflow.tables import KERNELS, SHAPES, TRAITS
from dag.errors import BadTensor

SOME = settings(max_examples=settings.default.max_examples // 2, suppress_health_check=list(HealthCheck))
KINDS = sorted(EXAMPLES)


def test_every_operator_has_an_example() -> None:
    assert set(SHAPES) - MARKS - set(EXAMPLES) == set()
    assert set(EXAMPLES) | MARKS <= set(SHAPES)


@pytest.mark.parametrize("kind", KINDS)
@SOME
@given(data=st.data())
def test_the_value_is_that_of_numpy(kind: str, data: st.DataObject) -> None:
    case = EXAMPLES[kind](Chance(data))
    inputs = case.inputs()
    result = case.apply(*inputs)
    (value,) = evaluate([result], dict(zip(inputs, case.arrays, strict=True)))
    expected = np.asarray(case.expected(*case.arrays))
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert (value.shape, value.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)
    else:
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("kind", KINDS)
@SOME
@given(data=st.data())
def test_a_kernel_gives_the_same_bits_into_any_array_it_is_told_to_write_to(
    kind: str, data: st.DataObject
) -> None:
    case = EXAMPLES[kind](Chance(data))
    node = case.apply(*case.inputs())
    if node.op.kind != kind:
        return  # a slice of everything is the tensor itself
    kernel = KERNELS["numpy"][kind](node)
    arrays = [np.array(each) for each in case.arrays]
    fresh = np.asarray(kernel(*arrays))
    whole = np.full(node.shape, 7, node.dtype)
    strided = np.full((*node.shape[::-1], 2), 7, node.dtype)[..., 0].T
    for out in (whole, strided):
        assert kernel(*arrays, out=out) is out
        assert out.tobytes() == fresh.tobytes()
    for given_array, kept in zip(arrays, case.arrays, strict=True):
        np.testing.assert_array_equal(given_array, kept)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if TRAITS[kind].elementwise])
@SOME
@given(data=st.data())
def test_an_elementwise_kernel_may_write_over_any_input_of_its_size(kind: str, data: st.DataObject) -> None:
    case = EXAMPLES[kind](Chance(data))
    node = case.apply(*case.inputs())
    kernel = KERNELS["numpy"][kind](node)
    fresh = np.asarray(kernel(*case.arrays))
    for at, each in enumerate(case.arrays):
        if each.shape == node.shape and each.dtype == node.dtype:
            arrays = [np.array(array) for array in case.arrays]
            kernel(*arrays, out=arrays[at])
            assert arrays[at].tobytes() == fresh.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16", "int64"])
def test_where_keeps_every_bit_of_what_it_chooses(dtype: str) -> None:
    values: Any = [0, 1, -1, 3, 100, -7]
    if dtype.startswith("float"):
        values = [np.nan, np.inf, -np.inf, -0.0, 0.0, np.finfo(dtype).tiny / 4]
    a = np.array([values] * 6, dtype)
    b = np.ascontiguousarray(a.T)
    condition = np.random.default_rng(0).random(a.shape) < 0.5
    node = df.where(
        *(df.input(name, each.shape, each.dtype) for name, each in zip("cab", (condition, a, b), strict=True))
    )
    kernel = KERNELS["numpy"]["where"](node)
    expected = np.where(condition, a, b).tobytes()
    assert kernel(condition, a, b).tobytes() == expected
    over_a, over_b = a.copy(), b.copy()
    kernel(condition, over_a, b, out=over_a)
    kernel(condition, a, over_b, out=over_b)
    assert over_a.tobytes() == over_b.tobytes() == expected
    assert kernel(condition, a, b[:, :1]).tobytes() == np.where(condition, a, b[:, :1]).tobytes()


def test_a_sum_back_to_the_shape_it_has_keeps_minus_zero() -> None:
    node = df.apply("sum_to", df.input("x", (1, 2), np.float64), shape=(2,))
    kernel = KERNELS["numpy"]["sum_to"](node)
    x = np.array([[-0.0, 1.0]])
    assert kernel(x).tobytes() == kernel(x, out=np.empty(2)).tobytes() == x.tobytes()


DTYPES = [
    np.dtype(each) for each in ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
]
BINARY = [
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "less", "equal", "logical_and", "matmul",
]  # fmt: skip
UNARY = ["negative", "square", "sqrt", "exp", "log1p", "tanh", "sin", "absolute", "sign", "floor", "isnan"]


def test_dtypes_are_promoted_as_numpy_does_and_refused_where_it_refuses() -> None:
    for kind, count in itertools.chain(zip(BINARY, itertools.repeat(2)), zip(UNARY, itertools.repeat(1))):
        for dtypes in itertools.product(DTYPES, repeat=count):
            inputs = [df.input(f"x{at}", (1, 1), dtype) for at, dtype in enumerate(dtypes)]
            try:
                expected = getattr(np, kind)(*[np.ones((1, 1), dtype) for dtype in dtypes]).dtype
            except TypeError:
                with pytest.raises(BadTensor, match=f"{kind}: there is no {kind} of"):
                    getattr(df, kind)(*inputs)
                continue
            assert getattr(df, kind)(*inputs).dtype == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fold", ["sum", "max", "mean", "argmax", "cumsum", "var"])
def test_reductions_have_the_dtype_of_numpy(fold: str, dtype: Any) -> None:
    if fold == "var" and dtype.kind == "b":
        pytest.skip("NumPy's variance of truth values subtracts them as integers; subtract refuses them here")
    expected = getattr(np, fold)(np.ones((2, 2), dtype), axis=0).dtype
    assert getattr(df, fold)(df.input("x", (2, 2), dtype), axis=0).dtype == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_products_have_the_dtype_of_numpy(dtype: Any) -> None:
    values = np.ones((2, 2), dtype)
    for subscripts in ("ij->i", "ij->", "ij,jk->ik", "ij,kl->i"):
        given = [values] * (1 + subscripts.count(","))
        expected = np.einsum(subscripts, *given)
        (found,) = evaluate([df.einsum(subscripts, *map(df.constant, given))], {})
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">f2", ">i8", ">i4", ">u2"])
def test_arrays_in_the_other_order_of_bytes_mean_the_same(dtype: str) -> None:
    theirs, yes = np.array([1, 2, 300], dtype), np.array([True, False, True])
    ours = theirs.astype(theirs.dtype.newbyteorder("="))
    x = df.input("x", (3,), dtype)
    tensors = {
        "of an input": df.where(yes, x, x + x),
        "of a constant": df.where(yes, df.constant(theirs), df.constant(theirs + theirs)),
        "cast": df.where(yes, df.apply("astype", x, dtype=theirs.dtype), x + x),
        "of a stated dtype": df.constant(ours, dtype) + df.one_hot([0, 1, 2], 3, dtype)[0] * 0,
    }
    assert {each.dtype for each in tensors.values()} == {ours.dtype}
    chosen = np.where(yes, ours, ours + ours)
    for value, expected in zip(
        evaluate(list(tensors.values()), {x: theirs}), [chosen, chosen, chosen, ours], strict=True
    ):
        np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(df.Program(tensors["of an input"], [x])(theirs), chosen)


def test_python_numbers_take_the_dtype_of_the_tensor_beside_them() -> None:
    x, n = df.input("x", (2,), np.float32), df.input("n", (2,), np.int32)
    made = [
        x + 1,
        1 - x,
        x * 2.5,
        2 / x,
        x**3,
        2**x,
        df.maximum(x, 0),
        df.where(x > 0, x, 0.5),
        df.clip(x, -1, 1.5),
    ]
    assert {each.dtype for each in made} == {np.dtype(np.float32)}
    assert (n + 1).dtype == np.int32
    assert (n * 1.5).dtype == np.float64
    assert df.where(x > 0, 1, 2.5).dtype == np.float64
    assert (x + np.float64(1)).dtype == np.float64


def same(tensor: df.Tensor, inputs: dict[df.Tensor, Any], expected: Any) -> None:
    (value,) = evaluate([tensor], inputs)
    assert (tensor.shape, tensor.dtype) == (np.shape(expected), np.asarray(expected).dtype)
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)


A = np.random.default_rng(1).normal(size=(2, 3, 4))
B = np.random.default_rng(2).normal(size=(4, 5))
V = np.random.default_rng(3).normal(size=4)
IDS = np.array([2, 0, 0])
X, Y, W = df.input("X", A.shape, A.dtype), df.input("Y", B.shape, B.dtype), df.input("W", V.shape, V.dtype)
GIVEN = {X: A, Y: B, W: V}

CALLS = {
    "exp": lambda x, y, w: np.exp(x),
    "ufunc with an array": lambda x, y, w: np.multiply(A, x),
    "array on the left": lambda x, y, w: A - x,
    "reflected matmul": lambda x, y, w: A @ y,
    "where": lambda x, y, w: np.where(x > 0, x, -x),
    "concatenate": lambda x, y, w: np.concatenate([x, 2 * x], axis=-1),
    "stack": lambda x, y, w: np.stack([x, 2 * x], axis=1),
    "matmul": lambda x, y, w: np.matmul(x, y),
    "vector on the right": lambda x, y, w: x @ w,
    "vector on the left": lambda x, y, w: w @ y,
    "two vectors": lambda x, y, w: w @ w,
    "dot": lambda x, y, w: np.dot(x, y),
    "dot of vectors": lambda x, y, w: np.dot(w, w),
    "tensordot": lambda x, y, w: np.tensordot(x, y, axes=1),
    "tensordot over pairs": lambda x, y, w: np.tensordot(x, x, axes=((0, 2), (0, 2))),
    "tensordot over none": lambda x, y, w: np.tensordot(w, y, axes=0),
    "einsum": lambda x, y, w: np.einsum("bij,jk->bki", x, y),
    "einsum of one": lambda x, y, w: np.einsum("bij->jb", x),
    "einsum of three": lambda x, y, w: np.einsum("bij,jk,j->bik", x, y, w),
    "einsum with a batch": lambda x, y, w: np.einsum("bij,bkj->bik", x, x),
    "einsum without an arrow": lambda x, y, w: np.einsum("jk,j", y, w),
    "einsum to a number": lambda x, y, w: np.einsum("bij,bij->", x, x),
    "einsum outer": lambda x, y, w: np.einsum("i,jk->kij", w, y),
    "sum": lambda x, y, w: np.sum(x, axis=(0, -1), keepdims=True),
    "mean": lambda x, y, w: np.mean(x, axis=-2),
    "var": lambda x, y, w: np.var(x, axis=1, ddof=1),
    "std": lambda x, y, w: np.std(x, keepdims=True),
    "max": lambda x, y, w: np.max(x, axis=1),
    "amin": lambda x, y, w: np.amin(x),
    "argmax": lambda x, y, w: np.argmax(x, axis=1),
    "argmin of all": lambda x, y, w: np.argmin(x),
    "argmax keeping": lambda x, y, w: np.argmax(x, axis=1, keepdims=True),
    "cumsum": lambda x, y, w: np.cumsum(x, axis=1),
    "cumsum of all": lambda x, y, w: np.cumsum(x),
    "clip": lambda x, y, w: np.clip(x, -0.5, 0.5),
    "reshape": lambda x, y, w: np.reshape(x, (4, -1)),
    "ravel": lambda x, y, w: np.ravel(x),
    "transpose": lambda x, y, w: np.transpose(x, (1, 0, -1)),
    "swapaxes": lambda x, y, w: np.swapaxes(x, 0, -1),
    "moveaxis": lambda x, y, w: np.moveaxis(x, 0, -1),
    "expand_dims": lambda x, y, w: np.expand_dims(x, (0, -1)),
    "squeeze": lambda x, y, w: np.squeeze(np.expand_dims(x, 1), axis=1),
    "broadcast_to": lambda x, y, w: np.broadcast_to(w, (2, 4)),
    "flip": lambda x, y, w: np.flip(x, 1),
    "flip of all": lambda x, y, w: np.flip(x),
    "pad": lambda x, y, w: np.pad(w, (1, 2), constant_values=1.5),
    "pad per axis": lambda x, y, w: np.pad(y, ((1, 0), (0, 2))),
    "split": lambda x, y, w: np.split(x, 2, axis=-1)[1],
    "split at places": lambda x, y, w: np.split(x, [1, 3], axis=2)[1],
    "take": lambda x, y, w: np.take(x, [-1, 0], axis=1),
    "take of all": lambda x, y, w: np.take(x, 5),
    "take_along_axis": lambda x, y, w: np.take_along_axis(x, IDS[None, :, None], axis=2),
    "integer": lambda x, y, w: x[1],
    "negative integer": lambda x, y, w: x[..., -1],
    "slices": lambda x, y, w: x[:, ::2, 3:0:-2],
    "new axis": lambda x, y, w: x[:, None, 1, ..., None],
    "reversed": lambda x, y, w: x[::-1],
    "beyond the end": lambda x, y, w: x[5:, 1:100],
    "array of integers": lambda x, y, w: x[:, IDS],
    "list of integers": lambda x, y, w: w[[3, 1]],
    "floor_divide and remainder": lambda x, y, w: x // 0.3 + x % 0.3 + 2 // (x + 5) + 2 % (x + 5) + np.mod(x, -0.7),
    "pad of truth values": lambda x, y, w: np.pad(w > 0, 1),
    "power": lambda x, y, w: x**2 + x**3,
    "absolute": lambda x, y, w: abs(x),
    "logical": lambda x, y, w: np.logical_or(x > 0, x < -1),
    "logical operators": lambda x, y, w: (x > 0) & ~(x > 1) | (x < -1) ^ (x < -2),
    "cast by a function": lambda x, y, w: np.astype(x, np.float32),
    "zeros_like": lambda x, y, w: x + np.zeros_like(x),
    "ones_like": lambda x, y, w: x + np.ones_like(x),
    "its size": lambda x, y, w: x * np.size(x) + np.ndim(x) + np.shape(x)[0],
    "T": lambda x, y, w: x.T,
    "methods": lambda x, y, w: x.reshape(6, 4).transpose(1, 0).sum(0).mean(),
    "extremes as methods": lambda x, y, w: x.max(1) - x.min(axis=1) * y.argmax() + y.max(keepdims=True) * x[0].argmax(0),
    "astype": lambda x, y, w: x.astype(np.float32).astype("float64") * 0,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_numpys_own_functions_and_operators_make_nodes_that_mean_the_same(name: str) -> None:
    made = CALLS[name](X, Y, W)
    assert isinstance(made, df.Tensor)
    same(made, GIVEN, CALLS[name](A, B, V))


def test_an_index_may_be_a_tensor() -> None:
    ids, at = df.input("ids", (3,), np.int64), df.input("at", (), np.int64)
    same(W[ids], {**GIVEN, ids: IDS}, V[IDS])
    same(X[1, :, 1:][:, at], {**GIVEN, at: np.array(2)}, A[1, :, 1:][:, 2])
    same(df.logsumexp(X, (0, 2), keepdims=True), GIVEN, np.log(np.exp(A).sum((0, 2), keepdims=True)))


def test_iterating_and_unpacking_end_where_the_first_dimension_does() -> None:
    one, two = X
    same(one + two, GIVEN, A[0] + A[1])


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "uint64"])
@pytest.mark.parametrize("kind", ["take", "scatter_add", "take_along_axis", "scatter_along_axis", "one_hot"])
@given(data=st.data())
@SOME
def test_ids_may_be_integers_of_any_kind(kind: str, dtype: str, data: st.DataObject) -> None:
    case = EXAMPLES[kind](Chance(data))
    arrays = [each.astype(dtype) if each.dtype.kind == "i" else each for each in case.arrays]
    inputs = [df.input(f"x{at}", each.shape, each.dtype) for at, each in enumerate(arrays)]
    (value,) = evaluate([case.apply(*inputs)], dict(zip(inputs, arrays, strict=True)))
    np.testing.assert_allclose(value, case.expected(*case.arrays), rtol=1e-12)


def test_labels_may_be_unsigned() -> None:
    logits, labels = np.eye(3), np.array([0, 2, 1], np.uint64)
    x, y = df.input("logits", (3, 3), np.float64), df.input("labels", (3,), np.uint64)
    slope = df.grad(lambda x: df.sum(df.softmax_cross_entropy(x, y)))(x)
    np.testing.assert_allclose(
        evaluate([slope], {x: logits, y: labels})[0], softmax(logits) - np.eye(3)[labels]
    )


def test_a_product_with_one_matrix_is_one_product_of_tall_matrices() -> None:
    made = X @ Y
    kinds = [node.op.kind for node in Graph((made,)).nodes]
    assert kinds.count("matmul") == 1
    assert next(node for node in Graph((made,)).nodes if node.op.kind == "matmul").shape == (6, 5)
