"""The ``mr`` command: it translates words on a command line into calls, and errors into one line.

Commands load when they are used, so that ``mr --help`` does not wait for pyarrow.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

import click

# name: (module, attribute, one line for the help page)
COMMANDS = {
    "run": ("jobs.cli.run", "run", "Run a job on its inputs."),
    "compare": (
        "jobs.cli.compare",
        "compare",
        "Run a job by both engines and show what the difference costs.",
    ),
    "train": ("jobs.cli.train", "train", "Train a model on a table or a text."),
    "allreduce": ("jobs.cli.allreduce", "allreduce", "Sum over ranks by every algorithm, timed and checked."),
    "simulate": ("jobs.cli.simulate", "simulate", "Predict an all-reduce on machines that are not here."),
    "jobs": ("jobs.cli.inspect", "jobs", "List the job library and the models."),
    "explain": ("jobs.cli.inspect", "explain", "Show the plan of a job without running it."),
    "cat": ("jobs.cli.inspect", "cat", "Print an output, whatever its format."),
    "head": ("jobs.cli.inspect", "head", "Print the first records of an output."),
    "runs": ("jobs.cli.past_runs", "runs", "List past runs."),
    "log": ("jobs.cli.past_runs", "log", "Show the record and the logs of a run."),
    "clean": ("jobs.cli.past_runs", "clean", "Remove what killed runs left, and old runs' records."),
    "generate": ("jobs.cli.data", "generate", "Make input data of any size."),
    "validate": ("jobs.cli.data", "validate", "Check that an output is its input, sorted."),
    "fs": ("jobs.cli.fs", "fs", "Work with the chunk store."),
}


# Behind fsspec's remote filesystems; not all of their errors are OSErrors (no credentials, for one).
REMOTE_LIBRARIES = ("aiohttp", "azure", "botocore", "gcsfs", "google", "paramiko", "requests", "s3fs")


class LazyGroup(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mrdag")
def mr() -> None:
    """Run batch jobs as MapReduce over a chunk store, or as a graph in memory.

    \b
    mr run wordcount book.txt -o counts      run a job of the library
    mr cat counts                            see what it made
    mr jobs                                  what else there is
    mr compare wordcount book.txt            both ways, side by side
    mr train mlp points.csv                  a model by gradient descent
    mr allreduce --ranks 4                   a sum over processes, by every algorithm

    Sizes are bytes or have a unit: kB, MB and GB are powers of 1000, KiB, MiB and GiB of 1024.
    """


class Ended(SystemExit):
    """A signal asked for the end; not what ``sys.exit()`` in a function of a job raises."""


_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end(number: int, frame: Any) -> None:
    """End as the first signal asks; what comes after it must not disturb the tidying up."""
    for each in _ENDS:
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Ended(128 + number)


def main(arguments: list[str] | None = None) -> None:
    """Run ``mr``: exit 0, or 1 for a failure, 2 for a wrong command line, 130 for Ctrl-C."""
    # Perhaps --engine dag: threads of this process do the work.
    if arguments is None and "run" in sys.argv and not {"dag", "--engine=dag"}.isdisjoint(sys.argv):
        from mapreduce.tuning import restart_tuned

        restart_tuned()
    # `kill PID` and a terminal that closes end a run as Ctrl-C does, with its processes and files.
    for each in _ENDS:
        if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup has it, and shells in the background
            signal.signal(each, _end)
    try:
        code = mr.main(args=arguments, prog_name="mr", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; nothing was left behind", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away, as in `mr cat out | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        line = known_failure(error)
        if line is None:
            raise
        if "/stdin" in line:
            from mapreduce.driving import name_stdin

            line = name_stdin(line)
        click.echo(f"mr: {line}", err=True)
        text = getattr(error, "traceback_text", "")
        if text:
            click.echo(text.rstrip(), err=True)
        sys.exit(1)


def known_failure(error: Exception) -> str | None:
    """Return the one line for a failure of input, machine or job; None for a bug of ours."""
    kinds: list[Any] = [OSError]
    for module, name in (
        ("mapreduce.errors", "JobError"),
        ("gfs_sim.errors", "StoreError"),
        ("dag.errors", "GraphError"),
        ("jobs.report.model", "BadComparison"),
    ):
        if module in sys.modules:
            kinds.append(getattr(sys.modules[module], name))
    if (
        type(error).__module__ == "builtins"
        and isinstance(error, OSError)
        and error.strerror
        and error.filename
    ):
        return f"{error.filename}: {error.strerror}"
    if type(error).__module__.partition(".")[0] in REMOTE_LIBRARIES:
        return f"remote filesystem: {type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, tuple(kinds)):
        return " ".join(str(error).split()) or type(error).__name__
    return None
