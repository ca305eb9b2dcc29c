"""Count runs of n words that follow each other in a line.

``mr run ngrams book.txt -o pairs -p n=2``

The map slides a window over the words of a line.  Keys are text, the words joined by single spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mapreduce import BadJob, Dataset, Stage, job, total


def windows(n: int) -> Callable[[int, str], Iterator[tuple[str, int]]]:
    """Return a map that yields each run of ``n`` words with the count 1."""

    def slide(offset: int, line: str) -> Iterator[tuple[str, int]]:
        words = line.split()
        for start in range(len(words) - n + 1):
            yield " ".join(words[start : start + n]), 1

    return slide


@job
def ngrams(text: Dataset, *, n: int = 2, minimum: int = 1, partitions: int | None = None) -> Dataset:
    """How often each run of n words occurs, those that occur at least minimum times."""
    if n < 1:
        raise BadJob(f"job 'ngrams': n must be >= 1, got {n}")

    def frequent(words: str, counts: Iterator[int]) -> Iterator[tuple[str, int]]:
        count = sum(counts)
        if count >= minimum:
            yield words, count

    return Stage(name="ngrams", map=windows(n), combine=total, reduce=frequent, partitions=partitions)(
        text.lines()
    )
