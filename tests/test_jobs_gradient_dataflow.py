"""The gradient job with ``form=dataflow``: its loss as a graph, differentiated, against the formula written by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mapreduce
from dag import dataflow as df
from dag.errors import UnknownOperator
from jobs.catalog import find_job
from jobs.dataflow_gradient import DataflowGradient
from jobs.engine import run as run_in_memory
from jobs.generate import generate
from jobs.linear_models import Gradient, Iterate, measure, safe_rate
from mapreduce import BadJob

Floats = npt.NDArray[np.float64]


def some_rows(sets: int, rows: int, features: int = 6, seed: int = 0) -> tuple[Floats, Any]:
    dice = np.random.default_rng(seed)
    columns = dice.normal(size=(features, rows)) * 10.0 ** np.arange(-2, features - 2)[:, None] + 3
    return columns, dice.integers(0, max(sets, 2), rows).astype(np.float64)


def assert_same(found: Any, wanted: Any, relative: float) -> None:
    """Sums of a column agree relative to the largest one of all sets, since those of a set may cancel."""
    assert found.rows == wanted.rows
    assert found.loss == pytest.approx(wanted.loss, rel=relative)
    size = np.abs(wanted.sums).max(axis=0)
    assert (np.abs(found.sums - wanted.sums) <= relative * size).all()


@pytest.mark.parametrize("sets", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 7, 3_000])
def test_the_derived_gradient_is_the_one_written_by_hand(sets: int, rows: int) -> None:
    columns, classes = some_rows(sets, rows)
    moments = measure(columns.copy())
    dice = np.random.default_rng(rows)
    for size in (0.0, 0.1, 1.0, 30.0):  # at 0 all scores are equal, at 30 most shares are 0 or 1
        weights = size * dice.normal(size=(sets, 7))
        by_hand = Gradient(weights, moments.means, moments.deviations).of(columns, classes)
        derived = DataflowGradient(weights, moments.means, moments.deviations).of(columns, classes)
        assert_same(derived, by_hand, 1e-12)


@pytest.mark.parametrize("sets", [1, 3])
def test_after_each_iteration_the_weights_agree_within_1e12(sets: int) -> None:
    columns, classes = some_rows(sets, 4_000)
    moments = measure(columns.copy())
    scale = moments.deviations
    rate = safe_rate(moments, scale, sets, 0.01)
    by_hand = derived = Iterate.start(sets, 6)
    for _ in range(30):
        one = Gradient(by_hand.ahead, moments.means, scale).of(columns, classes)
        other = DataflowGradient(derived.ahead, moments.means, scale).of(columns, classes)
        by_hand = by_hand.step(one, rate=rate, l2=0.01, momentum=None)
        derived = derived.step(other, rate=rate, l2=0.01, momentum=None)
        assert np.abs(derived.weights - by_hand.weights).max() <= 1e-12 * np.abs(by_hand.weights).max()
        assert derived.losses[-1] == pytest.approx(by_hand.losses[-1], rel=1e-12)
    assert by_hand.losses[-1] < 0.999 * by_hand.losses[0]


def test_columns_far_from_zero_are_centred_first_and_the_block_stays_as_it_was() -> None:
    columns, classes = some_rows(1, 2_000)
    columns[2] += 1e9
    before = columns.copy()
    moments = measure(columns.copy())
    assert moments.far.tolist() == [2]
    weights = np.random.default_rng(1).normal(size=(1, 7))
    by_hand = Gradient(weights, moments.means, moments.deviations, moments.far).of(columns, classes)
    derived = DataflowGradient(weights, moments.means, moments.deviations, moments.far).of(columns, classes)
    assert_same(derived, by_hand, 1e-12)
    assert (columns == before).all()


def test_no_rows_add_nothing() -> None:
    found = DataflowGradient(np.ones((3, 5)), np.zeros(4), np.ones(4)).of(np.empty((4, 0)), np.empty(0))
    assert (found.rows, found.loss, found.sums.tolist()) == (0, 0.0, np.zeros((3, 5)).tolist())


def test_scores_that_would_overflow_exp_have_finite_losses() -> None:
    columns = np.array([[1e6, -1e6, 800.0, -800.0]])
    one = DataflowGradient(np.array([[0.0, 1.0]]), np.zeros(1), np.ones(1))
    found = one.of(columns, np.array([0.0, 1.0, 1.0, 0.0]))
    assert found.loss == pytest.approx(2e6)
    np.testing.assert_allclose(found.sums, [[0.0, 2e6]])


KERNELS = """
import hashlib
import numpy as np
from jobs.dataflow_gradient import DataflowGradient
dice = np.random.default_rng(0)
columns = dice.normal(size=(9, 20_011)) * 3 + 1
seen = hashlib.sha256()
for sets in (1, 4):
    found = DataflowGradient(dice.normal(size=(sets, 10)), columns.mean(axis=1), columns.std(axis=1)).of(
        columns, dice.integers(0, max(sets, 2), 20_011)
    )
    seen.update(found.sums.tobytes() + np.float64(found.loss).tobytes())
