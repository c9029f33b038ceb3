"""The functions by name, for whoever stands below them: operators, methods, NumPy's protocols.

`Array` cannot import the functions that make Arrays. They enter themselves here when they load, and
`Array` looks them up when it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from nvfp.arrays.array import Array

F = TypeVar("F", bound=Callable[..., Any])


class _Functions:
    """``nf.name`` is the public function ``name`` of this room."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Array]: ...


nf = _Functions()


def public(function: F) -> F:
    """Enter a function under its name (decorator)."""
    setattr(nf, function.__name__, function)
    return function


def enter(namespace: str, functions: dict[str, Any]) -> None:
    """Enter the functions of a namespace under names with a dot, for `find`: ``"linalg.inv"``."""
    for name, function in functions.items():
        if callable(function) and not isinstance(function, type):
            setattr(nf, f"{namespace}.{name}", function)


def find(name: str) -> Callable[..., Any] | None:
    """Return the public function of that name, or None."""
    found: Callable[..., Any] | None = vars(nf).get(name)
    return found
