"""Gradient descent against scikit-learn, plain numpy and itself: other engines, processes and cuts."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Bunch

import mapreduce
from jobs.catalog import find_job
from jobs.engine import run as run_in_memory
from jobs.explain import explain
from jobs.explain_graph import explain_graph
from jobs.generate import generate
from jobs.linear_models import (
    Gradient,
    Partial,
    choose_rows,
    log_total,
    measure,
    merge_moments,
)
from jobs.synthetic_points import hyperplane
from mapreduce import BadJob
from mapreduce.inputs import Source

Floats = npt.NDArray[np.float64]


def write_table(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=400)
    else:
        pa.csv.write_csv(table, path)
    return path


def three_classes(rows: int = 900, features: int = 4, seed: int = 1) -> pa.Table:
    """Points around three places, with a name as label; the columns differ in scale and place."""
    dice = np.random.default_rng(seed)
    classes = dice.integers(0, 3, rows)
    places = dice.normal(size=(3, features))
    columns = (places[classes] + dice.normal(size=(rows, features))) * 10.0 ** np.arange(features) + 5
    names = pa.array([f"kind {'cab'[c]}" for c in classes])
    return pa.table(
        [*map(pa.array, columns.T.copy()), names], names=[*(f"x{i}" for i in range(features)), "kind"]
    )


def train(path: Path, *, engine: str = "dag", options: Any = None, **parameters: Any) -> tuple[Any, Any]:
    """Return the rows of the result and the run's counters."""
    options = options or mapreduce.Options(workers=0, store=f"{path}-store", split_bytes=30_000)
    run = run_in_memory if engine == "dag" else mapreduce.run
    result = run(find_job("gradient"), str(path), parameters=parameters, options=options)
    assert result.records is not None
    return result.records, result.counters


def weights_of(rows: list[tuple[str, str, float]], features: int) -> Floats:
    """Return the weights, a row per set, the intercept first."""
    assert [feature for _, feature, _ in rows[:: features + 1]] == ["(intercept)"] * (
        len(rows) // (features + 1)
    )
    return np.array([weight for _, _, weight in rows]).reshape(-1, features + 1)


def plain_loss(weights: Floats, columns: Floats, classes: Any) -> float:
    """Return the mean loss by log-sum-exp; one set of weights stands for the difference of two classes."""
    scores = weights[:, :1] + weights[:, 1:] @ columns
    if len(weights) == 1:
        scores = np.vstack([np.zeros_like(scores), scores])
    largest = scores.max(axis=0)
    totals = largest + np.log(np.exp(scores - largest).sum(axis=0))
    return float((totals - scores[classes, np.arange(len(classes))]).mean())


# -- losses, gradients, moments ---------------------------------------------------------------------


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_a_gradient_is_the_slope_of_the_plain_loss(sets: int) -> None:
    dice = np.random.default_rng(sets)
    columns = dice.normal(size=(3, 700)) * [[1.0], [10.0], [0.1]] + 2
    classes = dice.integers(0, max(sets, 2), 700)
    shift, scale = columns.mean(axis=1), columns.std(axis=1)
    weights = dice.normal(size=(sets, 4))
    found = Gradient(weights, shift, scale).of(columns, classes.astype(np.float64) if sets == 1 else classes)

    def loss(at: Floats) -> float:
        return plain_loss(at, (columns - shift[:, None]) / scale[:, None], classes)

    assert found.rows == 700
    assert found.loss / 700 == pytest.approx(loss(weights), rel=1e-12)
    for at in np.ndindex(weights.shape):
        nudge = np.zeros_like(weights)
        nudge[at] = 1e-5
        slope = (loss(weights + nudge) - loss(weights - nudge)) / 2e-5
        assert found.sums[at] / 700 == pytest.approx(slope, abs=1e-8)


