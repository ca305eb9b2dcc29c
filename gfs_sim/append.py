"""Appending to a file under a lease: mode "ab", and the atomic record append of GFS (3.1, 3.3).

The last chunk is extended in place on every replica. Bytes beyond the length the master knows are
nobody's: readers do not see them, and the next appender cuts them off. So an append is visible whole,
when its transaction commits, or not at all. What a record looks like is in ``records``.
"""

import contextlib
import os
import time
from array import array
from typing import TYPE_CHECKING

from gfs_sim import chunks
from gfs_sim.checksum import BLOCK_BYTES, Sums, add_blocks
from gfs_sim.chunks import Chunk
from gfs_sim.errors import ChunkLost, LeaseLost
from gfs_sim.lease import Lease, take_lease
from gfs_sim.master import Master, SealedChunk
from gfs_sim.processes import this_process
from gfs_sim.server import (
    BadReplica,
    Replica,
    create_replica,
    replica_path,
    stage_clone,
    write_all,
    write_sums,
)
from gfs_sim.upkeep import step
from gfs_sim.writer import PIECE_BYTES, ChunkWriter, OpenChunk

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SPOOL_BYTES = 8 << 20
"""What an appender gathers before it takes the lease, so that most appends hold it for one write."""


class Tail:
    """The end of a file under a lease: write, then ``commit`` or ``release``."""

    def __init__(self, master: Master, lease: Lease) -> None:
        self.lease = lease
        self.length = lease.written.length
        """Bytes in the leased chunk, with what is not committed."""
        self.added = 0
        self._master = master
        self._until = lease.until
        self._sums = array("I")
        self._files: dict[str, int] = {}
        self._version = lease.written.version
        self._summed = False
        self._more: list[SealedChunk] = []
        self._chunk: OpenChunk | None = None
        self._allocated: list[Chunk] = [] if lease.written is lease.chunk else [lease.written]
        try:
            self._open_replicas()
        except BaseException:
            self.release()
            raise

    def _open_replicas(self) -> None:
        known = self.lease.chunk
        if known.length and not known.servers:
            found = self._master.locate(known.handle)
            known = found if found is not None else known
        failures: list[str] = []
        sums: Sums | None = None
        for server in known.servers:
            try:
                mine = self._open_replica(server, known)
            except BadReplica as bad:
                self._master.report(known.handle, server, bad)
                failures.append(f"{server}: {bad.detail}")
                continue
            except OSError as error:
                self._master.note("append failed", server, known.handle, str(error))
                failures.append(f"{server}: {error}")
                continue
            if sums is not None and mine.blocks != sums.blocks:
                # Both match their own sums, so this cannot come from a flipped bit; keep the first.
                os.close(self._files.pop(server))
                self._master.report(
                    known.handle, server, BadReplica("corrupt", "differs from the other replicas")
                )
                continue
            sums = mine
            self._version = max(self._version, mine.version)
        if sums is None:
            raise ChunkLost(
                f"{self.lease.target.path}: its last chunk (handle {known.handle:016x}) has no good replica to append"
                f" to ({'; '.join(failures) or 'its servers are gone'}); see `mr fs fsck`"
            )
        self._sums = array("I", sums.blocks)

    def _open_replica(self, server: str, known: Chunk) -> Sums:
        folder, handle = self._master.folder, self.lease.written.handle
        path = replica_path(folder, server, handle)
        if known.length == 0:
            self._files[server] = create_replica(folder, server, handle)
            return Sums(version=1, length=0, blocks=array("I"))
        with self._master.open_replica(server, known) as replica:
            if self.lease.written is not self.lease.chunk:
                stage_clone(replica, folder, server, handle, length=known.length, version=1).place()
                sums = Sums(version=1, length=known.length, blocks=_cut(replica, known.length))
            else:
                sums = Sums(
                    version=replica.sums.version, length=known.length, blocks=_cut(replica, known.length)
                )
                if replica.sums.length > known.length:
                    # Of an append that never committed. The sums first: a reader must not find more than there is.
                    write_sums(folder, server, handle, sums)
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.ftruncate(fd, known.length)
        os.lseek(fd, known.length, os.SEEK_SET)
        self._files[server] = fd
        return sums

    def write(self, data: memoryview) -> None:
        """Add bytes after those written so far, in new chunks where the leased one is full."""
        self._extend_lease()
        while data:
            if self.length < self.lease.target.chunk_bytes:
                piece = data[: min(PIECE_BYTES, self.lease.target.chunk_bytes - self.length)]
                self._write_tail(piece)
            else:
                if self._chunk is None:
                    chunk = self._master.new_chunk(self.lease.target)
                    self._allocated.append(chunk)
                    self._chunk = OpenChunk(self._master, chunk)
                piece = data[: self.lease.target.chunk_bytes - self._chunk.length]
                self._chunk.append(piece)
                if self._chunk.length == self.lease.target.chunk_bytes:
                    self._seal_chunk()
            self.added += len(piece)
            data = data[len(piece) :]

    def _write_tail(self, piece: memoryview) -> None:
        add_blocks(self._sums, self.length, piece)
        for server in list(self._files):
            try:
                write_all(self._files[server], piece)
            except OSError as error:
                self._drop(server, error)
        self.length += len(piece)

    def _drop(self, server: str, error: OSError) -> None:
        self._cut_back(self._files.pop(server))
        if not self._files:
            raise error
        self._master.note("append failed", server, self.lease.written.handle, str(error))

    def _seal_chunk(self) -> None:
        if self._chunk is not None:
            self._more.append(self._chunk.seal())
            self._chunk = None

    def pad(self) -> None:
        """Fill the leased chunk with zeros, so that what follows starts in a new one."""
        zeros = memoryview(bytes(BLOCK_BYTES))
        while self.length < self.lease.target.chunk_bytes:
            self.write(zeros[: min(BLOCK_BYTES, self.lease.target.chunk_bytes - self.length)])

    def _extend_lease(self) -> None:
        now = time.time()
        if now < self._until - self.lease.lease_s / 2:
            return
        if now < self._until:
            with self._master.database.write() as connection:
                kept = connection.execute(
                    "UPDATE chunks SET lease_until = ? WHERE handle = ? AND lease = ?",
                    (now + self.lease.lease_s, self.lease.chunk.handle, self.lease.token),
                ).rowcount
            if kept:
                self._until = now + self.lease.lease_s
                return
        raise LeaseLost(f"{self.lease.target.path}: the lease to append expired; nothing was appended")

    def commit(self) -> None:
        """Make what was written visible, all of it at once; LeaseLost if the lease is gone.

        The version rises, so a server that missed this append is known to be stale (GFS 4.5).
        """
        master, lease = self._master, self.lease
        self._extend_lease()
        self._seal_chunk()
        version = self._version + 1
        sums = Sums(version=version, length=self.length, blocks=self._sums)
        self._summed = True
        for server in list(self._files):
            try:
                if master.durable:
                    os.fsync(self._files[server])
                write_sums(master.folder, server, lease.written.handle, sums, durable=master.durable)
            except OSError as error:
                self._drop(server, error)
        with master.database.write(durable=master.durable) as connection:
            mine = connection.execute(
                "SELECT 1 FROM chunks, nodes WHERE handle = ? AND lease = ? AND nodes.content = ?",
                (lease.chunk.handle, lease.token, lease.content),
            ).fetchone()
            if not mine:
                raise LeaseLost(
                    f"{lease.target.path}: the lease to append was revoked (a snapshot, or the file was replaced);"
                    " nothing was appended"
                )
            live = connection.execute("SELECT COUNT(*) FROM servers WHERE state = 'live'").fetchone()[0]
            wanted = min(lease.target.replication, live)
            handle = lease.written.handle
            connection.execute(
                "UPDATE chunks SET writer = NULL, lease = NULL, lease_until = NULL WHERE handle = ?",
                (lease.chunk.handle,),
            )
            connection.execute(
                "UPDATE chunks SET version = ?, writer = ? WHERE handle = ?",
                (version, this_process(), handle),
            )
            chunks.seal(connection, handle, this_process(), self.length, tuple(self._files), wanted)
            if handle != lease.chunk.handle:
                connection.execute(
                    "UPDATE contents SET handle = ? WHERE content = ? AND handle = ?",
                    (handle, lease.content, lease.chunk.handle),
                )
            number = connection.execute(
                "SELECT MAX(number) FROM contents WHERE content = ?", (lease.content,)
            ).fetchone()[0]
            for more in self._more:
                number += 1
                chunks.seal(connection, more.handle, this_process(), more.length, more.servers, wanted)
                connection.execute(
                    "INSERT INTO contents VALUES (?, ?, ?)", (lease.content, number, more.handle)
                )
            connection.execute(
                "UPDATE nodes SET size = size + ?, modified = ? WHERE content = ?",
                (self.added, time.time(), lease.content),
            )
        self._allocated.clear()
        self._close_files()

    def _cut_back(self, fd: int) -> None:
        """Free the room of what was not committed, and close the file; the next appender would do it too."""
        with contextlib.suppress(OSError):
            # Once the new sums may be there, the data has to stay as long as they say.
            if not self._summed and time.time() < self._until:
                os.ftruncate(fd, self.lease.chunk.length)
        os.close(fd)

    def release(self) -> None:
        """Give the lease back and throw away what was not committed."""
        while self._files:
            self._cut_back(self._files.popitem()[1])
        self._close_files()
        with self._master.database.write() as connection:
            connection.execute(
                "UPDATE chunks SET writer = NULL, lease = NULL, lease_until = NULL WHERE handle = ? AND lease = ?",
                (self.lease.chunk.handle, self.lease.token),
            )
        if self._allocated:
            self._master.abandon(self._allocated)
            self._allocated.clear()

    def _close_files(self) -> None:
        if self._chunk is not None:
            self._chunk.close()
            self._chunk = None
        while self._files:
            os.close(self._files.popitem()[1])


