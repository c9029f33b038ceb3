"""What `nf.fft` is made of: three transforms with gradient rules. NumPy (pocketfft) and CuPy (cuFFT) compute."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any, Literal

import numpy as np

from nvfp.arrays.array import Array, device_of, wrap
from nvfp.arrays.creation import empty_raw
from nvfp.arrays.functions._common import array, axis_tuple, dense, fit, integers, like
from nvfp.arrays.functions._library import library
from nvfp.arrays.registry import nf
from nvfp.dtypes.dense import float32
from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.kernels._dispatch import kind_of

Norm = Literal["backward", "ortho", "forward"]
OTHER: dict[str, Norm] = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def run(name: str, raw: Any, lengths: tuple[int, ...], axes: tuple[int, ...], norm: str) -> Any:
    """Return ``fft.name`` of the library."""
    # CuPy transforms no empty arrays: NumPy tells the shape of the result
    if raw.size == 0 and kind_of(raw) == "cuda":
        found = run(name, np.empty(raw.shape, raw.dtype), lengths, axes, norm)
        return empty_raw(found.shape, found.dtype, device_of(raw))
    function = getattr(import_module(library(raw).__name__ + ".fft"), name)
    with raw.device if kind_of(raw) == "cuda" else nullcontext():
        return function(raw, s=lengths, axes=axes, norm=norm)


def read(op: str, x: Any, norm: Any) -> tuple[Array, Norm]:
    """Return a floating or complex Array and the normalization (None: NumPy's default).

    Raises:
        ArgumentError: another ``norm``.
    """
    norm = "backward" if norm is None else norm
    if norm not in OTHER:
        raise ArgumentError(message(op, f"norm out of {tuple(OTHER)}", repr(norm), "name one of these"))
    x = array(op, x)
    if x.dtype.kind in "iub" or x.dtype.itemsize == 2:
        x = nf.astype(x, float32)
    return x, norm


def places(op: str, x: Array, s: Sequence[int] | None, axes: Sequence[int] | None) -> tuple[Any, tuple[int, ...]]:
    """Return lengths (None per axis: its own) and axes of a transform.

    Raises:
        ShapeError: axes out of range, a length below 1, or another number of lengths than axes.
    """
    if axes is None:
        count = x.ndim if s is None else len(s)
        axes = tuple(range(x.ndim - count, x.ndim))
    found = axis_tuple(op, axes, x.ndim)
    lengths = tuple(x.shape[a] for a in found) if s is None else integers(op, "s", s)
    if len(lengths) != len(found) or min(lengths, default=1) < 1:
        got = f"lengths {lengths} for axes {found} of shape {x.shape}"
        raise ShapeError(message(op, "one length >= 1 per axis", got, "pass s= or n="))
    return lengths, found


def _resized(x: Array, shape: tuple[int, ...]) -> Array:
    """Cut at the ends, or with zeros there."""
    if x.shape == shape:
        return x
    x = x[tuple(slice(0, n) for n in shape)]
    return nf.pad(x, [(0, n - m) for n, m in zip(shape, x.shape, strict=True)])


def _complex_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    axes, norm, inverse, target = saved
    y = transform(g, tuple(g.shape[a] for a in axes), axes, OTHER[norm], not inverse)
    return (fit(_resized(y, target[0]), target),)


def transform(x: Array, lengths: tuple[int, ...], axes: tuple[int, ...], norm: Norm, inverse: bool) -> Array:
    """Return the complex transform, forward or inverse, over axes."""
    if not axes:
        return nf.astype(x, np.result_type(x.dtype, np.complex64))
    raw = run("ifftn" if inverse else "fftn", x.raw, lengths, axes, norm)
    return wrap(raw, node=dense("fft.fft", (x,), _complex_vjp, (axes, norm, inverse, like(x))))


def _half_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    length, axis, norm, target = saved
    whole = _resized(g, (*g.shape[:axis], length, *g.shape[axis + 1 :]))
    y = nf.real(transform(whole, (length,), (axis,), OTHER[norm], True))
    return (fit(_resized(y, target[0]), target),)


def half(x: Array, length: int, axis: int, norm: Norm) -> Array:
    """Return the first half of the transform of real values, along one axis."""
    raw = run("rfftn", x.raw, (length,), (axis,), norm)
    return wrap(raw, node=dense("fft.rfft", (x,), _half_vjp, (length, axis, norm, like(x))))


def _whole_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """Each frequency but the first (and of an even length the last) stands for two."""
    axis, norm, target = saved
    length = g.shape[axis]
    y = half(g, length, axis, OTHER[norm])
    twice = np.full(y.shape[axis], 2.0)
    twice[0] = 1.0
    if length % 2 == 0:
        twice[-1] = 1.0
    weights = nf.reshape(nf.asarray(twice, dtype=g.dtype, device=g.device), (-1,) + (1,) * (g.ndim - axis - 1))
    return (fit(_resized(y * weights, target[0]), target),)


def whole(x: Array, length: int, axis: int, norm: Norm) -> Array:
    """Return the real values whose transform has the first half ``x``, along one axis."""
    raw = run("irfftn", x.raw, (length,), (axis,), norm)
    return wrap(raw, node=dense("fft.irfft", (x,), _whole_vjp, (axis, norm, like(x))))
