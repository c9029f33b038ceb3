"""Formats and drawn arrays for the tests of `QuantizedArray`."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import nvfp as nf
from nvfp.dtypes.formats import FORMATS as ROWS, QuantDType

E3M2_B24 = QuantDType("e3m2_b24", "float6_e3m2fn", 24, "float8_e5m2")
INT4_B32 = QuantDType("int4_b32", "int4", 32, "bfloat16")
USERS = (
    nf.fp8_e4m3_b128.replace(block=(128, 128)),
    nf.nvfp4.replace(block=(16, 16)),
    nf.nvfp4.replace(per_row_tensor_scale=True),
    nf.nvfp4.replace(block=1, per_row_tensor_scale=True),
    nf.nvfp4.replace(four_over_six="mae_256", block=(16, 16)),
    nf.nvfp4.replace(four_over_six="mse_448", per_row_tensor_scale=True),
    QuantDType("b128", "float8_e4m3fn", 128, "float32"),
    QuantDType("three", "float8_e5m2", 3, "float8_e4m3fn"),
    QuantDType("ones", "float8_e5m2", 1, "float8_e4m3fn"),
    E3M2_B24,
    INT4_B32,
    QuantDType("int4_2d", "int4", (4, 6), "float16"),
    QuantDType("int8_1d", "int8", (1, 8), "bfloat16"),
    QuantDType("column", "float8_e4m3fn", (4, 1), "float32"),
    QuantDType("four5", "float4_e2m1fn", 5, "float8_e8m0fnu"),
    QuantDType("tile", "float8_e4m3fn", (4, 8), "float32"),
    QuantDType("fp4", "float4_e2m1fn", None, "float32"),
    QuantDType("e2m3_tensor", "float6_e2m3fn", None, "bfloat16"),
)
FORMATS = {f.name: f for f in (*ROWS.values(), *USERS)}


def values(shape: tuple[int, ...], seed: int = 0, special: bool = False) -> np.ndarray:
    """Values of many magnitudes, with NaN, inf and -0 among them if wanted."""
    rng = np.random.Generator(np.random.PCG64(seed))
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))).astype(np.float32)
    if special and x.size:
        x.reshape(-1)[rng.integers(0, x.size, 3)] = np.nan, -np.inf, -0.0
    return x


def quantized(format: QuantDType, shape: tuple[int, ...], axis: int = -1, seed: int = 0, special: bool = False) -> Any:
    """A QuantizedArray of drawn values on the default device."""
    return nf.quantize(nf.asarray(values(shape, seed, special)), format, axis=axis)


def same(got: Any, expected: Any) -> None:
    """The same values, zeros with their signs; any NaN is NaN."""
    got, expected = np.asarray(got), np.asarray(expected)
    np.testing.assert_array_equal(got, expected)
    if got.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(expected) & ~np.isnan(expected))


@st.composite
def drawn(draw: Any, format: QuantDType) -> Any:
    """A quantized array of 1 to 4 axes and few elements, blocks along any allowed axis, lengths that divide or not."""
    pair = isinstance(format.block, tuple)
    ndim = draw(st.integers(2 if pair else 1, 4))
    axis = draw(st.integers(ndim - 2 if pair else 0, ndim - 1))
    across, along = format.block_shape or (1, 2)
    lengths = [draw(st.integers(1, 4)) for _ in range(ndim)]
    for place, unit in ((axis, along), (2 * ndim - 3 - axis, across)):
        if unit > 1:
            lengths[place] = draw(st.integers(1, 70) | st.integers(1, 3).map(lambda n, unit=unit: n * unit))
    q = quantized(format, tuple(lengths), axis, draw(st.integers(0, 99)), draw(st.booleans()))
    return q.mT if ndim >= 2 and draw(st.booleans()) else q  # a transposed operand: a flag, not a copy
