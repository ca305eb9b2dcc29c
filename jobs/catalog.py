"""Find a job by what a person types: a library name, ``file.py``, ``file.py:job`` or ``module:job``.

A job file may have modules beside it: its folder is put at the end of ``sys.path`` (never first, where it
would shadow the standard library), and every module that comes from there travels to the workers by value.
Nothing here runs a job.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType

from mapreduce.errors import BadJob
from mapreduce.stages import Job

#: Packages that workers have installed; they travel by name even if the job file lies beside them.
_INSTALLED = ("dag", "gfs_sim", "jobs", "mapreduce")


def library_names() -> list[str]:
    """Return the names of the library's jobs, sorted; nothing is imported."""
    import jobs.library

    return sorted(found.name for found in pkgutil.iter_modules(jobs.library.__path__))


def library_job(name: str) -> Job:
    """Return a job of the library.

    Raises:
        BadJob: there is none of that name; the message has the nearest ones.
    """
    if name not in library_names():
        raise BadJob(f"there is no job {name!r} in the library{_nearest(name, library_names())}")
    found: Job = getattr(importlib.import_module(f"jobs.library.{name}"), name)
    return found


def find_job(reference: str) -> Job:
    """Return the job that ``reference`` names: in the library, ``file.py``, ``file.py:job``, ``module:job``.

    Raises:
        BadJob: there is no such job or file, the file does not import, or has several jobs and none is named.
    """
    place, _, name = reference.partition(":")
    if place.endswith(".py"):
        return _choose(_load_file(Path(place)), name, place)
    if ":" in reference:
        if not place:
            raise BadJob(f"{reference!r} names no file or module before the colon")
        return _choose(_load_module(place), name, place)
    if reference not in library_names() and Path(f"{reference}.py").is_file():
        raise BadJob(f"there is no job {reference!r} in the library; for the file give {reference}.py")
    return library_job(reference)


def jobs_of(module: ModuleType) -> dict[str, Job]:
    """Return the jobs that a module defines, by attribute; those that it imports only if it defines none."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, Job)}
    own = {name: value for name, value in found.items() if value.function.__module__ == module.__name__}
    return own or found


def _choose(module: ModuleType, name: str, place: str) -> Job:
    found = jobs_of(module)
    if name:
        if name in found:
            return found[name]
        chosen = getattr(module, name, None)
        if isinstance(chosen, Job):
            return chosen
        if callable(chosen):
            raise BadJob(
                f"{place}: {name!r} is a function but no job; put @job above it (from mapreduce import job)"
            )
        raise BadJob(f"{place} has no job {name!r}{_nearest(name, list(found))}")
    if not found:
        raise BadJob(f"{place} defines no job; put @job above a function that returns a dataset")
    if len(found) > 1:
        choices = ", ".join(f"{place}:{n}" for n in sorted(found))
        raise BadJob(f"{place} has {len(found)} jobs; say which: {choices}")
    return next(iter(found.values()))


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        why = "is a folder" if path.is_dir() else "does not exist"
        raise BadJob(f"job file {path} {why}")
    path = path.resolve()
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    # Not the plain stem: a job file called random.py must not take the place of the module of that name.
    name = f"mr_job_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise BadJob(_where(error, folder, str(path))) from error
    _send_by_value(folder)
    return module


def _load_module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise BadJob(f"there is no module {name!r} in {here} or among the installed packages") from error
        raise BadJob(_where(error, here, name)) from error
    except (Exception, SystemExit) as error:
        raise BadJob(_where(error, here, name)) from error
    file = getattr(module, "__file__", None)
    if file is not None:
        top = Path(file).resolve().parents[name.count(".") + (Path(file).name == "__init__.py")]
        if top == Path(here).resolve():
            _send_by_value(str(top))
    return module


def _send_by_value(folder: str) -> None:
    """Have cloudpickle send every loaded module under ``folder`` whole, except installed packages."""
    import cloudpickle

    inside = folder.rstrip(os.sep) + os.sep
    outside = [p for p in (sys.prefix, sys.base_prefix) if p.startswith(inside)]
    resolved = functools.cache(os.path.realpath)  # there are thousands of modules, in far fewer folders
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name == "__main__" or name.partition(".")[0] in _INSTALLED:
            continue
        real = os.path.join(resolved(os.path.dirname(file)), os.path.basename(file))
        if not real.startswith(inside) or "site-packages" in real:
            continue
        if any(real.startswith(p + os.sep) for p in outside):  # a virtual environment inside the folder
            continue
        with contextlib.suppress(ValueError):  # a module that took itself out of sys.modules
            cloudpickle.register_pickle_by_value(module)


def _where(error: BaseException, folder: str, place: str) -> str:
    """One line: file, line and error, at the innermost frame that is the user's."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        line = f":{error.lineno}" if error.lineno else ""
        return f"{error.filename or place}{line}: {type(error).__name__}: {error.msg}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(folder.rstrip(os.sep) + os.sep):
            return f"{frame.filename}:{frame.lineno}: {' '.join(what.split())}"
    return f"{place}: {' '.join(what.split())}"


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are: {', '.join(sorted(known))}" if known else ""
