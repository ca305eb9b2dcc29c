"""From what the user named to the pieces that tasks read.

``plan_splits`` promises: every input file is read, under its own name and once; files come in the order
given, those of a folder or pattern sorted by name; the pieces of all splits, in order, are the files in
order.  So records have the same order whatever the split size.

What is no input: below a folder or pattern, names that begin with ``_`` or ``.`` (``_SUCCESS``,
``.part-0.crc``), unless the pattern itself spells that out.  Folders are read with all their subfolders.  A
folder that links make reachable by several ways is read once, and so is a file that is there both under its
own name and behind a link.  A name that exists as written wins over the same name taken as a pattern.
"""

from __future__ import annotations

import glob
import itertools
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mapreduce.errors import BadInput, BadJob, MissingInput
from mapreduce.files import MAGIC_BYTES, compression_of, filesystem, first_line, is_local, local_path, url_of
from mapreduce.text import overlaps_itself

FORMATS = ("text", "csv", "jsonl", "parquet", "arrow", "records", "raw")
EXTENSIONS = {
    ".txt": "text",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".records": "records",
}
COMPRESSED_EXTENSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
ERRORS = ("strict", "replace", "surrogateescape", "ignore")

SLOP = 1.1
"""A rest of up to a tenth of a split goes to the last split, not to a task of its own (as in Hadoop)."""
SMALLEST_CUT_BYTES = 1 << 20
"""``min_splits`` cuts no smaller than this: a task costs more than reading so little."""
SAMPLE_RANGE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to read and how.

    ``urls`` are files, folders or patterns; ``format`` None goes by the files' extensions, text if that says
    nothing. ``schema`` declares the columns of a table format instead of finding them out from the files.
     ``sample_ranges`` makes ``plan_splits`` choose that many evenly spaced ranges of 64 KiB instead of
    everything.
    """

    urls: tuple[str, ...]
    format: str | None = None
    errors: str = "strict"
    delimiter: bytes = b"\n"
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    sample_ranges: int | None = None
    schema: pa.Schema | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise BadJob(f"format {self.format!r} is not known; choose one of {', '.join(FORMATS)}")
        if self.errors not in ERRORS:
            raise BadJob(f"errors={self.errors!r} is not known; choose one of {', '.join(ERRORS)}")
        if not self.delimiter:
            raise BadJob("the record delimiter is empty; leave it out for one record per line")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of one file: bytes ``start`` to ``stop`` of text, or row groups (batches) of a columnar file.

    ``whole`` says that the piece is all of its file.  ``first_row`` is the number of the first row in its
    file, for formats that count rows.  ``columns`` are the names in the header of a CSV file that was cut.
    """

    url: str
    format: str
    compression: str | None = None
    start: int = 0
    stop: int
    file_bytes: int
    whole: bool = True
    bytes: int
    first_row: int = 0
    columns: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the piece in words, for messages and logs."""
        if self.whole:
            return self.url
        unit = {"parquet": "row groups", "arrow": "batches", "records": "batches"}.get(self.format, "bytes")
        return f"{self.url} {unit} {self.start}-{self.stop}"


@dataclass(frozen=True, kw_only=True)
class Split:
    """What one map task reads: pieces, in order."""

    index: int
    pieces: tuple[Piece, ...]
    bytes: int

    def describe(self) -> str:
        """Return the split in words, for messages and logs."""
        if not self.pieces:
            return "no input"
        if len(self.pieces) == 1:
            return self.pieces[0].describe()
        return f"{len(self.pieces)} pieces, {self.pieces[0].describe()} to {self.pieces[-1].describe()}"


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file of a source."""

    url: str
    format: str
    compression: str | None
    bytes: int


