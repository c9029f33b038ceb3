"""What the tape asks of an array: the whole of it. See README.md of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, TypeGuard

if TYPE_CHECKING:
    from nvfp.autograd.tape import Leaf, Node


class Tracked(Protocol):
    """An array that can stand in a graph.

    Attributes:
        _node: its place: None (not tracked), a `Leaf` (a variable), or the `Node` that made it.
        _index: which output of the node it is (0 for a leaf).
    """

    _node: Node | Leaf | None
    _index: int

    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""

    @property
    def _version(self) -> int:
        """How often its storage has been written in place."""

    @property
    def _differentiable(self) -> bool:
        """Whether its dtype takes part in differentiation."""

    def _snapshot(self) -> Self:
        """Another object with the same storage, values and place in the graph."""

    def _placed(self, node: Node | Leaf | None, index: int = 0) -> Self:
        """Another object with the same storage and values at another place in the graph."""

    def _add_(self, other: Any, *, fresh: bool = False) -> None:
        """Add ``other`` in place (``fresh``: replace by it), at a fixed address; the version of the storage goes up."""

    def _as_gradient(self, fresh: bool) -> Self:
        """Untracked values in memory of their own: itself if ``fresh`` and not shared, else a copy."""

    def __array_namespace__(self) -> Any: ...


def is_tracked(x: object) -> TypeGuard[Tracked]:
    """Whether ``x`` is an array of this protocol (tracked or not)."""
    return hasattr(type(x), "_snapshot")
