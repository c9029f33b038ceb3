"""Row-scaled formats and 4-over-6 in the kernels: the exact twin's bits, Transformer Engine's bytes, GEMMs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.formats import QuantDType, mxfp8, nvfp4
from nvfp.dtypes.packing import unpack
from nvfp.errors import DTypeError
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.gemm import gemm
from nvfp.kernels.operand import OperandPair
from nvfp.kernels.quantize import quantize
from tests.data.load import load
from tests.devices import to_device, to_numpy
from tests.dtypes.test_levels import VARIANTS, row_of
from tests.kernels.quantized import BF16, DTYPES, F32, check_operand, same_bits, values
from tests.tolerances import check

ROWS = nvfp4.replace(per_row_tensor_scale=True)
FORMATS = [
    ROWS,
    *(nvfp4.replace(four_over_six=mode) for mode in ("mae_256", "mse_448")),
    *(nvfp4.replace(four_over_six=mode, block=(16, 16)) for mode in ("mse_256", "mae_448")),
    nvfp4.replace(four_over_six="mae_256", block=(4, 24)),
    ROWS.replace(four_over_six="mse_256"),
    ROWS.replace(element="float8_e4m3fn", scale="float8_e5m2", block=24),
    nvfp4.replace(four_over_six="mae_256", nonfinite="saturate"),
]
by_name: dict[str, Any] = {"ids": lambda fmt: fmt.name}


def check_pair(x: np.ndarray, fmt: QuantDType, pair: OperandPair, **options: Any) -> None:
    """Both sides; the columns of square blocks are the transpose of the rows."""
    row, col = quantize_exact(x, fmt, axis=1, **options), quantize_exact(x, fmt, axis=0, **options)
    if pair.row is not None:
        check_operand(pair.row, row, fmt, 1)
    if pair.col is not None:
        check_operand(pair.col, row if fmt.square else col, fmt, 0, swap=True)


@pytest.mark.sanitizer
@pytest.mark.parametrize("fmt", FORMATS, **by_name)
def test_bits(device: Device, fmt: QuantDType) -> None:
    for kind, shape in (("normal", (64, 48)), ("nonfinite", (40, 33)), ("zeros", (1, 5)), ("wide", (70, 200)),
                        ("tiny", (16, 16)), ("huge", (20, 20)), ("normal", (0, 5)), ("normal", (5, 0))):  # fmt: skip
        for dtype in DTYPES:
            x = values(kind, shape, dtype)
            on = to_device(x, device)
            pair = quantize(on, fmt, col=True)
            check_pair(x, fmt, pair)
            for sides in ({"row": False, "col": True}, {"row": True, "col": False}):
                check_pair(x, fmt, quantize(on, fmt, **sides))
            for side, axis in ((pair.row, 1), (pair.col, 0)):
                assert side is not None
                exact = quantize_exact(x, fmt, axis=1 if fmt.square else axis)
                for wanted in (np.dtype(F32), BF16):
                    made = dequantize_exact(exact, fmt, axis=1 if fmt.square else axis, dtype=wanted)
                    assert same_bits(dequantize(side, wanted), made)


@pytest.mark.parametrize("fmt", FORMATS[:3] + FORMATS[6:7], **by_name)
def test_layouts_and_axes(device: Device, fmt: QuantDType) -> None:
    x = values("normal", (48, 70), BF16)
    for view in (x.T, x[::-1, ::2], x[1:, 3:]):
        check_pair(view, fmt, quantize(to_device(view, device), fmt, col=True))
    cube = values("wide", (3, 40, 5))
    for axis in (0, 1, 2):
        side = quantize(to_device(cube, device), fmt, axis=axis).row
        assert side is not None
        exact = quantize_exact(cube, fmt, axis=axis)
        check_operand(side, exact, fmt, axis)
        assert same_bits(dequantize(side, F32), dequantize_exact(exact, fmt, axis=axis))
        assert same_bits(dequantize(side.T, F32), dequantize_exact(exact, fmt, axis=axis).swapaxes(1, 2))


@pytest.mark.parametrize("block", [1, (1, 1)])
def test_blocks_of_one_value(device: Device, block: Any) -> None:
    """Rows and columns have tensor scales of their own even where their blocks are the same: they were shared."""
    x, fmt = values("wide", (5, 7)), ROWS.replace(block=block)
    check_pair(x, fmt, quantize(to_device(x, device), fmt, col=True))
    side = quantize(to_device(x, device), fmt, col=True).col
    assert side is not None and side.tensor_scale is not None
    assert side.tensor_scale.shape == (7,)
    assert same_bits(dequantize(side, F32), dequantize_exact(quantize_exact(x, fmt, axis=0), fmt, axis=0))


@pytest.mark.parametrize("case", VARIANTS)
def test_transformer_engine(device: Device, case: str) -> None:
    """Its reference, both sides as they are stored. It writes code 0 for what is exactly -0; all else is equal."""
    tensors, fmt = load("blocks_nvfp4_variants"), row_of(case)
    x = load("blocks_nvfp4")[f"input.f32.nvfp4.{case.split('.', 3)[3]}.x"]
    pair = quantize(to_device(x, device), fmt, col=True)
    for side, prefix in ((pair.row, ""), (pair.col, "columnwise_")):
        assert side is not None
        rows, columns = side.stored_shape
        scale = np.repeat(to_numpy(side.scale), (fmt.block_shape or (1, 1))[0], axis=0)[:rows]
        np.testing.assert_array_equal(scale, tensors[f"{case}.{prefix}scale"])
        codes, theirs = (unpack(c, columns) for c in (to_numpy(side.codes), tensors[f"{case}.{prefix}data"]))
        np.testing.assert_array_equal(np.where(codes == 8, 0, codes), np.where(theirs == 8, 0, theirs))
        amax = tensors[f"{case}.{prefix}amax"] / F32.type(6 * fmt.scale_bound)
        np.testing.assert_array_equal(np.ravel(to_numpy(side.tensor_scale)), amax)


@pytest.mark.parametrize("fmt", FORMATS[1:5], **by_name)
def test_words(device: Device, fmt: QuantDType) -> None:
    """A given A, a given tensor scale, both, and the recorded amax."""
    x = values("normal", (48, 32), BF16)
    on = to_device(x, device)
    for options in ({"amax": 7.0}, {"tensor_scale": 0.003}, {"amax": 7.0, "tensor_scale": 0.5}):
        words = {name: to_device(np.asarray(value, F32), device) for name, value in options.items()}
        out = to_device(np.zeros((), F32), device)
        check_pair(x, fmt, quantize(on, fmt, col=True, amax_out=out, **words), **options)
        assert float(to_numpy(out)) == float(np.abs(x.astype(F32)).max())


@pytest.mark.parametrize("fmt", [ROWS, ROWS.replace(four_over_six="mse_256"), FORMATS[1]], **by_name)
def test_gemm(device: Device, fmt: QuantDType) -> None:
    """Products with one tensor scale per row on either side, and beside a plain operand."""
    x, w = values("wide", (40, 64)), values("normal", (24, 64), seed=1)
    left = quantize(to_device(x, device), fmt).row
    assert left is not None
    for right_fmt in (nvfp4, fmt):
        right = quantize(to_device(w, device), right_fmt).row
        assert right is not None
        a, b = (to_numpy(dequantize(side, F32)).astype(np.float64) for side in (left, right))
        bias = values("normal", (24,))
        y = gemm(left, right.T, bias=to_device(bias, device), dtype=BF16)
        check(to_numpy(y), a @ b.T + bias, "gemm", scale=np.abs(a) @ np.abs(b.T) + np.abs(bias))
    col = quantize(to_device(x, device), fmt, row=False, col=True).col
    dy = values("normal", (40, 24), seed=2)
    assert col is not None
    held = to_numpy(dequantize(col, F32)).astype(np.float64)
    check(
        to_numpy(gemm(to_device(dy.T, device), col)), dy.T.astype(np.float64) @ held, "gemm",
        scale=np.abs(dy.T) @ np.abs(held),
    )  # fmt: skip


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    x = values("wide", (300, 400))
    monkeypatch.setenv("NVFP_NUM_THREADS", threads)
    for fmt in FORMATS[:7]:
        check_pair(x, fmt, quantize(x, fmt, col=True))


def test_what_does_not_fit(device: Device) -> None:
    x = to_device(values("normal", (32, 32), BF16), device)
    word = to_device(np.ones((), F32), device)
    rng = Rng(0, 0, to_device(np.zeros((), np.int64), device))
    for name in ("amax", "tensor_scale"):
        with pytest.raises(ValueError, match=f"for {name}="):
            quantize(x, ROWS, **{name: word})
    for fmt in (ROWS, FORMATS[1]):
        with pytest.raises(ValueError, match="rounding='even' with"):
            quantize(x, fmt, rounding="stochastic", rng=rng)
        with pytest.raises(ValueError, match="no rotation with"):
            quantize(x, fmt, col=True, rotation="rht16")
    with pytest.raises(ValueError, match="scale_layout='plain' for the columns"):
        quantize(x, FORMATS[3], col=True, scale_layout="tiles128x4")


@pytest.mark.parametrize("axis", [[0], "0", None])
def test_an_axis_is_a_whole_number(axis: Any) -> None:
    """A list reached the cache of resolved arguments, whose error told nothing."""
    with pytest.raises(DTypeError, match=r"\[quantize\] expected axis in whole numbers"):
        quantize(np.ones((2, 32), np.float32), mxfp8, axis=axis)
