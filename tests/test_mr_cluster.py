"""MapReduce on a Dask cluster that somebody else started: the same bytes as here, whoever dies."""

from __future__ import annotations

import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from dask_cluster import StartedCluster, started_cluster
from mr_command import MrCommand

import mapreduce
from jobs.catalog import find_job
from jobs.report.stored import from_json
from mapreduce import Options, Stage, cluster_runs, job, total
from mapreduce.cluster import ClusterPool
from mapreduce.cluster_runs import RemoteRun, serve_runs
from mapreduce.errors import BadJob, FunctionFailed, WorkerFailed
from mapreduce.listening import STRANGERS, Listener, address_towards, call
from mapreduce.pool import AttemptRow
from mapreduce.scratch import Scratch

TEXT = "the ant and the bee\nthe cow\n\nant\n" * 2000
SPLIT_BYTES = 8_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedCluster]:
    folder = str(tmp_path_factory.mktemp("dask"))
    elsewhere = str(tmp_path_factory.mktemp("home-of-the-cluster"))
    with started_cluster(folder, MR_HOME=elsewhere) as started:
        with pytest.raises(WorkerFailed, match=f"{started.address} has no worker; start one with"):
            open_pool(started.address, folder)
        started.add_workers(2, MR_HOME=elsewhere)
        yield started


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedCluster]:
    """A cluster of one Dask worker with two threads; its scheduler can be reached from other machines."""
    with started_cluster(str(tmp_path_factory.mktemp("wide")), host="") as started:
        started.add_workers(1, threads=2)
        yield started


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "in.txt"
    path.write_text(TEXT)
    return str(path)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: nothing on the workers' disks, no task of ours in the scheduler, nobody who listens for workers."""
    yield
    while opened:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(opened.pop()._listener.address)
    if "cluster" in request.fixturenames:
        from distributed import Client

        started: StartedCluster = request.getfixturevalue("cluster")
        assert left_on(started) == []
        with Client(started.address, set_as_default=False) as client:
            deadline = time.monotonic() + 60
            while tasks_of_ours(client):  # that they are released is on its way to the scheduler
                assert time.monotonic() < deadline


def tasks_of_ours(client: Any) -> list[str]:
    keys = client.run_on_scheduler(lambda dask_scheduler: [str(key) for key in dask_scheduler.tasks])
    return [key for key in keys if "mapreduce" in key]


def left_on(started: StartedCluster) -> list[Path]:
    return [path for path in Path(started.folder).rglob("*") if path.name.startswith("mrdag-")]


opened: list[ClusterPool] = []


def open_pool(address: str, scratch: str) -> ClusterPool:
    pool = ClusterPool(address, memory_bytes=256 << 20, scratch=scratch)
    opened.append(pool)
    return pool


def run_both(
    name: Any, text: Any, tmp_path: Path, scheduler: str, *, fifo: Path | None = None, **options: Any
) -> list[AttemptRow]:
    """Run a job here and on two workers of the cluster, where ``fifo`` is made for those who meet at it.

    The parts are the same; return the rows of the cluster.
    """
    found = find_job(name) if isinstance(name, str) else name
    settings = Options(workers=2, split_bytes=SPLIT_BYTES, **options)
    results = [mapreduce.run(found, text, output=str(tmp_path / "here"), options=settings)]
    with Scratch() as scratch, open_pool(scheduler, scratch.folder) as pool:
        come(pool, 2)
        if fifo is not None:
            os.mkfifo(fifo)
        results.append(
            mapreduce.run(found, text, output=str(tmp_path / "there"), options=settings, pool=pool)
        )
    here, there = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("here", "there")
    )
    assert here == there
    assert sum(map(len, here.values())) > 0
    assert results[0].counters == results[1].counters
    return [row for stage in results[1].stages for row in stage.attempts]


def words(offset: int, line: str, *, counters: Counter[str]) -> Iterator[tuple[str, int]]:
    counters["lines"] += 1
    for word in line.split():
        yield word, 1


def swap(word: str, count: int) -> Iterator[tuple[int, str]]:
    yield -count, word


def first(count: int, words: Any) -> Iterator[tuple[int, Any]]:
    yield count, sorted(words)


@job
def ranked(text: Any) -> Any:
    """A chain whose intermediate goes through the store."""
    counts = Stage(map=words, combine=total, reduce=total, partitions=3)(text)
    return Stage(map=swap, reduce=first, partitions=2)(counts)