print(seen.hexdigest())
"""


def test_the_bits_do_not_depend_on_instruction_sets_or_on_threads() -> None:
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    def digest(**environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", KERNELS],
            env={**os.environ, **environment}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    fewer = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
    widest = digest(NPY_DISABLE_CPU_FEATURES="", OPENBLAS_NUM_THREADS="2")
    assert digest(NPY_DISABLE_CPU_FEATURES=fewer, OPENBLAS_NUM_THREADS="1") == widest


def test_an_operator_that_may_have_other_bits_elsewhere_has_no_portable_kernel() -> None:
    value = df.input("x", (3,), np.float64)
    with pytest.raises(UnknownOperator, match="the backend 'portable' has no kernel for the operator 'tanh'"):
        df.Program(df.tanh(value), (value,), backend="portable", optimise=False)


# -- the job ----------------------------------------------------------------------------------------


def three_classes(path: Path) -> Path:
    columns, classes = some_rows(3, 2_000, features=4)
    columns[0] += classes * 0.02
    names = pa.array([f"kind {'cab'[int(c)]}" for c in classes])
    pq.write_table(
        pa.table([*map(pa.array, columns), names], names=["a", "b", "c", "d", "kind"]),
        path,
        row_group_size=400,
    )
    return path


CASES: list[tuple[dict[str, Any], int]] = [
    ({"label": "label"}, 2),
    ({"label": "label", "batch": 1_000, "momentum": 0.5}, 0),
    ({"label": "kind", "l2": 0.01}, 2),
]


@pytest.mark.parametrize(("case", "workers"), CASES, ids=["logistic", "batches", "softmax"])
def test_both_engines_give_the_same_bytes_and_agree_with_the_formula(
    tmp_path: Path, case: dict[str, Any], workers: int
) -> None:
    path = tmp_path / "points.parquet"
    if case["label"] == "kind":
        three_classes(path)
    else:
        generate("points", str(path), size_bytes=300_000, features=6)
    options = mapreduce.Options(
        workers=workers, store=str(tmp_path / "store"), split_bytes=60_000, output_format="parquet"
    )

    def run(engine: Any, form: str) -> dict[str, bytes]:
        output = tmp_path / f"{engine.__module__}-{form}"
        parameters = {**case, "iterations": 12, "form": form}
        engine(find_job("gradient"), str(path), output=str(output), parameters=parameters, options=options)
        return {file.name: file.read_bytes() for file in output.iterdir()}

    stored = run(mapreduce.run, "dataflow")
    assert run(run_in_memory, "dataflow") == stored
    run(run_in_memory, "formula")
    derived, by_hand = (
        pq.read_table(tmp_path / f"{run_in_memory.__module__}-{form}").column("weight").to_numpy()
        for form in ("dataflow", "formula")
    )
    assert np.abs(derived - by_hand).max() <= 1e-12 * np.abs(by_hand).max()
    assert np.abs(by_hand).max() > 0.01


def test_another_form_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("a,label\n1,0\n2,1\n")
    with pytest.raises(BadJob, match=r"^job 'gradient': form must be formula, dataflow, got 'torch'$"):
        run_in_memory(find_job("gradient"), str(path), parameters={"form": "torch"})
