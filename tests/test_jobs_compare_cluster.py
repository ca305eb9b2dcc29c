"""What ``mr compare`` sees of a job's processes on a Dask cluster, and that it leaves nothing there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from dask_cluster import StartedCluster, started_cluster
from distributed import Client

from jobs.compare_cluster import ClusterUse, watching_cluster
from jobs.report.model import Sample
from mapreduce.cluster import ClusterPool
from mapreduce.scratch import Scratch

# A busy machine may miss a renewal, but not as many in a row as end a watch.
RENEW_S = 0.5
LARGE_BYTES = 150_000_000
WORKS = f"""
import sys, time
held = b"x" * {LARGE_BYTES}
while time.process_time() < 1.0:
    pass
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedCluster]:
    with started_cluster(str(tmp_path_factory.mktemp("dask"))) as started:
        started.add_workers(1)
        yield started


@pytest.fixture
def client(cluster: StartedCluster) -> Iterator[Client]:
    with Client(cluster.address, set_as_default=False) as client:
        yield client


def watches(client: Client) -> set[tuple[int, int]]:
    """Return how many watches and threads of watches there are on the Dask workers."""

    def count() -> tuple[int, int]:
        import threading

        from jobs.compare_cluster import _watches

        return len(_watches), sum(thread.name == "watch" for thread in threading.enumerate())

    return set(client.run(count).values())


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_watch_whose_driver_was_killed_ends_by_itself(cluster: StartedCluster, client: Client) -> None:
    code = f"""if True:
        import sys
        from distributed import Client
        from jobs.compare_cluster import watching_cluster
        with watching_cluster(Client({cluster.address!r}), None, renew_s={RENEW_S}):
            print("watching", flush=True)
            sys.stdin.read()
    """
    driver = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"watching\n"
        assert watches(client) == {(1, 1)}
    finally:
        driver.kill()
        driver.communicate()
    wait_for(lambda: {threads for _, threads in watches(client)} == {0}, "the watch goes on")
    with watching_cluster(client, None):  # what has ended goes when the next begins
        assert watches(client) == {(1, 1)}
    assert watches(client) == {(0, 0)}


def test_what_a_task_starts_is_seen_and_a_worker_that_comes_later_too(
    cluster: StartedCluster, client: Client
) -> None:
    def task(code: str) -> int:
        import subprocess
        import sys

        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        child.communicate()
        return child.pid

    (first,) = client.scheduler_info()["workers"]
    with watching_cluster(client, None, renew_s=RENEW_S) as found:
        client.submit(task, WORKS, workers=[first], pure=False).result()
        command = cluster.add_workers(1)
        wait_for(lambda: len(found.series) == 2, "the new worker is not watched")
    cluster.stop(command)
    assert 1.0 <= found.cpu_s < 30
    assert found.largest_bytes > LARGE_BYTES
    held = [size for _, size in found.series[first]]
    assert max(held) > LARGE_BYTES + min(held) // 2  # with the worker itself
    times = [at for at, _ in found.series[first]]
    assert times == sorted(times)


def test_each_engine_is_seen_without_the_other(cluster: StartedCluster, client: Client) -> None:
    """The processes that are held for MapReduce are children of a Dask worker, and wait while a graph runs."""

    def watched() -> list[int]:
        from jobs.compare_cluster import _watches

        return [process.pid for watch in _watches.values() for process in watch.processes]

    with (
        Scratch() as scratch,
        ClusterPool(cluster.address, memory_bytes=256 << 20, scratch=scratch.folder, shared=True) as pool,
    ):
        pool.start_all()
        (pids,) = pool.pids().values()
        here = client.run(os.getpid)
        for chosen, expected in ((pool.pids, pids), (None, list(here.values()))):
            with watching_cluster(client, chosen, renew_s=RENEW_S) as found:
                listed = client.run(watched)
            assert list(listed.values()) == [expected]
            assert found.largest_bytes > 0
    assert watches(client) == {(0, 0)}


def test_a_worker_counts_from_its_first_sample_to_its_last() -> None:
    use = ClusterUse()
    seen: dict[str, Any] = {"cpu_s": 1.0, "largest_bytes": 5}
    use.add({"a": {**seen, "samples": [(100.0, 5)]}, "b": {**seen, "samples": [(200.0, 3)]}})
    use.add({"a": {**seen, "samples": [(110.0, 4)], "largest_bytes": 7}})
    assert (use.cpu_s, use.largest_bytes) == (3.0, 7)
    samples = [
        Sample(at_s=at, memory_bytes=1000) for at in (0.0, 6.0, 97.0, 109.0, 112.0, 150.0, 198.0, 300.0)
    ]
    found = [each.memory_bytes - 1000 for each in use.add_to(samples, 0.0)]
    assert found == [0, 0, 5, 5, 4, 0, 3, 0]
