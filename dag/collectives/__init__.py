"""All-reduce and its kin: as plans, as simulations, and for real between processes."""

from __future__ import annotations

from .check import check
from .count import Counts, count
from .plans import algorithms, plan
from .schedule import Schedule, Step, bounds

__all__ = ["Counts", "Schedule", "Step", "algorithms", "bounds", "check", "count", "plan"]
