"""Every mistake and accident of ``mr run``: one line that says what, where and what to do, and nothing left."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from mr_command import MrCommand

from gfs_sim import GFSFileSystem

JOBS = """
import os, threading, time
from mapreduce import Stage, job

def count(key, values):
    yield key, sum(values)

def raises(offset, line):
    if line == "bad":
        raise KeyError("missing field")
    yield line, 1

@job
def raising(text):
    return Stage(name="parse", map=raises, reduce=count)(text)

@job
def raising_reduce(text):
    def divide(key, values):
        yield key, 1 / (sum(values) - 2)
    return Stage(name="divide", map=lambda o, line: [(line, 1)], reduce=divide)(text)

class Bad(Exception):
    def __init__(self, code, why):
        super().__init__(f"{code}: {why}")

@job
def unpicklable_error(text):
    def fails(offset, line):
        raise Bad(42, "cannot be rebuilt")
    return Stage(map=fails, reduce=count)(text)

@job
def killed(text):
    def fails(offset, line):
        if line == "bad":
            os.kill(os.getpid(), 9)
        yield line, 1
    return Stage(map=fails, reduce=count)(text)

@job
def sleeping(text):
    def slow(offset, line):
        open("started-%d" % os.getpid(), "w").close()
        os.system("sleep 600")
        yield line, 1
    return Stage(map=slow, reduce=count)(Stage(map=lambda o, line: [(o, line)])(text))

@job
def printing(text):
    def loud(offset, line):
        print("debug", line)
        yield line, 1
    def loud_count(key, values):
        print("reducing", key)
        yield key, sum(values)
    return Stage(map=loud, reduce=loud_count)(text)

@job
def keys_of_lists(text):
    return Stage(name="lists", map=lambda o, line: [([line], 1)], reduce=count)(text)

@job
def no_pairs(text):
    return Stage(name="plain", map=lambda o, line: [line], reduce=count)(text)

@job
def no_iterable(text):
    return Stage(name="plain", map=lambda o, line: 7, reduce=count)(text)

@job
def no_dataset(text):
    return 3

@job
def plan_raises(text):
    return Stage(map=undefined_name)(text)

@job
def second_round_raises(text):
    rows = yield Stage(map=lambda o, line: [(line, o)])(text)
    1 / (len(rows) - 3)

@job
def plan_exits(text):
    raise SystemExit(0)

@job
def overtaken(text):
    def other_run(offset, line):
        os.makedirs("out", exist_ok=True)
        open("out/keep", "w").close()
        yield line, 1
    return Stage(map=other_run)(text)

@job
def exits(text):
    def parse(offset, line):
        raise SystemExit(0)
    return Stage(map=parse)(text)

@job
def copied(text):
    return Stage(map=lambda o, line: [(line, o)], reduce=lambda k, vs: [(k, v) for v in vs])(text)

@job
def copied_twice(text):
    return Stage(map=lambda k, v: [(k, v)])(copied.function(text))

# A closure, a class and a generator of generators, as functions of a stage.
def make(n):
    return lambda offset, line: [(line, n)]

class Reducer:
    def __call__(self, key, values):
        yield key, sum(values)

@job
def closures(text):
    return Stage(map=make(2), reduce=Reducer())(text)

@job
def generators(text):
    def words(offset, line):
        if line.startswith("c"):
            return None
        return ((w, (x for x in range(3))) for w in line.split())
    return Stage(name="gen", map=words, reduce=lambda k, vs: iter([(k, sum(sum(v) for v in vs))]))(text)
