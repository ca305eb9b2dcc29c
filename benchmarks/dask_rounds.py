"""Plain dask on two threads, blocks in numpy: ``python dask_rounds.py gradient INPUT OUTPUT TIMES``; also kmeans, pagerank.

Blocks are read once and stay; each round is a graph of one task per block and a sum.  TIMES gets the seconds of each round.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import dask
import numpy as np
from blocks import (
    Descent,
    add_all,
    add_up,
    first_centres,
    merge_moments,
    merge_samples,
    moments,
    move,
    number_links,
    parts_of,
    ranks_of,
    read_edges,
    read_points,
    sample,
    split_edges,
    split_nodes,
)  # fmt: skip
from rounds import DAMPING, PARTITIONS, RATE, ROUNDS, K, write_rounds

dask.config.set(scheduler="threads", num_workers=2)


def fold(add: Any, values: list[Any]) -> Any:
    """Return one delayed value: neighbours first, then neighbours of those."""
    while len(values) > 1:
        values = [
            dask.delayed(add)(*values[at : at + 2]) if at + 1 < len(values) else values[at]
            for at in range(0, len(values), 2)
        ]
    return values[0]


def gradient(source: str) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Train logistic regression."""
    blocks = list(dask.persist(*(dask.delayed(read_points)(part) for part in parts_of(source))))
    found = fold(merge_moments, [dask.delayed(moments)(block) for block in blocks])
    descent = Descent.start(found.compute(), RATE)
    ends = [time.perf_counter()]
    for _ in range(ROUNDS):
        total = fold(np.add, [dask.delayed(descent.gradient)(block) for block in blocks])
        descent = descent.step(total.compute())
        ends.append(time.perf_counter())
    return descent.result(), ends


def kmeans(source: str) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Find centres."""
    blocks = list(dask.persist(*(dask.delayed(read_points)(part) for part in parts_of(source))))
    found = fold(merge_samples, [dask.delayed(sample)(block) for block in blocks])
    centres = first_centres(found.compute(), K)
    ends = [time.perf_counter()]
    for _ in range(ROUNDS):
        sums = fold(np.add, [dask.delayed(add_up)(centres, block) for block in blocks])
        centres = move(centres, sums.compute())
        ends.append(time.perf_counter())
    return [(number, *centre.tolist()) for number, centre in enumerate(centres)], ends


def pagerank(source: str) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Rank the nodes of a graph."""
    edges = [dask.delayed(read_edges)(part) for part in parts_of(source)]
    cut = [
        (
            dask.delayed(dict)(dask.delayed(split_edges)(each, PARTITIONS)),
            dask.delayed(dict)(dask.delayed(split_nodes)(each, PARTITIONS)),
        )
        for each in edges
    ]
    nodes = [
        dask.delayed(np.unique)(dask.delayed(np.concatenate)([there[at] for _, there in cut]))
        for at in range(PARTITIONS)
    ]
    links = [dask.delayed(number_links)([here[at] for here, _ in cut], at, nodes) for at in range(PARTITIONS)]
    *links, names = dask.persist(*links, dask.delayed(list)(nodes))
    held = names.compute()
    sizes = [len(each) for each in held]
    sums, reached = [np.zeros(size) for size in sizes], 0.0
    ends = [time.perf_counter()]
    for _ in range(ROUNDS):
        spread = [
            dask.delayed(each.spread)(here, reached, sizes, DAMPING)
            for each, here in zip(links, sums, strict=True)
        ]
        sums = list(
            dask.compute(
                *(dask.delayed(add_all)([given[at] for given in spread]) for at in range(PARTITIONS))
            )
        )
        reached = float(sum(each.sum() for each in sums))
        ends.append(time.perf_counter())
    ranks = [ranks_of(each, reached, sum(sizes), DAMPING) for each in sums]
    return [
        pair for names, each in zip(held, ranks, strict=True)
        for pair in zip(names.tolist(), each.tolist(), strict=True)
    ], ends  # fmt: skip


def pagerank_frames(source: str) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Rank the nodes of a graph as a join and a sum of data frames, which says it in fewer words than arrays do."""
    import dask.dataframe as dd

    edges = dd.read_csv(source, sep="\t", header=None, names=["node", "target"], blocksize="16MiB")
    degrees = edges.groupby("node").size(split_out=PARTITIONS).rename("degree").reset_index()
    links = edges.merge(degrees, on="node").shuffle("node", npartitions=PARTITIONS).persist()
    both = dd.concat([edges.node, edges.target.rename("node")])
    nodes = both.drop_duplicates(split_out=PARTITIONS).to_frame()
    nodes = nodes.shuffle("node", npartitions=PARTITIONS).persist()
    count = len(nodes)
    ranks = nodes.assign(rank=1 / count).persist()
    ends = [time.perf_counter()]
    for _ in range(ROUNDS):
        joined = links.merge(ranks, on="node")
        passed = joined.assign(share=joined["rank"] / joined["degree"])[["target", "share"]]
        sums = passed.groupby("target").share.sum(split_out=PARTITIONS)
        sums = sums.reset_index().rename(columns={"target": "node"})
        reached = nodes.merge(sums, on="node", how="left").fillna({"share": 0.0}).persist()
        total = float(reached.share.sum().compute())
        ranked = reached.assign(rank=ranks_of(reached.share, total, count, DAMPING))
        ranks = ranked[["node", "rank"]].persist()
        ends.append(time.perf_counter())
    return list(ranks.compute().itertuples(index=False, name=None)), ends


WORKS = {"gradient": gradient, "kmeans": kmeans, "pagerank": pagerank, "pagerank-frames": pagerank_frames}

if __name__ == "__main__":
    rows, ends = WORKS[sys.argv[1]](sys.argv[2])
    write_rounds(rows, ends, output=sys.argv[3], times=sys.argv[4])
