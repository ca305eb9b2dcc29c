"""Sizes as people write them: ``1GB`` is 10**9 bytes, ``1GiB`` is 2**30.

Letters are decimal as in the SI, an ``i`` makes them binary; nothing is rounded behind the user's back.  What is shown is
decimal, with three digits: kB, MB, GB.
"""

from __future__ import annotations

import re
from decimal import Decimal

from dag.units import show_bytes as format_size

__all__ = ["exact_size", "format_size", "parse_size", "say_count"]

_UNITS = ("", "K", "M", "G", "T", "P")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(I?)B?\s*", re.IGNORECASE | re.ASCII)
#: What files, memory and counters of a machine can have.
_MOST_BYTES = (1 << 63) - 1


def parse_size(text: str) -> int:
    """Return the number of bytes that ``text`` names.

    >>> parse_size("500MB"), parse_size("1.5k"), parse_size("64MiB"), parse_size("100")
    (500000000, 1500, 67108864, 100)

    Raises:
        ValueError: ``text`` is no size, no whole number of bytes, or more than a machine word counts.
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"{text!r} is no size; write a number and a unit, as in 500MB, 1GB or 64MiB")
    base = 1024 if match[3] else 1000
    size = Decimal(match[1]) * base ** _UNITS.index(match[2].upper())
    if size > _MOST_BYTES:
        raise ValueError(f"{text!r} is too large a size; the largest is 9223PB")
    if size != int(size):
        raise ValueError(f"{text!r} is {size} bytes; a size must be a whole number of bytes")
    return int(size)


def exact_size(size_bytes: int) -> str:
    """Return the shortest text that ``parse_size`` takes for ``size_bytes``.

    >>> exact_size(2_000_000_000), exact_size(64 << 20), exact_size(1_500_000), exact_size(1)
    ('2GB', '64MiB', '1500kB', '1')
    """
    written = [str(size_bytes)]
    for power, letter in enumerate("kMGTP", 1):
        for base, unit in ((1000, f"{letter}B"), (1024, f"{letter.upper()}iB")):
            if size_bytes and size_bytes % base**power == 0:
                written.append(f"{size_bytes // base**power}{unit}")
    return min(written, key=len)


def say_count(count: int, noun: str, plural: str = "") -> str:
    """Return ``count`` with its noun in the right number.

    >>> say_count(1, "map"), say_count(0, "map"), say_count(2500, "copy", "copies")
    ('1 map', '0 maps', '2,500 copies')
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
