"""``mr compare``: one job, both engines, one report."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import INPUT_FORMAT, Size, split_parameters

if TYPE_CHECKING:
    from jobs.report.model import Comparison


@click.command()
@click.argument("job")
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("-p", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of the job.")
@click.option("--input", "named", multiple=True, metavar="NAME=URL", help="An input by its name in the job.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Of each engine.")
@click.option("--report", metavar="FILE", help="Write the report: one HTML file that opens offline.")
@click.option("--markdown", metavar="FILE", help="Write it as Markdown.")
@click.option("--json", "json_file", metavar="FILE", help="Write what was measured, to draw it again.")
@click.option("--trace", metavar="FILE", help="Write both timelines for ui.perfetto.dev.")
@click.option("--workers", type=click.IntRange(min=1), help="Of both engines. [default: cores, slots]")
@click.option("--partitions", type=click.IntRange(min=1), help="Reduce tasks of stages that do not say.")
@click.option("--memory", type=Size(), default="2GB", show_default=True, help="Per worker, of both engines.")
@click.option("--split-size", type=Size(), default="64MiB", show_default=True, help="Input of one map task.")
@click.option("--store", default="gfs://", show_default=True, help="Where MapReduce puts its intermediates.")
@click.option(
    "--replication", type=click.IntRange(min=1), multiple=True,
    help="Copies in that store; give it several times to see several. [default: 1 and 3]",
)  # fmt: skip
@click.option(
    "--scheduler", metavar="WHERE",
    help="Of the graph: threads or processes. Of both: a Dask scheduler's tcp://host:port. [default: by the job]",
)  # fmt: skip
@click.option("--cache", type=Size(), help="The graph keeps at most so much between rounds.")
@click.option("--baseline/--no-baseline", default=True, help="Also run it in one thread.", show_default=True)
@click.option("--format", "input_format", type=INPUT_FORMAT, help="Of the input. [default: by file name]")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def compare(
    job: str,
    inputs: tuple[str, ...],
    parameters: tuple[str, ...],
    named: tuple[str, ...],
    runs: int,
    report: str | None,
    markdown: str | None,
    json_file: str | None,
    trace: str | None,
    workers: int | None,
    partitions: int | None,
    memory: int,
    split_size: int,
    store: str,
    replication: tuple[int, ...],
    scheduler: str | None,
    cache: int | None,
    baseline: bool,
    input_format: str | None,
    quiet: bool,
) -> None:
    """Run JOB on INPUT as MapReduce and as a graph, and show what the difference costs.

    `mr compare a.json [b.json ...]` draws what was measured before, without running anything; several files of one job
    become one report, engine beside engine.
    """
    files = {"report": report, "markdown": markdown, "json": json_file, "trace": trace}
    for option, file in files.items():
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise click.UsageError(f"--{option}: the folder of {file} does not exist")
    if job.endswith(".json"):
        _draw_again([job, *inputs], files)
        return
    if replication and not store.startswith("gfs://"):
        raise click.UsageError(f"--replication belongs to gfs:// stores; the store is {store}")
    on_cluster = scheduler is not None and "://" in scheduler
    if scheduler is not None and not on_cluster and scheduler not in ("threads", "processes"):
        raise click.UsageError(
            f"--scheduler is threads, processes or an address such as tcp://host:8786, got {scheduler!r}"
        )
    if on_cluster and workers is not None:
        raise click.UsageError("--workers: both engines take all slots that the cluster has")
    if "-" in inputs:
        raise click.UsageError("standard input can be read only once: give compare a file")
    from jobs.catalog import find_job
    from jobs.cli.run import assign_inputs
    from jobs.compare import compare as run_both
    from mapreduce.options import Options

    found = find_job(job)
    values: dict[str, Any] = dict(split_parameters(parameters))
    if partitions is not None and "partitions" in found.parameters:
        values.setdefault("partitions", partitions)
    given = assign_inputs(found, inputs, split_parameters(named, "--input"))
    found.values_of(values)  # what is wrong with them had better be said before anything starts
    count = workers or len(os.sched_getaffinity(0))
    if scheduler is not None and on_cluster:
        from dag.on_cluster import count_slots

        count = count_slots(scheduler)
    options = Options(
        workers=count, memory_bytes=memory, partitions=partitions,
        split_bytes=split_size, store=store, input_format=input_format,
    )  # fmt: skip
    comparison = run_both(
        job, given, parameters=values, options=options, runs=runs,
        replications=replication or (1, 3), scheduler=scheduler, cache_bytes=cache, baseline=baseline,
        command=shlex.join(["mr", *sys.argv[1:]]),
        tell=(lambda line: None) if quiet else (lambda line: click.echo(line, err=True)),
    )  # fmt: skip
    _write(comparison, files)
    if not quiet:
        _print(comparison, report)


def _draw_again(paths: list[str], files: dict[str, str | None]) -> None:
    from jobs.report.combine import combine
    from jobs.report.stored import from_json

    stems = [Path(path).stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else paths
    comparison = combine([from_json(Path(path).read_bytes(), path) for path in paths], names)
    _write(comparison, files)
    _print(comparison, files["report"])


def _write(comparison: Comparison, files: dict[str, str | None]) -> None:
    from jobs.report import html, markdown, stored, trace

    for file, draw in (
        (files["report"], html.to_html),
        (files["markdown"], markdown.to_markdown),
        (files["json"], stored.to_json),
        (files["trace"], trace.to_trace),
    ):
        if file is not None:
            Path(file).write_text(draw(comparison), encoding="utf-8")


def _print(comparison: Comparison, report: str | None) -> None:
    from jobs.report.terminal import print_comparison

    print_comparison(comparison)
    if report is not None:
        click.echo(f"report: {report}", err=True)
