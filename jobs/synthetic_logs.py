"""Access logs in Apache's combined format, with visits that sessions can be made of.

As in ``synthetic_lines``: an endless iterator of blocks whose bytes depend on the seed alone.
"""

from __future__ import annotations

import datetime
import urllib.parse
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.synthetic_lines import Bits, Block, Int64s, line_block, rank_table, vocabulary

_LOG_START = 1_767_225_600
"""2026-01-01 00:00:00 UTC, the first second of every generated log."""
_WINDOW_S = 3_600  # divides a day, so that a window has one date
_VISITS = 1_000
"""Visits that begin in a window."""
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_5) AppleWebKit/605.1.15 (KHTML, like Gecko) Safari/605.1",
    "curl/8.5.0",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
)


def log_blocks(seed: int) -> Iterator[Block]:
    """Yield access-log lines in Apache's combined format, in order of time, that fall into sessions.

    A visit is 1 to 40 requests of one host 1 to 60 seconds apart.  Hosts (20,000) and pages (5,000) follow
    Zipf's law, so the busiest hosts are always there and the rest come back after hours or days.
    """
    bits = Bits(seed, "logs")
    hosts = pa.array([f"{10 + i % 89}.{i // 89 % 256}.{i * 7 % 256}.{1 + i % 254}" for i in range(20_000)])
    stems = vocabulary(2_000)
    paths = (f"/{stems[i % 40 + 50]}/{stems[i % 1_900 + 60]}{i}.html" for i in range(1, 5_000))
    pages = pa.array(["/", *(urllib.parse.quote(path) for path in paths)])
    methods = pa.array(["GET"] * 29 + ["POST"] * 2 + ["HEAD"])
    statuses = pa.array(["200"] * 27 + ["304"] * 2 + ["301", "404", "500"])
    agents = pa.array(_AGENTS)
    host_table, page_table = rank_table(len(hosts), 18), rank_table(len(pages), 16)
    clock = pa.array([f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}" for s in range(86_400)])
    waiting: list[Int64s] = [np.empty(0, np.int64)] * 3
    start = _LOG_START
    while True:
        # Visits that begin in this window; their requests past its end wait for the next one.
        begin = start + bits.below(_WINDOW_S, _VISITS)
        length = 1 + (40 * bits.unit(_VISITS) ** 3).astype(np.int64).clip(0, 39)
        visit = np.repeat(np.arange(_VISITS), length)
        gap = 1 + bits.below(60, len(visit))
        first_of_visit = np.cumsum(length) - length
        gap[first_of_visit] = 0
        elapsed = np.cumsum(gap)
        time = begin[visit] + elapsed - elapsed[first_of_visit][visit]
        host = host_table[bits.below(len(host_table), _VISITS)].astype(np.int64)[visit]
        page = page_table[bits.below(len(page_table), len(visit))].astype(np.int64)
        time, host, page = (np.concatenate(pair) for pair in zip(waiting, (time, host, page), strict=True))
        order = np.argsort(time, kind="stable")
        ready = int(np.searchsorted(time[order], start + _WINDOW_S))
        waiting = [column[order[ready:]] for column in (time, host, page)]
        time, host, page = (column[order[:ready]] for column in (time, host, page))
        status = statuses.take(pa.array(bits.below(len(statuses), ready)))
        size = pc.if_else(
            pc.equal(status, "304"), "-", pa.array(200 + bits.below(50_000, ready)).cast(pa.string())
        )
        referer = pages.take(pa.array(page_table[bits.below(len(page_table), ready)]))
        lines = pc.binary_join_element_wise(
            hosts.take(pa.array(host)),
            f" - - [{_apache_date(start)}:",
            clock.take(pa.array(time % 86_400)),
            ' +0000] "',
            methods.take(pa.array(bits.below(len(methods), ready))),
            " ",
            pages.take(pa.array(page)),
            ' HTTP/1.1" ',
            status,
            " ",
            size,
            ' "https://www.example.com',
            referer,
            '" "',
            agents.take(pa.array(host % len(agents))),
            '"\n',
            "",
        )
        start += _WINDOW_S
        yield line_block(lines)


def _apache_date(second: int) -> str:
    moment = datetime.datetime.fromtimestamp(second, datetime.UTC)
    # Not strftime's %b: month names must not follow the locale.
    month = "JanFebMarAprMayJunJulAugSepOctNovDec"[3 * moment.month - 3 : 3 * moment.month]
    return f"{moment.day:02}/{month}/{moment.year}"
