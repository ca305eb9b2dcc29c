"""The store against a dict: a Hypothesis state machine with failures among its rules."""

import contextlib
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from gfs_sim import GFSFileSystem, Store
from gfs_sim.database import open_database
from gfs_sim.server import replica_path

CHUNK_BYTES = 4096
NAMES = st.sampled_from(["/a", "/d/a", "/d/e/a", "/log[1]"])
FOLDERS = ["/d", "/d/e"]


class StoreMachine(RuleBasedStateMachine):
    """``files`` is what must be there; at most one server is bad at a time, so that nothing may be lost."""

    snapshots = Bundle("snapshots")

    @initialize()
    def make(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gfs-model-"))
        Store.create(
            self.folder / "store", chunk_bytes=CHUNK_BYTES, servers=4, racks=["x", "y"], replication=2
        )
        self.files: dict[str, bytes] = {}
        self.deleted: list[tuple[str, dict[str, bytes]]] = []
        self.snapshot_count = 0
        self.killed: str | None = None
        self.damaged = False
        self.reopen()

    def reopen(self) -> None:
        self.fs = GFSFileSystem(root=self.folder / "store", skip_instance_cache=True)
        self.store = self.fs.store

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(path=NAMES, size=st.integers(0, 3 * CHUNK_BYTES), seed=st.integers(0, 2**32))
    def write(self, path: str, size: int, seed: int) -> None:
        data = random.Random(seed).randbytes(size)
        self.fs.pipe(path, data)
        self.files[path] = data

    @rule(path=NAMES, size=st.integers(0, 2 * CHUNK_BYTES), seed=st.integers(0, 2**32))
    def append(self, path: str, size: int, seed: int) -> None:
        data = random.Random(seed).randbytes(size)
        with self.fs.open(path, "ab") as file:
            file.write(data)
        self.files[path] = self.files.get(path, b"") + data

    @rule(path=NAMES, size=st.integers(0, 3 * CHUNK_BYTES))
    def write_and_fail(self, path: str, size: int) -> None:
        with contextlib.suppress(KeyError), self.fs.open(path, "wb") as file:
            file.write(b"x" * size)
            raise KeyError

    @rule(source=NAMES, goal=NAMES)
    def move(self, source: str, goal: str) -> None:
        if source not in self.files:
            with pytest.raises(FileNotFoundError):
                self.fs.mv(source, goal)
            return
        self.fs.mv(source, goal)
        self.files[goal] = self.files.pop(source)

    @rule(source=NAMES, goal=NAMES)
    def copy(self, source: str, goal: str) -> None:
        if source in self.files:
            self.fs.cp(source, goal)
            self.files[goal] = self.files[source]

    @rule(path=st.one_of(NAMES, st.sampled_from(FOLDERS)))
    def delete(self, path: str) -> None:
        if not self.fs.exists(path):
            with pytest.raises(FileNotFoundError):
                self.fs.rm(path, recursive=True)
            return
        self.fs.rm(path, recursive=True)
        gone = {
            name: data for name, data in self.files.items() if name == path or name.startswith(path + "/")
        }
        for name in gone:
            del self.files[name]
        self.deleted.append((path, gone))

    @precondition(lambda self: self.deleted)
    @rule()
    def undelete_latest(self) -> None:
        path, gone = self.deleted[-1]
        if self.fs.exists(path):
            with pytest.raises(FileExistsError):
                self.store.undelete(path)
            return
        assert self.store.undelete(path) == path
        self.deleted.pop()
        self.files.update(gone)

    @rule(path=NAMES)
    def drop(self, path: str) -> None:
        assert self.fs.drop(path) == (path in self.files)
        self.files.pop(path, None)

    @rule(target=snapshots)
    def snapshot(self) -> Any:
        if not self.fs.exists("/d"):
            return multiple()
        self.snapshot_count += 1
        name = f"/snap{self.snapshot_count}"
        self.store.snapshot("/d", name)
        self.files.update(
            {name + path[2:]: data for path, data in self.files.items() if path.startswith("/d/")}
        )
        return name

    @rule(name=snapshots, size=st.integers(1, 100))
    def append_to_snapshot(self, name: str, size: int) -> None:
        path = f"{name}/a"
        if path in self.files:
            with self.fs.open(path, "ab") as file:
                file.write(b"s" * size)
            self.files[path] += b"s" * size

    @rule()
    def crash_and_reopen(self) -> None:
        """A process that dies with a file half written, an append half done, and nothing closed."""
        master = self.store.master
        target = master.target("/half", replication=None, exclusive=False)
        chunk = master.new_chunk(target)
        for server in chunk.servers:
            path = Path(replica_path(master.folder, server, chunk.handle))
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"half")
        with master.database.write() as connection:
            connection.execute(
                "UPDATE chunks SET writer = rtrim(writer, '0123456789') || '0' WHERE writer IS NOT NULL"
            )
        for path in self.files:
            place = self.store.locations(path)[-1:]
            for server in place[0].servers if place else ():
                with open(replica_path(master.folder, server, place[0].handle), "ab") as file:
                    file.write(b"uncommitted")
        open_database(master.root).close()
        self.reopen()

    @precondition(lambda self: self.killed is None and not self.damaged)
    @rule(name=st.sampled_from(["s1", "s2", "s3", "s4"]))
    def kill_server(self, name: str) -> None:
        self.store.repair(verify=True)
        self.store.kill_server(name)
        self.killed = name

    @precondition(lambda self: self.killed is not None)
    @rule()
    def revive_server(self) -> None:
        assert self.killed is not None
        self.store.revive_server(self.killed)
        self.killed = None

    @precondition(lambda self: self.killed is None and not self.damaged)
    @rule(path=NAMES, size=st.integers(1, CHUNK_BYTES))
    def append_while_a_server_is_down(self, path: str, size: int) -> None:
        self.store.repair()
        places = self.store.locations(path) if path in self.files else []
        if not places:
            return
        down = places[-1].servers[0]
        self.store.kill_server(down)
        self.append(path=path, size=size, seed=size)
        self.store.revive_server(down)
        assert self.fs.cat_file(path) == self.files[path]

    @rule(source=NAMES, goal=NAMES, size=st.integers(1, CHUNK_BYTES))
    def copy_and_append(self, source: str, goal: str, size: int) -> None:
        if source in self.files:
            self.copy(source=source, goal=goal)
            self.append(path=goal, size=size, seed=size)

    @precondition(lambda self: self.killed is None)
    @rule(pick=st.integers(0, 2**32))
    def flip_a_byte(self, pick: int) -> None:
        self.store.repair(verify=True)
        picks = random.Random(pick)
        places = [place for path in self.files for place in self.store.locations(path) if place.length]
        if places:
            place = picks.choice(places)
            path = replica_path(self.store.master.folder, picks.choice(place.servers), place.handle)
            with open(path, "r+b") as file:
                at = picks.randrange(place.length)
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ (1 << picks.randrange(8))]))
            self.damaged = True

    @rule(verify=st.booleans())
    def repair(self, verify: bool) -> None:
        assert self.store.repair(verify=verify).lost_chunks == 0
        if verify:
            self.damaged = False
            health = self.store.fsck()
            assert (health.under_replicated, health.over_replicated, health.corrupt_replicas) == (0, 0, 0)

    @rule()
    def balance(self) -> None:
        self.store.balance()

    @rule()
    def lose_all_locations(self) -> None:
        with self.store.master.database.write() as connection:
            connection.execute("DROP TABLE replicas")
        self.reopen()

    @rule()
    def collect(self) -> None:
        with self.store.master.database.write() as connection:
            connection.execute("UPDATE retired SET due = 0")
        self.store.gc()
        assert not list(self.store.root.rglob("*.tmp"))

    @invariant()
    def holds_what_the_dict_holds(self) -> None:
        if hasattr(self, "fs"):
            assert self.fs.find("/") == sorted(self.files)
            assert {path: self.fs.cat_file(path) for path in self.files} == self.files
            assert {path: self.fs.info(path)["size"] for path in self.files} == {
                path: len(data) for path, data in self.files.items()
            }

    @invariant()
    def is_healthy(self) -> None:
        if hasattr(self, "fs"):
            assert self.store.fsck(verify=False).healthy


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(stateful_step_count=30, suppress_health_check=list(HealthCheck))
