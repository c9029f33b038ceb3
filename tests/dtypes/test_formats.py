"""Quantized dtypes as rows: the table, new rows from data alone, what does not fit together."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

from nvfp.dtypes import elements as el
from nvfp.dtypes.formats import (
    FORMATS,
    QuantDType,
    as_element,
    fp8_e4m3,
    fp8_e4m3_b128,
    fp8_e5m2,
    mxfp4,
    mxfp6_e2m3,
    mxfp6_e3m2,
    mxfp8,
    mxfp8_e4m3,
    mxfp8_e5m2,
    mxint8,
    nvfp4,
)
from nvfp.errors import ArgumentError, DTypeError

# Row: element, block, scale, tensor scale, what a non-finite block becomes, bits per value.
TABLE = {
    fp8_e4m3: ("float8_e4m3fn", None, "float32", False, "saturate", 8.0),
    fp8_e5m2: ("float8_e5m2", None, "float32", False, "saturate", 8.0),
    fp8_e4m3_b128: ("float8_e4m3fn", 128, "float32", False, "saturate", 8.25),
    mxfp8_e4m3: ("float8_e4m3fn", 32, "float8_e8m0fnu", False, "nan_block", 8.25),
    mxfp8_e5m2: ("float8_e5m2", 32, "float8_e8m0fnu", False, "nan_block", 8.25),
    mxfp6_e2m3: ("float6_e2m3fn", 32, "float8_e8m0fnu", False, "nan_block", 8.25),
    mxfp6_e3m2: ("float6_e3m2fn", 32, "float8_e8m0fnu", False, "nan_block", 8.25),
    mxfp4: ("float4_e2m1fn", 32, "float8_e8m0fnu", False, "nan_block", 4.25),
    mxint8: ("int8", 32, "float8_e8m0fnu", False, "nan_block", 8.25),
    nvfp4: ("float4_e2m1fn", 16, "float8_e4m3fn", True, "nan_block", 4.5),
}


@pytest.mark.parametrize("row", list(TABLE), ids=str)
def test_rows(row: QuantDType) -> None:
    assert TABLE[row] == (
        row.element.name, row.block, row.scale.name, row.tensor_scale, row.nonfinite, row.bits_per_value
    )  # fmt: skip
    assert FORMATS[row.name] is row
    assert (str(row), repr(row)) == (row.name, f"nvfp.{row.name}")


def test_table_is_complete() -> None:
    assert set(FORMATS.values()) == set(TABLE)
    assert mxfp8 is mxfp8_e4m3
    assert {row.name: row.scale_rule for row in FORMATS.values() if row.scale_rule != "ceil"} == {"mxint8": "floor"}


def test_replace_names_what_it_changed() -> None:
    square = nvfp4.replace(block=(16, 16))
    assert square.name == "nvfp4[block=(16,16)]"
    assert square.block_shape == (16, 16)
    assert square.square
    assert not nvfp4.square
    assert fp8_e4m3.square
    assert nvfp4.replace(element="float6_e2m3fn").name == "nvfp4[element=float6_e2m3fn]"
    assert nvfp4.replace(block=8, name="mine").name == "mine"
    assert square == nvfp4.replace(block=[16, 16])
    assert hash(square) == hash(nvfp4.replace(block=np.array([16, 16]).tolist()))
    assert nvfp4.replace(block=np.int64(32)).block == 32


def test_a_borrowed_name_prints_with_the_fields_that_differ() -> None:
    """Such rows come from files too, so they are no error; but they do not print as what they are not."""
    other = QuantDType("nvfp4", element="int4", block=16, scale="float8_e4m3fn", tensor_scale=True)  # type: ignore[arg-type]
    assert (other.name, repr(other)) == ("nvfp4", "nvfp.nvfp4[element=int4]")
    assert str(mxfp8.replace(block=(32, 32), name="mxfp8")) == "mxfp8[block=(32,32)]"
    assert other.replace(block=8).name == "nvfp4[element=int4][block=8]"
    assert repr(nvfp4.replace(name="nvfp4")) == "nvfp.nvfp4" and repr(nvfp4.replace(block=8, name="b")) == "nvfp.b"
    assert pickle.loads(pickle.dumps(other)) == other != nvfp4
    assert repr(mxfp8.replace(name="mxfp8")) == "nvfp.mxfp8"


def test_rows_are_hashable_frozen_and_picklable() -> None:
    assert len({*FORMATS.values(), nvfp4.replace(name="nvfp4")}) == len(FORMATS)
    assert pickle.loads(pickle.dumps(nvfp4)) == nvfp4
    with pytest.raises(AttributeError):
        nvfp4.block = 32  # type: ignore[misc]


def test_a_new_row_from_data() -> None:
    row = QuantDType("int8_b64", element=np.dtype(np.int8), block=64, scale="float8_e5m2", tensor_scale=True)  # type: ignore[arg-type]
    assert (row.element, row.scale) == (el.int8, el.float8_e5m2)
    assert row.bits_per_value == 8.125
    assert QuantDType("x", ml_dtypes.float4_e2m1fn, 16, np.float32).bits_per_value == 6.0  # type: ignore[arg-type]
    assert as_element(ml_dtypes.bfloat16) is el.bfloat16


def test_a_new_row_needs_no_name() -> None:
    fields: dict[str, object] = {"element": "float4_e2m1fn", "block": (16, 16), "scale": "float8_e4m3fn"}
    row = QuantDType(**fields, tensor_scale=True)  # type: ignore[arg-type]
    assert row.name == "float4_e2m1fn[block=(16,16),scale=float8_e4m3fn,tensor_scale=True]"
    assert row == QuantDType(**fields, tensor_scale=True)  # type: ignore[arg-type]
    assert row.replace(name="nvfp4") == nvfp4.replace(block=(16, 16), name="nvfp4")
    assert QuantDType(**fields).name != row.name  # type: ignore[arg-type]
    for missing in ("element", "scale"):
        with pytest.raises(DTypeError, match=r"\[QuantDType\] expected an element out of .* got None"):
            QuantDType(**{k: v for k, v in fields.items() if k != missing})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "family"),
    [(fp8_e4m3, "float32"), (mxfp8, "e8m0"), (nvfp4, "two_level"), (nvfp4.replace(tensor_scale=False), "two_level")],
    ids=str,
)
def test_scale_family(row: QuantDType, family: str) -> None:
    assert row.scale_family == family


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"block": 0}, "positive int"),
        ({"block": (16, 16, 16)}, "positive int"),
        ({"block": 2.5}, "positive int"),
        ({"block": True}, "positive int"),
        ({"element": "float32"}, "at most 8 bits"),
        ({"element": "float8_e8m0fnu"}, "signed element"),
        ({"scale": "int8"}, "float scale format"),
        ({"scale": "float6_e3m2fn"}, "nonfinite='saturate'"),
        ({"scale": "float8_e8m0fnu"}, "leave tensor_scale out"),
        ({"scale": "bfloat16"}, "leave tensor_scale out"),
        ({"scale": "float32"}, "leave tensor_scale out"),
        ({"nonfinite": "ignore"}, "nonfinite out of"),
        ({"scale_rule": "up"}, "scale_rule out of"),
        ({"name": 5}, "name as text, got 5"),
        ({"tensor_scale": "yes"}, "tensor_scale as True or False, got 'yes'"),
    ],
    ids=str,
)
def test_what_does_not_fit_together(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        nvfp4.replace(**changes)


def test_unknown_element() -> None:
    with pytest.raises(DTypeError, match=r"\[QuantDType\] expected an element out of .* got float7"):
        nvfp4.replace(element="float7")


def test_numpy_refuses_a_quantized_dtype() -> None:
    """NumPy 2.4 asks for ``__numpy_dtype__`` and shows our message; older ones cannot interpret the row."""
    with pytest.raises(TypeError):
        np.zeros(3, dtype=nvfp4)
    with pytest.raises(DTypeError, match=r"use x.astype\(nf.nvfp4\)"):
        _ = nvfp4.__numpy_dtype__
    assert np.dtype("f4") != nvfp4
