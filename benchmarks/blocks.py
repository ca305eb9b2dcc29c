"""What the peers of the graph engine do with a part of the data: reading it into numpy, and the arithmetic of a round.

PySpark and dask only differ in who calls these functions where, so what is compared is how they keep and move values.  The
parts are byte ranges or row groups, as a user who cares for speed would read them: Spark's own readers hand each record
to Python alone.  Sums are BLAS's; nothing here is taken from ``mr``, except where k-means begins.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Part = tuple[str, int, int]
"""A file, and where the part begins and ends: bytes, or row groups."""

PART_BYTES = 8 << 20


# -- reading ----------------------------------------------------------------------------------------


def parts_of(source: str) -> list[Part]:
    """Return the parts of a file of text or Parquet."""
    if source.endswith(".parquet"):
        import pyarrow.parquet as pq

        return [(source, group, group + 1) for group in range(pq.ParquetFile(source).num_row_groups)]
    size = os.path.getsize(source)
    return [(source, at, min(at + PART_BYTES, size)) for at in range(0, size, PART_BYTES)]


def read_lines(part: Part) -> io.BytesIO:
    """Return the lines that begin in a part."""
    source, begin, end = part
    with open(source, "rb") as file:
        if begin:
            file.seek(begin - 1)
            begin += len(file.readline()) - 1
        text = file.read(end - begin) if begin < end else b""
        return io.BytesIO(text + file.readline() if text and not text.endswith(b"\n") else text)


def read_points(part: Part) -> tuple[Floats, Floats]:
    """Return (coordinates, shape (features, rows); labels) of a part, whose last column is the label."""
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    if part[0].endswith(".parquet"):
        table = pq.ParquetFile(part[0]).read_row_groups(range(part[1], part[2]), use_threads=False)
    else:
        with open(part[0], encoding="utf-8") as file:
            names = file.readline().rstrip("\n").split(",")
        table = pc.read_csv(
            read_lines(part),
            read_options=pc.ReadOptions(column_names=names, skip_rows=int(part[1] == 0), use_threads=False),
        )
    *columns, labels = (column.to_numpy() for column in table.columns)
    return np.stack(columns), labels.astype(np.float64)


def read_edges(part: Part) -> tuple[Ints, Ints]:
    """Return (sources, targets) of the lines "source TAB target" of a part."""
    import pyarrow.csv as pc

    table = pc.read_csv(
        read_lines(part),
        read_options=pc.ReadOptions(column_names=["source", "target"], use_threads=False),
        parse_options=pc.ParseOptions(delimiter="\t"),
    )
    return table.column(0).to_numpy(), table.column(1).to_numpy()


# -- gradient ---------------------------------------------------------------------------------------


def moments(block: tuple[Floats, Floats]) -> tuple[int, Floats, Floats]:
    """Return (rows, means, sums of squared deviations) of a block."""
    points = block[0]
    means = points.mean(axis=1)
    return points.shape[1], means, ((points - means[:, None]) ** 2).sum(axis=1)


def merge_moments(
    one: tuple[int, Floats, Floats], other: tuple[int, Floats, Floats]
) -> tuple[int, Floats, Floats]:
    """Return the moments of the rows of both."""
    rows, apart = one[0] + other[0], other[1] - one[1]
    means = one[1] + apart * (other[0] / rows)
    return rows, means, one[2] + other[2] + apart**2 * (one[0] * other[0] / rows)


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Logistic regression on standardised columns by full steps of one length; weights begin at 0, the intercept first."""

    rows: int
    means: Floats
    deviations: Floats
    weights: Floats
    rate: float

    @classmethod
    def start(cls, found: tuple[int, Floats, Floats], rate: float) -> Descent:
        """Begin with the moments of all rows."""
        rows, means, squares = found
        weights = np.zeros(len(means) + 1)
        return cls(rows=rows, means=means, deviations=np.sqrt(squares / rows), weights=weights, rate=rate)

    def gradient(self, block: tuple[Floats, Floats]) -> Floats:
        """Return what the rows of a block add to the gradient."""
        points, labels = block
        slopes = self.weights[1:] / self.deviations
        scores = slopes @ points
        scores += self.weights[0] - slopes @ self.means
        np.negative(scores, out=scores)
        np.exp(scores, out=scores)
        scores += 1.0
        np.reciprocal(scores, out=scores)
        scores -= labels
        total = scores.sum()
        return np.concatenate([[total], (points @ scores - self.means * total) / self.deviations])

    def step(self, gradient: Floats) -> Descent:
        """Go one step down."""
        return Descent(
            rows=self.rows,
            means=self.means,
            deviations=self.deviations,
            weights=self.weights - self.rate * gradient / self.rows,
            rate=self.rate,
        )

    def result(self) -> list[tuple[Any, ...]]:
        """Return (feature, weight) for the columns as they are in the file."""
        slopes = self.weights[1:] / self.deviations
        intercept = self.weights[0] - slopes @ self.means
        named = [(f"x{at}", float(slope)) for at, slope in enumerate(slopes)]
        return [("(intercept)", float(intercept)), *named]


