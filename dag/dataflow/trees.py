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


def values_like(tree: Any, values: Any) -> list[Any]:
    """Return the parts of ``values`` that stand where ``tree`` has leaves; a leaf's value may be a list itself.

    Raises:
        ValueError: ``values`` lacks a key or has another length.
    """
    if isinstance(tree, dict):
        if not isinstance(values, dict) or set(values) != set(tree):
            raise ValueError(f"a dict with the keys {_keys(tree)} is wanted, got {_outline(values)}")
        return [leaf for key in _keys(tree) for leaf in values_like(tree[key], values[key])]
    if isinstance(tree, (list, tuple)):
        if not isinstance(values, (list, tuple)) or len(values) != len(tree):
            raise ValueError(f"{len(tree)} values are wanted, got {_outline(values)}")
        return [leaf for each, value in zip(tree, values, strict=True) for leaf in values_like(each, value)]
    return [] if tree is None else [values]


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
    return f"{len(values)}" if isinstance(values, (list, tuple)) else type(values).__name__


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
