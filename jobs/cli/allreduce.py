"""``mr allreduce``: every way of summing over ranks, on this machine, beside what the machine could do."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from jobs.sizes import parse_size


class Sizes(click.ParamType[tuple[int, ...]]):
    """Sizes with commas, such as ``1KB,64MB``."""

    name = "sizes"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "SIZE,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        sizes: list[int] = []
        for word in value.split(","):
            try:
                size = parse_size(word)
            except ValueError as error:
                self.fail(str(error), param, ctx)
            if size in sizes:
                self.fail(f"{word.strip()!r} is given twice: give each size once", param, ctx)
            sizes.append(size)
        return tuple(sizes)


# As in dag.collectives, which is not imported here so that `--help` does not load numpy; a test compares them.
RANKS = click.IntRange(min=1, max=1 << 22)


@click.command()
@click.option(
    "--algorithm", "said", default="all", show_default=True, help="all, auto, or names with commas."
)
@click.option(
    "--ranks",
    type=RANKS,
    default=4,
    show_default=True,
    help="Processes; with --calibrate 2 to so many [8].",
)
@click.option(
    "--bytes", "sizes", type=Sizes(), default="1KB,1MB,16MB", show_default=True, help="Of each rank."
)
@click.option("--transport", type=click.Choice(["shm", "tcp"]), help="[default: shm; auto with --scheduler]")
@click.option("--dtype", default="float32", show_default=True, help="float32, float16, bfloat16, int64, ...")
@click.option("--op", default="sum", show_default=True, help="sum, mean, min, max, prod, or FILE.py:NAME.")
@click.option(
    "--runs",
    type=click.IntRange(min=1, max=1_000_000),
    help="Timed, after 5 to warm up. [default: 20 to 5, by size; with --calibrate 50 or 10]",
)
@click.option(
    "--arrays", type=click.Choice(["own", "empty"]), default="own", show_default=True,
    help="As callers have them, or of comm.empty(), in shared memory.",
)  # fmt: skip
@click.option("--scheduler", metavar="tcp://HOST:PORT", help="Ranks on the workers of a Dask cluster.")
@click.option(
    "--calibrate", "calibrating", is_flag=True, help="Measure this machine and predict all algorithms."
)
@click.option("--json", "json_file", metavar="FILE", help="Write what was measured.")
@click.option("--report", metavar="FILE", help="Write plots and tables: one HTML file that opens offline.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.pass_context
def allreduce(
    context: click.Context,
    said: str,
    ranks: int,
    sizes: tuple[int, ...],
    transport: str | None,
    dtype: str,
    op: str,
    runs: int | None,
    arrays: str,
    scheduler: str | None,
    calibrating: bool,
    json_file: str | None,
    report: str | None,
    quiet: bool,
) -> None:
    """Sum arrays over ranks, for real, by every algorithm, and compare time, bytes and rounds.

    Each result is compared with NumPy's. The names of the algorithms: `mr simulate allreduce --help`, or docs/collectives.md.
    """
    for option, file in (("--json", json_file), ("--report", report)):
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise click.UsageError(f"{option}: the folder of {file} does not exist")
    if calibrating:
        given = {
            name
            for name in context.params
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        for name in sorted(given & _NOT_CALIBRATED.keys()):
            raise click.UsageError(
                f"{_NOT_CALIBRATED[name]} does not go with --calibrate, which measures a set of its own"
            )
        _calibrate(
            transport or "shm",
            ranks if "ranks" in given else None,
            sizes if "sizes" in given else None,
            runs,
            json_file,
            quiet,
        )
        return
    from jobs.allreduce import Wanted, names_of, operator_of, run

    chosen = operator_of(op)
    names, note = names_of(said, ranks, chosen)
    wanted = Wanted(
        algorithms=names, ranks=ranks, sizes=sizes, transport=transport or ("auto" if scheduler else "shm"), dtype=dtype,
        op=chosen, runs=runs, own=arrays == "own", scheduler=scheduler, notes=(note,) if note else (),
    )  # fmt: skip
    measured = run(wanted, tell_of(quiet))
    from jobs.allreduce import to_json
    from jobs.allreduce_report import print_measured, to_html

    about = facts()
    if json_file is not None:
        Path(json_file).write_text(json.dumps(to_json(measured, **about), indent=1) + "\n", encoding="utf-8")
    if report is not None:
        page = to_html(measured, **about)
        Path(report).write_text(page, encoding="utf-8")
    if not quiet:
        print_measured(measured)
        for what, file in (("measured", json_file), ("report", report)):
            if file is not None:
                click.echo(f"{what}: {file}", err=True)


#: What --calibrate decides itself.
_NOT_CALIBRATED = {
    "said": "--algorithm", "dtype": "--dtype", "op": "--op", "arrays": "--arrays", "scheduler": "--scheduler",
    "report": "--report",
}  # fmt: skip


def _calibrate(
    transport: str,
    ranks: int | None,
    sizes: tuple[int, ...] | None,
    runs: int | None,
    json_file: str | None,
    quiet: bool,
) -> None:
    from dag.collectives import algorithms
    from jobs import allreduce_calibrate as calibrating
    from jobs.allreduce import Wanted, check

    most = max(calibrating.RANKS) if ranks is None else ranks
    check(Wanted(algorithms=tuple(algorithms()), ranks=most, sizes=sizes or calibrating.SIZES))
    cores = len(os.sched_getaffinity(0))
    cases = calibrating.measure_machine(
        transport,
        ranks=calibrating.RANKS if ranks is None else range(2, ranks + 1),
        sizes=sizes or calibrating.SIZES,
        runs=runs,
        tell=tell_of(quiet),
    )
    machines, predicted = calibrating.predict_all(cases, cores=cores, transport=transport)
    if json_file is not None:
        found = calibrating.calibration_to_json(machines, predicted, **facts(), transport=transport)
        Path(json_file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not quiet:
        calibrating.print_calibration(machines, predicted)
        if json_file is not None:
            click.echo(f"measured: {json_file}", err=True)


def tell_of(quiet: bool) -> Any:
    """Return what prints a line of progress."""
    return (lambda line: None) if quiet else (lambda line: click.echo(line, err=True))


def facts() -> dict[str, Any]:
    """Return command, time, machine and versions."""
    import platform
    from importlib import metadata

    from jobs.machine import describe_machine

    return {
        "command": shlex.join(["mr", *sys.argv[1:]]),
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "versions": {
            "Python": platform.python_version(), **{name: metadata.version(name) for name in ("mrdag", "numpy")}
        },
    }  # fmt: skip
