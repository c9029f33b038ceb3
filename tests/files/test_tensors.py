"""save and load: every dtype, quantized rows and rows that users made, errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, FileFormatError


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
        nf.fp8_e4m3_b128,
        nf.fp8_e4m3_b128.replace(block=(128, 128)),
        nf.mxfp8_e4m3,
        nf.mxfp8_e5m2,
        nf.mxfp6_e2m3,
        nf.mxfp6_e3m2,
        nf.mxfp4,
        nf.mxint8,
        nf.nvfp4,
        nf.nvfp4.replace(block=(16, 16)),
        nf.mxfp8.replace(block=24, name="mine"),
        nf.QuantDType("e3m2_b24", "float6_e3m2fn", 24, "float8_e5m2"),
        nf.QuantDType("int4_b32", "int4", 32, "bfloat16"),
        nf.QuantDType("nvfp4", "int4", 16, "float8_e4m3fn", tensor_scale=True),  # a name of nvfp's, other fields
        nf.QuantDType("int4_2d", "int4", (5, 7), "float16", nonfinite="saturate"),
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


@pytest.mark.parametrize("dtype", ["float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "complex64", "complex128"])
def test_dtypes_that_the_format_has_no_name_for(device: Any, tmp_path: Path, dtype: str) -> None:
    x = nf.asarray(np.asarray([[0, 1, -2], [3, 4, 0.5]], np.float32)).astype(dtype)
    if dtype.startswith("complex"):
        x = x + x * 2j
    nf.save(tmp_path / "x", {"x": x, "column": x.T, "word": x[0, 1], "empty": x[:0]}, metadata={"a": "b"})
    back, metadata = nf.files.load_with_metadata(tmp_path / "x")
    for name, value in {"x": x, "column": x.T, "word": x[0, 1], "empty": x[:0]}.items():
        assert back[name].dtype is x.dtype and back[name].shape == value.shape and nf.array_equal(back[name], value)
    assert metadata == {"a": "b"}
    content = (tmp_path / "x").read_bytes()
    (tmp_path / "y").write_bytes(content.replace(dtype.encode(), dtype[:-1].encode() + b"x"))
    with pytest.raises(FileFormatError, match=r"\[load\] expected arrays as save writes them"):
        nf.load(tmp_path / "y")


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp8", "fp8_e4m3_b128", "mxint8"])
def test_transposed_quantized_arrays_come_back(device: Any, tmp_path: Path, fmt: str) -> None:
    for shape in ((128, 128), (32, 128)):
        q = nf.random.default_rng(0).normal(size=shape).astype(fmt)
        nf.save(tmp_path / "q", q.T)
        back = nf.load(tmp_path / "q")
        assert back.axis == q.T.axis and nf.array_equal(back, q.T)


def test_contradictions_are_refused(tmp_path: Path) -> None:
    """The record of a file, and codes and scales that cannot be those of its dtype."""
    nf.save(tmp_path / "x", {"q": nf.ones((2, 32), device="cpu").astype(nf.nvfp4)})
    content = (tmp_path / "x").read_bytes()
    for old, new in (
        (b'block\\": 16', b'block\\": 32'),  # other scales than the file has
        (b'per_row_tensor_scale\\": false', b'per_row_tensor_scale\\": true '),  # one tensor scale for two rows
        (b'tensor_scale\\": true', b'tensor_scale\\": null'),
        (b'scale_rule\\": \\"ceil', b'scale_rule\\": \\"ceal'),
        (b'nonfinite\\"', b'nonf1nite\\"'),  # a field that nvfp does not know
        (b'axis\\": 1', b'axis\\": 5'),
    ):
        assert old in content and len(old) == len(new)
        (tmp_path / "y").write_bytes(content.replace(old, new))
        with pytest.raises(FileFormatError, match=r"\[load\] expected arrays as save writes them"):
            nf.load(tmp_path / "y")
    scale = nf.asarray(np.float32(2.0), device="cpu")
    per_tensor = nf.QuantizedArray.from_parts(np.zeros(4, np.uint8), scale, nf.fp8_e4m3)
    nf.save(tmp_path / "x", per_tensor)
    content = (tmp_path / "x").read_bytes()
    assert content.count(np.float32(2.0).tobytes()) == 1
    (tmp_path / "y").write_bytes(content.replace(np.float32(2.0).tobytes(), np.float32(-2.0).tobytes()))
    with pytest.raises(FileFormatError, match="decode factors"):
        nf.load(tmp_path / "y")


def test_a_name_is_dense_or_quantized(tmp_path: Path) -> None:
    nf.save(tmp_path / "x", {"qq": nf.ones((2, 32), device="cpu").astype(nf.mxfp8), "pp": np.ones(3)})
    content = (tmp_path / "x").read_bytes()
    (tmp_path / "y").write_bytes(content.replace(b'"pp"', b'"qq"'))
    with pytest.raises(FileFormatError, match="names of dense arrays or of quantized ones"):
        nf.load(tmp_path / "y")


def test_elements_of_your_own_have_no_name_in_a_file(tmp_path: Path) -> None:
    mine = dataclasses.replace(nf.mxfp8.element, max_code=0x7D)
    q = nf.ones((2, 32), device="cpu").astype(nf.mxfp8)
    odd = nf.QuantizedArray.from_parts(q.codes, q.scale, nf.mxfp8.replace(element=mine, name="mine"))
    with pytest.raises(FileFormatError, match=r"\[save\] expected elements out of"):
        nf.save(tmp_path / "x", odd)
    assert not list(tmp_path.iterdir())


def test_a_failed_save_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    nf.save(path, nf.ones((2,)))
    with pytest.raises(DTypeError):
        nf.save(path, {"a": nf.zeros((2,)), "z": np.zeros(2, "datetime64[s]")})
    assert np.asarray(nf.load(path)).tolist() == [1, 1] and list(tmp_path.iterdir()) == [path]


def test_a_file_has_the_rights_of_any_other_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    nf.save(tmp_path / "x.safetensors", nf.ones((2,)))
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_not_a_safetensors_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    with pytest.raises(FileFormatError, match=r"\[load\] expected a safetensors file"):
        nf.load(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        nf.load(tmp_path / "none")


@pytest.mark.parametrize(
    "arrays",
    [
        {"__metadata__": np.zeros(2)},
        {1: np.zeros(2)},
        {None: np.zeros(2)},
        {"a": "text"},
        {"a": None},
        {"a": nf.zeros((1, 32), device="cpu").astype(nf.mxfp8), "a.codes": np.zeros(2)},
        {"a": nf.zeros((1, 32), device="cpu").astype(nf.mxfp8), "a.tensor_scale": np.zeros(2)},
    ],
    ids=lambda arrays: str(list(arrays)),
)
def test_names_and_values_that_would_not_come_back_are_refused(tmp_path: Path, arrays: Any) -> None:
    with pytest.raises((ArgumentError, DTypeError)):
        nf.save(tmp_path / "x", arrays)
    assert not list(tmp_path.iterdir())


def test_scalars_and_lists_come_back_as_asarray_makes_them(device: Any, tmp_path: Path) -> None:
    nf.save(tmp_path / "x", {"a": 1.5, "b": [1, 2]})
    back = nf.load(tmp_path / "x")
    assert (back["a"].dtype, back["a"].item(), back["b"].tolist()) == (nf.float32, 1.5, [1, 2])


def test_paths_and_metadata_of_another_type_are_refused(tmp_path: Path) -> None:
    for call in (lambda: nf.load(None), lambda: nf.save(None, {})):  # type: ignore[arg-type]
        with pytest.raises(DTypeError, match="a path as str"):
            call()
    with pytest.raises(ArgumentError, match="metadata of str to str"):
        nf.save(tmp_path / "x", {}, metadata={1: 2})  # type: ignore[dict-item]


def test_damaged_entries_of_quantized_arrays_are_named(tmp_path: Path) -> None:
    nf.save(tmp_path / "x", {"q": nf.ones((2, 32), device="cpu").astype(nf.nvfp4)})
    content = (tmp_path / "x").read_bytes()
    for old, new in ((b"q.scale", b"p.scale"), (b"e2m1fn", b"e2m9fn"), (b"axis", b"ayis"), (b"[2, 32]", b"[2, 99]")):
        assert old in content
        (tmp_path / "y").write_bytes(content.replace(old, new))
        with pytest.raises(FileFormatError, match=r"\[load\] expected arrays as save writes them"):
            nf.load(tmp_path / "y")
