"""`pad`: borders of one value, or of the array's own elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array, dense, integers
from nvfp.arrays.functions.joining import fill
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf, public
from nvfp.errors import ArgumentError, ShapeError, message

Pairs = tuple[tuple[int, ...], ...]
_MODES: tuple[Any, ...] = ("constant", "edge", "reflect", "symmetric", "wrap")


def _pad_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    return (nf.getitem(g, saved[0]),)


@public
@explained
def pad(x: Any, widths: int | Sequence[Any], /, mode: str = "constant", *, constant_values: float = 0) -> Array:
    """Return ``x`` with a border.

    Args:
        x: Array.
        widths: ``(before, after)`` per axis; one pair or one int serves every axis.
        mode: what the border holds: ``"constant"``; ``"edge"``, the outermost element; ``"reflect"`` and
            ``"symmetric"``, the array mirrored without and with it; ``"wrap"``, the array again.
        constant_values: the value of mode ``"constant"``, one for all borders.

    Returns:
        An Array of the dtype of ``x``. The gradient of a repeated element is the sum over its places.

    Raises:
        ShapeError: negative widths, another number of pairs than axes, or an empty axis to repeat.
        ArgumentError: another mode.

    Example:
        >>> import nvfp as nf
        >>> nf.pad(nf.ones((2,), device="cpu"), (1, 2))
        nf.array([0., 1., 1., 0., 0.])
        >>> nf.pad(nf.arange(3, device="cpu"), 2, mode="reflect")
        nf.array([2, 1, 0, 1, 2, 1, 0])
    """
    x = array("pad", x)
    pairs = _pairs(widths, x.ndim)
    if mode not in _MODES:
        raise ArgumentError(message("pad", f"mode out of {_MODES}", repr(mode), "pick one"))
    if mode != "constant":
        return _repeated(x, pairs, mode)
    shape = tuple(n + a + b for n, (a, b) in zip(x.shape, pairs, strict=True))
    inner = tuple(slice(a, a + n) for n, (a, _) in zip(x.shape, pairs, strict=True))
    out = nf.full(shape, constant_values, dtype=x.dtype, device=x.device).raw
    fill(out[(*inner, ...)], x.raw)
    return wrap(out, node=dense("pad", (x,), _pad_vjp, (inner,)))


def _pairs(widths: Any, ndim: int) -> Pairs:
    given = widths.tolist() if isinstance(widths, np.ndarray | np.generic) else widths
    if isinstance(given, list | tuple) and all(isinstance(w, list | tuple) for w in given):
        pairs = tuple(integers("pad", "widths", w) for w in given)
        pairs = pairs * ndim if len(pairs) == 1 else pairs
    else:
        pairs = (integers("pad", "widths", given) * (2 if np.ndim(given) == 0 else 1),) * ndim
    if len(pairs) != ndim or any(len(w) != 2 or min(w) < 0 for w in pairs):
        raise ShapeError(message("pad", f"{ndim} pairs of widths >= 0", widths, "give (before, after) per axis"))
    return pairs


def _repeated(x: Array, pairs: Pairs, mode: Any) -> Array:
    """NumPy pads the positions of each axis; the elements follow."""
    for axis, (n, pair) in enumerate(zip(x.shape, pairs, strict=True)):
        if n == 0 and any(pair):
            raise ShapeError(message("pad", "an element to repeat", f"{x.shape}", "pass mode='constant'"))
        if any(pair):
            x = nf.take(x, np.pad(np.arange(n), pair, mode).tolist(), axis=axis)
    return x if any(map(any, pairs)) else nf.copy(x)
