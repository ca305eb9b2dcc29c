"""The transport between ranks of one machine: data is read where it lies, and folded while it is in the cache.

Arrays from ``empty`` lie in an arena that all ranks map, and are used in place.  The memory of other arrays is read and
written by the system's calls for that, where it allows them; else, and where it is cheaper, it goes through the arena.
Linux on x86-64 only (``why_not``).  Nothing has a name, so nothing is left when the processes are gone, however they went.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .arena import Arena
from .folding import Finish, Operand, Writer, fold_pieces, fold_pieces_wide, split
from .letters import CHECK, PRIVATE, SHARED, SHORT_BYTES, STAGED, Box, Flag, Letter, Waiting, head_bytes
from .peer_memory import PeerMemory, allow_siblings, why_not
from .transport import Array, Fold, Gather, Seat, Send, Watch

#: Operands are folded in pieces of so many bytes over all operands: they stay in a core's cache.  Where they come by the
#: system's calls, each of them is as long: what a call costs by itself shows in shorter ones.
PIECES_BYTES = 1 << 20
#: Memory of peers is copied through the arena up to this size of an array, and read in place above it: larger arrays of
#: NumPy lie on huge pages, and the system looks up each page that it reads from.
DIRECT_BYTES = 4 << 20
#: Through the arena go blocks of so many bytes over all ranks: they stay in the last cache.
STAGED_BYTES = 4 << 20

ALIGNED_BYTES = 64

Dtype = np.dtype[Any]


class Shared:
    """A ``Transport``, and one of those that ``FoldsAndShares``; raises OSError where there is none on this system."""

    def __init__(self, seat: Seat, watch: Watch) -> None:
        if reason := why_not():
            raise OSError(f"ranks cannot share memory here: {reason}")
        self.rank, self.size = seat.rank, seat.size
        self.signature = 0
        self._token, self._watch = seat.token, watch
        self._arena = Arena(head_bytes(self.size))
        self._arena.words()[CHECK] = self._check(self.rank)
        self._waiting = Waiting(self._arena, watch, self.rank, self.size)
        self._boxes: dict[int, Box] = {}
        self._memories: dict[int, PeerMemory] = {}
        self._open: bool | None = None
        self._proof = np.frombuffer(self._digest(self.rank), np.uint8)
        self._scratch = np.empty((2, PIECES_BYTES), np.uint8)
        self._scratch_at = [_address(each) for each in self._scratch]
        self._sums: dict[tuple[Dtype, int], tuple[Array, Array]] = {}
        self._stage: Array | None = None
        #: Of exchanges that failed: a peer may still write there.
        self._abandoned: list[Array] = []

    def offer(self) -> Any:
        """See ``Transport``."""
        allow_siblings()
        return os.getpid(), self._arena.fd, self._arena.nbytes, _address(self._proof)

    def connect(self, offers: Mapping[int, Any]) -> None:
        """See ``Transport``; raises OSError where the arena of a peer cannot be opened, or is not of this run."""
        for peer, (pid, fd, nbytes, proof) in offers.items():
            opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
            arena = Arena(0, fd=opened, nbytes=nbytes)
            arena.close()
            box = Box(self.rank, peer, self.size, self._arena, arena, pid)
            if box.mine() != self._check(peer):
                raise OSError(f"the memory that rank {peer} offers (process {pid}) is not of this run")
            self._boxes[peer] = box
            self._memories[peer] = PeerMemory(pid)
            box.tell_readable(self._memories[peer].reads(proof, self._digest(peer)))

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        """See ``Transport``."""
        self._waiting.begin()
        unsent = deque(sends)
        receipts: dict[int, Flag] = {}
        staged = self._staging(sends)

        def post() -> None:
            full: set[int] = set()
            written: dict[int, Box] = {}
            for _ in range(len(unsent)):
                send = unsent.popleft()
                box = self._boxes[send.peer]
                if send.peer in full or not box.room():
                    full.add(send.peer)
                    unsent.append(send)
                    continue
                written[send.peer] = box
                if self._post(box, send.data, staged):
                    receipts[send.peer] = box.receipt(box.written)
            # A peer that is woken takes this rank's core: once, when all is there.
            for box in written.values():
                box.tell()

        post()
        for gather in gathers:
            self._gather(gather, post if unsent else None)
        while unsent:
            self._wait([self._boxes[unsent[0].peer].has_room()], post)
        if receipts:
            self._wait(list(receipts.values()))

    def _staging(self, sends: Sequence[Send]) -> dict[tuple[int, int], Array]:
        """Return places in the arena for what peers cannot read where it lies, by address and length."""
        long = [send for send in sends if send.data.nbytes > SHORT_BYTES]
        if not long or self._readable():
            return {}
        wanted = {(_address(send.data), send.data.nbytes) for send in long}
        wanted = {each for each in wanted if self._arena.offset(*each) < 0}
        stage = self._stage_of(sum(nbytes + ALIGNED_BYTES for _, nbytes in wanted))
        places, at = {}, 0
        for address, nbytes in sorted(wanted):
            places[address, nbytes] = stage[at : at + nbytes]
            at += -(-nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
        for send in long:
            if (place := places.get((_address(send.data), send.data.nbytes))) is not None:
                place[:] = send.data.view(np.uint8)
        return places

    def _post(self, box: Box, data: Array, staged: Mapping[tuple[int, int], Array]) -> bool:
        """Write the letter that tells of ``data``, and return whether that must not change until it is taken."""
        nbytes, address = data.nbytes, _address(data)
        kind, where = SHARED, self._arena.offset(address, nbytes)
        if nbytes <= SHORT_BYTES:
            where = box.short()
            self._arena.bytes[where : where + nbytes] = data.view(np.uint8)
        elif (place := staged.get((address, nbytes))) is not None:
            where = self._arena.offset(_address(place), nbytes)
        elif where < 0:
            kind, where = PRIVATE, address
        box.write(self.signature, kind, where, nbytes)
        return nbytes > SHORT_BYTES

    def _gather(self, gather: Gather, meanwhile: Callable[[], None] | None) -> None:
        boxes = [self._boxes[source] for source in gather.sources if source != self.rank]
        self._wait([box.arrival() for box in boxes], meanwhile)
        target = gather.target
        letters = {box.peer: self._letter(box, target.nbytes) for box in boxes}
        if gather.fold is None:
            ((peer, letter),) = letters.items()
            if letter.kind == PRIVATE:
                self._move(peer, _address(target), letter.where, target.nbytes, write=False)
            else:
                target[:] = self._boxes[peer].arena.bytes[letter.where :][: target.nbytes].view(target.dtype)
        else:
            length, dtype = len(target), target.dtype
            operands = [
                None
                if each == self.rank
                else self._operand(self._boxes[each], letters[each], 0, length, dtype)
                for each in gather.sources
            ]
            pieces = split(0, length, self._piece(letters.values(), dtype.itemsize))
            fold_pieces(target, pieces, operands, gather.fold, self._scratch[0].view(dtype))
        for box in boxes:
            box.take()

    def fold_and_share(
        self, buffer: Array, fold: Fold, finish: Finish | None = None, wide: Dtype | None = None
    ) -> bool:
        """See ``FoldsAndShares``.

        Each rank folds its part of all buffers, in pieces, and writes each piece into all of them while it is in the cache: a
        buffer is read once and written once.
        """
        if len(self._boxes) < self.size - 1 or buffer.nbytes <= SHORT_BYTES:
            return False
        self._waiting.begin()
        try:
            self._fold_and_share(buffer, fold, finish, wide)
        except BaseException:
            self._abandoned.append(buffer)
            raise
        return True

    def _fold_and_share(self, buffer: Array, fold: Fold, finish: Finish | None, wide: Dtype | None) -> None:
        boxes, itemsize = list(self._boxes.values()), buffer.itemsize
        block = STAGED_BYTES // self.size // itemsize
        kind, where, stage = SHARED, self._arena.offset(_address(buffer), buffer.nbytes), None
        if where < 0 and buffer.nbytes >= DIRECT_BYTES and self._readable():
            kind, where = PRIVATE, _address(buffer)
        elif where < 0:
            kind, stage = STAGED, self._stage_of(2 * block * itemsize).view(buffer.dtype).reshape(2, block)
        before = {box.peer: box.written for box in boxes}

        def announce(number: int) -> None:
            at = where
            if stage is not None:
                at = self._arena.offset(_address(stage[number % 2]), 0)
                for start, stop in self._others(number * block, min(len(buffer), (number + 1) * block)):
                    stage[number % 2, start - number * block : stop - number * block] = buffer[start:stop]
            self._wait([box.has_room() for box in boxes])
            for box in boxes:
                box.write(self.signature, kind, at, buffer.nbytes)
            for box in boxes:
                box.tell()

        announce(0)
        self._wait([box.arrival() for box in boxes])
        if stage is None and all(self._letter(box, buffer.nbytes).kind != STAGED for box in boxes):
            block = len(buffer)
        blocks = -(-len(buffer) // block)
        for number in range(blocks):
            start, stop = number * block, min(len(buffer), (number + 1) * block)
            if number + 1 < blocks:
                announce(number + 1)
            self._wait([box.arrival() for box in boxes])
            self._fold_part(buffer, start, stop, fold, finish, wide)
            for box in boxes:
                box.take()
            self._wait([box.receipt(before[box.peer] + number + 1) for box in boxes])
            if stage is not None:
                for first, last in self._others(start, stop):
                    buffer[first:last] = stage[number % 2, first - start : last - start]

    def _others(self, start: int, stop: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return what is left of ``start`` to ``stop`` without this rank's own part."""
        own, end = self._part(start, stop)
        return (start, own), (end, stop)

    def _part(self, start: int, stop: int) -> tuple[int, int]:
        # As ``bounds`` has it, without its arrays.
        length, rank, size = stop - start, self.rank, self.size
        return start + length * rank // size, start + length * (rank + 1) // size

    def _fold_part(
        self,
        buffer: Array,
        start: int,
        stop: int,
        fold: Fold,
        finish: Finish | None,
        wide: Dtype | None,
    ) -> None:
        """Fold this rank's part of ``start`` to ``stop`` of all buffers into all of them."""
        operands: list[Operand | None] = []
        writers = []
        letters = {peer: self._letter(box, buffer.nbytes) for peer, box in self._boxes.items()}
        for source in range(self.size):
            if source == self.rank:
                operands.append(None)
                continue
            box, letter = self._boxes[source], letters[source]
            origin = start if letter.kind == STAGED else 0
            operands.append(self._operand(box, letter, origin, stop, buffer.dtype))
            writers.append(self._writer(box, letter, origin, stop, buffer.dtype))
        pieces = split(*self._part(start, stop), self._piece(letters.values(), buffer.itemsize))
        if wide is None:
            scratch = self._scratch[0].view(buffer.dtype)
            fold_pieces(buffer, pieces, operands, fold, scratch, finish, writers)
        else:
            length = PIECES_BYTES // buffer.itemsize
            if (wide, length) not in self._sums:
                self._sums[wide, length] = (np.empty(length, wide), np.empty(length, wide))
            sums = self._sums[wide, length]
            fold_pieces_wide(buffer, pieces, operands, fold, sums, finish, writers)

    def _piece(self, letters: Iterable[Letter], itemsize: int) -> int:
        """Return how many elements are folded at a time."""
        called = any(letter.kind == PRIVATE for letter in letters)
        return PIECES_BYTES // (1 if called else self.size) // itemsize

    def _letter(self, box: Box, nbytes: int) -> Letter:
        """Return the next letter of a peer, which has arrived; it fits what this rank wants, or the watch is told."""
        letter = box.letter()
        if letter.signature != self.signature or letter.nbytes != nbytes:
            self._watch.differs(box.peer)
        return letter

    def _operand(self, box: Box, letter: Letter, origin: int, stop: int, dtype: Dtype) -> Operand:
        """Return how to get at elements of a peer, up to ``stop``; what its letter tells of begins at ``origin``."""
        if letter.kind != PRIVATE:
            view = self._view(box, letter, stop - origin, dtype)
            return lambda start, stop, place: view[start - origin : stop - origin]
        places = [scratch.view(dtype) for scratch in self._scratch]

        def read(start: int, stop: int, place: int) -> Array:
            begin, nbytes = letter.where + (start - origin) * dtype.itemsize, (stop - start) * dtype.itemsize
            self._move(box.peer, self._scratch_at[place], begin, nbytes, write=False)
            return places[place][: stop - start]

        return read

    def _writer(self, box: Box, letter: Letter, origin: int, stop: int, dtype: Dtype) -> Writer:
        """Return how to write into them, from an element on."""
        if letter.kind == PRIVATE:
            return lambda start, piece: self._move(
                box.peer,
                _address(piece),
                letter.where + (start - origin) * dtype.itemsize,
                piece.nbytes,
                write=True,
            )
        view = self._view(box, letter, stop - origin, dtype)

        def write(start: int, piece: Array) -> None:
            view[start - origin : start - origin + len(piece)] = piece

        return write

    def _view(self, box: Box, letter: Letter, length: int, dtype: Dtype) -> Array:
        return box.arena.bytes[letter.where : letter.where + length * dtype.itemsize].view(dtype)

    def _move(self, peer: int, here: int, there: int, nbytes: int, *, write: bool) -> None:
        memory = self._memories[peer]
        try:
            (memory.write if write else memory.read)(here, there, nbytes)
        except ProcessLookupError:
            self._watch.lost(peer, "has ended: its process is gone")
        except OSError as error:
            self._watch.lost(peer, f"took away memory that was in use: {error}")

    def empty(self, nbytes: int) -> Array:
        """See ``Transport``; raises MemoryError where the machine's memory is given out."""
        return self._arena.allocate(nbytes)

    def close(self) -> None:
        """See ``Transport``; arrays from ``empty`` stay."""
        for box in self._boxes.values():
            box.close()
        self._boxes.clear()
        self._arena.close()

    def _stage_of(self, nbytes: int) -> Array:
        """Return a place in the arena that is kept, since fresh memory costs more than what is copied into it."""
        if self._stage is None or len(self._stage) < nbytes:
            self._stage = None
            self._stage = self._arena.allocate(nbytes)
        return self._stage[:nbytes]

    def _readable(self) -> bool:
        """Return whether all peers can read and write this rank's memory."""
        if self._open is None:
            self._wait([box.told_readable() for box in self._boxes.values()])
            self._open = all(box.readable() for box in self._boxes.values())
        return self._open

    def _wait(self, flags: Sequence[Flag], meanwhile: Callable[[], None] | None = None) -> None:
        self._waiting.wait(flags, self._boxes, meanwhile)

    def _digest(self, rank: int) -> bytes:
        return hashlib.sha256(self._token + rank.to_bytes(8, "little")).digest()

    def _check(self, rank: int) -> int:
        return int.from_bytes(self._digest(rank)[:8], "little")


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
