"""The CUDA twins of the quantize family, run on the CPU (see `emulator`) against the exact twins, bit for bit.

A GPU run repeats all of this through the tests of the contracts; here index arithmetic, barriers, kernel arguments
and the numerics of every kernel are proven without one. Each test compiles its kernels, so there are few formats.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nvfp.dtypes import elements as el
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.codec import encode, round_to_odd32
from nvfp.dtypes.conventions import PLAIN, apply_convention
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp4, mxfp6_e3m2, mxfp8_e4m3, mxint8, nvfp4
from nvfp.dtypes.packing import pack
from nvfp.dtypes.scale_layout import to_k_major128, to_tiles128x4
from nvfp.kernels.cuda import amax, cast, dequantize, quantize, scale_layout, transpose
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.cuda._layout import element_strides
from nvfp.kernels.cuda._quantize_plan import plan
from nvfp.kernels.cuda._quantize_tiles import tile_call
from nvfp.kernels.dequantize import plain_scales
from nvfp.kernels.operand import Operand
from tests.kernels.cuda import emulator
from tests.kernels.quantized import BF16, F32, F64, MADE, check_operand, nvfp4_2d, same_bits, values
from tests.oracles.dequantize import dequantize as dequantize_oracle

B128, B128_2D = fp8_e4m3_b128, fp8_e4m3_b128.replace(block=(128, 128))
ROWS = (fp8_e4m3, mxfp8_e4m3, nvfp4, nvfp4_2d)
NONE = (None, None)
by_name = {"ids": lambda fmt: fmt.name}


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)


def run(
    x: np.ndarray, fmt: QuantDType, *, axis: int | None = None, **options: Any
) -> tuple[Operand | None, Operand | None]:
    arguments = {
        "row": True, "col": x.ndim == 2, "scale": None, "amax": NONE, "tensor_scale": NONE, "amax_out": NONE,
        "amax_epsilon": 0.0, "rounding": "even", "rng": None, "overflow": "saturate", "scale_layout": "plain",
        "steps": PLAIN, **options,
    }  # fmt: skip
    return quantize.quantize(x, fmt, axis=max(x.ndim - 1, 0) if axis is None else axis, **arguments)


def check(x: np.ndarray, fmt: QuantDType, *sides: Operand | None, **options: Any) -> None:
    for side, axis in zip(sides, (1, 0), strict=False):
        if side is not None:
            check_operand(side, quantize_exact(x, fmt, axis=axis, **options), fmt, axis, swap=axis == 0)


@pytest.mark.parametrize("fmt", ROWS, **by_name)
def test_tile_variants_are_exact(fmt: QuantDType) -> None:
    for kind, shape in (("wide", (70, 200)), ("nonfinite", (64, 128)), ("zeros", (1, 33)), ("tiny", (130, 5))):
        x = values(kind, shape, BF16)
        check(x, fmt, *run(x, fmt))
        row, _ = run(x, fmt, col=False)
        check(x, fmt, row)
    for view in (x.T, values("normal", (70, 2, 96), BF16)[:, 1], values("ties", (80, 40), BF16)[1:, 3:]):
        check(view, fmt, *run(view, fmt))
    x = values("normal", (5, 0), BF16)
    check(x, fmt, *run(x, fmt))


@pytest.mark.parametrize("fmt", (B128, B128_2D), **by_name)
def test_blocks_of_128_are_exact(fmt: QuantDType) -> None:
    for kind, shape in (("wide", (150, 270)), ("nonfinite", (128, 128)), ("huge", (1, 33)), ("tiny", (130, 5))):
        x = values(kind, shape, BF16)
        check(x, fmt, *run(x, fmt))
        for sides in ({"col": False}, {"row": False}):
            row, col = run(x, fmt, **sides)
            check(x, fmt, row, col)
            check(x.T, fmt, *run(x.T, fmt, **sides))
    view = values("ties", (140, 200), BF16)[1:, 3:]
    check(view, fmt, *run(view, fmt))
    for shape in ((5, 0), (0, 5)):
        check(np.zeros(shape, BF16), fmt, *run(np.zeros(shape, BF16), fmt))
    wide = values("nonfinite", (130, 140), F32)
    exact = fmt.replace(power_of_two_scales=False)
    check(wide, exact, *run(wide, exact))


OTHER_FAMILIES = (
    fp8_e4m3.replace(block=128, nonfinite="nan_block"),
    mxfp8_e4m3.replace(block=(128, 128)),
    nvfp4.replace(element="float8_e4m3fn", block=128),
)


@pytest.mark.parametrize("fmt", OTHER_FAMILIES, **by_name)
def test_blocks_of_128_of_other_families(fmt: QuantDType) -> None:
    x = values("nonfinite", (70, 200), BF16)
    check(x, fmt, *run(x, fmt))


@pytest.mark.parametrize("fmt", (*ROWS, B128, B128_2D), **by_name)
def test_generic_variant_equals_the_tile_variants(fmt: QuantDType, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values("nonfinite", (70, 200), BF16)
    tiled = run(x, fmt)
    monkeypatch.setattr(quantize, "_tile_call", lambda job, where: None)
    for fast, plain in zip(tiled, run(x, fmt), strict=True):
        assert fast is not None
        assert plain is not None
        assert same_bits(fast.codes, plain.codes)
        assert same_bits(fast.scale, plain.scale)
        if fast.tensor_scale is not None:
            assert same_bits(fast.tensor_scale, plain.tensor_scale)
    check(x, fmt, *run(x, fmt))


USERS = tuple(fmt for fmt in MADE if fmt.name in ("e3m2_b24", "int4_bf16", "int4_2d", "int4_mx"))
OTHER_ELEMENTS = (mxfp6_e3m2, mxfp4.replace(scale_rule="even"), mxint8)


@pytest.mark.parametrize("fmt", (*OTHER_ELEMENTS, *USERS), **by_name)
def test_other_elements_and_formats_of_users(fmt: QuantDType) -> None:
    for kind, shape in (("wide", (70, 130)), ("nonfinite", (33, 50))):
        x = values(kind, shape, BF16)
        sides = run(x, fmt)
        check(x, fmt, *sides)
        for side in sides:
            assert side is not None
            got = dequantize.dequantize(side, F32, tensor_factors=True, out=None)
            assert same_bits(got, dequantize_oracle(side, F32))


@pytest.mark.parametrize(
    ("stack", "fmt"),
    [("modelopt", nvfp4), ("compressed-tensors", nvfp4), ("microxcaling", mxint8), ("mlx", mxfp8_e4m3),
     ("torchao", mxfp4.replace(scale_rule="even", name="mxfp4_even")), ("compressed-tensors", mxfp4)],
    ids=str,
)  # fmt: skip
def test_conventions(stack: str, fmt: QuantDType) -> None:
    row, steps = apply_convention(fmt, stack)
    for kind, shape in (("nonfinite", (33, 50)), ("zeros", (5, 40)), ("huge", (3, 64)), ("tiny", (3, 64))):
        x = values(kind, shape)
        check(x, row, *run(x, row, steps=steps), convention=stack)


def test_routes() -> None:
    """Matrices with contiguous rows or columns take a tile variant; what cannot falls to the generic one."""

    def variant(x: np.ndarray, fmt: QuantDType, *, axis: int = 1, col: bool = True) -> str | None:
        where = plan(fmt, x.shape, axis, True, col, "plain")
        found = tile_call(where, fmt, x.dtype, x.shape, element_strides(x), True, True, "even", False)
        return found and found.variant

    x = values("normal", (64, 96), BF16)
    assert [variant(x, fmt) for fmt in ROWS] == ["tensor", "pair", "pair", "block2d"]
    assert [variant(x.T, fmt) for fmt in ROWS] == ["tensor", "pair", "pair", "block2d"]
    assert [variant(x, fmt, col=False) for fmt in ROWS] == ["tensor", "block1d", "pair", "block2d"]
    assert variant(x, B128, col=False) == "block1d"
    assert variant(x, B128) == variant(x, B128_2D) == variant(x, B128_2D, col=False) == "block128"
    assert variant(x.T, B128, col=False) == "block128"  # its row side is the transpose's column copy
    assert variant(x, nvfp4.replace(block=128)) is None
    assert variant(x[:, ::2], mxfp8_e4m3) is None
    assert variant(x, mxfp8_e4m3, axis=0, col=False) is None
    assert variant(x.astype(F64), mxfp8_e4m3) is None


@pytest.mark.parametrize("fmt", (mxfp8_e4m3, nvfp4), **by_name)
def test_every_axis(fmt: QuantDType) -> None:
    deep = values("wide", (3, 5, 40))
    for x in (deep, deep.transpose(2, 0, 1), deep[:, ::2, ::-1]):
        for axis in range(3):
            row, _ = run(x, fmt, axis=axis)
            assert row is not None
            check_operand(row, quantize_exact(x, fmt, axis=axis), fmt, axis)


def test_padding_for_the_gemm_is_zero() -> None:
    x = values("normal", (21, 35), BF16)
    for fmt in (fp8_e4m3, mxfp8_e4m3):
        for side, (rows, length) in zip(run(x, fmt), ((21, 35), (35, 21)), strict=True):
            assert side is not None
            pitch = -(-length // 16) * 16
            assert side.codes.shape == (rows, length)
            assert side.leading_dimension == pitch
            assert side.padded_rows == -(-rows // 16) * 16
            whole = np.lib.stride_tricks.as_strided(side.codes, (side.padded_rows, pitch), (pitch, 1))
            assert not whole[:, length:].any()
            assert not whole[rows:].any()
    row, _ = run(values("normal", (2, 3, 24), BF16), fp8_e4m3)
    assert row is not None
    assert row.codes.strides == (96, 32, 1)
    aligned = run(values("normal", (32, 48), BF16), fp8_e4m3)[0]
    assert aligned is not None
    assert (aligned.padded_rows, aligned.codes.flags.c_contiguous) == (0, True)


def test_delayed_scaling_is_one_launch_and_records_amax() -> None:
    x = values("nonfinite", (33, 50), BF16)
    finite = values("normal", (33, 50), BF16)
    recorded = (np.array(1.0, F32), np.array(1e30, F32))
    with count_launches() as count:
        sides = run(finite, fp8_e4m3, scale=np.array(37.5, F32), amax_out=recorded)
    assert count.n == 1
    check(finite, fp8_e4m3, *sides, scale=np.float32(37.5))
    assert [float(word) for word in recorded] == [np.abs(finite.astype(F32)).max(), np.float32(1e30)]
    word = np.array(np.nan, F32)  # a NaN in the state does not stay there
    check(x, fp8_e4m3, *run(x, fp8_e4m3, scale=np.array(0.5, F32), amax_out=(word, word)), scale=np.float32(0.5))
    assert word == np.inf
    with count_launches() as count:
        run(finite, fp8_e4m3, amax_out=recorded)
    assert count.n == 2


@pytest.mark.parametrize("fmt", (nvfp4, OTHER_FAMILIES[-1]), ids=str)
def test_words_of_two_level_formats(fmt: QuantDType) -> None:
    x = values("normal", (33, 50), BF16)
    row, col = run(x, fmt, amax=(np.array(3.0, F32), np.array(5.0, F32)))
    check(x, fmt, row, amax=np.float32(3))
    check(x, fmt, None, col, amax=np.float32(5))
    word = np.array(0.25, F32)
    check(x, fmt, *run(x, fmt, tensor_scale=(word, word)), tensor_scale=np.float32(0.25))


def test_tiled_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    x = values("normal", (150, 200), BF16)
    for fmt in (nvfp4, nvfp4_2d):
        plain = run(x, fmt)
        for tiled in (run(x, fmt, scale_layout="tiles128x4"), _generic(monkeypatch, x, fmt)):
            for want, got in zip(plain, tiled, strict=True):
                assert want is not None
                assert got is not None
                rows = np.repeat(want.scale, (fmt.block_shape or (1, 1))[0], axis=0)[: want.stored_shape[0]]
                assert same_bits(got.scale, to_tiles128x4(rows))


def _generic(patch: pytest.MonkeyPatch, x: np.ndarray, fmt: QuantDType, layout: str = "tiles128x4") -> Any:
    with patch.context() as inner:
        inner.setattr(quantize, "_tile_call", lambda job, where: None)
        return run(x, fmt, scale_layout=layout)


@pytest.mark.parametrize(
    "fmt", (B128, B128_2D, fp8_e4m3.replace(block=32), fp8_e4m3.replace(block=(32, 32))), **by_name
)
def test_scales_along_k(fmt: QuantDType, monkeypatch: pytest.MonkeyPatch) -> None:
    square = isinstance(fmt.block, tuple)
    for shape in ((150, 270), (129, 128)):
        x = values("normal", shape, BF16)
        plain = run(x, fmt)
        alone = run(x, fmt, col=False, scale_layout="k_major128")
        for laid in (run(x, fmt, scale_layout="k_major128"), alone, _generic(monkeypatch, x, fmt, "k_major128")):
            for want, got in zip(plain, laid, strict=True):
                assert want is not None
                if got is None:
                    continue
                assert same_bits(got.scale, to_k_major128(want.scale.T if square else want.scale))
                assert same_bits(got.codes, want.codes)
                values_of = dequantize.dequantize(plain_scales(got), F32, tensor_factors=True, out=None)
                assert same_bits(values_of, dequantize_oracle(want, F32))


@pytest.mark.parametrize("fmt", ROWS, **by_name)
def test_dequantize(fmt: QuantDType) -> None:
    x = values("nonfinite", (37, 300), BF16)
    for side in run(x, fmt):
        assert side is not None
        for factors in (True, False):
            got = dequantize.dequantize(side, BF16, tensor_factors=factors, out=None)
            assert same_bits(got, dequantize_oracle(side, BF16, tensor_factors=factors))
    out = np.zeros((300, 37), BF16).T
    row, _ = run(x, fmt)
    assert row is not None
    assert dequantize.dequantize(row, BF16, tensor_factors=True, out=out) is out
    assert same_bits(out, dequantize_oracle(row, BF16))
    deep, _ = run(values("wide", (3, 6, 40)), fmt, axis=1)
    assert deep is not None
    assert same_bits(dequantize.dequantize(deep, F32, tensor_factors=True, out=None), dequantize_oracle(deep, F32))


def test_amax() -> None:
    base = values("nonfinite", (37, 75), BF16)
    for x in (base, base.T, base[::-2, ::3], base[:0]):
        for finite in (False, True):
            magnitude = np.abs(round_to_odd32(x))
            keep = np.isfinite(magnitude) if finite else ~np.isnan(magnitude)
            assert amax.amax(x, finite=finite, out=None) == magnitude[keep].max(initial=0)
    out = np.array(np.nan, F32)
    assert amax.amax(base[:0], finite=True, out=out) is out
    assert out == 0


def test_cast() -> None:
    def convert(x: np.ndarray, dtype: Any, **options: Any) -> np.ndarray:
        rows = {"source": None, "target": None, "overflow": "saturate", "out": None, **options}
        return cast.cast(x, np.dtype(dtype), **rows)  # type: ignore[no-any-return]

    x = values("nonfinite", (5, 70, 90))
    for view in (x.transpose(0, 2, 1), x[:, ::2, ::-1], x[2], x.T[::3], x[:, :0]):
        assert same_bits(convert(view, F32), np.ascontiguousarray(view))
    assert same_bits(convert(x[0].T, BF16), x[0].T.astype(BF16, order="C"))
    halfway = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8], F64)  # float32 would round the first to the second
    assert convert(halfway, BF16).tolist() == [ml_dtypes.bfloat16(1.0078125), 1.0]
    assert convert(np.array([2**24 + 1, 257 * 2**50 + 1]), BF16).tolist() == [2**24, 258 * 2**50]
    wide = np.array([np.nan, 1e30, -1e30, -2.9, 2.9, 300.0], F32)
    assert convert(wide, np.int8).tolist() == [0, 127, -128, -2, 2, 127]
    e5m2 = el.float8_e5m2
    for overflow in ("saturate", "nonsat"):
        codes = convert(x, e5m2.dtype, target=e5m2, overflow=overflow)
        assert same_bits(codes, encode(x, e5m2, overflow=overflow))
        codes = convert(x, e5m2.dtype, target=e5m2, overflow=overflow, rounding="toward_zero")
        assert same_bits(codes, encode(x, e5m2, overflow=overflow, rounding="toward_zero"))


def test_moves() -> None:
    x = np.arange(3 * 70 * 131, dtype=np.int64).reshape(3, 70, 131)
    for dtype in (np.uint8, np.float64):
        for view in (x.astype(dtype), x.astype(dtype)[:, ::2, ::-1]):
            got = transpose.transpose(view, packed=False, columns=view.shape[-1], out=None)
            assert same_bits(got, np.ascontiguousarray(view.swapaxes(1, 2)))
    nibbles = (x % 13).astype(np.uint8)
    got = transpose.transpose(pack(nibbles), packed=True, columns=131, out=None)
    assert same_bits(got, pack(nibbles.swapaxes(1, 2)))
    for shape in ((2, 48, 80), (288, 304)):  # whole pieces on both sides, tiles of them whole and cut
        for dtype in (np.uint8, np.uint16):
            pieces = np.random.default_rng(0).integers(0, 2**16, shape).astype(dtype)
            got = transpose.transpose(pieces, packed=False, columns=shape[-1], out=None)
            assert same_bits(got, np.ascontiguousarray(pieces.swapaxes(-1, -2)))
        got = transpose.transpose(pack(pieces.astype(np.uint8) % 16), packed=True, columns=shape[-1], out=None)
        assert same_bits(got, pack((pieces.astype(np.uint8) % 16).swapaxes(-1, -2)))
    matrix = nibbles[0]
    tiles = scale_layout.scale_layout(matrix.T, "tiles128x4", inverse_shape=None, out=None)
    assert same_bits(tiles, to_tiles128x4(matrix.T))
    back = scale_layout.scale_layout(tiles, "plain", inverse_shape=(131, 70), out=None)
    assert same_bits(back, np.ascontiguousarray(matrix.T))
    scale = values("normal", (70, 3))
    for view in (scale, scale.T, scale[::-2]):
        got = scale_layout.scale_layout(view, "k_major128", inverse_shape=None, out=None)
        assert same_bits(got, to_k_major128(view))