def plan_splits(
    source: Source, *, split_bytes: int, min_splits: int = 1, files: Sequence[InputFile] | None = None
) -> list[Split]:
    """Return the splits of a source, numbered from 0; at least one, though it may hold no record.

    A split has about ``split_bytes``, less when that would make fewer than ``min_splits`` (but not below 1
    MiB for that reason).  Small files are packed together.  Compressed and raw files, CSV files with a quote
    character, blank line or carriage return inside, and text with a delimiter that overlaps itself are one
    piece each.  ``files`` are those of ``list_files(source)``, when the caller has them.

    Raises:
        MissingInput: a path does not exist, a pattern matches nothing or a folder holds no file; all are
        named. BadInput: an input is not readable, or the files have different formats.
    """
    if split_bytes < 1 or min_splits < 1:
        raise BadJob(
            f"split size must be at least 1 byte and splits at least 1, got {split_bytes}, {min_splits}"
        )
    files = list(list_files(source) if files is None else files)
    if source.sample_ranges is not None and len(files) > source.sample_ranges:
        wanted = max(source.sample_ranges, 1)
        files = [files[i * len(files) // wanted] for i in range(wanted)]
    total = sum(file.bytes for file in files)
    target = min(split_bytes, max(-(-total // min_splits), SMALLEST_CUT_BYTES))
    pieces: list[Piece] = []
    for file in files:
        if source.sample_ranges is not None:
            pieces += _sample(file, source, total)
        else:
            pieces += _cut(file, source, target)
    return _pack(pieces, target)


def list_files(source: Source) -> list[InputFile]:
    """Return the files of a source, in reading order; raises as ``plan_splits``."""
    found: list[tuple[str, int]] = []
    missing: list[str] = []
    for url in source.urls:
        listed = _list_local(local_path(url)) if is_local(url) else _list_remote(url, source.storage_options)
        if isinstance(listed, str):
            missing.append(listed)
        else:
            found += listed
    if missing:
        raise MissingInput("no input: " + "; ".join(missing))
    if not found:
        raise MissingInput("no input: no path was given")
    heads = _read_heads(found, source)
    files = [
        InputFile(url=url, bytes=size, format=format_of(url, source), compression=compression_of(head))
        for (url, size), head in zip(found, heads, strict=True)
    ]
    formats = {file.format: file.url for file in files}
    if len(formats) > 1:
        listing = ", ".join(f"{url} is {name}" for name, url in formats.items())
        raise BadInput(f"the input files have different formats: {listing}; say which one by format=")
    return files


def format_of(url: str, source: Source) -> str:
    """Return the format that ``url`` is read as."""
    if source.format is not None:
        return source.format
    stem, extension = os.path.splitext(url)
    if extension in COMPRESSED_EXTENSIONS:
        extension = os.path.splitext(stem)[1]
    return EXTENSIONS.get(extension, "text")


def _list_local(path: str) -> list[tuple[str, int]] | str:
    """Return (path, bytes) of the files behind a local path or pattern, or what is missing."""
    if os.path.lexists(path):
        if os.path.isdir(path):
            found = _walk([path], set())
            return found or f"folder {path} holds no file to read (names that begin with _ or . are left out)"
        return [(path, _check_file(path, path))]
    if not glob.has_magic(path):
        return f"{path} does not exist"
    matches = [match for match in glob.glob(path, recursive=True) if not _is_hidden_match(match, path)]
    files = _walk(sorted(matches, key=os.fsencode), set())
    return files or f"nothing matches {path}"


def _is_hidden_match(match: str, pattern: str) -> bool:
    if any(part[:1] in ("_", ".") and glob.has_magic(part) for part in pattern.split("/")):
        return False
    literal = {part for part in pattern.split("/") if not glob.has_magic(part)}
    return any(part[:1] in ("_", ".") and part not in literal for part in match.split("/"))


def _walk(tops: Sequence[str], folders: set[tuple[int, int]]) -> list[tuple[str, int]]:
    """Return (path, bytes) of all files at and below ``tops``, each folder and each linked file once."""
    plain: list[tuple[str, int]] = []
    linked: list[tuple[str, int, tuple[int, int]]] = []
    seen: set[tuple[int, int]] = set()
    stack = list(reversed(tops))
    while stack:
        path = stack.pop()
        try:
            status = os.lstat(path)
            is_link = stat.S_ISLNK(status.st_mode)
            if is_link:
                status = os.stat(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        identity = (status.st_dev, status.st_ino)
        if stat.S_ISDIR(status.st_mode):
            if identity in folders:
                continue
            folders.add(identity)
            try:
                names = [name for name in os.listdir(path) if name[:1] not in ("_", ".")]
            except OSError as error:
                raise _unreadable(path, error) from error
            stack += [os.path.join(path, name) for name in sorted(names, key=os.fsencode, reverse=True)]
        else:
            size = _check_file(path, path, status)
            if is_link:
                linked.append((path, size, identity))
            else:
                plain.append((path, size))
                seen.add(identity)
    for path, size, identity in linked:
        if identity not in seen:
            seen.add(identity)
            plain.append((path, size))
    return sorted(plain, key=lambda entry: os.fsencode(entry[0]))


def _check_file(path: str, name: str, status: os.stat_result | None = None) -> int:
    """Return the size of a regular file."""
    try:
        status = status or os.stat(path)
    except OSError as error:
        raise _unreadable(name, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(f"{name} is neither a file nor a folder; pass - to read standard input")
    return status.st_size


def _unreadable(path: str, error: OSError) -> BadInput | MissingInput:
    if os.path.islink(path):
        return MissingInput(
            f"{path} is a link to {os.readlink(path)}, which cannot be reached: {first_line(error)}"
        )
    return BadInput(f"cannot read {path}: {first_line(error)}")


def _list_remote(url: str, storage_options: Mapping[str, Any]) -> list[tuple[str, int]] | str:
    fs, path = filesystem(url, storage_options)
    try:
        if fs.exists(path):
            info = fs.info(path)
            if info["type"] != "directory":
                return [(url, int(info["size"]))]
            tops = [path]
        elif glob.has_magic(path):
            tops = sorted(match for match in fs.glob(path) if not _is_hidden_match(match, path))
        else:
            return f"{url} does not exist"
        found: dict[str, int] = {}
        for top in tops:
            for name, info in sorted(fs.find(top, detail=True).items()):
                below = name[len(top) :].strip("/").split("/")
                if info["type"] == "file" and not any(part[:1] in ("_", ".") for part in below):
                    found[name] = int(info["size"])
    except OSError as error:
        raise BadInput(f"cannot read {url}: {first_line(error)}") from error
    if found:
        return [(url_of(fs, name, url), size) for name, size in found.items()]
    return f"nothing to read at {url} (names that begin with _ or . are left out)"


def _read_heads(files: Sequence[tuple[str, int]], source: Source) -> list[bytes]:
    """Return the first bytes of each file; those of remote files with few round trips."""
    heads: list[bytes] = []
    remote = [url for url, size in files if size and not is_local(url)]
    fetched: dict[str, bytes] = {}
    if remote:
        fs, _ = filesystem(remote[0], source.storage_options)
        paths = [filesystem(url, source.storage_options)[1] for url in remote]
        try:
            fetched = dict(
                zip(remote, fs.cat_ranges(paths, [0] * len(paths), [MAGIC_BYTES] * len(paths)), strict=True)
            )
        except OSError as error:
            raise BadInput(f"cannot read {remote[0]}: {first_line(error)}") from error
    for url, size in files:
        if not size:
            heads.append(b"")
        elif url in fetched:
            heads.append(fetched[url])
        else:
            try:
                with open(local_path(url), "rb", buffering=0) as file:
                    heads.append(file.read(MAGIC_BYTES))
            except OSError as error:
                raise BadInput(f"cannot read {url}: {first_line(error)}") from error
    return heads


def _cut(file: InputFile, source: Source, target: int) -> Iterator[Piece]:
    """Yield the pieces of one file, of about ``target`` bytes."""
    if file.format in ("parquet", "arrow", "records"):
        from mapreduce.tables import cut_rows

        yield from cut_rows(file, source, target)
        return
    columns: tuple[str, ...] = ()
    rows: list[int] | None = None
    cuts = _cut_points(file.bytes, target)
    if len(cuts) > 2:
        if not _has_ranges(file, source):
            cuts = [0, file.bytes]
        elif file.format == "csv":
            from mapreduce.delimited import scan_csv

            scanned = scan_csv(file, source, cuts)
            if scanned is None:
                cuts = [0, file.bytes]
            else:
                columns, rows = scanned
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        yield Piece(
            url=file.url,
            format=file.format,
            compression=file.compression,
            start=start,
            stop=stop,
            file_bytes=file.bytes,
            whole=len(cuts) == 2,
            bytes=stop - start,
            first_row=rows[number] if rows else 0,
            columns=columns,
        )


def _has_ranges(file: InputFile, source: Source) -> bool:
    if file.compression is not None or file.format == "raw":
        return False
    return file.format != "text" or not overlaps_itself(source.delimiter)


def _cut_points(size: int, target: int) -> list[int]:
    """Return where to cut, with both ends.

    >>> _cut_points(25, 10), _cut_points(21, 10), _cut_points(0, 10)
    ([0, 10, 20, 25], [0, 10, 21], [0, 0])
    """
    cuts = [0]
    while (size - cuts[-1]) / target > SLOP:
        cuts.append(cuts[-1] + target)
    return [*cuts, size]


def _sample(file: InputFile, source: Source, total: int) -> Iterator[Piece]:
    """Yield evenly spaced small pieces of one file; all of a file that cannot be read in parts."""
    ranges = source.sample_ranges or 1
    if file.format in ("parquet", "arrow", "records"):
        whole = list(_cut(file, source, 1))
        wanted = max(1, min(len(whole), ranges))
        yield from (whole[i * len(whole) // wanted] for i in range(wanted))
        return
    share = max(1, round(ranges * file.bytes / total)) if total else 1
    if file.bytes <= share * SAMPLE_RANGE_BYTES or not _has_ranges(file, source) or file.format == "csv":
        yield from _cut(file, source, max(file.bytes, 1))
        return
    for number in range(share):
        start = number * (file.bytes - SAMPLE_RANGE_BYTES) // max(share - 1, 1)
        yield Piece(
            url=file.url,
            format=file.format,
            start=start,
            stop=start + SAMPLE_RANGE_BYTES,
            file_bytes=file.bytes,
            whole=False,
            bytes=SAMPLE_RANGE_BYTES,
        )


def _pack(pieces: Sequence[Piece], target: int) -> list[Split]:
    """Put neighbouring pieces together up to ``target`` bytes."""
    packed: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if packed[-1] and size + piece.bytes > target * SLOP:
            packed.append([])
            size = 0
        packed[-1].append(piece)
        size += piece.bytes
    return [
        Split(index=index, pieces=tuple(group), bytes=sum(piece.bytes for piece in group))
        for index, group in enumerate(packed)
    ]
