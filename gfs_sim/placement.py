"""Where replicas go: a pure choice over what is known of the servers (GFS 4.2).

Fewer bytes used than others, few recent creations (they foretell heavy writing), and a rack not used
yet. Nothing here looks at a disk or a clock.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

RECENT_SLACK = 3.0
"""A server may be ahead of the mean by this many recent creations before it is passed over."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A live server: its use, its room, and its recent creations (a count that decays)."""

    name: str
    rack: str
    used_bytes: int
    free_bytes: int
    recent: float

    @property
    def use(self) -> float:
        """Used share of what it can hold."""
        return self.used_bytes / max(1, self.used_bytes + self.free_bytes)


def choose(
    candidates: Sequence[Candidate],
    replicas: int,
    need_bytes: int,
    random: Random,
    *,
    holders: Collection[str] = (),
    racks: Collection[str] = (),
) -> list[str]:
    """Return up to ``replicas`` servers for one chunk of ``need_bytes``, best first.

    ``holders`` are servers that have the chunk already and are not chosen again, ``racks`` the racks
    they are in. Fewer names come back when fewer servers have room.
    """
    free = [c for c in candidates if c.name not in holders and c.free_bytes >= need_bytes]
    if not free or replicas < 1:
        return []
    recent_limit = sum(c.recent for c in free) / len(free) + RECENT_SLACK
    mean_use = sum(c.use for c in free) / len(free)
    order = list(free)
    random.shuffle(order)
    used_racks = list(racks)
    chosen: list[str] = []
    while order and len(chosen) < replicas:
        best = min(
            order,
            key=lambda c: (used_racks.count(c.rack), c.recent > recent_limit, c.use > mean_use, c.used_bytes),
        )
        order.remove(best)
        chosen.append(best.name)
        used_racks.append(best.rack)
    return chosen


def misplaced(racks_of_replicas: Sequence[str], all_racks: Collection[str]) -> bool:
    """Return whether a chunk's replicas use fewer racks than they could: two where there are two (GFS 4.2)."""
    wanted = min(2, len(racks_of_replicas), len(set(all_racks)))
    return len(set(racks_of_replicas)) < wanted
