"""The report as one HTML file: no script, style, font or picture from elsewhere, so it opens from a disk without a network.

Hovering tells details and a click on a head sorts its table, in under 2 KB of script; without script all numbers are there too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any
from xml.etree import ElementTree

import jinja2
from markupsafe import Markup

from mapreduce.errors import BadInput

from ..sizes import format_size, say_count
from . import sentences, tables, words
from .derive import METRICS, account, difference, shown_engines, sources, spread, sum_bytes
from .model import PARTS, Comparison, Engine, Stage
from .pictures import (
    Piece,
    Timeline,
    draw_axis,
    draw_bar,
    draw_bounds,
    draw_columns,
    draw_memory,
    draw_timeline,
    draw_width,
)

#: A run this much shorter than the axis is drawn once more on an axis of its own.
ENLARGE_BELOW = 0.3
#: More bars than this tell nothing; the table has all stages.
MOST_BARS = 24


def to_html(comparison: Comparison) -> str:
    """Return the report as one HTML document.

    Raises:
        BadInput: the drawing of the graph is not plain SVG, or refers to something outside.
    """
    return _template().render(_shown(comparison))


@functools.cache
def _template() -> jinja2.Template:
    folder = files(__package__)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.globals.update(
        css=Markup((folder / "report.css").read_text("utf-8")),
        js=Markup((folder / "report.js").read_text("utf-8")),
    )
    return environment.from_string((folder / "report.html.jinja").read_text("utf-8"))


def _shown(comparison: Comparison) -> dict[str, Any]:
    pair = shown_engines(comparison)
    memory_end = max((sample.at_s for engine in pair for sample in engine.memory), default=0.0)
    found = comparison.parallelism
    files = sources(comparison)
    style = {engine.label: style_of(engine, files) for engine in comparison.engines}
    return {
        "comparison": comparison,
        "styles": style,
        "kinds": _legend_of_pairs(comparison, style),
        "applied": words.fold_rounds(comparison.rewrites.applied),
        "refused": words.fold_rounds(comparison.rewrites.refused),
        "of_first": f", in {files[0]}" if len(files) > 1 else "",
        "subject": words.say_subject(comparison),
        "headline": words.say_headline(comparison),
        "verdict": words.say_details(comparison),
        "tiles": [_tile(comparison, name) for name in ("wall time", "through files, all", "CPU time", "peak memory")],
        "scores": tables.score_tables(comparison),
        "scheduler": words.say_scheduler(comparison),
        "cost": sentences.say_cost(comparison),
        "noise_rule": sentences.say_noise_rule(comparison),
        "runs": tables.run_table(comparison),
        "amplified": sentences.say_amplification(comparison),
        "deviations": sentences.say_deviations(comparison),
        "sums": _sums(comparison),
        "waterfalls": _waterfalls(comparison),
        "model_rule": sentences.MODEL_RULE,
        "shown_runs": sentences.say_shown(comparison),
        "idle_memory": sentences.say_idle(comparison),
        "part_of_graph": sentences.say_part_of_graph(comparison),
        "without_io": sentences.say_without_io(comparison),
        "io_rule": sentences.IO_RULE,
        "part_legend": [(part, words.PART_WORDS[part]) for part in PARTS],
        "time_bars": _time_bars(comparison),
        "times": tables.time_table(comparison),
        "barriers": sentences.say_barriers(comparison),
        "timelines": _timelines(pair, style),
        "rounds": sentences.say_rounds(comparison),
        "round_columns": draw_columns(
            [(style[each.label], each.label, each.iterations_s) for each in pair if each.iterations_s]
        ),
        "drawing": checked_svg(comparison.drawing.svg),
        "edges": tables.edge_table(comparison),
        "parallelism": tables.parallelism_table(comparison),
        "bounds": draw_bounds(tables.bounds(comparison)[0], found.measured_s, tables.bounds(comparison)[1]) if found else "",
        "width": draw_width(found.width, found.workers) if found and found.width else "",
        "width_axis": draw_axis(max((m.at_s for m in found.width), default=0.0)) if found else "",
        "memory": draw_memory(
            [(style[each.label], each.label, each.memory) for each in pair if each.memory], memory_end,
            comparison.memory_limit_bytes,
        ) if memory_end else "",
        "memory_axis": draw_axis(memory_end) if memory_end else "",
        "memory_legend": [(style[each.label], f"{each.label}, all workers together") for each in pair if each.memory],
        "environment": tables.environment_table(comparison),
    }  # fmt: skip


def style_of(engine: Engine, files: Sequence[str]) -> str:
    """Return the class of an engine's shapes: its kind, lighter if it comes from a later one of several files."""
    return f"{engine.engine} later" if engine.source != files[0] else engine.engine


