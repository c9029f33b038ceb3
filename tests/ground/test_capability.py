"""The capability table: levels by compute capability, matched by properties, not names."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from nvfp.capability import GEMM_MODES, Capability, expansion, gemm_mode
from nvfp.dtypes import elements as el, formats
from nvfp.dtypes.formats import FORMATS, QuantDType
from nvfp.errors import ArgumentError

FP8_B128 = formats.fp8_e4m3.replace(name="fp8_b128", block=128)  # scales of any size


@pytest.mark.parametrize(
    ("dtype", "levels"),
    [  # on 7.5, 8.0, 8.9, 9.0, 10.0, 12.0, cpu
        (formats.fp8_e4m3, "absent emulated native native native native emulated"),
        (formats.fp8_e5m2, "absent emulated native native native native emulated"),
        (formats.fp8_e4m3_b128, "absent emulated emulated native emulated emulated emulated"),
        (FP8_B128.replace(block=(128, 128)), "absent emulated emulated native emulated emulated emulated"),
        (FP8_B128.replace(block=(64, 128)), "absent emulated emulated emulated emulated emulated emulated"),
        (formats.mxfp8_e4m3, "absent emulated emulated emulated emulated emulated emulated"),
        (formats.nvfp4, "absent emulated emulated emulated emulated emulated emulated"),
        (el.bfloat16, "absent native native native native native emulated"),
        (el.float32, "absent native native native native native native"),
        (el.float8_e4m3fn, "absent absent absent absent absent absent absent"),
    ],
)
def test_gemm_levels(dtype: QuantDType | el.Element, levels: str) -> None:
    chips = ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0), None)
    assert " ".join(Capability(chip).gemm(dtype).level for chip in chips) == levels


@pytest.mark.parametrize("dtype", [*FORMATS.values(), el.bfloat16])
def test_casts_are_native_wherever_kernels_run(dtype: QuantDType | el.Element) -> None:
    assert [Capability(c).cast(dtype).level for c in ((7, 0), (8, 0), (10, 0), None)] == ["absent", *["native"] * 3]


def test_reasons_name_the_cause() -> None:
    assert "needs compute capability 10.0 and newer" in Capability((9, 0)).gemm(formats.nvfp4).reason
    assert "needs compute capability 9.0 only" in Capability((10, 0)).gemm(FP8_B128).reason
    assert "needs NVFP_UNPROVEN_GEMM=1; operands expanded to bfloat16" in Capability((10, 0)).gemm(formats.mxfp8).reason
    assert "no mode" in Capability((10, 0)).gemm(formats.nvfp4.replace(block=(8, 16))).reason


def test_a_format_is_known_by_its_properties() -> None:
    mine = QuantDType("mine", "float8_e5m2", 32, "float8_e8m0fnu")
    assert gemm_mode(mine) is gemm_mode(formats.mxfp8_e5m2)
    assert gemm_mode(mine) is not None
    assert gemm_mode(mine.replace(block=16)) is None


def test_each_mode_is_used_by_at_most_one_block_and_scale() -> None:
    keys = [(mode.block, mode.scale) for mode in GEMM_MODES]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (formats.fp8_e4m3, "bfloat16"),
        (formats.mxfp8_e5m2, "bfloat16"),
        (formats.nvfp4, "bfloat16"),
        (QuantDType("mxint8", "int8", 32, "float8_e8m0fnu"), "bfloat16"),
        (FP8_B128, "float32"),
        (formats.fp8_e4m3_b128, "bfloat16"),
        (QuantDType("wide", "float8_e4m3fn", 16, "float16"), "float32"),
    ],
)
def test_expansion(dtype: QuantDType, name: str) -> None:
    assert expansion(dtype).name == name


def _values(element: el.Element) -> np.ndarray:
    codes = np.arange(2**element.bits, dtype=np.uint32).astype(element.storage)
    values = (
        codes.view(element.dtype).astype(np.float64) if element.bits >= 8 else codes.astype(element.dtype).astype(float)
    )
    return values[np.isfinite(values)]


def test_expansion_to_bfloat16_is_exact() -> None:
    """NVFP4: every code times every scale has at most 8 significand bits, so bfloat16 holds the product."""
    magnitudes = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    scales = _values(formats.nvfp4.scale)
    for code in magnitudes:
        product = code * scales
        assert (product.astype(el.bfloat16.dtype).astype(np.float64) == product).all()
        assert all(Fraction(code) * Fraction(s) == Fraction(p) for s, p in zip(scales, product, strict=True))


@pytest.mark.parametrize(
    ("text", "compute"), [("9.0", (9, 0)), ("90", (9, 0)), ("sm_100f", (10, 0)), ("12.1", (12, 1))]
)
def test_parse(text: str, compute: tuple[int, int]) -> None:
    assert Capability.parse(text).compute == compute
    assert Capability.parse("cpu").compute is None


@pytest.mark.parametrize("text", ["", "nine", "9.", "sm_", "9.0.1", "-9.0"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ArgumentError, match="capability"):
        Capability.parse(text)
