"""What the functions share: reading operands, fitting gradients to inputs, recording dense rules."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.deferred import Deferred
from nvfp.arrays.registry import nf
from nvfp.autograd.tape import Node, Vjp, record
from nvfp.dtypes.dense import bfloat16, float16, float32, is_narrow
from nvfp.dtypes.promotion import result_type
from nvfp.errors import AxisError, DeviceError, DTypeError, GradientError, message

SCALARS = (bool, int, float, complex)
HALVES = (bfloat16, float16)
Axes = tuple[int, ...]
_INT = {int}

# Functions whose rules are right for complex arrays too. Variables are real, but what is computed from them may be
# complex on the way to a real result (nf.fft). The gradient of complex z = a + ib is dL/da + i dL/db, so the rule of
# a linear map is its adjoint, and the gradient of a real input is the real part.
COMPLEX = frozenset((
    "abs", "add", "astype", "broadcast_to", "concat", "conj", "copy", "divide", "exp", "expand_dims", "fft.fft",
    "fft.irfft", "fft.rfft", "flip", "getitem", "imag", "matmul", "mean", "multiply", "negative", "pad",
    "permute_dims", "positive", "real", "reciprocal", "reshape", "scatter", "square", "squeeze", "subtract", "sum",
    "to_device", "where",
))  # fmt: skip


def operand(op: str, x: Any) -> Any:
    """Return an argument as a dense Array, or as the scalar it is.

    Quantized and narrow arrays become float32. NumPy arrays count as CPU arrays.

    Raises:
        DTypeError: a list, or anything else that is no array.
    """
    if type(x) is Array and x.dtype is x.raw.dtype:
        return x
    if isinstance(x, Array):
        return x.settled() if type(x) is Deferred else nf.astype(x, float32)
    if isinstance(x, (*SCALARS, np.generic)):
        return x
    if isinstance(x, np.ndarray):
        return nf.asarray(x, device="cpu")
    raise DTypeError(message(op, "arrays or scalars", type(x).__name__, "convert it with nf.asarray"))


def array(op: str, x: Any) -> Array:
    """Return an argument as a dense Array (scalars too)."""
    x = operand(op, x)
    return x if type(x) is Array else nf.asarray(x)


def promoted(op: str, *args: Any) -> tuple[tuple[Any, ...], np.dtype]:
    """Return operands and the dtype they compute to; arrays must share a device.

    Raises:
        DeviceError: arrays on different devices.
    """
    found = tuple([operand(op, x) for x in args])
    arrays = [x for x in found if type(x) is Array]
    if not arrays:
        found = arrays = tuple([nf.asarray(x) for x in found])  # type: ignore[assignment]
    first = arrays[0]
    for x in arrays[1:]:
        if x.device is not first.device:
            do = "move one with x.to_device(...)"
            raise DeviceError(message(op, "operands on one device", f"{first.device} and {x.device}", do))
    # the dtypes as they came: quantized and narrow ones count as a Python float
    dtypes = [given.dtype if isinstance(given, Array) else x for given, x in zip(args, found, strict=True)]
    if len(arrays) == len(found) and all(d is first.dtype for d in dtypes):
        return found, first.dtype
    return found, result_type(*dtypes)


def any_array(op: str, x: Any) -> Array:
    """Return an argument as an Array of any kind: for functions that move elements without reading them."""
    return x if isinstance(x, Array) else array(op, x)


def raw_of(x: Any) -> Any:
    """The raw array of an Array; a scalar is itself."""
    return x.raw if type(x) is Array else x


def dense(
    name: str, inputs: Sequence[Any], vjp: Vjp, saved: Iterable[Any] = (), outputs: int = 1, *, twice: bool = True
) -> Node | None:
    """Record a rule that is written with recorded functions, so that it can be differentiated again (if ``twice``).

    Raises:
        GradientError: a complex input, if the rule is for real ones.
    """
    node = record(name, inputs, vjp, saved, outputs=outputs, differentiable_twice=twice)
    if node is not None:
        for x in inputs:
            if isinstance(x, Array) and getattr(x.dtype, "kind", "") == "c" and name not in COMPLEX:
                raise complex_error(name, x.dtype)
    return node


def complex_error(name: str, dtype: Any) -> GradientError:
    """The error of a rule that is for real arrays, where a complex one came on the way to a variable."""
    do = "take nf.real, nf.imag or nf.abs first, or detach it"
    return GradientError(message(name, "real arrays where gradients are wanted", dtype, do))


def view(x: Array, raw: Any, node: Node | None) -> Array:
    """An Array over part of the memory of ``x``."""
    return wrap(raw, x.dtype, node, 0, x._storage or x.storage)


def like(x: Any) -> tuple[tuple[int, ...], Any] | None:
    """Shape and dtype that a gradient for ``x`` must have (float32 for storage dtypes); None for a scalar."""
    if type(x) is Array and x.dtype is x.raw.dtype:
        return x.shape, x.dtype
    return (x.shape, float32) if isinstance(x, Array) else None


def fit(gradient: Array, target: tuple[tuple[int, ...], Any]) -> Array:
    """Sum a gradient over the axes that broadcasting added or stretched, and give it its input's dtype."""
    shape, dtype = target
    if gradient.shape != shape:
        added = len(gradient.shape) - len(shape)
        stretched = [added + i for i, n in enumerate(shape) if n == 1 and gradient.shape[added + i] != 1]
        gradient = nf.reshape(nf.sum(gradient, axis=(*range(added), *stretched)), shape)
    if gradient.dtype is dtype:
        return gradient
    return nf.astype(nf.real(gradient) if gradient.dtype.kind == "c" and dtype.kind != "c" else gradient, dtype)


