"""The codec against software that nobody here wrote: gfloat, torch, NVIDIA's headers compiled for the host."""

from __future__ import annotations

from typing import Any

import gfloat
import gfloat.formats as gf
import numpy as np
import pytest

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, decode, encode
from nvfp.dtypes.elements import Element
from nvfp.dtypes.scales import e8m0_from_amax
from tests.devices import need_oracle
from tests.dtypes import cuda_headers
from tests.dtypes.inputs import FLOATS, SIXTEEN_BITS, all_of, around, f32, random_values, ties

GFLOAT = {
    "float8_e4m3fn": gf.format_info_ocp_e4m3,
    "float8_e5m2": gf.format_info_ocp_e5m2,
    "float6_e2m3fn": gf.format_info_ocp_e2m3,
    "float6_e3m2fn": gf.format_info_ocp_e3m2,
    "float4_e2m1fn": gf.format_info_ocp_e2m1,
    "int8": gf.format_info_ocp_int8,
}


def numbers(element: Element) -> np.ndarray:
    """Every bfloat16 and float16, random values, ties and their neighbours: float32, without NaN."""
    with np.errstate(invalid="ignore"):
        sixteen = [all_of(dtype).astype(np.float32) for dtype in SIXTEEN_BITS.values()]
    drawn = [random_values(element, 20_000, seed=3), around(ties(element), np.float32)]
    x = np.concatenate([*sixteen, *drawn, f32([-0.0, -1e-30, 3e38, -3e38, np.inf, -np.inf])])
    return np.asarray(x[~np.isnan(x)])


@pytest.mark.parametrize("element", [*FLOATS, el.int8], ids=lambda e: e.name)
def test_gfloat_saturating(element: Element) -> None:
    info: Any = GFLOAT[element.name]
    x = numbers(element).astype(np.float64)
    x = np.where(np.isinf(x), np.copysign(1e38, x), x)  # gfloat's FP6 and FP4 refuse infinities
    rounded = gfloat.round_ndarray(info, x, gfloat.RoundMode.TiesToEven, True)
    np.testing.assert_array_equal(encode(x, element), gfloat.encode_ndarray(info, rounded).astype(np.uint8))


@pytest.mark.parametrize("overflow", ["saturate", "nonsat"])
@pytest.mark.parametrize("element", [*FLOATS, el.int8], ids=lambda e: e.name)
def test_gfloat_toward_zero(element: Element, overflow: Overflow) -> None:
    """Finite numbers beyond the largest value become that value; infinities follow ``overflow``."""
    info: Any = GFLOAT[element.name]
    x = np.concatenate([numbers(element).astype(np.float64), around(ties(element), np.float64), [1e9, -1e9]])
    x = x[np.isfinite(x)]
    saturates = overflow == "saturate" or not (element.has_inf or element.has_nan)
    rounded = gfloat.round_ndarray(info, x, gfloat.RoundMode.TowardZero, saturates)
    codes = encode(x, element, overflow=overflow, rounding="toward_zero")
    np.testing.assert_array_equal(codes, gfloat.encode_ndarray(info, rounded).astype(np.uint8))


@pytest.mark.parametrize("element", [*FLOATS, el.int8], ids=lambda e: e.name)
def test_gfloat_decodes_the_same(element: Element) -> None:
    info: Any = GFLOAT[element.name]
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    right = np.array([gfloat.decode_float(info, int(c)).fval for c in codes])
    np.testing.assert_array_equal(decode(codes, element), right)


@pytest.mark.oracle
@pytest.mark.parametrize(("element", "overflow"), [(el.float8_e4m3fn, "saturate"), (el.float8_e5m2, "nonsat")])
def test_torch(element: Element, overflow: Overflow) -> None:
    """torch saturates E4M3 (from 2.13) and not E5M2; NaN codes differ, so only numbers are compared."""
    torch = need_oracle("torch")
    x = numbers(element)
    if element is el.float8_e4m3fn and int(torch.tensor(500.0).to(torch.float8_e4m3fn).view(torch.uint8)) != 0x7E:
        pytest.skip("oracle torch is not installed in a version that saturates float8_e4m3fn")
    codes = torch.from_numpy(x).to(getattr(torch, element.name)).view(torch.uint8).numpy()
    np.testing.assert_array_equal(encode(x, element, overflow=overflow), codes)


@pytest.fixture(scope="module")
def casts(tmp_path_factory: pytest.TempPathFactory) -> cuda_headers.Casts:
    if (reason := cuda_headers.problem()) is not None:
        pytest.skip(reason)
    return cuda_headers.Casts(tmp_path_factory.mktemp("cuda_headers"))


@pytest.mark.oracle
@pytest.mark.parametrize("overflow", ["saturate", "nonsat"])
@pytest.mark.parametrize("element", [el.float8_e4m3fn, el.float8_e5m2], ids=lambda e: e.name)
def test_cuda_fp8(casts: cuda_headers.Casts, element: Element, overflow: Overflow) -> None:
    x = np.append(numbers(element), np.float32(np.nan))
    codes = casts("to_fp8", x, int(element is el.float8_e5m2), int(overflow == "saturate"))
    np.testing.assert_array_equal(encode(x, element, overflow=overflow), codes)


@pytest.mark.oracle
def test_cuda_fp6_and_fp4(casts: cuda_headers.Casts) -> None:
    for element, function, flags in (
        (el.float6_e2m3fn, "to_fp6", (0,)),
        (el.float6_e3m2fn, "to_fp6", (1,)),
        (el.float4_e2m1fn, "to_fp4", ()),
    ):
        x = np.append(numbers(element), np.float32(np.nan))
        np.testing.assert_array_equal(encode(x, element), casts(function, x, *flags), err_msg=element.name)


@pytest.mark.oracle
@pytest.mark.parametrize("element", FLOATS, ids=lambda e: e.name)
def test_cuda_e8m0_rounds_amax_up(casts: cuda_headers.Casts, element: Element) -> None:
    """The kernels' way to rule ceil, e8m0(fl(amax * fl(1/max))) rounded up, equals ours wherever v is normal."""
    edges = (element.max * np.exp2(np.arange(-100.0, 100))).astype(np.float32)
    drawn = np.exp2(np.random.default_rng(5).uniform(-100, 127, 50_000)).astype(np.float32)
    amax = np.concatenate([edges, np.nextafter(edges, f32(np.inf)), np.nextafter(edges, f32(0)), drawn])
    codes = casts("to_e8m0_up", amax * (np.float32(1) / np.float32(element.max)))
    np.testing.assert_array_equal(e8m0_from_amax(amax, element), codes)
