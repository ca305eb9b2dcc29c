"""Each rule of the passes: what changes no bit goes, and what would change one stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_graphs import check, optimised, values_of
from tensor_graphs import arrays_for, same_bits

from dag import Graph
from dag import dataflow as df
from dag.dataflow.passes_base import Notes, exact_key
from dag.dataflow.tables import TRAITS
from dag.errors import BadGraph

X, N, B = (df.input(name, (2, 3), dtype) for name, dtype in (("X", "float64"), ("N", "int64"), ("B", "bool")))
ROW = df.input("ROW", (3,), "float32")
GONE: dict[str, tuple[Callable[[], df.Tensor], df.Tensor]] = {
    "x * 1": (lambda: X * 1.0, X),
    "1 * x": (lambda: 1 * N, N),
    "True * b": (lambda: df.multiply(True, B), B),
    "x * ones": (lambda: X * np.ones((2, 3)), X),
    "x * a broadcast 1": (lambda: X * df.broadcast_to(df.constant(1.0), (2, 3)), X),
    "x / 1": (lambda: X / 1, X),
    "x + -0.0": (lambda: X + -0.0, X),
    "x - 0.0": (lambda: X - 0.0, X),
    "i + 0": (lambda: 0 + N, N),
    "i - 0": (lambda: N - 0, N),
    "-(-x)": (lambda: df.negative(-X), X),
    "a transpose of a transpose": (lambda: X.T.T, X),
    "a transpose to its own order": (lambda: df.apply("transpose", X, axes=(0, 1)), X),
    "a reshape of a reshape": (lambda: X.reshape(3, 2).reshape(6).reshape(2, 3), X),
    "a cast to its own dtype": (lambda: df.apply("astype", X, dtype=np.dtype("float64")), X),
    "a lossless cast and back": (lambda: ROW.astype("float64").astype("float32"), ROW),
    "truth values as numbers and back": (lambda: B.astype("int32").astype("float64").astype("bool"), B),
    "a broadcast to its own shape": (lambda: df.apply("broadcast_to", X, shape=(2, 3)), X),
    "a sum of integers to its own shape": (lambda: df.apply("sum_to", N, shape=(2, 3)), N),
    "stop_gradient": (lambda: df.stop_gradient(X), X),
    "all of them": (lambda: df.stop_gradient(df.negative(-(X * 1 + -0.0))).T.T / 1, X),
}
#: What looks the same, and is not for some x; and a word of the reason, where one is given.
STAYS: dict[str, tuple[Callable[[], df.Tensor], str]] = {
    "x + 0.0": (lambda: X + 0.0, "-0.0"),
    "x - -0.0": (lambda: X - -0.0, "-0.0"),
    "0.0 * x": (lambda: 0.0 * X, "NaN"),
    "x * 1 in another dtype": (lambda: ROW * np.float64(1), ""),
    "i / 1": (lambda: N / 1, ""),
    "x * ones that broadcast it": (lambda: ROW * np.ones((2, 3), "float32"), ""),
    "0 - x": (lambda: 0.0 - X, ""),
    "a cast that rounds and back": (lambda: X.astype("float32").astype("float64"), "not every float64"),
    "int64 to float64 and back": (lambda: N.astype("float64").astype("int64"), "not every int64"),
    "x - x": (lambda: X - X, ""),
    "x / x": (lambda: X / X, ""),
    "exp of log": (lambda: df.exp(df.log(X)), ""),
    "a sum to its own shape": (lambda: df.apply("sum_to", X, shape=(2, 3)), "begins with 0.0"),
    "a sum of a sum": (lambda: df.sum(df.sum(X, 0), 0), ""),
    "a barrier": (lambda: df.barrier(X, df.exp(X)), ""),
}


@pytest.mark.parametrize("claim", GONE)
def test_what_changes_nothing_goes(claim: str) -> None:
    make, left = GONE[claim]
    notes = Notes()
    made = df.simplify(Graph((df.exp(make()),)), notes)
    assert made.outputs[0].inputs == (left,)
    assert notes.applied
    assert not notes.refused


@pytest.mark.parametrize("claim", STAYS)
def test_what_changes_a_bit_for_some_input_stays(claim: str) -> None:
    make, why = STAYS[claim]
    output = df.exp(make())
    notes = Notes()
    made = df.simplify(Graph((output,)), notes)
    assert made.outputs == (output,)
    assert why in " ".join(notes.refused)
    assert bool(why) == bool(notes.refused)


def test_an_operator_broadcasts_by_itself_and_works_before_a_broadcast_of_all_it_has() -> None:
    x = df.input("x", (4, 3), np.float64)
    bias, scale = df.input("bias", (3,), np.float64), df.input("scale", (), np.float64)
    output = x + df.broadcast_to(
        df.exp(df.broadcast_to(bias, (4, 3)) * df.broadcast_to(scale, (4, 3))), (4, 3)
    )
    made = check([output], [x, bias, scale], df.simplify, arrays_for([x, bias, scale], 1))
    assert [(node.op.kind, node.shape) for node in made.nodes if node.inputs] == [  # type: ignore[attr-defined]
        ("multiply", (3,)), ("exp", (3,)), ("add", (4, 3)),
    ]  # fmt: skip


def test_outputs_keep_their_names_where_they_become_inputs_constants_or_one_another() -> None:
    x = df.input("x", (3,), np.float64)
    same, one, two = x * 1, df.exp(x), df.exp(x)
    number = df.exp(df.constant(0.0))
    made = check([same, one, two, number, one], [x], optimised, [np.array([1.0, -0.0, np.nan])])
    assert made.outputs[1] is made.outputs[4]
    assert [node.op.kind for node in made.nodes].count("exp") == 1


# ------------------------------------------------------------------------------------- what is there twice, or unwanted


def test_equal_operators_on_equal_inputs_are_one_in_either_order_where_bits_allow() -> None:
    x, y = df.input("x", (3,), np.float64), df.input("y", (3,), np.float64)

    def kinds(*outputs: df.Tensor) -> list[str]:
        made = df.eliminate_common(Graph((df.concatenate([df.reshape(each, (1, 3)) for each in outputs]),)))
        return [
            node.op.kind
            for node in made.nodes
            if TRAITS.get(node.op.kind) and TRAITS[node.op.kind].elementwise
        ]

    assert kinds(x + y, y + x, x + y) == ["add"]
    assert kinds(x * y, y * x) == ["multiply"]
    assert kinds(df.maximum(x, y), df.maximum(y, x)) == [
        "maximum",
        "maximum",
    ]  # which of 0.0 and -0.0 differs
    assert kinds(x - y, y - x) == ["subtract", "subtract"]
    assert kinds(x + 0.0, x + -0.0) == ["add", "add"]  # 0.0 == -0.0, and yet
    assert kinds(x.astype("int32"), x.astype("int64")) == ["astype", "astype"]
    assert kinds(df.exp(x + y), df.exp(y + x)) == ["add", "exp"]


def test_attributes_that_python_calls_equal_are_told_apart() -> None:
    x = df.input("x", (2,), np.float64)
    spans = ((0, 1, 2),)
    made = [df.apply("place", x, shape=(2,), spans=spans, fill=fill) for fill in (0.0, -0.0, 0.0)]
    first, second, third = (exact_key(each.op) for each in made)
    assert first == third != second


def test_what_checkpoint_computes_again_stays_apart() -> None:
    def body(x: df.Tensor) -> df.Tensor:
        return df.tanh(df.exp(df.tanh(x)))

    x = df.input("x", (50,), np.float64)
    kept = df.grad(lambda x: df.sum(body(x)))(x)
    again = df.grad(lambda x: df.sum(df.checkpoint(body)(x)))(x)
    arrays = arrays_for([x], 3)
    made = check([again], [x], optimised, arrays)
    assert "barrier" in {node.op.kind for node in made.nodes}
    assert same_bits(values_of([kept], [x], arrays)[0], values_of([again], [x], arrays)[0])


def test_outputs_that_nobody_wants_go_with_what_they_alone_need() -> None:
    x = df.input("x", (3,), np.float64)
    one, two = df.exp(x), df.tanh(df.log(x))
    graph = Graph((one, two))
    assert df.dead_code(graph, [one]).nodes == (x, one)
    assert df.dead_code(graph, [two.name, one]).outputs == (one, two)
    with pytest.raises(BadGraph, match=r"'log_[0-9]+' is no output of the graph; its outputs are exp_"):
        df.dead_code(graph, [two.inputs[0]])


# ------------------------------------------------------------------------------------------------------------- constants


def test_what_depends_on_constants_alone_is_one() -> None:
    x = df.input("x", (3,), np.float64)
    output = x * df.exp(df.constant(np.array([1.0, np.nan, -0.0])) + 1.0)
    made = check([output], [x], df.fold_constants, arrays_for([x], 1))
    assert [node.op.kind for node in made.nodes] == ["input", "constant", "multiply"]


def test_a_constant_is_not_blown_up_and_no_larger_than_the_limit() -> None:
    x = df.input("x", (100, 100), np.float64)
    notes = Notes()
    wide = x * df.exp(df.broadcast_to(df.constant(2.0), (100, 100)))
    made = df.fold_constants(Graph((wide,)), notes)
    assert max(node.size_bytes for node in made.nodes if node.op.kind == "constant") == 8
    assert "80,000 bytes, made from 8" in notes.refused[0]
    table = x * df.exp(df.constant(np.ones((100, 100))))
    assert [node.op.kind for node in df.fold_constants(Graph((table,))).nodes] == [
        "input",
        "constant",
        "multiply",
    ]
    assert df.fold_constants(Graph((table,)), limit_bytes=79_999).outputs == (table,)
    assert len(df.optimise(Graph((wide,))).graph) == 3  # simplify computes it before the broadcast


def test_constants_that_an_operator_refuses_are_left_to_the_run() -> None:
    out = df.apply("take", df.constant(np.ones(3)), df.constant(np.array([5])), axis=0)
    notes = Notes()
    assert df.fold_constants(Graph((out,)), notes).outputs == (out,)
    assert "take failed on these constants" in notes.refused[0]
