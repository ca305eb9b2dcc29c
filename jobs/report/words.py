"""Numbers and findings in words, the same in HTML, Markdown and on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dag.units import show_seconds

from ..sizes import format_size, say_count
from .derive import Pair, Spread, mostly_idle, noise_decides, pairs, sources, spread, through_files, wall
from .model import Comparison

#: Up to this factor two numbers are said to be about the same.
ALIKE = 1.05

_ROUND = re.compile(r"#\d+")

PART_WORDS = {
    "compute": "compute",
    "serialise": "serialise",
    "shuffle": "shuffle",
    "store_read": "store read",
    "store_write": "store write",
    "scheduling": "scheduling",
    "idle": "idle",
}


def say_seconds(seconds: float) -> str:
    """Return a time with three digits, as drawings of graphs have it: 812 ms, 4.31 s, 192 s.

    >>> say_seconds(0.8123), say_seconds(4.314), say_seconds(0.00004), say_seconds(0), say_seconds(-0.2)
    ('812 ms', '4.31 s', '0.04 ms', '0 s', '-200 ms')
    """
    return f"-{show_seconds(-seconds)}" if seconds < 0 else show_seconds(seconds)


def say(value: float, unit: str) -> str:
    """Return a value in its unit: "s", "bytes" or "count"."""
    if unit == "s":
        return say_seconds(value)
    return format_size(value) if unit == "bytes" else f"{value:,.0f}"


def say_range(low: float, high: float, unit: str) -> str:
    """Return an interval, its unit once if both ends have the same.

    >>> say_range(1.63, 1.95, "s"), say_range(0.98, 1.02, "s")
    ('1.63 to 1.95 s', '980 ms to 1.02 s')
    """
    first, last = say(low, unit), say(high, unit)
    number, _, name = first.partition(" ")
    return f"{number if name and last.endswith(f' {name}') else first} to {last}"


def say_ratio(ratio: float) -> str:
    """Return a factor with two or three digits.

    >>> say_ratio(3.14), say_ratio(11.42), say_ratio(250.4), say_ratio(0.0312)
    ('3.1×', '11×', '250×', '0.03×')
    """
    return f"{ratio:.{0 if ratio >= 9.95 else 1 if ratio >= 0.995 else 2}f}×"


def say_headline(comparison: Comparison) -> str:
    """Return the part of the verdict that is set large; of several files, what became of the graph from first to last."""
    if len(sources(comparison)) > 1:
        first, *_, last = pairs(comparison)
        one, other = wall(first.dag), wall(last.dag)
        before, after = first.source, last.source
        if too_fast(one, other):
            return "Too fast to measure"
        if noise_decides(one, other) or one.median == other.median:
            return _undecided(one, other, "DAG is", f"in {before}", f"in {after}")
        return f"DAG is {_faster(one.median / other.median)} in {after} than in {before}"
    slow, fast = wall(comparison.mapreduce), wall(comparison.dag)
    if too_fast(slow, fast):
        return "Too fast to measure"
    if noise_decides(slow, fast) or slow.median == fast.median:
        return _undecided(slow, fast, "", "DAG", "MapReduce")
    return f"DAG is {_faster(slow.median / fast.median)} than MapReduce"


def too_fast(one: Spread, other: Spread) -> bool:
    """Tell whether a ratio of two times would say nothing."""
    return not one.median or not other.median


def _faster(ratio: float) -> str:
    return f"{say_ratio(ratio)} faster" if ratio > 1 else f"{say_ratio(1 / ratio)} slower"


def _undecided(one: Spread, other: Spread, what: str, left: str, right: str) -> str:
    """Say that neither is faster: because both take equally long, or because the times vary too much to tell."""
    if 1 / ALIKE < one.median / other.median < ALIKE:
        return f"{what} equally fast {left} and {right}" if what else f"{left} and {right} are equally fast"
    who = f"{what} faster {left} or {right}" if what else f"{left} or {right} is faster"
    return f"Too noisy to say whether {who}"


def say_verdict(comparison: Comparison) -> str:
    """Return the verdict in one sentence."""
    return f"{say_headline(comparison)}: {say_details(comparison)}"


def say_details(comparison: Comparison) -> str:
    """Return the verdict's numbers: times, bytes through files, memory, and that the outputs are alike."""
    several = len(sources(comparison)) > 1
    said = _say_several(comparison) if several else _say_pair(comparison)
    if min(len(engine.runs) for pair in pairs(comparison) for engine in (pair.mapreduce, pair.dag)) == 1:
        said += "; one run each: no more than a hint"
    return f"{said}; outputs are identical (sha256 {comparison.output_sha256[:12]})."


