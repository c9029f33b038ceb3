"""`Array`: the dense array. Its slots, its places in graph and memory; the rest comes from mixins.

Operators, methods and protocols are in `operators`, `methods` and `interop`; they call functions by
name through `registry`.
"""

from __future__ import annotations

import math
import sys
from typing import Any, Self

import numpy as np

from nvfp.arrays.interop import Interop
from nvfp.arrays.main_grad import MainGrad
from nvfp.arrays.methods import Methods
from nvfp.arrays.namespace import check_version
from nvfp.arrays.operators import Operators
from nvfp.arrays.registry import nf
from nvfp.arrays.storage import Storage
from nvfp.autograd.grad_mode import _enabled
from nvfp.autograd.tape import Leaf, Node
from nvfp.autograd.walk import backward
from nvfp.device import Device
from nvfp.dtypes.dense import bfloat16, is_narrow
from nvfp.errors import DTypeError, GradientError, ShapeError, message
from nvfp.kernels._dispatch import kind_of
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise

_CPU = Device("cpu")
KIND_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}  # of dtype kinds (V: ml_dtypes)


class Array(Operators, Methods, Interop, MainGrad):
    """A dense array on one device. Make one with `nf.asarray`, `nf.zeros` or `nf.random`.

    Attributes:
        raw: the NumPy (CPU) or CuPy (CUDA) array; narrow dtypes are uint8 codes, one per byte.
        dtype: a NumPy dtype instance, e.g. ``nf.bfloat16``.
        is_parameter: whether writing keeps the address (see `nf.parameter`).

    Writing: ``x[i] = v`` and ``x += y`` give this object new storage. Views of ``x`` and values that
    a backward pass will need keep the old contents, so they can never become wrong. A parameter is
    written in place instead, and a backward pass that needed its old values raises.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[1.0, 2.0], [3.0, 4.0]], device="cpu")
        >>> x.shape, x.dtype, (x @ x).tolist()
        ((2, 2), dtype('float32'), [[7.0, 10.0], [15.0, 22.0]])
    """

    __slots__ = ("__weakref__", "_index", "_node", "_storage", "dtype", "is_parameter", "raw")

    raw: Any
    dtype: Any
    is_parameter: bool
    _storage: Storage | None
    _node: Node | Leaf | None
    _index: int

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, *args: object, **kwargs: object) -> None:
        text = f"{type(self).__name__}(...)"
        raise DTypeError(
            message("Array", "a function that makes arrays", text, "use nf.asarray, nf.zeros or nf.from_dlpack")
        )

    @staticmethod
    def _wrap(raw: Any, dtype: np.dtype | None = None) -> Array:
        """Return an Array over raw memory, without a copy."""
        return wrap(raw, dtype)

    # -- shape and place -------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.raw.shape  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return int(self.raw.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return int(self.raw.nbytes)

    @property
    def device(self) -> Device:
        """Where the memory is."""
        return device_of(self.raw)

    @property
    def storage(self) -> Storage:
        """The memory with its version; ``storage.write_`` changes it in place."""
        if self._storage is None:
            self._storage = Storage(self.raw)
        return self._storage

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The module ``nvfp``, as the array API standard wants it."""
        if api_version is not None:
            check_version(api_version)
        return sys.modules[__name__.partition(".")[0]]

    # -- gradients -------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on it are recorded. Set it to make an array a variable, or a constant again."""
        return self._node is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if type(self._node) is Node:
            if not value:
                do = "use x.detach() for an array without history"
                raise GradientError(message("requires_grad", "a variable", f"a result of '{self._node.name}'", do))
        elif not value:
            self._node = None
        elif self._node is None:
            if not self._trainable:
                raise DTypeError(
                    message("requires_grad", "a floating dtype", self.dtype, "cast it to a float dtype first")
                )
            self._node, self._index = Leaf(self.shape), 0

    @property
    def grad(self) -> Array | None:
        """The gradient that backward passes have added up here (variables only), or None."""
        return self._node.grad if type(self._node) is Leaf else None

    @grad.setter
    def grad(self, value: Array | None) -> None:
        leaf = self._node
        if type(leaf) is not Leaf:
            if value is None:
                return
            raise GradientError(
                message("grad", "a variable", "an array without requires_grad", "set x.requires_grad = True")
            )
        if value is leaf.grad:
            return
        if value is not None:
            if not isinstance(value, Array) or value.shape != self.shape or value.device != self.device:
                got = f"{value.shape} on {value.device}" if isinstance(value, Array) else type(value).__name__
                do = "give a gradient of the variable's shape and device"
                raise ShapeError(message("grad", f"an Array of shape {self.shape} on {self.device}", got, do))
            value = value._placed(None)
        leaf.grad, leaf.owned = value, False

    def backward(self, grad: Array | None = None, retain_graph: bool = False) -> None:
        """Add the gradient of this array to the ``.grad`` of every variable it was computed from.

        Args:
            grad: gradient of this array, of its shape; may be left out for a scalar (then 1).
            retain_graph: keep what the graph saved, for another backward through it.

        Raises:
            GradientError: untracked, not a scalar without ``grad``, the graph was freed, or a saved
                array was written since.
            ShapeError: ``grad`` of another shape.

        Example:
            >>> import nvfp as nf
            >>> x = nf.asarray([1.0, 2.0], device="cpu", requires_grad=True)
            >>> (x * x).sum().backward()
            >>> x.grad
            nf.array([2., 4.])
        """
        if grad is None:
            if self.size != 1:
                do = "reduce it with .sum(), or pass grad="
                raise GradientError(
                    message("backward", "a scalar, or a gradient of its shape", f"shape {self.shape}", do)
                )
            grad = nf.ones_like(self)
        elif not isinstance(grad, Array):
            grad = nf.asarray(grad, dtype=self.dtype, device=self.device)
        if grad.shape != self.shape:
            raise ShapeError(
                message("backward", f"grad of shape {self.shape}", grad.shape, "give it the shape of the array")
            )
        backward([self], [grad], retain_graph=retain_graph)

    def detach(self) -> Self:
        """Return the same values in the same memory, without history."""
        return self._placed(None)

    @property
    def _differentiable(self) -> bool:
        dtype = self.dtype
        return dtype == bfloat16 or (dtype.kind == "f" and not is_narrow(dtype))

    @property
    def _trainable(self) -> bool:
        return self._differentiable

    @property
    def _version(self) -> int:
        return 0 if self._storage is None else self._storage.version

    def _placed(self, node: Node | Leaf | None, index: int = 0) -> Self:
        x = object.__new__(type(self))
        x.raw, x.dtype, x._storage = self.raw, self.dtype, self._storage or self.storage
        x._node, x._index, x.is_parameter = node, index, False
        return x

    def _snapshot(self) -> Self:
        return self._placed(self._node, self._index)

    def _as_gradient(self, fresh: bool) -> Array:
        raw = self.raw
        if fresh and self._node is None and self._storage is None and raw.flags.c_contiguous:
            return self
        return wrap(cast(raw, raw.dtype))

    def _add_(self, other: Array, *, fresh: bool = False) -> None:
        if fresh:
            self.storage.write_(other.raw)
            return
        elementwise("add", self.raw, other.raw, dtype=self.dtype, out=self.raw)
        self.storage.touch()

    def _own(self) -> Array:
        return wrap(cast(self.raw, self.raw.dtype), self.dtype)

    # -- writing ---------------------------------------------------------------------------------

    def _rebind(self, raw: Any, dtype: np.dtype | None = None, storage: Storage | None = None) -> None:
        """Give this object other memory; its place in the graph stays."""
        self.raw, self.dtype, self._storage = raw, raw.dtype if dtype is None else dtype, storage

    @property
    def _is_variable(self) -> bool:
        """Whether it is a variable of the user's (an argument inside `nf.grad` may be rebound like a result)."""
        return type(self._node) is Leaf and not self._node.temporary

    def _check_writable(self, op: str) -> None:
        if self._is_variable and _enabled.get():
            do = "update it inside nf.no_grad(), or write x = x + ... for a new array"
            raise GradientError(message(op, "an array that is not a variable of the graph", "requires_grad=True", do))

    def _assign(self, value: Array, op: str) -> Self:
        """Take the values of ``value``, a fresh result: what ``x op= y`` does."""
        self._check_writable(op)
        if value.shape != self.shape:
            raise ShapeError(
                message(op, f"a result of shape {self.shape}", value.shape, "write x = x + y to let it broadcast")
            )
        if value.dtype is not self.dtype:
            if KIND_RANKS[value.dtype.kind] > KIND_RANKS[self.dtype.kind]:
                do = "cast x first, or write x = x + y"
                raise DTypeError(message(op, f"a result that {self.dtype} holds", value.dtype, do))
            value = nf.astype(value, self.dtype)
        if self.is_parameter:
            if value._node is not None:
                do = "detach the other operand, or work inside nf.no_grad()"
                raise GradientError(message(op, "untracked values for a parameter", "a recorded result", do))
            self.storage.write_(value.raw)
            return self
        self._rebind(value.raw, value.dtype, value._storage)
        if not self._is_variable:
            self._node, self._index = value._node, value._index
        return self


