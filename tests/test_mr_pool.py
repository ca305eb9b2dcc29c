"""Stages on real worker processes that fail in each way, one kind of death a hundred times, against a sequential run.

Workers import nothing here (``preload=()``): what is tested is processes, and they start faster so.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from mapreduce.errors import BadKey, FunctionFailed, MemoryExceeded, OutputFailed, WorkerFailed
from mapreduce.pool import (
    Event,
    MapOutputLost,
    Pool,
    StageResult,
    Task,
    TaskInfo,
    run_stage,
)

# Workers get this module's classes by value: they need not import pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KILLS = 20


class Squares:
    """Maps write squares to files, reduces add those of one residue class; ``hurt`` may break an attempt."""

    def __init__(self, hurt: Callable[[TaskInfo], None] = lambda task: None) -> None:
        self.hurt = hurt

    def run_map(self, payload: int, task: TaskInfo) -> str:
        path = os.path.join(task.scratch, "square")
        with open(path, "w") as file:
            file.write(str(payload * payload))
        task.counters["squares"] += 1
        task.meter.records_in += 1
        task.meter.count_read(8, stored=False)
        self.hurt(task)
        return path

    def run_reduce(self, payload: int, map_results: list[str], task: TaskInfo) -> int:
        total = 0
        for path in map_results:
            with open(path) as file:
                square = int(file.read())
            if square % 3 == payload:
                total += square
        task.counters["sums"] += 1
        self.hurt(task)
        return total


class Published:
    """What was committed, how often."""

    def __init__(self) -> None:
        self.times: Counter[Task] = Counter()
        self.results: dict[Task, Any] = {}

    def __call__(self, task: Task, attempt: int, result: Any) -> None:
        self.times[task] += 1
        self.results[task] = result


def run_hurt(
    tmp_path: Path,
    hurt: Callable[[TaskInfo], None],
    *,
    maps: int = KILLS,
    workers: int = 4,
    timeout_s: float = 60.0,
    **given: Any,
) -> StageResult:
    """Run maps and 3 reduces whose first attempts are hurt; check that nothing is lost or doubled."""
    published = Published()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with make_pool(scratch, workers=workers, timeout_s=timeout_s) as pool:
        result = run_stage(
            pool, maps=range(maps), reduces=3, program=Squares(hurt), commit=published, **given
        )  # fmt: skip
    squares = [n * n for n in range(maps)]
    sums = [sum(s for s in squares if s % 3 == rest) for rest in range(3)]
    assert result.reduce_results == sums
    assert published.results == {Task("reduce", i): sums[i] for i in range(3)}
    assert set(published.times.values()) == {1}
    assert result.counters == {"squares": maps, "sums": 3}
    assert [f for f in scratch.iterdir() if f.is_dir()] == []
    return result


def make_pool(scratch: Path, *, workers: int = 2, **given: Any) -> Pool:
    return Pool(workers, memory_bytes=1 << 30, scratch=str(scratch), preload=(), **given)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with make_pool(tmp_path) as pool:
        yield pool


def use_memory(count: int) -> None:
    """Use memory that goes back to the system at once, whatever the C library keeps."""
    with mmap.mmap(-1, count) as memory:
        for start in range(0, count, 4096):
            memory[start] = 1


def is_gone(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def wait_until_gone(pid: int) -> None:
    """Wait for a process that was killed: a signal only asks."""
    deadline = time.monotonic() + 60
    while not is_gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def outcomes(result: StageResult) -> Counter[str]:
    return Counter(row.outcome for row in result.rows)


# --- many deaths of each kind ---


def test_a_hundred_workers_killed_while_busy_cost_no_record_and_add_none(tmp_path: Path) -> None:
    def hurt(task: TaskInfo) -> None:
        if task.attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    result = run_hurt(tmp_path, hurt, maps=100)
    lost = [row for row in result.rows if row.outcome == "lost"]
    assert len(lost) >= 100
    assert all("killed by signal 9 (SIGKILL)" in row.message for row in lost)


def test_twenty_workers_that_die_in_the_middle_of_a_message_cost_only_their_attempts(
    tmp_path: Path,
) -> None:
    def hurt(task: TaskInfo) -> None:
        if task.attempt == 0:
            numbers = [int(fd) for fd in os.listdir("/proc/self/fd")]
            (pipe,) = (fd for fd in numbers if "socket:" in os.path.realpath(f"/proc/self/fd/{fd}"))
            os.write(pipe, struct.pack(">Q", 1000) + b"the first half of a result")
            os._exit(3)

    result = run_hurt(tmp_path, hurt)
    lost = [row for row in result.rows if row.outcome == "lost"]
    assert len(lost) >= KILLS
    assert all("ended with exit status 3" in row.message for row in lost)


def test_twenty_workers_that_stop_in_silence_are_replaced(tmp_path: Path) -> None:
    def hurt(task: TaskInfo) -> None:
        if task.attempt == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    # More attempts than usual: on a busy machine a healthy worker may seem silent for 1 s.
    result = run_hurt(tmp_path, hurt, workers=10, timeout_s=1.0, max_attempts=50)
    lost = [row for row in result.rows if row.outcome == "lost"]
    assert len(lost) >= KILLS
    assert all("was silent for" in row.message for row in lost)


def test_twenty_attempts_that_raise_cost_no_worker(tmp_path: Path) -> None:
    def hurt(task: TaskInfo) -> None:
        if task.attempt == 0:
            raise [ValueError("bad"), SystemExit(2), KeyboardInterrupt()][task.index % 3]

    result = run_hurt(tmp_path, hurt)
    assert outcomes(result) == {"failed": KILLS + 3, "done": KILLS + 3}
    assert {row.worker for row in result.rows} <= {0, 1, 2, 3}


def test_a_worker_killed_twenty_times_while_idle_costs_only_the_maps_on_its_disk(
    tmp_path: Path, pool: Pool
) -> None:
    release = tmp_path / "release"

    def hurt(task: TaskInfo) -> None:
        while (task.kind, task.index) == ("map", 0) and not release.exists():
            time.sleep(0.01)

    kills = 0

    def kill_when_idle(event: Event) -> None:
        nonlocal kills
        if event.outcome == "done" and event.task == Task("map", 1):
            if kills < KILLS:
                kills += 1
                os.kill(pool.processes[event.worker], signal.SIGKILL)
            else:
                release.touch()

    result = run_stage(pool, maps=[2, 3], reduces=3, program=Squares(hurt), on_event=kill_when_idle)
    assert kills == KILLS
    assert result.reduce_results == [9, 4, 0]
    assert result.counters == {"squares": 2, "sums": 3}
    assert outcomes(result)["lost"] == 0  # idle: no attempt was charged


# --- other ways to go wrong ---


def test_workers_are_kept_between_stages_and_one_killed_meanwhile_is_replaced(pool: Pool) -> None:
    run_stage(pool, maps=range(4), reduces=3, program=Squares())
    before = pool.processes
    os.kill(before[0], signal.SIGKILL)
    wait_until_gone(before[0])  # until then the other worker could do everything
    assert run_stage(pool, maps=range(4), reduces=3, program=Squares()).reduce_results == [9, 5, 0]
    assert pool.processes[1] == before[1]
    assert 0 not in pool.processes


def test_a_stopped_worker_does_not_hold_up_a_large_message(tmp_path: Path) -> None:
    class Length:
        def run_map(self, payload: bytes, task: TaskInfo) -> int:
            return len(payload)

        run_reduce: Any = None

    with make_pool(tmp_path, workers=1, timeout_s=1.0) as pool:
        run_stage(pool, maps=[b""], reduces=0, program=Length())
        os.kill(pool.processes[0], signal.SIGSTOP)
        result = run_stage(pool, maps=[bytes(8_000_000)], reduces=0, program=Length(), max_attempts=20)
        assert result.map_results == [8_000_000]


def test_a_death_hidden_by_a_forked_child_is_found_and_the_child_ended(tmp_path: Path, pool: Pool) -> None:
    def hurt(task: TaskInfo) -> None:
        if (task.kind, task.index, task.attempt) == ("map", 0, 0):
            child = os.fork()
            if child == 0:
                time.sleep(1000)
            (tmp_path / "child").write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)

    assert run_stage(pool, maps=[2], reduces=3, program=Squares(hurt)).reduce_results == [0, 4, 0]
    wait_until_gone(int((tmp_path / "child").read_text()))


def test_a_task_that_kills_every_worker_fails_the_stage_and_names_itself(pool: Pool) -> None:
    class Piece:
        def __mul__(self, other: object) -> int:
            os.kill(os.getpid(), signal.SIGSEGV)
            return 0

        def describe(self) -> str:
            return "logs/a.txt bytes 0-100"

    with pytest.raises(WorkerFailed) as caught:
        run_stage(pool, maps=[1, Piece()], reduces=0, program=Squares(), max_attempts=2)
    message = str(caught.value)
    assert message.startswith("map 1 (logs/a.txt bytes 0-100) was given up after 2 attempts: worker ")
    assert "was killed by signal 11 (SIGSEGV)" in message


class TwoArguments(Exception):
    """Pickles, but does not unpickle: its arguments are not those of ``__init__``."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")


