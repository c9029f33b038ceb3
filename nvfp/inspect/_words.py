"""What `record` measures of one copy of a tensor: sums and counts into device words, nothing read back.

Everything runs as stems of nvfp on the tensor's own device, so CPU and CUDA give the same figures, and the
host waits for nothing until the words are read.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp.arrays.array import wrap
from nvfp.arrays.creation import empty_raw, zeros
from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType
from nvfp.inspect._figures import clipped_ratio
from nvfp.kernels.amax import amax
from nvfp.kernels.cast import cast
from nvfp.kernels.dequantize import dequantize, plain_scales
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.hadamard import hadamard
from nvfp.kernels.operand import Operand
from nvfp.kernels.reduce import reduce

FLOAT32, FLOAT64, INT64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
ROWS = 1024  # of a slab: 56 bytes each
# float32: amax, smallest and largest decode factor; float64: sums of x^2 and (y - x)^2; int64: counts.
FIELDS: dict[str, tuple[np.dtype, tuple[str, ...]]] = {
    "float32": (FLOAT32, ("amax", "scale_min", "scale_max")),
    "float64": (FLOAT64, ("signal", "noise")),
    "int64": (INT64, ("finite", "flushed", "saturated")),
}


@dataclass(frozen=True)
class Row:
    """The words of one sample: 0-d views of a slab."""

    amax: Any
    scale_min: Any
    scale_max: Any
    signal: Any
    noise: Any
    finite: Any
    flushed: Any
    saturated: Any


class Words:
    """Rows of device words, allocated many at a time and read all at once."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.rows = 0
        self._slabs: list[dict[str, Any]] = []

    def row(self) -> Row:
        """Return the next row, all zero."""
        at = self.rows % ROWS
        if at == 0:
            self._slabs.append(
                {
                    kind: zeros((ROWS, len(names)), dtype=dtype, device=self.device).raw
                    for kind, (dtype, names) in FIELDS.items()
                }
            )
        self.rows += 1
        slab = self._slabs[-1]
        return Row(
            **{
                name: slab[kind][at, i : i + 1].reshape(())
                for kind, (_, names) in FIELDS.items()
                for i, name in enumerate(names)
            }
        )

    def read(self) -> dict[str, np.ndarray]:
        """Copy every row to the host (this waits for the device): name -> values."""
        found: dict[str, np.ndarray] = {}
        for kind, (dtype, names) in FIELDS.items():
            parts = [np.asarray(wrap(slab[kind])) for slab in self._slabs]
            whole = np.concatenate(parts) if parts else np.zeros((0, len(names)), dtype)
            found |= {name: whole[: self.rows, i] for i, name in enumerate(names)}
        return found


def measure(x: Any, q: Operand, row: Row) -> None:
    """Write the figures of a quantized copy against the raw matrix it stands for.

    A rotated copy is measured against the rotated matrix. Temporary memory: some 25 bytes per element.

    Args:
        x: raw [M, K].
        q: its row or column copy.
        row: where the figures go.
    """
    if q.rotation != "none":
        x = hadamard(x, axis=0)
    plain = plain_scales(q)
    amax(x, finite=q.format.nonfinite == "nan_block", out=row.amax)
    _scales(plain, row)
    y = dequantize(plain, FLOAT32)
    error = elementwise("subtract", y, x, dtype=FLOAT64)
    good = elementwise("isfinite", error)
    reduce("sum", good, dtype=INT64, out=row.finite)
    reduce("sumsq", elementwise("where", good, error, 0.0, out=error), out=row.noise)
    reduce("sumsq", elementwise("where", good, x, 0.0, out=error), out=row.signal)
    flushed = elementwise("logical_and", elementwise("equal", y, 0.0), elementwise("not_equal", x, 0.0))
    reduce("sum", flushed, dtype=INT64, out=row.flushed)
    reduce("sum", _saturated(x, y, plain, error), dtype=INT64, out=row.saturated)


def measure_given(q: Operand, row: Row) -> None:
    """Write what can be said of a copy that came quantized: its own amax and scales, and what is not finite.

    Args:
        q: the row copy.
        row: where the figures go; its sums stay 0.
    """
    plain = plain_scales(q)
    _scales(plain, row)
    y = dequantize(plain, FLOAT32)
    amax(y, finite=True, out=row.amax)
    reduce("sum", elementwise("isfinite", y), dtype=INT64, out=row.finite)


def watch_output(y: Any, row: Row) -> None:
    """Write amax and the number of finite elements of a dense output."""
    amax(y, out=row.amax)
    reduce("sum", elementwise("isfinite", y), dtype=INT64, out=row.finite)


def _saturated(x: Any, y: Any, q: Operand, scratch: Any) -> Any:
    """Where |x| is farther beyond the largest code than rounding explains (`nf.quant_error` has the formula)."""
    top, element = _largest(q), q.format.element
    limit = scratch if top.shape else None
    above = elementwise(
        "multiply", top, float(clipped_ratio(element, np.zeros((), np.bool_))), dtype=FLOAT64, out=limit
    )
    over = elementwise("greater", x, above)
    below = elementwise(
        "multiply", top, -float(clipped_ratio(element, np.ones((), np.bool_))), dtype=FLOAT64, out=limit
    )
    over = elementwise("logical_or", over, elementwise("less", x, below), out=over)
    held = elementwise("logical_and", elementwise("isfinite", y), elementwise("greater", top, 0.0))
    return elementwise("logical_and", over, held, out=over)


def _largest(q: Operand) -> Any:
    """What the largest code would be worth at each place (one word where the scale is one float32 per tensor)."""
    element = q.format.element
    if q.format.block is None and q.format.scale.bits == 32 and q.tensor_scale is None:
        return elementwise("multiply", q.scale, float(element.max))
    codes = empty_raw(q.codes.shape, q.codes.dtype, wrap(q.codes).device)
    elementwise("copy", element.max_code * (0x11 if element.packed else 1), out=codes)
    return dequantize(dataclasses.replace(q, codes=codes, padded_rows=0), FLOAT32)


def _scales(q: Operand, row: Row) -> None:
    """The smallest and largest decode factor, tensor scale included."""
    factors = _decoded(q.scale, q.format)
    if q.tensor_scale is not None:
        over = q.tensor_scale
        if q.format.per_row_tensor_scale:
            over = over[(*[slice(None)] * q.stored_axis, None)]
        factors = elementwise("multiply", factors, over)
    reduce("min", factors, out=row.scale_min)
    reduce("max", factors, out=row.scale_max)


def _decoded(scale: Any, fmt: QuantDType) -> Any:
    """Block scales as float32."""
    if fmt.scale.bits == 32:
        return scale
    if fmt.scale.bits == 16:
        return cast(scale.view(fmt.scale.dtype), FLOAT32)
    return cast(scale, FLOAT32, source=fmt.scale.dtype)