# -- k-means ----------------------------------------------------------------------------------------

SAMPLED = 2_000


def sample(block: tuple[Floats, Floats]) -> tuple[Ints, Floats]:
    """Return (hashes, points) of the points of a block with the lowest hashes."""
    from jobs.library.kmeans import hash_points

    hashes, at = np.unique(hash_points(block[0], 0), return_index=True)
    return hashes[:SAMPLED], block[0][:, at[:SAMPLED]].T


def merge_samples(one: tuple[Ints, Floats], other: tuple[Ints, Floats]) -> tuple[Ints, Floats]:
    """Return the points of both with the lowest hashes."""
    hashes, at = np.unique(np.concatenate([one[0], other[0]]), return_index=True)
    return hashes[:SAMPLED], np.concatenate([one[1], other[1]])[at[:SAMPLED]]


def first_centres(found: tuple[Ints, Floats], k: int) -> Floats:
    """Return where ``mr run kmeans`` begins, shape (k, features)."""
    from jobs.library.kmeans import choose

    return choose(found[1], k, 0)


def add_up(centres: Floats, block: tuple[Floats, Floats]) -> Floats:
    """Return for each centre the number of its nearest points and their sum, shape (1 + features, k)."""
    points, k = block[0], len(centres)
    nearest = ((centres**2).sum(axis=1)[:, None] / 2 - centres @ points).argmin(axis=0)
    counts = np.bincount(nearest, minlength=k).astype(np.float64)
    return np.stack([counts, *(np.bincount(nearest, column, k) for column in points)])


def move(centres: Floats, sums: Floats) -> Floats:
    """Return the middles of the points; a centre without points stays."""
    return np.where(sums[0][:, None] > 0, (sums[1:] / np.maximum(sums[0], 1)).T, centres)


# -- pagerank ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Links:
    """The links that begin in one of ``n`` partitions; a node is in the one that is its number modulo ``n``.

    ``begins[q]`` and ``ends[q]`` are places of nodes here and in partition ``q``; ``degrees`` are those of all nodes here.
    """

    degrees: Ints
    begins: list[Ints]
    ends: list[Ints]

    def spread(self, sums: Floats, reached: float, sizes: list[int], damping: float) -> list[Floats]:
        """Return what each node of each partition gets from here; ``sums`` is what reached the nodes here before."""
        shares = ranks_of(sums, reached, sum(sizes), damping) / np.maximum(self.degrees, 1)
        return [
            np.bincount(end, shares[begin], size)
            for begin, end, size in zip(self.begins, self.ends, sizes, strict=True)
        ]


def ranks_of(sums: Any, reached: float, nodes: int, damping: float) -> Any:
    """Return ranks of an array or a column of sums; what did not reach a node, since others had no links, is shared by all."""
    return (1 - damping) / nodes + damping * (sums + (1 - reached) / nodes)


def split_edges(edges: tuple[Ints, Ints], partitions: int) -> Iterator[tuple[int, tuple[Ints, Ints]]]:
    """Yield (partition, its edges)."""
    sources, targets = edges
    at = sources % partitions
    yield from ((p, (sources[at == p], targets[at == p])) for p in range(partitions))


def split_nodes(edges: tuple[Ints, Ints], partitions: int) -> Iterator[tuple[int, Ints]]:
    """Yield (partition, its nodes at either end of edges, in order)."""
    nodes = np.unique(np.concatenate(edges))
    yield from ((p, nodes[nodes % partitions == p]) for p in range(partitions))


def number_links(edges: Iterable[tuple[Ints, Ints]], at: int, nodes: list[Ints]) -> Links:
    """Return the links of partition ``at``, given the nodes of all partitions."""
    given = list(edges)
    sources, targets = (np.concatenate([each[side] for each in given]) for side in (0, 1))
    places, owner = np.searchsorted(nodes[at], sources), targets % len(nodes)
    return Links(
        degrees=np.bincount(places, minlength=len(nodes[at])),
        begins=[places[owner == q] for q in range(len(nodes))],
        ends=[np.searchsorted(names, targets[owner == q]) for q, names in enumerate(nodes)],
    )


def add_all(arrays: Iterable[Floats]) -> Floats:
    """Return the sum of arrays."""
    return reduce(np.add, arrays)
