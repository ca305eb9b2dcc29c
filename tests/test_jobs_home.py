"""The two rooms that find the home folder by themselves find the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

import gfs_sim.layout
import mapreduce.home


@pytest.mark.parametrize(
    ("mr_home", "data", "expected"),
    [
        ("named", "/never", "named"),
        ("~/named", None, "user/named"),
        (None, "data", "user/.local/share/mrdag"),  # relative, so it counts as not set
        (None, "", "user/.local/share/mrdag"),
        (None, None, "user/.local/share/mrdag"),
        ("", "ABSOLUTE/data", "data/mrdag"),
    ],
)
def test_store_and_runs_lie_in_one_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mr_home: str | None, data: str | None, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name, value in (("MR_HOME", mr_home), ("XDG_DATA_HOME", data)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value.replace("ABSOLUTE", str(tmp_path)))
    assert mapreduce.home.home_folder() == gfs_sim.layout.home_folder() == tmp_path / expected
