"""The report as Markdown: the same sentences and tables as the HTML file, with bars of characters for the pictures."""

from __future__ import annotations

from collections.abc import Iterable

from . import sentences, tables, words
from .derive import account, phases, shown_engines, sources
from .model import PARTS, Comparison, Engine
from .tables import Cell, Table

BAR_CHARACTERS = 50
#: One letter for each part of a bar.
LETTERS = dict(zip(PARTS, "czurwsi", strict=True))


def to_markdown(comparison: Comparison) -> str:
    """Return the report in GitHub's Markdown."""
    pair = shown_engines(comparison)
    files = sources(comparison)
    of_first = f", in {_escaped(files[0])}" if len(files) > 1 else ""
    blocks: list[str] = [
        f"# {words.say_headline(comparison)}",
        words.say_subject(comparison),
        f"**{_escaped(words.say_verdict(comparison))}**",
        *(f"Note: {_escaped(line)}" for line in comparison.warnings),
        "## Scoreboard",
        sentences.say_cost(comparison),
        *(
            f"### {_escaped(each.title)}\n\n{_table(each.table)}" if each.title else _table(each.table)
            for each in tables.score_tables(comparison)
        ),
        sentences.say_noise_rule(comparison),
        _table(tables.run_table(comparison)),
        "## Bytes through files, beside the model",
        f"{sentences.say_amplification(comparison)} {sentences.say_deviations(comparison)}",
    ]
    for engine in comparison.engines:
        if engine.stages:
            blocks += [f"### {engine.label}", _table(tables.stage_table(comparison, engine))]
    blocks += [
        sentences.MODEL_RULE,
        "## Where the time went",
        sentences.say_shown(comparison),
        sentences.say_without_io(comparison),
        _bars(tables.timed(comparison)),
        _table(tables.time_table(comparison)),
        sentences.IO_RULE,
        "## Both on one axis",
        sentences.say_barriers(comparison) or "No attempts were recorded.",
        _lanes(pair),
        "## Round by round",
        sentences.say_rounds(comparison) or "The job has no rounds.",
        _rounds(pair),
        f"## The graph{of_first}",
        _escaped(words.say_scheduler(comparison)),
        _code(comparison.drawing.text) or "Not drawn here.",
        _table(tables.edge_table(comparison)),
        f"## What its shape allows{of_first}",
        sentences.say_part_of_graph(comparison),
        _table(tables.parallelism_table(comparison)) or "Not recorded.",
        "## Memory over time",
        _memory(comparison, pair),
        sentences.say_idle(comparison),
        f"## Rewrites of the plan{of_first}",
        "Done:\n\n" + (_list(words.fold_rounds(comparison.rewrites.applied)) or "None."),
        "Refused:\n\n" + (_list(words.fold_rounds(comparison.rewrites.refused)) or "None."),
        "## Environment, and how to run it again",
        _code(comparison.command),
        _code("\n".join(engine.command for engine in comparison.engines if engine.command)),
        _table(tables.environment_table(comparison)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in r"\`*_<>|[]" else letter for letter in text).replace("\n", " ")


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    numeric = [any(row[at].value is not None for row in table.rows) for at in range(len(table.head))]
    lines = [
        _row(_escaped(name) for name in table.head),
        _row("---:" if each else "---" for each in numeric),
        *(_row(_cell(cell) for cell in row) for row in table.rows),
    ]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = _escaped(cell.text)
    if cell.marked:
        text = f"**{text}**"
    if not cell.small:
        return text
    return f"{text}<br><sub>{_escaped(cell.small)}</sub>"


def _code(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}" if text else ""


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(line)}" for line in lines)


def _bars(engines: Iterable[Engine]) -> str:
    """Return stacked bars on one scale, a letter for each part."""
    found = [(engine.label, account(engine)) for engine in engines]
    full = max((each.total_s for _, each in found), default=0.0)
    if not full:
        return ""
    wide = max(len(label) for label, _ in found)
    lines = []
    for label, each in found:
        bar, at = "", 0.0
        for part, seconds in each.parts:
            at += max(seconds, 0.0)
            bar += LETTERS[part] * (round(BAR_CHARACTERS * at / full) - len(bar))
        lines.append(f"{label:{wide}} |{bar:{BAR_CHARACTERS}}| {words.say_seconds(each.total_s)} of workers")
    key = ", ".join(f"{letter} {words.PART_WORDS[part]}" for part, letter in LETTERS.items())
    return _code("\n".join([*lines, key]))


