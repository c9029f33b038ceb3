"""Makers of elementwise functions from a kernel op and gradient rules.

A rule is a function of the output's gradient ``g`` and of what it names: the inputs ``x``, ``y`` and
the output ``out``; only these are saved. It is written with nf functions, so it can be
differentiated again, and its result is fitted to the input (broadcast axes summed, dtype restored).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, fresh, wrap
from nvfp.arrays.functions._common import COMPLEX, HALVES, array, complex_error, fit, like, promoted, raw_of, widened
from nvfp.arrays.functions._quiet import quiet
from nvfp.arrays.registry import public
from nvfp.autograd.tape import Output, needs_grad, record
from nvfp.dtypes.dense import bool as bool_, float32, float64
from nvfp.errors import GradientError, message
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.elementwise_table import OPS

Rule = Callable[..., Any]

# Small CPU arrays of one float dtype skip the kernel contract: the ufunc that the kernel runs gives the same bits.
_SMALL = 4096
_FLOATS = (float32, float64)
_EXACT_INT = 1 << 24  # Python integers up to here are the same number in every dtype of `_FLOATS`
_ndarray = np.ndarray


def _example(name: str, op: str, arguments: int) -> str:
    """Two elements through NumPy's function of the op, as a doctest (tests run it)."""
    row = OPS[op]
    floating = "f" in row.kinds
    rows: list[list[Any]] = [[0.25, 0.5], [0.5, 0.25]] if floating else [[1, 2], [3, 1]]
    if name == "acosh":
        rows[0] = [1.5, 2.0]
    values = [np.array(r, np.float32 if floating else np.int64) for r in rows[:arguments]]
    out = np.empty(2, np.bool_ if row.result == "bool" else values[0].dtype)
    row.numpy(*values, out=out)
    shown = ", ".join(f'nf.asarray({r}, device="cpu")' for r in rows[:arguments])
    return f">>> nf.{name}({shown}).tolist()\n        {out.tolist()}"


def _document(function: Any, name: str, op: str, formula: str, arguments: str, result: str) -> None:
    function.__name__ = function.__qualname__ = name
    count = len(arguments.split())
    shown = formula if any(word in formula for word in ("the ", "whether ", "with")) else f"``{formula}``"
    function.__doc__ = f"""Return {shown}, element by element.

    Args:
        {arguments}: {"Arrays" if count > 1 else "Array"} (NumPy arrays count as CPU arrays) or scalars.

    Returns:
        An Array of the {"broadcast shape" if count > 1 else "shape of x"}{result}.

    Raises:
        ShapeError: shapes that do not broadcast.
        DTypeError: a kind of dtype that the function does not take.
        DeviceError: arrays on different devices.

    Numerics:
        16-bit and narrower floats compute in float32 and are rounded once (`nvfp.kernels.elementwise`).

    Example:
        >>> import nvfp as nf
        {_example(name, op, count)}
    """


_VALUES = ("x", "y", "out")


def _names(rule: Rule | None) -> tuple[str, ...]:
    return tuple(signature(rule).parameters)[1:] if rule else ()


def _caller(rule: Rule | None) -> Callable[[Any, Sequence[Any]], Any]:
    """``rule(g, ...)`` as a function of ``g`` and (x, y, out): each gets what it names, by position."""
    if rule is None:
        return lambda g, values: None
    places = [_VALUES.index(name) for name in _names(rule)]
    if not places:
        return lambda g, values: rule(g)
    if len(places) == 1:
        only = places[0]
        return lambda g, values: rule(g, values[only])
    return lambda g, values: rule(g, *[values[place] for place in places])


def _is_bool(op: str) -> bool:
    return OPS[op].result == "bool"


def _power(a: Any, b: Any) -> Any:
    """``np.power`` with one exponent for all, but not 0.5, for which the kernel has a case of its own."""
    if type(b) is _ndarray or b == 0.5:
        raise ValueError
    return np.power(a, b)


def _ufunc(op: str) -> Any:
    row = OPS[op]
    if op == "power":
        return _power
    return row.numpy if isinstance(row.numpy, np.ufunc) and "f" in row.kinds and row.narrow else None


def _direct(ufunc: Any, x: Any, y: Any) -> Any:
    """``ufunc(x, y)`` for small CPU arrays of one native float dtype (or a number beside one), else None."""
    if type(x) is not Array:
        return None
    dtype, a = x.dtype, x.raw
    if type(y) is Array:
        b = y.raw
        if y.dtype is not dtype or type(b) is not _ndarray or b.size > _SMALL:
            return None
    elif type(y) is float or (type(y) is int and -_EXACT_INT <= y <= _EXACT_INT):
        b = y
    else:
        return None
    if (dtype is not float32 and dtype is not float64) or type(a) is not _ndarray or a.size > _SMALL:
        return None
    try:
        return quiet.run(ufunc, a, b)
    except (ValueError, RuntimeError):  # shapes that do not broadcast (the contract says so); a context in use
        return None


