"""The comparison report: values that survive JSON, numbers that can be checked by hand, one file that needs nothing else."""

from __future__ import annotations

import configparser
import fnmatch
import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import browse, needs_browser
from example_comparison import make_comparison

from jobs.cli import main
from jobs.report import sentences, tables
from jobs.report.combine import combine
from jobs.report.derive import (
    barrier_wait_s,
    cores_to_beat,
    difference,
    model_stage,
    noise_decides,
    phases,
    spread,
    sum_bytes,
    through_files,
    wall_without_io_s,
)
from jobs.report.html import checked_svg, to_html
from jobs.report.markdown import to_markdown
from jobs.report.model import (
    Attempt,
    BadComparison,
    Comparison,
    Drawing,
    Engine,
    Parallelism,
    Run,
    Sample,
    Stage,
    StageBytes,
)
from jobs.report.pictures import Piece, draw_bar, draw_timeline, thinned
from jobs.report.stored import from_json, json_schema, to_json
from jobs.report.terminal import print_comparison
from jobs.report.trace import to_trace
from jobs.report.words import say_headline, say_verdict
from mapreduce.errors import BadInput

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "jobs" / "report"
SECTIONS = (
    "verdict", "scoreboard", "amplification", "time", "timelines", "rounds", "graph", "parallelism", "memory",
    "rewrites", "environment",
)  # fmt: skip


def engine(kind: str, *walls: float, **more: Any) -> Engine:
    runs = more.pop("runs", None) or tuple(Run(wall_s=wall, cpu_s=wall) for wall in walls)
    return Engine(
        engine=kind, label=more.pop("label", kind), workers=more.pop("workers", 2), runs=runs, **more
    )


def comparison(*engines: Engine, **more: Any) -> Comparison:
    return Comparison(
        job="count", inputs={"in.txt": 1000}, output_bytes=100, output_sha256="ab" * 32, command="mr compare count in.txt",
        started="2026-01-01T00:00:00+00:00", engines=engines or (engine("mapreduce", 3.0), engine("dag", 1.0)), **more,
    )  # fmt: skip


def attempt(
    worker: int, start: float, end: float, *, kind: str = "map", task: int = 0, **more: Any
) -> Attempt:
    return Attempt(stage="count", kind=kind, task=task, worker=worker, start_s=start, end_s=end, **more)


# ---------------------------------------------------------------------------------------------------- JSON


def validate(
    value: Any, schema: dict[str, Any], definitions: dict[str, Any], path: str = "$"
) -> Iterator[str]:
    """Yield what is wrong by the words of JSON Schema that the schema file uses."""
    if "$ref" in schema:
        yield from validate(value, definitions[schema["$ref"].removeprefix("#/$defs/")], definitions, path)
    if "anyOf" in schema and all(list(validate(value, each, definitions, path)) for each in schema["anyOf"]):
        yield f"{path}: none of anyOf"
    if "const" in schema and value != schema["const"]:
        yield f"{path}: not {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is not one of {schema['enum']}"
    types: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None),
    }  # fmt: skip
    if "type" in schema and (
        not isinstance(value, types[schema["type"]])
        or (isinstance(value, bool) and schema["type"] in ("integer", "number"))
    ):
        yield f"{path}: {value!r:.30} is no {schema['type']}"
        return
    if isinstance(value, dict):
        yield from (f"{path}: lacks {name}" for name in schema.get("required", []) if name not in value)
        more = schema.get("additionalProperties", True)
        for name, item in value.items():
            yield from validate(name, schema.get("propertyNames", {}), definitions, f"{path}.{name}")
            if name in schema.get("properties", {}):
                yield from validate(item, schema["properties"][name], definitions, f"{path}.{name}")
            elif more is False:
                yield f"{path}: {name} is not known"
            elif isinstance(more, dict):
                yield from validate(item, more, definitions, f"{path}.{name}")
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from validate(item, schema.get("items", {}), definitions, f"{path}[{at}]")


def test_a_comparison_comes_back_from_json_as_it_was() -> None:
    for made in (make_comparison(), comparison()):
        text = to_json(made)
        assert from_json(text) == made
        assert to_json(from_json(text)) == text


def test_the_json_is_what_its_schema_file_says_and_the_file_is_up_to_date() -> None:
    schema = json.loads((REPORT / "schema.json").read_text())
    assert schema == json_schema()
    plain = json.loads(to_json(make_comparison()))
    assert list(validate(plain, schema, schema["$defs"])) == []
    assert list(validate(json.loads(to_json(comparison())), schema, schema["$defs"])) == []
    del plain["engines"][1]["runs"][0]["wall_s"]
    plain["engines"][0]["engine"] = "spark"
    plain["engines"][0]["breakdown"]["sleep"] = 1
    plain["output_bytes"] = "many"
    plain["schema_version"] = 3
    plain["colour"] = "red"
    assert len(list(validate(plain, schema, schema["$defs"]))) == 6