def _say_pair(comparison: Comparison) -> str:
    slow, fast = comparison.mapreduce, comparison.dag
    files = tuple(spread([through_files(run) for run in engine.runs]).median for engine in (slow, fast))
    peak = tuple(spread([run.peak_memory_bytes for run in engine.runs]).median for engine in (slow, fast))
    one, other = wall(slow), wall(fast)
    if noise_decides(one, other):
        times = f"{_say_interval(other)} against {_say_interval(one)}"
    else:
        times = f"{say_seconds(other.median)} {'instead of' if one.median != other.median else 'and'} {say_seconds(one.median)}"
    # Beside a small input the interpreters are what differs, which says nothing of the engines' handling of data.
    small = sum(comparison.inputs.values()) < min(peak) and mostly_idle(slow, fast)
    return f"{times}, {_say_files(*files)}{'' if small else _say_memory(*peak)}"


def _say_interval(found: Spread) -> str:
    """Return a median with what it might as well be."""
    return f"{say_seconds(found.median)} ({say_range(found.low, found.high, 's')})"


def _say_several(comparison: Comparison) -> str:
    """Return the times of both engines in each file."""
    found = pairs(comparison)
    engines = [
        f"{name} takes {_listed([f'{say_seconds(wall(engine).median)} in {engine.source}' for engine in each])}"
        for name, each in (
            ("DAG", [pair.dag for pair in found]),
            ("MapReduce", [pair.mapreduce for pair in found]),
        )
    ]
    return "; ".join([*engines, f"DAG is {_listed([_beside(pair) for pair in found])}"])


def _beside(pair: Pair) -> str:
    """Say how much faster the graph is than MapReduce in one file."""
    slow, fast = wall(pair.mapreduce), wall(pair.dag)
    if too_fast(slow, fast) or noise_decides(slow, fast) or slow.median == fast.median:
        return f"as fast as MapReduce or too close to call in {pair.source}"
    return f"{_faster(slow.median / fast.median)} than MapReduce in {pair.source}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def _say_files(slow: float, fast: float) -> str:
    if slow == fast:
        return f"reading and writing the same {format_size(fast)}"
    both = f"{format_size(fast)} instead of {format_size(slow)}"
    if not fast or not slow:
        return f"reading and writing {both}"
    ratio = slow / fast
    if 1 / ALIKE < ratio < ALIKE:
        return f"reading and writing about as much ({both})"
    if ratio > 1:
        return f"reading and writing {say_ratio(ratio)} fewer bytes ({both})"
    return f"reading and writing {say_ratio(1 / ratio)} as many bytes ({both})"


def _say_memory(slow: float, fast: float) -> str:
    """Say at its peak how much memory the second needs beside the first; nothing where that was not seen."""
    if not slow or not fast:
        return ""
    both = f"{format_size(fast)} instead of {format_size(slow)} at the peak"
    ratio = fast / slow
    if 1 / ALIKE < ratio < ALIKE:
        return f" and taking about as much memory ({both})"
    if ratio > 1:
        return f" and taking {say_ratio(ratio)} as much memory ({both})"
    return f" and taking {say_ratio(1 / ratio)} less memory ({both})"


def say_subject(comparison: Comparison) -> str:
    """Return what was compared: the job, its parameters, the input's size, the workers."""
    parts = [comparison.job]
    parts += [f"{name} {value}" for name, value in comparison.parameters.items()]
    parts.append(f"{format_size(sum(comparison.inputs.values()))} of input")
    found = pairs(comparison)
    workers = [say_count(pair.dag.workers, "worker") for pair in found]
    runs = [say_count(len(pair.dag.runs), "run") for pair in found]
    parts.append(workers[0] if len(set(workers)) == 1 else _listed(workers))
    parts.append(f"{runs[0] if len(set(runs)) == 1 else _listed(runs)} each, interleaved")
    if len(found) > 1:
        parts.append(f"from {_listed([pair.source for pair in found])}")
    return ", ".join(parts)


def fold_rounds(lines: Iterable[str]) -> list[str]:
    """Return lines that differ in the numbers of rounds only as one, the first, and how many there are.

    >>> fold_rounds(["step and write are one", "step#2 and write are one", "step#3 and write are one", "read is alone"])
    ['step and write are one (3 rounds alike)', 'read is alone']
    """
    groups: dict[str, list[str]] = {}
    for line in lines:
        groups.setdefault(_ROUND.sub("", line), []).append(line)
    return [
        each[0] if len(each) == 1 else f"{each[0]} ({len(each)} rounds alike)" for each in groups.values()
    ]


def say_scheduler(comparison: Comparison) -> str:
    """Return where the graph ran and why there; empty where that was not recorded."""
    found = {pair.dag.scheduler: pair.source for pair in pairs(comparison) if pair.dag.scheduler}
    if len(found) == 1:
        return f"The graph ran on {next(iter(found))}."
    said = "; ".join(f"{where} in {source}" for where, source in found.items())
    return f"The graph ran on {said}." if said else ""
