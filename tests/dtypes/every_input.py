"""All 65,536 inputs of both 16-bit floats through every way to a code: the codec, and what users call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

import nvfp as nf
from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, decode, encode
from nvfp.dtypes.dense import NARROW
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.packing import pack, unpack
from tests.dtypes.inputs import SIXTEEN_BITS, all_of

Codes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float64]
OVERFLOWS: list[Overflow] = ["saturate", "nonsat"]


def is_nan(x: np.ndarray) -> npt.NDArray[np.bool_]:
    """NaN, signalling ones without a warning."""
    with np.errstate(invalid="ignore"):
        return np.isnan(x.astype(np.float32))


def unit(element: Element) -> QuantDType:
    """A quantized dtype with one float32 scale; under scale 1 its codes are the codes of the elements."""
    return QuantDType(f"unit_{element.name}", element, None, el.float32, nonfinite="saturate")


def ways(x: np.ndarray, element: Element, overflow: Overflow, device: Device) -> Iterator[tuple[str, Codes]]:
    """The codes of ``x`` by the codec, by ``astype`` and by ``nf.quantize``, named."""
    yield "encode", encode(x, element, overflow=overflow).astype(np.uint8)
    on = nf.asarray(x, device=device)
    if element.dtype in NARROW:
        yield "astype", nf.asnumpy(on.astype(element.dtype, overflow=overflow)).view(np.uint8)
    if element.signed:
        codes = nf.asnumpy(nf.quantize(on, unit(element), scale=1.0, overflow=overflow).codes).view(np.uint8)
        yield "quantize", unpack(codes, x.size) if element.packed else codes


def check_casts(
    theirs: Callable[[np.ndarray], Codes],
    element: Element,
    overflow: Overflow,
    device: Device,
    *,
    where: Callable[[np.ndarray], np.ndarray] | None = None,
) -> None:
    """Every way gives what ``theirs`` gives for every number (``where`` it is meant), and nvfp's own code for NaN."""
    for dtype in SIXTEEN_BITS.values():
        x = all_of(dtype)
        nan = is_nan(x)
        x = np.concatenate([x[~nan], x[nan]])
        meant = np.arange(x.size) < np.count_nonzero(~nan)
        if where is not None:
            with np.errstate(invalid="ignore"):
                meant &= where(x.astype(np.float32))
        wanted = theirs(x[meant])
        assert wanted.size > 20_000
        for name, codes in ways(x, element, overflow, device):
            np.testing.assert_array_equal(codes[meant], wanted, err_msg=f"{name} from {dtype.name}")
            assert (codes[-np.count_nonzero(nan) :] == element.nan_code).all(), f"NaN by {name} from {dtype.name}"


def check_decodes(theirs: Callable[[Codes], Values], element: Element, device: Device) -> None:
    """Every code means the same number (NaN: any NaN), and -0 keeps its sign, by every way back."""
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    wanted = theirs(codes)
    ways_back: dict[str, np.ndarray] = {"decode": decode(codes, element)}
    if element.dtype in NARROW:
        ways_back["astype"] = nf.asnumpy(nf.asarray(codes.view(element.dtype), device=device).astype(nf.float32))
    if element.signed:
        stored = nf.asarray(pack(codes) if element.packed else codes, device=device)
        one = nf.asarray(np.float32(1), device=device)
        ways_back["dequantize"] = nf.asnumpy(nf.dequantize(nf.QuantizedArray.from_parts(stored, one, unit(element))))
    for name, values in ways_back.items():
        np.testing.assert_array_equal(values, wanted, err_msg=name)
        number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(values)[number], np.signbit(wanted)[number], err_msg=name)
