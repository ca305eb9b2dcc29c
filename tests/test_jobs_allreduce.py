"""``mr allreduce``: what it measures and counts, that a wrong sum is found, its report, and what it refuses in one line."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import browse, needs_browser
from dask_cluster import started_cluster
from hypothesis import given
from hypothesis import strategies as st
from mr_command import MrCommand

from dag.collectives import Comm, algorithms, alone, count, launch, plan
from dag.collectives.calibrate import ByteCosts, Machine, Timed, predict
from dag.collectives.letters import SHORT_BYTES
from dag.collectives.one_machine import Means
from dag.collectives.prepared import folds_and_shares
from dag.units import show_time
from jobs.allreduce import Measured, Row, Wanted, schedule_of
from jobs.allreduce_calibrate import FITTED, Case, predict_all, summarise
from jobs.allreduce_plot import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, Series, draw_plot
from jobs.allreduce_rank import PERIOD, bring, dtype_of, find_wrong, fold
from jobs.allreduce_report import to_html
from jobs.allreduce_roof import Roof, asked, measure_triad, shortest

OPERATORS = """
from dag.collectives import Operator

def first(left, right):
    return left

def minus(left, right):  # not associative: no fold but one by one is right
    return left - right

def largest(left, right):
    import numpy
    return numpy.maximum(left, right)

commuting = Operator(largest)
"""


@pytest.fixture
def mr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> MrCommand:
    (tmp_path / "operators.py").write_text(OPERATORS)
    return MrCommand(tmp_path, monkeypatch, capfd)


class Page(HTMLParser):
    """What an HTML page refers to, and the rows of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.rows and self._open and self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open.append("")


# -- what it measures -------------------------------------------------------------------------------


