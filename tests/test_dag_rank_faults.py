"""When a rank dies, raises, is late or brings something else: all others say so and name it, and nothing is left over."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from dask_cluster import started_cluster
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st

from dag.collectives import Comm, join, launch
from dag.collectives.rendezvous import TOKEN_BYTES, Door, Line, knock
from dag.collectives.verdicts import Where, judge
from dag.errors import BadCollective, GraphError, RankFailed, RanksDiffer

TRANSPORTS = ("shm", "tcp")


def witnessed(comm: Comm, folder: str, act: Callable[[Comm], Any]) -> Any:
    """Do ``act`` and write down what this rank saw fail, and its process."""
    # Shared memory has no name, so none can be left behind.
    assert "/dev/shm/" not in Path("/proc/self/maps").read_text()
    (Path(folder) / f"pid{comm.rank}").write_text(str(os.getpid()))
    try:
        return act(comm)
    except GraphError as error:
        (Path(folder) / f"saw{comm.rank}").write_text(f"{type(error).__name__}: {error}")
        raise


def seen(folder: Path) -> dict[int, str]:
    return {int(path.name[3:]): path.read_text() for path in folder.glob("saw*")}


def no_process_is_left(folder: Path) -> bool:
    pids = [int(path.read_text()) for path in folder.glob("pid*")]
    assert pids
    return not any(psutil.pid_exists(pid) for pid in pids)


@contextlib.contextmanager
def leaving_nothing(folder: Path) -> Any:
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    yield
    assert no_process_is_left(folder)
    for thread in threading.enumerate():
        if thread.name.startswith(("rank ", "door")):
            thread.join(5)
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def dies_before(comm: Comm) -> None:
    for turn in range(5):
        if turn == 2 and comm.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.allreduce(np.ones(1000))


def dies_inside(comm: Comm) -> None:
    for turn in range(5):
        if turn == 2 and comm.rank == 2:
            # Inside: its peers already exchange with it.
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
            comm.allreduce(np.ones(1000), wait=False)
            while True:
                comm.allreduce(np.ones(1000))
        if turn == 2:
            while True:
                comm.allreduce(np.ones(1000))
        comm.allreduce(np.ones(1000))


def exits(comm: Comm) -> None:
    comm.barrier()
    if comm.rank == 2:
        os._exit(3)
    comm.allreduce(np.ones(1000), algorithm="ring")


def raises(comm: Comm) -> None:
    comm.barrier()
    if comm.rank == 2:
        raise KeyError("no such key")
    comm.allreduce(np.ones(1000), algorithm="tree")


@pytest.mark.parametrize(
    ("transport", "act", "said"),
    [
        ("shm", dies_before, r"rank 2 was killed by signal 9 \(SIGKILL\)"),
        ("tcp", dies_before, r"rank 2 was killed by signal 9 \(SIGKILL\)"),
        ("shm", dies_inside, r"rank 2 was killed by signal 9 \(SIGKILL\)"),
        ("tcp", dies_inside, r"rank 2 was killed by signal 9 \(SIGKILL\)"),
        ("tcp", exits, "rank 2 ended with exit code 3 before its function returned"),
        ("shm", raises, "rank 2 raised KeyError: 'no such key'"),
    ],
)
def test_a_rank_that_ends_is_named_by_all_others_and_by_launch(
    act: Callable[[Comm], None], said: str, transport: str, tmp_path: Path
) -> None:
    with leaving_nothing(tmp_path), pytest.raises(RankFailed, match=said) as caught:
        launch(witnessed, 4, (str(tmp_path), act), timeout_s=20, transport=transport)
    assert caught.value.rank == 2
    assert {rank: text for rank, text in seen(tmp_path).items() if rank != 2} == dict.fromkeys(
        (0, 1, 3), f"RankFailed: {caught.value}"
    )
    if act is raises:
        assert isinstance(caught.value.__cause__, KeyError)
        line = raises.__code__.co_firstlineno + 3
        where = f'  File "{__file__}", line {line}, in raises\n    raise KeyError("no such key")\n'
        assert where in caught.value.traceback_text
        assert caught.value.traceback_text in "".join(caught.value.__notes__)


def late(comm: Comm, by_s: float) -> float:
    comm.barrier()
    if comm.rank == 3:
        time.sleep(by_s)  # what the test is about: a rank that computes for long
    return float(comm.allreduce(np.ones(3), algorithm="ring")[0])


class Late:
    def __init__(self, by_s: float) -> None:
        self.by_s = by_s

    def __call__(self, comm: Comm) -> float:
        return late(comm, self.by_s)


def test_a_slow_rank_is_waited_for_within_the_timeout(tmp_path: Path) -> None:
    assert launch(witnessed, 4, (str(tmp_path), Late(1.5)), timeout_s=30) == [4.0] * 4


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_is_too_late_is_named_also_by_those_who_wait_for_others(
    transport: str, tmp_path: Path
) -> None:
    with (
        leaving_nothing(tmp_path),
        pytest.raises(RankFailed, match=r"rank 3 is late.* within 2\.5 s") as caught,
    ):
        launch(witnessed, 4, (str(tmp_path), Late(60)), timeout_s=2.5, transport=transport)
    assert caught.value.rank == 3
    assert "collective 2: allreduce of float64 (3,), sum, ring" in str(caught.value)
    assert seen(tmp_path) == dict.fromkeys((0, 1, 2), f"RankFailed: {caught.value}")


def stops(comm: Comm) -> None:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.allreduce(np.ones(3))


def test_a_rank_that_is_stopped_is_late(tmp_path: Path) -> None:
    with leaving_nothing(tmp_path), pytest.raises(RankFailed, match="rank 1 is late: no answer"):
        launch(witnessed, 3, (str(tmp_path), stops), timeout_s=2.5)
    assert set(seen(tmp_path)) == {0, 2}


def leaves_early(comm: Comm) -> None:
    comm.barrier()
    if comm.rank != 1:
        comm.allreduce(np.ones(3))


def another_length(comm: Comm) -> None:
    comm.barrier()
    comm.allreduce(np.ones(5 if comm.rank == 2 else 4, np.float32))


def nothing_at_all(comm: Comm) -> None:
    comm.barrier()
    comm.allreduce(np.ones(0 if comm.rank == 2 else 4, np.float32))
    comm.barrier()  # who brought nothing has exchanged nothing, and is told here at the latest


def another_shape(comm: Comm) -> None:
    comm.allreduce(np.ones((2, 3) if comm.rank == 0 else (3, 2)), algorithm="ring")


def another_dtype(comm: Comm) -> None:
    comm.allreduce(np.ones(4, np.int32 if comm.rank == 1 else np.float32))


def another_operator(comm: Comm) -> None:
    comm.allreduce(np.ones(4), "max" if comm.rank == 1 else "sum", wait=False).wait()


def another_algorithm(comm: Comm) -> None:
    comm.allreduce(np.ones(4), algorithm="tree" if comm.rank == 1 else "ring")


def another_order(comm: Comm) -> None:
    calls = [lambda: comm.allreduce(np.ones(4)), lambda: comm.broadcast(np.ones(2))]
    for call in reversed(calls) if comm.rank == 2 else calls:
        call()


def another_root(comm: Comm) -> None:
    comm.broadcast(np.ones(2), root=1 if comm.rank == 2 else 0)
    comm.barrier()  # who has given all it has is told here at the latest


@pytest.mark.parametrize(
    ("transport", "act", "said"),
    [
        ("shm", another_length, "collective 2 .*: rank 2 calls allreduce of float32 (5,), sum, {}; ranks 0 and 1 call "
         "allreduce of float32 (4,), sum, {}"),
        ("tcp", nothing_at_all, "collective 2 .*: rank 2 calls allreduce of float32 (0,), sum, {}; ranks 0 and 1 call "
         "allreduce of float32 (4,), sum, {}"),
        ("tcp", another_shape, "collective 1 .*: rank 0 calls allreduce of float64 (2, 3), sum, ring; ranks 1 and 2 call "
         "allreduce of float64 (3, 2), sum, ring"),
        ("shm", another_dtype, "rank 1 calls allreduce of int32 (4,), sum, {}; ranks 0 and 2 call allreduce of float32"),
        ("tcp", another_operator, "rank 1 calls allreduce of float64 (4,), max, {}; ranks 0 and 2 call "),
        ("shm", another_algorithm, "rank 1 calls allreduce of float64 (4,), sum, tree; ranks 0 and 2 call "),
        ("tcp", another_order, "collective 1 .*: rank 2 calls broadcast of float64 (2,), binomial, root 0; ranks 0 and 1 call "),
        ("shm", another_root, "rank 2 calls broadcast of float64 (2,), binomial, root 1; ranks 0 and 1 call "),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_who_brings_what_at_all_ranks(
    act: Callable[[Comm], None], said: str, transport: str, tmp_path: Path
) -> None:
    pattern = said.replace("(", r"\(").replace(")", r"\)").replace("{}", r"\w+")
    begin = time.monotonic()
    with leaving_nothing(tmp_path), pytest.raises(RanksDiffer, match=pattern) as caught:
        launch(witnessed, 3, (str(tmp_path), act), timeout_s=100, transport=transport)
    assert time.monotonic() - begin < 50, "found by the timeout alone"
    assert seen(tmp_path) == dict.fromkeys((0, 1, 2), f"RanksDiffer: {caught.value}")


def test_a_rank_that_returns_early_is_named(tmp_path: Path) -> None:
    with (
        leaving_nothing(tmp_path),
        pytest.raises(
            RankFailed, match="rank 1 returned after 1 collective; ranks 0 and 2 wait in collective 2"
        ),
    ):
        launch(witnessed, 3, (str(tmp_path), leaves_early), timeout_s=100)
    assert set(seen(tmp_path)) == {0, 2}


def ends_with_another_root(comm: Comm) -> None:
    comm.broadcast(np.ones(1), root=1 if comm.rank == 1 else 0)


def ends_without_a_barrier(comm: Comm) -> None:
    comm.broadcast(np.ones(1))
    if comm.rank != 1:
        comm.allreduce(np.ones(0))  # of nothing: no message is missed


def test_what_nobody_noticed_is_noticed_when_all_have_returned() -> None:
    with pytest.raises(RanksDiffer, match="collective 1 is not the same"):
        launch(ends_with_another_root, 2, timeout_s=60)
    with pytest.raises(
        RankFailed, match=r"rank 1 returned without collective 2, which others called: allreduce of"
    ):
        launch(ends_without_a_barrier, 2, timeout_s=60)


def goes_on_after_a_fault(comm: Comm) -> list[str]:
    said = []
    for _ in range(2):
        try:
            comm.allreduce(np.ones(3 + comm.rank), wait=False).wait()
        except GraphError as error:
            said.append(str(error))
    return said


def test_a_fault_that_a_rank_swallows_is_raised_again_by_each_call_and_by_launch() -> None:
    with pytest.raises(RanksDiffer):
        launch(goes_on_after_a_fault, 2, timeout_s=100)


def never_waited_for(comm: Comm) -> None:
    comm.allreduce(np.ones(3), "max" if comm.rank else "sum", wait=False)


def test_a_fault_in_the_background_is_raised_though_nobody_waits() -> None:
    with pytest.raises(RanksDiffer, match=r"rank 1 calls .*max|rank 0 calls .*sum"):
        launch(never_waited_for, 2, timeout_s=100)


def gives_back_a_lock(comm: Comm) -> Any:
    return threading.Lock() if comm.rank else None


def test_a_result_that_cannot_travel_is_told() -> None:
    with pytest.raises(RankFailed, match="rank 1 raised TypeError: the result, lock, cannot be sent back"):
        launch(gives_back_a_lock, 2)


WAITING = """
    import os, sys, time
    import numpy as np
    from dag.collectives import launch

    def work(comm, folder):
        with open(f"{folder}/pid{comm.rank}", "w") as file:
            file.write(str(os.getpid()))
        comm.barrier()
        if comm.rank == 0:
            print("all there", flush=True)
            time.sleep(600)
        comm.barrier()

    launch(work, 3, (sys.argv[1],))
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_a_launcher_that_is_interrupted_or_killed(
    sent: signal.Signals, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WAITING), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "all there\n"
        process.send_signal(sent)
        _, error = process.communicate(timeout=30)
    pids = [int(path.read_text()) for path in tmp_path.glob("pid*")]
    ranks = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert not alive
    assert process.returncode == (-signal.SIGKILL if sent == signal.SIGKILL else process.returncode) != 0
    assert error.count("Traceback") == (
        1 if sent == signal.SIGINT else 0
    )  # the launcher's own, none of the ranks


