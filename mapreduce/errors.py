"""Everything that ``mapreduce`` raises on purpose.

::

    JobError
    ├── BadJob            (ValueError)         the job can never run as defined; nothing was read or written
    ├── BadKey            (TypeError)          a key has a type that has no place in the order of keys
    ├── BadValue          (TypeError)          a value cannot travel to another process
    ├── BadInput          (ValueError)         an input file exists but cannot be read as what it should be
    │   └── BadEncoding                        bytes that are not UTF-8
    ├── MissingInput      (FileNotFoundError)  an input path or pattern matches nothing
    ├── OutputExists      (FileExistsError)    the output is there already, or lies inside the input
    ├── OutputFailed      (OSError)            the output could not be written
    ├── FunctionFailed                         a function of the job raised; ``traceback_text`` is the user's own
    ├── MemoryExceeded    (MemoryError)        a worker passed its memory limit
    ├── WorkerFailed                           a task used up its attempts because workers died or went silent
    └── Damaged           (OSError)            an intermediate file is not what was written

Every message is one line that says what, where and what to do.  All of them pickle.
"""

from __future__ import annotations


class JobError(Exception):
    """Base of all errors that this package raises on purpose."""


class BadJob(JobError, ValueError):
    """The job can never run as defined; nothing was read or written."""


class BadKey(JobError, TypeError):
    """A key has a type that has no place in the order of keys."""


class BadValue(JobError, TypeError):
    """A value cannot travel to another process."""


class BadInput(JobError, ValueError):
    """An input file exists but cannot be read as what it should be."""


class BadEncoding(BadInput):
    """Bytes that are not UTF-8, named by file and byte offset."""


class MissingInput(JobError, FileNotFoundError):
    """An input path or pattern matches nothing."""


class OutputExists(JobError, FileExistsError):
    """The output is there already, or lies inside the input."""


class OutputFailed(JobError, OSError):
    """The output could not be written."""


class FunctionFailed(JobError):
    """A function of the job raised; the message says where, ``traceback_text`` shows the user's own frames."""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message, traceback_text)
        self.traceback_text = traceback_text

    def __str__(self) -> str:
        return str(self.args[0])


class MemoryExceeded(JobError, MemoryError):
    """A worker passed its memory limit."""


class WorkerFailed(JobError):
    """A task used up its attempts because workers died or went silent."""


class Damaged(JobError, OSError):
    """An intermediate file is not what was written; ``path`` names it, where it is a file of a map task."""

    path: str = ""
