"""Labelled points for a linear classifier, as CSV lines or as a Parquet file.

A point has ``features`` coordinates that are near normal (the sum of four uniform numbers) and a label: the
side of a hyperplane through the origin on which it lies, turned over for one point in twenty.  All
arithmetic is on integers, in units of 0.0001, so the same arguments give the same numbers everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jobs.synthetic_lines import Bits, Block, line_block, pick

NOISE_ONE_IN = 20
"""One label in this many is on the wrong side."""

_ROWS_PER_BLOCK = 65_536
_LOW_HALVES = np.uint64(0x0000FFFF0000FFFF)
_REACH = -(-131_070 * 10_000 // 37_837)
"""The largest coordinate, in units of 0.0001: four times 65,535 less the mean."""


def hyperplane(seed: int, features: int) -> npt.NDArray[np.int64]:
    """Return the normal vector that separates the points of ``seed``: integers from -1000 to 1000, none 0."""
    weights = Bits(seed, "hyperplane").below(2_000, features) - 1_000
    return weights + (weights >= 0)


def point_blocks(seed: int, features: int) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]]:
    """Yield (coordinates in units of 0.0001, shape (n, features); labels 0 or 1, shape (n,)) without end."""
    bits = Bits(seed, "points")
    weights = hyperplane(seed, features)
    scale = pa.array(((np.arange(4 * 65_535 + 1) - 131_070) * 10_000 // 37_837).astype(np.int32))
    rows = max(1, min(_ROWS_PER_BLOCK, (4 << 20) // features))
    while True:
        # Four uniform numbers in [0, 65536) have standard deviation 37,837 together.
        sums = bits.words(rows * features)
        sums = (sums & _LOW_HALVES) + (sums >> np.uint64(16) & _LOW_HALVES)
        sums = (sums & np.uint64(0xFFFFFFFF)) + (sums >> np.uint64(32))
        coordinates = pick(scale, sums.astype(np.int32)).to_numpy().reshape(rows, features)
        # Of integers: a product of doubles would wake a pool of threads.
        labels = (coordinates @ weights > 0) ^ (bits.below(NOISE_ONE_IN, rows) == 0)
        yield coordinates, labels.astype(np.int64)


def names(features: int) -> list[str]:
    """Return the column names: x0, x1, ... and label."""
    return [*(f"x{i}" for i in range(features)), "label"]


def csv_header(features: int) -> bytes:
    """Return the first line of the CSV file."""
    return ",".join(names(features)).encode() + b"\n"


def csv_blocks(seed: int, features: int) -> Iterator[Block]:
    """Yield the points as CSV lines, coordinates with four decimals, without the header."""
    ending = 2 * _REACH + 1  # where the labels begin
    pieces = pa.array([*(_decimal(value) + "," for value in range(-_REACH, _REACH + 1)), "0\n", "1\n"])
    for coordinates, labels in point_blocks(seed, features):
        # One take() is the text itself.
        chosen = np.empty((len(labels), features + 1), np.int32)
        np.add(coordinates, _REACH, out=chosen[:, :-1])
        np.add(labels, ending, out=chosen[:, -1], casting="unsafe")
        yield line_block(pick(pieces, chosen.reshape(-1)), slice(features, None, features + 1))


def _decimal(value: int) -> str:
    return f"{'-' if value < 0 else ''}{abs(value) // 10_000}.{abs(value) % 10_000:04}"


def write_parquet(file: BinaryIO, *, seed: int, features: int, rows: int) -> None:
    """Write the first ``rows`` points to ``file`` as Parquet: float64 coordinates and an int64 label."""
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.int64() if name == "label" else pa.float64()) for name in names(features)])
    blocks = point_blocks(seed, features)
    with pq.ParquetWriter(file, schema) as writer:
        while rows > 0:
            coordinates, labels = next(blocks)
            # Division is rounded correctly: the double nearest to the decimal that the CSV file shows.
            columns = [pa.array(coordinates[:rows, i] / 10_000) for i in range(features)]
            writer.write_batch(pa.record_batch([*columns, pa.array(labels[:rows])], schema=schema))
            rows -= len(coordinates)
