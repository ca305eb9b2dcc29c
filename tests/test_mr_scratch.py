"""What a run leaves when it ends, is interrupted or is killed; and messages that come in pieces."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapreduce.channel import Channel, encode_frame
from mapreduce.scratch import Scratch, remove_abandoned

SCRIPT = """
import os, subprocess, sys, time
from mapreduce.pool import Pool, run_stage
from mapreduce.scratch import Scratch

class Sleep:
    def run_map(self, payload, task):
        open(task.scratch + "/data", "w").write("data")
        subprocess.Popen(["sleep", "1000"])
        print("asleep", file=open(payload, "w"))
        time.sleep(1000)

def told(event):
    if event.outcome == "running" and all(map(os.path.exists, sys.argv[1:])):
        print("ready", flush=True)

# No main guard on purpose.
with Scratch() as scratch, Pool(2, memory_bytes=1 << 30, scratch=scratch.folder, preload=()) as pool:
    run_stage(pool, maps=sys.argv[1:], reduces=0, program=Sleep(), on_event=told)
"""


def marked_processes(mark: str) -> list[int]:
    """Processes that inherited ``mark`` in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and not is_gone(int(entry)):
            try:
                environment = Path("/proc", entry, "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in environment:
                found.append(int(entry))
    return found


def wait_until_gone(mark: str) -> None:
    """Wait for the processes that were killed: a signal only asks, and not all of them are the command's children."""
    deadline = time.monotonic() + 60
    while left := marked_processes(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A script in the middle of a stage whose tasks never end and have started processes of their own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "TMPDIR": str(temporary), "POOL_TEST_MARK": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "asleep0"), str(tmp_path / "asleep1")],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
    assert len(marked_processes(str(tmp_path))) >= 5
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_no_process_and_no_file(
    tmp_path: Path, sleeper: subprocess.Popen[str], times: int
) -> None:
    for _ in range(times):
        sleeper.send_signal(signal.SIGINT)
    _, said = sleeper.communicate(timeout=30)
    assert sleeper.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in said
    wait_until_gone(str(tmp_path))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_kill_9_takes_the_workers_along_and_the_next_run_removes_the_files(
    tmp_path: Path, sleeper: subprocess.Popen[str]
) -> None:
    temporary = str(tmp_path / "tmp")
    assert remove_abandoned(temporary) == []  # it lives
    sleeper.kill()
    sleeper.communicate(timeout=30)
    wait_until_gone(str(tmp_path))
    (left,) = (tmp_path / "tmp").iterdir()
    assert remove_abandoned(temporary) == [str(left)]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_scratch_folder_is_private_and_goes_with_its_block(tmp_path: Path) -> None:
    with Scratch(str(tmp_path)) as scratch:
        assert Path(scratch.folder).stat().st_mode & 0o777 == 0o700
        (Path(scratch.folder) / "file").write_text("data")
        assert remove_abandoned(str(tmp_path)) == []
        scratch.remove()
        assert list(tmp_path.iterdir()) == []
    assert remove_abandoned(str(tmp_path)) == []


def test_only_abandoned_scratch_folders_are_removed(tmp_path: Path) -> None:
    (tmp_path / "mrdag-young").mkdir()  # may be about to get its lock
    (tmp_path / "mrdag-old").mkdir()
    os.utime(tmp_path / "mrdag-old", (0, 0))
    (tmp_path / "other").mkdir()
    os.utime(tmp_path / "other", (0, 0))
    assert remove_abandoned(str(tmp_path)) == [str(tmp_path / "mrdag-old")]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["mrdag-young", "other"]


@given(messages=st.lists(st.binary(max_size=50), max_size=5), data=st.data())
def test_messages_arrive_whole_however_the_bytes_come(messages: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(m) for m in messages) + b"\0\0\0\0\0\0\0\x99half"
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    received = []
    with theirs:
        while stream:
            size = data.draw(st.integers(1, len(stream)))
            theirs.sendall(stream[:size])
            stream = stream[size:]
            received += channel.receive()
        assert not channel.closed
    assert received + channel.receive() == messages
    assert channel.closed
    channel.close()
