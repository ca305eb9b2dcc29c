"""How functions of a job are called: what they may ask for by name, and how many arguments they are given.

A function with another signature is found when the plan is built, before anything runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

#: What a function of a job may ask for by the name of a keyword-only parameter.
INJECTED = ("side", "counters", "task", "state")

# What newcomers from other frameworks call the parts of a stage.
_ELSEWHERE = {
    "mapper": "map", "reducer": "reduce", "combiner": "combine", "partitioner": "partition",
    "num_reducers": "partitions", "numPartitions": "partitions", "mapper_init": "setup",
    "mapper_final": "map_end", "reducer_init": "setup", "cleanup": "teardown",
}  # fmt: skip

_GIVEN = {
    "map": "key, value", "combine": "key, values", "reduce": "key, values", "reduce_stream": "groups",
    "partition": "key, partitions",
    "map_batch": "batch", "reduce_batch": "batches", "fold": "rows", "setup": "", "teardown": "", "map_end": "",
}  # fmt: skip


def inject(function: Callable[..., Any], available: Mapping[str, Any]) -> Callable[..., Any]:
    """Bind what ``function`` asks for by keyword-only parameter names."""
    asked = {name: available[name] for name in wanted(function) if name in available}
    return functools.partial(function, **asked) if asked else function


def wanted(function: Callable[..., Any]) -> list[str]:
    """Return the keyword-only parameters of a function that have to be given to it."""
    signature = _signature(function)
    return [
        p.name
        for p in (signature.parameters.values() if signature else ())
        if p.kind is inspect.Parameter.KEYWORD_ONLY
        and (p.default is inspect.Parameter.empty or p.name in INJECTED)
    ]


def wrong_call(part: str, function: Callable[..., Any], inputs: int = 1) -> str | None:
    """Return what is wrong with the parameters of a function for a part of a stage, or None.

    ``inputs`` counts the maps of the stage: a reduce takes as many series of values.
    """
    signature = _signature(function)
    if signature is None:
        return None
    given = _GIVEN[part]
    if part == "reduce" and inputs > 1:
        given = ", ".join(["key", *(f"values_{number}" for number in range(1, inputs + 1))])
    count = len(given.split(", ")) if given else 0
    try:
        signature.bind(*[None] * count, **dict.fromkeys(wanted(function)))
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        takes = "nothing" if not count else f"({given})"
        method = " (no self: it is a plain function)" if "self" in signature.parameters else ""
        return f"{part} takes {takes}, but {name} is {name}{signature}{method}"
    return None


def unknown_part(name: str, known: Iterable[str]) -> str:
    """Return what to say of a keyword that a stage does not have, with the one that was meant."""
    import difflib

    names = list(known)
    near = [_ELSEWHERE[name]] if name in _ELSEWHERE else difflib.get_close_matches(name, names, 1, 0.5)
    meant = f"write {near[0]}=" if near else f"it has: {', '.join(names)}"
    return f"a Stage has no {name}=; {meant}"


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # builtins such as max have none and ask for nothing
        return None
