"""The sentences between the report's tables and pictures: the same in HTML and Markdown."""

from __future__ import annotations

import math

from ..sizes import format_size, say_count
from .derive import (
    amplification,
    barrier_wait_s,
    cores_to_beat,
    covered,
    difference,
    idle_bytes,
    noise_decides,
    pairs,
    shown_engines,
    spread,
    wall,
    wall_without_io_s,
)
from .model import Comparison, Engine
from .words import say_ratio, say_seconds


def say_amplification(comparison: Comparison) -> str:
    """Return how many bytes went through files for each byte that had to."""
    said = []
    for engine in shown_engines(comparison):
        factor = amplification(comparison, engine)
        if factor is not None and engine.stages:
            said.append(f"{engine.label}: {factor:.2f}")
    needed = sum(comparison.inputs.values()) + comparison.output_bytes
    if not said:
        return "The bytes of the stages were not recorded."
    return (
        f"For each byte of input and output ({format_size(needed)} together), bytes that went through files: "
        f"{'; '.join(said)}."
    )


def say_deviations(comparison: Comparison) -> str:
    """Return how well the model holds, over all engines: what is marked, else the stage that is furthest from it."""
    found = [
        (f"{engine.label}, {stage.name}", difference(stage.measured, stage.modelled))
        for engine in comparison.engines
        for stage in engine.stages
    ]
    if not found:
        return ""
    marked = [f"{name}: {each.words}" for name, each in found if each.marked]
    exact = sum(not each.extra_bytes for _, each in found)
    if marked:
        return f"More than 5 % from the model: {'; '.join(marked[:5])}{' ...' if len(marked) > 5 else ''}."
    if exact == len(found):
        return f"All {exact} stages agree with the model to the byte."
    name, worst = max(found, key=lambda each: abs(each[1].share))
    within = max(math.ceil(1e4 * abs(worst.share)) / 1e4, 0.0001)
    return (
        f"All {len(found)} stages agree with the model within {within:.2%}, {exact} of them to the byte;"
        f" furthest off is {name}: {worst.words}."
    )


def say_without_io(comparison: Comparison) -> str:
    """Return what would remain of the wall times if I/O were free."""
    said = []
    for engine in shown_engines(comparison):
        if engine.attempts:
            left = wall_without_io_s(engine)
            share = left / engine.run.wall_s if engine.run.wall_s else 1.0
            said.append(
                f"{engine.label}: {say_seconds(left)} ({share:.0%} of {say_seconds(engine.run.wall_s)})"
            )
    if not said:
        return "No attempts were recorded, so the schedule cannot be replayed without its I/O."
    return f"If I/O were free, at best this would remain: {'; '.join(said)}."


def say_barriers(comparison: Comparison) -> str:
    """Return what barriers cost."""
    said = []
    for engine in shown_engines(comparison):
        available = engine.run.wall_s * engine.workers
        if engine.attempts and available:
            waited = barrier_wait_s(engine)
            said.append(
                f"{engine.label}: {say_seconds(waited)} ({waited / available:.1%} of all worker time)"
            )
    return f"Workers that were done waited for the last one at barriers: {'; '.join(said)}." if said else ""


def say_cost(comparison: Comparison) -> str:
    """Return what one thread makes of it; empty if that was not run."""
    said = []
    for pair in pairs(comparison):
        alone = [e for e in comparison.engines if e.engine == "single" and e.source == pair.source]
        beside = [_say_beside(alone[0], each) for each in (pair.mapreduce, pair.dag)] if alone else []
        if any(beside):
            where = f" in {pair.source}" if pair.source else ""
            said.append(
                f"One thread takes {say_seconds(wall(alone[0]).median)}{where}: {'; '.join(filter(None, beside))}."
            )
    return " ".join(said)


def _say_beside(alone: Engine, engine: Engine) -> str:
    """Say how much faster or slower an engine is than one thread."""
    time, one = wall(engine).median, wall(alone).median
    if not time or not one:
        return ""
    who = f"{engine.label}, on {say_count(engine.workers, 'worker')}, is"
    if noise_decides(wall(engine), wall(alone)):
        return f"{who} neither faster nor slower beyond the noise"
    if time <= one:
        return f"{who} {say_ratio(one / time)} faster"
    cores = cores_to_beat(alone, engine) or 0.0
    needed = f"{say_count(math.ceil(cores), 'worker')} to draw level if it scaled perfectly"
    return f"{who} {say_ratio(time / one)} slower, and would need {needed}"


