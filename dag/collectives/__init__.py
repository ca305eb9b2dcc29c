"""All-reduce and its kin: as plans, as simulations, and for real between processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .check import check, travels
from .count import Counts, count
from .draw import draw_svg
from .networks import Incast, Link, Network, Racks, named_network, networks
from .operators import Operator
from .plans import algorithms, plan
from .schedule import Schedule, Step, bounds
from .simulate import Simulated, simulate

if TYPE_CHECKING:
    from .comm import Comm, alone
    from .joining import join
    from .launching import launch
    from .pending import Pending

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

#: What starts processes or waits for them is loaded when it is asked for.
_LAZY = {"Comm": "comm", "Pending": "pending", "alone": "comm", "join": "joining", "launch": "launching"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    return value
