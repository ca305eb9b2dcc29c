"""``mr fs`` against local trees, hashes, and the files that lie in the servers' folders."""

from __future__ import annotations

import hashlib
import io
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from jobs.cli import main
from jobs.cli.fs import fs as fs_group

NAMES = ("plain.txt", "log[1].txt", "log1.txt", "a b", "a%20b", "q?.txt", "*", "#1", "naïve")


@dataclass(frozen=True, kw_only=True)
class Answer:
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


Command = Callable[..., Answer]


@pytest.fixture
def fs(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run ``mr fs ...`` in this process and check its exit status."""

    def run(*words: object, stdin: bytes = b"", status: int = 0) -> Answer:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(["fs", *map(str, words)])
        out, err = capsysbinary.readouterr()
        assert stopped.value.code == status, (words, out, err)
        return Answer(out=out, err=err.decode())

    return run


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A folder with awkward names, an empty file, an empty folder and a file of several chunks."""
    folder = tmp_path / "local"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "empty folder").mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(f"{number} {name}\n".encode())
    (folder / "sub" / "nothing").write_bytes(b"")
    (folder / "sub" / "deep" / "large.bin").write_bytes(random.Random(7).randbytes(150_000))
    return folder


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return relative names with their bytes, None for a folder."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


def replicas(root: Path, server: str = "*") -> list[Path]:
    return sorted(root.glob(f"servers/{server}/??/*.chunk"))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def root(fs: Command, home: Path) -> Path:
    """The default store, with four servers in two racks and small chunks."""
    fs("init", "--servers", 4, "--rack", "east", "--rack", "west", "--chunk-size", "32KiB")
    return home / "store"


def all_commands() -> Iterator[tuple[str, click.Command]]:
    for name, command in fs_group.commands.items():
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in command.commands.items())
        else:
            yield name, command


COMMANDS = dict(all_commands())


@pytest.mark.parametrize(("name", "command"), COMMANDS.items(), ids=COMMANDS)
def test_every_command_has_a_help_line_that_fits_and_takes_root(
    name: str, command: click.Command, fs: Command
):
    line = command.get_short_help_str(limit=60)
    assert line
    assert not line.endswith("...")
    assert "--root" in fs(*name.split(), "--help").out.decode()


FAILURES = {
    "init": ("init", "there is a store already"),
    "ls": ("ls /none", "/none: no such file or folder"),
    "put": ("put none.txt /f", "none.txt: no such local file"),
    "get": ("get /none .", "/none: no such file or folder"),
    "cat": ("cat /folder", "/folder: is a folder"),
    "rm": ("rm /folder", "give -r"),
    "mv": ("mv /folder /folder/below", "cannot go into itself"),
    "cp": ("cp /file /file", "are the same"),
    "mkdir": ("mkdir /no/such/parent", "give -p"),
    "append": ("append none.txt /file", "none.txt: No such file"),
    "du": ("du s3://bucket/key", "s3://bucket/key: mr fs works on the store's paths"),
    "df": ("df --root nowhere", "there is no store"),
    "stat": ("stat /fil?z", "/fil?z: no such file or folder"),
    "setrep": ("setrep 2 /none", "/none: no such file or folder"),
    "snapshot": ("snapshot /file /folder", "/folder: File exists"),
    "undelete": ("undelete /file", "nothing deleted has this name"),
    "fsck": ("fsck /none", "/none: No such file"),
    "repair": ("repair --root nowhere", "there is no store"),
    "balance": ("balance --root nowhere", "there is no store"),
    "gc": ("gc --root nowhere", "there is no store"),
    "server ls": ("server ls --root nowhere", "there is no store"),
    "server add": ("server add s1", "there is a server of that name"),
    "server drain": ("server drain s9", "no server 's9'; this store has s1, s2, s3, s4"),
    "server kill": ("server kill s9", "no server 's9'; this store has s1, s2, s3, s4"),
    "server revive": ("server revive s9", "no server 's9'; this store has s1, s2, s3, s4"),
}


def test_a_failure_of_every_command_is_known_here():
    assert set(FAILURES) == set(COMMANDS)


