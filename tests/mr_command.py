"""The ``mr`` command as the field cases run it, with everything it may leave behind in view."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs.cli import main


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of a failure: what ``mr: `` says, with nothing after it."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("mr: "), self.err
        return lines[0].removeprefix("mr: ")


class MrCommand:
    """Runs ``mr`` in this process or in one of its own, in a folder with its own TMPDIR and MR_HOME."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.home = folder / "home"
        self.temporary.mkdir()
        self.capfd = capfd
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setenv("MR_HOME", str(self.home))
        monkeypatch.setattr(tempfile, "tempdir", None)  # tempfile remembers the first TMPDIR it saw
        monkeypatch.chdir(folder)

    def __call__(self, *arguments: object) -> Ended:
        """Run the command here; a traceback of ours would pass through and fail the test."""
        self.capfd.readouterr()
        code = 0
        try:
            main([str(a) for a in arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        printed = self.capfd.readouterr()
        return Ended(code=code, out=printed.out, err=printed.err)

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        """Start the command as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", "from jobs.cli import main; main()", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
            env={**os.environ, **environment}, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 60.0) -> Ended:
        """Wait for a started command."""
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return Ended(code=process.returncode, out=out, err=err)

    def run(self, *arguments: object, output: str = "out", workers: int = 0) -> list[bytes]:
        """``mr run`` to success; return the lines of all parts in name order."""
        ended = self("run", *arguments, "-o", output, "--workers", workers, "--quiet")
        assert (ended.code, ended.err) == (0, ""), ended
        lines = [line for part in self.parts(output) for line in part.split(b"\n")[:-1]]
        self.check_nothing_left()
        return lines

    def parts(self, output: str = "out") -> list[bytes]:
        """Return the bytes of each part; there is nothing but parts and ``_SUCCESS``."""
        names = sorted(os.listdir(os.path.normpath(self.folder / output)))
        assert names[0] == "_SUCCESS"
        assert all(name.startswith("part-") for name in names[1:]), names
        return [Path(os.path.normpath(self.folder / output), name).read_bytes() for name in names[1:]]

    def refuse(self, *arguments: object, output: str = "out", workers: int = 0) -> str:
        """``mr run`` to failure in one line; return the line.  Nothing is left behind."""
        return self.fail(*arguments, output=output, workers=workers).complaint

    def fail(self, *arguments: object, output: str = "out", workers: int = 0) -> Ended:
        """``mr run`` to failure with exit 1; nothing is left behind."""
        before = sorted(self.folder.rglob("*"))
        ended = self("run", *arguments, "-o", output, "--workers", workers, "--quiet")
        assert ended.code == 1, ended
        assert ended.err.startswith("mr: "), ended
        after = sorted(p for p in self.folder.rglob("*") if not p.is_relative_to(self.home))
        assert after == [p for p in before if not p.is_relative_to(self.home)]
        self.check_nothing_left()
        return ended

    def check_nothing_left(self) -> None:
        """No temporary file, and no file of a run in the store."""
        assert list(self.temporary.iterdir()) == []
        assert [p for p in (self.home / "store").rglob("*") if p.suffix == ".chunk"] == []
