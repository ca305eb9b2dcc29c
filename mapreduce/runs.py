"""Run files: the sorted rows of one spill, cut by partition, on a worker's local disk.

A file is a sequence of Arrow IPC record batch messages (*blocks*), those of partition 0 first, then the index: one
row of five int64 per block (partition, offset, bytes, rows, CRC-32C).  A ``Run`` says where the index begins, so a
reader opens the file, reads the index with one call and then any span of blocks with one call each.  The schema is
not in the file; writer and reader have it from the job.

A run promises the order of its rows inside a partition.  It is not durable: it dies with the worker's disk, and the
map task is run again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from mapreduce import cluster_runs
from mapreduce.errors import Damaged
from mapreduce.meter import current_meter, timing

BLOCK_BYTES = 512 << 10
_INDEX_FIELDS = 5
_SEARCHED_BLOCKS = 1 << 11
_LEAST_HOLE_BYTES = 1 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # fallocate(2)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run file; ``rows`` and ``bytes`` per partition.  Merge ties go by ``order``: (input, split, spill).

    ``at`` is where a reader on another machine gets it, if it is given out at all.
    """

    path: str
    order: tuple[int, ...]
    rows: tuple[int, ...]
    bytes: tuple[int, ...]
    index_offset: int
    blocks: int
    at: str = ""


