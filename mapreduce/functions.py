"""Small functions that many jobs use as their map, combine or reduce."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Groups = Iterable[tuple[Any, Iterable[Any]]]


def take(n: int) -> Callable[[Groups], Iterator[tuple[Any, Any]]]:
    """Return a ``reduce_stream`` that passes on the first ``n`` records of its partition and stops.

    >>> list(take(2)([("a", [1]), ("b", [2, 3])]))
    [('a', 1), ('b', 2)]
    """

    def first(groups: Groups) -> Iterator[tuple[Any, Any]]:
        left = n
        for key, values in groups:
            for value in values:
                if left <= 0:
                    return
                yield key, value
                left -= 1

    return first


def identity(key: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Map that passes each record on unchanged."""
    yield key, value


def each(key: Any, values: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Reduce that passes each record on unchanged, in key order."""
    for value in values:
        yield key, value


def folding(two: Callable[[Any, Any], Any]) -> Callable[[F], F]:
    """Say of a combine that it folds values by a function of two, from the left.

    So of ``a, b, c`` it yields ``two(two(a, b), c)``, with the key it was given; ``two`` must not change its arguments, which are
    the values that the map has yielded.  A map task then holds one value per key and
    no list of them; it calls ``two`` as pairs come, and the combine at last on what that made.

    >>> @folding(max)
    ... def longest(key, values):
    ...     yield key, max(values)
    """

    def mark(combine: F) -> F:
        combine.folds_by = two  # type: ignore[attr-defined]
        return combine

    return mark


@folding(operator.add)
def total(key: Any, values: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Combine or reduce that adds the values of a key."""
    yield key, sum(values)