def test_an_empty_name_is_no_name_of_the_root_or_of_this_folder(fs: Command, local: Path):
    fs("put", local, "/data")
    assert "the name of a local file is empty" in fs("put", "", "/f", status=1).err
    for words in (["put", local, ""], ["rm", "-r", ""], ["ls", ""]):
        assert "the name of a path is empty" in fs(*words, status=1).err


def test_every_command_fails_in_one_line_and_changes_nothing(
    fs: Command, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    fs("mkdir", "/folder")
    fs("put", "-", "/file", stdin=b"as it was")
    fs("put", "-", "/folder/inside", stdin=b"as it was")
    before = fs("ls", "-R", "-l").out
    for words, message in FAILURES.values():
        answer = fs(*words.split(), status=1)
        assert answer.out == b""
        assert answer.err.startswith("mr: ")
        assert answer.err.count("\n") == 1
        assert message in answer.err
    assert fs("ls", "-R", "-l").out == before
    assert fs("fsck").lines[-1] == "The store is HEALTHY"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", ["init --servers 0", "setrep 0 /", "init --chunk-size 3parsecs", "ls --no-such", "put - a /b"]
)
def test_a_wrong_command_line_exits_2_and_makes_no_store(words: str, fs: Command, home: Path):
    assert "Error: " in fs(*words.split(), status=2).err
    assert list(home.rglob("servers")) == []


