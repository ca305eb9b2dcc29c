"""The product of two matrices, dense or sparse, in two stages.

``mr run matmul a.txt b.txt -o product -p block=256``

A matrix is lines ``row column value`` (apart by blanks, tabs or commas), or a table with the columns ``row``, ``col`` and
``value``, one row per entry, in any order; entries that are not given are zero, those given twice are added up.  Rows and
columns are 64-bit integers.  So is the result, without its zeros.

The first stage brings block j of the columns of A and block j of the rows of B to one place and multiplies
them; the second adds up what these give for an entry (Leskovec, Rajaraman & Ullman 2020, "Mining of Massive
Datasets", section 2.3.9).  A reduce of the first stage holds ``block`` columns of A and as many rows of B.

An entry is the sum over the inner index in rising order inside a block, then over blocks in rising order.  That
order belongs to the plan, so the bytes do not depend on partitions or on the order of the input.  A dense block is
multiplied one column by one row at a time, and not by BLAS, whose last bits depend on machine and threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mapreduce import BadJob, Dataset, Stage, job

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Floats = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.int64]

PRODUCT_COST = 16  # what a product costs where blocks are sparse, in products of a dense block
SPARSE_PRODUCTS = 1 << 20  # made at a time
COLUMNS = ("row", "col", "value")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Entries of a block, sorted by row and column, none twice."""

    rows: Ints
    cols: Ints
    values: Floats

    @classmethod
    def of(cls, rows: Ints, cols: Ints, values: Floats) -> Block:
        """Make one of sorted entries; those given twice are added up."""
        import numpy as np

        new = (np.diff(rows, prepend=rows[:1]) != 0) | (np.diff(cols, prepend=cols[:1]) != 0)
        new[:1] = True
        if not new.all():
            values = np.bincount(np.cumsum(new) - 1, values).astype(np.float64)
            rows, cols = rows[new], cols[new]
        return cls(rows=rows, cols=cols, values=values)

    @property
    def is_finite(self) -> bool:
        """Tell whether zero times any entry is zero."""
        import numpy as np

        return bool(np.isfinite(self.values).all())


def multiply(a: Block, b: Block, tile: int) -> Iterator[Block]:
    """Yield the entries of ``a @ b`` that are not zero, each summed over the inner index in rising order.

    The two ways give the same bits: what a dense block has more of are products that are zero.
    """
    import numpy as np

    rows, cols, inner = np.unique(a.rows), np.unique(b.cols), np.unique(b.rows)
    starts, stops = (np.searchsorted(b.rows, a.cols, side) for side in ("left", "right"))
    products = int((stops - starts).sum())
    if len(rows) * len(cols) * len(inner) >= PRODUCT_COST * products or not (a.is_finite and b.is_finite):
        yield from _multiply_sparse(a, b, starts, stops)
        return
    met = stops > starts
    left, right = np.zeros((len(inner), len(rows))), np.zeros((len(inner), len(cols)))
    left[np.searchsorted(inner, a.cols[met]), np.searchsorted(rows, a.rows[met])] = a.values[met]
    right[np.searchsorted(inner, b.rows), np.searchsorted(cols, b.cols)] = b.values
    for top in range(0, len(rows), tile):
        for side in range(0, len(cols), tile):
            sums = np.zeros((len(rows[top : top + tile]), len(cols[side : side + tile])))
            product = np.empty_like(sums)
            for column, row in zip(left[:, top : top + tile], right[:, side : side + tile], strict=True):
                np.multiply(column[:, None], row, out=product)
                sums += product
            at_row, at_col = np.nonzero(sums)
            yield Block(rows=rows[top + at_row], cols=cols[side + at_col], values=sums[at_row, at_col])


