"""`nf.fft` against NumPy in float64, its signatures, dtypes and errors."""

from __future__ import annotations

import inspect
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from tests.tolerances import check

ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")
REAL = ("rfft", "ihfft", "rfftn", "rfft2")


def drawn(name: str, *shape: int) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64(7))
    return rng.uniform(-1, 1, shape) + (0 if name in REAL else 1j * rng.uniform(-1, 1, shape))


def compare(name: str, values: np.ndarray, dtype: str, device: Any, **kwargs: Any) -> None:
    """``dtype`` is that of the real parts."""
    own = {"float32": np.complex64, "float64": np.complex128}[dtype] if values.dtype.kind == "c" else dtype
    x = values.astype(own)
    got = getattr(nf.fft, name)(nf.asarray(x, device=device), **kwargs)
    expected = getattr(np.fft, name)(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64), **kwargs)
    real = "complex64" if dtype == "float32" else "complex128"
    assert got.dtype == (dtype if expected.dtype.kind == "f" else real)
    found = nf.asnumpy(got)
    check(np.real(found), np.real(expected), "fft")
    check(np.imag(found).astype(np.real(found).dtype), np.imag(expected), "fft")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward", None])
@pytest.mark.parametrize("name", ONE)
def test_along_an_axis(name: str, norm: Any, dtype: str, device: Any) -> None:
    for n, axis in ((None, -1), (3, 0), (9, 1)):
        compare(name, drawn(name, 4, 5), dtype, device, n=n, axis=axis, norm=norm)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", SEVERAL)
def test_over_axes(name: str, norm: Any, device: Any) -> None:
    for s, axes in (((3, 7), (0, 2)), ((6, 3), (-1, 0)), (None, (1,))):
        compare(name, drawn(name, 4, 5, 6), "float64", device, s=s, axes=axes, norm=norm)
    compare(name, drawn(name, 4, 5, 6), "float32", device)


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft", "fftn"])
def test_integers_and_narrow_floats_count_as_float32(name: str, device: Any) -> None:
    values = np.arange(8)
    expected = getattr(np.fft, name)(values.astype(np.float32))
    for dtype in (nf.int32, nf.bool, nf.bfloat16, nf.float16, nf.float8_e4m3fn):
        x = nf.asarray(values, device=device).astype(dtype)
        got = getattr(nf.fft, name)(x)
        assert got.dtype == (nf.float32 if name == "irfft" else nf.complex64)
        if dtype not in (nf.bool,):
            np.testing.assert_allclose(nf.asnumpy(got), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 4, 5])
def test_frequencies_and_shifts(n: int, device: Any) -> None:
    for name in ("fftfreq", "rfftfreq"):
        got = getattr(nf.fft, name)(n, d=0.5, device=device)
        assert got.dtype == nf.float32 and str(got.device) == str(device)
        np.testing.assert_allclose(nf.asnumpy(got), getattr(np.fft, name)(n, 0.5), rtol=1e-6)
        assert getattr(nf.fft, name)(n, dtype=nf.bfloat16, device=device).dtype == nf.bfloat16
    values = drawn("rfft", n, 4)
    for name in ("fftshift", "ifftshift"):
        for axes in (None, 0, (1,)):
            got = getattr(nf.fft, name)(nf.asarray(values, device=device), axes=axes)
            np.testing.assert_array_equal(nf.asnumpy(got), getattr(np.fft, name)(values, axes=axes))


def test_empty_arrays(device: Any) -> None:
    x = nf.zeros((0, 4), device=device)
    assert nf.fft.fft(x).shape == (0, 4) and nf.fft.rfft(x).shape == (0, 3) and nf.fft.irfft(x, n=5).shape == (0, 5)
    assert nf.grad(lambda x: nf.sum(nf.abs(nf.fft.fft(x))))(x).shape == (0, 4)


def test_signatures_are_the_standard_s() -> None:
    for name in strict.fft.__all__:
        own = inspect.signature(getattr(nf.fft, name)).parameters
        for parameter in inspect.signature(getattr(strict.fft, name)).parameters.values():
            assert parameter.name in own or parameter.kind is not parameter.KEYWORD_ONLY, (name, parameter.name)
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert own[parameter.name].default == parameter.default, (name, parameter.name)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ShapeError, lambda x: nf.fft.fft(x, n=0)),
        (ShapeError, lambda x: nf.fft.fft(x, axis=2)),
        (ShapeError, lambda x: nf.fft.irfft(x[:, :1])),
        (ShapeError, lambda x: nf.fft.fftn(x, s=(1, 2, 3), axes=(0, 1))),
        (ShapeError, lambda x: nf.fft.rfftn(x, axes=())),
        (ShapeError, lambda x: nf.fft.fftfreq(0)),
        (ShapeError, lambda x: nf.fft.fft(nf.zeros((0,), device="cpu"))),
        (ArgumentError, lambda x: nf.fft.fft(x, norm="unit")),
        (DTypeError, lambda x: nf.fft.fft(x, n=2.0)),
        (DTypeError, lambda x: nf.fft.rfft(nf.fft.fft(x))),
        (DTypeError, lambda x: nf.fft.fftfreq(3, dtype=nf.int32)),
    ],
)  # fmt: skip
def test_errors_name_the_function(error: type[Exception], call: Any) -> None:
    with pytest.raises(error, match=r"^\[fft\.\w+\] expected .*, got .*; "):
        call(nf.asarray(drawn("rfft", 4, 4), device="cpu"))


@pytest.mark.parametrize("name", [*ONE, *SEVERAL])
def test_generated_examples_run(name: str) -> None:
    import doctest

    examples = doctest.DocTestFinder(recurse=False).find(getattr(nf.fft, name), name, globs={})
    assert examples[0].examples and doctest.DocTestRunner().run(examples[0]).failed == 0
