"""Plans of collectives that tests go through: all of them, with all their choices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from dag.collectives import Schedule, plan
from dag.collectives.plans import PER_MACHINE, PLANS

ALL = [(kind, name) for kind in PLANS for name in PLANS[kind]]


def choices_of(kind: str, name: str, ranks: int) -> Iterator[dict[str, Any]]:
    """Every choice that an algorithm has, as far as it makes another plan for so few ranks."""
    for root in range(ranks) if kind in ("broadcast", "reduce") else [None]:
        for chunks in (1, 2, 5) if name.endswith("tree") else [None]:
            for per_machine in range(1, ranks + 1) if name in PER_MACHINE else [None]:
                for beside in (True, False) if name == "central" else [None]:
                    given = {
                        "root": root, "chunks": chunks, "per_machine": per_machine, "server_is_rank": beside
                    }  # fmt: skip
                    yield {key: value for key, value in given.items() if value is not None}


@st.composite
def any_plan(draw: st.DrawFn, most_ranks: int = 40) -> Schedule:
    kind, name = draw(st.sampled_from(ALL))
    ranks = draw(st.integers(1, most_ranks))
    choices: dict[str, Any] = {}
    if kind in ("broadcast", "reduce"):
        choices["root"] = draw(st.integers(0, ranks - 1))
    if name.endswith("tree"):
        choices["chunks"] = draw(st.integers(1, 12))
    if name in PER_MACHINE:
        choices["per_machine"] = draw(st.integers(1, ranks + 1))
    return plan(kind, name, ranks, **choices)
