"""What a rank asks of the wire: one exchange per step of a schedule, whatever carries the bytes.

A transport moves bytes between ranks and folds what arrives, in pieces that stay in the cache.  It knows nothing of
schedules; ``execute`` turns the steps of a schedule into exchanges.  It decides nothing about faults either: it tells its
``Watch`` what it sees, and the watch knows how long to be patient and which rank is to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
#: Folds two arrays of one shape: ``operator(left, right, out)``, with NumPy's ``out``.
Fold = Callable[[Array, Array, Array], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Send:
    """``data``, one-dimensional and contiguous, goes to ``peer``; it does not change before the exchange ends."""

    peer: int
    data: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Gather:
    """What arrives from ``sources`` ends in ``target``, one-dimensional and contiguous.

    Args:
        target: where it goes; with ``fold`` its present content is the own operand.
        sources: ranks in the order in which they are folded, the own rank at the place of the own operand.  Without
            ``fold`` there is one source and it is not the own rank.
        fold: how; None: the arriving value replaces the target.
    """

    target: Array
    sources: tuple[int, ...]
    fold: Fold | None = None


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Who a rank is and how it may be reached.

    Args:
        token: the secret of this run, the same at all ranks.
        host: the address of this machine at which the others reach it, 127.0.0.1 where all are on one machine.
    """

    rank: int
    size: int
    token: bytes
    host: str


class Watch(Protocol):
    """What a transport tells while it waits.  Each method may raise; what it raises is let through."""

    def waited(self, seconds: float, peers: Collection[int]) -> None:
        """Say that this exchange has waited so long without a byte moving, for these peers; at least every 0.1 s.

        Cheap.  Raises RankFailed or BadCollective as soon as any rank is known to have failed, or when patience is at an end.
        """

    def lost(self, peer: int, how: str) -> NoReturn:
        """Say that ``peer`` is gone: ``how`` completes the sentence "rank 2 ..."."""

    def differs(self, peer: int) -> NoReturn:
        """Say that a message of ``peer`` does not have this rank's signature."""


class Transport(Protocol):
    """Connects ``rank`` to other ranks.

    It is made by ``Kind(seat, watch)``, says what peers need to reach it by ``offer()``, and is ready after ``connect``.

    Attributes:
        signature: of the present collective, 0 <= signature < 2**63; set before the exchanges of each.  Every message
            carries it, and the receiver tells ``watch.differs`` if it is not its own.
    """

    rank: int
    size: int
    signature: int

    def offer(self) -> Any:
        """Return what the peers need to reach this rank, something that pickles: an address, a process id, ..."""

    def connect(self, offers: Mapping[int, Any]) -> None:
        """Take the offers of those peers with whom this transport is to be used, by their ranks; need not wait for them."""

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        """Do all sends and gathers of one step; returns when the gathers are complete and the sends may change.

        The peers call ``exchange`` with the counterparts; between a pair of ranks messages keep their order.  No send waits
        for another, so that no order of ranks can block.  No message is empty.

        Raises:
            RankFailed, BadCollective: what the watch raised.
        """

    def empty(self, nbytes: int) -> Array:
        """Return ``nbytes`` fresh bytes (uint8, aligned to 64) from which the peers can read at the least cost."""

    def close(self) -> None:
        """Give everything back; peers may still be reading what was sent before."""


@runtime_checkable
class FoldsAndShares(Protocol):
    """A transport that can do both steps of a sharded all-reduce at once, in which rank r folds part r and gives it to all."""

    def fold_and_share(
        self,
        buffer: Array,
        fold: Fold,
        finish: Callable[[Array], object] | None = None,
        wide: np.dtype[Any] | None = None,
    ) -> bool:
        """Fold the buffers of all ranks, in the order of ranks, into all of them.

        Args:
            finish: changes the folded values in place.
            wide: fold in this type, and round what is finished once.

        Returns False, at all ranks and with nothing done, where exchanges are the better way.  Raises as ``exchange``.
        """
