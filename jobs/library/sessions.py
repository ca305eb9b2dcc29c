"""Cut each visitor's requests into sessions: a secondary sort.

``mr run sessions access.log -o sessions -p gap_s=1800``

The key is (host, time) with ``group=1``: the host partitions and groups, the time only orders.  So the
reduce sees the requests of one host by time and needs no memory but the open session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from mapreduce import BadJob, Dataset, Stage, job

REQUEST = re.compile(r'^(\S+) \S+ \S+ \[([^\]]*)\] "[^"]*" ')


@lru_cache(maxsize=4096)
def seconds_of(text: str) -> int:
    """Return Unix seconds of a time such as ``10/Oct/2000:13:55:36 -0700``."""
    return int(datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z").timestamp())


def requests(offset: int, line: str, *, counters: Any) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield (host, time) and the time of a log line; other lines are counted."""
    found = REQUEST.match(line)
    if found is None:
        counters["lines that are no request"] += 1
        return
    try:
        at = seconds_of(found[2])
    except ValueError:
        counters["lines that are no request"] += 1
        return
    yield (found[1], at), at


def cut(gap_s: int) -> Callable[[str, Iterable[int]], Iterator[tuple[str, str]]]:
    """Return a reduce that ends a session where more than ``gap_s`` seconds pass without a request."""

    def sessions_of(host: str, times: Iterable[int]) -> Iterator[tuple[str, str]]:
        begin = last = hits = 0
        for at in times:
            if hits and at - last > gap_s:
                yield host, _row(begin, last, hits)
                hits = 0
            if not hits:
                begin = at
            last = at
            hits += 1
        if hits:
            yield host, _row(begin, last, hits)

    return sessions_of


def _row(begin: int, last: int, hits: int) -> str:
    return f"{datetime.fromtimestamp(begin, UTC):%Y-%m-%dT%H:%M:%SZ}\t{last - begin}\t{hits}"


@job
def sessions(log: Dataset, *, gap_s: int = 1800, partitions: int | None = None) -> Dataset:
    """Sessions of each host: host, begin, seconds, requests, from an access log in any order."""
    if gap_s < 0:
        raise BadJob(f"job 'sessions': gap_s must be >= 0, got {gap_s}")
    return Stage(name="sessions", map=requests, reduce=cut(gap_s), group=1, partitions=partitions)(
        log.lines()
    )
