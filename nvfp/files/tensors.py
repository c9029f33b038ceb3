"""`save` and `load`: arrays in safetensors files, quantized ones included. No pickle anywhere.

A dense array is one tensor of its own dtype; one that the format has no name for (fp6, unpacked fp4, complex) is
its bytes or pairs, with its dtype in the metadata. A QuantizedArray is the tensors ``<name>.codes``,
``<name>.scale`` (and ``.tensor_scale``), and an entry in the metadata that states its format row,
axis and shape, so that formats made by users come back too.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, TensorSpec, deserialize, serialize_file

from nvfp.arrays.array import Array
from nvfp.arrays.blocks import plain
from nvfp.arrays.convert import asarray, asnumpy
from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes.elements import ELEMENTS
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, FileFormatError, message

# NumPy dtype name -> (name the writer takes, name in the file).
_TYPES: dict[str, tuple[str, str]] = {
    "bool": ("bool", "BOOL"),
    **{f"{s}int{b}": (f"{s}int{b}", f"{'U' if s else 'I'}{b}") for s in ("", "u") for b in (8, 16, 32, 64)},
    "float16": ("float16", "F16"),
    "bfloat16": ("bfloat16", "BF16"),
    "float32": ("float32", "F32"),
    "float64": ("float64", "F64"),
    "float8_e4m3fn": ("float8_e4m3fn", "F8_E4M3"),
    "float8_e5m2": ("float8_e5m2", "F8_E5M2"),
    "float8_e8m0fnu": ("float8_e8m0fnu", "F8_E8M0"),
}
_READ = {file: np.dtype(getattr(ml_dtypes, name, None) or name) for name, (_, file) in _TYPES.items()}
# dtype name -> what it is stored as; complex numbers get an axis of length 2 behind the others.
_STORED = {
    "float6_e2m3fn": "uint8", "float6_e3m2fn": "uint8", "float4_e2m1fn": "uint8",
    "complex64": "float32", "complex128": "float64",
}  # fmt: skip
QUANTIZED = "nvfp.quantized"  # the metadata's entry: name -> format row, axis, shape
_DENSE = "nvfp.dense"
_SINGLE = "nvfp.array"
PARTS = ("codes", "scale", "tensor_scale")
_RESERVED = ("__metadata__",)  # the header's own key


def save(path: str | os.PathLike[str], arrays: Any, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write one array or a dict of arrays to a safetensors file, atomically.

    Args:
        path: the file; an existing one is replaced only when everything is written.
        arrays: an Array, QuantizedArray or ndarray, or a mapping name -> such.
        metadata: string pairs to keep beside them.

    Raises:
        FileFormatError: a quantized dtype of an element of your own.
        ArgumentError: names that are no strings or collide, or metadata that is not str to str.
        DTypeError: values that are no arrays.
        OSError: the file cannot be written.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
        >>> save(path, {"w": nf.ones((2, 32), device="cpu").astype(nf.mxfp8)})
        >>> load(path, device="cpu")["w"].dtype
        nvfp.mxfp8_e4m3
    """
    named = dict(arrays) if isinstance(arrays, Mapping) else {_SINGLE: arrays}
    flat: dict[str, np.ndarray] = {}
    rows: dict[str, Any] = {}
    dense: dict[str, str] = {}
    for name, value in named.items():
        if not isinstance(name, str) or name in _RESERVED:
            got = repr(name)
            raise ArgumentError(message("save", f"names as str other than {_RESERVED}", got, "rename this array"))
        if isinstance(value, Mapping):
            do = "join the names: {'a.b': array}"
            raise DTypeError(message("save", "arrays by name", f"a {type(value).__name__} under {name!r}", do))
        if isinstance(value, QuantizedArray):
            parts, rows[name] = quantized_parts(value)
            flat.update({f"{name}.{part}": raw for part, raw in parts.items()})
        else:
            host = asnumpy(asarray(value, device=None if isinstance(value, Array) else "cpu"))
            flat[name], stored = _stored(np.array(host, order="C", copy=None))
            if stored:
                dense[name] = stored
    clash = sorted(f"{n}.{part}" for n in rows for part in PARTS if f"{n}.{part}" in named)
    if clash:
        do = "rename them: a quantized array is saved under these names"
        raise ArgumentError(message("save", "names that differ from those of codes and scales", clash, do))
    meta = dict(metadata or {})
    if not all(isinstance(text, str) for pair in meta.items() for text in pair):
        raise ArgumentError(
            message("save", "metadata of str to str", repr(metadata), "convert it, e.g. with json.dumps")
        )
    if rows:
        meta[QUANTIZED] = json.dumps(rows)
    if dense:
        meta[_DENSE] = json.dumps(dense)
    write_tensors(_as_path("save", path), flat, meta)


def load(path: str | os.PathLike[str], *, device: Any = None) -> Any:
    """Read what `save` wrote (or any safetensors file of dense tensors).

    Args:
        path: the file.
        device: where the arrays go; the default device unless given.

    Returns:
        The single array that was saved, or a dict name -> Array/QuantizedArray.

    Raises:
        FileNotFoundError: no such file.
        FileFormatError: not a safetensors file, an unknown dtype, or codes and scales that do not belong to the dtype
            that the file states.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
        >>> save(path, nf.asarray([1.0, 2.0], dtype=nf.bfloat16, device="cpu"))
        >>> load(path, device="cpu").dtype
        dtype(bfloat16)
    """
    return load_with_metadata(path, device=device)[0]


