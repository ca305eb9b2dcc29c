"""Word count for mrjob, as in its documentation (mr_word_freq_count), on whitespace-separated words."""

from __future__ import annotations

from collections.abc import Iterator

from mrjob.job import MRJob


class WordCount(MRJob):
    """Count words with a combiner."""

    def mapper(self, _: None, line: str) -> Iterator[tuple[str, int]]:
        for word in line.split():
            yield word, 1

    def combiner(self, word: str, counts: Iterator[int]) -> Iterator[tuple[str, int]]:
        yield word, sum(counts)

    def reducer(self, word: str, counts: Iterator[int]) -> Iterator[tuple[str, int]]:
        yield word, sum(counts)


if __name__ == "__main__":
    WordCount.run()
