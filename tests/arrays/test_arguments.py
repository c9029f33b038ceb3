"""Arguments of a wrong type or value: a typed error in the one form, and no warning of NumPy's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, NvfpError, ShapeError

FORM = re.compile(r"\[\w[\w.+]*\] expected .+, got .*; .+", re.DOTALL)
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def x() -> nf.Array:
    return nf.asarray(X)


WRONG: dict[str, Callable[[], Any]] = {
    **{f"sum axis {a!r}": lambda a=a: nf.sum(x(), axis=a) for a in ("0", 1.0, True, 1j, 7, (0, 0))},
    **{f"reshape {s!r}": lambda s=s: nf.reshape(x(), s) for s in (None, "12", 2.0, (3, 4.0))},
    **{f"zeros {s!r}": lambda s=s: nf.zeros(s) for s in (None, "a", 2.5, (2, -1), 1j)},
    **{f"copy {v!r}": lambda v=v: nf.copy(v) for v in (None, [1, 2], "a")},
    **{f"arange {v!r}": lambda v=v: nf.arange(v) for v in (None, "a", [1], float("nan"), float("inf"), 1j)},
    **{f"full {v!r}": lambda v=v: nf.full((2,), v) for v in (None, "a", [1])},
    **{f"full int8 {v!r}": lambda v=v: nf.full((2,), v, dtype=nf.int8) for v in (300, float("nan"), 1j)},
    **{f"quantize axis {a!r}": lambda a=a: nf.quantize(x(), nf.mxfp8, axis=a) for a in (None, "a", 1.0, True, (0, 1))},
    **{f"quantize scale {s!r}": lambda s=s: nf.quantize(x(), nf.fp8_e4m3, scale=s)
       for s in (0.0, -1.0, float("nan"), float("inf"), [1.0], "a", 1j)},
    "broadcast_to negative": lambda: nf.broadcast_to(nf.ones((1,)), (-1,)),
    "broadcast_shapes None": lambda: nf.broadcast_shapes(None),  # type: ignore[arg-type]
    "expand_dims None": lambda: nf.expand_dims(x(), None),  # type: ignore[arg-type]
    "swapaxes str": lambda: nf.swapaxes(x(), "a", 0),  # type: ignore[arg-type]
    "permute_dims None": lambda: nf.permute_dims(x(), None),  # type: ignore[arg-type]
    "argmax ()": lambda: nf.argmax(x(), axis=()),  # type: ignore[arg-type]
    "var correction": lambda: nf.var(x(), correction="a"),  # type: ignore[arg-type]
    "clip None": lambda: nf.clip(None, 0, 1),
    "concat None": lambda: nf.concat(None),  # type: ignore[arg-type]
    "concat empty": lambda: nf.concat([]),
    "stack empty": lambda: nf.stack([]),
    "split None": lambda: nf.split(None, 2),
    "split str": lambda: nf.split(x(), "ab"),
    "roll float": lambda: nf.roll(x(), 1.5),  # type: ignore[arg-type]
    "tile negative": lambda: nf.tile(x(), -1),
    "pad str": lambda: nf.pad(x(), "ab"),
    "eye float": lambda: nf.eye(2.0),  # type: ignore[arg-type]
    "eye negative": lambda: nf.eye(-1),
    "linspace negative": lambda: nf.linspace(0, 1, -1),
    "tril str": lambda: nf.tril(x(), "a"),  # type: ignore[arg-type]
    "parameter None": lambda: nf.parameter(None),  # type: ignore[arg-type]
    "parameter int": lambda: nf.parameter(nf.arange(3)),
    "from_dlpack list": lambda: nf.from_dlpack([1]),
    "asarray ragged": lambda: nf.asarray([[1], [1, 2]]),
    "item": lambda: x().item(),
    "format": lambda: f"{x():.2f}",
    "float of complex": lambda: float(nf.asarray(1j)),
    "matmul batches": lambda: nf.ones((2, 3, 4), dtype=nf.int32) @ nf.ones((5, 4, 3), dtype=nf.int32),
    "normal str": lambda: nf.random.default_rng(0).normal("a"),
    "spawn negative": lambda: nf.random.default_rng(0).spawn(-1),
    "permutation 0-d": lambda: nf.random.default_rng(0).permutation(nf.asarray(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_typed_errors_in_one_form(device: Any, name: str) -> None:
    with pytest.raises(NvfpError) as caught:
        WRONG[name]()
    assert isinstance(caught.value, DTypeError | ArgumentError | ShapeError)
    assert FORM.fullmatch(str(caught.value)), str(caught.value)


def test_numbers_beyond_float32_become_inf_in_silence(device: Any) -> None:
    assert nf.asarray(1e300).item() == np.inf and nf.asarray([-1e300]).tolist() == [-np.inf]


@pytest.mark.parametrize("shape", [2, (2,), [2], np.int64(2), np.array([2])], ids=repr)
def test_shapes_may_be_any_sequence_of_integers(device: Any, shape: Any) -> None:
    assert nf.zeros(shape).shape == nf.reshape(nf.zeros((1, 2)), shape).shape == (2,)
    assert nf.broadcast_to(nf.zeros(()), shape).shape == nf.random.default_rng(0).normal(size=shape).shape == (2,)


def test_requires_grad_is_never_dropped(device: Any) -> None:
    assert nf.full((2,), nf.asarray(3.0), requires_grad=True).requires_grad
    for dtype in (nf.float8_e4m3fn, nf.mxfp8):
        with pytest.raises(DTypeError, match=r"\[requires_grad\]"):
            nf.zeros((2,), dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", [nf.mxfp8, nf.nvfp4, nf.float8_e4m3fn], ids=str)
def test_complex_products_read_values_not_codes(dtype: Any) -> None:
    a = nf.asarray(np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32), device="cpu").astype(dtype)
    b = nf.asarray(np.full((32, 3), 1 + 2j, np.complex64), device="cpu")
    want = np.asarray(a, dtype=np.float32) @ np.asarray(b)
    np.testing.assert_allclose(np.asarray(a @ b), want, rtol=1e-5, atol=1e-5)
