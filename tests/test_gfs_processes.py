"""Many processes on one store, and processes killed at any moment."""

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from gfs_sim import GFSFileSystem, Store

CHUNK_BYTES = 64 << 10
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def fs(tmp_path: Path) -> GFSFileSystem:
    Store.create(tmp_path / "store", chunk_bytes=CHUNK_BYTES, replication=2)
    return GFSFileSystem(root=tmp_path / "store")


def run_all(target: Any, arguments: list[tuple[Any, ...]]) -> None:
    processes = [FORK.Process(target=target, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def replica_files(fs: GFSFileSystem) -> list[Path]:
    return sorted(path for path in (fs.store.root / "servers").rglob("*") if path.is_file())


def hammer(root: str, number: int, steps: int = 60) -> None:
    fs = GFSFileSystem(root=root)
    picks = random.Random(number)
    model: dict[str, bytes] = {}
    for step in range(steps):
        path = f"/{number}/{picks.randrange(5)}"
        action = picks.choice(["write", "write", "append", "move", "remove", "read", "common"])
        if action == "write":
            model[path] = picks.randbytes(picks.randrange(200_000))
            fs.pipe(path, model[path])
        elif action == "append":
            more = picks.randbytes(1000)
            with fs.open(path, "ab") as file:
                file.write(more)
            model[path] = model.get(path, b"") + more
        elif action == "move" and path in model:
            fs.mv(path, f"{path}-moved")
            model[f"{path}-moved"] = model.pop(path)
        elif action == "remove" and path in model:
            fs.rm(path)
            del model[path]
        elif action == "common":
            fs.append_record("/records", f"{number} {step}".encode())
        assert {name: fs.cat(name) for name in fs.find(f"/{number}")} == model


def test_processes_working_side_by_side_each_see_their_own_files_right(fs: GFSFileSystem) -> None:
    fs.pipe("warm", b"the parent's connection is open when the children are forked")
    run_all(hammer, [(fs.root, number) for number in range(6)])
    records = [record.split() for record in fs.read_records("/records")]
    for number in range(6):
        mine = [int(step) for who, step in records if int(who) == number]
        assert mine == sorted(mine)
    health = fs.store.fsck()
    assert (health.healthy, health.missing_replicas, health.corrupt_replicas) == (True, 0, 0)
    fs.store.gc(older_than_s=0)
    with fs.store.master.database.write() as connection:
        connection.execute("UPDATE retired SET due = 0")
    fs.store.gc()
    handles = {place.handle for path in fs.find("/") for place in fs.store.locations(path)}
    assert len(replica_files(fs)) == 4 * len(handles)  # two replicas each, each with its sums


def test_upkeep_and_a_failing_server_beside_working_processes_cost_nothing(tmp_path: Path) -> None:
    Store.create(tmp_path / "store", chunk_bytes=CHUNK_BYTES, servers=4, replication=3)
    fs = GFSFileSystem(root=tmp_path / "store")
    workers = [FORK.Process(target=hammer, args=(fs.root, number, 150)) for number in range(3)]
    for worker in workers:
        worker.start()
    picks = random.Random(9)
    store = fs.store
    failed = False
    added: list[str] = []
    while any(worker.is_alive() for worker in workers):
        action = picks.choice(["repair", "verify", "balance", "gc", "fail", "add", "drain", "rescan"])
        if action == "repair":
            store.repair()
        elif action == "verify":
            store.repair(verify=True)
        elif action == "balance":
            store.balance(threshold=0.02)
        elif action == "gc":
            store.gc()
        elif action == "rescan":
            store.rescan()
        elif action == "add" and len(added) < 2:
            added.append(store.add_server())
        elif action == "drain" and added and store.drain_server(added[-1]).waiting == 0:
            added.pop()
        elif action == "fail":
            # Always the same one, so that no chunk ever has all its replicas on failed servers.
            failed = not failed
            _ = store.kill_server("s1") if failed else store.revive_server("s1")
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    if failed:
        store.revive_server("s1")
    store.repair()
    health = store.fsck()
    assert (health.healthy, health.under_replicated, health.over_replicated) == (True, 0, 0)
    assert health.corrupt_replicas == 0
    assert not [event for event in store.events(limit=10_000) if event.kind == "corrupt"]


def append_lines(root: str, number: int) -> None:
    fs = GFSFileSystem(root=root)
    for step in range(25):
        with fs.open("log", "ab") as file:
            file.write(f"{number} {step} ".encode() + b"x" * 5000 + b"\n")


def test_processes_appending_to_one_file_lose_no_line_and_tear_none(fs: GFSFileSystem) -> None:
    run_all(append_lines, [(fs.root, number) for number in range(4)])
    lines = fs.cat("log").splitlines()
    assert sorted(lines) == sorted(
        f"{number} {step} ".encode() + b"x" * 5000 for number in range(4) for step in range(25)
    )


def write_letter(root: str, letter: bytes, times: int) -> None:
    fs = GFSFileSystem(root=root)
    for _ in range(times):
        with fs.open("f", "wb") as file:
            for _ in range(10):
                file.write(letter * 50_000)


def test_a_reader_of_a_file_that_two_processes_replace_never_sees_a_mix(fs: GFSFileSystem) -> None:
    fs.pipe("f", b"A" * 500_000)
    writers = [FORK.Process(target=write_letter, args=(fs.root, letter, 15)) for letter in (b"A", b"B")]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        data = fs.cat("f")
        assert data in (b"A" * 500_000, b"B" * 500_000)
        seen.add(data[:1])
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert fs.cat("f") in (b"A" * 500_000, b"B" * 500_000)


def test_threads_share_a_store(fs: GFSFileSystem) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(20):
                fs.pipe(f"t/{number}/{step}", bytes([number]) * 100_000)
                assert fs.cat(f"t/{number}/{step}") == bytes([number]) * 100_000
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(fs.find("t")) == 80


def test_processes_creating_one_store_at_once_get_one_store(tmp_path: Path) -> None:
    run_all(append_lines, [(str(tmp_path / "new"), number) for number in range(4)])
    assert len(GFSFileSystem(root=tmp_path / "new").cat("log").splitlines()) == 100


def write_for_ever(root: str, acknowledged: Any, seed: int) -> None:
    fs = GFSFileSystem(root=root)
    picks = random.Random(seed)
    for step in range(100_000):
        size = picks.randrange(300_000)
        with fs.open(f"k/{step % 7}", "wb") as file:
            file.write(step.to_bytes(8) * (size // 8))
        fs.mv(f"k/{step % 7}", f"k/done-{step % 5}")
        with fs.open("k/log", "ab") as file:
            file.write(step.to_bytes(8))
        fs.append_record("k/records", step.to_bytes(8))
        acknowledged.value = step


def kill(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def test_a_writer_killed_at_any_moment_leaves_whole_files_and_loses_nothing_acknowledged(
    fs: GFSFileSystem,
) -> None:
    picks = random.Random(8)
    logged = recorded = 0
    for round_number in range(25):
        acknowledged = FORK.Value("q", -1, lock=False)  # a lock would die with its holder
        process = FORK.Process(target=write_for_ever, args=(fs.root, acknowledged, round_number))
        process.start()
        deadline = time.monotonic() + 20
        while acknowledged.value < 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(picks.random() * 0.03)  # where it is hit is what varies; nothing is waited for
        kill(process)
        step = acknowledged.value
        for path in fs.find("k"):
            data = fs.cat(path)
            if path in ("/k/log", "/k/records"):
                continue
            assert data == data[:8] * (len(data) // 8)
        log = fs.cat("k/log")
        assert len(log) % 8 == 0
        assert logged + step + 1 <= len(log) // 8 <= logged + step + 2
        logged = len(log) // 8
        records = list(fs.read_records("k/records"))
        assert recorded + step + 1 <= len(records) <= recorded + step + 2
        recorded = len(records)
    health = fs.store.fsck()
    assert (health.healthy, health.corrupt_replicas, health.missing_replicas) == (True, 0, 0)
    fs.drop("k")
    with fs.store.master.database.write() as connection:
        connection.execute("UPDATE retired SET due = 0")
    fs.store.gc(older_than_s=0)
    assert replica_files(fs) == []


def hold_open(root: str, ready: Any) -> None:
    fs = GFSFileSystem(root=root)
    file = fs.open("half", "wb")
    file.write(b"x" * 1_000_000)
    ready.set()
    time.sleep(600)


def test_what_a_killed_writer_left_is_collected_and_what_a_living_one_writes_is_not(
    fs: GFSFileSystem,
) -> None:
    processes = []
    for _ in range(2):
        ready = FORK.Event()
        process = FORK.Process(target=hold_open, args=(fs.root, ready))
        process.start()
        assert ready.wait(30)
        processes.append(process)
    both = len(replica_files(fs))
    kill(processes[0])
    fs.store.gc(older_than_s=0)
    assert not fs.exists("half")
    assert len(replica_files(fs)) == both // 2
    kill(processes[1])
    fs.store.gc()
    assert replica_files(fs) == []


def test_a_torn_log_loses_the_torn_change_and_nothing_before_it(fs: GFSFileSystem, tmp_path: Path) -> None:
    fs.pipe("first", b"1")
    wal = fs.store.root / "master.db-wal"
    before = wal.stat().st_size
    fs.pipe("second", b"2")
    after = wal.stat().st_size
    assert after > before
    opened = 0
    for cut in range(1, after - before + 1, (after - before) // 40):
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("master.db", "master.db-wal"):
            shutil.copy(fs.store.root / name, copy / name)
        os.truncate(copy / "master.db-wal", after - cut)
        connection = sqlite3.connect(copy / "master.db")
        paths = {path for (path,) in connection.execute("SELECT path FROM nodes")}
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
        assert "/first" in paths
        opened += "/second" not in paths
        shutil.rmtree(copy)
    assert opened > 0


def test_a_forked_child_that_ends_does_not_touch_the_file_its_parent_writes(fs: GFSFileSystem) -> None:
    with fs.open("f", "wb") as file:
        file.write(b"x" * 200_000)
        child = os.fork()
        if child == 0:
            # An ordinary end of a process: everything is closed and collected.
            code = 0
            try:
                file.write(b"y" * 300_000)
                code = 1
            except OSError:
                pass
            del file
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        file.write(b"z" * 200_000)
    assert fs.cat("f") == b"x" * 200_000 + b"z" * 200_000
