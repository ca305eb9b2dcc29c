"""How output appears: parts under attempt names, one rename each, then the whole folder at once.

An output is staged in a hidden folder beside its final place and moved there when it is complete, so
a reader sees all of it or nothing; what it replaces goes in the same moment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import fsspec

from .errors import BadJob, OutputExists, OutputFailed
from .task import Mapped, Output, Written

if TYPE_CHECKING:
    from .options import Options

GLOB = frozenset("*?[")


def open_folder(url: str, storage_options: Mapping[str, Any]) -> Any:
    """Make the folder and return its filesystem.

    Raises:
        OutputFailed: it cannot be made.
    """
    filesystem, path = open_url(url, storage_options)
    try:
        filesystem.makedirs(path, exist_ok=True)
    except OSError as error:
        raise OutputFailed(f"cannot make the folder {url}: {error.strerror or error}") from error
    return filesystem


def open_url(url: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem behind a URL and the path in it.

    Raises:
        OutputFailed: no filesystem is installed for this kind of URL.
    """
    try:
        filesystem, path = fsspec.core.url_to_fs(url, **storage_options)
    except (ValueError, ImportError) as error:
        raise OutputFailed(f"{url}: cannot open this kind of URL: {error}") from error
    return filesystem, path


def commit_part(filesystem: Any, output: Output, result: Written | Mapped) -> None:
    """Give a finished part its name; called once for each part, for the first attempt that finished."""
    if isinstance(result, Written):
        final = f"{output.folder}/{output.part_name(result.part)}"
        rename(filesystem, result.url, final)


def keep_parts(filesystem: Any, output: Output, parts: int) -> int:
    """Remove all but the committed parts of a folder: what lost attempts left. Return the bytes that stay."""
    names = {output.part_name(part) for part in range(parts)}
    kept_bytes = 0
    for path, info in filesystem.find(filesystem._strip_protocol(output.folder), detail=True).items():
        if path.rpartition("/")[2] in names:
            kept_bytes += int(info["size"])
        else:
            # A store that can undelete need not keep it.
            drop = getattr(filesystem, "drop", filesystem.rm_file)
            drop(path)
    return kept_bytes


def rename(filesystem: Any, old: str, new: str) -> None:
    """Move a file or folder within one filesystem, in one step where the filesystem has one."""
    old, new = filesystem._strip_protocol(old), filesystem._strip_protocol(new)
    if is_local(filesystem):
        os.rename(old, new)
    else:
        filesystem.mv(old, new, recursive=filesystem.isdir(old))


def is_local(filesystem: Any) -> bool:
    """True for the local disk, where a rename is one system call."""
    protocol = filesystem.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def renames_folders(filesystem: Any) -> bool:
    """True where a folder is renamed in one step; elsewhere (S3, ...) its files are copied."""
    protocol = filesystem.protocol
    return bool(
        {"file", "gfs"} & {protocol} if isinstance(protocol, str) else {"file", "gfs"} & set(protocol)
    )


def drop_folder(url: str, storage_options: Mapping[str, Any]) -> None:
    """Remove a folder for good; a store that can undelete is told not to keep it."""
    filesystem, path = fsspec.core.url_to_fs(url, **storage_options)
    with contextlib.suppress(FileNotFoundError):
        drop = getattr(filesystem, "drop", None)
        if drop is not None:
            drop(path)
        else:
            filesystem.rm(path, recursive=True)


def undo_staging(url: str) -> None:
    """Remove the staged folder of a killed run; an output that it had moved away comes back."""
    filesystem, staged = fsspec.core.url_to_fs(url)
    parent, _, hidden = staged.rpartition("/")
    path = f"{parent}/{hidden.removeprefix('.').rpartition('.')[0]}"
    replaced = f"{staged}.replaced"
    if filesystem.exists(replaced):
        if filesystem.exists(path):
            filesystem.rm(replaced, recursive=True)
        else:
            rename(filesystem, replaced, path)
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(staged, recursive=True)


