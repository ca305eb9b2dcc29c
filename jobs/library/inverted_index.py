"""For each word, where it stands: the index behind a search.

``mr run inverted_index books/ -o index``

The map asks for ``task`` by the name of a keyword-only parameter and learns from ``task.input`` which file
it reads. The key is (word, file, offset) with ``group=1``: words partition and group, file and offset only
order, so the places of a word arrive sorted and none has to be held to sort them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mapreduce import Dataset, Stage, job

Place = tuple[str, str, int]


def places(offset: int, line: str, *, task: Any) -> Iterator[tuple[Place, str]]:
    """Yield each distinct word of a line with the file and the byte offset of the line."""
    for word in dict.fromkeys(line.split()):
        yield (word, task.input, offset), f"{task.input}:{offset}"


def join_places(word: str, found: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the word with all its places in one line."""
    yield word, " ".join(found)


@job
def inverted_index(text: Dataset, *, partitions: int | None = None) -> Dataset:
    """For each word the lines that contain it, as file:offset, by file and offset."""
    return Stage(name="index", map=places, reduce=join_places, group=1, partitions=partitions)(text.lines())
