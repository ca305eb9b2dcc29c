"""PySpark on two local processes, blocks in numpy: ``python spark_rounds.py gradient INPUT OUTPUT TIMES``; also kmeans, pagerank.

Each record of an RDD is a block of numpy arrays, which ``cache`` keeps; PageRank's links and sums are partitioned alike, so that
their join moves nothing.  TIMES gets the seconds of each round as JSON.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from blocks import (
    Descent,
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
from pyspark import SparkConf, SparkContext
from rounds import DAMPING, PARTITIONS, RATE, ROUNDS, K, write_rounds


def gradient(spark: Any, source: str) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Train logistic regression."""
    parts = parts_of(source)
    blocks = spark.parallelize(parts, len(parts)).map(read_points).cache()
    descent = Descent.start(blocks.map(moments).reduce(merge_moments), RATE)
    ends = [time.perf_counter()]
    for _ in range(ROUNDS):
        descent = descent.step(blocks.map(descent.gradient).reduce(np.add))
        ends.append(time.perf_counter())
    return descent.result(), ends


def kmeans(spark: Any, source: str) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Find centres."""
    parts = parts_of(source)
    blocks = spark.parallelize(parts, len(parts)).map(read_points).cache()
    centres = first_centres(blocks.map(sample).reduce(merge_samples), K)
    ends = [time.perf_counter()]
    for _ in range(ROUNDS):
        centres = move(centres, blocks.map(lambda block, at=centres: add_up(at, block)).reduce(np.add))
        ends.append(time.perf_counter())
    return [(number, *centre.tolist()) for number, centre in enumerate(centres)], ends


def pagerank(spark: Any, source: str) -> tuple[list[tuple[Any, ...]], list[float]]:
    """Rank the nodes of a graph."""
    parts = parts_of(source)
    edges = spark.parallelize(parts, len(parts)).map(read_edges)
    found = (
        edges.flatMap(lambda each: split_nodes(each, PARTITIONS))
        .groupByKey(PARTITIONS)
        .mapValues(lambda arrays: np.unique(np.concatenate(list(arrays))))
        .collectAsMap()
    )
    nodes = [found[at] for at in range(PARTITIONS)]
    sizes = [len(each) for each in nodes]
    shared = spark.broadcast(nodes)

    def number(given: tuple[int, Any]) -> tuple[int, Any]:
        return given[0], number_links(given[1], given[0], shared.value)

    links = (
        edges.flatMap(lambda each: split_edges(each, PARTITIONS))
        .groupByKey(PARTITIONS)
        .map(number, preservesPartitioning=True)
        .cache()
    )
    sums = links.mapValues(lambda here: np.zeros(len(here.degrees))).cache()
    reached = sums.map(lambda pair: float(pair[1].sum())).sum()
    ends = [time.perf_counter()]
    for _ in range(ROUNDS):

        def spread(given: tuple[int, Any], before: float = reached) -> list[tuple[int, Any]]:
            here, there = given[1]
            return list(enumerate(here.spread(there, before, sizes, DAMPING)))

        old = sums
        sums = (links.join(sums, PARTITIONS).flatMap(spread).reduceByKey(np.add, PARTITIONS)).cache()
        reached = sums.map(lambda pair: float(pair[1].sum())).sum()
        old.unpersist()
        ends.append(time.perf_counter())
    ranked = [(at, ranks_of(each, reached, sum(sizes), DAMPING)) for at, each in sums.collect()]
    return [pair for at, each in ranked for pair in zip(nodes[at].tolist(), each.tolist(), strict=True)], ends


def main(work: str, source: str, output: str, times: str) -> None:
    """Start Spark, do the work, stop Spark."""
    # Its Python processes are to be this Python and to find blocks.py.
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(Path(__file__).parent))
    conf = SparkConf().setMaster("local[2]").setAppName(work)
    conf.set("spark.driver.memory", "6g").set("spark.ui.enabled", "false")
    conf.set("spark.driver.maxResultSize", "0")
    conf.set("spark.local.dir", str(Path(output).parent / "spark-scratch"))
    spark = SparkContext(conf=conf)
    spark.setLogLevel("ERROR")
    try:
        rows, ends = {"gradient": gradient, "kmeans": kmeans, "pagerank": pagerank}[work](spark, source)
        write_rounds(rows, ends, output=output, times=times)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
