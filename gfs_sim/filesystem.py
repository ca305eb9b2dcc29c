"""The store as an fsspec filesystem, protocol ``gfs``.

What follows ``gfs://`` is a path and nothing else: ``gfs://a/b``, ``gfs:///a/b`` and ``/a/b`` are one file in
one store, that of ``root=``, else the default one. No listing is cached, so that what another process
did is seen at once. A name that exists as written is taken as written, also where it holds ``*?[]``.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.utils import isfilelike, stringify_path

from gfs_sim import layout, namespace
from gfs_sim.append import AppendWriter
from gfs_sim.literal import LiteralNames
from gfs_sim.namespace import Node
from gfs_sim.reader import ChunkReader, StoreReader
from gfs_sim.store import Store
from gfs_sim.streams import COPY_BYTES, CompressedWriter, pour, pour_chunks
from gfs_sim.writer import ChunkWriter, StoreWriter


class GFSFileSystem(LiteralNames):
    """Files in a chunk store.

    Options: ``root`` (the store's folder; default ``$MR_HOME/store``), ``replication`` (goal of files
    written through this instance), ``durable`` (fsync before a file is published).
    """

    protocol = layout.PROTOCOL
    root_marker = "/"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        replication: int | None = None,
        durable: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root = None if root is None else os.path.abspath(os.path.expanduser(root))
        self.replication = replication
        self.durable = durable
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store behind this filesystem, for what fsspec has no name for."""
        root = Path(self.root) if self.root is not None else layout.default_root()
        if self._store is None or self._store.root != root or not self._store.exists():
            self._store = Store(root, durable=self.durable)
        return self._store

    @property
    def fsid(self) -> str:
        """Identify the store."""
        return f"{self.protocol}:{self.store.root}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        return layout.fold(stringify_path(path))

    def unstrip_protocol(self, name: str) -> str:
        """Return the URL of a path, as a user would type it."""
        return f"{layout.PROTOCOL}://{self._strip_protocol(name).lstrip('/')}"

    # Looking

    def _info(self, node: Node) -> dict[str, Any]:
        return {
            "name": node.path,
            "size": node.size,
            "type": "directory" if node.is_dir else "file",
            "created": node.created,
            "mtime": node.modified,
            "replication": node.replication,
            "chunk_bytes": node.chunk_bytes,
        }

    def _node(self, path: str) -> Node:
        with self.store.master.database.read() as connection:
            return namespace.get(connection, self._strip_protocol(path))

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return name, size, type, created, mtime, replication and chunk_bytes; FileNotFoundError if absent."""
        return self._info(self._node(path))

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Return whether there is a file or folder."""
        with self.store.master.database.read() as connection:
            return namespace.find(connection, self._strip_protocol(path)) is not None

    def created(self, path: str) -> datetime:
        """Return when a path was made."""
        return datetime.fromtimestamp(self._node(path).created, UTC)

    def modified(self, path: str) -> datetime:
        """Return when a path was last written."""
        return datetime.fromtimestamp(self._node(path).modified, UTC)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Return what a folder holds, or the file itself."""
        with self.store.master.database.read() as connection:
            node = namespace.get(connection, self._strip_protocol(path))
            nodes = namespace.children(connection, node.path) if node.is_dir else [node]
        return [self._info(each) for each in nodes] if detail else [each.path for each in nodes]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return all files below a folder (``withdirs``: and folders, itself included), by name."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        with self.store.master.database.read() as connection:
            node = namespace.find(connection, path)
            if node is None:
                return {} if detail else []
            nodes = [node, *namespace.subtree(connection, path)] if node.is_dir else [node]
        depth = len(path.rstrip("/").split("/"))
        found = {
            each.path: self._info(each)
            for each in nodes
            if (withdirs or not each.is_dir)
            and (maxdepth is None or each is node or len(each.path.split("/")) - depth <= maxdepth)
        }
        return found if detail else list(found)

    def locations(self, path: str) -> list[dict[str, Any]]:
        """Return where a file's chunks lie, in order: offset, length, servers."""
        places = self.store.locations(path)
        return [{"offset": p.offset, "length": p.length, "servers": list(p.servers)} for p in places]

    def ukey(self, path: str) -> str:
        """Return a value that changes whenever the file does."""
        node = self._node(path)
        return f"{node.content}-{node.size}-{node.modified}"

    # Folders

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Make a folder; FileExistsError if the name is taken."""
        path = self._strip_protocol(path)
        with self.store.master.database.write() as connection:
            if namespace.find(connection, path) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            parent = layout.parent_of(path)
            if not create_parents and not namespace.get(connection, parent).is_dir:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), parent)
            namespace.make_folders(connection, path, time.time())

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a folder and those above it."""
        path = self._strip_protocol(path)
        with self.store.master.database.write() as connection:
            node = namespace.find(connection, path)
            if node is not None and not (exist_ok and node.is_dir):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            namespace.make_folders(connection, path, time.time())

    def rmdir(self, path: str) -> None:
        """Remove an empty folder; OSError(ENOTEMPTY) if it holds something."""
        path = self._strip_protocol(path)
        if not self._node(path).is_dir:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if path != "/":
            self.store.delete(path)

    # Reading and writing

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        replication: int | None = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        master = self.store.master
        if mode in ("r", "rb"):
            buffer_bytes = max(block_size or 0, 64 << 10) if block_size else 256 << 10
            return StoreReader(
                ChunkReader(master, master.view(path)), fs=self, buffer_bytes=min(buffer_bytes, 4 << 20)
            )
        goal = replication or self.replication
        if mode in ("w", "wb", "x", "xb"):
            exclusive = mode.startswith("x")
            target = master.target(path, replication=goal, exclusive=exclusive)
            writer = ChunkWriter(master, target, exclusive=exclusive, autocommit=autocommit)
            return StoreWriter(writer, fs=self, path=path, mode=mode)
        if mode in ("a", "ab"):
            return StoreWriter(
                AppendWriter(master, path, replication=goal, autocommit=autocommit),
                fs=self,
                path=path,
                mode=mode,
            )
        raise ValueError(f"{path}: mode {mode!r} is not supported; use rb, wb, xb or ab")

    def open(
        self, path: str, mode: str = "rb", *args: Any, compression: str | None = None, **kwargs: Any
    ) -> Any:
        """Open a file; ``compression`` reads or writes through it. See the class for what ``close`` does."""
        if compression is None or "r" in mode or "b" not in mode:
            return super().open(path, mode, *args, compression=compression, **kwargs)
        inner = super().open(path, mode, *args, **kwargs)
        try:
            from fsspec.compression import compr
            from fsspec.core import get_compression

            kind = get_compression(path, compression)
            return inner if kind is None else CompressedWriter(compr[kind](inner, mode="w"), inner)
        except BaseException:
            inner.discard()
            raise

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a whole file; ``mode="create"`` raises FileExistsError if the name is taken."""
        with self.open(path, "xb" if mode == "create" else "wb", **kwargs) as file:
            file.raw.write(value)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return a file's bytes, or those from ``start`` to ``end``, as in a slice."""
        with self._open(path, "rb") as file:
            low, high, _ = slice(start, end).indices(file.size)
            file.seek(low)
            return bytes(file.read(max(0, high - low)))

    def put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        """Copy one local file, or make the folder if it is one."""
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        with open(lpath, "rb", buffering=0) as source:
            size = os.fstat(source.fileno()).st_size
            callback.set_size(size)
            with self.open(rpath, "xb" if mode == "create" else "wb", **kwargs) as target:
                # A pipe says that it has 0 bytes; a large buffer for a small file would cost more than the copy.
                buffer = memoryview(bytearray(min(size, COPY_BYTES) or COPY_BYTES))
                while count := source.readinto(buffer):
                    target.raw.write(buffer[:count])
                    callback.relative_update(count)

    def get_file(
        self,
        rpath: str,
        lpath: Any = None,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        **kwargs: Any,
    ) -> None:
        """Copy one file to a local path or an open file, or make the folder if it is one."""
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        elif outfile is None and self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        with self._open(rpath, "rb") as source:
            callback.set_size(source.size)
            if outfile is not None:
                pour(source, outfile, callback)
                return
            os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            with open(lpath, "wb", buffering=0) as target:
                several = source.size > source.raw.view.chunk_bytes
                if several and stat.S_ISREG(os.fstat(target.fileno()).st_mode):
                    pour_chunks(source, target.fileno(), callback)
                else:
                    pour(source, target, callback)

    # Moving, copying, removing

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy one file by sharing its chunks until one side is appended to; a folder is only made."""
        self.store.copy_file(path1, path2)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        """Move a file or a whole folder at once (into ``path2`` if that is a folder); a file there is replaced.

        Lists and patterns move one by one.
        """
        if isinstance(path1, list | tuple):
            targets = (
                path2
                if isinstance(path2, list | tuple)
                else [f"{path2}/{p.rsplit('/', 1)[-1]}" for p in path1]
            )
            for source, target in zip(path1, targets, strict=True):
                self.store.rename(source, target)
            return
        sources = self.expand_path(path1)
        into = (
            stringify_path(path2).endswith("/")
            or self.isdir(path2)
            or sources != [self._strip_protocol(path1)]
        )
        for source in sources:
            if self._strip_protocol(path2) == source:
                self.info(source)  # moving a path onto itself changes nothing, but it has to be there
                continue
            name = source.rsplit("/", 1)[-1]
            self.store.rename(source, f"{path2}/{name}" if into else path2)

    def rm_file(self, path: str) -> None:
        """Delete one file."""
        path = self._strip_protocol(path)
        if self._node(path).is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.store.delete(path)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files, or folders with ``recursive``; they can be undeleted until ``gc`` removes them."""
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        gone: list[str] = []
        for each in self.expand_path(path):
            # With a pattern, something may already have gone with the folder it lay in.
            if not any(each.startswith(f"{folder}/") for folder in gone):
                self.store.delete(each, recursive=recursive)
                gone.append(each)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Make an empty file, or with ``truncate=False`` set the time of one that is there."""
        if truncate or not self.exists(path):
            super().touch(path, truncate=True, **kwargs)
            return
        with self.store.master.database.write() as connection:
            connection.execute(
                "UPDATE nodes SET modified = ? WHERE path = ?", (time.time(), self._strip_protocol(path))
            )

    # Beyond fsspec

    def append_record(self, path: str, record: bytes, *, record_id: bytes | None = None) -> int:
        """Append a record at least once and return its offset; see ``Store.append_record``."""
        return self.store.append_record(path, record, record_id=record_id)

    def read_records(self, path: str) -> Iterator[bytes]:
        """Yield the records of a record file; see ``Store.read_records``."""
        return self.store.read_records(path)

    def drop(self, path: str) -> bool:
        """Remove a file or folder at once, without undelete; see ``Store.drop``."""
        return self.store.drop(path)
