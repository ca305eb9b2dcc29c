"""Folds of several operands in pieces that stay in a core's cache, wherever the operands are; nothing here knows where.

``Operand`` makes a piece of an operand, from its first and last element, in a place if it needs one; None is the target itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from .transport import Array, Fold

Operand = Callable[[int, int, int], Array]
#: Is given each folded piece, and where it begins.
Writer = Callable[[int, Array], None]
Finish = Callable[[Array], object]


def split(start: int, stop: int, length: int) -> list[tuple[int, int]]:
    """Return ``start`` to ``stop`` in pieces of ``length``, the last one shorter.

    >>> split(3, 8, 2)
    [(3, 5), (5, 7), (7, 8)]
    """
    return [(first, min(first + length, stop)) for first in range(start, stop, length)]


def fold_pieces(
    target: Array,
    pieces: Iterable[tuple[int, int]],
    operands: Sequence[Operand | None],
    fold: Fold,
    scratch: Array,
    finish: Finish | None = None,
    writers: Sequence[Writer] = (),
) -> None:
    """Fold operands in their order into ``target``, one of them; finish each piece and give it to the writers.

    Args:
        scratch: as long as the longest piece; the place 0 of an operand may be the same memory.
    """
    first, *others = operands
    for start, stop in pieces:
        own = target[start:stop]
        # Once the own operand is folded, its place is free for the total.
        total, out = (own, own) if first is None else (first(start, stop, 0), scratch[: stop - start])
        for operand in others:
            if operand is None:
                out = own
            fold(total, own if operand is None else operand(start, stop, 1), out)
            total = out
        if finish is not None:
            finish(own)
        for write in writers:
            write(start, own)


def fold_pieces_wide(
    target: Array,
    pieces: Iterable[tuple[int, int]],
    operands: Sequence[Operand | None],
    fold: Fold,
    scratch: tuple[Array, Array],
    finish: Finish | None = None,
    writers: Sequence[Writer] = (),
) -> None:
    """Do the same in the type of ``scratch``, two arrays as long as the longest piece, and round once, after the finish."""
    for start, stop in pieces:
        own = target[start:stop]
        total, right = (each[: stop - start] for each in scratch)
        for number, operand in enumerate(operands):
            value = own if operand is None else operand(start, stop, 1)
            np.copyto(right if number else total, value)
            if number:
                fold(total, right, total)
        if finish is not None:
            finish(total)
        own[:] = total
        for write in writers:
            write(start, own)
