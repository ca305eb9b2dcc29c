"""What each algorithm costs, as a table for a page: counted from the schedules, not written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from .check import travels
from .count import count
from .plans import PER_MACHINE, algorithms, plan
from .schedule import Kind

HEAD = (
    "algorithm", "rounds", "messages", "most sent", "most received", "fan-in", "peers", "travels to be folded", "order of ranks",
)  # fmt: skip


def cost_table(kind: Kind, *, ranks: int = 8, many: int = 24576, few: int = 2, per_machine: int = 6) -> str:
    """Return the algorithms of a collective as a table in Markdown, trees in one chunk.

    Sent and received are what the busiest node does, in units of all elements.

    Args:
        ranks, few: so many ranks, and so many a machine, up to the column of orders.
        many, per_machine: the same for the last three columns.
    """
    head = [*HEAD, f"{many:,} ranks: rounds", "fan-in", "peers"]
    lines = [_line(head), _line(["---", *["--:"] * 6, "---", "---", *["--:"] * 3])]
    for name in algorithms(kind):
        variants: list[tuple[str, dict[str, Any]]] = [(name, {})]
        if name == "central":
            variants = [("central, at a rank", {}), ("central, beside them", {"server_is_rank": False})]
        for label, choices in variants:
            machines = name in PER_MACHINE
            small = plan(kind, name, ranks, **choices, **({"per_machine": few} if machines else {}))
            large = plan(kind, name, many, **choices, **({"per_machine": per_machine} if machines else {}))
            elements = ranks * small.parts
            here, there = count(small, elements), count(large, many * 6)
            line: list[object] = [
                label, here.rounds, here.messages, _in_all(int(here.sent.max()), elements),
                _in_all(int(here.received.max()), elements), here.fan_in, here.peers.max(), travels(small),
                "kept" if small.keeps_order else "not kept", f"{there.rounds:,}", f"{there.fan_in:,}", f"{there.peers.max():,}",
            ]  # fmt: skip
            lines.append(_line(line))
    return "\n".join(lines) + "\n"


def _in_all(moved: int, elements: int) -> str:
    share = Fraction(moved, elements)
    return f"{share} N" if share != 1 else "N"


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
