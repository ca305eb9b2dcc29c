"""``mr fs`` on files and folders: ls, put, get, cat, rm, mv, cp, mkdir, append, du.

They print what was asked for and else nothing. Nothing that is there is replaced without ``--overwrite``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from jobs.sizes import format_size

from .fs_copies import (
    get_copies,
    local_copies,
    make_store_folders,
    place,
    put_copies,
    refuse_taken,
    store_copies,
    take_back,
)
from .fs_store import StoreCommand, match_paths, open_filesystem, store_path

if TYPE_CHECKING:
    from gfs_sim import GFSFileSystem, Store

COPY_BYTES = 512 << 10


@click.command(cls=StoreCommand)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-l", "long", is_flag=True, help="With replica goal, bytes and time of change.")
@click.option("-R", "recursive", is_flag=True, help="All that lies below, too.")
def ls(paths: tuple[str, ...], long: bool, recursive: bool) -> None:
    """List files and folders.

    By name; a folder ends in /. PATH may be a pattern with *, ? and [...], here and in get, cat, rm, mv, cp
    and du; a name that exists as typed is taken as typed.
    """
    files = open_filesystem()
    entries: dict[str, dict[str, Any]] = {}
    for path in match_paths(files, *(paths or ("/",))):
        if recursive:
            found = files.find(path, withdirs=True, detail=True)
            entries.update(
                (name, found[name]) for name in sorted(found) if name != path or not files.isdir(path)
            )
        else:
            entries.update((entry["name"], entry) for entry in files.ls(path, detail=True))
    for name, entry in entries.items():
        is_folder = entry["type"] == "directory"
        shown = f"{name}/" if is_folder else name
        if long:
            goal = entry["replication"] or "-"
            size = "-" if is_folder else f"{entry['size']}"
            shown = f"{goal:>3} {size:>14} {_show_time(entry['mtime'])} {shown}"
        click.echo(shown)


def _show_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


@click.command(cls=StoreCommand)
@click.argument("sources", nargs=-1, required=True, metavar="LOCAL...")
@click.argument("target")
@click.option("--overwrite", is_flag=True, help="Replace files that exist; folders are merged.")
@click.option(
    "--replication", type=click.IntRange(min=1), help="Replicas of these files. [default: the folder's]"
)
def put(sources: tuple[str, ...], target: str, overwrite: bool, replication: int | None) -> None:
    """Copy local files and folders into the store.

    To TARGET, or into it if it is a folder or ends in /, as it must for several. A slash after LOCAL changes
    nothing. LOCAL may be - for standard input, with the name of a file as TARGET.
    """
    files = open_filesystem(create=True)
    goal = store_path(target) + ("/" if target.endswith("/") else "")
    if "-" in sources:
        if len(sources) > 1 or goal.endswith("/") or files.isdir(goal):
            raise click.UsageError("put - takes standard input alone, and the name of a file")
        _put_input(files, goal, overwrite, replication)
        return
    if "" in sources:
        raise FileNotFoundError("the name of a local file is empty")
    found = [os.path.abspath(source) for source in sources]
    for source in found:
        if not os.path.exists(source):
            raise FileNotFoundError(f"{source}: no such local file or folder")
    goals = place(found, goal, files.isdir)
    copies = [copy for source, goal in zip(found, goals, strict=True) for copy in local_copies(source, goal)]
    refuse_taken(copies, overwrite=overwrite, exists=files.exists, is_folder=files.isdir)
    put_copies(files, copies, overwrite=overwrite, replication=replication)


def _put_input(files: GFSFileSystem, target: str, overwrite: bool, replication: int | None) -> None:
    if files.exists(target) and not overwrite:
        raise FileExistsError(f"{target}: is there already; give --overwrite to replace it")
    with files.open(target, "wb" if overwrite else "xb", replication=replication) as file:
        shutil.copyfileobj(sys.stdin.buffer, file, COPY_BYTES)


@click.command(cls=StoreCommand)
@click.argument("sources", nargs=-1, required=True, metavar="PATH...")
@click.argument("target", metavar="LOCAL")
@click.option("--overwrite", is_flag=True, help="Replace files that exist; folders are merged.")
def get(sources: tuple[str, ...], target: str, overwrite: bool) -> None:
    """Copy files and folders of the store to local ones.

    To LOCAL, or into it if it is a folder or ends in /, as it must for several. Every byte is checked on the way.
    """
    files = open_filesystem()
    found = match_paths(files, *sources)
    goals = place(found, target, os.path.isdir)
    copies = [
        copy for source, goal in zip(found, goals, strict=True) for copy in store_copies(files, source, goal)
    ]
    refuse_taken(copies, overwrite=overwrite, exists=os.path.lexists, is_folder=os.path.isdir)
    for copy in copies:
        if os.path.lexists(copy.target) and not os.path.isfile(copy.target) and not copy.is_folder:
            raise FileExistsError(f"{copy.target}: is no regular file; it is not replaced")
    get_copies(files, copies)


@click.command(cls=StoreCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
def cat(paths: tuple[str, ...]) -> None:
    """Print the bytes of files.

    One after the other, as they are. For a job's output folder see `mr cat`."""
    files = open_filesystem()
    found = match_paths(files, *paths)
    for path in found:
        if files.isdir(path):
            raise IsADirectoryError(
                f"{path}: is a folder; name a file, or a pattern such as {path.rstrip('/')}/*"
            )
    for path in found:
        files.get_file(path, outfile=sys.stdout.buffer)
    sys.stdout.buffer.flush()


