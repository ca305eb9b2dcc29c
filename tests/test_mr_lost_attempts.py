"""What attempts leave behind that were lost after they had written something."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mapreduce import Dataset, Options, Stage, run


@pytest.mark.parametrize("name", ["reduces", "maps"])
def test_a_worker_killed_after_it_wrote_its_part_adds_no_row(tmp_path: Path, name: str) -> None:
    """Its file is complete, but was never said to be: the next stage must not read it, nor the output hold it."""

    def parity(offset: int, line: str) -> Iterator[tuple[int, int]]:
        yield int(line) % 2, 1

    def each(key: int, values: Iterable[int]) -> Iterator[tuple[int, int]]:
        for value in values:
            yield key, value

    def die(*, task: Any) -> None:
        if task.attempt == 0 and task.index == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def count(key: int, values: Iterable[int]) -> Iterator[tuple[int, int]]:
        yield key, sum(values)

    def first(text: Dataset) -> Dataset:
        if name == "maps":
            return Stage(name="first", map=parity, teardown=die)(text)
        return Stage(name="first", map=parity, reduce=each, partitions=2, teardown=die)(text)

    def chain(text: Dataset) -> Dataset:
        return Stage(name="second", reduce=count, partitions=1)(first(text))

    source = tmp_path / "in.txt"
    source.write_text("".join(f"{number}\n" for number in range(1000)))
    options = Options(workers=2, split_bytes=2_000, store=str(tmp_path / "store"))
    assert run(chain, str(source), options=options).records == [(0, 500), (1, 500)]
    run(first, str(source), output=str(tmp_path / "out"), options=options)
    parts = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert parts == ["_SUCCESS", "part-00000.txt", "part-00001.txt"]
    rows = [line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().splitlines()]
    assert len(rows) == 1000
