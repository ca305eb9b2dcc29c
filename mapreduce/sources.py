"""What the user named, and the files that it stands for.

Every file is found under its own name: nothing is decoded, and a name that exists as written wins over the
same name taken as a pattern.  Files come in the order given, those of a folder or pattern sorted by name.

What is no input: below a folder or pattern, names that begin with ``_`` or ``.`` (``_SUCCESS``,
``.part-0.crc``), unless the pattern itself spells that out.  Folders are read with all their subfolders.  A
folder that links make reachable by several ways is read once, and so is a file that is there both under its
own name and behind a link.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from mapreduce.errors import BadInput, BadJob, MissingInput
from mapreduce.files import (
    MAGIC_BYTES,
    CountedReader,
    compression_of,
    filesystem,
    first_line,
    is_local,
    local_path,
    url_of,
)
from mapreduce.formats import format_by_name, parse_format
from mapreduce.text import ENCODING_BYTES, foreign_encoding, may_be_foreign

TEXTUAL = ("text", "csv", "jsonl")
ERRORS = ("strict", "replace", "surrogateescape", "ignore")


#: How long the ranges are that a job's own ``Dataset.sample`` looks at.
SAMPLE_RANGE_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to read and how.

    ``urls`` are files, folders or patterns; ``format`` (see ``formats``) None goes by the files' extensions,
    text if that says nothing.  ``schema`` declares the columns of a table format instead of finding them out from the files.
    ``sample_ranges`` makes ``plan_splits`` choose that many evenly spaced ranges of
    ``sample_range_bytes``, not everything.
    """

    urls: tuple[str, ...]
    format: str | None = None
    errors: str = "strict"
    delimiter: bytes = b"\n"
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    sample_ranges: int | None = None
    sample_range_bytes: int = SAMPLE_RANGE_BYTES
    schema: pa.Schema | None = None

    def sampled(self, ranges: int, range_bytes: int = SAMPLE_RANGE_BYTES) -> Source:
        """Return the same files seen through that many evenly spaced ranges."""
        return replace(self, sample_ranges=ranges, sample_range_bytes=range_bytes)

    def __post_init__(self) -> None:
        if self.format is not None:
            parse_format(self.format)
        if self.errors not in ERRORS:
            raise BadJob(f"errors={self.errors!r} is not known; choose one of {', '.join(ERRORS)}")
        if not self.delimiter:
            raise BadJob("the record delimiter is empty; leave it out for one record per line")


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """One file of a source.

    ``separator`` is that of CSV.  ``encoding`` is the encoding that the first bytes of text show, where they
    show one that is not UTF-8; those of compressed files are not looked at.
    """

    url: str
    format: str
    compression: str | None
    bytes: int
    separator: str = ","
    encoding: str | None = None


def list_files(source: Source) -> list[InputFile]:
    """Return the files of a source, in reading order; raises as ``plan_splits``."""
    found: list[tuple[str, int]] = []
    missing: list[str] = []
    for url in source.urls:
        if not url:
            raise MissingInput("no input: its name is empty; name a file, folder or pattern")
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
    files = [_input_file(url, size, head, source) for (url, size), head in zip(found, heads, strict=True)]
    formats = {file.format: file.url for file in files}
    if len(formats) > 1:
        listing = ", ".join(f"{url} is {name}" for name, url in formats.items())
        raise BadInput(
            f"the input files have different formats: {listing}; say which one by --format (format=)"
        )
    if source.delimiter != b"\n" and files[0].format != "text":
        raise BadJob(
            f"{files[0].url} is {files[0].format}: a record delimiter is for text only, leave it out"
            + ("; what separates fields is said by --format 'csv:sep=;'" if files[0].format == "csv" else "")
        )
    return files


def _input_file(url: str, size: int, head: bytes, source: Source) -> InputFile:
    format = format_by_name(url) if source.format is None else parse_format(source.format)
    compression = compression_of(head)
    encoding = None
    if format.name in TEXTUAL and compression is None and may_be_foreign(head):
        with CountedReader(url, source.storage_options, lambda count: None) as file:
            encoding = foreign_encoding(file.read(ENCODING_BYTES))
    return InputFile(
        url=url, format=format.name, separator=format.separator, compression=compression, bytes=size,
        encoding=encoding,
    )  # fmt: skip


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
        fs.invalidate_cache()  # what other processes have written counts too
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