@click.command(cls=StoreCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-r", "recursive", is_flag=True, help="Folders with all they hold, too.")
@click.option("--forever", is_flag=True, help="Free the space at once; there is no undelete.")
def rm(paths: tuple[str, ...], recursive: bool, forever: bool) -> None:
    """Delete files and folders.

    `mr fs undelete` brings them back until they are collected, after 3 days or by `mr fs gc`.
    """
    files = open_filesystem()
    found = match_paths(files, *paths)
    for path in found:
        if path == "/":
            raise IsADirectoryError("/: is the whole store; to delete all it holds, give: '/*'")
        if files.isdir(path) and not recursive:
            raise IsADirectoryError(f"{path}: is a folder; give -r to delete it with all it holds")
    for path in found:
        if not any(path.startswith(f"{other}/") for other in found):  # gone with the folder it lies in
            if forever:
                files.drop(path)
            else:
                files.store.delete(path, recursive=recursive)


@click.command(cls=StoreCommand)
@click.argument("sources", nargs=-1, required=True, metavar="PATH...")
@click.argument("target")
@click.option("--overwrite", is_flag=True, help="Replace a file that exists.")
def mv(sources: tuple[str, ...], target: str, overwrite: bool) -> None:
    """Move or rename files and folders.

    To TARGET, or into it if it is a folder; each moves at once, however large.
    """
    files = open_filesystem()
    found, goals = _move_or_copy(files, sources, target)
    for source, goal in zip(found, goals, strict=True):
        if files.exists(goal):
            if not overwrite:
                raise FileExistsError(f"{goal}: is there already; give --overwrite to replace it")
            if files.isdir(goal):
                raise FileExistsError(f"{goal}: is a folder, it is not replaced; remove it first")
            if files.isdir(source):
                raise FileExistsError(f"{goal}: is a file, a folder cannot replace it; remove it first")
    for source, goal in zip(found, goals, strict=True):
        files.store.rename(source, goal)


@click.command(cls=StoreCommand)
@click.argument("sources", nargs=-1, required=True, metavar="PATH...")
@click.argument("target")
@click.option("--overwrite", is_flag=True, help="Replace files that exist; folders are merged.")
def cp(sources: tuple[str, ...], target: str, overwrite: bool) -> None:
    """Copy files and folders inside the store.

    To TARGET, or into it if it is a folder. No bytes are copied: chunks are shared until one side is appended to.
    """
    files = open_filesystem()
    found, goals = _move_or_copy(files, sources, target)
    copies = [
        copy for source, goal in zip(found, goals, strict=True) for copy in store_copies(files, source, goal)
    ]
    refuse_taken(copies, overwrite=overwrite, exists=files.exists, is_folder=files.isdir)
    made: list[str] = []
    try:
        for copy in copies:
            is_new = not files.exists(copy.target)
            make_store_folders(
                files, copy.target if copy.is_folder else copy.target.rsplit("/", 1)[0] or "/", made
            )
            if not copy.is_folder:
                files.store.copy_file(copy.source, copy.target)
                if is_new:
                    made.append(copy.target)
    except BaseException:
        take_back(files, made)
        raise


def _move_or_copy(files: GFSFileSystem, sources: tuple[str, ...], target: str) -> tuple[list[str], list[str]]:
    found = match_paths(files, *sources)
    goals = place(found, store_path(target) + ("/" if target.endswith("/") else ""), files.isdir)
    goals = [store_path(goal) for goal in goals]
    for source, goal in zip(found, goals, strict=True):
        if source == goal:
            raise FileExistsError(f"{source}: source and target are the same")
        if f"{goal}/".startswith(f"{source.rstrip('/')}/"):
            raise OSError(f"{source}: cannot go into itself, to {goal}")
    return found, goals


@click.command(cls=StoreCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-p", "parents", is_flag=True, help="Also the folders above; one that exists is no error.")
def mkdir(paths: tuple[str, ...], parents: bool) -> None:
    """Make folders."""
    files = open_filesystem(create=True)
    for path in map(store_path, paths):
        if parents:
            files.makedirs(path, exist_ok=True)
            continue
        above = path.rsplit("/", 1)[0] or "/"
        if not files.exists(above):
            raise FileNotFoundError(f"{above}: no such folder; give -p to make it too")
        files.mkdir(path, create_parents=False)


@click.command(cls=StoreCommand)
@click.argument("sources", nargs=-1, required=True, metavar="LOCAL...")
@click.argument("target", metavar="PATH")
def append(sources: tuple[str, ...], target: str) -> None:
    """Append local files to a file of the store.

    PATH is made if it is not there; LOCAL may be - for standard input. A file that cannot be read leaves PATH as it was.
    """
    files = open_filesystem(create=True)
    with contextlib.ExitStack() as opened:
        inputs: list[BinaryIO] = [
            sys.stdin.buffer if source == "-" else opened.enter_context(open(source, "rb"))
            for source in sources
        ]
        with files.open(store_path(target), "ab") as file:
            for each in inputs:
                shutil.copyfileobj(each, file, COPY_BYTES)


@click.command(cls=StoreCommand)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-s", "summary", is_flag=True, help="One line for each PATH, not for all it holds.")
@click.option("--bytes", "exact", is_flag=True, help="Whole bytes, without unit.")
def du(paths: tuple[str, ...], summary: bool, exact: bool) -> None:
    """Show the bytes of files and of their replicas.

    A chunk that several files share counts once for its replicas in each line.
    """
    files = open_filesystem()
    found = match_paths(files, *(paths or ("/",)))
    lines = found if summary else [name for path in found for name in files.ls(path, detail=False)]
    for path in dict.fromkeys(lines):
        size, stored = _measure(files.store, files.find(path), path)
        shown = (str(size), str(stored)) if exact else (format_size(size), format_size(stored))
        slash = "/" if path != "/" and files.isdir(path) else ""
        click.echo(f"{shown[0]:>14} {shown[1]:>14}  {path}{slash}")


def _measure(store: Store, names: list[str], path: str) -> tuple[int, int]:
    """Return the bytes of files and of their replicas."""
    size = 0
    stored: dict[int, int] = {}
    for name in names:
        try:
            status = store.stat(name)
        except FileNotFoundError:  # deleted since it was listed
            continue
        size += status.size
        stored.update((chunk.handle, chunk.length * len(chunk.servers)) for chunk in status.chunks)
    return size, sum(stored.values())
