"""What a rank asks of the wire: one exchange per step of a schedule, whatever carries the bytes.

A transport moves bytes between ranks and folds what arrives, in pieces that stay in the cache.  It knows nothing of
schedules; ``execute`` turns the steps of a schedule into exchanges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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


class Transport(Protocol):
    """Connects ``rank`` to the other ``size - 1`` ranks."""

    rank: int
    size: int

    def exchange(self, sends: Sequence[Send], gathers: Sequence[Gather]) -> None:
        """Do all sends and gathers of one step; returns when the gathers are complete and the sends may change.

        The peers call ``exchange`` with the counterparts; between a pair of ranks messages keep their order.  No send waits
        for another, so that no order of ranks can block.

        Raises:
            RankFailed: a peer died, or did not come in time, or gave up; it names the rank.
        """
