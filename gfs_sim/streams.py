"""Streams around the store's files: a copy in large blocks, and a compressor that closes what it writes to."""

import io
from typing import Any

from gfs_sim.reader import StoreReader
from gfs_sim.writer import StoreWriter

COPY_BYTES = 512 << 10
"""Large enough to hide Python's share, small enough for the processor's cache."""


def pour(source: StoreReader, target: Any, callback: Any) -> None:
    """Copy a file from its start to ``target`` in large blocks, telling fsspec's ``callback``."""
    buffer = memoryview(bytearray(COPY_BYTES))
    while count := source.raw.readinto(buffer):
        part = buffer[:count]
        while part:
            written = target.write(part)
            part = part[len(part) if written is None else written :]
        callback.relative_update(count)


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
