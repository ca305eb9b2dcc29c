"""Numbers and findings in words, the same in HTML, Markdown and on a terminal."""

from __future__ import annotations

from ..sizes import format_size
from .derive import noise_decides, spread, through_files, wall
from .model import Comparison

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
    """Return a time with three digits: 812 ms, 4.31 s, 192 s.

    >>> say_seconds(0.8123), say_seconds(4.314), say_seconds(0.00004), say_seconds(0)
    ('812 ms', '4.31 s', '0.04 ms', '0 s')
    """
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 0.9995:
        thousandth = seconds * 1000
        return f"{thousandth:.{0 if abs(thousandth) >= 99.5 else 1 if abs(thousandth) >= 9.95 else 2}f} ms"
    return f"{seconds:.{2 if abs(seconds) < 9.995 else 1 if abs(seconds) < 99.95 else 0}f} s"


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
    """Return the part of the verdict that is set large."""
    slow, fast = wall(comparison.mapreduce), wall(comparison.dag)
    if noise_decides(slow, fast) or slow.median == fast.median:
        return "No difference in time that the noise would let one see"
    if not fast.median or not slow.median:
        return "Too fast to measure"
    ratio = slow.median / fast.median
    if ratio > 1:
        return f"DAG is {say_ratio(ratio)} faster than MapReduce"
    return f"DAG is {say_ratio(1 / ratio)} slower than MapReduce"


def say_verdict(comparison: Comparison) -> str:
    """Return the verdict in one sentence."""
    return f"{say_headline(comparison)}: {say_details(comparison)}"


def say_details(comparison: Comparison) -> str:
    """Return the verdict's numbers: times, bytes through files, memory, and that the outputs are alike."""
    slow, fast = comparison.mapreduce, comparison.dag
    files = tuple(spread([through_files(run) for run in engine.runs]).median for engine in (slow, fast))
    peak = tuple(spread([run.peak_memory_bytes for run in engine.runs]).median for engine in (slow, fast))
    return (
        f"{say_seconds(wall(fast).median)} instead of {say_seconds(wall(slow).median)},"
        f" {_say_files(*files)}{_say_memory(*peak)};"
        f" outputs are identical (sha256 {comparison.output_sha256[:12]})."
    )


def _say_files(slow: float, fast: float) -> str:
    if slow == fast:
        return f"with {format_size(fast)} read and written in both"
    both = f"{format_size(fast)} instead of {format_size(slow)}"
    if not fast or not slow:
        return f"reading and writing {both}"
    ratio = slow / fast
    if 0.95 < ratio < 1.05:
        return f"reading and writing about as much ({both})"
    if ratio > 1:
        return f"reading and writing {say_ratio(ratio)} fewer bytes ({both})"
    return f"reading and writing {say_ratio(1 / ratio)} more bytes ({both})"


def _say_memory(slow: float, fast: float) -> str:
    if not slow or not fast:
        return ""
    return f" with {say_ratio(fast / slow)} the peak memory"


def say_subject(comparison: Comparison) -> str:
    """Return what was compared: the job, its parameters, the input's size, the workers."""
    parts = [comparison.job]
    parts += [f"{name} {value}" for name, value in comparison.parameters.items()]
    parts.append(f"{format_size(sum(comparison.inputs.values()))} of input")
    workers = comparison.dag.workers
    parts.append(f"{workers} worker{'' if workers == 1 else 's'}")
    runs = len(comparison.dag.runs)
    parts.append(f"{runs} run{'' if runs == 1 else 's'} each, interleaved")
    return ", ".join(parts)
