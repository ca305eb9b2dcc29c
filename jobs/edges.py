"""The edges of a graph, read from text: one ``source target`` per line, fields apart by blanks or tabs.

Further fields are passed over, so are blank lines and those that begin with ``#`` (as in the SNAP collection); a line with
one field is no edge and is counted.  Names of nodes are 64-bit integers or any bytes; ``node_type`` says which of
the two a job works with.  Nothing here removes repeated edges or self-loops.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mapreduce import BadJob, Dataset
from mapreduce.inputs import plan_splits, read_batches

NAMES = ("auto", "integer", "text")
_INTEGER = re.compile(rb"-?[0-9]{1,18}")
_HEAD_BYTES = 1 << 16


def node_type(edges: Dataset, names: str, job: str) -> pa.DataType:
    """Return the Arrow type of node names: int64 or binary; ``auto`` looks at the first edge of the input.

    Raises:
        BadJob: ``names`` is not one of NAMES.
    """
    if names not in NAMES:
        raise BadJob(f"job {job!r}: names must be {', '.join(NAMES)}, got {names!r}")
    if names != "auto":
        return pa.int64() if names == "integer" else pa.binary()
    for line in _first_lines(edges):
        fields = line.split()
        if len(fields) >= 2 and not line.startswith(b"#"):
            return pa.int64() if all(map(_INTEGER.fullmatch, fields[:2])) else pa.binary()
    return pa.binary()


def _first_lines(edges: Dataset) -> list[bytes]:
    source = edges.source
    if source is None:  # the output of a stage is not there yet
        return []
    for split in plan_splits(source, split_bytes=64 << 20):
        for batch in read_batches(split, source, block_bytes=_HEAD_BYTES):
            if "line" not in batch.schema.names:  # a table, which is refused with the plan
                return []
            lines: list[bytes] = batch.slice(0, 1000).column("line").to_pylist()
            return lines
    return []


def edge_reader(kind: pa.DataType) -> Callable[[pa.Array, Any], tuple[pa.Array, pa.Array]]:
    """Return a function from (lines, counters) to the sources and the targets of their edges, arrays of ``kind``."""

    def read(lines: pa.Array, counters: Any) -> tuple[pa.Array, pa.Array]:
        # The same bytes called text: ASCII whitespace is found without asking whether the rest is UTF-8.
        text = pa.Array.from_buffers(pa.string(), len(lines), lines.buffers(), lines.null_count, lines.offset)
        text = pc.ascii_trim_whitespace(text)
        text = text.filter(pc.invert(pc.or_(pc.equal(text, ""), pc.starts_with(text, "#"))))
        fields = pc.ascii_split_whitespace(text)
        enough = pc.greater_equal(pc.list_value_length(fields), 2)
        missing = len(enough) - int(pc.sum(enough).as_py() or 0)
        if missing:
            counters["lines that are no edge"] += missing
            fields = fields.filter(enough)
        source, target = (_named(pc.list_element(fields, at), kind) for at in (0, 1))
        return source, target

    return read


def _named(names: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return names.view(pa.binary())
    try:
        return names.cast(kind)
    except pa.ArrowInvalid:
        bad = next(n for n in names.view(pa.binary()).to_pylist() if not _INTEGER.fullmatch(n))
        raise BadJob(
            f"node {bad.decode(errors='replace')!r} is no integer of up to 18 digits, but the first edge has integers; "
            "give -p names=text"
        ) from None
