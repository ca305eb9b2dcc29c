"""Bytes, seconds and words as people see them."""

from __future__ import annotations

import unicodedata


def show_bytes(count: int) -> str:
    """Return ``count`` in decimal units, three digits at most.

    >>> show_bytes(999), show_bytes(1_500), show_bytes(64_000_000), show_bytes(999_999)
    ('999 B', '1.5 kB', '64 MB', '1 MB')
    """
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.3g} EB"


def show_seconds(seconds: float) -> str:
    """Return ``seconds`` with a unit that suits them.

    >>> show_seconds(0.0002), show_seconds(0.068), show_seconds(2.66), show_seconds(75), show_seconds(7300)
    ('0.2 ms', '68 ms', '2.66 s', '75 s', '122 min')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e3:.2g} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.3g} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:,.0f} min"


def cells(words: str) -> int:
    """Return the width of ``words`` in characters of a monospaced font; Chinese and its like take two, accents none.

    >>> cells("abc"), cells("数える")
    (3, 6)
    """
    return sum(
        2 if unicodedata.east_asian_width(each) in "WF" else 0 if unicodedata.combining(each) else 1
        for each in words
    )


def visible(words: str) -> str:
    """Return ``words`` with control characters, which no terminal or XML file should get, replaced."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in words)
