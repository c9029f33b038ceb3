"""The functions of `nf.fft`: transforms along one axis and over several, frequencies, shifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import any_array, axis_tuple, integer, real
from nvfp.arrays.functions._fourier import OTHER, Norm, half, places, read, run, transform, whole
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf
from nvfp.autograd.tape import needs_grad
from nvfp.dtypes.dense import as_dtype, float32
from nvfp.errors import DTypeError, ShapeError, message

_LAST = (-2, -1)
_ABOUT = """

    Args:
        x: {takes}; integers and 16-bit floats count as float32.
        {lengths}
        {axes}
        norm: where the factor 1/n goes: ``"backward"`` into the inverse transform, ``"forward"`` into the forward
            one, ``"ortho"`` its root into both.

    Returns:
        {gives}.

    Raises:
        ShapeError: an axis out of range, or a length below 1.
        ArgumentError: another ``norm``.

    Notes:
        Variables are real: a gradient passes through complex values to a real one. On CUDA nothing waits.

    Example:
        >>> import nvfp as nf
        >>> nf.fft.{name}(nf.ones({shape}, device="cpu")).shape
        {result}
    """
_KINDS = {
    "fft": ("the discrete Fourier transform", "Array", "Complex Array"),
    "ifft": ("the inverse discrete Fourier transform", "Array", "Complex Array"),
    "rfft": ("the first half of the discrete Fourier transform of real values", "real Array",
             "Complex Array with length n // 2 + 1 along the last transformed axis"),
    "irfft": ("the real values whose transform begins like this: the inverse of the real transform", "Array",
              "Real Array of length n, by default 2 * (m - 1) for m elements, along the last transformed axis"),
    "hfft": ("the real transform of values that are Hermitian, given by their first half", "Array",
             "Real Array of length n, by default 2 * (m - 1) for m elements"),
    "ihfft": ("the inverse of `hfft`", "real Array", "Complex Array with length n // 2 + 1"),
}  # fmt: skip


def _document(function: Callable[..., Any], name: str) -> None:
    stem = name.rstrip("n2")
    several = name != stem
    what, takes, gives = _KINDS[stem]
    shape = (4, 4) if several else (4,)
    last = {"rfft": 3, "ihfft": 3, "irfft": 6, "hfft": 6}.get(stem, 4)
    lengths = "s: lengths along the axes: " if several else "n: length along the axis: "
    lengths += "the input is cut or filled up with zeros to it; by default its own."
    default = "the last two" if name.endswith("2") else "the last ones, one per length of ``s``, or all"
    axes = f"axes: which axes; by default {default}." if several else "axis: which axis."
    where = " over several axes" if several else " along an axis"
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return {what},{where}." + _ABOUT.format(
        takes=takes, gives=gives, lengths=lengths, axes=axes, name=name, shape=shape, result=(*shape[:-1], last)
    )


def _real(op: str, x: Array) -> Array:
    if x.dtype.kind == "c":
        raise DTypeError(message(op, "real values", x.dtype, "use nf.fft.fft, or take nf.real(x)"))
    return x


def _inverse_length(lengths: tuple[int, ...], axes: tuple[int, ...], s: Any, x: Array) -> tuple[int, ...]:
    """The lengths of a real inverse: that of the last axis by default from half of the frequencies."""
    if s is not None or not axes:
        return lengths
    last = 2 * (x.shape[axes[-1]] - 1)
    if last < 1:
        do = "pass the length of the result"
        raise ShapeError(message("fft.irfft", "two frequencies or more", f"shape {x.shape}", do))
    return (*lengths[:-1], last)


def _over(op: str, kind: str, x: Any, s: Any, axes: Any, norm: Any) -> Array:
    x, norm = read(op, x, norm)
    lengths, found = places(op, x, s, axes)
    if kind in ("fft", "ifft"):
        return transform(x, lengths, found, norm, kind == "ifft")
    if not found:
        raise ShapeError(message(op, "at least one axis", f"shape {x.shape}", "pass axes="))
    if kind == "irfft":
        lengths = _inverse_length(lengths, found, s, x)
    x = _real(op, x) if kind == "rfft" else x
    if not needs_grad(x):
        return wrap(run(f"{kind}n", x.raw, lengths, found, norm))
    rest, others = lengths[:-1], found[:-1]
    if kind == "rfft":
        y = half(x, lengths[-1], found[-1], norm)
        return transform(y, rest, others, norm, False) if others else y
    return whole(transform(x, rest, others, norm, True) if others else x, lengths[-1], found[-1], norm)


def _along(kind: str) -> Callable[..., Array]:
    """Make a transform along one axis."""

    def function(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
        op = f"fft.{kind}"
        s = None if n is None else (integer(op, "n", n),)
        if kind == "hfft":
            return _over(op, "irfft", nf.conj(x), s, (axis,), OTHER.get("backward" if norm is None else norm, norm))
        if kind == "ihfft":
            return nf.conj(_over(op, "rfft", x, s, (axis,), OTHER.get("backward" if norm is None else norm, norm)))
        return _over(op, kind, x, s, (axis,), norm)

    _document(function, kind)
    return explained(function)


def _several(name: str) -> Callable[..., Array]:
    """Make a transform over several axes; NumPy's ``fft2`` and its kin are those over the last two."""
    kind, plane = name[:-1], name.endswith("2")

    def function(
        x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = _LAST if plane else None,
        norm: Norm = "backward",
    ) -> Array:  # fmt: skip
        return _over(f"fft.{name}", kind, x, s, axes, norm)

    _document(function, name)
    return explained(function)


