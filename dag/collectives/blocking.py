"""Whether a schedule gets through where a send blocks until its receiver takes it: the strictest way to send.

Our transports never block; this is for who runs a schedule over something that does.  Each rank does one thing after another,
step by step, and within a step in an order that it knows by itself.  With ``by_peer`` every schedule gets through: of all
messages that are left in the first step that is not done, take the lowest rank, and the lowest peer it has left; neither
has anything to do before that message.  With ``giving_first`` a ring stands still: all give, and nobody takes.
"""

from __future__ import annotations

from collections.abc import Callable

from .schedule import Schedule

#: In which order a rank does what it has to do in a step: a key from its own number, whether it gives, and the peer.
Order = Callable[[int, bool, int], tuple[int, ...]]


def by_peer(rank: int, gives: bool, peer: int) -> tuple[int, ...]:
    """Order by peer, ascending, as arrivals are folded; of what goes both ways the lower rank's goes first."""
    return peer, rank if gives else peer


def giving_first(rank: int, gives: bool, peer: int) -> tuple[int, ...]:
    """Give everything, then take everything."""
    return int(not gives), peer


def circle(schedule: Schedule, order: Order = by_peer) -> list[tuple[int, int, int]]:
    """Return who waits for whom in a circle when sends block: (rank, whom it waits for, step); empty if all gets through."""
    todo = _programs(schedule, order)
    at = [0] * schedule.nodes
    pending = list(range(schedule.nodes))
    while pending:
        node = pending.pop()
        while at[node] < len(todo[node]):
            message = todo[node][at[node]]
            peer = message[2] if message[1] == node else message[1]
            if todo[peer][at[peer]] != message:
                break
            # Both are there: it goes over, and both go on.
            at[node], at[peer] = at[node] + 1, at[peer] + 1
            pending.append(peer)
    return _waiting(todo, at)


def _programs(schedule: Schedule, order: Order) -> list[list[tuple[int, int, int, int]]]:
    """Return the messages of each node in its order, as (step, src, dst, number in the step)."""
    todo: list[list[tuple[int, int, int, int]]] = [[] for _ in range(schedule.nodes)]
    for number, step in enumerate(schedule):
        here: list[list[tuple[tuple[int, ...], int, int, int]]] = [[] for _ in range(schedule.nodes)]
        for index, (src, dst) in enumerate(zip(step.src.tolist(), step.dst.tolist(), strict=True)):
            here[src].append((order(src, True, dst), index, src, dst))
            here[dst].append((order(dst, False, src), index, src, dst))
        for node, messages in enumerate(here):
            todo[node] += [(number, src, dst, index) for _, index, src, dst in sorted(messages)]
    return todo


def _waiting(todo: list[list[tuple[int, int, int, int]]], at: list[int]) -> list[tuple[int, int, int]]:
    """Return the circle at one of the nodes that are not done: whom such a node waits for is not done either."""
    node = next((each for each, messages in enumerate(todo) if at[each] < len(messages)), None)
    seen: dict[int, tuple[int, int, int]] = {}
    while node is not None and node not in seen:
        step, src, dst, _ = todo[node][at[node]]
        peer = dst if src == node else src
        seen[node] = (node, peer, step)
        node = peer
    links = list(seen.values())
    return links[[link[0] for link in links].index(node) :] if node is not None else []
