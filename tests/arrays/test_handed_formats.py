"""Kinds of fault seen in public software (H01 to H08, H11, H12), in every row, along every axis, by every public door.

What is right follows here from the grid of the element and from what scales are for, not from the exact twin.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.codec import decode
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import FORMATS, QuantDType
from nvfp.dtypes.packing import pack, unpack
from tests.kernels.quantized import BF16, DTYPES, F16, F32, F64, same_bits

E3M2 = nf.QuantDType("e3m2_b24", element="float6_e3m2fn", block=24, scale="float8_e5m2")
INT4 = nf.QuantDType("int4_b32", element="int4", block=32, scale="bfloat16")
USERS = (
    E3M2,
    INT4,
    E3M2.replace(tensor_scale=True, name="e3m2_two_level"),
    INT4.replace(block=(16, 16), name="int4_2d"),
    nf.nvfp4.replace(block=(16, 16), name="nvfp4_2d"),
    nf.nvfp4.replace(block=15, name="nvfp4_15"),
    nf.mxfp8.replace(block=(4, 8), name="mxfp8_4x8"),
    nf.fp8_e4m3_b128.replace(block=(128, 128), name="b128_2d"),
    nf.nvfp4.replace(per_row_tensor_scale=True, name="nvfp4_rows"),
    nf.nvfp4.replace(four_over_six="mse_256", name="nvfp4_4over6"),
    nf.nvfp4.replace(four_over_six="mae_448", block=(16, 16), name="nvfp4_4over6_2d"),
)
ROWS = (*FORMATS.values(), *USERS)
LINES = [fmt for fmt in ROWS if fmt.block is not None and (fmt.block_shape or (1, 1))[0] == 1]
# With the dtypes that hold the largest number of the format.
TIED = [
    (fmt, dtype) for fmt in ROWS for dtype in DTYPES
    if fmt.four_over_six is None
    and (dtype != F16 or not fmt.tensor_scale or fmt.element.max * fmt.scale.max < 65504)
]  # fmt: skip
by_name: dict[str, Any] = {"ids": str}
every_row = pytest.mark.parametrize("fmt", ROWS, **by_name)


def grid_of(element: Element) -> np.ndarray:
    """The magnitudes of the codes 0, 1, ..."""
    return decode(np.arange(element.max_code + 1, dtype=element.storage), element)


def nearest(x: np.ndarray, element: Element) -> np.ndarray:
    """Codes by search in the grid: the nearest, of two the even one, beyond the largest the largest; signs kept."""
    grid, a = grid_of(element), np.abs(x.astype(F64))
    above = np.clip(np.searchsorted(grid, a), 1, grid.size - 1)
    low, high = a - grid[above - 1], grid[above] - a
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    if not element.integer:
        return np.where(np.signbit(x), code | element.sign_code, code).astype(element.storage)
    code = np.where(-x.astype(F64) >= grid[-1] + 0.5 * grid[1], grid.size, code)  # two's complement has one more
    return np.where(np.signbit(x), -code, code).astype(np.int64).astype(np.uint8) & np.uint8((1 << element.bits) - 1)


def ties_of(element: Element, dtype: np.dtype) -> np.ndarray:
    """Every tie with its neighbours in ``dtype``, the grid, zeros and numbers far below it, of both signs."""
    grid = grid_of(element)
    middle = np.array([(a + b) / 2 for a, b in pairwise(grid)])
    near = (grid, middle, [2.0**-24, 1e-7] if dtype == F16 else [4.1e-25, 1e-30, 2.0**-126, 2.0**-149])
    x = np.concatenate([np.asarray(part, F64) for part in near]).astype(dtype)
    if dtype in (F32, F64):
        x = np.concatenate([x, np.nextafter(middle.astype(dtype), dtype.type(0)),
                            np.nextafter(middle.astype(dtype), dtype.type(np.inf))])  # fmt: skip
    x = x[x.astype(F64) <= grid[-1]]
    return np.concatenate([x, -x])


def at_scale_one(x: np.ndarray, fmt: QuantDType) -> np.ndarray:
    """A matrix of ``x`` in which every block has the scale 1: each holds the largest element, A is as it must be."""
    most, along = fmt.element.max, (fmt.block_shape or (1, x.size + 1))[1]
    step = max(along - 1, 1)
    parts = [x[i : i + step] for i in range(0, x.size, step)]
    whole = np.zeros((len(parts) + fmt.tensor_scale, along), x.dtype)
    whole[:, 0] = most
    for row, part in zip(whole, parts, strict=False):
        row[1 : 1 + part.size] = part
    if fmt.tensor_scale:
        whole[-1, 0] = most * fmt.scale.max
    return whole.reshape(1, -1)


@pytest.mark.parametrize(("fmt", "dtype"), TIED, **by_name)
def test_h01_h02_h05_ties_zeros_and_subnormals(device: Any, fmt: QuantDType, dtype: np.dtype) -> None:
    """Along each axis of a matrix and of a batch; a whole line is one row of blocks, so that no square has two."""
    x = at_scale_one(ties_of(fmt.element, dtype), fmt)
    codes = nearest(x, fmt.element)
    for source, axis in ((x, 1), (x.T, 0), (x[None].swapaxes(1, 2), 1)):
        q = nf.quantize(nf.asarray(source), fmt, axis=axis)
        wanted = np.moveaxis(codes.reshape(x.shape), 1, 0) if axis == 0 else codes
        wanted = wanted if source.ndim == 2 else codes[None].swapaxes(1, 2)
        got = np.asarray(q.operand.codes if device.type == "cpu" else q.operand.codes.get())
        got = unpack(got, source.shape[axis], axis) if fmt.element.packed else got
        regular = np.abs(source.astype(F32)) <= fmt.element.max  # all but the element that sets A
        np.testing.assert_array_equal(got[regular], wanted[regular])
        values = decode(wanted, fmt.element)
        np.testing.assert_array_equal(np.asarray(q)[regular], values[regular])
        np.testing.assert_array_equal(np.signbit(np.asarray(q)[regular]), np.signbit(values[regular]))


@pytest.mark.parametrize("element", ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn",
                                     "float4_e2m1fn", "int8", "int4"])  # fmt: skip
@pytest.mark.parametrize("scale", ["float32", "float8_e8m0fnu"])
def test_h03_h04_beyond_the_largest_number(device: Any, element: str, scale: str) -> None:
    """Just below, at and above the last tie, through a scale that does not reach: per tensor, rule floor."""
    fmt = nf.QuantDType(element=element, block=None if scale == "float32" else 32, scale=scale, nonfinite="saturate",
                        scale_rule="floor" if scale == "float8_e8m0fnu" else "ceil")  # fmt: skip
    e, grid = fmt.element, grid_of(fmt.element)
    last = grid[-1] + (grid[-1] - grid[-2]) / 2  # the tie: the code above it would be the next one
    over = [last, np.nextafter(last, 0), np.nextafter(last, np.inf), grid[-1] * 1.9 if scale == "float32" else last]
    x = np.array([[*over, *(-v for v in over), grid[-1], -grid[-1], 0.0, -0.0]], F64)
    options: dict[str, Any] = {"scale": 1.0} if scale == "float32" else {}
    up = e.max_code % 2 == 1  # the largest code is odd: its tie goes up, beyond the format
    for overflow in ("saturate", "nonsat"):
        q = nf.quantize(nf.asarray(x), fmt, overflow=overflow, **options)
        values = np.asarray(q)[0]
        if scale != "float32":
            assert np.asarray(q.scale.astype(nf.float32)).tolist() == [[1.0]]
        beyond = np.abs(x[0]) > last if not up else np.abs(x[0]) >= last
        lowest = -grid[-1] - (grid[1] if e.integer else 0)
        finite = np.where(beyond, np.where(x[0] > 0, grid[-1], lowest), np.clip(np.round(x[0] / grid[1]) * grid[1]
                          if e.integer else np.sign(x[0]) * grid[-1], lowest, grid[-1]))  # fmt: skip
        finite = np.where(x[0] == 0, 0.0, finite)
        if overflow == "nonsat" and (e.has_inf or e.has_nan):
            marked = np.where(x[0] > 0, np.inf, -np.inf) if e.has_inf else np.nan
            finite = np.where(beyond, marked, finite)
        np.testing.assert_array_equal(values, finite.astype(F32), err_msg=f"{element} {scale} {overflow}")


@pytest.mark.parametrize("fmt", [f for f in ROWS if f.block and f.scale.bits == 8 and not f.four_over_six], **by_name)
def test_h06_every_scale_byte(device: Any, fmt: QuantDType) -> None:
    """Value = code * scale in exact arithmetic for every byte, subnormal results and NaN bytes too."""
    across, along = fmt.block_shape or (1, 1)
    factors = decode(np.arange(256, dtype=np.uint8), fmt.scale)
    scale = np.flatnonzero(~np.signbit(factors) & ~np.isinf(factors)).astype(np.uint8)[None]  # decode factors
    codes = np.resize(np.arange(1 << fmt.element.bits, dtype=np.uint8), (across, scale.size * along))
    stored = pack(codes) if fmt.element.packed else codes
    word = np.full(across, 0.75, F32) if fmt.per_row_tensor_scale else F32.type(0.75) if fmt.tensor_scale else None
    q = nf.QuantizedArray.from_parts(stored, scale, fmt, tensor_scale=word, shape=codes.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = decode(codes, fmt.element) * np.repeat(decode(scale, fmt.scale), along, 1)
        exact = (exact.astype(F32) * F32.type(0.75 if fmt.tensor_scale else 1)).astype(F32)
    np.testing.assert_array_equal(np.asarray(q), exact)
    np.testing.assert_array_equal(np.asarray(q.scale.astype(nf.float32)), decode(scale, fmt.scale).astype(F32))


@pytest.mark.parametrize("dtype", DTYPES, **by_name)
@every_row
def test_h07_zeros(device: Any, fmt: QuantDType, dtype: np.dtype) -> None:
    """All zero, and one block that is not: zeros come back, the scales are finite and no NaN code."""
    across, along = fmt.block_shape or (1, 16)
    for zero in (0.0, -0.0):
        x = np.full((2, 2 * across, 2 * along), zero, dtype)
        some = x.copy()
        some[1, 0, 0] = 6
        for source in (x, some):
            for axis in (-1, -2):
                turned = source.swapaxes(-1, -2) if axis == -2 else source
                q = nf.quantize(nf.asarray(turned), fmt, axis=axis)
                back, made = np.asarray(q), nf.fake_quant(nf.asarray(turned), fmt, axis=axis)
                assert np.array_equal(back == 0, turned == 0), "nothing but zeros becomes zero, and they do"
                np.testing.assert_array_equal(np.asarray(made), back.astype(dtype))
                if not fmt.element.integer:
                    np.testing.assert_array_equal(np.signbit(back), np.signbit(turned))
                for part in (q.scale, q.tensor_scale):
                    assert part is None or np.isfinite(np.asarray(part.astype(nf.float32))).all()


@pytest.mark.parametrize("k", [-40, 40])
@every_row
def test_h08_a_power_of_two_moves_into_the_scale(device: Any, fmt: QuantDType, k: int) -> None:
    """Neither flushed nor clipped: the codes of x * 2**k are those of x (a narrow scale alone reaches less far)."""
    if fmt.scale_family == "two_level" and not fmt.tensor_scale:
        k = int(np.sign(k)) * (3 if fmt.scale.bits == 8 else 40)
    x = np.random.default_rng(3).standard_normal((2, 40, 72)).astype(F32)
    x[0, 0, 0] = -9.0  # the largest magnitude is that of a negative number
    moved = np.ldexp(x, k)
    for axis in (-1, -2):
        q, p = (nf.quantize(nf.asarray(a), fmt, axis=axis) for a in (x, moved))
        same = [bool((a == b).all()) for a, b in zip(q.operand.arrays(), p.operand.arrays(), strict=True)]
        assert same[0], "codes"
        np.testing.assert_array_equal(np.ldexp(np.asarray(q), k), np.asarray(p))
        grid = grid_of(fmt.element)
        step = 1 - grid[-2] / grid[-1]  # at most half of it, under a scale at most twice as large as it need be
        assert np.abs(np.asarray(q) - x).max() <= 9.0 * (step + (0.125 if fmt.scale.bits == 8 else 0))
        assert not all(same)


@pytest.mark.parametrize("length", [1, 17, 48, 63])
@pytest.mark.parametrize("fmt", LINES, **by_name)
def test_h11_each_line_alone(device: Any, fmt: QuantDType, length: int) -> None:
    """Of a matrix and a batch, along each axis, lines give what they would give alone; the shape stays."""
    rng = np.random.default_rng(length)
    sizes = np.exp2(rng.integers(-8, 8, (3, 2, 1)))
    x = (rng.standard_normal((3, 2, length)) * sizes).astype(F32)
    shared = {"tensor_scale": 0.003} if fmt.tensor_scale and not fmt.per_row_tensor_scale else {}
    for axis in (0, 1, 2):
        q = nf.quantize(nf.asarray(np.moveaxis(x, 2, axis)), fmt, axis=axis, **shared)
        assert q.shape == np.moveaxis(x, 2, axis).shape
        values = np.moveaxis(np.asarray(q), axis, 2)
        scales = np.moveaxis(np.asarray(q.scale.astype(nf.float32)), axis, 2)
        assert scales.shape == (3, 2, -(-length // (fmt.block_shape or (1, 1))[1]))
        for i, j in np.ndindex(3, 2):
            own = nf.quantize(nf.asarray(x[i, j]), fmt, **shared)
            np.testing.assert_array_equal(values[i, j], np.asarray(own))
            np.testing.assert_array_equal(scales[i, j], np.asarray(own.scale.astype(nf.float32)))


def views(dtype: np.dtype) -> list[np.ndarray]:
    """Strided, transposed, reversed, broadcast, read-only and Fortran-ordered arrays of two and three axes."""
    x = np.random.default_rng(5).standard_normal((6, 40, 34)).astype(dtype)
    a = x[0]
    fixed = a.copy()
    fixed.setflags(write=False)
    return [
        a.T, a[:, ::2], a[::-1, ::-1], a[3:, 5:], np.broadcast_to(a[:1], (40, 34)), np.broadcast_to(a[:, :1], (40, 34)),
        fixed, np.asfortranarray(a), x.transpose(2, 0, 1), x[::2, ::-1, 1::3].transpose(1, 2, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, BF16], **by_name)
@every_row
def test_h12_layouts_and_doors(device: Any, fmt: QuantDType, dtype: np.dtype, tmp_path: Path) -> None:
    """Every layout gives what its contiguous copy gives, by every door."""
    kept = {}
    for n, view in enumerate(views(dtype)):
        for axis in (-1, -2):
            exact = quantize_exact(np.ascontiguousarray(view), fmt, axis=axis)
            values = np.array(dequantize_exact(exact, fmt, axis=axis), order="C")
            source = nf.asarray(view)
            q = nf.quantize(source, fmt, axis=axis)
            doors = [q, nf.QuantizedArray.from_parts(q.codes, q.scale, fmt, axis=axis, tensor_scale=q.tensor_scale,
                                                     shape=q.shape)]  # fmt: skip
            doors += [source.astype(fmt), nf.asarray(view, dtype=fmt)] if axis == -1 else []
            for door in doors:
                assert door.dtype == fmt
                assert same_bits(np.asarray(door), values)
                assert same_bits(np.asarray(door.mT), np.array(values.swapaxes(-1, -2), order="C"))
            made = np.asarray(nf.fake_quant(source, fmt, axis=axis))
            assert same_bits(made, values.astype(dtype))
            kept[f"{n}{axis}"] = (q, values)
    nf.save(tmp_path / "q.safetensors", {name: q for name, (q, _) in kept.items()})
    for name, back in nf.load(tmp_path / "q.safetensors").items():
        assert same_bits(np.asarray(back), kept[name][1])


def test_a_transposed_batch_blocked_along_an_early_axis(device: Any) -> None:
    """Four axes that no three strides describe: the values of a transposed operand recursed without end."""
    x = np.random.default_rng(0).standard_normal((4, 3, 11, 5)).astype(F32)
    for fmt in (nf.mxfp4, nf.mxfp8, nf.nvfp4):
        for axis in (0, 1):
            q = nf.quantize(nf.asarray(x), fmt, axis=axis)
            np.testing.assert_array_equal(np.asarray(q.mT), np.asarray(q).swapaxes(2, 3))


@pytest.mark.parametrize("name", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("fmt", [nf.mxfp8, nf.mxfp4, nf.mxint8, nf.fp8_e5m2, nf.nvfp4], **by_name)
def test_integers_round_once(device: Any, fmt: QuantDType, name: str) -> None:
    """One more than a tie, and one less: float32 (float64, for 64 bits) would make ties of them."""
    bits = np.iinfo(name).bits - 6
    tie = np.array([[(2 * m + 1) << (e - 1) for e in range(1, bits) for m in (9, 12, 15)]], name)
    for x in (tie, tie + 1, tie - 1):
        q = nf.asarray(x).astype(fmt)
        np.testing.assert_array_equal(np.asarray(q), dequantize_exact(quantize_exact(x, fmt), fmt))


def test_a_scale_whose_inverse_overflows(device: Any) -> None:
    """1 / s is infinite for subnormal s: zeros became NaN."""
    x = nf.asarray(np.float32([0.0, -0.0, 1e-38, 1.0]))
    got = np.asarray(nf.quantize(x, nf.fp8_e4m3, scale=1e-40))
    assert got[:2].tolist() == [0.0, 0.0] and np.signbit(got[1])
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[2:], np.float32([3.5e-40, 4.48e-38]), rtol=1e-3)


@pytest.mark.parametrize("scale", ["float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn", "float8_e5m2", "bfloat16"])
def test_products_with_any_scale_format(device: Any, scale: str) -> None:
    """One scale per tensor or per block, (codes of scales of 6 and 4 bits were taken for their values)."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((7, 40)).astype(F32), rng.standard_normal((9, 40)).astype(F32)
    b = nf.quantize(nf.asarray(w), nf.mxfp6_e2m3)
    for block in (None, 8):
        fmt = nf.QuantDType(element="float8_e4m3fn", block=block, scale=scale, nonfinite="saturate")  # type: ignore[arg-type]
        a = nf.quantize(nf.asarray(x), fmt)
        want = np.asarray(a).astype(F64) @ np.asarray(b).astype(F64).T
        np.testing.assert_allclose(np.asarray(nf.matmul(a, b.T)), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
