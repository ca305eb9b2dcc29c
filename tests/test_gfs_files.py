"""Files and names: when a file is visible, what a name means, append, snapshot, delete and undelete."""

import errno
import gzip
import io
import os
import pickle
import random
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from gfs_sim import GFSFileSystem, Store
from gfs_sim.errors import BadName, BadSetting, FileReplaced, RecordTooLarge
from gfs_sim.records import HEADER

CHUNK_BYTES = 64 << 10


@pytest.fixture
def fs(tmp_path: Path) -> GFSFileSystem:
    Store.create(tmp_path / "store", chunk_bytes=CHUNK_BYTES, replication=2)
    return GFSFileSystem(root=tmp_path / "store")


def replica_files(fs: GFSFileSystem) -> list[Path]:
    return sorted(path for path in (fs.store.root / "servers").rglob("*") if path.is_file())


# When a file is visible


def test_nothing_is_visible_before_close_and_an_overwrite_shows_old_or_new(fs: GFSFileSystem) -> None:
    with fs.open("f", "wb") as file:
        file.write(b"a" * 1_000_000)
        file.flush()
        assert not fs.exists("f")
        assert fs.ls("/") == []
    assert fs.info("f")["size"] == 1_000_000
    with fs.open("f", "wb") as file:
        file.write(b"b" * 500_000)
        file.flush()
        assert fs.cat("f") == b"a" * 1_000_000
    assert fs.cat("f") == b"b" * 500_000


def leave_by_writer(fs: GFSFileSystem) -> None:
    with fs.open("f", "wb") as file:
        file.write(b"x" * 300_000)
        raise KeyError("mine")


def leave_by_text(fs: GFSFileSystem) -> None:
    with fs.open("f", "w") as file:
        file.write("x" * 300_000)
        raise KeyError("mine")


def leave_by_compression(fs: GFSFileSystem) -> None:
    with fs.open("f", "wb", compression="gzip") as file:
        file.write(os.urandom(300_000))
        raise KeyError("mine")


def leave_by_open_file(fs: GFSFileSystem) -> None:
    with fsspec.open("gfs://f", "wb", root=fs.root) as file:
        file.write(b"x" * 300_000)
        raise KeyError("mine")


def leave_by_open_file_text_compressed(fs: GFSFileSystem) -> None:
    with fsspec.open("gfs://f", "wt", root=fs.root, compression="gzip") as file:
        file.write("x" * 300_000)
        raise KeyError("mine")


def leave_by_pyarrow(fs: GFSFileSystem) -> None:
    with pa.fs.PyFileSystem(pa.fs.FSSpecHandler(fs)).open_output_stream("f") as stream:
        stream.write(b"x" * 300_000)
        raise KeyError("mine")


def leave_by_dirfs(fs: GFSFileSystem) -> None:
    with DirFileSystem("/", fs).open("f", "wb") as file:
        file.write(b"x" * 300_000)
        raise KeyError("mine")


def leave_by_transaction(fs: GFSFileSystem) -> None:
    with fs.transaction, fs.open("f", "wb") as file:
        file.write(b"x")
        file.close()
        assert not fs.exists("f")
        raise KeyError("mine")


def leave_by_dropping(fs: GFSFileSystem) -> None:
    file = fs.open("f", "wb")
    file.write(b"x" * 300_000)
    with pytest.warns(ResourceWarning, match="/f was never closed"):
        del file
    raise KeyError("mine")


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_writer,
        leave_by_text,
        leave_by_compression,
        leave_by_open_file,
        leave_by_open_file_text_compressed,
        leave_by_pyarrow,
        leave_by_dirfs,
        leave_by_transaction,
        leave_by_dropping,
    ],
)
def test_a_block_that_raises_publishes_nothing_and_leaves_no_bytes(fs: GFSFileSystem, leave: Any) -> None:
    with pytest.raises(KeyError, match="mine"):
        leave(fs)
    assert not fs.exists("f")
    assert replica_files(fs) == []


def test_a_file_closed_while_another_error_is_handled_is_published(fs: GFSFileSystem) -> None:
    early = fs.open("early", "wb")
    try:
        raise KeyError("handled")
    except KeyError:
        early.write(b"1")
        early.close()
        with fs.open("late", "wb") as late:
            late.write(b"2")

    class Reporter:
        def __enter__(self) -> None: ...

        def __exit__(self, *exc: object) -> bool:
            with fs.open("report", "w") as report:
                report.write("failed")
            return True

    with Reporter():
        raise KeyError("reported")
    assert fs.cat(["early", "late", "report"]) == {"/early": b"1", "/late": b"2", "/report": b"failed"}


