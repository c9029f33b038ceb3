"""save and load: every dtype, quantized rows and rows that users made, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import FileFormatError


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"],
)
def test_dense_round_trip(device: Any, tmp_path: Path, dtype: str) -> None:
    x = nf.asarray(np.asarray([[0, 1, 2], [3, 4, 5]], np.float32)).astype(getattr(nf, dtype))
    nf.save(tmp_path / "x.safetensors", {"x": x, "empty": x[:0]})
    back = nf.load(tmp_path / "x.safetensors")
    assert back["x"].dtype == x.dtype and back["empty"].shape == (0, 3) and back["x"].device == x.device
    assert np.asarray(back["x"]).tobytes() == np.asarray(x).tobytes()


@pytest.mark.parametrize(
    "fmt",
    [
        nf.fp8_e4m3,
        nf.fp8_e5m2,
        nf.mxfp8_e4m3,
        nf.mxfp8_e5m2,
        nf.nvfp4,
        nf.nvfp4.replace(block=(16, 16)),
        nf.mxfp8.replace(block=24, name="mine"),
    ],
    ids=str,
)
@pytest.mark.parametrize("axis", [0, 1])
def test_quantized_round_trip(device: Any, tmp_path: Path, fmt: Any, axis: int) -> None:
    q = nf.quantize(nf.random.default_rng(0).normal(size=(48, 40)), fmt, axis=axis)
    nf.save(tmp_path / "q.safetensors", q)
    back = nf.load(tmp_path / "q.safetensors")
    assert isinstance(back, nf.QuantizedArray) and (back.dtype, back.axis, back.shape) == (fmt, axis, (48, 40))
    assert np.array_equal(np.asarray(back), np.asarray(q))
    assert np.asarray(back.codes).tobytes() == np.asarray(q.codes).tobytes()


def test_a_failed_save_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    nf.save(path, nf.ones((2,)))
    with pytest.raises(FileFormatError, match=r"\[save\] expected a dtype"):
        nf.save(path, {"z": np.zeros(2, np.complex64)})
    assert np.asarray(nf.load(path)).tolist() == [1, 1] and list(tmp_path.iterdir()) == [path]


def test_not_a_safetensors_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    with pytest.raises(FileFormatError, match=r"\[load\] expected a safetensors file"):
        nf.load(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        nf.load(tmp_path / "none")
