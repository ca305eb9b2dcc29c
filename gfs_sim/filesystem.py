"""The store as an fsspec filesystem, protocol ``gfs``."""

from typing import Any

from fsspec import AbstractFileSystem

from gfs_sim.store import Store


class GFSFileSystem(AbstractFileSystem):
    """Files in a chunk store.

    Options: ``root`` (the store's folder), ``replication`` (goal of files written through this instance),
    ``durable`` (fsync before a file is published).
    """

    protocol = "gfs"
    root_marker = "/"

    def __init__(
        self,
        root: str | None = None,
        *,
        replication: int | None = None,
        durable: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)

    @property
    def store(self) -> Store:
        """The store behind this filesystem, for what fsspec has no name for."""
        raise NotImplementedError