def test_a_folder_put_and_got_is_the_same_folder(fs: Command, root: Path, local: Path, tmp_path: Path):
    fs("put", local, "/data")
    fs("get", "/data", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(local)
    names = [line.removeprefix("/data/").rstrip("/") for line in fs("ls", "-R", "/data").lines]
    assert sorted(names) == sorted(tree(local))


def test_into_a_folder_a_copy_keeps_its_name_whatever_slash_was_typed(
    fs: Command, local: Path, tmp_path: Path
):
    fs("put", f"{local}/", "/new/")
    fs("mkdir", "/there")
    fs("put", f"{local}/", local / "plain.txt", "/there")
    (tmp_path / "out").mkdir()
    fs("get", "/new/local", "/there/plain.txt", tmp_path / "out")
    assert tree(tmp_path / "out") == {
        "plain.txt": (local / "plain.txt").read_bytes(),
        "local": None,
        **{f"local/{name}": data for name, data in tree(local).items()},
    }
    assert fs("ls", "/there").lines == ["/there/local/", "/there/plain.txt"]


def test_a_name_that_exists_is_never_taken_for_a_pattern(
    fs: Command, root: Path, local: Path, tmp_path: Path
):
    data = {name: (local / name).read_bytes() for name in NAMES}
    for name in NAMES:
        fs("put", local / name, f"/{name}")
    assert fs("cat", "/log[1].txt", "/*", "/q?.txt").out == data["log[1].txt"] + data["*"] + data["q?.txt"]
    fs("cp", "/log[1].txt", "/copy[2].txt")
    fs("mv", "/q?.txt", "/r?.txt")
    fs("get", "/a%20b", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == data["a%20b"]
    fs("rm", "/log[1].txt", "/*")
    assert fs("cat", "/log1.txt", "/copy[2].txt", "/r?.txt").out == (
        data["log1.txt"] + data["log[1].txt"] + data["q?.txt"]
    )
    # What does not exist as typed is a pattern.
    assert fs("ls", "/log[0-9].txt", "/*%*").lines == ["/log1.txt", "/a%20b"]


def test_one_file_has_one_name_however_typed(fs: Command, root: Path):
    fs("put", "-", "gfs://a/b", stdin=b"x")
    for typed in ("/a/b", "a/b", "gfs://a/b", "gfs:///a//b", "/a/./b/", "/../a/c/../b"):
        assert fs("ls", typed).lines == ["/a/b"]


def test_what_exists_is_replaced_only_when_asked(fs: Command, root: Path, local: Path, tmp_path: Path):
    target = tmp_path / "f"
    fs("put", local / "plain.txt", "/f")
    fs("put", "-", "/g", stdin=b"other")
    fs("get", "/f", target)
    for words in (("put", local / "log1.txt", "/f"), ("put", "-", "/f"), ("get", "/g", target), ("cp", "/g", "/f"),
                  ("mv", "/g", "/f")):  # fmt: skip
        assert "--overwrite" in fs(*words, status=1).err
    assert fs("cat", "/f").out == target.read_bytes() == (local / "plain.txt").read_bytes()
    fs("put", "--overwrite", local / "log1.txt", "/f")
    assert fs("cat", "/f").out == (local / "log1.txt").read_bytes()
    fs("get", "--overwrite", "/g", target)
    assert target.read_bytes() == b"other"
    fs("mv", "--overwrite", "/g", "/f")
    assert fs("ls").lines == ["/f"]
    assert fs("cat", "/f").out == b"other"


def test_a_put_that_finds_no_room_takes_back_what_it_made(fs: Command, home: Path, local: Path):
    fs("init", "--servers", 1, "--chunk-size", "32KiB")
    fs("server", "add", "tiny", "--capacity", "100KB")
    fs("server", "drain", "s1")
    fs("mkdir", "/kept")
    (local / "zz last").write_bytes(b"once large.bin is there, the server is full")
    assert "tiny" in fs("server", "ls").lines[1]
    assert "no live chunk server has room" in fs("put", local, "/kept/new/data", status=1).err
    assert fs("ls", "-R").lines == ["/kept/"]
    assert replicas(home / "store") == []


def test_a_get_that_meets_a_lost_chunk_leaves_nothing_local(
    fs: Command, root: Path, local: Path, tmp_path: Path
):
    fs("put", local, "/data")
    fs("setrep", "-w", 1, "/data")
    largest = max(replicas(root), key=lambda path: (path.stat().st_size, path.name))
    largest.unlink()
    error = fs("get", "/data", tmp_path / "deep" / "back", status=1).err
    assert "large.bin" in error
    assert not (tmp_path / "deep").exists()
    answer = fs("fsck", status=1)
    assert answer.lines[-1] == "The store is DAMAGED"
    assert any("large.bin" in line and " lost" in line for line in answer.lines)
    assert "1 chunk lost" in fs("repair", status=1).out.decode()
    fs("rm", "-r", "--forever", "/data")
    assert fs("fsck").lines[-1] == "The store is HEALTHY"


def test_a_killed_server_is_named_by_fsck_and_made_good_by_repair(fs: Command, root: Path, local: Path):
    fs("put", local, "/data")
    before = len(replicas(root))
    lost = len(replicas(root, "s2"))
    assert lost
    assert f"{lost} replica" in fs("server", "kill", "s2").out.decode()
    assert any(line.split()[:2] == ["s2", "dead"] for line in fs("server", "ls").lines)
    report = fs("fsck").lines
    assert sum(" under: 2 of 3 replicas" in line for line in report) == lost
    assert report[-1] == "The store is HEALTHY"
    assert "to repair: mr fs repair" in report
    assert not any("server add" in line for line in report)  # three of the four servers are enough
    fs("repair")
    assert fs("fsck").lines[-1] == "The store is HEALTHY"
    assert not any(" under" in line for line in fs("fsck").lines[:-12])
    assert len([path for path in replicas(root) if ".killed" not in str(path)]) == before
    fs("server", "revive", "s2")
    fs("repair")
    assert len(replicas(root)) == before
    large = (local / "sub" / "deep" / "large.bin").read_bytes()
    assert digest(fs("cat", "/data/sub/deep/large.bin").out) == digest(large)


def test_fsck_asks_for_a_server_only_where_there_are_too_few(fs: Command, root: Path, local: Path):
    fs("put", local, "/data")
    for name in ("s1", "s2"):
        fs("server", "kill", name)
    report = fs("fsck").lines
    at = report.index(
        "3 replicas need a live server each, live now: 2; add 1 server first (mr fs server add)"
    )
    assert report[at + 1] == "to repair: mr fs repair"
    fs("server", "add", "s9")
    fs("repair")
    report = fs("fsck").lines
    assert not any("server add" in line or line.startswith("to repair") for line in report)


def test_draining_servers_one_after_the_other_loses_nothing(
    fs: Command, root: Path, local: Path, tmp_path: Path
):
    fs("put", local, "/data")
    for name in ("s1", "s2", "s3"):
        fs("server", "drain", name)
        assert not (root / "servers" / name).exists()
    error = fs("server", "drain", "s4", status=1).err
    assert "no other live server" in error
    assert "mr fs server add" in error
    assert fs("server", "ls").out.split()[5:7] == [b"s4", b"live"]
    fs("get", "/data", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(local)


def test_a_flipped_byte_is_read_around_found_and_repaired(fs: Command, root: Path, local: Path):
    large = local / "sub" / "deep" / "large.bin"
    fs("put", large, "/large")
    victim = max(replicas(root), key=lambda path: path.stat().st_size)
    with victim.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    assert digest(fs("cat", "/large").out) == digest(large.read_bytes())
    report = fs("fsck", status=1).lines
    assert any(" corrupt on " in line and str(victim) in line for line in report)
    assert report[-1] == "The store is DAMAGED"
    fs("repair")
    assert fs("fsck").lines[-1] == "The store is HEALTHY"
    assert digest(fs("cat", "/large").out) == digest(large.read_bytes())


def test_what_was_deleted_comes_back_until_it_is_collected(
    fs: Command, root: Path, local: Path, tmp_path: Path
):
    fs("put", local, "/data")
    fs("rm", "-r", "/data")
    assert fs("ls").lines == []
    assert [line.split()[-1] for line in fs("undelete").lines] == ["/data"]
    assert fs("undelete", "/data").lines == ["/data"]
    fs("get", "/data", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(local)
    fs("rm", "-r", "/data")
    fs("gc")
    assert replicas(root) != []  # younger than the store's three days
    fs("gc", "--older-than", 0)
    assert replicas(root) == []
    fs("undelete", "/data", status=1)


def test_a_snapshot_and_a_copy_do_not_see_later_appends(fs: Command, root: Path, local: Path):
    large = (local / "sub" / "deep" / "large.bin").read_bytes()
    fs("put", local / "sub", "/sub")
    files = replicas(root)
    assert fs("snapshot", "/sub", "/then").lines == ["/then: 2 files"]
    fs("cp", "/sub", "/copy")
    assert replicas(root) == files  # no bytes were copied
    fs("append", "-", local / "plain.txt", "/sub/deep/large.bin", stdin=b"more ")
    assert fs("cat", "/sub/deep/large.bin").out == large + b"more " + (local / "plain.txt").read_bytes()
    assert fs("cat", "/then/deep/large.bin").out == large
    fs("append", "-", "/copy/deep/large.bin", stdin=b"!")
    assert fs("cat", "/copy/deep/large.bin").out == large + b"!"
    assert fs("cat", "/then/deep/large.bin").out == large
    fs("append", "-", "/made", stdin=b"new")
    assert fs("cat", "/made").out == b"new"


def test_setrep_sets_the_replicas_of_files_there_and_of_new_ones(fs: Command, root: Path):
    fs("put", "-", "/folder/old", stdin=b"1234")
    assert len(replicas(root)) == 3
    fs("setrep", "-w", 1, "/folder")
    assert len(replicas(root)) == 1
    fs("put", "-", "/folder/new", stdin=b"5678")
    assert len(replicas(root)) == 2
    fs("setrep", 2, "/folder/old")
    assert len(replicas(root)) == 2  # only the goal has changed
    fs("repair")
    assert len(replicas(root)) == 3
    fs("put", "--replication", 4, "-", "/folder/four", stdin=b"9")
    assert len(replicas(root)) == 7
    assert "4 servers live" in fs("setrep", 5, "/folder/four").out.decode()


def test_du_and_stat_count_the_bytes_on_the_servers(fs: Command, root: Path, local: Path):
    fs("put", local, "/data")
    fs("cp", "/data/sub", "/data/again")
    size = {name: len(data) for name, data in tree(local).items() if data is not None}
    below = sum(count for name, count in size.items() if name.startswith("sub/"))
    summary = fs("du", "-s", "--bytes", "/data").lines[0].split()
    on_disk = sum(path.stat().st_size for path in replicas(root))
    assert summary == [str(sum(size.values()) + below), str(on_disk), "/data/"]
    lines = {line.split(maxsplit=2)[2]: line.split()[:2] for line in fs("du", "--bytes", "/data").lines}
    assert lines["/data/sub/"] == lines["/data/again/"] == [str(below), str(3 * below)]
    assert len(lines) == len(NAMES) + 3
    shown = fs("stat", "/data/sub/deep/large.bin").lines
    chunks = [line.split() for line in shown[shown.index("chunks       5") + 2 :]]
    assert [int(chunk[1]) for chunk in chunks] == [32768] * 4 + [150_000 - 4 * 32768]
    for _, length, handle, _, count, *servers in chunks:
        found = list(root.glob(f"servers/*/??/{int(handle):016x}.chunk"))
        assert sorted(path.parts[-3] for path in found) == servers
        assert [path.stat().st_size for path in found] == [int(length)] * int(count)
    table = {line.split()[0]: line.split() for line in fs("df").lines}
    assert {"s1", "s2", "s3", "s4"} <= set(table)
    assert table["files"][1] == str(len(size) + 2) + ","


def test_rm_forever_frees_the_replicas_at_once(fs: Command, root: Path, local: Path):
    fs("put", local, "/data")
    fs("rm", "-r", "--forever", "/data", "/data/sub/nothing")
    assert replicas(root) == []
    assert fs("undelete").lines == []


def test_balance_fills_a_new_server_and_changes_no_file(fs: Command, home: Path, local: Path, tmp_path: Path):
    fs("init", "--servers", 1, "--chunk-size", "32KiB")
    fs("server", "add", "old", "--capacity", "300KB")
    fs("server", "drain", "s1")
    fs("put", local, "/data")
    fs("server", "add", "new", "--capacity", "300KB", "--rack", "other")
    assert replicas(home / "store", "new") == []
    fs("balance")
    assert len(replicas(home / "store", "new")) >= 2
    fs("get", "/data", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(local)


def test_mv_moves_files_and_whole_folders(fs: Command, root: Path, local: Path, tmp_path: Path):
    fs("put", local, "/data")
    fs("mv", "/data", "/moved")
    fs("mv", "/moved/log1.txt", "/moved/plain.txt", "/moved/sub")
    (local / "log1.txt").rename(local / "sub" / "log1.txt")
    (local / "plain.txt").rename(local / "sub" / "plain.txt")
    fs("get", "/moved", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(local)
    assert fs("ls").lines == ["/moved/"]
    assert "must be a folder" in fs("mv", "/moved/sub", "/moved/a b", "/x", status=1).err


def test_what_no_store_can_hold_stops_a_put_before_it_begins(fs: Command, root: Path, local: Path):
    (local / "sub" / "link").symlink_to(local / "plain.txt")
    fs("put", local / "sub", "/followed")
    assert fs("cat", "/followed/link").out == (local / "plain.txt").read_bytes()
    (local / "sub" / "circle").symlink_to(local)
    assert "link to a folder that holds it" in fs("put", local, "/circle", status=1).err
    (local / "sub" / "circle").unlink()
    (local / "sub" / "dangling").symlink_to(local / "none")
    assert "sub/dangling: no such local file" in fs("put", local, "/dangling", status=1).err
    (local / "sub" / "dangling").unlink()
    os.mkfifo(local / "pipe")
    assert "neither a file nor a folder" in fs("put", local, "/pipe", status=1).err
    (local / "pipe").unlink()
    (local / os.fsdecode(b"\xff")).touch()
    assert "a name must be text that UTF-8 can hold" in fs("put", local, "/bytes", status=1).err
    assert fs("ls").lines == ["/followed/"]


def test_root_names_another_store_before_or_after_the_command(fs: Command, root: Path, tmp_path: Path):
    other = tmp_path / "other"
    fs("init", "--root", other, "--servers", 1)
    fs("put", "-", "/f", "--root", other, stdin=b"other")
    assert fs("--root", other, "cat", "/f").out == b"other"
    assert fs("server", "--root", other, "ls").lines[1].split()[0] == "s1"
    assert fs("ls").lines == []
    assert len(replicas(other)) == 1


def test_metadata_that_is_no_database_is_named(fs: Command, tmp_path: Path):
    (tmp_path / "master.db").write_bytes(random.Random(1).randbytes(8192))
    error = fs("ls", "--root", tmp_path, status=1).err
    assert error.startswith(f"mr: {tmp_path / 'master.db'}: file is not a database")
    assert error.count("\n") == 1


def test_help_loads_neither_the_store_nor_its_libraries():
    code = (
        "import sys; from jobs.cli import main\n"
        "try: main(['fs', '--help'])\n"
        "except SystemExit: print(sorted({'fsspec', 'gfs_sim', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"
    assert "fsck" in shown
