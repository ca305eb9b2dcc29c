"""The launcher's side of a run: the lines to its ranks, how each of them ended, and one judgement if one fails."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import GraphError, RankFailed, RanksDiffer
from .rank import Hello, Orders
from .rendezvous import Line
from .verdicts import Where, in_words, judge, judge_the_end

#: By then a rank has said where it stands, if it can; and so long those that have not come yet may take to a call
#: in which others differ, so that who is the odd one is told by all of them.
ANSWER_S = 1.0
_AGAIN_S = 0.02
#: By then the others have ended, or are ended, once one has failed; and all have ended once all have returned.
GRACE_S = 10.0
LEAVE_S = 5.0
#: By then a rank that was started here has said hello: its imports may be slow.
HELLO_S = 120.0


class Crew:
    """The ranks of a run, as the launcher knows them; on exit none of its processes is left.

    Args:
        orders: makes the orders of a rank.
    """

    def __init__(self, ranks: int, orders: Callable[[int], Orders]) -> None:
        self.ranks = ranks
        self.events: queue.SimpleQueue[tuple[int, tuple[Any, ...] | None]] = queue.SimpleQueue()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._orders = orders
        self._lines: dict[int, Line] = {}
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(failed=kind is not None)

    def close(self, failed: bool = False) -> None:
        """End the ranks: kill those that were started here, and close the lines of the others, which they take as an end."""
        with self._lock:
            self._closed = True
            lines = list(self._lines.values())
        self.end_processes(range(self.ranks), failed)
        for line in lines:
            line.close()

    def add(self, rank: int, line: Line, process: subprocess.Popen[bytes] | None = None) -> None:
        """Take a rank in and give it its orders."""
        if process is not None:
            self.processes[rank] = process
        with self._lock:
            if self._closed or rank in self._lines:
                line.close()
                return
            self._lines[rank] = line
        threading.Thread(target=self._read, args=(rank, line), daemon=True, name=f"rank {rank}").start()

    def enter(self, line: Line) -> None:
        """Take in a rank that came through a door; it says which it is."""
        try:
            _, rank, size = line.receive()
        except (EOFError, ValueError):
            line.close()
            return
        with self._lock:
            taken = rank in self._lines
        fault = ""
        if size != self.ranks or not 0 <= rank < self.ranks:
            fault = f"this run has {self.ranks} ranks, and rank {rank} of {size} came"
        elif taken:
            fault = f"rank {rank} is there already"
        with contextlib.suppress(OSError):
            if fault:
                line.send("refused", fault)
                line.close()
                return
        self.add(rank, line)

    def unstarted(self, rank: int, how: str) -> None:
        """Note that a rank that was to come will not; ``how`` completes "rank 2 ..."."""
        if rank not in self._lines:
            self.events.put((rank, ("unstarted", how)))

    def tell(self, rank: int, *message: Any) -> None:
        """Send a message to a rank; nothing happens if it is gone: that is heard as an event."""
        line = self._lines.get(rank)
        if line is not None:
            with contextlib.suppress(OSError):
                line.send(*message)

    def end_processes(self, ranks: Any, failed: bool = False) -> None:
        """Kill what still runs of these ranks, and what they started in their process groups if they, or the run, ended badly."""
        for rank in ranks:
            process = self.processes.get(rank)
            if process is None or (process.poll() == 0 and not failed):
                continue
            # One that failed has not ended what it had started.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()

    def end_of(self, rank: int) -> str:
        """Return how the process of a rank that closed its line ended, to complete "rank 2 ..."."""
        process = self.processes.get(rank)
        if process is None:
            return "is gone: its connection to the launcher was closed"
        try:
            code = process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            return "closed its connection to the launcher"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"ended with exit code {code} before its function returned"

    def _read(self, rank: int, line: Line) -> None:
        # Not where ranks are started: large arguments are taken only by a rank that is there.
        self.tell(rank, "orders", self._orders(rank))
        while True:
            try:
                self.events.put((rank, line.receive()))
            except Exception:  # the line is closed, or what came is no pickle
                self.events.put((rank, None))
                return


@dataclass(kw_only=True)
class _Inquiry:
    """What was complained of, by whom, and what the ranks have answered so far."""

    number: int
    rank: int
    complaint: tuple[Any, ...]
    since: float
    until: float
    places: dict[int, Where] = field(default_factory=dict)


class _Course:
    """How far a run has come."""

    def __init__(self, crew: Crew, timeout_s: float) -> None:
        self.crew, self.timeout_s = crew, timeout_s
        self.hellos: dict[int, Hello] = {}
        self.connected: dict[int, str] = {}  # why not, or nothing
        self.results: dict[int, bytes] = {}
        self.places: dict[int, Where] = {}  # of those that have ended
        self.ended: set[int] = set()
        self.fault: GraphError | None = None
        self.deadline = time.monotonic() + max(HELLO_S, timeout_s)
        self.inquiry: _Inquiry | None = None
        self.later: list[tuple[int, tuple[Any, ...], float]] = []  # complaints, and when they came
        self.again_at = 0.0
        self.inquiries = 0

    @property
    def over(self) -> bool:
        """True once all have ended; the one that is to blame for a fault need not."""
        blamed = {self.fault.rank} if isinstance(self.fault, RankFailed) else set()
        return len(self.ended | blamed) == self.crew.ranks

    @property
    def busy(self) -> bool:
        """True while there is something to look after soon."""
        return bool(self.inquiry or self.later or self.fault)

    def fail(self, fault: GraphError, but: int | None = None) -> None:
        """Note the first fault and tell everyone but the rank that knows."""
        if self.fault is not None:
            return
        self.fault = fault
        self.deadline = time.monotonic() + GRACE_S
        # Without its cause, which may not unpickle at every rank.
        packed = pickle.dumps(type(fault)(*fault.args))
        for rank in range(self.crew.ranks):
            if rank not in self.ended and rank != but:
                self.crew.tell(rank, "verdict", packed)

    def hear(self, rank: int, message: tuple[Any, ...] | None) -> None:
        """Take an event in."""
        if message is None:
            if rank not in self.ended:
                self.ended.add(rank)
                self.fail(RankFailed(f"rank {rank} {self.crew.end_of(rank)}", rank))
            return
        what, *rest = message
        if what == "hello":
            self.hellos[rank] = rest[0]
            if len(self.hellos) == self.crew.ranks:
                self._introduce()
        elif what == "connected":
            self.connected[rank] = rest[0]
            if len(self.connected) == self.crew.ranks and self.fault is None:
                self._begin()
        elif what == "returned":
            self.results[rank], self.places[rank] = rest
            self.ended.add(rank)
        elif what == "raised":
            words, cause, text, self.places[rank] = rest
            self.ended.add(rank)
            fault = RankFailed(f"rank {rank} raised {words}", rank, text)
            with contextlib.suppress(Exception):
                fault.__cause__ = pickle.loads(cause) if cause else None
            self.fail(fault, rank)
        elif what == "unstarted":
            self.ended.add(rank)
            self.fail(RankFailed(f"rank {rank} {rest[0]}", rank), rank)
        elif what == "where":
            if self.inquiry is not None and self.inquiry.number == rest[0]:
                self.inquiry.places[rank] = rest[1]
        elif self.fault is None:
            self.later.append((rank, message, time.monotonic()))

    def _introduce(self) -> None:
        """Tell the ranks how they reach each other."""
        self.connected.clear()
        everyone = [self.hellos[rank] for rank in range(self.crew.ranks)]
        for rank in range(self.crew.ranks):
            self.crew.tell(rank, "peers", everyone)

    def _begin(self) -> None:
        """Let all ranks go; or have all do without shared memory if one cannot open that of a peer."""
        if any(self.connected.values()):
            for rank, hello in self.hellos.items():
                offers = {name: offer for name, offer in hello.offers.items() if name != "shm"}
                self.hellos[rank] = replace(hello, offers=offers)
            self._introduce()
            return
        self.deadline = float("inf")
        for rank in range(self.crew.ranks):
            self.crew.tell(rank, "go")

    def inquire(self) -> None:
        """Ask the ranks where they stand if somebody has complained, and judge when they have said it."""
        if self.fault is not None:
            return
        if self.inquiry is None and self.later and time.monotonic() >= self.again_at:
            rank, complaint, since = self.later.pop(0)
            self.inquiries += 1
            self.inquiry = _Inquiry(
                number=self.inquiries, rank=rank, complaint=complaint, since=since, until=time.monotonic() + ANSWER_S
            )  # fmt: skip
            for each in range(self.crew.ranks):
                if each not in self.ended:
                    self.crew.tell(each, "where", self.inquiry.number)
        inquiry = self.inquiry
        if inquiry is None:
            return
        known = {**inquiry.places, **self.places}
        if len(known) < self.crew.ranks and time.monotonic() < inquiry.until:
            return
        self.inquiry = None
        places = [known.get(rank) for rank in range(self.crew.ranks)]
        what, *rest = inquiry.complaint
        verdict = judge(places, timeout_s=self.timeout_s if what == "late" else None)
        if isinstance(verdict, RanksDiffer) and time.monotonic() < inquiry.since + ANSWER_S:
            calls = [place.calls for place in places if place is not None and not place.returned]
            if min(calls, default=0) < max(calls, default=0):
                self.later.insert(0, (inquiry.rank, inquiry.complaint, inquiry.since))
                self.again_at = time.monotonic() + _AGAIN_S
                return
        if verdict is None and what != "slow":
            verdict = self._as_told(inquiry.rank, what, rest)
        if verdict is not None:
            self.fail(verdict)

    def _as_told(self, rank: int, what: str, rest: list[Any]) -> GraphError | None:
        """Return the complaint of a rank as it stands, where the places of all ranks do not explain it."""
        if what == "late":
            return RankFailed(
                f"{in_words(rest[0])} did not come to rank {rank} within {self.timeout_s:g} s", rest[0][0]
            )
        if what == "differs":
            return RanksDiffer(f"ranks {rank} and {rest[0]} exchange messages of different collectives")
        peer, how = rest
        # If its process is gone, that says more.
        process = self.crew.processes.get(peer)
        if process is not None and process.poll() is not None:
            return RankFailed(f"rank {peer} {self.crew.end_of(peer)}", peer)
        return RankFailed(f"rank {peer} {how}", peer)


def oversee(crew: Crew, timeout_s: float) -> list[Any]:
    """Return the results of all ranks in their order, or raise the first fault once they have ended or been ended."""
    course = _Course(crew, timeout_s)
    while not course.over:
        with contextlib.suppress(queue.Empty):
            course.hear(*crew.events.get(timeout=0.02 if course.busy else 0.2))
        course.inquire()
        for rank, process in crew.processes.items():
            # Its line may be held open by a process that it has started.
            if rank not in course.ended and process.poll() is not None and crew.events.empty():
                course.hear(rank, None)
        if time.monotonic() > course.deadline:
            if course.fault is not None:
                break
            there = course.connected if len(course.hellos) == crew.ranks else course.hellos
            missing = [rank for rank in range(crew.ranks) if rank not in there]
            course.fail(RankFailed(f"{in_words(missing)} did not start in time", missing[0]))
    if course.fault is None:
        course.fault = judge_the_end([course.places[rank] for rank in range(crew.ranks)])
    for rank in range(crew.ranks):
        crew.tell(rank, "leave")
    _let_leave(crew, course)
    if course.fault is not None:
        text = getattr(course.fault, "traceback_text", "")
        if text:
            course.fault.add_note(f"\nOn rank {course.fault.rank}:\n{text}")  # type: ignore[attr-defined]
        raise course.fault
    return [pickle.loads(course.results[rank]) for rank in range(crew.ranks)]


def _let_leave(crew: Crew, course: _Course) -> None:
    deadline = time.monotonic() + LEAVE_S
    for rank, process in crew.processes.items():
        if rank in course.ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
