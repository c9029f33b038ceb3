"""The header of a safetensors file, read strictly: what it promises is checked before a byte of data is believed.

The `safetensors` package reads tensors of NumPy's own dtypes only; checkpoints hold bfloat16, FP8 and packed FP4.
Files are mapped, so a tensor costs memory when it is looked at.
"""

from __future__ import annotations

import json
import math
import mmap
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from nvfp.errors import FileFormatError, message

# Name in the file -> dtype of the array it is read as; two FP4 codes are a byte, FP6 codes have no array.
DTYPES: dict[str, np.dtype | None] = {
    "BOOL": np.dtype("bool"),
    **{f"{s}{b}": np.dtype(f"{'u' if s == 'U' else ''}int{b}") for s in "UI" for b in (8, 16, 32, 64)},
    "F16": np.dtype("float16"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("float32"), "F64": np.dtype("float64"), "C64": np.dtype("complex64"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu), "F4": np.dtype("uint8"),
    "F6_E2M3": None, "F6_E3M2": None,
}  # fmt: skip
_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_LONGEST = 100_000_000  # bytes of a header, the format's own limit
_OP = "open_checkpoint"
# Without it Linux refuses to map a file larger than the memory, since each page might be written to. Python knows the
# flag from 3.13 on; its value is that of these machines.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if platform.machine() in ("x86_64", "aarch64") else 0) * (
    sys.platform == "linux"
)


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file.

    Attributes:
        name: in the file.
        dtype: the file's name for it.
        shape: in elements.
        start: first byte in the file.
        nbytes: bytes.
        file: name of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    file: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


def map_file(path: Path) -> Any:
    """Return the bytes of a file, mapped; writes stay in memory (copy on write).

    Args:
        path: the file.

    Raises:
        FileFormatError: an empty file.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        try:
            if hasattr(mmap, "MAP_PRIVATE"):
                return mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError:
            _refuse(path.name, "an empty file")


def read_header(content: Any, file: str) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Read the tensors and the string metadata that a safetensors file holds.

    Args:
        content: its bytes, mapped or not.
        file: its name, for messages.

    Returns:
        (name -> entry in the order of the header, metadata).

    Raises:
        FileFormatError: a header that is cut off, no JSON object, or names a tensor twice; an unknown dtype; offsets
            that overlap, leave holes, lie outside the file or do not belong to dtype and shape.

    Example:
        >>> header = b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
        >>> read_header(len(header).to_bytes(8, "little") + header + b"ab", "x")[0]["x"].shape
        (2,)
    """
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(len(content) - 8, _LONGEST):
        _refuse(file, f"{len(content)} bytes with a header of {length}")
    table = _parsed(bytes(content[8 : 8 + length]), file)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        _refuse(file, "metadata that is not str to str")
    entries = {name: _entry(name, fields, 8 + length, file) for name, fields in table.items()}
    end = 8 + length
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.nbytes)):
        if entry.start != end:
            _refuse(file, f"{entry} at byte {entry.start} of the file, where {end} is next")
        end += entry.nbytes
    if end != len(content):
        _refuse(file, f"{len(content)} bytes where its tensors end at {end}")
    return entries, metadata


def array_of(content: Any, entry: TensorEntry) -> np.ndarray:
    """Return a tensor as an array over the file's bytes (a copy where they are not aligned).

    Args:
        content: bytes of the file.
        entry: which tensor; FP4 comes as packed bytes, two codes each.

    Raises:
        FileFormatError: FP6, or FP4 of an odd length.
    """
    dtype, shape = DTYPES[entry.dtype], entry.shape
    if dtype is None or (entry.dtype == "F4" and (not shape or shape[-1] % 2)):
        _refuse(entry.file, f"{entry}, which no array of nvfp stands for")
    if entry.dtype == "F4":
        shape = (*shape[:-1], shape[-1] // 2)
    found = np.frombuffer(content, dtype, entry.nbytes // dtype.itemsize, entry.start)
    return (found if found.flags.aligned else found.copy()).reshape(shape)


def _parsed(text: bytes, file: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            _refuse(file, "a name that comes twice in the header")
        return found

    try:
        table = json.loads(text.decode("utf-8"), object_pairs_hook=unique) if text[:1] == b"{" else None
    except (ValueError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        _refuse(file, f"a header that JSON refuses ({type(error).__name__})", error)
    if not isinstance(table, dict):
        _refuse(file, "a header that is no JSON object")
    return table


def _entry(name: str, fields: Any, base: int, file: str) -> TensorEntry:
    fields = fields if isinstance(fields, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        _refuse(file, f"{name} of dtype {str(dtype)[:40]}")
    if not _whole(shape) or len(shape) > 32 or math.prod(max(1, n) for n in shape) >= 1 << 60:
        _refuse(file, f"{name} of shape {str(shape)[:80]}")
    if not _whole(offsets) or len(offsets) != 2:
        _refuse(file, f"{name} at {str(offsets)[:80]}")
    wide = DTYPES[dtype]
    bits = math.prod(shape) * _BITS.get(dtype, 8 * wide.itemsize if wide else 0)
    if bits % 8 or offsets[1] - offsets[0] != bits // 8:
        _refuse(file, f"{name} {dtype}{shape} in bytes {offsets}")
    return TensorEntry(name, dtype, tuple(shape), base + offsets[0], bits // 8, file)


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and n >= 0 for n in values)


def _refuse(file: str, got: str, error: Exception | None = None) -> NoReturn:
    raise FileFormatError(message(_OP, "a safetensors file", f"{file}: {got}", "fetch or write it anew")) from error
