"""Measure ``mr`` beside what people use today: ``python benchmarks/run.py [NAME...]``, all without a name.

``python benchmarks/run.py table`` renders the tables in README.md and docs/collectives.md from the results.

``pip install -e '.[bench]'`` installs the peers; Hadoop's sort and PySpark also need a JDK, GNU sort the ``sort`` command.
Inputs are generated once into ``--dir`` (about 15 GB with the outputs); results go to ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from allreduce import allreduce
from calibration import calibration
from counting import wordcount, wordcount_records
from dataflow import dataflow
from graph_engine import graph_cache, graph_overhead, graph_sort
from graphs import graph_gradient, graph_kmeans, graph_pagerank
from measuring import HERE, RESULTS
from running import coordinator, simulator, startup, store
from slow_networks import slow_networks
from sorting import memory, small_files, sort, sort_variable
from table import update, update_guide

BENCHMARKS = {
    each.__name__: each
    for each in (
        sort,
        sort_variable,
        wordcount,
        wordcount_records,
        memory,
        small_files,
        startup,
        store,
        coordinator,
        graph_gradient,
        graph_kmeans,
        graph_pagerank,
        graph_sort,
        graph_cache,
        graph_overhead,
        simulator,
        calibration,
        dataflow,
        allreduce,
        slow_networks,
    )
}


def main() -> None:
    """Run the benchmarks that were named."""
    listing = "\n".join(f"  {name:<18} {(each.__doc__ or '').strip()}" for name, each in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nbenchmarks:\n{listing}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*BENCHMARKS, "table", []])
    parser.add_argument(
        "--dir", type=Path, default=Path("bench-data"), help="inputs and outputs [bench-data]"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program, interleaved [3]")
    parser.add_argument("--peers-only", action="store_true", help="leave mr out, and keep no result")
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or BENCHMARKS:
        if name == "table":
            update(HERE.parent / "README.md", RESULTS)
            update_guide(HERE.parent / "docs" / "collectives.md", RESULTS)
            continue
        benchmark = BENCHMARKS[name]
        print(f"{name}: {(benchmark.__doc__ or '').strip()}", flush=True)
        benchmark(arguments.dir.resolve(), arguments.rounds, not arguments.peers_only)


if __name__ == "__main__":
    main()
