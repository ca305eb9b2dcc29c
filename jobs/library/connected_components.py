"""Connected components: each node with the least node that it can be reached from, links taken both ways.

``mr run connected_components links.txt -o components``, ``-p rounds=3`` to stop early (labels may then still differ
inside a component)

Large-star and small-star (Kiveris et al. 2014, "Connected components in MapReduce and beyond"), in turn until neither
changes an edge.  Large-star ties the larger neighbours of a node to its least one, small-star the node itself and
its smaller ones; so a component turns into a star around its least node, a path of n nodes in about log n rounds
where passing labels along edges takes n.

The rows of both steps are (node, neighbour) sorted by both, so the least neighbour comes first, whatever
comes after it is seen once, and no list of neighbours is ever held.  Names compare as integers, or as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mapreduce import BadJob, Dataset, Stage, job

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Columns = tuple[pa.Array, pa.Array, npt.NDArray[np.bool_]]


def to_edges(node: pa.Array, other: pa.Array) -> pa.RecordBatch:
    """Return edges as a batch."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([node, other], names=["node", "other"])


def to_moved(node: pa.Array, other: pa.Array, moved: Any) -> pa.RecordBatch:
    """Return edges as a batch; ``moved`` is 1 for those that the step has changed."""
    import numpy as np
    import pyarrow as pa

    flags = pa.array(np.broadcast_to(np.asarray(moved, np.int64), len(node)))
    return pa.RecordBatch.from_arrays([node, other, flags], names=["node", "other", "moved"])


def with_least(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[pa.RecordBatch, pa.Array, npt.NDArray[np.bool_]]]:
    """Yield sorted rows without repeated ones, with the least neighbour of each row's node and which rows have it first.

    The first and the last row of the open group are put before the next batch, to be left out of what is yielded there.
    """
    import numpy as np
    import pyarrow as pa

    from mapreduce.gather import concat
    from mapreduce.order import group_boundaries

    before: list[pa.RecordBatch] = []
    for batch in batches:
        rows = concat([*before, batch])
        begins = group_boundaries(rows, ["node"])
        leaders = np.repeat(begins, np.diff(np.append(begins, rows.num_rows)))
        kept = group_boundaries(rows, ["node", "other"])
        kept = kept[kept >= len(before)]
        before = [rows.slice(begins[-1], 1), rows.slice(rows.num_rows - 1)]
        leader = pa.array(leaders[kept])
        yield rows.take(pa.array(kept)), rows.column("other").take(leader), kept == leaders[kept]


def large_star(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tie the neighbours that are not less than the node to the least of all, the node among them."""
    import pyarrow.compute as pc

    for rows, least, _ in with_least(batches):
        node, other = rows.column("node"), rows.column("other")
        moved = pc.less(least, node)
        kept = pc.greater_equal(other, node)
        centre = pc.if_else(moved, least, node)
        flags = moved.filter(kept).to_numpy(zero_copy_only=False)
        yield to_moved(other.filter(kept), centre.filter(kept), flags)


def small_star(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tie the node and its smaller neighbours to the least of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for rows, least, first in with_least(batches):
        others = pc.not_equal(rows.column("other"), least)
        own = pa.array(first)
        yield to_moved(rows.column("node").filter(own), least.filter(own), 0)
        yield to_moved(rows.column("other").filter(others), least.filter(others), 1)


def both_ways(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Return each edge from both of its ends."""
    yield to_edges(batch.column("node"), batch.column("other"))
    yield to_edges(batch.column("other"), batch.column("node"))


def downwards(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return each edge from its larger end."""
    import pyarrow.compute as pc

    node, other = batch.column("node"), batch.column("other")
    swap = pc.less(node, other)
    return to_edges(pc.if_else(swap, other, node), pc.if_else(swap, node, other))


def count_moved(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return how many edges a step has moved."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [[0], [int(batch.column("moved").to_numpy().sum())]], names=["all", "moved"]
    )


def labels(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Return the two ends of the edges of a star with its centre."""
    import pyarrow as pa

    for end in ("node", "other"):
        yield pa.RecordBatch.from_arrays([batch.column(end), batch.column("other")], names=["node", "label"])


def reader_of(kind: pa.DataType) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Return a map from lines to edges, both ways."""
    from jobs.edges import edge_reader

    read = edge_reader(kind)

    def to_both(batch: pa.RecordBatch, *, counters: Any) -> Iterator[pa.RecordBatch]:
        return both_ways(to_edges(*read(batch.column("line"), counters)))

    return to_both


@job
def connected_components(
    edges: Dataset, *, rounds: int | None = None, names: str = "auto", partitions: int = 4
) -> Generator[Dataset, list[Any], Dataset]:
    """Each node with the least node of its component, from lines "node node"; until nothing changes."""
    import pyarrow as pa

    from jobs.edges import node_type

    if rounds is not None and rounds < 1:
        raise BadJob(f"job 'connected_components': rounds must be >= 1, got {rounds}")
    kind = node_type(edges, names, "connected_components")
    pair = pa.schema([("node", kind), ("other", kind)])

    def step(name: str, data: Dataset, map_batch: Any, reduce_batch: Any) -> Dataset:
        return Stage(
            name=name,
            map_batch=map_batch,
            schema=pair,
            keys=["node"],
            order=["other"],
            reduce_batch=reduce_batch,
            output_schema=pair.append(pa.field("moved", pa.int64())),
            partitions=partitions,
        )(data)

    graph = edges.lines()
    split = reader_of(kind)
    done = 0
    while rounds is None or done < rounds:
        large = step("large star", graph, split, large_star)
        graph = step("small star", large, downwards, small_star)
        split = both_ways
        done += 1
        moved = yield Stage(
            name="moved",
            map_batch=count_moved,
            schema=pa.schema([("all", pa.int64()), ("moved", pa.int64())]),
            keys=["all"],
            aggregate={"moved": "sum"},
            partitions=1,
        )(large, graph)
        if sum(count for _, count in moved) == 0:
            break
    return Stage(
        name="labels",
        map_batch=labels,
        schema=pa.schema([("node", kind), ("label", kind)]),
        keys=["node"],
        aggregate={"label": "min"},
        partitions=partitions,
    )(graph)
