"""The simulator against closed forms, published curves, and itself without its short cuts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dag.collectives import Incast, Link, Network, Racks, Schedule, named_network, networks, plan, simulate
from dag.collectives import costs as formula
from dag.collectives.networks import uniform
from dag.collectives.ring import reduce_scatter
from dag.collectives.schedule import FOLD, REPLACE, moves
from dag.collectives.symmetry import TURNING, moves_of_first
from dag.collectives.trees import best_chunks
from dag.errors import BadCollective

ALPHA, BETA, GAMMA = 3e-6, 1e-9, 2.5e-10
SIZES = [2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 17, 32, 48]
CORE = {ranks: 1 << (ranks.bit_length() - 1) for ranks in SIZES}


def seconds(schedule: Schedule, elements: int, network: Network, itemsize: int = 4) -> float:
    return simulate(schedule, elements, itemsize, network).seconds


@pytest.mark.parametrize("gamma", [0.0, GAMMA])
@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize(
    ("kind", "algorithm", "cost"),
    [
        ("allreduce", "ring", formula.ring),
        ("allreduce", "direct", formula.ring),
        ("allreduce", "sharded", formula.sharded),
        ("allreduce", "central", formula.central),
        ("allreduce", "direct_whole", formula.direct_whole),
        ("allreduce", "halving", formula.rabenseifner),
        ("allreduce", "doubling", formula.doubling),
        ("reduce_scatter", "direct", formula.pairwise),
        ("reduce_scatter", "ring", formula.pairwise),
        ("broadcast", "binomial", formula.binomial_broadcast),
        ("reduce", "binomial", formula.binomial_reduce),
    ],
)
def test_on_uniform_links_the_time_is_that_of_the_closed_form(
    kind: str, algorithm: str, cost: object, ranks: int, gamma: float
) -> None:
    elements = 96 * ranks * CORE[ranks]  # every plan cuts it into equal parts
    network = uniform(latency_s=ALPHA, s_per_byte=BETA, reduce_s_per_byte=gamma)
    found = seconds(plan(kind, algorithm, ranks), elements, network)  # type: ignore[arg-type]
    wanted = cost(ranks, elements * 4)  # type: ignore[operator]
    most = wanted.seconds(latency_s=ALPHA, s_per_byte=BETA, reduce_s_per_byte=gamma)
    if CORE[ranks] != ranks and algorithm in ("doubling", "binomial"):
        # Ranks without a partner are early, so that some of the latencies of the formula are hidden.
        assert 0.6 * most < found <= most * (1 + 1e-9)
    else:
        assert found == pytest.approx(most, rel=1e-9)


def test_a_server_beside_the_ranks_takes_from_one_more() -> None:
    network = uniform(latency_s=ALPHA, s_per_byte=BETA, reduce_s_per_byte=GAMMA)
    found = seconds(plan("allreduce", "central", 7, server_is_rank=False), 1000, network)
    wanted = formula.central(7, 4000, server_is_rank=False)
    assert wanted.bytes_ == 2 * 7 * 4000
    assert found == pytest.approx(
        wanted.seconds(latency_s=ALPHA, s_per_byte=BETA, reduce_s_per_byte=GAMMA), rel=1e-9
    )


@pytest.mark.parametrize(
    ("cost", "ranks", "messages", "bytes_", "folded"),
    [
        # lg p a + n lg p b + n lg p g
        (formula.doubling(8, 800), 8, 3, 2400, 2400),
        # 2 lg p a + 2n(p-1)/p b + n(p-1)/p g
        (formula.rabenseifner(8, 800), 8, 6, 1400, 700),
        # (2 floor(lg p) + 2) a + (2(q-1)/q + 2) n b + n(1 + (q-1)/q) g with q = 4
        (formula.rabenseifner(6, 800), 6, 6, 2800, 1400),
        (formula.pairwise(5, 1000), 5, 4, 800, 800),
        (formula.binomial_broadcast(9, 100), 9, 4, 400, 0),
        (formula.binomial_reduce(9, 100), 9, 4, 400, 400),
        (formula.ring(5, 1000), 5, 8, 1600, 800),
    ],
)
def test_mpichs_formulas_as_they_stand_in_its_sources(
    cost: formula.Cost, ranks: int, messages: float, bytes_: float, folded: float
) -> None:
    assert (cost.messages, cost.bytes_, cost.folded) == pytest.approx((messages, bytes_, folded))


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16, 33, 100, 256])
@pytest.mark.parametrize("chunks", [1, 2, 8, 32, 100])
def test_the_double_tree_keeps_within_its_bound_and_above_what_its_ports_must_carry(
    ranks: int, chunks: int
) -> None:
    elements = 2 * chunks * 1000
    network = uniform(latency_s=ALPHA, s_per_byte=BETA)
    found = seconds(plan("allreduce", "double_tree", ranks, chunks=chunks), elements, network)
    bound = formula.two_trees_at_most(ranks, elements * 4, chunks)
    assert found <= bound.seconds(latency_s=ALPHA, s_per_byte=BETA) * (1 + 1e-9)
    # Every rank but a root gives its half up each tree, and is given it again: 2n(p-1)/p for the average one.
    assert found >= 2 * (ranks - 1) / ranks * elements * 4 * BETA


def test_the_best_number_of_chunks_is_near_the_best_of_a_sweep() -> None:
    network = uniform(latency_s=ALPHA, s_per_byte=BETA)
    elements, ranks = 1 << 20, 64
    sweep = {
        chunks: seconds(plan("allreduce", "double_tree", ranks, chunks=chunks), elements, network)
        for chunks in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256, 512, 1024)
    }
    best = best_chunks(ranks, elements * 4, ALPHA, BETA)
    found = seconds(plan("allreduce", "double_tree", ranks, chunks=best), elements, network)
    assert found <= 1.15 * min(sweep.values())
    assert min(sweep.values()) < 0.5 * sweep[1]


@pytest.mark.parametrize("n", [2, 3, 5, 8, 64])
def test_byteps_optimum_is_the_ring_without_servers_and_one_buffer_with_as_many_as_machines(n: int) -> None:
    nbytes = 1e8
    ring = formula.ring(n, nbytes).seconds(latency_s=0, s_per_byte=BETA)
    assert formula.byteps_optimum(n, 0, nbytes, BETA) == pytest.approx(ring, rel=1e-12)
    assert formula.byteps_optimum(n, n, nbytes, BETA) == pytest.approx(nbytes * BETA, rel=1e-12)
    # The table: all-reduce and co-located servers alike; beside: max(M/B, nM/(kB)).
    colocated = plan("allreduce", "sharded", n)
    assert seconds(colocated, n * 1000, uniform(latency_s=0, s_per_byte=BETA)) == pytest.approx(
        formula.byteps_optimum(n, 0, n * 4000, BETA), rel=1e-9
    )
    assert formula.servers_beside(n, n, nbytes, BETA) == pytest.approx(nbytes * BETA)
    assert formula.servers_beside(n, 1, nbytes, BETA) == pytest.approx(n * nbytes * BETA)
    for servers in range(n + 1):
        ours = formula.byteps_optimum(n, servers, nbytes, BETA)
        server, machine = formula.byteps_shares(n, servers)
        assert servers * server + n * machine == pytest.approx(1)
        # What each port carries each way: a machine all but its own share and (n-1) times that; a server n times its own.
        assert ours == pytest.approx(((1 - machine) + (n - 1) * machine) * nbytes * BETA)
        if servers:
            assert ours == pytest.approx(n * server * nbytes * BETA)
            assert ours <= formula.servers_beside(n, servers, nbytes, BETA) * (1 + 1e-12)


def test_byteps_optimum_refuses_more_servers_than_machines() -> None:
    with pytest.raises(BadCollective, match="got 4 and 5"):
        formula.byteps_optimum(4, 5, 1.0, 1.0)


#: NVIDIA's blog on NCCL 2.4, Summit, 8 bytes, microseconds by GPUs; read off its plot.
PUBLISHED_RING_US = {
    96: 175, 192: 360, 384: 650, 768: 1300, 1536: 2650, 3072: 5400, 6144: 10700, 12288: 21500, 24576: 45000,
}  # fmt: skip
PUBLISHED_TREE_US = {
    96: 127, 192: 140, 384: 155, 768: 170, 1536: 180, 3072: 200, 6144: 207, 12288: 227, 24576: 250,
}  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "published", "start_s"),
    [("ring", PUBLISHED_RING_US, 6.6e-6), ("tree", PUBLISHED_TREE_US, 6.8e-6)],
)
def test_summits_latencies_solve_nccls_model_at_the_two_ends(
    algorithm: str, published: dict[int, int], start_s: float
) -> None:
    network = named_network("summit", algorithm)
    for ranks in (96, 24576):
        inside, across = formula.nccl_hops(algorithm, ranks, 6)
        found = start_s + inside * network.inside.latency_s + across * network.across.latency_s
        assert found == pytest.approx(published[ranks] * 1e-6, rel=1e-9)


@pytest.mark.parametrize("ranks", list(PUBLISHED_TREE_US))
def test_a_tree_over_summit_takes_what_nccl_measured_for_8_bytes(ranks: int) -> None:
    schedule = plan("allreduce", "machine_tree", ranks, per_machine=6)
    found = seconds(schedule, 1, named_network("summit", "machine_tree"), itemsize=8)
    assert found == pytest.approx(PUBLISHED_TREE_US[ranks] * 1e-6, rel=0.15)


@pytest.mark.parametrize("ranks", [96, 192, 384, 768, 1536, 3072])
def test_a_ring_around_summit_takes_what_nccl_measured_for_8_bytes(ranks: int) -> None:
    found = seconds(plan("allreduce", "ring", ranks), 1, named_network("summit", "ring"), itemsize=8)
    assert found == pytest.approx(PUBLISHED_RING_US[ranks] * 1e-6, rel=0.15)


@pytest.mark.parametrize("ranks", [6144, 12288, 24576])
def test_so_does_a_ring_of_thousands_where_each_rank_has_8_bytes_to_pass_on(ranks: int) -> None:
    found = seconds(plan("allreduce", "ring", ranks), ranks, named_network("summit", "ring"), itemsize=8)
    assert found == pytest.approx(PUBLISHED_RING_US[ranks] * 1e-6, rel=0.15)
    if ranks == 24576:
        tree = plan("allreduce", "machine_tree", ranks, per_machine=6)
        ratio = found / seconds(tree, 1, named_network("summit", "machine_tree"), itemsize=8)
        assert ratio == pytest.approx(180, rel=0.15)


def test_at_64_mb_the_ring_falls_with_the_number_of_gpus_and_the_tree_stays_flat() -> None:
    elements = 16_000_000
    speed: dict[str, list[float]] = {"ring": [], "machine_tree": []}
    for ranks in (96, 1536, 24576):
        fitting = elements // ranks * ranks
        for algorithm, choices in (("ring", {}), ("machine_tree", {"per_machine": 6, "chunks": 64})):
            schedule = plan("allreduce", algorithm, ranks, **choices)
            taken = seconds(schedule, fitting, named_network("summit", algorithm))
            speed[algorithm].append(2 * (ranks - 1) / ranks * fitting * 4 / taken)
    first, middle, last = speed["ring"]
    assert first > 1.1 * middle
    assert middle > 5 * last
    # Published: 19.9 GB/s at 96 and 12.8 at 24,576 GPUs.
    assert min(speed["machine_tree"]) > 0.5 * max(speed["machine_tree"])
    assert speed["machine_tree"][-1] > 3 * speed["ring"][-1]


NETWORKS = [
    uniform(latency_s=ALPHA, s_per_byte=BETA, reduce_s_per_byte=GAMMA),
    Network(
        inside=Link(latency_s=1e-6, s_per_byte=1e-10), across=Link(latency_s=5e-6, s_per_byte=1e-9), per_machine=2,
        overhead_s=7e-7, reduce_s_per_byte=GAMMA,
    ),
    Network(
        inside=Link(latency_s=1e-6, s_per_byte=1e-10), across=Link(latency_s=5e-6, s_per_byte=1e-9), per_machine=3,
        start_s=1e-5, incast=Incast(buffer_bytes=1000, window_bytes=900, timeout_s=0.2),
    ),
    Network(
        inside=Link(latency_s=1e-6, s_per_byte=1e-10), across=Link(latency_s=5e-6, s_per_byte=1e-9), per_machine=2,
        racks=Racks(machines=2, link=Link(latency_s=2e-6, s_per_byte=4e-9)), cores=1,
    ),
]  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS, ids=["uniform", "machines", "incast", "racks"])
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("allreduce", each) for each in sorted(TURNING)]
    + [("reduce_scatter", "ring"), ("reduce_scatter", "sharded"), ("all_gather", "sharded")]
    + [("all_gather", "direct"), ("all_to_all", "direct")],
)
@pytest.mark.parametrize("ranks", [4, 6, 8, 12, 24])
def test_following_the_ranks_of_one_machine_gives_the_times_of_all(
    kind: str, algorithm: str, ranks: int, network: Network
) -> None:
    schedule = plan(kind, algorithm, ranks)  # type: ignore[arg-type]
    whole = simulate(schedule, ranks * ranks * 250, 4, network, by_symmetry=False)
    few = simulate(schedule, ranks * ranks * 250, 4, network)
    np.testing.assert_allclose(few.by_node, whole.by_node, rtol=1e-9)
    assert few.timeouts == whole.timeouts


@pytest.mark.parametrize("network", NETWORKS, ids=["uniform", "machines", "incast", "racks"])
@pytest.mark.parametrize(
    ("ranks", "per_machine"), [(4, 2), (6, 3), (8, 2), (12, 3), (12, 4), (24, 2), (9, 2), (12, 1)]
)
def test_following_one_machine_gives_the_times_of_all_in_two_levels(
    ranks: int, per_machine: int, network: Network
) -> None:
    schedule = plan("allreduce", "two_level", ranks, per_machine=per_machine)
    whole = simulate(schedule, ranks * 250, 4, network, by_symmetry=False)
    few = simulate(schedule, ranks * 250, 4, network)
    np.testing.assert_allclose(few.by_node, whole.by_node, rtol=1e-9)
    assert few.timeouts == whole.timeouts


def test_a_plan_of_one_s_own_with_the_name_of_two_levels_is_followed_step_by_step() -> None:
    every = np.arange(8)
    own = Schedule(
        kind="all_gather", algorithm="mine", ranks=8, nodes=8, parts=8, steps=5,
        step=lambda number: moves(*((0, 1, 0) if number == 2 else (every, (every + 1) % 8, every)), mode=REPLACE)
        if number != 3 else moves([], [], [], mode=[]),
    )  # fmt: skip
    network = uniform(latency_s=ALPHA, s_per_byte=BETA)
    wanted = simulate(own, 8000, 4, network).by_node.tolist()
    assert len(set(wanted)) > 1
    assert simulate(replace(own, algorithm="two_level"), 8000, 4, network).by_node.tolist() == wanted


@pytest.mark.parametrize("kind", ["allreduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_the_short_way_to_the_first_moves_of_a_sharded_plan_is_the_plan(kind: str, ranks: int) -> None:
    schedule = plan(kind, "sharded", ranks)  # type: ignore[arg-type]
    for number in range(schedule.steps):
        step = schedule.step(number)
        mine = step.src < min(2, ranks)
        short = moves_of_first(schedule, number, min(2, ranks))
        for name in ("src", "dst", "start", "stop", "mode"):
            assert getattr(short, name).tolist() == getattr(step, name)[mine].tolist()


def leaves_to_one(chunks: int) -> Schedule:
    """Two ranks that wait for nothing give chunk after chunk to a third."""
    return Schedule(
        kind="reduce", algorithm="two", ranks=3, nodes=3, parts=chunks, steps=chunks,
        step=lambda number: moves([1, 2], [0, 0], number, mode=FOLD),
    )  # fmt: skip


def test_a_port_never_takes_more_than_its_bandwidth_however_early_the_senders_are() -> None:
    network = uniform(latency_s=ALPHA, s_per_byte=BETA)
    found = seconds(leaves_to_one(50), 50 * 1000, network)
    assert found == pytest.approx(ALPHA + 2 * 50 * 4000 * BETA, rel=1e-9)


def test_ranks_of_a_machine_share_its_link_and_those_of_others_do_not() -> None:
    link = Link(latency_s=0.0, s_per_byte=BETA)
    give = Schedule(
        kind="reduce", algorithm="pairs", ranks=8, nodes=8, parts=1, steps=1,
        step=lambda number: moves([0, 1, 2, 3], [4, 5, 6, 7], 0, mode=FOLD),
    )  # fmt: skip
    for per_machine, times in ((1, 1), (2, 2), (4, 4)):
        network = Network(inside=link, across=link, per_machine=per_machine)
        done = simulate(give, 1000, 4, network).by_node
        # Shared fairly, all are through when the last one is.
        assert done[4:].tolist() == pytest.approx([times * 4000 * BETA] * 4)


def test_an_oversubscribed_core_slows_what_leaves_the_rack_and_nothing_else() -> None:
    link = Link(latency_s=ALPHA, s_per_byte=BETA)
    across = Network(inside=link, across=link)
    fair = replace(across, racks=Racks(machines=4, link=Link(latency_s=0.0, s_per_byte=BETA / 4)))
    oversubscribed = replace(across, racks=Racks(machines=4, link=Link(latency_s=0.0, s_per_byte=BETA)))
    elements = 8 * 1000
    plain = seconds(plan("allreduce", "ring", 8), elements, across)
    # Of a ring's neighbours one pair in four leaves the rack: a link of one port's speed is enough for it.
    assert seconds(plan("allreduce", "ring", 8), elements, oversubscribed) == pytest.approx(plain, rel=1e-9)
    # By halving, half of the elements cross at once, from all four machines of each rack.
    plain = seconds(plan("allreduce", "halving", 8), elements, across)
    assert seconds(plan("allreduce", "halving", 8), elements, fair) == pytest.approx(plain, rel=1e-9)
    # The last halving and the first doubling cross racks, with an eighth each: 3 port times more for each.
    slower = seconds(plan("allreduce", "halving", 8), elements, oversubscribed)
    assert slower == pytest.approx(plain + 2 * 3 * elements / 8 * 4 * BETA, rel=1e-9)


def test_senders_at_once_beyond_buffer_and_way_cost_a_timeout_and_one_after_another_none() -> None:
    link = Link(latency_s=50e-6, s_per_byte=8e-9)  # 1 Gbit/s: 12,500 bytes are on the way
    window = 64_000
    elements = 1 << 20

    def timeouts(algorithm: str, ranks: int, buffer_bytes: int) -> tuple[int, float]:
        incast = Incast(buffer_bytes=buffer_bytes, window_bytes=window, timeout_s=0.2)
        schedule = plan("allreduce", algorithm, ranks)
        found = simulate(schedule, elements, 4, Network(inside=link, across=link, incast=incast))
        without = simulate(schedule, elements, 4, Network(inside=link, across=link))
        return found.timeouts, found.seconds - without.seconds

    assert timeouts("ring", 8, 1000) == (0, 0.0)
    assert timeouts("direct", 8, 1000) == (0, 0.0)
    count, more = timeouts("central", 8, 4 * window)
    assert count == 1
    assert more == pytest.approx(0.2)
    count, more = timeouts("sharded", 8, 4 * window)
    assert count == 2 * 8
    assert more == pytest.approx(0.4)
    # Exactly at the edge: 7 windows, less what is on the way.
    assert timeouts("central", 8, 7 * window - 12_500)[0] == 0
    assert timeouts("central", 8, 7 * window - 12_501)[0] == 1


def test_messages_shorter_than_the_window_fill_the_buffer_only_with_what_they_are() -> None:
    link = Link(latency_s=0.0, s_per_byte=8e-9)
    incast = Incast(buffer_bytes=7 * 400, window_bytes=64_000)
    network = Network(inside=link, across=link, incast=incast)
    assert simulate(plan("allreduce", "central", 8), 100, 4, network).timeouts == 0
    assert simulate(plan("allreduce", "central", 8), 101, 4, network).timeouts == 1


def test_ranks_that_share_cores_take_turns() -> None:
    link = Link(latency_s=0.0, s_per_byte=BETA)
    own = Network(inside=link, across=link, per_machine=8, reduce_s_per_byte=GAMMA)
    for cores, times in ((8, 1), (4, 2), (2, 4), (16, 1)):
        shared = replace(own, cores=cores)
        ring = plan("allreduce", "ring", 8)
        assert seconds(ring, 8000, shared) == pytest.approx(times * seconds(ring, 8000, own), rel=1e-9)
    # Only three are at work in this one.
    broadcast = plan("allreduce", "central", 3)
    assert seconds(broadcast, 8000, replace(own, cores=3)) == pytest.approx(
        seconds(broadcast, 8000, own), rel=1e-9
    )


def test_each_message_costs_its_sender_time_before_the_next() -> None:
    network = replace(uniform(latency_s=ALPHA, s_per_byte=0.0), overhead_s=1e-6)
    assert seconds(plan("allreduce", "sharded", 8), 800, network) == pytest.approx(2 * (ALPHA + 7e-6))
    assert seconds(plan("allreduce", "ring", 8), 800, network) == pytest.approx(14 * (ALPHA + 1e-6))


@pytest.mark.parametrize(
    "algorithm", ["ring", "sharded", "central", "tree", "double_tree", "halving", "doubling"]
)
def test_one_rank_and_no_elements_take_no_time(algorithm: str) -> None:
    network = replace(uniform(latency_s=ALPHA, s_per_byte=BETA), start_s=1e-6)
    assert seconds(plan("allreduce", algorithm, 1), 1000, network) == 0.0
    assert seconds(plan("allreduce", algorithm, 5), 0, replace(network, start_s=0.0)) == 0.0


def test_parts_of_unequal_size_take_between_those_of_the_sizes_around_them() -> None:
    network = NETWORKS[1]
    for algorithm in ("ring", "direct", "halving", "two_level"):
        choices = {"per_machine": 2} if algorithm == "two_level" else {}
        schedule = plan("allreduce", algorithm, 8, **choices)
        below, found, above = (seconds(schedule, elements, network) for elements in (8000, 8003, 8008))
        assert below <= found <= above
        assert below < above


def test_two_levels_send_less_across_than_a_flat_exchange_and_so_are_faster() -> None:
    network = Network(
        inside=Link(latency_s=1e-6, s_per_byte=1e-11),
        across=Link(latency_s=1e-5, s_per_byte=1e-9),
        per_machine=4,
    )
    elements = 16 * 1000
    flat = seconds(plan("allreduce", "sharded", 16), elements, network)
    levels = seconds(plan("allreduce", "two_level", 16, per_machine=4), elements, network)
    # A machine's link carries 2 (M-1)/M of the elements with two levels, and 2 m (P-m)/P of them flat.
    assert flat == pytest.approx(2 * (1e-5 + 4 * 12 / 16 * elements * 4 * 1e-9), rel=0.1)
    assert levels < flat
    assert math.isclose(
        levels,
        6 * 1e-5 + 2 * 3 / 4 * elements * 4 * 1e-9 + 2 * (1e-6 + 3 / 4 * elements * 4e-11),
        rel_tol=0.02,
    )


def test_what_cannot_be_simulated_is_refused_in_one_line() -> None:
    network = uniform(latency_s=0.0, s_per_byte=BETA)
    with pytest.raises(BadCollective, match="got -1 and 4"):
        simulate(plan("allreduce", "ring", 4), -1, 4, network)
    with pytest.raises(BadCollective, match="603,955,200 messages in a step"):
        simulate(plan("allreduce", "sharded", 24576), 2, 4, network)
    with pytest.raises(BadCollective, match="latency_s is at least 0, got -1"):
        Link(latency_s=-1, s_per_byte=0)
    with pytest.raises(BadCollective, match="at least 1 rank, got 0"):
        replace(network, per_machine=0)
    with pytest.raises(BadCollective, match="no network 'moon'; there are: summit"):
        named_network("moon", "ring")
    assert "summit" in networks()


def test_sharded_servers_at_24576_ranks_are_two_rounds_of_all_ports_full() -> None:
    network = uniform(latency_s=ALPHA, s_per_byte=BETA)
    found = seconds(plan("allreduce", "sharded", 24576), 24576 * 600, network)
    wanted = formula.sharded(24576, 24576 * 2400).seconds(latency_s=ALPHA, s_per_byte=BETA)
    assert found == pytest.approx(wanted, rel=1e-9)


def test_a_reduce_scatter_around_a_ring_leaves_all_ranks_done_at_once() -> None:
    found = simulate(reduce_scatter(6), 6000, 4, uniform(latency_s=ALPHA, s_per_byte=BETA), by_symmetry=False)
    assert np.ptp(found.by_node) == pytest.approx(0, abs=1e-15)
