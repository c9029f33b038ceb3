"""What only a GPU shows of the quantize family: hardware conversions, subnormals, large sizes, graphs, the cache."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvfp.dtypes import elements as el
from nvfp.dtypes.block import quantize_exact
from nvfp.dtypes.codec import encode
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import (
    QuantDType,
    fp8_e4m3,
    fp8_e5m2,
    mxfp4,
    mxfp6_e3m2,
    mxfp8_e4m3,
    mxfp8_e5m2,
    mxint8,
    nvfp4,
)
from nvfp.kernels.amax import amax
from nvfp.kernels.cast import cast
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.quantize import quantize
from nvfp.kernels.transpose import transpose
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import BF16, F32, check_sides, nvfp4_2d, same_bits, values

pytestmark = pytest.mark.gpu
ROWS = (fp8_e4m3, fp8_e5m2, mxfp8_e4m3, mxfp8_e5m2, mxfp6_e3m2, mxfp4, mxint8, nvfp4, nvfp4_2d)
by_name = {"ids": lambda row: row.name}


def every_bfloat16() -> np.ndarray:
    return np.arange(65536, dtype=np.uint16).view(BF16).reshape(256, 256)


@pytest.mark.parametrize("fmt", (fp8_e4m3, fp8_e5m2), **by_name)
@pytest.mark.parametrize("overflow", ["saturate", "nonsat"])
def test_every_bfloat16_through_the_quantizer(fmt: QuantDType, overflow: Any) -> None:
    """FP8 pairs are converted by hardware where they saturate."""
    x = every_bfloat16()
    raw = to_device(x, "cuda")
    for multiplier in (1.0, 3.0, 2.0**-9):
        word = to_device(np.array(multiplier, F32), "cuda")
        pair = quantize(raw, fmt, col=True, scale=word, overflow=overflow)
        check_sides(pair, x, fmt, scale=np.float32(multiplier), overflow=overflow)


@pytest.mark.parametrize("element", [e for e in el.ELEMENTS.values() if e.bits <= 8 and not e.integer], **by_name)
def test_every_bfloat16_and_many_floats_through_cast(element: Element) -> None:
    drawn = np.random.default_rng(0).integers(0, 2**32, 1 << 20, dtype=np.uint32).view(F32)
    for x in (every_bfloat16(), drawn):
        for overflow in ("saturate", "nonsat"):
            got = cast(to_device(x, "cuda"), element.dtype, overflow=overflow)  # type: ignore[arg-type]
            assert same_bits(got, encode(x, element, overflow=overflow))  # type: ignore[arg-type]


def test_subnormals_are_kept() -> None:
    x = np.array([1e-40, -2e-45, 1.1754942e-38, 0.0], F32)
    assert same_bits(cast(to_device(x, "cuda"), np.dtype(np.float64)), x.astype(np.float64))
    tiny = np.full((2, 32), 2.0**-149, F32)
    check_sides(quantize(to_device(tiny, "cuda"), mxfp8_e4m3, col=True), tiny, mxfp8_e4m3)
    assert to_numpy(amax(to_device(tiny, "cuda"))) == np.float32(2.0**-149)
    row = quantize(to_device(tiny, "cuda"), mxfp8_e4m3).row
    assert row is not None
    small = np.array([[0x01, 0x7E]], np.uint8)  # 2^-9 and 448 under the least scale, 2^-127
    operand = dataclasses.replace(row, codes=to_device(small, "cuda"), scale=row.scale[:1] * 0, shape=(1, 2))
    assert same_bits(dequantize(operand, np.dtype(F32)), np.array([[2.0**-136, 448 * 2.0**-127]], F32))


@pytest.mark.parametrize("fmt", ROWS, **by_name)
def test_large_matrices(fmt: QuantDType) -> None:
    for shape in ((2048, 1536), (1000, 1533)):
        x = values("nonfinite", shape, BF16)
        check_sides(quantize(to_device(x, "cuda"), fmt, col=True), x, fmt)


@pytest.mark.parametrize("fmt", ROWS, **by_name)
def test_twice_the_same_bits(fmt: QuantDType) -> None:
    raw = to_device(values("wide", (777, 1030), BF16), "cuda")
    first, second = (quantize(raw, fmt, col=True) for _ in range(2))
    for a, b in ((first.row, second.row), (first.col, second.col)):
        assert a is not None
        assert b is not None
        assert same_bits(a.codes, to_numpy(b.codes))
        assert same_bits(a.scale, to_numpy(b.scale))


@pytest.mark.parametrize("fmt", ROWS, **by_name)
def test_a_captured_graph_follows_its_input(fmt: QuantDType) -> None:
    import cupy

    first, second = (values(kind, (64, 96), BF16) for kind in ("normal", "wide"))
    raw = to_device(first.copy(), "cuda")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        quantize(raw, fmt, col=True)  # compiles, loads, and leaves its memory to this stream's pool
        stream.begin_capture()
        pair = quantize(raw, fmt, col=True)
        graph = stream.end_capture()
        for x in (first, second):
            raw.view(np.uint16).set(x.view(np.uint16))
            graph.launch(stream)
            stream.synchronize()
            check_sides(pair, x, fmt)


def test_launches() -> None:
    raw = to_device(values("normal", (64, 96), BF16), "cuda")
    word = to_device(np.array(1.0, F32), "cuda")
    counts = []
    for fmt, options in ((fp8_e4m3, {"scale": word, "amax_out": word}), (fp8_e4m3, {}), (mxfp8_e4m3, {}), (nvfp4, {})):
        with count_launches() as count:
            quantize(raw, fmt, col=True, **options)
        counts.append(count.n)
    assert counts == [1, 2, 1, 2]


def test_more_elements_than_a_32_bit_index() -> None:
    import cupy

    n = 2**31 + 2**16
    free, _ = cupy.cuda.runtime.memGetInfo()
    if free < 16 << 30:
        pytest.skip("no CUDA device: with 16 GiB free")
    codes = cupy.zeros(n, np.uint8)
    codes[-1], codes[2**31 - 1], codes[2**31] = 0x7E, 1, 2
    wide = cast(codes, BF16, source=el.float8_e4m3fn.dtype)
    assert to_numpy(wide[-2:]).astype(F32).tolist() == [0.0, 448.0]
    assert to_numpy(amax(wide)) == 448.0
    assert int(transpose(codes.reshape(-1, 2**16))[-1, -1]) == 0x7E
    row = quantize(wide.reshape(-1, 2**16), mxfp8_e4m3).row
    assert row is not None
    assert int(row.codes[-1, -1]) == quantize_exact(np.array([448.0], F32), mxfp8_e4m3).codes[-1]


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, cupy, numpy as np\n"
        "from nvfp.kernels.cuda import _loader\n"
        "from nvfp.kernels.amax import amax\n"
        "if sys.argv[1] == 'cached': _loader.compile_cubin = None\n"
        "print(float(amax(cupy.asarray(np.float32([1, -3])))))\n"
    )
    for mode in ("fresh", "cached"):
        environment = os.environ | {"NVFP_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", code, mode]
        root = Path(__file__).parents[3]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "3.0", done.stderr