def test_a_gradient_does_not_depend_on_how_rows_fall_into_blocks() -> None:
    dice = np.random.default_rng(0)
    columns, classes = dice.normal(size=(5, 3_000)), dice.integers(0, 4, 3_000)
    weights = dice.normal(size=(4, 6))
    whole = Gradient(weights, np.zeros(5), np.ones(5)).of(columns, classes)
    pieces = Gradient(weights, np.zeros(5), np.ones(5))  # it keeps its buffers
    cuts = [0, 5, 1_300, 1_300, 3_000]
    cut = sum(
        (pieces.of(columns[:, a:b], classes[a:b]) for a, b in pairwise(cuts)),
        Partial(rows=0, loss=0.0, sums=np.zeros((4, 6))),
    )
    assert cut.rows == whole.rows
    assert cut.loss == pytest.approx(whole.loss, rel=1e-13)
    np.testing.assert_allclose(cut.sums, whole.sums, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mean", [1e2, 1e5, 1e9])
def test_columns_far_from_zero_lose_no_digits(mean: float) -> None:
    dice = np.random.default_rng(1)
    near = np.round(dice.normal(size=(2, 5_000)) * 2**10) / 2**10  # so that adding the mean is exact
    classes, weights = dice.integers(0, 2, 5_000).astype(np.float64), dice.normal(size=(1, 3))
    shift, scale = np.zeros(2), np.ones(2)
    wanted = Gradient(weights, shift, scale).of(near, classes)
    moments = measure(near + mean)
    assert len(moments.far) == (2 if mean > 1e3 else 0)
    found = Gradient(weights, shift + mean, scale, moments.far).of(near + mean, classes)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-11)
    np.testing.assert_allclose(found.sums, wanted.sums, rtol=0, atol=1e-8)


def test_rows_far_on_either_side_cost_their_distance_or_nothing() -> None:
    column = np.array([1e6, -1e6, 800.0, -800.0])
    found = Gradient(np.array([[0.0, 1.0]]), np.zeros(1), np.ones(1)).of(
        column[None], np.array([0.0, 1.0, 1.0, 0.0])
    )
    assert found.loss == pytest.approx(2e6)
    np.testing.assert_allclose(found.sums, [[0.0, 2e6]])
    both = Gradient(np.array([[0.0, 0.0], [0.0, 1.0]]), np.zeros(1), np.ones(1)).of(
        column[None], np.array([0, 1, 1, 0])
    )
    assert both.loss == pytest.approx(2e6)
    np.testing.assert_allclose(both.sums, [[0.0, -2e6], [0.0, 2e6]])


@given(st.lists(st.floats(1.0, 7.0), max_size=2_000))
def test_logarithms_of_products_are_sums_of_logarithms(factors: list[float]) -> None:
    assert log_total(np.array(factors), 7.0) == pytest.approx(
        math.fsum(map(math.log, factors)), rel=1e-12, abs=1e-12
    )


@given(cuts=st.lists(st.integers(0, 200), max_size=5), offset=st.sampled_from([0.0, 1e6]))
def test_moments_of_parts_make_those_of_the_whole(cuts: list[int], offset: float) -> None:
    columns = np.random.default_rng(0).normal(size=(3, 200)) + offset
    edges = [0, *sorted(cuts), 200]
    found = measure(columns[:, :0])
    for start, stop in pairwise(edges):
        found = merge_moments(found, measure(columns[:, start:stop].copy()))
    assert found.rows == 200
    np.testing.assert_allclose(found.means, columns.mean(axis=1), rtol=1e-13)
    np.testing.assert_allclose(found.products / 200, np.cov(columns, bias=True), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.deviations, columns.std(axis=1), rtol=1e-8)


def test_the_bound_on_the_largest_eigenvalue_is_tight_and_never_below() -> None:
    dice = np.random.default_rng(3)
    for features in (1, 2, 40, 128):
        columns = dice.normal(size=(features, features)) @ dice.normal(size=(features, 500)) + 7
        moments = measure(columns.copy())
        scale = moments.deviations
        exact = float(np.linalg.eigvalsh(np.corrcoef(columns)).max()) if features > 1 else 1.0
        assert (
            exact * (1 - 1e-12)
            <= moments.largest_eigenvalue(scale)
            <= exact * features ** (1 / 64) * (1 + 1e-12)
        )
    many = measure(dice.normal(size=(130, 400)))  # too many for all pairs: the sum of the variances
    assert many.products.shape == (130,)
    assert many.largest_eigenvalue(many.deviations) == pytest.approx(130)


