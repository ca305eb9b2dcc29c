"""``mr simulate``: how long the algorithms would take on a network, as rows of numbers.

It decides what a command line leaves open: in how many chunks a tree works, and that plans with too many messages to follow are
timed with parts of equal size, by symmetry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dag.collectives import Network, algorithms, named_network, plan, simulate
from dag.collectives.networks import uniform
from dag.collectives.plans import CHUNKED, PER_MACHINE
from dag.collectives.schedule import check_ranks
from dag.collectives.trees import best_chunks
from dag.errors import BadCollective

from .algorithm_names import split_names

#: More messages than this in all are followed by symmetry, where a plan has it, and not one by one.
FOLLOWED_MESSAGES = 100_000_000
#: What takes more moves than this, or more chunks, each of which is a step, takes minutes and is left out of ``all``.
MOST_MOVES, MOST_CHUNKS = 4_000_000_000, 200_000
#: Chunks of a tree are no smaller than this many elements, and no more than this many.
_CHUNK_ELEMENTS, _MOST_CHUNKS = 256, 512


@dataclass(frozen=True, kw_only=True)
class Row:
    """One algorithm at one size.

    Args:
        nbytes: of each rank, as asked for.
        timed_bytes: what was timed: more where parts were made equal.
        timeouts: how often a port of a switch was overrun.
        chunks: of a tree; None: it has none.
    """

    algorithm: str
    nbytes: int
    timed_bytes: int
    seconds: float
    ranks: int
    rounds: int
    timeouts: int
    chunks: int | None

    @property
    def algbw(self) -> float:
        """Bytes of the result per second."""
        return self.timed_bytes / self.seconds if self.seconds else 0.0

    @property
    def busbw(self) -> float:
        """algbw x 2(P-1)/P, as nccl-tests has it."""
        return self.algbw * 2 * (self.ranks - 1) / self.ranks


def names_of(said: str) -> tuple[list[str], bool]:
    """Return the algorithms that ``--algorithm`` means, and whether all were meant; raises BadCollective, see ``split_names``."""
    known = algorithms()
    names = split_names(said, known)
    everything = names == ["all"]
    return (known if everything else names), everything


def network_for(name: str | None, algorithm: str, changes: Mapping[str, Any]) -> Network:
    """Return the network of a name, or one of links without latency and cost, with ``changes`` by the names of ``Network``.

    Of the links ``inside`` and ``across`` single numbers change: ``across_latency_s`` and so on.

    Raises:
        BadCollective: there is no such network, or a number does not fit.
    """
    found = uniform(latency_s=0, s_per_byte=0) if name is None else named_network(name, algorithm)
    plain = dict(changes)
    for link in ("inside", "across"):
        numbers = {
            number: plain.pop(f"{link}_{number}")
            for number in ("latency_s", "s_per_byte")
            if f"{link}_{number}" in plain
        }
        plain[link] = replace(getattr(found, link), **numbers)
    return replace(found, **plain)


def simulate_allreduce(
    said: str,
    ranks: int,
    sizes: Sequence[int],
    *,
    network: Callable[[str], Network],
    itemsize: int = 4,
    chunks: int | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> tuple[list[Row], list[str]]:
    """Return what the algorithms take, sizes in the order given, and notes on what was left out or rounded.

    Args:
        network: what an algorithm meets.
        chunks: of trees; None: near the best, by the formula for two trees.

    Raises:
        BadCollective: the algorithm, the ranks or the sizes do not fit.
    """
    names, everything = names_of(said)
    check_ranks(ranks)
    met = {name: network(name) for name in names}
    rows: list[Row] = []
    notes: list[str] = []
    for nbytes in sizes:
        if nbytes % itemsize:
            raise BadCollective(
                f"{nbytes} bytes are no whole number of elements of {itemsize} bytes: choose a multiple"
            )
        for name in names:
            tell(name)
            try:
                elements = nbytes // itemsize
                chosen = _chunks(name, ranks, elements, itemsize, met[name], chunks)
                if everything:
                    _refuse_long(name, ranks, chosen)
                rows.append(_time(name, ranks, elements, itemsize, met[name], chosen, notes))
            except BadCollective as error:
                if not everything:
                    raise
                notes.append(f"left out: {error}")
    return rows, list(dict.fromkeys(notes))


def _refuse_long(name: str, ranks: int, chunks: int | None) -> None:
    if chunks is not None and ranks > 1 and (chunks > MOST_CHUNKS or 2 * ranks * chunks > MOST_MOVES):
        raise BadCollective(
            f"{name} hands {chunks:,} chunks through {ranks:,} ranks: minutes; ask for it by name, or for fewer --chunks"
        )
    if name in ("ring", "direct", "direct_whole", "two_level") and 2 * ranks * ranks > MOST_MOVES:
        raise BadCollective(
            f"{name} has up to {2 * ranks:,} steps of {ranks:,} ranks: minutes; ask for it by name"
        )


def _time(
    name: str,
    ranks: int,
    elements: int,
    itemsize: int,
    network: Network,
    chunks: int | None,
    notes: list[str],
) -> Row:
    choices = {"per_machine": network.per_machine} if name in PER_MACHINE else {}
    schedule = plan("allreduce", name, ranks, **choices, **({"chunks": chunks} if chunks else {}))
    asked = elements
    whole = ranks * ranks if name in ("sharded", "direct") else 0
    if whole > FOLLOWED_MESSAGES and elements % ranks:
        rounded = -(-elements // ranks) * ranks
        notes.append(
            f"{name}: timed with {rounded:,} elements in place of {elements:,}, so that all {ranks:,} parts are equal"
        )
        elements = rounded
    found = simulate(schedule, elements, itemsize, network)
    return Row(
        algorithm=name, nbytes=asked * itemsize, timed_bytes=elements * itemsize, seconds=found.seconds, ranks=ranks,
        rounds=found.rounds, timeouts=found.timeouts, chunks=chunks,
    )  # fmt: skip


def _chunks(
    name: str, ranks: int, elements: int, itemsize: int, network: Network, chunks: int | None
) -> int | None:
    """Return in how many chunks an algorithm works, ``chunks`` if that is said; None: it does not work in chunks."""
    if name not in CHUNKED:
        return None
    if chunks is not None:
        return chunks
    link = network.across if ranks > network.per_machine else network.inside
    best = best_chunks(ranks, elements * itemsize, link.latency_s, link.s_per_byte)
    return max(1, min(best, elements // _CHUNK_ELEMENTS, _MOST_CHUNKS))