def wrap(
    raw: Any,
    dtype: np.dtype | None = None,
    node: Node | Leaf | None = None,
    index: int = 0,
    storage: Storage | None = None,
) -> Array:
    """Return an Array over raw memory, without a copy: how every function returns its result.

    Args:
        raw: NumPy or CuPy array (a NumPy scalar becomes a 0-d array).
        dtype: what the elements are; needed for narrow dtypes, whose raw array is uint8.
        node: what made it (`autograd.record`).
        index: which output of the node.
        storage: of the array it is a view of; None for memory of its own.
    """
    x = _new(Array)
    if type(raw) is not _ndarray and isinstance(raw, np.generic):
        raw = np.asarray(raw)
    x.raw = raw
    x.dtype = raw.dtype if dtype is None else dtype
    x._storage = storage
    x._node = node
    x._index = index
    x.is_parameter = False
    return x


_new = object.__new__
_ndarray = np.ndarray


def fresh(raw: Any) -> Array:
    """Return ``wrap(raw)`` of a NumPy result of its own memory and dtype: the short way, for small operations."""
    if type(raw) is not _ndarray:
        raw = np.asarray(raw)
    x = _new(Array)
    x.raw = raw
    x.dtype = raw.dtype
    x._storage = x._node = None
    x._index = 0
    x.is_parameter = False
    return x


