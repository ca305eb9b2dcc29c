"""``mr run``: one job, one engine, one output, and what it took."""

from __future__ import annotations

import codecs
import gc
import importlib
import os
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.rounds import fold_middle, number_round, say_rounds
from jobs.sizes import format_size

from .options import INPUT_FORMAT, OUTPUT_FORMAT, Size, split_parameters

if TYPE_CHECKING:
    from rich.table import Table
    from typing_extensions import TypeIs

    from dag.events import TaskRow
    from jobs.engine import GraphResult
    from mapreduce import RunResult
    from mapreduce.stages import Job


@click.command()
@click.argument("job")
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("-o", "--output", required=True, metavar="URL", help="Folder to make; any fsspec URL.")
@click.option("-p", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of the job.")
@click.option("--input", "named", multiple=True, metavar="NAME=URL", help="An input by its name in the job.")
@click.option(
    "--workers", type=click.IntRange(min=0),
    help="Worker processes; 0 runs all in this one. [default: cores; of a cluster its slots]",
)  # fmt: skip
@click.option("--partitions", type=click.IntRange(min=1), help="Reduce tasks of stages that do not say.")
@click.option(
    "--memory", type=Size(), default="2GB", show_default=True,
    help="Per worker process; below 256MiB a combine of floats may give other last digits.",
)  # fmt: skip
@click.option("--split-size", type=Size(), default="64MiB", show_default=True, help="Input of one map task.")
@click.option("--store", default="gfs://", show_default=True, help="Where intermediates go; any fsspec URL.")
@click.option("--replication", type=click.IntRange(min=1), help="Copies of each chunk in a gfs:// store.")
@click.option("--format", "input_format", type=INPUT_FORMAT, help="Of the input. [default: by file name]")
@click.option("--output-format", type=OUTPUT_FORMAT, default="text", show_default=True)
@click.option("--compression", type=click.Choice(["gzip", "bz2", "zstd"]), help="Of the output's parts.")
@click.option(
    "--errors", type=click.Choice(["strict", "replace", "surrogateescape", "ignore"]), default="strict",
    show_default=True, help="Bytes that are not UTF-8, where a job takes text as str.",
)  # fmt: skip
@click.option("--delimiter", default="\\n", show_default=True, help="What ends a record of text.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds without a sign of life after which a worker is taken for dead.",
)
@click.option(
    "--engine", type=click.Choice(["mapreduce", "dag"]), default="mapreduce", show_default=True,
    help="Intermediates through the store, or in memory.",
)  # fmt: skip
@click.option(
    "--scheduler", metavar="WHERE",
    help="A Dask scheduler's tcp://host:port, or with --engine dag threads or processes. [default: this machine]",
)  # fmt: skip
@click.option("--cache", type=Size(), help="With --engine dag: keep at most so much between rounds.")
@click.option("--spill", is_flag=True, help="With --engine dag: values may go to disk when memory is short.")
@click.option("--overwrite", is_flag=True, help="Replace an existing output once the new one is complete.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write the run's record here.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def run(
    job: str,
    inputs: tuple[str, ...],
    output: str,
    parameters: tuple[str, ...],
    named: tuple[str, ...],
    workers: int | None,
    partitions: int | None,
    memory: int,
    split_size: int,
    store: str,
    replication: int | None,
    input_format: str | None,
    output_format: str,
    compression: str | None,
    errors: str,
    delimiter: str,
    timeout_s: float,
    engine: str,
    scheduler: str | None,
    cache: int | None,
    spill: bool,
    overwrite: bool,
    json_file: str | None,
    quiet: bool,
) -> None:
    """Run JOB on INPUT files, folders or patterns and publish its result.

    JOB is a name from the library (see `mr jobs`), file.py, file.py:job or module:job.
    INPUT may be - for standard input.
    """
    if not output:
        raise click.UsageError("-o/--output is empty; name the folder to make")
    if "" in inputs:
        raise click.UsageError("an input is empty; name a file, folder or pattern")
    if json_file is not None and not Path(json_file).absolute().parent.is_dir():
        raise click.UsageError(f"--json: the folder of {json_file} does not exist")
    if replication is not None and not store.startswith("gfs://"):
        raise click.UsageError(f"--replication belongs to gfs:// stores; the store is {store}")
    if engine != "dag" and (cache is not None or spill):
        raise click.UsageError("--cache and --spill go with --engine dag")
    on_cluster = scheduler is not None and "://" in scheduler
    if engine != "dag" and scheduler is not None and not on_cluster:
        raise click.UsageError(
            f"--scheduler {scheduler} goes with --engine dag; MapReduce takes the address of a Dask scheduler, "
            "such as tcp://host:8786"
        )
    if on_cluster and workers == 0:
        raise click.UsageError("--workers 0 runs the job in this process, --scheduler elsewhere: choose one")
    for name, option in (("store", "--store"), ("replication", "--replication"), ("timeout_s", "--timeout")):
        if engine == "dag" and was_given(name):
            raise click.UsageError(
                f"{option} goes with --engine mapreduce; a graph uses no store and no such workers"
            )
    for name in ("workers", "memory"):
        if engine == "dag" and on_cluster and was_given(name):
            raise click.UsageError(
                f"--{name}: a graph takes all slots of the cluster, with the memory that their owner gave them"
            )
    gc.disable()  # what imports make stays
    # These import little.  The first worker imports the rest while this process does the same.
    from mapreduce.pandas_import import put_off_pandas
    from mapreduce.processes import Pool
    from mapreduce.scratch import Scratch

    put_off_pandas()
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    with ExitStack() as stack:
        pool = None
        if engine == "mapreduce" and not on_cluster:
            scratch = stack.enter_context(Scratch()).folder
            pool = stack.enter_context(Pool(count, memory_bytes=memory, timeout_s=timeout_s, scratch=scratch))
            pool.start(1)
        import mapreduce
        from jobs.catalog import find_job
        from jobs.progress import Progress

        importlib.import_module("mapreduce.runner")
        put_off_pandas()
        gc.freeze()
        gc.enable()
        found = find_job(job)
        values: dict[str, Any] = split_parameters(parameters)
        if partitions is not None and "partitions" in found.parameters:
            values.setdefault("partitions", partitions)
        given = assign_inputs(found, inputs, split_parameters(named, "--input"))
        if scheduler is not None and on_cluster and workers is None:
            from dag.on_cluster import count_slots

            count = count_slots(scheduler)
        options = mapreduce.Options(
            workers=count, scheduler=scheduler if engine == "mapreduce" else None, memory_bytes=memory, timeout_s=timeout_s,
            partitions=partitions, split_bytes=split_size, store=store,
            store_options={} if replication is None else {"replication": replication},
            output_format=output_format, compression=compression, overwrite=overwrite,
            input_format=input_format, errors=errors, delimiter=parse_delimiter(delimiter),
        )  # fmt: skip
        progress = stack.enter_context(Progress(quiet=quiet))
        result: RunResult | GraphResult
        if engine == "mapreduce":
            result = mapreduce.run(
                found, *given, output=output, parameters=values, options=options, report=progress.report,
                pool=pool,
            )  # fmt: skip
        else:
            from dag.errors import TooLarge
            from jobs import engine as graphs
            from jobs.trial import measured_sizes
            from mapreduce.driving import source_of
            from mapreduce.publish import check_output

            scratch = stack.enter_context(Scratch()).folder
            sources = [source_of(each, options, scratch) for each in given]
            # Before a large input is tried, which may take a while.
            check_output(output, [url for source in sources for url in source.urls], options)
            try:
                result = graphs.run(
                    found, *sources, output=output, parameters=values, options=options, scheduler=scheduler,
                    cache_bytes=cache, spill=spill, report=progress.report_graph,
                    sizes=measured_sizes(found, sources, values, options),
                )  # fmt: skip
            except TooLarge as error:
                raise TooLarge(f"{error}; or through the store: {through_store()}") from None
    if json_file is not None:
        from mapreduce.home import find_run

        Path(json_file).write_text((find_run(result.run) / "record.json").read_text())
    if not quiet:
        summarise(result)
    if partitions is not None and not has_partitions(result, partitions) and "partitions" not in values:
        click.echo(
            f"--partitions {partitions}: no use, the stages of {found.name} have a number of their own",
            err=True,
        )


def parse_delimiter(text: str) -> bytes:
    r"""Return the bytes that ``--delimiter`` means, with the escapes of a bytes literal.

    >>> parse_delimiter(r"\n"), parse_delimiter(r"\x00|"), parse_delimiter("é")
    (b'\n', b'\x00|', b'\xc3\xa9')

    Raises:
        click.UsageError: it is empty or an escape is not whole.
    """
    if not text:
        raise click.UsageError("--delimiter is empty; leave it out for one record per line")
    try:
        return codecs.escape_decode(text.encode())[0]
    except ValueError as error:
        raise click.UsageError(f"--delimiter {text!r}: {error}") from None


def assign_inputs(job: Job, inputs: tuple[str, ...], named: dict[str, str]) -> list[Any]:
    """Give each dataset of the job its URLs: the named ones first, the others in order.

    A job with one dataset takes all URLs; with several, each takes one.
    """
    wanted = list(job.input_names)
    for name in named:
        if name not in wanted:
            raise click.UsageError(f"job {job.name!r} has no input {name!r}; it has: {', '.join(wanted)}")
    free = [name for name in wanted if name not in named]
    if len(free) == 1 and inputs:
        assigned: dict[str, Any] = {free[0]: list(inputs)}
    elif len(free) == len(inputs):
        assigned = dict(zip(free, inputs, strict=True))
    else:
        names = ", ".join(free) or "none"
        raise click.UsageError(f"job {job.name!r} takes an input for each of: {names}; got {len(inputs)}")
    return [named.get(name) or assigned[name] for name in wanted]


def summarise(result: RunResult | GraphResult) -> None:
    """Print what the run did and where its output lies."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=160)  # a pipe has no width; do not fold the table
    console.print(f"[italic]{table_title(result)}[/italic]", highlight=False)
    table = task_table(result) if is_graph(result) else stage_table(result)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        click.echo(line.rstrip(), err=True)
    if is_graph(result) and result.scheduler:
        console.print(f"ran on {result.scheduler}: {result.scheduler_reason}", highlight=False, markup=False)
    for name, value in sorted(result.counters.items()):
        console.print(f"  {name}: {value:,}", highlight=False)
    console.print(
        f"output: {result.output}    (mr cat {result.output}, mr log {result.run})", highlight=False
    )


def has_partitions(result: RunResult | GraphResult, count: int) -> bool:
    """Tell whether a stage has so many partitions."""
    if is_graph(result):
        ops = (node.op for ran in result.graphs for node in ran.logical.nodes)
        return any(getattr(op, "partitions", None) == count for op in ops)
    return any(stage.reduces == count for stage in result.stages)


def was_given(parameter: str) -> bool:
    """Tell whether a parameter was on the command line, not left at its default."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is not click.core.ParameterSource.DEFAULT


def through_store() -> str:
    """Return this command line for the other engine."""
    words: list[str] = []
    given = iter(sys.argv[1:])
    for word in given:
        name, equals, value = word.partition("=")
        if name == "--spill":
            continue
        if name in ("--engine", "--scheduler", "--cache"):
            value = value if equals else next(given, "")
            if name == "--scheduler" and "://" in value:  # MapReduce runs there too
                words += [name, value]
            continue
        words.append(word)
    return shlex.join(["mr", *words, "--engine", "mapreduce"])


def is_graph(result: RunResult | GraphResult) -> TypeIs[GraphResult]:
    """Tell which engine a result is of, without importing either."""
    return hasattr(result, "graphs")


def table_title(result: RunResult | GraphResult) -> str:
    """Return the job and the time that it took."""
    from dag.units import show_seconds

    title = f"{result.job}: {show_seconds(result.seconds)}"
    if not is_graph(result):
        return title
    count = len(result.graphs)
    graphs = "one graph" if count == 1 else f"{count} graphs"
    return f"{title} in {graphs}, intermediates in memory"


def task_table(result: GraphResult) -> Table:
    """Return what a graph's operators did, a row for each; of many rounds one for all in the middle."""
    from rich.table import Table

    from dag.units import show_seconds

    table = Table(box=None, pad_edge=False)
    table.add_column("operator")
    for column in ("tasks", "records in", "bytes read", "shuffled", "made", "time of one core"):
        table.add_column(column, justify="right")
    rows: dict[str, list[TaskRow]] = {}
    for row in result.rows:
        rows.setdefault(row.stage, []).append(row)
    all_done = result.done
    for names in fold_middle(list(rows)):
        done = [row for row in all_done if row.stage in names]
        stage = names[0]
        table.add_row(
            say_rounds(names),
            str(len(done)),
            f"{sum(row.records_in for row in done):,}",
            format_size(sum(row.bytes_in for row in done)),
            format_size(sum(row.shuffle_bytes for row in done)),
            "output" if stage.endswith(".write") else format_size(sum(row.bytes_out for row in done)),
            show_seconds(sum(row.end - row.start for name in names for row in rows[name])),
        )
    return table


def stage_table(result: RunResult) -> Table:
    """Return what the stages of a MapReduce run did, a row for each; of many rounds one for all in the middle."""
    from rich.table import Table

    from dag.units import show_seconds

    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    columns = "maps", "reduces", "records in", "bytes in", "shuffled", "records out", "bytes out", "time"
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("written to")
    rounds: dict[str, int] = {}
    stages = {number_round(stage.stage, rounds): stage for stage in result.stages}
    for names in fold_middle(list(stages)):
        some = [stages[name] for name in names]
        table.add_row(
            say_rounds(names),
            str(sum(stage.maps for stage in some)),
            str(sum(stage.reduces for stage in some)),
            f"{sum(stage.records_in for stage in some):,}",
            format_size(sum(stage.read_bytes for stage in some)),
            format_size(sum(stage.shuffle_bytes for stage in some)),
            f"{sum(stage.records_out for stage in some):,}",
            format_size(sum(stage.written_bytes for stage in some)),
            show_seconds(sum(stage.seconds for stage in some)),
            "store" if some[0].through_store else "output",
        )
    return table
