"""``mr generate`` makes input, ``mr validate`` judges the output of a sort."""

from __future__ import annotations

import click

from jobs.sizes import format_size, say_count

from .options import FormatName, Size

# As in jobs.generate, which is not imported here so that `--help` does not load numpy; a test compares them.
KINDS = ("text", "records", "logs", "points", "graph")
LINES = ("fixed", "variable")
FORMAT = FormatName("text", "csv", "tsv", "jsonl", "parquet", "arrow", "records", reads=True)


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("path")
@click.option(
    "--size",
    type=Size(),
    default="100MB",
    show_default=True,
    help="About so many bytes; 1MB is 10**6, 1MiB 2**20.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Same seed, same bytes."
)
@click.option("--lines", type=click.Choice(LINES), help="Length of records. [default: fixed, 100 bytes]")
@click.option("--features", type=click.IntRange(min=1), help="Coordinates of points. [default: 10]")
@click.option("--nodes", type=click.IntRange(min=2, max=2**31 - 1), help="Of a graph. [default: by size]")
@click.option("--overwrite", is_flag=True, help="Replace PATH if it exists.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def generate(
    kind: str,
    path: str,
    size: int,
    seed: int,
    lines: str | None,
    features: int | None,
    nodes: int | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Make a file of input data at PATH, any fsspec URL.

    \b
    text     lines of 10 to 12 words, frequencies as in Zipf's law, UTF-8
    records  100-byte records in gensort's ASCII layout, to be sorted
    logs     access logs in Apache's combined format, in order of time
    points   labelled points for a classifier: CSV, or Parquet if PATH ends so
    graph    edges "source TAB target" with power-law degrees

    A PATH that ends in .gz, .bz2 or .zst is compressed.
    """
    for option, value, owner in (
        ("lines", lines, "records"),
        ("features", features, "points"),
        ("nodes", nodes, "graph"),
    ):
        if value is not None and kind != owner:
            raise click.UsageError(f"--{option} is for {owner}, not for {kind}")
    from mapreduce.pandas_import import put_off_pandas

    put_off_pandas()
    from jobs import generate as generating

    made = generating.generate(
        kind,
        path,
        size_bytes=size,
        seed=seed,
        lines=lines or "fixed",
        features=features or 10,
        nodes=nodes,
        overwrite=overwrite,
    )
    if not quiet:
        click.echo(f"{made.url}: {say_count(made.lines, 'line')}, {format_size(made.size_bytes)}")


@click.command()
@click.argument("input_url", metavar="INPUT")
@click.argument("output_url", metavar="OUTPUT")
@click.option(
    "--key", metavar="KEY", help="Sorted by field 1, 2, ... of each line, or by columns (a,b) of each row."
)
@click.option("--format", type=FORMAT, help="Of both sides. [default: by the names]")
@click.option("--separator", help="What separates fields. [default: blanks and tabs]")
@click.option("--numeric", is_flag=True, help="Sorted by number.")
@click.option("--descending", is_flag=True, help="Sorted from the greatest to the least.")
@click.option("--quiet", is_flag=True, help="Print nothing; the exit status is the verdict.")
def validate(
    input_url: str,
    output_url: str,
    key: str | None,
    format: str | None,
    separator: str | None,
    numeric: bool,
    descending: bool,
    quiet: bool,
) -> int:
    """Check that OUTPUT is INPUT, sorted: exit 0 if valid, 1 if not.

    Both are a file, a folder or a pattern. In order inside each part, in order across the parts by name,
    and the same records as INPUT (their number, and the 128-bit sum of a fingerprint of each one), as
    TeraValidate does. Any format that mr reads; tables need --key with the columns, also where one of the two
    is a table and the other the text that was written for it.
    """
    from mapreduce.pandas_import import put_off_pandas

    put_off_pandas()
    from jobs import validate as validating
    from jobs.sort_key import SortKey

    is_field = key is not None and key.lstrip("-").isdigit()
    sort_key = SortKey(
        field=int(key) if key is not None and is_field else None,
        columns=tuple(key.split(",")) if key is not None and not is_field else (),
        separator=separator,
        numeric=numeric,
        descending=descending,
    )
    verdict = validating.validate(input_url, output_url, sort_key, format=format)
    if not quiet:
        click.echo(verdict.describe(), err=not verdict.valid)
    return 0 if verdict.valid else 1
