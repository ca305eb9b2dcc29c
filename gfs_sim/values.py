"""Values that leave the store: what a file, a server, an event and a health report are.

Plain frozen data; nothing here reads or writes.
"""

from dataclasses import dataclass, field
from typing import Literal

ServerState = Literal["live", "draining", "dead"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A store's own settings, kept in its metadata."""

    chunk_bytes: int = 64 << 20
    replication: int = 3
    gc_after_s: float = 3 * 86400.0
    """How long a deleted file can still be undeleted."""
    reader_grace_s: float = 60.0
    """How long replaced bytes stay readable for those who have them open."""
    lease_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    """One chunk server as the master sees it; ``reachable`` says whether its folder is there."""

    name: str
    rack: str
    state: ServerState
    reachable: bool
    chunks: int
    used_bytes: int
    free_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, kw_only=True)
class ChunkPlace:
    """Where one chunk of a file lies: byte range in the file, handle, version, servers with a good replica."""

    offset: int
    length: int
    handle: int
    version: int
    servers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FileStatus:
    """One file or folder. ``replication`` of a folder is what new files below it inherit, None if unset."""

    path: str
    type: Literal["file", "directory"]
    size: int
    replication: int | None
    chunk_bytes: int | None
    chunks: tuple[ChunkPlace, ...]
    created: float
    modified: float


@dataclass(frozen=True, kw_only=True)
class DeletedFile:
    """Something that ``undelete`` can bring back: where it was, its hidden name, when it was deleted."""

    path: str
    hidden_path: str
    deleted_at: float
    size: int
    files: int


@dataclass(frozen=True, kw_only=True)
class Event:
    """A line of the master's event log."""

    id: int
    time: float
    kind: str
    server: str | None
    handle: int | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing fsck found. ``kind`` is lost, corrupt, missing, stale, unreachable, under, over or misplaced.

    ``lost`` is a chunk with no good replica; the others leave the file readable.
    """

    kind: str
    path: str
    chunk_index: int
    handle: int
    server: str | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class Health:
    """What ``fsck`` found under a path. ``healthy`` means: every byte of every file can be read."""

    path: str
    healthy: bool
    verified: bool
    """True when every replica's bytes were read against their checksums."""
    files: int
    dirs: int
    chunks: int
    bytes: int
    replicas: int
    minimally_replicated: int
    under_replicated: int
    over_replicated: int
    misreplicated: int
    missing_replicas: int
    corrupt_replicas: int
    lost_chunks: int
    lost_files: tuple[str, ...]
    default_replication: int
    average_replication: float
    servers: int
    """Live ones."""
    servers_wanted: int
    """Live servers that the chunks short of replicas need, one for each replica; 0 where none is short."""
    racks: int
    problems: tuple[Problem, ...] = field(default=())


@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """What ``repair``, ``drain_server`` or ``balance`` did."""

    cloned: int = 0
    cloned_bytes: int = 0
    removed: int = 0
    lost_chunks: int = 0
    waiting: int = 0
    """Chunks that still lack replicas: no server can take one, or the chunk changed meanwhile."""


@dataclass(frozen=True, kw_only=True)
class CollectReport:
    """What ``gc`` removed: deleted entries for good, chunks, replica files and their bytes, orphans among them."""

    deleted_entries: int = 0
    chunks: int = 0
    replica_files: int = 0
    freed_bytes: int = 0
    orphans: int = 0
