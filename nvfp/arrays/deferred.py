"""`Deferred`: a result that is computed when somebody reads it, or by the quantize that reads its source instead.

Between two layers of one module a norm, an activation or an activation's gradient travels in this form. A GEMM under
a plan takes source and function (`Pending.take`) and quantizes in the pass that applies it; for everybody else it is
computed as ever (`Pending.value`), with the same bits. It never leaves the module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, device_of, wrap
from nvfp.autograd.tape import Leaf, Node
from nvfp.device import Device
from nvfp.kernels.input_fn import InputFn

Taken = tuple[Any, InputFn]


class Pending:
    """The raw side of a `Deferred`.

    Args:
        plain: computes the result.
        taken: gives the source, a matrix, and the function that `quantize` applies to it.
        shape: of the result.
        like: raw array of the result's dtype on its device.
        rows: whether whole rows decide an element, as in a norm: its kernel is then the faster one, unless a maximum
            of the result is needed before its codes.

    Attributes:
        shape: of the result.
        dtype: of the result.
        rows: as given.
        like: a raw array on its device, until somebody has taken the source.
    """

    __slots__ = ("_plain", "_taken", "_value", "dtype", "like", "rows", "shape")

    def __init__(
        self,
        plain: Callable[[], Any],
        taken: Callable[[], Taken],
        shape: tuple[int, ...],
        like: Any,
        *,
        rows: bool = False,
    ) -> None:
        self._plain: Callable[[], Any] | None = plain
        self._taken: Callable[[], Taken] | None = taken
        self._value: Any = None
        self.shape, self.rows = shape, rows
        self.dtype: np.dtype = like.dtype
        self.like: Any = like

    def value(self) -> Any:
        """Return the result, computed at the first call."""
        if self._value is None:
            assert self._plain is not None, "a result that was taken is read by nobody else"
            self._value = self.like = self._plain()
            self._plain = self._taken = None
        return self._value

    def matrix(self) -> Any:
        """Return the result with its leading axes folded away."""
        value = self.value()
        return value if value.ndim == 2 else value.reshape((math.prod(self.shape[:-1]), self.shape[-1]))

    def take(self) -> Taken | None:
        """Return source and function, once, and let go of them; None if the result is there already."""
        if self._value is not None:
            return None
        assert self._taken is not None, "a result is taken once"
        taken = self._taken()
        self._plain = self._taken = self.like = None
        return taken


class Deferred(Array):
    """An Array whose ``raw`` is `Pending`; every function but a GEMM under a plan reads `settled`."""

    __slots__ = ()

    raw: Pending

    @property
    def device(self) -> Device:
        """Where the result will be."""
        return device_of(self.raw.like)

    def settled(self) -> Array:
        """Return the dense Array, at the same place in the graph."""
        return wrap(self.raw.value(), None, self._node, self._index)

    def _placed(self, node: Node | Leaf | None, index: int = 0) -> Any:
        return self.settled()._placed(node, index)

    def _as_gradient(self, fresh: bool) -> Array:
        return self.settled()._as_gradient(fresh)


def deferred(pending: Pending, node: Node | None = None) -> Deferred:
    """Return the Array of a pending result.

    Args:
        pending: the result.
        node: what made it.
    """
    x: Deferred = object.__new__(Deferred)
    x.raw, x.dtype, x._storage = pending, pending.dtype, None
    x._node, x._index, x.is_parameter = node, 0, False
    return x
