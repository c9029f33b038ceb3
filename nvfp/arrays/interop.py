"""How other libraries meet an Array: NumPy's protocols, DLPack, repr, pickle and copy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from nvfp.arrays import dlpack
from nvfp.arrays.habits import STANDARD
from nvfp.arrays.printing import format_array
from nvfp.arrays.registry import find, nf
from nvfp.autograd.tape import Leaf, Node
from nvfp.dtypes.casting import can_cast
from nvfp.dtypes.dense import float32
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.promotion import result_type
from nvfp.errors import DTypeError, GradientError, message

if TYPE_CHECKING:
    from nvfp.arrays.array import Array

# NumPy's functions that read no values: they work on every device, with history too.
_SHAPES: dict[str, Callable[..., Any]] = {
    "shape": lambda x: x.shape,
    "ndim": lambda x: x.ndim,
    "size": lambda x: x.size,
    "iscomplexobj": lambda x: getattr(x.dtype, "kind", "") == "c" if _is_array(x) else np.iscomplexobj(x),
    "isrealobj": lambda x: getattr(x.dtype, "kind", "") != "c" if _is_array(x) else np.isrealobj(x),
    "result_type": result_type,
    "can_cast": can_cast,
}

# Methods of ufuncs -> functions.
_REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
               "logical_or": "any"}  # fmt: skip
_RUNNING = {"add": "cumulative_sum", "multiply": "cumulative_prod"}

# NumPy's functions that write into their first argument, and those that must see the memory itself.
_WRITERS = {"copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis", "at"}
_MEMORY = {"may_share_memory", "shares_memory"}

_PLACES = {"numpy": "", "numpy.linalg": "linalg.", "numpy.fft": "fft."}  # NumPy's namespaces and nf's


@cache
def _parameters(function: Callable[..., Any]) -> Signature:
    return signature(function)


def _is_array(value: Any) -> bool:
    return hasattr(type(value), "_snapshot")


def _function_of(func: Any) -> Callable[..., Any] | None:
    """The nf function of a NumPy function: by name, also in ``linalg`` and ``fft``."""
    name, room = func.__name__, func.__module__ or ""
    if room in ("numpy.linalg", "numpy.fft"):
        space = getattr(sys.modules[__name__.partition(".")[0]], room.partition(".")[2], None)
        return getattr(space, name, None)
    return find(STANDARD.get(name, name)) if room == "numpy" else None


def _fits(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether nf has every argument of a call."""
    try:
        _parameters(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _refuse_writes(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise where NumPy would write into one of our arrays behind its back."""
    outputs = kwargs.get("out", ())
    targets = [*(outputs if isinstance(outputs, tuple) else (outputs,))]
    if op.rpartition(".")[2] in _WRITERS:
        targets += args[:1]
    for target in targets:
        if _is_array(target):
            fixed = isinstance(target.dtype, QuantDType)
            do = "write y = x.astype(nf.float32) and change that" if fixed else "write x[...] = values, or y = f(x)"
            got = "an immutable quantized array" if fixed else "an nvfp Array"
            raise DTypeError(message(f"numpy.{op}", "a NumPy array to write into", got, do))


def _to_numpy(value: Any, op: str) -> Any:
    """NumPy arrays in place of Arrays, for functions nf does not have; float32 for what NumPy would add up wrongly."""
    if type(value) in (list, tuple):
        return type(value)(_to_numpy(v, op) for v in value)
    if not _is_array(value):
        return value
    if str(value.device) != "cpu":
        raise DTypeError(message(f"numpy.{op}", "CPU arrays", value.device, "move it with x.to_device('cpu') first"))
    if value.requires_grad:
        raise DTypeError(message(f"numpy.{op}", "arrays without history", "requires_grad=True", "use x.detach() first"))
    if op in _MEMORY or isinstance(value.dtype, QuantDType) or value.dtype.isbuiltin == 1:
        return np.asarray(value)
    return np.asarray(nf.astype(value, float32))


def _by_numpy(func: Any, op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(*[_to_numpy(a, op) for a in args], **{k: _to_numpy(v, op) for k, v in kwargs.items()})


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
        """The nf function of that name; else NumPy's own loop over CPU arrays without history, giving NumPy arrays."""
        name = ufunc.__name__
        own = getattr(np, name, None) is ufunc  # not another library's of the same name
        if method == "__call__":
            function = find(STANDARD.get(name, name)) if own else None
            if function is not None and not kwargs:
                return function(*inputs)
        else:
            table = {"reduce": _REDUCTIONS, "accumulate": _RUNNING}.get(method, {})
            function = find(table[name]) if own and name in table else None
            given = {"axis": 0, **{k: v for k, v in kwargs.items() if k != "out" or v != (None,)}}
            if function is not None and len(inputs) == 1 and _fits(function, inputs, given):
                return function(*inputs, **given)
            name = f"{name}.{method}"
        _refuse_writes(name, inputs, kwargs)
        return _by_numpy(ufunc if method == "__call__" else getattr(ufunc, method), name, inputs, kwargs)

    def __array_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """The nf function of that name; else NumPy's own over CPU arrays without history, giving what NumPy gives."""
        if not all(issubclass(t, Interop | np.ndarray) for t in types):
            return NotImplemented
        name = func.__name__
        if name in _SHAPES and not kwargs and (len(args) == 1 or name in ("result_type", "can_cast")):
            return _SHAPES[name](*args)
        function = _function_of(func)
        if function is not None and _fits(function, args, kwargs):
            return function(*args, **kwargs)
        _refuse_writes(name, args, kwargs)
        return _by_numpy(func, name, args, kwargs)

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
