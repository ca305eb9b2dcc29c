"""Write input data of any size: text, sort records, access logs, points and graphs.

The same arguments give the same bytes.  Data is made and written block by block, so memory does not grow with
the size.  It is written beside its place and renamed: at PATH stands the whole file or nothing.  A name that
ends in .gz, .bz2 or .zst is compressed; sizes count the bytes before compression.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from jobs import synthetic_lines, synthetic_logs, synthetic_points
from jobs.synthetic_lines import Block
from mapreduce.errors import BadJob, JobError, OutputExists, OutputFailed
from mapreduce.files import CountedWriter, filesystem, first_line, is_local, local_path

KINDS = ("text", "records", "logs", "points", "graph")
LINES = ("fixed", "variable")
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What one call wrote: ``lines`` rows (without a header) and ``size_bytes`` bytes before compression."""

    url: str
    lines: int
    size_bytes: int


def generate(
    kind: str,
    url: str,
    *,
    size_bytes: int,
    seed: int = 1,
    lines: str = "fixed",
    features: int = 10,
    nodes: int | None = None,
    overwrite: bool = False,
) -> Generated:
    """Write whole lines of ``kind`` up to ``size_bytes`` (one line at least) to ``url``.

    ``lines`` is for records, ``features`` for points and ``nodes`` for graphs.  Points for a name that ends
    in .parquet are a Parquet file, in which ``size_bytes`` counts 8 bytes per value.

    Raises:
        BadJob: an argument is outside its range.
        OutputExists: something stands at ``url`` and ``overwrite`` is false.
        OutputFailed: the file could not be written; nothing is left of it.
    """
    if kind not in KINDS:
        raise BadJob(f"cannot generate {kind!r}; the kinds are {', '.join(KINDS)}")
    if not url:
        raise BadJob("the name of the file is empty; say where to write")
    if size_bytes < 1:
        raise BadJob(f"size must be at least 1 byte, got {size_bytes}")
    if seed < 0:
        raise BadJob(f"seed must not be negative, got {seed}")
    if lines not in LINES:
        raise BadJob(f"lines must be {' or '.join(LINES)}, got {lines!r}")
    if features < 1:
        raise BadJob(f"features must be at least 1, got {features}")
    if nodes is not None and not 2 <= nodes < 2**31:
        raise BadJob(f"nodes must be in [2, 2**31), got {nodes}")
    if kind == "points" and url.endswith(".parquet"):
        rows = max(1, size_bytes // (8 * (features + 1)))

        def write_table(file: BinaryIO) -> Generated:
            synthetic_points.write_parquet(file, seed=seed, features=features, rows=rows)
            return Generated(url=url, lines=rows, size_bytes=rows * 8 * (features + 1))

        return _publish(url, overwrite, write_table)

    header = b""
    if kind == "points":
        header = synthetic_points.csv_header(features)
        blocks = synthetic_points.csv_blocks(seed, features)
    elif kind == "graph":
        # An edge has about 14 bytes and a node about 10 edges.
        blocks = synthetic_lines.graph_blocks(seed, nodes or min(max(2, size_bytes // 140), 2**31 - 1))
    elif kind == "records" and lines == "variable":
        blocks = synthetic_lines.variable_record_blocks(seed)
    else:
        blocks = {
            "text": synthetic_lines.text_blocks,
            "records": synthetic_lines.record_blocks,
            "logs": synthetic_logs.log_blocks,
        }[kind](seed)

    def write_lines(file: BinaryIO) -> Generated:
        if header:
            file.write(header)
        count, written = _write_up_to(file, blocks, size_bytes - len(header))
        return Generated(url=url, lines=count, size_bytes=len(header) + written)

    return _publish(url, overwrite, write_lines)


def _write_up_to(file: BinaryIO, blocks: Iterator[Block], size_bytes: int) -> tuple[int, int]:
    """Write whole lines while they fit into ``size_bytes``, one at least; return (lines, bytes)."""
    count = written = 0
    for block in blocks:
        left = size_bytes - written
        whole = int(block.ends.searchsorted(left, side="right"))
        if whole == 0 and count == 0:
            whole = 1
        if whole:
            stop = int(block.ends[whole - 1])
            file.write(block.data[:stop])
            count, written = count + whole, written + stop
        if whole < len(block.ends):
            break
    return count, written


def _publish(url: str, overwrite: bool, write: Callable[[BinaryIO], Generated]) -> Generated:
    """Have ``write`` fill a file beside ``url``, then rename it to ``url``; leave nothing when that fails."""
    folder, slash, name = url.rstrip("/").rpartition("/")
    temporary = f"{folder}{slash}.{name}.{uuid.uuid4().hex[:12]}.tmp"
    try:
        if is_local(url):
            path, from_path = local_path(url), local_path(temporary)
            is_folder, exists = os.path.isdir(path), os.path.lexists(path)
        else:
            fs, path = filesystem(url, {})
            _, from_path = filesystem(temporary, {})
            is_folder, exists = fs.isdir(path), fs.exists(path)
        if is_folder:
            raise OutputExists(f"{url} is a folder; name a file to write")
        if exists and not overwrite:
            raise OutputExists(f"{url} exists; choose another name or add --overwrite")
        raw = CountedWriter(temporary, {})
        try:
            with _compressed(raw, url) as file:
                made = write(file)
            raw.close()
            if is_local(url):
                os.replace(from_path, path)
            else:
                fs.mv(from_path, path)
        except BaseException:
            raw.discard()
            raise
    except OutputFailed as error:
        raise OutputFailed(str(error).replace(temporary, url)) from error
    except JobError:
        raise
    except OSError as error:
        raise OutputFailed(f"cannot write {url}: {first_line(error)}; nothing was left there") from error
    return made


@contextlib.contextmanager
def _compressed(raw: Any, url: str) -> Iterator[Any]:
    codec = _CODECS.get(os.path.splitext(url)[1])
    if codec is None:
        yield raw
    else:
        with pa.CompressedOutputStream(pa.PythonFile(raw, mode="w"), codec) as file:
            yield file
