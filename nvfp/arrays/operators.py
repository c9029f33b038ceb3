"""Python's operators on arrays: each is the function of the array API standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nvfp.arrays.registry import nf
from nvfp.errors import DTypeError, message

if TYPE_CHECKING:
    from nvfp.arrays.array import Array

_KNOWN = (bool, int, float, complex, np.generic, np.ndarray)


_SEEN: set[type] = {bool, int, float, complex, np.ndarray}  # types that have been found to fit


def _fits(value: object) -> bool:
    """Whether ``value`` may stand beside an Array; otherwise Python asks its type, then raises."""
    kind = type(value)
    if kind in _SEEN:
        return True
    if hasattr(kind, "_snapshot") or isinstance(value, _KNOWN):
        _SEEN.add(kind)
        return True
    return False


class Operators:
    """``x + y`` is ``nf.add(x, y)`` and so on; ``x += y`` gives ``x`` new storage (see `Array`)."""

    __slots__ = ()

    if TYPE_CHECKING:
        shape: Any
        raw: Any
        dtype: Any

        def _assign(self, value: Array, op: str) -> Self: ...

    def __pos__(self) -> Array:
        return nf.positive(self)

    def __neg__(self) -> Array:
        return nf.negative(self)

    def __abs__(self) -> Array:
        return nf.abs(self)

    def __invert__(self) -> Array:
        return nf.bitwise_invert(self)

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._real("int"))

    def __float__(self) -> float:
        return float(self._real("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if np.dtype(self.dtype).kind not in "iu":
            raise DTypeError(message("index", "an integer array", self.dtype, "cast it with x.astype(nf.int64)"))
        return int(self._scalar("index"))

    def _real(self, op: str) -> Any:
        if np.dtype(self.dtype).kind == "c":
            raise DTypeError(message(op, "a real array", self.dtype, "take nf.real(x) first"))
        return self._scalar(op)

    def _scalar(self, op: str) -> Any:
        if self.shape != ():
            do = "use nf.any(x) or nf.all(x)" if op == "bool" else "reduce it, or use x.item()"
            raise DTypeError(message(op, "a 0-d array", f"shape {self.shape}", do))
        return nf.asnumpy(self)[()]

    def __add__(self, other: Any) -> Array:
        return nf.add(self, other) if _fits(other) else NotImplemented

    def __radd__(self, other: Any) -> Array:
        return nf.add(other, self) if _fits(other) else NotImplemented

    def __iadd__(self, other: Any) -> Self:
        return self._assign(nf.add(self, other), "+=") if _fits(other) else NotImplemented

    def __sub__(self, other: Any) -> Array:
        return nf.subtract(self, other) if _fits(other) else NotImplemented

    def __rsub__(self, other: Any) -> Array:
        return nf.subtract(other, self) if _fits(other) else NotImplemented

    def __isub__(self, other: Any) -> Self:
        return self._assign(nf.subtract(self, other), "-=") if _fits(other) else NotImplemented

    def __mul__(self, other: Any) -> Array:
        return nf.multiply(self, other) if _fits(other) else NotImplemented

    def __rmul__(self, other: Any) -> Array:
        return nf.multiply(other, self) if _fits(other) else NotImplemented

    def __imul__(self, other: Any) -> Self:
        return self._assign(nf.multiply(self, other), "*=") if _fits(other) else NotImplemented

    def __truediv__(self, other: Any) -> Array:
        return nf.divide(self, other) if _fits(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Array:
        return nf.divide(other, self) if _fits(other) else NotImplemented

    def __itruediv__(self, other: Any) -> Self:
        return self._assign(nf.divide(self, other), "/=") if _fits(other) else NotImplemented

    def __floordiv__(self, other: Any) -> Array:
        return nf.floor_divide(self, other) if _fits(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Array:
        return nf.floor_divide(other, self) if _fits(other) else NotImplemented

    def __ifloordiv__(self, other: Any) -> Self:
        return self._assign(nf.floor_divide(self, other), "//=") if _fits(other) else NotImplemented

    def __mod__(self, other: Any) -> Array:
        return nf.remainder(self, other) if _fits(other) else NotImplemented

    def __rmod__(self, other: Any) -> Array:
        return nf.remainder(other, self) if _fits(other) else NotImplemented

    def __imod__(self, other: Any) -> Self:
        return self._assign(nf.remainder(self, other), "%=") if _fits(other) else NotImplemented

    def __pow__(self, other: Any) -> Array:
        return nf.pow(self, other) if _fits(other) else NotImplemented

    def __rpow__(self, other: Any) -> Array:
        return nf.pow(other, self) if _fits(other) else NotImplemented

    def __ipow__(self, other: Any) -> Self:
        return self._assign(nf.pow(self, other), "**=") if _fits(other) else NotImplemented

    def __matmul__(self, other: Any) -> Array:
        return nf.matmul(self, other) if _fits(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Array:
        return nf.matmul(other, self) if _fits(other) else NotImplemented

    def __imatmul__(self, other: Any) -> Self:
        return self._assign(nf.matmul(self, other), "@=") if _fits(other) else NotImplemented

    def __and__(self, other: Any) -> Array:
        return nf.bitwise_and(self, other) if _fits(other) else NotImplemented

    def __rand__(self, other: Any) -> Array:
        return nf.bitwise_and(other, self) if _fits(other) else NotImplemented

    def __iand__(self, other: Any) -> Self:
        return self._assign(nf.bitwise_and(self, other), "&=") if _fits(other) else NotImplemented

    def __or__(self, other: Any) -> Array:
        return nf.bitwise_or(self, other) if _fits(other) else NotImplemented

    def __ror__(self, other: Any) -> Array:
        return nf.bitwise_or(other, self) if _fits(other) else NotImplemented

    def __ior__(self, other: Any) -> Self:
        return self._assign(nf.bitwise_or(self, other), "|=") if _fits(other) else NotImplemented

    def __xor__(self, other: Any) -> Array:
        return nf.bitwise_xor(self, other) if _fits(other) else NotImplemented

    def __rxor__(self, other: Any) -> Array:
        return nf.bitwise_xor(other, self) if _fits(other) else NotImplemented

    def __ixor__(self, other: Any) -> Self:
        return self._assign(nf.bitwise_xor(self, other), "^=") if _fits(other) else NotImplemented

    def __lshift__(self, other: Any) -> Array:
        return nf.bitwise_left_shift(self, other) if _fits(other) else NotImplemented

    def __rlshift__(self, other: Any) -> Array:
        return nf.bitwise_left_shift(other, self) if _fits(other) else NotImplemented

    def __ilshift__(self, other: Any) -> Self:
        return self._assign(nf.bitwise_left_shift(self, other), "<<=") if _fits(other) else NotImplemented

    def __rshift__(self, other: Any) -> Array:
        return nf.bitwise_right_shift(self, other) if _fits(other) else NotImplemented

    def __rrshift__(self, other: Any) -> Array:
        return nf.bitwise_right_shift(other, self) if _fits(other) else NotImplemented

    def __irshift__(self, other: Any) -> Self:
        return self._assign(nf.bitwise_right_shift(self, other), ">>=") if _fits(other) else NotImplemented

    def __lt__(self, other: Any) -> Array:
        return nf.less(self, other) if _fits(other) else NotImplemented

    def __le__(self, other: Any) -> Array:
        return nf.less_equal(self, other) if _fits(other) else NotImplemented

    def __gt__(self, other: Any) -> Array:
        return nf.greater(self, other) if _fits(other) else NotImplemented

    def __ge__(self, other: Any) -> Array:
        return nf.greater_equal(self, other) if _fits(other) else NotImplemented

    def __eq__(self, other: Any) -> Array:  # type: ignore[override]
        return nf.equal(self, other) if _fits(other) else NotImplemented

    def __ne__(self, other: Any) -> Array:  # type: ignore[override]
        return nf.not_equal(self, other) if _fits(other) else NotImplemented
