"""What the iterative benchmarks of all programs share: how much is done, and what a program writes about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

ROUNDS = 10
RATE = 1.0
K = 8
DAMPING = 0.85
PARTITIONS = 4


def write_rounds(rows: Iterable[Sequence[Any]], ends: Sequence[float], *, output: str, times: str) -> None:
    """Write the result as lines with commas, floats to the last digit, and the seconds of each round as JSON."""
    with open(output, "w", encoding="utf-8") as file:
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)
    seconds = [after - before for before, after in pairwise(ends)]
    Path(times).write_text(json.dumps({"rounds_s": seconds}))