@pytest.mark.parametrize("version", [0, 1, "2", None])
def test_another_schema_version_is_refused_in_one_line(version: object) -> None:
    plain = json.loads(to_json(comparison()))
    plain["schema_version"] = version
    with pytest.raises(
        BadInput, match=f"^b.json: schema version {version!r}, this mr reads version 2; [^\n]*$"
    ):
        from_json(json.dumps(plain), "b.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(colour="red"), "comparison has no field 'colour'"),
        (lambda c: c.pop("job"), "comparison lacks the field 'job'"),
        (lambda c: c["engines"][0]["runs"][0].update(wall_s="3"), r"engines\[0\].runs\[0\].wall_s must be a number"),
        (lambda c: c["engines"][0].update(workers=True), r"engines\[0\].workers must be a whole number"),
        (lambda c: c["engines"][0].update(runs=[]), "mapreduce: run 0 is to be shown, but has 0 runs"),
        (lambda c: c["engines"][0].update(workers=0), "mapreduce: 0 workers cannot have run anything"),
        (lambda c: c["engines"][0].update(engine="spark"), "'spark' is none of mapreduce, dag, single"),
        (lambda c: c["engines"].pop(1), "no engine is 'dag'"),
        (lambda c: c["engines"][1].update(label="mapreduce"), "two engines have one label"),
        (lambda c: c["engines"][0].update(breakdown={"sleep": 1.0}), "in the breakdown is none of compute"),
        (lambda c: c.update(inputs=[]), "comparison.inputs must be an object"),
        (lambda c: c.update(engines={}), "comparison.engines must be a list"),
        (lambda c: c.update(parallelism=3), "comparison.parallelism must be an object"),
    ],
)  # fmt: skip
def test_json_that_is_no_comparison_is_refused_with_the_place(change: Any, said: str) -> None:
    plain = json.loads(to_json(comparison()))
    change(plain)
    with pytest.raises(BadInput, match=rf"^a.json: .*{said}"):
        from_json(json.dumps(plain), "a.json")


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "not json", b"\xff\xfe{}", "null"])
def test_text_that_is_no_json_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadInput, match=r"^a.json: "):
        from_json(text, "a.json")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused_with_their_place(number: float) -> None:
    with pytest.raises(BadComparison, match=r"comparison.engines\[1\].runs\[0\].wall_s is (nan|inf|-inf)"):
        comparison(engine("mapreduce", 1.0), engine("dag", number))
    with pytest.raises(BadComparison, match=r"breakdown.idle"):
        comparison(engine("mapreduce", 1.0, breakdown={"idle": number}), engine("dag", 1.0))
    text = to_json(comparison()).replace('"wall_s": 3.0', f'"wall_s": {json.dumps(number)}')
    with pytest.raises(BadInput, match=r"is no number that a report can show"):
        from_json(text)


# ------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(1, 1, 1), (2, 1, 2), (5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15)],
)
def test_the_interval_of_the_median_is_the_narrowest_that_coins_allow(
    count: int, low: int, high: int
) -> None:
    found = spread([float(rank) for rank in range(count, 0, -1)])
    assert (found.low, found.high, found.count) == (low, high, count)

    def outside(rank: int) -> float:  # the median is as likely above a run as below it
        return 2 * sum(math.comb(count, heads) for heads in range(rank)) / 2**count

    assert outside(low) <= 0.05 or low == 1
    assert outside(low + 1) > 0.05


def test_median_and_deviation_are_those_of_a_worked_example() -> None:
    found = spread([1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0])  # the usual textbook example: median 2, MAD 1
    assert (found.median, found.mad) == (2.0, 1.0)


def test_noise_decides_where_intervals_overlap_and_never_between_equal_exact_numbers() -> None:
    assert noise_decides(spread([1, 2, 3]), spread([3, 4, 5]))
    assert noise_decides(spread([1, 9]), spread([2, 3]))
    assert not noise_decides(spread([1, 2]), spread([2.1, 3]))
    assert not noise_decides(spread([7, 7]), spread([7, 7, 7]))
    assert not noise_decides(spread([7, 7]), spread([8, 8]))


