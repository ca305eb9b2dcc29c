"""Two comparisons of one job as one: what `mr compare before.json after.json` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mapreduce.errors import BadInput

from .model import Comparison


def combine(comparisons: Sequence[Comparison], names: Sequence[str]) -> Comparison:
    """Return one comparison with the engines of all; the drawing, its shape and the rewrites are the first one's.

    ``names`` tell them apart in labels, as in "DAG (after)".

    Raises:
        BadInput: they are of other jobs or inputs, their outputs differ, or two have one name.
    """
    first = comparisons[0]
    if len(comparisons) == 1:
        return first
    if len(set(names)) < len(names):
        raise BadInput(f"two comparisons have the name {names[0]!r}; rename one file")
    for name, other in zip(names[1:], comparisons[1:], strict=True):
        for what, one, two in (
            ("job", first.job, other.job),
            ("input bytes", sum(first.inputs.values()), sum(other.inputs.values())),
            ("output sha256", first.output_sha256, other.output_sha256),
        ):
            if one != two:
                raise BadInput(
                    f"{name}: {what} is {two}, in {names[0]} it is {one}; only equal work can be compared"
                )
    return replace(
        first,
        engines=tuple(
            replace(engine, label=f"{engine.label} ({name})", source=name)
            for name, each in zip(names, comparisons, strict=True)
            for engine in each.engines
        ),
        command="\n".join(each.command for each in comparisons),
        machine=_joined(names, [each.machine for each in comparisons]),
        versions=_joined(names, [each.versions for each in comparisons]),
        warnings=tuple(dict.fromkeys(line for each in comparisons for line in each.warnings)),
    )


def _joined(names: Sequence[str], facts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return each fact once, with every value where they differ."""
    joined = {}
    for key in dict.fromkeys(key for each in facts for key in each):
        values = [each.get(key, "unknown") for each in facts]
        same = len(set(values)) == 1
        joined[key] = (
            values[0] if same else "; ".join(f"{v} ({n})" for v, n in zip(values, names, strict=True))
        )
    return joined