def count_to(comm: Comm, calls: int) -> float:
    x = np.ones(1)
    for _ in range(calls):
        comm.allreduce(x, "mean")
    return float(x[0])


def test_two_runs_at_once_do_not_meet() -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(launch(count_to, 2, (50,), transport="tcp", timeout_s=60))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1.0, 1.0]] * 2


def joined(comm: Comm, scale: float) -> list[float]:
    return comm.allreduce(np.array([scale, float(comm.rank)])).tolist()  # type: ignore[no-any-return]


def elsewhere(started: list[subprocess.Popen[bytes]]) -> Callable[[str], None]:
    """Return what runs a launcher's command, as somebody would on another machine."""

    def run(command: str) -> None:
        token, *arguments = command.split()
        name, value = token.split("=")
        started.append(subprocess.Popen([sys.executable, *arguments[1:]], env={**os.environ, name: value}))

    return run


def test_ranks_from_elsewhere_join_by_the_command_that_the_launcher_gives() -> None:
    started: list[subprocess.Popen[bytes]] = []
    assert launch(joined, 3, (2.0,), here=1, invite=elsewhere(started), timeout_s=60) == [[6.0, 3.0]] * 3
    assert [process.wait(20) for process in started] == [0, 0]


def test_a_joined_rank_that_dies_is_named_and_the_other_ends(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(RankFailed, match="rank 2 is gone: its connection"):
        launch(witnessed, 4, (str(tmp_path), dies_before), here=1, invite=elsewhere(started), timeout_s=60)
    assert [process.wait(20) for process in started] == [1, -signal.SIGKILL, 1]
    assert no_process_is_left(tmp_path)
    assert set(seen(tmp_path)) == {0, 1, 3}


def computes_for_ever(comm: Comm) -> None:
    comm.barrier()
    if comm.rank == 0:
        raise ValueError("enough")
    while True:
        pass


def test_a_rank_elsewhere_that_still_computes_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dag.collectives.overseer.GRACE_S", 0.5)
    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(RankFailed, match="rank 0 raised ValueError: enough"):
        launch(computes_for_ever, 2, here=1, invite=elsewhere(started), timeout_s=60)
    assert started[0].wait(20) != 0


def test_who_lacks_the_token_or_names_another_run_is_refused() -> None:
    token = secrets.token_bytes(TOKEN_BYTES)
    entered: list[Line] = []
    door = Door("127.0.0.1", token, entered.append)
    try:
        with pytest.raises(RankFailed, match="does not have the token of this run"):
            join(door.address, 0, 2, secrets.token_bytes(TOKEN_BYTES))
        with socket.create_connection(("127.0.0.1", int(door.address.rpartition(":")[2]))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b" " * 100)
            stranger.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(1000):
                    pass
        assert not entered
        line = knock(door.address, token)
        line.send("hello")
        line.close()
    finally:
        door.close()
    with pytest.raises(RankFailed, match="rank 1 cannot join the run at"):
        join(door.address, 1, 2, token)
    with pytest.raises(BadCollective, match="host:port, got 'nonsense'"):
        join("nonsense", 1, 2, token)
    with pytest.raises(BadCollective, match="DAG_TOKEN does not hold the token"):
        join(door.address, 1, 2)


def test_a_place_that_is_taken_or_not_there_is_refused() -> None:
    said: list[str] = []

    def elsewhere(command: str) -> None:
        token, *arguments = command.split()
        address, rank, size = arguments[-3:]
        secret = bytes.fromhex(token.split("=")[1])
        for wrong in ((0, int(size)), (int(size), int(size)), (int(rank), 9)):
            with pytest.raises(BadCollective, match="the launcher refuses") as caught:
                join(address, *wrong, secret)
            said.append(str(caught.value))
        environment = {**os.environ, "DAG_TOKEN": token.split("=")[1]}
        subprocess.Popen([sys.executable, *arguments[1:]], env=environment)

    assert launch(joined, 2, (1.0,), here=1, invite=elsewhere, timeout_s=60) == [[2.0, 1.0]] * 2
    assert len(said) == 3


@pytest.mark.filterwarnings("ignore")
def test_ranks_run_on_the_workers_of_a_dask_cluster_and_a_fault_leaves_the_workers(tmp_path: Path) -> None:
    with started_cluster(str(tmp_path)) as cluster:
        cluster.add_workers(2)
        address = cluster.address
        assert launch(joined, 3, (2.0,), scheduler=address, timeout_s=60) == [[6.0, 3.0]] * 3
        with pytest.raises(RankFailed, match="rank 2 is gone"):
            launch(witnessed, 3, (str(tmp_path), dies_before), scheduler=address, timeout_s=60)
        assert set(seen(tmp_path)) == {0, 1}
        with Client(address, set_as_default=False) as client:  # the workers are there and answer
            assert sorted(client.run(lambda: 1).values()) == [1, 1]


def test_no_scheduler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dag.collectives.on_dask.CONNECT_S", 1)
    with pytest.raises(BadCollective, match=r"no Dask scheduler at tcp://127\.0\.0\.1:1"):
        launch(joined, 2, (1.0,), scheduler="tcp://127.0.0.1:1")


places = st.builds(
    lambda calls, inside, returned: Where(
        calls=len(calls),
        inside=inside and bool(calls) and not returned,
        recent=tuple(calls),
        returned=returned,
    ),
    st.lists(st.sampled_from("ab"), max_size=3),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(st.one_of(st.none(), places), min_size=2, max_size=5))
def test_a_judgement_names_a_rank_that_is_behind_or_differs_and_never_one_that_waits(
    standing: list[Where | None],
) -> None:
    verdict = judge(standing, timeout_s=1.0)
    number = max((place.calls for place in standing if place and place.inside), default=0)
    known = [place for place in standing if place is not None]
    differ = any(len({call for place in known if (call := place.call(at))}) > 1 for at in range(1, 4))
    if differ:
        assert isinstance(verdict, RanksDiffer)
    elif isinstance(verdict, RankFailed):
        blamed = standing[verdict.rank]
        assert blamed is None or (not blamed.inside and blamed.calls < number)
        assert str(pickle.loads(pickle.dumps(verdict))) == str(verdict)
    else:
        assert verdict is None
        assert not any(
            place is None or (not place.inside and place.calls < number) for place in standing if number
        )