def test_a_difference_within_the_noise_is_not_claimed() -> None:
    close = comparison(engine("mapreduce", 1.0, 1.3, 1.1), engine("dag", 0.9, 1.05, 1.0))
    assert say_headline(close) == "Too noisy to say whether DAG or MapReduce is faster"
    assert "1.00 s (900 ms to 1.05 s) against 1.10 s (1.00 to 1.30 s), " in say_verdict(close)
    row = next(row for row in tables.score_tables(close)[0].table.rows if row[0].text == "wall time")
    assert (row[-1].text, row[-1].marked) == ("decides", True)
    apart = comparison(engine("mapreduce", 3.0, 3.3, 3.1), engine("dag", 0.9, 1.05, 1.0))
    assert say_headline(apart) == "DAG is 3.1× faster than MapReduce"
    slower = comparison(engine("mapreduce", 1.0), engine("dag", 2.5))
    assert say_headline(slower) == "DAG is 2.5× slower than MapReduce"
    alike = comparison(engine("mapreduce", 1.0, 1.3, 1.02), engine("dag", 0.9, 1.05, 1.0))
    assert say_headline(alike) == "DAG and MapReduce are equally fast"
    assert (
        say_headline(comparison(engine("mapreduce", 1.0), engine("dag", 1.0)))
        == "DAG and MapReduce are equally fast"
    )
    assert say_headline(comparison(engine("mapreduce", 0.0), engine("dag", 1.0))) == "Too fast to measure"


def test_the_verdict_names_times_bytes_memory_and_the_outputs() -> None:
    slow = Run(
        wall_s=6.0,
        cpu_s=9,
        input_bytes=10**9,
        store_read_bytes=10**9,
        store_physical_bytes=10**9,
        peak_memory_bytes=10**8,
    )
    fast = Run(wall_s=2.0, cpu_s=3, input_bytes=10**9, peak_memory_bytes=3 * 10**8)
    made = comparison(engine("mapreduce", runs=(slow,)), engine("dag", runs=(fast,)))
    assert say_verdict(made) == (
        "DAG is 3.0× faster than MapReduce: 2.00 s instead of 6.00 s, reading and writing 3.0× fewer bytes"
        " (1.00 GB instead of 3.00 GB) and taking 3.0× as much memory (300 MB instead of 100 MB at the peak);"
        " one run each: no more than a hint; outputs are identical (sha256 abababababab)."
    )


def test_memory_that_was_there_before_a_run_began_is_no_merit_of_an_engine() -> None:
    def held(kind: str, idle: int, peak: int) -> Engine:
        samples = (Sample(at_s=0.0, memory_bytes=idle), Sample(at_s=0.5, memory_bytes=peak))
        return engine(
            kind, runs=(Run(wall_s=1.0, cpu_s=1.0, input_bytes=5, peak_memory_bytes=peak),), memory=samples
        )

    small = comparison(held("mapreduce", 300, 340), held("dag", 100, 130))
    small = replace(small, inputs={"in": 50})
    assert "memory" not in say_verdict(small)
    assert "mapreduce: 300 B of 340 B; dag: 100 B of 130 B" in sentences.say_idle(small)
    assert sentences.say_idle(small) in to_html(small)
    assert sentences.say_idle(small) in to_markdown(small)
    large = replace(small, inputs={"in": 500})
    assert "taking 2.6× less memory" in say_verdict(large)
    data = comparison(held("mapreduce", 110, 340), held("dag", 100, 130))
    assert "taking 2.6× less memory" in say_verdict(replace(data, inputs={"in": 50}))


@pytest.mark.parametrize(("count", "said"), [(2, "50%"), (3, "75%"), (5, "94%"), (9, "95%")])
def test_the_report_says_what_so_many_runs_can_tell_and_which_of_them_is_drawn(count: int, said: str) -> None:
    walls = [1.0 + at for at in range(count)]
    made = comparison(engine("mapreduce", *walls, shown=1), engine("dag", *walls))
    if count < 6:  # each run is above the median or below it, as a coin falls
        coins = list(itertools.product((0, 1), repeat=count))
        assert said == f"{sum(0 < sum(each) < count for each in coins) / len(coins):.0%}"
    assert f"covers the true median with {said}" in to_html(made)
    assert f"mapreduce, run 2 of {count} (2.00 s); dag, run 1 of {count} (1.00 s)" in to_html(made)
    one = comparison(engine("mapreduce", 1.0), engine("dag", 9.0))
    assert "one run each: no more than a hint" in say_verdict(one)
    assert sentences.say_shown(one) == ""


def test_warnings_stand_under_the_verdict_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    made = replace(make_comparison(), warnings=("the machine was busy",))
    print_comparison(made)
    printed = capsys.readouterr().out
    assert sentences.say_idle(made)[:60] in printed
    assert sentences.say_shown(made)[:60] in printed
    for text in (to_html(made), to_markdown(made), printed):
        assert (
            text.index("outputs are identical") < text.index("the machine was busy") < text.index("wall time")
        )


