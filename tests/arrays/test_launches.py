"""On CUDA an elementwise function is one launch, whatever the strides, shapes and dtypes of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.kernels.cuda._launch import count_launches
from tests.arrays.test_standard import BINARY, UNARY
from tests.tolerances import tolerance

pytestmark = pytest.mark.gpu

FLOATING = [n for n in (*UNARY, "sigmoid", "rsqrt") if n not in ("conj", "imag", "real")]
INTEGER = [n for n in BINARY if n.startswith("bitwise")]
PAIRS = [n for n in BINARY if n not in INTEGER]


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> nf.Array:
    """Numbers within (0.1, 0.9), where every function is defined; small integers for integer dtypes."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(1, 6, shape) if "int" in dtype else rng.uniform(0.1, 0.9, shape)
    return nf.asarray(drawn.astype(np.float32)).astype(dtype)


def views(dtype: str) -> dict[str, nf.Array]:
    x = numbers((6, 8, 10), dtype)
    return {
        "contiguous": x,
        "transposed": x.T,
        "strided": x[::2, 1:, ::3],
        "reversed": x[:, ::-1, :],
        "broadcast": nf.broadcast_to(x[:, :1, :], (6, 8, 10)),
        "scalar": x[0, 0, 0],
    }


def one_launch(f: Callable[..., Any], name: str, *args: Any) -> None:
    f(*args)  # compiles
    with count_launches() as count:
        got = f(*args)
    assert count.n == 1, f"{name}: {count.n} launches"
    expected = f(*[a.to_device("cpu") if isinstance(a, nf.Array) else a for a in args])
    assert got.dtype == expected.dtype and got.shape == expected.shape
    kind = str(got.dtype)
    row = tolerance("elementwise", kind if kind in ("float64", "float16", "bfloat16") else "float32")
    wide = [np.asarray(nf.asnumpy(v)).astype(np.float64) for v in (got, expected)]
    np.testing.assert_allclose(*wide, rtol=row.rtol, atol=row.atol)


@pytest.mark.parametrize("name", FLOATING)
def test_unary(name: str) -> None:
    shift = 1.0 if name == "acosh" else 0.0
    for dtype in ("float32", "bfloat16", "float64"):
        for kind, x in views(dtype).items():
            one_launch(getattr(nf, name), f"{name} of {kind} {dtype}", x + shift if shift else x)


@pytest.mark.parametrize("name", PAIRS)
def test_binary(name: str) -> None:
    f = getattr(nf, name)
    halves = () if name == "nextafter" else ("bfloat16", "float16")
    for first, second in (
        ("float32", "float32"),
        *((h, "float32") for h in halves),
        ("int32", "float32"),
        ("float64", "float32"),
    ):
        x, y = views(first), numbers((6, 8, 10), second, 1)
        for kind, operand in x.items():
            shape = (6, 8, 10) if operand.ndim == 0 else tuple(n if i % 2 else 1 for i, n in enumerate(operand.shape))
            other = y if operand.ndim == 0 else numbers(shape, second, 2)
            one_launch(f, f"{name} of {kind} {first} and {second}", operand, other)
        if name not in ("nextafter",):
            one_launch(f, f"{name} of {first} and a number", x["strided"], 0.5)
            one_launch(f, f"{name} of a number and {first}", 0.5, x["transposed"])


@pytest.mark.parametrize("name", INTEGER)
def test_bits(name: str) -> None:
    for first, second in (("int32", "int32"), ("uint8", "int32"), ("int64", "int8")):
        one_launch(getattr(nf, name), name, numbers((5, 7), first).T, numbers((7, 1), second, 1))


def test_choices() -> None:
    for dtype in ("float32", "bfloat16", "int32"):
        x, y = numbers((6, 1), dtype), numbers((4, 6), dtype, 1).T
        mask = nf.greater(x, numbers((6, 1), dtype, 2))
        one_launch(nf.where, f"where of {dtype}", mask, x, y)
        one_launch(nf.where, f"where of {dtype} and a number", mask, x, 0)
        low, high = (0.2, 0.7) if dtype != "int32" else (2, 4)
        one_launch(lambda v: nf.clip(v, low, high), "clip", y)  # noqa: B023 (called at once)
        one_launch(lambda v: nf.clip(v, None, high), "clip below", y)  # noqa: B023