"""


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> MrCommand:
    command = MrCommand(tmp_path, monkeypatch, capfd)
    Path("jobs_.py").write_text(JOBS)
    Path("in.txt").write_text("a\nb\na\n")
    return command


# ---------------------------------------------------------------- what cannot be run


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("absent.txt", "absent.txt does not exist"),
        ("no_such_*", "nothing matches no_such_*"),
        ("empty", "folder empty holds no file"),
        ("folder.txt", "folder folder.txt holds no file"),
        ("pipe", "pipe is neither a file nor a folder"),
        ("/proc/self/mem", "cannot read /proc/self/mem"),
        ("nope://x/y", "nope://x/y"),
    ],
)
def test_an_input_that_cannot_be_read_is_named(mr: MrCommand, given: str, says: str) -> None:
    Path("empty").mkdir()
    Path("folder.txt").mkdir()
    os.mkfifo("pipe")
    assert says in mr.refuse("wordcount", given)
    assert says in mr.refuse("wordcount", "in.txt", given)
    assert list((mr.home / "store").rglob("*.chunk")) == []


def test_all_missing_inputs_are_named_at_once(mr: MrCommand) -> None:
    said = mr.refuse("wordcount", "one.txt", "in.txt", "two.txt")
    assert "one.txt" in said
    assert "two.txt" in said


def test_an_existing_output_is_refused_before_any_task_and_kept(mr: MrCommand) -> None:
    Path("out").mkdir()
    Path("out/keep.txt").write_text("do not touch")
    assert "--overwrite" in mr.refuse("wordcount", "in.txt")
    assert Path("out/keep.txt").read_text() == "do not touch"
    assert sorted(mr.run("jobs_.py:closures", "in.txt", "--overwrite")) == [b"a\t4", b"b\t2"]
    assert not Path("out/keep.txt").exists()


def test_a_failed_run_with_overwrite_keeps_the_old_output(mr: MrCommand) -> None:
    old = mr.run("jobs_.py:closures", "in.txt")
    Path("in.txt").write_text("a\nbad\n")
    mr.fail("jobs_.py:raising", "in.txt", "--overwrite")
    assert b"".join(mr.parts()).splitlines() == old


@pytest.mark.parametrize(
    ("given", "output"),
    [
        ("in", "in"),
        ("in", "in/new"),
        ("in/*", "in/sub"),
        ("in/sub/*", "in"),
        ("in/sub/a.txt", "in"),
        ("in", "."),
    ],
)
def test_an_output_that_overlaps_the_input_is_refused(mr: MrCommand, given: str, output: str) -> None:
    Path("in/sub").mkdir(parents=True)
    Path("in/sub/a.txt").write_text("a\n")
    assert "inside the" in mr.refuse("wordcount", given, "--overwrite", output=output)
    assert Path("in/sub/a.txt").read_text() == "a\n"


def test_an_output_that_another_run_made_meanwhile_is_kept(mr: MrCommand) -> None:
    ended = mr("run", "jobs_.py:overtaken", "in.txt", "-o", "out", "--workers", 0, "--quiet")
    assert ended.code == 1
    assert "output out has been made by somebody else during this run, and is kept" in ended.complaint
    assert os.listdir("out") == ["keep"]
    assert [name for name in os.listdir() if name.startswith(".out")] == []
    mr.check_nothing_left()
    assert mr("run", "jobs_.py:overtaken", "in.txt", "-o", "out", "--quiet", "--overwrite").code == 0
    assert sorted(os.listdir("out")) == ["_SUCCESS", "part-00000.txt"]


def test_an_output_beside_what_a_pattern_matches_is_fine(mr: MrCommand) -> None:
    assert mr.run("distinct", "*.txt") == [b"a", b"b"]


def test_an_output_below_a_file_is_refused_before_any_task(mr: MrCommand) -> None:
    Path("blocker").write_text("I am a file")
    assert "blocker is a file, not a folder" in mr.refuse("wordcount", "in.txt", output="blocker/out")
    assert "blocker is a file, not a folder" in mr.refuse("wordcount", "in.txt", output="blocker/a/b/out")


@pytest.mark.parametrize("output", ["/", "gfs://", "gfs:///", "s3://bucket", "s3://bucket/"])
def test_the_root_of_a_filesystem_is_no_output(mr: MrCommand, output: str) -> None:
    assert f"output {output} is the root of a filesystem" in mr.refuse(
        "wordcount", "in.txt", "--overwrite", output=output
    )


def test_an_output_over_http_is_refused_before_anything_runs(mr: MrCommand) -> None:
    said = mr.refuse("wordcount", "in.txt", output="http://127.0.0.1:9/out")
    assert "nothing can be written over HTTP" in said


def test_a_remote_output_without_credentials_is_told_in_one_line(
    mr: MrCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(mr.folder))
    s3fs.S3FileSystem.clear_instance_cache()  # other tests have credentials
    assert "NoCredentialsError" in mr.refuse("wordcount", "in.txt", output="s3://no-such-bucket-here/out")


def test_dots_in_the_name_of_an_output_make_no_folder(mr: MrCommand) -> None:
    assert mr.run("distinct", "in.txt", output="absent/../out") == [b"a", b"b"]
    assert mr.parts("out") == [b"a\nb\n"]
    assert not Path("absent").exists()


def test_an_output_in_a_folder_without_the_right_to_write(mr: MrCommand) -> None:
    folder = Path("/proc/sys") if os.getuid() == 0 else mr.folder / "closed"
    if os.getuid() != 0:
        folder.mkdir(mode=0o500)
    assert f"cannot write {folder}/out" in mr.refuse("wordcount", "in.txt", output=f"{folder}/out")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import nothing_here", "job.py:1: ModuleNotFoundError: No module named 'nothing_here'"),
        ("x = 1\ndef f(:", "job.py:2: SyntaxError: invalid syntax"),
        ("raise ValueError('two\\nlines')", "job.py:1: ValueError: two lines"),
        ("import sys\nsys.exit(3)", "job.py:2: SystemExit: 3"),
        ("x = 1", "job.py defines no job; put @job above"),
        ("x = 1\0", "job.py: SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_a_job_file_that_does_not_import_is_named_with_its_line(
    mr: MrCommand, source: str, says: str
) -> None:
    Path("job.py").write_text(source)
    assert says in mr.refuse("job.py", "in.txt")


def test_a_job_that_is_not_there_brings_the_nearest_names(mr: MrCommand) -> None:
    assert "did you mean wordcount" in mr.refuse("wordcoun", "in.txt")
    assert "job file absent.py does not exist" in mr.refuse("absent.py", "in.txt")
    assert "has no job 'coun'" in mr.refuse("jobs_.py:coun", "in.txt")
    assert "say which" in mr.refuse("jobs_.py", "in.txt")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["wordcount", "in.txt"], "--output"),
        (["wordcount", "in.txt", "-o", ""], "--output"),
        (["wordcount", "", "-o", "out"], "input"),
        (["wordcount", "-o", "out"], "input"),
        (["join", "in.txt", "-o", "out"], "left, right"),
        (["wordcount", "in.txt", "-o", "out", "--memory", "lots"], "'lots' is no size"),
        (["wordcount", "in.txt", "-o", "out", "--timeout", "-1"], "--timeout"),
        (["wordcount", "in.txt", "-o", "out", "--workers", "-1"], "--workers"),
        (["wordcount", "in.txt", "-o", "out", "--delimiter", "\\x"], "--delimiter"),
        (["wordcount", "in.txt", "-o", "out", "--delimiter", ""], "--delimiter"),
        (["wordcount", "in.txt", "-o", "out", "-p", "novalue"], "name=value"),
        (["wordcount", "in.txt", "-o", "out", "-p", "partitions=1", "-p", "partitions=2"], "given twice"),
        (["wordcount", "in.txt", "-o", "out", "--input", "nope=in.txt"], "no input 'nope'"),
        (["wordcount", "in.txt", "-o", "out", "--json", "absent/run.json"], "--json"),
        (["wordcount", "in.txt", "-o", "out", "--store", "file:///x", "--replication", "2"], "--replication"),
        (["wordcount", "in.txt", "-o", "out", "--errors", "nope"], "--errors"),
        (["wordcount", "in.txt", "-o", "out", "--nope"], "--nope"),
    ],
)
def test_a_wrong_command_line_exits_with_2(mr: MrCommand, arguments: list[str], says: str) -> None:
    ended = mr("run", *arguments)
    assert ended.code == 2
    assert says in ended.err.splitlines()[-1]
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-p", "nope=1"], "has no parameter 'nope'"),
        (["-p", "partitions=few"], "partitions must be of type int"),
        (["--memory", "1MB"], "at least 64 MiB"),
        (["--split-size", "0"], "split size must be >= 1"),
        (["--store", "nope://x"], "nope://x"),
        (["--output-format", "parquet", "--compression", "bz2"], "cannot be compressed by 'bz2'"),
        (["--format", "parquet"], "in.txt: cannot read this as parquet"),
        (["--format", "arrow"], "in.txt: cannot read this as arrow"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(mr: MrCommand, arguments: list[str], says: str) -> None:
    assert says in mr.refuse("sort" if "--format" in arguments else "wordcount", "in.txt", *arguments)


@pytest.mark.parametrize(
    "job",
    [
        "wordcount",
        "wordcount_records",
        "top_words",
        "distinct",
        "ngrams",
        "inverted_index",
        "url_count",
        "sessions",
    ],
)
def test_a_table_is_refused_by_a_job_on_lines(mr: MrCommand, job: str) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), "rows.parquet")
    said = mr.refuse(job, "rows.parquet")
    assert f"job '{job}' reads lines of text" in said
    assert "rows.parquet is read as parquet" in said


def test_a_table_without_rows_is_grouped_to_a_header(mr: MrCommand) -> None:
    Path("empty.csv").write_bytes(b"day,amount\n")
    how = ["-p", "by=day", "-p", "sum=amount", "-p", "mean=amount", "--output-format", "csv"]
    assert mr.run("group_by", "empty.csv", *how) == [b'"day","sum_amount","mean_amount","count"']


def test_files_of_different_formats_are_refused(mr: MrCommand) -> None:
    Path("rows.jsonl").write_text('{"a": 1}\n')
    said = mr.refuse("wordcount", "in.txt", "rows.jsonl")
    assert "in.txt is text" in said
    assert "rows.jsonl is jsonl" in said
    assert "--format" in said


def test_bytes_that_are_not_utf8_are_named_by_file_and_offset(mr: MrCommand) -> None:
    Path("in.txt").write_bytes(b"good\nbad \xff\n")
    said = mr.refuse("wordcount_records", "in.txt")
    assert "in.txt" in said
    assert "offset 9" in said
    assert "--errors" in said


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_text_that_is_not_utf8_is_refused_by_formats_that_cannot_hold_it(mr: MrCommand, format: str) -> None:
    Path("in.txt").write_bytes(b"good\nbad \xff\n")
    said = mr.refuse(
        "jobs_.py:closures", "in.txt", "--errors", "surrogateescape", "--output-format", format
    )  # fmt: skip
    assert f"which {format} cannot hold ('bad \\udcff')" in said
    assert mr.run("sort", "in.txt", "--output-format", "text") == [b"bad \xff", b"good"]
    for table in ("csv", "jsonl"):
        assert "write text" in mr.refuse("sort", "in.txt", "--output-format", table, output="o2")


@pytest.mark.parametrize("format", ["text", "csv"])
def test_nested_columns_are_refused_by_formats_without_a_place_for_them(mr: MrCommand, format: str) -> None:
    pq.write_table(pa.table({"id": [2, 1], "items": [[1], [2, 3]]}), "in.parquet")
    said = mr.refuse("sort", "in.parquet", "-p", "key=id", "--output-format", format)
    assert said.startswith("column 'items' is list<")
    assert "write jsonl or parquet" in said


# ---------------------------------------------------------------- functions of the job


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_raises_is_named_with_its_place_and_traceback(mr: MrCommand, workers: int) -> None:
    Path("in.txt").write_text("fine\nbad\n")
    ended = mr.fail("jobs_.py:raising", "in.txt", workers=workers)
    line, *trace = ended.err.splitlines()
    for part in ("job 'raising'", "stage 'parse'", "in.txt", "record 5", "KeyError: 'missing field'"):
        assert part in line
    assert trace[0] == "Traceback (most recent call last):"
    assert re.search(r'jobs_\.py", line \d+, in raises', trace[1])
    assert trace[2].strip() == 'raise KeyError("missing field")'
    assert trace[-1] == "KeyError: 'missing field'"
    assert "mapreduce/" not in ended.err
    shown = mr("log", "last").out
    assert "failed" in shown
    assert "KeyError: 'missing field'" in shown


def test_a_reduce_that_raises_is_named_with_its_partition_and_key(mr: MrCommand) -> None:
    line = mr.fail("jobs_.py:raising_reduce", "in.txt").err.splitlines()[0]
    for part in ("job 'raising_reduce'", "stage 'divide'", "partition 0", "key 'a'", "ZeroDivisionError"):
        assert part in line


def test_an_exception_that_does_not_unpickle_is_shown_as_it_was(mr: MrCommand) -> None:
    line = mr.fail("jobs_.py:unpicklable_error", "in.txt", workers=1).err.splitlines()[0]
    assert "Bad: 42: cannot be rebuilt" in line


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ("keys_of_lists", "stage 'lists', input in.txt: a list cannot be a key"),
        ("no_pairs", "stage 'plain', input in.txt"),
        ("no_iterable", "returned int for key 0"),
        ("no_dataset", "job 'no_dataset' returned int; a job returns"),
    ],
)
def test_a_function_that_returns_the_wrong_thing(mr: MrCommand, job: str, says: str) -> None:
    assert says in mr.refuse(f"jobs_.py:{job}", "in.txt")
    if job.startswith("no_i"):
        assert says in mr.refuse(f"jobs_.py:{job}", "in.txt", workers=1)


@pytest.mark.parametrize(
    ("job", "raised"),
    [
        ("plan_raises", "NameError"),
        ("second_round_raises", "ZeroDivisionError"),
        ("plan_exits", "SystemExit"),
    ],
)
def test_a_plan_that_raises_is_named(mr: MrCommand, job: str, raised: str) -> None:
    ended = mr.fail(f"jobs_.py:{job}", "in.txt")
    assert f"job '{job}': building the plan raised {raised}" in ended.err.splitlines()[0]
    assert "/mapreduce/" not in ended.err


@pytest.mark.parametrize("workers", [0, 1])
def test_sys_exit_in_a_function_fails_the_run_and_is_no_success(mr: MrCommand, workers: int) -> None:
    ended = mr.fail("jobs_.py:exits", "in.txt", workers=workers)
    assert "job 'exits', stage 'parse', input in.txt, record 0: SystemExit: 0" in ended.err.splitlines()[0]


def test_closures_and_callable_objects_are_functions_too(mr: MrCommand) -> None:
    assert sorted(mr.run("jobs_.py:closures", "in.txt", workers=1)) == [b"a\t4", b"b\t2"]


def test_a_value_that_cannot_travel_is_named_with_its_key(mr: MrCommand) -> None:
    Path("in.txt").write_text("a b\nc\n")
    said = mr.refuse("jobs_.py:generators", "in.txt", workers=1)
    assert "generator" in said
    assert "'a'" in said


def test_prints_go_to_the_log_and_never_into_the_data(mr: MrCommand) -> None:
    ended = mr("run", "jobs_.py:printing", "in.txt", "-o", "out", "--workers", 1)
    assert (ended.code, ended.out) == (0, "")
    assert sorted(b"".join(mr.parts()).splitlines()) == [b"a\t2", b"b\t1"]
    shown = mr("log", "last").out
    assert "debug a" in shown
    assert "reducing b" in shown


# ---------------------------------------------------------------- accidents


def test_a_worker_killed_in_user_code_ends_the_run_after_bounded_retries(mr: MrCommand) -> None:
    Path("in.txt").write_text("fine\nbad\n")
    said = mr.refuse("jobs_.py:killed", "in.txt", workers=1)
    assert "signal 9 (SIGKILL)" in said
    assert "in.txt" in said
    assert "4 attempts" in said


@pytest.fixture
def small_disk(mr: MrCommand) -> Iterator[Path]:
    """A disk of 512 KB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount the small disk that this test fills")
    disk = mr.folder / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "none", disk], capture_output=True
    ).returncode:
        pytest.skip("this machine does not let us mount the small disk that this test fills")
    try:
        yield disk
    finally:
        # Filesystems that are kept for the next use hold the database of a store on this disk open.
        GFSFileSystem.clear_instance_cache()
        gc.collect()
        subprocess.run(["umount", disk], check=True)


