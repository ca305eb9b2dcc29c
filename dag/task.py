"""One task, performed where it is: the function called, its row written, its failure told in the user's terms."""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .errors import NodeFailed
from .events import Notes, TaskRow, take_notes
from .graph import Node, Part
from .sizes import measure_bytes

_HERE = os.path.dirname(os.path.abspath(__file__))
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_statm: dict[int, int] = {}
_INDEXED = re.compile(r"(.*)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Call:
    """What a worker has to know of a node.  ``parts`` says which element of each input is meant, None: all of it."""

    name: str
    kind: str
    function: Callable[..., Any]
    parts: tuple[int | None, ...]
    inputs: str


def call_of(node: Node) -> Call:
    """Return the call that computes a node's value from those of its sources, in order."""
    assert node.op.function is not None
    parts = tuple(given.index if isinstance(given, Part) else None for given in node.inputs)
    return Call(node.name, node.op.kind, node.op.function, parts, _name_inputs(node))


@dataclass(frozen=True, slots=True)
class Performed:
    """A task's value, how large it is in memory (whatever the function noted), its row, and the failure if it raised."""

    value: Any
    size_bytes: int
    row: TaskRow
    failure: NodeFailed | None


def perform(call: Call, values: Sequence[Any], *, worker: int = 0) -> Performed:
    """Call the function on the values of its sources."""
    given: list[Any] = []
    notes, failure, value = Notes(), None, None
    start, cpu = time.time(), time.thread_time()
    before = take_notes(notes)
    try:
        for source, part in zip(values, call.parts, strict=True):
            given.append(source if part is None else source[part])
        value = call.function(*given)
    except (
        Exception,
        SystemExit,
    ) as error:  # whatever the user's function raises, or a piece that is not there
        if isinstance(error, SystemExit) and type(error) is not SystemExit:
            raise  # not the function's: a signal's handler asked for the end
        failure = _failure(call, error)
    finally:
        take_notes(before)
    cpu_s, end = time.thread_time() - cpu, time.time()
    sizes = [measure_bytes(each) for each in given]
    size_bytes = 0 if failure else measure_bytes(value)
    numbers: dict[str, Any] = {
        "bytes_in": sum(sizes),
        "bytes_out": size_bytes,
        "shuffle_bytes": sum(size for size, part in zip(sizes, call.parts, strict=False) if part is not None),
        **notes.numbers,
    }
    stage, task = stage_of(call.name)
    row = TaskRow(
        stage=stage, kind=call.kind, task=task, worker=worker, start=start, end=max(end, start),
        outcome="failed" if failure else "done", message=str(failure or ""), cpu_s=cpu_s,
        peak_memory_bytes=resident_bytes(), seconds=notes.seconds, counters=notes.counters, **numbers,
    )  # fmt: skip
    return Performed(value, size_bytes, row, failure)


def stage_of(name: str) -> tuple[str, int]:
    """Return a node's name without its index, and the index.

    >>> stage_of("count[3]"), stage_of("total")
    (('count', 3), ('total', 0))
    """
    found = _INDEXED.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, 0)


def resident_bytes() -> int:
    """Return the memory that this process has now."""
    # Kept open: opening it costs more than the rest of a small task.  By process: a fork would read its parent's.
    file = _statm.get(os.getpid())
    if file is None:
        _statm.clear()
        file = _statm[os.getpid()] = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    return int(os.pread(file, 100, 0).split()[1]) * _PAGE_BYTES


def _name_inputs(node: Node) -> str:
    names = [given.node.name if isinstance(given, Part) else given.name for given in node.inputs[:4]]
    if len(node.inputs) > 4:
        names.append(f"and {len(node.inputs) - 4} more")
    return ", ".join(names) or "nothing"


def _failure(call: Call, error: BaseException) -> NodeFailed:
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    lines = traceback.format_exception_only(error)
    notes = [line for note in getattr(error, "__notes__", ()) for line in str(note).split("\n")]
    said = lines[-1 - len(notes)].strip()  # the notes come last
    where = f", {notes[0]}" if notes else ""  # which step of a fused task it was
    failure = NodeFailed(f"{call.name} ({call.kind} of {call.inputs}) raised {said}{where}", text)
    failure.__cause__ = error
    return failure


def _is_ours(trace: TracebackType) -> bool:
    return os.path.dirname(trace.tb_frame.f_code.co_filename) == _HERE
