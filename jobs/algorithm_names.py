"""What ``--algorithm`` says: names with commas, each once."""

from __future__ import annotations

from collections.abc import Sequence

from dag.errors import BadCollective


def split_names(said: str, known: Sequence[str], *others: str) -> list[str]:
    """Return the names in ``said``; ``all`` stands for all that are ``known`` and stays as it is.

    >>> split_names("ring, tree", ["ring", "tree"]), split_names("all,auto", ["ring", "tree"], "auto")
    (['ring', 'tree'], ['all', 'auto'])

    Args:
        others: names that are taken beside the known ones, and that ``all`` does not mean.

    Raises:
        BadCollective: there is no such algorithm, none is named, or one twice.
    """
    allowed = ("all", *others, *known)
    names = [name.strip() for name in said.split(",") if name.strip()]
    if not names:
        raise BadCollective(f"--algorithm names none; there are: {', '.join(allowed)}")
    seen: set[str] = set()
    for name in names:
        if name not in allowed:
            raise BadCollective(f"there is no algorithm {name!r}; there are: {', '.join(allowed)}")
        means = set(known) if name == "all" else {name}
        if twice := seen & means:
            first = next(each for each in allowed if each in twice)
            raise BadCollective(f"--algorithm {said} names {first} twice: name each once, or all")
        seen |= means
    return names
