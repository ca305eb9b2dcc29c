"""The tables in README.md, made from ``benchmarks/results/*.json``: no number in it is typed by hand."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"
ORDER = (
    "sort",
    "sort_variable",
    "wordcount",
    "wordcount_records",
    "memory",
    "small_files",
    "startup",
    "store",
    "coordinator",
    "graph_gradient",
    "graph_kmeans",
    "graph_pagerank",
    "graph_sort",
    "graph_cache",
    "graph_overhead",
    "dataflow",
    "allreduce",
    "simulator",
    "slow_networks",
    "calibration",
)


#: What stands side by side: a benchmark, what the names of its timings begin with, and the work in words.
SIDE_BY_SIDE = (
    ("sort", "", "sort 1 GB, 10 M lines of 100 bytes"),
    ("sort_variable", "", "sort 1 GB, lines of any length"),
    ("graph_sort", "", "sort 1 GB, beside the graph engine"),
    ("wordcount", "", "count words, 500 MB"),
    ("wordcount_records", "500 MB, ", "count words by Python functions, 500 MB"),
    ("wordcount_records", "50 MB, ", "count words by Python functions, 50 MB"),
    ("graph_gradient", "CSV, ", "gradient, 10 iterations, 200 MB of CSV"),
    ("graph_gradient", "Parquet, ", "gradient, 10 iterations, the same as Parquet"),
    ("graph_kmeans", "", "kmeans, 8 centres, 10 rounds, 200 MB of CSV"),
    ("graph_kmeans", "gradient, ", "gradient, 10 iterations, on the points of kmeans"),
    ("graph_pagerank", "", "pagerank, 10 rounds, 10 MB of edges"),
)
OURS = {"mr": "mapreduce", "mr, mapreduce": "mapreduce", "mr, dag": "dag"}
NAMES = {
    "polars": "Polars", "polars, scan_lines": "Polars (scan_lines)", "duckdb": "DuckDB", "gnu sort": "GNU sort",
    "hadoop": "Hadoop", "dask-bag": "dask.bag", "pyspark": "PySpark", "dask": "Dask",
    "mr, dag that moves links": "`mr --engine dag` that moves links", "dask.dataframe": "dask.dataframe",
}  # fmt: skip


def render(results: Path) -> str:
    """Return what was measured as Markdown: all programs side by side, then every aim, those that are missed included."""
    documents: dict[str, dict[str, Any]] = {}
    for name in ORDER:
        path = results / f"{name}.json"
        if path.exists():
            documents[name] = json.loads(path.read_text())
    rows = [row for document in documents.values() for row in document["rows"]]
    met = sum(row["met"] for row in rows)
    return "\n".join(
        [
            "Seconds of whole processes, start-up included; the fastest of a row is bold.",
            "",
            "| work | `mr` | `mr --engine dag` | others |",
            "|---|---:|---:|---|",
            *side_by_side(documents),
            "",
            f"Each of these was given an aim before it was built. {met} of {len(rows)} are met so far:",
            "",
            "| work | `mr` | beside | measured | aim | |",
            "|---|---:|---|---|---|---|",
            *(_aim(row) for row in rows),
            "",
            *_how(list(documents.values())),
        ]
    )


def side_by_side(documents: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a row of the first table for each work that several programs did."""
    for name, prefix, work in SIDE_BY_SIDE:
        apart = tuple(each for other, each, _ in SIDE_BY_SIDE if other == name and each and each != prefix)
        timings = documents[name]["timings"] if name in documents else {}
        seconds = {
            key.removeprefix(prefix): timing["median_s"]
            for key, timing in timings.items()
            if key.startswith(prefix) and not key.startswith(apart)
        }
        if not seconds:
            continue
        fastest = min(seconds.values())
        said = {key: f"**{s:.2f}**" if s == fastest else f"{s:.2f}" for key, s in seconds.items()}
        ours = {OURS[key]: words for key, words in said.items() if key in OURS}
        others = sorted((s, key) for key, s in seconds.items() if key not in OURS)
        beside = ", ".join(f"{NAMES.get(key, key)} {said[key]}" for _, key in others)
        yield f"| {work} | {ours.get('mapreduce', '')} | {ours.get('dag', '')} | {beside} |"


