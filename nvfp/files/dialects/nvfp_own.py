"""nvfp's own files, as `nf.save` writes them: ``<name>.codes``, ``.scale``, ``.tensor_scale``, rows in the metadata.

It holds every quantized dtype, those made by users too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import FileFormatError, NvfpError, message
from nvfp.files.dialects.dialect import Dialect, Written
from nvfp.files.dialects.entry import Entry, as_scale
from nvfp.files.header import TensorEntry
from nvfp.files.shards import Shards
from nvfp.files.tensors import PARTS, QUANTIZED, quantized_parts, row_from_json


def find(shards: Shards) -> tuple[str, dict[str, Entry]] | None:
    """Return the dialect's name and its quantized arrays, or None for files without its metadata.

    Args:
        shards: the tensors of the files.

    Raises:
        FileFormatError: damaged metadata.
    """
    entries: dict[str, Entry] = {}
    ours = False
    for metadata in shards.metadata:
        if QUANTIZED not in metadata:
            continue
        ours = True
        try:
            for name, row in json.loads(metadata[QUANTIZED]).items():
                entries[name] = _entry(name, row, shards.entries)
        except (KeyError, AttributeError, TypeError, ValueError, RecursionError, OverflowError) as error:
            if isinstance(error, NvfpError) and not isinstance(error, FileFormatError):
                error = FileFormatError(str(error))
            got = f"{type(error).__name__}: {str(error)[:200]}"
            do = "write the files anew"
            raise FileFormatError(message("open_checkpoint", "metadata as nf.save writes them", got, do)) from error
    return ("nvfp", entries) if ours else None


def _entry(name: str, row: Mapping[str, Any], tensors: Mapping[str, TensorEntry]) -> Entry:
    dtype: QuantDType = row_from_json(row["format"])
    shape, axis = tuple(int(n) for n in row["shape"]), int(row["axis"])
    names = {part: f"{name}.{part}" for part in PARTS if f"{name}.{part}" in tensors}
    if not {"codes", "scale"} <= set(names):
        raise KeyError(f"{name}.codes or {name}.scale")
    nbytes = sum(tensors[part].nbytes for part in names.values())

    def arrange(parts: dict[str, np.ndarray]) -> None:
        parts["scale"] = as_scale(parts["scale"], dtype)

    return Entry(name, "nvfp", dtype, shape, names, nbytes, axis, arrange)


def _spell(name: str, q: QuantizedArray) -> tuple[dict[str, np.ndarray], Any]:
    parts, row = quantized_parts(q)
    return {f"{name}.{part}": value for part, value in parts.items()}, row


def _collect(entries: Mapping[str, Any], dense: list[str]) -> dict[str, str]:
    return {QUANTIZED: json.dumps(entries)} if entries else {}


def _config(written: Written) -> dict[str, Any]:
    return {"quant_method": "nvfp", "modules_to_not_convert": list(written.dense)}


NVFP = Dialect("nvfp", ("nvfp",), (), _config, spell=_spell, collect=_collect)
