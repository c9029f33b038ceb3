"""Dense dtypes are NumPy's; `as_dtype` reads every spelling and refuses the rest."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nvfp.dtypes import dense
from nvfp.dtypes.dense import DENSE, NARROW, as_dtype, is_narrow
from nvfp.dtypes.elements import ELEMENTS
from nvfp.dtypes.formats import FORMATS, mxfp8, nvfp4
from nvfp.errors import DTypeError


@pytest.mark.parametrize("name", DENSE)
def test_one_instance_per_dtype(name: str) -> None:
    found = DENSE[name]
    assert isinstance(found, np.dtype)
    assert getattr(dense, name) is found
    assert as_dtype(name) is found
    assert as_dtype(found) is found
    assert as_dtype(found.type) is found
    assert as_dtype(np.zeros(2, found).dtype) is found


def test_numpy_and_ml_dtypes_instances() -> None:
    assert dense.float32 is np.dtype("float32")
    assert dense.bfloat16 is np.dtype(ml_dtypes.bfloat16)
    assert dense.bool is np.dtype(np.bool_)
    assert as_dtype(ml_dtypes.bfloat16) is dense.bfloat16
    assert as_dtype("f4") is as_dtype("<f4") is dense.float32


def test_narrow_dtypes_are_the_narrow_elements() -> None:
    assert {d.name for d in NARROW} == {e.name for e in ELEMENTS.values() if e.bits <= 8 and not e.integer}
    assert [is_narrow(d) for d in (dense.float8_e5m2, dense.int8, dense.float16, nvfp4)] == [True, False, False, False]


def test_quantized_names() -> None:
    assert all(as_dtype(name) is row for name, row in FORMATS.items())
    assert as_dtype("mxfp8") is mxfp8
    mine = nvfp4.replace(block=8)
    assert as_dtype(mine) is mine


def test_python_types_are_numpy_s() -> None:
    assert [as_dtype(t) for t in (bool, int, float, complex)] == ["bool", np.dtype(int), "float64", "complex128"]


@pytest.mark.parametrize(
    "wrong",
    ["float7", None, object, str, "S4", np.longdouble, ">f4", "datetime64[s]", ml_dtypes.int4, [("a", "f4")], 3],
    ids=str,
)
def test_refused(wrong: object) -> None:
    with pytest.raises(DTypeError, match=r"\[dtype\] expected one of bool, int8"):
        as_dtype(wrong)
