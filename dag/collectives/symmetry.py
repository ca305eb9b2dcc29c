"""Plans that look the same from every rank, or every machine: who follows the first few ranks has seen all.

Such a plan, turned by one rank, is itself: where rank 0 gives to rank k, rank r gives as much to rank r + k.  Where all
machines are alike too, and the parts are of one size, ranks at the same place of their machines do the same things at the
same times.  Tests hold this against the plans themselves and against the simulation of all ranks.
"""

from __future__ import annotations

import numpy as np

from ..errors import BadCollective
from .schedule import FOLD, MOST_MOVES, REPLACE, IntArray, Schedule, Step, moves

#: Algorithms that are the same from every rank, whatever they do; a plan of one's own with such a name need not be.
TURNING = frozenset({"ring", "sharded", "direct", "direct_whole"})


def repeats_after(schedule: Schedule, group: int) -> int | None:
    """Return after how many ranks everything repeats, where machines (or racks) of ``group`` ranks are alike; None: never."""
    if schedule.nodes != schedule.ranks or schedule.ranks % group:
        return None
    if schedule.algorithm in TURNING and schedule.rotation is not None:
        return group
    if schedule.algorithm in ("two_level", "direct") and _turns(schedule, group):
        return group
    return None


def _turns(schedule: Schedule, group: int) -> bool:
    """Return whether each step has the same moves after all ranks are renumbered by ``group``; their parts may differ."""
    src = dst = None
    for step in schedule:
        if not len(step):
            continue
        size = step.stop - step.start
        if (size != size[0]).any() or (step.mode != step.mode[0]).any():
            return False
        # Most steps go the same way as the one before, in the very same arrays.
        if step.src is src and step.dst is dst:
            continue
        src, dst, ranks = step.src, step.dst, schedule.ranks
        turned = (src + group) % ranks * ranks + (dst + group) % ranks
        if (np.sort(src * ranks + dst) != np.sort(turned)).any():
            return False
    return schedule.steps > 0


def moves_of_first(schedule: Schedule, number: int, followed: int | None) -> Step:
    """Return the moves of a step that the first ``followed`` ranks send; None is all.

    Raises:
        BadCollective: there are too many.
    """
    if schedule.algorithm == "sharded" and schedule.rotation is not None:
        ranks = schedule.ranks
        made = ranks * (ranks - 1)
        if followed is not None:
            src = np.repeat(np.arange(followed), ranks - 1)
            dst = (src + np.tile(np.arange(1, ranks), followed)) % ranks
            scatters = schedule.kind != "all_gather" and number == 0
            return moves(src, dst, dst if scatters else src, mode=FOLD if scatters else REPLACE)
        if made > MOST_MOVES:
            raise BadCollective(
                f"sharded has {made:,} messages in a step with {ranks:,} ranks; "
                f"that is simulated only where the parts are equal: elements a multiple of {ranks:,}, "
                "and whole machines (or racks)"
            )
    step = schedule.step(number)
    if followed is None or followed == schedule.ranks:
        return step
    return some_moves(step, np.flatnonzero(step.src < followed))


def some_moves(step: Step, which: IntArray) -> Step:
    """Return the moves of a step that have the numbers ``which``."""
    return Step(
        src=step.src[which], dst=step.dst[which], start=step.start[which], stop=step.stop[which], mode=step.mode[which],
        settle=step.settle,
    )  # fmt: skip