def big_text(path: Path) -> None:
    rng = random.Random(47)
    path.write_text("".join(f"{rng.getrandbits(256):064x}\n" for _ in range(30_000)))


@pytest.mark.parametrize("job", ["sort", "jobs_.py:copied"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_disk_that_is_full_of_output(mr: MrCommand, small_disk: Path, job: str, workers: int) -> None:
    big_text(Path("in.txt"))
    said = mr.refuse(job, "in.txt", output="disk/out", workers=workers)
    assert "No space left on device" in said
    assert "disk/" in said


@pytest.mark.parametrize("workers", [0, 1])
def test_a_disk_that_is_full_of_temporary_files(
    mr: MrCommand, small_disk: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    big_text(Path("in.txt"))
    with monkeypatch.context() as patch:  # not longer: pytest would put its own files there
        patch.setenv("TMPDIR", str(small_disk))
        patch.setattr(tempfile, "tempdir", None)
        said = mr.refuse("jobs_.py:copied", "in.txt", workers=workers)
    assert "No space left on device" in said
    assert str(small_disk) in said
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("url", ["gfs://?", "file://"])
def test_a_disk_that_is_full_of_intermediates(mr: MrCommand, small_disk: Path, url: str) -> None:
    big_text(Path("in.txt"))
    if url.startswith("gfs"):
        (mr.home).mkdir(exist_ok=True)
        (mr.home / "store").symlink_to(small_disk)
        arguments = []
    else:
        arguments = ["--store", f"file://{small_disk}"]
    ended = mr("run", "jobs_.py:copied_twice", "in.txt", "-o", "out", "--workers", 1, "--quiet", *arguments)
    assert ended.code == 1
    assert "No space left on device" in ended.complaint
    assert "runs/" in ended.complaint
    assert not Path("out").exists()
    assert [p for p in small_disk.rglob("*") if "part-" in p.name or p.suffix == ".chunk"] == []
    mr.check_nothing_left()


def wait_for(found: Any, process: subprocess.Popen[str]) -> None:
    """Wait until ``found()``; a process that ended before is a failure."""
    deadline = time.monotonic() + 120
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def wait_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("sent", "times", "code"),
    [(signal.SIGINT, 1, 130), (signal.SIGINT, 2, 130), (signal.SIGTERM, 1, 143), (signal.SIGHUP, 1, 129)],
)
def test_ctrl_c_and_kill_end_everything_long_before_its_time(
    mr: MrCommand, sent: signal.Signals, times: int, code: int
) -> None:
    process = mr.start("run", "jobs_.py:sleeping", "in.txt", "-o", "out", "--workers", 2)
    wait_for(lambda: list(mr.temporary.rglob("*")) and list(Path().glob("started-*")), process)
    below = descendants(process)
    assert len(below) >= 2
    for _ in range(times):
        process.send_signal(sent)
        time.sleep(0.01)  # two keystrokes, not one pending signal
    ended = mr.finish(process, timeout_s=30)
    assert ended.code == code, ended
    if sent is signal.SIGINT:
        assert ended.err.splitlines()[-1] == "interrupted; nothing was left behind"
    assert "Traceback" not in ended.err
    wait_gone(below)
    assert not Path("out").exists()
    assert [p for p in Path().iterdir() if p.name.startswith(".out")] == []
    mr.check_nothing_left()


def test_what_a_killed_command_leaves_is_removed_by_the_next(mr: MrCommand) -> None:
    process = mr.start("run", "jobs_.py:sleeping", "in.txt", "-o", "out", "--workers", 1)
    wait_for(lambda: list(Path().glob("started-*")), process)
    below = descendants(process)
    process.kill()
    process.communicate()
    wait_gone(below)
    assert not Path("out").exists()
    assert list(mr.temporary.iterdir()) != []
    cleaned = mr("clean")
    assert cleaned.code == 0
    mr.check_nothing_left()
    assert [p for p in Path().iterdir() if p.name.startswith(".out")] == []
    assert sorted(mr.run("jobs_.py:closures", "in.txt")) == [b"a\t4", b"b\t2"]
    outcomes = [json.loads(line)["outcome"] for line in mr("runs", "--json").out.splitlines()]
    assert outcomes == ["unfinished", "done"]


def test_an_output_that_a_killed_run_had_moved_away_comes_back(mr: MrCommand) -> None:
    from mapreduce.owed import Owed, remove_owed

    old = mr.run("jobs_.py:closures", "in.txt")
    note = Owed("20261130-000000-x-0000")
    note.add("output", f"file://{mr.folder}/.out.20261130-000000-x-0000")
    # As if killed between the two renames of --overwrite.
    Path("out").rename(".out.20261130-000000-x-0000.replaced")
    Path(".out.20261130-000000-x-0000").mkdir()
    assert remove_owed() == []  # its run is alive
    note.close(settled=False)
    assert remove_owed() == ["20261130-000000-x-0000"]
    assert b"".join(mr.parts()).splitlines() == old
    assert [p for p in Path().iterdir() if p.name.startswith(".out")] == []
    assert remove_owed() == []


def test_a_thread_that_holds_a_lock_at_import_stops_no_worker(mr: MrCommand) -> None:
    Path("noisy.py").write_text('''
import logging, sys, threading
logging.basicConfig(stream=sys.stderr, level=logging.INFO)
def noise():
    for _ in range(2000):
        logging.info("noise")
threading.Thread(target=noise, daemon=True).start()
from mapreduce import Stage, job
def words(offset, line):
    logging.info("in map")
    yield line, 1
@job
def noisy(text):
    return Stage(map=words, reduce=lambda k, ns: [(k, sum(ns))])(text)
''')  # fmt: skip
    for turn in range(2):
        process = mr.start("run", "noisy.py", "in.txt", "-o", f"out{turn}", "--workers", 2)
        assert mr.finish(process, timeout_s=30).code == 0
        assert sorted(b"".join(mr.parts(f"out{turn}")).splitlines()) == [b"a\t2", b"b\t1"]


def test_standard_input_is_an_input(mr: MrCommand) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from jobs.cli import main; main()", "run", "jobs_.py:closures", "-", "-o", "out"],
        input=b"a\nb\na\n", capture_output=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert sorted(b"".join(mr.parts()).splitlines()) == [b"a\t4", b"b\t2"]
    mr.check_nothing_left()
