"""The table in README.md, made from ``benchmarks/results/*.json``: no number in it is typed by hand."""

from __future__ import annotations

import json
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
)


def render(results: Path) -> str:
    """Return the table of all results as Markdown, those that fall short included."""
    documents: list[dict[str, Any]] = []
    for name in ORDER:
        path = results / f"{name}.json"
        if path.exists():
            documents.append(json.loads(path.read_text()))
    lines = ["| work | `mr` | beside | measured | wanted | |", "|---|---|---|---|---|---|"]
    for document in documents:
        for row in document["rows"]:
            met = "met" if row["met"] else "**not met**"
            cells = (row["work"], row["ours"], row["theirs"], row["measured"], row["wanted"], met)
            lines.append("| " + " | ".join(cells) + " |")
    machines = {
        f"{m['cpu']}, {m['cores']} cores, {m['memory_bytes'] / 1e9:.0f} GB, Linux {m['kernel']}, "
        f"Python {m['python']}, "
        + ", ".join(
            f"{name} {version}" for name, version in m["packages"].items() if version and name != "mrdag"
        )
        for m in (document["machine"] for document in documents)
    }
    dates = sorted({document["date"] for document in documents})
    rounds = min((len(t["seconds"]) for d in documents for t in d["timings"].values()), default=0)
    lines += [
        "",
        f"Medians of at least {rounds} interleaved rounds of whole processes, measured "
        + (dates[0] if dates[:1] == dates[-1:] else f"from {dates[0]} to {dates[-1]}" if dates else "never")
        + f". {'; '.join(sorted(machines))}.",
        "`python benchmarks/run.py` measures again and renders this table; the single times and the command "
        "lines are in `benchmarks/results/`.",
    ]
    return "\n".join(lines)


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
