"""The CUDA twins of elementwise, reduce and random, run on the CPU (see `emulator`) against the CPU twins.

The tests of the contracts repeat this in full on a GPU; here a kernel of each shape is proven without one: packs and
tails, broadcasting and strides, every level of the reduction tree, groups of random words.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nvfp.device import Device
from nvfp.kernels.cpu import elementwise as cpu_elementwise, random as cpu_random, reduce as cpu_reduce
from nvfp.kernels.cuda import elementwise as cuda_elementwise, random as cuda_random, reduce as cuda_reduce
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.cuda._xp import cp
from tests.kernels.cuda import emulator

BF16, F32, I64, U64 = (np.dtype(t) for t in (ml_dtypes.bfloat16, np.float32, np.int64, np.uint64))


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)
    monkeypatch.setattr(cp.cuda, "Device", lambda index: nullcontext(), raising=False)


def normal(shape: tuple[int, ...], dtype: Any = F32) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * 8).astype(dtype)


def same(op: str, *args: Any, compute: np.dtype, dtype: np.dtype, out: np.ndarray | None = None) -> None:
    shape = np.broadcast_shapes(*(np.shape(a) for a in args))
    expected = cpu_elementwise.elementwise(op, *args, dtype=dtype, compute=compute, shape=shape)
    with count_launches() as count:
        found = cuda_elementwise.elementwise(op, *args, dtype=dtype, compute=compute, shape=shape, out=out)
    assert count.n == 1
    assert found.dtype == dtype
    assert np.array_equal(found.astype(np.float64), expected.astype(np.float64))


def test_elementwise_packs_and_tails() -> None:
    for n in (1, 7, 2050, 4103):
        same("add", normal((n,)), normal((n,)), compute=F32, dtype=F32)
    same("add", normal((2051,))[1:], normal((2050,)), compute=F32, dtype=F32)  # off 16 bytes: no packs
    same("where", normal((999,)) > 0, normal((999,), BF16), np.float32(2.5), compute=F32, dtype=BF16)


def test_elementwise_strides() -> None:
    x = normal((6, 40))
    same("multiply_add", x, x[:, :1], np.float32(3), compute=F32, dtype=F32)
    same("multiply_add", x[::-1, ::2], x[0, ::2], np.float32(3), compute=F32, dtype=F32)
    y = (normal((3, 4, 5)) * 9).astype(np.int32)
    same("floor_divide", y, y.transpose(1, 0, 2)[:3, :1], compute=I64, dtype=np.dtype(np.int32))
    out = np.zeros((12, 80), F32)[::2, ::2]
    same("add", x, x, compute=F32, dtype=F32, out=out)
    expected = x + x
    same("add", x, x.copy(), compute=F32, dtype=F32, out=x)
    assert np.array_equal(x, expected)


REDUCTIONS = [
    ("sum", normal((3, 700), BF16), (1,), F32, BF16, 1),
    ("sum", normal((1, 40_000)), (1,), F32, F32, 2),
    ("mean", normal((700, 64), BF16), (0,), F32, BF16, 2),
    ("prod", normal((2, 70, 24)), (1,), F32, F32, 1),
    ("argmax", np.round(normal((2, 20_000))), (1,), F32, I64, 2),
    # 20,003 leaves a segment of whole warps without an element
    ("sumsq", np.arange(20_003, dtype=np.uint32).reshape(1, -1) * 71, (1,), U64, U64, 2),
]


@pytest.mark.parametrize(("op", "x", "axes", "compute", "dtype", "launches"), REDUCTIONS, ids=lambda v: str(v)[:8])
def test_reduce(op: Any, x: np.ndarray, axes: tuple[int, ...], compute: Any, dtype: Any, launches: int) -> None:
    shape = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    expected = cpu_reduce.reduce(op, x, axes=axes, shape=shape, dtype=dtype, compute=compute)
    with count_launches() as count:
        found = cuda_reduce.reduce(op, x, axes=axes, shape=shape, dtype=dtype, compute=compute)
    assert count.n == launches
    assert found.dtype == dtype
    assert found.astype(dtype).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("kind", "dtype", "low", "high", "limit"),
    [
        ("bits", np.uint32, 0, 0, 0),
        ("uniform", ml_dtypes.bfloat16, -1.0, 2.0, 0.99609375),
        ("uniform", np.float32, 0.0, 1.0, 1 - 2.0**-24),
        ("uniform", np.float64, -1.0, 2.0, 0.99),
        ("normal", np.float32, 1.0, 2.0, 0.0),
        ("normal", ml_dtypes.bfloat16, 1.0, 2.0, 0.0),
        ("integers", np.int64, -5, 2**40, 0),
        ("integers", np.int64, -5, 1000, 0),
        ("integers", np.int8, -5, 100, 0),
    ],
)
def test_random(kind: Any, dtype: Any, low: Any, high: Any, limit: Any) -> None:
    step: Any = np.asarray(7, np.int32)  # a word in device memory
    options: dict[str, Any] = {"dtype": np.dtype(dtype), "key": 2**64 - 9, "stream": 21, "low": low, "high": high}
    options |= {"step": step, "limit": limit}
    for shape in ((3, 41), (37, 141)):  # less than a warp's pieces; whole warps and a rest
        expected = cpu_random.random(kind, shape, device=Device("cpu"), **options)
        _agree(cuda_random.random(kind, shape, device=Device("cuda"), **options), expected, kind)


def _agree(found: Any, expected: Any, kind: str) -> None:
    if kind == "normal":
        rounding = 2.0**-8 if found.itemsize == 2 else 4e-6
        assert np.allclose(found.astype(np.float32), expected.astype(np.float32), rtol=rounding, atol=8e-6)
    else:
        assert np.array_equal(found, expected)
