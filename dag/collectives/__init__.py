"""All-reduce and its kin: as plans, as simulations, and for real between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import load_on_use

if TYPE_CHECKING:
    from .check import check, travels
    from .comm import Comm, alone
    from .count import Counts, count
    from .draw import draw_svg
    from .joining import join
    from .launching import launch
    from .networks import Incast, Link, Network, Racks, named_network, networks
    from .operators import Operator
    from .pending import Pending
    from .plans import algorithms, plan
    from .schedule import Schedule, Step, bounds
    from .simulate import Simulated, simulate

__all__ = [
    "Comm",
    "Counts",
    "Incast",
    "Link",
    "Network",
    "Operator",
    "Pending",
    "Racks",
    "Schedule",
    "Simulated",
    "Step",
    "algorithms",
    "alone",
    "bounds",
    "check",
    "count",
    "draw_svg",
    "join",
    "launch",
    "named_network",
    "networks",
    "plan",
    "simulate",
    "travels",
]

# A rank needs neither what runs graphs nor what draws or simulates.
load_on_use(__name__, {
    "Comm": "comm", "Counts": "count", "Incast": "networks", "Link": "networks", "Network": "networks", "Operator": "operators",
    "Pending": "pending", "Racks": "networks", "Schedule": "schedule", "Simulated": "simulate", "Step": "schedule",
    "algorithms": "plans", "alone": "comm", "bounds": "schedule", "check": "check", "count": "count", "draw_svg": "draw",
    "join": "joining", "launch": "launching", "named_network": "networks", "networks": "networks", "plan": "plans",
    "simulate": "simulate", "travels": "check",
})  # fmt: skip
