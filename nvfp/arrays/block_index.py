"""Indexing an `Operand`: keys that take whole blocks act on codes and scales alike, others raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.arrays.blocks import DENSE, blocked_axes, each, plain
from nvfp.errors import BlockIndexError, message
from nvfp.kernels.operand import Operand


def getitem(q: Operand, entries: Sequence[Any], op: str = "getitem") -> Operand:
    """Return the part of the operand that ``entries`` name.

    Args:
        q: the operand.
        entries: a key with one entry per axis: int, slice, raw index or mask array, besides None for new axes.
        op: name for messages.

    Raises:
        BlockIndexError: an entry that would cut a block, an index out of range, or new axes behind blocks over two.
    """
    q = plain(q)
    entries = _masks_as_indices(q, op, entries)
    units, places = blocked_axes(q), _places(entries)
    parts: list[tuple[Any, Any, Any]] = []
    axis, lengths = 0, {}
    moved: dict[int, int] = {}  # axis -> its place in the result
    for entry, place in zip(entries, places, strict=True):
        if entry is None:
            parts.append((None, None, None))
            continue
        if isinstance(entry, slice) and axis in units:
            start, stop = _span(q, op, entry, axis, units[axis])
            lengths[place] = stop - start
            parts.append(_parts(q, axis, start, stop))
        else:
            for a in range(axis, axis + _width(entry)):
                _check(q, op, entry, a, units)
            parts.append((entry, entry, entry))
        if isinstance(entry, slice):
            moved[axis] = place
        axis += _width(entry)
    keys = [tuple(key) for key in zip(*parts, strict=True)] or [(), (), ()]
    ndim = _ndim(entries)
    if len(units) == 2 and {moved[a] for a in units} != {ndim - 2, ndim - 1}:
        expected = f"{q.format.name} blocks of {q.format.block} on the last two axes"
        raise BlockIndexError(message(op, expected, "new axes behind them", DENSE))
    return _read(q, op, keys, lengths, moved.get(q.axis, max(ndim - 1, 0)))


def _read(q: Operand, op: str, keys: list[tuple[Any, ...]], lengths: dict[int, int], axis: int) -> Operand:
    """The operand at one key for codes, one for block scales, one for tensor scales."""

    def move(key: tuple[Any, ...]) -> Any:
        return lambda raw: raw[(*key, ...)]

    try:
        codes = q.codes[(*keys[0], ...)]
        shape = tuple(lengths.get(i, n) for i, n in enumerate(codes.shape))
        return each(q, (lambda raw: codes, move(keys[1]), move(keys[2])), shape, axis)
    except (IndexError, ValueError) as error:  # of NumPy, of CuPy
        do = "count from -n to n - 1, with index arrays that broadcast"
        raise BlockIndexError(message(op, f"indices within {q.shape}", error, do)) from None


def _masks_as_indices(q: Operand, op: str, entries: Sequence[Any]) -> Sequence[Any]:
    """Check masks; beside other index arrays, the indices of their True elements take their place."""
    found: list[Any] = []
    several, axis = len([e for e in entries if _is_array(e)]) > 1, 0
    for entry in entries:
        width = _width(entry)
        if _is_array(entry) and entry.dtype == np.bool_ and entry.shape != q.shape[axis : axis + width]:
            expected = f"a mask of shape {q.shape[axis : axis + width]} on axis {axis}"
            raise BlockIndexError(message(op, expected, entry.shape, "compare q's own values"))
        indices = several and _is_array(entry) and entry.dtype == np.bool_ and width > 0
        found += entry.nonzero() if indices else [entry]
        axis += width
    return found


def _is_array(entry: Any) -> bool:
    return not (entry is None or isinstance(entry, int | slice))


def _parts(q: Operand, axis: int, start: int, stop: int) -> tuple[slice, slice, slice]:
    """What a slice of whole blocks takes of codes, block scales, and the tensor scales of rows."""
    across, along = q.format.block_shape or (1, 1)
    packed = 2 if q.format.element.packed and axis == q.axis else 1
    length = along if axis == q.axis else across
    codes = slice(start // packed, -(-stop // packed))
    return codes, slice(start // length, -(-stop // length)), slice(None)


def _width(entry: Any) -> int:
    """How many axes an entry reads."""
    mask = _is_array(entry) and entry.dtype == np.bool_
    return int(entry.ndim) if mask else int(entry is not None)


def _advanced(entries: Sequence[Any]) -> tuple[list[int], int]:
    """Which entries count as index arrays (ints beside arrays do), and how many axes these give together."""
    arrays = [e for e in entries if _is_array(e)]
    if not arrays:
        return [], 0
    found = [i for i, e in enumerate(entries) if not (e is None or isinstance(e, slice))]
    return found, max(1 if e.dtype == np.bool_ else e.ndim for e in arrays)


def _places(entries: Sequence[Any]) -> list[int]:
    """The axis of the result where each entry's begins: NumPy's rule for index arrays that do not stand together."""
    found, width = _advanced(entries)
    together = bool(found) and found[-1] - found[0] == len(found) - 1
    place, places = 0 if together or not found else width, []
    for i, entry in enumerate(entries):
        places.append(place)
        if together and i == found[0]:
            place += width
        place += entry is None or isinstance(entry, slice)
    return places


def _ndim(entries: Sequence[Any]) -> int:
    return sum(e is None or isinstance(e, slice) for e in entries) + _advanced(entries)[1]


def _check(q: Operand, op: str, entry: Any, axis: int, units: dict[int, int]) -> None:
    if isinstance(entry, slice):
        return
    if axis in units:
        raise _cut(q, op, f"index {entry}" if isinstance(entry, int) else "index array", axis, units[axis])
    if isinstance(entry, int) and not -q.shape[axis] <= entry < q.shape[axis]:
        expected = f"an index of {q.shape[axis]} elements"
        raise BlockIndexError(message(op, expected, f"{entry} on axis {axis}", "count from -n to n - 1"))


def _cut(q: Operand, op: str, what: str, axis: int, unit: int) -> BlockIndexError:
    return BlockIndexError(
        f"[{op}] {q.format.name} {what} cuts a block of {unit} on axis {axis}; slice at multiples of {unit} or {DENSE}"
    )


def _span(q: Operand, op: str, entry: slice, axis: int, unit: int) -> tuple[int, int]:
    """First and last element of a slice that takes whole blocks; raises for any other."""
    n = q.shape[axis]
    start, stop, step = entry.indices(n)
    if stop <= start and step > 0:
        return 0, 0
    if step != 1 or start % unit or (stop % unit and stop != n):
        text = f"slice {start}:{stop}" + (f":{step}" if step != 1 else "")
        raise _cut(q, op, text, axis, unit)
    return start, stop
