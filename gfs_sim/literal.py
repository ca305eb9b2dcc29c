"""Names that hold ``*``, ``?`` or ``[``: fsspec takes them for patterns, here one that exists is taken as written.

fsspec does so twice: in ``expand_path``, and when it decides whether a copy goes into a folder, so that
``log[1].txt`` copied to ``out.txt`` would become ``out.txt/log[1].txt``. With lists it does neither.
"""

import errno
import os
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import has_magic
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import stringify_path


def pair_literal(
    source_fs: Any, source: Any, target_fs: Any, target: Any, *, recursive: bool, maxdepth: int | None
) -> tuple[list[str], list[str]] | None:
    """Return the list of paths and the list of targets if ``source`` exists as written, None to let fsspec decide.

    What goes where is fsspec's rule: into ``target`` if that is a folder or ends in a slash and ``source``
    does not.
    """
    if isinstance(source, list | tuple) or isinstance(target, list | tuple):
        return None
    typed, into = stringify_path(source), stringify_path(target)
    if not has_magic(typed) or not source_fs.exists(typed):
        return None
    base = source_fs._strip_protocol(typed)
    goal = target_fs._strip_protocol(into).rstrip("/")
    if into.endswith("/") or target_fs.isdir(into):
        name = "" if typed.endswith("/") else base.rsplit("/", 1)[-1]
        goal = f"{goal}/{name}".rstrip("/")
    if not source_fs.isdir(base):
        return [base], [goal]
    if not recursive:
        return [], []
    inside = source_fs.find(base, withdirs=True, maxdepth=maxdepth)
    paths = [base, *(path for path in inside if path != base)]
    return paths, [goal + path[len(base) :] for path in paths]


class LiteralNames(AbstractFileSystem):  # type: ignore[misc]
    """A filesystem in which an existing name wins over the pattern it looks like."""

    def expand_path(
        self,
        path: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        assume_literal: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """Return the paths that names, patterns and lists of them stand for; an existing name stands for itself."""
        if isinstance(path, str | os.PathLike):
            path = [path]
        found: set[str] = set()
        missing = []
        for each in path:
            literal = assume_literal or self.exists(each)
            try:
                found.update(
                    super().expand_path(
                        [each], recursive=recursive, maxdepth=maxdepth, assume_literal=literal, **kwargs
                    )
                )
            except FileNotFoundError:
                missing.append(each)
        if not found:
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), str(missing[0] if missing else path)
            )
        return sorted(found)

    def copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        maxdepth: int | None = None,
        on_error: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy inside the store, by sharing chunks; see fsspec's page on copying for what goes where."""
        pairs = pair_literal(self, path1, self, path2, recursive=recursive, maxdepth=maxdepth)
        path1, path2 = pairs if pairs else (path1, path2)
        super().copy(path1, path2, recursive=recursive, maxdepth=maxdepth, on_error=on_error, **kwargs)

    def get(
        self,
        rpath: Any,
        lpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy to local files; see fsspec's page on copying for what goes where."""
        pairs = pair_literal(self, rpath, LocalFileSystem(), lpath, recursive=recursive, maxdepth=maxdepth)
        rpath, lpath = pairs if pairs else (rpath, lpath)
        super().get(rpath, lpath, recursive=recursive, callback=callback, maxdepth=maxdepth, **kwargs)

    def put(
        self,
        lpath: Any,
        rpath: Any,
        recursive: bool = False,
        callback: Any = DEFAULT_CALLBACK,
        maxdepth: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy from local files; see fsspec's page on copying for what goes where."""
        pairs = pair_literal(LocalFileSystem(), lpath, self, rpath, recursive=recursive, maxdepth=maxdepth)
        lpath, rpath = pairs if pairs else (lpath, rpath)
        super().put(lpath, rpath, recursive=recursive, callback=callback, maxdepth=maxdepth, **kwargs)
