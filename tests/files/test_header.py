"""Headers of safetensors files: what is promised is checked, and nothing is taken that the library refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors import deserialize

from nvfp.errors import FileFormatError
from nvfp.files.header import array_of, map_file, read_header
from tests.files.build import content, e4m3, header, joined

TENSORS = {"a": np.arange(3, dtype=np.uint8), "b": np.float32([[1, 2], [3, 4]]), "c": e4m3([[1], [2]])}


def test_tensors_are_views_of_the_file_where_it_is_aligned() -> None:
    raw = bytearray(content(TENSORS, {"format": "pt"}))
    entries, metadata = read_header(raw, "x")
    assert list(entries) == list(TENSORS) and metadata == {"format": "pt"}
    for name, value in TENSORS.items():
        found = array_of(raw, entries[name])
        assert found.dtype == value.dtype and found.tobytes() == value.tobytes() and found.shape == value.shape
    assert np.shares_memory(array_of(raw, entries["a"]), np.frombuffer(raw, np.uint8))
    assert array_of(raw, entries["b"]).flags.aligned  # 3 bytes of "a" lie before it


def test_a_mapped_file_is_written_to_in_memory_only(tmp_path: Any) -> None:
    (tmp_path / "x").write_bytes(content(TENSORS))
    mapped = map_file(tmp_path / "x")
    found = array_of(mapped, read_header(mapped, "x")[0]["a"])
    found[:] = 9
    assert (tmp_path / "x").read_bytes() == content(TENSORS)


def test_files_larger_than_the_memory_are_mapped(tmp_path: Any) -> None:
    """A sparse file of a TiB: only what is looked at costs anything."""
    size = 1 << 40
    text = joined({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}, b"")
    (tmp_path / "x").write_bytes(text)
    with (tmp_path / "x").open("r+b") as file:
        file.truncate(len(text) + size)
    mapped = map_file(tmp_path / "x")
    found = array_of(mapped, read_header(mapped, "x")[0]["x"])
    assert found.shape == (size,) and found[-1] == 0
    found[0] = 1
    assert (tmp_path / "x").stat().st_blocks < 100


def _changed(**changes: Any) -> bytes:
    table = header(TENSORS)
    for name, fields in changes.items():
        table[name] = {**table[name], **fields} if isinstance(fields, dict) else fields
    return joined(table, b"\0" * 21)


TWICE = b'"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
DAMAGED: dict[str, bytes] = {
    "nothing": b"",
    "seven bytes": b"\x02\0\0\0\0\0\0",
    "cut header": content(TENSORS)[:40],
    "cut data": content(TENSORS)[:-1],
    "more data": content(TENSORS) + b"\0",
    "a huge header": b"\xff" * 8 + b"{}",
    "no object": joined([1], b""),
    "text": joined("x", b""),
    "deep": (200_000).to_bytes(8, "little") + b'{"a":' * 40_000,
    "not utf-8": (4).to_bytes(8, "little") + b'{"\xff"',
    "twice": (105).to_bytes(8, "little") + b"{%b,%b}" % (TWICE, TWICE) + b"\0",
    "overlap": _changed(b={"data_offsets": [2, 18]}),
    "hole": _changed(b={"data_offsets": [4, 20]}, c={"data_offsets": [20, 22]}),
    "beyond": _changed(c={"data_offsets": [2**62, 2**62 + 2]}),
    "backwards": _changed(a={"data_offsets": [3, 0]}),
    "negative": _changed(a={"shape": [-3]}),
    "huge shape": _changed(a={"shape": [2**40, 2**40]}),
    "huge and empty": _changed(a={"shape": [2**62, 0]}),
    "text shape": _changed(a={"shape": "3"}),
    "float shape": _changed(a={"shape": [3.0]}),
    "bool shape": _changed(a={"shape": [True, 3]}),
    "many axes": _changed(a={"shape": [1] * 70 + [3]}),
    "another dtype": _changed(a={"dtype": "F9"}),
    "no dtype": _changed(a={"dtype": None}),
    "wide dtype": _changed(a={"dtype": "F64"}),
    "a list": _changed(a=[1]),
    "null": _changed(a=None),
    "metadata of numbers": joined({"__metadata__": {"a": 1}}, b""),
    "metadata as text": joined({"__metadata__": "a"}, b""),
}


@pytest.mark.parametrize("name", list(DAMAGED))
def test_damaged_files_are_refused(name: str) -> None:
    with pytest.raises(FileFormatError, match=r"\[open_checkpoint\] expected a safetensors file, got model: "):
        read_header(DAMAGED[name], "model")


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)])
def test_shapes_of_no_and_few_numbers(shape: tuple[int, ...]) -> None:
    raw = content({"x": np.zeros(shape, np.float32), "y": np.ones(2, np.uint8)})
    deserialize(raw)
    entries, _ = read_header(raw, "x")
    assert array_of(raw, entries["x"]).shape == shape


def test_narrow_dtypes_count_bits() -> None:
    raw = joined({"x": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}, b"\x21\x43\x65\x87")
    assert array_of(raw, read_header(raw, "x")[0]["x"]).tolist() == [[0x21, 0x43], [0x65, 0x87]]
    raw = joined({"x": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}, b"abc")
    with pytest.raises(FileFormatError, match="which no array of nvfp stands for"):
        array_of(raw, read_header(raw, "x")[0]["x"])
