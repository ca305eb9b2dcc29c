"""Jobs whose functions were typed, not imported: cells of a notebook and lines on a prompt have no file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CELLS = [
    """
import mapreduce
from mapreduce import Options, Stage, job

weight = 3

class Box:
    def __init__(self, number):
        self.number = number
""",
    """
def words(offset, line):
    for word in line.split():
        yield word, Box(weight)

def total(word, boxes):
    yield word, sum(box.number for box in boxes)

@job
def count(text):
    return Stage(map=words, reduce=total)(text)

print(mapreduce.run(count, "in.txt", options=Options(workers=2)).records)
""",
    """
weight = 5

def total(word, boxes):
    yield word.upper(), sum(box.number for box in boxes)

print(mapreduce.run(count, "in.txt", options=Options(workers=2)).records)
""",
]
SHOWN = "[('a', 6), ('b', 3)]\n[('A', 10), ('B', 5)]\n"

# What a kernel does: each cell is compiled under a name that is no file, and runs in one namespace, __main__.
KERNEL = """
import json, sys, types
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
for number, cell in enumerate(json.load(sys.stdin)):
    exec(compile(cell, f"<ipython-input-{number}>", "exec"), main.__dict__)
"""


def shown(folder: Path, arguments: list[str], typed: str) -> str:
    (folder / "in.txt").write_text("a b\na\n")
    ended = subprocess.run(
        [sys.executable, *arguments], input=typed, cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "MR_HOME": str(folder / "home")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_functions_of_a_notebooks_cells_reach_the_workers_as_they_are_now(tmp_path: Path) -> None:
    # The job looks its functions up when it is called, so a cell that is run again counts.
    assert shown(tmp_path, ["-c", KERNEL], json.dumps(CELLS)) == SHOWN


def test_functions_of_a_script_on_standard_input_reach_the_workers(tmp_path: Path) -> None:
    assert shown(tmp_path, ["-"], "".join(CELLS)) == SHOWN
