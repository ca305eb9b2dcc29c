"""Damaged replicas, failed servers, repair: what is read is always right, and what is right is never removed."""

import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest

from gfs_sim import GFSFileSystem, Store
from gfs_sim.errors import ChunkLost, DamagedStore, NoServer, NoSuchServer
from gfs_sim.server import replica_path

CHUNK_BYTES = 256 << 10


def make_store(folder: Path, **options: object) -> tuple[Store, GFSFileSystem]:
    Store.create(folder / "store", **{"chunk_bytes": CHUNK_BYTES, **options})  # type: ignore[arg-type]
    fs = GFSFileSystem(root=folder / "store")
    return fs.store, fs


def damage(store: Store, server: str, handle: int, offset: int = 0) -> None:
    path = replica_path(store.root / "servers", server, handle)
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


def random_bytes(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def test_one_damaged_replica_never_reaches_a_reader_and_is_rewritten(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path)
    data = random_bytes(700_000)
    fs.pipe("f", data)
    place = store.locations("f")[1]
    damage(store, place.servers[0], place.handle, 100_000)
    picks = random.Random(2)
    for _ in range(100):
        low = picks.randrange(len(data))
        high = picks.randrange(low, len(data) + 1)
        assert fs.cat_file("f", low, high) == data[low:high]
        assert hashlib.sha256(fs.cat("f")).digest() == hashlib.sha256(data).digest()
    # Three servers hold three replicas, so the clone takes the bad one's place.
    store.fsck()
    assert [event.server for event in store.events() if event.kind == "corrupt"] == [place.servers[0]]
    report = store.repair()
    assert (report.cloned, report.lost_chunks) == (1, 0)
    health = store.fsck()
    assert (health.corrupt_replicas, health.missing_replicas, health.problems) == (0, 0, ())
    for server in place.servers:
        if server != place.servers[0]:
            store.kill_server(server)
    assert fs.cat("f") == data


@pytest.mark.parametrize("how", ["damaged", "removed", "cut", "sums removed", "sums damaged"])
def test_a_chunk_without_a_good_replica_is_an_error_that_names_it_and_never_a_short_read(
    tmp_path: Path, how: str
) -> None:
    store, fs = make_store(tmp_path, replication=2)
    data = random_bytes(3 * CHUNK_BYTES)
    fs.pipe("folder/f", data)
    place = store.locations("folder/f")[1]
    for server in place.servers:
        path = replica_path(store.root / "servers", server, place.handle)
        sums = replica_path(store.root / "servers", server, place.handle, ".sums")
        if how == "damaged":
            damage(store, server, place.handle, CHUNK_BYTES - 1)
        elif how == "removed":
            os.unlink(path)
        elif how == "cut":
            os.truncate(path, CHUNK_BYTES - 1)
        elif how == "sums removed":
            os.unlink(sums)
        else:
            with open(sums, "r+b") as file:
                file.seek(40)
                file.write(b"BADBAD")
    assert fs.cat_file("folder/f", 0, CHUNK_BYTES) == data[:CHUNK_BYTES]
    for read in (
        lambda: fs.cat("folder/f"),
        lambda: fs.open("folder/f").read(),
        lambda: fs.get("folder/f", str(tmp_path / "out")),
        lambda: [None for _ in fs.open("folder/f")],
    ):
        with pytest.raises(ChunkLost, match=rf"/folder/f: chunk 1 .*{place.handle:016x}"):
            read()
    assert fs.cat_file("folder/f", 2 * CHUNK_BYTES) == data[2 * CHUNK_BYTES :]
    health = store.fsck("folder")
    assert not health.healthy
    assert health.lost_files == ("/folder/f",)
    assert store.repair().lost_chunks == 1
    # What is left of it is kept: somebody may still save it by hand.
    assert len(list((store.root / "servers").rglob("*.chunk"))) >= 4


def test_fsck_on_a_good_store_is_healthy_and_counts_what_there_is(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path)
    fs.pipe({"a/b/f": random_bytes(CHUNK_BYTES + 1), "a/g": b"x", "a/empty": b""})
    health = store.fsck()
    assert health.healthy
    assert health.verified
    assert (health.files, health.dirs, health.chunks, health.replicas) == (3, 3, 3, 9)
    assert (health.bytes, health.average_replication) == (CHUNK_BYTES + 2, 3.0)
    assert store.fsck("a/g").chunks == 1
    with pytest.raises(FileNotFoundError):
        store.fsck("nowhere")


def test_a_damaged_byte_anywhere_is_found_by_fsck_and_only_with_verify(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, replication=2)
    fs.pipe("f", random_bytes(200_000))
    place = store.locations("f")[0]
    damage(store, place.servers[1], place.handle, 199_999)
    assert store.fsck(verify=False).corrupt_replicas == 0
    health = store.fsck()
    assert (health.healthy, health.corrupt_replicas, health.under_replicated) == (True, 1, 1)


def test_a_killed_server_costs_no_byte_and_repair_restores_the_goal(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=4)
    files = {f"/d/{n}": random_bytes(100_000, n) for n in range(12)}
    fs.pipe(files)
    lost = store.kill_server("s2")
    assert lost > 0
    assert {path: fs.cat(path) for path in files} == files
    assert store.fsck().under_replicated == lost
    assert store.repair().cloned == lost
    health = store.fsck()
    assert (health.under_replicated, health.healthy, health.servers) == (0, True, 3)
    store.revive_server("s2")
    assert store.fsck().over_replicated == lost
    store.repair()
    health = store.fsck()
    assert (health.over_replicated, health.under_replicated) == (0, 0)
    assert {path: fs.cat(path) for path in files} == files


def test_a_closing_writer_mends_what_a_killed_server_left_bit_by_bit(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=4, replication=2)
    fs.pipe({f"d/{n}": random_bytes(1000, n) for n in range(8)})
    lost = store.kill_server("s1")
    for n in range(lost):
        assert store.fsck(verify=False).under_replicated == lost - n
        fs.pipe("other", b"x")
    assert store.fsck().under_replicated == 0


def test_a_server_that_missed_an_append_is_refused_by_version_and_the_good_copy_kept(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=2, replication=2)
    fs.pipe("f", b"old")
    store.kill_server("s2")
    with fs.open("f", "ab") as file:
        file.write(b"+new")
    assert store.revive_server("s2") == 0
    assert [event.kind for event in store.events()][-1] == "replicas refused"
    store.kill_server("s1")
    with pytest.raises(ChunkLost):
        fs.cat("f")  # from the server that came back alone: nothing, rather than the old bytes
    store.revive_server("s1")
    store.repair()
    store.kill_server("s1")
    assert fs.cat("f") == b"old+new"


def test_a_server_folder_that_is_not_there_is_slow_and_not_lost(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path)
    data = random_bytes(300_000)
    fs.pipe("f", data)
    away = store.root / "away"
    os.rename(store.root / "servers" / "s1", away)
    assert fs.cat("f") == data
    assert fs.cat("f") == data
    store.repair(verify=True)
    store.gc()
    os.rename(away, store.root / "servers" / "s1")
    health = store.fsck()
    assert (health.missing_replicas, health.problems) == (0, ())


def test_a_file_of_many_chunks_is_fetched_whole_or_not_at_all(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, replication=2)
    data = random_bytes(CHUNK_BYTES * 9 + 7)
    fs.pipe("many", data)
    fs.get_file("many", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == data
    chunk = store.stat("many").chunks[4]
    damage(store, chunk.servers[0], chunk.handle)
    fs.get_file("many", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == data
    damage(store, chunk.servers[1], chunk.handle)
    with pytest.raises(ChunkLost, match="chunk 4"):
        fs.get_file("many", tmp_path / "lost")


def test_drain_loses_nothing_and_the_server_is_gone(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, replication=1)
    files = {f"/d/{n}": random_bytes(50_000, n) for n in range(12)}
    fs.pipe(files)
    store.drain_server("s1")
    assert [server.name for server in store.servers()] == ["s2", "s3"]
    assert not (store.root / "servers" / "s1").exists()
    assert {path: fs.cat(path) for path in files} == files
    store.drain_server("s2")
    with pytest.raises(NoServer, match=r"'s3' cannot be drained: no other live server .* add one first"):
        store.drain_server("s3")
    assert [server.state for server in store.servers()] == ["live"]
    fs.pipe("/d/more", b"x")
    assert {path: fs.cat(path) for path in files} == files
    with pytest.raises(NoSuchServer, match="this store has s3"):
        store.drain_server("s9")


def test_a_draining_server_takes_no_new_chunks_and_can_be_revived(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=1, replication=1)
    fs.pipe("f", random_bytes(1000))
    store.add_server("full", capacity_bytes=1)
    with pytest.raises(NoServer, match="no room"):
        store.drain_server("s1")
    with pytest.raises(NoServer):
        fs.pipe("g", b"x")
    assert store.revive_server("s1") == 1
    fs.pipe("g", b"x")
    assert fs.cat("f") == random_bytes(1000)


def test_balance_evens_out_a_new_server(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=2, replication=1)
    files = {f"/d/{n}": random_bytes(30_000, n) for n in range(30)}
    fs.pipe(files)
    store.add_server(rack="rack2")
    report = store.balance(threshold=0.05)
    used = [server.used_bytes for server in store.servers()]
    assert sum(used) == 30 * 30_000
    assert max(used) - min(used) <= 60_000
    assert report.cloned == report.removed == 10
    assert {path: fs.cat(path) for path in files} == files
    assert store.balance(threshold=0.05).cloned == 0


def test_replicas_lie_on_two_racks_and_repair_spreads_those_that_do_not(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=2, racks=["a"], replication=2)
    fs.pipe({f"d/{n}": b"x" * 100 for n in range(5)})
    store.add_server("s3", rack="b")
    assert store.fsck().misreplicated == 5
    store.repair()
    health = store.fsck()
    assert (health.misreplicated, health.over_replicated, health.under_replicated) == (0, 0, 0)
    fs.pipe("new", b"y")
    racks = {server.name: server.rack for server in store.servers()}
    assert {racks[name] for name in store.locations("new")[0].servers} == {"a", "b"}


def test_locations_lost_with_the_servers_still_there_are_found_again(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path)
    files = {f"/d/{n}": random_bytes(300_000, n) for n in range(3)}
    fs.pipe(files)
    with store.master.database.write() as connection:
        connection.execute("DELETE FROM replicas")
    assert fs.cat("/d/1") == files["/d/1"]
    assert store.rescan() == 18
    with store.master.database.write() as connection:
        connection.execute("DROP TABLE replicas")
    again = Store(store.root)
    assert again.fsck().replicas == 18
    assert {path: fs.cat(path) for path in files} == files


def test_set_replication_on_a_folder_is_inherited_and_met_by_repair(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path)
    fs.pipe({"d/a": b"a", "d/e/b": b"b", "other": b"c"})
    assert store.set_replication("d", 1) == 2
    fs.pipe("d/e/new", b"n")
    assert len(store.locations("d/e/new")[0].servers) == 1
    store.repair()
    assert store.fsck().replicas == 3 + 3
    store.set_replication("d/a", 2)
    store.repair()
    assert [len(store.locations(path)[0].servers) for path in ("d/a", "d/e/b", "other")] == [2, 1, 3]
    assert len(GFSFileSystem(root=store.root, replication=2).store.servers()) == 3
    GFSFileSystem(root=store.root, replication=2).pipe("d/two", b"2")
    assert len(store.locations("d/two")[0].servers) == 2


def test_a_replication_goal_above_the_servers_is_met_when_servers_come(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=1, replication=3)
    fs.pipe("f", b"x")
    health = store.fsck()
    assert (health.healthy, health.under_replicated, health.missing_replicas) == (True, 1, 2)
    assert store.repair().waiting == 0
    store.add_server()
    store.add_server()
    assert store.repair().cloned == 2
    assert store.fsck().missing_replicas == 0


def test_a_server_capacity_is_respected(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=1, replication=2)
    store.add_server("small", capacity_bytes=150_000)
    for n in range(6):
        fs.pipe(f"{n}", random_bytes(100_000, n))
    used = {server.name: server.used_bytes for server in store.servers()}
    assert used["s1"] == 600_000
    assert used["small"] <= 200_000  # the last one began while there was room for a block


def test_the_finished_chunks_of_a_file_being_written_count_as_used(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=1, replication=1, chunk_bytes=1 << 16)
    store.add_server("small", capacity_bytes=4 << 16)
    with fs.open("large", "wb") as file:
        for n in range(12):
            file.write(random_bytes(1 << 16, n))
        file.flush()
        assert {s.name: s.used_bytes for s in store.servers()}["small"] > 0
    used = {server.name: server.used_bytes for server in store.servers()}
    assert sum(used.values()) == 12 << 16
    assert used["small"] <= 4 << 16
    abandoned = fs.open("other", "wb")
    abandoned.write(random_bytes(6 << 16))
    abandoned.discard()
    assert {server.name: server.used_bytes for server in store.servers()} == used


def test_chunks_without_metadata_are_no_place_for_a_new_store(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path)
    root = store.root
    fs.pipe("f", random_bytes(1000))
    store.master.database.close()
    os.rename(root / "master.db", tmp_path / "copy.db")
    held = sorted(path for path in root.rglob("*") if path.is_file())
    with pytest.raises(DamagedStore, match=r"master\.db.* is missing; bring it back"):
        Store.create(root)
    with pytest.raises(FileNotFoundError, match=r"master\.db is missing"):
        fs.pipe("g", b"x")
    assert sorted(path for path in root.rglob("*") if path.is_file()) == held
    os.rename(tmp_path / "copy.db", root / "master.db")
    assert fs.cat("f") == random_bytes(1000)


def test_a_server_folder_removed_by_hand_is_refilled_after_a_kill(tmp_path: Path) -> None:
    store, fs = make_store(tmp_path, servers=3, replication=2)
    files = {f"/{n}": random_bytes(1000, n) for n in range(9)}
    fs.pipe(files)
    shutil.rmtree(store.root / "servers" / "s1")
    assert {path: fs.cat(path) for path in files} == files
    store.kill_server("s1")
    store.repair()
    assert store.fsck().under_replicated == 0
    store.kill_server("s2")
    assert {path: fs.cat(path) for path in files} == files
