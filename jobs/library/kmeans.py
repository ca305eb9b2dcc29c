"""k-means: the k centres that points gather around (Lloyd 1982).

``mr run kmeans points.parquet -o centres -p k=8 -p rounds=10 --output-format csv``, ``-p tolerance=1e-4`` to stop
when no centre moves further than that, ``-p assign=true`` for the points, each with its cluster

Points are the numeric columns of a table but ``label`` (``columns=a,b`` picks others), or lines of text with numbers
apart by blanks, tabs or commas.  Points with a missing coordinate are left out and counted.

The first centres are those of greedy k-means++ (Arthur & Vassilvitskii 2007) on a sample: the distinct points whose
hash, which ``seed`` changes, is lowest.  Each round is one stage: a map adds up the points nearest to each centre, the
reduce puts the centre into their middle.  A centre that is nearest to no point stays where it is.

Sums of floats depend on their order, and so would the result on how the input is split.  So coordinates are added as
integers, in units of 2**-52 of the largest in their column, and a point almost as near to a second centre is looked
at again without a matrix product, whose last bits depend on the size of the matrix.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mapreduce import BadJob, Dataset, Stage, job

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from jobs.points import Points

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

LIMB_BITS = 26  # a coordinate is two of these; sums of 2**26 limbs are still exact floats
BLOCK_DISTANCES = 1 << 20
BLOCK_POINTS = 1 << 13
LARGEST = -1  # number of the row that holds the largest coordinate of each column, in place of a centre


# -- the first centres ------------------------------------------------------------------------------


def hash_points(points: Floats, seed: int) -> Ints:
    """Return a hash of each point, from 0 on (SplitMix64's mixing)."""
    import numpy as np

    hashes = np.full(points.shape[1], (seed * 0x9E3779B97F4A7C15) % 2**64, np.uint64)
    for column in points + 0.0:  # -0.0 is 0.0
        hashes ^= column.view(np.uint64)
        hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes = (hashes ^ (hashes >> np.uint64(31))) + np.uint64(0x9E3779B97F4A7C15)
    return (hashes >> np.uint64(1)).astype(np.int64)


def choose(sample: Floats, k: int, seed: int) -> Floats:
    """Choose ``k`` of the points (rows): each time the best of a few, drawn by their squared distance to those chosen."""
    import numpy as np

    dice = random.Random(seed)
    chosen = [sample[int(dice.random() * len(sample))]]
    far = ((sample - chosen[0]) ** 2).sum(axis=1)
    while len(chosen) < k:
        reach = np.cumsum(far)
        draws = [dice.random() * reach[-1] for _ in range(2 + int(math.log(k)))]
        drawn = np.minimum(np.searchsorted(reach, draws, side="right"), np.flatnonzero(far)[-1])
        nearer = [np.minimum(far, ((sample - sample[at]) ** 2).sum(axis=1)) for at in drawn]
        best = min(range(len(drawn)), key=lambda trial: float(nearer[trial].sum()))
        chosen.append(sample[drawn[best]])
        far = nearer[best]
    return np.array(chosen)


# -- a round ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Centres:
    """Where the centres are, shape (k, d), and the largest absolute coordinate of each column."""

    places: Floats
    largest: Floats

    @classmethod
    def of(cls, table: pa.Table) -> Centres:
        """Take them out of what a round (or the first stage) has made."""
        import numpy as np

        rows = np.stack([table.column(at).to_numpy() for at in range(2, table.num_columns)], axis=1)
        numbers = table.column("cluster").to_numpy()
        order = np.argsort(numbers)
        assert numbers[order[0]] == LARGEST
        return cls(places=rows[order[1:]], largest=rows[order[0]])

    def blocks(self, points: Floats) -> Iterator[Floats]:
        """Cut points into blocks that stay in the processor's cache while they are worked on."""
        step = max(1, min(BLOCK_POINTS, BLOCK_DISTANCES // len(self.places)))
        yield from (points[:, at : at + step] for at in range(0, points.shape[1], step))

    def nearest(self, points: Floats) -> Ints:
        """Return the number of the nearest centre of each point (the first of several)."""
        import numpy as np

        return np.concatenate([np.zeros(0, np.int64), *map(self._nearest, self.blocks(points))])

    def _nearest(self, points: Floats) -> Ints:
        import numpy as np

        halves = (self.places**2).sum(axis=1) / 2
        scores = halves[:, None] - self.places @ points  # half the squared distance less half of |x|^2
        found = np.zeros(points.shape[1], np.int64)
        best, second = scores[0].copy(), np.full(points.shape[1], np.inf)
        for number, score in enumerate(scores[1:], 1):
            closer = score < best
            found[closer] = number
            np.minimum(second, np.maximum(score, best), out=second)
            np.minimum(best, score, out=best)
        # Both ways to a distance err by less than this.
        error = (len(points) + 8) * 2.0**-50 * (float(halves.max()) + float((self.largest**2).sum()))
        unsure = np.flatnonzero(second - best <= error)
        if len(unsure):
            distances = np.zeros((len(self.places), len(unsure)))
            for column, places in zip(points[:, unsure], self.places.T, strict=True):
                distances += (column - places[:, None]) ** 2
            found[unsure] = distances.argmin(axis=0)
        return found

    def exponents(self) -> list[int]:
        """Return of what power of two each column's coordinates are fractions."""
        return [max(math.frexp(largest)[1], -900) for largest in self.largest.tolist()]

    def add_up(self, points: Floats) -> Ints:
        """Return for each centre how many points it has, and the sums of the high and of the low limbs of each column."""
        import numpy as np

        k, columns = len(self.places), len(points)
        scales = [2.0 ** (LIMB_BITS - exponent) for exponent in self.exponents()]
        sums = np.zeros((1 + 2 * columns, k), np.int64)
        for block in self.blocks(points):
            found = self._nearest(block)
            sums[0] += np.bincount(found, minlength=k)
            for at, (column, scale) in enumerate(zip(block, scales, strict=True), 1):
                rest = column * scale
                high = np.rint(rest)
                rest -= high
                rest *= 2.0**LIMB_BITS
                sums[at] += np.bincount(found, high, k).astype(np.int64)
                sums[at + columns] += np.bincount(found, np.rint(rest, out=rest), k).astype(np.int64)
        return sums

    def move(self, counts: Ints, sums: list[list[int]]) -> Floats:
        """Return the middles of the points, ``sums`` in units of 2**-52; a centre without points stays."""
        places = self.places.copy()
        exponents = self.exponents()
        for cluster, points in enumerate(counts.tolist()):
            if points:
                for at, exponent in enumerate(exponents):
                    middle = sums[at][cluster] / points
                    places[cluster, at] = math.ldexp(middle, exponent - 2 * LIMB_BITS)
        return places


@dataclass(frozen=True, kw_only=True)
class Clustering:
    """The functions of the stages."""

    reader: Points
    k: int
    seed: int

    @property
    def centres_schema(self) -> pa.Schema:
        """Return the columns of a round's result."""
        import pyarrow as pa

        whole = [("cluster", pa.int64()), ("points", pa.int64())]
        return pa.schema([*whole, *((name, pa.float64()) for name in self.reader.names)])

    @property
    def sums_schema(self) -> pa.Schema:
        """Return the columns of what a map adds up."""
        import pyarrow as pa

        limbs = [f"{limb}:{name}" for limb in ("high", "low") for name in self.reader.names]
        return pa.schema([(name, pa.int64()) for name in ("cluster", "points", *limbs)])

    @property
    def sample_points(self) -> int:
        """Return how many distinct points the first centres are chosen from."""
        return max(2_000, 20 * self.k)

    def _rows(self, numbers: Any, counts: Any, rows: Floats) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        columns = [np.asarray(numbers, np.int64), np.asarray(counts, np.int64), *np.ascontiguousarray(rows.T)]
        return pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=self.centres_schema)

    def sample(self, batch: pa.RecordBatch, *, counters: Any) -> Iterator[pa.RecordBatch]:
        """Return the largest coordinates of a batch, and its distinct points of the lowest hashes."""
        import numpy as np

        points, _ = self.reader.of(batch, counters)
        if points.shape[1]:
            yield self._rows([LARGEST], [0], np.abs(points).max(axis=1)[None])
            hashes, at = np.unique(hash_points(points, self.seed), return_index=True)
            at = at[: self.sample_points]
            yield self._rows(hashes[: len(at)], np.ones(len(at)), points[:, at].T)

    def begin(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Choose the first centres from what the maps have sampled, sorted by hash."""
        import numpy as np

        largest = np.zeros(len(self.reader.names))
        hashes, rows = np.zeros(0, np.int64), np.zeros((0, len(largest)))
        for batch in batches:
            numbers = batch.column("cluster").to_numpy()
            values = np.stack([column.to_numpy() for column in batch.columns[2:]], axis=1)
            largest = np.maximum(largest, values[numbers == LARGEST].max(axis=0, initial=0.0))
            hashes, at = np.unique(np.concatenate([hashes, numbers]), return_index=True)
            rows = np.concatenate([rows, values])[at]
            if len(hashes) > self.sample_points:
                break
        sampled = rows[hashes != LARGEST][: self.sample_points]
        if len(sampled) < self.k:
            raise BadJob(f"job 'kmeans': k is {self.k}, but there are only {len(sampled)} different points")
        places = choose(sampled, self.k, self.seed)
        yield self._rows(range(LARGEST, self.k), [0] * (self.k + 1), np.vstack([largest, places]))

    def add_up(self, batch: pa.RecordBatch, *, side: Any) -> pa.RecordBatch:
        """Return the sums of the points of a batch that are nearest to each centre."""
        import numpy as np
        import pyarrow as pa

        points, _ = self.reader.of(batch)
        sums = Centres.of(side["centres"]).add_up(points)
        columns = [np.arange(self.k), *sums]
        return pa.RecordBatch.from_arrays([pa.array(c) for c in columns], schema=self.sums_schema)

    def move(self, batches: Iterable[pa.RecordBatch], *, side: Any) -> Iterator[pa.RecordBatch]:
        """Put each centre into the middle of its points."""
        import numpy as np

        totals = np.zeros((len(self.sums_schema) - 1, self.k), np.int64)
        for batch in batches:
            numbers = batch.column("cluster").to_numpy()
            for total, column in zip(totals, batch.columns[1:], strict=True):
                np.add.at(total, numbers, column.to_numpy())
        counts, sums = totals[0], totals[1:].reshape(2, -1, self.k)
        old = Centres.of(side["centres"])
        whole = [
            [(high << LIMB_BITS) + low for high, low in zip(*both, strict=True)]
            for both in zip(sums[0].tolist(), sums[1].tolist(), strict=True)
        ]
        places = old.move(counts, whole)
        numbered = np.vstack([old.largest, places])
        yield self._rows(range(LARGEST, self.k), [0, *counts.tolist()], numbered)

    def show(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the centres alone."""
        import pyarrow.compute as pc

        return batch.filter(pc.not_equal(batch.column("cluster"), LARGEST))

    def assigned_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the input and ``cluster``."""
        import pyarrow as pa

        return schema.append(pa.field("cluster", pa.int64()))

    def assign(self, batch: pa.RecordBatch, *, side: Any, counters: Any) -> pa.RecordBatch:
        """Return the points of a batch with the cluster of each."""
        import pyarrow as pa

        points, kept = self.reader.of(batch, counters)
        found = pa.array(Centres.of(side["centres"]).nearest(points))
        columns = [*batch.filter(pa.array(kept)).columns, found]
        return pa.RecordBatch.from_arrays(columns, schema=self.assigned_schema(batch.schema))


@job
def kmeans(
    points: Dataset,
    *,
    k: int = 8,
    rounds: int = 10,
    tolerance: float | None = None,
    seed: int = 0,
    columns: str | None = None,
    assign: bool = False,
) -> Dataset | Generator[Dataset, list[Any], Dataset]:
    """k centres of points (columns of a table, or text): rounds=N, or until tolerance; assign=true for the points."""
    from jobs.points import points_of

    for name, value in (("k", k), ("rounds", rounds)):
        if value < 1:
            raise BadJob(f"job 'kmeans': {name} must be >= 1, got {value}")
    reader = points_of(points, columns, ("cluster", "points"))
    steps = Clustering(reader=reader, k=k, seed=seed)
    whole = steps.centres_schema
    first = Stage(
        name="first centres",
        map_batch=steps.sample,
        schema=whole,
        keys=["cluster"],
        reduce_batch=steps.begin,
        partitions=1,
    )(points)

    def next_round(centres: Dataset) -> Dataset:
        return Stage(
            name="round",
            map_batch=steps.add_up,
            schema=steps.sums_schema,
            keys=["cluster"],
            side={"centres": centres},
            reduce_batch=steps.move,
            output_schema=whole,
            partitions=1,
        )(points)

    def result(centres: Dataset) -> Dataset:
        if not assign:
            return Stage(name="centres", map_batch=steps.show, schema=whole)(centres)
        return Stage(
            name="assign",
            map_batch=steps.assign,
            schema=steps.assigned_schema,
            side={"centres": centres},
        )(points)

    def until(tolerance: float) -> Generator[Dataset, list[Any], Dataset]:
        centres, rows = first, (yield first)
        for _ in range(rounds):
            centres, old = next_round(centres), rows
            rows = yield centres
            if all(math.dist(a[2:], b[2:]) <= tolerance for a, b in zip(old, rows, strict=True)):
                break
        return result(centres)

    if tolerance is not None:
        return until(tolerance)
    centres = first
    for _ in range(rounds):
        centres = next_round(centres)
    return result(centres)