def test_an_exception_that_does_not_unpickle_is_reported_by_class_text_and_traceback(pool: Pool) -> None:
    def hurt(task: TaskInfo) -> None:
        raise TwoArguments(7, "the user's own words")

    with pytest.raises(FunctionFailed, match=r"map 0: TwoArguments: the user's own words \(7\)") as caught:
        run_stage(pool, maps=[1], reduces=0, program=Squares(hurt))
    assert 'raise TwoArguments(7, "the user\'s own words")' in caught.value.traceback_text
    assert "mapreduce" + os.sep + "worker.py" not in caught.value.traceback_text


def test_an_error_that_cannot_go_away_is_raised_under_its_own_class_after_one_attempt(pool: Pool) -> None:
    starts = []

    def hurt(task: TaskInfo) -> None:
        raise BadKey("a key is a set")

    with pytest.raises(BadKey, match=r"^a key is a set$"):
        run_stage(
            pool, maps=[1], reduces=0, program=Squares(hurt),
            on_event=lambda event: starts.append(event) if event.outcome == "start" else None,
        )  # fmt: skip
    assert len(starts) == 1


def test_a_full_disk_ends_the_stage_at_once_and_is_named(tmp_path: Path, pool: Pool) -> None:
    def hurt(task: TaskInfo) -> None:
        with open("/dev/full", "w") as file:
            file.write("x")

    with pytest.raises(
        OutputFailed, match=f"map 0 cannot write: .*No space left on device.*{tmp_path}/worker-"
    ):
        run_stage(pool, maps=[1], reduces=0, program=Squares(hurt))


