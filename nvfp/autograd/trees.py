"""Nested dict, list and tuple arguments: their arrays out, and the same nest with other leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(tree: Any) -> Iterator[Any]:
    """Yield what is not a dict, list or tuple, in order (dicts in the order of their keys' insertion).

    Example:
        >>> list(leaves({"a": [1, 2], "b": (3, None)}))
        [1, 2, 3, None]
    """
    if isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same nest with ``function(leaf)`` in place of every leaf, in the order of `leaves`.

    Example:
        >>> map_leaves(lambda leaf: leaf * 2, {"a": [1, 2], "b": (3,)})
        {'a': [2, 4], 'b': (6,)}
    """
    if isinstance(tree, dict):
        items = {key: map_leaves(function, value) for key, value in tree.items()}
        return items if type(tree) is dict else type(tree)(items)
    if isinstance(tree, list):
        return [map_leaves(function, value) for value in tree]
    if isinstance(tree, tuple):
        values = [map_leaves(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    return function(tree)
