"""A chunk server: a folder of replicas, each a plain file beside its sums file.

Bytes are verified here before anybody gets them. Whether a replica is wanted is for the master to say;
names, leases and locations are not known here.
"""

import contextlib
import os
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

from gfs_sim import layout
from gfs_sim.checksum import BLOCK_BYTES, BadSums, Sums, add_blocks, first_bad_block

CLONE_BYTES = 1 << 20


class BadReplica(Exception):
    """A replica whose bytes, sums, length or version are wrong; ``kind`` is corrupt, missing or stale."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail


def replica_path(servers: Path, server: str, handle: int, suffix: str = layout.CHUNK_SUFFIX) -> str:
    """Return the path of a replica's file (``servers`` is the store's folder of servers)."""
    return f"{servers}/{server}/{layout.chunk_name(handle)}{suffix}"


def _open_new(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        # The HH folder may be new. The server's own folder is never made here: without it the server is gone.
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(path))
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _temporary(path: str) -> str:
    """Return a name nobody else writes to: two may clone to the same place at once."""
    return f"{path}.{os.getpid()}-{threading.get_ident()}{layout.TEMPORARY_SUFFIX}"


def write_all(fd: int, data: memoryview) -> None:
    """Write every byte of ``data``."""
    while data:
        data = data[os.write(fd, data) :]


def create_replica(servers: Path, server: str, handle: int) -> int:
    """Create an empty replica for writing and return its file descriptor."""
    return _open_new(replica_path(servers, server, handle), os.O_WRONLY | os.O_EXCL)


def sync_folder_of(path: str) -> None:
    """Have the names in a file's folder, and the folder's own name, on disk."""
    for folder in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def write_sums(
    servers: Path, server: str, handle: int, sums: Sums, *, fresh: bool = False, durable: bool = False
) -> None:
    """Write a replica's sums file; one that replaces another does so at once (``fresh``: there is none)."""
    path = replica_path(servers, server, handle, layout.SUMS_SUFFIX)
    target = path if fresh else _temporary(path)
    fd = _open_new(target, os.O_WRONLY | os.O_TRUNC)
    try:
        write_all(fd, memoryview(sums.encode()))
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    if not fresh:
        os.replace(target, path)
    if durable:
        sync_folder_of(path)


def read_sums(servers: Path, server: str, handle: int) -> Sums:
    """Return a replica's sums; BadReplica if they are missing or damaged."""
    path = replica_path(servers, server, handle, layout.SUMS_SUFFIX)
    try:
        with open(path, "rb", buffering=0) as file:
            return Sums.decode(file.read())
    except FileNotFoundError:
        raise BadReplica("missing", f"no {path}") from None
    except BadSums as error:
        raise BadReplica("corrupt", f"{path}: {error}") from None


def remove_replica(servers: Path, server: str, handle: int) -> tuple[int, int]:
    """Remove a replica's files, the sums last; return how many there were and their bytes."""
    count = size = 0
    for suffix in (layout.CHUNK_SUFFIX, layout.SUMS_SUFFIX):
        path = replica_path(servers, server, handle, suffix)
        try:
            length = os.stat(path).st_size
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        count += 1
        size += length
    return count, size


def scan_folder(servers: Path, server: str) -> Iterator[int]:
    """Yield every handle a server has any file of, once each."""
    try:
        shards = sorted(os.listdir(servers / server))
    except FileNotFoundError:
        return
    for shard in shards:
        try:
            names = os.listdir(servers / server / shard)
        except (NotADirectoryError, FileNotFoundError):
            continue
        handles = {layout.handle_of(name) for name in names}
        yield from sorted(handle for handle in handles if handle is not None)


