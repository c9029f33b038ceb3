"""Putting arrays together and apart: concat, stack, split, roll, tile, repeat."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from nvfp.arrays import blocks
from nvfp.arrays.array import Array, wrap
from nvfp.arrays.creation import empty_raw
from nvfp.arrays.functions._common import (
    any_array,
    axis_tuple,
    dense,
    fit,
    integers,
    like,
    one_axis,
    promoted,
)
from nvfp.arrays.habits import explained
from nvfp.arrays.quantized import QuantizedArray, quantized
from nvfp.arrays.registry import nf, public
from nvfp.arrays.storage import copy_into
from nvfp.errors import ArgumentError, BlockIndexError, DeviceError, DTypeError, ShapeError, message
from nvfp.kernels.elementwise import elementwise


def _concat_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> list[Any]:
    axis, bounds, targets = saved
    before = (slice(None),) * axis
    return [
        fit(nf.getitem(g, (*before, slice(a, b))), target) if need else None
        for (a, b), target, need in zip(pairwise(bounds), targets, needs, strict=True)
    ]


def several(op: str, arrays: Any) -> list[Array]:
    """Return the Arrays of a list of at least one, quantized ones as they are.

    Raises:
        DTypeError: no list or tuple.
        ShapeError: an empty one.
    """
    if not isinstance(arrays, Array | np.ndarray | list | tuple):
        raise DTypeError(message(op, "a list of arrays", type(arrays).__name__, "pass [x, y, ...]"))
    if len(arrays) == 0:
        raise ShapeError(message(op, "at least one array", "none", "pass a list of arrays"))
    return [any_array(op, x) for x in arrays]


@public
@explained
def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Array:
    """Return arrays joined along an axis they have.

    Args:
        arrays: Arrays of equal shapes but for ``axis``; dtypes promote. Quantized arrays of one dtype stay
            quantized: they join at the ends of blocks, and scales of a whole tensor must be equal in all (those in
            different memory are compared, which waits for the GPU).
        axis: where they join; None flattens them first.

    Raises:
        ShapeError: no array, shapes that do not fit, or quantized arrays that do not join without a change.

    Example:
        >>> import nvfp as nf
        >>> nf.concat([nf.zeros((2,), device="cpu"), nf.ones((1,), device="cpu")])
        nf.array([0., 0., 1.])
    """
    return _joined("concat", several("concat", arrays), axis)


def _joined(op: str, given: Sequence[Array], axis: int | None, dtype: Any = None) -> Array:
    """Arrays one behind the other: dense ones in ``dtype`` (None: promoted), or all quantized alike."""
    found = tuple(given)
    if dtype is None and not _one_format(given):
        found, dtype = promoted(op, *given)
    if axis is None:
        found, axis = tuple(nf.reshape(x, (-1,)) for x in found), 0
    place = one_axis(op, axis, found[0].ndim)
    rest = {(*x.shape[:place], *x.shape[place + 1 :]) if x.ndim == found[0].ndim else None for x in found}
    if len(rest) != 1 or found[0].ndim == 0:
        do = "make them equal on the other axes"
        raise ShapeError(message(op, f"shapes that differ on axis {place} only", [x.shape for x in found], do))
    if dtype is None:
        return _blocks_joined(op, found, place)
    bounds = [0, *accumulate(x.shape[place] for x in found)]
    shape = (*found[0].shape[:place], bounds[-1], *found[0].shape[place + 1 :])
    out = empty_raw(shape, dtype, found[0].device)
    for x, (a, b) in zip(found, pairwise(bounds), strict=True):
        fill(out[(slice(None),) * place + (slice(a, b),)], x.raw)
    node = dense("concat", found, _concat_vjp, (place, bounds, [like(x) for x in found]))
    return wrap(out, node=node)


def _one_format(given: Sequence[Array]) -> bool:
    """Whether all are quantized in one dtype; others promote to a dense one."""
    return all(isinstance(x, QuantizedArray) and x.dtype == given[0].dtype for x in given)


def _blocks_joined(op: str, found: Sequence[Any], place: int) -> QuantizedArray:
    for x in found[1:]:
        if x.device is not found[0].device:
            got = f"{found[0].device} and {x.device}"
            raise DeviceError(message(op, "operands on one device", got, "move one with x.to_device(...)"))
    axes = {x.axis for x in found}
    if len(axes) > 1 and blocks.blocked_axes(found[0].operand):
        do = f"transpose or quantize one with axis=, or {blocks.DENSE}"
        raise ShapeError(message(op, f"{found[0].dtype} arrays with one block axis", sorted(axes), do))
    bounds = [0, *accumulate(x.shape[place] for x in found)]
    node = dense("concat", found, _concat_vjp, (place, bounds, [like(x) for x in found]))
    empty = partial(empty_raw, device=found[0].device)
    return quantized(blocks.join(op, [x.operand for x in found], place, empty), node)


def fill(target: Any, source: Any) -> None:
    """Copy raw values into a part of a raw array, also complex ones."""
    if target.dtype.kind == "c":
        elementwise("copy", source, dtype=target.dtype, out=target)
    else:
        copy_into(target, source)


@public
@explained
def stack(arrays: Sequence[Any], /, axis: int = 0) -> Array:
    """Return arrays of one shape joined along a new axis.

    Args:
        arrays: Arrays of one shape; dtypes promote.
        axis: where the new axis stands in the result.

    Raises:
        ShapeError: no array, or shapes that differ.

    Example:
        >>> import nvfp as nf
        >>> nf.stack([nf.zeros((2,), device="cpu"), nf.ones((2,), device="cpu")], axis=1).shape
        (2, 2)
    """
    found = several("stack", arrays)
    if len({x.shape for x in found}) > 1:
        raise ShapeError(message("stack", "arrays of one shape", [x.shape for x in found], "broadcast them first"))
    given, dtype = (found, None) if _one_format(found) else promoted("stack", *found)
    return _joined("stack", [nf.expand_dims(x, axis) for x in given], axis, dtype)


@public
def unstack(x: Any, /, axis: int = 0) -> tuple[Array, ...]:
    """Return the parts along an axis, without it.

    Args:
        x: Array.
        axis: which axis is taken apart.

    Example:
        >>> import nvfp as nf
        >>> [part.tolist() for part in nf.unstack(nf.asarray([[1, 2], [3, 4]], device="cpu"), axis=1)]
        [[1, 3], [2, 4]]
    """
    x = any_array("unstack", x)
    before = (slice(None),) * one_axis("unstack", axis, x.ndim)
    return tuple(part("unstack", x, (*before, i)) for i in range(x.shape[len(before)]))


def part(op: str, x: Array, key: tuple[Any, ...]) -> Array:
    """Return ``x[key]``; errors bear the name of the function that asks for it."""
    try:
        return nf.getitem(x, key)
    except BlockIndexError as error:
        raise BlockIndexError(str(error).replace("[getitem]", f"[{op}]", 1)) from None


@public
@explained
def split(x: Any, sections: int | Sequence[int], /, axis: int = 0) -> list[Array]:
    """Return parts of ``x`` along an axis, as views.

    Args:
        x: Array.
        sections: number of equal parts, or the positions where parts begin (as in NumPy).
        axis: which axis.

    Raises:
        ShapeError: a length that does not divide.

    Example:
        >>> import nvfp as nf
        >>> [part.shape for part in nf.split(nf.zeros((6, 2), device="cpu"), [1, 4])]
        [(1, 2), (3, 2), (2, 2)]
    """
    return _split("split", any_array("split", x), sections, axis)


def _split(op: str, x: Array, sections: int | Sequence[int], axis: int) -> list[Array]:
    place = one_axis("split", axis, x.ndim)
    length, positions = x.shape[place], integers("split", "sections", sections)
    if isinstance(sections, int | np.integer):
        sections = positions[0]
        if sections < 1 or length % sections:
            raise ShapeError(message("split", f"a divisor of {length}", sections, "pass the positions instead"))
        bounds = [length // sections * i for i in range(sections + 1)]
    else:
        bounds = [0, *positions, length]
    return [part(op, x, (slice(None),) * place + (slice(a, b),)) for a, b in pairwise(bounds)]


@public
@explained
def roll(x: Any, /, shift: int | Sequence[int], axis: int | Sequence[int] | None = None) -> Array:
    """Return the elements shifted along axes, those beyond the end coming back at the front.

    Args:
        x: Array.
        shift: by how much, per axis.
        axis: which axes; None: the flattened array.

    Raises:
        ShapeError: as many shifts as axes are needed.

    Example:
        >>> import nvfp as nf
        >>> nf.roll(nf.arange(4, device="cpu"), 1)
        nf.array([3, 0, 1, 2])
    """
    x = any_array("roll", x)
    if axis is None:
        return nf.reshape(roll(nf.reshape(x, (-1,)), shift, axis=0), x.shape)
    places = axis_tuple("roll", axis, x.ndim)
    shifts = integers("roll", "shift", shift)
    shifts = shifts * len(places) if np.ndim(shift) == 0 else shifts
    if len(shifts) != len(places):
        raise ShapeError(message("roll", f"{len(places)} shifts", shifts, "give one per axis"))
    for place, by in zip(places, shifts, strict=True):
        length = x.shape[place]
        cut = (length - by % length) if length else 0
        if length and by % length:
            first, second = _split("roll", x, [cut], place)
            x = _joined("roll", [second, first], place)
    return nf.copy(x)


@public
@explained
def repeat(x: Any, repeats: Any, /, axis: int | None = None) -> Array:
    """Return every element ``repeats`` times in a row.

    Args:
        x: Array.
        repeats: how often, one number, or one for each place along the axis (an Array or a list; waits for the GPU).
        axis: along which axis; None: of the flattened array.

    Raises:
        ArgumentError: a negative ``repeats``, or not one for each place.

    Example:
        >>> import nvfp as nf
        >>> nf.repeat(nf.arange(2, device="cpu"), 2)
        nf.array([0, 0, 1, 1])
    """
    x = any_array("repeat", x)
    if axis is None:
        x, axis = nf.reshape(x, (-1,)), 0
    place = one_axis("repeat", axis, x.ndim)
    counts = np.asarray(repeats).reshape(-1)
    if (counts.size and counts.dtype.kind not in "iu") or counts.size not in (1, x.shape[place]) or (counts < 0).any():
        do = "pass one number, or as many as the axis is long"
        raise ArgumentError(message("repeat", f"1 or {x.shape[place]} integers >= 0", repr(repeats), do))
    if counts.size != 1 or isinstance(x, QuantizedArray):
        places = np.repeat(np.arange(x.shape[place]), counts.astype(np.int64))
        return part("repeat", x, (slice(None),) * place + (nf.asarray(places, device=x.device),))
    count = int(counts[0])
    wide = nf.broadcast_to(nf.expand_dims(x, place + 1), (*x.shape[: place + 1], count, *x.shape[place + 1 :]))
    return nf.reshape(wide, (*x.shape[:place], x.shape[place] * count, *x.shape[place + 1 :]), copy=True)


@public
@explained
def tile(x: Any, repetitions: int | Sequence[int], /) -> Array:
    """Return ``x`` laid side by side, so often along each axis.

    Args:
        x: Array.
        repetitions: how often along each axis; the last ones if they are fewer than the axes.

    Raises:
        ArgumentError: a negative number.

    Example:
        >>> import nvfp as nf
        >>> nf.tile(nf.arange(2, device="cpu"), (2, 2)).tolist()
        [[0, 1, 0, 1], [0, 1, 0, 1]]
    """
    x = any_array("tile", x)
    counts = integers("tile", "repetitions", repetitions)
    if any(n < 0 for n in counts):
        raise ArgumentError(message("tile", "repetitions >= 0", repetitions, "pass how often, per axis"))
    ndim = max(len(counts), x.ndim)
    if isinstance(x, QuantizedArray):
        return _blocks_tiled(x, (1,) * (ndim - len(counts)) + counts)
    shape, counts = (1,) * (ndim - x.ndim) + x.shape, (1,) * (ndim - len(counts)) + counts
    between = nf.reshape(x, tuple(n for length in shape for n in (1, length)))
    wide = nf.broadcast_to(between, tuple(n for pair in zip(counts, shape, strict=True) for n in pair))
    return nf.reshape(wide, tuple(c * n for c, n in zip(counts, shape, strict=True)), copy=True)


def _blocks_tiled(x: QuantizedArray, counts: tuple[int, ...]) -> Array:
    """Whole blocks side by side, one axis after the other."""
    y: Array = nf.copy(nf.expand_dims(x, tuple(range(len(counts) - x.ndim)))) if len(counts) > x.ndim else nf.copy(x)
    for axis, count in enumerate(counts):
        if count == 0:
            y = nf.getitem(y, (slice(None),) * axis + (slice(0, 0),))
        elif count > 1:
            y = _joined("tile", [y] * count, axis)
    return y
