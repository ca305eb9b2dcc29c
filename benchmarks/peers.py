"""The same work by other tools, one process each: ``python peers.py polars-sort INPUT OUTPUT``.

Every function writes what ``mr`` writes: the sorted lines byte for byte, or ``word TAB count`` lines in any
order. Each is the fastest way found to say it in its tool, with two threads or processes
(POLARS_MAX_THREADS=2 is set by the caller).  Separators and quotes are set to what cannot occur in the
data, so that a line stays one column.
"""

from __future__ import annotations

import sys

DUCKDB_LINES = (
    "read_csv('{}', columns={{'line': 'VARCHAR'}}, header=false, auto_detect=false, "
    "delim='\t', quote='', escape='')"
)
DUCKDB_OUTPUT = "(format csv, header false, delimiter '\t', quote '', escape '')"


def polars_sort(source: str, output: str) -> None:
    """Sort lines with Polars' streaming engine."""
    import polars as pl

    lines = pl.scan_csv(source, has_header=False, separator="\t", quote_char=None, schema={"line": pl.String})
    lines.sort("line").sink_csv(output, include_header=False, separator="\t", quote_style="never")


def polars_lines_sort(source: str, output: str) -> None:
    """Sort lines with Polars' streaming engine and its reader of plain lines."""
    import polars as pl

    lines = pl.scan_lines(source)
    lines.sort("line").sink_csv(output, include_header=False, separator="\t", quote_style="never")


def polars_wordcount(source: str, output: str) -> None:
    """Count words with Polars' streaming engine."""
    import polars as pl

    words = pl.scan_lines(source, name="word").select(pl.col("word").str.split(" ").explode())
    counts = words.group_by("word").len()
    counts.sink_csv(output, include_header=False, separator="\t", quote_style="never")


def duckdb_sort(source: str, output: str) -> None:
    """Sort lines with DuckDB."""
    import duckdb

    duckdb.execute("set threads = 2")
    duckdb.execute(f"copy (from {DUCKDB_LINES.format(source)} order by line) to '{output}' {DUCKDB_OUTPUT}")


def duckdb_wordcount(source: str, output: str) -> None:
    """Count words with DuckDB."""
    import duckdb

    duckdb.execute("set threads = 2")
    duckdb.execute("set preserve_insertion_order = false")
    words = f"select unnest(string_split(line, ' ')) as word from {DUCKDB_LINES.format(source)}"
    duckdb.execute(f"copy (select word, count(*) from ({words}) group by word) to '{output}' {DUCKDB_OUTPUT}")


def dask_bag_wordcount(source: str, output: str) -> None:
    """Count words with a dask bag on two processes."""
    import dask.bag

    lines = dask.bag.read_text(source, blocksize="16MiB")
    counts = lines.str.split().flatten().frequencies().compute(scheduler="processes", num_workers=2)
    with open(output, "w", encoding="utf-8") as file:
        file.writelines(f"{word}\t{count}\n" for word, count in counts)


PEERS = {
    "polars-sort": polars_sort,
    "polars-lines-sort": polars_lines_sort,
    "polars-wordcount": polars_wordcount,
    "duckdb-sort": duckdb_sort,
    "duckdb-wordcount": duckdb_wordcount,
    "dask-bag-wordcount": dask_bag_wordcount,
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](*sys.argv[2:])
