"""What can go wrong in the store.

    StoreError
    ├── NoSuchStore        FileNotFoundError   the root folder holds no store
    ├── DamagedStore       OSError             the metadata cannot be read, or is of another format
    ├── BadName            ValueError          a path that no store can hold
    ├── BadSetting         ValueError          a setting outside its range
    ├── ChunkLost          OSError             no good replica of a chunk is left; names file and chunk
    ├── FileReplaced       OSError             the file was replaced or removed while it was being read
    ├── LeaseLost          OSError             the writer's chunks or lease are gone; nothing was published
    ├── RecordTooLarge     ValueError          a record over a quarter of a chunk
    ├── NoServer           OSError             no live server can take a replica
    └── NoSuchServer       KeyError            a server name the store does not know

A path that is absent, a folder or not empty is reported with Python's own ``FileNotFoundError``,
``IsADirectoryError``, ``NotADirectoryError``, ``FileExistsError`` and ``OSError(ENOTEMPTY)``.
All of them can be pickled.
"""

import errno
from typing import Any


class StoreError(Exception):
    """Anything the store itself reports."""


class NoSuchStore(StoreError, FileNotFoundError):
    """The root folder holds no store."""


class BadName(StoreError, ValueError):
    """A path that no store can hold."""


class BadSetting(StoreError, ValueError):
    """A setting outside its range; the store is unchanged."""


class RecordTooLarge(StoreError, ValueError):
    """A record over a quarter of a chunk; nothing was appended."""


class NoSuchServer(StoreError, KeyError):
    """A server name the store does not know."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class _StoreOSError(StoreError, OSError):
    """An OSError with a fixed errno, built from one message."""

    number = errno.EIO

    def __init__(self, message: str) -> None:
        super().__init__(self.number, message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.strerror,)


class DamagedStore(_StoreOSError):
    """The metadata cannot be read, or is of another format."""


class ChunkLost(_StoreOSError):
    """No good replica of a chunk is left."""


class FileReplaced(_StoreOSError):
    """The file was replaced or removed while it was being read, and the old bytes are gone."""

    number = errno.ESTALE


class LeaseLost(_StoreOSError):
    """The writer's lease or its unpublished chunks are gone; nothing of it was published."""

    number = errno.ESTALE


class NoServer(_StoreOSError):
    """No live server can take a replica."""

    number = errno.ENOSPC
