"""Pieces of files and how one is opened: what every reader of a format is built on.

A piece says where its bytes or rows lie.  Which pieces a source is cut into is ``splits``; what stands in them
is for the readers of the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mapreduce.errors import BadInput, JobError
from mapreduce.files import CountedReader, first_line, open_decompressed
from mapreduce.sources import InputFile, Source
from mapreduce.text import ENCODING_BYTES, Lines, check_encoding, foreign_encoding, may_be_foreign, read_lines

RECORD_BLOCK_BYTES = 1 << 20
"""Records are Python objects, several times as big as their bytes: read them in small blocks."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of one file: bytes ``start`` to ``stop`` of text, or row groups (batches) of a columnar file.

    ``whole`` says that the piece is all of its file.  ``first_row`` is the number of the first row in its
    file, for formats that count rows.  ``separator`` is that of CSV, and ``columns`` are the names in the
    header of a CSV file that was cut.
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
    separator: str = ","
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

    def apart(self) -> Iterator[tuple[Piece, Split]]:
        """Yield each piece and a split of it alone, for readers that must know which file a record is from."""
        for piece in self.pieces:
            yield piece, replace(self, pieces=(piece,))

    def describe(self) -> str:
        """Return the split in words, for messages and logs."""
        if not self.pieces:
            return "no input"
        if len(self.pieces) == 1:
            return self.pieces[0].describe()
        return f"{len(self.pieces)} pieces, {self.pieces[0].describe()} to {self.pieces[-1].describe()}"


def whole_piece(file: InputFile) -> Piece:
    """Return all of a file as one piece."""
    return Piece(
        url=file.url, format=file.format, separator=file.separator, compression=file.compression,
        stop=file.bytes, file_bytes=file.bytes, bytes=file.bytes,
    )  # fmt: skip


def ignore(count: int) -> None:
    """Take a count and do nothing with it."""


@contextmanager
def reading(piece: Piece, doing: str = "read") -> Iterator[None]:
    """Turn what libraries raise about a damaged file into a ``BadInput`` that names it."""
    try:
        yield
    except JobError:
        raise
    except EOFError as error:
        raise BadInput(f"{piece.url}: the file ends too early: {first_line(error)}") from error
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        what = piece.compression or piece.format
        raise BadInput(f"{piece.url}: cannot {doing} this as {what}: {first_line(error)}") from error


def piece_lines(
    split: Split,
    source: Source,
    block_bytes: int,
    counted: Callable[[int], None],
    delimiter: bytes | None = None,
) -> Iterator[tuple[Piece, Lines]]:
    """Yield the lines of each piece, with the piece that they are from."""
    for piece in split.pieces:
        with (
            open_decompressed(piece.url, piece.compression, source.storage_options, counted) as file,
            reading(piece),
        ):
            begins = piece.compression is not None  # else the plan has looked at the beginning
            for lines in read_lines(
                file,
                url=piece.url,
                start=piece.start,
                stop=None if piece.whole else piece.stop,
                delimiter=delimiter or source.delimiter,
                block_bytes=block_bytes if piece.compression else min(block_bytes, piece.bytes + 4096),
            ):
                if begins:
                    begins = False
                    check_head(bytes(lines.data[: min(lines.size, ENCODING_BYTES)]), piece, source)
                yield piece, lines


def check_head(head: bytes, piece: Piece, source: Source) -> None:
    """Refuse the text of a compressed file that begins with ``head`` and is not UTF-8.

    Raises:
        BadEncoding: as ``check_encoding``.
    """
    if may_be_foreign(head):
        check_encoding(foreign_encoding(head), piece.url, source.errors)


def read_whole(piece: Piece, source: Source, counted: Callable[[int], None]) -> bytes:
    """Return the bytes of a file that is not compressed."""
    with CountedReader(piece.url, source.storage_options, counted) as file, reading(piece):
        return file.read(piece.file_bytes) + file.readall()  # readall alone goes by 8 KiB
