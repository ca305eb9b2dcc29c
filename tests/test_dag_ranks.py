"""Real ranks: what they sum is what the schedule says, bit for bit, at every rank; and what a communicator promises."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce as fold_left
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ml_dtypes
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dag.collectives import (
    Comm,
    Operator,
    Pending,
    Schedule,
    algorithms,
    alone,
    bounds,
    check,
    count,
    launch,
    plan,
)
from dag.collectives.choose import planned
from dag.collectives.execute import execute, rank_steps
from dag.collectives.lookout import Lookout
from dag.collectives.transport import Gather, Send
from dag.errors import BadCollective, RankFailed

Array = np.ndarray[Any, np.dtype[Any]]
NAMED = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


def composed(left: Array, right: Array) -> Array:
    """Compose maps x -> a x + b, held as a + ib: associative, and which comes first matters."""
    return left.real * right.real + 1j * (left.imag * right.real + right.imag)


AFFINE = Operator(composed, commutative=False)
XOR = Operator(np.bitwise_xor)
#: What is summed: (operator, dtype); the user's own at the end.
SUMMED: list[tuple[str | Operator, str]] = [
    *((op, dtype) for op in NAMED for dtype in ("float32", "float64", "float16", "bfloat16")),
    *((op, dtype) for op in ("sum", "min", "max", "prod") for dtype in ("int8", "uint16", "int64")),
    ("sum", "complex64"), ("mean", "complex128"), ("min", "bool"), ("max", "bool"), ("sum", ">f4"),
    (XOR, "uint32"), (AFFINE, "complex128"),
]  # fmt: skip
SIZES = (0, 1, 3, 13)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def brought(rank: int, elements: int, dtype: str) -> Array:
    """Return what a rank brings: numbers whose sums and products depend on their order wherever that can be."""
    random = np.random.default_rng(100 + rank)
    kind = dtype_of(dtype)
    if kind.kind == "b":
        return random.random(elements) < 0.5
    if kind.kind in "iu":
        return random.integers(0, 100, elements).astype(kind)
    if dtype == "complex128":  # small whole numbers: exact
        return (random.integers(1, 4, elements) + 1j * random.integers(-3, 4, elements)).astype(kind)
    if kind.kind == "c":
        return (random.normal(size=elements) + 1j * random.normal(size=elements)).astype(kind)
    return (random.normal(size=elements) * 10.0 ** random.integers(-2, 3, elements)).astype(kind)


def plans_for(ranks: int) -> dict[str, Schedule]:
    named = {name: planned("allreduce", name, ranks, 100, per_machine=2) for name in algorithms("allreduce")}
    chunked = {
        f"{name} in chunks": plan("allreduce", name, ranks, chunks=3) for name in ("tree", "double_tree")
    }
    return {**named, **chunked}


def evaluate(expression: Any, parts: Sequence[Array], op: np.ufunc | Any) -> Array:
    """Return a symbolic fold with numbers in place of ranks: from left to right, one after another."""
    if not isinstance(expression, tuple):
        return parts[expression]
    return fold_left(op, [evaluate(each, parts, op) for each in expression])


ORDERS: dict[Schedule, Any] = {}


def expected(schedule: Schedule, op: str | Operator, elements: int, dtype: str) -> Array:
    """Return the fold in the order that the schedule states, done sequentially by NumPy in one process."""
    kind = dtype_of(dtype)
    function = op.function if isinstance(op, Operator) else NAMED[op]
    short = dtype in ("float16", "bfloat16")
    all_brought = [brought(rank, elements, dtype) for rank in range(schedule.ranks)]
    if short:
        all_brought = [each.astype(np.float32) for each in all_brought]
    at = bounds(elements, schedule.parts)
    result = np.empty(elements, all_brought[0].dtype)
    if schedule not in ORDERS:
        ORDERS[schedule] = check(schedule)
    for part, expression in enumerate(ORDERS[schedule]):
        inside = slice(int(at[part]), int(at[part + 1]))
        result[inside] = evaluate(expression, [each[inside] for each in all_brought], function)
    if op == "mean":
        result = result / result.dtype.type(schedule.ranks)
    return result.astype(kind)


def cases(ranks: int, *, ops: int = len(SUMMED)) -> Iterator[tuple[str, str | Operator, str, int, Schedule]]:
    plans = plans_for(ranks)
    for op, dtype in SUMMED[:ops]:
        for elements in SIZES if op == "sum" and dtype in ("float32", "bfloat16") else SIZES[-1:]:
            for name, schedule in plans.items():
                if schedule.keeps_order or not isinstance(op, Operator) or op.commutative:
                    yield name, op, dtype, elements, schedule


def reduce_everything(comm: Comm, ops: int = len(SUMMED)) -> list[bytes]:
    results = []
    for _, op, dtype, elements, schedule in cases(comm.size, ops=ops):
        x = brought(comm.rank, elements, dtype)
        assert comm.allreduce(x, op, schedule) is x
        results.append(x.tobytes())
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_all_reduce_is_its_stated_fold_bit_for_bit_at_every_rank(ranks: int) -> None:
    by_rank = launch(reduce_everything, ranks, timeout_s=60)
    for number, (name, op, dtype, elements, schedule) in enumerate(cases(ranks)):
        wanted = expected(schedule, op, elements, dtype).tobytes()
        found = [results[number] for results in by_rank]
        assert found == [wanted] * ranks, f"{name} {op} {dtype} {elements}"


class Mailboxes:
    """A transport between threads: the same exchanges, without processes."""

    signature = 0

    def __init__(self, rank: int, boxes: Mapping[tuple[int, int], SimpleQueue[Array]]) -> None:
        self.rank, self.boxes = rank, boxes
        self.size = max(dst for _, dst in boxes) + 1 if boxes else 1

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        for send in sends:
            self.boxes[self.rank, send.peer].put(send.data.copy())
        for gather in gathers:
            came = [
                gather.target.copy() if peer == self.rank else self.boxes[peer, self.rank].get(timeout=10)
                for peer in gather.sources
            ]
            if gather.fold is None:
                (gather.target[:],) = came
            else:
                total = came[0].copy()
                for each in came[1:]:
                    gather.fold(total, each, total)
                gather.target[:] = total

    def offer(self) -> None:
        """Threads need nothing to reach each other."""

    def connect(self, offers: Mapping[int, Any]) -> None:
        """They are connected."""

    def empty(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def close(self) -> None:
        """There is nothing to give back."""


def run_in_threads(schedule: Schedule, bring: Sequence[Array]) -> list[Array]:
    boxes: dict[tuple[int, int], SimpleQueue[Array]] = {
        (one, other): SimpleQueue()
        for one in range(schedule.ranks)
        for other in range(schedule.ranks)
        if one != other
    }
    buffers = [each.copy() for each in bring]
    faults: list[BaseException] = []

    def rank(number: int) -> None:
        try:
            steps = rank_steps(schedule, number, len(bring[0]))
            execute(steps, Mailboxes(number, boxes), buffers[number], np.add)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(schedule.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert all(box.empty() for box in boxes.values()), "a message was sent that nobody takes"
    return buffers


@given(
    algorithm=st.sampled_from(algorithms("allreduce")),
    ranks=st.integers(1, 9),
    elements=st.integers(0, 40),
    choice=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_any_number_of_ranks_and_elements_ends_in_the_same_bits_everywhere(
    algorithm: str, ranks: int, elements: int, choice: int, seed: int
) -> None:
    choices = {
        "tree": "chunks",
        "double_tree": "chunks",
        "two_level": "per_machine",
        "machine_tree": "per_machine",
    }
    schedule = plan(
        "allreduce", algorithm, ranks, **({choices[algorithm]: choice} if algorithm in choices else {})
    )
    random = np.random.default_rng(seed)
    bring = [random.normal(size=elements) * 10.0 ** random.integers(-6, 6, elements) for _ in range(ranks)]
    results = run_in_threads(schedule, bring)
    at = bounds(elements, schedule.parts)
    wanted = np.empty(elements)
    for part, expression in enumerate(check(schedule)):
        inside = slice(int(at[part]), int(at[part + 1]))
        wanted[inside] = evaluate(expression, [each[inside] for each in bring], np.add)
    assert [each.tobytes() for each in results] == [wanted.tobytes()] * ranks


class Counted(Mailboxes):
    """Counts the bytes that this rank sends."""

    sent = 0

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        self.sent += sum(send.data.nbytes for send in sends)
        super().exchange(sends, gathers)


@pytest.mark.parametrize("algorithm", algorithms("allreduce"))
def test_sixteen_bits_travel_where_only_inputs_are_folded_and_thirty_two_elsewhere(algorithm: str) -> None:
    ranks, elements = 4, 24
    bring = [np.random.default_rng(rank).normal(size=elements).astype(np.float16) for rank in range(ranks)]
    boxes = {(one, other): SimpleQueue() for one in range(ranks) for other in range(ranks)}
    transports = [Counted(rank, boxes) for rank in range(ranks)]
    comms = [Comm(each, Lookout(None, 1.0), machines=["here"] * ranks) for each in transports]
    prepared = comms[0].prepared(bring[0], "sum", algorithm)
    threads = [
        threading.Thread(target=comm.allreduce, args=(x, "sum", algorithm))
        for comm, x in zip(comms, bring, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(x.tobytes() == bring[0].tobytes() for x in bring)
    itemsize = 2 if algorithm in ("central", "sharded", "direct", "direct_whole") else 4
    assert [each.sent for each in transports] == (count(prepared.schedule, elements).sent * itemsize).tolist()


def other_collectives(comm: Comm) -> dict[str, Any]:
    rank, size = comm.rank, comm.size
    found: dict[str, Any] = {}
    for name in algorithms("reduce_scatter"):
        x = np.arange(7.0) + rank
        part = comm.reduce_scatter(x, algorithm=name)
        assert np.shares_memory(part, x)
        found["reduce_scatter", name] = part.tolist()
        spread = (np.arange(14.0) + rank)[::2]
        found["reduce_scatter of a slice", name] = comm.reduce_scatter(spread, algorithm=name).tolist()
    for name in algorithms("all_gather"):
        found["all_gather", name] = comm.all_gather(np.array([[rank, 1], [2, 3]]), name).tolist()
        x = np.zeros(7)
        x[comm.part(7)] = rank + 1
        found["all_gather_parts", name] = comm.all_gather_parts(x, name).tolist()
    for root in range(size):
        for name in algorithms("broadcast"):
            found["broadcast", name, root] = comm.broadcast(np.full((2, 3), rank).T, root, name).tolist()
        for name in algorithms("reduce"):
            x = np.array([1.5, rank])
            assert comm.reduce(x, "sum", root, name) is x
            found["reduce", name, root] = x.tolist()
    for name in algorithms("all_to_all"):
        found["all_to_all", name] = comm.all_to_all(
            100 * rank + np.arange(2.0 * size).reshape(size, 2), name
        ).tolist()
    found["empty"] = [
        comm.all_to_all(np.zeros((size, 0))).shape,
        comm.all_gather(np.zeros((0, 2))).shape,
        comm.allreduce(np.zeros((3, 0))).shape,
    ]
    found["no dimension"] = comm.allreduce(np.array(rank + 1.0)).tolist()
    found["mean"] = comm.reduce_scatter(np.full(8, rank, np.float16), "mean").tolist()
    comm.barrier()
    return found


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_the_other_collectives_do_what_numpy_does_with_all_that_was_brought(ranks: int) -> None:
    total = ranks * np.arange(7.0) + sum(range(ranks))
    spread = ranks * np.arange(14.0)[::2] + sum(range(ranks))
    at = bounds(7, ranks).tolist()
    owner = np.repeat(np.arange(ranks), np.diff(at))
    for rank, found in enumerate(launch(other_collectives, ranks, timeout_s=60)):
        own = slice(at[rank], at[rank + 1])
        for (what, *rest), value in ((key, value) for key, value in found.items() if isinstance(key, tuple)):
            wanted: Any = {
                "reduce_scatter": total[own].tolist(),
                "reduce_scatter of a slice": spread[own].tolist(),
                "all_gather": [[[each, 1], [2, 3]] for each in range(ranks)],
                "all_gather_parts": (owner + 1.0).tolist(),
                "broadcast": np.full((3, 2), rest[-1]).tolist(),
                "reduce": [1.5 * ranks, sum(range(ranks))] if rest[-1] == rank else [1.5, rank],
                "all_to_all": [[100 * each + 2 * rank, 100 * each + 2 * rank + 1] for each in range(ranks)],
            }[what]
            assert value == wanted, (what, rest, rank)
        assert found["empty"] == [(ranks, 0), (ranks, 0, 2), (3, 0)]
        assert found["no dimension"] == sum(range(1, ranks + 1))
        half = bounds(8, ranks)
        assert found["mean"] == [sum(range(ranks)) / ranks if ranks != 3 else 1.0] * int(
            half[rank + 1] - half[rank]
        )


def arrays_of_all_layouts(comm: Comm) -> list[Any]:
    found = []
    for name in algorithms("allreduce"):
        base = np.arange(12.0).reshape(3, 4)
        column, turned, backwards = base.copy()[:, 1], base.copy().T, base.copy()[::-1, ::-2]
        for view in (column, turned, backwards):
            original = view.copy()
            assert comm.allreduce(view, algorithm=name) is view
            found.append((view == comm.size * original).all())
        whole = base.copy()
        comm.allreduce(whole[:, 1], algorithm=name)  # the view's owner is updated, and nothing beside it
        base[:, 1] *= comm.size
        found.append((whole == base).all())
    return found


def test_a_view_of_any_layout_is_updated_in_place_and_nothing_beside_it() -> None:
    assert all(all(found) for found in launch(arrays_of_all_layouts, 3, timeout_s=60))


def halves(comm: Comm) -> tuple[list[float], list[float], bool, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mean = [
            float(comm.allreduce(np.full(5, 20000, np.float16), "mean", name)[4])
            for name in algorithms("allreduce")
        ]
        quiet = not caught
        total = [
            float(comm.allreduce(np.full(5, 20000, np.float16), "sum", name)[4])
            for name in algorithms("allreduce")
        ]
    return mean, total, quiet, [str(each.message) for each in caught]


def test_sixteen_bit_floats_are_summed_in_thirty_two_and_a_true_overflow_is_flagged() -> None:
    results = launch(halves, 4, timeout_s=60)
    for mean, total, quiet, said in results:
        assert set(mean) == {20000.0}
        assert set(total) == {float("inf")}
        assert quiet
        assert all("float16" in each for each in said)
    # Whoever rounds says it; each algorithm has at least one rank that does.
    assert all(
        any(f", {name}" in each for *_, said in results for each in said) for name in algorithms("allreduce")
    )


def in_the_background(comm: Comm) -> list[Any]:
    arrays = [np.full(1000, comm.rank + number, np.float32) for number in range(20)]
    pending = [comm.allreduce(x, wait=False) for x in arrays]
    assert all(isinstance(each, Pending) for each in pending)
    now = comm.allreduce(np.array([comm.rank]))  # comes after all of them
    assert all(each.done() for each in pending)
    assert [each.wait() is x for each, x in zip(pending, arrays, strict=True)] == [True] * 20
    return [now.tolist(), [float(x[-1]) for x in arrays]]


def test_calls_in_the_background_are_done_in_their_order_and_before_what_follows() -> None:
    for now, values in launch(in_the_background, 3, timeout_s=60):
        assert now == [3]
        assert values == [3.0 + 3 * number for number in range(20)]


def goes_on(comm: Comm, flag: str) -> list[Any]:
    tensor, single = np.full(2000, comm.rank + 1.0), np.array([comm.rank])
    if comm.rank:  # comes once rank 0 has called and gone on
        deadline = time.monotonic() + 60
        while not Path(flag).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    bucket = comm.bucket(1000)
    bucket.add(tensor)
    pending = comm.allreduce(single, wait=False)
    early = pending.done()
    if not comm.rank:
        Path(flag).touch()
    bucket.wait()
    return [early, float(tensor[-1]), int(pending.wait()[0])]


def test_a_rank_computes_on_while_its_bucket_waits_for_ranks_that_have_not_come(tmp_path: Path) -> None:
    found = launch(goes_on, 3, (str(tmp_path / "flag"),), timeout_s=30)
    assert found[0][0] is False
    assert [each[1:] for each in found] == [[6.0, 3]] * 3


def in_buckets(comm: Comm, algorithm: str) -> list[list[bytes]]:
    def tensors() -> list[Array]:
        random = np.random.default_rng(comm.rank)
        shapes: list[Any] = [(3, 4), 5, (), (2, 2, 2), 0, 40, (7, 3), 1]
        made = [random.normal(size=shape) * 1e3 for shape in shapes]
        made[3] = made[3].astype(np.float32)
        made.insert(2, np.arange(6.0).reshape(2, 3).T + comm.rank)  # not contiguous
        return [np.asarray(each) for each in made]

    found = []
    one_by_one = tensors()
    for x in one_by_one:
        comm.allreduce(x, "mean", algorithm)
    found.append([x.tobytes() for x in one_by_one])
    for nbytes in (1, 100, 10_000):
        bucket = comm.bucket(nbytes, "mean", algorithm)
        for _ in range(2):  # it may be used again
            fused = tensors()
            with bucket:
                for x in fused:
                    bucket.add(x)
            found.append([x.tobytes() for x in fused])
    return found


def test_a_bucket_of_any_size_gives_what_one_call_per_tensor_gives() -> None:
    for found in launch(in_buckets, 4, ("sharded",), timeout_s=60):
        assert all(each == found[0] for each in found)


def ring_in_buckets(comm: Comm) -> list[bytes]:
    random = np.random.default_rng(comm.rank)
    tensors = [random.normal(size=size) for size in (5, 6, 7)]
    with comm.bucket(1000, algorithm="ring") as bucket:
        for x in tensors:
            bucket.add(x)
    return [x.tobytes() for x in tensors]


def test_a_fused_sum_has_the_order_of_the_schedule_over_the_fused_vector() -> None:
    bring = [np.concatenate([random.normal(size=size) for size in (5, 6, 7)])
             for random in map(np.random.default_rng, range(3))]  # fmt: skip
    schedule = plan("allreduce", "ring", 3)
    at = bounds(18, 3)
    wanted = np.concatenate(
        [
            evaluate(expression, [each[at[part] : at[part + 1]] for each in bring], np.add)
            for part, expression in enumerate(check(schedule))
        ]
    )
    for found in launch(ring_in_buckets, 3, timeout_s=60):
        assert b"".join(found) == wanted.tobytes()


def reduced_again_and_again(comm: Comm) -> set[bytes]:
    found = set()
    for elements in (1, 100, 5000):
        for _ in range(5):
            x = np.resize(np.array([1e8, 1, -1e8, 1], np.float32)[comm.rank], elements)
            random = np.random.default_rng(comm.rank).normal(size=elements).astype(np.float32)
            found.add(comm.allreduce(np.concatenate([x, random])).tobytes())
    return found


def test_runs_and_ranks_agree_to_the_last_bit() -> None:
    first, *others = [found for _ in range(2) for found in launch(reduced_again_and_again, 4, timeout_s=60)]
    assert len(first) == 3
    assert all(each == first for each in others)


def over_pairs(comm: Comm) -> list[Any]:
    kinds = {
        type(each).__name__ for each in getattr(comm.transport, "transports", {"": comm.transport}).values()
    }
    return [sorted(kinds), reduce_everything(comm, ops=4)]


def by_halves(one: int, other: int) -> str:
    """Two machines of two ranks, as far as the choice of transports goes."""
    return "shm" if one // 2 == other // 2 else "tcp"


def test_shared_memory_and_tcp_in_one_communicator_give_the_same_bits() -> None:
    mixed = launch(over_pairs, 4, transport=by_halves, timeout_s=60)
    assert [kinds for kinds, _ in mixed] == [["Shared", "Tcp"]] * 4
    for number, (name, op, dtype, elements, schedule) in enumerate(cases(4, ops=4)):
        wanted = expected(schedule, op, elements, dtype).tobytes()
        assert [results[number] for _, results in mixed] == [wanted] * 4, f"{name} {op} {dtype} {elements}"


def test_one_rank_needs_no_process_and_has_the_same_checks() -> None:
    comm = alone()
    x = np.arange(4.0)
    assert comm.allreduce(x, "mean") is x
    assert x.tolist() == [0, 1, 2, 3]
    assert comm.all_gather(x).tolist() == [[0, 1, 2, 3]]
    assert comm.allreduce(x, wait=False).wait() is x
    with pytest.raises(BadCollective, match="two_levels"):
        comm.allreduce(x, algorithm="two_levels")
    with pytest.raises(BadCollective, match="the mean of int64"):
        comm.allreduce(np.arange(3), "mean")


def internet_sockets(comm: Comm) -> int:
    comm.allreduce(np.ones(3))
    return len(psutil.Process().net_connections("inet"))


def test_a_single_rank_opens_no_port_whatever_the_transport_and_several_on_one_machine_need_none() -> None:
    assert launch(internet_sockets, 1, transport="tcp") == [0]
    assert launch(internet_sockets, 2, transport="shm") == [0, 0]


@pytest.mark.parametrize(
    ("x", "op", "algorithm", "said"),
    [
        ([1, 2], "sum", "auto", "takes a NumPy array, got list"),
        (np.array(["a"], object), "sum", "auto", "dtype object"),
        (np.broadcast_to(1.0, 3), "sum", "auto", "read-only"),
        (np.zeros(3), "average", "auto", "no operator 'average'; there are: sum, mean"),
        (np.zeros(3, bool), "sum", "auto", "no sum of bool"),
        (np.array(["a"]), "max", "auto", "no max of <U1|no max of str"),
        (np.zeros(3), AFFINE, plan("allreduce", "ring", 1), None),
        (np.zeros(3), "sum", plan("allreduce", "ring", 2), "is no allreduce over 1 ranks"),
        (np.zeros(3), "sum", plan("all_gather", "ring", 1), "is no allreduce"),
        (np.zeros(3), "sum", plan("allreduce", "central", 1, server_is_rank=False), "nodes beside the ranks"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(x: Any, op: Any, algorithm: Any, said: str | None) -> None:
    if said is None:
        alone().allreduce(x, op, algorithm)
        return
    with pytest.raises(BadCollective, match=said) as caught:
        alone().allreduce(x, op, algorithm)
    assert "\n" not in str(caught.value)


def an_order_that_a_ring_does_not_keep(comm: Comm) -> str:
    with pytest.raises(BadCollective, match="does not commute") as caught:
        comm.allreduce(np.ones(3, complex), AFFINE, "ring")
    # Refused before anything was sent: the communicator goes on.
    comm.allreduce(np.ones(3, complex), AFFINE, "auto")
    return str(caught.value)


def test_an_operator_that_does_not_commute_is_refused_by_a_ring_and_done_by_auto() -> None:
    assert len(set(launch(an_order_that_a_ring_does_not_keep, 3, timeout_s=60))) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"ranks": 0}, "at least 1 rank, got 0"),
        ({"transport": "rdma"}, "no transport 'rdma'; there are: auto, shm, tcp"),
        ({"timeout_s": 0}, "above 0, got 0"),
        ({"here": 5}, "from 0 to 4, got 5"),
        ({"arguments": (threading.Lock(),)}, "the arguments cannot be sent to the ranks"),
    ],
)
def test_a_launch_that_cannot_be_is_refused_in_one_line(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadCollective, match=said) as caught:
        launch(print, **arguments)
    assert "\n" not in str(caught.value)


def test_it_works_from_a_script_without_a_guard_and_with_the_script_s_own_modules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("FACTOR = 3\ndef scaled(x):\n    return FACTOR * x\n")
    (tmp_path / "script.py").write_text(
        textwrap.dedent(
            """
            import numpy as np
            from mine import scaled
            from dag.collectives import launch

            class Result:
                def __init__(self, value):
                    self.value = value

            def work(comm, start):
                x = scaled(np.array([comm.rank + start]))
                comm.allreduce(x)
                return Result(int(x[0]))

            results = launch(work, 2, (10,), timeout_s=60)
            assert all(type(each) is Result for each in results)
            print([each.value for each in results])
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[63, 63]\n", done.stderr