def test_in_an_epoch_each_row_is_in_one_mini_batch_wherever_batches_are_cut() -> None:
    def parts(epoch: int, cuts: list[int]) -> list[list[int]]:
        edges = [0, *cuts, 5_000]
        return [
            [
                start + int(row)
                for start, stop in pairwise(edges)
                for row in choose_rows(start, stop - start, parts=7, part=part, epoch=epoch, seed=5)
            ]
            for part in range(7)
        ]

    first = parts(0, [])
    assert sorted(row for part in first for row in part) == list(range(5_000))
    assert all(600 < len(part) < 830 for part in first)  # 714 on average, deviation 25
    assert parts(0, [1, 1_000, 4_999]) == first
    assert parts(1, []) != first


KERNELS = """
import hashlib
import numpy as np
from jobs.linear_models import Gradient, Iterate, measure, safe_rate
dice = np.random.default_rng(0)
columns = dice.normal(size=(9, 20_011)) * 3 + 1
moments = measure(columns.copy())
seen = hashlib.sha256(moments.products.tobytes())
for sets in (1, 4):
    classes = dice.integers(0, max(sets, 2), 20_011)
    classes = classes.astype(float) if sets == 1 else classes
    rate = safe_rate(moments, moments.deviations, sets, 0.01)
    at = Iterate.start(sets, 9)
    for _ in range(5):
        found = Gradient(at.ahead, moments.means, moments.deviations).of(columns, classes)
        at = at.step(found, rate=rate, l2=0.01, momentum=None)
    seen.update(at.weights.tobytes() + at.losses.tobytes())
print(seen.hexdigest())
"""


