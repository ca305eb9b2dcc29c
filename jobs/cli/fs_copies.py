"""Copying trees between local folders and the store: what goes where is decided whole before the first byte.

A copy that fails or is interrupted takes back what it made; files it replaced stay replaced. Each file
appears whole or not at all. Times and permissions are not copied.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gfs_sim import GFSFileSystem


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One file to copy, or one folder to make; folders come before what they hold."""

    source: str
    target: str
    is_folder: bool


def place(sources: Sequence[str], target: str, is_folder: Callable[[str], bool]) -> list[str]:
    """Return where each source goes: to ``target``, or under its own name into it if that is a folder.

    A ``target`` that ends in a slash is a folder, there or not. ``sources`` are absolute.

    >>> place(["/a/x", "/b/y"], "t/", lambda path: False)
    ['t/x', 't/y']
    >>> place(["/a/x"], "t", lambda path: False)
    ['t']

    Raises:
        NotADirectoryError: several sources, and ``target`` is no folder.
        FileExistsError: two sources of one name.
    """
    if not target.endswith("/") and not is_folder(target):
        if len(sources) > 1:
            raise NotADirectoryError(
                f"{target}: must be a folder, or end in /, to take {len(sources)} sources"
            )
        return [target]
    names = [source.rstrip("/").rsplit("/", 1)[-1] for source in sources]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise FileExistsError(f"{target}: would get two files named {name!r}; copy them one by one")
    folder = target.rstrip("/")
    return [f"{folder}/{name}" if name else target for name in names]


def local_copies(source: str, target: str) -> list[Copy]:
    """Return what a put of a local file or folder copies; symbolic links stand for what they point to.

    Raises:
        FileNotFoundError: ``source``, or what a link below it points to, is not there.
        OSError: a device, a socket, or a link to a folder that holds it.
    """
    copies: list[Copy] = []
    pending: list[tuple[str, str, frozenset[str]]] = [(source, target, frozenset())]
    while pending:
        path, goal, above = pending.pop()
        if os.path.isfile(path):
            copies.append(Copy(source=path, target=goal, is_folder=False))
        elif os.path.isdir(path):
            real = os.path.realpath(path)
            if real in above:
                raise OSError(f"{path}: a link to a folder that holds it; remove the link")
            copies.append(Copy(source=path, target=goal, is_folder=True))
            for name in sorted(os.listdir(path), reverse=True):
                pending.append((os.path.join(path, name), f"{goal.rstrip('/')}/{name}", above | {real}))
        elif os.path.exists(path):
            raise OSError(f"{path}: neither a file nor a folder; it cannot be copied")
        else:
            raise FileNotFoundError(f"{path}: no such local file or folder")
    return copies


def store_copies(files: GFSFileSystem, source: str, target: str) -> list[Copy]:
    """Return what a copy of a file or folder of the store copies."""
    found: dict[str, dict[str, Any]] = files.find(source, withdirs=True, detail=True)
    cut = len(source.rstrip("/"))
    return [
        Copy(
            source=path,
            target=(target.rstrip("/") + path[cut:]).rstrip("/") or "/",
            is_folder=found[path]["type"] == "directory",
        )
        for path in sorted(found)
    ]


def refuse_taken(
    copies: Iterable[Copy],
    *,
    overwrite: bool,
    exists: Callable[[str], bool],
    is_folder: Callable[[str], bool],
) -> None:
    """Raise FileExistsError if a target is there; with ``overwrite``, only if it is of another kind."""
    for each in copies:
        if not exists(each.target):
            continue
        if not overwrite:
            raise FileExistsError(f"{each.target}: is there already; give --overwrite to replace it")
        if is_folder(each.target) != each.is_folder:
            kinds = ("a folder", "a file") if is_folder(each.target) else ("a file", "a folder")
            raise FileExistsError(
                f"{each.target}: is {kinds[0]}, {kinds[1]} cannot replace it; remove it first"
            )


def put_copies(
    files: GFSFileSystem, copies: Iterable[Copy], *, overwrite: bool, replication: int | None = None
) -> None:
    """Copy local files into the store; on failure, what was made is removed for good."""
    options: dict[str, Any] = {"mode": "overwrite" if overwrite else "create"}
    if replication is not None:
        options["replication"] = replication
    made: list[str] = []
    try:
        for each in copies:
            make_store_folders(files, each.target if each.is_folder else _parent(each.target), made)
            if not each.is_folder:
                is_new = not files.exists(each.target)
                files.put_file(each.source, each.target, **options)
                if is_new:
                    made.append(each.target)
    except BaseException:
        take_back(files, made)
        raise


def make_store_folders(files: GFSFileSystem, folder: str, made: list[str]) -> None:
    """Make a folder and those above it, and note in ``made`` which were not there."""
    absent = []
    path = folder
    while not files.exists(path):
        absent.append(path)
        path = _parent(path)
    if not files.isdir(path):
        raise NotADirectoryError(f"{path}: is a file; nothing can be put below it")
    if absent:
        files.makedirs(folder, exist_ok=True)
        made.extend(reversed(absent))


def take_back(files: GFSFileSystem, made: list[str]) -> None:
    """Remove for good what a failed command made in the store; a folder that others have filled stays."""
    for path in reversed(made):
        with contextlib.suppress(OSError):
            if not files.isdir(path) or not files.ls(path):
                files.drop(path)


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"


def get_copies(files: GFSFileSystem, copies: Iterable[Copy]) -> None:
    """Copy files of the store to local ones, each under another name until it is whole."""
    made: list[str] = []
    try:
        for each in copies:
            _make_local_folders(each.target if each.is_folder else os.path.dirname(each.target) or ".", made)
            if not each.is_folder:
                # Through a link, as any writer would go.
                _get_file(files, each.source, os.path.realpath(each.target), made)
    except BaseException:
        for path in reversed(made):
            with contextlib.suppress(OSError):
                if os.path.isdir(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
        raise


def _get_file(files: GFSFileSystem, source: str, target: str, made: list[str]) -> None:
    part = os.path.join(os.path.dirname(target), f".mr-{secrets.token_hex(6)}.part")
    is_new = not os.path.exists(target)
    try:
        files.get_file(source, part)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise
    if is_new:
        made.append(target)


def _make_local_folders(folder: str, made: list[str]) -> None:
    absent = []
    path = folder
    while path and not os.path.lexists(path):
        absent.append(path)
        path = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    made.extend(reversed(absent))
