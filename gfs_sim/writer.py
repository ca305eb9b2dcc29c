"""Writing a file: bytes go to the chunk files as they arrive, the name appears at ``close``.

Before that nothing is visible, and if the writer raises, dies or is dropped nothing ever is. Record
append and mode "ab" are elsewhere (``append``).
"""

import contextlib
import errno
import io
import os
import sys
import warnings
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gfs_sim.checksum import Sums, add_blocks
from gfs_sim.chunks import Chunk
from gfs_sim.errors import LeaseLost
from gfs_sim.master import Master, SealedChunk, Target
from gfs_sim.server import create_replica, replica_path, sync_folder_of, write_all, write_sums
from gfs_sim.unwinding import unwinding
from gfs_sim.upkeep import step

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PIECE_BYTES = 512 << 10
"""Summed, then written, while it is in the processor's cache."""
BUFFER_BYTES = 256 << 10


class OpenChunk:
    """A new chunk being written to all its replicas. A replica that fails is dropped while another is left."""

    def __init__(self, master: Master, chunk: Chunk) -> None:
        self.handle = chunk.handle
        self.length = 0
        self._master = master
        self._version = chunk.version
        self._sums = array("I")
        self._files: dict[str, int] = {}
        try:
            self._on_each(chunk.servers, self._create)
        except BaseException:
            self.close()
            raise

    def _create(self, server: str) -> None:
        self._files[server] = create_replica(self._master.folder, server, self.handle)

    def _on_each(self, servers: Sequence[str], action: Callable[[str], None]) -> None:
        for number, server in enumerate(servers):
            try:
                action(server)
            except OSError as error:
                fd = self._files.pop(server, -1)
                if fd >= 0:
                    os.close(fd)
                if not self._files and number == len(servers) - 1:
                    raise
                self._master.note("write failed", server, self.handle, str(error))

    def append(self, data: memoryview) -> None:
        """Add bytes to every replica; OSError when none is left."""
        while data:
            piece, data = data[:PIECE_BYTES], data[PIECE_BYTES:]
            add_blocks(self._sums, self.length, piece)
            self._on_each(list(self._files), partial(self._write, piece))
            self.length += len(piece)

    def seal(self) -> SealedChunk:
        """Write the sums and close the files."""
        sums = Sums(version=self._version, length=self.length, blocks=self._sums)
        self._on_each(list(self._files), partial(self._seal, sums))
        servers = tuple(self._files)
        self.close()
        return SealedChunk(handle=self.handle, length=self.length, servers=servers)

    def _write(self, data: memoryview, server: str) -> None:
        write_all(self._files[server], data)

    def _seal(self, sums: Sums, server: str) -> None:
        durable = self._master.durable
        if durable:
            os.fsync(self._files[server])
        write_sums(self._master.folder, server, self.handle, sums, fresh=True, durable=durable)
        if durable:
            sync_folder_of(replica_path(self._master.folder, server, self.handle))

    def close(self) -> None:
        """Close the files; what was written stays where it is."""
        while self._files:
            os.close(self._files.popitem()[1])


