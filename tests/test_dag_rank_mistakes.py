"""Mistakes that would make a wrong sum, or a wait without an end, are told instead."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import psutil
import pytest

from dag.collectives import Comm, Operator, algorithms, alone, launch
from dag.errors import BadCollective, RankFailed, RanksDiffer

Array = np.ndarray[Any, np.dtype[Any]]


def mean(left: Array, right: Array) -> Array:
    """Return the larger, under a name that is taken."""
    return np.maximum(left, right)


def max(left: Array, right: Array) -> Array:
    """Return the sum, under a name that is taken."""
    return left + right


def of_names_that_are_taken(comm: Comm) -> tuple[float, float, float]:
    larger = comm.allreduce(np.full(5, comm.rank + 1.0), Operator(mean))
    whole = comm.allreduce(np.full(5, comm.rank + 1), Operator(mean))
    # 1 + 1/256 four times: lost if each step is rounded to bfloat16.
    fine = np.full(5, 1.0 if comm.rank == 0 else 1 / 256, ml_dtypes.bfloat16)
    comm.allreduce(fine, Operator(max), "sharded")
    return float(larger[0]), float(whole[0]), float(fine[0])


def test_a_function_that_has_the_name_of_an_operator_is_still_the_caller_s_own() -> None:
    assert launch(of_names_that_are_taken, 3, timeout_s=60) == [(3.0, 3.0, 1.0078125)] * 3


def one_of_one_s_own(comm: Comm) -> None:
    comm.allreduce(np.ones(5), Operator(mean) if comm.rank == 1 else "mean")


def test_an_operator_and_a_function_of_its_name_differ() -> None:
    with pytest.raises(RanksDiffer, match=r"rank 1 calls allreduce of float64 \(5,\), a mean of one's own"):
        launch(one_of_one_s_own, 3, timeout_s=60)


# Sixteen bits are folded apart: where only inputs are folded, and where sums travel on.
@pytest.mark.parametrize(
    ("algorithm", "dtype"),
    [*((name, "float32") for name in algorithms()), ("sharded", "float16"), ("ring", "float16")],
)
def test_an_operator_that_changes_the_shape_is_told_by_every_algorithm(algorithm: str, dtype: str) -> None:
    with pytest.raises(RankFailed, match="'total' made an array of shape"):
        launch(with_a_total, 2, (algorithm, dtype), timeout_s=60)


def with_a_total(comm: Comm, algorithm: str, dtype: str) -> None:
    def total(left: Array, right: Array) -> Any:
        return (left + right).sum()

    comm.allreduce(np.ones(10, dtype), Operator(total), algorithm)


def test_masks_are_not_ignored() -> None:
    masked = np.ma.masked_array(np.ones(3), mask=[False, True, False])
    for call in (alone().allreduce, alone().all_gather, alone().bucket().add):
        with pytest.raises(BadCollective, match="masked"):
            call(masked)


def parts_of_a_matrix(comm: Comm) -> tuple[list[float], float]:
    numbers = np.arange(12.0).reshape(3, 4)
    part = comm.reduce_scatter(np.matrix(numbers))
    total = comm.allreduce(np.matrix(numbers))
    return part.tolist(), float(total[2, 3])


def test_the_part_of_a_matrix_is_that_of_its_elements() -> None:
    assert launch(parts_of_a_matrix, 2, timeout_s=60) == [
        ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], 22.0),
        ([12.0, 14.0, 16.0, 18.0, 20.0, 22.0], 22.0),
    ]


@pytest.mark.parametrize("many", [1, 20])
def test_tensors_that_are_fused_in_another_order_are_told_though_the_vector_is_as_long(many: int) -> None:
    with pytest.raises(RanksDiffer, match=r"rank 1 calls .*fused of .* tensors: "):
        launch(fused_in_another_order, 3, (many,), timeout_s=60)


def fused_in_another_order(comm: Comm, many: int) -> None:
    tensors = [np.full(1, 1.0)] * many + [np.full(3, 1.0), np.full(4, 2.0)]
    if comm.rank == 1:
        tensors[-2:] = tensors[:-3:-1]
    with comm.bucket() as bucket:
        for tensor in tensors:
            bucket.add(tensor.copy())


def test_a_length_of_an_array_may_be_a_number_of_numpy_and_not_negative() -> None:
    assert alone().empty(np.int64(3)).shape == (3,)
    for shape in (-1, (2, -1)):
        with pytest.raises(BadCollective, match="negative"):
            alone().empty(shape)


def by_every_algorithm(comm: Comm) -> list[str]:
    wrong = []
    for algorithm in algorithms():
        for length in (3, 5_000, 70_000, 1_500_000):
            for x in (np.empty(length, np.float32), comm.empty(length, np.float32)):
                x[:] = comm.rank + 1
                if not (comm.allreduce(x, algorithm=algorithm) == 6).all():
                    wrong.append(f"{algorithm} of {length}")
    return wrong


def in_the_middle(one: int, other: int) -> str:
    return "shm" if 1 in (one, other) else "tcp"


def test_a_rank_that_is_near_to_all_does_as_those_that_are_far_from_each_other() -> None:
    assert launch(by_every_algorithm, 3, transport=in_the_middle, timeout_s=60) == [[]] * 3


def starts_another_and_fails(comm: Comm, path: str, how: str) -> None:
    if comm.rank == 1:
        process = subprocess.Popen(["sleep", "300"])
        with open(path, "w") as file:
            file.write(str(process.pid))
        if how == "raised":
            raise ValueError
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("how", ["was killed by signal 9", "raised"])
def test_what_a_failed_rank_had_started_ends_with_it(tmp_path: Path, how: str) -> None:
    with pytest.raises(RankFailed, match=f"rank 1 {how}"):
        launch(starts_another_and_fails, 2, (str(tmp_path / "pid"), how), timeout_s=60)
    started = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while runs(started) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not runs(started)


def closes_all_that_is_open(comm: Comm) -> None:
    if comm.rank == 1:
        os.closerange(3, 200)
    comm.allreduce(np.ones(3))


def test_a_rank_that_closes_its_line_does_not_keep_the_launcher_waiting() -> None:
    with pytest.raises(RankFailed, match="rank 1 "):
        launch(closes_all_that_is_open, 3, transport="shm", timeout_s=60)


@pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1", "127.0.0.1:port", ""])
def test_an_address_without_a_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(BadCollective, match="address is like tcp://"):
        launch(print, 2, scheduler=address)


@pytest.mark.parametrize("root", [0.0, 0.5, None, "0", 1, -1])
def test_a_root_is_the_number_of_a_rank(root: Any) -> None:
    comm, x = alone(), np.ones(2)
    comm.reduce(x, root=0)  # what was made ready for 0 must not serve what only compares equal
    comm.broadcast(x, root=np.int64(0))
    for call in (comm.reduce, comm.broadcast):
        with pytest.raises(BadCollective, match="the root is one of the ranks 0 to 0, got"):
            call(x, root=root)
