"""What ``auto`` stands for: what the simulator says is shorter, in the order of ranks where that counts, and the right result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dag.collectives import Comm, Operator, Schedule, algorithms, check, launch, plan, simulate
from dag.collectives.check import contributions
from dag.collectives.choose import choose
from dag.collectives.networks import uniform
from dag.collectives.operators import keeping_order
from dag.collectives.prepared import Preparing
from dag.collectives.schedule import Kind
from dag.errors import BadCollective

Array = np.ndarray[Any, np.dtype[Any]]
LONG = 256 << 10


def chosen(kind: Kind, ranks: int, nbytes: int, **facts: Any) -> str:
    return choose(kind, ranks, nbytes, **{"commutative": True, "near": False, "apart": True, **facts})


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize("nbytes", [LONG, 1 << 20, 4 << 20])
def test_between_machines_what_is_long_goes_by_parts_where_that_is_shorter(kind: Kind, nbytes: int) -> None:
    network = uniform(latency_s=75e-6, s_per_byte=8e-10)
    for ranks in (*range(2, 18), 24, 32, 33, 64, 100):

        def seconds(name: str, ranks: int = ranks) -> float:
            return simulate(plan(kind, name, ranks), nbytes // 4, 4, network).seconds

        name, tree = chosen(kind, ranks, nbytes), seconds("binomial")
        assert seconds(name) < 1.25 * tree, (ranks, name)
        if nbytes >= 1 << 20 and ranks > 8:
            assert name != "binomial"
            assert seconds(name) < 0.9 * tree, (ranks, name)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_what_is_short_or_on_one_machine_goes_by_a_binomial_tree(kind: Kind) -> None:
    for ranks in (1, 2, 3, 8, 13):
        assert chosen(kind, ranks, LONG - 1) == "binomial"
        for near in (False, True):
            assert chosen(kind, ranks, 1 << 30, near=near, apart=False) == "binomial"


def ascending(schedule: Schedule) -> bool:
    return all(contributions(each) == sorted(contributions(each)) for each in check(schedule))


@pytest.mark.parametrize("name", algorithms("reduce"))
def test_a_reduce_says_exactly_whether_it_keeps_the_order_of_ranks(name: str) -> None:
    for ranks in range(1, 14):
        for root in range(ranks):
            schedule = plan("reduce", name, ranks, root=root)
            assert schedule.keeps_order == ascending(schedule), (ranks, root)


@pytest.mark.parametrize("nbytes", [8, 1 << 30])
def test_an_operator_that_does_not_commute_is_reduced_in_order_wherever_any_way_does_so(nbytes: int) -> None:
    for ranks in range(1, 10):
        for root in range(ranks):
            schedule = plan(
                "reduce", chosen("reduce", ranks, nbytes, commutative=False, root=root), ranks, root=root
            )
            assert schedule.keeps_order == bool(keeping_order("reduce", ranks, root)), (ranks, root)


def affine(left: Array, right: Array) -> Array:
    """Return ``x -> a x + b`` after another, ``a + b i`` each: associative, and not commutative."""
    return left.real * right.real + 1j * (left.imag * right.real + right.imag)


AFFINE = Operator(affine, commutative=False)


def as_between_machines(comm: Comm, root: int) -> list[Any]:
    """Do what ``auto`` would do if each rank were on a machine of its own."""
    elements = (LONG >> 3) + 5
    preparing = Preparing(comm.rank, [str(rank) for rank in range(comm.size)], False)
    x = np.arange(elements) * (comm.rank + 1.0)
    found = []
    for kind in ("broadcast", "reduce"):
        op = "sum" if kind == "reduce" else None
        schedule = preparing.prepare(kind, x.dtype, x.shape, op, "auto", root).schedule
        y = x.copy()
        if kind == "reduce":
            comm.reduce(y, "sum", root, schedule)
        else:
            comm.broadcast(y, root, schedule)
        factor = sum(range(1, comm.size + 1)) if kind == "reduce" else root + 1
        wanted = x if kind == "reduce" and comm.rank != root else np.arange(elements) * float(factor)
        found.append((schedule.algorithm, bool((y == wanted).all())))
    for to in {0, comm.size // 2, comm.size - 1}:
        maps = np.full(3, complex(comm.rank + 2, 1 - comm.rank))
        comm.reduce(maps, AFFINE, to)
        if comm.rank == to:
            wanted_map = complex(2, 1)
            for rank in range(1, comm.size):
                wanted_map = complex(affine(np.array(wanted_map), np.array(complex(rank + 2, 1 - rank))))
            found.append(("in order", maps.tolist() == [wanted_map] * 3))
    return found


@pytest.mark.parametrize(
    ("ranks", "ways"), [(3, ["scatter_ring", "binomial"]), (4, ["scatter_doubling", "halving"])]
)
def test_results_are_right_by_the_ways_that_auto_takes(ranks: int, ways: list[str]) -> None:
    for found in launch(as_between_machines, ranks, (1,), transport="tcp", timeout_s=60):
        assert found[:2] == [(way, True) for way in ways]
        assert [each for each in found[2:] if each != ("in order", True)] == []


def test_a_root_to_which_nothing_keeps_the_order_is_refused_with_what_to_do() -> None:
    said = "of reduce over 5 ranks to rank 3 these do: none, take rank 0"
    with pytest.raises(BadCollective, match=said):
        Preparing(0, ["a"] * 5, True).prepare("reduce", np.dtype(complex), (3,), AFFINE, "auto", 3)
    with pytest.raises(BadCollective, match="over 5 ranks to rank 2 these do: tree"):
        Preparing(0, ["a"] * 5, True).prepare("reduce", np.dtype(complex), (3,), AFFINE, "binomial", 2)