class RunWriter:
    """Writes one run file; partitions in ascending order."""

    def __init__(self, path: str, order: tuple[int, ...], partitions: int) -> None:
        self.path, self.order = path, order
        self.rows, self.bytes = [0] * partitions, [0] * partitions
        self.index: list[tuple[int, int, int, int, int]] = []
        self.offset = 0
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, partition: int, batch: pa.RecordBatch) -> None:
        """Append one block to ``partition``."""
        with timing("serialise"):
            message = batch.serialize()
        with timing("shuffle"):
            _write_whole(self.file, memoryview(message))
            checksum = crc32c(message)
        meter = current_meter()
        if meter is not None:
            meter.shuffle_bytes += message.size
        self.index.append((partition, self.offset, message.size, batch.num_rows, checksum))
        self.offset += message.size
        self.rows[partition] += batch.num_rows
        self.bytes[partition] += message.size

    def close(self) -> Run:
        """Write the index and return the run."""
        index = np.array(self.index, np.int64).reshape(-1, _INDEX_FIELDS)
        _write_whole(self.file, memoryview(index.tobytes()))
        os.close(self.file)
        self.file = -1
        return Run(
            path=self.path,
            order=self.order,
            rows=tuple(self.rows),
            bytes=tuple(self.bytes),
            index_offset=self.offset,
            blocks=len(self.index),
            at=cluster_runs.served_at,
        )

    def abort(self) -> None:
        """Remove the unfinished file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        os.unlink(self.path)


def _write_whole(file: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(file, data) :]


def write_run(
    path: str, order: tuple[int, ...], partitions: int, blocks: Iterable[tuple[int, pa.RecordBatch]]
) -> Run:
    """Write ``(partition, batch)`` blocks to a run file; nothing is left of it when that fails."""
    writer = RunWriter(path, order, partitions)
    try:
        for partition, batch in blocks:
            if batch.num_rows:
                writer.write(partition, batch)
        return writer.close()
    except BaseException:
        writer.abort()
        raise


class RunReader:
    """Reads the blocks of one partition of a run, in order.

    Raises:
        Damaged: the file is gone, cut short, or not what was written.
    """

    def __init__(self, run: Run, partition: int, schema: pa.Schema) -> None:
        self.run, self.schema = run, schema
        self.file = -1
        self.remote: cluster_runs.RemoteRun | None = None
        try:
            self.file = os.open(run.path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            self.remote = _open_elsewhere(run)
        try:
            self.index = self._read_index(partition)
        except BaseException:
            self.close()
            raise
        self.next_block = 0

    def _read_index(self, partition: int) -> npt.NDArray[np.int64]:
        first, stop = 0, self.run.blocks
        if stop > _SEARCHED_BLOCKS:
            # Read whole for each of many partitions, indexes would cost more than blocks.
            first, stop = self._first_block(partition), self._first_block(partition + 1)
        index = self._index_rows(first, stop - first)
        found: npt.NDArray[np.int64] = index[index[:, 0] == partition]
        if int(found[:, 3].sum()) != self.run.rows[partition]:
            raise _damaged(
                self.run, f"has an index of partition {partition} that does not match; run its map task again"
            )
        return found

    def _first_block(self, partition: int) -> int:
        """Return the number of the first block whose partition is not smaller; they are in order."""
        low, high = 0, self.run.blocks
        while low < high:
            middle = (low + high) // 2
            if self._index_rows(middle, 1)[0, 0] < partition:
                low = middle + 1
            else:
                high = middle
        return low

    def _index_rows(self, first: int, count: int) -> npt.NDArray[np.int64]:
        row_bytes = 8 * _INDEX_FIELDS
        raw = self._pread(self.run.index_offset + first * row_bytes, count * row_bytes)
        return np.frombuffer(raw, np.int64).reshape(-1, _INDEX_FIELDS)

    @property
    def exhausted(self) -> bool:
        """Whether no block is left to read."""
        return self.next_block >= len(self.index)

    @property
    def largest_block_bytes(self) -> int:
        """Bytes of the largest block of the partition."""
        return int(self.index[:, 2].max()) if len(self.index) else 0

    @property
    def next_block_bytes(self) -> int:
        """Bytes of the block that ``read`` begins with; 0 at the end."""
        return 0 if self.exhausted else int(self.index[self.next_block, 2])

    def read(self, wanted_bytes: int) -> Iterator[pa.RecordBatch]:
        """Read the next blocks, at least one and about ``wanted_bytes``, with one call to the system."""
        ahead = self.index[self.next_block :]
        if len(ahead) == 0:
            return
        count = max(int(np.searchsorted(np.cumsum(ahead[:, 2]), wanted_bytes, "right")), 1)
        taken = ahead[:count]
        start = int(taken[0, 1])
        stop = int(taken[-1, 1] + taken[-1, 2])
        with timing("shuffle"):
            data = self._pread(start, stop - start)
        meter = current_meter()
        if meter is not None:
            meter.count_fetched(stop - start, self.run.path)
        self.next_block += count
        if self.exhausted:
            self.close()
        buffer = pa.py_buffer(data)
        for _, offset, size, rows, checksum in taken.tolist():
            block = buffer.slice(offset - start, size)
            with timing("shuffle"):
                is_whole = crc32c(block) == checksum
            if not is_whole:
                raise _damaged(
                    self.run, f"at byte {offset}: the checksum of the block is wrong; run its map task again"
                )
            try:
                with timing("serialise"):
                    batch = pa.ipc.read_record_batch(block, self.schema)
            except (pa.ArrowInvalid, OSError) as error:
                raise _damaged(self.run, f"at byte {offset}: {error}; run its map task again") from error
            if batch.num_rows != rows:
                raise _damaged(self.run, f"at byte {offset}: {batch.num_rows} rows, index says {rows}")
            yield batch

    def _pread(self, offset: int, size: int) -> Any:
        data: Any = np.empty(size, np.uint8)
        view = memoryview(data)
        done = 0
        while done < size:
            got = self._read_into(view[done:], offset + done)
            if got == 0:
                raise _damaged(
                    self.run,
                    f"ends at byte {offset + done}, expected {offset + size}; run its map task again",
                )
            done += got
        return data

    def _read_into(self, view: memoryview, offset: int) -> int:
        if self.remote is None:
            return os.preadv(self.file, [view], offset)
        try:
            return self.remote.read_into(view, offset)
        except OSError as error:
            raise _damaged(self.run, f"cannot be fetched from {self.run.at}: {error}") from None

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self.remote is not None:
            self.remote.close()
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _open_elsewhere(run: Run) -> cluster_runs.RemoteRun:
    if not run.at:
        raise _damaged(run, "is gone; its map task has to run again")
    try:
        return cluster_runs.RemoteRun(run.at, run.path)
    except OSError as error:
        raise _damaged(run, f"cannot be fetched from {run.at} ({error}); run its map task again") from None


def _damaged(run: Run, what: str) -> Damaged:
    error = Damaged(f"run file {run.path} {what}")
    error.path = run.path
    return error


def give_back(runs: Iterable[Run], partition: int) -> None:
    """Give the disk space of one partition back to the system, where it can make holes in files (Linux).

    For a partition whose part is written.  Its pages are then at hand for the parts that are still to come.
    """
    fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if fallocate is None:
        return
    for run in runs:
        size = run.bytes[partition]
        if size >= _LEAST_HOLE_BYTES:
            with contextlib.suppress(OSError):
                file = os.open(run.path, os.O_WRONLY | os.O_CLOEXEC)
                start = ctypes.c_long(sum(run.bytes[:partition]))
                fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, start, ctypes.c_long(size))
                os.close(file)


def remove_runs(runs: Iterable[Run]) -> None:
    """Delete run files; one that is gone already is fine."""
    for run in runs:
        try:
            os.unlink(run.path)
        except FileNotFoundError:
            continue