def test_a_transaction_publishes_its_files_at_its_end(fs: GFSFileSystem) -> None:
    with fs.transaction:
        fs.pipe("a", b"1")
        with fs.open("b", "wb") as file:
            file.write(b"2")
        assert fs.find("/") == []
    assert fs.find("/") == ["/a", "/b"]


def test_exclusive_mode_is_decided_at_close_when_two_race(fs: GFSFileSystem) -> None:
    first, second = fs.open("f", "xb"), fs.open("f", "xb")
    first.write(b"first")
    second.write(b"second")
    first.close()
    with pytest.raises(FileExistsError):
        second.close()
    assert fs.cat("f") == b"first"
    with pytest.raises(FileExistsError):
        fs.open("f", "xb")


def test_two_writers_on_one_path_leave_one_of_them_whole(fs: GFSFileSystem) -> None:
    first, second = fs.open("f", "wb"), fs.open("f", "wb")
    for _ in range(10):
        first.write(b"A" * 50_000)
        second.write(b"B" * 40_000)
    second.close()
    first.close()
    assert fs.cat("f") == b"A" * 500_000


def test_a_reader_keeps_the_file_it_opened_when_that_is_replaced_moved_or_deleted(fs: GFSFileSystem) -> None:
    old = random.Random(1).randbytes(5 * CHUNK_BYTES)
    fs.pipe({"f": old, "g": b"new" * CHUNK_BYTES})
    with fs.open("f", "rb", block_size=1) as reader:
        got = reader.read(1000)
        fs.mv("g", "f")
        fs.pipe("f", b"newest")
        fs.rm("f")
        fs.pipe("other", b"a closing writer does some upkeep")
        got += reader.read()
    assert got == old


