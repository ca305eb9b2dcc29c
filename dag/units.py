"""Bytes, seconds and words as people see them."""

from __future__ import annotations

import unicodedata

#: Seconds of each unit of ``show_time``.
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


def show_bytes(count: float) -> str:
    """Return ``count`` in decimal units, with three digits.

    >>> show_bytes(999), show_bytes(1_500), show_bytes(64_000_000), show_bytes(999_999)
    ('999 B', '1.50 kB', '64.0 MB', '1.00 MB')
    """
    if count < 999.5:
        return f"{count:.0f} B"
    value = count / 1000
    for unit in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            return f"{three_digits(value)} {unit}"
        value /= 1000
    return f"{three_digits(value)} PB"


def show_seconds(seconds: float) -> str:
    """Return ``seconds`` with a unit that suits them; less than 5 microseconds are nothing.

    >>> show_seconds(0.0002), show_seconds(0.068), show_seconds(2.66), show_seconds(75), show_seconds(7300), show_seconds(1e-9)
    ('0.20 ms', '68.0 ms', '2.66 s', '75.0 s', '122 min', '0 s')
    """
    if abs(seconds) < 5e-6:
        return "0 s"
    if seconds < 0.9995:
        return f"{three_digits(seconds * 1000)} ms"
    if seconds < 600:
        return f"{three_digits(seconds)} s"
    return f"{seconds / 60:,.0f} min"


def show_time(seconds: float) -> str:
    """Return ``seconds`` with three digits and a unit from microseconds on: for what takes no longer than a message.

    >>> show_time(1.234e-5), show_time(0.00456), show_time(0.9999), show_time(377.4), show_time(3e-9), show_time(0)
    ('12.3 µs', '4.56 ms', '1.00 s', '377 s', '0.00 µs', '0.00 µs')
    """
    for unit, unit_s in TIME_UNITS.items():
        if seconds >= 0.9995 * unit_s or unit == "µs":
            break
    return f"{three_digits(seconds / unit_s)} {unit}"


def three_digits(value: float) -> str:
    """Return a value from 1 up to 1000 with three digits; what is smaller has two decimals."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


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
