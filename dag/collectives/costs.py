"""What collectives cost by the formulas of the literature: messages one after another, bytes, and bytes folded.

The time of ``Cost`` is that of machines that are all alike, each with one port that sends and receives at once: latency per
message, time per byte, time per byte folded.  A test holds the simulator to it.  What is not here: contention of several
messages for one link between machines, and any overhead of the machine itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import BadCollective


@dataclass(frozen=True, kw_only=True)
class Cost:
    """``messages`` that follow each other, ``bytes_`` that pass a port after each other, ``folded`` bytes of them folded."""

    messages: float
    bytes_: float
    folded: float = 0.0

    def seconds(self, *, latency_s: float, s_per_byte: float, reduce_s_per_byte: float = 0.0) -> float:
        """Return alpha, beta and gamma times their counts."""
        return self.messages * latency_s + self.bytes_ * s_per_byte + self.folded * reduce_s_per_byte


def ring(ranks: int, nbytes: float) -> Cost:
    """Return 2(p-1)a + 2n(p-1)/p b + n(p-1)/p g (Patarasuk & Yuan 2009); so does ``direct``, which has the same counts."""
    share = nbytes * (ranks - 1) / ranks
    return Cost(messages=2 * (ranks - 1), bytes_=2 * share, folded=share)


def sharded(ranks: int, nbytes: float) -> Cost:
    """Return 2a + 2n(p-1)/p b + n(p-1)/p g: the bytes of the ring in two rounds."""
    share = nbytes * (ranks - 1) / ranks
    return Cost(messages=2 * (ranks > 1), bytes_=2 * share, folded=share)


def central(ranks: int, nbytes: float, *, server_is_rank: bool = True) -> Cost:
    """Return 2a + 2nq b + nq g for q = p-1 ranks that send to the server, or p where it is none of them."""
    workers = ranks - server_is_rank
    return Cost(messages=2 * (workers > 0), bytes_=2 * workers * nbytes, folded=workers * nbytes)


def direct_whole(ranks: int, nbytes: float) -> Cost:
    """Return (p-1)(a + n b + n g)."""
    return Cost(messages=ranks - 1, bytes_=(ranks - 1) * nbytes, folded=(ranks - 1) * nbytes)


def pairwise(ranks: int, nbytes: float) -> Cost:
    """Return MPICH's pairwise reduce-scatter: (p-1)a + n(p-1)/p b + n(p-1)/p g; so does that around a ring."""
    share = nbytes * (ranks - 1) / ranks
    return Cost(messages=ranks - 1, bytes_=share, folded=share)


def binomial_broadcast(ranks: int, nbytes: float) -> Cost:
    """Return MPICH's lg p a + n lg p b, lg rounded up."""
    turns = (ranks - 1).bit_length()
    return Cost(messages=turns, bytes_=turns * nbytes)


def binomial_reduce(ranks: int, nbytes: float) -> Cost:
    """Return MPICH's lg p a + n lg p b + n lg p g, lg rounded up."""
    turns = (ranks - 1).bit_length()
    return Cost(messages=turns, bytes_=turns * nbytes, folded=turns * nbytes)


def doubling(ranks: int, nbytes: float) -> Cost:
    """Return MPICH's recursive doubling: lg p a + n lg p b + n lg p g.

    Where p is no power of two, lg is rounded down, and two more messages of n bytes go before and after, one of them folded.
    """
    turns, extra = _powers(ranks)
    return Cost(
        messages=turns + 2 * extra, bytes_=nbytes * (turns + 2 * extra), folded=nbytes * (turns + extra)
    )


def rabenseifner(ranks: int, nbytes: float) -> Cost:
    """Return MPICH's reduce-scatter and all-gather: 2 lg p a + 2n(p-1)/p b + n(p-1)/p g.

    Where p is no power of two, with q the power of two below it:
    (2 lg q + 2)a + (2(q-1)/q + 2)n b + n(1 + (q-1)/q)g; MPICH's comment writes p for q in the fractions.
    """
    turns, extra = _powers(ranks)
    share = 1 - 0.5**turns
    return Cost(
        messages=2 * turns + 2 * extra,
        bytes_=nbytes * (2 * share + 2 * extra),
        folded=nbytes * (share + extra),
    )