def say_rounds(comparison: Comparison) -> str:
    """Return the first and the later rounds of a loop, as the RDD paper reports them; empty without rounds."""
    said = []
    for engine in shown_engines(comparison):
        if len(engine.iterations_s) > 1:
            rest = spread(engine.iterations_s[1:]).median
            said.append(f"{engine.label}: {say_seconds(engine.iterations_s[0])}, then {say_seconds(rest)}")
    if not said:
        return ""
    factors = [_say_later(pair.mapreduce, pair.dag, pair.source) for pair in pairs(comparison)]
    return " ".join(
        [f"First round, then the median of the later ones: {'; '.join(said)}.", *filter(None, factors)]
    )


def _say_later(slow: Engine, fast: Engine, source: str) -> str:
    """Say how much faster or slower a later round of the graph is."""
    if len(slow.iterations_s) < 2 or len(fast.iterations_s) < 2:
        return ""
    one, other = (spread(engine.iterations_s[1:]).median for engine in (slow, fast))
    if not one or not other:
        return ""
    words = f"{say_ratio(one / other)} faster" if one >= other else f"{say_ratio(other / one)} slower"
    return f"A later round of the graph is {words}{f' in {source}' if source else ''}."


def say_shown(comparison: Comparison) -> str:
    """Return which run of each engine is drawn, and how long it took; empty where there was only one of each."""
    engines = shown_engines(comparison)
    if all(len(engine.runs) == 1 for engine in engines):
        return ""
    said = [
        f"{engine.label}, run {engine.shown + 1} of {len(engine.runs)} ({say_seconds(engine.run.wall_s)})"
        for engine in engines
    ]
    return f"Drawn from one run of each, the median one or the faster of the middle two: {'; '.join(said)}."


def say_idle(comparison: Comparison) -> str:
    """Return what of the memory was there before the shown runs began; empty where that was not seen."""
    said = [
        f"{engine.label}: {format_size(idle_bytes(engine))} of {format_size(engine.run.peak_memory_bytes)}"
        for engine in shown_engines(comparison)
        if idle_bytes(engine) and engine.run.peak_memory_bytes
    ]
    return f"Of the peak, warm processes held this before the run began: {'; '.join(said)}." if said else ""


def say_part_of_graph(comparison: Comparison) -> str:
    """Return of how many of the run's tasks the graph's numbers are; empty if of all."""
    found, whole = comparison.parallelism, comparison.dag.run.tasks
    if found is None or found.tasks >= whole:
        return ""
    return f"The job ran several graphs; these numbers are those of the largest: {found.tasks:,} of {whole:,} tasks."


def say_noise_rule(comparison: Comparison) -> str:
    """Return what the intervals of the scoreboard are, with what so many runs can tell."""
    count = min(len(engine.runs) for engine in shown_engines(comparison))
    if count == 1:
        return "One run: there is no interval, and a difference is no more than a hint."
    interval = "the interval" if count > 5 else "from the fastest to the slowest, the interval"
    return (
        f"Medians of {count} runs. Below them, {interval} that covers the true median with {covered(count):.0%}"
        " (order statistics, no distribution assumed), and the median absolute deviation. Where the intervals of the two"
        " that the ratio is of overlap, noise decides, and no difference is claimed."
    )


MODEL_RULE = (
    "Model, MapReduce: the sum over stages of input + 2 × spill + replication × intermediate, + output. DAG: input + output."
    " Input means bytes asked for; a split of text asks for up to 64 KiB beyond its end, to find the end of its last line, and"
    " the model does not count that. A stage with a kind of bytes off by more than 5 % of its total is marked."
)
IO_RULE = (
    "The schedule is replayed without the seconds that attempts spent reading and writing; order and barriers stay. Faster disks"
    " cannot bring more than this unless tasks move up into the gaps."
)