class ChunkWriter(io.RawIOBase):
    """The unbuffered writer of one new file."""

    def __init__(
        self, master: Master, target: Target, *, exclusive: bool = False, autocommit: bool = True
    ) -> None:
        super().__init__()
        self.target = target
        self.size = 0
        self.state = "open"  # then sealed, then published; or discarded
        self._master = master
        self._exclusive = exclusive
        self._autocommit = autocommit
        self._chunk: OpenChunk | None = None
        self._allocated: list[Chunk] = []
        self._sealed: list[SealedChunk] = []
        self._process = os.getpid()

    def writable(self) -> bool:
        """Whether it can be written to."""
        return not self.closed

    def tell(self) -> int:
        """Return the bytes written."""
        return self.size

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write all of ``data``; an error (a full disk, say) discards the file and is raised."""
        if self.closed:
            raise ValueError("write to closed file")
        view = memoryview(data).cast("B")
        size = len(view)
        if self.state == "discarded":
            return size  # the buffer's last flush, on the way to close
        if os.getpid() != self._process:
            raise OSError(
                errno.EBADF, "a file opened for writing before a fork belongs to the parent", self.target.path
            )
        try:
            while view:
                if self._chunk is None:
                    chunk = self._master.new_chunk(self.target, self._sealed[-1] if self._sealed else None)
                    self._allocated.append(chunk)
                    self._chunk = OpenChunk(self._master, chunk)
                room = self.target.chunk_bytes - self._chunk.length
                self._chunk.append(view[:room])
                view = view[room:]
                if self._chunk.length == self.target.chunk_bytes:
                    self._seal_chunk()
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError) and error.filename is None:
                error.filename = self.target.path
            raise
        self.size += size
        return size

    def _seal_chunk(self) -> None:
        if self._chunk is not None:
            self._sealed.append(self._chunk.seal())
            self._chunk = None

    def seal(self) -> None:
        """Finish the chunks; nothing is visible yet."""
        if self.state == "open":
            try:
                self._seal_chunk()
            except BaseException:
                self.discard()
                raise
            self.state = "sealed"

    def commit(self) -> None:
        """Publish the file under its name, whole; on an error nothing is published and its chunks are removed."""
        self.seal()
        if self.state != "sealed":
            raise LeaseLost(f"{self.target.path}: the file was discarded and cannot be published")
        try:
            self._master.publish(self.target, self._sealed, exclusive=self._exclusive)
        except BaseException:
            self.discard()
            raise
        self.state = "published"
        step(self._master)

    def discard(self) -> None:
        """Throw away what was written; harmless twice, after ``commit``, and in a forked child."""
        if self.state in ("published", "discarded") or os.getpid() != self._process:
            return
        self.state = "discarded"
        if self._chunk is not None:
            self._chunk.close()
            self._chunk = None
        if self._allocated:
            # The metadata of a full disk cannot be written; then the rows go when this process has ended.
            with contextlib.suppress(OSError):
                self._master.abandon(self._allocated)

    def close(self) -> None:
        """Publish the file (or leave that to ``commit``, in an fsspec transaction)."""
        if self.closed:
            return
        try:
            if self.state == "open" and os.getpid() == self._process:
                if self._autocommit:
                    self.commit()
                else:
                    self.seal()
        finally:
            super().close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self.state == "open":
                self.discard()
            super().close()


class StoreWriter(io.BufferedWriter):
    """A file open for writing, as ``open(path, "wb")`` returns it.

    It is published by ``close``. It is discarded if a ``with`` block that closes it raised, by
    ``discard``, and when it is dropped without being closed.
    """

    raw: ChunkWriter

    def __init__(self, raw: ChunkWriter, *, fs: Any, path: str, mode: str) -> None:
        super().__init__(raw, BUFFER_BYTES)
        self.fs = fs
        self.path = path
        self._mode = mode
        self._known = sys.exc_info()[1]
        self.blocksize = BUFFER_BYTES

    @property
    def mode(self) -> str:
        """The mode it was opened with."""
        return self._mode

    @property
    def full_name(self) -> str:
        """The file's URL."""
        return str(self.fs.unstrip_protocol(self.path))

    @property
    def size(self) -> int:
        """The bytes written so far."""
        return self.tell()

    def close(self) -> None:
        """Publish the file, or discard it if an exception is leaving a ``with`` block."""
        if not self.closed and unwinding(self._known):
            self.raw.discard()
        super().close()

    def commit(self) -> None:
        """Publish a file written in an fsspec transaction."""
        self.raw.commit()

    def discard(self) -> None:
        """Close the file and throw it away."""
        self.raw.discard()
        super().close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.raw.discard()
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if not self.closed:
                if self.raw.state == "open" and self.raw._process == os.getpid():
                    warnings.warn(
                        f"{self.path} was never closed; it is discarded",
                        ResourceWarning,
                        stacklevel=2,
                        source=self,
                    )
                self.discard()
