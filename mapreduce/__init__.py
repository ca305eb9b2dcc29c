"""MapReduce on real files: a job is stages applied to datasets, every intermediate goes through a store.

>>> from mapreduce import Stage, job
>>> @job
... def lengths(text):
...     "Each line with its length."
...     return Stage(map=lambda offset, line: [(line, len(line))])(text)
>>> lengths.input_names
('text',)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import BadJob, JobError, OutputExists
    from .functions import each, folding, identity, take, total
    from .options import Options
    from .runner import RunResult, run
    from .stages import Dataset, Job, Stage, job

__all__ = [
    "BadJob", "Dataset", "Job", "JobError", "Options", "OutputExists", "RunResult", "Stage",
    "each", "folding", "identity", "job", "run", "take", "total",
]  # fmt: skip

_HOMES = {
    "BadJob": "errors", "JobError": "errors", "OutputExists": "errors",
    "Dataset": "stages", "Job": "stages", "Stage": "stages", "job": "stages",
    "take": "functions", "total": "functions", "identity": "functions", "each": "functions",
    "folding": "functions",
    "run": "runner", "Options": "options", "RunResult": "runner",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that `mr --help` does not wait for pyarrow.
    import importlib

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mapreduce' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value
