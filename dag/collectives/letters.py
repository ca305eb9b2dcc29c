"""Flags and letters in shared memory: how ranks of one machine tell each other where data lies, and wait for it.

The head of each rank's arena is written by that rank alone, save for the word by which it is woken.  For each peer it
has a line that counts what was taken from that peer, and a ring of letters to it.  A letter is one cache line; its
number is stored last, so whoever sees the number sees the rest.  Short data lies in the arena, in a place of the letter's own.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .arena import Arena
from .cores import Spreading, current_core
from .peer_memory import ring, sleep_while
from .transport import Watch

#: Words of a cache line.
LINE = 8
#: Letters to one peer that may be under way; a power of two.
LETTERS = 8
#: Data up to so many bytes goes with the letter: two copies cost less than asking the system.
SHORT_BYTES = 16 << 10
#: Where the data of a letter lies: in the writer's arena, in its own memory, or block by block in its arena.
SHARED, PRIVATE, STAGED = 1, 2, 3

ASLEEP, CHECK, CORE, FIRST_BOX = 0, LINE, 2 * LINE, 3 * LINE
TAKEN, READABLE, BOX_WORDS = 0, 1, (1 + LETTERS) * LINE

#: A rank that waits looks for so long if there is a core for each rank, else it lets others run so often; then it sleeps, so
#: long at most.  No more often: the system puts a process that yields behind all others on its core, further each time.
LOOK_S = 100e-6
LOOKS = 3
YIELDS = 10
SLEEP_S = 1e-3
LONG_SLEEP_S = 5e-3

#: What a rank that sleeps says: 2 * the rank that it is to be woken by + what it waits for from it, or that anyone may.
A_LETTER, A_RECEIPT, BY_ANYONE = 1, 2, (1 << 31) - 1

#: A word of a peer that is waited for: (peer, words, index, at least this, what it is).
Flag = tuple[int, memoryview, int, int, int]


class Letter(NamedTuple):
    """What a rank tells a peer: where data lies."""

    signature: int
    kind: int
    where: int
    nbytes: int


def head_bytes(size: int) -> int:
    """Return how long the head of an arena is for ``size`` ranks."""
    return _short_at(size, size, 0)


def _short_at(size: int, peer: int, number: int) -> int:
    """Return where in the arena the short data of a letter lies."""
    flags = (FIRST_BOX + size * BOX_WORDS) * 8
    return -(-flags // 4096) * 4096 + (peer * LETTERS + number % LETTERS) * SHORT_BYTES


class Box:
    """This rank's side of the letters to and from ``peer``."""

    def __init__(self, rank: int, peer: int, size: int, own: Arena, other: Arena, pid: int) -> None:
        self.peer = peer
        self.arena = other
        self._rank, self._size = rank, size
        self._own, self._other = own.words(), other.words()
        self._own_box = FIRST_BOX + peer * BOX_WORDS
        self._other_box = FIRST_BOX + rank * BOX_WORDS
        self._other_bed = other.address + ASLEEP * 8
        self._pidfd = os.pidfd_open(pid)
        self._death = select.poll()
        self._death.register(self._pidfd, select.POLLIN)
        self.written = self.taken = 0

    def mine(self) -> int:
        """Return whose arena this is, by the number that its owner put there."""
        return self._other[CHECK]

    def core(self) -> int:
        """Return the core that the peer ran on when it began its last exchange."""
        return self._other[CORE]

    def room(self) -> bool:
        """Return whether another letter may be written."""
        return self.written - self._other[self._other_box + TAKEN] < LETTERS

    def has_room(self) -> Flag:
        """Return the flag that says so."""
        return self.peer, self._other, self._other_box + TAKEN, self.written + 1 - LETTERS, A_RECEIPT

    def short(self) -> int:
        """Return where in the own arena the short data of the next letter goes."""
        return _short_at(self._size, self.peer, self.written + 1)

    def write(self, signature: int, kind: int, where: int, nbytes: int) -> None:
        """Write a letter, for which there is room; the peer is not woken before ``tell``."""
        self.written += 1
        at = self._own_box + LINE * (1 + self.written % LETTERS)
        words = self._own
        words[at + 1], words[at + 2], words[at + 3], words[at + 4] = signature, kind, where, nbytes
        words[at] = self.written

    def tell(self) -> None:
        """Wake the peer if it sleeps until a letter comes from here."""
        self._wake(A_LETTER)

    def arrival(self) -> Flag:
        """Return the flag of the next letter."""
        number = self.taken + 1
        return self.peer, self._other, self._other_box + LINE * (1 + number % LETTERS), number, A_LETTER

    def letter(self) -> Letter:
        """Return the next letter, which has arrived."""
        at = self.arrival()[2]
        words = self._other
        return Letter(words[at + 1], words[at + 2], words[at + 3], words[at + 4])

    def take(self) -> None:
        """Tell the peer that its next letter is done with: what it told of may change."""
        self.taken += 1
        self._own[self._own_box + TAKEN] = self.taken
        self._wake(A_RECEIPT)

    def receipt(self, number: int) -> Flag:
        """Return the flag that letter ``number`` is done with at the peer."""
        return self.peer, self._other, self._other_box + TAKEN, number, A_RECEIPT

    def tell_readable(self, readable: bool) -> None:
        """Tell the peer whether its own memory can be read from here."""
        self._own[self._own_box + READABLE] = 2 if readable else 1
        self._wake(A_LETTER)

    def told_readable(self) -> Flag:
        """Return the flag that the peer has told whether it can read this rank's memory."""
        return self.peer, self._other, self._other_box + READABLE, 1, A_LETTER

    def readable(self) -> bool:
        """Return what it told."""
        return self._other[self._other_box + READABLE] == 2

    def dead(self) -> bool:
        """Return whether the peer's process has ended."""
        return bool(self._death.poll(0))

    def close(self) -> None:
        """Close what watches the peer."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _wake(self, what: int) -> None:
        if (sleeps := self._other[ASLEEP]) and sleeps in (2 * self._rank + what, BY_ANYONE):
            self._other[ASLEEP] = 0
            ring(self._other_bed)


class Waiting:
    """How a rank waits for words of its peers: it looks, then sleeps until it is woken, and says so to its watch."""

    def __init__(self, own: Arena, watch: Watch, rank: int, size: int) -> None:
        self._words, self._bed = own.words(), own.address + ASLEEP * 8
        self._watch = watch
        self._spreading = Spreading(rank)
        # With fewer cores than ranks the one that is waited for may need this one's.
        crowded = size > len(os.sched_getaffinity(0))
        self._look_s, self._yields = (0.0, YIELDS) if crowded else (LOOK_S, 0)

    def begin(self) -> None:
        """Note where this rank runs."""
        self._words[CORE] = current_core() & 0xFFFF

    def wait(
        self, flags: Sequence[Flag], boxes: dict[int, Box], meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Return when each flag's word has reached its value; ``meanwhile`` is called each time before looking again.

        Raises:
            RankFailed, BadCollective: what the watch raised; a peer that is missing and has ended is told to it.
        """
        begun, yields = 0.0, self._yields
        while True:
            for _ in range(LOOKS):
                if meanwhile is not None:
                    meanwhile()
                flags = [flag for flag in flags if flag[1][flag[2]] < flag[3]]
                if not flags:
                    return
            now = time.perf_counter()
            begun = begun or now
            if yields:
                os.sched_yield()
                yields -= 1
            elif now - begun >= self._look_s:
                break
        self._spreading.step_aside({peer: box.core() for peer, box in boxes.items()})
        sleep_s = SLEEP_S
        while True:
            # Who waits for several is woken by one: when that has come, most others have.
            last = flags[-1]
            self._sleep(flags, BY_ANYONE if meanwhile is not None else 2 * last[0] + last[4], sleep_s)
            sleep_s = min(LONG_SLEEP_S, sleep_s * 1.2)
            # What it did before it ended counts: so its flag is looked at once more after its end was seen.
            ended = [flag[0] for flag in flags if boxes[flag[0]].dead()]
            if meanwhile is not None:
                meanwhile()
            flags = [flag for flag in flags if flag[1][flag[2]] < flag[3]]
            if not flags:
                return
            missing = {flag[0] for flag in flags}
            for peer in ended:
                if peer in missing:
                    self._watch.lost(peer, "has ended: its process is gone")
            self._watch.waited(time.perf_counter() - begun, missing)

    def _sleep(self, flags: Sequence[Flag], by: int, at_most_s: float) -> None:
        self._words[ASLEEP] = by
        # A peer may have stored its flag before it could see that this rank goes to sleep.
        if all(flag[1][flag[2]] < flag[3] for flag in flags):
            sleep_while(self._bed, by, at_most_s)
        self._words[ASLEEP] = 0