def test_the_pool_works_on_after_a_stage_that_failed(pool: Pool) -> None:
    def hurt(task: TaskInfo) -> None:
        if task.index == 1:
            raise ValueError
        while True:  # the other worker never comes back by itself
            time.sleep(0.01)

    with pytest.raises(FunctionFailed):
        run_stage(pool, maps=[1, 2], reduces=0, program=Squares(hurt))
    assert run_stage(pool, maps=[2, 3], reduces=3, program=Squares()).reduce_results == [9, 4, 0]


def test_an_error_of_commit_comes_out_as_it_is(pool: Pool) -> None:
    def commit(task: Task, attempt: int, result: Any) -> None:
        raise PermissionError(13, "no right to write", "out")

    with pytest.raises(PermissionError, match="no right to write"):
        run_stage(pool, maps=[1], reduces=1, program=Squares(), commit=commit)


def test_what_cannot_travel_is_named(pool: Pool) -> None:
    class Generators:
        def run_map(self, payload: int, task: TaskInfo) -> Any:
            return (n for n in range(payload))

        run_reduce: Any = None

    with pytest.raises(FunctionFailed, match="cannot pickle 'generator' object"):
        run_stage(pool, maps=[1], reduces=0, program=Generators())
    with pytest.raises(FunctionFailed, match="cannot load the stage's functions: ModuleNotFoundError"):
        run_stage(pool, maps=[1], reduces=0, program=b"cno_such_module\nfunction\n.")


def test_a_map_output_that_is_gone_is_made_again(pool: Pool) -> None:
    class Forgetful(Squares):
        def run_reduce(self, payload: int, map_results: list[str], task: TaskInfo) -> int:
            if task.attempt == 0:
                os.unlink(map_results[1])
            try:
                return super().run_reduce(payload, map_results, task)
            except FileNotFoundError:
                raise MapOutputLost(1, task.map_attempts[1]) from None

    result = run_stage(pool, maps=[2, 3], reduces=1, program=Forgetful())
    assert result.reduce_results == [9]
    assert result.counters == {"squares": 2, "sums": 1}
    assert [(r.kind, r.task, r.attempt) for r in result.rows if r.outcome == "done"][-2:] == [
        ("map", 1, 1), ("reduce", 0, 1),
    ]  # fmt: skip


