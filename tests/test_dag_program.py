"""A program gives the bits of the naive evaluator, leaves alone what is not its own, and says clearly what does not fit."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_graphs import arrays_for, naive, same_bits, tensor_graphs

from dag import Graph
from dag import dataflow as df
from dag.dataflow.trees import flatten
from dag.errors import BadGraph, BadTensor, NotFinite

Array = np.ndarray[Any, Any]
Drawn = tuple[list[df.Tensor], list[df.Tensor]]


def perceptron(donate: bool = True, **settings: Any) -> tuple[df.Program, list[Array], Any]:
    """Return a training step (parameters, points to parameters, loss), parameters, and the outputs and inputs."""
    w1, w2 = df.input("w1", (6, 5), np.float64), df.input("w2", (5, 1), np.float64)
    x = df.input("x", (8, 6), np.float64)

    def loss_of(values: list[df.Tensor], x: df.Tensor) -> df.Tensor:
        return df.mean(df.square(df.tanh(x @ values[0]) @ values[1]))

    loss, gradients = df.value_and_grad(loss_of)([w1, w2], x)
    optimiser = df.momentum(0.1)
    state = optimiser.start([w1, w2])
    given_state = df.input("v1", (6, 5), np.float64), df.input("v2", (5, 1), np.float64)
    del state
    velocity = [0.9 * old + new for old, new in zip(given_state, gradients, strict=True)]
    new = [old - 0.1 * each for old, each in zip([w1, w2], velocity, strict=True)]
    outputs, inputs = (new, velocity, loss), [[w1, w2], list(given_state), x]
    program = df.Program(outputs, inputs, donated=inputs[:2] if donate else (), **settings)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(each.shape) for each in (w1, w2, *given_state, x)]
    return program, arrays, (outputs, inputs)


@given(tensor_graphs(), st.booleans(), st.booleans())
@settings(max_examples=settings.default.max_examples * 4)
def test_a_program_gives_the_bits_of_the_naive_evaluator_call_after_call(
    graph: Drawn, donate: bool, optimise: bool
) -> None:
    outputs, inputs = graph
    program = df.Program(outputs, inputs, donated=inputs if donate else (), optimise=optimise)
    earlier: list[tuple[list[Array], list[Array]]] = []
    for seed in range(3):
        arrays = arrays_for(inputs, seed)
        wanted = naive(outputs, dict(zip(inputs, arrays, strict=True)))
        given_ = [each.copy() for each in arrays]
        found = program(*given_)
        assert all(map(same_bits, found, wanted))
        assert donate or all(map(same_bits, given_, arrays))
        earlier.append((found, wanted))
    for found, wanted in earlier:  # later calls have left them alone
        assert all(map(same_bits, found, wanted))


@given(tensor_graphs(), st.booleans())
def test_results_share_memory_with_nothing_that_was_not_donated(graph: Drawn, donate: bool) -> None:
    outputs, inputs = graph
    donated = inputs[:1] if donate else []
    program = df.Program(outputs, inputs, donated=donated)
    arrays = arrays_for(inputs, seed=1)
    found = program(*arrays)
    for at, one in enumerate(found):
        assert one.flags.writeable
        assert one.flags.c_contiguous
        others = [*found[:at], *found[at + 1 :], *arrays[len(donated) :]]
        assert not any(np.shares_memory(one, other) for other in others)


def test_a_result_that_is_known_at_once_is_laid_out_as_others_are() -> None:
    turned = -df.transpose(df.constant(np.arange(6.0).reshape(2, 3)))
    (found,) = df.Program([turned], [])()
    assert found.flags.c_contiguous
    assert same_bits(found, -np.arange(6.0).reshape(2, 3).T)


@given(tensor_graphs())
def test_a_pickled_program_gives_the_same(graph: Drawn) -> None:
    outputs, inputs = graph
    program = df.Program(outputs, inputs)
    arrays = arrays_for(inputs, seed=1)
    assert all(map(same_bits, pickle.loads(pickle.dumps(program))(*arrays), program(*arrays)))


@given(tensor_graphs())
def test_strided_inputs_give_what_their_copies_give(graph: Drawn) -> None:
    outputs, inputs = graph
    arrays = arrays_for(inputs, seed=1)
    strided = [np.repeat(each[..., None], 2, axis=-1)[..., 0] for each in arrays]
    before = [each.copy() for each in strided]
    found = df.Program(outputs, inputs, donated=inputs)(*strided)
    for one, two in zip(found, naive(outputs, dict(zip(inputs, arrays, strict=True))), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)
    for one, two in zip(strided, before, strict=True):
        assert one.flags.c_contiguous or same_bits(one, two)  # what cannot be written over is copied


@pytest.mark.parametrize("how", [{}, {"optimise": False}, {"check_nan": True}])
def test_a_program_of_functions_with_rules_of_their_own_can_be_pickled(how: dict[str, Any]) -> None:
    halved = df.custom_vjp(lambda v: v / 2)
    halved.defvjp(lambda v: (v / 2, None), lambda kept, g: (g / 3,))
    x = df.input("x", (3,), np.float64)
    slope = df.grad(lambda v: df.sum(df.checkpoint(lambda u: df.sin(halved(u)))(v)))(x)
    program = df.Program(slope, [x], **how)
    values = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(program))(values), program(values))
    np.testing.assert_allclose(program(values), np.cos(values / 2) / 3, rtol=1e-15)


def test_an_input_named_twice_is_refused() -> None:
    x = df.input("x", (3,))
    with pytest.raises(BadTensor, match=r"the input Tensor\('x', .* is there twice"):
        df.Program([x + 1], [x, {"again": x}])


def test_donated_parameters_are_updated_where_they_are() -> None:
    program, arrays, (outputs, inputs) = perceptron()
    given_ = [each.copy() for each in arrays]
    new, velocity, loss = program(given_[:2], given_[2:4], given_[4])
    assert all(one is two for one, two in zip([*new, *velocity], given_[:4], strict=True))
    leaves = [*outputs[0], *outputs[1], outputs[2]]
    flat = [*inputs[0], *inputs[1], inputs[2]]
    wanted = naive(leaves, dict(zip(flat, arrays, strict=True)))
    assert all(map(same_bits, [*new, *velocity, loss], wanted))
    assert program.memory.fresh_bytes == 8  # the loss


def test_twenty_donated_steps_are_twenty_steps() -> None:
    (donating, arrays, _), (copying, _, _) = perceptron(), perceptron(donate=False)
    one = two = (arrays[:2], arrays[2:4])
    one = ([each.copy() for each in one[0]], [each.copy() for each in one[1]])
    for _ in range(20):
        *one, loss = donating(*one, arrays[4])
        *two, other = copying(*two, arrays[4])
        assert loss == other
    assert all(map(same_bits, [*one[0], *one[1]], [*two[0], *two[1]]))


def test_a_donated_array_given_twice_is_refused() -> None:
    program, arrays, _ = perceptron()
    with pytest.raises(
        BadTensor, match=r"the arrays given for 'w1' and 'v1' share memory, and one is donated"
    ):
        program([arrays[0], arrays[1]], [arrays[0], arrays[3]], arrays[4])
    whole = np.zeros(100)
    a, b, c = (df.input(name, (count,), np.float64) for name, count in (("a", 100), ("b", 5), ("c", 5)))
    overlapping = df.Program([c * 2, df.sum(a), b + 1], [a, b, c], donated=[c])
    with pytest.raises(BadTensor, match="'a' and 'c' share memory"):
        overlapping(whole, whole[:5], whole[50:55])
    overlapping(whole, whole[:5], np.zeros(5))  # only what is read shares memory


def test_an_input_or_a_constant_as_output_is_copied() -> None:
    x, c = df.input("x", (3,), np.float64), df.constant(np.arange(3.0))
    program = df.Program([x, c, x, x + c], [x], donated=[x])
    given_ = np.ones(3)
    first, second, third, fourth = program(given_)
    assert (first.tolist(), second.tolist(), third.tolist()) == ([1, 1, 1], [0, 1, 2], [1, 1, 1])
    assert fourth is given_
    first += 5
    second += 5
    assert third.tolist() == [1, 1, 1]
    assert program(np.ones(3))[1].tolist() == [0, 1, 2]


def test_no_outputs_and_no_steps_are_programs_too() -> None:
    x = df.input("x", (2,), np.float64)
    assert df.Program([], [x])(np.zeros(2)) == []
    assert df.Program({"same": x}, [x])([1, 2])["same"].tolist() == [1, 2]
    assert df.Program(df.constant(2.0) * 3, [])().tolist() == 6


def test_a_node_in_the_middle_can_be_an_input() -> None:
    x = df.input("x", (3,), np.float64)
    middle = df.exp(x)
    program = df.Program(middle * 2, [middle], donated=[middle])
    assert program([1.0, 2.0, 3.0]).tolist() == [2, 4, 6]


def test_threads_may_call_one_program_at_once() -> None:
    x = df.input("x", (200, 200), np.float64)
    program = df.Program(df.tanh(df.tanh(x @ x) @ x), [x])
    arrays = [np.random.default_rng(seed).standard_normal((200, 200)) / 20 for seed in range(4)]
    wanted = [program(each) for each in arrays]
    found: dict[int, list[Array]] = {at: [] for at in range(4)}
    together = threading.Barrier(4)

    def call(at: int) -> None:
        together.wait()
        for _ in range(10):
            found[at].append(program(arrays[at]))

    threads = [threading.Thread(target=call, args=(at,)) for at in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(same_bits(each, wanted[at]) for at in range(4) for each in found[at])


def test_a_call_that_fails_leaves_the_program_usable_and_names_the_node() -> None:
    table, ids = df.input("table", (4, 2), np.float64), df.input("ids", (3,), np.int64)
    with df.scope("words"):
        rows = df.take(table, ids, axis=0)
    program = df.Program(rows * 2, [table, ids])
    with pytest.raises(IndexError) as raised:
        program(np.ones((4, 2)), [0, 9, 1])
    assert raised.value.__notes__ == [f"in the node {rows.name!r} (take)"]
    assert program(np.ones((4, 2)), [0, 3, 1]).tolist() == [[2, 2]] * 3


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ((np.zeros((2, 2)),), r"the program takes 2 inputs \('x', 'n'\), got 1"),
        ((np.zeros((3, 2)), [0, 1]), r"input 'x' has the shape \(2, 2\), got \(3, 2\)"),
        ((np.zeros((2, 2), complex), [0, 1]), "input 'x' has the dtype float64, got complex128"),
        ((np.zeros((2, 2)), [0.0, 1.5]), "input 'n' has the dtype int32, got float64"),
        (
            (np.zeros((2, 2)), [0, 2**40]),
            "input 'n' has the dtype int32, which cannot hold all of the int64 given",
        ),
        ((np.full((2, 2), "a"), [0, 1]), "input 'x' has the dtype float64, got <U1"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(given_: tuple[Any, ...], message: str) -> None:
    x, n = df.input("x", (2, 2), np.float64), df.input("n", (2,), np.int32)
    with pytest.raises(BadTensor, match=message):
        df.Program(x * df.astype(n, np.dtype(np.float64)), [x, n])(*given_)


def test_inputs_nested_otherwise_are_refused() -> None:
    program, arrays, _ = perceptron()
    with pytest.raises(BadTensor, match="nested"):
        program(arrays[:2], arrays[2:3], arrays[4])


def test_what_fits_is_converted() -> None:
    x = df.input("x", (2,), np.float32)
    assert df.Program(x, [x])([1, 2]).dtype == np.float32
    assert df.Program(x, [x])(np.array([True, False])).tolist() == [1, 0]
    assert df.input("n", 2).shape == x.shape


def test_a_missing_input_and_two_of_one_name_are_refused() -> None:
    x, y = df.input("x", (2,)), df.input("y", (2,))
    with pytest.raises(BadTensor, match="needs the input 'y', which is not among the inputs given"):
        df.Program(x + y, [x])
    with pytest.raises(BadGraph, match="two nodes have the name 'x'"):
        df.Program(x + df.input("x", (2,)), [x])
    for named in ({"x": 1.0}, {1: 1.0}):
        with pytest.raises(BadTensor, match="an input of a program is a tensor, got"):
            df.evaluate(x + 1, named)  # type: ignore[arg-type]
    with pytest.raises(BadTensor, match="an output of a program is a tensor, got 1"):
        df.Program([x, 1], [x])
    with pytest.raises(BadTensor, match="only inputs of the program can be donated"):
        df.Program(x + 1, [x], donated=[y])


def test_maximum_gives_no_warning() -> None:
    x, y = df.input("x", (2,)), df.input("y", (2,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert df.Program(df.maximum(x, y), [x, y])([1, 2], [2, 1]).tolist() == [2, 2]


@pytest.mark.filterwarnings("error")
def test_check_nan_names_the_first_node_that_made_one() -> None:
    x = df.input("x", (3,), np.float64)
    with df.scope("model"):
        shifted = x - 2.0
        logs = df.log(shifted)
    program = df.Program(df.sum(df.exp(logs) * 2), [x], check_nan=True)
    assert program([3.0, 4.0, 5.0]) == pytest.approx(12)
    with pytest.raises(NotFinite) as raised:
        program([1.0, 4.0, 5.0])
    assert str(raised.value) == (
        f"{logs.name!r} (log, float64 (3,)) made 1 NaN of 3 elements of inputs that have none: "
        f"{shifted.name!r} (subtract) (3,) from -1 to 3"
    )


@pytest.mark.filterwarnings("error")
def test_check_nan_finds_infinities_and_what_becomes_of_those_put_in() -> None:
    x, mask = df.input("x", (2,), np.float64), df.input("mask", (2,), np.float64)
    masked = x + mask
    program = df.Program(df.exp(masked), [x, mask], check_nan=True)
    assert program([1.0, 2.0], [0.0, -np.inf]).tolist() == [np.e, 0]
    with pytest.raises(NotFinite, match=r"\(exp, .* made 1 infinite of 2"):
        program([1.0, 1000.0], [0.0, 0.0])
    with pytest.raises(NotFinite, match=r"\(add, .* made 1 NaN of 2"):
        program([1.0, np.inf], [0.0, -np.inf])
    with pytest.raises(NotFinite, match=r"the input 'x', float64 \(2,\), has 1 NaN in it"):
        program([1.0, np.nan], [0.0, 0.0])


@pytest.mark.filterwarnings("error")
def test_check_nan_names_the_step_of_a_fused_node() -> None:
    x = df.input("x", (3,), np.float64)
    root = df.sqrt(x - 1.0)
    fused = df.fuse(df.Program(root * 2.0 + 1.0, [x], optimise=False).graph).outputs
    with pytest.raises(NotFinite, match=rf"'{root.name}' \(sqrt, .*\) as a step of '.*' made 1 NaN"):
        df.Program(list(fused), [x], check_nan=True)([0.0, 1.0, 2.0])


@given(tensor_graphs())
def test_check_nan_changes_no_bit_where_all_is_finite(graph: Drawn) -> None:
    outputs, inputs = graph
    arrays = arrays_for(inputs, seed=1)
    with np.errstate(all="ignore"):
        wanted = df.Program(outputs, inputs)(*arrays)
        try:
            found = df.Program(outputs, inputs, check_nan=True)(*arrays)
        except NotFinite:
            return  # the other tests hold what it says
    assert all(map(same_bits, found, wanted))


def transformer_step() -> tuple[Any, list[Any], list[Array]]:
    """Return outputs, inputs and values of a training step of a small transformer block, recomputed in part, with Adam."""
    width, length, words = 8, 6, 11
    shapes = {"table": (words, width), "q": (width, width), "k": (width, width), "v": (width, width), "up": (width, 16),
              "down": (16, width), "scale": (width,), "shift": (width,)}  # fmt: skip
    values = {name: df.input(name, shape, np.float64) for name, shape in shapes.items()}
    ids = df.input("ids", (2, length), np.int64)

    def block(values: dict[str, df.Tensor], x: df.Tensor) -> df.Tensor:
        normal = df.layer_norm(x, values["scale"], values["shift"])
        x = x + df.attention(normal @ values["q"], normal @ values["k"], normal @ values["v"], causal=True)
        return x + df.gelu(x @ values["up"]) @ values["down"]

    def loss_of(values: dict[str, df.Tensor], ids: df.Tensor) -> df.Tensor:
        x = df.embedding(values["table"], ids[:, :-1])
        x = df.checkpoint(block)(values, x)
        return df.mean(df.softmax_cross_entropy(x @ values["table"].T, ids[:, 1:]))

    loss, gradients = df.value_and_grad(loss_of)(values, ids)
    optimiser = df.adam(0.01)
    arrays = {name: np.random.default_rng(1).standard_normal(shape) for name, shape in shapes.items()}
    start = optimiser.start(arrays)
    state = df.inputs_like(start, "state")
    new, new_state = optimiser.step(values, gradients, state)
    labels = np.random.default_rng(0).integers(0, words, (2, length))
    return (new, new_state, loss), [values, state, ids], [arrays, start, labels]


@pytest.mark.parametrize("optimise", [False, True])
def test_a_transformer_trains_in_place_with_the_bits_of_the_naive_evaluator(optimise: bool) -> None:
    outputs, inputs, values = transformer_step()
    program = df.Program(outputs, inputs, donated=inputs[:2], optimise=optimise)
    leaves, wanted = flatten(inputs)[0], [np.array(each) for each in flatten(values)[0]]
    params, state, labels = copy.deepcopy(values)
    assert program.run_counted(*copy.deepcopy(values))[1] == program.memory.live_bytes
    for _ in range(3):
        params, state, loss = program(params, state, labels)
        *wanted_state, wanted_loss = naive(flatten(outputs)[0], dict(zip(leaves, wanted, strict=True)))
        wanted = [*wanted_state, labels]
        assert same_bits(np.asarray(loss), np.asarray(wanted_loss))
        assert all(map(same_bits, flatten((params, state))[0], wanted))
    assert program.memory.fresh_bytes <= 16  # the loss, and the count of steps


def test_a_transformer_with_dask_and_with_checks_gives_the_same_bits() -> None:
    outputs, inputs, values = transformer_step()
    given_ = dict(zip(flatten(inputs)[0], flatten(values)[0], strict=True))
    wanted = flatten(df.evaluate(outputs, given_))[0]
    for settings_ in ({"runner": "dask"}, {"check_nan": True}):
        assert all(map(same_bits, flatten(df.evaluate(outputs, given_, **settings_))[0], wanted))


def test_fused_operators_share_their_room_and_threads_do_not() -> None:
    arrays = [np.random.default_rng(at).standard_normal((1 + 90 * at, 40)) for at in range(4)]
    programs = []
    for at, array in enumerate(arrays):
        x = df.input(f"x{at}", array.shape, np.float64)
        outputs = list(df.fuse(Graph((df.tanh(x) * x + df.sin(x) / (x * x),))).outputs)
        programs.append(df.Program(outputs, [x], optimise=False))
        assert [step.node.op.kind for step in programs[-1].memory.steps] == ["fused"]
    wanted = [np.tanh(each) * each + np.sin(each) / (each * each) for each in arrays]
    wrong: list[int] = []

    def call() -> None:
        for _ in range(20):
            wrong.extend(at for at in range(4) if not same_bits(programs[at](arrays[at])[0], wanted[at]))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for each in threads:
        each.start()
    call()
    for each in threads:
        each.join()
    assert wrong == []


def test_a_read_only_array_is_copied_where_it_is_donated() -> None:
    x = df.input("x", (3,), np.float64)
    given_ = np.ones(3)
    given_.flags.writeable = False
    assert df.Program(x + 1.0, [x], donated=[x])(given_).tolist() == [2, 2, 2]
    assert given_.tolist() == [1, 1, 1]


def test_large_results_are_fused_and_small_ones_written_in_place() -> None:
    def kinds(rows: int) -> list[str]:
        x = df.input("x", (rows, 1024), np.float64)
        return [step.node.op.kind for step in df.Program(df.tanh(x * x), [x]).memory.steps]

    assert kinds(1000) == ["multiply", "tanh"]
    assert kinds(1024) == ["fused"]
