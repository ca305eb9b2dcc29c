"""What broke for users of other systems, and every mistake and accident, once more with ``--engine dag``.

The tests are those of ``test_field_cases`` (families 5 to 7: sorting, Parquet, functions) and of ``test_mr_bad_input``;
what they expect is the same to the word.
"""

from __future__ import annotations

import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import test_field_cases as field
import test_mr_bad_input as bad
from mr_command import Ended, MrCommand
from test_mr_bad_input import small_disk  # noqa: F401 (a fixture of tests below)

JOBS = """
import os, pathlib, time
from mapreduce import Stage, job

def count(key, values):
    yield key, sum(values)

def sleeps(offset, line):
    pathlib.Path(f"started-{offset}").touch()
    time.sleep(600)
    yield line, 1

@job
def sleeping(text):
    return Stage(map=sleeps, reduce=count)(Stage(map=lambda o, line: [(o, line)])(text))

def dies(offset, line):
    if line == "bad":
        os.kill(os.getpid(), 9)
    yield line, 1

@job
def killed(text):
    return Stage(name="parse", map=dies, reduce=count)(text)

def grows(offset, line):
    for copy in range(1000):
        yield line, b"%d" % copy * 1000

@job
def growing(text):
    return Stage(name="grow", map=grows, reduce=lambda k, vs: [(k, len(b"".join(vs)))])(text)
"""


class DagCommand(MrCommand):
    """The command with ``--engine dag`` in every run."""

    def __call__(self, *arguments: object) -> Ended:
        return super().__call__(*on_dag(arguments))

    def start(self, *arguments: object, **environment: str) -> Any:
        return super().start(*on_dag(arguments), **environment)


def on_dag(arguments: tuple[object, ...]) -> tuple[object, ...]:
    return (*arguments, "--engine", "dag") if arguments[0] == "run" else arguments


@pytest.fixture
def mr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, request: pytest.FixtureRequest
) -> MrCommand:
    """A command in a folder with the jobs and the input of the file that the test is from."""
    command = DagCommand(tmp_path, monkeypatch, capfd)
    home = sys.modules[request.function.__module__]
    Path("jobs_.py").write_text(home.JOBS)
    if home is bad:
        Path("in.txt").write_text("a\nb\na\n")
    return command


# Families 5 and 6.
test_one_key_with_all_values_fills_one_part = field.test_one_key_with_all_values_fills_one_part
test_null_and_nan_keys_lose_no_row = field.test_null_and_nan_keys_lose_no_row
test_keys_of_mixed_type_have_the_documented_order = field.test_keys_of_mixed_type_have_the_documented_order
test_a_key_without_a_place_is_refused = field.test_a_key_without_a_place_in_the_order_is_refused_by_name
test_ties_keep_their_input_order = field.test_ties_keep_their_input_order_in_both_directions
test_the_order_is_by_bytes = field.test_the_order_is_by_bytes_under_any_locale_and_hash_seed
test_values_keep_their_order_of_arrival = field.test_values_keep_their_order_of_arrival_and_keys_sort_alone
test_fewer_distinct_keys_than_parts = field.test_fewer_distinct_keys_than_parts
test_parts_in_name_order_are_sorted = field.test_parts_in_name_order_are_sorted_every_time
test_equal_keys_meet = field.test_equal_keys_meet_whatever_process_hashed_them
test_a_column_of_nulls_only = field.test_a_column_of_nulls_only_takes_the_type_of_the_other_files
test_integers_of_several_widths_are_read_exactly = field.test_integers_of_several_widths_are_read_exactly
test_columns_are_matched_by_name = field.test_columns_are_matched_by_name_and_missing_ones_are_null
test_dictionaries_of_several_files_join = field.test_dictionaries_of_several_files_join
test_parquet_without_row_groups_or_rows = field.test_parquet_without_row_groups_or_rows
test_far_dates_do_not_wrap = field.test_far_dates_do_not_wrap
test_nested_columns_ride_along = field.test_nested_columns_ride_along_through_a_shuffle
test_a_nested_key_is_refused = field.test_a_nested_key_is_refused_by_name_before_any_task

# Family 7, and other functions of a job.
test_an_exception_that_does_not_unpickle = bad.test_an_exception_that_does_not_unpickle_is_shown_as_it_was
test_closures_are_functions_too = bad.test_closures_and_callable_objects_are_functions_too
test_a_value_that_cannot_travel = bad.test_a_value_that_cannot_travel_is_named_with_its_key
test_a_function_that_raises = bad.test_a_function_that_raises_is_named_with_its_place_and_traceback
test_a_reduce_that_raises = bad.test_a_reduce_that_raises_is_named_with_its_partition_and_key
test_a_function_that_returns_the_wrong_thing = bad.test_a_function_that_returns_the_wrong_thing
test_a_plan_that_raises = bad.test_a_plan_that_raises_is_named
test_sys_exit_in_a_function = bad.test_sys_exit_in_a_function_fails_the_run_and_is_no_success