def _lanes(engines: Iterable[Engine]) -> str:
    """Return a line per worker: ``#`` where it works, ``.`` where it waits at a barrier."""
    drawn = [engine for engine in engines if engine.attempts]
    span = max((engine.run.wall_s for engine in drawn), default=0.0)
    if not span:
        return ""
    wide = max(len(engine.label) for engine in drawn)
    lines = []
    for engine in drawn:
        for worker in range(min(engine.workers, 16)):
            row = [" "] * (BAR_CHARACTERS + 1)
            for phase in phases(engine):
                for waiting, seconds in phase.waits:
                    if waiting == worker:
                        _fill(row, (phase.end_s - seconds) / span, phase.end_s / span, ".")
            for attempt in engine.attempts:
                if attempt.worker == worker:
                    _fill(
                        row,
                        attempt.start_s / span,
                        attempt.end_s / span,
                        "#" if attempt.outcome == "done" else "x",
                    )
            lines.append(f"{engine.label:{wide}} worker {worker:<2} |{''.join(row[:BAR_CHARACTERS])}|")
        if engine.workers > 16:
            lines.append(f"{engine.label:{wide}} and {engine.workers - 16} workers more")
    key = f"0 to {words.say_seconds(span)}; # works, x in vain, . waits at a barrier"
    return _code("\n".join([*lines, key]))


def _fill(row: list[str], start: float, end: float, letter: str) -> None:
    first = min(int(start * BAR_CHARACTERS), BAR_CHARACTERS)
    last = min(max(int(end * BAR_CHARACTERS), first + 1), BAR_CHARACTERS)
    row[first:last] = letter * (last - first)


def _rounds(engines: Iterable[Engine]) -> str:
    drawn = [engine for engine in engines if len(engine.iterations_s) > 1]
    if not drawn:
        return ""
    count = max(len(engine.iterations_s) for engine in drawn)
    rows = [
        (
            Cell(text=engine.label),
            *(Cell(text=words.say_seconds(seconds), value=seconds) for seconds in engine.iterations_s),
            *(Cell(text="") for _ in range(count - len(engine.iterations_s))),
        )
        for engine in drawn
    ]
    return _table(Table(head=("round", *(str(at + 1) for at in range(count))), rows=tuple(rows)))


def _memory(comparison: Comparison, engines: Iterable[Engine]) -> str:
    """Return a line of blocks per engine, each the peak of its stretch of time, on one scale."""
    drawn = [engine for engine in engines if engine.memory]
    if not drawn:
        return "Not sampled."
    top = max(sample.memory_bytes for engine in drawn for sample in engine.memory) or 1
    span = max(engine.memory[-1].at_s for engine in drawn) or 1.0
    wide = max(len(engine.label) for engine in drawn)
    lines = []
    for engine in drawn:
        peaks = [0] * BAR_CHARACTERS
        for sample in engine.memory:
            at = min(int(sample.at_s / span * BAR_CHARACTERS), BAR_CHARACTERS - 1)
            peaks[at] = max(peaks[at], sample.memory_bytes)
        last = min(int(engine.memory[-1].at_s / span * BAR_CHARACTERS), BAR_CHARACTERS - 1)
        for at in range(1, last):
            peaks[at] = peaks[at] or peaks[at - 1]
        line = "".join(" ▁▂▃▄▅▆▇█"[round(8 * peak / top)] for peak in peaks)
        lines.append(f"{engine.label:{wide}} |{line}| peak {words.say(max(peaks), 'bytes')}")
    limit = comparison.memory_limit_bytes
    said = f"0 to {words.say_seconds(span)}; limit {words.say(limit, 'bytes') if limit else 'none'}"
    return _code("\n".join([*lines, said]))