def test_all_algorithms_are_timed_and_counted_and_the_report_shows_them_without_a_network(
    mr: MrCommand,
) -> None:
    ended = mr(
        "allreduce", "--ranks", 3, "--bytes", "0,8,1200", "--runs", 2, "--json", "all.json", "--report", "all.html"
    )  # fmt: skip
    assert ended.code == 0, ended.err
    found = json.loads((mr.folder / "all.json").read_text())
    rows = {(row["algorithm"], row["bytes"]): row for row in found["rows"]}
    assert set(rows) == {(name, size) for name in algorithms() for size in (0, 8, 1200)}
    for row in rows.values():
        assert len(row["seconds"]) == 2
        assert 0 < row["low_s"] <= row["median_s"] <= row["high_s"] < 60
        assert row["algbw_bytes_per_s"] == pytest.approx(row["bytes"] / row["median_s"])
        assert row["busbw_bytes_per_s"] == pytest.approx(row["algbw_bytes_per_s"] * 4 / 3)
        assert sum(row["sent_bytes"]) == sum(row["received_bytes"])
    ring, central, whole = (rows[name, 1200] for name in ("ring", "central", "direct_whole"))
    assert (ring["sent_bytes"], ring["rounds"], ring["fan_in"], ring["peers"]) == ([1600] * 3, 4, 1, [2] * 3)
    assert (central["received_bytes"][0], central["sent_bytes"][0], central["fan_in"]) == (2400, 2400, 2)
    assert (whole["sent_bytes"], whole["messages"]) == ([2400] * 3, 6)
    # The sharded one touches 2PN of memory.
    (roof,) = (each for each in found["roofs"] if each["bytes"] == 1200)
    assert roof["what"] == "memory"
    assert rows["sharded", 1200]["roof_s"] == pytest.approx(6 * 1200 / roof["bytes_per_s"])
    assert found["versions"]["numpy"] == np.__version__

    page = Page((mr.folder / "all.html").read_text())
    assert page.addresses == []
    shown = {row[0]: row for row in page.rows if len(row) == 10}
    assert set(shown) == {"algorithm", *algorithms()}
    text = (mr.folder / "all.html").read_text()
    assert "prefers-color-scheme: dark" in text
    assert "mr allreduce" in text
    for picture in re.findall(r"<svg[^>]*class=\"plot\".*?</svg>", text, re.DOTALL):
        assert ElementTree.fromstring(picture).tag.endswith("svg")
    lines = ended.out.splitlines()
    assert sum(line.startswith("ring ") for line in lines) == 3
    assert any(line.startswith("1.20 kB: 300 float32, 3 ranks, 2 runs; memory ") for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ("--transport", "tcp", "--dtype", "float16", "--op", "mean", "--algorithm", "ring,auto"),
        ("--arrays", "empty", "--dtype", "int16", "--op", "prod", "--algorithm", "sharded"),
        ("--dtype", "complex64", "--op", "operators.py:commuting", "--algorithm", "ring", "--bytes", "2MB"),
    ],
)
def test_results_are_right_for_other_dtypes_operators_and_transports(
    mr: MrCommand, words: tuple[str, ...]
) -> None:
    ended = mr("allreduce", "--ranks", 3, "--bytes", "2400", "--runs", 1, "--json", "some.json", *words)
    assert ended.code == 0, ended.err
    found = json.loads((mr.folder / "some.json").read_text())
    assert [each["what"] for each in found["roofs"]] == ["stream" if "tcp" in words else "memory"]
    if "float16" in words:  # partial sums of a ring travel as float32
        ring, auto = found["rows"]
        assert ring["sent_bytes"] == [2 * 2 * 2400 * 2 // 3] * 3
        assert re.fullmatch(r"auto \(\w+\)", auto["algorithm"])


def test_ranks_on_the_workers_of_a_dask_cluster_are_measured_too(mr: MrCommand, tmp_path: Path) -> None:
    with started_cluster(str(tmp_path)) as cluster:
        cluster.add_workers(2)
        ended = mr(
            "allreduce", "--scheduler", cluster.address, "--ranks", 2, "--bytes", "1KB", "--runs", 1, "--algorithm", "ring",
            "--json", "cluster.json",
        )  # fmt: skip
    assert ended.code == 0, ended.err
    found = json.loads((mr.folder / "cluster.json").read_text())
    # There is no one memory to compare with.
    assert (found["roofs"], found["rows"][0]["roof_share"], len(found["rows"])) == ([], None, 1)


PROBE = """<script>
const head = [...document.querySelectorAll("#numbers table th")].find(th => th.textContent === "bytes/rank");
head.querySelector("button").click();
const rows = [...head.closest("table").tBodies[0].rows];
const values = rows.map(row => Number(row.cells[head.cellIndex].dataset.v));
document.body.dataset.sorted = values.length === 11 && values.every((v, i) => !i || values[i - 1] <= v);
const wrong = [];
let seen = 0;
for (const plot of document.querySelectorAll("svg.plot")) {
  const frame = plot.getBoundingClientRect();
  const boxes = [...plot.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  seen += boxes.length;
  boxes.forEach(([words, box], at) => {
    if (box.left < frame.left || box.right > frame.right || box.top < frame.top || box.bottom > frame.bottom) wrong.push(words);
    boxes.slice(0, at).forEach(([other, its]) => {
      const apart = box.left > its.right || its.left > box.right || box.top > its.bottom - 2 || its.top > box.bottom - 2;
      if (!apart) wrong.push(words + " on " + other);
    });
  });
}
document.body.dataset.wrong = wrong.join("; ");
document.body.dataset.seen = seen > 40;
document.body.dataset.wide = document.documentElement.scrollWidth > innerWidth;
</script>"""


@needs_browser
@pytest.mark.parametrize("width", [500, 1200])
def test_a_browser_sorts_the_tables_and_no_word_in_a_plot_lies_on_another_or_outside(
    tmp_path: Path, width: int
) -> None:
    rng = np.random.default_rng(5)
    sizes = (1000, 64_000, 1_000_000, 2_000_000, 4_000_000, 16_000_000, 256_000_000)
    rows = []
    for nbytes in sizes:
        for name in algorithms():
            schedule = schedule_of(name, 4, nbytes)
            seconds = tuple((2e-4 + nbytes * 2e-9) * rng.uniform(1, 1.3, 7))
            rows.append(
                Row(
                    name=name, nbytes=nbytes, itemsize=4, ranks=4, seconds=seconds, roof_s=1e-4,
                    counts=count(schedule, nbytes // 4),
                )
            )  # fmt: skip
    roofs = {nbytes: Roof(what="memory", bytes_per_s=2e10) for nbytes in sizes}
    wanted = Wanted(algorithms=tuple(algorithms()), ranks=4, sizes=sizes)
    text = to_html(
        Measured(wanted=wanted, rows=tuple(rows), roofs=roofs), command="mr allreduce", started="now", machine={"cpu": "x"},
        versions={"Python": "3"},
    )  # fmt: skip
    page = tmp_path / "report.html"
    page.write_text(text.replace("</body>", f"{PROBE}</body>"))
    dom, console = browse(page, tmp_path, f"--window-size={width},900")
    assert console == []
    body = re.search(r"<body[^>]*>", dom)
    assert body is not None
    for found in ('data-sorted="true"', 'data-wrong=""', 'data-seen="true"', 'data-wide="false"'):
        assert found in body[0]


# -- what is wrong ----------------------------------------------------------------------------------


def test_a_result_that_is_not_numpys_is_an_error_that_says_where(mr: MrCommand) -> None:
    ended = mr(
        "allreduce",
        "--algorithm",
        "halving",
        "--op",
        "operators.py:minus",
        "--bytes",
        "400",
        "--runs",
        1,
        "--json",
        "x",
    )
    assert ended.code == 1
    complaint = ended.err.splitlines()[-1]
    assert re.fullmatch(
        r"mr: 400 B of float32: halving is wrong at rank 0 in warm-up 1: element \d+ is -?\d\.0, wanted -?\d\.0",
        complaint,
    )
    assert not (mr.folder / "x").exists()


def test_what_does_not_commute_runs_where_the_order_of_ranks_is_kept(mr: MrCommand) -> None:
    ended = mr(
        "allreduce", "--algorithm", "all", "--op", "operators.py:first", "--ranks", 3, "--bytes", "12", "--runs", 1,
        "--json", "first.json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    ran = [row["algorithm"] for row in json.loads((mr.folder / "first.json").read_text())["rows"]]
    assert ran == [name for name in algorithms() if schedule_of(name, 3, 0).keeps_order]
    assert {"tree", "sharded"} <= set(ran)
    left_out = ended.out.splitlines()[-1]
    assert left_out.startswith("left out, since they do not keep the order of ranks: ")
    assert "ring" in left_out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--algorithm", "rign"), r"there is no algorithm 'rign'; there are: all, auto, central, .*"),
        (("--algorithm", ","), "--algorithm names none; there are: .*"),
        (("--algorithm", "ring,auto,ring"), "--algorithm ring,auto,ring names ring twice: name each once, or all"),
        (("--bytes", "1001"), "--bytes 1001 is no whole number of float32, which have 4 bytes: take 1000 or 1004"),
        (("--bytes", "1KB,10TB"), r".* need about .* of memory, and .* are free: take fewer ranks or smaller sizes"),
        (("--ranks", "100000"), r".* need about .* of memory, and .* are free: take fewer ranks or smaller sizes"),
        (("--calibrate", "--ranks", "1"), "a model is fitted to times of 2 ranks or more: take --ranks 2 or more"),
        (("--calibrate", "--bytes", "1KB"), "a model is fitted to at least 2 sizes, got 1kB"),
        (("--calibrate", "--bytes", "1KB,1001"), "--bytes 1001 is no whole number of float32, which have 4 bytes: .*"),
        (("--calibrate", "--ranks", "99999"), r"99,999 ranks with 8.00 MB need about .* of memory, and .* are free: .*"),
        (("--calibrate", "--bytes", "1KB,9PB"), r"8 ranks with 9.00 PB need about .* of memory, .*"),
        (("--dtype", ","), "there is no dtype ','; take float32, .*"),
        (("--dtype", "floaty"), "there is no dtype 'floaty'; take float32, .*"),
        (("--dtype", "int32", "--op", "mean"), "the mean of int32 is no int32; .*"),
        (("--dtype", "str"), "there is no sum of str.*"),
        (("--op", "xor"), "--op: there is no operator 'xor'; there are: sum, mean, min, max, prod, or FILE.py:NAME"),
        (("--op", "none.py:f"), "--op: there is no file none.py"),
        (("--op", "operators.py:f"), "--op: operators.py has no operator and no function 'f'"),
        (("--op", "operators.py:first", "--algorithm", "ring"), "operator 'first' does not commute, and ring .*"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_said_in_one_line(
    mr: MrCommand, words: tuple[str, ...], complaint: str
) -> None:
    ended = mr("allreduce", *words)
    assert ended.code == 1
    assert re.fullmatch(complaint, ended.complaint), ended.complaint


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--ranks", 0), "0 is not in the range 1<=x<=4194304."),
        (("--ranks", "9" * 25), "is not in the range 1<=x<=4194304."),
        (("--bytes", "1KB,1MB,1000"), "'1000' is given twice: give each size once"),
        (("--bytes", "99999999999PB"), "'99999999999PB' is too large a size; the largest is 9223PB"),
        (("--runs", "9" * 25), "is not in the range 1<=x<=1000000."),
        (("--bytes", "12XB"), "'12XB' is no size; write a number and a unit"),
        (("--transport", "udp"), "'udp' is not one of 'shm', 'tcp'."),
        (("--report", "nowhere/x.html"), "--report: the folder of nowhere/x.html does not exist"),
        (("--runs", 0), "0 is not in the range 1<=x<=1000000."),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(
    mr: MrCommand, words: tuple[Any, ...], complaint: str
) -> None:
    ended = mr("allreduce", *words)
    assert ended.code == 2
    assert complaint in ended.err


# -- a model of the machine ---------------------------------------------------------------------------


def test_calibrating_measures_fits_and_says_of_each_case_how_far_the_prediction_is_off(mr: MrCommand) -> None:
    ended = mr(
        "allreduce", "--calibrate", "--ranks", 2, "--bytes", "1KB,100KB", "--runs", 1, "--json", "model.json"
    )
    assert ended.code == 0, ended.err
    found = json.loads((mr.folder / "model.json").read_text())
    cases = {(case["algorithm"], case["nbytes"]): case for case in found["cases"]}
    assert set(cases) == {(name, size) for name in algorithms() for size in (1000, 100_000)}
    assert {name for (name, _), case in cases.items() if case["fitted"]} == set(FITTED)
    for case in cases.values():
        assert case["error"] == pytest.approx(case["predicted_s"] / case["median_s"] - 1)
        assert len(case["seconds"]) == 1  # as --runs has it, also where calls are short
    others = [abs(case["error"]) for case in cases.values() if not case["fitted"]]
    (errors,) = found["errors"]
    assert (errors["ranks"], errors["cases"], errors["aim"]) == ("2", 12, 0.15)
    assert errors["largest_error"] == pytest.approx(max(others))
    assert errors["within"] == sum(error <= 0.15 for error in others)
    lines = ended.out.splitlines()
    assert sum(bool(re.match(r"2 +1(00 k|\.00 k)B", line)) for line in lines) == 22


def test_a_machine_that_is_as_the_model_has_it_is_predicted_for_what_was_not_measured() -> None:
    machine = Machine(
        means=Means(cores=2, pulled=True, short_bytes=SHORT_BYTES), start_s=10e-6, post_s=4e-6, take_s=5e-6, turn_s=40e-6,
        send_factor=1.0, settle_factor=2.0,
        bytes_=(
            ByteCosts(memory_bytes=2000, take_s=1e-10, fold_s=2e-10, share_s=4e-10),
            ByteCosts(memory_bytes=64_000_000, take_s=3e-10, fold_s=5e-10, share_s=8e-10),
        ),
    )  # fmt: skip
    cases = [
        Case(
            algorithm=name,
            ranks=ranks,
            nbytes=nbytes,
            seconds=(predict(machine, Timed(algorithm=name, ranks=ranks, nbytes=nbytes)),) * 3,
        )
        for name in (*FITTED, "direct", "tree", "halving")
        for ranks in (2, 3, 5)
        for nbytes in (1000, 64_000, 1_000_000, 8_000_000)
    ]
    models, predicted = predict_all(cases, cores=2, transport="shm")
    assert list(models) == [2, 3, 5]
    assert sum(case.fitted for case in predicted) == 5 * 3 * 4
    assert max(abs(case.error) for case in predicted) < 0.15
    found = {each.ranks: (each.within, each.cases) for each in summarise(predicted)}
    assert found == {"2": (12, 12), "3 to 5": (24, 24), "3": (12, 12), "5": (12, 12)}
    some = [case for case in predicted if case.ranks <= 3]
    assert [each.ranks for each in summarise(some)] == ["2", "3"]


def test_two_ranks_have_one_plan_of_five_names_as_the_guide_says() -> None:
    same = {name for name in algorithms() if folds_and_shares(schedule_of(name, 2, 1 << 20))}
    assert same == {"sharded", "ring", "direct", "halving", "two_level"}
    assert same & set(FITTED) == {"sharded", "ring"}


@pytest.mark.parametrize("words", [("--op", "max"), ("--report", "x.html"), ("--algorithm", "ring")])
def test_what_calibrating_decides_itself_is_not_taken(mr: MrCommand, words: tuple[str, str]) -> None:
    ended = mr("allreduce", "--calibrate", *words)
    assert ended.code == 2
    assert f"{words[0]} does not go with --calibrate" in ended.err


# -- its parts --------------------------------------------------------------------------------------


@given(
    size=st.integers(1, 2 * PERIOD + 5),
    place=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from(["<f4", "<f2", "i8"]),
)
def test_one_wrong_element_is_found_wherever_it_is(size: int, place: float, kind: str) -> None:
    right = fold([bring(rank, "sum", np.dtype(kind)) for rank in range(3)], "sum")
    x = np.resize(right, size)
    assert find_wrong(x, right, 1, "ring", 0) is None
    at = int(place * size)
    x[at] += 1
    said = find_wrong(x, right, 1, "ring", 0)
    assert said is not None
    assert said.startswith(f"ring is wrong at rank 1 in run 1: element {at} is ")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int64"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_what_ranks_bring_folds_exactly(op: str, name: str) -> None:
    brought = [bring(rank, op, dtype_of(name)) for rank in range(32)]
    as_python = [[int(value) for value in each[:50]] for each in brought]
    exact: Any = {"sum": sum, "prod": lambda values: int(np.prod(values)), "min": min, "max": max}[op]
    wanted = [exact(column) for column in zip(*as_python, strict=True)]
    assert [int(value) for value in fold(brought, op)[:50]] == wanted
    assert len({tuple(each) for each in as_python}) > 8


@pytest.mark.parametrize("ranks", range(1, 9))
def test_an_algorithm_asks_for_the_touches_and_bytes_of_the_formulas(ranks: int) -> None:
    n = 840
    by_name = {name: asked(schedule_of(name, ranks, 0), n) for name in algorithms()}
    # Two ranks have but one way to fold halves and share them, whatever its name.
    for name in ("ring", "direct"):
        assert by_name[name].touched == (5 * (ranks - 1) * n if ranks != 2 else 4 * n)
    assert by_name["sharded"].touched == (2 * ranks * n if ranks > 1 else 0)
    assert by_name["direct_whole"].aside == (ranks - 1) * n
    assert by_name["ring"].aside == 0
    for name, each in by_name.items():
        assert each.sent == int(count(schedule_of(name, ranks, 0), n).sent.sum())


def one_after_another(comm: Comm) -> float:
    return shortest(comm, [(comm.rank + 5.0, comm.rank + 6.0), (0.0, 1.5 + comm.rank), (9.0, 20.0)])


def test_ranks_that_take_turns_on_a_core_do_not_make_the_roof_higher() -> None:
    # Each was at work for 1 second of the first run, and both together took 2.
    assert launch(one_after_another, 2, timeout_s=60) == [2.0, 2.0]
    with_one = measure_triad(alone(), 1200, 2)
    assert (with_one.what, with_one.bytes_per_s > 1e6) == ("memory", True)


def test_what_is_kept_aside_and_folded_at_once_counts_as_written_read_and_folded() -> None:
    # Each of two ranks writes N aside (2N touched), then reads it and its own and writes the sum (3N).
    assert asked(plan("allreduce", "direct_whole", 2), 10).touched == 2 * 5 * 10


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=11))
def test_names_at_the_curves_do_not_overlap_and_points_lie_in_the_frame(ends: list[float]) -> None:
    curves = [
        Series(name=f"c{at}", points=[(10.0, 1.0), (1e6, end)], bars=[(1e6, end / 2, end)])
        for at, end in enumerate(ends)
    ]
    picture = draw_plot(curves, title="t", x_label="x", y_label="y", say_x=str, say_y=show_time)
    root = ElementTree.fromstring(picture)
    svg = "{http://www.w3.org/2000/svg}"
    names = [each for each in root.iter(f"{svg}text") if each.get("class") == "name"]
    assert sorted(each.text or "" for each in names) == sorted(each.name for each in curves)
    heights = sorted(float(each.get("y", "nan")) for each in names)
    assert all(above + 14.9 <= below for above, below in pairwise(heights))
    assert heights[0] > 0
    assert heights[-1] < HEIGHT
    points = re.findall(r'class="mark" transform="translate\(([-\d.]+) ([-\d.]+)\)"', picture)
    assert len(points) == 2 * len(curves)
    for x, y in points:
        assert LEFT <= float(x) <= WIDTH - 28 - 7.6 * 2
        assert TOP <= float(y) <= HEIGHT - BOTTOM
