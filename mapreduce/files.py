"""Opening and naming files, on this machine or behind any fsspec URL.

A local path is used as it is written: no percent decoding, ``#`` and ``?`` are characters like others.  Bytes
are counted where they pass, in ``CountedReader`` and ``CountedWriter``, so the counts are true for any URL.

Nothing here knows about records, splits or formats.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mapreduce.errors import BadInput, OutputFailed
from mapreduce.meter import current_meter, timing

if TYPE_CHECKING:
    import fsspec

COMPRESSED_MAGIC = re.compile(
    rb"(?P<gzip>\x1f\x8b)"
    rb"|(?P<bz2>BZh[1-9](1AY&SY|\x17rE8P\x90))"  # text may begin with BZh9: the magic of a block follows
    rb"|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"  # a frame, or one to skip
)
"""First bytes of a compressed file.  They decide, not the file's name."""

MAGIC_BYTES = 10


def is_local(url: str) -> bool:
    """Return whether ``url`` is a path of this machine (``file://`` counts)."""
    return "://" not in url or url.startswith("file://")


def local_path(url: str) -> str:
    """Return the path behind a local ``url``."""
    return url.removeprefix("file://")


def filesystem(url: str, storage_options: Mapping[str, Any]) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the fsspec filesystem of a ``url`` that is not local, and the path inside it."""
    from fsspec.core import url_to_fs  # here, since local files do without it

    try:
        fs, path = url_to_fs(url, **storage_options)
    except (ValueError, ImportError) as error:
        raise BadInput(f"{url}: cannot open this kind of URL: {first_line(error)}") from error
    return fs, path


def url_of(fs: fsspec.AbstractFileSystem, path: str, like: str) -> str:
    """Return the URL of ``path``, with the protocol that ``like`` is written with."""
    if "::" in like:
        return like.partition("://")[0] + "://" + path.lstrip("/")
    return str(fs.unstrip_protocol(path))


def compression_of(head: bytes) -> str | None:
    """Return the compression that the first bytes of a file show.

    >>> compression_of(bytes.fromhex("1f8b0800")), compression_of(b"BZh91 is plain"), compression_of(b"")
    ('gzip', None, None)
    """
    found = COMPRESSED_MAGIC.match(head)
    return found.lastgroup if found else None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, to go into a one-line message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class CountedReader(io.RawIOBase):
    """A file open for reading that reports each read, and names itself when a read fails."""

    def __init__(self, url: str, storage_options: Mapping[str, Any], counted: Callable[[int], None]) -> None:
        super().__init__()
        self.url = url
        self._counted = counted
        self._meter = current_meter()
        try:
            with timing("store_read"):
                if is_local(url):
                    self._file: Any = open(local_path(url), "rb", buffering=0)  # noqa: SIM115 (closed by close)
                else:
                    fs, path = filesystem(url, storage_options)
                    self._file = fs.open(path, "rb")
        except OSError as error:
            raise BadInput(f"cannot read {url}: {first_line(error)}") from error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` from the file and return how many bytes came; fewer than it holds only at the end."""
        began = time.perf_counter()
        try:
            with timing("store_read"):
                filled = self._fill(memoryview(buffer).cast("B"))
        except OSError as error:
            raise BadInput(f"cannot read {self.url}: {first_line(error)}") from error
        if self._meter is not None and current_meter() is None:  # a thread of a library reads ahead
            self._meter.read_elsewhere_s += time.perf_counter() - began
        self._counted(filled)
        return filled

    def _fill(self, view: memoryview) -> int:
        filled = 0
        while filled < len(view):
            got = self._file.readinto(view[filled:])
            if not got:
                break
            filled += got
        return filled

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_decompressed(
    url: str, compression: str | None, storage_options: Mapping[str, Any], counted: Callable[[int], None]
) -> Any:
    """Open ``url`` for reading its uncompressed bytes, with ``readinto`` and ``read``.

    All members of a gzip file, streams of a bzip2 file and frames of a zstd file are read.  Reading raises
    ``OSError`` or ``ValueError`` when the compressed data is cut short or damaged; ``reading`` turns that
    into ``BadInput``.  ``counted`` gets the compressed bytes.
    """
    raw = CountedReader(url, storage_options, counted)
    if compression is None:
        return raw
    if compression == "gzip":
        from mapreduce.gzipped import GzipReader

        return GzipReader(raw)
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), compression)


class CountedWriter(io.RawIOBase):
    """A new file, open for writing, that reports each write and names itself when one fails.

    ``close`` publishes the file, ``discard`` leaves nothing of it.
    """

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], counted: Callable[[int], None] | None = None
    ) -> None:
        super().__init__()
        self.url = url
        self.bytes = 0
        self._counted = counted
        self._fs: fsspec.AbstractFileSystem | None = None
        self._path = local_path(url)
        try:
            with timing("store_write"):
                if is_local(url):
                    os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
                    self._file: Any = open(self._path, "wb", buffering=0)  # noqa: SIM115 (closed by close)
                else:
                    self._fs, self._path = filesystem(url, storage_options)
                    self._fs.makedirs(self._fs._parent(self._path), exist_ok=True)
                    self._file = self._fs.open(self._path, "wb")
        except OSError as error:
            raise OutputFailed(f"cannot write {url}: {first_line(error)}") from error

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes

    def write(self, data: Any) -> int:
        """Write all of ``data``; a local file may take it in several pieces."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            with timing("store_write"):
                while view:
                    view = view[self._file.write(view) :]
        except OSError as error:
            raise OutputFailed(f"cannot write {self.url}: {first_line(error)}") from error
        self.bytes += size
        if self._counted is not None:
            self._counted(size)
        return size

    def close(self) -> None:
        if self.closed:
            return
        try:
            with timing("store_write"):
                self._file.close()
        except OSError as error:
            raise OutputFailed(f"cannot write {self.url}: {first_line(error)}") from error
        finally:
            super().close()

    def physical_bytes(self) -> int:
        """Return the bytes of all replicas of the closed file, where its filesystem tells; else those of one."""
        locations = getattr(self._fs, "locations", None)
        if locations is None:
            return self.bytes
        with timing("store_write"):
            return sum(part["length"] * len(part["servers"]) for part in locations(self._path))

    def discard(self) -> None:
        """Close without publishing, and remove what is there; never raises."""
        if not self.closed:
            try:
                discard = getattr(self._file, "discard", None)
                if discard is not None:
                    discard()
                    self._file.closed = True  # or s3fs would try to finish the upload when it is collected
                else:
                    self._file.close()
            except Exception:  # the write has failed already, and its error is the one to show
                pass
            super().close()
        try:
            if self._fs is None:
                if os.path.isfile(self._path):  # and no device
                    os.unlink(self._path)
            elif self._fs.exists(self._path):
                self._fs.rm_file(self._path)
        except Exception:  # as above
            pass