def _legend_of_pairs(comparison: Comparison, style: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the legend of pictures that show the pairs: the two engines, or both of each file."""
    several = len(sources(comparison)) > 1
    names = {"mapreduce": "MapReduce", "dag": "DAG"}
    return [
        (style[each.label], each.label if several else names[each.engine])
        for each in shown_engines(comparison)
    ]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar with its name and what it says."""

    label: str
    style: str
    bar: Markup
    text: str
    marked: bool = False


def _tile(comparison: Comparison, name: str) -> dict[str, Any]:
    metric = next(each for each in METRICS if each.name == name)
    pair = shown_engines(comparison)
    values = [spread([metric.value(run) for run in engine.runs]).median for engine in pair]
    full = max(values)
    files = sources(comparison)
    return {
        "name": {"through files, all": "bytes through files"}.get(name, name),
        "rows": [
            Bar(
                label=engine.label, style=style_of(engine, files), text=words.say(value, metric.unit),
                bar=draw_bar([Piece(style=style_of(engine, files), value=value, title="")], full, 6),
            )
            for engine, value in zip(pair, values, strict=True)
        ],
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """The stages of one engine as bars, and as a table."""

    label: str
    style: str
    rows: Sequence[Bar]
    more: str
    table: tables.Table


def _waterfalls(comparison: Comparison) -> list[Waterfall]:
    """Return the two that the verdict speaks of stage by stage on one scale, the others as tables."""
    pair = shown_engines(comparison)
    full = max((stage.measured.total for engine in pair for stage in engine.stages), default=0)
    return [
        _waterfall(comparison, engine, full, engine in pair) for engine in comparison.engines if engine.stages
    ]


def _waterfall(comparison: Comparison, engine: Engine, full: int, with_bars: bool) -> Waterfall:
    touching = [stage for stage in engine.stages if stage.measured.total or stage.modelled.total]
    left_out = []
    if len(touching) > MOST_BARS:
        left_out.append(f"the first {MOST_BARS} of {len(touching)} stages that touch files")
    if dry := len(engine.stages) - len(touching):
        left_out.append(
            f"{say_count(dry, 'stage')} left out that {'touch' if dry > 1 else 'touches'} no file"
        )
    more = "; ".join(left_out)
    return Waterfall(
        label=engine.label,
        style=style_of(engine, sources(comparison)),
        rows=[_stage_bar(stage, full) for stage in touching[:MOST_BARS]] if with_bars else [],
        more=f"{more[0].upper()}{more[1:]}." if more else "",
        table=tables.stage_table(comparison, engine),
    )


def _sums(comparison: Comparison) -> list[Bar]:
    engines = [engine for engine in comparison.engines if engine.stages]
    files = sources(comparison)
    sums = [
        Stage(
            name=engine.label,
            tasks=0,
            measured=sum_bytes([stage.measured for stage in engine.stages]),
            modelled=sum_bytes([stage.modelled for stage in engine.stages]),
        )
        for engine in engines
    ]
    full = max((each.measured.total for each in sums), default=0)
    return [
        replace(_stage_bar(each, full, 22), style=style_of(engine, files))
        for engine, each in zip(engines, sums, strict=True)
    ]


def _stage_bar(stage: Stage, full: int, height_px: int = 11) -> Bar:
    measured = stage.measured
    found = difference(measured, stage.modelled)
    pieces = [
        Piece(style=style, value=size, title=f"{stage.name}, {name}: {size:,} bytes")
        for style, name, size in (
            ("input", "input", measured.input_bytes),
            ("spill", "spill, out and in", measured.spill_bytes),
            ("intermediate", "to the store, with copies", measured.intermediate_bytes),
            ("output", "output", measured.output_bytes),
        )
    ]
    # A difference that is not marked stands in the table; here it would look like an error.
    said = format_size(measured.total)
    return Bar(
        label=stage.name, style="", bar=draw_bar(pieces, full, height_px),
        text=f"{said}, {found.words}" if found.marked else said, marked=found.marked,
    )  # fmt: skip


def _time_bars(comparison: Comparison) -> list[Bar]:
    engines = tables.timed(comparison)
    files = sources(comparison)
    full = max((account(engine).total_s for engine in engines), default=0.0)
    return [
        Bar(
            label=engine.label, style=style_of(engine, files), text=f"{words.say_seconds(engine.run.wall_s)} × {engine.workers}",
            bar=draw_bar(
                [
                    Piece(style=part, value=value, title=f"{engine.label}, {words.PART_WORDS[part]}: {words.say_seconds(value)}")
                    for part, value in account(engine).parts
                ],
                full, 24,
            ),
        )
        for engine in engines
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """The timeline of one engine and what stands over and under it."""

    label: str
    small: str
    style: str
    picture: Timeline
    axis: Markup | str


def _timelines(pair: Sequence[Engine], style: Mapping[str, str]) -> list[Lanes]:
    drawn = [engine for engine in pair if engine.attempts]
    span = max((_end_of(engine) for engine in drawn), default=0.0)
    if not span:
        return []
    made = [
        Lanes(
            label=engine.label, small=words.say_seconds(engine.run.wall_s), style=style[engine.label],
            picture=draw_timeline(engine, span, style[engine.label]), axis=draw_axis(span) if engine is drawn[-1] else "",
        )
        for engine in drawn
    ]  # fmt: skip
    for engine in drawn:
        own = _end_of(engine)
        if own < ENLARGE_BELOW * span:
            made.append(
                Lanes(
                    label=engine.label, small=f"the same, drawn {words.say_ratio(span / own)} as wide", style=style[engine.label],
                    picture=draw_timeline(engine, own, style[engine.label]), axis=draw_axis(own),
                )
            )  # fmt: skip
    return made


def _end_of(engine: Engine) -> float:
    return max([engine.run.wall_s, *(attempt.end_s for attempt in engine.attempts)])


_OUTSIDE = re.compile(r"(?:url\(\s*['\"]?\s*(?!#)|@import|expression\()", re.IGNORECASE)


def checked_svg(svg: str) -> Markup:
    """Return a drawing as it can stand in the page: one ``<svg>`` without script and without references to elsewhere.

    A comparison may come from a file that somebody else wrote.

    Raises:
        BadInput: it is something else.
    """
    if not svg:
        return Markup("")
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise BadInput(f"the drawing of the graph is no SVG: {error}") from error
    for element in root.iter():
        name = str(element.tag).rpartition("}")[2].lower()
        if (element is root) != (name == "svg") or name in (
            "script",
            "foreignobject",
            "image",
            "use",
            "iframe",
        ):
            raise BadInput(f"the drawing of the graph has an element <{name}> where none may be")
        for attribute, value in element.attrib.items():
            plain = attribute.rpartition("}")[2].lower()
            if (
                plain.startswith("on")
                or (plain in ("href", "src") and not value.startswith("#"))
                or _OUTSIDE.search(value)
            ):
                raise BadInput(
                    f"the drawing of the graph has {plain}={value!r:.60}, which leads outside the report"
                )
        if _OUTSIDE.search(element.text or "") and name == "style":
            raise BadInput("the drawing of the graph has a style that leads outside the report")
    return Markup(re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>", "", svg, flags=re.DOTALL))