def _aim(row: Mapping[str, Any]) -> str:
    met = "met" if row["met"] else "**not met**"
    cells = (row["work"], row["ours"], row["theirs"], row["measured"], row["wanted"], met)
    return "| " + " | ".join(cells) + " |"


def _how(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how and where all this was measured."""
    # Packages by machine: some may be added from run to run.
    machines: dict[str, dict[str, None]] = {}
    for m in (document["machine"] for document in documents):
        words = f"{m['cpu']}, {m['cores']} cores, {m['memory_bytes'] / 1e9:.0f} GB, Linux {m['kernel']}, Python {m['python']}"
        packages = machines.setdefault(words, {})
        packages.update(
            dict.fromkeys(
                f"{name} {version}" for name, version in m["packages"].items() if version and name != "mrdag"
            )
        )
    dates = sorted({document["date"] for document in documents})
    rounds = min((len(t["seconds"]) for d in documents for t in d["timings"].values()), default=0)
    return [
        f"Medians of at least {rounds} interleaved rounds, measured "
        + (dates[0] if dates[:1] == dates[-1:] else f"from {dates[0]} to {dates[-1]}" if dates else "never")
        + f". {'; '.join(', '.join([words, *machines[words]]) for words in sorted(machines))}.",
        "`python benchmarks/run.py` measures again and renders these tables; the single times and the command "
        "lines are in `benchmarks/results/`.",
    ]


def networks(document: Mapping[str, Any]) -> str:
    """Return the times on slow networks beside the simulator's as Markdown, the fastest first."""
    (few, of_few), (many, of_many) = document["deep"].items()
    other = {each["algorithm"]: each for each in of_many}
    lines = [
        f"| 100 Mbit/s | {_with_units(few)} | simulated | {_with_units(many)} | simulated |",
        "|---|---:|---:|---:|---:|",
    ]
    for each in sorted(of_few, key=lambda each: float(each["simulated_s"])):
        cells = [each["algorithm"]]
        for found in (each, other[each["algorithm"]]):
            cells += [f"{statistics.median(found['seconds']):.2f} s", f"{found['simulated_s']:.2f} s"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _with_units(case: str) -> str:
    return re.sub(r"(\d+)000000 bytes", r"\1 MB", case)


def predictions(document: Mapping[str, Any]) -> str:
    """Return how far predictions of this machine were off as Markdown."""
    lines = [
        "| ranks | of cases | median error | largest | within the aim | aim | spread from run to run |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for transport, words in (("shm", "shared memory"), ("tcp", "TCP")):
        for each in document["calibration"][transport]["errors"][:2]:
            lines.append(
                f"| {each['ranks']}, {words} | {each['cases']} | {each['median_error']:.0%} | {each['largest_error']:.0%} | "
                f"{each['within']} | {each['aim']:.0%} | ± {each['median_noise']:.0%} |"
            )
    return "\n".join(lines)


#: What stands in docs/collectives.md between markers of these names.
GUIDE = {"slow_networks": networks, "calibration": predictions}


def update_guide(guide: Path, results: Path) -> None:
    """Replace what stands between the markers in the guide of collectives by what was measured, where anything was.

    Raises:
        ValueError: the guide lacks a marker.
    """
    text = guide.read_text()
    for name, draw in GUIDE.items():
        path = results / f"{name}.json"
        if not path.exists():
            continue
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{guide.name} has no {begin} and {end} to put the table between")
        text = f"{before}{begin}\n{draw(json.loads(path.read_text()))}\n{end}{after}"
    guide.write_text(text)


def update(readme: Path, results: Path) -> None:
    """Replace what stands between the markers in ``readme``.

    Raises:
        ValueError: ``readme`` lacks a marker.
    """
    text = readme.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme.name} has no {BEGIN} and {END} to put the table between")
    readme.write_text(f"{before}{BEGIN}\n{render(results)}\n{END}{after}")
