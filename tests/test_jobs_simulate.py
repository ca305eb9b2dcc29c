"""``mr simulate allreduce`` as a person meets it: what it predicts, in tables and numbers, and what it refuses in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mr_command import MrCommand

from dag.collectives import (
    Incast,
    Link,
    Network,
    Racks,
    algorithms,
    count,
    named_network,
    networks,
    plan,
    simulate,
)
from dag.collectives import costs as formula
from dag.collectives.schedule import MOST_RANKS
from dag.collectives.trees import MOST_CHUNKS
from jobs.allreduce import schedule_of
from jobs.cli.allreduce import RANKS
from jobs.cli.simulate import ALGORITHMS, CHUNKS, NETWORKS
from jobs.simulate import network_for


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> MrCommand:
    return MrCommand(tmp_path, monkeypatch, capfd)


def rows_of(mr: MrCommand, *arguments: object) -> list[dict[str, Any]]:
    ended = mr("simulate", "allreduce", *arguments, "--json")
    assert (ended.code, ended.err) == (0, ""), ended
    rows: list[dict[str, Any]] = json.loads(ended.out)["rows"]
    return rows


def test_the_names_that_the_help_lists_without_numpy_are_those_that_there_are(mr: MrCommand) -> None:
    assert list(ALGORITHMS) == algorithms()
    assert list(NETWORKS) == networks()
    assert (RANKS.max, CHUNKS.max) == (MOST_RANKS, MOST_CHUNKS)
    page = " ".join(mr("simulate", "allreduce", "--help").out.split())
    for name in (*ALGORITHMS, *NETWORKS):
        assert name in page


def test_a_ring_of_3072_gpus_on_summit_is_timed(mr: MrCommand) -> None:
    (row,) = rows_of(mr, "--algorithm", "ring", "--ranks", 3072, "--bytes", 3072 * 8, "--network", "summit")
    assert row["rounds"] == 2 * 3071
    assert row["seconds"] == pytest.approx(5.4e-3, rel=0.15)
    assert row["nbytes"] == row["timed_bytes"] == 3072 * 8
    assert row["busbw"] == pytest.approx(row["algbw"] * 2 * 3071 / 3072)


def test_all_algorithms_stand_in_the_table_the_fastest_first(mr: MrCommand) -> None:
    ended = mr(
        "simulate",
        "allreduce",
        "--ranks",
        16,
        "--bytes",
        "1KB,4MB",
        "--latency",
        "20us",
        "--bandwidth",
        "10Gbit/s",
    )
    assert (ended.code, ended.err) == (0, "")
    small, large = ended.out.rstrip().split("\n\n")
    assert small.splitlines()[0] == "all-reduce of 1.00 kB over 16 ranks, own network"
    for table, first in ((small, {"central", "sharded"}), (large, {"sharded", "ring", "halving"})):
        names = [line.split()[0] for line in table.splitlines()[2:]]
        assert sorted(names) == sorted(ALGORITHMS)
        assert names[0] in first
        assert names[-1] in ("direct_whole", "central", "ring", "two_level")
    by_name = {row["algorithm"]: row for row in rows_of(
        mr, "--ranks", 16, "--bytes", "4MB", "--latency", "20us", "--bandwidth", "10Gbit/s")}  # fmt: skip
    wanted = formula.ring(16, 4e6).seconds(latency_s=20e-6, s_per_byte=8e-10)
    assert by_name["ring"]["seconds"] == pytest.approx(wanted, rel=1e-9)


def test_each_option_is_a_part_of_the_network(mr: MrCommand) -> None:
    (row,) = rows_of(
        mr, "--algorithm", "sharded", "--ranks", 16, "--bytes", "800KB", "--latency", "20us", "--bandwidth", "1.25GB/s",
        "--inside-latency", "1us", "--inside-bandwidth", "10GB/s", "--ranks-per-node", 2, "--start", "5us",
        "--overhead", "300ns", "--reduce", "4GB/s", "--cores", 1, "--rack", 4, "--oversubscription", 2,
        "--buffer", "512KiB", "--window", "64KiB", "--timeout", "0.3s",
    )  # fmt: skip
    network = Network(
        inside=Link(latency_s=1e-6, s_per_byte=1e-10), across=Link(latency_s=2e-5, s_per_byte=8e-10), per_machine=2,
        start_s=5e-6, overhead_s=3e-7, reduce_s_per_byte=2.5e-10, cores=1,
        racks=Racks(machines=4, link=Link(latency_s=0.0, s_per_byte=4e-10)),
        incast=Incast(buffer_bytes=512 << 10, window_bytes=64 << 10, timeout_s=0.3),
    )  # fmt: skip
    found = simulate(plan("allreduce", "sharded", 16), 200_000, 4, network)
    assert row["seconds"] == pytest.approx(found.seconds, rel=1e-12)
    assert row["timeouts"] == found.timeouts > 0


def test_options_change_a_named_network_and_leave_the_rest_of_it(mr: MrCommand) -> None:
    changed = network_for("summit", "ring", {"across_latency_s": 1e-5, "per_machine": 4})
    summit = named_network("summit", "ring")
    assert changed.across == Link(latency_s=1e-5, s_per_byte=summit.across.s_per_byte)
    assert changed.inside == summit.inside
    assert (changed.per_machine, changed.start_s) == (4, summit.start_s)
    (row,) = rows_of(
        mr, "--algorithm", "ring", "--ranks", 8, "--bytes", 64, "--network", "summit", "--latency", "10us", "--ranks-per-node", 4
    )  # fmt: skip
    found = simulate(plan("allreduce", "ring", 8), 16, 4, changed)
    assert row["seconds"] == pytest.approx(found.seconds, rel=1e-12)


def test_trees_work_in_chunks_near_the_best_or_in_as_many_as_said(mr: MrCommand) -> None:
    common = ("--ranks", 32, "--bytes", "8MB", "--latency", "10us", "--bandwidth", "1GB/s")
    chosen = rows_of(mr, "--algorithm", "double_tree", *common)[0]
    sweep = [
        rows_of(mr, "--algorithm", "double_tree", *common, "--chunks", n)[0] for n in (1, 8, 32, 64, 256)
    ]
    assert [row["chunks"] for row in sweep] == [1, 8, 32, 64, 256]
    assert chosen["seconds"] <= 1.15 * min(row["seconds"] for row in sweep)


def test_where_messages_are_too_many_to_follow_parts_are_made_equal_and_a_line_says_so(mr: MrCommand) -> None:
    common = ("--algorithm", "sharded", "--ranks", 24576, "--network", "ethernet-10g")
    ended = mr("simulate", "allreduce", *common, "--bytes", "64MB")
    assert (ended.code, ended.err) == (0, "")
    assert "sharded: timed with 16,023,552 elements in place of 16,000,000" in ended.out
    row = rows_of(mr, *common, "--bytes", "64MB")[0]
    assert (row["nbytes"], row["timed_bytes"]) == (64_000_000, 4 * 16_023_552)


def test_one_rank_and_no_bytes_take_no_time(mr: MrCommand) -> None:
    own = ("--latency", "1us", "--bandwidth", "1GB/s")
    assert {row["seconds"] for row in rows_of(mr, "--ranks", 1, "--bytes", "1MB", *own)} == {0.0}
    assert {row["seconds"] for row in rows_of(mr, "--ranks", 5, "--bytes", 0, *own)} == {0.0}
    assert (
        "all-reduce of 1.00 MB over 1 rank, own network\n"
        in mr("simulate", "allreduce", "--ranks", 1, "--bytes", "1MB", *own).out
    )


OWN = ("--latency", "1us", "--bandwidth", "1GB/s")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("--algorithm", "star", *OWN), 1, "mr: there is no algorithm 'star'; there are: all, central, sharded"),
        (("--algorithm", ",", *OWN), 1, "mr: --algorithm names none; there are: all, central, sharded"),
        (("--algorithm", "ring,ring", *OWN), 1, "mr: --algorithm ring,ring names ring twice: name each once, or all"),
        (("--algorithm", "tree,all", *OWN), 1, "mr: --algorithm tree,all names tree twice"),
        (("--network", "moon"), 1, "mr: there is no network 'moon'; there are: summit, ethernet-1g"),
        (("--ranks", "0", *OWN), 2, "Invalid value for '--ranks': 0 is not in the range 1<=x<=4194304"),
        (("--ranks", "9" * 25, "--algorithm", "ring", *OWN), 2, "is not in the range 1<=x<=4194304"),
        (("--chunks", "999999999", "--algorithm", "tree", *OWN), 2, "999999999 is not in the range 1<=x<=1048576"),
        (("--ranks-per-node", "9" * 25, *OWN), 2, "is not in the range 1<=x<=2147483648"),
        (("--rack", "9" * 25, "--oversubscription", "2", *OWN), 2, "is not in the range 1<=x<=2147483648"),
        (("--bytes", "64 potatoes", *OWN), 2, "'64 potatoes' is no size; write a number and a unit"),
        (("--bytes", "9999999999PB", *OWN), 2, "'9999999999PB' is too large a size; the largest is 9223PB"),
        (("--bytes", "1KB,2KB,1000", *OWN), 2, "'1000' is given twice: give each size once"),
        (("--buffer", "9" * 400, *OWN), 2, "is too large a size"),
        (("--start", "1e308s", *OWN), 2, "'1e308s' is too long a time; the longest is 1000000s"),
        (("--overhead", "1e999s", *OWN), 2, "'1e999s' is too long a time"),
        (("--inside-latency", "-1us", *OWN), 2, "'-1us' is no time"),
        (("--timeout", "nans", "--buffer", "1KB", *OWN), 2, "'nans' is no time"),
        (("--reduce", "1e-320B/s", *OWN), 2, "'1e-320B/s' is no rate of a link; the range is 1B/s to 1000000TB/s"),
        (("--inside-bandwidth", "1e400GB/s", *OWN), 2, "'1e400GB/s' is no rate of a link"),
        (("--rack", "4", "--oversubscription", "nan", *OWN), 2, "'nan' is no number"),
        (("--rack", "4", "--oversubscription", "inf", *OWN), 2, "inf is not in the range 1e-06<=x<=1000000.0"),
        (("--bytes", "10", *OWN), 1, "mr: 10 bytes are no whole number of elements of 4 bytes"),
        ((), 2, "say which network: --network summit|ethernet-1g"),
        (("--latency", "1us"), 2, "or your own by --latency and --bandwidth"),
        (("--latency", "2 fortnights", "--bandwidth", "1GB/s"), 2, "'2 fortnights' is no time; write a number and a unit"),
        (("--latency", "2", "--bandwidth", "1GB/s"), 2, "'2' is no time"),
        (("--latency", "2us", "--bandwidth", "0GB/s"), 2, "'0GB/s' is no rate"),
        (("--latency", "2us", "--bandwidth", "12GB"), 2, "'12GB' is no rate; write it as 12.5GB/s"),
        (("--window", "1KB", *OWN), 2, "--window goes with --buffer"),
        (("--rack", "4", *OWN), 2, "--rack goes with --oversubscription"),
        (("--oversubscription", "4", *OWN), 2, "--oversubscription goes with --rack"),
        (("--algorithm", "sharded", "--ranks", "20000", "--ranks-per-node", "7", *OWN), 1, "mr: sharded has 399,980,000"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(
    mr: MrCommand, arguments: tuple[str, ...], code: int, line: str
) -> None:
    ended = mr("simulate", "allreduce", *arguments)
    assert ended.code == code
    assert ended.out == ""
    last = ended.err.splitlines()[-1]
    assert line in last
    assert "Traceback" not in ended.err


def test_numbers_at_the_ends_of_their_ranges_have_finite_times(mr: MrCommand) -> None:
    rows = rows_of(
        mr, "--ranks", 8, "--bytes", "9000PB", "--itemsize", 1, "--latency", "1000000s", "--bandwidth", "1B/s", "--start",
        "1000000s", "--overhead", "1000000s", "--reduce", "1B/s", "--cores", 1, "--ranks-per-node", 2, "--rack", 2,
        "--oversubscription", "1000000", "--buffer", 0, "--window", "9000PB", "--timeout", "1000000s",
    )  # fmt: skip
    # More than the servers of a central one have to take: their bytes, at one a second.
    assert [row["algorithm"] for row in rows if not 9e18 < row["seconds"] < 1e30] == []
    quick = rows_of(
        mr, "--ranks", 8, "--bytes", 8, "--latency", "0s", "--bandwidth", "1000000TB/s", "--rack", 2,
        "--oversubscription", "0.000001",
    )  # fmt: skip
    assert [row["algorithm"] for row in quick if not 0 < row["seconds"] < 1e-15] == []
    common = ("--ranks", 3, "--algorithm", "ring", "--bandwidth", "1GB/s")
    (micro,), (mu,) = (rows_of(mr, *common, "--latency", f"2{sign}s") for sign in ("µ", "μ"))
    assert micro == mu


def test_rounds_are_those_of_mr_allreduce_also_where_parts_are_empty_or_one_machine_is_followed(
    mr: MrCommand,
) -> None:
    for ranks in (1, 2, 7, 8):
        common = ("--ranks", ranks, "--ranks-per-node", 2, "--chunks", 1, *OWN)
        for row in rows_of(mr, "--bytes", "0,8,400,640", *common):
            schedule = schedule_of(row["algorithm"], ranks, 0)
            assert row["rounds"] == count(schedule, row["nbytes"] // 4).rounds, row


def test_what_all_leaves_out_is_said(mr: MrCommand) -> None:
    ended = mr("simulate", "allreduce", "--ranks", 45_001, "--bytes", 8, "--ranks-per-node", 3, *OWN)
    assert ended.code == 0
    for name in ("ring", "direct", "direct_whole", "two_level"):
        assert f"left out: {name} has up to 90,002 steps of 45,001 ranks" in ended.out
    assert "left out: sharded has 2,025,045,000 messages in a step" in ended.out
    names = [line.split()[0] for line in ended.out.split("\n\n")[0].splitlines()[2:]]
    assert set(names) == set(ALGORITHMS) - {"ring", "direct", "direct_whole", "two_level", "sharded"}
    trees = mr("simulate", "allreduce", "--ranks", 8, "--bytes", "64MB", "--chunks", 1 << 20, *OWN).out
    for name in ("tree", "double_tree", "machine_tree"):
        assert (
            f"left out: {name} hands 1,048,576 chunks through 8 ranks: minutes; ask for it by name" in trees
        )
