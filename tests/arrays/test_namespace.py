"""The namespace as the array API standard describes it: names, signatures, what it tells about itself, dtypes."""

from __future__ import annotations

import inspect
import operator
from typing import Any

import array_api_compat
import array_api_strict as strict
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError

OWN = (
    "set_array_api_strict_flags",
    "get_array_api_strict_flags",
    "reset_array_api_strict_flags",
    "ArrayAPIStrictFlags",
)
NAMES = [n for n in strict.__all__ if n not in OWN]
FUNCTIONS = [n for n in NAMES if inspect.isfunction(getattr(strict, n))]
STANDARD = (
    "bool",
    *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
    "float32",
    "float64",
    "complex64",
    "complex128",
)


def test_every_name_is_there() -> None:
    assert [n for n in NAMES if not hasattr(nf, n)] == [] and len(NAMES) > 150
    for room in ("linalg", "fft"):
        assert [n for n in getattr(strict, room).__all__ if not hasattr(getattr(nf, room), n)] == []
    assert {"sort", "__array_namespace_info__"} <= set(dir(nf)) and nf.__array_api_version__ == "2025.12"


def functions() -> list[tuple[str, str]]:
    rooms = [("linalg", n) for n in strict.linalg.__all__] + [("fft", n) for n in strict.fft.__all__]
    return [("", n) for n in FUNCTIONS] + [
        (r, n) for r, n in rooms if inspect.isfunction(getattr(getattr(strict, r), n))
    ]


@pytest.mark.parametrize("room", ["", "linalg", "fft"])
def test_signatures_are_the_standard_s(room: str) -> None:
    checked = 0
    for name in (n for r, n in functions() if r == room):
        spaces = (getattr(strict, room), getattr(nf, room)) if room else (strict, nf)
        wanted, own = (inspect.signature(getattr(space, name)).parameters for space in spaces)
        places = list(own.values())
        for i, parameter in enumerate(wanted.values()):
            if parameter.kind is parameter.VAR_POSITIONAL:
                assert any(p.kind is p.VAR_POSITIONAL for p in places), name
                continue
            if parameter.kind is not parameter.KEYWORD_ONLY:
                assert places[i].kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD), (name, i)
            if parameter.kind is not parameter.POSITIONAL_ONLY and name != "broadcast_shapes":
                assert parameter.name in own, (name, parameter.name)
                mine = own[parameter.name]
                assert mine.kind is not parameter.POSITIONAL_ONLY, (name, parameter.name)
                if parameter.default not in (None, parameter.empty) and mine.default is not None:
                    assert mine.default == parameter.default, (name, parameter.name)
            checked += 1
    assert checked > {"": 270, "linalg": 40, "fft": 40}[room]


def test_namespace_of_an_array() -> None:
    x = nf.ones((2,))
    assert x.__array_namespace__() is nf and x.__array_namespace__(api_version="2024.12") is nf
    with pytest.raises(ArgumentError, match=r"2025\.12"):
        x.__array_namespace__(api_version="1999.12")
    assert array_api_compat.array_namespace(x, 2.0, None) is nf and array_api_compat.device(x) is x.device
    with pytest.raises(TypeError, match="Multiple"):
        array_api_compat.array_namespace(x, np.ones(2))


def test_info() -> None:
    info = nf.__array_namespace_info__()
    assert info.devices() == nf.devices() and info.default_device() is nf.default_device()
    assert set(info.dtypes()) == set(STANDARD)  # no extension among them
    assert info.dtypes(kind=("bool", "real floating")) == {n: getattr(nf, n) for n in ("bool", "float32", "float64")}
    assert info.default_dtypes(device=nf.Device("cpu"))["real floating"] is nf.zeros((1,)).dtype
    assert info.capabilities()["boolean indexing"] is True


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_can_cast_agrees_with_ml_dtypes_values() -> None:
    """Exhaustive for narrow and 16-bit sources: a cast is safe where every finite value comes back."""
    floats = ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "bfloat16", "float16")
    for a in floats:
        source = np.dtype(getattr(ml_dtypes, a, None) or a)
        width = 16 if source.itemsize == 2 else {"float4_e2m1fn": 4}.get(a, 6 if "float6" in a else 8)
        codes = np.arange(2**width, dtype=f"uint{8 * source.itemsize}").view(source).astype(np.float64)
        codes = codes[np.isfinite(codes)]
        for b in (*floats, "float32", "float64"):
            target = np.dtype(getattr(ml_dtypes, b, None) or b)
            with np.errstate(all="ignore"):
                kept = np.array_equal(codes.astype(target).astype(np.float64), codes)
            assert nf.can_cast(a, b) == kept, (a, b)
    for a in STANDARD:
        for b in STANDARD:
            assert nf.can_cast(a, b) == np.can_cast(np.dtype(a), np.dtype(b))
    assert nf.can_cast("uint8", "bfloat16") and not nf.can_cast("int16", "bfloat16") and nf.can_cast("bool", "bfloat16")
    assert nf.can_cast(nf.ones((1,), dtype=nf.int8), nf.int16) and nf.can_cast("bfloat16", "complex64")
    assert nf.can_cast("nvfp4", "float32") and not nf.can_cast("float32", "nvfp4") and nf.can_cast(nf.nvfp4, nf.nvfp4)


