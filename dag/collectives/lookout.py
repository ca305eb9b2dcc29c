"""A rank's line to its launcher: what it tells of trouble, and what it is told of it.

A thread reads the line, so that a rank that computes can still say where it stands.  A transport that waits tells
``waited``; the launcher judges (``verdicts``), and what it says is raised from there, at every rank the same.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from ..errors import GraphError, RankFailed
from .rendezvous import Line
from .verdicts import REMEMBERED, Where, in_words

#: A rank that has waited so long tells it, so that calls that do not fit are found before the timeout.
SLOW_S = 1.0
#: So long a rank waits for a verdict before it says what it thinks itself.
VERDICT_S = 8.0


class Lookout:
    """A ``Watch`` that reports to the launcher; without a line there are no peers."""

    def __init__(self, line: Line | None, timeout_s: float) -> None:
        self._line = line
        self.timeout_s = timeout_s
        self._calls = 0
        self._inside = False
        self._returned = False
        self._recent: deque[str] = deque(maxlen=REMEMBERED)
        self._told: tuple[str, int] | None = None
        self._verdict: GraphError | None = None
        self._news = threading.Event()
        self._leave = threading.Event()
        self._gone: Callable[[], object] = lambda: None

    def listen(self, gone: Callable[[], object]) -> None:
        """Begin to read the line; ``gone`` is called when the run is over, or the launcher gone, before this rank returned."""
        self._gone = gone
        threading.Thread(target=self._listen, daemon=True, name="lookout").start()

    # What the communicator tells.

    def begin(self, call: str) -> int:
        """Note the beginning of a collective and return its number, counted from 1."""
        self._recent.append(call)
        self._calls += 1
        self._inside = True
        return self._calls

    def end(self) -> None:
        """Note the end of the collective."""
        self._inside = False

    def where(self) -> Where:
        """Return where this rank stands."""
        recent: tuple[str, ...] = ()
        for _ in range(10):
            with contextlib.suppress(RuntimeError):  # the other thread begins a collective
                recent = tuple(self._recent)
                break
        return Where(calls=self._calls, inside=self._inside, recent=recent, returned=self._returned)

    def returned(self) -> Where:
        """Note that the function has ended and return where this rank stands."""
        self._returned, self._inside = True, False
        return self.where()

    def wait_for_the_end(self) -> None:
        """Return when the launcher has all results, or is gone."""
        self._leave.wait()

    # What a transport tells.

    def waited(self, seconds: float, peers: Collection[int]) -> None:
        """See ``Watch``."""
        if self._verdict is not None:
            raise _again(self._verdict)
        if seconds < min(SLOW_S, self.timeout_s):
            return
        if seconds >= self.timeout_s:
            self._tell("late", sorted(peers))
            if seconds >= self.timeout_s + VERDICT_S:
                raise RankFailed(
                    f"{in_words(peers)} did not come within {self.timeout_s:g} s to collective {self._calls}: "
                    f"{self._recent[-1]}",
                    min(peers),
                )
        else:
            self._tell("slow", sorted(peers))

    def lost(self, peer: int, how: str) -> NoReturn:
        """See ``Watch``."""
        self._tell("lost", peer, how)
        self._raise_verdict(RankFailed(f"rank {peer} {how}", peer))

    def differs(self, peer: int) -> NoReturn:
        """See ``Watch``."""
        self._tell("differs", peer)
        call = self._recent[-1] if self._recent else "nothing"
        self._raise_verdict(
            RankFailed(
                f"rank {peer} does not call what this rank calls as number {self._calls}: {call}", peer
            )
        )

    def _raise_verdict(self, own: GraphError) -> NoReturn:
        self._news.wait(VERDICT_S)
        raise _again(self._verdict or own)

    def _tell(self, what: str, *rest: Any) -> None:
        if self._line is not None and self._told != (what, self._calls):
            self._told = (what, self._calls)
            with contextlib.suppress(OSError):
                self._line.send(what, *rest)

    def _listen(self) -> None:
        assert self._line is not None
        while True:
            try:
                message = self._line.receive()
            except EOFError:
                if self._verdict is None:
                    self._verdict = RankFailed("the launcher of this run is gone", -1)
                break
            if message[0] == "where":
                with contextlib.suppress(OSError):
                    self._line.send("where", message[1], self.where())
            elif message[0] == "verdict":
                self._verdict = pickle.loads(message[1])
                self._news.set()
            elif message[0] == "leave":
                break
        # Who still computes when the run is over would compute for nobody.
        ended = self._returned
        self._news.set()
        self._leave.set()
        if not ended:
            self._gone()


def _again(verdict: GraphError) -> GraphError:
    """Return a fresh copy: a traceback grows on an exception each time that it is raised."""
    fresh: GraphError = pickle.loads(pickle.dumps(verdict))
    return fresh


def end_at_once() -> NoReturn:
    """End this process, since nobody waits for it any more."""
    time.sleep(0.2)  # what the rank itself has to say comes first
    os._exit(70)
