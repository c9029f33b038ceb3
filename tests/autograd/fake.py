"""A float array of the tape's protocol and nothing more: the tape must not need another library."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from nvfp.autograd import Leaf, Node, Output, record


class Fake:
    """Values in a NumPy array; `cell` holds what `_version` counts."""

    def __init__(
        self, values: Any, node: Node | Leaf | None = None, index: int = 0, cell: list[int] | None = None
    ) -> None:
        self.values = np.asarray(values, np.float64)
        self.dtype = self.values.dtype
        self._node, self._index = node, index
        self.cell = [0] if cell is None else cell

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def _version(self) -> int:
        return self.cell[0]

    @property
    def _differentiable(self) -> bool:
        return True

    @property
    def grad(self) -> Any:
        return self._node.grad if isinstance(self._node, Leaf) else None

    def _placed(self, node: Node | Leaf | None, index: int = 0) -> Self:
        return type(self)(self.values, node, index, self.cell)

    def _snapshot(self) -> Self:
        return self._placed(self._node, self._index)

    def _add_(self, other: Any) -> None:
        self.values += other.values
        self.cell[0] += 1

    def _as_gradient(self, fresh: bool) -> Fake:
        return self if fresh and self._node is None else Fake(self.values.copy())

    def write(self, values: Any) -> None:
        self.values[...] = values
        self.cell[0] += 1

    def __array_namespace__(self) -> Any:
        return Namespace


class Namespace:
    """What the tape calls of an array namespace."""

    @staticmethod
    def add(x: Any, y: Any) -> Fake:
        return add(x, y)

    @staticmethod
    def ones_like(x: Any) -> Fake:
        return Fake(np.ones_like(x.values))

    @staticmethod
    def zeros_like(x: Any) -> Fake:
        return Fake(np.zeros_like(x.values))

    @staticmethod
    def zeros(shape: Any, dtype: Any = None, device: Any = None) -> Fake:
        return Fake(np.zeros(shape))


def variable(values: Any) -> Fake:
    x = Fake(values)
    x._node = Leaf(x.shape)
    return x


def add(x: Fake, y: Fake) -> Fake:
    node = record("add", (x, y), lambda saved, dy, needs: (dy, dy), differentiable_twice=True)
    return Fake(x.values + y.values, node)


def multiply(x: Fake, y: Fake) -> Fake:
    def vjp(saved: Any, dy: Any, needs: Any) -> Any:
        a, b = saved
        return (multiply(dy, b) if needs[0] else None, multiply(dy, a) if needs[1] else None)

    return Fake(x.values * y.values, record("multiply", (x, y), vjp, (x, y), differentiable_twice=True))


def exp(x: Fake) -> Fake:
    y = Fake(np.exp(x.values))

    def vjp(saved: Any, dy: Any, needs: Any) -> Any:
        return (multiply(dy, saved[0]),)

    y._node = record("exp", (x,), vjp, (Output(y),), differentiable_twice=True)
    return y


def fused_square(x: Fake) -> Fake:
    """A fused rule: raw values, first derivatives only."""

    def vjp(saved: Any, dy: Any, needs: Any) -> Any:
        return (Fake(2 * saved[0] * dy.values),)

    return Fake(x.values**2, record("fused_square", (x,), vjp, (x.values,)))


def halves(x: Fake) -> tuple[Fake, Fake]:
    """Two outputs."""
    n = len(x.values) // 2

    def vjp(saved: Any, dy: Any, needs: Any) -> Any:
        parts = [np.zeros(n) if d is None else d.values for d in dy]
        return (Fake(np.concatenate(parts)),)

    node = record("halves", (x,), vjp, outputs=2)
    return Fake(x.values[:n], node, 0), Fake(x.values[n:], node, 1)