def test_finfo_and_result_type_read_arrays() -> None:
    x, n = nf.ones((2,), dtype=nf.bfloat16), nf.ones((2,), dtype=nf.int8)
    assert nf.finfo(x) == nf.finfo(nf.bfloat16) and nf.iinfo(n).max == 127 and nf.finfo(x).eps == 2.0**-7
    assert nf.result_type(x, n, 1.5) is nf.bfloat16
    with pytest.raises(DTypeError):
        nf.finfo(n)


xps = make_strategies_namespace(nf, api_version="2024.12")


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_drawn_arrays_behave_as_strict_s(data: Any) -> None:
    """The same code over both namespaces, arrays drawn by hypothesis' own strategies for nvfp."""
    dtype = data.draw(xps.scalar_dtypes())
    x = data.draw(xps.arrays(dtype, xps.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)))
    assert type(x) is nf.Array and x.dtype == dtype
    s = strict.asarray(np.array(nf.asnumpy(x)))
    for f in (
        lambda xp, v: xp.reshape(v, (-1,)) if v.size else v,
        lambda xp, v: xp.concat([v, v], axis=None),
        lambda xp, v: xp.flip(v),
        lambda xp, v: xp.expand_dims(v, axis=0)[..., None],
        lambda xp, v: v == v,
        lambda xp, v: xp.where(v != v, v, v),
    ):
        got, expected = f(nf, x), np.asarray(f(strict, s))
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_array_equal(nf.asnumpy(got), expected)


OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift",
    "lt", "le", "eq", "ne", "gt", "ge",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float32", "float64", "complex64"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, dtype: str) -> None:
    """With arrays and with Python scalars on both sides, in place too."""
    a = np.asarray([1, 2, 3]).astype(dtype)
    x, s, op = nf.asarray(a), strict.asarray(a), getattr(operator, name)
    scalar: Any = {"b": True, "f": 2.0, "c": 2.0}.get(a.dtype.kind, 2)
    inplace = getattr(operator, f"i{name.rstrip('_')}", lambda v, w: v)
    for f in (
        lambda xp, v: op(v, v),
        lambda xp, v: op(v, scalar),
        lambda xp, v: op(scalar, v),
        lambda xp, v: inplace(xp.asarray(v, copy=True), v),
    ):
        try:
            expected = np.asarray(f(strict, s))
        except (TypeError, ValueError):
            continue  # strict refuses the kind
        got = f(nf, x)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(nf.asnumpy(got), expected, rtol=1e-6)


def test_what_array_api_tests_found() -> None:
    """Each of these failed in data-apis/array-api-tests before."""
    x1, x2 = nf.asarray([1j, 2j, 3j]), nf.asarray([1, 2j, 3])
    assert complex(nf.vecdot(x1, x2)) == complex(nf.linalg.vecdot(x1, x2)) == 4 - 10j
    with pytest.raises(IndexError, match="axes of 3 dimensions"):
        nf.expand_dims(nf.ones((0, 1)), axis=3)
    z = nf.asarray([1 + 2j, 3j])
    assert nf.from_dlpack(z, copy=True).tolist() == z.tolist() and nf.from_dlpack(z, copy=True).raw is not z.raw
    assert np.from_dlpack(z, copy=True).tolist() == z.tolist()
    assert nf.roll(nf.asarray([True, False, False]), 1).tolist() == [False, True, False]
    assert nf.clip(x1).tolist() == x1.tolist() and nf.clip(nf.asarray([3])).tolist() == [3]
    assert nf.repeat(nf.asarray([1, 2]), nf.asarray([3])).tolist() == [1, 1, 1, 2, 2, 2]
    assert nf.asarray([5.682289288232528e16], dtype=nf.float64).tolist() == [5.682289288232528e16]


def test_print_options_of_numpy_apply() -> None:
    x = nf.asarray([1.23456789, 2e-9], dtype=nf.float64)
    with np.printoptions(precision=2, suppress=True):
        assert repr(x) == "nf.array([1.23, 0.  ], dtype=float64)"
    with np.printoptions(threshold=4, edgeitems=1):
        assert repr(nf.arange(100)) == "nf.array([ 0, ..., 99])"
    assert f"{x[0]:.3f}" == "1.235" and repr(x).startswith("nf.array([1.23456789e+00")
