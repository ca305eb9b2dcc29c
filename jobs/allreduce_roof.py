"""What a machine could do at best: bytes per second of its memory, and of raw sockets, with all ranks at once.

And what an algorithm asks of it: how many elements it reads and writes in memory, how many it sends, what it keeps aside.
"""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass

import numpy as np

from dag.collectives import Comm, Schedule, bounds
from dag.collectives.prepared import folds_and_shares
from dag.collectives.schedule import FOLD, HOLD

#: Elements of a piece of the triad, as the folds of a transport take them, and of a message of the stream.
_PIECE = 1 << 16
_CHUNK_BYTES = 1 << 18
#: Less than this is in a core's own cache in any case, and it would be the calls that take the time.
_LEAST_BYTES = 1 << 18
#: A run of the triad has as many passes as make so many bytes, so that ranks that begin one after another still work at once.
_RUN_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Roof:
    """``bytes_per_s`` of all ranks together: of memory, read or written, or sent through raw sockets."""

    what: str
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a schedule asks of the machine.

    Args:
        touched: elements read or written in memory, of all ranks together; what is folded at once is read once and written once.
        sent: elements sent, of all ranks together.
        aside: the most elements that one rank keeps aside.
    """

    touched: int
    sent: int
    aside: int


def asked(schedule: Schedule, elements: int) -> Asked:
    """Return what ``schedule`` asks for ``elements`` elements.

    A fold of k arriving values reads k + 1 and writes 1, a replacement reads 1 and writes 1, what is held is written aside
    first.  So the ring touches 5(P-1)N elements.  What is folded and given to all in one, see ``FoldsAndShares``, is read once
    and written once: the sharded all-reduce touches 2PN.
    """
    at = bounds(elements, schedule.parts)
    touched = sent = aside = 0
    held = np.zeros(schedule.nodes, np.int64)
    folded_aside: set[tuple[int, int, int]] = set()
    for step in schedule:
        size = at[step.stop] - at[step.start]
        sent += int(size.sum())
        touched += int(size[step.mode != FOLD].sum()) * 2 + int(size[step.mode == FOLD].sum())
        columns = (step.dst, step.start, step.stop)
        folds = set(zip(*(each[step.mode == FOLD].tolist() for each in columns), strict=True))
        holds = step.mode == HOLD
        folded_aside |= set(zip(*(each[holds].tolist() for each in columns), strict=True))
        np.add.at(held, step.dst[holds], size[holds])
        aside = max(aside, int(held.max(initial=0)))
        if step.settle:
            touched += int(held.sum())
            held[:] = 0
            folds |= folded_aside
            folded_aside.clear()
        touched += sum(2 * int(at[stop] - at[start]) for _, start, stop in folds)
    if folds_and_shares(schedule):
        touched = 2 * schedule.ranks * elements if schedule.ranks > 1 else 0
    return Asked(touched=touched, sent=sent, aside=aside)


def measure_triad(comm: Comm, nbytes: int, runs: int) -> Roof:
    """Return the memory's rate while all ranks do ``a = b + c`` at once, in the best run; they share a machine.

    Args:
        nbytes: of the three arrays of a rank together, so that as much memory is in use as by an all-reduce of arrays of
            ``nbytes``: what fits in a cache there does so here.  256 KiB at least.
    """
    elements = max(nbytes, _LEAST_BYTES) // 12
    one, two, three = (np.ones(elements, np.float32) for _ in range(3))
    passes = -(-_RUN_BYTES // (12 * elements))

    def triad(passes: int) -> None:
        for _ in range(passes):
            for at in range(0, elements, _PIECE):
                np.add(two[at : at + _PIECE], three[at : at + _PIECE], one[at : at + _PIECE])

    triad(1)
    times = []
    for _ in range(runs):
        comm.barrier()
        began = time.perf_counter()
        triad(passes)
        times.append((began, time.perf_counter()))
    return Roof(what="memory", bytes_per_s=passes * 12 * elements * comm.size / shortest(comm, times))


def measure_stream(comm: Comm, nbytes: int, runs: int) -> Roof:
    """Return the rate at which all ranks send ``nbytes`` to the next one and take as many at once, over raw loopback sockets.

    By the best run; the ranks share a machine.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports = comm.all_gather(np.array([listener.getsockname()[1]]))[:, 0]
        giving = socket.create_connection(("127.0.0.1", int(ports[(comm.rank + 1) % comm.size])))
        taking, _ = listener.accept()
    with giving, taking, selectors.DefaultSelector() as selector:
        giving.setblocking(False)
        taking.setblocking(False)
        selector.register(giving, selectors.EVENT_WRITE)
        selector.register(taking, selectors.EVENT_READ)
        given, taken = memoryview(bytearray(_CHUNK_BYTES)), memoryview(bytearray(_CHUNK_BYTES))
        times = []
        for _ in range(runs):
            comm.barrier()
            began = time.perf_counter()
            to_give = to_take = nbytes
            selector.modify(giving, selectors.EVENT_WRITE)
            while to_give or to_take:
                for key, _events in selector.select():
                    if key.fileobj is giving and to_give:
                        to_give -= giving.send(given[: min(_CHUNK_BYTES, to_give)])
                        if not to_give:  # a socket that can be written to would wake this loop for nothing
                            selector.modify(giving, selectors.EVENT_READ)
                    elif key.fileobj is taking and to_take:
                        to_take -= taking.recv_into(taken[: min(_CHUNK_BYTES, to_take)])
            times.append((began, time.perf_counter()))
    return Roof(what="stream", bytes_per_s=nbytes * comm.size / shortest(comm, times))


def shortest(comm: Comm, times: list[tuple[float, float]]) -> float:
    """Return the seconds of the shortest run from the first rank's begin to the last one's end, by the clock that all share.

    The slowest rank's own time is less where ranks are more than cores: it may have begun when another was done.
    """
    began, ended = np.array(times).T
    return float((comm.allreduce(ended.copy(), "max") - comm.allreduce(began.copy(), "min")).min())
