"""CPU twin of `kernels.cast`."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes.codec import Overflow, Rounding, encode, round_to_odd32
from nvfp.dtypes.elements import Element
from nvfp.kernels._check import FLOATS
from nvfp.kernels.cpu._blocks import encode_blocks, encode_powers
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._stochastic import cut_blocks, cutter
from nvfp.kernels.cpu._strided import PANEL, Panel, Rows, copy_rows, fold, for_panels, panels_of, rows_of
from nvfp.kernels.cpu._tables import decode_table, element_encoder

_FLOAT32, _FLOAT64, _UINT8 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.uint8)
_ONE = np.ones(1, np.float32)


def cast(
    x: Any,
    dtype: np.dtype,
    *,
    source: Element | None,
    target: Element | None,
    overflow: Overflow,
    out: Any | None,
    rounding: Rounding = "even",
) -> Any:
    """See `nvfp.kernels.cast.cast`; ``source`` and ``target`` are the rows of narrow dtypes."""
    if out is None:
        out = np.empty(x.shape, _UINT8 if target else dtype)
    if source is not None:
        _look_up(x, _table(source, dtype, target, overflow, rounding), out)
    elif target is not None:
        values = x if x.dtype in FLOATS else round_to_odd32(x)
        _encode(values, out, target, overflow, rounding)
    elif x.dtype == dtype:
        copy_rows(x, out)
    elif dtype not in FLOATS:
        np.copyto(out, _to_integer(x, dtype), casting="unsafe")
    elif dtype.itemsize == 2 or (x.dtype.itemsize == 2 and x.dtype in FLOATS):
        _convert(x if x.dtype in FLOATS else round_to_odd32(x), out)
    else:
        with np.errstate(over="ignore"):
            np.copyto(out, x, casting="unsafe")
    return out


def _table(
    source: Element, dtype: np.dtype, target: Element | None, overflow: Overflow, rounding: Rounding
) -> np.ndarray:
    """What each of the 256 source codes becomes."""
    values = decode_table(source)
    if target is not None:
        return encode(values, target, overflow=overflow, rounding=rounding)
    return np.asarray(cast(values, dtype, source=None, target=None, overflow=overflow, out=None))


def _look_up(codes: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    bits = np.dtype(f"uint{8 * table.dtype.itemsize}")  # NumPy moves plain integers fastest
    come, into = codes, out.view(bits)
    if not (come.flags.c_contiguous and into.flags.c_contiguous):
        np.take(table.view(bits), come, out=into, mode="clip")
        return
    come, into = come.reshape(-1), into.reshape(-1)

    def work(start: int, stop: int) -> None:
        np.take(table.view(bits), come[start:stop], out=into[start:stop], mode="clip")

    run_chunks(work, come.size, grain=2 * PANEL)


def _per_panel(x: np.ndarray, out: np.ndarray, work: Any, *scratch: np.dtype) -> None:
    """Call ``work(come, into, panel, *scratch)`` over panels of two arrays of one shape."""
    if x.size == 0:
        return
    if x.flags.c_contiguous and out.flags.c_contiguous:
        x, out = x.reshape(-1), out.reshape(-1)
    go = fold(out)
    if go is None:
        whole = np.empty(out.shape, out.dtype)
        _per_panel(x, whole, work, *scratch)
        np.copyto(out, whole)
        return
    come, into = rows_of(x, -1), Rows(go)
    for_panels(lambda *part: work(come, into, *part), panels_of(come, into), *scratch)


def _convert(x: np.ndarray, out: np.ndarray) -> None:
    """Float to 16-bit float and back, rounded once (float64 to odd float32 first)."""

    def work(come: Rows, into: Rows, panel: Panel, floats: np.ndarray) -> None:
        if _FLOAT32 in (come.dtype, into.dtype):
            into.take(come, panel)
        else:
            come.load(panel, floats)
            into.store(panel, floats)

    _per_panel(x, out, work, _FLOAT32)


def _numbers(target: Element, overflow: Overflow, rounding: Rounding) -> np.ndarray:
    return element_encoder(target, overflow) if rounding == "even" else cutter(target, overflow, rounding)


def _encode(x: np.ndarray, out: np.ndarray, target: Element, overflow: Overflow, rounding: Rounding) -> None:
    """Float to codes of a narrow format."""
    even = rounding == "even"
    numbers = _numbers(target, overflow, rounding) if target.signed else _ONE
    carries = (np.uint32(0x400000), np.uint32(0x600000)) if even else (np.uint32(0), np.uint32(0x800000))
    top = np.uint32(target.max_code if overflow == "saturate" else target.overflow_code)

    def work(come: Rows, into: Rows, panel: Panel, floats: np.ndarray, raw: np.ndarray) -> None:
        shape = panel.rows, panel.columns
        values, place = come.load(panel, floats), into.place(panel)
        codes, to, pitch = place or (raw, 0, panel.columns)
        if target.signed and not even:
            nothing = np.zeros(panel.columns, np.uint8), 0, 0  # the random numbers of every row
            cut_blocks(values, shape, shape, _ONE, numbers, target.nan_code, nothing, (codes, to, pitch))
        elif target.signed:
            encode_blocks(values, shape, shape, _ONE, numbers, target.nan_code, (codes, to, pitch))
        else:
            encode_powers(*values, *shape, top, *carries, codes, to, pitch)
        if place is None:
            into.store(panel, raw)

    _per_panel(x, out, work, _FLOAT32, _UINT8)


def _to_integer(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Truncate floats to an integer dtype, cut to its range, NaN to 0; other input wraps; bool is ``x != 0``."""
    if x.dtype not in FLOATS or dtype == np.bool_:
        return x if dtype != np.bool_ else x != 0
    wide = x.astype(np.float64)
    limits = np.iinfo(dtype)
    above, below = wide >= float(limits.max), wide <= float(limits.min)  # the largest int64 is not a float64
    inside = np.where(above | below | np.isnan(wide), 0.0, wide).astype(dtype)
    return np.where(above, limits.max, np.where(below, limits.min, inside)).astype(dtype)