def test_a_worker_that_passes_its_memory_limit_says_so(tmp_path: Path) -> None:
    def hurt(task: TaskInfo) -> None:
        use_memory(300_000_000)

    with Pool(1, memory_bytes=100_000_000, scratch=str(tmp_path), preload=()) as pool:
        assert run_stage(pool, maps=[1], reduces=0, program=Squares()).counters == {"squares": 1}
        with pytest.raises(MemoryExceeded, match=r"used (2[6-9]|3\d)\d MB of --memory 100 MB .*in map 0"):
            run_stage(pool, maps=[1], reduces=0, program=Squares(hurt), max_raises=1)


def test_the_peak_memory_of_an_attempt_is_its_own(tmp_path: Path) -> None:
    def hurt(task: TaskInfo) -> None:
        if task.index == 0:
            use_memory(300_000_000)

    with make_pool(tmp_path, workers=1) as pool:
        first, second = run_stage(pool, maps=[1, 2], reduces=0, program=Squares(hurt)).rows
    assert first.peak_memory_bytes > 300_000_000
    assert second.peak_memory_bytes < 200_000_000


def test_prints_of_user_code_go_to_the_workers_log_however_long(tmp_path: Path) -> None:
    def hurt(task: TaskInfo) -> None:
        print("from", task.index)
        sys.stderr.write("x" * 3_000_000)
        os.write(2, b"y" * 100_000)

    (tmp_path / "logs").mkdir()
    with make_pool(tmp_path, workers=1) as pool:
        assert run_stage(pool, maps=[1, 2], reduces=0, program=Squares(hurt)).counters == {"squares": 2}
        pool.move_logs(tmp_path / "logs")
        pool.move_logs(tmp_path / "logs")
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert [line for line in log.splitlines() if line.startswith("from")] == ["from 0"]
    assert log.count("from 1") == 1
    assert (log.count("x"), log.count("y")) == (6_000_000, 200_000)


def test_workers_that_cannot_start_are_given_up(tmp_path: Path) -> None:
    with (
        Pool(2, memory_bytes=1, scratch=str(tmp_path), preload=("no_such_module",)) as pool,
        pytest.raises(WorkerFailed, match=r"did not start: .*ModuleNotFoundError: No module named 'no_such"),
    ):
        run_stage(pool, maps=[1], reduces=0, program=Squares())


def test_one_process_after_the_other_gives_the_same_as_many(tmp_path: Path, pool: Pool) -> None:
    many, one = Published(), Published()
    parallel = run_stage(pool, maps=range(20), reduces=3, program=Squares(), commit=many)
    with make_pool(tmp_path, workers=0) as none:
        sequential = run_stage(none, maps=range(20), reduces=3, program=Squares(), commit=one)
        assert none.processes == {}
    assert sequential.reduce_results == parallel.reduce_results
    assert sequential.counters == parallel.counters
    assert one.results == many.results
    assert not (tmp_path / "sequential").exists()


def test_in_sequence_the_users_own_exception_comes_out(tmp_path: Path) -> None:
    def hurt(task: TaskInfo) -> None:
        raise TwoArguments(7, "as it was")

    with make_pool(tmp_path, workers=0) as none, pytest.raises(TwoArguments):
        run_stage(none, maps=[1], reduces=0, program=Squares(hurt))


def test_progress_of_an_attempt_reaches_the_parent_while_it_runs(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def hurt(task: TaskInfo) -> None:
        while task.index == 0 and not seen.exists():
            time.sleep(0.01)

    def look(event: Event) -> None:
        if event.outcome == "running" and event.counters == {"squares": 1} and event.records_in == 1:
            seen.touch()

    with make_pool(tmp_path, workers=1, timeout_s=2.0) as pool:
        result = run_stage(pool, maps=[1], reduces=0, program=Squares(hurt), on_event=look, max_attempts=50)
    assert [(r.records_in, r.bytes_in) for r in result.rows if r.outcome == "done"] == [(1, 8)]
