"""What to copy and what to remove, as data: re-replication, rack spread, draining, balancing (GFS 4.3).

Pure. A plan is checked and printed as it is run; ``recovery`` runs it and looks again at each chunk first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from gfs_sim.placement import Candidate, choose, misplaced

Condition = Literal["good", "corrupt", "missing", "stale", "unreachable"]


@dataclass(frozen=True, kw_only=True)
class ReplicaState:
    """A replica as found. ``unreachable`` says that its server's folder is not there: slow, not lost."""

    server: str
    condition: Condition
    draining: bool = False


@dataclass(frozen=True, kw_only=True)
class ChunkState:
    """A chunk, its replica goal, and its replicas; ``deleted`` if only deleted files hold it."""

    handle: int
    length: int
    goal: int
    replicas: tuple[ReplicaState, ...]
    deleted: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """Servers with a good replica, draining ones last."""
        good = [replica for replica in self.replicas if replica.condition == "good"]
        return tuple(replica.server for replica in sorted(good, key=lambda replica: replica.draining))

    @property
    def staying(self) -> tuple[str, ...]:
        """Servers with a good replica that are to keep it."""
        return tuple(r.server for r in self.replicas if r.condition == "good" and not r.draining)


@dataclass(frozen=True, kw_only=True)
class Clone:
    """Copy a chunk from the first of ``sources`` that can give it to ``target``."""

    handle: int
    length: int
    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Remove a replica, once ``needs`` other good ones that stay are there."""

    handle: int
    server: str
    needs: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class ChunkPlan:
    """What one chunk needs: first the clones, then the removals. ``lacking`` replicas have no server to go to."""

    handle: int
    priority: int
    clones: tuple[Clone, ...]
    removals: tuple[Removal, ...]
    lacking: int


def goal_of(state: ChunkState, live: int) -> int:
    """Return how many replicas can be had: the goal, at most one for each live server."""
    return max(1, min(state.goal, live))


def priority(state: ChunkState, racks: Mapping[str, str], live: int) -> int:
    """Return a chunk's place in the queue, 0 first, as HDFS's LowRedundancyBlocks orders them.

    0: one live copy or only draining ones; 1: under a third of the goal; 2: under it; 3: enough, badly
    spread over racks; 4: no good copy (never a source); 5: nothing to do. Ten more for chunks that only
    deleted files hold (GFS 4.3 mends live files first).
    """
    goal = goal_of(state, live)
    # A server may have failed since the chunk was looked at.
    kept = [server for server in state.staying if server in racks]
    staying = len(kept)
    if not state.sources:
        place = 4
    elif staying < goal and staying <= 1:
        place = 0
    elif staying * 3 < goal:
        place = 1
    elif staying < goal:
        place = 2
    elif misplaced([racks[server] for server in kept], set(racks.values())):
        place = 3
    else:
        place = 5
    return place + 10 * state.deleted


def plan_chunk(state: ChunkState, servers: Sequence[Candidate], random: Random) -> ChunkPlan:
    """Return what one chunk needs, given the live servers.

    A bad replica goes only when a good one is there to replace it; with no other server free, the clone is
    written in its place. Surplus goes from the rack, then the server, that has most.
    """
    racks = {server.name: server.rack for server in servers}
    by_name = {server.name: server for server in servers}
    rank = priority(state, racks, len(servers))
    if not state.sources:
        return ChunkPlan(handle=state.handle, priority=rank, clones=(), removals=(), lacking=0)
    goal = goal_of(state, len(servers))
    staying = [server for server in state.staying if server in by_name]
    bad = [r for r in state.replicas if r.condition in ("corrupt", "missing", "stale")]
    occupied = {replica.server for replica in state.replicas}
    wanted = goal - len(staying)
    spread = rank % 10 == 3
    targets: list[str] = []
    if wanted > 0 or spread:
        count = max(wanted, 1 if spread else 0)
        held = [racks[server] for server in staying]
        targets = choose(servers, count, state.length, random, holders=occupied, racks=held)
        if spread and targets and racks[targets[0]] in held:
            targets = []
        if len(targets) < wanted:
            # In place of a bad replica, since there is nowhere else.
            spare = [by_name[r.server] for r in bad if r.server in by_name]
            targets += choose(spare, wanted - len(targets), state.length, random, holders=targets)
    clones = tuple(
        Clone(handle=state.handle, length=state.length, sources=state.sources, target=target)
        for target in targets
    )
    after = staying + targets
    removals = [
        Removal(handle=state.handle, server=r.server, needs=1, reason=r.condition)
        for r in bad
        if r.server not in targets
    ]
    if len(after) >= goal:
        removals += [
            Removal(handle=state.handle, server=r.server, needs=goal, reason="draining")
            for r in state.replicas
            if r.draining and r.condition == "good"
        ]
    while len(after) > goal:
        on_rack = [racks[server] for server in after]
        surplus = max(after, key=lambda s: (on_rack.count(racks[s]), by_name[s].use, s not in targets))
        after.remove(surplus)
        removals.append(Removal(handle=state.handle, server=surplus, needs=goal, reason="surplus"))
    return ChunkPlan(
        handle=state.handle,
        priority=rank,
        clones=clones,
        removals=tuple(removals),
        lacking=max(0, min(state.goal, max(1, len(servers))) - len(after)),
    )


def plan_repairs(
    states: Sequence[ChunkState], servers: Sequence[Candidate], random: Random
) -> list[ChunkPlan]:
    """Return the plans of all chunks that need something (even if it cannot be had), most urgent first."""
    plans = [plan_chunk(state, servers, random) for state in states]
    needy = [plan for plan in plans if plan.clones or plan.removals or plan.lacking]
    return sorted(needy, key=lambda plan: plan.priority)


def plan_balance(
    states: Sequence[ChunkState], servers: Sequence[Candidate], threshold: float
) -> list[tuple[Clone, Removal]]:
    """Return moves that bring every server within ``threshold`` of the mean use, largest gap first.

    Use is the share of a server's room that is taken. A move never lowers the number of racks a chunk is on,
    and none is planned that would only swap who is fuller.
    """
    used = {server.name: float(server.used_bytes) for server in servers}
    room = {server.name: max(1.0, float(server.used_bytes + server.free_bytes)) for server in servers}
    racks = {server.name: server.rack for server in servers}
    if not used:
        return []
    # Disks far larger than what they hold would all look empty, so room counts up to twice the mean use.
    mean_bytes = sum(used.values()) / len(used)
    shared = {name: max(1.0, min(room[name], 2 * mean_bytes)) for name in room}
    mean = sum(used.values()) / sum(shared.values())
    held: dict[str, list[ChunkState]] = {name: [] for name in used}
    places = {state.handle: [name for name in state.staying if name in used] for state in states}
    for state in states:
        for server in places[state.handle]:
            held[server].append(state)
    moves: list[tuple[Clone, Removal]] = []
    for chunks in held.values():
        chunks.sort(key=lambda state: state.length)
    while True:
        order = sorted(used, key=lambda name: used[name] / shared[name])
        full = order[-1]
        if (
            used[full] / shared[full] - mean <= threshold
            and mean - used[order[0]] / shared[order[0]] <= threshold
        ):
            return moves
        move = _one_move(order, held, places, used, shared, racks)
        if move is None:
            return moves
        state, source, target = move
        held[source].remove(state)
        held[target].append(state)
        places[state.handle][places[state.handle].index(source)] = target
        used[source] -= state.length
        used[target] += state.length
        moves.append(
            (
                Clone(handle=state.handle, length=state.length, sources=state.sources, target=target),
                Removal(handle=state.handle, server=source, needs=len(state.staying), reason="balance"),
            )
        )


def _one_move(
    order: Sequence[str],
    held: Mapping[str, Sequence[ChunkState]],
    places: Mapping[int, Sequence[str]],
    used: Mapping[str, float],
    room: Mapping[str, float],
    racks: Mapping[str, str],
) -> tuple[ChunkState, str, str] | None:
    for source in reversed(order):
        for target in order:
            if used[target] / room[target] >= used[source] / room[source]:
                break
            for state in reversed(held[source]):
                if target in places[state.handle]:
                    continue
                if (used[target] + state.length) / room[target] >= used[source] / room[source]:
                    continue
                others = [racks[name] for name in places[state.handle] if name != source]
                if len({*others, racks[target]}) < len({*others, racks[source]}):
                    continue
                return state, source, target
    return None