def _multiply_sparse(a: Block, b: Block, starts: Ints, stops: Ints) -> Iterator[Block]:
    """Make every product, some rows of A at a time; entry i of A meets the entries starts[i] to stops[i] of B."""
    import numpy as np

    ends = np.cumsum(stops - starts)
    firsts = np.flatnonzero(np.diff(a.rows, prepend=a.rows[0] - 1))  # of the rows of A
    before = np.concatenate([[0], ends])[firsts]
    for group in np.split(firsts, np.flatnonzero(np.diff(before // SPARSE_PRODUCTS)) + 1):
        until = int(np.searchsorted(firsts, group[-1], "right"))
        at = np.arange(group[0], firsts[until] if until < len(firsts) else len(a.rows))
        counts = (stops - starts)[at]
        of_a = np.repeat(at, counts)
        of_b = np.arange(len(of_a)) + np.repeat(starts[at] - np.cumsum(counts) + counts, counts)
        values = a.values[of_a] * b.values[of_b]
        order = np.lexsort((b.cols[of_b], a.rows[of_a]))  # stable: the inner index still rises
        rows, cols = a.rows[of_a[order]], b.cols[of_b[order]]
        made = Block.of(rows, cols, values[order])
        kept = made.values != 0
        yield Block(rows=made.rows[kept], cols=made.cols[kept], values=made.values[kept])


def entries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the entries of a matrix as columns row, col and value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from jobs.points import split_numbers

    kinds = (pa.int64(), pa.int64(), pa.float64())
    if batch.schema.names == ["line"]:
        fields = split_numbers(batch.column("line"))
        sizes = pc.list_value_length(fields)
        fields = fields.filter(pc.greater(sizes, 0))
        odd = pc.indices_nonzero(pc.not_equal(pc.list_value_length(fields), 3))
        if len(odd):
            bad = " ".join(fields[odd[0].as_py()].as_py())
            raise BadJob(f"job 'matmul': a line must hold row, column and value, got {bad!r}")
        columns = [pc.list_element(fields, at) for at in range(3)]
    else:
        for name in COLUMNS:
            if name not in batch.schema.names:
                have = ", ".join(batch.schema.names)
                raise BadJob(
                    f"job 'matmul': no column {name!r}; a matrix has row, col and value, this has: {have}"
                )
        columns = [batch.column(name) for name in COLUMNS]
    try:
        columns = [column.cast(kind) for column, kind in zip(columns, kinds, strict=True)]
    except pa.ArrowInvalid as error:
        raise BadJob(f"job 'matmul': rows and columns are integers, values are numbers: {error}") from None
    if any(column.null_count for column in columns):
        raise BadJob("job 'matmul': an entry has no row, column or value")
    return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))


def placed(side: int, block: int, schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a map that says to which inner block the entries of A (``side`` 0) or B (1) belong."""

    def place(batch: pa.RecordBatch) -> pa.RecordBatch:
        import numpy as np
        import pyarrow as pa

        given = entries(batch)
        inner = given.column("row" if side else "col").to_numpy() // block
        columns = [pa.array(inner), pa.array(np.full(len(inner), side, np.int64)), *given.columns]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return place


def blocks_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, int, Block]]:
    """Yield (inner, side, block), from sorted batches."""
    import numpy as np

    held: list[list[Any]] = []

    def block() -> tuple[int, int, Block]:
        inner, side, *columns = (np.concatenate(parts) for parts in zip(*held, strict=True))
        return int(inner[0]), int(side[0]), Block.of(*columns)

    for batch in batches:
        columns = [column.to_numpy() for column in batch.columns]
        edges = (np.flatnonzero((np.diff(columns[0]) != 0) | (np.diff(columns[1]) != 0)) + 1).tolist()
        for start, stop in zip([0, *edges], [*edges, batch.num_rows], strict=True):
            piece = [column[start:stop] for column in columns]
            if held and any(old[0] != new[0] for old, new in zip(held[0][:2], piece[:2], strict=True)):
                yield block()
                held.clear()
            held.append(piece)
    if held:
        yield block()


def multiply_blocks(tile: int, schema: pa.Schema) -> Callable[[Iterable[pa.RecordBatch]], Any]:
    """Return a reduce that multiplies the blocks of A and B with one inner number."""

    def reduce(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        left: tuple[int, Block] | None = None
        for inner, side, block in blocks_of(batches):
            if side == 0:
                left = inner, block
            elif left is not None and left[0] == inner:
                for made in multiply(left[1], block, tile):
                    numbers = np.full(len(made.rows), inner)
                    columns = [pa.array(c) for c in (made.rows, made.cols, numbers, made.values)]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return reduce


def add_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add what the inner blocks give for each entry, in their order, and leave out zeros."""
    import pyarrow.compute as pc

    from mapreduce.aggregate import Aggregate, reduce_sorted

    for batch in reduce_sorted(batches, ["row", "col"], [Aggregate("value", "sum")]):
        yield batch.filter(pc.not_equal(batch.column("value"), 0.0)).select(list(COLUMNS))


@job
def matmul(a: Dataset, b: Dataset, *, block: int = 256, partitions: int | None = None) -> Dataset:
    """The product of two matrices given as "row column value", dense or sparse, in blocks of block x block."""
    import pyarrow as pa

    if block < 1:
        raise BadJob(f"job 'matmul': block must be >= 1, got {block}")
    number, value = pa.int64(), pa.field("value", pa.float64())
    entry = [pa.field("row", number), pa.field("col", number), value]
    given = pa.schema([*(pa.field(name, number) for name in ("inner", "side")), *entry])
    partial = pa.schema([*entry[:2], pa.field("inner", number), value])
    products = Stage(
        name="multiply",
        map_batch=[placed(0, block, given), placed(1, block, given)],
        schema=given,
        keys=["inner"],
        order=["side", "row", "col"],
        reduce_batch=multiply_blocks(block, partial),
        output_schema=partial,
        partitions=partitions,
    )(a, b)
    return Stage(
        name="add",
        keys=["row"],
        order=["col", "inner"],
        reduce_batch=add_up,
        output_schema=pa.schema(entry),
        partitions=partitions,
    )(products)
