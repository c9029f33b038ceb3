"""Prepared calls give the bits of the long way, on every device (on the CPU there is no other way)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.formats import fp8_e4m3, fp8_e4m3_b128, mxfp8, nvfp4
from nvfp.kernels import _prepared
from nvfp.kernels.activation import activation
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.input_fn import Activated
from nvfp.kernels.layer_norm import layer_norm, layer_norm_vjp
from nvfp.kernels.multi_tensor import l2_norm
from nvfp.kernels.operand import Operand, OperandPair
from nvfp.kernels.quantize import quantize
from nvfp.kernels.reduce import reduce
from nvfp.kernels.softmax import softmax
from nvfp.kernels.transpose import transpose
from tests.devices import to_device, to_numpy

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
MATRIX, ROW, ROWS, WORD = (BF16, 256, 128), (BF16, 128), (F32, 256), (F32,)

CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[Any, ...], ...]]] = {
    "cast": (lambda x: cast(x, F32), (MATRIX,)),
    "strided": (lambda x: cast(x[:, 3:20], BF16), (MATRIX,)),
    "in_place": (lambda x, y: elementwise("add", x, y, out=x), (MATRIX, MATRIX)),
    "gelu": (lambda x: activation(x, "gelu"), (MATRIX,)),
    "layer_norm": (lambda *a: layer_norm(*a), (MATRIX, ROW, ROW)),
    "layer_norm_vjp": (lambda *a: layer_norm_vjp(*a), (MATRIX, MATRIX, ROW, ROWS, ROWS)),
    "softmax": (lambda x: softmax(x, causal="top_left"), (MATRIX,)),
    "sum": (lambda x: reduce("sum", x, axis=0), (MATRIX,)),
    "transpose": (lambda x: transpose(x), (MATRIX,)),
    "delayed": (lambda x, s, a: quantize(x, fp8_e4m3, col=True, scale=s, amax_out=a), (MATRIX, WORD, WORD)),
    "current": (lambda x: quantize(x, fp8_e4m3, col=True, bias_grad=True), (MATRIX,)),
    "block": (lambda x: quantize(x, fp8_e4m3_b128, col=True, scale_layout="k_major128"), (MATRIX,)),
    "mxfp8": (lambda x: quantize(x, mxfp8, col=True, input_fn=Activated("gelu")), (MATRIX,)),
    "nvfp4": (lambda x: quantize(x, nvfp4, col=True), (MATRIX,)),
    "l2_norm": (lambda x, y: l2_norm([x, y]), (MATRIX, ROW)),
}


def drawn(kind: tuple[Any, ...], seed: int) -> np.ndarray:
    dtype, *shape = kind
    return np.asarray(np.abs(np.random.default_rng(seed).normal(size=shape)) + 0.5, dtype)


def arrays_of(result: Any) -> list[np.ndarray]:
    if isinstance(result, tuple | list):
        return [x for part in result for x in arrays_of(part)]
    if isinstance(result, OperandPair):
        return arrays_of((result.row, result.col, result.bias_grad))
    if isinstance(result, Operand):
        return arrays_of(result.arrays())
    return [] if result is None else [to_numpy(result)]


@pytest.mark.parametrize("name", CASES)
def test_same_bits_as_the_long_way(name: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    call, kinds = CASES[name]
    for seed in range(4):
        found = []
        for long in (True, False):
            given = [to_device(drawn(kind, seed + 7 * i), device) for i, kind in enumerate(kinds)]
            with monkeypatch.context() as patch:
                if long:
                    patch.setattr(_prepared, "watched", lambda: True)
                result = call(*given)
            found.append([x.tobytes() for x in (*arrays_of(result), *map(to_numpy, given))])
        assert found[0] == found[1]
