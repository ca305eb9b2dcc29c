"""The store a ``mr fs`` command works on, and the paths typed for it.

Commands with ``--root`` and one-line failures; a name that exists as typed is never a pattern. What commands
do with files and servers is in ``fs_files``, ``fs_copies`` and ``fs_care``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gfs_sim import GFSFileSystem, Store

_ROOT = "jobs.cli.fs.root"


def root_option() -> click.Option:
    """Return the option ``--root``, which may stand before and after the command's name."""
    return click.Option(
        ["--root"],
        type=click.Path(file_okay=False),
        expose_value=False,
        callback=_remember_root,
        help="The store's folder. [default: $MR_HOME/store]",
    )


def _remember_root(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_ROOT] = value


class StoreCommand(click.Command):
    """A command on a store: takes ``--root``; its failures name the path first, without numbers of errors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(root_option())

    def invoke(self, ctx: click.Context) -> Any:
        from gfs_sim import StoreError

        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StoreError(describe(error)) from error


class StoreGroup(click.Group):
    """A group whose commands all take ``--root``, as it does itself."""

    command_class = StoreCommand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(root_option())


def describe(error: OSError) -> str:
    """Return what an OSError says, its file first.

    >>> describe(FileNotFoundError(2, "No such file or directory", "/a"))
    '/a: No such file or directory'
    >>> describe(FileNotFoundError("/a: no such file"))
    '/a: no such file'
    """
    text = error.strerror or str(error) or type(error).__name__
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' -> '.join(names)}: {text}" if names else text


def given_root() -> Path:
    """Return the folder of the store that ``--root`` names, else of the default one."""
    from gfs_sim import default_root

    root = click.get_current_context().meta.get(_ROOT)
    return default_root() if root is None else Path(root).expanduser().absolute()


def open_filesystem(*, create: bool = False) -> GFSFileSystem:
    """Return the store's files; with ``create``, the default store is made if it is not there.

    Raises:
        NoSuchStore: there is none. A mistyped ``--root`` makes no store.
    """
    from gfs_sim import GFSFileSystem
    from gfs_sim.errors import NoSuchStore
    from gfs_sim.layout import DATABASE

    root = given_root()
    named = _ROOT in click.get_current_context().meta
    if not (root / DATABASE).exists() and (named or not create):
        option = f" --root {root}" if named else ""
        raise NoSuchStore(f"{root}: there is no store; make one with: mr fs init{option}")
    return GFSFileSystem(root=str(root))


def open_store() -> Store:
    """Return the store as its owner sees it; NoSuchStore if there is none."""
    return open_filesystem().store


def store_path(typed: str) -> str:
    """Return the folded path that a user typed as ``/a/b``, ``a/b`` or ``gfs://a/b``.

    Raises:
        BadName: nothing, or a URL of another kind.
    """
    from gfs_sim.errors import BadName
    from gfs_sim.layout import PROTOCOL, fold

    if not typed:
        raise BadName("the name of a path is empty; the whole store is /")
    kind, colon, _ = typed.partition("://")
    if colon and kind != PROTOCOL and kind.isalnum():
        raise BadName(
            f"{typed}: mr fs works on the store's paths, /a/b or gfs://a/b; for local files see put, get"
        )
    return fold(typed)


def match_paths(files: GFSFileSystem, *typed: str) -> list[str]:
    """Return the folded paths that names and patterns stand for, each once, in the order typed.

    A name that exists as typed stands for itself, also where it holds ``*?[]``.

    Raises:
        FileNotFoundError: a name or pattern that stands for nothing.
    """
    from fsspec.core import has_magic

    found: dict[str, None] = {}
    for each in typed:
        path = store_path(each)
        if files.exists(path):
            found[path] = None
            continue
        matches = files.glob(path) if has_magic(path) else []
        if not matches:
            raise FileNotFoundError(f"{path}: no such file or folder in the store {files.store.root}")
        found.update(dict.fromkeys(matches))
    return list(found)
