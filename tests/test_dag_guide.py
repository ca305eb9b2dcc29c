"""The guide of graphs says what Python says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from dag.boxes import picture_of

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


def test_every_block_of_the_guide_runs_and_prints_what_stands_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "guide"}
    blocks = BLOCK.findall((DOCS / "dag.md").read_text())
    assert len(blocks) > 8
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/dag.md", "exec"), names)
        assert printed.getvalue() == expected, code

    # The picture beside the guide shows this graph; its times and bytes are those of another run.
    picture = picture_of(names["graph"])  # type: ignore[arg-type]
    shown = (DOCS / "descent.svg").read_text()
    for box in picture.boxes:
        assert f"<title>{box.name}\n{box.kind}" in shown
    for edge in picture.edges:
        ends = f"{picture.boxes[edge.source].name} to {picture.boxes[edge.target].name}"
        assert f"<title>{ends}, " in shown
