"""Copying a name that holds ``*``, ``?`` or ``[``: fsspec would take it for a pattern, twice.

Once in ``expand_path`` and once when it decides whether the copy goes into a folder, so that ``log[1].txt``
copied to ``out.txt`` became ``out.txt/log[1].txt``. With lists it does neither.
"""

from typing import Any

from fsspec.core import has_magic
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
