"""Reads the reference files of this folder (safetensors) without any library, bfloat16 included."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np

FOLDER = Path(__file__).parent
_DTYPES = {"F32": np.float32, "U8": np.uint8, "I64": np.int64, "BF16": ml_dtypes.bfloat16, "BOOL": np.bool_}


@cache
def load(name: str) -> dict[str, np.ndarray]:
    """Return the tensors of ``tests/data/<name>.safetensors`` by key, read-only."""
    raw = (FOLDER / f"{name}.safetensors").read_bytes()
    body = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:body])
    notes = header.pop("__metadata__", {})
    tensors = {}
    for key, entry in header.items():
        start, stop = entry["data_offsets"]
        flat = np.frombuffer(raw, np.uint8, stop - start, body + start)
        tensors[key] = flat.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    tensors.update({key: tensors[known] for key, known in json.loads(notes.get("same", "{}")).items()})
    return tensors


def cases(name: str, tensor: str) -> list[str]:
    """Return the keys of ``name`` that hold a tensor called ``tensor``, without that last part."""
    return sorted(key.removesuffix(f".{tensor}") for key in load(name) if key.endswith(f".{tensor}"))
