"""Input functions and column sums in quantize's tiles, run on the CPU (see `emulator`), against the unfused pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.dtypes.conventions import PLAIN
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, mxfp8_e4m3, nvfp4
from nvfp.kernels.activation import KINDS
from nvfp.kernels.cpu import quantize as cpu
from nvfp.kernels.cuda import quantize as cuda
from nvfp.kernels.input_fn import Activated, ActivationGradient, InputFn
from tests.kernels.cuda import emulator
from tests.kernels.quantized import BF16, F32, same_bits, values

F16 = np.dtype(np.float16)
NONE = (None, None)
word = np.array(3.0, F32)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)


def arguments(fmt: QuantDType, **options: Any) -> dict[str, Any]:
    return {
        "axis": 1, "row": True, "col": True, "scale": None, "amax": NONE, "tensor_scale": NONE, "amax_out": NONE,
        "amax_epsilon": 0.0, "rounding": "even", "rng": None, "overflow": "saturate", "scale_layout": "plain",
        "steps": PLAIN, "bias": None, **options,
    }  # fmt: skip


def check(x: np.ndarray, fmt: QuantDType, f: InputFn | None, **options: Any) -> None:
    """Compare with the CPU's two steps; the words that were written, too."""
    outs = [np.array(0.0, F32) for _ in range(4)]
    want = cpu.quantize_input(x, fmt, f, **arguments(fmt, **options, amax_out=(outs[0], outs[1])))
    made = cuda._at_once(x, fmt, f, **arguments(fmt, **options, amax_out=(outs[2], outs[3])))
    assert made is not None, "not fused"
    for a, b in zip(want[:2], made[:2], strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.shape == b.shape
            assert same_bits(b.codes, a.codes)
            assert same_bits(b.scale, a.scale)
    assert all(same_bits(a, b) for a, b in zip(outs[:2], outs[2:], strict=True))
    if options.get("bias") is not None:
        assert np.array_equal(want[2], made[2], equal_nan=True)


CASES: list[tuple[QuantDType, Any, str, bool, dict[str, Any]]] = [
    (fp8_e4m3, BF16, "swiglu", True, {"scale": word, "bias": F32}),
    (fp8_e4m3, BF16, "clamped_swiglu", True, {"scale": word, "bias": F32}),
    (mxfp8_e4m3, BF16, "clamped_swiglu", False, {"col": False}),
    (nvfp4, BF16, "relu", False, {}),
    (mxfp8_e4m3, F16, "reglu", False, {"col": False}),
]  # every kind of function, dtype and maximum; all others where there is a GPU (tests/kernels/test_quantize_input.py)


@pytest.mark.parametrize(("fmt", "dtype", "kind", "gradient", "options"), CASES)
def test_fused_is_unfused(fmt: QuantDType, dtype: Any, kind: str, gradient: bool, options: dict[str, Any]) -> None:
    for name, (rows, columns) in (("normal", (128, 128)), ("nonfinite", (150, 144))):
        x = values(name, (rows, columns * (2 if KINDS[kind].gated else 1)), dtype)
        f: InputFn = ActivationGradient(kind, x) if gradient else Activated(kind)
        check(values("normal", (rows, columns), dtype) if gradient else x, fmt, f, **options)


def test_column_sums_alone() -> None:
    x = values("normal", (150, 133), BF16)[:, :129]
    check(x, mxfp8_e4m3, None, bias=F32)


@pytest.mark.parametrize(("kind", "gradient"), [("gelu", False), ("gelu", True), ("swiglu", False), ("swiglu", True)])
def test_the_maximum_comes_with_the_activation(kind: str, gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under current scaling an activation with an exponential is written once, and its kernel takes the amax."""
    monkeypatch.setattr("nvfp.kernels.cuda._quantize_run.record_amax", None)  # no pass of its own
    for name, (rows, columns) in (("normal", (70, 40)), ("nonfinite", (33, 48))):
        x = values(name, (rows, columns * (2 if KINDS[kind].gated else 1)), BF16)
        f: InputFn = ActivationGradient(kind, x) if gradient else Activated(kind)
        source = values("normal", (rows, columns), BF16) if gradient else x
        options = arguments(fp8_e4m3, bias=np.dtype(F32) if gradient else None)
        want, made = (twin.quantize_input(source, fp8_e4m3, f, **options) for twin in (cpu, cuda))
        for a, b in zip(want[:2], made[:2], strict=True):
            assert same_bits(a.codes, b.codes) and same_bits(a.scale, b.scale)
        assert not gradient or np.array_equal(want[2], made[2], equal_nan=True)
