"""Nested dicts, lists and tuples of tensors: parameters as people write them, and the flat list that graphs want."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def flatten(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the leaves, dicts in the order of their sorted keys, and the function that puts others in their places.

    >>> leaves, rebuild = flatten({"w": [1, 2], "b": 3})
    >>> leaves, rebuild([10, 20, 30])
    ([3, 1, 2], {'b': 10, 'w': [20, 30]})
    """
    leaves: list[Any] = []
    _collect(tree, leaves)

    def rebuild(others: list[Any]) -> Any:
        if len(others) != len(leaves):
            raise ValueError(f"the tree has {len(leaves)} leaves, got {len(others)}")
        return _placed(tree, iter(others))

    return leaves, rebuild


def values_like(tree: Any, values: Any, *, none_fits: bool = False) -> list[Any]:
    """Return the parts of ``values`` that stand where ``tree`` has leaves; a leaf's value may be a list itself.

    Args:
        none_fits: None among the values stands for any part of the tree, and gives a None for each of its leaves.

    Raises:
        ValueError: ``values`` lacks a key, has another length, or has something where the tree has None.
    """
    if values is None and none_fits:
        return [None] * len(flatten(tree)[0])
    if isinstance(tree, dict):
        if not isinstance(values, dict) or set(values) != set(tree):
            raise ValueError(f"a dict with the keys {_keys(tree)} is wanted, got {_outline(values)}")
        pairs = [(tree[key], values[key]) for key in _keys(tree)]
    elif isinstance(tree, (list, tuple)):
        if not isinstance(values, (list, tuple)) or len(values) != len(tree):
            raise ValueError(f"a {type(tree).__name__} of {len(tree)} is wanted, got {_outline(values)}")
        pairs = list(zip(tree, values, strict=True))
    elif tree is None and values is not None:
        raise ValueError(f"None is wanted, got {_outline(values)}")
    else:
        return [] if tree is None else [values]
    return [leaf for each, value in pairs for leaf in values_like(each, value, none_fits=none_fits)]


def names(tree: Any, prefix: str = "") -> list[str]:
    """Return the path of each leaf, in the order of ``flatten``: ``layers.0.w``."""
    if isinstance(tree, dict):
        return [name for key in _keys(tree) for name in names(tree[key], f"{prefix}{key}.")]
    if isinstance(tree, (list, tuple)):
        return [name for at, each in enumerate(tree) for name in names(each, f"{prefix}{at}.")]
    return [] if tree is None else [prefix.rstrip(".")]


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return the tree of ``function(leaf, ...)`` over trees of one shape; raises ValueError where the shapes differ."""
    leaves, rebuild = flatten(tree)
    columns = [values_like(tree, other) for other in others]
    return rebuild([function(*each) for each in zip(leaves, *columns, strict=True)])


def _keys(tree: dict[Any, Any]) -> list[Any]:
    try:
        return sorted(tree)
    except TypeError:
        raise ValueError(f"the keys of a dict of tensors must have an order, got {list(tree)}") from None


def _outline(values: Any) -> str:
    if isinstance(values, dict):
        return f"a dict with the keys {list(values)}"
    name = type(values).__name__
    return f"a {name} of {len(values)}" if isinstance(values, (list, tuple)) else name


def _collect(tree: Any, leaves: list[Any]) -> None:
    if isinstance(tree, dict):
        for key in _keys(tree):
            _collect(tree[key], leaves)
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            _collect(each, leaves)
    elif tree is not None:
        leaves.append(tree)


def _placed(tree: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _placed(tree[key], leaves) for key in _keys(tree)}
    if isinstance(tree, (list, tuple)):
        made = [_placed(each, leaves) for each in tree]
        if isinstance(tree, tuple):
            return type(tree)(*made) if hasattr(tree, "_fields") else tuple(made)
        return made
    return None if tree is None else next(leaves)
