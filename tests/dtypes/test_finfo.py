"""Limits and kinds of every dtype, against ml_dtypes and NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nvfp.dtypes.dense import DENSE, NARROW, DType
from nvfp.dtypes.finfo import QuantFInfo, finfo, iinfo, isdtype
from nvfp.dtypes.formats import FORMATS, QuantDType, mxfp8, nvfp4
from nvfp.errors import ArgumentError, DTypeError

FIELDS = ("bits", "eps", "max", "min", "smallest_normal", "smallest_subnormal")
REAL = [d for d in DENSE.values() if isdtype(d, "real floating")]


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_floats(dtype: np.dtype) -> None:
    limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    found = finfo(dtype)
    assert [getattr(found, f) for f in FIELDS] == [float(getattr(limits, f)) for f in FIELDS]
    assert found.dtype is dtype
    assert all(type(getattr(found, f)) in (int, float) for f in FIELDS)


@pytest.mark.parametrize("row", [row for row in FORMATS.values() if not row.element.integer], ids=str)
def test_quantized(row: QuantDType) -> None:
    found, element = finfo(row), finfo(row.element.dtype)
    assert isinstance(found, QuantFInfo)
    assert [getattr(found, f) for f in (*FIELDS, "dtype")] == [getattr(element, f) for f in (*FIELDS, "dtype")]
    assert found.scale == finfo(row.scale.dtype)
    assert (found.block, found.bits_per_value) == (row.block, row.bits_per_value)


def test_scaled_max() -> None:
    assert [f.scaled_max for f in (finfo("nvfp4"), finfo(mxfp8)) if isinstance(f, QuantFInfo)] == [2688, 448 * 2.0**127]


def test_integer_elements() -> None:
    found = finfo("mxint8")
    assert (found.bits, found.eps, found.max, found.min) == (8, 1 / 64, 127 / 64, -2)
    found = finfo(QuantDType("w4", "int4", 32, "bfloat16", nonfinite="saturate"))  # type: ignore[arg-type]
    assert (found.bits, found.eps, found.max, found.min) == (4, 1, 7, -8)
    assert isinstance(found, QuantFInfo) and (found.bits_per_value, found.scale) == (4.5, finfo("bfloat16"))


def test_complex_gives_its_parts() -> None:
    assert finfo("complex64") == finfo("float32")
    assert finfo("complex128") == finfo("float64")


@pytest.mark.parametrize("name", ["int8", "int64", "uint8", "uint64"])
def test_integers(name: str) -> None:
    found, limits = iinfo(name), np.iinfo(name)
    assert (found.dtype, found.bits, found.max, found.min) == (np.dtype(name), limits.bits, limits.max, limits.min)


def test_wrong_side() -> None:
    with pytest.raises(DTypeError, match="use iinfo"):
        finfo("int8")
    for name in ("float32", "bool", "nvfp4"):
        with pytest.raises(DTypeError, match="use finfo"):
            iinfo(name)


KINDS = {
    "bool": {"bool"},
    "signed integer": {"int8", "int16", "int32", "int64"},
    "unsigned integer": {"uint8", "uint16", "uint32", "uint64"},
    "real floating": {"float16", "bfloat16", "float32", "float64", *(d.name for d in NARROW)},
    "complex floating": {"complex64", "complex128"},
    "quantized": set(FORMATS),
}
KINDS["integral"] = KINDS["signed integer"] | KINDS["unsigned integer"]
KINDS["numeric"] = KINDS["integral"] | KINDS["real floating"] | KINDS["complex floating"]


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str) -> None:
    every: list[DType] = [*DENSE.values(), *FORMATS.values()]
    assert {d.name for d in every if isdtype(d, kind)} == KINDS[kind]


def test_kind_as_dtype_or_tuple() -> None:
    assert isdtype("float32", np.float32)
    assert isdtype(nvfp4, "nvfp4")
    assert isdtype("int8", ("bool", "integral"))
    assert not isdtype("float32", (np.float64, "integral"))
    assert not isdtype("float32", ())
    with pytest.raises(ArgumentError, match=r"'floating'"):
        isdtype("float32", "floating")
    with pytest.raises(DTypeError):
        isdtype("float7", "numeric")
