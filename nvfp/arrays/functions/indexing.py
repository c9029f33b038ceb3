"""Elements by index: `getitem`, `take`, `take_along_axis`, and writing (`setitem`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.arrays import block_index
from nvfp.arrays.array import Array, wrap
from nvfp.arrays.blocks import blocked_axes
from nvfp.arrays.functions._common import any_array, dense, fit, integer, is_storage, like, one_axis, view
from nvfp.arrays.functions.conversion import bits
from nvfp.arrays.functions.joining import fill, part
from nvfp.arrays.quantized import QuantizedArray, quantized
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import bfloat16, float16, float32, int64
from nvfp.errors import ArgumentError, BlockIndexError, DeviceError, DTypeError, NotBuiltError, ShapeError, message
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.embedding import embedding_vjp

Key = tuple[Any, ...]
_PLAIN = {int, type(None)}


def expanded(op: str, key: Any, x: Array) -> tuple[Key, bool]:
    """Return a key with one entry per axis (int, slice, raw array) besides None, and whether it is basic.

    Raises:
        BlockIndexError: more entries than axes.
        DTypeError: an entry that is no index.
        DeviceError: an index array on another device.
    """
    entries = [_entry(op, e, x) for e in (key if isinstance(key, tuple) else (key,))]
    used = sum(e.ndim if _is_mask(e) else 1 for e in entries if e is not None and e is not Ellipsis)
    if used > x.ndim or sum(e is Ellipsis for e in entries) > 1:
        raise BlockIndexError(message(op, f"at most {x.ndim} indices and one ellipsis", key, "leave some out"))
    fill_in = [slice(None)] * (x.ndim - used)
    at = next((i for i, e in enumerate(entries) if e is Ellipsis), None)
    entries = [*entries, *fill_in] if at is None else [*entries[:at], *fill_in, *entries[at + 1 :]]
    return tuple(entries), all(e is None or isinstance(e, int | slice) for e in entries)


def _simple(key: Any) -> Any:
    """A key of plain ints, slices, None and an ellipsis as NumPy takes it to give a view, or None for others."""
    kind = type(key)
    if kind is int:
        return (key, ...)
    if kind is slice:
        return key if {type(key.start), type(key.stop), type(key.step)} <= _PLAIN else None
    if kind is not tuple:
        return None
    for entry in key:
        kind = type(entry)
        if kind is slice:
            if not {type(entry.start), type(entry.stop), type(entry.step)} <= _PLAIN:
                return None
        elif kind is not int and entry is not None and entry is not ...:
            return None
    return key if ... in key else (*key, ...)


def _is_mask(entry: Any) -> bool:
    return not isinstance(entry, int | slice) and entry.dtype == np.bool_


def _entry(op: str, entry: Any, x: Array) -> Any:
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return _plain_slice(op, entry) if isinstance(entry, slice) else entry
    if isinstance(entry, bool | np.bool_):
        raise DTypeError(
            message(op, "integers, slices or index arrays", repr(entry), "index with x[None] or a mask array")
        )
    if isinstance(entry, int | np.integer):
        return int(entry)
    if isinstance(entry, list | tuple | range):
        entry = nf.asarray(np.asarray(entry, dtype=np.int64) if len(entry) == 0 else list(entry), device=x.device)
    elif isinstance(entry, np.ndarray):
        entry = nf.asarray(entry, device="cpu")
    if not isinstance(entry, Array) or getattr(entry.dtype, "kind", "V") not in "iub":
        got = entry.dtype if isinstance(entry, Array) else type(entry).__name__
        raise DTypeError(message(op, "integers, slices or index arrays", got, "cast it with .astype(nf.int64)"))
    if entry.device is not x.device:
        raise DeviceError(message(op, f"an index array on {x.device}", entry.device, "move it with .to_device(...)"))
    return entry.raw


def _plain_slice(op: str, entry: slice) -> slice:
    parts: Key = (entry.start, entry.stop, entry.step)
    if not {*map(type, parts)} <= _PLAIN:
        parts = tuple([None if p is None else integer(op, "slice", p) for p in parts])
    if parts[2] == 0:
        raise ArgumentError(message(op, "a slice step that is not 0", "0", "pass another step"))
    return slice(*parts)


def _read(op: str, raw: Any, key: Key) -> Any:
    try:
        return bits(raw)[(*key, ...)].view(raw.dtype)
    except IndexError as error:
        raise _out_of_range(op, raw, error) from None


def _out_of_range(op: str, raw: Any, error: IndexError) -> BlockIndexError:
    return BlockIndexError(message(op, f"indices within {raw.shape}", error, "count from -n to n - 1"))


def _getitem_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    key, basic, target = saved
    return (fit(_scatter(g, key, basic, target[0]), target),)


@public
def getitem(x: Any, key: Any, /) -> Array:
    """Return ``x[key]`` with NumPy's rules: ints, slices, None, ellipsis, index arrays and masks.

    Args:
        x: Array. Basic keys give a view; index arrays and masks copy.
        key: the index. Of a quantized array the block axis takes slices of whole blocks only.

    Raises:
        BlockIndexError: (an IndexError) out of range, or a key that would cut a block.
        DTypeError: an index that is no integer or mask.
        DeviceError: an index array on another device.

    Notes:
        The gradient adds up over repeated indices, in a fixed order.

    Example:
        >>> import nvfp as nf
        >>> nf.arange(5, device="cpu")[1:3]
        nf.array([1, 2])
    """
    if type(x) is Array and x._node is None and x.raw.dtype.isbuiltin == 1:  # the common case in short: a view
        simple = _simple(key)
        if simple is not None:
            try:
                return view(x, x.raw[simple], None)
            except (IndexError, ValueError):
                pass  # told below
    x = any_array("getitem", x)
    entries, basic = expanded("getitem", key, x)
    target = like(x)
    node = dense("getitem", (x,), _getitem_vjp, (entries, basic, target)) if x._node is not None else None
    if isinstance(x, QuantizedArray):
        return quantized(block_index.getitem(x.operand, entries), node, x.storage if basic else None)
    raw = _read("getitem", x.raw, entries)
    return view(x, raw, node) if basic else wrap(raw, x.dtype, node)


def _scatter_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    return (_gather(g, *saved),)


def _gather(g: Array, key: Key, basic: bool) -> Array:
    node = dense("getitem", (g,), _getitem_vjp, (key, basic, like(g)))
    raw = _read("getitem", g.raw, key)
    return view(g, raw, node) if basic else wrap(raw, node=node)


def _scatter(g: Array, key: Key, basic: bool, shape: tuple[int, ...]) -> Array:
    """Zeros of ``shape`` with ``g`` added at ``key``: the gradient of `getitem`."""
    node = dense("scatter", (g,), _scatter_vjp, (key, basic))
    if basic:
        out = nf.zeros(shape, dtype=g.dtype, device=g.device).raw
        fill(out[(*key, ...)], g.raw)
        return wrap(out, node=node)
    rows = _row_key(key)
    if g.dtype in (float32, bfloat16, float16):
        if rows is not None:
            return wrap(_sum_rows(g.raw.reshape((*rows.shape, -1)), rows, shape[0], g.dtype).reshape(shape), node=node)
        flat = _positions(shape, key, g)
        return wrap(_sum_rows(g.raw.reshape((-1, 1)), flat, math.prod(shape), g.dtype).reshape(shape), node=node)
    if not isinstance(g.raw, np.ndarray):
        do = "use a float32 or 16-bit array, or compute on the CPU"
        raise NotBuiltError(
            message("getitem", "float32 or narrower for gradients of index arrays on CUDA", g.dtype, do)
        )
    out = np.zeros(shape, g.dtype)
    np.add.at(out, key, g.raw)
    return wrap(out, node=node)


def _row_key(key: Key) -> Any:
    """The index array of ``x[ids]`` (nothing else in the key), or None."""
    first, *rest = key
    alone = all(isinstance(e, slice) and e == slice(None) for e in rest)
    return (
        first
        if alone and not isinstance(first, int | slice) and first is not None and first.dtype != np.bool_
        else None
    )


def _sum_rows(g: Any, ids: Any, rows: int, dtype: np.dtype) -> Any:
    wrapped = elementwise(
        "where", elementwise("less", ids, 0), elementwise("add", ids, rows, dtype=np.dtype(np.int64)), ids
    )
    return embedding_vjp(g, wrapped, rows, dtype=dtype)


def _positions(shape: tuple[int, ...], key: Key, g: Array) -> Any:
    """The place of every selected element in the flattened array."""
    every = nf.arange(math.prod(shape), device=g.device).raw.reshape(shape)
    return every[(*key, ...)].reshape(-1)


@public
def take(x: Any, indices: Any, /, axis: int | None = None) -> Array:
    """Return the elements at ``indices`` along an axis (of the flattened array by default).

    Args:
        x: Array.
        indices: integers of any shape, negative ones counting from the end.
        axis: which axis.

    Raises:
        BlockIndexError: (an IndexError) an index out of range, on the CPU.

    Example:
        >>> import nvfp as nf
        >>> nf.take(nf.asarray([[1, 2], [3, 4]], device="cpu"), [1, 0, 1], axis=1).tolist()
        [[2, 1, 2], [4, 3, 4]]
    """
    x = any_array("take", x)
    if axis is None:
        x, axis = nf.reshape(x, (-1,)), 0
    return part("take", x, (slice(None),) * one_axis("take", axis, x.ndim) + (indices,))


@public
def take_along_axis(x: Any, indices: Any, /, axis: int = -1) -> Array:
    """Return for every position along an axis the element that ``indices`` names there.

    Args:
        x: Array.
        indices: integers; equal to ``x`` in every axis but ``axis`` (lengths of 1 broadcast). For a quantized ``x``
            they have length 1 along the block axis.
        axis: which axis.

    Raises:
        BlockIndexError: (an IndexError) indices that differ along a block, or one out of range, on the CPU.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[5.0, 3.0], [1.0, 2.0]], device="cpu")
        >>> nf.take_along_axis(x, nf.argmax(x, axis=1, keepdims=True), axis=1)
        nf.array([[5.],
                  [2.]])
    """
    x, ids = any_array("take_along_axis", x), any_array("take_along_axis", indices)
    place = one_axis("take_along_axis", axis, x.ndim)
    if isinstance(x, QuantizedArray) and (lines := _along_blocks(x, ids, place)) is not None:
        return lines
    return getitem(x, _along_key(x.shape, ids, place))


def _along_key(shape: tuple[int, ...], ids: Array, place: int) -> Key:
    """``ids`` at ``place``, and on every other axis its own positions."""
    every = [(1,) * i + (n,) + (1,) * (len(shape) - 1 - i) for i, n in enumerate(shape)]
    return tuple(
        ids if i == place else nf.reshape(nf.arange(n, device=ids.device), every[i]) for i, n in enumerate(shape)
    )


def _along_blocks(x: QuantizedArray, ids: Array, place: int) -> Array | None:
    """`take_along_axis` of whole blocks: where ``ids`` are the same along them; None where they are not."""
    units = blocked_axes(x.operand)
    if place in units or ids.ndim != x.ndim or any(ids.shape[axis] != 1 for axis in units):
        return None
    order = [*(axis for axis in range(x.ndim) if axis not in units), *sorted(units)]
    lead = x.ndim - len(units)
    moved, lines = nf.permute_dims(x, order), nf.permute_dims(ids, order)
    key = _along_key(moved.shape[:lead], nf.reshape(lines, lines.shape[:lead]), order.index(place))
    return nf.permute_dims(getitem(moved, key), [order.index(axis) for axis in range(x.ndim)])


def _setitem_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    key, basic, target = saved
    dx = _written(g, key, basic, nf.zeros((), dtype=g.dtype, device=g.device)) if needs[0] else None
    dv = None
    if needs[1]:
        taken = _gather(g, key, basic)
        dv = fit(taken if basic else nf.where(_stayed(g, key), taken, 0.0), target)
    return dx, dv


def _stayed(g: Array, key: Key) -> Array:
    """Which of the written elements was the last one at its place: only these reach the result."""
    slots = nf.zeros(g.shape, dtype=int64, device=g.device).raw
    count = math.prod(_read("setitem", slots, key).shape)
    order = nf.arange(count, device=g.device).raw.reshape(_read("setitem", slots, key).shape)
    slots[key] = order
    return wrap(elementwise("equal", slots[key], order))


def _written(x: Array, key: Key, basic: bool, value: Array) -> Array:
    """A copy of ``x`` with ``value`` at ``key``."""
    raw = elementwise("copy", x.raw) if x.dtype.kind == "c" else cast(x.raw, x.raw.dtype)
    _write(raw, key, basic, value.raw)
    return wrap(raw, x.dtype, dense("setitem", (x, value), _setitem_vjp, (key, basic, like(value))))


def _write(raw: Any, key: Key, basic: bool, value: Any) -> None:
    try:
        if not basic:
            bits(raw)[key] = bits(value if value.dtype == raw.dtype else cast(value, raw.dtype))
            return
        target = _read("setitem", raw, key)
        spare = value.ndim - target.ndim  # NumPy lets a value have more leading axes of length 1
        value = value.reshape(value.shape[spare:]) if spare > 0 and value.shape[:spare] == (1,) * spare else value
        fill(target, nf.broadcast_to(wrap(value), target.shape).raw)
    except ValueError:
        expected = f"a value that broadcasts to x[key], x of {raw.shape}"
        raise ShapeError(message("setitem", expected, value.shape, "reshape the value")) from None
    except IndexError as error:
        raise _out_of_range("setitem", raw, error) from None


@public
def setitem(x: Array, key: Any, value: Any, /) -> None:
    """``x[key] = value``: ``x`` gets new storage with the change; a parameter is written in place.

    Args:
        x: dense Array. Its views, and what a graph has saved of it, keep the old values.
        key: as in `nf.getitem`.
        value: Array, NumPy array or scalar that broadcasts to ``x[key]``; cast to the dtype of ``x``.

    Raises:
        BlockIndexError: (an IndexError) out of range.
        GradientError: ``x`` is a variable and gradients are enabled.
        DTypeError: ``x`` is quantized.

    Example:
        >>> import nvfp as nf
        >>> x = nf.zeros((3,), device="cpu")
        >>> view = x[1:]
        >>> x[1] = 5
        >>> x, view
        (nf.array([0., 5., 0.]), nf.array([0., 0.]))
    """
    if isinstance(x, QuantizedArray):
        x._refuse("setitem")
    x._check_writable("setitem")
    entries, basic = expanded("setitem", key, x)
    if is_storage(x.dtype):
        value = nf.astype(nf.asarray(value, device=x.device), x.dtype, copy=False)
    elif not isinstance(value, Array):
        value = nf.asarray(value, dtype=x.dtype, device="cpu" if isinstance(value, np.ndarray) else x.device)
    if value.device is not x.device:
        raise DeviceError(message("setitem", f"a value on {x.device}", value.device, "move it with .to_device(...)"))
    value = nf.astype(value, x.dtype, copy=False)
    if x.is_parameter:
        if value._node is not None:
            x._assign(_written(x, entries, basic, value), "setitem")
        if value._storage is x.storage:  # a view of x itself: read before it is written
            value = nf.copy(value)
        _write(x.storage.raw, entries, basic, value.raw)
        x.storage.touch()
        return
    x._assign(_written(x, entries, basic, value), "setitem")
