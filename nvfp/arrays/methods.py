"""NumPy's methods of an array: each calls the function of that name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nvfp.arrays.habits import explained, missing
from nvfp.arrays.registry import nf
from nvfp.errors import DTypeError, ShapeError, message

if TYPE_CHECKING:
    from nvfp.arrays.array import Array
    from nvfp.device import Device
    from nvfp.dtypes.codec import Overflow, Rounding

    Axis = int | tuple[int, ...] | None
    Shape = int | Sequence[int]


class Methods:
    """Methods under NumPy's names; see the functions of `nf` for what they do."""

    __slots__ = ()

    if TYPE_CHECKING:
        shape: Any
        size: Any
        raw: Any
        dtype: Any
        _node: Any

    else:  # hidden from type checkers, which would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name)

    # -- conversion ------------------------------------------------------------------------------

    @explained
    def astype(
        self, dtype: Any, copy: bool = True, *, overflow: Overflow = "saturate", rounding: Rounding = "even"
    ) -> Array:
        """Convert to a dense dtype, or quantize to a quantized one; see `nf.astype`."""
        return nf.astype(self, dtype, copy=copy, overflow=overflow, rounding=rounding)

    def to_device(self, device: Device | str, /, *, stream: Any = None) -> Array:
        """Copy to a device (itself if it is there); see `nf.to_device`."""
        return nf.to_device(self, device, stream=stream)

    def copy(self) -> Array:
        """Return the same values in memory of their own."""
        return nf.copy(self)

    def item(self) -> Any:
        """Return the only element as a Python scalar (waits for the GPU)."""
        if self.shape != () and self.size != 1:
            raise ShapeError(message("item", "one element", f"shape {self.shape}", "use x.tolist(), or index it first"))
        return nf.asnumpy(self).item()

    def tolist(self) -> Any:
        """Return nested lists of Python scalars (waits for the GPU)."""
        return nf.asnumpy(self).tolist()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    # -- shape -----------------------------------------------------------------------------------

    @property
    def T(self) -> Array:
        """All axes reversed (the array API's ``T`` of a matrix)."""
        return nf.transpose(self)

    @property
    def mT(self) -> Array:
        """The last two axes swapped."""
        return nf.matrix_transpose(self)

    def reshape(self, *shape: Any) -> Array:
        """See `nf.reshape`; lengths may be given one by one."""
        return nf.reshape(self, _unpacked(shape))

    def transpose(self, *axes: Any) -> Array:
        """See `nf.permute_dims`; without axes all are reversed."""
        return nf.transpose(self, _unpacked(axes) or None)

    def ravel(self) -> Array:
        """Return one axis over all elements."""
        return nf.ravel(self)

    def flatten(self) -> Array:
        """Return one axis over a copy of all elements."""
        return nf.copy(nf.reshape(self, (-1,)))

    @explained
    def squeeze(self, axis: Axis = None) -> Array:
        """See `nf.squeeze`; without an axis all axes of length 1 go."""
        return nf.squeeze(self, axis)

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """See `nf.swapaxes`."""
        return nf.swapaxes(self, axis1, axis2)

    @explained
    def repeat(self, repeats: Any, axis: int | None = None) -> Array:
        """See `nf.repeat`."""
        return nf.repeat(self, repeats, axis=axis)

    # -- reductions ------------------------------------------------------------------------------

    @explained
    def sum(self, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
        """See `nf.sum`."""
        return nf.sum(self, axis=axis, dtype=dtype, keepdims=keepdims)

    @explained
    def prod(self, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
        """See `nf.prod`."""
        return nf.prod(self, axis=axis, dtype=dtype, keepdims=keepdims)

    @explained
    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """See `nf.mean`."""
        return nf.mean(self, axis=axis, keepdims=keepdims)

    @explained
    def var(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
        """See `nf.var`."""
        return nf.var(self, axis=axis, correction=correction, keepdims=keepdims)

    @explained
    def std(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Array:
        """See `nf.std`."""
        return nf.std(self, axis=axis, correction=correction, keepdims=keepdims)

    @explained
    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """See `nf.max`."""
        return nf.max(self, axis=axis, keepdims=keepdims)

    @explained
    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """See `nf.min`."""
        return nf.min(self, axis=axis, keepdims=keepdims)

    @explained
    def all(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """See `nf.all`."""
        return nf.all(self, axis=axis, keepdims=keepdims)

    @explained
    def any(self, axis: Axis = None, *, keepdims: bool = False) -> Array:
        """See `nf.any`."""
        return nf.any(self, axis=axis, keepdims=keepdims)

    @explained
    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        """See `nf.argmax`."""
        return nf.argmax(self, axis=axis, keepdims=keepdims)

    @explained
    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        """See `nf.argmin`."""
        return nf.argmin(self, axis=axis, keepdims=keepdims)

    @explained
    def cumsum(self, axis: int | None = None, *, dtype: Any = None) -> Array:
        """See `nf.cumsum`."""
        return nf.cumsum(self, axis=axis, dtype=dtype)

    @explained
    def cumprod(self, axis: int | None = None, *, dtype: Any = None) -> Array:
        """See `nf.cumprod`."""
        return nf.cumprod(self, axis=axis, dtype=dtype)

    # -- others ----------------------------------------------------------------------------------

    def clip(self, min: Any = None, max: Any = None) -> Array:
        """See `nf.clip`."""
        return nf.clip(self, min, max)

    def round(self) -> Array:
        """See `nf.round`."""
        return nf.round(self)

    @explained
    def take(self, indices: Any, axis: int | None = None) -> Array:
        """See `nf.take`."""
        return nf.take(self, indices, axis=axis)

    def dot(self, other: Any) -> Array:
        """See `nf.dot`."""
        return nf.dot(self, other)

    @explained
    def argsort(self, axis: int | None = -1, *, descending: bool = False) -> Array:
        """See `nf.argsort`."""
        return nf.argsort(self, axis=axis, descending=descending)

    def nonzero(self) -> tuple[Array, ...]:
        """See `nf.nonzero`."""
        return nf.nonzero(self)  # type: ignore[return-value]

    @explained
    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """See `nf.diagonal`."""
        return nf.diagonal(self, offset, axis1, axis2)

    @explained
    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, *, dtype: Any = None) -> Array:
        """See `nf.trace`."""
        return nf.trace(self, offset, axis1, axis2, dtype=dtype)

    def conj(self) -> Array:
        """See `nf.conj`."""
        return nf.conj(self)

    @property
    def real(self) -> Array:
        """See `nf.real`."""
        return nf.real(self)

    @property
    def imag(self) -> Array:
        """See `nf.imag`."""
        return nf.imag(self)

    # -- elements --------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Array:
        return nf.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        nf.setitem(self, key, value)

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError(message("len", "an array with an axis", "shape ()", "use x.size"))
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise DTypeError(message("iter", "an array with an axis", "shape ()", "use x.item()"))
        return (nf.getitem(self, i) for i in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        return bool(nf.any(nf.equal(self, value)))


def _unpacked(given: tuple[Any, ...]) -> Any:
    """``f(2, 3)``, ``f((2, 3))`` and ``f(-1)`` alike."""
    if len(given) == 1 and (given[0] is None or isinstance(given[0], tuple | list)):
        return given[0]
    if any(isinstance(n, tuple | list) for n in given):
        raise ShapeError(message("reshape", "lengths, or one tuple of them", given, "pass x.reshape((2, 3))"))
    return given
