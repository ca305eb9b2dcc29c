"""How to run a job, as opposed to what: one value, with the same meaning for every engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import BadJob

MIB = 1 << 20
MOST_WORKERS = 1 << 20  # more slots than any cluster has


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run, as opposed to what.

    Args:
        workers: worker processes, by default one per core; 0 runs every task in this process, one after the other (for a
            debugger).  With a ``scheduler`` at most so many, by default one per slot of its cluster.
        scheduler: address of a running Dask scheduler, such as ``tcp://host:8786``, whose cluster is to do the work.
        plan_for: splits and partitions are planned for so many workers, by default those that there are; a plan made for
            others gives other last digits to sums of floats.
        partitions: reduce tasks of stages that do not say; chosen from the input's size otherwise.
        memory_bytes: per worker process; below 256 MiB a ``combine`` of floats may give other last digits.
        split_bytes: largest piece of input for one map task.
        store: URL of the folder for intermediates, any that fsspec knows.
        store_options: for the store's filesystem, such as ``{"replication": 1}``.
        output_format: text, csv, jsonl, parquet or arrow.
        compression: gzip, bz2 or zstd for the output's parts.
        overwrite: replace an existing output, at the moment when the new one is complete.
        timeout_s: a worker that says nothing for so long is taken for dead.
        max_attempts: a task that failed so often fails the job.
        input_format, errors, delimiter, storage_options: how to read the input (see ``Source``).
    """

    workers: int = None  # type: ignore[assignment]  # until __post_init__
    scheduler: str | None = None
    plan_for: int | None = None
    partitions: int | None = None
    memory_bytes: int = 2048 * MIB
    split_bytes: int = 64 * MIB
    store: str = "gfs://"
    store_options: Mapping[str, Any] = field(default_factory=dict)
    output_format: str = "text"
    compression: str | None = None
    overwrite: bool = False
    timeout_s: float = 60.0
    max_attempts: int = 4
    input_format: str | None = None
    errors: str = "strict"
    delimiter: bytes = b"\n"
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def planned_workers(self) -> int:
        """For how many workers splits and partitions are planned."""
        return max(1, self.workers if self.plan_for is None else self.plan_for)

    def __post_init__(self) -> None:
        if self.workers is None:
            cores = len(os.sched_getaffinity(0))
            object.__setattr__(self, "workers", cores if self.scheduler is None else MOST_WORKERS)
        if self.scheduler is not None and "://" not in self.scheduler:
            raise BadJob(
                f"scheduler must be the address of one, such as tcp://host:8786, got {self.scheduler!r}"
            )
        if self.scheduler is not None and self.workers == 0:
            raise BadJob("0 workers run the job in this process, and a scheduler elsewhere: choose one")
        if self.workers < 0:
            raise BadJob(f"workers must be >= 0, got {self.workers}")
        if self.partitions is not None and self.partitions < 1:
            raise BadJob(f"partitions must be >= 1, got {self.partitions}")
        if self.memory_bytes < 64 * MIB:
            raise BadJob(f"memory must be at least 64 MiB per worker, got {self.memory_bytes} bytes")
        if self.split_bytes < 1:
            raise BadJob(f"split size must be >= 1 byte, got {self.split_bytes}")
