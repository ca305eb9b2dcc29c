"""PageRank: how often a reader who follows links at random, and now and then begins anew, sees each page.

``mr run pagerank links.txt -o ranks -p rounds=20``, or ``-p tolerance=1e-6`` to stop when the ranks move by less in
all (the L1 norm, at most ``rounds`` rounds)

Of d = ``damping``, n nodes and the sum s of what its neighbours pass on, a node gets the rank
(1 - d) / n + d * (s + what the dangling nodes have / n): nodes without a link pass theirs on to all (Langville & Meyer
2004, section 5).  The ranks start at 1 / n and add up to 1.  An edge given twice counts twice.

Each round is a join and a sum.  ``links`` is made once, a row per node with the list of its targets; it and the sums have the
same columns, key and number of partitions, so the join of a round finds the two where they are, sorts rows of nodes
instead of edges, and only what nodes pass on has to move.

A rank is an integer in units of 2**-60, since sums of integers are exact: the result is the same to the
last byte for any number of partitions, any split of the input and any order of rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mapreduce import BadJob, Dataset, Stage, job

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

UNITS = 1 << 60
PASSED_ON = 1 << 20  # links along which ranks are passed on before what reaches the same node is added up


@dataclass(frozen=True, kw_only=True)
class Rank:
    """How a node's rank follows from what reached it and from the totals of all nodes."""

    damping: float

    def of(self, sums: npt.NDArray[np.int64], totals: pa.Table) -> npt.NDArray[np.int64]:
        """Return ranks in UNITS; ``sums`` are too."""
        import numpy as np

        nodes, reached = (totals.column(name)[0].as_py() for name in ("nodes", "number"))
        fresh = ((1 - self.damping) * UNITS + self.damping * (UNITS - reached)) / nodes
        ranks: npt.NDArray[np.int64] = np.rint(fresh + self.damping * sums).astype(np.int64)
        return ranks

    def spread(self, batches: Iterable[pa.RecordBatch], *, side: Any) -> Iterator[pa.RecordBatch]:
        """Join sums and links: each node passes its rank on in equal shares, and 0 to itself, to stay in the plan."""
        import numpy as np
        import pyarrow as pa

        reached: list[pa.Array] = []
        shares: list[npt.NDArray[np.int64]] = []
        schema = None
        for batch in whole_nodes(batches):
            begins, links, schema = is_sum(batch), batch.column("links"), batch.schema
            degrees = np.add.reduceat(count_links(links), begins)
            ranks = self.of(batch.column("number").to_numpy()[begins], side["totals"])
            reached += [links.flatten(), batch.column("node").take(pa.array(begins))]
            shares += [np.repeat(ranks // np.maximum(degrees, 1), degrees), np.zeros(len(begins), np.int64)]
            if sum(map(len, shares)) >= PASSED_ON:
                yield sums_alike(reached, shares, schema)
                reached, shares = [], []
        if shares:
            yield sums_alike(reached, shares, schema)

    def change(self, batches: Iterable[pa.RecordBatch], *, side: Any) -> Iterator[pa.RecordBatch]:
        """Add up how far the ranks moved; the rows of a node are its old and its new sum."""
        import numpy as np
        import pyarrow as pa

        moved, left = 0, np.zeros(0, np.int64)
        for batch in batches:
            sums = np.concatenate([left, batch.column("number").to_numpy()])
            pairs = len(sums) // 2 * 2
            old, new = self.of(sums[:pairs:2], side["before"]), self.of(sums[1:pairs:2], side["totals"])
            moved += int(np.abs(new - old).sum())
            left = sums[pairs:]
        yield pa.RecordBatch.from_arrays([pa.array([moved], pa.int64())], names=["moved"])

    def show(self, batch: pa.RecordBatch, *, side: Any) -> pa.RecordBatch:
        """Return the ranks as fractions of 1."""
        import pyarrow as pa

        ranks = self.of(batch.column("number").to_numpy(), side["totals"]) / UNITS
        return pa.RecordBatch.from_arrays([batch.column("node"), pa.array(ranks)], names=["node", "rank"])


def is_sum(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the rows that are sums: they have no links and are the join's first input, so each comes before its node's links."""
    import numpy as np

    return np.flatnonzero(batch.column("links").is_null().to_numpy(zero_copy_only=False))


def count_links(links: pa.Array) -> npt.NDArray[np.int64]:
    """Return the length of each list of links, 0 where there is none."""
    import numpy as np
    import pyarrow.compute as pc

    return pc.list_value_length(links).fill_null(0).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def list_links(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make one row of the links of a node that stand together; where a batch ends in between, it has another."""
    import numpy as np
    import pyarrow as pa

    from mapreduce.order import group_boundaries

    for batch in batches:
        begins = group_boundaries(batch, ["node"])
        edges = pa.array(np.append(begins, batch.num_rows).astype(np.int32))
        nodes, targets = batch.column("node").take(pa.array(begins)), batch.column("target")
        links = pa.ListArray.from_arrays(edges, targets)
        zeros = pa.array(np.zeros(len(begins), np.int64))
        yield pa.RecordBatch.from_arrays([nodes, links, zeros], names=["node", "links", "number"])


def whole_nodes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut a sorted stream where nodes begin, so that a node's links are in one batch."""
    from mapreduce.gather import concat

    held: list[pa.RecordBatch] = []
    for batch in batches:
        begins = is_sum(batch)
        if len(begins):
            if rows := [b for b in (*held, batch.slice(0, begins[-1])) if b.num_rows]:
                yield concat(rows)
            held, batch = [], batch.slice(begins[-1])
        held.append(batch)
    if held:
        yield concat(held)


def add_alike(nodes: pa.Array, numbers: npt.NDArray[np.int64]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Add the numbers of equal nodes where that is cheap: integers that lie close together.  Others wait for the shuffle."""
    import numpy as np
    import pyarrow as pa

    if not pa.types.is_integer(nodes.type) or not len(nodes):
        return nodes, numbers
    names = nodes.to_numpy()
    least, most = int(names.min()), int(names.max())
    if most - least > 8 * len(names):
        return nodes, numbers
    there, sums = np.zeros(most - least + 1, np.bool_), np.zeros(most - least + 1, np.int64)
    there[names - least] = True
    np.add.at(sums, names - least, numbers)
    found = np.flatnonzero(there)
    return pa.array(found + least), sums[found]


def sums_alike(nodes: list[pa.Array], numbers: list[npt.NDArray[np.int64]], schema: Any) -> pa.RecordBatch:
    """Return rows of sums, equal nodes added up where that is cheap."""
    import numpy as np
    import pyarrow as pa

    found, sums = add_alike(pa.concat_arrays(nodes), np.concatenate(numbers))
    columns = [found, pa.nulls(len(found), schema.field("links").type), pa.array(sums)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def ends(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Return the nodes at both ends of links, which nothing has reached yet."""
    import numpy as np

    for nodes in (batch.column("node"), batch.column("links").flatten()):
        yield sums_alike([nodes], [np.zeros(len(nodes), np.int64)], batch.schema)


def add_up(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the number of nodes of a batch and what reached them together."""
    import pyarrow as pa

    reached = int(batch.column("number").to_numpy().sum())
    return pa.RecordBatch.from_arrays([[0], [batch.num_rows], [reached]], names=["all", "nodes", "number"])


@job
def pagerank(
    edges: Dataset,
    *,
    rounds: int = 10,
    tolerance: float | None = None,
    damping: float = 0.85,
    names: str = "auto",
    partitions: int = 4,
) -> Dataset | Generator[Dataset, list[Any], Dataset]:
    """Rank the nodes of a graph given as lines "source target": rounds=N, or until tolerance; sum 1."""
    import pyarrow as pa

    from jobs.edges import edge_reader, node_type

    if rounds < 1:
        raise BadJob(f"job 'pagerank': rounds must be >= 1, got {rounds}")
    if not 0 <= damping < 1:
        raise BadJob(f"job 'pagerank': damping must be from 0 to below 1, got {damping}")
    kind = node_type(edges, names, "pagerank")
    read = edge_reader(kind)
    rank = Rank(damping=damping)
    edge = pa.schema([("node", kind), ("target", kind)])
    schema = pa.schema([("node", kind), ("links", pa.list_(kind)), ("number", pa.int64())])

    def to_edges(batch: pa.RecordBatch, *, counters: Any) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(read(batch.column("line"), counters)), schema=edge)

    def sums_of(data: Dataset, name: str, **more: Any) -> Dataset:
        folds = {"number": "sum"}  # no row has links
        return Stage(
            name=name, keys=["node"], aggregate=folds, partitions=partitions, keeps_keys=True, **more
        )(data)

    def totals_of(sums: Dataset) -> Dataset:
        counts = pa.schema([("all", pa.int64()), ("nodes", pa.int64()), ("number", pa.int64())])
        folds = {"nodes": "sum", "number": "sum"}
        return Stage(
            name="totals", map_batch=add_up, schema=counts, keys=["all"], aggregate=folds, partitions=1
        )(sums)

    links = Stage(
        name="links",
        map_batch=to_edges,
        schema=edge,
        keys=["node"],
        reduce_batch=list_links,
        output_schema=schema,
        partitions=partitions,
        keeps_keys=True,
    )(edges.lines())
    sums = sums_of(links, "nodes", map_batch=ends)
    totals = totals_of(sums)

    def next_round() -> Dataset:
        passed_on = Stage(
            name="spread",
            keys=["node"],
            side={"totals": totals},
            reduce_batch=rank.spread,
            partitions=partitions,
        )(sums, links)
        return sums_of(passed_on, "sum")

    def ranks() -> Dataset:
        shown = pa.schema([("node", kind), ("rank", pa.float64())])
        return Stage(name="ranks", map_batch=rank.show, schema=shown, side={"totals": totals})(sums)

    def until(tolerance: float) -> Generator[Dataset, list[Any], Dataset]:
        nonlocal sums, totals
        for _ in range(rounds):
            old, before = sums, totals
            sums = next_round()
            totals = totals_of(sums)
            moved = yield Stage(
                name="change",
                keys=["node"],
                side={"before": before, "totals": totals},
                reduce_batch=rank.change,
                output_schema=pa.schema([("moved", pa.int64())]),
                partitions=partitions,
            )(old, sums)
            if sum(part for (part,) in moved) < tolerance * UNITS:
                break
        return ranks()

    if tolerance is not None:
        return until(tolerance)
    for _ in range(rounds):
        sums = next_round()
        totals = totals_of(sums)
    return ranks()