def two_trees_at_most(ranks: int, nbytes: float, chunks: int) -> Cost:
    """Return the bound of the pipelined double tree, up and down: 2 (2 ceil(lg p) + 2k) steps of n/(2k) bytes.

    One way, reduction or broadcast, has 2 ceil(lg p) + 2k steps at most for k chunks of each half (Sanders, Speck & Träff
    2009).
    """
    if ranks == 1:
        return Cost(messages=0, bytes_=0)
    steps = 2 * (2 * (ranks - 1).bit_length() + 2 * chunks)
    moved = steps * nbytes / (2 * chunks)
    return Cost(messages=steps, bytes_=moved, folded=moved / 2)


def _powers(ranks: int) -> tuple[int, int]:
    """Return the logarithm of the greatest power of two in ``ranks``, and 1 if there is a rest."""
    turns = ranks.bit_length() - 1
    return turns, int(ranks != 1 << turns)


def byteps_optimum(machines: int, servers: int, nbytes: float, s_per_byte: float) -> float:
    """Return the least time to sum over ``machines`` with ``servers`` more to help: 2n(n-1)M / ((n^2 + kn - 2k)B).

    k = 0 is the ring's, k = n is M/B (Jiang et al., BytePS, OSDI 2020, theorem 1).

    Raises:
        BadCollective: fewer than 2 machines, or more servers than machines.
    """
    n, k = machines, servers
    if n < 2 or not 0 <= k <= n:
        raise BadCollective(
            f"BytePS' optimum is for at least 2 machines and 0 servers to as many as machines, got {n} and {k}"
        )
    return 2 * n * (n - 1) * nbytes * s_per_byte / (n * n + k * n - 2 * k)


def byteps_shares(machines: int, servers: int) -> tuple[float, float]:
    """Return which share of the elements each server sums at that optimum, and which each machine.

    2(n-1)/(n^2 + kn - 2k) and (n-k)/(n^2 + kn - 2k); all shares together are 1.
    """
    n, k = machines, servers
    whole = n * n + k * n - 2 * k
    return 2 * (n - 1) / whole, (n - k) / whole


def servers_beside(machines: int, servers: int, nbytes: float, s_per_byte: float) -> float:
    """Return the time with ``servers`` that are not machines that compute: max(M/B, nM/(kB)) (BytePS, table 1)."""
    return max(1.0, machines / servers) * nbytes * s_per_byte


def nccl_hops(algorithm: str, ranks: int, per_machine: int) -> tuple[float, float]:
    """Return how many hops inside machines and across them NCCL's model counts one after another (src/graph/tuning.cc).

    The ring: 2(P-1), of which 2(M-1) across for M machines.  The tree: 2 (P/M - 1) inside and 2 log2 M across.

    Raises:
        BadCollective: another algorithm, or machines that are not whole.
    """
    if ranks % per_machine:
        raise BadCollective(f"NCCL's model is for whole machines of {per_machine} ranks, got {ranks} ranks")
    machines = ranks // per_machine
    if algorithm == "ring":
        across = 2 * (machines - 1)
        return 2 * (ranks - 1) - across, across
    if algorithm == "tree":
        return 2 * (per_machine - 1), 2 * math.log2(machines)
    raise BadCollective(f"NCCL's model knows ring and tree, got {algorithm!r}")


def fit_nccl(
    algorithm: str, per_machine: int, start_s: float, near: tuple[int, float], far: tuple[int, float]
) -> tuple[float, float]:
    """Return the latency of a hop inside and of one across that give the measured times of short messages at two sizes.

    Args:
        near, far: (ranks, seconds).
    """
    (a, b), (c, d) = (nccl_hops(algorithm, ranks, per_machine) for ranks, _ in (near, far))
    first, second = near[1] - start_s, far[1] - start_s
    whole = a * d - b * c
    return (first * d - b * second) / whole, (a * second - first * c) / whole