def test_a_time_above_the_bounds_says_what_the_bounds_leave_out() -> None:
    shape = Parallelism(work_s=2.0, span_s=1.0, burdened_span_s=1.0, tasks=3, workers=2, measured_s=2.5)
    runs = (Run(wall_s=3.0, cpu_s=1.0, tasks=8),)
    made = comparison(engine("mapreduce", 4.0), engine("dag", runs=runs), parallelism=shape)
    (row,) = (row for row in tables.parallelism_table(made).rows if row[0].text == "measured")
    assert "500 ms above the upper bound: starting tasks and waiting" in row[2].text
    assert "the other 500 ms of this run's 3.00 s plan and publish" in row[2].text
    assert "3 of 8 tasks" in to_html(made)
    within = replace(made, parallelism=replace(shape, measured_s=1.9, tasks=8))
    assert "above" not in str(tables.parallelism_table(within))
    assert sentences.say_part_of_graph(within) == ""


def test_a_column_in_which_nothing_stands_is_left_out() -> None:
    heads = [
        tables.score_tables(comparison(engine("mapreduce", *walls), engine("dag", 1.0, 1.1)))[0].table.head
        for walls in ((5.0, 6.0), (1.0, 1.2))
    ]
    assert ["noise" in head for head in heads] == [False, True]


@pytest.mark.parametrize(
    ("files", "memory", "said"),
    [
        (
            (300, 100), (900, 100),
            "reading and writing 3.0× fewer bytes (100 B instead of 300 B)"
            " and taking 9.0× less memory (100 B instead of 900 B at the peak);",
        ),
        (
            (100, 300), (100, 103),
            "reading and writing 3.0× as many bytes (300 B instead of 100 B)"
            " and taking about as much memory (103 B instead of 100 B at the peak);",
        ),
        ((100, 103), (0, 103), "reading and writing about as much (103 B instead of 100 B);"),
        ((100, 100), (100, 200), "reading and writing the same 100 B and taking 2.0× as much memory"),
        ((100, 0), (100, 200), "reading and writing 0 B instead of 100 B and taking"),
    ],
)  # fmt: skip
def test_bytes_and_memory_are_said_as_one_would_say_them_whoever_has_more(
    files: tuple[int, int], memory: tuple[int, int], said: str
) -> None:
    runs = [
        Run(wall_s=1.0, cpu_s=1.0, input_bytes=f, peak_memory_bytes=m)
        for f, m in zip(files, memory, strict=True)
    ]
    for walls in ((1.0, 3.0), (3.0, 1.0)):  # also where the slower way takes less
        slow, fast = (replace(run, wall_s=wall) for run, wall in zip(runs, walls, strict=True))
        assert said in say_verdict(comparison(engine("mapreduce", runs=(slow,)), engine("dag", runs=(fast,))))


def test_one_byte_too_many_is_found_and_named() -> None:
    modelled = model_stage(
        input_bytes=10**12, spill_bytes=5, intermediate_bytes=7, replication=3, output_bytes=2
    )
    assert modelled == StageBytes(input_bytes=10**12, spill_bytes=10, intermediate_bytes=21, output_bytes=2)
    for name in ("input_bytes", "spill_bytes", "intermediate_bytes", "output_bytes"):
        for extra, said in ((1, "+1 byte"), (-1, "-1 byte"), (0, "exact")):
            found = difference(replace(modelled, **{name: getattr(modelled, name) + extra}), modelled)
            assert (found.extra_bytes, found.words, found.marked) == (extra, said, False)


def test_one_byte_too_many_in_one_of_many_stages_reaches_every_form_of_the_report() -> None:
    exact = make_comparison()
    stages = [replace(stage, measured=stage.modelled) for stage in exact.mapreduce.stages]
    engines = [
        replace(each, stages=tuple(replace(s, measured=s.modelled) for s in each.stages))
        for each in exact.engines
    ]
    exact = replace(exact, engines=tuple(engines))
    for text in (to_html(exact), to_markdown(exact)):
        assert "agree with the model to the byte." in text
        assert "+1 byte" not in text
    stages[7] = replace(
        stages[7], measured=replace(stages[7].measured, spill_bytes=stages[7].measured.spill_bytes + 1)
    )
    injected = replace(exact, engines=(replace(engines[0], stages=tuple(stages)), *engines[1:]))
    for text in (to_html(injected), to_markdown(injected)):
        assert (
            "All 23 stages agree with the model within 0.01%, 22 of them to the byte;"
            " furthest off is MapReduce, gradient[7]: +1 byte." in text.replace("\\", "")
        )


def test_a_difference_is_marked_above_five_per_cent_only() -> None:
    modelled = StageBytes(input_bytes=1000)
    assert not difference(StageBytes(input_bytes=1050), modelled).marked
    assert difference(StageBytes(input_bytes=1051), modelled).marked
    assert difference(StageBytes(input_bytes=1051), modelled).words == "+51 bytes (+5.1%)"
    assert difference(StageBytes(input_bytes=949), modelled).marked
    assert difference(StageBytes(output_bytes=1), StageBytes()).words == "+1 byte (none expected)"
    assert difference(StageBytes(), StageBytes()).words == "exact"


