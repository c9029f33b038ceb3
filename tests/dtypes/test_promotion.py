"""`result_type`: the table of rules, order independence, agreement with NumPy where NumPy decides."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.dtypes.dense import DENSE, NARROW, DType, bfloat16, float16, float32
from nvfp.dtypes.formats import FORMATS, nvfp4
from nvfp.dtypes.promotion import result_type
from nvfp.errors import ArgumentError, DTypeError

EVERY: list[DType] = [*DENSE.values(), *FORMATS.values()]
NATIVE = [d for d in DENSE.values() if d not in NARROW and d != bfloat16]
FLOATING = [d for d in NATIVE if d.kind in "fc"]
SCALARS = [True, 2, 2.5, 1j]

CASES: list[tuple[tuple[object, ...], str]] = [
    (("float32",), "float32"),
    (("int8",), "int8"),
    (("float8_e4m3fn",), "float32"),
    (("nvfp4",), "float32"),
    # integers never widen a float
    (("int32", "float32"), "float32"),
    (("int64", "float16"), "float16"),
    (("uint64", "bfloat16"), "bfloat16"),
    (("bool", "float16"), "float16"),
    (("int64", "complex64"), "complex64"),
    (("int8", "uint8"), "int16"),
    (("int64", "uint64"), "float64"),
    (("int64", "uint64", "float16"), "float16"),
    # bfloat16
    (("bfloat16", "float16"), "float32"),
    (("bfloat16", "float32"), "float32"),
    (("bfloat16", "float64"), "float64"),
    (("bfloat16", "complex64"), "complex64"),
    (("bfloat16", "bool"), "bfloat16"),
    # weak Python scalars
    (("bfloat16", 1.5), "bfloat16"),
    (("bfloat16", 3), "bfloat16"),
    (("bfloat16", 1j), "complex64"),
    (("float16", 1e30), "float16"),
    (("float64", 1j), "complex128"),
    (("int8", 1), "int8"),
    (("int8", 1.0), "float32"),
    (("int64", 0.5), "float32"),
    (("int64", 1j), "complex64"),
    (("bool", 1), "int64"),
    ((1, 2.0), "float32"),
    # NumPy scalars are strong
    (("float16", np.float32(1)), "float32"),
    (("bfloat16", np.float64(1)), "float64"),
    (("bfloat16", np.int64(1)), "bfloat16"),
    (("float16", ml_dtypes.bfloat16(1)), "float32"),
    # storage dtypes count as a Python float
    (("nvfp4", "bfloat16"), "bfloat16"),
    (("nvfp4", "float16"), "float16"),
    (("nvfp4", "float64"), "float64"),
    (("nvfp4", "mxfp8"), "float32"),
    (("nvfp4", "int32"), "float32"),
    (("nvfp4", 2.0), "float32"),
    (("nvfp4", 1j), "complex64"),
    (("float8_e4m3fn", "float8_e4m3fn"), "float32"),
    (("float8_e4m3fn", "float8_e5m2"), "float32"),
    (("float8_e4m3fn", "bfloat16"), "bfloat16"),
    (("float8_e4m3fn", "nvfp4", "int8", 1), "float32"),
]


@pytest.mark.parametrize(("operands", "right"), CASES, ids=str)
def test_rules(operands: tuple[object, ...], right: str) -> None:
    for order in itertools.permutations(operands):
        assert result_type(*order) is DENSE[right]


@pytest.mark.parametrize("pair", [*itertools.combinations_with_replacement(EVERY, 2)], ids=str)
def test_symmetric_dense_and_idempotent(pair: tuple[DType, DType]) -> None:
    found = result_type(*pair)
    assert found is result_type(*reversed(pair))
    assert found.name in DENSE
    assert found not in NARROW
    assert result_type(found, found) is found
    assert result_type(found, *pair) is found, "the result absorbs its operands"


@pytest.mark.parametrize("pair", [*itertools.product(NATIVE, repeat=2)], ids=str)
def test_numpy_decides_native_pairs(pair: tuple[np.dtype, np.dtype]) -> None:
    floats = [d for d in pair if d in FLOATING]
    right = floats[0] if len(floats) == 1 else np.result_type(*pair)
    assert result_type(*pair) is right


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("dtype", NATIVE, ids=str)
def test_numpy_decides_weak_scalars(dtype: np.dtype, scalar: complex) -> None:
    if dtype.kind in "biu" and isinstance(scalar, float | complex):  # NumPy's default width is 64 bits, nvfp's 32
        assert result_type(dtype, scalar) is np.dtype("float32" if isinstance(scalar, float) else "complex64")
    else:
        assert result_type(dtype, scalar) is np.result_type(dtype, scalar)


@given(st.lists(st.sampled_from(EVERY), min_size=1, max_size=5), st.randoms())
def test_order_does_not_matter(dtypes: list[DType], random: object) -> None:
    shuffled = sorted(dtypes, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert result_type(*dtypes) is result_type(*shuffled)


def test_operands_in_every_spelling() -> None:
    array = np.zeros(2, np.float16)
    assert result_type(array, "bfloat16") is float32
    assert result_type(np.float16, ml_dtypes.bfloat16) is float32
    assert result_type(SimpleNamespace(dtype=nvfp4), array) is float16
    assert result_type(np.float16(1), 2.0) is float16


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="at least one operand"):
        result_type()
    for wrong in ("float7", None, object(), np.array("text")):
        with pytest.raises(DTypeError):
            result_type("float32", wrong)
