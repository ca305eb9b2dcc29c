"""From files to the pieces that tasks read.

``plan_splits`` promises: every file is read once, and the pieces of all splits, in order, are the files in
order.  So records have the same order whatever the split size.  Nothing is read here but the first bytes of
files, the footers of columnar files, and CSV files that are to be cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from mapreduce.errors import BadJob
from mapreduce.pieces import Piece, Split
from mapreduce.sources import InputFile, Source, list_files
from mapreduce.text import check_encoding, overlaps_itself

__all__ = ["Piece", "Split", "plan_splits"]

SLOP = Fraction(11, 10)
"""A rest of up to a tenth of a split goes to the last split, not to a task of its own (as in Hadoop)."""
SMALLEST_CUT_BYTES = 1 << 20
"""``min_splits`` cuts no smaller than this: a task costs more than reading so little."""
BEYOND_BYTES = 8 << 10
"""At least so much is read behind the end of a range of a sample, to find the end of its last line."""


def plan_splits(
    source: Source, *, split_bytes: int, min_splits: int = 1, files: Sequence[InputFile] | None = None
) -> list[Split]:
    """Return the splits of a source, numbered from 0; at least one, though it may hold no record.

    A split has about ``split_bytes``, less so that their number is a multiple of ``min_splits`` (but not below 1
    MiB for that reason).  Small files are packed together.  Compressed and raw files, CSV files with a quote
    character, blank line or carriage return inside, and text with a delimiter that overlaps itself are one
    piece each.  ``files`` are those of ``list_files(source)``, when the caller has them.

    Raises:
        MissingInput: a path does not exist, a pattern matches nothing or a folder holds no file.
        BadInput: an input is not readable, or the files have different formats.
    """
    if not isinstance(split_bytes, int):
        raise BadJob(f"split size must be a whole number of bytes, got {split_bytes!r}")
    if split_bytes < 1 or min_splits < 1:
        raise BadJob(
            f"split size must be at least 1 byte and splits at least 1, got {split_bytes}, {min_splits}"
        )
    files = list(list_files(source) if files is None else files)
    if source.sample_ranges is not None and len(files) > source.sample_ranges:
        wanted = max(source.sample_ranges, 1)
        files = [files[i * len(files) // wanted] for i in range(wanted)]
    for file in files:
        check_encoding(file.encoding, file.url, source.errors)
    total = sum(file.bytes for file in files)
    count = max(-(-total // split_bytes), min_splits)
    count = -(-count // min_splits) * min_splits  # no worker is idle while others do one split more
    target = min(split_bytes, max(-(-total // count), SMALLEST_CUT_BYTES))
    pieces: list[Piece] = []
    for file in files:
        if source.sample_ranges is not None:
            pieces += _sample(file, source, total)
        else:
            pieces += _cut(file, source, target)
    return _pack(pieces, target)


def _cut(file: InputFile, source: Source, target: int, wanted: int | None = None) -> Iterator[Piece]:
    """Yield the pieces of one file, of about ``target`` bytes: all, or ``wanted`` of them at even distances."""
    if file.format in ("parquet", "arrow", "records"):
        from mapreduce.tables import cut_rows

        pieces = list(cut_rows(file, source, target))
        yield from (pieces[number] for number in _spaced(len(pieces), wanted))
        return
    columns: tuple[str, ...] = ()
    rows: list[int] | None = None
    starts = _starts(file.bytes, target)
    if len(starts) > 1:
        if not _has_ranges(file, source):
            starts = range(1)
        elif file.format == "csv":
            from mapreduce.tables import scan_csv

            scanned = scan_csv(file, source, [*starts, file.bytes])
            if scanned is None:
                starts = range(1)
            else:
                columns, rows = scanned
    for number in _spaced(len(starts), wanted):
        start = starts[number]
        stop = starts[number + 1] if number + 1 < len(starts) else file.bytes
        yield Piece(
            url=file.url,
            format=file.format,
            compression=file.compression,
            start=start,
            stop=stop,
            file_bytes=file.bytes,
            whole=len(starts) == 1,
            bytes=stop - start,
            first_row=rows[number] if rows else 0,
            separator=file.separator,
            columns=columns,
        )


def _spaced(count: int, wanted: int | None) -> Iterable[int]:
    """Return ``wanted`` of the numbers below ``count`` at even distances, or all of them."""
    if wanted is None or wanted >= count:
        return range(count)
    return (number * count // wanted for number in range(wanted))


def _has_ranges(file: InputFile, source: Source) -> bool:
    if file.compression is not None or file.format == "raw":
        return False
    return file.format != "text" or not overlaps_itself(source.delimiter)


def _starts(size: int, target: int) -> range:
    """Return where pieces begin.

    >>> _starts(25, 10), _starts(21, 10), _starts(0, 10)
    (range(0, 30, 10), range(0, 20, 10), range(0, 10, 10))
    """
    count = max(1, math.ceil(Fraction(size, target) - SLOP) + 1)
    return range(0, count * target, target)


def _sample(file: InputFile, source: Source, total: int) -> Iterator[Piece]:
    """Yield evenly spaced small pieces of one file; all of a file that cannot be read in parts."""
    wanted = round((source.sample_ranges or 1) * file.bytes / total) if total else 1
    if wanted * (source.sample_range_bytes + BEYOND_BYTES) >= file.bytes:  # all of it, in one read, is less
        yield from _cut(file, source, max(file.bytes, 1))
        return
    yield from _cut(file, source, source.sample_range_bytes, max(wanted, 1))


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
