"""Makes safetensors files by hand, right ones and wrong ones, without the library that nvfp writes them with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

NAMES = {
    "uint8": "U8", "int8": "I8", "int32": "I32", "bool": "BOOL", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
Tensors = Mapping[str, np.ndarray]


def e4m3(codes: Any) -> np.ndarray:
    """E4M3 numbers of codes."""
    return np.asarray(codes, np.uint8).view(ml_dtypes.float8_e4m3fn)


def e8m0(codes: Any) -> np.ndarray:
    """Powers of two of codes."""
    return np.asarray(codes, np.uint8).view(ml_dtypes.float8_e8m0fnu)


def header(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The table of a file that holds the tensors one behind the other."""
    table: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    start = 0
    for name, value in tensors.items():
        table[name] = {
            "dtype": NAMES[value.dtype.name], "shape": list(value.shape), "data_offsets": [start, start + value.nbytes],
        }  # fmt: skip
        start += value.nbytes
    return table


def joined(table: Any, data: bytes) -> bytes:
    """A file of a table and what follows it."""
    text = json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


def content(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """A right file."""
    return joined(header(tensors, metadata), b"".join(value.tobytes() for value in tensors.values()))


def folder(path: Path, tensors: Tensors, config: Any = None, metadata: Mapping[str, str] | None = None) -> Path:
    """A model's folder with one file."""
    path.mkdir()
    (path / "model.safetensors").write_bytes(content(tensors, metadata))
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path
