"""Who is to blame: a pure function of where each rank stands.

Ranks only know that a peer does not come, or comes with something else.  The peer may itself be waiting for a third, so
the launcher asks all of them where they stand, judges once, and tells everyone the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import GraphError, RankFailed, RanksDiffer

#: So many of the last collectives are compared.
REMEMBERED = 64


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a rank stands.

    Args:
        calls: collectives that it has begun.
        inside: the last of them has not ended.
        recent: what the last ones were, in words that are equal at all ranks if they fit together.
        returned: its function has ended.
    """

    calls: int = 0
    inside: bool = False
    recent: tuple[str, ...] = field(default=())
    returned: bool = False

    def call(self, number: int) -> str | None:
        """Return what collective ``number`` was, counted from 1, if that is remembered."""
        at = number - 1 - self.calls + len(self.recent)
        return self.recent[at] if 0 <= at < len(self.recent) else None


def judge(places: Sequence[Where | None], *, timeout_s: float | None) -> GraphError | None:
    """Return what is wrong, or None if nothing is: some are merely slow.

    Args:
        places: of all ranks; None: the rank does not answer.
        timeout_s: None while nobody's patience is at an end.
    """
    return (
        _different(places) or _returned(places) or (None if timeout_s is None else _late(places, timeout_s))
    )


def judge_the_end(places: Sequence[Where]) -> GraphError | None:
    """Return what was wrong though all ranks have returned: a short message may have gone to one that never took it."""
    if (differ := _different(places)) is not None:
        return differ
    number = max(place.calls for place in places)
    behind = [rank for rank, place in enumerate(places) if place.calls < number]
    if not behind:
        return None
    return RankFailed(
        f"{in_words(behind)} returned without collective {number}, which others called: {_call(places, number)}",
        behind[0],
    )


def in_words(ranks: Collection[int]) -> str:
    """Return ``rank 2``, ``ranks 0 and 3`` or ``ranks 0, 1 and 3``."""
    first = [str(rank) for rank in sorted(ranks)]
    if len(first) == 1:
        return f"rank {first[0]}"
    if len(first) > 8:
        return f"ranks {', '.join(first[:6])} and {len(first) - 6} others"
    return f"ranks {', '.join(first[:-1])} and {first[-1]}"


def _different(places: Sequence[Where | None]) -> RanksDiffer | None:
    known = [(rank, place) for rank, place in enumerate(places) if place is not None]
    if not known:
        return None
    begin = min(place.calls - len(place.recent) for _, place in known)
    for number in range(begin + 1, max(place.calls for _, place in known) + 1):
        brought: dict[str, list[int]] = {}
        for rank, place in known:
            if (call := place.call(number)) is not None:
                brought.setdefault(call, []).append(rank)
        if len(brought) > 1:
            return RanksDiffer(
                f"collective {number} is not the same at all ranks: " + "; ".join(_each(brought.items()))
            )
    return None


def _each(brought: Iterable[tuple[str, list[int]]]) -> list[str]:
    """Return the odd ones first: the fewest ranks, then the highest numbers."""
    ordered = sorted(brought, key=lambda item: (len(item[1]), -max(item[1])))
    return [f"{in_words(ranks)} {'call' if len(ranks) > 1 else 'calls'} {call}" for call, ranks in ordered]


def _returned(places: Sequence[Where | None]) -> RankFailed | None:
    number = max((place.calls for place in places if place is not None), default=0)
    waiting = [rank for rank, place in enumerate(places) if place and place.inside and place.calls == number]
    left = [rank for rank, place in enumerate(places) if place and place.returned and place.calls < number]
    if not waiting or not left:
        return None
    calls = {place.calls for rank in left if (place := places[rank])}
    done = calls.pop() if len(calls) == 1 else None
    after = "fewer collectives" if done is None else f"{done} collective{'s' if done != 1 else ''}"
    return RankFailed(
        f"{in_words(left)} returned after {after}; {_waits(waiting)} in collective {number}: {_call(places, number)}",
        left[0],
    )


def _late(places: Sequence[Where | None], timeout_s: float) -> RankFailed | None:
    number = max((place.calls for place in places if place and place.inside), default=0)
    if not number:
        return None
    within = f"within {timeout_s:g} s to collective {number}: {_call(places, number)}"
    dumb = [rank for rank, place in enumerate(places) if place is None]
    if dumb:
        verb = "is" if len(dumb) == 1 else "are"
        return RankFailed(
            f"{in_words(dumb)} {verb} late: no answer, so stopped, or busy in a call that does not let other threads run; "
            f"not come {within}",
            dumb[0],
        )
    busy = [rank for rank, place in enumerate(places) if place and not place.inside and place.calls < number]
    if busy:
        verb = "is" if len(busy) == 1 else "are"
        return RankFailed(f"{in_words(busy)} {verb} late: still computing, not come {within}", busy[0])
    return None


def _call(places: Sequence[Where | None], number: int) -> str:
    return next((call for place in places if place and (call := place.call(number))), "unknown")


def _waits(ranks: Collection[int]) -> str:
    return f"{in_words(ranks)} {'wait' if len(ranks) > 1 else 'waits'}"
