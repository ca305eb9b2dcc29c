"""A GFS-like chunk store on local folders, reached through fsspec as ``gfs://``.

``GFSFileSystem`` is the filesystem; ``Store`` the owner's view of it: servers, snapshots, records, repair.
"""

from gfs_sim.errors import StoreError
from gfs_sim.filesystem import GFSFileSystem
from gfs_sim.layout import default_root
from gfs_sim.store import Store
from gfs_sim.values import (
    ChunkPlace,
    CollectReport,
    DeletedFile,
    Event,
    FileStatus,
    Health,
    Problem,
    RepairReport,
    ServerStatus,
    Settings,
)

__all__ = [
    "ChunkPlace",
    "CollectReport",
    "DeletedFile",
    "Event",
    "FileStatus",
    "GFSFileSystem",
    "Health",
    "Problem",
    "RepairReport",
    "ServerStatus",
    "Settings",
    "Store",
    "StoreError",
    "default_root",
]
