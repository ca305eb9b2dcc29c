"""``mr allreduce``: every way of summing over ranks, on this machine, beside what the machine could do."""

from __future__ import annotations

import datetime
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

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
        try:
            return tuple(dict.fromkeys(parse_size(word) for word in value.split(",")))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option(
    "--algorithm", "said", default="all", show_default=True, help="all, auto, or names with commas."
)
@click.option("--ranks", type=click.IntRange(min=1), default=4, show_default=True, help="Processes.")
@click.option(
    "--bytes", "sizes", type=Sizes(), default="1KB,1MB,16MB", show_default=True, help="Of each rank."
)
@click.option("--transport", type=click.Choice(["shm", "tcp"]), help="[default: shm; auto with --scheduler]")
@click.option("--dtype", default="float32", show_default=True, help="float32, float16, bfloat16, int64, ...")
@click.option("--op", default="sum", show_default=True, help="sum, mean, min, max, prod, or FILE.py:NAME.")
@click.option(
    "--runs", type=click.IntRange(min=1), help="Timed, after 5 to warm up. [default: 20 to 5, by size]"
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
