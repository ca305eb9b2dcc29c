"""Reading a file: verified bytes, from another replica where one is bad.

A reader sees the file as it was when it was opened. It never returns fewer bytes than there are: what
no replica can give is an error that names the file and the chunk.
"""

import errno
import io
import os
from typing import TYPE_CHECKING, Any

from gfs_sim.chunks import Chunk
from gfs_sim.errors import ChunkLost, FileReplaced
from gfs_sim.master import FileView, Master
from gfs_sim.server import BadReplica, Replica

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BUFFER_BYTES = 256 << 10
OPEN_REPLICAS = 4
"""Replicas a reader keeps open, for jumps to and fro."""


class ChunkReader(io.RawIOBase):
    """The unbuffered reader of one file. One thread at a time."""

    def __init__(self, master: Master, view: FileView) -> None:
        super().__init__()
        self.view = view
        self.master = master
        self._position = 0
        self._open: dict[int, Replica] = {}

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether ``seek`` works."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a position, which may lie past the end."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.view.size}.get(whence)
        if base is None:
            raise ValueError(f"whence must be 0, 1 or 2, got {whence}")
        if base + offset < 0:
            raise OSError(errno.EINVAL, "seek before the start of the file", self.view.path)
        self._position = base + offset
        return self._position

    def readinto(self, target: "WriteableBuffer", /) -> int:
        """Fill ``target`` as far as the file goes; a short count means the end of the file, and nothing else."""
        view = memoryview(target).cast("B")
        take = self.read_at(self._position, view)
        self._position += take
        return take

    def readall(self) -> bytes:
        """Return the rest of the file."""
        buffer = bytearray(max(0, self.view.size - self._position))
        self.readinto(buffer)
        return bytes(buffer)

    def read_at(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` from ``offset`` on and return the bytes; the position stays."""
        if self.closed:
            raise ValueError("read of closed file")
        size = max(0, min(len(target), self.view.size - offset))
        done = 0
        while done < size:
            number, start = divmod(offset + done, self.view.chunk_bytes)
            take = min(size - done, self.view.chunks[number].length - start)
            self._read_chunk(number, start, target[done : done + take])
            done += take
        return size

    def _read_chunk(self, number: int, start: int, target: memoryview) -> None:
        replica = self._open.get(number)
        if replica is not None:
            try:
                replica.read_into(start, target)
                return
            except BadReplica as bad:
                self._drop(number)
                self.master.report(self.view.chunks[number].handle, replica.server, bad)
        failures: dict[str, BadReplica] = {}
        # The locations may change while they are tried (a repair, a server drained); new ones are tried as well.
        while True:
            chunk = self._locate(number)
            untried = [server for server in chunk.servers if server not in failures]
            if not untried:
                raise self._lost(number, failures)
            # Processes start at different replicas, to spread their reads.
            untried.sort(key=lambda server: hash((os.getpid(), server)))
            for server in untried:
                try:
                    self._open_replica(number, server).read_into(start, target)
                    return
                except BadReplica as bad:
                    self._drop(number)
                    failures[server] = bad
                    self.master.report(chunk.handle, server, bad)

    def _locate(self, number: int) -> Chunk:
        known = self.view.chunks[number]
        chunk = self.master.locate(known.handle)
        if chunk is None:
            raise FileReplaced(
                f"{self.view.path} was replaced or removed while it was read, and its old bytes are gone; open it again"
            )
        return Chunk(known.handle, known.version, known.length, chunk.servers)

    def _open_replica(self, number: int, server: str) -> Replica:
        while len(self._open) >= OPEN_REPLICAS:
            self._drop(next(iter(self._open)))
        self._open[number] = self.master.open_replica(server, self.view.chunks[number])
        return self._open[number]

    def _lost(self, number: int, failures: dict[str, BadReplica]) -> ChunkLost:
        tried = "; ".join(f"{server}: {bad.kind}, {bad.detail}" for server, bad in failures.items())
        return ChunkLost(
            f"{self.view.path}: chunk {number} (handle {self.view.chunks[number].handle:016x}) has no good replica"
            f" ({tried or 'all are known to be bad, or their servers are gone'}); see `mr fs fsck`"
        )

    def _drop(self, number: int) -> None:
        replica = self._open.pop(number, None)
        if replica is not None:
            replica.close()

    def close(self) -> None:
        """Close the replicas."""
        while self._open:
            self._open.popitem()[1].close()
        super().close()


class StoreReader(io.BufferedReader):
    """A file open for reading, as ``open(path, "rb")`` returns it; it can be pickled."""

    raw: ChunkReader

    def __init__(self, raw: ChunkReader, *, fs: Any, buffer_bytes: int = BUFFER_BYTES) -> None:
        super().__init__(raw, buffer_bytes)
        self.fs = fs
        self.path = raw.view.path
        self.size = raw.view.size
        self.blocksize = buffer_bytes

    @property
    def mode(self) -> str:
        """The mode it was opened with."""
        return "rb"

    @property
    def full_name(self) -> str:
        """The file's URL."""
        return str(self.fs.unstrip_protocol(self.path))

    def info(self) -> dict[str, Any]:
        """Return the file's information now."""
        return dict(self.fs.info(self.path))

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, fewer only at the end of the file."""
        if size is None or size < 0:
            # A known size is read straight into the result.
            size = max(0, self.size - self.tell())
        return super().read(size)

    def __reduce__(self) -> Any:
        return _reopen, (self.fs, self.path, self.tell())

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        return self.__reduce__()


def _reopen(fs: Any, path: str, position: int) -> Any:
    file = fs.open(path, "rb")
    file.seek(position)
    return file
