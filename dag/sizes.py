"""How many bytes a value takes in memory: what it says itself, else what Dask estimates."""

from __future__ import annotations

from typing import Any


def measure_bytes(value: Any) -> int:
    """Return the size of a value: exact for arrays, tables and byte strings, a sample's estimate for long containers."""
    if value is None or isinstance(value, bool | int | float):
        return 28
    if isinstance(value, bytes | bytearray | str):
        return len(value) + 49
    if isinstance(value, list | tuple):
        if len(value) <= 100:
            return 56 + 8 * len(value) + sum(map(measure_bytes, value))
    elif not getattr(getattr(value, "dtype", None), "hasobject", False):
        size = getattr(value, "nbytes", None)
        if isinstance(size, int):
            return size
    from dask.sizeof import sizeof

    try:
        return int(sizeof(value))
    except RecursionError:  # a list in a list in a list ...
        return 0