class Replica:
    """A replica open for reading at a known version; every byte it returns has been verified."""

    def __init__(self, servers: Path, server: str, handle: int, *, version: int, length: int) -> None:
        """Open it; BadReplica if it is missing, damaged, older than ``version`` or shorter than ``length``."""
        self.server = server
        self._servers = servers
        self._handle = handle
        self._version = version
        self._length = length
        self._fd = -1
        self.sums = self._load()
        self.path = replica_path(servers, server, handle)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BadReplica("missing", f"no {self.path}") from None
        self._scratch = bytearray()
        self._scratch_block = -1

    def _load(self) -> Sums:
        sums = read_sums(self._servers, self.server, self._handle)
        if sums.version < self._version:
            raise BadReplica("stale", f"version {sums.version}, wanted {self._version}")
        if sums.length < self._length:
            raise BadReplica("stale", f"{sums.length} bytes, wanted {self._length}")
        return sums

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill ``target`` from ``offset`` on (within the length asked for); BadReplica if a checksum differs."""
        position, remaining = offset, target
        while remaining:
            block, skip = divmod(position, BLOCK_BYTES)
            block_end = min((block + 1) * BLOCK_BYTES, self.sums.length)
            if skip or len(remaining) < block_end - position:
                self._fill_scratch(block)
                take = min(len(remaining), len(self._scratch) - skip)
                remaining[:take] = memoryview(self._scratch)[skip : skip + take]
            else:
                take = len(remaining) // BLOCK_BYTES * BLOCK_BYTES
                if position + len(remaining) >= self.sums.length:
                    take = self.sums.length - position
                self._read_blocks(block, remaining[:take])
            position += take
            remaining = remaining[take:]

    def _fill_scratch(self, block: int) -> None:
        if self._scratch_block == block:
            return
        self._scratch_block = -1
        size = min(BLOCK_BYTES, self.sums.length - block * BLOCK_BYTES)
        if len(self._scratch) != size:
            self._scratch = bytearray(size)
        self._read_blocks(block, memoryview(self._scratch))
        self._scratch_block = block

    def _read_blocks(self, block: int, target: memoryview) -> None:
        if self._matches(block, target):
            return
        # An append may have changed a partial block and its sum between our two reads; the sums are replaced
        # after the data, so fresh sums fit the data read after them. Two tries, since a damaged replica stays so.
        for _ in range(2):
            self.sums = self._load()
            size = min(len(target), self.sums.length - block * BLOCK_BYTES)
            if size == len(target) and self._ends_block(block, size) and self._matches(block, target):
                return
            if not self._ends_block(block, size) or size < len(target):
                # The last block grew or shrank: read it whole and keep the part asked for.
                whole = bytearray(
                    min(-(-len(target) // BLOCK_BYTES) * BLOCK_BYTES, self.sums.length - block * BLOCK_BYTES)
                )
                if len(whole) >= len(target) and self._matches(block, memoryview(whole)):
                    target[:] = memoryview(whole)[: len(target)]
                    return
        raise BadReplica("corrupt", f"{self.path}: checksum of block {block} or later does not match")

    def _ends_block(self, block: int, size: int) -> bool:
        return size % BLOCK_BYTES == 0 or block * BLOCK_BYTES + size == self.sums.length

    def _matches(self, block: int, target: memoryview) -> bool:
        got = 0
        while got < len(target):
            count = os.preadv(self._fd, [target[got:]], block * BLOCK_BYTES + got)
            if count == 0:
                return False
            got += count
        return first_bad_block(self.sums.blocks, block, target) is None

    def verify(self) -> None:
        """Read every block; BadReplica at the first that does not match."""
        buffer = memoryview(bytearray(min(CLONE_BYTES, max(1, self.sums.length))))
        for start in range(0, self.sums.length, CLONE_BYTES):
            self._read_blocks(start // BLOCK_BYTES, buffer[: min(CLONE_BYTES, self.sums.length - start)])

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "Replica":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def clone(
    source: Replica,
    servers: Path,
    server: str,
    handle: int,
    *,
    length: int,
    version: int,
    durable: bool = False,
) -> None:
    """Copy the first ``length`` bytes of a replica to ``server`` under ``handle``, verified on the way.

    What is there under that name is replaced whole; a failed copy leaves it untouched.
    """
    path = replica_path(servers, server, handle)
    temporary = _temporary(path)
    sums = array("I")
    fd = _open_new(temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        try:
            buffer = memoryview(bytearray(min(CLONE_BYTES, max(1, length))))
            for start in range(0, length, CLONE_BYTES):
                part = buffer[: min(CLONE_BYTES, length - start)]
                source.read_into(start, part)
                add_blocks(sums, start, part)
                write_all(fd, part)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    write_sums(servers, server, handle, Sums(version=version, length=length, blocks=sums), durable=durable)
