"""What does not fit is said in one line: shapes and dtypes while the graph is built, ids when it runs."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_graphs import naive as evaluate

from dag import dataflow as df
from dag.errors import BadTensor, OutOfRange, UnknownOperator

X = df.input("x", (2, 3, 4), np.float64)
S, T = df.input("s", (32, 10)), df.input("t", (20, 5))
N, Q = df.input("n", (32,), np.int64), df.input("q", (2, 3, 4, 4))
ERRORS = {
    "matmul: (32, 10) x (20, 5): inner dimensions 10 and 20 differ": lambda: S @ T,
    "matmul: (2, 3, 4) x (3, 4, 2): the leading dimensions do not": lambda: X @ df.input("y", (3, 4, 2), np.float64),
    "matmul: (32, 10) x (): a number has no dimensions": lambda: S @ 2.0,
    "add: the shapes (32, 10) and (20, 5) do not broadcast together": lambda: S + T,
    "where: the shapes (32, 10) and (32, 10) and (20, 5) do not": lambda: df.where(S > 0, S, T),
    "negative: there is no negative of bool": lambda: -(S > 0),
    "reshape: (32, 10) has 320 elements and (7, 7) has 49": lambda: S.reshape(7, 7),
    "reshape: no length in place of -1 makes 320 elements of (-1, 7)": lambda: S.reshape(-1, 7),
    "reshape: a shape has lengths from 0 on, at most one of them -1": lambda: S.reshape(-1, -1),
    "transpose: axis 2 is out of range for the shape (32, 10)": lambda: S.transpose(0, 2),
    "transpose: the axes of (32, 10) are 0 to 1, each once, got (0, 0)": lambda: S.transpose(0, 0),
    "broadcast_to: (32, 10) does not broadcast to (32, 11)": lambda: df.broadcast_to(S, (32, 11)),
    "sum: axis 2 is out of range for the shape (32, 10)": lambda: S.sum(2),
    "sum: an axis is named twice in (0, -2)": lambda: S.sum((0, -2)),
    "sum: an axis is an integer, got 1.5": lambda: S.sum((1.5,)),
    "mean: an axis is an integer, a tuple of them or None, got 'rows'": lambda: S.mean("rows"),
    "max: (0, 3) has no elements along the axes (0,)": lambda: df.max(df.input("e", (0, 3)), 0),
    "argmax: (0, 3) has no elements along axis 0": lambda: df.argmax(df.input("e", (0, 3)), 0),
    "cumsum: axis 5 is out of range": lambda: df.cumsum(S, 5),
    "softmax: axis 2 is out of range for the shape (32, 10)": lambda: df.softmax(S, 2),
    "softmax: floats are wanted, got int64": lambda: df.softmax(N),
    "logsumexp: (0, 3) has no elements along axis 0": lambda: df.logsumexp(df.input("e", (0, 3)), 0),
    "getitem: index 32 is out of range for axis 0 of (32, 10)": lambda: S[32],
    "getitem: (32, 10) takes 2 indices and one '...', got 3": lambda: S[0, 0, 0],
    "getitem: truth values would make a shape that depends on values; use where": lambda: S[S > 0],
    "getitem: an index is an integer, a slice, '...', None or integers, got 'a'": lambda: S["a"],
    "getitem: a slice has integers and a step that is not 0": lambda: S[::0],
    "getitem: an array of integers may stand beside slices only": lambda: S[N, N],
    "take: id 10 is outside 0 to 9": lambda: df.take(S, [0, 10], axis=1),
    "take: the ids are integers, got float32": lambda: df.take(S, S, axis=1),
    "take_along_axis: the shapes": lambda: df.take_along_axis(S, np.zeros((31, 1), np.int64), 1),
    "embedding: id 32 is outside 0 to 31": lambda: df.embedding(S, [32]),
    "embedding: the ids are integers, got float64": lambda: df.embedding(S, [0.5]),
    "one_hot: id 3 is outside 0 to 2": lambda: df.one_hot([3], 3),
    "concatenate: the shapes (32, 10) and (20, 5) differ elsewhere than along axis 0": lambda: df.concatenate([S, T]),
    "concatenate: at least one tensor is wanted, got none": lambda: df.concatenate([]),
    "concatenate: axis 2 is out of range": lambda: df.concatenate([S, S], 2),
    "stack: the shapes (32, 10) and (20, 5) differ": lambda: df.stack([S, T]),
    "split: axis 0 of (32, 10) has no 5 equal parts": lambda: df.split(S, 5),
    "squeeze: axis 0 of (32, 10) has the length 32, not 1": lambda: df.squeeze(S, 0),
    "pad: the mode is 'constant', got 'edge'": lambda: df.pad(S, 1, mode="edge"),
    "pad: widths are integers from 0 on, got -1": lambda: df.pad(S, -1),
    "pad: (32, 10) wants n, (before, after) or such a pair per axis": lambda: df.pad(S, ((1, 1),) * 3),
    "einsum 'ij,jk->ik': j is 10 in (32, 10) and 20 in (20, 5)": lambda: df.einsum("ij,jk->ik", S, T),
    "einsum 'ii->i': 'ii' must have one letter, each once": lambda: df.einsum("ii->i", S),
    "einsum 'ij->k': the result 'k' must have letters of the operands": lambda: df.einsum("ij->k", S),
    "einsum 'ij,jk': 2 operands are wanted, got 1": lambda: df.einsum("ij,jk", S),
    "tensordot: (32, 10) x (20, 5): the axes (1,) and (0,) differ": lambda: df.tensordot(S, T, 1),
    "softmax_cross_entropy: logits (32, 10) want labels of the shape (32,), got (31,)": (
        lambda: df.softmax_cross_entropy(S, np.zeros(31, int))
    ),
    "softmax_cross_entropy: the labels are class numbers, got float32": (
        lambda: df.softmax_cross_entropy(S, df.input("l", (32,)))
    ),
    "softmax_cross_entropy: id 10 is outside 0 to 9": lambda: df.softmax_cross_entropy(S, np.full(32, 10)),
    "layer_norm: scale (4,) does not broadcast to": lambda: df.layer_norm(Q[..., :1], df.input("g", (4,))),
    "layer_norm: scale: the shapes (32, 10) and (7,) do not": lambda: df.layer_norm(S, df.input("g", (7,))),
    "normalise: floats are wanted, got int64": lambda: df.layer_norm(N),
    "attention: query (32, 10), key (20, 5), value (20, 5): query and key share": lambda: df.attention(S, T, T),
    "attention: query (2, 3), key (1, 3), value (1, 3): causal": lambda: df.attention(
        df.input("q", (2, 3)), df.input("k", (1, 3)), df.input("v", (1, 3)), causal=True
    ),
    "conv2d: (32, 10) * (2, 3, 4, 4): images are (batch, channels, height, width)": lambda: df.conv2d(S, Q),
    "conv2d: (2, 3, 4, 4) * (5, 2, 3, 3): the image has 3 channels, the weights want 2": (
        lambda: df.conv2d(Q, df.input("w", (5, 2, 3, 3)))
    ),
    "conv2d: (2, 3, 4, 4) * (5, 3, 5, 5): the weights are larger than the image": (
        lambda: df.conv2d(Q, df.input("w", (5, 3, 5, 5)))
    ),
    "conv2d: stride is an integer, or two for height and width, got 1.5": lambda: df.conv2d(Q, Q, stride=1.5),
    "conv2d: strides are from 1 on and padding from 0 on, got (0, 0) and (0, 0)": lambda: df.conv2d(Q, Q, stride=0),
    "max_pool2d: windows of (5, 5) are larger than the images (2, 3, 4, 4)": lambda: df.max_pool2d(Q, 5),
    "average_pool2d: images (batch, channels, height, width) and sizes from 1 on": lambda: df.average_pool2d(S, 2),
    "gelu: floats are wanted, got int64": lambda: df.gelu(N),
    "max_pool2d: with padding (2, 2) a window of (2, 2) could hold nothing else": lambda: df.max_pool2d(Q, 2, padding=2),
    "attention: floats are wanted, got int64": lambda: df.attention(N[None], N[None], N[None]),
    "attention: the shapes (2, 3) and (2, 3) and (2,) do not broadcast": lambda: df.attention(Q, Q, df.input("v", (2, 4, 4))),
    "layer_norm: epsilon is a number from 0 on, got -1": lambda: df.layer_norm(S, epsilon=-1),
    "one_hot: the depth is an integer from 0 on, got -1": lambda: df.one_hot(N, -1),
    "pad: 0.5 is no int64": lambda: df.pad(N, 1, constant_values=0.5),
    "broadcast_to: a shape has lengths from 0 on, got (2.5, 10)": lambda: df.broadcast_to(S, (2.5, 10)),
    "transpose: the axes are a sequence, got 1": lambda: df.transpose(S, 1),
    "concatenate: the values are a sequence, got 5": lambda: df.concatenate(5),
    "split: places are integers, got ['a']": lambda: df.split(S, "a"),
    "tensordot: (32, 10) x (32, 10): an axis is named twice in (0, 0) and (0, 0)": (
        lambda: df.tensordot(S, S, ((0, 0), (0, 0)))
    ),
    "power: integers to the power -1 are no integers; use astype, or -1.0": lambda: N**-1,
    "300 does not fit in uint8; use astype": lambda: df.input("u", (2,), np.uint8) + 300,
    "a tensor holds real numbers or truth values, its dtype cannot be complex128": lambda: S.astype(complex),
    "there is no dtype 'tall'": lambda: df.input("u", (2,), "tall"),
    "a tensor holds numbers or truth values, got 'a' of dtype <U1": lambda: S + "a",
    "bitwise_and: truth values are wanted, got float32; compare": lambda: S & (S > 0),
    "this is no array of numbers, got [Tensor('s', input, (32, 10), float32), Tensor('s',": lambda: df.exp([S, S]),
    "this is no array of numbers, got [[1], [1, 2]]: setting an array element": lambda: df.add(S, [[1], [1, 2]]),
    "this is no array of numbers, got [Tensor('n', input, (32,), int64)]; tensors are": lambda: df.take(S, [N]),
    "a tensor holds numbers or truth values, got array(['a'], dtype='<U1')": lambda: df.where(S > 0, np.array(["a"]), 1),
    "there is no dtype [[1], [1, 2]]": lambda: df.constant(1, [[1], [1, 2]]),
    "sum: an axis is an integer, a tuple of them or None, got array([[0., 0.], [0., 0.]])": lambda: S.sum(np.zeros((2, 2))),
    "add: missing a required argument: 'right', got 1 inputs": lambda: df.apply("add", S),
    "add: got an unexpected keyword argument 'axis', got 2 inputs": lambda: df.apply("add", S, S, axis=1),
    "sum: attributes are hashable values (tuples, not lists)": lambda: df.apply("sum", S, axis=[0], keepdims=True),
    "np.exp(tensor, out=): no node stands for that; call it plainly": lambda: np.exp(S, out=np.empty((32, 10))),
    "np.add.reduce(tensor): no node stands for that; call it plainly": lambda: np.add.reduce(S),
    "relu: numbers are wanted, got bool": lambda: df.relu(S > 0),
    "input 'r': a shape has lengths from 0 on, got (2.5,)": lambda: df.input("r", 2.5),
    "input 'r': a shape has lengths from 0 on, got (-1,)": lambda: df.input("r", -1),
    "place: inf is no int64": lambda: df.apply("place", N, shape=(34,), spans=((1, 1, 32),), fill=np.inf),
    "pad: 2 is no bool": lambda: df.pad(S > 0, 1, constant_values=2),
    "conv2d_to_images: floats are wanted, got int64": lambda: df.apply(
        "conv2d_to_images", Q.astype(int), Q, shape=Q.shape, stride=(1, 1), padding=(0, 0)
    ),
    "conv2d_to_weights: floats are wanted, got int64": lambda: df.apply(
        "conv2d_to_weights", Q, Q.astype(int), shape=Q.shape, stride=(1, 1), padding=(0, 0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", ERRORS)
def test_what_does_not_fit_is_one_clear_line_while_the_graph_is_built(message: str) -> None:
    with pytest.raises(BadTensor) as found:
        ERRORS[message]()
    assert str(found.value).startswith(message)
    assert "\n" not in str(found.value)


def test_a_function_of_numpy_that_no_operator_does_is_named() -> None:
    with pytest.raises(UnknownOperator, match="there is no operator 'arctan2'"):
        np.arctan2(S, S)
    with pytest.raises(UnknownOperator, match="there is no operator 'median'"):
        np.median(S)


def test_a_tensor_is_not_mistaken_for_an_array_of_its_elements() -> None:
    for wanting in (
        np.asarray,
        lambda tensor: np.array([tensor, tensor]),
        bool,
        lambda tensor: max(tensor, tensor),
    ):
        with pytest.raises(TypeError, match="has no value yet"):
            wanting(S)
    with pytest.raises(TypeError, match="has no dimensions, so no length"):
        list(df.sum(S))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_an_id_out_of_range_is_found_when_the_graph_runs_and_named(wrong: int) -> None:
    table, logits = df.input("table", (4, 2)), df.input("logits", (3, 4))
    ids = df.input("ids", (3,), np.int64)
    values = {
        table: np.zeros((4, 2), np.float32),
        logits: np.zeros((3, 4), np.float32),
        ids: np.array([0, 3, wrong]),
    }
    row = df.input("row", (3, 2))
    values[row] = np.zeros((3, 2), np.float32)
    made = {
        "take": df.embedding(table, ids),
        "one_hot": df.one_hot(ids, 4),
        "softmax_cross_entropy": df.softmax_cross_entropy(logits, ids),
        "scatter_add": df.apply("scatter_add", row, ids, axis=0, length=4),
        "take_along_axis": df.take_along_axis(logits, df.reshape(ids, (3, 1)), 1),
    }
    for kind, tensor in made.items():
        with pytest.raises(OutOfRange, match=rf"{kind}: id {wrong} at \[2(, 0)?\] is outside 0 to 3"):
            evaluate([tensor], values)
    with pytest.raises(IndexError):
        df.evaluate(made["take"], {table: values[table], ids: values[ids]})