def conjugate(x: Any) -> Any:
    """The conjugate of a complex Array or scalar; a real one is itself."""
    if type(x) is Array:
        return nf.conj(x) if x.dtype.kind == "c" else x
    return x.conjugate() if isinstance(x, complex) else x


def widened(*values: Any) -> tuple[Any, ...]:
    """16-bit arrays as float32: rules with several steps round once at their end."""
    return tuple(nf.astype(v, float32) if isinstance(v, Array) and v.dtype in HALVES else v for v in values)


def axis_tuple(op: str, axis: Any, ndim: int) -> Axes:
    """Return axes counted from the front, in the given order.

    Raises:
        AxisError: (a ShapeError and an IndexError) an axis out of range, or twice.
    """
    axes = integers(op, "axis", axis)
    if any(not -ndim <= a < ndim for a in axes) or len({a % ndim for a in axes}) != len(axes):
        raise AxisError(message(op, f"different axes of {ndim} dimensions", axis, "count from -ndim to ndim - 1"))
    return tuple(a % ndim for a in axes)


def one_axis(op: str, axis: Any, ndim: int) -> int:
    """Return one axis counted from the front."""
    return axis_tuple(op, (integer(op, "axis", axis),), ndim)[0]


def integer(op: str, name: str, value: Any) -> int:
    """Return an integer argument (Python, NumPy or a 0-d integer Array) as an int.

    Raises:
        DTypeError: a bool, a float, or no number.
    """
    if type(value) is int:
        return value
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise DTypeError(message(op, f"{name} in whole numbers", repr(value), "pass an int")) from None


def integers(op: str, name: str, value: Any) -> tuple[int, ...]:
    """Return one integer, or a sequence of them, as a tuple of ints.

    Raises:
        DTypeError: an entry that is no integer.
    """
    kind = type(value)
    if kind is int:
        return (value,)
    if kind is tuple and {*map(type, value)} <= _INT:
        return value  # type: ignore[no-any-return]
    if isinstance(value, str) or not hasattr(value, "__iter__") or getattr(value, "shape", None) == ():
        return (integer(op, name, value),)
    return tuple([integer(op, name, n) for n in value])


def is_storage(dtype: Any) -> bool:
    """Whether a dtype only stores values (quantized, narrow): gradients of such arrays are float32."""
    return not isinstance(dtype, np.dtype) or is_narrow(dtype)


def real(op: str, value: Any) -> Any:
    """Return a real scalar (Python, NumPy or a 0-d array) as a Python number.

    Raises:
        DTypeError: anything else.
    """
    value = value.item() if getattr(value, "shape", None) == () else value
    if not isinstance(value, int | float):
        raise DTypeError(message(op, "real numbers", repr(value), "pass ints or floats"))
    return value
