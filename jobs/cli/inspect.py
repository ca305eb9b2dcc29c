"""Commands that look and run nothing: ``mr jobs``, ``mr explain``, ``mr cat``, ``mr head``."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.sizes import format_size

from .options import INPUT_FORMAT, Size, split_parameters

if TYPE_CHECKING:
    from rich.table import Table

    from jobs.explain import Explanation
    from jobs.explain_graph import ExplainedGraph
    from mapreduce.stages import Job


@click.command()
def jobs() -> None:
    """List the job library and the models that `mr train` knows: names, one line each, inputs and parameters."""
    from jobs.catalog import library_job, library_names
    from jobs.train_models import MODELS, defaults_of, show_option

    table = _table("job", "what it does", "inputs", "parameters (-p)")
    for name in library_names():
        found = library_job(name)
        table.add_row(name, found.doc.partition("\n")[0], " ".join(found.input_names), _parameters(found))
    _print(table)
    models = _table("model", "what mr train learns with it", "data", "options")
    for name, kind in MODELS.items():
        options = ", ".join(f"--{each} {show_option(value)}" for each, value in defaults_of(kind).items())
        models.add_row(name, kind.doc, kind.data, options)
    click.echo()
    _print(models)


@click.command()
@click.argument("job")
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("-p", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of the job.")
@click.option("--input", "named", multiple=True, metavar="NAME=URL", help="An input by its name in the job.")
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes. [default: cores]")
@click.option("--partitions", type=click.IntRange(min=1), help="Reduce tasks of stages that do not say.")
@click.option("--split-size", type=Size(), default="64MiB", show_default=True, help="Input of one map task.")
@click.option("--format", "input_format", type=INPUT_FORMAT, help="Of the input. [default: by file name]")
@click.option(
    "--engine", type=click.Choice(["mapreduce", "dag"]), default="mapreduce", show_default=True,
    help="Stages through the store, or one graph: rewrites, work, span, memory.",
)  # fmt: skip
@click.option("--svg", metavar="FILE", help="With --engine dag: draw the graph.")
def explain(
    job: str,
    inputs: tuple[str, ...],
    parameters: tuple[str, ...],
    named: tuple[str, ...],
    workers: int | None,
    partitions: int | None,
    split_size: int,
    input_format: str | None,
    engine: str,
    svg: str | None,
) -> None:
    """Show the stages, splits and partitions of JOB on INPUT, and the bytes expected through the store.

    Nothing is run but the job's functions on a small sample of the input, to estimate sizes.
    """
    import mapreduce
    from jobs.catalog import find_job
    from jobs.cli.run import assign_inputs
    from jobs.explain import explain as explain_job
    from mapreduce.inputs import Source

    if "-" in inputs:
        raise click.UsageError("standard input can be read only once: give explain a file")
    found = find_job(job)
    values: dict[str, Any] = split_parameters(parameters)
    if partitions is not None and "partitions" in found.parameters:
        values.setdefault("partitions", partitions)
    given = assign_inputs(found, inputs, split_parameters(named, "--input"))
    sources = [
        Source(urls=(urls,) if isinstance(urls, str) else tuple(urls), format=input_format) for urls in given
    ]
    settings: dict[str, Any] = {} if workers is None else {"workers": workers}
    options = mapreduce.Options(partitions=partitions, split_bytes=split_size, **settings)
    if svg is not None and engine != "dag":
        raise click.UsageError("--svg goes with --engine dag")
    if engine == "dag":
        from jobs.explain_graph import explain_graph

        _print_graph(explain_graph(found, sources, values, options), svg)
        return
    _print_explanation(explain_job(found, sources, values, options))


def _print_graph(explained: ExplainedGraph, svg: str | None) -> None:
    from dag.analysis import describe
    from dag.draw import draw_svg, draw_text
    from jobs.graph_facts import ROUNDS
    from jobs.report.words import fold_rounds

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def say(line: str, indent: str = "") -> None:
        """Print a line, folded between words where the terminal ends."""
        wrapped = (
            textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) if width else [line]
        )
        click.echo("\n".join(wrapped))

    click.echo(draw_text(explained.graph, rounds=ROUNDS, width=width, unknown=explained.untried))
    click.echo()
    for line in describe(explained.analysis, partly=bool(explained.untried)).splitlines():
        say(line, " " * 15)
    say(f"would run on   {explained.scheduler}: {explained.scheduler_reason}", " " * 15)
    for title, lines in (("rewritten", explained.applied), ("not rewritten", explained.refused)):
        click.echo(f"\n{title}:" if lines else f"\n{title}: nothing")
        for line in fold_rounds(lines):
            say(f"  {line}", " " * 4)
    for note in filter(None, (explained.basis, *explained.notes)):
        click.echo()
        say(note)
    if svg is not None:
        Path(svg).write_text(draw_svg(explained.graph, rounds=ROUNDS), encoding="utf-8")
        click.echo(f"\ndrawn: {svg}")


@click.command()
@click.argument("output")
def cat(output: str) -> None:
    """Print OUTPUT, a folder or file of any format in any store.

    Text, CSV and JSON lines come as they are, decompressed; Parquet and Arrow as CSV with a header.
    """
    from jobs.show import print_output

    _write(print_output(output))


@click.command()
@click.argument("output")
@click.option("-n", "count", type=click.IntRange(min=0), default=10, show_default=True, help="Records.")
def head(output: str, count: int) -> None:
    """Print the first records of OUTPUT, a folder or file of any format in any store."""
    from jobs.show import print_head

    _write(print_head(output, count))


def _write(blocks: Iterator[bytes]) -> None:
    out = sys.stdout.buffer
    for block in blocks:
        out.write(block)
    out.flush()


def _parameters(job: Job) -> str:
    words = []
    for name, parameter in job.parameters.items():
        if parameter.default is parameter.empty:
            words.append(f"{name} (needed)")
        elif parameter.default is None:
            words.append(name)
        else:
            default = parameter.default
            words.append(f"{name}={str(default).lower() if isinstance(default, bool) else default}")
    return ", ".join(words)


def _print_explanation(found: Explanation) -> None:
    inputs = _table("input", "", "splits", "bytes")
    for given in found.inputs:
        inputs.add_row(given.name, given.what, str(given.splits), format_size(given.bytes))
    stages = _table("stage", "reads", "map tasks", "partitions", "shuffles", "writes", "to")
    for number, stage in enumerate(found.stages, 1):
        stages.add_row(
            f"{number} {stage.name}",
            stage.reads,
            str(stage.maps),
            str(stage.partitions) if stage.partitions else "map only",
            _about(stage.shuffle_bytes) if stage.partitions else "",
            _about(stage.bytes_out),
            "store" if stage.to_store else "output",
        )
    click.echo(f"job {found.job}")
    _print(inputs)
    _print(stages)
    if found.store_bytes == 0:
        click.echo("through the store: nothing")
    else:
        click.echo(f"through the store: {_about(found.store_bytes)}, by trials on samples of the input")
    for note in found.notes:
        click.echo(f"note: {note}")


def _about(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"about {format_size(size_bytes)}"


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    # Where the output is no terminal, lines are as long as they are.
    Console(width=None if sys.stdout.isatty() else 200).print(table)