_devices: dict[int, Device] = {}


def device_of(raw: Any) -> Device:
    """Return the device of a raw array or Operand."""
    if type(raw) is np.ndarray:
        return _CPU
    if kind_of(raw) == "cpu":
        return _CPU
    index = getattr(raw, "codes", raw).device.id
    found = _devices.get(index)
    if found is None:
        found = _devices[index] = Device(f"cuda:{index}")
    return found


def parameter(x: Array, *, requires_grad: bool = True) -> Array:
    """Return a parameter with the values of ``x``: a variable that is written in place.

    Args:
        x: dense floating array, or a quantized one with ``requires_grad=False``.
        requires_grad: whether gradients are wanted.

    Returns:
        A new Array over a contiguous copy; ``x`` does not change with it.

    Raises:
        DTypeError: no Array, or gradients wanted of a dtype that is not floating.

    Example:
        >>> import nvfp as nf
        >>> w = nf.parameter(nf.ones((2,), device="cpu"))
        >>> version = w.storage.version
        >>> with nf.no_grad():
        ...     w -= 0.5
        >>> w.storage.version - version, w.requires_grad
        (1, True)
    """
    if not isinstance(x, Array):
        raise DTypeError(message("parameter", "an Array", type(x).__name__, "convert it with nf.asarray"))
    if requires_grad and not x._differentiable:  # before the copy
        raise DTypeError(message("parameter", "a floating dtype", x.dtype, "pass requires_grad=False"))
    made = x._own()
    made.is_parameter = True
    made.requires_grad = requires_grad
    return made
