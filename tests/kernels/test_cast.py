"""`kernels.cast` against the exact codec, bit for bit, on every device."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.codec import Overflow, decode, encode, round_to_odd32
from nvfp.dtypes.elements import Element
from nvfp.kernels._check import NARROW
from nvfp.kernels.cast import cast
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import BF16, DTYPES, F16, F32, F64, same_bits

INTEGERS = tuple(np.dtype(f"{s}int{b}") for s in ("", "u") for b in (8, 16, 32, 64))
narrow = pytest.mark.parametrize("dtype", NARROW, ids=str)


def around(element: Element) -> np.ndarray:
    """Every value of a format, every midpoint of neighbours, and the float32 numbers beside each of these."""
    finite = np.unique(decode(np.arange(1 << element.bits).astype(np.uint8), element))
    finite = finite[np.isfinite(finite)]
    beyond = finite[-1] * np.array([1.0, 1 + 2.0**-element.mantissa_bits, 2.0, 1e6])
    points = np.concatenate(
        [finite, (finite[1:] + finite[:-1]) / 2, beyond, finite * 1.7, [0.0, np.inf, np.nan, 1e-45]]
    )
    with np.errstate(over="ignore"):
        x = np.concatenate([points, -points]).astype(F32)
        return np.concatenate([x, np.nextafter(x, F32.type(np.inf)), np.nextafter(x, F32.type(-np.inf))])


def edge_values(dtype: np.dtype) -> np.ndarray:
    """Numbers at which a conversion from ``dtype`` may go wrong."""
    if dtype == np.bool_:
        return np.array([False, True])
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        powers = [2**k + d for k in range(info.bits) for d in (-1, 0, 1)]
        wide = [2**24 + 1, 2**25 + 2**16 + 1, 2**53 + 1, 2**62 + 2**38 + 1, 2**62 + 2**38]
        inside = [v for p in (*powers, *wide) for v in (p, -p) if info.min <= v <= info.max]
        return np.array([*inside, info.min, info.max], dtype)
    rng = np.random.default_rng(0)
    with np.errstate(over="ignore", invalid="ignore"):
        bits = rng.integers(0, 2**32, 3000, np.uint32).view(F32)
        limits = [2.0**k + d for k in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 0.5, 1)]
        special = [0.0, -0.0, np.nan, np.inf, -np.inf, 65504, 65519.99, 65520, 3.4e38, 1e-45, 6e-8, 2.98e-8]
        x = np.concatenate([bits.astype(F64), limits, np.negative(limits), special])
        if dtype == F64:
            x = np.concatenate([x, x * (1 + 2.0**-40), x * (1 - 2.0**-40), [1e300, -1e-300, 5e-324]])
        return x.astype(dtype)


@pytest.mark.sanitizer
@pytest.mark.parametrize("overflow", ["saturate", "nonsat"])
@narrow
def test_float32_to_narrow(device: Device, dtype: np.dtype, overflow: Overflow) -> None:
    x = around(NARROW[dtype])
    got = cast(to_device(x, device), dtype, overflow=overflow)
    assert same_bits(got, encode(x, NARROW[dtype], overflow=overflow))


@pytest.mark.sanitizer
@pytest.mark.parametrize("overflow", ["saturate", "nonsat"])
@narrow
def test_toward_zero(device: Device, dtype: np.dtype, overflow: Overflow) -> None:
    element = NARROW[dtype]
    every = np.arange(1 << 16).astype(np.uint16).view(BF16)
    for x in (around(element), every, edge_values(F64), edge_values(np.dtype(np.int64)), around(element)[::-2]):
        got = cast(to_device(x, device), dtype, overflow=overflow, rounding="toward_zero")
        assert same_bits(got, encode(x, element, overflow=overflow, rounding="toward_zero"))
    codes = np.arange(256).astype(np.uint8) & ((1 << element.bits) - 1)
    for other in NARROW:
        value = decode(codes, element)
        got = cast(to_device(codes, device), other, source=dtype, overflow=overflow, rounding="toward_zero")
        assert same_bits(got, encode(value, NARROW[other], overflow=overflow, rounding="toward_zero"))


@narrow
def test_every_16_bit_float_to_narrow(device: Device, dtype: np.dtype) -> None:
    bits = np.arange(1 << 16).astype(np.uint16)
    for source in (BF16, F16):
        x = bits.view(source)
        assert same_bits(cast(to_device(x, device), dtype), encode(x, NARROW[dtype]))


@pytest.mark.parametrize("source", (F64, *INTEGERS, np.dtype(np.bool_)), ids=str)
@narrow
def test_wide_and_integers_to_narrow(device: Device, dtype: np.dtype, source: np.dtype) -> None:
    x = edge_values(source)
    for overflow in ("saturate", "nonsat"):
        got = cast(to_device(x, device), dtype, overflow=overflow)  # type: ignore[arg-type]
        assert same_bits(got, encode(x, NARROW[dtype], overflow=overflow))  # type: ignore[arg-type]


@pytest.mark.sanitizer
@narrow
def test_narrow_to_dense_and_narrow(device: Device, dtype: np.dtype) -> None:
    element = NARROW[dtype]
    codes = np.arange(1 << element.bits).astype(np.uint8).reshape(-1, 4)
    value = decode(codes, element)
    raw = to_device(codes, device)
    with np.errstate(over="ignore"):
        for dense in DTYPES:
            assert same_bits(cast(raw, dense, source=dtype), value.astype(F32).astype(dense))
    for other in NARROW:
        assert same_bits(cast(raw, other, source=dtype), encode(value, NARROW[other]))
    assert same_bits(cast(raw, np.dtype(np.bool_), source=dtype), value != 0)
    for integer in (np.dtype(np.int8), np.dtype(np.uint16)):
        assert same_bits(cast(raw, integer, source=dtype), to_integer(value, integer))


def to_integer(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Truncate, clamp, NaN to 0, in Python's integers."""
    info = np.iinfo(dtype)

    def one(v: float) -> int:
        if np.isnan(v):
            return 0
        return int(info.max if v == np.inf else info.min if v == -np.inf else min(max(int(v), info.min), info.max))

    return np.array([one(float(v)) for v in x.reshape(-1)], dtype).reshape(x.shape)


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_float_to_dense(device: Device, source: np.dtype) -> None:
    x = edge_values(source)
    raw = to_device(x, device)
    for dtype in DTYPES:
        with np.errstate(over="ignore", under="ignore"):
            wanted = (round_to_odd32(x) if dtype == BF16 else x).astype(dtype)  # ml_dtypes would round twice
        assert same_bits(cast(raw, dtype), wanted)
    for integer in INTEGERS:
        assert same_bits(cast(raw, integer), to_integer(x, integer))
    assert same_bits(cast(raw, np.dtype(np.bool_)), x.astype(F64) != 0)


