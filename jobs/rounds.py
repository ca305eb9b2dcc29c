"""Rounds of a loop in lists of stages: numbered as the nodes of a graph are, and those in the middle as one."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: More rounds than this are shown as the first, the second, all in the middle together, and the last.
MOST_ROUNDS = 5

_NAME = re.compile(r"([^#.]+)(?:#(\d+))?(.*)", re.DOTALL)


def number_round(name: str, rounds: dict[str, int]) -> str:
    """Return the name of a stage with the number of its round from the second on; ``rounds`` counts them.

    >>> rounds: dict[str, int] = {}
    >>> [number_round(name, rounds) for name in ("read", "step", "step")]
    ['read', 'step', 'step#2']
    """
    count = rounds[name] = rounds.get(name, 0) + 1
    return name if count == 1 else f"{name}#{count}"


def fold_middle(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return names in groups, each where its first stands: of more than five rounds those from the third to the last but one.

    >>> names = ["read", *(f"step{'' if number == 1 else f'#{number}'}.map" for number in range(1, 8)), "end"]
    >>> [say_rounds(group) for group in fold_middle(names)]
    ['read', 'step.map', 'step#2.map', 'step#3 to #6.map', 'step#7.map', 'end']
    """
    kinds: dict[tuple[str, str], list[int]] = {}
    for name in names:
        title, number, rest = _split(name)
        kinds.setdefault((title, rest), []).append(number)
    groups: dict[object, list[str]] = {}
    for name in names:
        title, number, rest = _split(name)
        rounds = kinds[title, rest]
        middle = len(rounds) > MOST_ROUNDS and number not in (*rounds[:2], rounds[-1])
        groups.setdefault((title, rest) if middle else name, []).append(name)
    return [tuple(group) for group in groups.values()]


def say_rounds(names: Sequence[str]) -> str:
    """Return the name of a group that ``fold_middle`` has made."""
    if len(names) == 1:
        return names[0]
    title, first, rest = _split(names[0])
    return f"{title}#{first} to #{_split(names[-1])[1]}{rest}"


def _split(name: str) -> tuple[str, int, str]:
    found = _NAME.fullmatch(name)
    if found is None:
        return name, 1, ""
    title, number, rest = found.groups()
    return title, int(number or 1), rest