def check_output(output: str, inputs: Sequence[str], options: Options) -> None:
    """Refuse an output that exists, or that lies where the input lies, before anything is read.

    Raises:
        OutputExists: with what to do.
        BadJob: nothing can be written there.
    """
    filesystem, path = open_url(output, options.storage_options)
    # The path of a bucket has no slash; to replace what it holds is nobody's wish.
    if "/" not in path.rstrip("/"):
        raise OutputExists(f"output {output} is the root of a filesystem; name a folder in it")
    if "http" in filesystem.protocol:
        raise BadJob(
            f"output {output}: nothing can be written over HTTP; name a folder, or a gfs:// or s3:// URL"
        )
    path = _fold(filesystem, path)
    for url in inputs:
        try:
            other, given = fsspec.core.url_to_fs(url, **options.storage_options)
        except (ValueError, ImportError):
            continue  # whoever reads it says what is wrong
        if type(other) is not type(filesystem):
            continue
        roots = [given]
        if any(c in GLOB for c in given) and not other.exists(given):
            roots = other.glob(given)
        for root in (_fold(other, r) for r in roots):
            if path == root or (path.startswith(root.rstrip("/") + "/") and other.isdir(root)):
                raise OutputExists(f"output {output} lies inside the input {url}; choose another folder")
            if root.startswith(path.rstrip("/") + "/"):
                raise OutputExists(f"input {url} lies inside the output {output}; choose another folder")
    if filesystem.exists(path) and not options.overwrite:
        raise OutputExists(f"output {output} exists already; remove it, choose another or give --overwrite")
    if is_local(filesystem):
        parent = os.path.dirname(path)
        while not os.path.isdir(parent):
            if os.path.lexists(parent):
                raise OutputFailed(f"cannot write {output}: {parent} is a file, not a folder")
            parent = os.path.dirname(parent)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise OutputFailed(f"cannot write {output}: no right to write in {parent}")


def _fold(filesystem: Any, path: str) -> str:
    if is_local(filesystem):
        return os.path.realpath(path)
    return os.path.normpath(path) if path else path


class Staging:
    """A hidden folder beside the output; ``publish`` gives it the output's name."""

    def __init__(self, output: str, run_id: str, options: Options) -> None:
        self.filesystem, path = open_url(output, options.storage_options)
        self.path = _fold(self.filesystem, path).rstrip("/")
        self.output = output
        self.overwrite = options.overwrite
        parent, _, name = self.path.rpartition("/")
        self.staged = f"{parent}/.{name}.{run_id}"
        self.folder = self.filesystem.unstrip_protocol(self.staged)
        self.replaced = f"{parent}/.{name}.{run_id}.replaced"
        self.made: list[str] = []
        self.published = False

    def __enter__(self) -> Staging:
        parent = self.staged.rpartition("/")[0]
        while parent and not self.filesystem.exists(parent):
            self.made.append(parent)
            parent = parent.rpartition("/")[0]
        open_folder(self.folder, self.filesystem.storage_options)
        return self

    def publish(self) -> None:
        """Give the folder its name, over what it replaces.

        Where a folder can be renamed in one step it comes with its ``_SUCCESS``.  On an object store the parts
        are copied to their names one by one, and ``_SUCCESS`` is written after the last.

        Raises:
            OutputExists: somebody else has put something there since ``check_output``; it is kept.
            OutputFailed: the filesystem refuses.
        """
        if not self.overwrite and self.filesystem.exists(self.path):
            raise OutputExists(
                f"output {self.output} has been made by somebody else during this run, and is kept;"
                " choose another or give --overwrite"
            )
        try:
            if renames_folders(self.filesystem):
                self._publish_at_once()
            else:
                self._publish_by_copy()
        except OSError as error:
            raise OutputFailed(f"cannot publish {self.output}: {error.strerror or error}") from error

    def _publish_at_once(self) -> None:
        self.filesystem.touch(f"{self.staged}/_SUCCESS")
        replaces = self.overwrite and self.filesystem.exists(self.path)
        if replaces:
            rename(self.filesystem, self.path, self.replaced)
        try:
            rename(self.filesystem, self.staged, self.path)
        except BaseException:
            if replaces:
                rename(self.filesystem, self.replaced, self.path)
            raise
        self.published = True
        if replaces:
            self.filesystem.rm(self.replaced, recursive=True)

    def _publish_by_copy(self) -> None:
        marker = f"{self.path}/_SUCCESS"
        old = set(self.filesystem.find(self.path)) if self.filesystem.exists(self.path) else set()
        if marker in old:
            self.filesystem.rm_file(marker)
        new = {
            f"{self.path}{part.removeprefix(self.staged)}": part for part in self.filesystem.find(self.staged)
        }
        for final, part in sorted(new.items()):
            self.filesystem.cp_file(part, final)
        for stale in old - set(new) - {marker}:
            self.filesystem.rm_file(stale)
        self.filesystem.touch(marker)
        self.filesystem.rm(self.staged, recursive=True)
        self.published = True

    def __exit__(self, *error: object) -> None:
        if self.published:
            return
        with contextlib.suppress(OSError):
            self.filesystem.rm(self.staged, recursive=True)
        for folder in self.made:
            with contextlib.suppress(OSError):
                self.filesystem.rmdir(folder)
