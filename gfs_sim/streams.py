"""Streams around the store's files: a copy in large blocks, and a compressor that closes what it writes to."""

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gfs_sim.reader import ChunkReader, StoreReader
from gfs_sim.writer import StoreWriter

COPY_BYTES = 512 << 10
"""Large enough to hide Python's share, small enough for the processor's cache."""
COPY_THREADS = 2
"""Reading, checking and writing need a processor for twice as long as the kernel's own copy."""


def pour(source: StoreReader, target: Any, callback: Any) -> None:
    """Copy a file from its start to ``target`` in large blocks, telling fsspec's ``callback``."""
    buffer = memoryview(bytearray(COPY_BYTES))
    while count := source.raw.readinto(buffer):
        part = buffer[:count]
        while part:
            written = target.write(part)
            part = part[len(part) if written is None else written :]
        callback.relative_update(count)


def pour_chunks(source: StoreReader, fd: int, callback: Any) -> None:
    """Copy a file to the start of a local regular file, several chunks at once; the first error ends it."""
    view = source.raw.view
    lock = threading.Lock()
    offsets = iter(range(0, view.size, view.chunk_bytes))

    def copy_chunks() -> None:
        nonlocal offsets
        buffer = memoryview(bytearray(COPY_BYTES))
        with ChunkReader(source.raw.master, view) as reader:
            while True:
                with lock:
                    start = next(offsets, None)
                if start is None:
                    return
                for offset in range(start, min(start + view.chunk_bytes, view.size), COPY_BYTES):
                    stop = min(offset + COPY_BYTES, start + view.chunk_bytes)
                    part = buffer[: reader.read_at(offset, buffer[: stop - offset])]
                    while part:
                        written = os.pwrite(fd, part, offset)
                        part, offset = part[written:], offset + written
                        with lock:
                            callback.relative_update(written)

    with ThreadPoolExecutor(COPY_THREADS) as pool:
        copies = [pool.submit(copy_chunks) for _ in range(COPY_THREADS)]
        try:
            for each in copies:
                each.result()
        finally:
            with lock:
                offsets = iter(())  # after an error or an interrupt, the others stop at their next chunk


class CompressedWriter(io.BufferedIOBase):
    """A compressor that closes the file it writes to, which those of the standard library leave open."""

    def __init__(self, compressor: Any, inner: StoreWriter) -> None:
        self._compressor = compressor
        self._inner = inner

    def writable(self) -> bool:
        """Whether it can be written to."""
        return True

    def write(self, data: Any, /) -> int:
        """Compress all of ``data``."""
        count = self._compressor.write(data)
        return len(memoryview(data)) if count is None else int(count)

    def flush(self) -> None:
        """Pass on what the compressor holds."""
        if not self._compressor.closed:
            self._compressor.flush()

    def close(self) -> None:
        """End the compressed stream and publish the file."""
        if not self.closed:
            try:
                self._compressor.close()
                self._inner.close()
            finally:
                if not self._inner.closed:
                    self._inner.discard()
                super().close()

    def discard(self) -> None:
        """Throw the file away."""
        self._inner.discard()
        super().close()

    def __del__(self) -> None:
        if not self.closed:
            self.discard()
