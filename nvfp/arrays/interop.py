"""How other libraries meet an Array: NumPy's protocols, DLPack, repr, pickle and copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nvfp.arrays import dlpack
from nvfp.arrays.printing import format_array
from nvfp.arrays.registry import find, nf
from nvfp.autograd.tape import Leaf, Node
from nvfp.errors import DTypeError, GradientError, message

if TYPE_CHECKING:
    from nvfp.arrays.array import Array

# NumPy's name -> the array API's, where they differ.
_NAMES = {
    "absolute": "abs", "power": "pow", "float_power": "pow", "true_divide": "divide", "mod": "remainder",
    "rint": "round", "invert": "bitwise_invert", "bitwise_not": "bitwise_invert", "conjugate": "conj",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift",
    "amax": "max", "amin": "min",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip

# NumPy's functions that read no values: they work on every device, with history too.
_SHAPES: dict[str, Callable[[Any], Any]] = {
    "shape": lambda x: x.shape,
    "ndim": lambda x: x.ndim,
    "size": lambda x: x.size,
}


@cache
def _parameters(function: Callable[..., Any]) -> Signature:
    return signature(function)


def _lookup(name: str) -> Callable[..., Any] | None:
    return find(_NAMES.get(name, name))


def _to_numpy(value: Any, op: str) -> Any:
    """NumPy arrays in place of Arrays, for functions nf does not have."""
    if isinstance(value, list | tuple):
        return type(value)(_to_numpy(v, op) for v in value) if type(value) in (list, tuple) else value
    if not hasattr(type(value), "_snapshot"):
        return value
    if str(value.device) != "cpu":
        raise DTypeError(message(f"numpy.{op}", "CPU arrays", value.device, "move it with x.to_device('cpu') first"))
    if value.requires_grad:
        raise DTypeError(message(f"numpy.{op}", "arrays without history", "requires_grad=True", "use x.detach() first"))
    return np.asarray(value)


class Interop:
    """Protocols. `Array` and `QuantizedArray` have them all."""

    __slots__ = ()

    if TYPE_CHECKING:
        raw: Any
        dtype: Any
        is_parameter: bool
        _node: Any

        device: Any

        def _placed(self, node: Any, index: int = 0) -> Self: ...

    __array_priority__ = 1000

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The values as a NumPy array: the memory itself on the CPU, a copy from CUDA."""
        on_host = isinstance(self.raw, np.ndarray)
        if copy is False and not on_host:
            raise ValueError(
                message("asarray", "copy=None or True for a CUDA array", "copy=False", "let it copy to the host")
            )
        values: Any = nf.asnumpy(self)
        if dtype is not None and np.dtype(dtype) != values.dtype:
            if copy is False:
                raise ValueError(message("asarray", f"dtype {values.dtype} with copy=False", dtype, "let it copy"))
            return values.astype(dtype)  # type: ignore[no-any-return]
        return values.copy() if copy and on_host else values  # type: ignore[no-any-return]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        function = _lookup(ufunc.__name__)
        if method != "__call__" or function is None or kwargs:
            return NotImplemented
        return function(*inputs)

    def __array_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func.__name__ in _SHAPES and len(args) == 1:
            return _SHAPES[func.__name__](args[0])
        function = _lookup(func.__name__) if func.__module__ == "numpy" else None
        if function is not None:
            try:
                _parameters(function).bind(*args, **kwargs)
            except TypeError:
                function = None  # an argument that only NumPy has
        if function is not None:
            return function(*args, **kwargs)
        name = func.__name__
        return func(*(_to_numpy(a, name) for a in args), **{k: _to_numpy(v, name) for k, v in kwargs.items()})

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_of(self.raw)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """A DLPack capsule over the memory of this array, bfloat16 and fp8 too."""
        if self._node is not None:
            raise BufferError(message("dlpack", "an array without history", "requires_grad=True", "export x.detach()"))
        return dlpack.export(
            self.raw, self.dtype, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __repr__(self) -> str:
        return format_array(self)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return repr(self)

    def __copy__(self) -> Array:
        return nf.copy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if type(self._node) is Node:
            do = "copy x.detach(), or x.copy() inside the graph"
            raise GradientError(
                message("deepcopy", "a variable or an untracked array", f"a result of '{self._node.name}'", do)
            )
        made: Any = nf.copy(self._placed(None))
        made.is_parameter = self.is_parameter
        made.requires_grad = type(self._node) is Leaf
        memo[id(self)] = made
        return made  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        values: Any = nf.asnumpy(self)
        leaf = type(self._node) is Leaf
        return _unpickled, (
            np.array(values, order="C"),
            str(self.device),
            leaf,
            self.is_parameter,
        )


def _unpickled(values: np.ndarray, device: str, requires_grad: bool, is_parameter: bool) -> Array:
    x = nf.asarray(values, device=device)
    x.is_parameter = is_parameter
    x.requires_grad = requires_grad
    return x