fft, ifft, rfft, irfft, hfft, ihfft = map(_along, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fftn, ifftn, rfftn, irfftn = map(_several, ("fftn", "ifftn", "rfftn", "irfftn"))
fft2, ifft2, rfft2, irfft2 = map(_several, ("fft2", "ifft2", "rfft2", "irfft2"))


def _frequencies(op: str, values: np.ndarray, n: Any, d: Any, dtype: Any, device: Any) -> Array:
    target = float32 if dtype is None else as_dtype(dtype)
    if not isinstance(target, np.dtype) or target.kind not in "fV":
        raise DTypeError(message(op, "a floating dtype", target, "pass e.g. dtype=nf.float32"))
    return nf.astype(nf.asarray(values / (n * real(op, d)), device=device), target, copy=False)


def _count(op: str, n: Any) -> int:
    count: int = integer(op, "n", n)
    if count < 1:
        raise ShapeError(message(op, "n >= 1", count, "pass the length of the transform"))
    return count


@explained
def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of a transform: 0, 1, ..., then the negative ones from the lowest, divided by ``n * d``.

    Args:
        n: length of the transform.
        d: distance of the samples.
        dtype: of the result, floating; float32 by default.
        device: where it goes.

    Returns:
        [n].

    Raises:
        ShapeError: ``n`` below 1.
        DTypeError: a dtype that is not floating.

    Example:
        >>> import nvfp as nf
        >>> nf.fft.fftfreq(4, device="cpu")
        nf.array([ 0.  ,  0.25, -0.5 , -0.25])
    """
    n = _count("fft.fftfreq", n)
    places = np.arange(n, dtype=np.float64)
    return _frequencies("fft.fftfreq", places - n * (places >= (n + 1) // 2), n, d, dtype, device)


@explained
def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of a real transform: 0, 1, ..., ``n // 2``, divided by ``n * d``.

    Args:
        n: length of the transform.
        d: distance of the samples.
        dtype: of the result, floating; float32 by default.
        device: where it goes.

    Returns:
        [n // 2 + 1].

    Raises:
        ShapeError: ``n`` below 1.
        DTypeError: a dtype that is not floating.

    Example:
        >>> import nvfp as nf
        >>> nf.fft.rfftfreq(4, device="cpu")
        nf.array([0.  , 0.25, 0.5 ])
    """
    n = _count("fft.rfftfreq", n)
    return _frequencies("fft.rfftfreq", np.arange(n // 2 + 1, dtype=np.float64), n, d, dtype, device)


def _shifted(op: str, x: Any, axes: Any, back: bool) -> Array:
    x = any_array(op, x)
    found = tuple(range(x.ndim)) if axes is None else axis_tuple(op, axes, x.ndim)
    by = tuple((-(x.shape[a] // 2) if back else x.shape[a] // 2) for a in found)
    return nf.roll(x, by, axis=found)


@explained
def fftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return frequencies in ascending order: 0 goes to the middle.

    Args:
        x: Array.
        axes: which axes; None: all.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import nvfp as nf
        >>> nf.fft.fftshift(nf.asarray([0, 1, -2, -1], device="cpu"))
        nf.array([-2, -1,  0,  1])
    """
    return _shifted("fft.fftshift", x, axes, False)


@explained
def ifftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return frequencies in the order of a transform: what undoes `fftshift`.

    Args:
        x: Array.
        axes: which axes; None: all.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import nvfp as nf
        >>> nf.fft.ifftshift(nf.asarray([-2, -1, 0, 1], device="cpu"))
        nf.array([ 0,  1, -2, -1])
    """
    return _shifted("fft.ifftshift", x, axes, True)
