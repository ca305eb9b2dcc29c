"""The guide of collectives says what Python says, its pictures show its schedules, and it knows all that there is."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from dag import collectives
from dag.collectives import (
    Comm,
    Incast,
    Schedule,
    algorithms,
    choose,
    draw_svg,
    launch,
    plan,
    shared,
    tcp_link,
)
from dag.collectives.schedule import Kind
from dag.errors import BadCollective
from jobs.allreduce_rank import WARM_UPS

DOCS = Path(__file__).parent.parent / "docs"
GUIDE = (DOCS / "collectives.md").read_text()
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
SVG = "{http://www.w3.org/2000/svg}"


def test_every_block_of_the_guide_runs_and_prints_and_draws_what_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "guide"}
    blocks = BLOCK.findall(GUIDE)
    assert len(blocks) > 8
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/collectives.md", "exec"), names)
        assert printed.getvalue() == expected, code

    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert drawn == sorted(path.name for path in DOCS.glob("collectives-*.svg"))
    for name in drawn:
        assert (tmp_path / name).read_text() == (DOCS / name).read_text(), f"docs/{name} shows something else"


def test_the_guide_names_all_that_the_package_offers_and_shows_the_nine_ways() -> None:
    words = set(re.findall(r"\w+", GUIDE))
    assert [name for name in collectives.__all__ if name not in words] == []
    offered = [name for name in vars(Comm) if not name.startswith("_") and callable(getattr(Comm, name))]
    inner = {"close", "finish"}
    assert [name for name in offered if name not in words | inner] == []
    for name in algorithms():
        assert f"`{name}`" in GUIDE
    assert len(re.findall(r"^\*\*[^*]+\*\* \(`\w+`", GUIDE, re.MULTILINE)) == 9
    assert len(re.findall(r"^!\[\w+\]\(collectives-\w+\.svg\)", GUIDE, re.MULTILINE)) >= 9


def moves(schedule: Schedule) -> list[tuple[int, int, int, int]]:
    found: list[tuple[int, int, int, int]] = []
    for step in schedule:
        found += zip(*(each.tolist() for each in (step.src, step.dst, step.start, step.stop)), strict=True)
    return found


@pytest.mark.parametrize(
    "kind", ["allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"]
)
def test_a_picture_has_an_arrow_for_each_move_and_ends_with_what_the_collective_promises(kind: Kind) -> None:
    for name in algorithms(kind):
        choices: dict[str, Any] = {"per_machine": 2} if name in ("two_level", "machine_tree") else {}
        schedule = plan(kind, name, 3, **choices)
        root = ElementTree.fromstring(draw_svg(schedule))
        titles = [each.text or "" for each in root.iter(f"{SVG}title")]
        said = []
        for title in titles:
            if found := re.match(r"(\d+) gives parts? (\d+)(?: to (\d+))? to (\d+): ", title):
                giver, first, last, taker = found.groups()
                said.append((int(giver), int(taker), int(first), int(last or first) + 1))
        assert said == moves(schedule), name
        strips = [title for title in titles if title.startswith("part ")]
        assert len(strips) == (schedule.steps + 1) * schedule.nodes * schedule.parts
        ends = strips[-schedule.nodes * schedule.parts :]
        if kind == "allreduce":
            assert {end.partition(": ")[2] for end in ends} == {"of ranks 0, 1, 2"}
        if kind in ("all_gather", "broadcast"):
            assert not any(end.endswith("nothing") for end in ends)


def test_what_is_too_large_for_a_picture_is_refused() -> None:
    with pytest.raises(BadCollective, match="does not fit in a picture: at most 16 nodes and 40 steps do"):
        draw_svg(plan("allreduce", "ring", 17))


def test_a_server_beside_the_ranks_has_a_row_of_its_own() -> None:
    root = ElementTree.fromstring(draw_svg(plan("allreduce", "central", 2, server_is_rank=False)))
    assert "server" in [each.text for each in root.iter(f"{SVG}text")]


def test_a_title_counts_one_part_as_one() -> None:
    root = ElementTree.fromstring(draw_svg(plan("allreduce", "central", 4)))
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text == "central: 4 ranks, 1 part, 2 steps"


def test_sizes_and_times_that_the_guide_names_are_those_of_the_code() -> None:
    text = " ".join(GUIDE.split())
    for words in (
        f"above {tcp_link._EAGER_BYTES >> 10} KiB waits, after its first {tcp_link._FIRST_BYTES >> 10},",
        f"for arrays of less than {shared.DIRECT_BYTES >> 20} MiB,",
        f"which `auto` takes for more than {choose._SHORT_NEAR_BYTES >> 10} KiB,",
        f"it goes by parts from {choose._LONG_BYTES >> 10} KiB on,",
        f"where the ring's parts would be below {choose._LEAST_PART_BYTES >> 10} KiB)",
        f"(default {inspect.signature(launch).parameters['timeout_s'].default:g} s;",
        f"warms up {WARM_UPS} times,",
        f"a timeout of {Incast(buffer_bytes=1, window_bytes=1).timeout_s * 1e3:g} ms",
    ):
        assert words in text