def load_with_metadata(path: str | os.PathLike[str], *, device: Any = None) -> tuple[Any, dict[str, str]]:
    """Read a file like `load`, with its string metadata beside the arrays.

    Args:
        path: the file.
        device: where the arrays go; the default device unless given.

    Returns:
        (what `load` returns, metadata without nvfp's own entries).

    Raises:
        FileNotFoundError: no such file.
        FileFormatError: not a safetensors file, or an unknown dtype.
    """
    flat, metadata = _read(_as_path("load", path))
    out: dict[str, Any] = {}
    try:
        for name, dtype in json.loads(metadata.pop(_DENSE, "{}")).items():
            flat[name] = _read_back(flat[name], dtype)
        for name, row in json.loads(metadata.pop(QUANTIZED, "{}")).items():
            parts = {part: asarray(flat.pop(f"{name}.{part}"), device=device) for part in _parts_of(name, flat)}
            fields = {"axis": row["axis"], "shape": tuple(row["shape"]), "tensor_scale": parts.get("tensor_scale")}
            out[name] = QuantizedArray.from_parts(
                parts["codes"], parts["scale"], row_from_json(row["format"]), **fields
            )
    except (KeyError, AttributeError, ValueError, TypeError, RecursionError, OverflowError) as error:
        got = f"{Path(path).name} ({error!r})"
        raise FileFormatError(message("load", "arrays as save writes them", got, "write it anew")) from error
    twice = sorted(set(out) & set(flat))
    if twice:
        got = f"{Path(path).name} with {twice} as both"
        raise FileFormatError(message("load", "names of dense arrays or of quantized ones", got, "write it anew"))
    out.update({name: asarray(value, device=device) for name, value in flat.items()})
    return (out[_SINGLE] if list(out) == [_SINGLE] else out), metadata


def quantized_parts(value: QuantizedArray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return codes and scales of a quantized array on the host by name, and what the metadata say of them.

    Args:
        value: on any device, in any order.

    Raises:
        FileFormatError: a dtype of an element of your own.
    """
    operand = plain(value.operand)  # a transposed array keeps its parts in another order
    raws = {part: getattr(operand, part) for part in PARTS}
    row = {"format": _row_to_json(operand.format), "axis": operand.axis, "shape": operand.shape}
    return {
        part: np.asarray(asnumpy(Array._wrap(raw)), order="C") for part, raw in raws.items() if raw is not None
    }, row


def _stored(host: np.ndarray) -> tuple[np.ndarray, str]:
    """What the file gets, and the dtype to note in the metadata ("" where the file's own says it)."""
    name = host.dtype.name
    if name not in _STORED:
        return host, ""
    stored = np.dtype(_STORED[name])
    return (host[..., None] if host.dtype.kind == "c" else host).view(stored), name


def _read_back(found: np.ndarray, name: str) -> np.ndarray:
    """Undo `_stored`."""
    if found.dtype != _STORED[name]:
        raise KeyError(name)
    if name.startswith("complex"):
        return np.ascontiguousarray(found).view(name)[..., 0]
    return found.view(getattr(ml_dtypes, name))


def _parts_of(name: str, flat: Mapping[str, Any]) -> list[str]:
    return [part for part in PARTS if f"{name}.{part}" in flat]


def _as_path(op: str, path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise DTypeError(message(op, "a path as str or os.PathLike", type(path).__name__, "pass the file first"))
    return Path(path)


def write_tensors(path: Path, flat: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, atomically.

    Args:
        path: of the file.
        flat: contiguous arrays by name.
        metadata: string pairs.

    Raises:
        FileFormatError: a dtype that the format does not have.
        OSError: it cannot be written.
    """
    specs = {}
    for name, value in flat.items():
        if value.dtype.name not in _TYPES:
            raise FileFormatError(
                message("save", f"a dtype out of {sorted(_TYPES)}", f"{name}: {value.dtype}", "cast it first")
            )
        specs[name] = TensorSpec(
            dtype=_TYPES[value.dtype.name][0],
            shape=list(value.shape),
            data_ptr=value.ctypes.data,
            data_len=value.nbytes,
        )
    if not path.parent.is_dir():  # else the message would name the temporary folder
        raise FileNotFoundError(errno.ENOENT, "no such folder, make it first", str(path.parent))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=path.name + ".") as folder:
        temporary = Path(folder) / path.name
        temporary.touch()
        rights = temporary.stat().st_mode  # what the umask gives; the writer below keeps others out
        serialize_file(specs, temporary, dict(metadata) or None)
        temporary.chmod(rights)
        temporary.replace(path)


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    content = path.read_bytes()
    try:
        tensors = deserialize(content)
    except SafetensorError as error:
        raise FileFormatError(
            message("load", "a safetensors file", f"{path.name} ({error})", "check the path")
        ) from error
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    flat = {}
    for name, spec in tensors:
        if spec["dtype"] not in _READ:
            raise FileFormatError(
                message("load", f"a dtype out of {sorted(_READ)}", f"{name}: {spec['dtype']}", "convert the file")
            )
        flat[name] = np.frombuffer(bytearray(spec["data"]), _READ[spec["dtype"]]).reshape(spec["shape"])
    return flat, metadata


def _row_to_json(row: QuantDType) -> dict[str, Any]:
    for element in (row.element, row.scale):
        if ELEMENTS.get(element.name) != element:  # a file names elements: it could not say what this one is
            expected = f"elements out of {sorted(ELEMENTS)}"
            raise FileFormatError(
                message("save", expected, f"{row} with another {element.name}", "dequantize it first")
            )
    fields = {f.name: getattr(row, f.name) for f in dataclasses.fields(row)}
    return {**fields, "element": row.element.name, "scale": row.scale.name}


def row_from_json(fields: dict[str, Any]) -> QuantDType:
    """Return the quantized dtype that the metadata of a file state.

    Args:
        fields: of the row, with elements by name.

    Raises:
        DTypeError, ArgumentError, TypeError: fields that make no dtype.
    """
    return QuantDType(**fields)