class WithoutOthersMemory:
    """Unpickles before the ranks meet: on rank 1, where the memory of others cannot be opened."""

    def __call__(self, comm: Comm) -> tuple[str, float]:
        return type(comm.transport).__name__, float(comm.allreduce(np.ones(1))[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return deny_memory, (WithoutOthersMemory,)


def deny_memory(kind: type) -> Any:
    from dag.collectives import shared

    def connect(self: shared.Shared, offers: Mapping[int, Any]) -> None:
        if self.rank == 1:
            raise PermissionError("not on this system")
        meant(self, offers)

    meant, shared.Shared.connect = shared.Shared.connect, connect  # type: ignore[method-assign]
    return kind()


def test_where_memory_cannot_be_shared_auto_goes_by_tcp_and_shm_says_why() -> None:
    assert launch(WithoutOthersMemory(), 3, timeout_s=60) == [("Tcp", 3.0)] * 3
    with pytest.raises(RankFailed, match="rank 1 raised PermissionError: not on this system"):
        launch(WithoutOthersMemory(), 3, transport="shm", timeout_s=60)


def share_of_cores(comm: Comm) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert launch(share_of_cores, 2) == [str(max(1, len(os.sched_getaffinity(0)) // 2))] * 2
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert launch(share_of_cores, 1) == ["7"]