def test_too_much_of_one_kind_does_not_hide_what_another_lacks() -> None:
    found = difference(
        StageBytes(input_bytes=500, spill_bytes=600), StageBytes(input_bytes=600, spill_bytes=500)
    )
    assert found.words == "+100 bytes of spill (+9.1%)"
    assert found.marked


def test_bytes_through_files_of_the_runs_are_those_of_the_stages() -> None:
    made = make_comparison()
    for each in made.engines:
        if each.stages:
            stages = sum_bytes([stage.measured for stage in each.stages])
            injected = 1 if each.engine == "mapreduce" else 0
            assert through_files(each.run) == stages.total - injected


def test_phases_end_where_all_have_ended_and_another_kind_begins() -> None:
    made = engine(
        "mapreduce", 10.0,
        attempts=(
            attempt(0, 0, 4), attempt(1, 0, 2), attempt(1, 2.5, 3),
            attempt(0, 4, 6, kind="reduce"), attempt(1, 4.5, 9, kind="reduce"),
        ),
    )  # fmt: skip
    found = phases(made)
    assert [(phase.start_s, phase.end_s) for phase in found] == [(0, 4), (4, 9)]
    assert [phase.waits for phase in found] == [((1, 1),), ((0, 3),)]
    assert barrier_wait_s(made) == 4


def test_stages_that_overlap_have_no_barrier() -> None:
    made = engine("dag", 6.0, attempts=(attempt(0, 0, 4), attempt(1, 0, 2), attempt(1, 2, 6, kind="merge")))
    assert len(phases(made)) == 1
    assert barrier_wait_s(made) == 2


def test_free_io_takes_from_each_phase_what_its_slowest_worker_spent() -> None:
    made = engine(
        "mapreduce", 10.0,
        attempts=(
            attempt(0, 0, 4, seconds={"store_read": 3.0}),
            attempt(1, 0, 3, seconds={"store_read": 0.5, "serialise": 2.0}),
            attempt(0, 4, 8, kind="reduce", seconds={"shuffle": 1.0, "store_write": 1.0}),
        ),
    )  # fmt: skip
    # first phase: 4 becomes max(4 - 3, 3 - 0.5); second: 4 becomes 2; 2 seconds outside stay
    assert wall_without_io_s(made) == pytest.approx(2.5 + 2 + 2)
    assert wall_without_io_s(engine("dag", 6.0, attempts=(attempt(0, 0, 4),))) == pytest.approx(6.0)


def test_cost_is_the_number_of_workers_that_would_draw_level() -> None:
    assert cores_to_beat(engine("single", 3.0, workers=1), engine("mapreduce", 24.0)) == pytest.approx(16.0)


# ------------------------------------------------------------------------------------------------- pictures


def rects(svg: str, style: str = "") -> list[dict[str, str]]:
    found = [element.attrib for element in ElementTree.fromstring(svg).iter("rect")]
    return [each for each in found if style in each["class"].split()] if style else found


def percent(text: str) -> float:
    return float(text.removesuffix("%"))


def test_stacked_parts_follow_each_other_and_sum_to_wall_time_times_workers() -> None:
    made = make_comparison()
    accounted = tables.account(made.mapreduce)
    assert accounted.total_s == pytest.approx(made.mapreduce.run.wall_s * made.mapreduce.workers, rel=0.02)
    svg = draw_bar(
        [Piece(style=part, value=value, title=part) for part, value in accounted.parts], accounted.total_s
    )
    at = 0.0
    for rect, (part, value) in zip(rects(svg), accounted.parts, strict=True):
        assert rect["class"] == part
        assert percent(rect["x"]) == pytest.approx(at, abs=0.03)
        assert percent(rect["width"]) == pytest.approx(100 * value / accounted.total_s, abs=0.03)
        at += percent(rect["width"])
    assert at == pytest.approx(100, abs=0.1)


def test_parts_that_miss_wall_time_times_workers_by_more_than_two_per_cent_are_marked() -> None:
    for total, marked in ((1.97, False), (1.95, True), (2.05, True)):
        made = comparison(engine("mapreduce", 1.0, breakdown={"compute": total}), engine("dag", 1.0))
        assert [cell.marked for cell in tables.time_table(made).rows[-1]] == [False, marked]


