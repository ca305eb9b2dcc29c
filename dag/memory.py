"""Whether a plan fits in memory, before it starts and while it runs; and which kept values stay.

Sizes are arguments here: expected ones of the nodes, or measured ones as they come in.  Nothing here measures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .errors import TooLarge
from .graph import Node
from .units import show_bytes


def projected_bytes(
    nodes: Sequence[Node], *, stays: Collection[Node], workers: int = 1, held_bytes: int = 0
) -> int:
    """Return the most bytes that are alive at once when ``nodes`` run in this order, ``workers`` at a time.

    A value lives until its last consumer has run, which is up to ``workers - 1`` tasks late; those of ``stays`` live to
    the end, and ``held_bytes`` are there all the time.
    """
    last = {source: at for at, node in enumerate(nodes) for source in node.sources()}
    freed: list[int] = [0] * (len(nodes) + workers)
    for at, node in enumerate(nodes):
        if node not in stays:
            freed[last.get(node, at) + workers - 1] += node.size_bytes
    live = peak = held_bytes
    for at, node in enumerate(nodes):
        live += node.size_bytes
        peak = max(peak, live)
        live -= freed[at]
    return peak


def check_fits(
    nodes: Sequence[Node],
    memory_bytes: int,
    *,
    stays: Collection[Node],
    workers: int = 1,
    held_bytes: int = 0,
) -> None:
    """Refuse a plan whose values cannot all be in memory when they have to be.

    Raises:
        TooLarge: with what it needs, what there is, and the largest values.
    """
    needed = projected_bytes(nodes, stays=stays, workers=workers, held_bytes=held_bytes)
    if needed > memory_bytes:
        raise TooLarge(
            f"the graph needs {show_bytes(needed)} of memory at its widest and has {show_bytes(memory_bytes)}; "
            f"largest: {_largest({node: node.size_bytes for node in nodes})}; give it more memory, keep less, or let it spill"
        )


class Ledger:
    """The bytes of all values alive, as they are made and freed.

    Raises:
        TooLarge: from ``made``, when they are more than ``memory_bytes`` (None: never).
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        stays: Collection[Node],
        memory_bytes: int | None = None,
        held_bytes: int = 0,
    ) -> None:
        self.live_bytes = self.peak_bytes = held_bytes
        self._memory_bytes = memory_bytes
        self._stays = set(stays)
        self._sizes: dict[Node, int] = {}
        self._users = dict.fromkeys(nodes, 0)
        for node in nodes:
            for source in set(node.sources()):
                if source in self._users:
                    self._users[source] += 1

    def made(self, node: Node, size_bytes: int) -> None:
        """Add the value of a node, and leave out those that it was the last to use; once more changes nothing."""
        if node in self._sizes:
            return
        self._sizes[node] = size_bytes
        self.live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        if self._memory_bytes is not None and self.live_bytes > self._memory_bytes:
            living = {each: size for each, size in self._sizes.items() if self._alive(each)}
            raise TooLarge(
                f"{show_bytes(self.live_bytes)} of values are alive after {node.name}, and the graph has "
                f"{show_bytes(self._memory_bytes)}; largest: {_largest(living)}; give it more memory, keep less, or let it spill"
            )
        for source in set(node.sources()):
            if source in self._users:
                self._users[source] -= 1
                self._free_if_unused(source)
        self._free_if_unused(node)

    def let_go(self, node: Node) -> None:
        """Have a value that was to stay live no longer than its consumers need it."""
        self._stays.discard(node)
        self._free_if_unused(node)

    def _alive(self, node: Node) -> bool:
        return node in self._stays or self._users[node] > 0

    def _free_if_unused(self, node: Node) -> None:
        if node in self._sizes and not self._alive(node):
            self.live_bytes -= self._sizes[node]
            self._sizes[node] = 0


class Pins:
    """Which of the kept values stay: the first in the graph's order that fit, never another because it came sooner.

    What does not fit is computed again by each graph.  (To drop the oldest instead never hits: a loop wants that one next.)
    Values of at most ``small_bytes`` stay and do not count: they are what a loop has found so far, and without one of them
    a graph would compute all rounds before it again.
    """

    def __init__(
        self, kept: Sequence[Node], capacity_bytes: int | None, used_bytes: int = 0, small_bytes: int = -1
    ) -> None:
        self.used_bytes = used_bytes
        self.pinned: list[Node] = []
        self._capacity_bytes = capacity_bytes
        self._small_bytes = small_bytes
        self._waiting = list(reversed(kept))
        self._sizes: dict[Node, int] = {}
        self._full = False

    def made(self, node: Node, size_bytes: int) -> list[Node]:
        """Take note of a kept node's size; return the nodes that are now known not to stay."""
        self._sizes[node] = size_bytes
        if self._is_small(node):
            self.pinned.append(node)
        elif self._full:
            return [node]
        while self._waiting and not self._full and self._waiting[-1] in self._sizes:
            first = self._waiting[-1]
            size = 0 if self._is_small(first) else self._sizes[first]
            if self._capacity_bytes is not None and size and self.used_bytes + size > self._capacity_bytes:
                self._full = True
                return [each for each in self._waiting if each in self._sizes and not self._is_small(each)]
            self.used_bytes += size
            if not self._is_small(first):
                self.pinned.append(first)
            self._waiting.pop()
        return []

    def _is_small(self, node: Node) -> bool:
        return self._sizes[node] <= self._small_bytes


def _largest(sizes: Mapping[Node, int]) -> str:
    top = sorted(sizes.items(), key=lambda each: -each[1])[:3]
    return ", ".join(f"{node.name} {show_bytes(size)}" for node, size in top)