def _cut(replica: Replica, length: int) -> "array[int]":
    """Return the sums of a replica's first ``length`` bytes; its last block is read and verified for that."""
    whole, rest = divmod(length, BLOCK_BYTES)
    if length == replica.sums.length:
        return array("I", replica.sums.blocks)
    sums = replica.sums.blocks[:whole]
    if rest:
        part = memoryview(bytearray(rest))
        replica.read_into(whole * BLOCK_BYTES, part)
        add_blocks(sums, whole * BLOCK_BYTES, part)
    return sums


class AppendWriter(ChunkWriter):
    """The unbuffered writer of mode "ab": what it gets is appended at ``close``, whole.

    A file that is absent is made. Several appenders take turns; each one's bytes stay together.
    """

    def __init__(self, master: Master, path: str, *, replication: int | None, autocommit: bool) -> None:
        super().__init__(
            master,
            master.target(path, replication=replication, exclusive=False),
            exclusive=True,
            autocommit=autocommit,
        )
        self._spool = bytearray()
        self._tail: Tail | None = None
        self._fresh = False
        self.base = 0
        with contextlib.suppress(FileNotFoundError):
            self.base = master.view(path).size

    def tell(self) -> int:
        """Return the file's length at opening and the bytes written since."""
        return self.base + len(self._spool) + self.size

    def write(self, data: "ReadableBuffer", /) -> int:
        """Take all of ``data``."""
        view = memoryview(data).cast("B")
        size = len(view)
        if self.state == "discarded":
            return size
        if self._tail is None and not self._fresh and len(self._spool) + size <= SPOOL_BYTES:
            self._spool += view
            return size
        self._begin()
        self._pass_on(view)
        return size

    def _begin(self) -> None:
        if self._tail is not None or self._fresh:
            return
        try:
            self._tail = Tail(self._master, take_lease(self._master, self.target.path))
        except FileNotFoundError:
            self._fresh = True
        spool, self._spool = self._spool, bytearray()
        self._pass_on(memoryview(spool))

    def _pass_on(self, view: memoryview) -> None:
        if self._tail is None:
            super().write(view)
            return
        try:
            self._tail.write(view)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError) and error.filename is None:
                error.filename = self.target.path
            raise
        self.size += len(view)

    def seal(self) -> None:
        """Keep what was written for ``commit``."""

    def commit(self) -> None:
        """Append what was written."""
        for _ in range(100):
            again = bytes(self._spool) if self._tail is None and not self._fresh else None
            try:
                self._commit_once()
                return
            except (LeaseLost, FileExistsError):
                # A snapshot took the lease, or somebody made the file first. What was spooled can be done again.
                if again is None:
                    raise
                self._reset(again)
        raise LeaseLost(f"{self.target.path}: the lease to append was revoked again and again")

    def _reset(self, spool: bytes) -> None:
        self._spool = bytearray(spool)
        self._tail = None
        self._fresh = False
        self.size = 0
        self.state = "open"
        self._allocated, self._sealed, self._chunk = [], [], None

    def _commit_once(self) -> None:
        self._begin()
        if self._tail is None:
            super().seal()
            super().commit()
            return
        try:
            self._tail.commit()
        except BaseException:
            self.discard()
            raise
        self.state = "published"
        step(self._master)

    def discard(self) -> None:
        """Throw away what was written and give the lease back."""
        if self._tail is not None and self.state == "open" and os.getpid() == self._process:
            self.state = "discarded"
            # What cannot be released (a full disk) is when the lease ends, and collected when this process does.
            with contextlib.suppress(OSError):
                self._tail.release()
        super().discard()
