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
    with _opened(target, durable) as fd:
        write_all(fd, memoryview(sums.encode()))
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


class _Mismatch(Exception):
    """The data does not fit the sums this reader has."""


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
        while True:
            try:
                self._read(offset, target)
                return
            except _Mismatch as mismatch:
                self._renew_sums(mismatch)

    def verify(self) -> None:
        """Read every block; BadReplica at the first that does not match, or if the file is too short."""
        buffer = memoryview(bytearray(CLONE_BYTES))
        while True:
            try:
                for start in range(0, self.sums.length, CLONE_BYTES):
                    self._read(start, buffer[: min(CLONE_BYTES, self.sums.length - start)])
                return
            except _Mismatch as mismatch:
                self._renew_sums(mismatch)

    def check_size(self) -> None:
        """Raise BadReplica if the file is shorter than its sums say; the bytes are not read."""
        while os.fstat(self._fd).st_size < self.sums.length:
            self._renew_sums(_Mismatch("is shorter than its sums say"))

    def _renew_sums(self, mismatch: "_Mismatch") -> None:
        """Read the sums again, since an append replaces them; BadReplica if they are the same as before.

        An appender adds data, then sums; it cuts off what did not commit by sums, then data. So the sums on
        disk always fit what is on disk, up to their length, and only a reader with older ones can differ.
        """
        sums = self._load()
        if sums == self.sums:
            raise BadReplica("corrupt", f"{self.path}: {mismatch}")
        self.sums = sums
        self._scratch_block = -1

    def _read(self, offset: int, target: memoryview) -> None:
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
        got = 0
        while got < len(target):
            count = os.preadv(self._fd, [target[got:]], block * BLOCK_BYTES + got)
            if count == 0:
                raise _Mismatch("is shorter than its sums say")
            got += count
        bad = first_bad_block(self.sums.blocks, block, target)
        if bad is not None:
            raise _Mismatch(f"checksum of block {bad} does not match")

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


class StagedReplica:
    """A copy of a replica under temporary names, waiting to be put in place or thrown away."""

    def __init__(self, servers: Path, server: str, handle: int) -> None:
        self._paths = [
            (_temporary(path), path)
            for path in (
                replica_path(servers, server, handle),
                replica_path(servers, server, handle, layout.SUMS_SUFFIX),
            )
        ]

    def fill(self, source: Replica, *, length: int, version: int, durable: bool) -> None:
        """Copy the first ``length`` bytes of ``source``, verified on the way, with sums of that version."""
        (chunk, _), (sums_path, _) = self._paths
        sums = array("I")
        buffer = memoryview(bytearray(min(CLONE_BYTES, max(1, length))))
        with _opened(chunk, durable) as fd:
            for start in range(0, length, CLONE_BYTES):
                part = buffer[: min(CLONE_BYTES, length - start)]
                source.read_into(start, part)
                add_blocks(sums, start, part)
                write_all(fd, part)
        with _opened(sums_path, durable) as fd:
            write_all(fd, memoryview(Sums(version=version, length=length, blocks=sums).encode()))

    def place(self) -> None:
        """Give it its names, over what is there; the sums last, since without them there is no replica."""
        for temporary, path in self._paths:
            os.replace(temporary, path)

    def discard(self) -> None:
        """Remove what was not placed."""
        for temporary, _ in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


@contextlib.contextmanager
def _opened(path: str, durable: bool) -> Iterator[int]:
    fd = _open_new(path, os.O_WRONLY | os.O_TRUNC)
    try:
        yield fd
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def stage_clone(
    source: Replica,
    servers: Path,
    server: str,
    handle: int,
    *,
    length: int,
    version: int,
    durable: bool = False,
) -> StagedReplica:
    """Copy the first ``length`` bytes of a replica to ``server`` under ``handle``; nothing is left if that fails."""
    staged = StagedReplica(servers, server, handle)
    try:
        staged.fill(source, length=length, version=version, durable=durable)
    except BaseException:
        staged.discard()
        raise
    return staged
