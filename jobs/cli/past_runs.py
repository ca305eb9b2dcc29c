"""What is kept about past runs: ``mr runs``, ``mr log``, ``mr clean``."""

from __future__ import annotations

import json
from typing import Any

import click

from dag.units import show_seconds
from jobs.rounds import number_round
from jobs.sizes import say_count


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also those that mr compare made.")
@click.option("--json", "as_json", is_flag=True, help="As JSON lines.")
def runs(everything: bool, as_json: bool) -> None:
    """List past runs, the newest last."""
    from mapreduce.home import list_runs

    found = list_runs()
    shown = [record for record in found if everything or record.get("command", [])[1:2] != ["compare"]]
    if as_json:
        for record in shown:
            click.echo(json.dumps(record))
        return
    rows = [("run", "engine", "outcome", "time", "output")]
    rows += [
        (
            record["run"], record.get("engine", ""), record["outcome"],
            show_seconds(record["seconds"]) if "seconds" in record else "", record.get("output") or "",
        )
        for record in shown
    ]  # fmt: skip
    if shown:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for run, engine, outcome, time, output in rows:
            cells = (
                run.ljust(widths[0]),
                engine.ljust(widths[1]),
                outcome.ljust(widths[2]),
                time.rjust(widths[3]),
            )
            click.echo("  ".join((*cells, output)).rstrip())
    if left := len(found) - len(shown):
        click.echo(f"{say_count(left, 'run')} of mr compare left out; --all lists them too", err=True)


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="The whole record.")
def log(run_id: str, as_json: bool) -> None:
    """Show what a run did and what its workers printed.

    RUN is an identity, its unique beginning or end, or `last`.
    """
    from mapreduce.home import find_run

    folder = find_run(run_id)
    record_file = folder / "record.json"
    record: dict[str, Any] = {"run": folder.name}
    if record_file.exists():
        record = json.loads(record_file.read_text())
    if as_json:
        click.echo(json.dumps(record, indent=1))
        return
    click.echo(f"{record['run']}: {record.get('outcome', 'unfinished')}")
    if record.get("error"):
        click.echo(record["error"])
    if record.get("traceback"):
        click.echo(record["traceback"].rstrip())
    rounds: dict[str, int] = {}
    for stage in record.get("stages", []):
        maps, reduces = say_count(stage["maps"], "map"), say_count(stage["reduces"], "reduce")
        read = say_count(stage["records_in"], "record")
        click.echo(
            f"stage {number_round(stage['stage'], rounds)}: {maps}, {reduces}, {show_seconds(stage['seconds'])}, "
            f"{read} in, {stage['records_out']:,} out"
        )
        for attempt in stage["attempts"]:
            if attempt["outcome"] != "done":
                click.echo(
                    f"  {attempt['kind']} {attempt['task']}, attempt {attempt['attempt']} on worker "
                    f"{attempt['worker']}: {attempt['outcome']}: {attempt['message']}"
                )
    if record.get("scheduler"):
        click.echo(f"ran on {record['scheduler']}: {record['scheduler_reason']}")
    _print_operators(record.get("rows", []))
    for file in sorted(folder.glob("*.log")):
        text = file.read_text(errors="replace")
        if text:
            click.echo(f"--- {file.name}")
            click.echo(text.rstrip())


def _print_operators(rows: list[dict[str, Any]]) -> None:
    """Print what the operators of a graph did, and each task that came to nothing."""
    operators: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        operators.setdefault(row["stage"], []).append(row)
    for name, attempts in operators.items():
        spent = sum(row["end"] - row["start"] for row in attempts)
        # A value that was lost with its worker was computed again: one row per task counts.
        done = {row["task"]: row for row in attempts if row["outcome"] == "done"}
        records = say_count(sum(row["records_in"] for row in done.values()), "record")
        click.echo(
            f"operator {name}: {say_count(len(done), 'task')}, {show_seconds(spent)} of one core, {records} in"
        )
        for row in attempts:
            if row["outcome"] != "done":
                click.echo(
                    f"  task {row['task']}, attempt {row['attempt']} on worker {row['worker']}: "
                    f"{row['outcome']}: {row['message']}"
                )


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also the records and logs of all finished runs.")
def clean(everything: bool) -> None:
    """Remove the temporary folders that killed runs left and what they left in stores and beside outputs."""
    import shutil

    from mapreduce.home import home_folder
    from mapreduce.owed import remove_owed
    from mapreduce.scratch import remove_abandoned

    removed = remove_abandoned()
    click.echo(f"removed {say_count(len(removed), 'temporary folder')} of runs that were killed")
    owed = say_count(len(remove_owed()), "run")
    click.echo(f"removed the intermediates and unfinished outputs of {owed} that were killed")
    if everything:
        folder = home_folder() / "runs"
        entries = list(folder.iterdir()) if folder.is_dir() else []
        for entry in entries:
            shutil.rmtree(entry)
        click.echo(f"removed the records of {say_count(len(entries), 'run')}")
