"""Errors of the user's functions, told with job, stage, split and record, and the user's own traceback.

Costs one Python frame per input record, none per record that a function yields.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, cast

from .errors import BadKey, BadValue, FunctionFailed, JobError
from .keys import shorten


class Guard:
    """Knows where in the job a task is; as a ``with`` block it turns errors of the user's functions into ``FunctionFailed``."""

    def __init__(self, *, job_name: str, stage: str, place: str) -> None:
        self.stage = f"job {job_name!r}, stage {stage!r}"
        self.place = place
        self.reads = ""  # what the records of a file are, in words
        self.record: Any = None
        self._values: Sequence[Any] = ()  # of the records that are on their way to the function
        self._coming: Iterator[Any] = iter(())

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, frames: TracebackType | None) -> None:
        if isinstance(error, (BadKey, BadValue)):  # found where records gather, a while after they were made
            raise type(error)(f"{self.stage}, {self.place}: {error}") from None
        if isinstance(error, WrongResult):
            raise FunctionFailed(f"{self._where()}: {error}{self._shown()}") from None
        if error is None or not is_failure(error):
            return
        shown = _user_frames(frames)
        if not shown and isinstance(
            error, TypeError
        ):  # such as a function that takes another number of arguments
            raise FunctionFailed(f"{self._where()}: TypeError: {error}{self._shown()}") from error
        if not shown or (isinstance(error, OSError) and all("site-packages" in f.filename for f in shown)):
            return  # not the user's: the runner reports it as it is
        hint = f"; {self.reads}" if self.reads and self._is_surprised(error) else ""
        raise FunctionFailed(
            f"{self._where()}: {type(error).__name__}: {error}{self._shown()}{hint}",
            user_traceback(error, frames),
        ) from None

    def _where(self) -> str:
        at = f", record {self.record}" if self.record is not None else ""
        return f"{self.stage}, {self.place}{at}"

    def _taken(self) -> int:
        """Return how many of the values the function was given; what an iterator has left costs nothing per record."""
        return len(self._values) - operator.length_hint(self._coming)

    def _shown(self) -> str:
        """Return the record that the function has, shortened."""
        taken = self._taken()
        return f"; the record is {shorten(repr(self._values[taken - 1]))}" if taken else ""

    def _is_surprised(self, error: BaseException) -> bool:
        """Tell whether a function may have taken its first record for something else than it is."""
        return self._taken() == 1 and isinstance(error, (TypeError, AttributeError))

    def at(self, record: Any) -> None:
        self.record = record
        self._values, self._coming = (), iter(())

    def watch(self, keys: Iterable[Any], values: Sequence[Any]) -> tuple[Iterator[Any], Iterator[Any]]:
        """Return iterators over both, to be taken from in turns; an error names the key and shows the value taken last."""
        self._values, self._coming = values, iter(values)
        return self._each(keys), self._coming

    def _each(self, keys: Iterable[Any]) -> Iterator[Any]:
        for key in keys:
            self.record = key
            yield key

    def watch_groups(self, groups: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        for group in groups:
            self.record = f"with key {group[0]!r}"
            yield group


def is_failure(error: BaseException) -> bool:
    """Return whether an error out of a user's function is a failure of that function, ``sys.exit()`` included.

    Not so what has been told already, Ctrl-C, and a kind of ``SystemExit`` that a signal's handler raises.
    """
    if isinstance(error, SystemExit):
        return type(error) is SystemExit
    return not isinstance(error, (JobError, KeyboardInterrupt, GeneratorExit))


class WrongResult(TypeError):
    """A function of the job returned what is no series of pairs; ``Guard`` says where."""


OURS = os.path.dirname(os.path.abspath(__file__))


def user_traceback(error: BaseException, frames: TracebackType | None) -> str:
    """Return the traceback of an error as text, without this package's own frames."""
    shown = traceback.format_list(_user_frames(frames))
    return "".join(["Traceback (most recent call last):\n", *shown, *traceback.format_exception_only(error)])


def _user_frames(frames: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames outside this package; functions that came by value get back the name of their file."""
    shown = []
    for frame, line in traceback.walk_tb(frames):
        filename = frame.f_code.co_filename
        if filename.startswith("<"):
            filename = frame.f_globals.get("__file__", filename)
        if os.path.dirname(os.path.abspath(filename)) != OURS:
            shown.append(traceback.FrameSummary(filename, line, frame.f_code.co_name))
    return shown


def fill(function: Callable[..., Any]) -> Callable[..., Iterable[tuple[Any, Any]]]:
    """Let a function that is no generator return None for no output; name a result that is no iterable."""
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__name__", repr(inner))
    if inspect.isgeneratorfunction(inner):
        return cast("Callable[..., Iterable[tuple[Any, Any]]]", function)

    def filled(*args: Any) -> Iterable[tuple[Any, Any]]:
        result = function(*args)
        if result is None:
            return ()
        if not isinstance(result, Iterable) or isinstance(result, (str, bytes, dict)):
            raise WrongResult(
                f"{name} returned {type(result).__name__}{f' for key {args[0]!r}' if len(args) > 1 else ''}; "
                "it must yield (key, value) pairs, return an iterable of them, or return None"
            )
        if result.__class__ is tuple and len(result) == 2 and not isinstance(result[0], (tuple, list)):
            raise WrongResult(
                f"{name} returned one pair, {shorten(repr(result))}: yield it, or return a list of pairs"
            )
        return result

    return filled
