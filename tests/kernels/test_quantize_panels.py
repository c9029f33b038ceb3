"""A large array is worked on in panels, of a size that depends on its length and the threads: the bits must not."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType, fp8_e4m3_b128, mxfp8, mxint8, nvfp4
from nvfp.kernels.amax import amax
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize
from tests.devices import to_device, to_numpy
from tests.kernels.quantized import F32, same_bits, values

SHAPE, CUT = (600, 1052), 37  # panels of several rows, no multiple of the pieces that they are compared with
FORMATS = [
    fp8_e4m3_b128, mxfp8, mxint8, nvfp4, nvfp4.replace(per_row_tensor_scale=True),
    nvfp4.replace(four_over_six="mae_256"), QuantDType("e3m2_b24", "float6_e3m2fn", 24, "float8_e5m2"),
]  # fmt: skip


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_whole_and_in_pieces(device: Device, fmt: QuantDType, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP_NUM_THREADS", threads)
    x = to_device(values("normal", SHAPE, F32), device)
    given = {"amax": amax(x)} if fmt.tensor_scale and not fmt.per_row_tensor_scale else {}
    make = partial(quantize, fmt=fmt, **given)
    whole = make(x).row
    pieces = [make(x[at : at + CUT]).row for at in range(0, len(x), CUT)]
    assert whole is not None

    def together(part: str) -> np.ndarray:
        return np.concatenate([to_numpy(getattr(piece, part)) for piece in pieces])

    assert same_bits(to_numpy(whole.codes), together("codes"))
    assert same_bits(to_numpy(whole.scale), together("scale"))
    decoded = [to_numpy(dequantize(piece, F32)) for piece in pieces if isinstance(piece, Operand)]
    assert same_bits(to_numpy(dequantize(whole, F32)), np.concatenate(decoded))


def test_toward_zero_by_rows(device: Device) -> None:
    x = to_device(values("normal", SHAPE, F32), device)
    whole, part = (quantize(a, mxfp8, rounding="toward_zero").row for a in (x, x[100:101]))
    assert whole is not None and part is not None
    assert same_bits(to_numpy(whole.codes)[100:101], to_numpy(part.codes))