@pytest.mark.parametrize("source", (*INTEGERS, np.dtype(np.bool_)), ids=str)
def test_integer_to_dense(device: Device, source: np.dtype) -> None:
    x = edge_values(source)
    raw = to_device(x, device)
    for dtype in (*INTEGERS, np.dtype(np.bool_), F32, F64):
        assert same_bits(cast(raw, dtype), x.astype(dtype))
    for dtype in (F16, BF16):
        with np.errstate(over="ignore"):
            assert same_bits(cast(raw, dtype), round_to_odd32(x).astype(dtype))


def test_uint64_rounds_once_to_bfloat16(device: Device) -> None:
    x = np.array([2**40 + 2**32 + 1, 2**40 + 2**32, 2**40 + 3 * 2**32], np.uint64)  # beside, and on, ties of bfloat16
    got = to_numpy(cast(to_device(x, device), BF16)).astype(F64)
    assert got.tolist() == [2.0**40 * (1 + 2.0**-7), 2.0**40, 2.0**40 * (1 + 2.0**-6)]


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "target", (F32, BF16, np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e8m0fnu)), ids=str
)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_strides_shapes_and_out(device: Device, source: np.dtype, target: np.dtype) -> None:
    base = np.random.default_rng(0).standard_normal((6, 40, 50)).astype(source)
    views = (base[::-2, ::-1, ::3], base.transpose(1, 2, 0), base[0].T, np.broadcast_to(base[0], (3, 40, 50)),
             base[:0], base[0, 0, 0].reshape(()), base.reshape(4, 3, 2, 10, 50).transpose(2, 0, 4, 1, 3))  # fmt: skip
    element = NARROW.get(target)
    for x in views:
        wanted = encode(x, element) if element else round_to_odd32(x).astype(target)
        if target == F32:
            wanted = x.astype(F32)
        raw = to_device(x, device)
        assert same_bits(cast(raw, target), wanted)
        if x.ndim:
            out = to_device(np.zeros((2, *x.shape[::-1]), wanted.dtype), device)[1].T
            assert cast(raw, target, out=out) is out
            assert same_bits(out, wanted)


def test_many_panels(device: Device) -> None:
    x = np.random.default_rng(0).standard_normal((300, 700)).astype(F32)
    fp8 = np.dtype(ml_dtypes.float8_e4m3fn)
    for view in (x, x.T, x[:, ::-2]):
        assert same_bits(cast(to_device(view, device), fp8), encode(view, NARROW[fp8]))
        assert same_bits(cast(to_device(view, device), BF16), view.astype(BF16))
        assert same_bits(cast(to_device(view, device), F32), view.copy())


def test_same_dtype_copies(device: Device) -> None:
    for dtype in (*DTYPES, *INTEGERS, np.dtype(np.bool_)):
        x = np.resize(edge_values(dtype), (3, 5))
        raw = to_device(x.T, device)
        copy = cast(raw, dtype)
        assert copy is not raw
        assert to_numpy(copy).tobytes() == np.ascontiguousarray(x.T).tobytes()


def test_what_does_not_fit(device: Device) -> None:
    x, fp8 = to_device(np.ones((2, 3), F32), device), np.dtype(ml_dtypes.float8_e4m3fn)
    for dtype, source in itertools.product((np.dtype(np.complex64), np.dtype(object)), (None, fp8)):
        with pytest.raises(TypeError, match="dense or narrow"):
            cast(x, dtype, source=source)
    with pytest.raises(TypeError, match="dense dtype"):
        cast(to_device(np.ones(2, np.complex64), device), F32)
    with pytest.raises(TypeError, match="uint8 codes"):
        cast(x, F32, source=fp8)
    with pytest.raises(TypeError, match="narrow source"):
        cast(to_device(np.ones(2, np.uint8), device), F32, source=F16)
    with pytest.raises(ValueError, match="overflow"):
        cast(x, fp8, overflow="wrap")  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="rounding"):
        cast(x, fp8, rounding="stochastic")
    with pytest.raises(ValueError, match="narrow dtype for rounding"):
        cast(x, np.dtype(np.float16), rounding="toward_zero")
    with pytest.raises(ValueError, match="rounding"):
        cast(x, fp8, rounding="up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out"):
        cast(x, fp8, out=x)
