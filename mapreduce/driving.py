"""What every way of running a job does around the work itself.

``recorded`` checks inputs and output before anything is read, gives the run an identity, and writes its record however it
ends.  ``drive`` calls the job's function and, if that is a generator, gives it the rows that it asks for.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import publish
from .errors import BadJob, FunctionFailed
from .guard import is_failure, user_traceback
from .home import new_run, write_record
from .inputs import Source
from .owed import remove_owed
from .scratch import Scratch, remove_abandoned
from .stages import Dataset, Job

if TYPE_CHECKING:
    from .options import Options

_STDIN = "stdin"  # name of the copy of standard input


@dataclass(kw_only=True)
class Begun:
    """A run that has an identity; ``record`` is what will be kept of it, to be added to."""

    run: str
    folder: Path
    job: Job
    sources: list[Source]
    parameters: dict[str, Any]
    scratch: Scratch
    record: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """The time since the run began."""
        return time.perf_counter() - self.began


@contextmanager
def recorded(
    job: Job | Callable[..., Any],
    inputs: Sequence[str | Sequence[str] | Source],
    output: str | None,
    parameters: Mapping[str, Any],
    options: Options,
    *,
    engine: str,
    keep: bool = True,
) -> Iterator[Begun]:
    """Begin a run, and write its record when the block ends, with how it ended; without ``keep`` nothing remains of it.

    Raises:
        BadJob, MissingInput, OutputExists: before anything was read or written.
    """
    if not isinstance(job, Job):
        job = Job(function=job, name=job.__name__, doc=inspect.cleandoc(job.__doc__ or ""))
    remove_abandoned()
    remove_owed()
    with Scratch() as scratch:
        sources = [source_of(given, options, scratch.folder) for given in inputs]
        if output is not None:
            publish.check_output(output, [url for source in sources for url in source.urls], options)
        run, folder = new_run(job.name)
        begun = Begun(
            run=run, folder=folder, job=job, sources=sources, parameters=dict(parameters), scratch=scratch
        )
        begun.record.update({
            "run": run, "job": job.name, "command": sys.argv, "started": time.time(),
            "inputs": [[name_stdin(url) for url in source.urls] for source in sources], "output": output,
            "parameters": dict(parameters), "engine": engine, "outcome": "failed",
        })  # fmt: skip
        try:
            yield begun
            begun.record["outcome"] = "done"
        except KeyboardInterrupt:
            begun.record["outcome"] = "interrupted"
            raise
        except Exception as error:
            begun.record["error"] = name_stdin(str(error)) or type(error).__name__
            begun.record["traceback"] = getattr(error, "traceback_text", "")
            raise
        finally:
            begun.record["seconds"] = begun.seconds
            if keep:
                write_record(folder, begun.record)
            else:
                shutil.rmtree(folder, ignore_errors=True)


def drive(begun: Begun, rows: Callable[[Dataset], list[Any]]) -> Dataset:
    """Call the job's function and return the dataset that is its result.

    ``rows`` computes a dataset that a generator asks for and returns its rows.

    Raises:
        BadJob: the job's function returns or yields something else than a dataset, or its own input.
        FunctionFailed: it raises.
    """
    job = begun.job
    with _planning(job):
        built = job.build([Dataset(source=source) for source in begun.sources], begun.parameters)
    if inspect.isgenerator(built):
        rounds: Generator[Any, Any, Any] = built
        found: list[Any] | None = None
        while True:
            with _planning(job):
                try:
                    wanted = rounds.send(found)
                except StopIteration as stop:
                    built = stop.value
                    break
            found = rows(_dataset(job, wanted, "yielded"))
    final = _dataset(job, built, "returned")
    if final.stage is None:
        raise BadJob(f"job {job.name!r} returns its input; it has no stage to run")
    return final


@contextmanager
def _planning(job: Job) -> Iterator[None]:
    """Tell an error of the job's own function as one."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        raise FunctionFailed(
            f"job {job.name!r}: building the plan raised {type(error).__name__}: {error}",
            user_traceback(error, error.__traceback__),
        ) from error


def _dataset(job: Job, value: Any, verb: str) -> Dataset:
    if not isinstance(value, Dataset):
        raise BadJob(
            f"job {job.name!r} {verb} {type(value).__name__}; a job returns (or yields) a dataset, "
            "which is what calling a Stage on datasets gives"
        )
    return value


def source_of(given: str | Sequence[str] | Source, options: Options, scratch_folder: str = "") -> Source:
    """Return an input as a source, read as ``options`` say; standard input is first put into ``scratch_folder``.

    Raises:
        BadJob: standard input is given where it cannot be read, or for the second time.
    """
    if isinstance(given, Source):
        return given
    urls = (given,) if isinstance(given, str | Path) else tuple(given)
    for url in urls:
        if not isinstance(url, str | Path) or hasattr(given, "columns"):
            raise BadJob(
                f"an input is a path, a URL or several of them, got {type(given).__name__}; "
                "write data in memory to a file first, such as Parquet"
            )
    urls = tuple(str(url) for url in urls)
    if "-" in urls:
        urls = tuple(_spool_stdin(scratch_folder) if url == "-" else url for url in urls)
    return Source(
        urls=urls, format=options.input_format, errors=options.errors, delimiter=options.delimiter,
        storage_options=options.storage_options,
    )  # fmt: skip


def name_stdin(text: str) -> str:
    """Return a text in which the copy of standard input is called ``-``, as on the command line."""
    return re.sub(rf"[^\s'\"]*/mrdag-[^/\s]+/{_STDIN}\b", "-", text)


def absolute(source: Source) -> Source:
    """Return a source whose local paths mean the same in every working folder."""
    return replace(source, urls=tuple(url if "://" in url else os.path.abspath(url) for url in source.urls))


def _spool_stdin(folder: str) -> str:
    """Copy standard input to a file: splits and retries need to read it more than once."""
    if not folder:
        raise BadJob(
            "standard input (-) can be read only once, and this reads its input several times: give a file"
        )
    path = os.path.join(folder, _STDIN)
    try:
        with open(path, "xb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    except FileExistsError:
        raise BadJob("standard input (-) can be read only once, and it is given twice as an input") from None
    return path