def together(fifo: Path) -> Any:
    """The same job, of which two workers do the first two maps at the same time where there is ``fifo``: each waits there."""

    def meet(*, task: Any) -> None:
        if task.kind == "map" and task.index < 2 and fifo.exists():
            with fifo.open("rb" if task.index else "wb"):
                fifo.unlink(missing_ok=True)

    @job
    def ranked(text: Any) -> Any:
        counts = Stage(map=words, setup=meet, combine=total, reduce=total, partitions=3)(text)
        return Stage(map=swap, reduce=first, partitions=2)(counts)

    return ranked


@pytest.mark.parametrize("name", ["wordcount", "sort"])
def test_a_library_job_gives_the_same_bytes_as_on_this_machine(
    name: str, cluster: StartedCluster, text: str, tmp_path: Path
) -> None:
    rows = run_both(name, text, tmp_path, cluster.address, partitions=3)
    assert {row.outcome for row in rows} == {"done"}


def test_a_chain_goes_through_the_store_of_the_driver(
    cluster: StartedCluster, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the workers have another folder, and another MR_HOME
    rows = run_both(ranked, "in.txt", tmp_path, cluster.address)
    assert sum(row.store_written_bytes for row in rows) > 0


@pytest.mark.parametrize("whom", ["worker", "dask worker"])
def test_a_worker_killed_in_the_middle_costs_no_record_and_adds_none(
    whom: str, cluster: StartedCluster, text: str, tmp_path: Path
) -> None:
    flag = tmp_path / "killed"

    def deadly(offset: int, line: str, *, counters: Counter[str], task: Any) -> Iterator[tuple[str, int]]:
        if task.index == 7 and not flag.exists():
            flag.touch()
            os.kill(os.getppid() if whom == "dask worker" else os.getpid(), signal.SIGKILL)
            signal.pause()
        return words(offset, line, counters=counters)

    def count(text: Any) -> Any:
        return Stage(map=deadly, combine=total, reduce=total, partitions=3)(text)

    settings = Options(split_bytes=SPLIT_BYTES, scheduler=cluster.address)
    result = mapreduce.run(count, text, options=settings)
    assert dict(result.records or []) == Counter(TEXT.split())
    assert result.counters == {"lines": TEXT.count("\n")}
    lost = [row for stage in result.stages for row in stage.attempts if row.outcome == "lost"]
    assert [(row.kind, row.task, row.attempt) for row in lost] == [("map", 7, 0)]
    end = {
        "worker": "was killed by signal 9 (SIGKILL) on tcp",
        "dask worker": "was lost with its Dask worker tcp",
    }
    assert end[whom] in lost[0].message


def test_a_function_that_raises_gives_the_same_error_as_on_this_machine(
    cluster: StartedCluster, text: str
) -> None:
    def broken(offset: int, line: str) -> Iterator[tuple[str, int]]:
        raise KeyError("no such field")

    def breaking(text: Any) -> Any:
        return Stage(map=broken)(text)

    said = []
    for where in (None, cluster.address):
        with pytest.raises(FunctionFailed, match="no such field") as caught:
            mapreduce.run(breaking, text, options=Options(workers=1, scheduler=where))
        said.append((str(caught.value), caught.value.traceback_text))
    assert said[0] == said[1]
    assert 'raise KeyError("no such field")' in said[1][1]


def test_what_functions_print_is_in_the_log_of_the_run(
    cluster: StartedCluster, text: str, home: Path
) -> None:
    def loud(offset: int, line: str) -> Iterator[tuple[str, int]]:
        print("seen", line)
        return iter([(line, 1)])

    def printing(text: Any) -> Any:
        return Stage(map=loud, combine=total, reduce=total)(text)

    result = mapreduce.run(printing, text, options=Options(scheduler=cluster.address))
    logs = [path.read_text() for path in (home / "runs" / result.run).glob("worker-*.log")]
    assert Counter("".join(logs).splitlines()) == Counter(f"seen {line}" for line in TEXT.splitlines())


def test_a_dask_worker_of_two_threads_holds_two_workers_and_no_more(
    wide: StartedCluster, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    rows = run_both(together(fifo), text, tmp_path, wide.address, fifo=fifo)
    assert len({row.worker for row in rows}) == 2
    with Scratch() as scratch, open_pool(wide.address, scratch.folder) as pool:
        come(pool, 2)
        assert [len(pids) for pids in pool.pids().values()] == [2]
        assert pool.start(9) == []  # there are no more slots
        processes = [psutil.Process(pid) for pid in pool.processes.values()]
        assert len({process.ppid() for process in processes}) == 1
        # A second driver waits for a slot, not for ever.
        monkeypatch.setattr("mapreduce.cluster.SLOT_S", 1.0)
        with (
            Scratch() as own,
            open_pool(wide.address, own.folder) as late,
            pytest.raises(WorkerFailed, match=r"has no slot free; waited 1 s for one"),
        ):
            come(late, 1, every_s=0.1)
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    assert left_on(wide) == []


def come(pool: ClusterPool, count: int, every_s: float = 60) -> None:
    """Wait for workers."""
    assert pool.arrivals is not None
    while len(pool.living()) < count:
        pool.start(count)
        if len(pool.living()) < count:
            assert select.select([pool.arrivals], [], [], every_s)[0] or every_s < 1


def test_a_dask_worker_that_is_broken_or_silent_is_left_out_and_the_others_do_the_job(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def count(text: Any) -> Any:
        return Stage(map=words, combine=total, reduce=total)(text)

    def lose_disk(dask_worker: Any) -> str:
        shutil.rmtree(dask_worker.local_directory)
        Path(dask_worker.local_directory).touch()
        return str(dask_worker.address)

    from distributed import Client

    monkeypatch.setattr("mapreduce.cluster_machines._ANSWER_S", 2.0)
    monkeypatch.setattr("mapreduce.cluster_machines._AGAIN_S", 0.1)
    disk = tmp_path / "dask"
    disk.mkdir()
    scratches = iter(str(tmp_path / f"scratch{number}") for number in range(2))
    with started_cluster(str(disk)) as started, Client(started.address, set_as_default=False) as client:
        started.add_workers(1)
        (broken,) = client.run(lose_disk).values()
        started.add_workers(1)
        os.mkdir(scratch := next(scratches))
        with open_pool(started.address, scratch) as pool:
            pool.start_all()  # not for ever: one of two comes
            assert len(pool.living()) == 1
            assert f"Dask worker {broken} starts no worker process" in caplog.text
            result = mapreduce.run(count, text, options=Options(split_bytes=SPLIT_BYTES), pool=pool)
            assert dict(result.records or []) == Counter(TEXT.split())
            # One that comes later and does not answer at first.
            command = started.add_workers(1)
            children = psutil.Process(command.pid).children(recursive=True)
            for child in children:
                child.suspend()
            began = time.monotonic()
            while "did not answer in 2 s" not in caplog.text:
                before = time.monotonic()
                pool.start(2)
                assert time.monotonic() - before < 2.0  # the driver's loop goes on
                assert time.monotonic() - began < 60
                select.select([pool.arrivals or 0], [], [], 0.2)
            for child in children:
                child.resume()
            come(pool, 2, every_s=0.5)
            assert len(pool.pids()) == 2
        for address in client.scheduler_info()["workers"]:
            if address != broken:
                client.run(lose_disk, workers=[address])
        os.mkdir(scratch := next(scratches))
        with (
            open_pool(started.address, scratch) as pool,
            pytest.raises(WorkerFailed, match=r"no worker process could be started: on tcp://.*(not|Not)"),
        ):
            come(pool, 3, every_s=0.5)


def test_the_pool_listens_where_the_scheduler_is_reached_from_other_machines(
    wide: StartedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, port = wide.address.rpartition(":")
    host = wide.address.removeprefix("tcp://").removesuffix(f":{port}")
    if host.startswith("127."):
        pytest.skip("this machine has no address of its own but loopback")
    monkeypatch.setattr("mapreduce.cluster.SLOT_S", 0.0)
    with open_pool(f"tcp://127.0.0.1:{port}", str(tmp_path)) as pool:
        assert pool._listener.address[0] == host
        pool.start(1)  # the time in which a slot must come free has only begun
        from distributed import Client

        with Client(wide.address, set_as_default=False) as client:
            deadline = time.monotonic() + 60
            while not (keys := tasks_of_ours(client)):  # it is on its way to the scheduler
                assert time.monotonic() < deadline
        (key,) = keys
        assert pool._token[:4].hex() not in key  # everybody sees the names of tasks


def test_a_cluster_that_encrypts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed, match=r"tls://127.0.0.1:1 is a cluster that encrypts"):
        open_pool("tls://127.0.0.1:1", str(tmp_path))


def test_workers_end_when_their_driver_is_killed(cluster: StartedCluster, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        "import sys, select, signal\n"
        "from mapreduce.cluster import ClusterPool\n"
        f"pool = ClusterPool({cluster.address!r}, memory_bytes=1 << 28, scratch={str(tmp_path)!r})\n"
        "while len(pool.living()) < 2:\n"
        "    pool.start(2)\n"
        "    select.select([pool.arrivals], [], [], 1)\n"
        "print(*pool.processes.values(), flush=True)\n"
        "signal.pause()\n"
    )
    driver = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    processes = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
    assert len(processes) == 2
    driver.kill()
    driver.wait()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
    wait_for_clean_disks(cluster)


def wait_for_clean_disks(started: StartedCluster) -> None:
    from distributed import Client

    from mapreduce.cluster_loop import wait_until_gone

    with Client(started.address, set_as_default=False) as client:
        assert all(client.run(wait_until_gone, 30.0).values())


def test_ctrl_c_leaves_nothing_on_the_cluster(
    cluster: StartedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    mr = MrCommand(tmp_path, monkeypatch, capfd)
    started = tmp_path / "started"
    os.mkfifo(started)
    Path("slow.py").write_text(
        "import time\n"
        "from mapreduce import Stage, job\n"
        f"def slow(offset, line):\n    open({str(started)!r}, 'w').close(); time.sleep(600)\n"
        "@job\n"
        "def slowly(text):\n    return Stage(map=slow)(text)\n"
    )
    Path("in.txt").write_text("a\n")
    process = mr.start("run", "slow.py", "in.txt", "-o", "out", "--scheduler", cluster.address, "--quiet")
    started.open().close()  # until a map has opened it
    process.send_signal(signal.SIGINT)
    ended = mr.finish(process)
    assert ended.code == 130, ended
    assert not Path("out").exists()
    mr.check_nothing_left()


def test_the_command_line_says_what_it_cannot_do(
    cluster: StartedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    mr = MrCommand(tmp_path, monkeypatch, capfd)
    Path("in.txt").write_text(TEXT)
    ended = mr("run", "wordcount", "in.txt", "-o", "out", "--scheduler", "threads")
    assert ended.code == 2
    assert "threads goes with --engine dag" in ended.err
    ended = mr("run", "wordcount", "in.txt", "-o", "out", "--scheduler", cluster.address, "--workers", 0)
    assert ended.code == 2
    monkeypatch.setattr("dag.on_cluster.CONNECT_S", 1)
    monkeypatch.setattr("mapreduce.cluster_machines.CONNECT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    ended = mr("run", "wordcount", "in.txt", "-o", "out", "--scheduler", nobody)
    assert ended.code == 1
    assert ended.complaint.startswith(f"no Dask scheduler answers at {nobody}")
    ended = mr("run", "wordcount", "in.txt", "-o", "out", "--scheduler", cluster.address, "--quiet")
    assert (ended.code, ended.err) == (0, "")
    mr.check_nothing_left()


def spent_s(attempt: Any, part: str) -> float:
    """Return what an attempt spent on a part; time that a row does not speak of is computing, unless it says how much was."""
    if part == "compute" and part not in attempt.seconds:
        return attempt.end_s - attempt.start_s - sum(attempt.seconds.values())
    return attempt.seconds.get(part, 0.0)


def test_both_engines_are_compared_on_one_cluster(
    wide: StartedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    mr = MrCommand(tmp_path, monkeypatch, capfd)
    Path("in.txt").write_text(TEXT)
    where = ("--scheduler", wide.address)
    refused = mr("compare", "wordcount", "in.txt", *where, "--workers", 2)
    assert refused.code == 2
    assert "all slots that the cluster has" in refused.err
    ended = mr(
        "compare", "wordcount", "in.txt", *where, "--runs", 1, "--split-size", "8KB", "--partitions", 2,
        "--replication", 1, "--json", "a.json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert left_on(wide) == []
    mr.check_nothing_left()
    found = from_json(Path("a.json").read_text())
    assert "outputs are identical" in ended.out + ended.err
    assert [(engine.engine, engine.workers) for engine in found.engines] == [
        ("mapreduce", 2), ("dag", 2), ("single", 1),
    ]  # fmt: skip
    for engine in found.engines:
        # What overlaps makes the sum too large; what its rows say stands in each part.
        assert sum(engine.breakdown.values()) == pytest.approx(engine.run.wall_s * engine.workers, rel=0.02)
        for part in ("compute", "serialise", "shuffle", "store_read", "store_write"):
            in_rows = sum(spent_s(attempt, part) for attempt in engine.attempts)
            assert engine.breakdown[part] == pytest.approx(in_rows, rel=0.02, abs=0.005), part
        by_slot: dict[int, list[Any]] = {}
        for attempt in sorted(engine.attempts, key=lambda each: each.start_s):
            by_slot.setdefault(attempt.worker, []).append(attempt)
        assert len(by_slot) <= engine.workers
        for attempts in by_slot.values():  # no slot does two things at a time
            for before, after in pairwise(attempts):
                assert before.end_s <= after.start_s + 0.001
        # What ran on the cluster is in it: more than one process, and each holds pyarrow.
        assert engine.run.peak_memory_bytes >= engine.run.peak_worker_bytes > 50_000_000
    mapreduce_engine, graph_engine, single = found.engines
    assert mapreduce_engine.run.peak_memory_bytes > 2 * 50_000_000
    assert single.run.peak_memory_bytes == single.run.peak_worker_bytes
    kinds = Counter(attempt.kind for attempt in mapreduce_engine.attempts)
    assert kinds == {"map": math.ceil(len(TEXT) / 8000), "reduce": 2}
    assert len(graph_engine.attempts) == found.parallelism.tasks
    assert f"--scheduler {wide.address}" in mapreduce_engine.command
    assert f"--engine dag --scheduler {wide.address}" in graph_engine.command
    assert mapreduce_engine.run.store_written_bytes == graph_engine.run.store_written_bytes == 0


# --- machines that do not share a disk: a mount namespace has files of its own ---


def other_machine(*own: Path) -> list[str]:
    """Return the words before a command that give it empty folders of its own in the place of these."""
    mounts = "".join(f"mount -t tmpfs none {folder} && " for folder in own)
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", mounts + 'exec "$@"', "sh"]


def needs_namespaces() -> None:
    if not shutil.which("unshare"):
        pytest.skip("no unshare here, which gives a process files of its own")
    done = subprocess.run([*other_machine(), "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")


def test_runs_on_another_disk_are_fetched_and_files_that_only_the_driver_has_are_refused(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_namespaces()
    disk, temporary = tmp_path / "dask", tmp_path / "tmp"
    disk.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    with started_cluster(str(disk)) as started:
        for _ in range(2):
            started.add_workers(1, before=other_machine(disk, temporary))
        # Paths of a filesystem that all see are fine, also for the store; the runs lie on disks that only one sees.
        fifo = tmp_path / "fifo"
        store = str(tmp_path / "store")
        rows = run_both(together(fifo), text, tmp_path, started.address, fifo=fifo, store=store)
        reduces = [row for row in rows if row.kind == "reduce"]
        assert {row.outcome for row in rows} == {"done"}
        assert 0 < sum(row.moved_bytes for row in reduces) < sum(row.shuffle_bytes for row in reduces)
        options = Options(scheduler=started.address)
        with pytest.raises(
            BadJob, match=r"gfs://runs/.* is a chunk store on this machine, and Dask worker tcp"
        ):
            mapreduce.run(ranked, text, options=options)
        mine = temporary / "mine.txt"
        mine.write_text("a\n")
        options = Options(scheduler=started.address, store=str(tmp_path / "store"))
        with pytest.raises(BadJob, match=r"mine.txt is a file of this machine, and Dask worker tcp"):
            mapreduce.run(ranked, str(mine), options=options)
        with pytest.raises(BadJob, match=r"out is a file of this machine, and Dask worker tcp"):
            mapreduce.run(ranked, text, output=str(temporary / "out"), options=options)
        assert [path for folder in (temporary, tmp_path) for path in folder.glob(".mrdag-*")] == []
        with Scratch() as scratch, open_pool(started.address, scratch.folder) as pool:
            with pytest.raises(BadJob, match=r"mine.txt is a file of this machine"):
                pool.check_sees([str(mine)])
            pool.check_sees([text])  # files are those of a run: the next one has others
            pool.start_all()
            assert len(pool.living()) == 2
        other = tmp_path / "other" / "mrdag-9.9.dist-info"
        other.mkdir(parents=True)
        (other / "METADATA").write_text("Metadata-Version: 2.1\nName: mrdag\nVersion: 9.9\n")
        started.add_workers(1, PYTHONPATH=str(other.parent))
        with Scratch() as scratch, pytest.raises(WorkerFailed, match=r"tcp://\S+ has mrdag 9.9, this is 0"):
            open_pool(started.address, scratch.folder)


@pytest.fixture
def served(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, Any]:
    if getattr(request, "param", "") == "::1":
        needs_ipv6()
    folder = tmp_path / "runs"
    folder.mkdir()
    data = np.random.default_rng(1).bytes(3_000_000)
    (folder / "run").write_bytes(data)
    (tmp_path / "secret").write_bytes(b"not of this worker")
    monkeypatch.setattr(cluster_runs, "_token", b"")
    monkeypatch.setattr(cluster_runs, "served_at", "")
    serve_runs(getattr(request, "param", "127.0.0.1"), b"t" * 32, str(folder))
    return {"at": cluster_runs.served_at, "path": str(folder / "run"), "data": data}


def needs_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_only_both_who_have_the_token_speak_to_each_other(host: str) -> None:
    if host == "::1":
        needs_ipv6()
    assert address_towards(host) == host
    listener = Listener(host, b"t" * 32, lambda connection, _: connection.sendall(b"welcome"))
    with call(listener.address, b"t" * 32, 20) as connection:
        assert connection.recv(7) == b"welcome"
    with pytest.raises(ConnectionError, match="does not have the token"):
        call(listener.address, b"u" * 32, 20)
    with socket.create_connection(listener.address) as stranger:
        listener.close()
        with suppress(ConnectionResetError):  # it may not have been accepted yet
            assert stranger.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.address)


def test_strangers_who_say_nothing_keep_nobody_out_also_where_files_run_out() -> None:
    script = (
        "import os, resource, sys, threading\n"
        "from mapreduce.listening import Listener\n"
        "files = int(sys.argv[1]) + len(os.listdir('/proc/self/fd'))\n"
        "serve = lambda connection, _: connection.sendall(b'welcome')\n"
        "listener = Listener('127.0.0.1', b't' * 32, serve)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))\n"
        "print(listener.address[1], flush=True)\n"
        "sys.stdin.read(1)\n"
        "print(threading.active_count(), flush=True)\n"
    )
    for files in (12, 1000):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            address = "127.0.0.1", int(process.stdout.readline())
            strangers = [socket.create_connection(address) for _ in range(STRANGERS + 6)]
            with call(address, b"t" * 32, 20) as connection:
                assert connection.recv(7) == b"welcome"
            print("x", file=process.stdin, flush=True)
            assert int(process.stdout.readline()) <= STRANGERS + 3
            for stranger in strangers:
                stranger.close()


@pytest.mark.parametrize("served", ["::1"], indirect=True)
def test_runs_are_fetched_over_ipv6(served: Mapping[str, Any]) -> None:
    run = RemoteRun(served["at"], served["path"])
    buffer = bytearray(1000)
    assert run.read_into(memoryview(buffer), 5) == 1000
    assert buffer == served["data"][5:1005]
    run.close()


def test_ranges_of_a_remote_run_are_those_of_the_file(served: Mapping[str, Any]) -> None:
    data = served["data"]
    run = RemoteRun(served["at"], served["path"])
    for offset, size in [(0, 10), (2_999_990, 100), (1, 2_500_000), (3_000_000, 5), (4_000_000, 5)]:
        buffer = bytearray(size)
        count = run.read_into(memoryview(buffer), offset)
        assert buffer[:count] == data[offset : offset + size]
        assert count == len(data[offset : offset + size])
    run.close()


def test_only_runs_are_given_out_and_only_with_the_token(
    served: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (served["path"] + "2", served["path"] + "/../../secret", "/etc/passwd"):
        with pytest.raises(FileNotFoundError):
            RemoteRun(served["at"], path)
    monkeypatch.setattr(cluster_runs, "_token", b"u" * 32)
    with pytest.raises(ConnectionError):
        RemoteRun(served["at"], served["path"])


def test_a_stranger_is_not_heard(cluster: StartedCluster, tmp_path: Path) -> None:
    with open_pool(cluster.address, str(tmp_path)) as pool:
        come(pool, 2)
        with socket.create_connection(pool._listener.address) as stranger:
            stranger.sendall(b"x" * 64)
            stranger.settimeout(20)
            assert len(stranger.recv(1 << 10)) == 64  # its own number and proof
            assert stranger.recv(1) == b""  # closed, and nothing of it was read as a message
        assert len(pool.living()) == 2