def unary(
    name: str, formula: str, rule: Rule | None = None, *, wide: bool = False, op: str = ""
) -> Callable[[Any], Array]:
    """Make ``f(x)``.

    Args:
        name: public name.
        formula: for the documentation.
        rule: ``rule(g, x, out)`` or less; None for functions without a gradient.
        wide: a rule of several steps: 16-bit floats go through it in float32.
        op: name of the kernel's op where it is another one.
    """
    kernel = op or name
    ufunc, call = _ufunc(kernel), _caller(rule)
    keep_x, keep_out = "x" in _names(rule), "out" in _names(rule)

    def vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
        if wide and g.dtype in HALVES:
            g, *saved = widened(g, *saved)  # type: ignore[assignment]
        dx = call(g, (saved[0], None, saved[1]))
        return (None if dx is None else fit(dx, saved[2]),)

    def function(x: Any, /) -> Array:
        y = None
        if ufunc is not None and type(x) is Array and x.dtype in _FLOATS:
            raw = x.raw
            if type(raw) is _ndarray and raw.size <= _SMALL:
                try:
                    y = fresh(quiet.run(ufunc, raw))
                except RuntimeError:  # a context in use
                    y = None
        if y is None:
            x = array(name, x)
            y = wrap(elementwise(kernel, x.raw))
        if x._node is not None and rule is not None:
            saved = (x if keep_x else None, Output(y) if keep_out else None, like(x))
            y._node = record(name, (x,), vjp, saved, differentiable_twice=True)
            if x.dtype.kind == "c" and y._node is not None and name not in COMPLEX:
                raise complex_error(name, x.dtype)
        return y

    if _is_bool(kernel):
        result = ", bool"
    else:
        result = " in the dtype of x" + (" (float32 for integers)" if OPS[kernel].result == "float" else "")
    _document(function, name, kernel, formula, "x", result)
    return public(function)


def binary(
    name: str, formula: str, rule_x: Rule | None = None, rule_y: Rule | None = None, *, wide: bool = False, op: str = ""
) -> Callable[[Any, Any], Array]:
    """Make ``f(x, y)``; arguments as in `unary`, with one rule ``rule(g, x, y, out)`` per input."""
    kernel = op or name
    to_bool, to_float, ufunc = _is_bool(kernel), OPS[kernel].result == "float", _ufunc(kernel)
    call_x, call_y = _caller(rule_x), _caller(rule_y)
    refused = rule_x is None and rule_y is None and not to_bool and "f" in OPS[kernel].kinds
    # which of (x, y, out) to save, by whether x and whether y is tracked
    keep = {
        (tx, ty): tuple(
            name in (_names(rule_x) if tx else ()) or name in (_names(rule_y) if ty else ()) for name in _VALUES
        )
        for tx in (False, True)
        for ty in (False, True)
    }

    def vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
        if wide and g.dtype in HALVES:
            g, *saved = widened(g, *saved)  # type: ignore[assignment]
        dx = call_x(g, saved) if needs[0] else None
        dy = call_y(g, saved) if needs[1] else None
        return None if dx is None else fit(dx, saved[3]), None if dy is None else fit(dy, saved[4])

    def function(x: Any, y: Any, /) -> Array:
        raw = None if ufunc is None else _direct(ufunc, x, y)
        if raw is not None:
            out = fresh(raw)
            if x._node is None and (type(y) is not Array or y._node is None):
                return out
        else:
            (x, y), dtype = promoted(name, x, y)
            if to_bool:
                dtype = bool_
            elif to_float and dtype.kind in "iub":
                dtype = float32
            out = wrap(elementwise(kernel, raw_of(x), raw_of(y), dtype=dtype))
        if rule_x is None and rule_y is None:
            if refused and needs_grad(x, y):
                do = "use x.detach(), or work inside nf.no_grad()"
                raise GradientError(
                    message(name, "arrays without history (it has no gradient)", "requires_grad=True", do)
                )
            return out
        tracked = (getattr(x, "_node", None) is not None, getattr(y, "_node", None) is not None)
        if tracked[0] or tracked[1]:
            keep_x, keep_y, keep_out = keep[tracked]
            saved = (x if keep_x else None, y if keep_y else None, Output(out) if keep_out else None, like(x), like(y))
            out._node = record(name, (x, y), vjp, saved, differentiable_twice=True)
            if out.dtype.kind == "c" and out._node is not None and name not in COMPLEX:
                raise complex_error(name, out.dtype)
        return out

    result = (
        ", bool"
        if to_bool
        else " and of the dtype `nf.result_type(x, y)`" + (" (float32 for integers)" if to_float else "")
    )
    _document(function, name, kernel, formula, "x, y", result)
    return public(function)