def test_the_bits_do_not_depend_on_instruction_sets_or_on_threads() -> None:
    def digest(**environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", KERNELS],
            env={**os.environ, **environment}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    widest = digest(NPY_DISABLE_CPU_FEATURES="", OPENBLAS_NUM_THREADS="2")
    assert digest(NPY_DISABLE_CPU_FEATURES=_dispatched(), OPENBLAS_NUM_THREADS="1") == widest


def _dispatched() -> str:
    """Names of all instruction sets that numpy chooses between as it runs, on the machine at hand."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    return " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))


# -- the job ----------------------------------------------------------------------------------------


def load_wide() -> Bunch:
    """Return 400 points with 140 features: too many for products of all pairs."""
    dice = np.random.default_rng(7)
    points = dice.normal(size=(400, 140)) + dice.normal(size=140)
    return Bunch(data=points, target=(points[:, :3].sum(axis=1) + dice.normal(size=400) > 0).astype(int))


@pytest.mark.parametrize(
    ("load", "l2", "iterations"),
    [(load_breast_cancer, 0.05, 120), (load_digits, 0.05, 250), (load_wide, 0.5, 120)],
)
def test_the_weights_are_those_of_scikit_learn(tmp_path: Path, load: Any, l2: float, iterations: int) -> None:
    data = load()
    names = [f"pixel {i}" for i in range(data.data.shape[1])]
    table = pa.table([*map(pa.array, data.data.T.copy()), pa.array(data.target)], names=[*names, "label"])
    path = write_table(tmp_path / "data.parquet", table)
    rows, counters = train(path, options=mapreduce.Options(workers=1), iterations=iterations, l2=l2)
    weights = weights_of(rows, len(names))
    scaler = StandardScaler().fit(data.data)
    wanted = LogisticRegression(C=1 / (l2 * len(data.target)), tol=1e-10, max_iter=10_000)
    wanted.fit(scaler.transform(data.data), data.target)
    np.testing.assert_allclose(weights[:, 1:] * scaler.scale_, wanted.coef_, atol=1e-4)
    np.testing.assert_allclose(weights[:, 0] + weights[:, 1:] @ scaler.mean_, wanted.intercept_, atol=1e-4)
    assert counters["iterations"] == iterations
    assert [name for name, _, _ in rows[:: len(names) + 1]] == (
        ["1"] if len(weights) == 1 else [str(digit) for digit in range(10)]
    )


CASES: list[dict[str, Any]] = [
    {"label": "label"},
    {"label": "label", "batch": 1_000, "momentum": 0.5},
    {"label": "kind", "l2": 0.01},
    {"label": "kind", "batch": 300, "standardise": False, "seed": 3},
]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_both_engines_give_the_same_bytes_after_20_iterations(
    tmp_path: Path, case: dict[str, Any], suffix: str
) -> None:
    path = tmp_path / f"points{suffix}"
    if case["label"] == "kind":
        write_table(path, three_classes(2_000))
    else:
        generate("points", str(path), size_bytes=400_000, features=6)
    # Worker processes see other instruction sets and numbers of threads than this one; once is enough.
    workers = 2 if suffix == ".csv" and "batch" not in case else 0
    options = mapreduce.Options(
        workers=workers, store=str(tmp_path / "store"), split_bytes=60_000, output_format="parquet"
    )
    found = {}
    for engine, run in (("mapreduce", mapreduce.run), ("dag", run_in_memory)):
        output = tmp_path / engine
        parameters = {**case, "iterations": 20}
        run(find_job("gradient"), str(path), output=str(output), parameters=parameters, options=options)
        found[engine] = {file.name: file.read_bytes() for file in output.iterdir()}
    assert found["dag"] == found["mapreduce"]
    assert np.abs(pq.read_table(tmp_path / "dag").column("weight").to_numpy()).max() > 0.01


@pytest.mark.parametrize("batch", [None, 200])
def test_steps_are_those_of_a_descent_in_plain_numpy(tmp_path: Path, batch: int | None) -> None:
    table = three_classes()
    path = write_table(tmp_path / "points.csv", table)
    rows, _ = train(path, label="kind", iterations=12, rate=0.3, momentum=0.6, l2=0.1, batch=batch, seed=9)
    columns = np.array([table.column(i).to_numpy() for i in range(4)])
    means, scale = columns.mean(axis=1), columns.std(axis=1)
    design = np.vstack([np.ones(900), (columns - means[:, None]) / scale[:, None]])
    classes = np.searchsorted(["kind a", "kind b", "kind c"], table.column("kind").to_pylist())
    weights = before = np.zeros((3, 5))
    ahead = weights
    for iteration in range(12):
        epoch, part = divmod(iteration, 4)
        chosen = np.arange(900)
        rate = 0.3
        if batch is not None:
            chosen = choose_rows(0, 900, parts=4, part=part, epoch=epoch, seed=9)
            rate = 0.3 / math.sqrt(1 + epoch)
        shares = np.exp(ahead @ design[:, chosen])
        shares /= shares.sum(axis=0)
        shares[classes[chosen], np.arange(len(chosen))] -= 1
        slope = shares @ design[:, chosen].T / len(chosen)
        slope[:, 1:] += 0.1 * ahead[:, 1:]
        before, weights = weights, ahead - rate * slope
        ahead = weights + 0.6 * (weights - before)
    weights = weights.copy()
    weights[:, 1:] /= scale
    weights[:, 0] -= weights[:, 1:] @ means
    np.testing.assert_allclose(weights_of(rows, 4), weights, rtol=1e-9)
    assert [row[:2] for row in rows[:6]] == [
        ("kind a", "(intercept)"), ("kind a", "x0"), ("kind a", "x1"), ("kind a", "x2"), ("kind a", "x3"),
        ("kind b", "(intercept)"),
    ]  # fmt: skip


@pytest.mark.parametrize("standardise", [True, False])
def test_the_losses_shown_are_those_of_the_weights_shown(tmp_path: Path, standardise: bool) -> None:
    table = three_classes(features=3)
    path = write_table(tmp_path / "points.csv", table)
    given = {"label": "kind", "momentum": 0.0, "standardise": standardise}
    losses, _ = train(path, iterations=8, show="losses", **given)
    rows, counters = train(path, iterations=7, **given)
    assert [iteration for iteration, _ in losses] == list(range(1, 9))
    assert losses[0][1] == pytest.approx(math.log(3), rel=1e-12)
    assert all(later < earlier for (_, earlier), (_, later) in pairwise(losses))
    columns = np.array([table.column(i).to_numpy() for i in range(3)])
    classes = np.searchsorted(["kind a", "kind b", "kind c"], table.column("kind").to_pylist())
    assert plain_loss(weights_of(rows, 3), columns, classes) == pytest.approx(losses[7][1], rel=1e-10)
    assert counters["last loss in millionths"] == round(losses[6][1] * 1e6)


def test_a_tolerance_ends_the_same_descent_early_in_both_engines(tmp_path: Path) -> None:
    path = write_table(tmp_path / "points.csv", three_classes())
    rows, counters = train(path, label="kind", l2=0.1, iterations=500, tolerance=1e-4)
    assert 5 < counters["iterations"] < 100
    again = train(path, label="kind", l2=0.1, iterations=counters["iterations"])
    assert again == (rows, counters)
    slower = train(path, engine="mapreduce", label="kind", l2=0.1, iterations=500, tolerance=1e-4)
    assert slower == (rows, counters)


def test_momentum_and_mini_batches_come_near_the_same_minimum(tmp_path: Path) -> None:
    path = tmp_path / "points.parquet"
    generate("points", str(path), size_bytes=500_000, features=5, seed=4)
    best, _ = train(path, iterations=60, l2=0.01)
    plain, _ = train(path, iterations=300, l2=0.01, momentum=0.0)
    np.testing.assert_allclose(weights_of(plain, 5), weights_of(best, 5), atol=1e-6)
    near, _ = train(path, iterations=200, l2=0.01, batch=500)
    np.testing.assert_allclose(weights_of(near, 5), weights_of(best, 5), atol=0.1)
    found, true = weights_of(best, 5)[0, 1:], hyperplane(4, 5)
    assert found @ true > 0.99 * np.linalg.norm(found) * np.linalg.norm(true)


def test_columns_of_any_numeric_type_are_features_and_labels_of_any_type_are_classes(tmp_path: Path) -> None:
    dice = np.random.default_rng(2)
    numbers = dice.integers(-50, 50, 600)
    label = pa.array(numbers + dice.integers(-20, 20, 600) > 0)
    wanted: Any = None
    for kind in (pa.float64(), pa.float32(), pa.int8(), pa.int64(), pa.decimal128(5, 1)):
        values = (
            pa.array([Decimal(int(n)) for n in numbers]) if pa.types.is_decimal(kind) else pa.array(numbers)
        )
        same = pa.array(np.full(600, 0.3))  # 600 of them add up to a little less than 180
        table = pa.table({"same": same, "text": pa.array(["t"] * 600), "n": values.cast(kind), "up": label})
        rows, _ = train(write_table(tmp_path / "points.parquet", table), label="up", iterations=10)
        assert [row[:2] for row in rows] == [("true", "(intercept)"), ("true", "same"), ("true", "n")]
        assert rows[1][2] == 0
        assert rows[2][2] > 0.01
        wanted = wanted or rows
        assert rows == wanted
    chosen, _ = train(tmp_path / "points.parquet", label="up", iterations=10, features="n", model="softmax")
    assert [row[:2] for row in chosen] == [(c, f) for c in ("false", "true") for f in ("(intercept)", "n")]
    two = weights_of(chosen, 1)
    np.testing.assert_allclose(two[0], -two[1], rtol=1e-12)


def test_explain_knows_the_bytes_of_a_descent_that_looks_at_its_gradient(tmp_path: Path) -> None:
    path = write_table(tmp_path / "points.csv", three_classes())
    options = mapreduce.Options(workers=1, store=str(tmp_path / "store"))
    given = {"label": "kind", "iterations": 2}
    for parameters, stages in ((given, 4), ({**given, "tolerance": 0.1}, 2)):
        found = explain(find_job("gradient"), [Source(urls=(str(path),))], parameters, options)
        assert [stage.name for stage in found.stages] == ["summary", "iteration", "iteration", "weights"][
            :stages
        ]
        assert found.store_bytes
        assert len(found.notes) == (1 if stages == 2 else 0)
        graph = explain_graph(find_job("gradient"), [Source(urls=(str(path),))], parameters, options)
        assert graph.measured
        assert len(graph.notes) == len(found.notes)


# -- what is refused --------------------------------------------------------------------------------

TABLE = "a,b,label,text\n1,2,0,x\n3,4.5,1,y\n-1,0.5,0,x\n"


@pytest.mark.parametrize(
    ("table", "parameters", "complaint"),
    [
        (TABLE, {"label": "klass"}, "there is no column 'klass' for label=; the columns are: a, b, label, text"),
        (TABLE, {"features": "a,c"}, "there is no column 'c' for feature=; the columns are: a, b, label, text"),
        (TABLE, {"features": "a,text"}, "feature 'text' has the type string; features are numbers"),
        (TABLE, {"features": "a,label"}, "'label' is the label and cannot be a feature as well"),
        ("label,t\n0,x\n1,y\n", {}, "there is no numeric column beside the label 'label'; the columns are: label, t"),
        ("a,label\n1,7\n2,7\n", {}, "the label 'label' has the same value in all 2 rows, 7; there is nothing to tell"),
        ("a,label\n1,0\n2,1\n3,2\n", {"model": "logistic"}, "model=logistic is for two classes, but the label 'label' has 3"),
        (
            "a,b,label\n1,2,0\n,nan,1\nNA,3,1\n5,inf,\n", {},
            "'a' 2 (the first in row 2), 'b' 2 (the first in row 2), 'label' 1 (the first in row 4); fill them",
        ),
        (
            "a,label\n" + "".join(f"{i},{i}\n" for i in range(1_001)), {},
            "the label 'label' has more than 1,000 different values; this job tells classes apart",
        ),
        (
            "a,label\n1,0\n2,1\n", {"rate": 1e200, "l2": 1.0, "iterations": 3},
            "the weights left the range of numbers in iteration 2 with a rate of 1e+200; give a smaller rate=",
        ),
        (TABLE, {"model": "ridge"}, "model must be auto, logistic, softmax, got 'ridge'"),
        (TABLE, {"show": "plot"}, "show must be weights, losses, got 'plot'"),
        (TABLE, {"iterations": 0}, "iterations must be >= 1, got 0"),
        (TABLE, {"batch": 0}, "batch must be >= 1, got 0"),
        (TABLE, {"l2": -1.0}, "l2 must be >= 0, got -1.0"),
        (TABLE, {"rate": 0.0}, "rate must be > 0, got 0.0"),
        (TABLE, {"tolerance": -1.0}, "tolerance must be >= 0, got -1.0"),
        (TABLE, {"features": "a,a"}, "feature 'a' is given twice"),
        ("a,label\n1e200,0\n-1e200,1\n", {}, "the numbers of column 'a' are too large to be squared; divide them"),
        (TABLE, {"momentum": 1.0}, "momentum must be in [0, 1), got 1.0"),
        ("a,label\n", {}, "the input has no rows to learn from"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", ["mapreduce", "dag"])
def test_what_cannot_be_trained_is_refused_in_one_line(
    tmp_path: Path, table: str, parameters: dict[str, Any], complaint: str, engine: str
) -> None:
    path = tmp_path / "points.csv"
    path.write_text(table)
    with pytest.raises(BadJob) as refused:
        train(path, engine=engine, **parameters)
    assert str(refused.value).startswith("job 'gradient': ")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_bad_cell_is_counted_through_all_splits_and_lines_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    rows = [f"{i % 7}.5,{i % 2}" for i in range(400_000)]
    rows[123_456] = rows[350_000] = ",1"
    path.write_text("\n".join(["a,label", *rows, ""]))
    options = mapreduce.Options(workers=2, store=str(tmp_path / "store"), split_bytes=1 << 20)
    with pytest.raises(BadJob, match=r"by column: 'a' 2 \(the first in row 123,457\); fill them"):
        train(path, engine="mapreduce", options=options)
    text = tmp_path / "points.txt"
    text.write_text("1 2\n")
    with pytest.raises(BadJob, match="the columns are: line; for a table of another name give --format csv"):
        train(text)