def test_a_reader_of_bytes_that_are_gone_is_told_and_gets_no_mix(fs: GFSFileSystem) -> None:
    fs.pipe("f", b"x" * (5 * CHUNK_BYTES))
    with fs.open("f") as reader:
        reader.read(10)
        fs.drop("f")
        with pytest.raises(FileReplaced, match="/f was replaced or removed"):
            reader.seek(3 * CHUNK_BYTES) and reader.read()


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    # A limit on file size stands for the disk: the write to the chunk file fails as it would there.
    Store.create(tmp_path / "store", chunk_bytes=8 << 20)
    fs = GFSFileSystem(root=tmp_path / "store")
    fs.pipe("f", b"old")
    limit = 2 << 20
    script = f"""
import resource, signal
from gfs_sim import GFSFileSystem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
fs = GFSFileSystem(root={str(tmp_path / "store")!r})
for mode in ("wb", "ab"):
    try:
        with fs.open("f", mode) as file:
            for _ in range(100):
                file.write(b"x" * 100_000)
    except OSError as error:
        print(type(error).__name__, error.errno, error.filename)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"OSError {errno.EFBIG} /f\n" * 2
    assert done.stderr == ""
    assert fs.cat("f") == b"old"
    assert [path.stat().st_size for path in replica_files(fs) if path.suffix == ".chunk"] == [3, 3, 3]


# What a name means


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("gfs://a/b", "gfs://a//b"),
        ("gfs://a/b", "gfs://a/./b"),
        ("gfs://a/b", "gfs://a/b/"),
        ("gfs://a/b", "gfs://a/c/../b"),
        ("gfs:///a/b", "gfs://a/b"),
        ("/a/b", "a/b"),
    ],
)
def test_two_spellings_of_a_path_are_one_file(fs: GFSFileSystem, first: str, second: str) -> None:
    fs.pipe(first, b"x")
    assert fs.cat(second) == b"x"
    assert fs.find("/") == ["/a/b"]
    fs.rm(second)
    assert not fs.exists(first)


@pytest.mark.parametrize("path", ["gfs://../etc/passwd", "gfs://a/../../x", "../../../../tmp/gfs-escape"])
def test_dots_stop_at_the_root_of_the_store(fs: GFSFileSystem, path: str) -> None:
    before = sorted(fs.store.root.parent.iterdir())
    fs.pipe(path, b"inside")
    assert fs.cat(path) == b"inside"
    assert ".." not in fs.find("/")[0]
    assert sorted(fs.store.root.parent.iterdir()) == before
    with pytest.raises(IsADirectoryError):
        fs.pipe("gfs:////", b"x")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a b", "a%20b"),
        ("é", unicodedata.normalize("NFD", "é")),
        ("a#b", "a"),
        ("a+b", "a b"),
        ("100%", "100%25"),
    ],
)
def test_names_that_differ_are_different_files_however_a_url_would_read_them(
    fs: GFSFileSystem, tmp_path: Path, first: str, second: str
) -> None:
    fs.pipe({f"gfs://d/{first}": b"1", f"gfs://d/{second}": b"2"})
    assert (fs.cat(f"gfs://d/{first}"), fs.cat(f"gfs://d/{second}")) == (b"1", b"2")
    (tmp_path / first).write_bytes(b"3")
    fs.put(str(tmp_path / first), f"gfs://d/{first}")
    fs.get(f"gfs://d/{first}", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"3"
    assert len(fs.ls("d")) == 2


@pytest.mark.parametrize("name", ["log[1].txt", "a[b.txt", "what?", "all*", "log[12].d"])
def test_a_name_that_exists_as_written_wins_over_the_pattern(
    fs: GFSFileSystem, tmp_path: Path, name: str
) -> None:
    others = {"/d/log1.txt": b"other", "/d/what1": b"other", "/d/all1": b"other"}
    fs.pipe({f"d/{name}": b"mine", **others})
    assert fs.cat(f"d/{name}") == b"mine"
    fs.cp(f"d/{name}", "out.txt")
    assert fs.cat("out.txt") == b"mine"
    fs.mkdir("folder")
    fs.cp(f"d/{name}", "folder")
    assert fs.cat(f"folder/{name}") == b"mine"
    fs.get(f"d/{name}", str(tmp_path / "local"))
    assert (tmp_path / "local").read_bytes() == b"mine"
    (tmp_path / name).write_bytes(b"local")
    (tmp_path / "log1.txt").write_bytes(b"other")
    fs.put(str(tmp_path / name), "put.txt")
    assert fs.cat("put.txt") == b"local"
    fs.mv(f"d/{name}", f"d/{name}x")
    fs.mv(f"d/{name}x", f"d/{name}")
    fs.rm(f"d/{name}")
    assert fs.cat("d/*") == others
    assert fs.isdir("d")


def test_folders_with_pattern_characters_are_copied_whole(fs: GFSFileSystem, tmp_path: Path) -> None:
    fs.pipe({"run[1]/a/x": b"x", "run[1]/y": b"y", "run1/z": b"z"})
    fs.cp("run[1]", "copy", recursive=True)
    assert fs.find("copy") == ["/copy/a/x", "/copy/y"]
    fs.get("run[1]", str(tmp_path / "local"), recursive=True)
    assert (tmp_path / "local" / "a" / "x").read_bytes() == b"x"
    fs.rm("run[1]", recursive=True)
    assert fs.find("/") == ["/copy/a/x", "/copy/y", "/run1/z"]


@pytest.mark.parametrize("name", ["nul\0name", "half\udc80name"])
def test_a_name_no_store_can_hold_is_refused(fs: GFSFileSystem, name: str) -> None:
    with pytest.raises(BadName, match="name"):
        fs.pipe(name, b"x")


def test_gfs_urls_reach_the_default_store_in_the_home_folder(home: Path) -> None:
    with fsspec.open("gfs://out/part", "w") as file:
        file.write("x")
    assert (home / "store" / "master.db").exists()
    assert fsspec.filesystem("gfs").find("/") == ["/out/part"]
    assert fsspec.filesystem("gfs").unstrip_protocol("/out/part") == "gfs://out/part"
    assert Store().settings().replication == 3


def test_the_default_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MR_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    fsspec.filesystem("gfs").pipe("f", b"x")
    assert (tmp_path / "data" / "mrdag" / "store" / "master.db").exists()


def test_what_another_instance_does_is_seen_at_once(fs: GFSFileSystem) -> None:
    other = GFSFileSystem(root=fs.root, skip_instance_cache=True)
    through = DirFileSystem("/d", other)
    fs.pipe("d/f", b"1")
    assert (other.ls("d", detail=False), through.cat("f")) == (["/d/f"], b"1")
    fs.pipe("d/f", b"22")
    assert (other.info("d/f")["size"], through.size("f")) == (2, 2)
    fs.mv("d/f", "d/g")
    assert (through.exists("f"), through.ls("", detail=False)) == (False, ["g"])
    fs.rm("d", recursive=True)
    assert not other.exists("d")


# Moving and folders


def test_a_folder_moves_whole_and_a_file_replaces_a_file(fs: GFSFileSystem) -> None:
    fs.pipe({"a/x": b"1", "a/b/y": b"2", "ab/z": b"3"})
    fs.mv("a", "c/d")
    assert fs.find("/") == ["/ab/z", "/c/d/b/y", "/c/d/x"]
    fs.mv("c/d/x", "ab/z")
    assert fs.cat("ab/z") == b"1"
    fs.mv("ab/z", "c")
    assert fs.cat("c/z") == b"1"
    with pytest.raises(OSError, match="into itself"):
        fs.mv("c", "c/d/e")
    with pytest.raises(FileNotFoundError):
        fs.mv("nowhere", "x")
    fs.pipe("ab/c/full", b"x")
    with pytest.raises(OSError, match="not empty"):
        fs.mv("c", "ab")


def test_folders_behave_as_folders(fs: GFSFileSystem) -> None:
    fs.makedirs("a/b")
    assert fs.ls("a", detail=False) == ["/a/b"]
    with pytest.raises(FileExistsError):
        fs.mkdir("a/b")
    fs.makedirs("a/b", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.mkdir("x/y", create_parents=False)
    fs.pipe("a/b/f", b"x")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir("a/b")
    with pytest.raises(OSError, match="not empty"):
        fs.rm("a")
    with pytest.raises(NotADirectoryError):
        fs.pipe("a/b/f/g", b"x")
    with pytest.raises(IsADirectoryError):
        fs.open("a", "wb")
    with pytest.raises(IsADirectoryError):
        fs.open("a", "rb")
    with pytest.raises(FileNotFoundError):
        fs.rm("a/none")
    fs.rm("/", recursive=True)
    assert fs.find("/", withdirs=True) == ["/"]


def test_copying_a_folder_twice_nests_as_fsspec_says(fs: GFSFileSystem, tmp_path: Path) -> None:
    source = tmp_path / "subdir"
    (source / "nested").mkdir(parents=True)
    (source / "f1").write_bytes(b"1")
    (source / "nested" / "f2").write_bytes(b"2")
    fs.put(str(source), "t", recursive=True)
    assert fs.find("t") == ["/t/f1", "/t/nested/f2"]
    fs.put(str(source), "t", recursive=True)
    assert fs.find("t") == ["/t/f1", "/t/nested/f2", "/t/subdir/f1", "/t/subdir/nested/f2"]
    fs.rm("t", recursive=True)
    for _ in range(2):
        fs.put(f"{source}/", "t", recursive=True)
        assert fs.find("t") == ["/t/f1", "/t/nested/f2"]


# Files as Python knows them


def test_seek_read_lines_and_pickle_agree_with_a_file_in_memory(fs: GFSFileSystem) -> None:
    data = b"\n".join(random.Random(3).randbytes(random.Random(n).randrange(3000)) for n in range(200))
    fs.pipe("f", data)
    model, file = io.BytesIO(data), fs.open("f")
    assert file.size == len(data)
    picks = random.Random(4)
    for _ in range(300):
        at, size = picks.randrange(len(data) + 100), picks.choice([0, 1, 100, 70_000, 300_000])
        model.seek(at)
        file.seek(at)
        assert file.read(size) == model.read(size)
        assert file.readline() == model.readline()
        again = pickle.loads(pickle.dumps(file))
        assert (again.tell(), again.read(10)) == (model.tell(), model.read(10))
    assert list(fs.open("f")) == data.splitlines(keepends=True) or list(fs.open("f")) == list(
        io.BytesIO(data)
    )
    buffer = bytearray(100_000)
    assert fs.open("f").readinto(buffer) == 100_000
    assert buffer == data[:100_000]
    assert fs.cat_file("f", -100, -10) == data[-100:-10]


def test_compressed_files_are_written_and_read_through_open(fs: GFSFileSystem) -> None:
    with fs.open("f.gz", "wt", compression="infer") as file:
        file.write("x\n" * 1000)
    assert gzip.decompress(fs.cat("f.gz")) == b"x\n" * 1000
    with fsspec.open("gfs://g.gz", "wb", root=fs.root, compression="gzip") as file:
        file.write(b"y" * 1000)
    with fs.open("g.gz", compression="gzip") as file:
        assert file.read() == b"y" * 1000


# Append


def test_appended_bytes_follow_those_there_across_chunks(fs: GFSFileSystem) -> None:
    model = b""
    picks = random.Random(5)
    for n in range(40):
        part = picks.randbytes(picks.choice([0, 1, 1000, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7]))
        with fs.open("f", "ab") as file:
            file.write(part[:500])
            file.write(part[500:])
            assert file.tell() == len(model) + len(part)
        model += part
        assert fs.info("f")["size"] == len(model), n
    assert fs.cat("f") == model
    health = fs.store.fsck()
    assert (health.healthy, health.missing_replicas) == (True, 0)


def test_a_large_append_is_visible_whole_at_close_or_not_at_all(fs: GFSFileSystem) -> None:
    fs.pipe("f", b"old")
    more = random.Random(6).randbytes(9 << 20)  # more than is gathered in memory
    with fs.open("f", "ab") as file:
        file.write(more[: 5 << 20])
        file.write(more[5 << 20 :])
        assert fs.cat("f") == b"old"
    assert fs.cat("f") == b"old" + more
    file = fs.open("f", "ab")
    file.write(more)
    file.discard()
    assert fs.info("f")["size"] == 3 + len(more)
    with fs.open("f", "ab") as file:
        file.write(b"end")
    assert fs.cat_file("f", 3 + len(more)) == b"end"


def test_an_append_after_a_snapshot_copies_first(fs: GFSFileSystem) -> None:
    fs.pipe({"d/f": b"a" * (CHUNK_BYTES + 10), "d/e/g": b"g"})
    files = len(replica_files(fs))
    assert fs.store.snapshot("d", "snap") == 2
    assert len(replica_files(fs)) == files
    with fs.open("d/f", "ab") as file:
        file.write(b"later")
    assert len(replica_files(fs)) == files + 4  # one chunk, two replicas, each with its sums
    assert fs.cat("snap/f") == b"a" * (CHUNK_BYTES + 10)
    assert fs.cat("d/f") == b"a" * (CHUNK_BYTES + 10) + b"later"
    fs.drop("d")
    assert fs.cat("snap/f") == b"a" * (CHUNK_BYTES + 10)
    with pytest.raises(FileExistsError):
        fs.store.snapshot("snap/f", "snap/e/g")
    fs.drop("snap")
    assert replica_files(fs) == []


def test_a_snapshot_during_an_append_keeps_what_was_there(fs: GFSFileSystem) -> None:
    fs.pipe("f", b"old")
    with fs.open("f", "ab") as file:
        file.write(b"x" * 100)
        file.flush()
        fs.store.snapshot("f", "snap")
    assert (fs.cat("snap"), fs.cat("f")) == (b"old", b"old" + b"x" * 100)


def test_records_come_back_once_each_without_padding(fs: GFSFileSystem) -> None:
    picks = random.Random(7)
    limit = CHUNK_BYTES // 4 - HEADER.size
    records = [picks.randbytes(picks.choice([0, 1, 100, limit])) for _ in range(60)]
    offsets = []
    for number, record in enumerate(records):
        offsets.append(fs.append_record("r", record, record_id=number.to_bytes(16)))
        if number % 7 == 0:
            fs.append_record("r", record, record_id=number.to_bytes(16))  # a retry after a lost answer
    assert list(fs.read_records("r")) == records
    assert offsets == sorted(offsets)
    for offset, record in zip(offsets, records, strict=True):
        assert fs.cat_file("r", offset + HEADER.size, offset + HEADER.size + len(record)) == record
        assert offset // CHUNK_BYTES == (offset + HEADER.size + len(record) - 1) // CHUNK_BYTES
    with pytest.raises(RecordTooLarge, match=rf"{limit} bytes"):
        fs.append_record("r", b"x" * (limit + 1))
    assert list(fs.read_records("r")) == records


# Deleting


def test_a_deleted_file_can_be_read_under_its_hidden_name_and_brought_back(fs: GFSFileSystem) -> None:
    fs.pipe({"d/a": b"1", "d/e/b": b"2"})
    fs.rm("d", recursive=True)
    assert fs.find("/") == []
    assert fs.ls("/") == []
    (deleted,) = fs.store.deleted()
    assert (deleted.path, deleted.files, deleted.size) == ("/d", 2, 2)
    assert fs.cat(f"{deleted.hidden_path}/e/b") == b"2"
    fs.pipe("d/a", b"newer")
    assert fs.store.undelete("d/e/b") == "/d/e/b"
    with pytest.raises(FileExistsError):
        fs.store.undelete("d")
    fs.rm("d/a")
    assert fs.store.undelete("d/a") == "/d/a"
    assert (fs.cat("d/a"), fs.cat("d/e/b")) == (b"newer", b"2")
    with pytest.raises(FileNotFoundError, match="nothing deleted"):
        fs.store.undelete("d/other")
    with pytest.raises(BadName, match="undelete"):
        fs.pipe("/.deleted/x", b"x")


def test_the_latest_deletion_comes_back_first(fs: GFSFileSystem) -> None:
    for value in (b"1", b"2", b"3"):
        fs.pipe("f", value)
        fs.rm("f")
    assert fs.store.undelete("f") == "/f"
    assert fs.cat("f") == b"3"
    fs.mv("f", "third")
    assert (fs.store.undelete("f"), fs.cat("f")) == ("/f", b"2")
    oldest = fs.store.deleted("f")[0]
    fs.rm("f")
    assert fs.store.undelete(oldest.hidden_path) == "/f"
    assert fs.cat("f") == b"1"


def test_gc_removes_what_is_old_enough_and_nothing_else(fs: GFSFileSystem) -> None:
    fs.pipe({"kept": b"k", "f": b"x" * 200_000})
    fs.rm("f")
    assert fs.store.gc().deleted_entries == 0
    assert fs.store.undelete("f") == "/f"
    fs.rm("f")
    report = fs.store.gc(older_than_s=0)
    assert (report.deleted_entries, report.chunks) == (1, 4)
    assert len(replica_files(fs)) == 4
    assert fs.store.deleted() == []
    assert fs.cat("kept") == b"k"
    fs.rm("kept")
    fs.rm(fs.store.deleted()[0].hidden_path)  # deleting again expedites it
    assert replica_files(fs) == []


def test_drop_frees_the_bytes_at_once(fs: GFSFileSystem) -> None:
    fs.pipe({"run/a": b"x" * 200_000, "run/b/c": b"y"})
    assert fs.drop("run")
    assert not fs.drop("run")
    assert replica_files(fs) == []
    assert fs.store.deleted() == []
    assert sum(server.used_bytes for server in fs.store.servers()) == 0


def test_files_nobody_knows_are_orphans_and_collected(fs: GFSFileSystem) -> None:
    fs.pipe("f", b"x")
    folder = fs.store.root / "servers" / "s1" / "ff"
    folder.mkdir()
    (folder / "00000000000fffff.chunk").write_bytes(b"?")
    (folder / "notes.txt").write_text("not a replica: left alone")
    assert fs.store.gc().orphans == 1
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert fs.cat("f") == b"x"


# Settings


@pytest.mark.parametrize(
    "bad", [{"servers": 0}, {"replication": 0}, {"chunk_bytes": 10}, {"gc_after_s": -1.0}, {"servers": 10**6}]
)
def test_a_setting_outside_its_range_is_refused_and_nothing_made(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=next(iter(bad))):
        Store.create(tmp_path / "store", **bad)
    assert not (tmp_path / "store").exists()


def test_settings_can_be_changed_and_old_files_keep_theirs(fs: GFSFileSystem) -> None:
    fs.pipe("old", b"x" * 200_000)
    assert fs.store.change_settings(chunk_bytes=100_000, replication=1).chunk_bytes == 100_000
    fs.pipe("new", b"x" * 200_000)
    assert [len(fs.locations(path)) for path in ("old", "new")] == [4, 2]
    assert fs.info("new")["replication"] == 1
    with pytest.raises(BadSetting, match="settings are"):
        fs.store.change_settings(speed=3)
    with pytest.raises(FileExistsError, match="a store already"):
        Store.create(fs.store.root)


def test_durable_files_are_published_like_others(fs: GFSFileSystem) -> None:
    durable = GFSFileSystem(root=fs.root, durable=True)
    durable.pipe("f", b"x" * 200_000)
    with durable.open("f", "ab") as file:
        file.write(b"y")
    assert fs.cat("f") == b"x" * 200_000 + b"y"