# Inputs, outputs, disks, signals.
test_an_input_that_cannot_be_read = bad.test_an_input_that_cannot_be_read_is_named
test_all_missing_inputs_are_named = bad.test_all_missing_inputs_are_named_at_once
test_an_existing_output_is_refused = bad.test_an_existing_output_is_refused_before_any_task_and_kept
test_a_failed_overwrite_keeps_the_old_output = bad.test_a_failed_run_with_overwrite_keeps_the_old_output
test_an_output_that_overlaps_the_input = bad.test_an_output_that_overlaps_the_input_is_refused
test_an_output_below_a_file = bad.test_an_output_below_a_file_is_refused_before_any_task
test_an_output_without_the_right_to_write = bad.test_an_output_in_a_folder_without_the_right_to_write
test_a_table_is_refused_by_a_job_on_lines = bad.test_a_table_is_refused_by_a_job_on_lines
test_files_of_different_formats_are_refused = bad.test_files_of_different_formats_are_refused
test_bytes_that_are_not_utf8_are_named = bad.test_bytes_that_are_not_utf8_are_named_by_file_and_offset
test_text_that_is_not_utf8_is_refused = (
    bad.test_text_that_is_not_utf8_is_refused_by_formats_that_cannot_hold_it
)
test_nested_columns_are_refused = bad.test_nested_columns_are_refused_by_formats_without_a_place_for_them
test_a_disk_that_is_full_of_output = bad.test_a_disk_that_is_full_of_output
test_standard_input_is_an_input = bad.test_standard_input_is_an_input


@pytest.mark.parametrize(
    ("scheduler", "sent", "times", "code"),
    [
        ("threads", signal.SIGINT, 1, 130),
        ("threads", signal.SIGINT, 2, 130),
        ("threads", signal.SIGTERM, 1, 143),
        ("processes", signal.SIGINT, 1, 130),
    ],
)
def test_ctrl_c_and_kill_end_everything_long_before_its_time(
    mr: MrCommand, scheduler: str, sent: signal.Signals, times: int, code: int
) -> None:
    Path("in.txt").write_text("a\nb\n" * 10)
    arguments = ["jobs_.py:sleeping", "in.txt", "-o", "out", "--workers", 2, "--split-size", 20]
    process = mr.start("run", *arguments, "--scheduler", scheduler)
    bad.wait_for(lambda: len(list(Path().glob("started-*"))) == 2, process)
    below = bad.descendants(process)
    for _ in range(times):
        process.send_signal(sent)
        time.sleep(0.01)  # two keystrokes, not one pending signal
    ended = mr.finish(process, timeout_s=30)
    assert ended.code == code, ended
    if sent is signal.SIGINT:
        assert ended.err.splitlines()[-1] == "interrupted; nothing was left behind"
    assert "Traceback" not in ended.err
    bad.wait_gone(below)
    assert not Path("out").exists()
    assert [p for p in Path().iterdir() if p.name.startswith(".out")] == []
    mr.check_nothing_left()


def test_a_worker_killed_in_user_code_ends_the_run_after_bounded_retries(mr: MrCommand) -> None:
    Path("in.txt").write_text("fine\nbad\n")
    ended = mr("run", "jobs_.py:killed", "in.txt", "-o", "out", "--scheduler", "processes", "--workers", 1)
    assert ended.code == 1
    (line,) = [line for line in ended.err.splitlines() if line.startswith("mr: ")]
    assert "parse" in line
    assert "worker" in line
    assert not Path("out").exists()
    mr.check_nothing_left()


def test_what_does_not_fit_in_memory_is_refused_with_numbers_and_the_command_that_will_do_it(
    mr: MrCommand,
) -> None:
    Path("in.txt").write_text("".join(f"{i}\n" for i in range(40)))
    arguments = ["jobs_.py:growing", "in.txt", "-o", "out", "--memory", "64MiB", "--workers", 1, "--quiet"]
    ended = mr.finish(
        mr.start("run", *arguments)
    )  # a process of its own: the message quotes its command line
    assert ended.code == 1
    line = ended.complaint
    assert len(re.findall(r"\d+(?:\.\d+)? ?[kMG]i?B", line)) >= 2, line
    assert "mr run jobs_.py:growing in.txt -o out" in line
    assert line.endswith("--engine mapreduce")
    assert not Path("out").exists()
    mr.check_nothing_left()
    words = shlex.split(line.rpartition("through the store: mr ")[2])
    assert MrCommand.__call__(mr, *words, "--quiet").code == 0
    lines = sorted(b"".join(mr.parts()).splitlines())
    assert lines == sorted(b"%d\t2890000" % i for i in range(40))
