"""Graphs from names: the same as from calls, and what names can get wrong told in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dataflow_functions import F64, number

from dag import BadGraph, Graph
from dag import dataflow as df
from dag.errors import BadTensor, UnknownOperator


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
