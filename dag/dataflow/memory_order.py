"""In which order to run a graph so that little is alive at once, and inputs that may be overwritten are read before."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from .memory_views import Storages
from .tables import TRAITS
from .tensor import Tensor

#: For each output that is to overwrite an input: the steps that read that input.
Late = Mapping[Tensor, Sequence[Tensor]]


def anti_dependencies(made: Sequence[Tensor], storages: Storages, pairs: Mapping[Tensor, Tensor]) -> Late:
    """Return for each output the steps that must have read the input whose memory it is to take."""
    return {
        output: [reader for reader in storages.readers.get(donor, ()) if reader is not output]
        for output, donor in pairs.items()
        if output in storages.readers and not _reads_apart(output, donor, storages)
    }


def _reads_apart(output: Tensor, donor: Tensor, storages: Storages) -> bool:
    """Return whether an output reads the input so that it cannot be written over it."""
    return donor in storages.reads.get(output, ()) and not TRAITS[output.op.kind].elementwise


def order_for_memory(made: Sequence[Tensor], storages: Storages, late: Late, *, greedy: bool) -> list[Tensor]:
    """Return the nodes in an order in which they can run.

    ``greedy``: of the nodes that can run, the one that adds the fewest bytes, what it frees taken off; the earlier one in the
    graph's order where several do.  Otherwise the graph's own order.  In both, an output that is to overwrite an input waits
    for the other readers of that input, unless they wait for it.
    """
    position = {node: at for at, node in enumerate(made)}
    waits = [{position[source] for source in node.inputs if source in position} for node in made]
    held_back = [
        {position[reader] for reader in late.get(node, ())} - waits[at] for at, node in enumerate(made)
    ]
    users: list[list[int]] = [[] for _ in made]
    for at, sources in enumerate(waits):
        for source in (*sources, *held_back[at]):
            users[source].append(at)
    missing = [len(sources) + len(held_back[at]) for at, sources in enumerate(waits)]
    left = storages.uses()
    done = [False] * len(made)
    freeable = set(made) - storages.outputs - storages.kept

    def added_bytes(at: int) -> int:
        node = made[at]
        if not greedy:
            return 0
        freed = sum(
            owner.size_bytes for owner in storages.reads[node] if left[owner] == 1 and owner in freeable
        )
        return (0 if node in storages.views or node in late else node.size_bytes) - freed

    ready = [(added_bytes(at), at) for at, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order: list[Tensor] = []
    waiting = [at for at, node in enumerate(made) if node in late]
    while len(order) < len(made):
        if not ready:
            # Only outputs that are to overwrite an input can be waited for in a circle: the first that has all it reads goes.
            at = next(at for at in waiting if not done[at] and all(done[source] for source in waits[at]))
            missing[at] = 0
            heapq.heappush(ready, (0, at))
        _, at = heapq.heappop(ready)
        if done[at] or missing[at] > 0:
            continue
        done[at] = True
        order.append(made[at])
        for user in users[at]:
            missing[user] -= 1
            if missing[user] == 0:
                heapq.heappush(ready, (added_bytes(user), user))
        for owner in storages.reads[made[at]]:
            left[owner] -= 1
            if greedy and left[owner] == 1 and owner in freeable:
                # The last reader frees it now: it goes into the queue again, with fewer bytes.
                last = next(reader for reader in storages.readers[owner] if not done[position[reader]])
                if missing[position[last]] == 0:
                    heapq.heappush(ready, (added_bytes(position[last]), position[last]))
    return order
