"""``mr simulate``: what would happen on machines that no one here has."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

import click

from .allreduce import RANKS, Sizes
from .options import Size

# As in dag.collectives, which is not imported here so that `--help` does not load numpy; a test compares them.
CHUNKS = click.IntRange(min=1, max=1 << 20)
NETWORKS = ("summit", "ethernet-1g", "ethernet-10g", "ethernet-100g")
ALGORITHMS = (
    "central", "sharded", "direct", "direct_whole", "ring", "tree", "double_tree", "halving", "doubling", "machine_tree",
    "two_level",
)  # fmt: skip

_NUMBER = r"\s*(\d+(?:\.\d*)?(?:e[-+]?\d+)?)\s*"
#: Beyond these nothing is a network, and what is made of them would at last be no number.
_MOST_S = 1e6
_LEAST_RATE, _MOST_RATE = 1.0, 1e18
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}


class Time(click.ParamType[float]):
    """Seconds, such as ``2us``."""

    name = "time"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N[ns|us|ms|s]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(f"{_NUMBER}({'|'.join(_UNITS_S)})", value, re.IGNORECASE | re.ASCII)
        if match is None:
            self.fail(
                f"{value!r} is no time; write a number and a unit, as in 300ns, 2us, 1.5ms or 0.2s",
                param,
                ctx,
            )
        seconds = float(match[1]) * _UNITS_S[match[2].lower()]
        if seconds > _MOST_S:
            self.fail(f"{value!r} is too long a time; the longest is {_MOST_S:.0f}s", param, ctx)
        return seconds


class Rate(click.ParamType[float]):
    """Bytes per second, such as ``12.5GB/s`` or ``100Gbit/s``."""

    name = "rate"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N[kB|MB|GB|Mbit|Gbit]/s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(_NUMBER + r"([kMGT]?)(i?)(B|bit)(?:/s|ps)", value, re.IGNORECASE | re.ASCII)
        rate = 0.0
        if match is not None:
            base = 1024 if match[3] else 1000
            rate = float(match[1]) * base ** " kmgt".index(match[2].lower() or " ")
            rate /= 8 if match[4].lower() == "bit" else 1
        if rate <= 0:
            self.fail(
                f"{value!r} is no rate; write it as 12.5GB/s, 100Gbit/s or 100Mbit/s, above 0", param, ctx
            )
        if not _LEAST_RATE <= rate <= _MOST_RATE:
            self.fail(f"{value!r} is no rate of a link; the range is 1B/s to 1000000TB/s", param, ctx)
        return rate


class Factor(click.FloatRange):
    """A number in a range, which NaN is not."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        factor = float(super().convert(value, param, ctx))
        if math.isnan(factor):
            self.fail(f"{value!r} is no number", param, ctx)
        return factor


#: Far more than there is of anything, and small enough for a machine word.
_COUNT = click.IntRange(min=1, max=2**31)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def simulate() -> None:
    """Time plans on networks of any size."""


