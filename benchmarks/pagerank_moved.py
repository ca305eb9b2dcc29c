"""The library's pagerank without what it says about its keys, so that every round moves the links anew."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from mapreduce import Dataset, job

library: Any = importlib.import_module("jobs.library.pagerank")


def forget_keys(data: Dataset, known: dict[Dataset, Dataset]) -> Dataset:
    """Return the same plan with stages of which nobody knows that they keep their keys."""
    if data.stage is None:
        return data
    if data not in known:
        side = {
            name: forget_keys(value, known) if isinstance(value, Dataset) else value
            for name, value in data.stage.side.items()
        }
        known[data] = Dataset(
            stage=replace(data.stage, keeps_keys=False, side=side),
            inputs=tuple(forget_keys(given, known) for given in data.inputs),
        )
    return known[data]


@job
def pagerank_moved(edges: Dataset, *, rounds: int = 10) -> Dataset:
    """Rank the nodes of a graph and move its links in every round."""
    return forget_keys(library.pagerank(edges, rounds=rounds), {})