def test_attempts_are_drawn_at_their_times_in_the_row_of_their_worker() -> None:
    made = engine(
        "dag",
        8.0,
        workers=3,
        attempts=(attempt(2, 2, 6), attempt(0, 0, 1, attempt=1), attempt(1, 0, 4, outcome="lost")),
    )
    svg = draw_timeline(made, 8.0, "dag").bars
    drawn = sorted(rects(svg, "dag"), key=lambda rect: float(rect["y"]))
    assert [(percent(r["x"]), percent(r["width"])) for r in drawn] == [(0, 12.5), (0, 50), (25, 50)]
    assert [float(r["y"]) for r in rects(svg, "again")] == [float(drawn[0]["y"])]
    assert [float(r["y"]) for r in rects(svg, "bad")] == [float(drawn[1]["y"])]
    waits = sorted((percent(r["x"]), percent(r["width"])) for r in rects(svg, "wait"))
    assert waits == [(12.5, 62.5), (50, 25)]


def test_tasks_too_short_to_be_seen_are_drawn_together_and_counted() -> None:
    many = tuple(
        attempt(task % 2, task // 2 * 5e-4, task // 2 * 5e-4 + 4e-4, task=task) for task in range(20_000)
    )
    made = comparison(engine("mapreduce", 5.0), engine("dag", 5.0, attempts=many))
    svg = draw_timeline(made.dag, 5.0, "dag").bars
    titles = [element.text or "" for element in ElementTree.fromstring(svg).iter("title")]
    assert sum(int(found[1]) for title in titles if (found := re.search(r"(\d+) tasks on", title))) == 20_000
    assert len(to_html(made)) < 1_000_000


def test_thinning_keeps_the_peak_and_the_order_of_time() -> None:
    samples = [Sample(at_s=float(at), memory_bytes=(at * 7919) % 10_007) for at in range(20_000)]
    kept = thinned(samples, 100)
    assert len(kept) <= 200
    assert max(s.memory_bytes for s in kept) == max(s.memory_bytes for s in samples)
    assert [s.at_s for s in kept] == sorted(s.at_s for s in kept)


# ---------------------------------------------------------------------------------------------------- forms


class Page(HTMLParser):
    """What a page refers to, its sections, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action", "srcset", "poster"):
                self.references.append(value or "")
            if name == "id" and tag in ("section", "header"):
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(" ".join(data.split()))


def test_the_page_refers_to_nothing_outside_itself() -> None:
    text = to_html(make_comparison())
    page = Page(text)
    assert page.references == []
    assert page.ids == list(SECTIONS)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|import\(", text)
    assert set(re.findall(r"(?:https?|wss?|ftp|file):[^\s\"'<)]*", text)) <= {"http://www.w3.org/2000/svg"}


def test_a_report_on_a_thousand_tasks_is_below_a_megabyte_and_its_script_below_two_kilobytes() -> None:
    made = make_comparison(iterations=20, maps=50)
    assert len(made.mapreduce.attempts) > 1000
    assert len(made.dag.attempts) > 1000
    assert len(to_html(made).encode()) < 1_000_000
    assert len((REPORT / "report.js").read_bytes()) < 2000


def test_markdown_says_in_its_tables_and_sentences_what_the_page_says() -> None:
    made = make_comparison()
    plain = to_markdown(made).replace("\\", "")
    page = to_html(made)
    for table in (
        *(each.table for each in tables.score_tables(made)), tables.time_table(made), tables.edge_table(made),
        tables.run_table(made), tables.parallelism_table(made), tables.environment_table(made),
        *(tables.stage_table(made, each) for each in made.engines),
    ):  # fmt: skip
        for row in table.rows:
            assert f"| {' | '.join(_markdown(cell) for cell in row)} |".replace("\\", "") in plain
    said = [
        *(say(made) for say in (
            sentences.say_amplification, sentences.say_deviations, sentences.say_without_io, sentences.say_barriers,
            sentences.say_cost, sentences.say_rounds, sentences.say_noise_rule, sentences.say_shown,
            say_headline,
        )),
        sentences.MODEL_RULE, sentences.IO_RULE, made.command, *made.warnings,
    ]  # fmt: skip
    for sentence in said:
        assert sentence
        assert sentence in plain
        assert sentence in page


def _markdown(cell: tables.Cell) -> str:
    small = cell.small.replace("\n", " ")
    text = f"**{cell.text}**" if cell.marked else cell.text
    return f"{text}<br><sub>{small}</sub>" if small else text


def test_a_comparison_with_bare_times_has_every_section_too() -> None:
    made = comparison()
    assert Page(to_html(made)).ids == list(SECTIONS)
    assert "Not sampled." in to_markdown(made)
    assert json.loads(to_trace(made))["traceEvents"] == []
    flat = Parallelism(work_s=0.0, span_s=0.0, burdened_span_s=0.0, tasks=0, workers=1, measured_s=0.0)
    nothing = comparison(
        engine("mapreduce", 0.0, attempts=(attempt(0, 0, 0),), memory=(Sample(at_s=0.0, memory_bytes=0),)),
        engine("dag", 0.0, breakdown={"idle": 0.0}, iterations_s=(0.0, 0.0)),
        drawing=Drawing(text="a -> b"),
        parallelism=flat,
    )
    assert Page(to_html(nothing)).ids == list(SECTIONS)
    to_markdown(nothing)


def test_names_that_look_like_markup_stay_text() -> None:
    bad = "<script>alert(1)</script>|`*"
    made = make_comparison()
    stage = Stage(name=bad, tasks=1, measured=StageBytes(input_bytes=1), modelled=StageBytes(input_bytes=1))
    made = replace(
        made, job=bad, command=bad, parameters={bad: bad}, machine={bad: bad}, warnings=(bad,),
        engines=(
            replace(made.mapreduce, label=bad, stages=(stage,), attempts=(replace(attempt(0, 0, 1), stage=bad),)),
            *made.engines[1:],
        ),
    )  # fmt: skip
    text = to_html(made)
    assert text.count("<script>") == 1
    assert "<script>alert" not in text
    columns = {
        len(re.findall(r"(?<!\\)\|", line))
        for line in to_markdown(made).split("## Scoreboard")[1].split("\n\n")[2].splitlines()
    }
    assert len(columns) == 1


@pytest.mark.parametrize(
    "svg",
    [
        "<svg><script>1</script></svg>",
        "<svg><image href='x.png'/></svg>",
        "<svg onload='1'/>",
        "<svg><a href='https://example.org'/></svg>",
        "<svg><style>@import 'x.css';</style></svg>",
        "<svg><rect fill='url(https://example.org/x)'/></svg>",
        "<svg><style>rect{fill:url( 'x' )}</style></svg>",
        "<svg><foreignObject/></svg>",
        "<p>no drawing</p>",
        "<svg>",
    ],
)
def test_a_drawing_that_leads_outside_is_refused(svg: str) -> None:
    with pytest.raises(BadInput, match=r"^the drawing of the graph "):
        checked_svg(svg)


def test_the_trace_has_each_attempt_once_with_its_times_in_microseconds() -> None:
    made = make_comparison()
    events = json.loads(to_trace(made))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    attempts = [each for engine in made.engines for each in engine.attempts]
    assert len(spans) == len(attempts)
    assert sum(event["dur"] for event in spans) == pytest.approx(
        1e6 * sum(a.end_s - a.start_s for a in attempts), rel=1e-4
    )
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(names.values()) == [engine.label for engine in made.engines if engine.attempts]
    assert {event["ph"] for event in events} == {"X", "M", "C"}
    assert all(isinstance(event[key], int) for event in events for key in ("pid", "tid"))


def test_two_comparisons_become_one_only_for_equal_work() -> None:
    one, two = make_comparison(seed=1), make_comparison(seed=2)
    two = replace(two, versions={**two.versions, "dask": "2027.1.0"})
    both = combine([one, two], ["a", "b"])
    assert [engine.label for engine in both.engines] == [
        f"{e.label} ({n})" for n in "ab" for e in one.engines
    ]
    assert both.versions["dask"] == "2026.8.0 (a); 2027.1.0 (b)"
    assert both.versions["numpy"] == "2.4.6"
    assert from_json(to_json(both)) == both
    assert say_headline(both) == "DAG is equally fast in a and in b"
    assert "DAG is 13× faster than MapReduce in a and 13× faster than MapReduce in b" in say_verdict(both)
    quick = replace(
        two,
        engines=tuple(
            replace(e, runs=tuple(replace(r, wall_s=r.wall_s / 4) for r in e.runs)) for e in two.engines
        ),
    )
    faster = say_headline(combine([one, quick], ["before", "after"]))
    assert re.fullmatch(r"DAG is [34]\.\d× faster in after than in before", faster)
    slower = say_headline(combine([quick, one], ["fast", "slow"]))
    assert re.fullmatch(r"DAG is [34]\.\d× slower in slow than in fast", slower)
    for each in tables.score_tables(both):  # a column for each file, not for each way of each file
        assert each.table.head[:4] == ("", "a", "b", "a / b")
    assert [each.title for each in tables.score_tables(both)] == [e.label for e in one.engines]
    assert Page(to_html(both)).ids == list(SECTIONS)
    assert combine([one], ["a"]) is one
    with pytest.raises(BadInput, match="b: output sha256 is"):
        combine([one, replace(two, output_sha256="00")], ["a", "b"])
    with pytest.raises(BadInput, match="b: job is"):
        combine([one, replace(two, job="kmeans")], ["a", "b"])
    with pytest.raises(BadInput, match="two comparisons have the name 'a'"):
        combine([one, two], ["a", "a"])


def test_the_command_draws_files_again_in_every_form_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = make_comparison(seed=1), make_comparison(seed=2)
    Path("a.json").write_text(to_json(one))
    Path("b.json").write_text(to_json(two))
    for inputs, wanted in ((["a.json"], one), (["a.json", "b.json"], combine([one, two], ["a", "b"]))):
        with pytest.raises(SystemExit) as ended:
            main(
                [
                    "compare",
                    *inputs,
                    "--report",
                    "r.html",
                    "--markdown",
                    "r.md",
                    "--json",
                    "r.json",
                    "--trace",
                    "t.json",
                ]
            )
        assert ended.value.code == 0
        assert Path("r.html").read_text() == to_html(wanted)
        assert Path("r.md").read_text() == to_markdown(wanted)
        assert Path("r.json").read_text() == to_json(wanted)
        assert Path("t.json").read_text() == to_trace(wanted)
        assert "DAG is 13× faster than MapReduce" in " ".join(capsys.readouterr().out.split())
    Path("c.json").write_text(to_json(two).replace('"schema_version": 2', '"schema_version": 9'))
    with pytest.raises(SystemExit) as ended:
        main(["compare", "a.json", "c.json"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("mr: c.json: schema version 9, this mr reads version 2")


def test_the_package_carries_every_file_that_the_report_needs() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = [each.strip() for each in setup["options.package_data"]["jobs.report"].split(",")]
    needed = [path.name for path in REPORT.iterdir() if path.is_file() and path.suffix != ".py"]
    assert len(needed) >= 4
    assert [name for name in needed if not any(fnmatch.fnmatch(name, each) for each in patterns)] == []


# -------------------------------------------------------------------------------------------------- browser

PROBE = """<script>
const head = [...document.querySelectorAll("#scoreboard table th")].find(th => th.textContent.startsWith("MapReduce"));
head.querySelector("button").click();
const column = head.cellIndex, rows = [...head.closest("table").tBodies[0].rows];
const values = rows.map(row => Number(row.cells[column].dataset.v));
document.body.dataset.sorted = values.every((v, i) => !i || values[i - 1] <= v) && values.length > 5;
head.querySelector("button").click();
document.body.dataset.first = [...head.closest("table").tBodies[0].rows][0].cells[column].dataset.v >= Math.max(...values);
const bar = document.querySelector("#timelines [data-t]");
bar.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
document.body.dataset.tip = document.getElementById("tip").textContent;
document.body.dataset.wide = document.documentElement.scrollWidth <= innerWidth;
</script>"""


@needs_browser
def test_a_browser_shows_every_section_without_a_word_in_its_console(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(to_html(make_comparison()))
    dom, console = browse(page, tmp_path)
    assert console == []
    assert Page(dom).ids == list(SECTIONS)
    assert "13× faster" in dom


@needs_browser
def test_a_browser_sorts_tables_and_shows_details_and_nothing_is_wider_than_a_telephone(
    tmp_path: Path,
) -> None:
    page = tmp_path / "report.html"
    page.write_text(to_html(make_comparison()).replace("</body>", f"{PROBE}</body>"))
    dom, console = browse(page, tmp_path, "--window-size=500,900")
    assert console == []
    body = re.search(r"<body[^>]*>", dom)
    assert body is not None
    assert 'data-sorted="true"' in body[0]
    assert 'data-first="true"' in body[0]
    assert 'data-wide="true"' in body[0]
    assert re.search(r'data-tip="[^"]*(worker|waits)', body[0])


@needs_browser
def test_no_table_is_cut_on_a_desk_also_where_two_files_are_compared(tmp_path: Path) -> None:
    probe = """<script>
document.querySelectorAll("details").forEach(each => each.open = true);
const boxes = [...document.querySelectorAll(".scroll, .bars, .lanes, .drawing")];
document.body.dataset.boxes = boxes.length;
document.body.dataset.cut = boxes.filter(each => each.scrollWidth > each.clientWidth + 1).length;
</script>"""
    one, two = make_comparison(seed=1), make_comparison(seed=2)
    page = tmp_path / "report.html"
    for made in (one, combine([one, two], ["before", "after"])):
        page.write_text(to_html(made).replace("</body>", f"{probe}</body>"))
        dom, console = browse(page, tmp_path, "--window-size=1200,900")
        assert console == []
        assert re.search(r'<body[^>]*data-boxes="[1-9]\d+"[^>]*data-cut="0"', dom)


@needs_browser
def test_the_console_is_heard(tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text(
        "<!doctype html><script>throw new Error('heard')</script><img src='https://example.org/x.png'>"
    )
    _, console = browse(page, tmp_path)
    assert any("heard" in line for line in console)