@simulate.command(epilog="Networks: " + ", ".join(NETWORKS) + ".  Algorithms: " + ", ".join(ALGORITHMS) + ".")
@click.option("--algorithm", "said", default="all", show_default=True, help="all, or names with commas.")
@click.option("--ranks", type=RANKS, default=96, show_default=True)
@click.option("--bytes", "sizes", type=Sizes(), default="64MB", show_default=True, help="Of each rank.")
@click.option(
    "--network", metavar="NAME", help=f"{', '.join(NETWORKS)}. [default: by --latency and --bandwidth]"
)
@click.option("--latency", type=Time(), help="Of a message between machines.")
@click.option("--bandwidth", type=Rate(), help="Of a machine's link, each way; its ranks share it.")
@click.option("--inside-latency", type=Time(), help="Between ranks of a machine. [default: as --latency]")
@click.option(
    "--inside-bandwidth", type=Rate(), help="Of each rank inside its machine. [default: as --bandwidth]"
)
@click.option("--ranks-per-node", type=_COUNT, help="Ranks of a machine. [default: 1]")
@click.option("--start", type=Time(), help="Before the first message of a collective. [default: 0s]")
@click.option("--overhead", type=Time(), help="Of the sender for each message. [default: 0s]")
@click.option("--reduce", "reduce_rate", type=Rate(), help="Folding what arrived. [default: no time]")
@click.option("--cores", type=_COUNT, help="Of a machine, shared by its ranks.")
@click.option("--rack", type=_COUNT, help="Machines of a rack, which share a link to the core.")
@click.option(
    "--oversubscription", type=Factor(min=1e-6, max=1e6), help="Of that link: 4 is a quarter of its ports."
)  # fmt: skip
@click.option("--buffer", type=Size(), help="Of a switch port; senders at once beyond it wait for a timeout.")
@click.option("--window", type=Size(), help="What a sender sends before it waits. [default: 64KiB]")
@click.option("--timeout", type=Time(), help="What an overrun costs. [default: 200ms]")
@click.option("--chunks", type=CHUNKS, help="Of trees. [default: near the best]")
@click.option("--itemsize", type=_COUNT, default=4, show_default=True, help="Bytes of an element.")
@click.option("--json", "as_json", is_flag=True, help="Print numbers for programs.")
def allreduce(
    said: str, ranks: int, sizes: tuple[int, ...], network: str | None, chunks: int | None, itemsize: int, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Predict how long an all-reduce takes, by every algorithm.

    \b
    mr simulate allreduce --ranks 24576 --bytes 8 --network summit --algorithm ring,machine_tree
    mr simulate allreduce --ranks 64 --latency 20us --bandwidth 10Gbit/s --buffer 512kB
    """
    from dataclasses import asdict

    from jobs.simulate import network_for, simulate_allreduce

    given = {name: value for name, value in options.items() if value is not None}
    if network is None and not {"latency", "bandwidth"} <= given.keys():
        raise click.UsageError(
            f"say which network: --network {'|'.join(NETWORKS)}, or your own by --latency and --bandwidth"
        )
    changes = changes_of(given, own=network is None)
    met = {}

    def network_of(algorithm: str) -> Any:
        met[algorithm] = network_for(network, algorithm, racked(changes, network, algorithm))
        return met[algorithm]

    tell = (lambda line: click.echo(f"  {line}", err=True)) if sys.stderr.isatty() else (lambda line: None)
    rows, notes = simulate_allreduce(
        said, ranks, sizes, network=network_of, itemsize=itemsize, chunks=chunks, tell=tell
    )
    if as_json:
        facts = [{**asdict(row), "algbw": row.algbw, "busbw": row.busbw} for row in rows]
        said_networks = {name: asdict(each) for name, each in met.items()}
        click.echo(
            json.dumps(
                {
                    "schema_version": 1,
                    "rows": facts,
                    "network": network,
                    "networks": said_networks,
                    "notes": notes,
                },
                indent=1,
            )
        )
        return
    print_rows(rows, network)
    for note in notes:
        click.echo(note)


def changes_of(given: Mapping[str, Any], *, own: bool) -> dict[str, Any]:
    """Return what the options say, by the names of ``jobs.simulate.network_for``.

    Raises:
        click.UsageError: an option goes with another one, which is missing.
    """
    from dag.collectives import Incast

    needs = {"window": "buffer", "timeout": "buffer", "oversubscription": "rack", "rack": "oversubscription"}
    for option, needed in needs.items():
        if option in given and needed not in given:
            raise click.UsageError(f"--{option} goes with --{needed}")
    changes: dict[str, Any] = {}
    for option, name in (
        ("ranks_per_node", "per_machine"), ("start", "start_s"), ("overhead", "overhead_s"), ("cores", "cores")
    ):  # fmt: skip
        if option in given:
            changes[name] = given[option]
    if "reduce_rate" in given:
        changes["reduce_s_per_byte"] = 1 / given["reduce_rate"]
    for link, prefix in (("across", ""), ("inside", "inside_")):
        latency_s = given.get(f"{prefix}latency", given.get("latency") if own else None)
        rate = given.get(f"{prefix}bandwidth", given.get("bandwidth") if own else None)
        if latency_s is not None:
            changes[f"{link}_latency_s"] = latency_s
        if rate is not None:
            changes[f"{link}_s_per_byte"] = 1 / rate
    if "buffer" in given:
        changes["incast"] = Incast(
            buffer_bytes=given["buffer"], window_bytes=given.get("window", 65_536), timeout_s=given.get("timeout", 0.2)
        )  # fmt: skip
    if "rack" in given:
        changes["rack"] = (given["rack"], given["oversubscription"])
    return changes


def racked(changes: Mapping[str, Any], network: str | None, algorithm: str) -> dict[str, Any]:
    """Return the changes with the link of a rack, whose speed goes by that of its machines' ports."""
    from dag.collectives import Link, Racks
    from jobs.simulate import network_for

    plain = {name: value for name, value in changes.items() if name != "rack"}
    if "rack" in changes:
        machines, oversubscription = changes["rack"]
        across = network_for(network, algorithm, plain).across
        plain["racks"] = Racks(
            machines=machines,
            link=Link(latency_s=0.0, s_per_byte=across.s_per_byte * oversubscription / machines),
        )
    return plain


def print_rows(rows: list[Any], network: str | None) -> None:
    """Print a table for each size, the fastest first."""
    from dag.units import show_time
    from jobs.sizes import format_size, say_count

    head = ("algorithm", "time", "algbw", "busbw", "rounds", "timeouts", "chunks")
    sizes: dict[int, list[Any]] = {}
    for row in rows:
        sizes.setdefault(row.nbytes, []).append(row)
    for nbytes, some in sizes.items():
        click.echo(
            f"all-reduce of {format_size(nbytes)} over {say_count(some[0].ranks, 'rank')}, {network or 'own network'}"
        )
        lines = [
            (
                row.algorithm, show_time(row.seconds), f"{format_size(row.algbw)}/s", f"{format_size(row.busbw)}/s",
                f"{row.rounds:,}", f"{row.timeouts:,}" if row.timeouts else "-", str(row.chunks or "-"),
            )
            for row in sorted(some, key=lambda row: row.seconds)
        ]  # fmt: skip
        widths = [max(len(line[at]) for line in [head, *lines]) for at in range(len(head))]
        for line in [head, *lines]:
            first, *others = (
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            click.echo("  ".join([first, *others]))
        click.echo()
